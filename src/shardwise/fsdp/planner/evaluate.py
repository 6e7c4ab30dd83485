"""Costs of one wrapping: exposed communication by unit, and peak memory.

The planner's rules find the best wrapping; this module evaluates any one from the order of events.
The two agree (`tests/fsdp/test_fsdp_planner.py`). Only this module knows units inside units.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats
from shardwise.fsdp.plan import Setting, Wrapping
from shardwise.fsdp.planner.collectives import CollectiveTimes
from shardwise.fsdp.planner.memory import Moment, memory_peak
from shardwise.fsdp.planner.rules import Grid
from shardwise.fsdp.planner.units import PlacedUnit, checkpointed, module_sizes, place_units
from shardwise.fsdp.profile import Profile, with_checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """One unit: what it communicates, and how much of that lengthens the step."""

    modules: tuple[str, ...]
    """Empty for the root."""
    reshard_after_forward: bool
    parameter_bytes: float
    """Gathered, with padding."""
    gather_s: float
    reduce_s: float
    forward_s: float
    """Compute behind which the next unit is gathered."""
    backward_s: float
    exposed_forward_s: float
    """Of its gather forward."""
    exposed_backward_s: float
    """Of its gather in backward, with the reduce-scatter that shares the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A wrapping and its costs."""

    wrapping: Wrapping
    exposed_s: float
    compute_s: float
    """Forward, backward and recomputation."""
    recompute_s: float
    """The share of the compute that checkpointing adds."""
    peak: Moment
    units: tuple[UnitCost, ...]
    """The root first, then in the order they run."""
    exposed_end_s: float
    """Reduce-scatters after all compute: of the root and of units whose inputs need no gradient."""

    @property
    def step_s(self) -> float:
        """Compute and exposed communication, without the optimizer [s]."""
        return self.compute_s + self.exposed_s


def evaluate(
    profile: Profile, setting: Setting, collectives: CollectiveTimes, wrapping: Wrapping
) -> Evaluated:
    """Evaluate a wrapping."""
    sizes = module_sizes(profile, setting)
    units = place_units(profile, sizes, wrapping)
    once = float(profile.seconds.sum())
    profile = with_checkpoints(profile, checkpointed(profile, wrapping, units))
    own = [list(unit.owned) for unit in units]
    bytes_of = np.array([sizes.gathered[rows].sum() for rows in own])
    gathers = collectives.gather_s(bytes_of)
    reduces = collectives.reduce_s(np.array([sizes.reduced[rows].sum() for rows in own]))
    clock = _Clock(profile=profile, units=units, gathers=gathers, reduces=reduces)
    exposed_forward, forward = clock.forward()
    exposed_backward, backward, end = clock.backward(root_empty=bytes_of[0] == 0)
    rows = tuple(
        UnitCost(
            modules=unit.unit.modules,
            reshard_after_forward=unit.unit.reshard_after_forward,
            parameter_bytes=float(bytes_of[i]),
            gather_s=float(gathers[i]),
            reduce_s=float(reduces[i]),
            forward_s=forward[i],
            backward_s=backward[i],
            exposed_forward_s=exposed_forward[i],
            exposed_backward_s=exposed_backward[i],
        )
        for i, unit in enumerate(units)
    )
    return Evaluated(
        wrapping=wrapping,
        exposed_s=sum(exposed_forward) + sum(exposed_backward) + end,
        compute_s=float(profile.seconds.sum()),
        recompute_s=float(profile.seconds.sum()) - once,
        peak=memory_peak(profile, setting, sizes, units),
        units=rows,
        exposed_end_s=end,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """Windows of compute between the moments at which units are needed."""

    profile: Profile
    units: Sequence[PlacedUnit]
    gathers: Floats
    reduces: Floats

    def _seconds(self, first: int, after: int) -> float:
        return float(self.profile.seconds[first:after].sum())

    def forward(self) -> tuple[list[float], list[float]]:
        """Exposed gather of each unit, and the compute until the next one is needed [s]."""
        starts = [unit.forward[0] for unit in self.units]
        starts[0] = 0
        starts.append(self.profile.modules[0].forward[1])
        windows = [self._seconds(starts[i], starts[i + 1]) for i in range(len(self.units))]
        exposed = [float(self.gathers[0])]
        exposed += [
            max(0.0, float(gather) - window)
            for gather, window in zip(self.gathers[1:], windows[:-1], strict=True)
        ]
        return exposed, windows

    def backward(self, *, root_empty: bool) -> tuple[list[float], list[float], float]:
        """Exposed time at each unit, compute since the one before, and what is left at the end [s].

        An empty root prefetches nothing.
        """
        grid = Grid(profile=self.profile)
        ends = [int(grid.ends[unit.modules[0]]) for unit in self.units]
        runs = [i for i, unit in enumerate(self.units) if unit.backward[0] < unit.backward[1]]
        order = sorted((i for i in runs if i > 0), key=lambda i: self.units[i].backward[0])
        exposed, windows = [0.0] * len(self.units), [0.0] * len(self.units)
        reduced_last = sum(float(self.reduces[i]) for i in order if self.units[i].reduced_last)
        end = reduced_last + float(self.reduces[0])
        since, begin = -1, self.profile.modules[0].backward[0]
        reducing = 0.0
        for place, i in enumerate(order):
            starts = self.units[i].backward[0]
            window = self._seconds(begin, starts)
            again = self.units[i].unit.reshard_after_forward
            hides = 0.0 if place == 0 and root_empty else window
            demand = reducing + (float(self.gathers[i]) if again else 0.0)
            exposed[i] = max(0.0, demand - hides)
            windows[order[place - 1] if place else 0] += window
            reducing = self._reduced(since, starts, ends)
            since, begin = starts, starts
        if order:
            last = order[-1]
            window = self._seconds(begin, ends[last])
            windows[last] += window
            end += max(0.0, reducing - window)
            window = self._seconds(ends[last], len(self.profile.seconds))
            end += max(0.0, self._reduced(since, len(self.profile.seconds), ends) - window)
        return exposed, windows, end

    def _reduced(self, since: int, until: int, ends: Sequence[int]) -> float:
        """Reduce-scatters that begin after one segment and not after another [s]."""
        return sum(
            float(self.reduces[i])
            for i, unit in enumerate(self.units)
            if i > 0 and not unit.reduced_last and since < ends[i] <= until
        )
