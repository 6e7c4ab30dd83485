"""The rules of FSDP2 for plans whose root owns a range of bytes, with a tighter bound.

Without memory, the time of a completion depends on little: which unit comes next, and how much of
its backward pass the gather of the unit before takes. So the least time of every completion follows
from a table of pairs of consecutive units, from the last ones to the first (`Completions`). Of
memory the table knows what decides: each moment of a unit and its neighbors, in addition to the
least root of the range and to what stays unsharded, which is counted in levels, rounded down. The
root's own collectives take T(x) for x bytes, which the table prices at a rate r: with X the sums of
bytes that a root in the range may own,

    T(x) >= r x + min over y in X of (T(y) - r y)

for any rate (Lagrangian relaxation: Handler and Zang, "A dual algorithm for the constrained
shortest path problem", Networks 10, 1980). The best of a few rates is used.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.distinct import distinct_rows
from shardwise.fsdp.planner.rules import (
    AGAIN_S,
    ANY_UNIT,
    FORWARD_S,
    REDUCED_LAST,
    ROOT,
    ROOT_GRADIENTS,
    ROOT_REDUCED,
    SLACK,
    UNSHARDED,
    Fsdp2Rules,
    StepCosts,
)

_LEVELS = 16
"""Levels of the bytes that stay unsharded."""
_RATES = (1.0, 1.2, 1.5, 2.0, 3.0)
"""Prices of a byte of the root, in units of its time in a large collective."""
_RANGES = 24
_MOST_UNITS = 192
"""Tables grow with the cube of the units."""
_MOST_SUMS = 1 << 14
_SAFE = 1 - 1e-11
"""Keeps a bound below the rounding error of the sum that it bounds."""
_CLOSE_S = 1e-12
"""Difference of times that is rounding alone [s]."""
_EQUAL = 1e-9
"""Relative difference of a constant ratio that is rounding alone."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Units:
    """All units of a step as rows, by position."""

    step: StepCosts

    @cached_property
    def first(self) -> Ints:
        """Position of the first module of each."""
        return np.array([e.first for edges in self.step.edges for e in edges], dtype=np.int64)

    @cached_property
    def end(self) -> Ints:
        """Position after the modules of each; 0 at the end of the rows, for no unit."""
        ends = [edge.end for edges in self.step.edges for edge in edges]
        return np.array([*ends, 0], dtype=np.int64)

    def column(self, name: str) -> Floats:
        """Column of `UnitCosts`; 0 at the end, for no unit."""
        found = [getattr(units, name)[:, 0] for units in self.step.units if units is not None]
        return np.concatenate([*found, np.zeros(1)])

    @cached_property
    def columns(self) -> dict[str, Floats]:
        """The columns that tables read."""
        names = (
            *("gather_s", "reduce_s", "reduced_last", "forward_s", "backward_s", "gathered"),
            *("gathered_again", "unsharded", "reduced", "gradients", "forward_start"),
            *("forward_peak", "backward_start", "backward_peak", "backward_end"),
        )
        found = {name: self.column(name) for name in names}
        found["again_s"] = self.column("gather_again_s") - self.column("root_backward_s")
        found["hidden_s"] = (1 - found["reduced_last"]) * found["reduce_s"]
        found["last_s"] = found["reduced_last"] * found["reduce_s"]
        found["output"] = found["reduced"] + self.column("reduce_output")
        return found

    @cached_property
    def before(self) -> tuple[Floats, Floats, Floats]:
        """Forward [s], backward [s] and bytes of the modules before each position, in the root."""
        times = self.step.root_modules[:, :2].T
        sums = [np.cumsum(row) for row in (*times, self.step.sizes.gathered)]
        forward, backward, gathered = (np.concatenate([[0.0], row]) for row in sums)
        return forward, backward, gathered

    @cached_property
    def reduced_ratio(self) -> float:
        """Input of the reduce-scatter of each gathered byte; NaN if it is not the same for all."""
        sizes = self.step.sizes
        some = sizes.gathered > 0
        ratios = sizes.reduced[some] / sizes.gathered[some]
        if not ratios.size or np.ptp(ratios) > _EQUAL * ratios.max():
            return float("nan")
        return float(ratios[0])

    @cached_property
    def end_ratio(self) -> float:
        """Least bytes at the end of the step of each byte of the root: gradients, reductions."""
        sizes = self.step.sizes
        some = sizes.gathered > 0
        bytes_of = (sizes.gradients - sizes.shard_gradients + sizes.reduced)[some]
        return max(float(np.min(bytes_of / sizes.gathered[some])), 0.0)

    @cached_property
    def spared_bytes(self) -> float:
        """Most by which shards of gradients, with padding, are larger than the gradients [byte]."""
        extra = self.step.sizes.gradients - self.step.sizes.shard_gradients
        return -float(np.minimum(extra, 0.0).sum())

    @cached_property
    def end_bytes(self) -> float:
        """Activations at the end of the step [byte]."""
        spans, end = self.step.spans, len(self.step.profile.seconds)
        return spans.start(end) - spans.reduced_gradients(end)

    @cached_property
    def sums(self) -> Floats:
        """Bytes that a root may own, ascending; empty if they are too many."""
        sums = np.zeros(1)
        for size in self.step.sizes.gathered.tolist():
            if size > 0:
                sums = np.unique(np.concatenate([sums, sums + size]))
            if sums.size > _MOST_SUMS:
                return np.zeros(0)
        return sums

    @cached_property
    def clip_s(self) -> Floats:
        """The least time that `Fsdp2Rules` distinguishes in backward, by position [s]."""
        gathers, reduces = self.step.longest_collectives
        return -(gathers + reduces)

    @cached_property
    def neighbors(self) -> "tuple[Neighbors, ...]":
        """Each unit with those that may run before and after it."""
        return tuple(self._neighbors(unit) for unit in range(len(self.first)))

    def _neighbors(self, unit: int) -> "Neighbors":
        columns, start, end = self.columns, self.first[unit], self.end[unit]
        own = {name: column[unit] for name, column in columns.items()}
        forward, backward, gathered = self.before
        before = np.flatnonzero(self.end <= start)
        idle = np.where(before < len(self.first), backward[start] - backward[self.end[before]], 0.0)
        added = columns["again_s"][before] - idle
        order = np.argsort(-added, kind="stable")
        before, added = before[order], added[order]
        slack_s = added - own["backward_s"]
        after = np.flatnonzero(self.first >= end)
        at = self.first[after]
        behind = {name: column[after] for name, column in columns.items()}
        hidden = own["forward_s"] + forward[at] - forward[end]
        waiting = columns["gathered_again"][before]
        running = own["gathered"] + waiting + own["backward_peak"]
        moments = [
            running,
            own["forward_start"] + 2 * own["gathered"] + columns["gathered"][before],
            np.full(before.size, own["forward_peak"] + 2 * own["gathered"]),
        ]
        if own["gathered_again"]:
            begins = own["gathered"] + own["gathered_again"] + own["backward_start"]
            moments.append(np.full(before.size, begins))
        if not own["reduced_last"]:
            moments.append(waiting + own["output"] + own["backward_end"])
        last_s = np.maximum(own["again_s"] - (backward[-1] - backward[end]), 0.0)
        return Neighbors(
            before=before,
            added_s=np.maximum(added, self.clip_s[start])[::-1],
            after=after,
            root_bytes=gathered[at] - gathered[end],
            gather_s=behind["last_s"] + np.maximum(behind["gather_s"] - hidden, 0.0),
            reduce_s=np.maximum(behind["hidden_s"] + slack_s[:, None], 0.0),
            peaks=running[:, None] + (1 - behind["reduced_last"]) * behind["reduced"],
            moments=np.max(moments, axis=0),
            root_bytes_after=float(gathered[-1] - gathered[end]),
            last_s=np.maximum(slack_s, 0.0) + last_s,
            unsharded=float(own["unsharded"]),
            reduced_last_bytes=float(own["reduced_last"] * (own["gathered"] + own["gradients"])),
        )

    def root_s(self, sums: Floats) -> Floats:
        """Time of the root's own collectives by its bytes [s]."""
        times = self.step.collectives
        return times.gather_s(sums) + times.reduce_s(self.reduced_ratio * sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbors:
    """A unit, those that may run before it and those that may run after it."""

    before: Ints
    """No unit is the number of all units; those that add most to its backward pass first."""
    added_s: Floats
    """What they add, ascending, clipped as `Fsdp2Rules` does [s]."""
    after: Ints
    root_bytes: Floats
    """Of the root between the unit and those after it [byte]."""
    gather_s: Floats
    """Exposed gathers of those after it, and their reductions at the end of the step [s]."""
    reduce_s: Floats
    """Exposed reductions of those after it; shape (before, after) [s]."""
    peaks: Floats
    """Of its backward pass, without the root and what stays; shape (before, after) [byte]."""
    moments: Floats
    """Largest of its own moments, after each of those before it, likewise [byte]."""
    root_bytes_after: float
    last_s: Floats
    """What is exposed if it is the last unit, after each of those before it [s]."""
    unsharded: float
    reduced_last_bytes: float
    """Of its weights and gradients if they stay to the end of the step."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Completions:
    """The least time to complete a plan from each unit on, with the root at a price."""

    units: Units
    low: float
    """Least bytes of the root."""
    room: float
    """Bytes of the budget for what is not in every plan."""
    number: int
    """Of the rate among those tried."""
    rate: float
    """Price of a byte of the root [s/byte]."""
    added_s: float
    """The least that the root's collectives take in addition to its price [s]."""

    @cached_property
    def levels(self) -> Floats:
        """Least bytes unsharded before a unit, by level."""
        most = self.room - self.low - max(self.units.step.floors[-2:])
        if np.isinf(most):
            return np.zeros(1)
        return np.linspace(0.0, max(most, 1.0), _LEVELS, endpoint=False)

    def level(self, resident: Floats) -> Ints:
        """Level of some unsharded bytes."""
        found: Ints = np.searchsorted(self.levels, resident, side="right") - 1
        return found

    @cached_property
    def table(self) -> tuple[Floats, ...]:
        """For each unit the least time from it on, without its own collectives [s].

        Shape (levels, units before + 1); units before are in the order of `Neighbors.added_s`. Each
        is the least of that and those after it, and the last is infinite.
        """
        units = self.units
        count, resident = len(units.first), self.low + self.levels[:, None]
        rest = self.room - units.end_bytes - self.low * units.end_ratio
        least = np.full((count, self.levels.size, count + 1), np.inf)
        found = [np.full((self.levels.size, 1), np.inf)] * count
        for unit in np.argsort(-units.first, kind="stable").tolist():
            around = units.neighbors[unit]
            after = resident + around.unsharded
            best = (self.rate * around.root_bytes_after + around.last_s)[None]
            if around.after.size:
                level = self.level(self.levels + around.unsharded)
                base = self.rate * around.root_bytes + around.gather_s
                base = base + least[around.after[None], level[:, None], unit]
                times = base[:, None] + around.reduce_s
                if np.max(around.peaks) + resident[-1, 0] > self.room:
                    times[resident[:, :, None] + around.peaks > self.room] = np.inf
                best = np.minimum(best, times.min(axis=2))
            fits = (resident + around.moments <= self.room) & (after <= self.room)
            best = np.where(fits & (around.reduced_last_bytes <= rest), best, np.inf)
            least[unit][:, around.before] = best
            best = np.minimum.accumulate(best, axis=1)[:, ::-1]
            found[unit] = np.concatenate([best, np.full((self.levels.size, 1), np.inf)], axis=1)
        return tuple(found)

    def least(self, position: int, labels: Floats) -> Floats:
        """Lower bound on the remaining cost of labels [s]."""
        rows = labels[[FORWARD_S, SLACK, AGAIN_S, ANY_UNIT]]
        level = self.level(labels[UNSHARDED])
        some, place = distinct_rows([*rows, level])
        found = self._of_distinct(position, rows[:, some], level[some])[place]
        rate = self.rate - sum_of_slopes(self.units)
        return np.asarray((found + self.added_s) * _SAFE + rate * labels[ROOT])

    def _of_distinct(self, position: int, rows: Floats, level: Ints) -> Floats:
        units, columns = self.units, self.units.columns
        forward_s, slack_s, again_s, any_unit = rows
        forward, backward, gathered = units.before
        idle = backward[-1] - backward[position]
        best = np.maximum(slack_s - (1 - any_unit) * idle, 0.0)
        best = best + np.maximum(again_s - any_unit * idle, 0.0)
        best = best + self.rate * (gathered[-1] - gathered[position])
        for unit in np.flatnonzero(units.first >= position).tolist():
            at = units.first[unit]
            idle = backward[at] - backward[position]
            rest_s = np.maximum(again_s - any_unit * idle, units.clip_s[at])
            where = np.searchsorted(units.neighbors[unit].added_s, rest_s - _CLOSE_S)
            hidden = slack_s - (1 - any_unit) * idle
            time = self.table[unit][level, where]
            time += self.rate * (gathered[at] - gathered[position]) + columns["last_s"][unit]
            shown = columns["gather_s"][unit] + forward_s - (forward[at] - forward[position])
            time += np.maximum(shown, 0.0)
            time += np.maximum(columns["hidden_s"][unit] + hidden, 0.0)
            best = np.minimum(best, time)
        return best


def sum_of_slopes(units: Units) -> float:
    """Cost so far of each byte of the root in a label [s/byte]."""
    gather, reduce = units.step.root_slopes
    return gather + units.reduced_ratio * reduce


@dataclass(frozen=True, eq=False, kw_only=True)
class RootRange(Fsdp2Rules):
    """Plans within a budget whose root owns some of the sums of bytes that it may."""

    units: Units
    budget: float
    sums: Floats
    """The bytes that the root may own, ascending."""
    number: int = 1
    """Of the rate to try first."""

    @cached_property
    def completions(self) -> Completions:
        """With the rate of the tightest bound: it rises with the rate up to there, then falls."""
        best, best_s = self._with_rate(self.number)
        for step in (1, -1):
            number = best.number + step
            while 0 <= number < len(_RATES):
                found, found_s = self._with_rate(number)
                if found_s <= best_s:
                    break
                best, best_s, number = found, found_s, number + step
            if best.number != self.number:
                break
        return best

    def _with_rate(self, number: int) -> tuple[Completions, float]:
        rate = _RATES[number] * sum_of_slopes(self.units)
        found = Completions(
            units=self.units,
            low=float(self.sums[0]),
            room=self.budget - self.step.constant_bytes + self.units.spared_bytes,
            number=number,
            rate=rate,
            added_s=float(np.min(self.units.root_s(self.sums) - rate * self.sums)),
        )
        return found, float(found.least(0, self.start())[0])

    @cached_property
    def bound_s(self) -> float:
        """No plan of the range costs less [s]."""
        if self.peak(0, self.start())[0] > self.budget:
            return np.inf
        return float(self.remaining_cost(0, self.start(), self.budget)[0])

    def halves(self) -> "list[RootRange]":
        """The same plans in two ranges; none if there is one sum."""
        half = len(self.sums) // 2
        both = (self.sums[:half], self.sums[half:]) if half else ()
        return [self.of(sums, self.completions.number) for sums in both]

    def of(self, sums: Floats, number: int) -> "RootRange":
        """Plans with other sums."""
        most_root = float(sums[-1])
        return replace(self, sums=sums, most_root=most_root, number=number)

    def remaining_cost(self, position: int, labels: Floats, budget: float) -> Floats:
        """The larger of both bounds; infinite if the root owns too much [s]."""
        found = super().remaining_cost(position, labels, budget)
        found = np.maximum(found, self.completions.least(position, labels))
        return np.where(labels[ROOT] > self.most_root, np.inf, found)

    def peak(self, position: int, labels: Floats) -> Floats:
        """Peak with at least the root of the range [byte]."""
        if position == len(self.step.edges):
            return super().peak(position, labels)
        raised, low = labels.copy(), float(self.sums[0])
        raised[ROOT] = np.maximum(raised[ROOT], low)
        own = labels[ROOT_GRADIENTS] + labels[ROOT_REDUCED]
        end = np.maximum(own, low * self.units.end_ratio) + labels[REDUCED_LAST]
        found = super().peak(position, raised) - self.units.spared_bytes
        found = np.maximum(found, self.step.constant_bytes + self.units.end_bytes + end)
        return np.maximum(found, super().peak(position, labels))


def root_ranges(rules: Fsdp2Rules, budget: float) -> list[RootRange]:
    """Ranges that hold every plan within a budget; none where their tables would be too large.

    In a range a label may dominate another with more in the root, and its completions may leave the
    range below. Of the best plans, take the one with the least root: what dominates its beginning
    has the same root, so the plan or an equal one is found in its range.
    """
    units = Units(step=rules.step)
    if not 0 < len(units.first) <= _MOST_UNITS or np.isnan(units.reduced_ratio):
        return []
    sums = units.sums
    if not sums.size:
        return []
    every = RootRange(step=rules.step, root_s=rules.root_s, units=units, budget=budget, sums=sums)
    limits = np.linspace(0.0, sums[-1], _RANGES + 1)[1:-1]
    parts = np.split(sums, np.searchsorted(sums, limits))
    return [every.of(part, every.number) for part in parts if part.size]
