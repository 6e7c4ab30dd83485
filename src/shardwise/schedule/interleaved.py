"""Closed form of interleaved 1F1B."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.schedule.gpipe_1f1b import longest_1f1b
from shardwise.schedule.paths import Gates, longest
from shardwise.schedule.pipelines import Pipelines, Solved, Times
from shardwise.schedule.ranks import Passes, Ranks, so_far, towards_first

__all__ = ["interleaved"]


def interleaved(given: Pipelines) -> Solved:
    """Interleaved 1F1B (arXiv 2104.04473, section 2.2), two chunks per rank or more.

    For equal stages and whole groups of p micro-batches T = (m + (p - 1) / v) (f + b), exactly.
    An incomplete last group adds the waits of `_missing_s`. Where the ends of the model make a
    chunk longer, its turns set the pace together with the slowest other rank: `_from_head`,
    `_from_embedding`.

    On uneven stages (runs that differ by half either way, ends of up to a stage) 0.1 % short on
    average, 7 % at most: a path can change ranks in more ways than those. With an incomplete group
    1 % off on average, 8 % at most with few micro-batches, either way: which chunk of the last
    group waits for which is not resolved. (Megatron-LM refuses such batches.)
    """
    ranks = Ranks.of(given.lengths)
    m, p, v = given.micro_batches, given.stages, given.chunks
    forward, backward = _kinds(given, ranks)
    busy = m * (v * (forward.base.at + backward.base.at) + forward.ends.at + backward.ends.at)
    there = _Side(ranks, forward, backward, given)
    back = _Side(ranks, backward, forward, given)
    waiting = busy + _missing_s(forward.base, backward.base, m, p, v)
    step = longest(there.gates, waiting, back.gates)
    step = np.maximum(step, _from_head(there, back))
    step = np.maximum(step, _from_embedding(there, back, waiting))
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
    first: Passes
    last: Passes
    wrap_s: Floats
    """From the last rank to the first one, or back, where that occupies no rank."""

    @property
    def ends(self) -> Passes:
        return self.first + self.last

    @property
    def round_s(self) -> Floats:
        """One micro-batch through a chunk of every rank, and on to the next chunk."""
        return self.base.total + self.wrap_s


def _kinds(given: Pipelines, ranks: Ranks) -> tuple[_Kind, _Kind]:
    hop = given.arriving(ranks)

    def part(times: Times) -> tuple[Passes, Passes, Passes]:
        base = ranks.passes(times.on_stage, given.lengths) * (1 / given.chunks)
        return base, ranks.on_first(times.on_first), ranks.on_last(times.on_last)

    forward, backward, weights = map(part, (given.forward, given.input_grad, given.weight_grad))
    wrap = np.where(given.blocking, 0.0, given.hop_s)
    return (
        _Kind(
            base=forward[0] + hop,
            first=forward[1] - given.not_arriving(ranks),
            last=forward[2],
            wrap_s=wrap,
        ),
        _Kind(
            base=backward[0] + weights[0] + hop,
            first=backward[1] + weights[1],
            last=backward[2] + weights[2] - given.not_arriving(ranks, last=True),
            wrap_s=wrap,
        ),
    )


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
    with_ends = [kind.base + kind.ends for kind in kinds]
    with_head = [kind.base + kind.last for kind in kinds]
    embedded = [
        np.maximum(time + kind.first.at[0], m * (rounds * kind.base.at[0] + kind.first.at[0]))
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
        self.few = given.few
        self.gates = self._gates()

    def _gates(self) -> Gates:
        """First pass; last of the first chunk's first group; end of the warm-up; first backward.

        And, where the last rank is slow, the first pass of the second group in its second chunk.
        """
        ranks, p, v = self.ranks, self.p, self.v
        kind, other = self.kind, self.other
        ahead = np.minimum(2 * (p - 1 - ranks.at) + (v - 1) * p, self.m * v - 1)
        gates = Gates((kind.base + kind.first).before, few=self.few)
        for number in (np.minimum(p - 1, ahead), ahead):
            gates.reach(self.passes_s(number), self.start_s(number))
        gates.spread(self.passes_s(ahead + 1), towards_first, other.base + other.last)
        self.first_gates = Gates(gates.longest_wait_s, few=self.few)
        self.first_gates.found = list(gates.found)
        number = p * v + p
        late = number > ahead
        work = self.passes_s(number) + self.others_s(np.maximum(number - ahead, 0))
        before = (self.passes_s(p * v) + self.others_s(p))[-1]
        wait = gates.longest_wait_s[-1]
        arrival = wait + before + kind.base.at[-1] + kind.wrap_s + kind.base.before
        gates.reach(work, arrival, there=late & (self.m >= 2 * p))
        return gates

    def _first_and_last(self, number: Ints) -> tuple[Ints, Ints]:
        """How many of so many passes are through the first and through the last chunk."""
        groups, left = np.divmod(number, self.p * self.v)
        first = groups * self.p + np.minimum(left, self.p)
        return first, groups * self.p + np.maximum(left - (self.v - 1) * self.p, 0)

    def passes_s(self, number: Ints) -> Floats:
        """Time of a rank's first passes of this kind."""
        first, last = self._first_and_last(number)
        kind = self.kind
        return number * kind.base.at + first * kind.first.at + last * kind.last.at

    def others_s(self, number: Ints) -> Floats:
        """Time of a rank's first passes of the other kind, which starts in the last chunk."""
        first, last = self._first_and_last(number)
        other = self.other
        return number * other.base.at + last * other.first.at + first * other.last.at

    def start_s(self, number: Ints) -> Floats:
        """Earliest start of a pass of the warm-up: the pace is that of the slowest rank before it.

        Or of the slowest of all, if the path goes round through them: once, for every chunk, or
        after the first p passes of rank 0, which may carry an end of the model. The last chunk
        leads round no more, so that ends with pass v p - 1.
        """
        base, first, p, v = self.kind.base, self.kind.first, self.p, self.v
        passed = self._first_and_last(number + (self.ranks.at > 0))[0]
        pace, slowest = so_far(base.at), base.at.max(axis=0)
        best = np.maximum(
            base.before + number * pace + first.before,
            base.before + number * base.at[0] + passed * first.at[0],
        )
        free = np.minimum(number, v * p - 1)
        rest = base.before + first.at[0] + (number - free) * pace
        rounds = np.maximum(np.minimum(number // p, v - 1), 1)
        ahead = (p - 1) * (base.at[0] + first.at[0])
        for round_, passes, more in ((1, p, 0.0), (rounds, rounds * p, 0.0), (1, 2 * p - 1, ahead)):
            around = rest + round_ * self.kind.round_s + more + (free - passes) * slowest
            best = np.where(free >= passes, np.maximum(best, around), best)
        return best

    @property
    def last_chunk_s(self) -> Floats:
        """Earliest start of the last rank in its last chunk."""
        number = (self.v - 1) * self.p + 0 * self.ranks.at
        start = (self.kind.base + self.kind.first).before + self.passes_s(number)
        return np.maximum(self.start_s(number), start)[-1]


def _from_head(there: _Side, back: _Side) -> Floats:
    """Longest path that goes from the head's chunk to a slower rank and back in every group.

    A group has p v turns of a forward and a backward. The last rank's p turns in the last chunk
    carry the head. The rest may pass on rank i: on the way there and back, p - 1 - i steps each,
    a step costs a turn and gains one pass. Or the way goes round, from the last rank to the first
    one and on to rank i.
    """
    p, v, i = there.p, there.v, there.ranks.at
    turn = there.kind.base + back.kind.base
    last = turn.at[-1]
    with_head = p * (last + (there.kind.last + back.kind.last).at[-1])
    left = p * v - p + 1 - 2 * (p - 1 - i)
    direct = with_head + left * turn.at + turn.before[-1] - turn.through
    left_round = p * v - p - 2 - 2 * i
    around = with_head + last + left_round * turn.at + turn.before + 2 * there.kind.wrap_s
    paths = [
        np.where((i < p - 1) & (turns >= 1), path, 0.0)
        for turns, path in ((left, direct), (left_round, around))
    ]
    cycle = np.maximum(np.maximum(*paths).max(axis=0), with_head + (v - 1) * p * last)
    repeats = np.maximum(there.m / p - 1, 0.0)
    return there.last_chunk_s + repeats * cycle + with_head + back.last_chunk_s


def _from_embedding(there: _Side, back: _Side, busy_s: Floats) -> Floats:
    """Longest path that visits rank 0 for the embedding's turns of every group.

    As `_from_head`. The embedding's backwards of a group meet its forwards of the second group
    after it, so there are two visits less than groups.
    """
    p, v, i = there.p, there.v, there.ranks.at
    turn = there.kind.base + back.kind.base
    first = turn.at[0]
    embedding = p * (there.kind.first + back.kind.first).at[0]
    head = p * (there.kind.last + back.kind.last).at
    own = p * v * turn.at + head
    left = p * v - p - 2 * i
    direct = (p + 1) * first + embedding + left * turn.at + turn.before - turn.through[0]
    left_round = p * v - p - 3
    around = (p + 2) * first + embedding + left_round * turn.at
    gain = np.maximum(
        np.where((left >= 1) & (i > 0), direct - own, 0.0),
        np.where((left_round >= 1) & (i == p - 1) & (i > 0), around - own, 0.0),
    )
    longer = busy_s + np.maximum(gain, 0.0) * np.maximum(there.m / p - 2, 0.0)
    return longest(there.first_gates, longer, back.first_gates)
