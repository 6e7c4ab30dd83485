"""Values of a text in YAML, JSON or TOML, within limits on depth, size of numbers and work.

Every limit is checked before the parser that it protects: libyaml takes time quadratic in the depth
of brackets and overflows the stack on nested lists, tomllib is quadratic in the parts of a key.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from shardwise.errors import Fault, InputError, shorten

MOST_DEPTH = 100
"""Nested records and lists; results, the deepest files of shardwise, have about ten."""
_MOST_TOML_BYTES = 2**20  # tomllib reads 1.5 MB/s
_MOST_KEY_PARTS = 64
# A value takes PyYAML some 20 us: 65,536 of them in a file of 8 MiB take a second or two.
_BYTES_PER_YAML_VALUE = 128
# float64 ends at 2**1024; longer numbers cannot even be printed.
_MOST_BITS = 1024
_LONGEST_NUMBER = 1000
_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-Fxo_:.]*+")
_LONG_NUMBER = re.compile(r"[0-9A-Fa-f_:]{256}")
_LONG_KEY = re.compile(
    rf"""(?<![\w"'.-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{_MOST_KEY_PARTS}}}""", re.ASCII
)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(
    text: str,
    kind: str,
    path: object,
    *,
    most_bytes: int,
    first_line: int = 1,
    aliases: bool = False,
) -> Any:
    """Return the value of a text.

    Parameters
    ----------
    kind
        Ending of the file: `.json`, `.toml`; else YAML.
    most_bytes
        Limit of the file's size, which also limits the values of a YAML file.
    aliases
        Whether YAML may repeat a value by an alias, as files of other programs do; its values
        count every time.

    Raises
    ------
    InputError
        If it is not of that format, or exceeds a limit.
    """
    try:
        if kind == ".json":
            data = json.loads(text, object_pairs_hook=_without_duplicates)
        elif kind == ".toml":
            data = _parse_toml(text)
        else:
            data = _parse_yaml(text, most_bytes // _BYTES_PER_YAML_VALUE, aliases=aliases)
        _check_values(data, text)
    except _DuplicateKeyError as error:
        problem = f"key {shorten(error.args[0])} is set twice"
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno + first_line - 1}: not JSON: {error.msg}"
    except tomllib.TOMLDecodeError as error:
        problem = f"not TOML: {error}"
    except RecursionError:
        problem = _TOO_DEEP
    except _LimitError as error:
        problem = str(error)
    except ValueError as error:  # e.g. a YAML date or an integer of thousands of digits
        reason = str(error).split("; use sys.")[0]
        problem = f"cannot be read: {reason}"
    else:
        return data
    raise InputError(Fault(source=str(path), problem=problem))


_TOO_LONG = "a number has more than 308 digits"
_TOO_DEEP = f"is nested too deeply; at most {MOST_DEPTH} levels"


class _DuplicateKeyError(Exception):
    pass


class _LimitError(Exception):
    """A text exceeds a limit."""


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _DuplicateKeyError(key)
        result[key] = value
    return result


def _check_values(data: Any, text: str) -> None:
    """Refuse depth, integers beyond float64, and halves of characters, which nothing can print."""
    level = [data]
    for _ in range(MOST_DEPTH + 1):
        if not level:
            break
        level = [item for container in level for item in _items(container) if _is_container(item)]
    else:
        raise _LimitError(_TOO_DEEP)
    if _LONG_NUMBER.search(text) and any(
        isinstance(leaf, int) and leaf.bit_length() > _MOST_BITS for leaf in _leaves(data)
    ):
        raise _LimitError(_TOO_LONG)
    if _SURROGATE.search(text):
        try:
            json.dumps(data, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise _LimitError("has half of a surrogate pair (\\ud800 to \\udfff)") from None


def _is_container(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _items(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _leaves(data: Any) -> Iterator[Any]:
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if _is_container(value):
            waiting.extend(_items(value))
        else:
            yield value


def _parse_toml(text: str) -> Any:
    if len(text) > _MOST_TOML_BYTES:
        raise _LimitError("is larger than 1 MiB, too large for TOML; use JSON")
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise _LimitError(f"line {line}: a key has more than {_MOST_KEY_PARTS} parts")
    return tomllib.loads(text)


def _parse_yaml(text: str, most_values: int, *, aliases: bool) -> Any:
    import yaml  # noqa: PLC0415 - only where used: `--help` must not wait for it

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        """Refuses duplicate keys."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            result = {}
            for key_node, value_node in node.value:
                key = self.construct_object(key_node, deep=True)
                if isinstance(key, (dict, list)):
                    line = key_node.start_mark.line + 1
                    raise ValueError(f"line {line}: a key is not text")  # noqa: TRY004
                if key in result:
                    raise _DuplicateKeyError(key)
                result[key] = self.construct_object(value_node, deep=deep)
            return result

        def construct_yaml_map(self, node: Any) -> Any:
            return self.construct_mapping(node, deep=True)

    Loader.add_constructor("tag:yaml.org,2002:map", Loader.construct_yaml_map)
    try:
        _check_yaml(yaml, base, text, most_values, aliases=aliases)
        return yaml.load(text, Loader=Loader)  # noqa: S506 - derived from SafeLoader
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in (error.problem or ""):  # the limit of libyaml itself, from 0.2.6 on
            raise _LimitError(_TOO_DEEP) from None
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"line {line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None
    except (AttributeError, LookupError, TypeError):
        raise ValueError("not YAML: a tag does not fit its value") from None


def _check_yaml(yaml: Any, loader: Any, text: str, most_values: int, *, aliases: bool) -> None:
    """Check limits on the stream of events, which libyaml yields before it reads on."""
    counted = _Counted()
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.ScalarEvent):
            counted.note(event.anchor)
            if len(event.value) > _LONGEST_NUMBER and _is_number(event):
                raise _LimitError(f"line {_line(event)}: {_TOO_LONG}")
        elif isinstance(event, yaml.CollectionStartEvent):
            counted.open(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            counted.close()
        elif isinstance(event, yaml.AliasEvent):  # a few can unfold into gigabytes
            if not aliases:
                raise ValueError(f"line {_line(event)}: YAML aliases are not supported")
            counted.repeat(event)
        if counted.values > most_values:
            raise _LimitError(f"has more than {most_values:,} values; use JSON")


class _Counted:
    """Values of a YAML text, those that aliases repeat counted each time."""

    def __init__(self) -> None:
        self.values = 0
        self._opened: list[tuple[str | None, int]] = []  # anchors, and values before them
        self._sizes: dict[str, int] = {}

    def note(self, anchor: str | None) -> None:
        self.values += 1
        if anchor:
            self._sizes[anchor] = 1

    def open(self, anchor: str | None) -> None:
        if anchor:
            self._sizes.pop(anchor, None)
        self._opened.append((anchor, self.values))
        self.values += 1
        if len(self._opened) > MOST_DEPTH:
            raise _LimitError(_TOO_DEEP)

    def close(self) -> None:
        anchor, before = self._opened.pop()
        if anchor:
            self._sizes[anchor] = self.values - before

    def repeat(self, event: Any) -> None:
        if event.anchor not in self._sizes:
            raise ValueError(f"line {_line(event)}: an alias of nothing before it")
        self.values += self._sizes[event.anchor]


_LONGEST_NUMBER = 1000


_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-Fxo_:.]*+")


def _is_number(event: Any) -> bool:
    """Whether PyYAML would take a scalar for a number: in base 60, its time is quadratic."""
    tagged = str(event.tag).endswith((":int", ":float"))
    return tagged or (event.implicit[0] and _NUMBER.fullmatch(event.value) is not None)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
