"""Choices at each position of a profile: which units may begin there, and what each is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.fsdp.checkpoint import left_before
from shardwise.fsdp.plan import Unit
from shardwise.fsdp.profile import Profile
from shardwise.fsdp.sizes import OwnSizes
from shardwise.fsdp.units import allowed

__all__ = ["Edge", "Grid", "Spans", "possible_units"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A unit that may begin at a position."""

    unit: Unit
    first: int
    """Position of its first module."""
    last: int
    """Position of its last module; the same if it is one."""
    end: int
    """Position after all its modules."""


def possible_units(
    profile: Profile,
    sizes: OwnSizes,
    *,
    reshard: Sequence[bool],
    most_grouped: int,
) -> list[list[Edge]]:
    """All units that may begin at each position: modules, and runs of neighbours in one call.

    Neighbours have the same parent; those between them without parameters are not named.

    Parameters
    ----------
    reshard
        Choices of `reshard_after_forward`.
    most_grouped
        Modules in one call, at most.
    """
    may = allowed(profile, sizes)
    holds = np.concatenate([[0.0], np.cumsum(sizes.gathered)])
    runs_of = _runs(profile, most_grouped, holds)
    found: list[list[Edge]] = [[] for _ in profile.modules]
    for place in range(1, len(profile.modules)):
        for run in runs_of[place]:
            end = int(profile.ends[run[-1]])
            if (len(run) == 1 and not may[place]) or not _allowed_run(profile, sizes, run, end):
                continue
            names = tuple(profile.modules[at].name for at in run)
            found[place] += [
                Edge(
                    unit=Unit(modules=names, reshard_after_forward=freed),
                    first=place,
                    last=run[-1],
                    end=end,
                )
                for freed in reshard
            ]
    return found


def _runs(profile: Profile, most: int, holds: Floats) -> list[list[tuple[int, ...]]]:
    """Modules and runs of neighbours with parameters that begin at each position."""
    found: list[list[tuple[int, ...]]] = [[] for _ in profile.modules]
    for parent in range(len(profile.modules)):
        children = [
            at for at in profile.children(parent) if holds[profile.modules[at].end] > holds[at]
        ]
        for i, first in enumerate(children):
            found[first] += [
                tuple(children[i : i + length])
                for length in range(1, min(most, len(children) - i) + 1)
            ]
    return found


def _allowed_run(profile: Profile, sizes: OwnSizes, run: Sequence[int], end: int) -> bool:
    if len(run) == 1:
        return True
    inside = slice(run[0], end)
    if sizes.trainable[inside].any() and sizes.frozen[inside].any():
        return False
    for parameter in profile.shared:
        held = [run[0] <= at < end for at in parameter.holders]
        if any(held) and not all(held):
            return False
    return len({profile.modules[at].name for at in run}) == len(run)


@dataclass(frozen=True, eq=False, kw_only=True)
class Grid:
    """A profile's step cut at its positions: forward at each entry, backward at each exit."""

    profile: Profile

    @cached_property
    def forward(self) -> Ints:
        """Segment at which each position begins forward; after the last, the root's exit."""
        starts = [module.forward[0] for module in self.profile.modules]
        return np.array([*starts, self.profile.modules[0].forward[1]])

    @cached_property
    def ends(self) -> Ints:
        """Segment at which each module's own backward is over.

        One whose inputs need no gradient is held to the end of the step, but what it computes is
        over when a module that ran before it begins.
        """
        modules = self.profile.modules
        found = np.array([module.backward[1] for module in modules])
        starts = np.array([module.backward[0] for module in modules])
        for place, module in enumerate(modules):
            if module.late and place > 0:
                before = np.ones(place, dtype=bool)
                at = module.parent
                while at >= 0:
                    before[at] = False
                    at = modules[at].parent
                later = starts[:place][before & (starts[:place] >= starts[place])]
                found[place] = later.min(initial=found[place])
        return found

    @cached_property
    def backward(self) -> Ints:
        """Segment at which all positions from each on are through backward."""
        found = np.full(len(self.profile.modules) + 1, self.profile.modules[0].backward[0])
        for place in range(len(self.profile.modules) - 1, 0, -1):
            module = self.profile.modules[place]
            runs = module.backward[1] > module.backward[0]
            found[place] = max(found[place + 1], self.ends[place] if runs else 0)
        found[0] = len(self.profile.seconds)
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Spans:
    """Times and fullest moments over any run of segments, gradients of weights set apart.

    What is held in backward counts without the gradients of weights that were complete before a
    given segment: those of units are reduced by then, those of the root are counted by the rules.
    """

    profile: Profile
    shard_gradients: Floats
    """Sharded gradients complete at the end of each segment [byte]."""

    @cached_property
    def _elapsed(self) -> Floats:
        return np.concatenate([[0.0], np.cumsum(self.profile.seconds)])

    def seconds(self, first: int, after: int) -> float:
        """Compute time of `[first, after)` [s]."""
        return float(self._elapsed[max(first, after)] - self._elapsed[first])

    def held(self, first: int, after: int) -> float:
        """Fullest moment of `[first, after)`; minus infinity if there is none [byte]."""
        return float(self.profile.resident_bytes[first:after].max(initial=-np.inf))

    def reduced(self, segment: int) -> float:
        """Gradients complete before a segment, less their shards [byte]."""
        if segment == 0:
            return 0.0
        whole = self.profile.gradient_bytes[segment - 1]
        return float(whole - self.shard_gradients[segment - 1])

    def left(self, segment: int) -> float:
        """What is held as a segment begins [byte]."""
        return left_before(self.profile, segment)
