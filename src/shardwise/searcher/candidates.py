"""`Candidates`: the strategies of a space, numbered, as boxes of layouts x options x choices.

Every layout is tried with every combination of options and choices that has an effect on it. A
field that has none keeps the first of its values that is modelled, so that no run is counted twice.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from shardwise.arrays import Ints
from shardwise.errors import Fault, InputError
from shardwise.model import Model
from shardwise.rules import RULES, broken_rule
from shardwise.searcher.layouts import LAYOUT_FIELDS, layouts_of
from shardwise.searcher.space import SPACE_FIELDS, Space
from shardwise.system import System
from shardwise.table import CHOICES, Table

__all__ = ["OPTION_FIELDS", "Box", "Candidates", "Scale", "boxes_of", "without_effect"]

OPTION_FIELDS = tuple(name for name in SPACE_FIELDS if name not in (*LAYOUT_FIELDS, *CHOICES))

# What a space may hold: beyond it, the list of its candidates alone would take long.
_MOST_SCALES, _MOST_OPTIONS = 1000, 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What decides which options have an effect on a layout."""

    tp: bool
    """Whether tensor parallelism splits anything."""
    dp: bool
    """Whether there are several replicas."""
    training: bool


# When another value of a field than the first changes nothing.
_WITHOUT_EFFECT: dict[str, Callable[[_Kind, Mapping[str, Any]], bool]] = {
    "tp_exchange": lambda kind, _: not kind.tp,
    "tp_overlap": lambda kind, _: not kind.tp,
    "tp_regather": lambda kind, values: (
        not (kind.tp and kind.training) or values["tp_exchange"] != "rs_ag"
    ),
    "recompute": lambda kind, _: not kind.training,
    "fused_activation": lambda kind, _: not kind.training,
    "offload_activations": lambda kind, _: not kind.training,
    "offload_optimizer": lambda kind, _: not kind.training,
    "dp_overlap": lambda kind, _: not (kind.dp and kind.training),
    "zero": lambda kind, _: not (kind.dp and kind.training),
}


