"""Extents as people give them: ``tp=4+dp=2/pp=9``, the members that each tier adds to an axis.

One part for each tier from the innermost out; the outermost takes what is left of every degree.
`ep` says how many groups of experts the accelerators of the other axes but pp hold there.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BeforeValidator

from shardwise.config.enums import EXTENT_AXES, PLACEMENTS
from shardwise.errors import nearest, shorten
from shardwise.units import read_whole

EXTENT_NAMES = (*EXTENT_AXES, "ep")
"""Axes that may have extents, in the order of their text."""
_PAIR = re.compile(r"([a-z0-9]+)\s*[=:]\s*(\d{1,7})")


def canonical_placement(value: object) -> object:
    """The text of an order of the axes, in which cp may be left out; what is no text as it is.

    Raises
    ------
    ValueError
        If it is no such order.
    """
    if not isinstance(value, str):
        return value
    axes = value.strip().lower().split("-")
    if "cp" not in axes and "tp" in axes:
        axes.insert(axes.index("tp") + 1, "cp")
    if "-".join(axes) not in PLACEMENTS:
        allowed = "tp, dp, pp and optionally cp, each once, joined by dashes"
        raise ValueError(f"must be an order of {allowed}")
    return "-".join(axes)


def axis_order(placement: str) -> tuple[str, ...]:
    """All axes of a placement from the inside out; tp2 stands right after tp."""
    return tuple(placement.replace("tp", "tp-tp2").split("-"))


def canonical_extents(value: object) -> str:
    """The text of extents written as text, as a mapping for one tier, or as one for each.

    Raises
    ------
    ValueError
        If it is none of these, or names what is no axis.
    """
    if isinstance(value, str):
        tiers = [_from_text(part) for part in value.strip().lower().split("/")]
    elif isinstance(value, Mapping):
        tiers = [_checked(value)]
    elif isinstance(value, Sequence) and value and all(isinstance(v, Mapping) for v in value):
        tiers = [_checked(tier) for tier in value]
    else:
        raise ValueError("must be a text such as tp=4+dp=2, or a mapping of axes for each tier")
    return extents_text(tiers)


def extents_text(tiers: Sequence[Mapping[str, int]]) -> str:
    """Write extents as text, axes with one member left out, where any has more."""
    parts = [
        "+".join(
            f"{axis}={tier[axis]}"
            for axis in EXTENT_NAMES
            if tier.get(axis, 1) > 1 or (axis == "ep" and axis in tier)
        )
        for tier in tiers
    ]
    return "/".join(part or "tp=1" for part in parts)


@lru_cache(maxsize=1 << 14)
def members_per_tier(text: str) -> tuple[tuple[int, ...], ...]:
    """Members that each tier adds, of the axes in the order of `EXTENT_NAMES`; ep 0 where open."""
    tiers = [_from_text(part) for part in text.split("/")]
    return tuple(
        (*(tier.get(axis, 1) for axis in EXTENT_AXES), tier.get("ep", 0)) for tier in tiers
    )


def _from_text(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split("+"):
        match = _PAIR.fullmatch(part.strip())
        if not match:
            raise ValueError(
                f"{shorten(part.strip())} is no axis with its members, as in tp=4+dp=2"
            )
        if match[1] in found:
            raise ValueError(f"names {match[1]} twice in a tier")
        members = read_whole(match[2])
        if members is None:
            raise ValueError(f"{shorten(part.strip())} has too many members")
        found[match[1]] = members
    return _checked(found)


def _checked(tier: Mapping[Any, Any]) -> dict[str, int]:
    for axis, members in tier.items():
        if axis not in EXTENT_NAMES:
            allowed = ", ".join(EXTENT_NAMES)
            raise ValueError(
                f"{axis}: no axis; allowed: {allowed}{nearest(str(axis), EXTENT_NAMES)}"
            )
        if not isinstance(members, int) or isinstance(members, bool) or members < 1:
            raise ValueError(f"{axis}: {shorten(members)} must be a whole number of at least 1")
    return dict(tier)


EXTENTS = BeforeValidator(lambda value: None if value is None else canonical_extents(value))
"""Accepts extents as text or as mappings."""
