"""`dataclass` for the records of formulas: those that say `frozen` are, to a type checker alone.

Python compiles six functions for a frozen dataclass when it is imported, and sets each field of one
through a call: a tenth of the time of a search. These compile one, and set their fields themselves.
They are equal, have a hash and print as others do. What users get is frozen: `shardwise.frozen`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, astuple, field, fields, is_dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "astuple", "dataclass", "field", "fields", "is_dataclass", "replace"]


def _dataclass(
    *,
    frozen: bool = False,
    eq: bool = True,
    repr: bool = True,  # noqa: A002 - as Python has it
    **options: bool,
) -> Callable[[type], type]:
    """Return what `dataclasses.dataclass` does, for other records than those of users."""

    def made(kind: type) -> type:
        own = {**vars(kind)}
        record: type = dataclasses.dataclass(eq=False, repr=False, **options)(kind)
        added = _comparing(record, frozen=frozen) if eq else {}
        added |= {"__repr__": _shown} if repr else {}
        for name, function in added.items():
            if name not in own:
                setattr(record, name, function)
        return record

    return made


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _dataclass


def _comparing(record: type, *, frozen: bool) -> dict[str, Callable[..., Any] | None]:
    """Methods that compare the fields of a record."""
    names = [one.name for one in fields(record) if one.compare]
    values = attrgetter(*names) if len(names) > 1 else _few(names)

    def equal(self: object, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        same: bool = values(self) == values(other)
        return same

    def hashed(self: object) -> int:
        return hash(values(self))

    return {"__eq__": equal, "__hash__": hashed if frozen else None}


def _few(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    return lambda record: tuple([getattr(record, name) for name in names])


def _shown(record: Any) -> str:
    shown = [f"{one.name}={getattr(record, one.name)!r}" for one in fields(record) if one.repr]
    return f"{type(record).__qualname__}({', '.join(shown)})"
