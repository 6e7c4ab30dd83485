"""Degrees by level of the network: ``dp=2x16``, 2 members in each innermost domain, 16 across.

A degree is the product of its levels, from the innermost tier out, and the levels say how many
members share a domain: extents. Axes given plainly beside them lie whole on one tier, by a rule
that needs no system (`with_levels`).
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from shardwise.config.enums import EXTENT_AXES, PLACEMENTS, TIER_FIELDS
from shardwise.config.extents import EXTENT_NAMES, axis_order, canonical_placement, extents_text
from shardwise.errors import Fault, InputError

LEVELLED_AXES = EXTENT_NAMES
"""Degrees that may be given by level."""
LEVELS_PATTERN = r"^\d+(x\d+)+$"
"""Levels in the words of JSON Schema."""
_LEVELS = re.compile(r"0*[1-9]\d{0,9}(?:x0*[1-9]\d{0,9})+")
_LIKE_LEVELS = re.compile(r"\d+\s*[x*\u00d7]\s*\d.*|\d+x|x\d.*", re.IGNORECASE)
_WRITTEN = "levels are written as 2x16: members in a domain of the innermost network tier x across"
_NO_LEVELS = "etp"

_Levels = tuple[int, ...]


def levels_text(levels: Sequence[int]) -> str:
    """Write levels as people do: ``2x16``."""
    return "x".join(map(str, levels))


def with_levels(fields: Mapping[str, object]) -> dict[str, object]:
    """Fields of a strategy with products for levels, and the extents that levels stand for.

    Axes given plainly lie whole on one tier. On the innermost it is those that stand, in the order
    of `placement`, before the last axis that has members inside; where no axis with levels has
    any, those before the first one with levels. On tiers further out it goes likewise with what is
    left, and the outermost takes the rest. Groups of experts that are given plainly are left open.

    Raises
    ------
    InputError
        If levels cannot be read, differ in number, or contradict extents or tiers.
    """
    given = {
        axis: levels
        for axis in (*LEVELLED_AXES, _NO_LEVELS)
        if (levels := _read(axis, fields.get(axis))) is not None
    }
    if not given:
        return dict(fields)
    _check(given, fields)
    products = {axis: prod(levels) for axis, levels in given.items()}
    whole = dict(fields) | products
    placement = _placement(fields.get("placement"))
    if placement is None:  # which is refused for itself
        return whole
    return whole | {"extents": extents_text(_seated(given, _plain(given, whole), placement))}


def as_given(loaded: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Fields of a strategy that was read, with levels as they were given in place of extents.

    So other fields may be put over them, and the extents follow.
    """
    levels = {
        axis: text
        for axis in LEVELLED_AXES
        if isinstance(text := given.get(axis), str) and _LEVELS.fullmatch(text.strip())
    }
    kept = {name: value for name, value in loaded.items() if not levels or name != "extents"}
    return kept | levels


def plain_only(axis: str, value: object) -> None:
    """Refuse levels where degrees are varied.

    Raises
    ------
    ValueError
        That says what to give instead.
    """
    if axis in LEVELLED_AXES and isinstance(value, str) and _LEVELS.fullmatch(value.strip()):
        degree = prod(map(int, value.strip().split("x")))
        raise ValueError(
            f"levels are those of one strategy; give {axis}={degree}, and extents=all "
            "(search --levels) to try every split"
        )


def refuse_levels(columns: Mapping[str, object]) -> None:
    """Refuse levels in columns of many strategies.

    Raises
    ------
    InputError
        That says what to give instead.
    """
    for axis in LEVELLED_AXES:
        column = columns.get(axis)
        several = column if isinstance(column, (list, tuple)) else (column,)
        for value in several if str in set(map(type, several)) else ():
            try:
                plain_only(axis, value)
            except ValueError as error:
                raise _fault(axis, value, str(error)) from None


def _read(axis: str, value: object) -> _Levels | None:
    """Levels of an axis; None for a plain degree, and for what is none at all."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _LEVELS.fullmatch(text):
        return tuple(map(int, text.split("x")))
    if _LIKE_LEVELS.fullmatch(text):
        raise _fault(axis, value, f"{_WRITTEN}, each at least 1")
    return None


def _check(given: Mapping[str, _Levels], fields: Mapping[str, object]) -> None:
    """Refuse levels that contradict one another, or what is given beside them."""
    (first, known), *_ = given.items()
    for axis, levels in given.items():
        text = levels_text(levels)
        if axis == _NO_LEVELS:
            raise _fault(axis, text, f"has no levels; allowed for: {', '.join(LEVELLED_AXES)}")
        if len(levels) != len(known):
            other = f"{first} {levels_text(known)} has {len(known)}"
            problem = f"has {len(levels)} levels, {other}; give each axis as many"
            raise _fault(axis, text, problem)
        for name in ("extents", *TIER_FIELDS):
            if fields.get(name) is not None:
                problem = f"contradicts {name}; give one, or {axis}={prod(levels)}"
                raise _fault(axis, text, problem)
    if set(given) == {"ep"}:
        problem = "needs levels of tp, tp2, cp, dp or pp beside it, whose members form its groups"
        raise _fault("ep", levels_text(known), problem)


def _placement(value: object) -> str | None:
    try:
        placement = canonical_placement(PLACEMENTS[0] if value is None else value)
    except ValueError:
        return None
    return placement if isinstance(placement, str) else None


def _plain(given: Mapping[str, _Levels], fields: Mapping[str, Any]) -> dict[str, int]:
    """Degrees of the axes without levels; replicas are what is left of the accelerators."""
    degrees = {axis: _whole(fields.get(axis)) for axis in EXTENT_AXES}
    if fields.get("dp") is None:
        degrees["dp"] = max(_whole(fields.get("gpus")) // prod(degrees.values()), 1)
    return {axis: degree for axis, degree in degrees.items() if axis not in given}


def _whole(value: object) -> int:
    """A number that was given; 1 where none was, or what is none, which is refused for itself."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    return int(value) if isinstance(value, (int, float)) and value >= 1 else 1


def _seated(
    given: Mapping[str, _Levels], plain: Mapping[str, int], placement: str
) -> list[dict[str, int]]:
    """Members that each tier but the outermost adds."""
    order = axis_order(placement)
    left = dict(plain)
    levelled = [order.index(axis) for axis in given if axis != "ep"]
    tiers = []
    for tier in range(len(next(iter(given.values()))) - 1):
        members = {axis: levels[tier] for axis, levels in given.items()}
        inside = [order.index(axis) for axis in members if axis != "ep" and members[axis] > 1]
        end = max(inside) if inside else (0 if tier else min(levelled))
        members |= {axis: left.pop(axis) for axis in order[:end] if axis in left}
        tiers.append(members)
    return tiers


def _fault(field: str, value: object, problem: str) -> InputError:
    return InputError(Fault(field=field, value=value, has_value=True, problem=problem))
