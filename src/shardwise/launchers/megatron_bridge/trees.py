"""Trees of options, references in them, and overrides of Hydra.

Overrides are those of Hydra's grammar (hydra.cc, "Basic override syntax"): values that are null,
true or false, numbers, words, quoted text, lists and mappings; the prefixes `+` and `++` (add) and
`~` (delete). References of OmegaConf, `${...}`, are replaced by what they refer to: fields
(`${model.hidden_size}`, `${.name}`, `${..name}`), arithmetic of NeMo's launcher (`${multiply:4,
${.hidden_size}}`), and environment variables with a default. A variable without one must be set by
the user. Of fields that do not matter, references are left as they are.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shardwise.errors import Fault, InputError, shorten
from shardwise.units import read_number, read_whole

Leaf = bool | int | float | str | None | list["Leaf"] | dict[str, "Leaf"]
"""Value of a configuration file."""
Tree = dict[str, Leaf]
"""Section or field to what it holds."""

TARGET = "_target_"
"""Key with the Python class or function that a node of a tree stands for."""
_NODE_KEYS = (TARGET, "_call_", "_partial_", "_args_", "_name_", "_convert_", "_recursive_")
_SCIENTIFIC = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
_MODULES = ("torch.nn.functional.", "torch.")


def put(tree: Tree, path: str, value: Leaf) -> None:
    """Set the value at a path of names with dots between them.

    Mappings merge; what else stands on the way is replaced.
    """
    *sections, name = path.split(".")
    for section in sections:
        inner = tree.get(section)
        if not isinstance(inner, dict):
            inner = {}
            tree[section] = inner
        tree = inner
    known = tree.get(name)
    if isinstance(value, dict) and isinstance(known, dict):
        for key, item in value.items():
            put(known, key, item)
    else:
        tree[name] = value


def remove(tree: Tree, path: str) -> None:
    """Remove the value at a path, if there is one."""
    *sections, name = path.split(".")
    for section in sections:
        inner = tree.get(section)
        if not isinstance(inner, dict):
            return
        tree = inner
    tree.pop(name, None)


def section(tree: Tree, path: str) -> Tree:
    """Return the section at a path; an empty one if there is none."""
    for name in path.split("."):
        inner = tree.get(name)
        if not isinstance(inner, dict):
            return {}
        tree = inner
    return tree


def leaves(tree: Mapping[str, Leaf], within: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yield the path and value of every field; classes of nodes and empty sections are none."""
    for name, value in tree.items():
        path = f"{within}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{path}.")
        elif name not in _NODE_KEYS:
            yield path, value


def plain(value: Leaf) -> Leaf:
    """Return a value with types and functions as words, and numbers such as 1e-5 as numbers.

    A node that stands for a type or a function of PyTorch is its name: bfloat16, silu.
    """
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        target = value.get(TARGET)
        if "_name_" in value:  # a member of an enumeration
            return value["_name_"]
        if isinstance(target, str) and set(value) <= set(_NODE_KEYS) and "_call_" in value:
            return _short(target)
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, str):
        number = read_number(value) if _SCIENTIFIC.fullmatch(value) else None
        return _short(value) if number is None else number
    return value


def torch_type(name: str) -> Tree:
    """Return the node of a type of PyTorch."""
    return {TARGET: f"torch.{name}", "_call_": False}


def _short(name: str) -> str:
    """A name of PyTorch without its module."""
    for module in _MODULES:
        if name.startswith(module):
            return name.removeprefix(module)
    return name


_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")
_MOST_STEPS = 50

