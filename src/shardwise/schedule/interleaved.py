"""Closed form of interleaved 1F1B."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.schedule.gpipe_1f1b import longest_1f1b
from shardwise.schedule.paths import Gates, longest
from shardwise.schedule.pipelines import Pipelines, Solved, Times
from shardwise.schedule.ranks import NEVER, Passes, Ranks, so_far, towards_first, towards_last

__all__ = ["interleaved"]


def interleaved(given: Pipelines) -> Solved:
    """Interleaved 1F1B (arXiv 2104.04473, section 2.2), two chunks per rank or more.

    For equal stages and whole groups of p micro-batches T = (m + (p - 1) / v) (f + b), exactly.
    Where the ends of the model make a chunk longer, its turns set the pace together with the
    slowest other rank: `_gain_s`. An incomplete last group adds the waits of `_missing_s`.

    Whole groups: exact for any stages without ends and messages (but rare pipelines of two groups,
    0.1 % short), and with a head; with an embedding of several chunks 0.02 % short on average, 2 %
    at most; with messages beside compute 0.05 % short on
    average. An incomplete group: 0.2 to 0.8 % off on average, 3 % at most, with fewer than two
    groups 8 %, either way: which chunk of the last group waits for which is not resolved.
    (Megatron-LM refuses such batches.)
    """
    m, p, v = given.micro_batches, given.stages, given.chunks
    # Of one group, the ranks before the middle do all forwards before their first backward; of
    # fewer micro-batches than ranks, those before rank p - m.
    ranks = Ranks.of(given.lengths, [(p - 1) // 2, p // 2, p - m] if given.few else ())
    forward, backward = _kinds(given, ranks)
    turn_s = forward.base.at + backward.base.at
    ends_s = forward.ends_s(ranks) + backward.ends_s(ranks)
    busy = m * (v * turn_s + ends_s)
    there = _Side(ranks, forward, backward, given)
    back = _Side(ranks, backward, forward, given)
    waiting = busy + _missing_s(forward.base, backward.base, m, p, v)
    within = np.maximum(m / p - 2, 0.0)
    if within.any():
        waiting = waiting + within * _gain_s(there, back, ends_s, 2 * given.beside_s)
    step = longest(there.gates, waiting, back.gates)
    if (m < p).any():
        step = np.where(m < p, _one_group(there, back), step)
    return Solved(
        step_s=step,
        occupied_s=busy,
        messages=m * (2.0 * v - ranks.first - ranks.last),
    )


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """One direction: what each chunk takes, and what the first and the last one take more."""

    base: Passes
    first_s: Floats
    last_s: Floats
    round_s: Floats
    """One micro-batch through a chunk of every rank, and on to the next chunk."""

    def ends_s(self, ranks: Ranks) -> Floats:
        return ranks.first * self.first_s + ranks.last * self.last_s


def _kinds(given: Pipelines, ranks: Ranks) -> tuple[_Kind, _Kind]:
    def kind(times: Times, first_hop_s: Floats | float, last_hop_s: Floats | float) -> _Kind:
        base = given.arriving(ranks, times.on_stage / given.chunks)
        return _Kind(
            base=base,
            first_s=times.on_first - first_hop_s,
            last_s=times.on_last - last_hop_s,
            round_s=base.total + given.beside_s,
        )

    hop = given.blocking_s
    return kind(given.forward, hop, 0.0), kind(given.backward, 0.0, hop)


def _missing_s(forward: Passes, backward: Passes, m: Ints, p: Ints, v: Ints) -> Floats:
    """What ranks wait in an incomplete last group of r micro-batches.

    A micro-batch needs a pass on every rank to come to the next chunk, a rank has only r to do.
    For v - 1 chunks that leaves it waiting; the forwards wait beside the backwards of the group
    before, so the longest of three paths counts: all waits in backwards; half of the p - r passes
    in forwards; all in forwards, beside p backwards. Fitted on the simulation of equal stages:
    within two passes of a chunk.
    """
    r = m % p
    forwards, backwards = (one.total - r * one.at for one in (forward, backward))
    share = (p - r) // 2 / (p - r)
    mixed = share * forwards + (1 - share) * backwards
    most = np.maximum(np.maximum(backwards, mixed), forwards - p * backward.at)
    return np.where(r > 0, (v - 1) * np.maximum(most, 0.0), 0.0)


def _one_group(there: "_Side", back: "_Side") -> Floats:
    """Fewer micro-batches than ranks: they go through the chunks one after the other.

    Each of the first v - 1 chunks takes a round of one micro-batch, or all of them on the slowest
    rank; then follows 1F1B. The embedding adds its own m passes where rank 0 is that slowest rank.
    """
    m, rounds, ranks = there.m, there.v - 1, there.ranks
    kinds = (there.kind, back.kind)
    apart = [np.maximum(kind.round_s, m * kind.base.at.max(axis=0)) * rounds for kind in kinds]
    none = np.zeros(there.p.shape)
    with_ends = [ranks.with_ends(kind.base, kind.first_s, kind.last_s) for kind in kinds]
    with_head = [ranks.with_ends(kind.base, none, kind.last_s) for kind in kinds]
    embedded = [
        np.maximum(time + kind.first_s, m * (rounds * kind.base.at[0] + kind.first_s))
        for time, kind in zip(apart, kinds, strict=True)
    ]
    return np.maximum(
        apart[0] + apart[1] + longest_1f1b(ranks, with_ends[0], with_ends[1], m, few=True),
        embedded[0] + embedded[1] + longest_1f1b(ranks, with_head[0], with_head[1], m, few=True),
    )


class _Side:
    """Gates from the start of the step, or, forward and backward exchanged, from its end."""

    def __init__(self, ranks: Ranks, kind: _Kind, other: _Kind, given: Pipelines) -> None:
        self.ranks, self.kind, self.other = ranks, kind, other
        self.m, self.p, self.v = given.micro_batches, ranks.count, given.chunks
        self.few, self.wrap_s = given.few, given.beside_s
        self.none = np.zeros(ranks.at.shape)
        group = self.p * self.v
        warm_up = 2.0 * (self.p - 1 - ranks.at) + (group - self.p)
        self.ahead = np.minimum(warm_up, self.m * self.v - 1.0)
        self.gates = self._gates()

    def _gates(self) -> Gates:
        """First pass; last of the first chunk's first group; end of the warm-up; first backward.

        Then the first group's last backward in the last chunk, for paths that leave the last rank
        after all its turns with the head.
        """
        p, m, base = self.p, self.m, self.kind.base
        none, ahead = self.none, self.ahead
        gates = Gates(base.before + self._entry_s, few=self.few)
        gates.reach(self.work_s(none + (p - 1.0), none), base.before + self._group_s)
        gates.reach(self.work_s(ahead, none), base.before + self._warm_s(ahead))
        backward = self.ranks.with_ends(self.other.base, none[0], self.other.last_s)
        gates.spread(self.work_s(ahead + 1.0, none), towards_first, backward)
        second = None if (m < 2 * p).all() else self._second_group(gates)
        work = self.work_s(np.minimum(ahead + p, m * self.v), none + (p - 1.0))
        start = towards_first(gates.starts(work), backward)
        gates.reach(work, start, there=(m == p) | (m >= 2 * p))
        for work, start in second or ():
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
        turned = start[0] + forward.at[0] + other.base.at[0] + self.wrap_s
        leaving = gates.longest_wait_s + self.work_s(whole, late) - kind.base.before
        round_ = np.maximum.reduce(leaving * (late > 0)) + kind.round_s
        return [
            (work, start),
            (back, turned + other.base.total - other.base.through),
            (self.work_s(whole + p, late + p), round_ + kind.base.before),
        ]

    def work_s(self, number: Floats, others: Floats) -> Floats:
        """Time of a rank's first passes of this kind, at most two groups, and of the other kind."""
        ranks, kind, other, p = self.ranks, self.kind, self.other, self.p
        group = p * self.v
        first = np.minimum(number[0], p) + np.clip(number[0] - group, 0, p)
        late = number[-1] - (group - p)
        last = np.clip(late, 0, p) + np.clip(late - group, 0, p)
        others_first = np.clip(others[0] - (group - p), 0, p)
        work = number * kind.base.at + others * other.base.at
        work += ranks.first * (first * kind.first_s + others_first * other.first_s)
        work += ranks.last * (last * kind.last_s + np.minimum(others[-1], p) * other.last_s)
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

    def _warm_s(self, number: Floats) -> Floats:
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
        best = np.maximum(np.maximum(gain, gain * (v - 1)), later + NEVER * (free < 2 * p - 1))
        around = kind.first_s + best + free * slowest + (number - free) * self._pace_s
        around += ended * (self.ranks.first * kind.first_s)
        return np.maximum(np.maximum(direct, along), around)


