"""Overrides of Hydra: `section.field=value`, read and written.

Of its grammar (hydra.cc, "Basic override syntax"): values that are null, true or false, numbers,
words, quoted text, lists and mappings; the prefixes `+` and `++` (add) and `~` (delete).
"""

import re
from collections.abc import Iterable, Iterator

from shardwise.errors import Fault, InputError
from shardwise.launchers.megatron_bridge.trees import Leaf, Tree, put, remove
from shardwise.units import read_number, read_whole

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
