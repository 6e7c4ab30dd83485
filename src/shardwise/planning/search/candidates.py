"""`Candidates`: the strategies of a space, numbered, as boxes of layouts x options x choices.

Every layout is combined with every combination of options and choices that has an effect on it. A
field without effect keeps one value, the first that is legal, so that no strategy counts twice.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Ints, distinct_values
from shardwise.config.base import MISSING
from shardwise.config.enums import Dispatcher
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_columns import LISTS
from shardwise.config.strategy_fields import CHOICE_FIELDS, LAYOUT_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import FEW_ROWS, distinct_rows, known_of
from shardwise.errors import Fault, InputError
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.constraints.constraint import nearest_multiples
from shardwise.parallel.constraints.degrees import reduced_widths
from shardwise.parallel.effects import (
    EFFECTS,
    NEUTRAL,
    Kind,
    idle_rows,
    kinds_of,
    most_layers_on_a_rank,
)
from shardwise.planning.search.layouts import groups_without, layouts_of
from shardwise.planning.search.space import SPACE_FIELDS, Space
from shardwise.records import dataclass, replace

_BATCH_RULE = next(n for n, rule in enumerate(CONSTRAINTS) if rule.reason == "batch")
OPTION_FIELDS = tuple(n for n in SPACE_FIELDS if n not in (*LAYOUT_FIELDS, *CHOICE_FIELDS))

# Other fields of a table of the values of one field.
_PLAIN: dict[str, Any] = {"dp": 1, "gbs": 1, "seq_len": 1}
# Limits of a space: beyond them, enumerating its candidates alone would take long.
_MOST_SCALES, _MOST_OPTIONS = 1000, 1_000_000
# Fields that options do not depend on, and spaces whose small tables are saved.
_SIZES, _MOST_KNOWN = ("gpus", "global_batch_size"), 8
# Narrower panels of 2D products do not fill a tile of a kernel (`cost.matmul`).
_LEAST_PANEL = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One number of GPUs and one global batch (or its upper limit)."""

    gpus: int
    global_batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Layouts of one scale, with the options and choices that have an effect on them."""

    scale: Scale
    start: int
    """Number of its first candidate."""
    layouts: Table
    broken: Ints
    """Position in `CONSTRAINTS` of the rule that each layout breaks, or -1."""
    options: Table
    choices: Table
    selected: tuple[str, ...] = ()
    """Fields of which one value is selected (see `Space.selected`)."""
    place: Ints | None = None
    """Position of each layout in the box that numbers it; None: in order from 0."""

    def __len__(self) -> int:
        return len(self.layouts) * self.width

    @property
    def width(self) -> int:
        """Candidates of one layout."""
        return len(self.options) * len(self.choices)

    def select(self, layouts: Ints) -> "Box":
        """Some of the layouts, whose candidates keep their numbers."""
        return replace(
            self,
            layouts=self.layouts.take(layouts),
            broken=self.broken[layouts],
            place=layouts if self.place is None else self.place[layouts],
        )

    def cut(self, most_rows: int) -> Iterator["Box"]:
        """Cut the box along its layouts into pieces of about `most_rows` rows of `table`.

        Layouts of which one is selected stay together.
        """
        step = max(1, most_rows // len(self.options))
        first = 0
        for end in self._ends(step):
            piece = slice(first, end)
            yield replace(
                self,
                start=self.start + (first * self.width if self.place is None else 0),
                layouts=self.layouts.take(piece),
                broken=self.broken[piece],
                place=None if self.place is None else self.place[piece],
            )
            first = end

    def _ends(self, step: int) -> Iterator[int]:
        """Ends of pieces of about `step` layouts."""
        count = len(self.layouts)
        if not self.selected:
            yield from (*range(step, count, step), count)
            return
        group = groups_without(self.layouts, self.selected)
        ends = [*(np.flatnonzero(group[1:] != group[:-1]) + 1).tolist(), count]
        first = 0
        for end, after in zip(ends, [*ends[1:], None], strict=True):
            if after is None or after - first > step:
                yield end
                first = end

    def table(self, rows: Ints | None = None) -> Table:
        """Every layout with every option as a row, each with all choices; or some of these rows."""
        if rows is None:
            rows = np.arange(len(self.layouts) * len(self.options))
        layouts, options = np.divmod(rows, len(self.options))
        every = self._rows(layouts, options, np.zeros(1, dtype=np.int64))
        return every.with_choices({name: getattr(self.choices, name) for name in CHOICE_FIELDS})

    def options_with_choices(self) -> Table:
        """Every option with every choice, one row each."""
        options, choices = np.indices((len(self.options), len(self.choices))).reshape(2, -1)
        columns = {name: getattr(self.choices, name)[choices] for name in CHOICE_FIELDS}
        return replace(self.options.take(options), **columns)

    def numbers(self, rows: Ints, choices: Ints) -> Ints:
        """Numbers of candidates by row of `table` and position of the choice."""
        if self.place is not None:
            layouts, options = np.divmod(rows, len(self.options))
            rows = self.place[layouts] * len(self.options) + options
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
            (self.choices, CHOICE_FIELDS, choices),
        )
        columns: dict[str, Any] = {
            name: getattr(part, name)[rows] for part, names, rows in parts for name in names
        }
        columns |= {name: getattr(self.layouts, name) for name in ("stage_lists", "extent_lists")}
        columns |= {n: getattr(self.options, n) for n in ("stacks", "length_lists", "named")}
        return Table(**columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes of one scale with the same choices, scanned as one: few rows take as long as many."""

    each: tuple[Box, ...]

    def __len__(self) -> int:
        return sum(map(len, self.each))

    @property
    def scale(self) -> Scale:
        """Scale of all of them."""
        return self.each[0].scale

    @property
    def choices(self) -> Table:
        """Choices of each of them."""
        return self.each[0].choices

    @property
    def starts(self) -> Ints:
        """First layout of each among those of all, and how many there are."""
        found: Ints = np.cumsum([0, *(len(box.layouts) for box in self.each)])
        return found

    def table(self) -> Table:
        """Rows of `Box.table` of each."""
        return self.joined([box.table() for box in self.each])

    def joined(self, tables: Sequence[Table]) -> Table:
        """Rows of some of them together, each with all choices."""
        every = tables[0] if len(tables) == 1 else Table.joined(tables)
        return every.with_choices({name: getattr(self.choices, name) for name in CHOICE_FIELDS})

    def numbers(self, rows: Ints, choices: Ints) -> Ints:
        """Numbers of candidates by row of `table` and position of the choice."""
        sizes = [len(box.layouts) * len(box.options) for box in self.each]
        starts = np.cumsum([0, *sizes])
        of = np.searchsorted(starts, rows, side="right") - 1
        found = np.empty_like(rows)
        for at, box in enumerate(self.each):
            here = of == at
            found[here] = box.numbers(rows[here] - starts[at], choices[here])
        return found


