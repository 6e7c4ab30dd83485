"""Evaluate formulas on layouts x options: once for each combination of what they read of either.

A box of a search has thousands of layouts and options, and millions of pairs of them. A formula
reads a few columns of each side. So layouts and options are grouped apart, and only pairs of groups
are evaluated. Nobody lists the columns: views record what a formula reads, by side, where those of
`distinct.evaluate_distinct` record what it reads of the rows of one table.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar

import numpy as np

from shardwise.arrays import Bools, Column, Ints, distinct_values
from shardwise.config.model import Model
from shardwise.config.strategy_fields import COLUMNS, LAYOUT_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import Distinct, code_of, distinct_rows
from shardwise.parallel.constraints import CONSTRAINTS, Constraint
from shardwise.parallel.constraints.constraint import Test
from shardwise.parallel.placement import Extents
from shardwise.records import dataclass, fields, replace

T = TypeVar("T")

_LAYOUT, _OPTION, _EXTENT = "layout", "option", "extent"
_Reads = set[tuple[str, str]]
"""What a formula read: a side, and the name of a column or property."""
_READ_BEFORE: dict[Hashable, frozenset[tuple[str, str]]] = {}
"""What formulas read the last time; see `evaluate_distinct`."""
_EXTENTS = frozenset(field.name for field in fields(Extents))
_OPTION_RULES = tuple(rule for rule in CONSTRAINTS if not rule.layout_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairValues(Generic[T]):
    """Results of a formula on pairs of groups of layouts and options."""

    values: T
    """One for each pair of groups that was evaluated."""
    layouts: Ints
    """A layout of each of these."""
    options: Ints
    """An option of each of these."""
    index: Ints
    """Position of each pair of groups in the values, -1 where it has none; shape (groups of
    layouts, groups of options)."""
    layout_group: Ints
    """Of each layout."""
    option_group: Ints
    """Of each option."""

    def at(self, layouts: Ints, options: Ints) -> Ints:
        """Position of some pairs among the values."""
        found: Ints = self.index[self.layout_group[layouts], self.option_group[options]]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Legality:
    """The rule that each pair of a layout and an option breaks."""

    first: Ints
    """Position in `CONSTRAINTS` of the first rule, or -1; shape (groups of layouts, of options)."""
    layout_group: Ints
    option_group: Ints

    def of_layouts(self, layouts: Ints | slice) -> Bools:
        """Options that some layouts may have; shape (layouts, options)."""
        legal: Bools = (self.first < 0)[self.layout_group[layouts]][:, self.option_group]
        return legal

    def take(self, layouts: Ints) -> "Legality":
        """Return the legality of some layouts."""
        return replace(self, layout_group=self.layout_group[layouts])

    @staticmethod
    def joined(several: "Sequence[Legality]") -> "Legality":
        """The legality of boxes together: no pair of two boxes is legal."""
        if len(several) == 1:
            return several[0]
        groups = [
            [np.unique(one, return_inverse=True) for one in (own.layout_group, own.option_group)]
            for own in several
        ]
        ends = [np.cumsum([0, *(own[side][0].size for own in groups)]) for side in (0, 1)]
        first = np.zeros([int(end[-1]) for end in ends], dtype=np.int64)
        for n, (own, (rows, columns)) in enumerate(zip(several, groups, strict=True)):
            inside = tuple(slice(end[n], end[n + 1]) for end in ends)
            first[inside] = own.first[rows[0]][:, columns[0]]
        group = [
            np.concatenate([own[side][1] + ends[side][n] for n, own in enumerate(groups)])
            for side in (0, 1)
        ]
        return Legality(first=first, layout_group=group[0], option_group=group[1])

    def counts(self) -> tuple[int, Counter[str]]:
        """Return the number of legal pairs, and that of the others by reason."""
        layouts = np.bincount(self.layout_group, minlength=self.first.shape[0])
        options = np.bincount(self.option_group, minlength=self.first.shape[1])
        pairs, reasons = np.outer(layouts, options), Counter[str]()
        for rule in distinct_values(self.first[self.first >= 0]):
            reasons[CONSTRAINTS[rule].reason] += int(pairs[self.first == rule].sum())
        return int(pairs[self.first < 0].sum()), reasons


class Pairs:
    """The pairs of some layouts and options."""

    def __init__(self, layouts: Table, options: Table, extents: Distinct[Extents]) -> None:
        self.layouts, self.options, self._extents = layouts, options, extents
        # By what formulas read of a side, or of both: many read the same.
        self._groups: dict[tuple[str, frozenset[str]], Ints] = {}
        self._members: dict[Hashable, tuple[_Rows, Ints, Legality | None]] = {}

    def legality(self, model: Model, system: System) -> Legality:
        """Check the rules that read options; the layouts obey all others."""
        layout_group = np.zeros(len(self.layouts), dtype=np.int64)
        option_group = np.zeros(len(self.options), dtype=np.int64)
        broken: list[tuple[int, Bools, Ints, Ints]] = []
        for number, (rule, test) in enumerate(self._tests()):
            found = self.evaluate(partial(_violated, test, model, system), name=number)
            if np.any(found.values):
                violated = np.broadcast_to(found.values, found.index.size)[found.index]
                rows, row_of = _distinct(violated)
                columns, column_of = _distinct(violated[rows].T)
                layouts, options = row_of[found.layout_group], column_of[found.option_group]
                kept = violated[rows][:, columns]
                broken.append((CONSTRAINTS.index(rule), kept, layouts, options))
        for _, _, layouts, options in broken:
            layout_group = distinct_rows([layout_group, layouts])[1]
            option_group = distinct_rows([option_group, options])[1]
        firsts = [_first_of_each(group) for group in (layout_group, option_group)]
        first = np.full([rows.size for rows in firsts], -1)
        for place, violated, layouts, options in reversed(broken):
            here = violated[layouts[firsts[0]]][:, options[firsts[1]]]
            first = np.where(here, place, first)
        return Legality(
            first=first,
            layout_group=np.broadcast_to(layout_group, len(self.layouts)),
            option_group=np.broadcast_to(option_group, len(self.options)),
        )

    def _tests(self) -> Iterator[tuple[Constraint, Test]]:
        """Rules that read options, in order, each with its tests."""
        return ((rule, test) for rule in _OPTION_RULES for test in rule.tests(self.options))

    def evaluate(
        self,
        formula: Callable[[Any, Any], T],
        legality: Legality | None = None,
        *,
        name: Hashable = None,
    ) -> PairValues[T]:
        """Evaluate a formula on every pair of groups, with legality of those with a legal member.

        Layouts and options are grouped by what the formula read so far, at first by what it read in
        the last call; what else it reads then splits the groups, until no group splits.

        Parameters
        ----------
        formula
            Called with views of a `Table` and of its `Extents`; see `evaluate_distinct`.
        legality
            Legal pairs; None: every pair is evaluated.
        name
            What calls of the formula share; None: its code.
        """
        code = code_of(formula) if name is None else name
        reads: _Reads = set(_READ_BEFORE.get(code, ()))
        while True:
            layout_key, layout_group = self._group(reads, _LAYOUT)
            option_key, option_group = self._group(reads, _OPTION)
            key = layout_key, option_key, None if legality is None else id(legality)
            if key not in self._members:
                layouts, options, index = _members(layout_group, option_group, legality)
                pairs = _Rows(self.layouts, self.options, layouts, options)
                self._members[key] = pairs, index, legality
            rows, index, _ = self._members[key]
            known = len(reads)
            extents = _ExtentsView(self._extents, self._extents.position[rows.layouts], reads)
            values = formula(_TableView(rows, reads), extents)
            if len(reads) == known:
                break
        _READ_BEFORE[code] = frozenset(reads)
        return PairValues(
            values=values,
            layouts=rows.layouts,
            options=rows.options,
            index=index,
            layout_group=layout_group,
            option_group=option_group,
        )

    def _group(self, reads: _Reads, side: str) -> tuple[frozenset[str], Ints]:
        """What was read of one side, and the group of each of its rows by that."""
        sides = (_LAYOUT, _EXTENT) if side == _LAYOUT else (_OPTION,)
        own = frozenset(f"{where} {name}" for where, name in reads if where in sides)
        if (side, own) not in self._groups:
            source = self.layouts if side == _LAYOUT else self.options
            self._groups[side, own] = _groups(self._keys(reads, side), len(source))
        return own, self._groups[side, own]

    def _keys(self, reads: _Reads, side: str) -> list[Column]:
        """Columns of one side that were read."""
        source = self.layouts if side == _LAYOUT else self.options
        keys = [getattr(source, name) for where, name in sorted(reads) if where == side]
        names = [name for where, name in sorted(reads) if where == _EXTENT]
        if side == _LAYOUT and names:
            rows = [row for name in names for row in getattr(self._extents.values, name)]
            keys.append(distinct_rows(rows)[1][self._extents.position])
        return keys


def _distinct(rows: Bools) -> tuple[Ints, Ints]:
    """The first of equal rows of a matrix, and the position of each row among these."""
    packed = np.packbits(rows, axis=1)
    _, firsts, position = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    return firsts, position.reshape(-1)


def _violated(test: Test, model: Model, system: System, table: Table, _: Extents) -> Bools:
    return test(model, system, table)


def _groups(keys: Sequence[Column], count: int) -> Ints:
    """Group of each row by some columns."""
    if not keys:
        return np.zeros(count, dtype=np.int64)
    return np.broadcast_to(distinct_rows(keys)[1], count)


def _first_of_each(group: Ints) -> Ints:
    """First row of each group."""
    return distinct_rows([group])[0]


def _members(
    layout_group: Ints, option_group: Ints, legality: Legality | None
) -> tuple[Ints, Ints, Ints]:
    """A legal layout and option of each pair of groups, and the position of the pair among them."""
    if legality is None:
        layouts, options = _first_of_each(layout_group), _first_of_each(option_group)
        every = np.indices((layouts.size, options.size)).reshape(2, -1)
        positions = np.arange(layouts.size * options.size).reshape(layouts.size, -1)
        return layouts[every[0]], options[every[1]], positions
    layouts = distinct_rows([layout_group, legality.layout_group])[0]
    options = distinct_rows([option_group, legality.option_group])[0]
    legal = (legality.first < 0)[legality.layout_group[layouts]][:, legality.option_group[options]]
    row, column = np.nonzero(legal)
    count = int(option_group.max(initial=0)) + 1
    index: Ints = np.full((int(layout_group.max(initial=0)) + 1) * count, -1)
    codes = layout_group[layouts[row]] * count + option_group[options[column]]
    index[codes[::-1]] = np.arange(codes.size - 1, -1, -1)  # the first member of each pair
    present = np.flatnonzero(index >= 0)
    chosen = index[present]
    index[present] = np.arange(present.size)
    return layouts[row[chosen]], options[column[chosen]], index.reshape(-1, count)


class _Rows:
    """Some pairs as strategies; a column is gathered when it is read."""

    def __init__(self, layouts: Table, options: Table, rows: Ints, option_rows: Ints) -> None:
        self._layouts, self._options = layouts, options
        self.layouts, self.options = rows, option_rows
        self.known: dict[str, tuple[Any, _Reads]] = {}
        self._columns: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.layouts.size

    def read(self, name: str) -> Any:
        """Return a column of the pairs, or what all of them share."""
        if name not in COLUMNS:
            shared = self._layouts if name in ("stage_lists", "extent_lists") else self._options
            return getattr(shared, name)
        if name not in self._columns:
            of_layouts = name in LAYOUT_FIELDS
            column = getattr(self._layouts if of_layouts else self._options, name)
            self._columns[name] = column[self.layouts if of_layouts else self.options]
        return self._columns[name]

    def take(self, rows: Any) -> "_Rows":
        """Some of the pairs."""
        some = _Rows(self._layouts, self._options, self.layouts[rows], self.options[rows])
        some._columns = {name: column[rows] for name, column in self._columns.items()}
        return some

    def changed(self, columns: Mapping[str, Any]) -> "_Rows":
        """The pairs with other columns."""
        some = _Rows(self._layouts, self._options, self.layouts, self.options)
        some._columns = {**self._columns, **columns}
        return some


class _TableView:
    """Some strategies; what is read of them is recorded, by side.

    A property that reads one side alone counts as a column of that side: a formula that reads
    whether there are several stages does not read how many.
    """

    __slots__ = ("_reads", "_table")

    def __init__(self, table: _Rows, reads: _Reads) -> None:
        self._table, self._reads = table, reads

    def __len__(self) -> int:
        return len(self._table)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in COLUMNS:
            self._reads.add((_LAYOUT if name in LAYOUT_FIELDS else _OPTION, name))
            return self._table.read(name)
        attribute = getattr(Table, name, None)
        if isinstance(attribute, FunctionType):
            return MethodType(attribute, self)
        if not isinstance(attribute, property):
            return self._table.read(name)
        known = self._table.known
        if name not in known:
            inside: _Reads = set()
            value = attribute.fget(_TableView(self._table, inside)) if attribute.fget else None
            sides = {side for side, _ in inside}
            known[name] = value, ({(sides.pop(), name)} if len(sides) == 1 else inside)
        value, inside = known[name]
        self._reads.update(inside)
        return value

    def take(self, rows: Any) -> "_TableView":
        """Show some of the rows."""
        return _TableView(self._table.take(rows), self._reads)

    def changed(self, **columns: Any) -> "_TableView":
        """Show other columns in the place of some."""
        return _TableView(self._table.changed(columns), self._reads)


class _ExtentsView:
    """Placement of some rows; which axes are read is recorded."""

    __slots__ = ("_extents", "_position", "_reads")

    def __init__(self, extents: Distinct[Extents], position: Ints, reads: _Reads) -> None:
        self._extents, self._position, self._reads = extents, position, reads

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _EXTENTS:
            self._reads.add((_EXTENT, name))
            return getattr(self._extents.values, name)[:, self._position]
        attribute = getattr(Extents, name)
        if isinstance(attribute, property) and attribute.fget:
            return attribute.fget(self)
        return MethodType(attribute, self)
