"""Evaluate a formula once for all rows that agree in every column that it reads.

Nobody lists these columns: the formula sees the rows through views, which record what it reads.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count as count_from
from operator import itemgetter
from threading import Lock
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar

import numpy as np

from shardwise.arrays import ONLY_ROW, Column, Ints, gather, joined, rows_of
from shardwise.frozen import frozen
from shardwise.records import dataclass, is_dataclass

T = TypeVar("T")

# Up to this many possible keys for each row, distinct ones are found by marking a table instead of
# sorting: beyond, room for the table takes longer, of 1,000 to 250,000 rows.
_DENSE_KEYS = 16
_DENSE_SPAN = 1 << 12
# Results of so many rows are saved; of each kind, those of so many models or pairs of a model and a
# system.
_MOST_KNOWN, _MOST_OWNERS = 1 << 13, 8
FEW_ROWS = 1 << 11
"""Results of more rows at a time are not saved."""
# Results of so many calls are saved one by one: joining them takes longer than most formulas.
_MOST_BLOCKS = 32
# Multiplying by an odd number and folding the upper half into the lower one mixes all bits.
_HASH_FACTOR, _HASH_SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)


@dataclass(frozen=True, slots=True)
class Distinct(Generic[T]):
    """Results of a formula that many rows share."""

    values: T
    """One for each distinct row."""
    position: Ints
    """Which of them each row has."""

    def __len__(self) -> int:
        return self.position.size

    def take(self, rows: Ints | slice) -> T:
        """Results of some rows."""
        return gather(self.values, self.position[rows])

    def of_rows(self, rows: Ints | slice) -> "Distinct[T]":
        """Some of the rows, which still share results."""
        return Distinct(self.values, self.position[rows])

    def of_all(self) -> T:
        """Results of all rows."""
        return gather(self.values, self.position)


def evaluate_distinct(
    formula: Callable[..., T], *records: Any, choices: bool = False
) -> Distinct[T]:
    """Evaluate a formula once for all rows that agree in every column that it reads.

    Rows are grouped by the columns read so far, at first by those that the formula read in its last
    call. The formula is evaluated on one row of each group; what it reads is added, and the rows
    are grouped again, until no group splits. The last evaluation then saw every combination of
    values that occurs in the columns that it read: all rows together would follow the same
    branches, and read nothing else.

    Parameters
    ----------
    formula
        Called with a view of each record. It must know the rows by these views alone, and what it
        returns for a row may depend on others only by which values occur. It returns arrays with
        one value for each row of the views in their last axis, or dataclasses and tuples of such.
    records
        Columns of equal length, at least one: dataclasses of arrays (the last axis is that of the
        rows) with a `take` of rows, results that rows share (`Distinct`), or arrays, which count
        as read. The first one has a length.
    choices
        Whether columns of shape (choices, 1) are allowed: the same choices in all rows.

    Raises
    ------
    TypeError
        If the formula reads what does not have one value for each row, or keeps a view and reads
        it later.
    """
    sources = [_Source(record, choices=choices) for record in records]
    count = len(records[0])
    if count == 1 or isinstance(records[0], SeenRow):
        all_rows = [
            record.of_all() if isinstance(record, Distinct) else record for record in records
        ]
        return Distinct(formula(*all_rows), ONLY_ROW if count == 1 else np.arange(count))
    code = code_of(formula)
    for source, names in zip(sources, _READ_BEFORE.get(code, ()), strict=False):
        for name in names:
            source.read(name)
    firsts, position = _grouped(sources, count)
    while True:
        known = [len(source.columns) for source in sources]
        result = formula(*(source.view(firsts) for source in sources))
        if known == [len(source.columns) for source in sources]:
            break
        split, finer = _grouped(sources, count)
        if split.size == firsts.size:
            break
        firsts, position = split, finer
    for source in sources:
        source.closed = True
    _READ_BEFORE[code] = [tuple(source.columns) for source in sources]
    return Distinct(result, position)


# What formulas read the last time: they likely read the same again, and are evaluated once.
_READ_BEFORE: dict[Hashable, list[tuple[str, ...]]] = {}


def code_of(formula: Callable[..., object]) -> Hashable:
    """What calls of a formula share, whatever arguments are set already."""
    while isinstance(formula, partial):
        formula = formula.func
    code: Hashable = getattr(formula, "__code__", None) or getattr(formula, "__func__", formula)
    return code


_RowKey = tuple[tuple[object, ...], bytes]


class KnownRows(Generic[T]):
    """Results of a formula by row, saved between calls."""

    def __init__(self) -> None:
        self._places: dict[_RowKey, int] = {}
        self._blocks: list[T] = []
        """Results in the order of their places; the last ones are read before they are joined."""
        self._last = 0
        """Place of the first row of the last block."""
        self._lock = Lock()

    def of(
        self, columns: Sequence[Column], figures: Iterable[object], formula: Callable[[Ints], T]
    ) -> Distinct[T]:
        """Results of some rows; those that are not known are evaluated, and saved.

        Parameters
        ----------
        columns
            All that the result of a row depends on,
        figures
            and what the rows share, such as whether any of them recomputes.
        formula
            Returns the results of rows at some positions.
        """
        count = columns[0].size
        if not 0 < count <= FEW_ROWS:
            return Distinct(formula(np.arange(count)), np.arange(count))
        shared = tuple(figures)
        keys = [(shared, key) for key in _row_keys(columns)]
        with self._lock:
            while True:
                self._add(self._new(keys), formula)
                places = np.array([self._places[key] for key in keys])
                if places.min() >= self._last and len(self._blocks) <= _MOST_BLOCKS:
                    return Distinct(self._blocks[-1], places - self._last)
                results = joined(self._blocks)
                if results is None:  # they took other branches of the formula
                    self._forget()
                else:
                    self._blocks, self._last = [results], 0

    def _add(self, new: Mapping[_RowKey, int], formula: Callable[[Ints], T]) -> None:
        """Evaluate rows that are not known."""
        if new:
            self._blocks.append(formula(np.array([*new.values()])))
            self._last = len(self._places)
            self._places.update(zip(new, count_from(self._last), strict=False))

    def _forget(self) -> None:
        self._places, self._blocks, self._last = {}, [], 0

    def _new(self, keys: Sequence[_RowKey]) -> dict[_RowKey, int]:
        """Rows that are not known, each with its first position."""
        new: dict[_RowKey, int] = {}
        for at, key in enumerate(keys):
            if key not in self._places:
                new.setdefault(key, at)
        if self._places and len(self._places) + len(new) > _MOST_KNOWN:
            self._forget()
            return self._new(keys)
        return new


def _row_keys(columns: Sequence[Column]) -> list[bytes]:
    """Bytes that are equal for equal rows."""
    matrix = np.empty((columns[0].size, len(columns)), dtype=np.int64)
    for at, column in enumerate(columns):
        matrix[:, at] = column.view(np.int64) if column.dtype == np.float64 else column
    data, width = matrix.tobytes(), matrix.itemsize * len(columns)
    return [data[start : start + width] for start in range(0, len(data), width)]


_known: dict[object, dict[tuple[int, ...], tuple[tuple[object, ...], Any]]] = {}
_lock = Lock()


def known_rows(kind: type[T], *owners: object) -> KnownRows[T]:
    """Return the known rows of a kind of result of some objects, such as a model."""
    rows: KnownRows[T] = known_of(KnownRows, kind, *owners)
    return rows


def known_of(make: Callable[[], T], kind: object, *owners: object, most: int = _MOST_OWNERS) -> T:
    """Return what is known of some objects between calls; at first it is made.

    Parameters
    ----------
    most
        Of so many owners results of this kind are saved.
    """
    key = tuple(map(id, owners))
    with _lock:
        saved = _known.setdefault(kind, {}).get(key)
    saved = (owners, make()) if saved is None else saved
    with _lock:  # with the owners, so that no others get their ids; those used last are the last
        known = _known.setdefault(kind, {})
        known.pop(key, None)
        known[key] = saved
        if len(known) > most:
            del known[next(iter(known))]
    found: T = saved[1]
    return found


class KnownReads(Generic[T]):
    """Results of a formula by what it read of one row, saved between calls.

    Rows that agree in all that it read for one of them follow the same branches: the result is the
    same.
    """

    def __init__(self) -> None:
        self._known: dict[frozenset[str], tuple[Callable[[Any], object], dict[object, T]]] = {}

    def find(self, row: Mapping[str, object]) -> T | None:
        """Return the result of a row, its values by name; None if it is not known."""
        for values, known in tuple(self._known.values()):
            found = known.get(values(row))
            if found is not None:
                return found
        return None

    def save(self, row: Mapping[str, object], names: set[str], result: T, most: int) -> None:
        """Save the result of a row, of which the formula read some names; so many at most."""
        own = names & row.keys()
        usual = itemgetter(*own) if own else lambda _: None
        values, known = self._known.setdefault(frozenset(own), (usual, {}))
        if len(known) >= most:
            known.pop(next(iter(known)), None)
        known[values(row)] = result


def known_row(
    formula: Callable[[set[str]], T],
    row: Mapping[str, object],
    kind: object,
    *owners: object,
    most: int,
) -> T:
    """Return what a formula finds for one row, as it was found for one that agrees in what it read.

    It adds the names of what it reads to a set; see `SeenRow` and `KnownReads`.
    """
    known: KnownReads[T] = known_of(KnownReads, kind, *owners)
    found = known.find(row)
    if found is None:
        names: set[str] = set()
        found = frozen(formula(names))
        known.save(row, names, found, most)
    return found


class SeenRow:
    """A record of one row, or of a row several times, whose columns are recorded as they are read.

    Methods and properties of the record read them through it.
    """

    def __init__(self, record: Any, names: set[str], prefix: str = "") -> None:
        self._record, self._names, self._prefix = record, names, prefix

    def __len__(self) -> int:
        return len(self._record)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(type(self._record), name, None)
        if isinstance(attribute, property) and name != "pipelined":  # of more rows than `pp`
            return attribute.__get__(self)
        if isinstance(attribute, FunctionType):
            return MethodType(attribute, self)
        self._names.add(self._prefix + name)
        return getattr(self._record, name)

    def take(self, index: Any) -> "SeenRow":
        """Show some of the rows."""
        return SeenRow(self._record.take(index), self._names, self._prefix)

    def changed(self, **columns: Any) -> "SeenRow":
        """Show other columns in the place of some."""
        return SeenRow(self._record.changed(**columns), self._names, self._prefix)


def distinct_rows(columns: Sequence[Column]) -> tuple[Ints, Ints]:
    """Find the distinct rows of several columns.

    Parameters
    ----------
    columns
        Integers, booleans or floats (compared bit by bit), of equal length.

    Returns
    -------
    The first row of each distinct one, and the position of each row's own among these.
    """
    packed, radix = _packed(columns)
    if packed.size == 1:
        return np.zeros(1, dtype=np.int64), ONLY_ROW
    if radix <= _DENSE_KEYS * packed.size:
        first = np.full(radix, -1, dtype=np.int64)
        first[packed[::-1]] = np.arange(packed.size - 1, -1, -1)
        present = np.flatnonzero(first >= 0)
        position = np.empty(radix, dtype=np.int64)
        position[present] = np.arange(present.size)
        return first[present], position[packed]
    _, firsts, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return firsts, inverse


def _packed(columns: Sequence[Column]) -> tuple[Ints, int]:
    """Number the combinations of several columns: mixed radix over each column's range."""
    packed: Ints = np.zeros(columns[0].shape, dtype=np.int64)
    radix = 1
    sparse: list[Ints] = []
    ranged: list[tuple[Ints, int, int]] = []
    for one in columns:
        is_float = one.dtype == np.float64
        column = one.view(np.int64) if is_float else one.astype(np.int64, copy=False)
        low = int(column.min(initial=column[0] if column.size else 0))
        span = int(column.max(initial=low)) - low + 1
        if span > _DENSE_SPAN:  # sparse values such as sequence lengths: number them first
            sparse.append(column)
        else:
            ranged.append((column, low, span))
    for column, low, span in [*ranged, *_numbered(sparse)]:
        if radix * span >= 1 << 62:
            values, packed = np.unique(packed, return_inverse=True)
            radix = values.size
        if span > 1:
            packed = packed * span + (column - low)
            radix *= span
    return packed, radix


