"""The one tree of exceptions that shardwise raises on purpose."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from itertools import islice
from os import PathLike
from typing import Any, Self

_SHORT_START = 2
_VALUE_WIDTH = 80
"""Characters of a value in a message; a terminal line has about as many."""
_WORD_WIDTH = 200
"""Characters of one word in a message: paths are longer than values."""
_FIELD_WIDTH = 200
_MOST_ITEMS = 20
_MOST_BITS = 10_000
"""Python refuses to write integers of thousands of digits."""
_MOST_FAULTS = 50
"""Faults that are listed; the others are counted."""
_MOST_DEPTH = 4
_MOST_ALLOWED = 12
"""Allowed words that a message lists; of more, only the nearest."""
_MOST_NEAREST = 5
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    (str, "text"),
    ((int, float), "a number"),
    (Mapping, "a mapping"),
    ((list, tuple), "a list"),
    ((set, frozenset), "a set"),
    ((bytes, bytearray), "bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One problem of the input: where it is, the value, and what is allowed."""

    problem: str
    source: str = ""
    field: str = ""
    value: object = None
    has_value: bool = False

    @classmethod
    def of(cls, field: str, value: object, problem: str, source: str = "") -> "Fault":
        """Return the fault of a field whose value is shown."""
        return cls(source=source, field=field, value=value, has_value=True, problem=problem)

    def __str__(self) -> str:
        parts = [one_line(part, _FIELD_WIDTH) for part in (self.source, self.field) if part]
        value = [shorten(self.value)] if self.has_value else []
        return ": ".join([*parts, *value, one_line(self.problem)])


class ShardwiseError(Exception):
    """Base of every error that shardwise raises on purpose.

    Examples
    --------
    >>> from shardwise import ShardwiseError, estimate
    >>> try:
    ...     estimate("llama3-8b", "h100-sxm", gpus=8, tp=3, gbs=8)
    ... except ShardwiseError as error:
    ...     print(type(error).__name__)
    InputError
    """


class InputError(ShardwiseError):
    """The input is wrong; `faults` has one entry for each problem.

    Examples
    --------
    >>> from shardwise import InputError, estimate
    >>> try:
    ...     estimate("llama3-8b", "h100-sxm", gpus=8, tp=0, gbs=8)
    ... except InputError as error:
    ...     print([fault.field for fault in error.faults])
    ['tp']
    """

    def __init__(self, faults: Fault | Sequence[Fault]) -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        rest = len(self.faults) - _MOST_FAULTS
        more = [f"and {rest} more faults"] if rest > 0 else []
        super().__init__("\n".join([*map(str, self.faults[:_MOST_FAULTS]), *more]))

    @classmethod
    def of(cls, field: str, value: object, problem: str, source: str = "") -> Self:
        """Return the error of a field whose value is shown."""
        return cls(Fault.of(field, value, problem, source))

    @classmethod
    def at(cls, source: str | PathLike[str], problem: str, field: str = "") -> Self:
        """Return the error of a file or argument, of which no value is shown."""
        return cls(Fault(source=str(source), field=field, problem=problem))

    def __reduce__(self) -> tuple[type["InputError"], tuple[tuple[Fault, ...]]]:
        """Pickle the faults, so that another process gets them and not just their text."""
        return type(self), (self.faults,)


class UnknownNameError(InputError):
    """A name that is neither in the catalog nor a file.

    Examples
    --------
    >>> from shardwise import System, UnknownNameError
    >>> try:
    ...     System.load("h100-smx")
    ... except UnknownNameError as error:
    ...     print("did you mean" in str(error))
    True
    """


def refuse(faults: Iterable[Fault]) -> None:
    """Raise an `InputError` with all of some faults, if there are any."""
    if found := list(faults):
        raise InputError(found)


def check_flags(**flags: object) -> None:
    """Raise an `InputError` unless arguments are true or false, also those of numpy."""
    refuse(
        Fault.of(name, value, "must be true or false")
        for name, value in flags.items()
        if type(value).__name__ not in ("bool", "bool_")
    )


def check_function(field: str, value: object) -> None:
    """Raise an `InputError` unless an argument is a function or None."""
    if value is not None and not callable(value):
        raise InputError(Fault.of(field, value, "must be a function, or nothing"))


def check_path(field: str, value: object) -> None:
    """Raise an `InputError` unless an argument is the path of a file."""
    if not isinstance(value, (str, PathLike)):
        raise InputError(Fault.of(field, value, "must be a file"))


