"""Array types, and evaluating once what many rows share."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bools", "Floats", "Ints"]
__all__ += ["by_code", "combined", "gather", "interpolated", "once_per", "total"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

T = TypeVar("T")

# Up to this many possible keys for each row, distinct ones are found by marking a table instead of
# sorting: beyond, room for the table takes longer, of 1,000 to 250,000 rows.
_DENSE_KEYS = 16
_DENSE_SPAN = 1 << 12

# Where a single row finds its result: `gather` has nothing to do, and sees so by this very array.
_ONLY: Ints = np.zeros(1, dtype=np.int64)
_ONLY.flags.writeable = False


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


def once_per(keys: Sequence[NDArray[Any]], evaluate: Callable[[Ints], T]) -> tuple[T, Ints]:
    """Evaluate a function on one row of each distinct key.

    Parameters
    ----------
    keys
        Columns of equal length, of integers or booleans, that the result depends on.
    evaluate
        Called with the indices of one row of each distinct key.

    Returns
    -------
    The result and, for each row, the position of its key in it.
    """
    if keys[0].shape == (1,):
        return evaluate(np.zeros(1, dtype=np.int64)), _ONLY
    packed, radix = _packed(keys)
    if radix <= _DENSE_KEYS * packed.size and packed.size > 1:
        first = np.full(radix, -1, dtype=np.int64)
        first[packed[::-1]] = np.arange(packed.size - 1, -1, -1)
        present = np.flatnonzero(first >= 0)
        position = np.empty(radix, dtype=np.int64)
        position[present] = np.arange(present.size)
        return evaluate(first[present]), position[packed]
    _, indices, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return evaluate(indices), inverse


def _packed(keys: Sequence[NDArray[Any]]) -> tuple[Ints, int]:
    """Number the combinations of several columns: mixed radix over each column's range."""
    packed: Ints = np.zeros(keys[0].shape, dtype=np.int64)
    radix = 1
    for key in keys:
        column = key.astype(np.int64, copy=False)
        low = int(column.min(initial=0))
        span = int(column.max(initial=0)) - low + 1
        if span > _DENSE_SPAN:  # sparse values such as sequence lengths: number them first
            values, column = np.unique(column, return_inverse=True)
            low, span = 0, values.size
        if radix * span >= 1 << 62:
            values, packed = np.unique(packed, return_inverse=True)
            radix = values.size
        if span > 1:
            packed = packed * span + (column - low)
            radix *= span
    return packed, radix


def combined(function: Callable[..., Any], record: T, *others: T) -> T:
    """Apply a function to every array of one or more dataclasses of a kind, nested ones too."""

    def item(name: str) -> Any:
        values = [getattr(one, name) for one in (record, *others)]
        nested = dataclasses.is_dataclass(values[0])
        return combined(function, *values) if nested else function(*values)

    kind: Any = type(record)
    whole: T = kind(**{name: item(name) for name in _field_names(kind)})
    return whole


def gather(record: T, index: Ints | slice, *, but: tuple[type, ...] = ()) -> T:
    """Take rows of every array in a dataclass, following nested dataclasses and tuples.

    Records of the types `but` are left as they are, for who has no use for them.
    """
    if index is _ONLY:
        return record
    return _gathered(record, index, but)


def _gathered(value: Any, index: Ints | slice, but: tuple[type, ...]) -> Any:
    if isinstance(value, np.ndarray):
        return value[index]
    if isinstance(value, tuple):
        return tuple([_gathered(item, index, but) for item in value])
    kind: Any = type(value)
    if kind in but or not (names := _field_names(kind)):
        return value
    return kind(**{name: _gathered(getattr(value, name), index, but) for name in names})


@cache
def _field_names(record: type) -> tuple[str, ...]:
    is_record = dataclasses.is_dataclass(record)
    return tuple(field.name for field in dataclasses.fields(record)) if is_record else ()