def _numbered(columns: Sequence[Ints]) -> list[tuple[Ints, int, int]]:
    """Columns of few numbers, from 0, that distinguish the rows of some columns; their ranges.

    Rows of several columns are numbered by a hash of their values, if no two have the same.
    """
    if len(columns) > 1:
        mixed = np.zeros(columns[0].shape, dtype=np.uint64)
        for column in columns:
            mixed = (mixed ^ column.view(np.uint64)) * _HASH_FACTOR
            mixed ^= mixed >> _HASH_SHIFT
        values, firsts, numbers = np.unique(mixed, return_index=True, return_inverse=True)
        if all(np.array_equal(column[firsts].take(numbers), column) for column in columns):
            return [(numbers, 0, values.size)]
    found = []
    for column in columns:
        values, numbers = np.unique(column, return_inverse=True)
        found.append((numbers, 0, values.size))
    return found


class _Source:
    """A record whose reads are recorded."""

    def __init__(self, record: Any, *, choices: bool) -> None:
        shared = isinstance(record, Distinct)
        self.record = record.values if shared else record
        self.position: Ints | None = record.position if shared else None
        """Which row of the record each row has, where rows share them."""
        self.kind: type = record.kind if isinstance(record, _View) else type(self.record)
        self.columns: dict[str, Any] = {}
        """What was read, of all rows."""
        self.choices = choices
        self.closed = False

    def view(self, rows: Ints) -> Any:
        """Show some rows to a formula."""
        rows = rows if self.position is None else self.position[rows]
        return _shown(self.record, rows) if _is_keyed(self.record) else _View(self, rows)

    def read(self, name: str) -> Any:
        """Return a column, property or shared value, and record that it was read."""
        if self.closed:
            problem = f"{self.kind.__name__}.{name} is read after the formula has returned"
            raise TypeError(problem)
        if name not in self.columns:
            self.columns[name] = getattr(self.record, name)
        return self.columns[name]

    def keys(self, count: int) -> list[Column]:
        """Columns that were read."""
        if _is_keyed(self.record):
            key = _key_of(self.record) if self.position is None else self.position
            return list(_keys(key, count, "key"))
        own = count if self.position is None else None
        columns = {
            name: value
            for name, value in self.columns.items()
            if not (self.choices and _is_choices(value))
        }
        keys = [key for name, value in columns.items() for key in _keys(value, own, name)]
        if self.position is None or not keys:
            return keys
        return [distinct_rows(keys)[1][self.position]]


