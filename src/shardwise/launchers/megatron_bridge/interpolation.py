"""References of OmegaConf, `${...}`, in the values of a tree, replaced by what they refer to.

References to fields (`${model.hidden_size}`, `${.name}`, `${..name}`), arithmetic of NeMo's
launcher (`${multiply:4, ${.hidden_size}}`), and environment variables with a default. A variable
without one must be set by the user. Of fields that do not matter, references are left as they are.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from shardwise.errors import Fault, InputError, shorten
from shardwise.launchers.megatron_bridge.trees import Leaf, Tree
from shardwise.units import read_number

_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_MOST_STEPS = 50

_ARITHMETIC: Mapping[str, Callable[..., float]] = {
    "multiply": lambda *numbers: math.prod(numbers),
    "add": lambda *numbers: sum(numbers),
    "sum": lambda *numbers: sum(numbers),
    "subtract": lambda left, right: left - right,
    "divide": lambda left, right: left / right,
    "int_div": lambda left, right: left // right,
    "divide_ceil": lambda left, right: -(-left // right),
    "divide_floor": lambda left, right: left // right,
}
"""Functions that NeMo's launchers register for their files."""


@dataclass(slots=True, kw_only=True)
class _Resolver:
    tree: Tree
    roots: Collection[str]
    source: str
    needed: Callable[[str], bool]
    """Whether a value at a path is used."""
    variables: Mapping[str, str]
    faults: list[Fault] = field(default_factory=list)

    def resolved(self, value: Leaf, path: tuple[str, ...], depth: int = 0) -> Leaf:
        if isinstance(value, dict):
            return {key: self.resolved(item, (*path, key), depth) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item, (*path, "*"), depth) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        name = ".".join(path)
        if not self.needed(name):
            return value
        try:
            return self._text(value, path, depth)
        except _ReferenceError as error:
            self.faults.append(Fault.of(name, value, str(error), self.source))
            return None

    def _text(self, text: str, path: tuple[str, ...], depth: int) -> Leaf:
        """Replace the innermost references of a text until there are none."""
        for _ in range(_MOST_STEPS):
            found = _REFERENCE.search(text)
            if found is None:
                return text
            value = self._one(found[1].strip(), path, depth)
            if found[0] == text:
                return value
            text = text[: found.start()] + _written(value) + text[found.end() :]
        raise _ReferenceError(f"has more than {_MOST_STEPS} references")

    def _one(self, reference: str, path: tuple[str, ...], depth: int) -> Leaf:
        """What one reference without others inside stands for."""
        if depth > _MOST_STEPS:
            raise _ReferenceError("refers to itself")
        name, is_function, rest = reference.partition(":")
        if not is_function:
            return self._field(reference, path, depth)
        arguments = [part.strip().strip("'\"") for part in rest.split(",")]
        if name in ("oc.env", "env"):
            if arguments[0] in self.variables:
                return _typed(self.variables[arguments[0]])
            if len(arguments) > 1:
                return _typed(arguments[1])
            name = arguments[0]
            raise _ReferenceError(f"{name} has no value here; set it: --set {name}=VALUE")
        function = _ARITHMETIC.get(name)
        if function is None:
            known = ", ".join(["oc.env", *_ARITHMETIC])
            raise _ReferenceError(f"function {name} is not known; allowed: {known}")
        try:
            return _whole(function(*(_number(argument) for argument in arguments)))
        except (TypeError, ZeroDivisionError, OverflowError):
            raise _ReferenceError(f"has wrong numbers for {name}") from None

    def _field(self, reference: str, path: tuple[str, ...], depth: int) -> Leaf:
        """The value of another field."""
        names = reference.lstrip(".")
        levels = len(reference) - len(names)
        base = path[: len(path) - levels] if levels else ()
        where = (*base, *names.split("."))
        if not levels and where[0] in self.roots and where[0] not in self.tree:
            where = where[1:]
        value: Leaf = self.tree
        for name in where:
            if not isinstance(value, dict) or name not in value:
                raise _ReferenceError(f"refers to {reference}, which the file does not set")
            value = value[name]
        if isinstance(value, str) and "${" in value:
            return self._text(value, where, depth + 1)
        return value


class _ReferenceError(Exception):
    """A reference stands for nothing."""


def resolved(
    tree: Tree,
    source: str,
    needed: Callable[[str], bool],
    roots: Collection[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Tree:
    """Return a tree with its references replaced.

    Raises
    ------
    InputError
        Naming each reference of a field that is used without a value.
    """
    resolver = _Resolver(
        tree=tree, roots=roots, source=source, needed=needed, variables=variables or {}
    )
    found = {key: resolver.resolved(value, (key,)) for key, value in tree.items()}
    if resolver.faults:
        raise InputError(resolver.faults)
    return found


def _written(value: Leaf) -> str:
    return "null" if value is None else str(value)


def _typed(text: str) -> Leaf:
    if text in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[text]
    number = read_number(text) if _NUMBER.fullmatch(text) else None
    return text if number is None else _whole(number)


def _number(text: str) -> float:
    number = _typed(text)
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        raise _ReferenceError(f"needs a number in place of {shorten(text)}")
    return number


def _whole(number: float) -> int | float:
    return int(number) if float(number).is_integer() else number
