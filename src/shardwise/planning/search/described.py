"""Software that a search describes in words, and that may be one of several.

A search times the most probable candidate. Whether a strategy fits is a question to all of them, as
in `estimate`: to those whose engine has its stage of ZeRO, each with what it does where the space
leaves a field to the software.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np

from shardwise.analysis.fit_probability import Margins, fits_probability, loaded_unevenly
from shardwise.arrays import Floats
from shardwise.config.model import Model
from shardwise.config.software.record import Software
from shardwise.config.software.resolve import (
    DECIDING_FIELDS,
    is_description,
    match_of,
)
from shardwise.config.stack import Stack
from shardwise.config.strategy_fields import COLUMNS, Kind
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import stored_bytes
from shardwise.engine.evaluate import peak_memory
from shardwise.parallel.constraints import first_violation
from shardwise.parallel.pipeline_layout import distinct_stage_groups
from shardwise.planning.search.space import Space

_DECIDING = ("stack", *DECIDING_FIELDS)
_HALVINGS = 20
_ALIKE = 1e-4

Part = tuple[Floats, Floats, Margins]
"""Weight of a candidate, its peak of tensors [byte] and its margins; one value per row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The descriptions of a space that several stacks may be meant by."""

    model: Model
    system: System
    texts: tuple[tuple[Stack, str | Software], ...]
    """Each by the stack that its rows have."""
    left: frozenset[str]
    """Fields that the space leaves to the software."""
    known: dict[tuple[int, ...], tuple[Stack, tuple[tuple[float, Stack], ...]]]
    """Software by the identity of a stack, which stays alive with it, and codes of fields."""

    @classmethod
    def of(cls, space: Space, model: Model, system: System) -> Self | None:
        """Return those of a space; None without any."""
        space = space.for_model(model)
        texts = tuple(
            (space.stack_of(one, system), one)
            for one in space.stack or ()
            if is_description(one) and len(match_of(one, system, model).candidates) > 1
        )
        if not texts:
            return None
        each = [one for _, text in texts for one in match_of(text, system, model).candidates]
        named = {name for one in each for name in one.stack.field_defaults}
        kinds = (Kind.WORD, Kind.WHOLE, Kind.NUMBER, Kind.FLAG)
        left = {
            name
            for name in named - {*_DECIDING}
            if getattr(space, name, 0) is None
            and COLUMNS[name].kind in kinds
            and COLUMNS[name].default is not None
            and len(space.values(name, system) or "  ") == 1
        }
        return cls(model=model, system=system, texts=texts, left=frozenset(left), known={})

    def probability(self, table: Table, *, stated: bool) -> Floats:
        """Return the probability that each row fits, over the software that it may mean.

        Parameters
        ----------
        stated
            Whether the user states the load of experts.
        """
        capacity = self.system.accelerator.memory[0].capacity
        found = _mixed(self._parts(table, stated=stated), np.asarray(capacity))
        return np.where(table.training, found, np.nan)

    def needed(self, table: Table, probability: float, *, stated: bool) -> Floats:
        """Return the least capacity that rows fit into with a probability [byte].

        It is between those of their candidates.
        """
        shape = np.broadcast_shapes(*(getattr(table, name).shape for name in COLUMNS))
        if 0 in shape:
            return np.empty(shape)
        parts = self._parts(table, stated=stated)
        each = [margins.needed(total, probability) for _, total, margins in parts]
        counts = [weight > 0 for weight, *_ in parts]
        pairs = list(zip(counts, each, strict=True))
        low = np.min([np.where(has, size, np.inf) for has, size in pairs], axis=0)
        high = np.max([np.where(has, size, 0.0) for has, size in pairs], axis=0)
        for _ in range(_HALVINGS if np.any(high > low * (1 + _ALIKE)) else 0):
            middle = np.sqrt(low * high)
            enough = _mixed(parts, middle) >= probability
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return high.reshape(shape)

    def _parts(self, table: Table, *, stated: bool) -> list[Part]:
        """Each candidate of the rows; without legal ones all count."""
        shape = np.broadcast_shapes(*(getattr(table, name).shape for name in COLUMNS))
        flat = table.changed(
            **{name: np.broadcast_to(getattr(table, name), shape).ravel() for name in COLUMNS}
        )
        found, legal = [], []
        for weights, rows in self._candidates(flat):
            loaded = loaded_unevenly(self.model, rows, stated=stated)
            stages = distinct_stage_groups(self.model, loaded)
            holding = peak_memory(loaded, stored_bytes(self.model, loaded), stages)
            found.append((weights, holding.memory.total, Margins.of(self.system, rows)))
            legal.append(weights * (first_violation(self.model, self.system, rows) < 0))
        some = np.sum(legal, axis=0) > 0
        return [
            (np.where(some, own, weights), total, margins)
            for (weights, total, margins), own in zip(found, legal, strict=True)
        ]

    def _candidates(self, table: Table) -> list[tuple[Floats, Table]]:
        """The rows with each software that they may mean, by rank, and the weight of it."""
        keys, group = np.unique(
            [getattr(table, name) for name in _DECIDING], axis=1, return_inverse=True
        )
        named = [dict(zip(_DECIDING, key, strict=True)) for key in keys.T.tolist()]
        every = [self._of(table.stacks, values) for values in named]
        stacks = tuple(dict.fromkeys(stack for one in every for _, stack in one))
        places = {stack: place for place, stack in enumerate(stacks)}
        found = []
        for rank in range(max(map(len, every))):
            here = [one[rank] if rank < len(one) else (0.0, one[0][1]) for one in every]
            weights = np.array([weight for weight, _ in here])[group]
            codes = np.array([places[stack] for _, stack in here])[group]
            columns: dict[str, Any] = {
                name: np.array([_default(stack, name) for stack in stacks])[codes]
                for name in self.left
            }
            found.append((weights, table.changed(stack=codes, stacks=stacks, **columns)))
        return found

    def _of(
        self, stacks: tuple[Stack, ...], values: Mapping[str, int]
    ) -> tuple[tuple[float, Stack], ...]:
        """Software that rows with these codes may mean."""
        stack = stacks[values["stack"]]
        stated = {name: code for name, code in values.items() if name != "stack"}
        key = id(stack), *stated.values()
        if key not in self.known:
            self.known[key] = stack, self._meant(stack, stated)
        return self.known[key][1]

    def _meant(self, stack: Stack, stated: Mapping[str, int]) -> tuple[tuple[float, Stack], ...]:
        text = next((text for own, text in self.texts if own == stack), None)
        if text is None:
            return ((1.0, stack),)
        words = {name: _word(name, code) for name, code in stated.items()}
        each = match_of(text, self.system, self.model, words).candidates
        return tuple((one.weight, one.stack) for one in each)


def _word(name: str, code: int) -> Any:
    field = COLUMNS[name]
    return field.words[code] if field.kind is Kind.WORD else code


@cache
def _default(stack: Stack, name: str) -> Any:
    """What a stack has in a column where a strategy leaves the field to it."""
    field = COLUMNS[name]
    value = stack.field_defaults.get(name, field.default)
    return field.words.index(value) if field.kind is Kind.WORD else value or 0


def _mixed(parts: list[Part], capacity: Floats) -> Floats:
    """Probability that the peak of a mixture fits."""
    sums = sum(weight * fits_probability(total, capacity, m) for weight, total, m in parts)
    weights: Floats = np.sum([weight for weight, *_ in parts], axis=0)
    return np.asarray(sums / weights)
