"""Activation checkpointing of whole modules, as another profile of the same step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwise.fsdp.profile import Profile

__all__ = ["again_bytes", "left_before", "repeated_blocks", "saved_bytes", "with_checkpoints"]


def left_before(profile: Profile, segment: int) -> float:
    """What the profile holds at the beginning of a segment [byte]."""
    return float(profile.left_bytes[segment - 1]) if segment > 0 else 0.0


def saved_bytes(profile: Profile, place: int) -> float:
    """Bytes that checkpointing a module frees between its forward and its backward.

    What it leaves behind in forward beyond its output, which the next module keeps as its input.
    """
    first, after = profile.modules[place].forward
    grown = left_before(profile, after) - left_before(profile, first)
    return max(grown - profile.modules[place].output_bytes, 0.0)


def again_bytes(profile: Profile, place: int) -> float:
    """Fullest moment of running a checkpointed module forward again, over that at its end [byte].

    It grows from its kept input as the first time; at the end all it saves is there again.
    """
    first, after = profile.modules[place].forward
    grown = float(np.max(profile.resident_bytes[first:after], initial=0.0))
    return grown - left_before(profile, first) - saved_bytes(profile, place)


def with_checkpoints(profile: Profile, places: Sequence[int]) -> Profile:
    """The step with some modules computed again as their backward begins.

    What they save is gone from their exit to the entry of their backward. Its first segment takes
    the time of their forward more, and holds what that holds at its fullest.
    """
    if not places:
        return profile
    seconds = profile.seconds.copy()
    held, left = profile.resident_bytes.copy(), profile.left_bytes.copy()
    for place in places:
        first, after = profile.modules[place].forward
        back = profile.modules[place].backward[0]
        seconds[back] += profile.seconds[first:after].sum()
        held[back] = max(held[back], left_before(profile, back) + again_bytes(profile, place))
    for place in places:
        after, back = profile.modules[place].forward[1], profile.modules[place].backward[0]
        saved = saved_bytes(profile, place)
        held[after:back] -= saved
        # The last segment of the module itself ends with what it saves gone.
        left[after - 1 : back] -= saved
    return replace(profile, seconds=seconds, resident_bytes=held, left_bytes=left)


def repeated_blocks(profile: Profile) -> tuple[int, ...]:
    """Positions of the modules of a list of two or more of one kind, outermost lists only."""
    found: list[int] = []
    lists: dict[tuple[int, str, str], list[int]] = {}
    for place, module in enumerate(profile.modules):
        head, _, tail = module.name.rpartition(".")
        if tail.isdigit() and module.run == 0:
            lists.setdefault((module.parent, head, module.kind), []).append(place)
    inside = np.zeros(len(profile.modules), dtype=bool)
    for places in lists.values():
        if len(places) > 1 and not inside[places[0]]:
            found += places
            for place in places:
                inside[place : profile.modules[place].end] = True
    return tuple(sorted(found))