def alike(boxes: Sequence[Box]) -> list[list[int]]:
    """Positions of boxes that can be scanned as one: of one scale and with the same choices."""
    groups: dict[Hashable, list[int]] = {}
    for at, box in enumerate(boxes):
        choices = tuple(getattr(box.choices, name).tobytes() for name in CHOICE_FIELDS)
        key = box.scale, choices, box.start if box.selected else None
        groups.setdefault(key, []).append(at)
    return [*groups.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """All strategies of a space."""

    legal: tuple[Box, ...]
    """Boxes whose layouts obey the rules."""
    illegal: tuple[Box, ...]
    """The other boxes, numbered after them."""

    @classmethod
    def of(cls, model: Model, system: System, space: Space) -> "Candidates":
        """Enumerate the layouts of a space with their options and choices."""
        space = space.settled(model, system)
        first = _first_values(model, system, space)
        options = _known_tables(model, system, space)
        legal: list[Box] = []
        illegal: list[Box] = []
        for gpus, batch in product(space.gpus or (), space.global_batch_size or ()):
            layouts = layouts_of(model, system, space, first, gpus, batch)
            scale = Scale(gpus=gpus, global_batch_size=batch)
            legal += [box for _, box in options.boxes(scale, layouts.legal)]
            refused = options.boxes(scale, layouts.illegal, layouts.broken)
            illegal += [box for _, box in refused]
        numbered = _numbered([*legal, *illegal])
        return cls(legal=numbered[: len(legal)], illegal=numbered[len(legal) :])

    def __len__(self) -> int:
        return sum(map(len, (*self.legal, *self.illegal)))

    @property
    def nearest_batches(self) -> tuple[int, ...]:
        """Where replicas cannot share the global batch: the nearest batches that some can."""
        near: dict[int, set[int]] = {}
        for box in self.illegal:
            rows = box.layouts.take(np.flatnonzero(box.broken == _BATCH_RULE))
            batch = box.scale.global_batch_size
            for unit in np.unique(rows.dp * rows.micro_batch_size).tolist():
                near.setdefault(batch, set()).update(nearest_multiples(batch, unit))
        sides = [[n for n in found if n < batch] for batch, found in near.items()]
        found = {max(side) for side in sides if side}
        return tuple(sorted(found | {min(n for n in near[b] if n > b) for b in near}))

    def number_at(self, scale: Scale) -> int:
        """Return the number of strategies of a scale."""
        return sum(len(box) for box in (*self.legal, *self.illegal) if box.scale == scale)

    @property
    def scales(self) -> tuple[Scale, ...]:
        """Every number of GPUs with every batch."""
        return tuple(dict.fromkeys(box.scale for box in (*self.legal, *self.illegal)))

    def strategies(self, numbers: Ints) -> Table:
        """Candidates by number, in that order, one row each."""
        boxes = [*self.legal, *self.illegal]
        starts = np.array([box.start for box in boxes])
        where = np.searchsorted(starts, numbers, side="right") - 1
        found = [boxes[b].strategies(numbers[where == b]) for b in distinct_values(where)]
        order = np.argsort(np.argsort(where, kind="stable"), kind="stable")
        return Table.joined(found).take(order)


def _known_tables(model: Model, system: System, space: Space) -> "_OptionTables":
    """Options and choices of a settled space; small ones as an earlier search made them.

    They depend neither on the number of GPUs nor on the batch.
    """
    if _combinations(model, system, space) > FEW_ROWS:
        return _OptionTables(model, system, space)
    values = {n: getattr(space, n) for n in Space.model_fields if n not in (*_SIZES, "stack")}
    key = space.gpus == (1,), space.named, *values.items()
    known: dict[Any, _OptionTables] = known_of(
        dict, _OptionTables, model, system, *space.stacks(system)
    )
    if key not in known:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[key] = _OptionTables(model, system, space)
    return known[key]


def boxes_of(
    model: Model, system: System, space: Space, scale: Scale, layouts: Table
) -> list[tuple[Ints, Box]]:
    """Return boxes of legal layouts, each with the positions of its layouts."""
    return _OptionTables(model, system, space.settled(model, system)).boxes(scale, layouts)


def cut_together(boxes: Iterable[Box], most_rows: int) -> Iterator[list[Box]]:
    """Cut boxes into pieces of about so many rows of `Box.table`, small boxes together."""
    batch: list[Box] = []
    rows = 0
    for piece in (piece for box in boxes if len(box) for piece in box.cut(most_rows)):
        own = len(piece.layouts) * len(piece.options)
        if batch and rows + own > most_rows:
            yield batch
            batch, rows = [], 0
        batch.append(piece)
        rows += own
    if batch:
        yield batch


def refusals(boxes: Sequence[Box]) -> Counter[str]:
    """Return the number of candidates whose layout breaks a rule, by reason."""
    counts: Counter[str] = Counter()
    for box in boxes:
        for rule, layouts in Counter(box.broken[box.broken >= 0].tolist()).items():
            counts[CONSTRAINTS[rule].reason] += layouts * box.width
    return counts


def _numbered(boxes: Sequence[Box]) -> tuple[Box, ...]:
    starts = np.cumsum([0, *map(len, boxes)]).tolist()
    return tuple(replace(box, start=start) for box, start in zip(boxes, starts, strict=False))


def _first_values(model: Model, system: System, space: Space) -> dict[str, object]:
    """The first value of every field that is not of a layout."""
    missing = [n for n in ("gpus", "global_batch_size") if not getattr(space, n)]
    first = {n: (space.values(n, system) or (None,))[0] for n in (*OPTION_FIELDS, *CHOICE_FIELDS)}
    if first["seq_len"] is None and model.seq_len is None:
        missing.append("seq_len")
    if missing:
        problems = {name: MISSING.get(name, "is missing: set it") for name in missing}
        raise InputError([Fault(source="search", field=n, problem=p) for n, p in problems.items()])
    return first


def _combinations(model: Model, system: System, space: Space) -> int:
    """Most combinations of options and choices of a layout.

    Raises
    ------
    InputError
        If candidates cannot be enumerated in reasonable time and memory.
    """
    scales = len(space.gpus or ()) * len(space.global_batch_size or ())
    if scales > _MOST_SCALES:
        problem = f"with global_batch_size makes {scales:,} scales; at most {_MOST_SCALES:,}"
        raise InputError.at("space", problem, "gpus")
    several = (*OPTION_FIELDS, *CHOICE_FIELDS)
    sizes = [len(_tried(model, name, space.values(name, system))) for name in several]
    combined = math.prod(sizes)
    if combined > _MOST_OPTIONS:
        named = zip(several, sizes, strict=True)
        listed = ", ".join(f"{name} {size}" for name, size in named if size > 1)
        problem = f"makes {combined:,} combinations for each layout, at most {_MOST_OPTIONS:,}: "
        raise InputError.at("space", problem + listed)
    return combined


def _tried(
    model: Model,
    name: str,
    values: tuple[Any, ...] | None,
    *,
    layers: int = 0,
    panels: int = 0,
) -> tuple[Any, ...]:
    """Values of an option or choice to try.

    Where a space leaves them open, `recompute_layers` are 1, 2, ... all, and `summa_panels` the
    least number, doubled as long as a panel is wide enough.

    Parameters
    ----------
    values
        Those of the space; None: it leaves them open.
    layers
        Layers of the rank that has most; 0: of the model.
    panels
        The least panels; 0: one.
    """
    if values is not None:
        return values
    if name == "summa_panels":
        least, width = max(panels, 1), math.gcd(*reduced_widths(model))
        most = model.hidden // (least * _LEAST_PANEL)
        doubled = [least << n for n in range(1, most.bit_length())]
        return (None, *(number for number in doubled if width % number == 0))
    return (*range(1, layers or model.depth), None)


class _OptionTables:
    """Options and choices of a space by kind of layout."""

    def __init__(self, model: Model, system: System, space: Space) -> None:
        self._model, self._system, self._space = model, system, space
        self._tried = {n: space.values(n, system) for n in (*OPTION_FIELDS, *CHOICE_FIELDS)}
        self._by_layers = self._tried["recompute_layers"] != (None,)
        self._by_panels = self._tried["summa_panels"] != (None,)
        self._of_kind: dict[Kind, tuple[Table, Table]] = {}
        self._of_values: dict[tuple[str, bool, int], Table] = {}
        self._defaults = Table.of(model, _PLAIN)

    def boxes(
        self, scale: Scale, layouts: Table, broken: Ints | None = None
    ) -> list[tuple[Ints, Box]]:
        """Group the layouts of a scale into boxes by what has an effect on them."""
        if not len(layouts):
            return []
        layers = None
        if self._by_layers and broken is None:
            layers = most_layers_on_a_rank(self._model, layouts)
            group = groups_without(layouts, self._space.selected)  # stays in one box
            most = np.zeros(group.max() + 1, dtype=np.int64)
            np.maximum.at(most, group, layers)
            layers = most[group]
        training = self._tried["training"] or ()
        found = []
        for kind, rows in kinds_of(self._model, layouts, layers=layers, panels=self._by_panels):
            for trains in training:
                options, choices = self._tables(replace(kind, training=trains))
                box = Box(
                    scale=scale,
                    start=0,
                    layouts=layouts.take(rows),
                    broken=np.full(rows.size, -1) if broken is None else broken[rows],
                    options=options,
                    choices=choices,
                    selected=self._space.selected,
                )
                found.append((rows, box))
        return found

    def _tables(self, kind: Kind) -> tuple[Table, Table]:
        if kind not in self._of_kind:
            groups = (OPTION_FIELDS, CHOICE_FIELDS)
            options, choices = (self._combined(kind, names) for names in groups)
            self._of_kind[kind] = replace(options, named=self._space.named), choices
        return self._of_kind[kind]

    def _combined(self, kind: Kind, names: Sequence[str]) -> Table:
        """Every combination of some fields' values that has an effect of its own."""
        values = {name: self._values(kind, name) for name in names}
        at = _positions({name: len(tried) for name, tried in values.items()})
        for name in NEUTRAL:  # tried only in place of values without effect
            if name in values and NEUTRAL[name] not in values[name]:
                values[name] = (*values[name], NEUTRAL[name])
        every = {name: self._column(kind, name, tried) for name, tried in values.items()}
        for name in EFFECTS:
            if name in values and len(values[name]) > 1:
                idle = idle_rows(kind, _gathered(every, at), name)
                representative = self._representative(kind, name, values[name], every[name])
                at[name] = np.where(idle, representative, at[name])
        firsts = np.sort(distinct_rows(list(at.values()))[0])
        found = {name: position[firsts] for name, position in at.items()}
        combined = _gathered(every, found)
        if "dispatcher" not in found:
            return combined
        unnamed = np.array([word is None for word in values["dispatcher"]])[found["dispatcher"]]
        return _with_dispatchers(combined, unnamed, sends=kind.dispatches)

    def _values(self, kind: Kind, name: str) -> tuple[Any, ...]:
        if name == "training":
            return (kind.training,)
        more = {"layers": kind.layers, "panels": kind.panels}
        values = _tried(self._model, name, self._tried[name], **more)
        default = self._model.seq_len if name == "seq_len" else None
        return tuple(default if value is None else value for value in values)

    def _column(self, kind: Kind, name: str, values: Sequence[object]) -> Table:
        """A table of the values of one field."""
        own = {"recompute_layers": kind.layers, "summa_panels": kind.panels}
        key = name, kind.training, own.get(name, 0)
        if key not in self._of_values:
            default = name not in _PLAIN and list(values) == [Strategy.model_fields[name].default]
            fields = _PLAIN | {name: list(values)}
            table = self._defaults if default else Table.of(self._model, fields)
            self._of_values[key] = table
        return self._of_values[key]

    def _representative(
        self, kind: Kind, name: str, values: Sequence[object], column: Table
    ) -> int:
        """Position of the value to use where all have the same effect.

        The first such value that no rule refuses by itself, if there is any.
        """
        if name in NEUTRAL:
            return tuple(values).index(NEUTRAL[name])
        rules = [rule for rule in CONSTRAINTS if rule.field == name]
        usable = first_violation(self._model, self._system, column, rules) < 0
        idle = idle_rows(kind, column, name)
        for mask in (usable & idle, idle):
            if mask.any():
                return int(np.argmax(mask))
        return 0


def _with_dispatchers(options: Table, unnamed: Bools, *, sends: bool) -> Table:
    """Options in which rows that name no dispatcher have that of their stack."""
    usual = np.array([stack.dispatcher.code for stack in options.stacks])[options.stack]
    usual = usual if sends else np.full_like(usual, Dispatcher.ALL_TO_ALL.code)
    return replace(options, dispatcher=np.where(unnamed, usual, options.dispatcher))


def _positions(sizes: Mapping[str, int]) -> dict[str, Ints]:
    """Positions of the values of every combination; those of the last field change first."""
    rest = np.arange(math.prod(sizes.values()))
    found = {}
    for name, size in reversed(list(sizes.items())):
        rest, found[name] = np.divmod(rest, size)
    return found


def _gathered(every: Mapping[str, Table], at: Mapping[str, Ints]) -> Table:
    """A table of combinations, by the position of each field's value."""
    some = next(iter(every.values()))
    rows = np.zeros(next(iter(at.values())).size, dtype=np.int64)
    columns: dict[str, Any] = {n: getattr(every[n], n)[position] for n, position in at.items()}
    lists = {LISTS[n]: getattr(table, LISTS[n]) for n, table in every.items() if n in LISTS}
    return replace(some.take(rows), **columns, **lists)
