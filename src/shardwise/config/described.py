"""Records whose fields are documented by the docstrings under them, which are read when needed."""

import inspect
import linecache
import re
import types
import typing
from collections.abc import Mapping
from datetime import date
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import wrap_serializer_function_ser_schema

from shardwise.frozen import FrozenDict, frozen, thawed

# An annotated name of a class, the other lines of its statement, and the docstring under it.
_FIELD = re.compile(
    r'^    (\w+): .*\n(?:(?:        .*|    [)\]}].*)\n)*    """((?:[^"]|"(?!""))*)"""$',
    re.MULTILINE,
)


class Described(BaseModel):
    """A frozen record; unknown keys, NaN and infinities are refused.

    Nothing inside it can be changed either: whatever their types, fields hold a `FrozenDict` in
    place of a mapping and tuples in place of lists. It has a hash, and is equal to its pickle.

    Programs start faster: pydantic builds the validator of a record when one is first made, and
    docstrings are read when a JSON Schema or a help text shows them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def __dir__(self) -> list[str]:
        """Names that a prompt completes: fields and own methods, without those of pydantic."""
        inherited = {name for name in dir(BaseModel) if not name.startswith("_")}
        return sorted({*super().__dir__()} - inherited | {*type(self).model_fields})

    def model_post_init(self, _: Any, /) -> None:
        """Freeze the fields, validated or not."""
        for name in _open_fields(type(self)):
            if name in self.__dict__:
                self.__dict__[name] = frozen(self.__dict__[name])

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the record with other values for some fields, which are not validated."""
        values = {name: frozen(value) for name, value in (update or {}).items()}
        copy = super().model_copy(update=values, deep=deep)
        for name in copy.__dict__.keys() - type(self).model_fields.keys():
            del copy.__dict__[name]  # a cached property, which follows from the fields
        return copy

    @property
    def model_fields_set(self) -> set[str]:
        """Fields that were set; a copy, so that the record stays as it is."""
        return set(self.__pydantic_fields_set__)

    def _with_dicts(self) -> Self:
        """Return a copy that pydantic can serialize, with a `dict` for each mapping."""
        copy = self.__copy__()
        for name in _open_fields(type(self)):
            copy.__dict__[name] = thawed(copy.__dict__[name])
        return copy

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        """Serialize mappings, also those of records in others."""
        if not (_open_fields(cls) or cls.__private_attributes__):
            cls.__pydantic_post_init__ = None  # so that pydantic does not call what does nothing
        schema: Any = handler(source)
        if _open_fields(cls) or cls.__private_attributes__:  # which may have to be completed
            schema["serialization"] = wrap_serializer_function_ser_schema(_serialized)
        return schema

    @classmethod
    def descriptions(cls) -> Mapping[str, str]:
        """Return the docstrings of the fields that have one."""
        return _descriptions(cls)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        """Add the docstrings to the JSON Schema, without the examples in Python."""
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        if "description" in resolved:
            resolved["description"] = resolved["description"].split("\n\nExamples\n")[0]
        properties = resolved.get("properties", {})
        for name, text in _descriptions(cls).items():
            field = cls.model_fields[name]
            aliases = getattr(field.validation_alias, "choices", [field.validation_alias])
            for key in {name, *aliases} & properties.keys():
                properties[key]["description"] = field.description or text
        return schema


def _serialized(one: Any, handler: SerializerFunctionWrapHandler) -> Any:
    own = isinstance(one, Described)
    return handler(one._with_dicts() if own else one)  # noqa: SLF001 - of its own class


@cache
def _open_fields(record: type[Described]) -> tuple[str, ...]:
    """Fields that may hold something that can be changed, by their types."""
    return tuple(n for n, field in record.model_fields.items() if not _is_closed(field.annotation))


def _is_closed(annotation: Any) -> bool:
    """Whether values of a type cannot be changed."""
    origin = typing.get_origin(annotation)
    if origin in (tuple, typing.Union, types.UnionType):
        return all(one is ... or _is_closed(one) for one in typing.get_args(annotation))
    if origin is typing.Annotated:
        return _is_closed(typing.get_args(annotation)[0])
    closed = (str, int, float, date, Enum, Path, types.NoneType, Described)
    is_closed = isinstance(annotation, type) and issubclass(annotation, closed)
    return origin is typing.Literal or annotation is None or is_closed


@cache
def _descriptions(record: type[Described]) -> Mapping[str, str]:
    """Docstrings of the own fields of a record and of those that it inherits."""
    found: dict[str, str] = {}
    for kind in reversed(record.__mro__):
        if issubclass(kind, Described) and kind is not Described:
            own = _docstrings(inspect.getsourcefile(kind) or "").get(kind.__qualname__, {})
            inherited = {k: text for k, text in found.items() if k not in kind.__annotations__}
            found = inherited | own
    return FrozenDict({n: text for n, text in found.items() if n in record.model_fields})


@cache
def _docstrings(path: str) -> dict[str, dict[str, str]]:
    """Docstrings of the annotated names of each class at the top of a module.

    The parser of Python takes twenty times as long, and every verb with flags waits for it.
    """
    _, *rest = re.split(r"^class (\w+)", "".join(linecache.getlines(path)), flags=re.MULTILINE)
    return {
        name: {field: inspect.cleandoc(text) for field, text in _FIELD.findall(body)}
        for name, body in zip(rest[::2], rest[1::2], strict=True)
    }
