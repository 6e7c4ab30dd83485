"""The long form of a figure: its keys, and whether ways that are told together agree."""

from collections.abc import Mapping
from typing import Any

from shardwise.config.expressions.bases import FORMS, is_figure
from shardwise.config.expressions.quantity import Quantity
from shardwise.config.expressions.records import is_formula
from shardwise.errors import nearest

__all__ = ["check_agreement", "check_keys", "lookup_words"]

_TOLERANCE = 1e-6
_NEEDS = (("field", "lookup"), ("times", "lookup"), ("lookup", "field"))


def check_keys(node: Mapping[str, Any]) -> None:
    """Raise unless a figure has keys and values that it may have.

    Raises
    ------
    ValueError
        Naming the first that it may not have.
    """
    for key in node:
        if key not in FORMS:
            raise ValueError(f"unknown key {key!r} of a figure{nearest(str(key), FORMS)}")
    for part, whole in _NEEDS:
        if part in node and whole not in node:
            raise ValueError(f"{part} needs {whole}")
    for word in ("lookup", "field", "formula"):
        if word in node and not isinstance(node[word], str):
            raise ValueError(f"{word} must be text, not {node[word]!r}")
    times = node.get("times", 1)
    if isinstance(times, bool) or not isinstance(times, (int, float)):
        raise ValueError(f"times must be a number, not {times!r}")  # noqa: TRY004 - as others
    if is_formula(node.get("value")) or is_figure(node.get("value")):
        raise ValueError("value must be given; what is calculated is a formula")


def lookup_words(node: Mapping[str, Any]) -> str:
    """A look-up as people say it: row, field and factor."""
    times = node.get("times", 1)
    return f"{node['lookup']} {node['field']}" + (f" times {times:g}" if times != 1 else "")


def check_agreement(figures: Mapping[str, Quantity], node: Mapping[str, Any]) -> None:
    """Raise if a figure told in several ways is not the same.

    Raises
    ------
    ValueError
        Naming all ways, with what each gives.
    """
    first = next(iter(figures.values()))
    for figure in figures.values():
        plain = not any(figure.powers) or not any(first.powers)
        away = abs(figure.value - first.value)
        near = away <= _TOLERANCE * max(abs(figure.value), abs(first.value))
        if not near or not (plain or figure.powers == first.powers):
            words = {"lookup": f"lookup {lookup_words(node)}" if "lookup" in node else ""}
            told = (f"{words.get(way, way)} gives {one}" for way, one in figures.items())
            raise ValueError(f"contradicts itself: {', '.join(told)}")
