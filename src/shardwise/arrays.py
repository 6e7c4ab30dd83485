"""Array types, and what is done with many columns at once."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from math import isqrt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Column = Floats | Ints | Bools

T = TypeVar("T")

ONLY_ROW: Ints = np.zeros(1, dtype=np.int64)
"""The position of a single row: `gather` has nothing to do, and sees so by this very array."""
ONLY_ROW.flags.writeable = False


_FEW = 64
"""Rows of a single estimate and of its variants."""


@lru_cache(maxsize=1 << 12)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def distinct_values(column: Ints) -> list[int]:
    """Values of a column, each once, in order."""
    if column.size <= _FEW:
        return sorted({*column.ravel().tolist()})
    # With an index, `np.unique` does not import masked arrays, which nothing else uses.
    return np.unique(column, return_index=True)[0].tolist()


def among(codes: Column, values: Iterable[float]) -> Bools:
    """Whether each code is one of few values; `np.isin` takes ten times as long for a row."""
    found: Bools = np.zeros(codes.shape, dtype=np.bool_)
    for value in values:
        found |= codes == value
    return found


def total(columns: Iterable[Floats], like: Floats) -> Floats:
    """Add up columns; zeros of the shape of `like` if there are none."""
    left = iter(columns)
    first = next(left, None)
    if first is None:
        return np.zeros(like.shape)
    return sum(left, first)


def by_code(values: Sequence[float | Floats], codes: Ints) -> Floats:
    """The value of each row's code; values are numbers or, with one for each row, columns."""
    if any(isinstance(value, np.ndarray) for value in values):
        columns = [np.broadcast_to(value, codes.shape) for value in values]
        return np.stack(columns)[codes, np.arange(codes.size)]
    return np.array(values, dtype=np.float64)[codes]


def interpolated(places: Floats, known: Floats, values: Sequence[float | Floats]) -> Floats:
    """Interpolate linearly, as `np.interp` does; the known values may be columns.

    f(x) = sum of h_i(x) v_i, with h_i 1 at the i-th known place and 0 at the others.
    """
    if not any(isinstance(value, np.ndarray) for value in values):
        plain: Floats = np.interp(places, known, np.array(values, dtype=np.float64))
        return plain
    parts = [
        np.interp(places, known, one) * value
        for one, value in zip(np.eye(len(values)), values, strict=True)
    ]
    return total(parts, parts[0])


def combined(function: Callable[..., Any], record: T, *others: T) -> T:
    """Apply a function to every array of one or more dataclasses of a kind, nested ones too."""

    def item(name: str) -> Any:
        values = [getattr(one, name) for one in (record, *others)]
        nested = dataclasses.is_dataclass(values[0])
        return combined(function, *values) if nested else function(*values)

    kind: Any = type(record)
    built: T = kind(**{name: item(name) for name in _field_names(kind)})
    return built


def rows_of(column: Column, index: Ints | slice) -> Column:
    """Take rows of an array, whose last axis is that of the rows."""
    if isinstance(index, np.ndarray) and index.dtype == np.int64:
        return column.take(index, axis=-1)  # in half the time of an index
    return column[..., index]


def gather(record: T, index: Ints | slice, *, but: tuple[type, ...] = ()) -> T:
    """Take rows of every array in a dataclass, following nested dataclasses and tuples.

    The last axis of an array is that of the rows.

    Records of the types `but` are left as they are, for who has no use for them.
    """
    if index is ONLY_ROW or _is_only_row(record, index):
        return record
    return _gathered(record, index, but)


def _is_only_row(record: object, index: Ints | slice) -> bool:
    """Whether an index takes the one row that there is."""
    if not isinstance(index, np.ndarray) or index.size != 1 or index.item() != 0:
        return False
    first = next(columns_in(record), None)
    return first is not None and first.size == 1


def _gathered(value: Any, index: Ints | slice, but: tuple[type, ...]) -> Any:
    if isinstance(value, np.ndarray):
        return rows_of(value, index)
    if isinstance(value, tuple):
        return tuple([_gathered(item, index, but) for item in value])
    kind: Any = type(value)
    if kind in but or not (names := _field_names(kind)):
        return value
    return kind(**{name: _gathered(getattr(value, name), index, but) for name in names})


def joined(records: Sequence[T]) -> T | None:
    """Put the rows of records one after the other, following nested dataclasses and tuples.

    None if the records differ in more than the rows of their arrays.
    """
    try:
        return _joined(records)
    except _UnlikeError:
        return None


def equal(one: object, other: object) -> bool:
    """Whether two records are equal, down to every value of the arrays in them."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    kind: Any = type(one)
    if names := _field_names(kind):
        return all(equal(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)


def fingerprint(record: object) -> Hashable:
    """A key that equal records share (see `equal`): of each array, its first value."""
    if isinstance(record, np.ndarray):
        return record.item(0) if record.size else None
    if isinstance(record, tuple):
        return tuple(map(fingerprint, record))
    kind: Any = type(record)
    if names := _field_names(kind):
        return kind, *(fingerprint(getattr(record, name)) for name in names)
    return record if isinstance(record, Hashable) else None


def columns_in(record: object) -> Iterator[Column]:
    """Every column in a record: the rows of its arrays, whose last axis is that of the rows."""
    left = [record]
    while left:
        item = left.pop()
        if not isinstance(item, np.ndarray):
            left += _items_of(item)
        elif item.ndim == 1:
            yield item
        else:
            yield from np.atleast_2d(item)


def figures_in(record: object) -> Iterator[bool | float | str | None]:
    """Every figure in a record that is not a column: what all of its rows share."""
    left = [record]
    while left:
        item = left.pop()
        if item is None or isinstance(item, bool | int | float | str):
            yield item
        elif not isinstance(item, np.ndarray):
            left += _items_of(item)


def _items_of(record: object) -> list[Any]:
    """Items of a tuple or fields of a dataclass, the first one last; none of anything else."""
    if isinstance(record, tuple):
        return [*reversed(record)]
    kind: Any = type(record)
    return [getattr(record, name) for name in reversed(_field_names(kind))]


class _UnlikeError(Exception):
    """Records differ in more than the rows of their arrays."""


def _joined(values: Sequence[Any]) -> Any:
    kind: Any = type(values[0])
    if any(type(value) is not kind for value in values):
        raise _UnlikeError
    if kind is np.ndarray:
        return np.concatenate(values, axis=-1)
    if kind is tuple:
        if len(set(map(len, values))) > 1:
            raise _UnlikeError
        return tuple([_joined(items) for items in zip(*values, strict=True)])
    if names := _field_names(kind):
        return kind(**{name: _joined([getattr(v, name) for v in values]) for name in names})
    if any(value is not values[0] and value != values[0] for value in values):
        raise _UnlikeError
    return values[0]


@cache
def _field_names(record: type) -> tuple[str, ...]:
    is_record = dataclasses.is_dataclass(record)
    return tuple(field.name for field in dataclasses.fields(record)) if is_record else ()
