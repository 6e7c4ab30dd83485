"""Closed form of DualPipe."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats
from shardwise.parallel.schedule.paths import Gates, longest
from shardwise.parallel.schedule.pipelines import Pipelines, Solved
from shardwise.parallel.schedule.ranks import (
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
    pairs of at least 0.9 of their sum (down to 0.6: 5 % short at most); on uneven ones 0.01 % short
    on average, 1 % at most. Messages beside compute delay every pair, fitted on the simulation to
    within p / 2 hops: 0.05 % off on average, 1.1 % at most, for hops of a twentieth of a pass.
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
        half, number = ranks.count / 2, given.micro_batches / 2
        depth = ranks.at[:depths].astype(np.float64)
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
    def deepest(self) -> Floats:
        """1 for the deepest rank, else 0."""
        return (self.inner == 0).astype(np.float64)

    @property
    def backwards_s(self) -> Floats:
        """What a rank does after its last forward."""
        (_, back, weights), (_, far_back, far_weights) = self.near, self.far
        far = (self.depth + 1) * (far_back.at + far_weights.at)
        return far + (self.depth + 1 + self.inner) * (back.at + weights.at)

    @property
    def busy_s(self) -> Floats:
        """All passes; what overlaps counts once. The deepest rank's first pair does not overlap."""
        alone = sum((one.at for one in (*self.near, *self.far)), np.zeros(self.depth.shape))
        near = self.near_forward.at - self.near[0].at - self.far[1].at - self.far[2].at
        far = self.far_forward.at - self.far[0].at - self.near[1].at - self.near[2].at
        overlapped = (self.pairs - self.deepest) * near + (self.pairs + self.inner) * far
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
    """First forward and backward of either direction, and where the rounds between them end.

    These are forwards of both directions, then far passes with split backwards, then pairs: a path
    may stay on a rank whose pace is slower there, and come on to another one as that goes over to
    the next kind. From the first pairs on it may go down further.
    """
    (forward, _, _), (far_forward, far_back, far_weights) = half.near, half.far
    inner, depth, deepest = half.inner, half.depth, half.deepest
    gates = Gates(forward.before, few=half.few)
    ahead = 2 * inner
    gates.reach(ahead * forward.at, forward.before + ahead * so_far(forward.at))
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
    crossing = gates.found[-1].wait_s + work + far_back.at + far_weights.at + half.cross_s
    split = far_back.at + far_weights.at + far_forward.at
    first_pair = after_stay(
        gates.starts(work), far_back, lambda at, to: inner[to] * split[at], towards_last=True
    )
    pairs = work + inner * split
    gates.reach(pairs, first_pair)
    # The deepest rank's first pair does not overlap, so its forward has been done before.
    more = half.near_forward.at - far_back.at - far_weights.at
    work = pairs + half.near_forward.at - deepest * more
    gates.spread(work, towards_first, half.far_forward, deepest * crossing)
    round_ = half.near_forward.at + half.far_forward.at

    def back(at: int, to: slice) -> Floats:
        down = depth[to] - depth[at]
        return (down > 0) * deepest[to] * more[to] - down * round_[to]

    gates.reach(pairs, after_stay(first_pair, half.near_forward, back, towards_last=True))
    return gates


def _tails(half: _Half) -> Gates:
    """Last forward and backward of either direction, mirrored, and where rounds between them end.

    Behind the pairs come pairs of far forwards alone, each with a far backward, while any are left.
    """
    far_back, far_weights = half.far[1:]
    inner, deepest = half.inner, half.deepest
    gates = _last_backwards(half)
    pair = half.far_forward
    work = half.backwards_s
    gates.spread(work, towards_last, pair)
    end = gates.found[-1].wait_s + work
    crossing = deepest * (end + pair.at + half.cross_s)
    turn = pair.at + far_back.at + far_weights.at
    start = after_stay(end, pair, lambda at, to: inner[to] * turn[at], towards_last=True)
    gates.reach(work + inner * turn, start)
    gates.spread(work + inner * turn + pair.at, towards_first, half.near_forward, crossing)
    return gates


def _last_backwards(half: _Half) -> Gates:
    """Gates from the end back to the last forward: backwards of both directions, then near ones.

    The last ones leave W's behind, which end the order. A path may stay with the backwards of both
    directions until another rank has only near ones left (`both`); or turn down from a rank that
    has few of them and stay on another one until that has done its last far backward (`again`).
    """
    (_, back, weights), (_, far_back, far_weights) = half.near, half.far
    inner, depth = half.inner, half.depth
    gates = Gates(np.zeros(depth.shape), few=half.few)
    far_late = np.floor(0.5 * (depth + 1))

    def late(rounds: Floats, rank: int | slice) -> Floats:
        """W's behind so many last near backwards."""
        far = np.floor(0.5 * np.maximum(depth[rank] + 1 - inner[rank] + rounds, 0.0))
        return far * far_weights.at[rank] + (depth[rank] + 1 + rounds - far) * weights.at[rank]

    def ending(at: int, to: slice) -> Floats:
        return inner[to] * back.at[at] + late(inner[to], at) - work[at]

    def both(at: int, to: slice) -> Floats:
        rounds = depth[at] + 1
        far = np.minimum(rounds, depth[to] + 1 - far_late[to])
        stay = rounds * (far_back.at[to] + back.at[to]) + far * far_weights.at[to]
        return stay + np.minimum(rounds, far_late[to]) * weights.at[to]

    def again(at: int, to: slice) -> Floats:
        rounds = depth[to]
        stay = (rounds + 1) * far_back.at[at] + rounds * back.at[at]
        stay += np.maximum(rounds + 1 - far_late[at], 0) * far_weights.at[at]
        stay += np.maximum(far_late[at] - depth[at] + rounds, 0) * weights.at[at]
        first = far_back.at[to] + far_weights.at[to] - far_back.at[at]
        return stay + (depth[at] > rounds) * first

    every = slice(None)
    work = late(np.zeros(inner.shape), every)
    gates.spread(work, towards_last, back)
    end = gates.found[-1].wait_s + work
    crossing = half.deepest * (end + back.at + half.cross_s)
    near = inner * back.at + late(inner, every)
    gates.reach(near, after_stay(end, back, ending, towards_last=True))
    end = gates.starts(near)
    gates.spread(near + back.at, towards_first, far_back, crossing)
    turned = after_stay(gates.starts(near + back.at), far_back, again, towards_last=False)
    start = np.maximum(after_stay(end, back, both, towards_last=True), turned)
    gates.reach(half.backwards_s, start)
    return gates