_LOOKUPS = ("oc.env", "oc.decode", "oc.select", "env")
_ARITHMETIC: Mapping[str, Callable[..., float]] = {
    "multiply": lambda *numbers: math.prod(numbers),
    "add": lambda *numbers: sum(numbers),
    "sum": lambda *numbers: sum(numbers),
    "subtract": lambda left, right: left - right,
    "divide": lambda left, right: left / right,
    "int_div": lambda left, right: left // right,
    "floor_div": lambda left, right: left // right,
    "ceil_div": lambda left, right: -(-left // right),
    "div": lambda left, right: left / right,
    "divide_ceil": lambda left, right: -(-left // right),
    "divide_floor": lambda left, right: left // right,
}
"""Functions that NeMo's launchers and submissions to MLPerf register for their files."""


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
        if name in _LOOKUPS:
            return self._looked_up(name, arguments, path, depth)
        function = _ARITHMETIC.get(name)
        if function is None:
            known = ", ".join([*_LOOKUPS[:-1], *_ARITHMETIC])
            raise _ReferenceError(f"function {name} is not known; allowed: {known}")
        try:
            return _whole(function(*(_number(argument) for argument in arguments)))
        except (TypeError, ZeroDivisionError, OverflowError):
            raise _ReferenceError(f"has wrong numbers for {name}") from None

    def _looked_up(
        self, name: str, arguments: list[str], path: tuple[str, ...], depth: int
    ) -> Leaf:
        """The value of a variable of the environment, of a field, or of a text (OmegaConf)."""
        first, *default = arguments
        if name == "oc.decode":
            return _typed(", ".join(arguments))
        if name == "oc.select":
            try:
                return self._field(first, path, depth)
            except _ReferenceError:
                return _typed(default[0]) if default else None
        if first in self.variables:
            return _typed(self.variables[first])
        if default:
            return _typed(default[0])
        raise _ReferenceError(f"{first} has no value here; set it: --set {first}=VALUE")

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
    if (word := text.lower()) in _CONSTANTS:  # in any case, as in OmegaConf
        return _CONSTANTS[word]
    number = read_number(text) if _NUMBER.fullmatch(text) else None
    return text if number is None else _whole(number)


def _number(text: str) -> float:
    number = _typed(text)
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        raise _ReferenceError(f"needs a number in place of {shorten(text)}")
    return number


def _whole(number: float) -> int | float:
    return int(number) if float(number).is_integer() else number


_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_]\w*(?:[./@][\w./@-]+)?)(?:=(.*))?", re.DOTALL)
_INTEGER = re.compile(r"[-+]?\d+(_\d+)*")
_FLOAT = re.compile(r"[-+]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CONSTANTS: dict[str, Leaf] = {"null": None, "true": True, "false": False}
_PLAIN_WORD = re.compile(r"[A-Za-z_/.$*@|?-][\w/.$*@|?%+-]*")
"""Text that needs no quotes in an override."""
_MOST_DEPTH = 20


class _ValueError(Exception):
    """A text is no value of an override."""


def is_override(word: str) -> bool:
    """Whether a word of a command line is an override."""
    found = _OVERRIDE.fullmatch(word)
    return found is not None and (found[3] is not None or found[1] == "~")


def apply_overrides(tree: Tree, words: Iterable[str], source: str) -> None:
    """Apply overrides to a tree, one after the other.

    Raises
    ------
    InputError
        If a word is no override, or its value is none.
    """
    faults = []
    for word in words:
        found = _OVERRIDE.fullmatch(word)
        if found is None or (found[3] is None and found[1] != "~"):
            problem = "is no override; write section.field=value"
            faults.append(Fault.of("override", word, problem, source))
            continue
        if found[1] == "~":
            remove(tree, found[2])
            continue
        try:
            put(tree, found[2], read_value(found[3]))
        except _ValueError as error:
            faults.append(Fault.of(found[2], found[3], str(error), source))
    if faults:
        raise InputError(faults)


def read_value(text: str) -> Leaf:
    """Return the value of a text."""
    value, rest = _read(text.strip(), 0)
    if rest:
        raise _ValueError(f"has {rest[:20]!r} after its value; quote the text")
    return value


def _read(text: str, depth: int, ends: str = "") -> tuple[Leaf, str]:
    """The value that a text begins with, and what follows it."""
    if depth > _MOST_DEPTH:
        raise _ValueError(f"is nested too deeply; at most {_MOST_DEPTH} levels")
    text = text.lstrip()
    if text[:1] == "[":
        return _read_list(text[1:], depth)
    if text[:1] == "{":
        return _read_mapping(text[1:], depth)
    if text[:1] in ("'", '"') and text:
        return _read_quoted(text)
    end = next((n for n, letter in enumerate(text) if letter in ends), len(text))
    return _word(text[:end].strip()), text[end:].lstrip()


def _read_list(text: str, depth: int) -> tuple[Leaf, str]:
    items: list[Leaf] = []
    text = text.lstrip()
    while text[:1] != "]":
        item, text = _read(text, depth + 1, ",]")
        items.append(item)
        text = _after_comma(text, "]")
    return items, text[1:].lstrip()


def _read_mapping(text: str, depth: int) -> tuple[Leaf, str]:
    fields: dict[str, Leaf] = {}
    text = text.lstrip()
    while text[:1] != "}":
        key, text = _read(text, depth + 1, ":")
        if text[:1] != ":":
            raise _ValueError("a mapping has a key without a colon")
        fields[str(key)], text = _read(text[1:], depth + 1, ",}")
        text = _after_comma(text, "}")
    return fields, text[1:].lstrip()


def _after_comma(text: str, end: str) -> str:
    if text[:1] == ",":
        return text[1:].lstrip()
    if text[:1] != end:
        raise _ValueError(f"lacks a closing {end}")
    return text


def _read_quoted(text: str) -> tuple[str, str]:
    quote = text[0]
    characters: list[str] = []
    position = 1
    while position < len(text):
        letter = text[position]
        if letter == "\\" and text[position + 1 : position + 2] in (quote, "\\"):
            position += 1
            letter = text[position]
        elif letter == quote:
            return "".join(characters), text[position + 1 :].lstrip()
        characters.append(letter)
        position += 1
    raise _ValueError("lacks a closing quote")


def _word(text: str) -> Leaf:
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if not _FLOAT.fullmatch(text):
        return text
    number = read_whole(text) if _INTEGER.fullmatch(text) else read_number(text)
    return text if number is None else number


def written_value(value: Leaf) -> str:
    """Return a value as an override has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(written_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{written_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, str):
        is_word = _PLAIN_WORD.fullmatch(value) is not None and _word(value) == value
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return value if is_word else f"'{escaped}'"
    return repr(value)


def overrides(tree: Tree, added: Iterable[str]) -> Iterator[str]:
    """Yield the overrides of a tree."""
    sections = set(added)
    for name, value in tree.items():
        if isinstance(value, dict):
            prefix = "++" if name in sections else ""
            for field, item in value.items():
                yield f"{prefix}{name}.{field}={written_value(item)}"
        else:
            yield f"{'++' if name in sections else ''}{name}={written_value(value)}"
