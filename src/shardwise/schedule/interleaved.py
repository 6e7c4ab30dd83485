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
    waiting = waiting + _gain_s(there, back) * np.maximum(m / p - 2, 0.0)
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

        Then the last backward of the first group's last chunk, and the first pass of the second
        group in its second chunk.
        """
        ranks, p, v = self.ranks, self.p, self.v
        kind, other = self.kind, self.other
        ahead = np.minimum(2 * (p - 1 - ranks.at) + (v - 1) * p, self.m * v - 1)
        gates = Gates((kind.base + kind.first).before, few=self.few)
        for number in (np.minimum(p - 1, ahead), ahead):
            gates.reach(self.passes_s(number), self.start_s(number))
        backward = other.base + other.last
        gates.spread(self.passes_s(ahead + 1), towards_first, backward)
        number = p * v
        late = number - ahead
        leaving = gates.longest_wait_s + self.passes_s(number) + self.others_s(late)
        leaving = np.where(late > 0, leaving - kind.base.before, 0.0).max(axis=0) + kind.round_s
        work = self.passes_s(np.minimum(ahead + p, self.m * v)) + self.others_s(p - 1)
        gates.spread(work, towards_first, backward)
        number = p * v + p
        work = self.passes_s(number) + self.others_s(np.maximum(number - ahead, 0))
        arrival = leaving + kind.base.before
        gates.reach(work, arrival, there=(number > ahead) & (self.m >= 2 * p))
        return gates

    def passes_s(self, number: Ints) -> Floats:
        """Time of a rank's first passes of this kind, of at most the first two groups."""
        p, v, kind = self.p, self.v, self.kind
        first = np.minimum(number, p) + np.clip(number - v * p, 0, p)
        late = number - (v - 1) * p
        last = np.clip(late, 0, p) + np.clip(late - v * p, 0, p)
        return number * kind.base.at + first * kind.first.at + last * kind.last.at

    def others_s(self, number: Ints) -> Floats:
        """Time of a rank's first passes of the other kind, which starts in the last chunk."""
        p, other = self.p, self.other
        first, last = np.minimum(number, p), np.clip(number - (self.v - 1) * p, 0, p)
        return number * other.base.at + last * other.first.at + first * other.last.at

    def start_s(self, number: Ints) -> Floats:
        """Earliest start of a pass of the warm-up: the pace is that of the slowest rank before it.

        Or of the slowest of all, if the path goes round through them: once, for every chunk, or
        after the first p passes of rank 0, which may carry an end of the model. The last chunk
        leads round no more, so that ends with pass v p - 1.
        """
        base, first, p, v = self.kind.base, self.kind.first, self.p, self.v
        passed = number + (self.ranks.at > 0)
        passed = np.minimum(passed, p) + np.maximum(passed - v * p, 0)
        pace, slowest = so_far(base.at + np.minimum(first.at, 0.0)), base.at.max(axis=0)
        group = (p - 1) * (base.at[0] + first.at[0])
        best = np.maximum(
            base.before + number * pace + first.before,
            base.before + number * base.at[0] + passed * first.at[0],
        )
        late = number - (p - 1)
        through = base.before + group + first.before + late * pace
        best = np.where(late >= 0, np.maximum(best, through), best)
        free = np.minimum(number, v * p - 1)
        second = np.maximum(passed - p, 0) * first.at
        rest = base.before + first.at[0] + second + (number - free) * pace
        rounds = np.maximum(np.minimum(number // p, v - 1), 1)
        for round_, passes, more in ((1, p, 0.0), (rounds, rounds * p, 0.0), (1, 2 * p - 1, group)):
            around = rest + round_ * self.kind.round_s + more + (free - passes) * slowest
            best = np.where(free >= passes, np.maximum(best, around), best)
        return best


def _gain_s(there: _Side, back: _Side) -> Floats:
    """What the longest path gains in every group but two where it visits the ends of the model.

    A group has p v turns of a forward and a backward. The last rank's p turns in the last chunk
    carry the head. The rest may pass on rank i: on the way there and back, p - 1 - i steps each,
    a step costs a turn and gains one pass. Or the way goes round, from the last rank to the first
    one and on to rank i; or one way is that and the other direct, so that all ranks are passed in
    one direction. Likewise for the embedding, whose backwards of a group meet its forwards of the
    second group after it, so that it keeps rank 0 for about two turns more.
    """
    p, v, i = there.p, there.v, there.ranks.at
    turn = there.kind.base + back.kind.base
    first, last = turn.at[0], turn.at[-1]
    first_end, last_end = there.kind.first + back.kind.first, there.kind.last + back.kind.last
    own = p * (v * turn.at + first_end.at + last_end.at)
    lap = np.maximum(there.kind.round_s, back.kind.round_s)
    wraps = there.kind.wrap_s + back.kind.wrap_s
    with_head = p * (last + last_end.at[-1])
    behind = turn.before[-1] - turn.through
    left = p * v - p
    ways = (
        (left + 1 - 2 * (p - 1 - i), with_head + behind, i < p - 1),
        (left - 2 - 2 * i, with_head + last + turn.before + wraps, i < p - 1),
        (left - p + 1, with_head + lap - turn.at, i < p - 1),
    )
    with_embedding = (p + 1) * first + p * first_end.at[0]
    ways += (
        (left - 2 * i, with_embedding + turn.before - first, i > 0),
        (left - 3 - 2 * (p - 1 - i), with_embedding + first + behind + last + wraps, i > 0),
        (left - p, with_embedding + lap - turn.at, i > 0),
    )
    gain = np.zeros(i.shape)
    for turns, path, there_ in ways:
        gain = np.where((turns >= 1) & there_, np.maximum(gain, path + turns * turn.at - own), gain)
    return gain
