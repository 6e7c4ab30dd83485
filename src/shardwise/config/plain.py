"""Plain values and their text: how shardwise writes JSON, YAML and TOML."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, time
from enum import Enum
from itertools import chain, groupby
from os import PathLike, fspath
from typing import Any

_MOST_ITEMS = 10_000  # layers of a model, at most (`config.base.MOST_LAYERS`)
_AS_THEY_ARE = (str, int, bool, type(None))


def plain(value: Any) -> Any:
    """Return a value as JSON has it: mappings with text as keys, lists, text, numbers, null.

    Enumerations become their values, those of numpy their Python counterparts, paths and dates
    text, mappings and sequences of any type dictionaries and lists, and sets sorted lists. NaN and
    infinities, which JSON does not have, become null.

    Raises
    ------
    TypeError
        If it is of another type.
    """
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (AbstractSet, Sequence)) and not isinstance(value, (str, bytes)):
        items = [plain(item) for item in value]
        return items if isinstance(value, Sequence) else sorted(items, key=as_json)
    return _scalar(value)


def _scalar(value: Any) -> Any:
    """What a value of another type stands for."""
    if isinstance(value, Enum):
        return plain(value.value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    for kind in (str, int):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    raise TypeError(f"files cannot hold a {type(value).__name__}")


def _key(key: Any) -> str:
    value = plain(key)
    return value if isinstance(value, str) else json.dumps(value)


def joined(values: Sequence[object]) -> str:
    """Return a list in a word, equal neighbors counted: 3+4x14+2, or a+b; none if it is empty."""
    runs = ((value, len(list(equal))) for value, equal in groupby(map(str, values)))
    return "+".join(f"{value}x{n}" if n > 1 else value for value, n in runs) or "none"


def separated(text: str) -> tuple[str, ...]:
    """Return the items of a list in text, the inverse of `joined`: 3+4x14+2, or with commas.

    Counts that make it longer than any list of layers stay as they are.
    """
    items = re.findall(r"[^\s,+]+", text)
    counted = [re.fullmatch(r"(\d{1,6})x(\d{1,4})", item) for item in items]
    if sum(int(found[2]) for found in counted if found) > _MOST_ITEMS:
        return tuple(items)
    runs = ([f[1]] * int(f[2]) if f else [item] for item, f in zip(items, counted, strict=True))
    return tuple(chain.from_iterable(runs))


def as_json(
    data: Any, *, indent: int | None = None, sort_keys: bool = False, escaped: bool = False
) -> str:
    """Return a value of any type that `plain` knows as JSON.

    Parameters
    ----------
    escaped
        Whether to escape what is not ASCII.
    """
    return json.dumps(
        plain(data), indent=indent, sort_keys=sort_keys, allow_nan=False, ensure_ascii=escaped
    )


def as_yaml(data: Mapping[str, Any], *, escaped: bool = False) -> str:
    """Return a mapping as YAML, in its order, as `as_json` does."""
    import yaml  # noqa: PLC0415 - only where used

    return yaml.safe_dump(plain(data), sort_keys=False, allow_unicode=not escaped, width=100)