def _gain_s(there: _Side, back: _Side, ends_s: Floats, wraps_s: Floats) -> Floats:
    """What the longest path gains in every group but two where it visits the ends of the model.

    A group has p v turns of a forward and a backward. The last rank's p turns in the last chunk
    carry the head. The rest may pass on rank i: on the way there and back, p - 1 - i steps each,
    a step costs a turn and gains one pass. Or the way goes round, from the last rank to the first
    one and on to rank i; or one way is that and the other direct, so that all ranks are passed in
    one direction. Likewise for the embedding, whose backwards of a group meet its forwards of the
    second group after it, so that it keeps rank 0 for about two turns more.
    """
    p, v = there.p, there.v
    up = 2.0 * there.ranks.at
    down = 2.0 * (p - 1) - up
    turn = there.kind.base + back.kind.base
    first, last = turn.at[0], turn.at[-1]
    head = p * (last + there.kind.last_s + back.kind.last_s)
    embedding = (p + 1) * first + p * (there.kind.first_s + back.kind.first_s)
    round_ = np.maximum(there.kind.round_s, back.kind.round_s)
    left = p * v - p
    behind = turn.total - turn.through - down * turn.at
    before = turn.before - up * turn.at
    ways = (
        round_ + head - 2 * p * turn.at,
        round_ + embedding - (2 * p + 1) * turn.at + NEVER * (left <= p),
        behind + (head - last) - (p - 1) * turn.at + NEVER * (down > left),
        behind + (embedding + first + wraps_s) - (p + 3) * turn.at + NEVER * (down > left - 4),
        before + (head + last + wraps_s) - (p + 2) * turn.at + NEVER * (up > left - 3),
        before + (embedding - first) - p * turn.at + NEVER * (up > left - 1),
    )
    gain: Floats = np.maximum(np.maximum.reduce(ways) - p * ends_s, 0.0)
    return gain
