"""Numeric fields of config types and their bounds, by walking the annotations."""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardwise.config.capabilities import Capabilities
from shardwise.units import Dimension

Path = tuple[str | int, ...]
Marks = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class NumericField:
    """A number somewhere in a config type, or in an example of it."""

    path: Path
    kind: type
    least: float | None
    most: float | None


def fields_of(
    kind: type[BaseModel], path: Path = (), seen: tuple[type, ...] = ()
) -> Iterator[NumericField]:
    """All numeric fields of a config type, keys of mappings included."""
    if kind in seen or kind is Capabilities:  # values of other fields, which have the bounds
        return
    for name, info in kind.model_fields.items():
        for at, leaf, marks in _leaves(info.annotation, tuple(info.metadata), (*path, name)):
            if issubclass(leaf, BaseModel):
                yield from fields_of(leaf, at, (*seen, kind))
            else:
                yield _field(at, leaf, marks)


def values_of(
    data: Mapping[str, Any], kind: type[BaseModel], path: Path = ()
) -> Iterator[NumericField]:
    """The numbers of an example, of lists and mappings the first."""
    for name, info in kind.model_fields.items():
        if name in data and kind is not Capabilities:
            yield from _values(data[name], info.annotation, tuple(info.metadata), (*path, name))


def _leaves(annotation: Any, marks: Marks, path: Path) -> Iterator[tuple[Path, type, Marks]]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _leaves(arguments[0], marks + _marks(arguments[1:]), path)
    elif origin in (typing.Union, types.UnionType):
        for member in arguments:
            yield from _leaves(member, marks, path)
    elif origin in (tuple, list, dict):
        for member in arguments:
            if member is not ...:
                yield from _leaves(member, (), (*path, "*"))
    elif annotation in (int, float) or _is_record(annotation):
        yield path, annotation, marks


def _values(value: Any, annotation: Any, marks: Marks, path: Path) -> Iterator[NumericField]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _values(value, arguments[0], marks + _marks(arguments[1:]), path)
    elif origin in (typing.Union, types.UnionType):
        for member in arguments:
            yield from _values(value, member, marks, path)
    elif origin in (tuple, list) and isinstance(value, (tuple, list)) and value:
        yield from _values(value[0], arguments[0], (), (*path, 0))
    elif origin is dict and isinstance(value, dict) and value:
        key = next(iter(value))
        yield from _values(value[key], arguments[1], (), (*path, key))
    elif _is_record(annotation):
        if isinstance(value, dict):
            yield from values_of(value, annotation, path)
    elif annotation in (int, float) and (value is None or type(value) in (int, float)):
        yield _field(path, annotation, marks)


def _is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _marks(metadata: Marks) -> Marks:
    """Annotations, those of a `Field` spread out."""
    inside = [mark.metadata if isinstance(mark, FieldInfo) else [mark] for mark in metadata]
    return tuple(mark for marks in inside for mark in marks)


def _field(path: Path, kind: type, marks: Marks) -> NumericField:
    least = [m.ge for m in marks if isinstance(m, Ge)] + [
        m.least for m in marks if isinstance(m, Dimension)
    ]
    most = [m.le for m in marks if isinstance(m, Le)] + [
        m.most for m in marks if isinstance(m, Dimension)
    ]
    return NumericField(
        path=path, kind=kind, least=max(least, default=None), most=min(most, default=None)
    )
