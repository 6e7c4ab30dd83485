"""What a field of a config type counts, by its annotation."""

import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardwise.config.expressions.formula import Part
from shardwise.units import Dimension


@cache
def kinds_at(config_type: type[BaseModel], path: tuple[Part, ...]) -> frozenset[str | None]:
    """What may stand at a path: keys of `units.UNITS`, and None for a plain number.

    Empty if no number may stand there, or the path is none of the type's.
    """
    places: list[object] = [config_type]
    for part in path:
        places = [inside for place in places for inside in _inside(place, part)]
    return frozenset(kind for place in places for kind in _kinds(place))


def kind_at(config_type: type[BaseModel], path: tuple[Part, ...]) -> str | None:
    """What a number at a path counts: a key of `units.UNITS`, or None for a plain number."""
    kinds = kinds_at(config_type, path)
    return next(iter(kinds)) if len(kinds) == 1 else None


@cache
def canonical_names(config_type: type[BaseModel]) -> dict[str, str]:
    """Other names that top-level fields are read by, with their own."""
    found: dict[str, str] = {}
    for name, field in config_type.model_fields.items():
        choices = getattr(field.validation_alias, "choices", ())
        found |= {str(choice): name for choice in choices if choice != name}
    return found


def _inside(place: object, part: Part) -> Iterator[object]:
    """What stands behind one step, in every member of a union."""
    for member, _ in _members(place):
        if isinstance(member, type) and issubclass(member, BaseModel):
            if isinstance(part, str) and part in member.model_fields:
                yield member.model_fields[part]
            continue
        arguments = typing.get_args(member)
        if typing.get_origin(member) is Mapping:
            yield arguments[1]
        elif typing.get_origin(member) is tuple and isinstance(part, int):
            several = len(arguments) == 2 and arguments[1] is Ellipsis  # noqa: PLR2004
            if several or part < len(arguments):
                yield arguments[0 if several else part]


def _kinds(place: object) -> Iterator[str | None]:
    for member, marks in _members(place):
        if member in (int, float):
            dimensions = [mark.name for mark in marks if isinstance(mark, Dimension)]
            yield dimensions[0] if dimensions else None


def _members(
    place: object, marks: Iterable[object] = ()
) -> Iterator[tuple[object, Sequence[object]]]:
    """Members of unions with what annotates them."""
    if isinstance(place, FieldInfo):
        yield from _members(place.annotation, place.metadata)
        return
    origin = typing.get_origin(place)
    if origin in (typing.Union, types.UnionType):
        for member in typing.get_args(place):
            yield from _members(member, marks)
    elif origin is typing.Annotated:
        inner, *more = typing.get_args(place)
        yield from _members(inner, [*marks, *more])
    else:
        yield place, list(marks)