def without_effect(*, tp: bool, dp: bool, training: bool, tp_exchange: str) -> frozenset[str]:
    """Fields of which another value changes nothing where tp or dp split anything, or do not."""
    kind = _Kind(tp=tp, dp=dp, training=training)
    values = {"tp_exchange": tp_exchange}
    return frozenset(name for name, idle in _WITHOUT_EFFECT.items() if idle(kind, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One number of GPUs and one global batch (or the largest that it may be)."""

    gpus: int
    global_batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Layouts of one scale that the same options and choices have an effect on."""

    scale: Scale
    start: int
    """Number of its first candidate."""
    layouts: Table
    broken: Ints
    """Position in `RULES` of the rule that each layout breaks, or -1."""
    options: Table
    choices: Table

    def __len__(self) -> int:
        return len(self.layouts) * self.width

    @property
    def width(self) -> int:
        """Candidates of one layout."""
        return len(self.options) * len(self.choices)

    def cut(self, most_rows: int) -> Iterator["Box"]:
        """Cut the box along its layouts, to about so many rows of `table` in a piece."""
        step = max(1, most_rows // len(self.options))
        for first in range(0, len(self.layouts), step):
            piece = slice(first, first + step)
            yield replace(
                self,
                start=self.start + first * self.width,
                layouts=self.layouts.take(piece),
                broken=self.broken[piece],
            )

    def table(self) -> Table:
        """Every layout with every option, one row each, with all choices."""
        layouts, options = np.indices((len(self.layouts), len(self.options))).reshape(2, -1)
        rows = self._rows(layouts, options, np.zeros(1, dtype=np.int64))
        return rows.with_choices({name: getattr(self.choices, name) for name in CHOICES})

    def numbers(self, rows: Ints, choices: Ints) -> Ints:
        """Numbers of candidates by row of `table` and position of the choice."""
        return self.start + rows * len(self.choices) + choices

    def strategies(self, numbers: Ints) -> Table:
        """Candidates by number, one row each."""
        return self._rows(*self.positions(numbers))

    def positions(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """Layout, option and choice of candidates by number."""
        layouts, inside = np.divmod(numbers - self.start, self.width)
        options, choices = np.divmod(inside, len(self.choices))
        return layouts, options, choices

    def _rows(self, layouts: Ints, options: Ints, choices: Ints) -> Table:
        parts = (
            (self.layouts, LAYOUT_FIELDS, layouts),
            (self.options, OPTION_FIELDS, options),
            (self.choices, CHOICES, choices),
        )
        columns: dict[str, Any] = {
            name: getattr(part, name)[rows] for part, names, rows in parts for name in names
        }
        return Table(**columns, stacks=self.options.stacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """All strategies of a space."""

    legal: tuple[Box, ...]
    """Whose layouts obey the rules."""
    illegal: tuple[Box, ...]
    """The others, numbered after them."""

    @classmethod
    def of(cls, model: Model, system: System, space: Space) -> "Candidates":
        """Enumerate the layouts of a space, and what may be tried on them.

        Raises
        ------
        InputError
            If a value is missing that nothing implies.
        """
        first = _first_values(model, system, space)
        _check_size(system, space)
        legal: list[Box] = []
        illegal: list[Box] = []
        inside = _Inside(model, system, space)
        for gpus, batch in product(space.gpus or (), space.global_batch_size or ()):
            layouts = layouts_of(model, system, space, first, gpus, batch)
            scale = Scale(gpus=gpus, global_batch_size=batch)
            obeys = np.full(len(layouts.legal), -1)
            legal += inside.boxes(scale, layouts.legal, obeys)
            illegal += inside.boxes(scale, layouts.illegal, layouts.broken)
        numbered = _numbered([*legal, *illegal])
        return cls(legal=numbered[: len(legal)], illegal=numbered[len(legal) :])

    def __len__(self) -> int:
        return sum(map(len, (*self.legal, *self.illegal)))

    @property
    def scales(self) -> tuple[Scale, ...]:
        """Every number of GPUs with every batch."""
        return tuple(dict.fromkeys(box.scale for box in (*self.legal, *self.illegal)))

    def strategies(self, numbers: Ints) -> Table:
        """Candidates by number, in that order, one row each."""
        boxes = [*self.legal, *self.illegal]
        starts = np.array([box.start for box in boxes])
        where = np.searchsorted(starts, numbers, side="right") - 1
        found = [boxes[b].strategies(numbers[where == b]) for b in np.unique(where)]
        order = np.argsort(np.argsort(where, kind="stable"), kind="stable")
        return Table.joined(found).take(order)


def boxes_of(model: Model, system: System, space: Space, scale: Scale, layouts: Table) -> list[Box]:
    """Layouts that obey the rules, with the options and choices that a space tries on them."""
    return _Inside(model, system, space).boxes(scale, layouts, np.full(len(layouts), -1))


def refusals(boxes: Sequence[Box]) -> Counter[str]:
    """How many candidates of boxes have a layout that breaks a rule, by reason."""
    counts: Counter[str] = Counter()
    for box in boxes:
        for rule, layouts in Counter(box.broken[box.broken >= 0].tolist()).items():
            counts[RULES[rule].reason] += layouts * box.width
    return counts


def _numbered(boxes: Sequence[Box]) -> tuple[Box, ...]:
    starts = np.cumsum([0, *map(len, boxes)]).tolist()
    return tuple(replace(box, start=start) for box, start in zip(boxes, starts, strict=False))


def _first_values(model: Model, system: System, space: Space) -> dict[str, Any]:
    """The first value of every field that is none of a layout."""
    missing = [n for n in ("gpus", "global_batch_size") if not getattr(space, n)]
    first = {n: (space.values(n, system) or (None,))[0] for n in (*OPTION_FIELDS, *CHOICES)}
    if first["seq_len"] is None and model.seq_len is None:
        missing.append("seq_len")
    if missing:
        raise InputError([Fault(field=n, problem="is missing: give it") for n in missing])
    return first


def _first_usable(model: Model, system: System, name: str, values: Sequence[Any]) -> Any:
    """The first value of a field that no rule refuses by itself, if there is one."""
    rules = [rule for rule in RULES if rule.field == name]
    if len(values) == 1 or not rules:
        return values[0]
    table = Table.of(model, {"dp": 1, "gbs": 1, "seq_len": 1, name: list(values)})
    broken = broken_rule(model, system, table, rules).tolist()
    usable = [value for value, rule in zip(values, broken, strict=True) if rule < 0]
    return (usable or values)[0]


def _check_size(system: System, space: Space) -> None:
    """Refuse what would not even be counted in reasonable time and memory."""
    scales = len(space.gpus or ()) * len(space.global_batch_size or ())
    if scales > _MOST_SCALES:
        problem = f"with global_batch_size makes {scales:,} scales; at most {_MOST_SCALES:,}"
        raise InputError(Fault(source="space", field="gpus", problem=problem))
    sizes = [len(space.values(name, system) or (None,)) for name in (*OPTION_FIELDS, *CHOICES)]
    combined = math.prod(sizes)
    if combined > _MOST_OPTIONS:
        named = zip((*OPTION_FIELDS, *CHOICES), sizes, strict=True)
        told = ", ".join(f"{name} {size}" for name, size in named if size > 1)
        problem = f"makes {combined:,} combinations beside degrees, at most {_MOST_OPTIONS:,}: "
        raise InputError(Fault(source="space", problem=problem + told))


class _Inside:
    """Options and choices of a space by kind of layout."""

    def __init__(self, model: Model, system: System, space: Space) -> None:
        self._model = model
        self._values = {n: space.values(n, system) or (None,) for n in SPACE_FIELDS}
        self._idle = {n: _first_usable(model, system, n, self._values[n]) for n in _WITHOUT_EFFECT}
        self._of_kind: dict[_Kind, tuple[Table, Table]] = {}

    def boxes(self, scale: Scale, layouts: Table, broken: Ints) -> list[Box]:
        """Cut the layouts of a scale by what has an effect on them."""
        found = []
        for tp, dp, training in product((False, True), (False, True), self._values["training"]):
            some = np.flatnonzero(((layouts.tp > 1) == tp) & ((layouts.dp > 1) == dp))
            if some.size:
                options, choices = self._inside(_Kind(tp=tp, dp=dp, training=training))
                found.append(
                    Box(
                        scale=scale,
                        start=0,
                        layouts=layouts.take(some),
                        broken=broken[some],
                        options=options,
                        choices=choices,
                    )
                )
        return found

    def _inside(self, kind: _Kind) -> tuple[Table, Table]:
        if kind not in self._of_kind:
            options, choices = (self._combined(kind, names) for names in (OPTION_FIELDS, CHOICES))
            self._of_kind[kind] = options, choices
        return self._of_kind[kind]

    def _combined(self, kind: _Kind, names: Sequence[str]) -> Table:
        """Every combination of some fields' values that has an effect of its own."""
        tried = {name: self._values[name] for name in names}
        if "training" in tried:
            tried["training"] = (kind.training,)
        kept = []
        for combination in product(*tried.values()):
            values = dict(zip(names, combination, strict=True))
            idle = [name for name in names if name in self._idle]
            idle = [name for name in idle if _WITHOUT_EFFECT[name](kind, values)]
            if all(values[name] == self._idle[name] for name in idle):
                kept.append(values)
        columns: dict[str, Any] = {name: [values[name] for values in kept] for name in names}
        if columns.get("seq_len", [1])[0] is None:
            columns["seq_len"] = self._model.seq_len
        return Table.of(self._model, {"dp": 1, "gbs": 1, "seq_len": 1, **columns})
