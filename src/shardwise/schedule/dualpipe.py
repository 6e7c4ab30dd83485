"""Closed form of DualPipe."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats
from shardwise.schedule.paths import Gates, longest
from shardwise.schedule.pipelines import Pipelines, Solved
from shardwise.schedule.ranks import (
    Passes,
    Ranks,
    after_stay,
    slowest_round,
    so_far,
    towards_first,
    towards_last,
)

__all__ = ["dualpipe"]


def dualpipe(given: Pipelines) -> Solved:
    """DualPipe (arXiv 2412.19437, section 3.2.1 and table 2).

    Rank i and rank p - 1 - i mirror each other, so p ranks do what p / 2 of them in a V would: a
    micro-batch goes down the near stages of one half and up the far stages of the other. Equal
    stages idle (p / 2 - 1) (F&B + B - 3 W), B with the weights' gradient, where W is not longer
    than the rest of B and F. Exact for equal stages, with messages that block or take 0 s and
    pairs of at least 0.9 of their sum (down to 0.6: 5 % short at most); on uneven ones 0.03 % short
    on average, 2 % at most. Messages beside compute delay every pair, fitted on the simulation to
    within p / 2 hops.
    """
    m, p = given.micro_batches, given.stages
    known = Ranks.of(given.lengths, [p // 2 - 1]).at
    ranks = Ranks.of(given.lengths, [p // 2 - 1, *(p - 1 - known)])
    half = _Half.of(given, ranks)
    busy = half.busy_s
    depths = ranks.at.shape[0] // 2
    step = longest(_heads(half), busy, _tails(half))
    if not given.blocking and given.hop_s.any():
        step = step + np.maximum(m - 2 * p, 0) * _delay_s(half)
    return Solved(
        step_s=step,
        occupied_s=busy,
        messages=m / 2 * (4.0 - 2.0 * ranks.first[:depths]),
    )


@dataclass(frozen=True, kw_only=True)
class _Half:
    """Ranks of the first half, by depth: how far they are from their end of the pipeline."""

    few: bool
    depth: Floats
    inner: Floats
    """Ranks of the half that are deeper."""
    number: Floats
    """Micro-batches of each direction."""
    pairs: Floats
    """Overlapped pairs of a near forward and a far backward, with the first of the deepest rank."""
    near: Sequence[Passes]
    """F, B, W of the stage of the direction that enters here."""
    far: Sequence[Passes]
    near_forward: Passes
    """A pair of near forward and whole far backward."""
    far_forward: Passes
    cross_s: Floats
    """Time of a message between the two halves that occupies no rank."""

    @classmethod
    def of(cls, given: Pipelines, ranks: Ranks) -> "_Half":
        depths = ranks.at.shape[0] // 2
        # As floats, since they are multiplied with times.
        half, number = 0.5 * ranks.count, 0.5 * given.micro_batches
        depth = 1.0 * ranks.at[:depths]
        weights = given.alone(ranks, given.weight_grad)
        waiting = (given.forwards(ranks), given.backwards(ranks, given.input_grad), weights)
        near, far = _both(waiting, depths)
        # The messages of a pair arrive from both sides: a path through it takes one of them.
        less = Passes(at=np.zeros(depth.shape), before=given.beside_s * depth)
        near_forward = near[0] + far[1] + far[2] - less
        far_forward = far[0] + near[1] + near[2] - less
        saved = 1 - given.pair_share
        if saved.any():
            kinds = (given.forward, given.backward)
            plain, plain_far = _both([given.alone(ranks, kind) for kind in kinds], depths)
            near_forward = near_forward - (plain[0] + plain_far[1]) * saved
            far_forward = far_forward - (plain_far[0] + plain[1]) * saved
        return cls(
            few=given.few,
            depth=depth,
            inner=half - 1 - depth,
            number=number,
            pairs=number - 2 * half + depth + 1,
            near=near,
            far=far,
            near_forward=near_forward,
            far_forward=far_forward,
            cross_s=given.beside_s,
        )

    @property
    def busy_s(self) -> Floats:
        """All passes; what overlaps counts once. The deepest rank's first pair does not overlap."""
        alone = sum((one.at for one in (*self.near, *self.far)), np.zeros(self.depth.shape))
        near = self.near_forward.at - self.near[0].at - self.far[1].at - self.far[2].at
        far = self.far_forward.at - self.far[0].at - self.near[1].at - self.near[2].at
        deepest = self.inner == 0
        overlapped = (self.pairs - deepest) * near + (self.pairs + self.inner) * far
        return self.number * alone + overlapped


def _both(passes: Sequence[Passes], depths: int) -> tuple[list[Passes], list[Passes]]:
    """Near and far ones by depth."""
    near, far = [], []
    for one in passes:
        near.append(Passes(at=one.at[:depths], before=one.before[:depths]))
        behind = one.total - one.through
        far.append(Passes(at=one.at[::-1][:depths], before=behind[::-1][:depths]))
    return near, far


def _delay_s(half: _Half) -> Floats:
    """How much longer than the slowest rank's own a pair takes in the steady state.

    Every pair waits for a message from either neighbour, so a path may move to the next rank with
    every pair: to and fro in one half, or through both of them.
    """
    pair = (half.near_forward + half.far_forward) * 0.5
    rate = slowest_round(half.depth, pair, np.zeros(pair.at.shape))
    ahead = 2 * (pair.total - pair.before) + half.cross_s
    rate = np.maximum(rate, (ahead / (2 * half.inner + 2)).max(axis=0))
    return np.maximum(rate - pair.at.max(axis=0), 0.0)


