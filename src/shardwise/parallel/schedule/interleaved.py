"""Closed form of interleaved 1F1B."""

from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.parallel.schedule.gpipe_1f1b import longest_1f1b
from shardwise.parallel.schedule.longest_path import (
    NEVER,
    Passes,
    Ranks,
    WaitPoints,
    after_stay,
    longest,
    running_max,
    towards_first,
    towards_last,
)
from shardwise.parallel.schedule.pipelines import Pipelines, Solution, Times
from shardwise.records import dataclass


@dataclass(frozen=True, kw_only=True)
class _Direction:
    """Passes of one direction, forward or backward, through the chunks of a rank."""

    base: Passes
    """Passes through a chunk that is neither the first nor the last."""
    last: Passes
    """Passes through the last chunk, with the head."""
    last_extra_s: Floats
    """Extra time of the last chunk over another, (sampled ranks, rows)."""
    uneven: bool
    """Whether the last chunk takes another time on other ranks than the last too."""
    first_extra_s: Floats
    """Extra time of the first chunk on rank 0: the embedding, (rows,)."""
    round_s: Floats
    """Time of a micro-batch through a chunk of every rank, and on to the next chunk, (rows,)."""

    def ends_s(self, ranks: Ranks) -> Floats:
        """Extra time of the first and the last chunk of a rank."""
        return ranks.first * self.first_extra_s + self.last_extra_s


