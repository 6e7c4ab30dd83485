"""Records whose fields are documented by the docstrings under them, which are read when needed."""

import ast
import inspect
import linecache
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Described(BaseModel):
    """A frozen record; unknown keys, NaN and infinities are refused.

    Programs start faster: pydantic builds the validator of a record when one is first made, and
    docstrings are read when a JSON Schema or a help text shows them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def __dir__(self) -> list[str]:
        """Names that a prompt completes: fields and own methods, without those of pydantic."""
        inherited = {name for name in dir(BaseModel) if not name.startswith("_")}
        return sorted({*super().__dir__()} - inherited | {*type(self).model_fields})

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


@cache
def _descriptions(record: type[Described]) -> dict[str, str]:
    """Docstrings of the own fields of a record and of those that it inherits."""
    found: dict[str, str] = {}
    for kind in reversed(record.__mro__):
        if issubclass(kind, Described) and kind is not Described:
            own = _docstrings(inspect.getsourcefile(kind) or "").get(kind.__qualname__, {})
            inherited = {k: text for k, text in found.items() if k not in kind.__annotations__}
            found = inherited | own
    return {name: text for name, text in found.items() if name in record.model_fields}


@cache
def _docstrings(path: str) -> dict[str, dict[str, str]]:
    """Docstrings of the annotated names of each class at the top of a module."""
    tree = ast.parse("".join(linecache.getlines(path)))
    return {
        node.name: dict(_of_class(node)) for node in tree.body if isinstance(node, ast.ClassDef)
    }


def _of_class(node: ast.ClassDef) -> list[tuple[str, str]]:
    return [
        (field.target.id, inspect.cleandoc(below.value.value))
        for field, below in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    ]