def _heads(half: _Half) -> Gates:
    """First forward and backward of either direction, and the last forward of the warm-up."""
    (forward, _, _), (far_forward, far_back, far_weights) = half.near, half.far
    inner, depth = half.inner, half.depth
    deepest = 1.0 * (inner == 0)
    gates = Gates(forward.before, few=half.few)
    ahead = 2 * inner
    pace = so_far(forward.at)
    gates.reach(ahead * forward.at, forward.before + ahead * pace)
    work = (ahead + 1) * forward.at
    crossing = deepest * (forward.before + forward.at + half.cross_s)
    gates.spread(work, towards_first, far_forward, crossing)
    both = forward.at + far_forward.at
    start = after_stay(
        gates.starts(work), far_forward, lambda at, to: depth[to] * both[at], towards_last=False
    )
    gates.reach(work + depth * both, start)
    work = (ahead + depth + 1 + deepest) * forward.at + (depth + 1) * far_forward.at
    gates.spread(work, towards_last, far_back)
    whole = gates.found[-1].wait_s + work + far_back.at + far_weights.at
    crossing = deepest * (whole + half.cross_s)
    split = far_back.at + far_weights.at + far_forward.at
    start = after_stay(
        gates.starts(work), far_back, lambda at, to: inner[to] * split[at], towards_last=True
    )
    pairs = work + inner * split
    gates.reach(pairs, start)
    work = (ahead + depth + 1) * forward.at + (depth + 1 + inner) * far_forward.at
    work = work + inner * (far_back.at + far_weights.at)
    first_pair = forward.at + far_back.at + far_weights.at
    work = work + half.near_forward.at + deepest * (first_pair - half.near_forward.at)
    gates.spread(work, towards_first, half.far_forward, crossing)
    first = deepest * (half.near_forward.at - far_back.at - far_weights.at)
    round_ = half.near_forward.at + half.far_forward.at

    def pair(at: int, to: slice) -> Floats:
        ahead = depth[to] - depth[at]
        return (ahead > 0) * first[to] - ahead * round_[to]

    gates.reach(pairs, after_stay(start, half.near_forward, pair, towards_last=True))
    return gates


def _tails(half: _Half) -> Gates:
    """Last backward and forward of either direction; the order ends with W's that waited."""
    (_, back, weights), (_, far_back, far_weights) = half.near, half.far
    inner, depth = half.inner, half.depth
    deepest = 1.0 * (inner == 0)
    gates = Gates(np.zeros(depth.shape), few=half.few)

    def late(rounds: Floats, rank: int | slice) -> Floats:
        """W's from so many last rounds on, in which near backwards leave theirs."""
        far = np.floor(0.5 * np.maximum(depth[rank] + 1 - inner[rank] + rounds, 0.0))
        return far * far_weights.at[rank] + (depth[rank] + 1 + rounds - far) * weights.at[rank]

    every = slice(None)
    work = late(np.zeros(inner.shape), every)
    gates.spread(work, towards_last, back)
    end = gates.found[-1].wait_s + work
    crossing = deepest * (end + back.at + half.cross_s)

    def ending(at: int, to: slice) -> Floats:
        return inner[to] * back.at[at] + late(inner[to], at) - work[at]

    start = after_stay(end, back, ending, towards_last=True)
    work = inner * back.at + late(inner, every)
    gates.reach(work, start)
    last = gates.starts(work)
    gates.spread(work + back.at, towards_first, far_back, crossing)
    turned = gates.starts(work + back.at)
    late_far = np.floor(0.5 * (depth + 1))

    def both(at: int, to: slice) -> Floats:
        rounds = depth[at] + 1
        far = np.minimum(rounds, depth[to] + 1 - late_far[to])
        stay = rounds * (far_back.at[to] + back.at[to]) + far * far_weights.at[to]
        return stay + np.minimum(rounds, late_far[to]) * weights.at[to]

    def again(at: int, to: slice) -> Floats:
        rounds = depth[to] + 1
        stay = rounds * far_back.at[at] + (rounds - 1) * back.at[at]
        stay = stay + np.maximum(rounds - late_far[at], 0) * far_weights.at[at]
        stay = stay + np.maximum(late_far[at] - (depth[at] + 1 - rounds), 0) * weights.at[at]
        first = far_back.at[to] + far_weights.at[to] - far_back.at[at]
        return stay + (depth[at] > depth[to]) * first

    start = after_stay(last, back, both, towards_last=True)
    other = after_stay(turned, far_back, again, towards_last=False)
    work = (depth + 1) * (far_back.at + far_weights.at)
    work = work + (depth + 1 + inner) * (back.at + weights.at)
    gates.reach(work, np.maximum(start, other))
    gates.spread(work, towards_last, half.far_forward)
    end = gates.found[-1].wait_s + work
    crossing = deepest * (end + half.far_forward.at + half.cross_s)
    turn = half.far_forward.at + far_back.at + far_weights.at
    start = after_stay(
        end, half.far_forward, lambda at, to: inner[to] * turn[at], towards_last=True
    )
    gates.reach(work + inner * turn, start)
    work = work + (1 + inner) * half.far_forward.at + inner * (far_back.at + far_weights.at)
    gates.spread(work, towards_first, half.near_forward, crossing)
    return gates
