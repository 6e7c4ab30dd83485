"""Files of the catalog with fitted figures put in place of others, all other text as it was."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from catalog_fit.fit import Parameter

Place = tuple[str | int, ...]
"""Keys and positions that lead to a figure of a file."""

_DIGITS = 4


def figures_moved(
    parameters: Sequence[Parameter],
    name: str,
    *,
    written: Mapping[str, Any],
    values: Mapping[str, Any],
    base: Mapping[str, Any],
) -> dict[Place, str]:
    """Figures that a file has to have, as it writes them, by place.

    Of an entry with a base also those that the base was moved by and it was not, or otherwise; of
    one without, also those that its file leaves at their default.

    Parameters
    ----------
    parameters
        All that move entries of its folder.
    name
        The entry.
    written
        What its file says.
    values, base
        Its figures and those of its base, moved, with units; empty where it has none.
    """
    found: dict[Place, str] = {}
    for parameter in parameters:
        for field in parameter.fields:
            for place, value in _places(values, field.split(".")):
                if _at(written, place) is not None:
                    if parameter.moves(name):
                        found[place] = rounded(value)
                elif len(place) == 1 and _differs(parameter, name, value, base.get(str(place[0]))):
                    found[place] = rounded(value)
    return found


def _differs(parameter: Parameter, name: str, value: Any, base: Any) -> bool:
    """Whether a figure that a file does not write is another than without it."""
    return parameter.moves(name) if base is None else rounded(value) != rounded(base)


def rewritten(text: str, changes: Mapping[Place, str]) -> str:
    """A YAML text with other figures; those that it does not have are added before its sources."""
    root = yaml.compose(text)
    spans, added = [], []
    for place, value in changes.items():
        node = _node(root, place)
        if node is None:
            added.append(f"{place[0]}: {value}\n")
        else:
            spans.append((node.start_mark.index, node.end_mark.index, value))
    if added:
        before = _sources_at(root, text)
        spans.append((before, before, "".join(added)))
    return _replaced(text, spans)


def with_moves(text: str, moves: Sequence[float]) -> str:
    """A YAML text of parameters with how far each was moved."""
    root = yaml.compose(text)
    nodes = [_node(root, ("parameters", place, "moved")) for place in range(len(moves))]
    if None in nodes:
        raise ValueError(f"parameter {nodes.index(None)} does not say how far it was moved")
    spans = [
        (node.start_mark.index, node.end_mark.index, f"{moved:.4f}")
        for node, moved in zip(nodes, moves, strict=True)
        if node is not None
    ]
    return _replaced(text, spans)


def _replaced(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    for start, end, value in sorted(spans, reverse=True):
        text = text[:start] + value + text[end:]
    return text


def _sources_at(root: yaml.Node | None, text: str) -> int:
    """Where the sources of a file begin; its end if it has none."""
    assert isinstance(root, yaml.MappingNode)  # noqa: S101 - validated when it was read
    keys = (key for key, _ in root.value if key.value == "sources")
    first = next(keys, None)
    return len(text) if first is None else int(first.start_mark.index)


def _places(values: object, parts: Sequence[str], done: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every place that a dotted field stands for, with its value."""
    if not parts:
        if isinstance(values, Mapping):
            for key, value in values.items():
                yield from _places(value, [], (*done, key))
        elif values:  # what is 0 is not there, and stays so
            yield done, values
        return
    head, *rest = parts
    if isinstance(values, (list, tuple)):
        if int(head) < len(values):
            yield from _places(values[int(head)], rest, (*done, int(head)))
    elif isinstance(values, Mapping):
        keys = list(values) if head == "*" else [key for key in values if str(key) == head]
        for key in keys:
            yield from _places(values[key], rest, (*done, key))


def _at(values: object, place: Place) -> Any:
    """What stands at a place, or None."""
    for key in place:
        if isinstance(values, Mapping):
            values = {str(name): value for name, value in values.items()}.get(str(key))
        elif isinstance(values, (list, tuple)):
            values = values[int(key)]
        if values is None:
            return None
    return values


def _node(node: yaml.Node | None, place: Place) -> yaml.Node | None:
    """The text of a place in a YAML file, or None."""
    for key in place:
        if isinstance(node, yaml.MappingNode):
            node = next((v for k, v in node.value if k.value == str(key)), None)
        elif isinstance(node, yaml.SequenceNode):
            node = node.value[int(key)]
        if node is None:
            return None
    return node


def rounded(value: float | str) -> str:
    """A figure as files have it, to four digits; of quantities the number before the unit."""
    if isinstance(value, str):
        number, _, unit = value.partition(" ")
        return f"{_digits(float(number))} {unit}"
    return _digits(float(value))


def _digits(number: float) -> str:
    """Without an exponent, which YAML reads as text where no point stands before it."""
    if number == 0:
        return "0"
    rounded = round(number, _DIGITS - 1 - math.floor(math.log10(abs(number))))
    return np.format_float_positional(rounded, trim="-")
