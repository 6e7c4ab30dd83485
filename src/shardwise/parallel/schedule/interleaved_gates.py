"""Where ranks of an interleaved pipeline wait in its first two groups, or in its last two."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.parallel.schedule.paths import Gates
from shardwise.parallel.schedule.pipelines import Pipelines
from shardwise.parallel.schedule.ranks import (
    NEVER,
    Passes,
    Ranks,
    after_stay,
    so_far,
    towards_first,
    towards_last,
)

__all__ = ["Kind", "Side"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One direction: what chunks take, and what the first and the last one take more."""

    base: Passes
    """Through a chunk that is neither the first nor the last."""
    late: Passes
    """Through the last chunk, with the head."""
    late_s: Floats
    """What the last chunk takes more than another, (known ranks, rows)."""
    apart: bool
    """Whether it does so on other ranks than the last, which has the head."""
    first_s: Floats
    round_s: Floats
    """One micro-batch through a chunk of every rank, and on to the next chunk."""

    def ends_s(self, ranks: Ranks) -> Floats:
        """What the first and the last chunk of a rank take more."""
        return ranks.first * self.first_s + self.late_s


class Side:
    """Gates from the start of the step, or, forward and backward exchanged, from its end."""

    def __init__(self, ranks: Ranks, kind: Kind, other: Kind, given: Pipelines) -> None:
        self.ranks, self.kind, self.other = ranks, kind, other
        self.m, self.p, self.v = given.micro_batches, ranks.count, given.chunks
        self.between = self.v - 2
        """Chunks between the first and the last one."""
        self.few, self.wrap_s = given.few, given.beside_s
        self.none = np.zeros(ranks.at.shape)
        group = self.p * self.v
        warm_up = 2.0 * (self.p - 1 - ranks.at) + (group - self.p)
        self.ahead = np.minimum(warm_up, self.m * self.v - 1.0)
        self.gates = self._gates()

    def _gates(self) -> Gates:
        """First pass; last of the first chunk's first group; end of the warm-up; first backward.

        Then the first group's last backward in the last chunk, for paths that leave a rank after
        all its turns there, the last rank after those with the head. Where last chunks differ, also
        the second group's first pass.
        """
        p, m, kind = self.p, self.m, self.kind
        none, ahead = self.none, self.ahead
        whole = none + p * self.v
        gates = Gates(kind.base.before + self._entry_s, few=self.few)
        gates.reach(self.work_s(none + (p - 1.0), none), kind.base.before + self._group_s)
        if kind.apart:
            warm, group = self._warm_apart_s()
        else:
            warm = kind.base.before + self._warm_s(ahead, self.v - 1)
        gates.reach(self.work_s(ahead, none), warm)
        backward = self.other.late
        gates.spread(self.work_s(ahead + 1.0, none), towards_first, backward)
        work = self.work_s(np.minimum(ahead + p, m * self.v), none + (p - 1.0))
        later = []
        if kind.apart:
            # Only the last rank comes to it after that last backward.
            next_work = self.work_s(whole, np.maximum(whole - ahead, 0.0))
            gates.reach(next_work, group, there=(m >= 2 * p) & (self.ranks.last == 0))
            later.append((next_work, group))
        later += [] if (m < 2 * p).all() else self._second_group(gates)
        start = towards_first(gates.starts(work), backward)
        gates.reach(work, start, there=(m == p) | (m >= 2 * p))
        for work, start in later:
            gates.reach(work, start, there=m >= 2 * p)
        return gates

    def _second_group(self, gates: Gates) -> list[tuple[Floats, Floats]]:
        """Gates of the second group, for paths from a first backward: work before and start.

        Its last pass in the first chunk, after all those with the first end; the backward that
        comes round from there; and its first pass in the second chunk, to which a path may have
        gone round from any rank with a backward before.
        """
        p, kind, other = self.p, self.kind, self.other
        ahead, whole = self.ahead, self.none + p * self.v
        late = whole - ahead
        work = self.work_s(whole + (p - 1.0), late + (p - 1.0))
        forward = self.ranks.with_ends(kind.base, kind.first_s, self.none[0])
        start = towards_last(gates.starts(work), forward)
        back = self.work_s(np.minimum(ahead + p + 2.0, self.m * self.v), self.none + (p + 1.0))
        turning = np.where(p > 1, other.late.at[0], other.base.at[0])
        turned = start[0] + forward.at[0] + turning + self.wrap_s
        leaving = gates.longest_wait_s + self.work_s(whole, late) - kind.base.before
        second = kind.base.before
        if kind.apart:
            second = np.where(self.between == 0, kind.late.before, second)
        round_ = np.maximum.reduce(leaving * (late > 0)) + kind.round_s
        return [
            (work, start),
            (back, turned + other.base.total - other.base.through),
            (self.work_s(whole + p, late + p), round_ + second),
        ]

    def work_s(self, number: Floats, others: Floats) -> Floats:
        """Time of a rank's first passes of this kind, at most two groups, and of the other kind."""
        kind, other, p = self.kind, self.other, self.p
        group = p * self.v
        first = np.minimum(number[0], p) + np.clip(number[0] - group, 0, p)
        others_first = np.clip(others[0] - (group - p), 0, p)
        known = slice(None) if kind.apart else slice(-1, None)
        late = number[known] - (group - p)
        last = np.clip(late, 0, p) + np.clip(late - group, 0, p)
        last_s = last * kind.late_s[known] + np.minimum(others[known], p) * other.late_s[known]
        work = number * kind.base.at + others * other.base.at
        work += self.ranks.first * (first * kind.first_s + others_first * other.first_s)
        work += last_s if kind.apart else self.ranks.last * last_s
        return work

    @property
    def _entry_s(self) -> Floats:
        """What the first chunk's end takes longer, for the ranks behind it."""
        return self.kind.first_s * (1.0 - self.ranks.first)

    @cached_property
    def _pace_s(self) -> Floats:
        """Slowest pass up to each rank; rank 0 saves in one of its chunks what it waits not for."""
        saved = self.ranks.first * np.minimum(self.kind.first_s, 0.0)
        return so_far(self.kind.base.at + saved)

    @cached_property
    def _group_s(self) -> Floats:
        """Start of pass p - 1 after the first pass came through, all of them with the first end."""
        own = self.kind.base.at[0] + self.kind.first_s
        return self._entry_s + (self.p - 1) * np.maximum(self._pace_s, own)

    def _warm_apart_s(self) -> tuple[Floats, Floats]:
        """Start of the warm-up's last pass where the last chunk differs; that of the next group.

        A path comes to that chunk with its first pass or, round from the last rank, with any. It
        may stay on one rank there and on another one in the next group's first chunk.
        """
        kind, ranks, late, p, v = self.kind, self.ranks, self.kind.late, self.p, self.v
        start, end = (v - 1) * p, v * p
        forward = ranks.with_ends(kind.base, kind.first_s, self.none[0])
        two = self.between == 0
        more = np.where(two, self._group_s, self._warm_s(self.none + start - 1, self.between))
        own = kind.base.before + more + np.where(two, forward.at, kind.base.at)
        around = self._around_s(self.none[0] + start) + NEVER * (1 - ranks.first)
        first = towards_last(np.maximum(own, around), late)

        def of_last_chunk(number: Floats) -> Floats:
            stay = after_stay(
                first, late, lambda at, to: (number - start)[to] * late.at[at], towards_last=True
            )
            return np.maximum(stay, self._around_s(number) + late.before)

        group = towards_last(of_last_chunk(self.none + (end - 1)) + late.at, forward)
        left = self.ahead - end
        again = after_stay(
            group, forward, lambda at, to: left[to] * forward.at[at], towards_last=True
        )
        warm = of_last_chunk(np.minimum(self.ahead, end - 1))
        return np.where(left >= 0, again, warm), group

    def _around_s(self, number: Floats) -> Floats:
        """A pass of the last chunk on rank 0, where it waits for the last rank's p passes before.

        As in `_warm_s`; with two chunks, all passes up to there are of the first.
        """
        kind, base, p, between = self.kind, self.kind.base, self.p, self.between
        number = number - p
        slowest, first = base.at.max(axis=0), base.at[0] + kind.first_s
        pace = np.maximum(slowest, first)
        gain = kind.round_s - p * slowest
        later = np.clip(number - p, 0, p - 1) * (first - slowest) + gain
        gain = np.maximum(np.maximum(gain, gain * between), later)
        ways = (
            (p - 1) * pace + (number - (p - 1)) * slowest,
            number * base.at[0] + (p - 1) * kind.first_s,
            gain + number * slowest,
        )
        waited = np.where(between == 0, number * pace, np.maximum.reduce(ways))
        return waited + kind.first_s + kind.round_s

    def _warm_s(self, number: Floats, rounds: Ints) -> Floats:
        """Start of a later pass of the warm-up: the pace is that of the slowest rank before it.

        Or that of rank 0, whose every pass of the first chunk carries an end of the model; or of
        the slowest of all, if the path goes round through them: once, for every chunk, or after
        the first p passes of rank 0. The last chunk leads round no more, so that ends with pass
        v p - 1.
        """
        kind, base, p, v = self.kind, self.kind.base, self.p, self.v
        slowest = base.at.max(axis=0)
        ended = np.maximum(number + (1 - p * v) - self.ranks.first, 0.0)
        direct = self._group_s + (number - (p - 1)) * self._pace_s
        along = number * base.at[0] + (p + ended) * kind.first_s
        free = np.minimum(number, v * p - 1)
        gain = kind.round_s - p * slowest
        later = (p - 1) * (base.at[0] + kind.first_s - slowest) + gain
        best = np.maximum(np.maximum(gain, gain * rounds), later + NEVER * (free < 2 * p - 1))
        around = kind.first_s + best + free * slowest + (number - free) * self._pace_s
        around += ended * (self.ranks.first * kind.first_s)
        return np.maximum(np.maximum(direct, along), around)
