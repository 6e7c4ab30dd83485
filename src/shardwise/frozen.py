"""Values that cannot be changed: read-only mappings and arrays, tuples, and records of them."""

import dataclasses
import operator
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)

_SCALARS = frozenset({str, int, float, bool, bytes, complex, type(None)})


class FrozenDict(Mapping[K, V_co]):
    """A mapping that cannot be changed, nor can its values.

    It is equal to any mapping of the same items, where a list is equal to a tuple; `|` returns a
    `dict`. `types.MappingProxyType`, which it wraps, has no hash and no pickle.
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[K, V_co] | Iterable[tuple[K, V_co]] = ()) -> None:
        plain = {key: frozen(value) for key, value in dict(items).items()}
        self._items: Mapping[K, V_co] = MappingProxyType(plain)
        self._hash: int | None = None  # computed once, when it is first needed

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        return self._items.get(key, default)

    def keys(self) -> KeysView[K]:
        """Return the keys, a view."""
        return self._items.keys()

    def values(self) -> ValuesView[V_co]:
        """Return the values, a view."""
        return self._items.values()

    def items(self) -> ItemsView[K, V_co]:
        """Return keys and values, a view."""
        return self._items.items()

    def __or__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        return {**self, **other} if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        return {**other, **self} if isinstance(other, Mapping) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        theirs = other if isinstance(other, FrozenDict) else FrozenDict(other)
        return self._comparable() == theirs._comparable()

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._comparable().items()))
        return self._hash

    def _comparable(self) -> dict[K, object]:
        return {key: comparable(value) for key, value in self._items.items()}

    def __repr__(self) -> str:
        return repr(dict(self._items))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self._items),)


def frozen(value: Any) -> Any:
    """Return a value as one that cannot be changed.

    Mappings become a `FrozenDict`, lists tuples, sets frozen sets. Arrays become read-only, also in
    the public fields of other records, where they are: nobody else may need to write to them.
    """
    kind = type(value)
    if kind in _SCALARS or kind is FrozenDict:
        return value
    if isinstance(value, (tuple, list)):
        # A list as a tuple; a tuple is left as it is where its items cannot be changed.
        items = tuple([frozen(item) for item in value])
        if type(value) is tuple and all(map(operator.is_, items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else items
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, Mapping):
        return FrozenDict(value)
    elif isinstance(value, set):
        return frozenset(value)
    else:
        _freeze_fields(value)
    return value


def thawed(value: Any) -> Any:
    """Return a value with a fresh `dict` in place of each mapping; tuples stay tuples."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    is_plain = type(value) in (list, tuple)
    return type(value)([thawed(item) for item in value]) if is_plain else value


def comparable(value: Any) -> Any:
    """Return what is equal, with an equal hash, for equal values: arrays by their bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, tuple):
        return tuple([comparable(item) for item in value])
    kind: Any = type(value)
    if kind not in _SCALARS and (names := _public(kind)):
        return kind, *(comparable(getattr(value, name)) for name in names)
    return value


class FrozenRecord:
    """A frozen dataclass whose fields cannot be changed either.

    Where fields have arrays, set `eq=False`: records are equal then if their arrays have the same
    bytes.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        _freeze_fields(self)

    def __eq__(self, other: object) -> bool:
        same = type(other) is type(self)
        return comparable(self) == comparable(other) if same else NotImplemented

    def __hash__(self) -> int:
        return hash(comparable(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields; what reads them makes arrays read-only again."""
        fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]
        return partial(type(self), **{f.name: getattr(self, f.name) for f in fields}), ()


def _freeze_fields(record: Any) -> None:
    kind: Any = type(record)
    for name in _public(kind):
        value = getattr(record, name)
        if (fixed := frozen(value)) is not value:
            object.__setattr__(record, name, fixed)


@cache
def _public(kind: type) -> tuple[str, ...]:
    """Fields of a dataclass, or slots of another class, without private ones."""
    slots = kind.__dict__.get("__slots__", ())
    names = [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else slots
    return tuple(name for name in names if not name.startswith("_"))
