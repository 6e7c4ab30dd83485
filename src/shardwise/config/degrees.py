"""Degrees by level of the network: ``dp=2x16``, 2 members in each innermost domain, 16 across.

A degree is the product of its levels, from the innermost tier out, and the levels say how many
members share a domain: extents. An axis with a plain degree lies on one tier, by a rule that needs
no system (`with_levels`).
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from shardwise.config.enums import EXTENT_AXES, PLACEMENTS, TIER_FIELDS
from shardwise.config.extents import EXTENT_NAMES, axis_order, canonical_placement, extents_text
from shardwise.errors import InputError
from shardwise.units import read_whole

LEVELLED_AXES = EXTENT_NAMES
"""Degrees that may be set by level."""
LEVELS_PATTERN = r"^\d+(x\d+)+$"
"""Pattern of levels for JSON Schema."""
_LEVELS = re.compile(r"0*[1-9]\d{0,9}(?:x0*[1-9]\d{0,9})+")
_LIKE_LEVELS = re.compile(r"\d+\s*[x*\u00d7]\s*\d.*|\d+x|x\d.*", re.IGNORECASE)
_WRITTEN = "levels are written as 2x16: members in a domain of the innermost network tier x across"
_NO_LEVELS = "etp"

_Levels = tuple[int, ...]


def levels_text(levels: Sequence[int]) -> str:
    """Write levels as people do: ``2x16``."""
    return "x".join(map(str, levels))


def with_levels(fields: Mapping[str, object]) -> dict[str, object]:
    """Fields of a strategy with levels replaced by degrees and extents.

    An axis with a plain degree lies on one tier. On the innermost tier are the axes that precede,
    in the order of `placement`, the last axis with members inside it; if no axis with levels has
    members inside, the axes before the first one with levels. The same rule places the remaining
    axes on the outer tiers, and the outermost has the rest. Plain degrees of ep are left open.

    Raises
    ------
    InputError
        If levels cannot be read, differ in number, or contradict extents or tiers.
    """
    by_axis = {
        axis: levels
        for axis in (*LEVELLED_AXES, _NO_LEVELS)
        if (levels := _read(axis, fields.get(axis))) is not None
    }
    if not by_axis:
        return dict(fields)
    _check(by_axis, fields)
    products = {axis: prod(levels) for axis, levels in by_axis.items()}
    plain = dict(fields) | products
    placement = _placement(fields.get("placement"))
    if placement is None:  # refused elsewhere
        return plain
    tiers = _members_by_tier(by_axis, _plain(by_axis, plain), placement)
    return plain | {"extents": extents_text(tiers)}


def with_levels_text(
    loaded: Mapping[str, object], written: Mapping[str, object]
) -> dict[str, object]:
    """Fields of a loaded strategy, with levels as they were written in place of extents.

    Other fields may override them, and the extents follow.
    """
    levels = {
        axis: text
        for axis in LEVELLED_AXES
        if isinstance(text := written.get(axis), str) and _LEVELS.fullmatch(text.strip())
    }
    others = {name: value for name, value in loaded.items() if not levels or name != "extents"}
    return others | levels


def plain_only(axis: str, value: object) -> None:
    """Refuse levels where degrees are varied.

    Raises
    ------
    ValueError
        The message says what to set instead.
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
        The message says what to set instead.
    """
    for axis in LEVELLED_AXES:
        column = columns.get(axis)
        several = column if isinstance(column, (list, tuple)) else (column,)
        for value in several if str in set(map(type, several)) else ():
            try:
                plain_only(axis, value)
            except ValueError as error:
                raise InputError.of(axis, value, str(error)) from None


def _read(axis: str, value: object) -> _Levels | None:
    """Levels of an axis; None for a plain degree or an invalid value."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _LEVELS.fullmatch(text):
        return tuple(map(int, text.split("x")))
    if _LIKE_LEVELS.fullmatch(text):
        raise InputError.of(axis, value, f"{_WRITTEN}, each at least 1")
    return None


def _check(by_axis: Mapping[str, _Levels], fields: Mapping[str, object]) -> None:
    """Refuse levels that contradict one another or other fields."""
    (first, known), *_ = by_axis.items()
    for axis, levels in by_axis.items():
        text = levels_text(levels)
        if axis == _NO_LEVELS:
            raise InputError.of(
                axis, text, f"has no levels; allowed for: {', '.join(LEVELLED_AXES)}"
            )
        if len(levels) != len(known):
            other = f"{first} {levels_text(known)} has {len(known)}"
            problem = f"has {len(levels)} levels, {other}; give each axis as many"
            raise InputError.of(axis, text, problem)
        for name in ("extents", *TIER_FIELDS):
            if fields.get(name) is not None:
                problem = f"contradicts {name}; give one, or {axis}={prod(levels)}"
                raise InputError.of(axis, text, problem)
    if set(by_axis) == {"ep"}:
        problem = "needs levels of tp, tp2, cp, dp or pp too, whose members form its groups"
        raise InputError.of("ep", levels_text(known), problem)


def _placement(value: object) -> str | None:
    try:
        placement = canonical_placement(PLACEMENTS[0] if value is None else value)
    except ValueError:
        return None
    return placement if isinstance(placement, str) else None


def _plain(by_axis: Mapping[str, _Levels], fields: Mapping[str, Any]) -> dict[str, int]:
    """Degrees of the axes without levels; an unset dp follows from the accelerators."""
    degrees = {axis: _number(fields.get(axis)) for axis in EXTENT_AXES}
    if fields.get("dp") is None:
        degrees["dp"] = max(_number(fields.get("gpus")) // prod(degrees.values()), 1)
    return {axis: degree for axis, degree in degrees.items() if axis not in by_axis}


def _number(value: object) -> int:
    """A number from a field; 1 if it is unset or invalid, which is refused elsewhere."""
    if isinstance(value, str):
        value = read_whole(value)
    return int(value) if isinstance(value, (int, float)) and 1 <= value < float("inf") else 1


def _members_by_tier(
    by_axis: Mapping[str, _Levels], plain: Mapping[str, int], placement: str
) -> list[dict[str, int]]:
    """Members that each tier but the outermost adds."""
    order = axis_order(placement)
    left = dict(plain)
    levelled = [order.index(axis) for axis in by_axis if axis != "ep"]
    tiers = []
    for tier in range(len(next(iter(by_axis.values()))) - 1):
        members = {axis: levels[tier] for axis, levels in by_axis.items()}
        inside = [order.index(axis) for axis in members if axis != "ep" and members[axis] > 1]
        end = max(inside) if inside else (0 if tier else min(levelled))
        members |= {axis: left.pop(axis) for axis in order[:end] if axis in left}
        tiers.append(members)
    return tiers
