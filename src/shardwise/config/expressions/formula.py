"""Formulas: `frequency * cores * 4096`, read as Python writes them and nothing else of Python."""

import ast
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from typing import NoReturn

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardwise.config.expressions.quantity import Quantity
from shardwise.errors import shorten
from shardwise.records import dataclass
from shardwise.units import Dimension

Part = str | int
"""One step of a path: a key, the name of an item of a list, or its position."""
Named = Callable[[tuple[Part, ...]], Quantity]
LookedUp = Callable[[str, str], Quantity]

_MOST_CHARACTERS = 1000
_MOST_DEPTH = 40
_TEXT_OR_PATH = re.compile(r"""'[^']*'|"[^"]*"|(?<![\w.])[A-Za-z_]\w*(?:\.\w+|\[[^\]]*\])*""")
_POSITION = re.compile(r"\.(\d+)(?![A-Za-z_])")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\[\]]+)\]")
_BINARY: dict[type[ast.operator], Callable[[Quantity, Quantity], Quantity]] = {
    ast.Add: Quantity.__add__,
    ast.Sub: Quantity.__sub__,
    ast.Mult: Quantity.__mul__,
    ast.Div: Quantity.__truediv__,
    ast.FloorDiv: Quantity.__floordiv__,
    ast.Mod: Quantity.__mod__,
    ast.Pow: Quantity.__pow__,
}
_OF_SEVERAL = {"min": Quantity.least, "max": Quantity.most}
_OF_ONE: dict[str, Callable[[float], int]] = {"ceil": math.ceil, "floor": math.floor}
_LOOKUP = "lookup"
_ALLOWED = "allowed: numbers, names, quoted quantities, + - * / // % ** ( ), " + ", ".join(
    (*_OF_SEVERAL, *_OF_ONE, _LOOKUP)
)


def evaluated(text: str, named: Named, looked_up: LookedUp) -> Quantity:
    """Calculate a formula.

    Raises
    ------
    ValueError
        If the formula cannot be read or calculated.
    """
    return _Evaluation(named, looked_up).of(_parsed(text))


def parts_of(path: str) -> tuple[Part, ...]:
    """Split a dotted path, `network.0.bandwidth`, `network[0].bandwidth` or `network.nvlink`."""
    steps = [a or b.strip("'\" ") for a, b in _STEP.findall(path.strip())]
    if not steps or _STEP.sub("", path.strip()):
        raise ValueError(
            f"{shorten(path)} is not a field; write one such as network.nvlink.bandwidth"
        )
    return tuple(int(step) if step.isdecimal() else step for step in steps)


def path_text(path: Sequence[Part]) -> str:
    """A path as faults show it: `network[0].bandwidth`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _parsed(text: str) -> ast.expr:
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"a formula has at most {_MOST_CHARACTERS} characters")
    if "#" in _TEXT_OR_PATH.sub("", text):  # a comment would hide what follows on its line
        raise ValueError("a formula has no comments; write them above it, or as a description")

    def subscripts(found: re.Match[str]) -> str:
        word = found.group()
        return word if word[0] in "'\"" else _POSITION.sub(r"[\1]", word)

    try:
        tree = ast.parse(_TEXT_OR_PATH.sub(subscripts, text.strip()), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(f"is not a formula; {_ALLOWED}") from None
    level: list[ast.AST] = [tree]
    for _ in range(_MOST_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise ValueError(f"is nested more than {_MOST_DEPTH} deep")
    return tree


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Walks a formula; what is not among the few things allowed is refused by name."""

    named: Named
    looked_up: LookedUp

    def of(self, node: ast.expr) -> Quantity:
        if isinstance(node, ast.Constant):
            return _constant(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](self.of(node.left), self.of(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
            operand = self.of(node.operand)
            return -operand if isinstance(node.op, ast.USub) else operand
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return self.named(_path(node))
        if isinstance(node, ast.Call):
            return self._called(node)
        return _refuse(node)

    def _called(self, node: ast.Call) -> Quantity:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        plain = not node.keywords and not any(isinstance(a, ast.Starred) for a in node.args)
        if name == _LOOKUP:
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            row, field = [t for t in texts if isinstance(t, str)] if len(texts) == 2 else ("", "")  # noqa: PLR2004
            if not (plain and row and field and len(node.args) == len(texts)):
                raise ValueError(
                    "lookup takes a row and a field in quotes: lookup('h100-sxm', 'board_power')"
                )
            return self.looked_up(row, field)
        if name not in (*_OF_SEVERAL, *_OF_ONE):
            _refuse(node.func)
        if not plain or not node.args or (name in _OF_ONE and len(node.args) > 1):
            raise ValueError(f"{name} takes {'one figure' if name in _OF_ONE else 'figures'}")
        arguments = [self.of(argument) for argument in node.args]
        if name in _OF_ONE:
            return arguments[0].rounded(_OF_ONE[name])
        return reduce(_OF_SEVERAL[name], arguments)


def _constant(value: object) -> Quantity:
    if isinstance(value, str):
        return Quantity.of_text(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{shorten(value)} is no figure; {_ALLOWED}")  # noqa: TRY004 - as other faults
    return Quantity(value) * Quantity(1)  # finite


def _path(node: ast.expr) -> tuple[Part, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (*_path(node.value), node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        step = node.slice.value
        if isinstance(step, str) or (isinstance(step, int) and not isinstance(step, bool)):
            return (*_path(node.value), step)
    return _refuse(node)


def _refuse(node: ast.AST) -> NoReturn:
    raise ValueError(f"{shorten(ast.unparse(node))} is not allowed in a formula; {_ALLOWED}")


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