def _is_keyed(record: object) -> bool:
    """Whether rows of a record are compared by one key: an array, or a record with a key."""
    return isinstance(record, (np.ndarray, tuple)) or hasattr(type(record), "key")


def _is_choices(value: object) -> bool:
    """Whether a column holds choices that are the same in all rows."""
    return isinstance(value, np.ndarray) and value.ndim > 1 and value.shape[-1] == 1


def _key_of(record: Any) -> Column:
    """Numbers that are equal only in rows that agree in the full record."""
    if isinstance(record, tuple):
        return _key_of(record[0])
    key: Column = record if isinstance(record, np.ndarray) else record.key
    return key


def _grouped(sources: Sequence[_Source], count: int) -> tuple[Ints, Ints]:
    """Group the rows by what was read: the first of each group, and each row's group."""
    keys = [key for source in sources for key in source.keys(count)]
    if keys:
        return distinct_rows(keys)
    return np.zeros(min(count, 1), dtype=np.int64), np.zeros(count, dtype=np.int64)


def _keys(value: object, count: int | None, name: str) -> Iterator[Column]:
    """Columns that distinguish the rows of a value that was read; none if all rows are equal.

    A record with a `position` has the index of each row's value in it.
    """
    if not isinstance(value, np.ndarray) and is_dataclass(value) and hasattr(value, "position"):
        value = value.position
    if isinstance(value, np.ndarray):
        if count is not None and value.shape[-1:] != (count,):
            problem = f"{name} has shape {value.shape}, not one value for each of {count} rows"
            raise TypeError(problem)
        yield from np.atleast_2d(value)
    elif _has_columns(value):
        problem = f"{name} has columns of its own; pass it to evaluate_distinct as a record"
        raise TypeError(problem)