def interleaved(pipelines: Pipelines) -> Solution:
    """Interleaved 1F1B (arXiv 2104.04473, section 2.2), two chunks per rank or more.

    For equal stages and complete groups of p micro-batches T = (m + (p - 1) / v) (f + b), exactly.
    Where the ends of the model make a chunk longer, its turns set the pace together with the
    slowest other rank: `_gain_s`. An incomplete last group adds the waits of `_missing_s`.

    Complete groups: exact for any stages without ends and messages (but rare pipelines of two
    groups, 0.1 % short), and with a head; with an embedding as long as several chunks 0.02 % short
    on average, 2 % at most; with messages that overlap compute 0.05 % short on average. With
    shorter last chunks on trailing ranks 0.1 % short at most, with messages that overlap compute
    0.3 %; 2 % where rank 0 alone has none and a shorter first chunk. With last chunks of any length
    0.15 % off on average, 4 % at most. The other chunks of a rank count as equal.

    An incomplete group: 0.2 to 0.8 % off on average, 3 % at most, with fewer than two
    groups 8 %, either way: which chunk of the last group waits for which is not resolved.
    (Megatron-LM refuses such batches.)

    Parameters
    ----------
    pipelines
        Pipelines of one schedule, columns of shape (rows,): passes and messages [s].
    """
    m, p, v = pipelines.micro_batches, pipelines.stages, pipelines.chunks
    # Of one group, the ranks before the middle do all forwards before their first backward; of
    # fewer micro-batches than ranks, those before rank p - m.
    ranks = Ranks.sample(
        pipelines.group_sizes, [(p - 1) // 2, p // 2, p - m] if pipelines.few_batches else ()
    )
    hop_s = pipelines.blocking_hop_s
    forward = _direction(pipelines, ranks, pipelines.forward, first_hop_s=hop_s)
    backward = _direction(pipelines, ranks, pipelines.backward, last_hop_s=hop_s)
    turn_s = forward.base.time + backward.base.time
    ends_s = forward.ends_s(ranks) + backward.ends_s(ranks)
    busy = m * (v * turn_s + ends_s)
    heads = _Waits(ranks, forward, backward, pipelines)
    tails = _Waits(ranks, backward, forward, pipelines)
    waiting = busy + _missing_s(forward.base, backward.base, m, p, v)
    within = np.maximum(m / p - 2, 0.0)
    if within.any():
        waiting = waiting + within * _gain_s(heads, tails, ends_s)
    step = longest(heads.points, waiting, tails.points)
    if (m < p).any():
        step = np.where(m < p, _one_group(heads, tails), step)
    return Solution(
        step_s=step,
        occupied_s=busy,
        messages=m * (2.0 * v - ranks.first - ranks.last),
    )


def _direction(
    pipelines: Pipelines,
    ranks: Ranks,
    times: Times,
    *,
    first_hop_s: Floats | float = 0.0,
    last_hop_s: Floats | float = 0.0,
) -> _Direction:
    """Passes of one direction; those into the model wait for no message, `first/last_hop_s`."""
    other_s, last_s = times.other_and_last_chunk(pipelines.chunks)
    base = pipelines.with_messages(ranks, other_s)
    uneven = times.last_chunk_s is not None
    extra_s = times.last_extra_s - last_hop_s
    last = pipelines.with_messages(ranks, last_s) if uneven else base
    last = ranks.with_ends(last, np.zeros(extra_s.shape), extra_s)
    return _Direction(
        base=base,
        last=last,
        last_extra_s=last.time - base.time if uneven else ranks.last * extra_s,
        uneven=uneven,
        first_extra_s=times.first_extra_s - first_hop_s,
        round_s=base.total + pipelines.overlapped_hop_s,
    )


def _missing_s(forward: Passes, backward: Passes, m: Ints, p: Ints, v: Ints) -> Floats:
    """Time that ranks wait in an incomplete last group of r micro-batches [s].

    A micro-batch needs a pass on every rank to come to the next chunk, a rank has only r to do.
    So it waits in v - 1 chunks; the forwards wait while the group before does backwards, so the
    longest of three paths counts: all waits in backwards; half of the p - r passes in forwards;
    all in forwards, during p backwards. Fitted on the simulation of equal stages: within two passes
    of a chunk.
    """
    r = m % p
    forwards, backwards = (one.total - r * one.time for one in (forward, backward))
    share = (p - r) // 2 / (p - r)
    mixed = share * forwards + (1 - share) * backwards
    most = np.maximum(np.maximum(backwards, mixed), forwards - p * backward.time)
    return np.where(r > 0, (v - 1) * np.maximum(most, 0.0), 0.0)


def _one_group(heads: "_Waits", tails: "_Waits") -> Floats:
    """Step time of fewer micro-batches than ranks: they go through one chunk after the other [s].

    Each of the first v - 1 chunks takes a round of one micro-batch, or all of them on the slowest
    rank; then follows 1F1B. The embedding adds its own m passes where rank 0 is that slowest rank.
    """
    m, rounds, ranks = heads.m, heads.v - 1, heads.ranks
    both = (heads.one, tails.one)
    none = np.zeros(heads.p.shape)
    chunks_s = [np.maximum(one.round_s, m * one.base.time.max(axis=0)) * rounds for one in both]
    embedded_s = [
        np.maximum(time_s + one.first_extra_s, m * (rounds * one.base.time[0] + one.first_extra_s))
        for time_s, one in zip(chunks_s, both, strict=True)
    ]
    forward, backward = (ranks.with_ends(one.last, one.first_extra_s, none) for one in both)
    return np.maximum(
        chunks_s[0] + chunks_s[1] + longest_1f1b(ranks, forward, backward, m, few_batches=True),
        embedded_s[0]
        + embedded_s[1]
        + longest_1f1b(ranks, heads.one.last, tails.one.last, m, few_batches=True),
    )


class _Waits:
    """Wait points from the start of a step or, with forward and backward swapped, from its end."""

    def __init__(
        self, ranks: Ranks, one: _Direction, other: _Direction, pipelines: Pipelines
    ) -> None:
        self.ranks, self.one, self.other = ranks, one, other
        self.m, self.p, self.v = pipelines.micro_batches, ranks.count, pipelines.chunks
        self.between = self.v - 2
        """Chunks between the first and the last one."""
        self.few_batches, self.wrap_s = pipelines.few_batches, pipelines.overlapped_hop_s
        self.none = np.zeros(ranks.index.shape)
        group = self.p * self.v
        before_1f1b = 2.0 * (self.p - 1 - ranks.index) + (group - self.p)
        self.warm_up = np.minimum(before_1f1b, self.m * self.v - 1.0)
        self.points = self._points()

    def _points(self) -> WaitPoints:
        """First pass; last of the first chunk's first group; end of the warm-up; first backward.

        Then the first group's last backward in the last chunk, for paths that leave a rank after
        all its turns there, the last rank after those with the head. Where last chunks differ, also
        the second group's first pass.
        """
        p, m, one = self.p, self.m, self.one
        none, warm_up = self.none, self.warm_up
        group = none + p * self.v
        points = WaitPoints(one.base.before + self._entry_s, few_batches=self.few_batches)
        points.add(self.work_s(none + (p - 1.0), none), one.base.before + self._group_s)
        if one.uneven:
            end_of_warm_up, next_group = self._uneven_warm_up_s()
        else:
            end_of_warm_up = one.base.before + self._warm_up_s(warm_up, self.v - 1)
        points.add(self.work_s(warm_up, none), end_of_warm_up)
        backward = self.other.last
        points.add_passed_on(self.work_s(warm_up + 1.0, none), towards_first, backward)
        last_backward = self.work_s(np.minimum(warm_up + p, m * self.v), none + (p - 1.0))
        later = []
        if one.uneven:
            # Only the last rank comes to it after that last backward.
            work = self.work_s(group, np.maximum(group - warm_up, 0.0))
            points.add(work, next_group, where=(m >= 2 * p) & (self.ranks.last == 0))
            later.append((work, next_group))
        if (m >= 2 * p).any():
            later += self._second_group(points)
        start = towards_first(points.own_start(last_backward), backward)
        points.add(last_backward, start, where=(m == p) | (m >= 2 * p))
        for work, start in later:
            points.add(work, start, where=m >= 2 * p)
        return points

    def _second_group(self, points: WaitPoints) -> list[tuple[Floats, Floats]]:
        """Work before and start of the second group's points, for paths from a first backward.

        Its last pass in the first chunk, after all those with the embedding; the backward that
        comes round from there; and its first pass in the second chunk, to which a path may have
        gone round from any rank with a backward before.
        """
        p, one, other = self.p, self.one, self.other
        warm_up, group = self.warm_up, self.none + p * self.v
        backwards = group - warm_up
        work = self.work_s(group + (p - 1.0), backwards + (p - 1.0))
        forward = self.ranks.with_ends(one.base, one.first_extra_s, self.none[0])
        start = towards_last(points.own_start(work), forward)
        round_work = self.work_s(
            np.minimum(warm_up + p + 2.0, self.m * self.v), self.none + (p + 1.0)
        )
        turn_s = np.where(p > 1, other.last.time[0], other.base.time[0])
        turned = start[0] + forward.time[0] + turn_s + self.wrap_s
        leaving = points.longest_wait_s + self.work_s(group, backwards) - one.base.before
        before = one.base.before
        if one.uneven:
            before = np.where(self.between == 0, one.last.before, before)
        gone_round = np.maximum.reduce(leaving * (backwards > 0)) + one.round_s
        return [
            (work, start),
            (round_work, turned + other.base.total - other.base.through),
            (self.work_s(group + p, backwards + p), gone_round + before),
        ]

    def work_s(self, number: Floats, others: Floats) -> Floats:
        """Time of a rank's first passes of this direction, up to two groups, and of the other."""
        one, other, p = self.one, self.other, self.p
        group = p * self.v
        first = np.minimum(number[0], p) + np.clip(number[0] - group, 0, p)
        others_first = np.clip(others[0] - (group - p), 0, p)
        ranks = slice(None) if one.uneven else slice(-1, None)
        in_last = number[ranks] - (group - p)
        last = np.clip(in_last, 0, p) + np.clip(in_last - group, 0, p)
        others_last = np.minimum(others[ranks], p)
        last_s = last * one.last_extra_s[ranks] + others_last * other.last_extra_s[ranks]
        work = number * one.base.time + others * other.base.time
        work += self.ranks.first * (first * one.first_extra_s + others_first * other.first_extra_s)
        work += last_s if one.uneven else self.ranks.last * last_s
        return work

    @property
    def _entry_s(self) -> Floats:
        """Extra time of the first chunk on rank 0, for the ranks after it."""
        return self.one.first_extra_s * (1.0 - self.ranks.first)

    @cached_property
    def _pace_s(self) -> Floats:
        """Slowest pass up to each rank; in one of its chunks rank 0 may wait for no message."""
        saved = self.ranks.first * np.minimum(self.one.first_extra_s, 0.0)
        return running_max(self.one.base.time + saved)

    @cached_property
    def _group_s(self) -> Floats:
        """Start of pass p - 1 after the first pass came through, all of them with the embedding."""
        own = self.one.base.time[0] + self.one.first_extra_s
        return self._entry_s + (self.p - 1) * np.maximum(self._pace_s, own)

    def _uneven_warm_up_s(self) -> tuple[Floats, Floats]:
        """Start of the warm-up's last pass where the last chunk differs; that of the next group.

        A path comes to that chunk with its first pass or, round from the last rank, with any. It
        may stay on one rank there and on another one in the next group's first chunk.
        """
        one, ranks, last, p, v = self.one, self.ranks, self.one.last, self.p, self.v
        start, end = (v - 1) * p, v * p
        forward = ranks.with_ends(one.base, one.first_extra_s, self.none[0])
        two = self.between == 0
        more = np.where(two, self._group_s, self._warm_up_s(self.none + start - 1, self.between))
        own = one.base.before + more + np.where(two, forward.time, one.base.time)
        around = self._around_s(self.none[0] + start) + NEVER * (1 - ranks.first)
        first = towards_last(np.maximum(own, around), last)

        def of_last_chunk(number: Floats) -> Floats:
            stay = after_stay(
                first, last, lambda at, to: (number - start)[to] * last.time[at], towards_last=True
            )
            return np.maximum(stay, self._around_s(number) + last.before)

        group = towards_last(of_last_chunk(self.none + (end - 1)) + last.time, forward)
        left = self.warm_up - end
        again = after_stay(
            group, forward, lambda at, to: left[to] * forward.time[at], towards_last=True
        )
        warm = of_last_chunk(np.minimum(self.warm_up, end - 1))
        return np.where(left >= 0, again, warm), group

    def _around_s(self, number: Floats) -> Floats:
        """A pass of the last chunk on rank 0, where it waits for the last rank's p passes before.

        As in `_warm_up_s`; with two chunks, all passes up to there are of the first.
        """
        one, base, p, between = self.one, self.one.base, self.p, self.between
        number = number - p
        longest_pass_s, first = base.time.max(axis=0), base.time[0] + one.first_extra_s
        pace = np.maximum(longest_pass_s, first)
        gain = one.round_s - p * longest_pass_s
        later = np.clip(number - p, 0, p - 1) * (first - longest_pass_s) + gain
        gain = np.maximum(np.maximum(gain, gain * between), later)
        ways = (
            (p - 1) * pace + (number - (p - 1)) * longest_pass_s,
            number * base.time[0] + (p - 1) * one.first_extra_s,
            gain + number * longest_pass_s,
        )
        waited = np.where(between == 0, number * pace, np.maximum.reduce(ways))
        return waited + one.first_extra_s + one.round_s

    def _warm_up_s(self, number: Floats, rounds: Ints) -> Floats:
        """Start of a later pass of the warm-up: the pace is that of the slowest rank before it.

        Or that of rank 0, whose every pass of the first chunk carries the embedding; or of the
        slowest of all, if the path goes round through them: once, for every chunk, or after the
        first p passes of rank 0. From the last chunk no path goes round, so that ends with pass
        v p - 1.
        """
        one, base, p, v = self.one, self.one.base, self.p, self.v
        longest_pass_s = base.time.max(axis=0)
        ended = np.maximum(number + (1 - p * v) - self.ranks.first, 0.0)
        direct = self._group_s + (number - (p - 1)) * self._pace_s
        along = number * base.time[0] + (p + ended) * one.first_extra_s
        free = np.minimum(number, v * p - 1)
        gain = one.round_s - p * longest_pass_s
        later = (p - 1) * (base.time[0] + one.first_extra_s - longest_pass_s) + gain
        best = np.maximum(np.maximum(gain, gain * rounds), later + NEVER * (free < 2 * p - 1))
        around = one.first_extra_s + best + free * longest_pass_s + (number - free) * self._pace_s
        around += ended * (self.ranks.first * one.first_extra_s)
        return np.maximum(np.maximum(direct, along), around)


def _gain_s(heads: _Waits, tails: _Waits, ends_s: Floats) -> Floats:
    """Gain of the longest path in every group but two where it visits the ends of the model [s].

    A group has p v turns of a forward and a backward. The last rank's p turns in the last chunk
    carry the head. The rest may be on rank i: on the path to and from it, p - 1 - i steps each, a
    step costs a turn and gains one pass. Or the way goes round, from the last rank to the first
    one and on to rank i; or one way is that and the other direct, so that all ranks are passed in
    one direction. Likewise for the embedding, whose backwards of a group meet its forwards of the
    second group after it, so that it keeps rank 0 for about two turns more. Where the last chunk
    of other ranks differs, an end of the model may also be what a path leaves rank 0 or p - 1 for.
    """
    turns = _Turns(heads, tails)
    p, v, up, down, turn = turns.p, turns.v, turns.up, turns.down, turns.turn
    first, last = turn.time[0], turn.time[-1]
    head = p * (last + heads.one.last_extra_s[-1] + tails.one.last_extra_s[-1])
    embedding = (p + 1) * first + p * (heads.one.first_extra_s + tails.one.first_extra_s)
    rounds = [one.round_s for one in turns.both]
    if not turns.uneven:
        rounds = [np.maximum(*rounds)]
    wraps_s = 2 * heads.wrap_s
    left = p * v - p
    after = turn.total - turn.through - down * turn.time
    before = turn.before - up * turn.time
    ways = [
        *(round_s + head - 2 * p * turn.time for round_s in rounds),
        *(
            round_s + embedding - (2 * p + 1) * turn.time + NEVER * (left <= p)
            for round_s in rounds
        ),
        after + (head - last) - (p - 1) * turn.time + NEVER * (down > left),
        after + (embedding + first + wraps_s) - (p + 3) * turn.time + NEVER * (down > left - 4),
        before + (head + last + wraps_s) - (p + 2) * turn.time + NEVER * (up > left - 3),
        before + (embedding - first) - p * turn.time + NEVER * (up > left - 1),
    ]
    if turns.uneven:
        ways = [way + extra for way, extra in zip(ways, _last_chunks_on_ways(turns), strict=True)]
    gain: Floats = np.maximum(np.maximum.reduce(ways) - p * ends_s, 0.0)
    if turns.uneven:
        gain = np.maximum(gain, turns.ranks.first * _gain_off_embedding(turns))
        gain = np.maximum(gain, turns.ranks.last * _gain_off_head(turns))
    return gain


class _Turns:
    """A forward and a backward of every rank, and the steps from there to the ends."""

    def __init__(self, heads: _Waits, tails: _Waits) -> None:
        one, other = self.both = heads.one, tails.one
        self.ranks, self.p, self.v, self.between = heads.ranks, heads.p, heads.v, heads.between
        self.wrap_s, self.uneven = heads.wrap_s, one.uneven
        self.turn = one.base + other.base
        """In all chunks but the last."""
        self.first_extra_s = one.first_extra_s + other.first_extra_s
        """Extra time of rank 0 in a turn with both passes in the first chunk."""
        self.last_extra_s = one.last_extra_s + other.last_extra_s
        """Extra time of a turn with both passes in the last chunk."""
        self.up = self.ranks.index * np.float64(2)
        """Steps to rank 0 and to return."""
        self.down = 2.0 * (self.p - 1) - self.up
        """Steps to rank p - 1 and to return."""

    @property
    def extra_before(self) -> tuple[Floats, Floats]:
        """Extra time of passes of the last chunk on all ranks before, by direction."""
        one, other = self.both
        return one.last.before - one.base.before, other.last.before - other.base.before


def _last_chunks_on_ways(turns: _Turns) -> list[Floats]:
    """Time of last chunks on each way of `_gain_s`: passes on it, and those rank i still does.

    A path to the head, or from it, may be one turn sooner or later, with passes of another chunk.
    With two chunks, those that go round pass the last one.
    """
    p, extra_s, more = turns.p, turns.last_extra_s, turns.extra_before
    two = turns.between == 0
    both = turns.both
    other_turn = turns.turn.time[-1] - turns.turn.time
    direct = [np.maximum(one[-1] - one, other_turn) for one in more]
    own, early = extra_s[0], (2 * p - turns.down)
    done = p - np.clip(early, 0, p)
    almost = p - np.clip(early - 1, 0, p)
    return [
        *(direct[at] + two * more[at] + done * both[1 - at].last_extra_s for at in (0, 1)),
        *(own + both[at].last_extra_s[0] + almost * both[1 - at].last_extra_s for at in (0, 1)),
        direct[0] + direct[1],
        2 * own + np.zeros(extra_s.shape),
        two * (more[0] + more[1]) + done * extra_s,
        own + almost * extra_s,
    ]


def _gain_off_embedding(turns: _Turns) -> Floats:
    """Gain of a path on rank 0 [s] if it spends the turns of the first chunk on rank i.

    It goes there with the last forwards of the last chunk, or round with backwards, and returns
    with the first backwards of that chunk, or round with forwards.
    """
    p, up, down, turn, extra_s = turns.p, turns.up, turns.down, turns.turn, turns.last_extra_s
    more, own, own_extra_s = turns.extra_before, turns.turn.time[0], turns.last_extra_s[0]
    near = NEVER * ((up > p) | (up == 0))
    far = NEVER * ((down > p) | (up == 0))
    between = turn.before + more[0] + more[1] - own - own_extra_s
    direct = between + (p + 2 - up) * turn.time + 2 * extra_s - (p + 1) * own - own_extra_s + near
    after = turn.total - turn.before + (p - down) * (turn.time + extra_s) + 2 * turns.wrap_s
    ways = [direct, after - (p + 2) * own - 2 * own_extra_s + far]
    for at in (0, 1):
        one, other = turns.both[at], turns.both[1 - at]
        stay = 2 * (turn.time + one.last_extra_s) + np.clip(up - p + 2, 0, 2) * other.last_extra_s
        ways.append(one.round_s + more[at] + stay - (p + 2) * own - 2 * own_extra_s + near)
    return np.maximum.reduce(ways).max(axis=0) - p * turns.first_extra_s


def _gain_off_head(turns: _Turns) -> Floats:
    """Gain of a path on rank p - 1 [s] if it spends the turns of the last chunk on rank i.

    It goes there with the last backward of a group, or round with the last forward before the last
    chunk, and returns with the first forward of a group, or round with a backward.
    """
    p, down, turn, extra_s = turns.p, turns.down, turns.turn, turns.last_extra_s
    more, own = turns.extra_before, turns.turn.time[-1]
    embedding = turns.ranks.first * turns.first_extra_s
    after = turn.before[-1] - turn.before + (p - down) * (turn.time + extra_s) + embedding
    before = turn.before + more[0] + more[1] + (down - p + 2) * turn.time + extra_s
    ways = [
        after + NEVER * ((down > p) | (down == 0)),
        before + (p - 1) * embedding + 2 * turns.wrap_s - own + NEVER * (down < p - 1),
    ]
    for at in (0, 1):
        one, other = turns.both[at], turns.both[1 - at]
        stay = turn.time + one.last_extra_s + np.where(down < p, other.last_extra_s, 0.0)
        ended = turns.ranks.first * (one.first_extra_s + (down >= p) * other.first_extra_s)
        ways.append(one.round_s + more[at] + stay + ended - own + NEVER * (down == 0))
    return np.maximum.reduce(ways).max(axis=0) - p * (own + extra_s[-1])
