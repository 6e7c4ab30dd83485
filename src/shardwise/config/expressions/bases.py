"""Files that name another entry as their base and tell only what differs."""

from collections.abc import Iterable, Mapping
from typing import Any

from shardwise.config.expressions.formula import Part, path_text
from shardwise.errors import nearest

__all__ = ["FORMS", "UNTOLD", "Path", "descend", "is_figure", "merged", "sources_of"]

Path = tuple[Part, ...]
FORMS = ("value", "lookup", "field", "times", "formula", "description", "source")
"""Keys of a figure in its long form."""
UNTOLD = {"kind": "assumed", "text": "told beside the base, without a source"}


def is_figure(node: object) -> bool:
    """Whether a mapping is one figure in its long form, rather than a record of several."""
    if not isinstance(node, Mapping):
        return False
    keys = node.keys()
    return "lookup" in keys or "formula" in keys or ("value" in keys and keys <= set(FORMS))


def merged(base: Any, told: Any, at: Path, again: list[Path]) -> Any:
    """What a base has, with what is told over it.

    Mappings merge; items of a list are told by a mapping of their names or positions; anything else
    that is told replaces what the base has.

    Parameters
    ----------
    at
        Where this stands.
    again
        Gets the place of all that is told.

    Raises
    ------
    ValueError
        If an item that is told is none of the base's.
    """
    plain = isinstance(told, Mapping) and not is_figure(told)
    if plain and isinstance(base, Mapping):
        result = dict(base)
        for key, item in told.items():
            own = _key(base, key)
            result[own] = merged(base.get(own), item, (*at, own), again)
        return result
    if plain and told and isinstance(base, (list, tuple)):
        items = list(base)
        for key, item in told.items():
            index = _position(items, key)
            if index is None:
                problem = f"the base has no item {key!r} in {path_text(at)}"
                raise ValueError(problem + _hint(key, _names(items)))
            items[index] = merged(items[index], item, (*at, index), again)
        return items
    again.append(at)
    return told


def descend(node: Any, parts: Iterable[Part], whose: str) -> tuple[Any, Path]:
    """Follow a path into plain values; return what stands there and the keys and positions passed.

    Raises
    ------
    ValueError
        Naming the first step that is not there.
    """
    at: Path = ()
    for part in parts:
        step: Part | None = None
        known: list[str] = []
        if isinstance(node, Mapping):
            step, known = _key(node, part), [str(key) for key in node]
            step = step if step in node else None
        elif isinstance(node, (list, tuple)):
            step, known = _position(node, part), _names(node)
        if step is None:
            raise ValueError(f"{whose} has no {path_text((*at, part))}{_hint(part, known)}")
        node, at = node[step], (*at, step)
    return node, at


def sources_of(
    own: Mapping[str, Any],
    of_base: Mapping[str, Any],
    told: Mapping[str, Any],
) -> dict[str, Any]:
    """Origins of the figures of a noun and its base, by dotted prefix.

    What the base says of a figure does not stand for one told again: that has a source of its own,
    or the one for all that is told, or what is known of it from how it was told.

    Parameters
    ----------
    own
        What the file says.
    told
        What is known of each figure that is told, by its dotted place.
    """
    kept = {
        field: source
        for field, source in of_base.items()
        if not any(f"{field}.".startswith(f"{place}.") for place in told)
    }
    covered = {place: _covering(own, place) or source for place, source in told.items()}
    return kept | covered | {field: source for field, source in own.items() if field}


def _covering(sources: Mapping[str, Any], field: str) -> Any:
    """The source of the longest prefix of a field that has one."""
    parts = field.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
    return next((sources[prefix] for prefix in prefixes if prefix in sources), None)


def _key(node: Mapping[Any, Any], part: Any) -> Any:
    """The key of a mapping that a step means: a number as a key may be text in one of two files."""
    return part if part in node else next((key for key in node if str(key) == str(part)), part)


def _position(items: list[Any] | tuple[Any, ...], part: Any) -> int | None:
    """The item of a list that a step means: by its name, or its position."""
    named = [n for n, item in enumerate(items) if isinstance(item, Mapping) and _is(item, part)]
    if len(named) == 1:
        return named[0]
    text = str(part)
    return int(text) if text.isdecimal() and len(text) < 10 and int(text) < len(items) else None  # noqa: PLR2004


def _is(item: Mapping[Any, Any], part: Any) -> bool:
    return isinstance(part, str) and item.get("name") == part


def _names(items: list[Any] | tuple[Any, ...]) -> list[str]:
    names = [str(item["name"]) for item in items if isinstance(item, Mapping) and "name" in item]
    return names or [str(position) for position in range(len(items))]


def _hint(part: object, known: list[str]) -> str:
    return nearest(str(part), known) or (f"; allowed: {', '.join(known)}" if known else "")