def check_word(field: str, value: object, known: Sequence[str]) -> None:
    """Raise an `InputError` unless an argument is one of some words."""
    if not isinstance(value, str) or value not in known:
        raise InputError.of(field, value, allowed_words(value, known))


def allowed_words(value: object, known: Iterable[str], command: str = "") -> str:
    """Say which words are allowed: all of a short list, of a long one at most the five nearest.

    If none is near, the command that lists them, or the first five.

    Parameters
    ----------
    value
        What was written instead.
    known
        The words.
    command
        Command that lists them all.
    """
    words = list(known)
    if len(words) <= _MOST_ALLOWED:
        return f"allowed: {', '.join(words) or 'none'}{nearest(value, words)}"
    close = did_you_mean(_closest(value, words, _MOST_NEAREST))
    if not command:
        first = f"allowed: {', '.join(words[:_MOST_NEAREST])} and {len(words) - _MOST_NEAREST} more"
        return close or first
    return f"{close}{' ' if close else ''}to list them: {command}"


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest known name, or an empty string."""
    found = _closest(name, known, 1)
    return f"; {did_you_mean(found)}" if found else ""


def did_you_mean(names: Sequence[str]) -> str:
    """Return `"did you mean 'x', 'y' or 'z'?"`, or an empty string without names."""
    if not names:
        return ""
    *others, last = map(repr, names)
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"


def _closest(name: object, known: Iterable[str], most: int) -> list[str]:
    """The known names that continue what was written, then those that are similar to it."""
    text = name[:_VALUE_WIDTH] if isinstance(name, str) else ""
    words = list(known)
    longer = [word for word in words if word.startswith(text)] if len(text) > _SHORT_START else []
    similar = get_close_matches(text, words, n=most, cutoff=0.6)
    return list(dict.fromkeys([*longer, *similar]))[:most]


def shorten(value: object) -> str:
    """Show a value on one line as files write it (null, true, a list), cut to a readable length."""
    return _cut(_shown(value, _MOST_DEPTH), _VALUE_WIDTH)


def kind_of(value: object) -> str:
    """Name the type of a value in words of files: nothing, a mapping, a list, text, a number."""
    if value is None:
        return "nothing"
    for kind, words in _KINDS:
        if isinstance(value, kind):
            return words
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def one_line(text: str, width: int | None = None) -> str:
    """Return text on one line: control characters escaped, long words cut, and cut to a width."""
    words = " ".join(_cut_middle(word) for word in text.split())
    line = words if words.isprintable() else "".join(map(_printable, words))
    return line if width is None else _cut(line, width)


def _printable(character: str) -> str:
    """A character, or how Python escapes it: terminals act on some of those that do not print."""
    return character if character.isprintable() else repr(character)[1:-1]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _cut_middle(word: str) -> str:
    """Cut a long word in its middle: of a path, the last part says the most."""
    half = (_WORD_WIDTH - 3) // 2
    return word if len(word) <= _WORD_WIDTH else f"{word[:half]}...{word[-half:]}"


def _shown(value: object, depth: int) -> str:
    """A value as text, of a large one no more than what `shorten` shows."""
    value = _plain(value)
    text = kind_of(value)
    if value is None or isinstance(value, bool):
        text = json.dumps(value)
    elif isinstance(value, (str, bytes, bytearray)):
        text = repr(value[: _VALUE_WIDTH + 1])
    elif isinstance(value, (int, float)):
        is_long = isinstance(value, int) and value.bit_length() > _MOST_BITS
        text = "a very large number" if is_long else repr(value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        text = f"[{_listed((_shown(item, depth - 1) for item in value), len(value), depth)}]"
    elif isinstance(value, Mapping):
        pairs = (f"{_shown(key, 0)}: {_shown(item, depth - 1)}" for key, item in value.items())
        text = f"{{{_listed(pairs, len(value), depth)}}}"
    return text


def _listed(items: Iterable[str], number: int, depth: int) -> str:
    """The first items of a list; none of them at depth 0."""
    most = _MOST_ITEMS if depth > 0 else 0
    rest = ["..."] if number > most else []
    return ", ".join([*islice(items, most), *rest])


def _plain(value: Any) -> Any:
    """A value without the types of numpy, paths and enumerations around it."""
    if isinstance(value, (PathLike, str)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return value[: _MOST_ITEMS + 1].tolist() if value.shape else value.tolist()
    return value
