"""`Given`: the strategy that a person has, beside the candidates of a space.

How far a candidate is from it: how many fields one changes in what was given to get there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import EXTENT_AXES, PLACED_AXES, TIER_FIELDS, Schedule, TpExchange
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import evaluate_distinct
from shardwise.errors import Fault, InputError
from shardwise.parallel.constraints import illegal_faults
from shardwise.parallel.placement import place
from shardwise.planning.search.candidates import CHOICE_FIELDS, OPTION_FIELDS, Box
from shardwise.planning.search.effects import (
    EFFECTS,
    Kind,
    idle_rows,
    kinds_of,
    most_layers_on_a_rank,
)
from shardwise.planning.search.layer_splits import SPREAD_FIELDS
from shardwise.planning.search.layouts import expert_degrees
from shardwise.planning.search.space import SPACE_FIELDS, Space

__all__ = ["Given", "StrategyLike"]

StrategyLike = Strategy | Mapping[str, Any] | str | Path

_NETWORK = ("placement", "extents", *TIER_FIELDS)
_NO_TIER = ("none", "placement")
_PLAIN = (
    *("gpus", "tp", "tp2", "cp", "ep", "etp", "pp", "vpp"),
    *("micro_batch_size", "global_batch_size"),
)
# Where there is one stage, nothing is spread; where there is one replica, nothing is shared.
_OF_STAGES, _OF_REPLICAS = (*SPREAD_FIELDS, "stage_layers"), ("dp_shard",)
_BY_CHUNKS = [Schedule(word).code for word in ("1f1b", "interleaved")]
# These follow from other fields, so they count as changed only where one was given that cannot be.
_FOLLOWING = ("dp", "schedule")
_SOURCE = "strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One strategy with what of it was said, and which rules it breaks."""

    model: Model
    system: System
    row: Table
    """The strategy, defaults filled in; one row."""
    broken: Mapping[str, Fault]
    """One fault for each rule that it breaks, by the rule's reason."""
    follows_exchange: bool
    """Whether `tp_exchange` was left to follow from whether there is a group at all."""
    counted: frozenset[str]
    """Fields that count as changed though they follow from others or have no effect."""
    follows_batch: bool
    """Whether the global batch follows from the replicas."""

    @classmethod
    def of(cls, model: Model, system: System, space: Space, strategy: StrategyLike) -> "Given":
        """Read a strategy; what it does not name is the only value of the space, or the default.

        Raises
        ------
        InputError
            If a field cannot be read, or is missing and nothing implies it.
        """
        said = _said(strategy)
        fields = _only_values(system, space, said) | said
        impossible = _contradiction(model, fields)
        row = Table.of(model, {name: value for name, value in fields.items() if value is not None})
        if space.batch == "largest" and "global_batch_size" not in said:
            most, dp = int(row.global_batch_size[0]), int(row.dp[0])
            row = replace(row, global_batch_size=np.array([most // dp * dp or most]))
        broken = illegal_faults(model, system, row)
        if impossible is not None:
            broken["degrees"] = impossible
            if fields.get("dp") is None:  # what was filled in is no number of replicas
                broken.pop("batch", None)
        blamed = {fault.field for fault in broken.values()} - {"dp"}
        if "degrees" in broken:
            blamed.add("dp")
        return cls(
            model=model,
            system=system,
            row=row,
            broken=broken,
            follows_exchange=fields.keys().isdisjoint(("tp_exchange", "sequence_parallel")),
            counted=frozenset(blamed & said.keys()),
            follows_batch=space.batch == "largest",
        )

    def without_effect(self) -> frozenset[str]:
        """Fields of it, but those of the network, of which another value changes nothing."""
        training = bool(self.row.training[0])
        idle = {n for n in EFFECTS if idle_rows(self._kind(self.row, training), self.row, n)[0]}
        idle |= {*_OF_STAGES} if self.row.pp[0] == 1 else set()
        return frozenset(idle | ({*_OF_REPLICAS} if self.row.dp[0] == 1 else set()))

    def outside(self, space: Space) -> dict[str, tuple[Any, ...]]:
        """Fields whose value a space does not try, each with what it tries."""
        ours = self.row.strategy(0)
        idle = self.without_effect()
        space = space.settled(self.model)
        found = {}
        for name in SPACE_FIELDS:
            values = None if name in (*_NETWORK, *idle) else self._tried(space, name)
            if values is not None and getattr(ours, name) not in values:
                found[name] = values
        return found | self._network_outside(space)

    def _tried(self, space: Space, name: str) -> tuple[Any, ...] | None:
        """Values of a field in a space, as a strategy has them; None for all that are legal."""
        values = space.values(name, self.system)
        if values is None:
            return None
        if name == "stack":
            return tuple(Stack.load(value) for value in values)
        if name == "etp":
            return tuple(etp for _, etp in expert_degrees((1,), values, int(self.row.tp[0])))
        if name == "global_batch_size" and self.follows_batch:
            dp = int(self.row.dp[0])
            return tuple(batch // dp * dp or batch for batch in values)
        usual = self.model.seq_len if name == "seq_len" else None
        return tuple(usual if value is None else value for value in values)

    def _network_outside(self, space: Space) -> dict[str, tuple[Any, ...]]:
        """Placement and tiers, if nothing that a space tries seats the members as they sit."""
        tried = {name: space.values(name, self.system) or (None,) for name in _NETWORK}
        ways = list(zip(*product(*tried.values()), strict=True))
        columns: dict[str, Any] = dict(zip(_NETWORK, map(list, ways), strict=True))
        networks = Table.of(self.model, {"dp": 1, "gbs": 1, "seq_len": 1, **columns})
        same = self.row.take(np.zeros(len(networks), dtype=np.int64))
        if not np.all(_seated_differently(self.system, same, same.replaced(networks, _NETWORK))):
            return {}
        ours = self.row.strategy(0)
        alone = {f"{axis}_tier" for axis in PLACED_AXES if getattr(ours, axis) == 1}
        alone -= {"tp_tier"} if ours.tp2 > 1 else set()
        return {n: v for n, v in tried.items() if n not in alone and getattr(ours, n) not in v}

    def distances(self, box: Box) -> tuple[Ints, Ints]:
        """Fields to change for each row of `Box.table`, and for each choice beside them."""
        layouts = _counts(self._of_layouts(box.layouts), len(box.layouts))
        training = bool(box.options.training[0])
        options = self._of_options(box.layouts, box.options, training, OPTION_FIELDS)
        choices = self._of_options(box.layouts, box.choices, training, CHOICE_FIELDS)
        rows = layouts[:, np.newaxis] + _counts(options, len(box.options))
        return rows.ravel(), _counts(choices, len(box.choices))

    def changed(self, candidate: Table) -> tuple[str, ...]:
        """Fields to change for a candidate of one row, in the order of `Strategy`."""
        training = bool(candidate.training[0])
        masks = self._of_layouts(candidate) | self._of_options(
            candidate, candidate, training, (*OPTION_FIELDS, *CHOICE_FIELDS)
        )
        return tuple(name for name in SPACE_FIELDS if name in masks and masks[name][0])

    def _of_layouts(self, layouts: Table) -> dict[str, Bools]:
        """Fields of layouts that are to change, row by row."""
        names = [n for n in _PLAIN if n != "global_batch_size" or not self.follows_batch]
        names += sorted(self.counted.intersection((*_FOLLOWING, *_PLAIN)) - set(names))
        differ = {name: getattr(layouts, name) != getattr(self.row, name)[0] for name in names}
        differ |= self._of_stages(layouts)
        network = evaluate_distinct(self._of_network, layouts)
        return differ | {name: column[network.position] for name, column in network.values.items()}

    def _of_stages(self, layouts: Table) -> dict[str, Bools]:
        """What spreads layers over stages and shards over replicas, where there are several.

        A schedule that follows from the chunks is no field of its own.
        """
        own = self.row
        several = layouts.pp > 1
        differ = {n: (getattr(layouts, n) != getattr(own, n)[0]) & several for n in SPREAD_FIELDS}
        ours = own.stage_lists[int(own.stage_layers[0])] if own.stage_layers[0] >= 0 else None
        same = np.array([*(ours == theirs for theirs in layouts.stage_lists), ours is None])
        differ["stage_layers"] = ~same[layouts.stage_layers] & several
        here, there = (np.where(n < layouts.dp, n, 0) for n in (own.dp_shard[0], layouts.dp_shard))
        differ["dp_shard"] = here != there
        if "schedule" not in self.counted:
            follows = np.isin(layouts.schedule, _BY_CHUNKS) & np.isin(own.schedule, _BY_CHUNKS)
            differ["schedule"] = (layouts.schedule != own.schedule[0]) & ~follows
        return differ

    def _of_network(self, layouts: Table) -> dict[str, Bools]:
        """Placement and tiers, where what was given would seat the members elsewhere."""
        ours = self.row.take(np.zeros(len(layouts), dtype=np.int64))

        def moved(*kept: str) -> Bools:
            return _seated_differently(self.system, layouts, layouts.replaced(ours, kept))

        nothing_fits = moved(*_NETWORK)
        given = (layouts.extents >= 0) | (ours.extents >= 0)
        extents, nothing_fits = nothing_fits & given, nothing_fits & ~given
        of_tiers = nothing_fits & moved(*TIER_FIELDS)
        differ = {"placement": nothing_fits & (moved("placement") | ~of_tiers), "extents": extents}
        for axis, name in zip(PLACED_AXES, TIER_FIELDS, strict=True):
            other = getattr(layouts, name) != getattr(ours, name)
            several = getattr(layouts, axis) > 1
            several |= (layouts.tp2 > 1) & (axis == "tp")
            differ[name] = of_tiers & other & several
        for name in self.counted.intersection(_NETWORK):
            one, other = (_words_or_codes(table, name) for table in (layouts, ours))
            differ[name] = one != other
        return differ

    def _of_options(
        self, layouts: Table, options: Table, training: bool, names: tuple[str, ...]
    ) -> dict[str, Bools]:
        """Other fields that are to change, row by row, on layouts where the same have effect."""
        ours = {name: getattr(self.row, name)[0] for name in names if name != "stack"}
        if "tp_exchange" in ours and self.follows_exchange:
            word = "rs_ag" if layouts.tp[0] > 1 else "all_reduce"
            ours["tp_exchange"] = TpExchange(word).code
        differ: dict[str, Bools] = {n: getattr(options, n) != value for n, value in ours.items()}
        if "stack" in names:
            same = [stack == self.row.stacks[0] for stack in options.stacks]
            differ["stack"] = ~np.array(same)[options.stack]
        kind = self._kind(layouts, training)
        for name in (set(names) & set(EFFECTS)) - self.counted:
            put: dict[str, Any] = {name: np.full(len(options), ours[name])}
            idle = idle_rows(kind, options, name) & idle_rows(kind, replace(options, **put), name)
            differ[name] = differ[name] & ~idle
        return differ

    def _kind(self, layouts: Table, training: bool) -> Kind:
        """Of layouts of one kind."""
        first = layouts.take(slice(0, 1))
        layers = most_layers_on_a_rank(self.model, first)
        ((kind, _),) = kinds_of(self.model, first, layers=layers, panels=True)
        return replace(kind, training=training)


def _said(strategy: StrategyLike) -> dict[str, Any]:
    """Fields that a person named, as `Strategy` has them."""
    if isinstance(strategy, Mapping):
        strategy = {
            name: None if name in TIER_FIELDS and str(value).lower() in _NO_TIER else value
            for name, value in strategy.items()
        }
    noun = Strategy.load(strategy)
    named = {name: getattr(noun, name) for name in noun.model_fields_set}
    return {
        name: value for name, value in named.items() if value is not None or name in TIER_FIELDS
    }


def _only_values(system: System, space: Space, said: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that nobody named and that have one value in the space."""
    found = {}
    for name in SPACE_FIELDS:
        values = space.values(name, system)
        follows = name == "schedule" or (name == "tp_exchange" and "sequence_parallel" in said)
        if name not in said and values is not None and len(values) == 1 and not follows:
            found[name] = values[0]
    if isinstance(found.get("etp"), str):  # as tp
        found["etp"] = said.get("tp", found.get("tp", 1))
    return found


def _contradiction(model: Model, fields: Mapping[str, Any]) -> Fault | None:
    """What is wrong with the degrees, if they do not make up the accelerators.

    Raises
    ------
    InputError
        If something is missing.
    """
    try:
        Strategy.validated(fields, source=_SOURCE).resolved(model)
    except InputError as error:
        missing = [fault for fault in error.faults if not fault.has_value]
        if missing:
            raise InputError(missing) from None
        return error.faults[0]
    return None


def _seated_differently(system: System, one: Table, other: Table) -> Bools:
    """Rows in which some axis has other extents."""
    here, there = place(system, one), place(system, other)
    moved = [getattr(here, axis) != getattr(there, axis) for axis in EXTENT_AXES]
    return np.any(moved, axis=(0, 1))


def _words_or_codes(table: Table, name: str) -> NDArray[Any]:
    """A column of two tables in the same terms: extents as text, whose positions may differ."""
    return table.to_columns()[name] if name == "extents" else getattr(table, name)


def _counts(differ: Mapping[str, Bools], length: int) -> Ints:
    return np.sum([*differ.values(), np.zeros(length, dtype=np.bool_)], axis=0, dtype=np.int64)