def _has_columns(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_columns, value))
    return isinstance(value, np.ndarray) or is_dataclass(value)


class _View:
    """Some rows of a record; what is read of them is recorded.

    Methods of the record run on the view, so that what they read is recorded. Its properties count
    as columns: a formula that reads whether there are several stages does not read how many.
    """

    __slots__ = ("_columns", "_rows", "_source", "_with")

    def __init__(
        self, source: _Source, rows: Ints, columns: dict[str, object] | None = None
    ) -> None:
        self._source = source
        self._rows = rows
        self._columns: dict[str, object] = {}
        self._with = columns or {}

    def __len__(self) -> int:
        return self._rows.size

    @property
    def kind(self) -> type:
        """What it shows some rows of."""
        return self._source.kind

    def __getattr__(self, name: str) -> object:
        if name in self._columns and not self._source.closed:
            return self._columns[name]
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._with:
            return self._with[name]
        attribute = getattr(self._source.kind, name, None)
        if isinstance(attribute, FunctionType):
            return MethodType(attribute, self)
        if self._with and isinstance(attribute, property):  # which may read other columns now
            return attribute.__get__(self)
        value = self._source.read(name)
        if isinstance(value, np.ndarray):
            if not (self._source.choices and _is_choices(value)):
                value = rows_of(value, self._rows)
        elif hasattr(value, "position"):
            value = value.take(self._rows)
        self._columns[name] = value
        return value

    def take(self, rows: Any) -> "_View":
        """Show some of the rows."""
        columns = {
            n: rows_of(v, rows) if isinstance(v, np.ndarray) else v for n, v in self._with.items()
        }
        return _View(self._source, self._rows[rows], columns)

    def changed(self, **columns: object) -> "_View":
        """Show other columns in the place of some, as `Table.changed` does."""
        return _View(self._source, self._rows, self._with | columns)


def take(record: T, rows: Ints) -> T:
    """Take some of the rows that a formula sees of a record."""
    if isinstance(record, _KeyedView):
        found: Any = record.take(rows)
        return found
    return gather(record, rows)


class _KeyedView:
    """Some rows of a record whose rows are compared by one key."""

    __slots__ = ("_read", "_record", "_rows")

    def __init__(self, record: object, rows: Ints) -> None:
        self._record = record
        self._rows = rows
        self._read: dict[str, object] = {}

    def take(self, rows: Ints) -> "_KeyedView":
        """Show some of the rows."""
        return _KeyedView(self._record, self._rows[rows])

    def __getattr__(self, name: str) -> object:
        if name not in self._read:
            self._read[name] = _shown(getattr(self._record, name), self._rows)
        return self._read[name]


def _shown(value: Any, rows: Ints) -> Any:
    """Some rows of a value; its fields are selected as they are read."""
    if isinstance(value, np.ndarray):
        return rows_of(value, rows)
    if isinstance(value, tuple):
        return tuple(_shown(item, rows) for item in value)
    return _KeyedView(value, rows) if is_dataclass(value) else value
