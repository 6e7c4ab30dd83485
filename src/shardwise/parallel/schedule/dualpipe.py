"""Closed form of DualPipe."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats
from shardwise.parallel.schedule.longest_path import (
    Passes,
    Ranks,
    WaitPoints,
    after_stay,
    longest,
    longest_round_trip,
    running_max,
    towards_first,
    towards_last,
)
from shardwise.parallel.schedule.pipelines import Pipelines, Solution
from shardwise.records import dataclass


def dualpipe(pipelines: Pipelines) -> Solution:
    """DualPipe (arXiv 2412.19437, section 3.2.1 and table 2).

    Rank i and rank p - 1 - i mirror each other, so p ranks do what p / 2 of them in a V would: a
    micro-batch goes down the near stages of one half and up the far stages of the other. Equal
    stages idle (p / 2 - 1) (F&B + B - 3 W), the paper's, where F takes as long as the gradient of
    the input and W no longer; where F is longer than that gradient, (p / 2 - 1) (F&B + F - 2 W).
    (B has the weights' gradient, and F&B is the sum of both.) Exact for equal stages, with messages
    that block or take 0 s and pairs of at least 0.9 of their sum (down to 0.6: 5 % short at most);
    on uneven ones 0.01 % short on average, 1 % at most. Messages that overlap compute delay every
    pair, fitted on the simulation to within p / 2 messages: 0.05 % off on average, 1.1 % at most,
    for messages of a twentieth of a pass.

    Parameters
    ----------
    pipelines
        Pipelines of one schedule, columns of shape (rows,): passes and messages [s].
    """
    m, p = pipelines.micro_batches, pipelines.stages
    sampled = Ranks.sample(pipelines.group_sizes, [p // 2 - 1], mirrored=True).index
    more = [p // 2 - 1, *(p - 1 - sampled)]
    ranks = Ranks.sample(pipelines.group_sizes, more, mirrored=True)
    half = _Half.of(pipelines, ranks)
    step = longest(_heads(half), half.busy_s, _tails(half))
    if not pipelines.blocking and pipelines.hop_s.any():
        step = step + np.maximum(m - 2 * p, 0) * _delay_s(half)
    return Solution(
        step_s=step,
        occupied_s=half.busy_s,
        messages=m / 2 * (4.0 - 2.0 * ranks.first[: half.depth.shape[0]]),
    )


@dataclass(frozen=True, kw_only=True)
class _Half:
    """Ranks of the first half, by depth: their distance from their end of the pipeline."""

    few_batches: bool
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
    """A pair of near forward and full far backward."""
    far_forward: Passes
    cross_s: Floats
    """Time of a message between the two halves that occupies no rank."""

    @classmethod
    def of(cls, pipelines: Pipelines, ranks: Ranks) -> "_Half":
        depths = ranks.index.shape[0] // 2
        # As floats, since they are multiplied with times.
        half, number = ranks.count / 2, pipelines.micro_batches / 2
        depth = ranks.index[:depths].astype(np.float64)
        weights = pipelines.without_messages(ranks, pipelines.weight_grad)
        waiting = (
            pipelines.forwards(ranks),
            pipelines.backwards(ranks, pipelines.input_grad),
            weights,
        )
        near, far = _near_and_far(waiting, depths)
        # The messages of a pair arrive from both sides: a path through it takes one of them.
        less = Passes(time=np.zeros(depth.shape), before=pipelines.overlapped_hop_s * depth)
        near_forward = near[0] + far[1] + far[2] - less
        far_forward = far[0] + near[1] + near[2] - less
        saved = 1 - pipelines.pair_share
        if saved.any():
            kinds = (pipelines.forward, pipelines.backward)
            plain, plain_far = _near_and_far(
                [pipelines.without_messages(ranks, kind) for kind in kinds], depths
            )
            near_forward = near_forward - (plain[0] + plain_far[1]) * saved
            far_forward = far_forward - (plain_far[0] + plain[1]) * saved
        return cls(
            few_batches=pipelines.few_batches,
            depth=depth,
            inner=half - 1 - depth,
            number=number,
            pairs=number - 2 * half + depth + 1,
            near=near,
            far=far,
            near_forward=near_forward,
            far_forward=far_forward,
            cross_s=pipelines.overlapped_hop_s,
        )

    @property
    def deepest(self) -> Floats:
        """1 for the deepest rank, else 0."""
        return (self.inner == 0).astype(np.float64)

    @property
    def backwards_s(self) -> Floats:
        """Time of a rank's passes after its last forward [s]."""
        (_, backward, weights), (_, far_backward, far_weights) = self.near, self.far
        far = (self.depth + 1) * (far_backward.time + far_weights.time)
        return far + (self.depth + 1 + self.inner) * (backward.time + weights.time)

    @cached_property
    def busy_s(self) -> Floats:
        """Time in passes [s]; overlapped pairs count once (not the deepest rank's first pair)."""
        alone = sum((one.time for one in (*self.near, *self.far)), np.zeros(self.depth.shape))
        near = self.near_forward.time - self.near[0].time - self.far[1].time - self.far[2].time
        far = self.far_forward.time - self.far[0].time - self.near[1].time - self.near[2].time
        overlapped = (self.pairs - self.deepest) * near + (self.pairs + self.inner) * far
        return self.number * alone + overlapped


def _near_and_far(passes: Sequence[Passes], depths: int) -> tuple[list[Passes], list[Passes]]:
    """Passes of the near and of the far direction, by depth."""
    near, far = [], []
    for one in passes:
        near.append(Passes(time=one.time[:depths], before=one.before[:depths]))
        after = one.total - one.through
        far.append(Passes(time=one.time[::-1][:depths], before=after[::-1][:depths]))
    return near, far


def _delay_s(half: _Half) -> Floats:
    """Time that a pair takes more in the steady state than on the slowest rank alone [s].

    Every pair waits for a message from either neighbor, so a path may move to the next rank with
    every pair: to and fro in one half, or through both of them.
    """
    pair = (half.near_forward + half.far_forward) * 0.5
    rate = longest_round_trip(half.depth, pair, np.zeros(pair.time.shape))
    around = 2 * (pair.total - pair.before) + half.cross_s
    rate = np.maximum(rate, (around / (2 * half.inner + 2)).max(axis=0))
    return np.maximum(rate - pair.time.max(axis=0), 0.0)


def _heads(half: _Half) -> WaitPoints:
    """First forward and backward of either direction, and the ends of the rounds between them.

    These are forwards of both directions, then far passes with split backwards, then pairs: a path
    may stay on a rank whose pace is slower there, and move on to another one as that one starts the
    next kind. From the first pairs on it may go deeper.
    """
    (forward, _, _), (far_forward, far_backward, far_weights) = half.near, half.far
    inner, depth, deepest = half.inner, half.depth, half.deepest
    points = WaitPoints(forward.before, few_batches=half.few_batches)
    warm_up = 2 * inner
    points.add(warm_up * forward.time, forward.before + warm_up * running_max(forward.time))
    work = (warm_up + 1) * forward.time
    crossing = deepest * (forward.before + forward.time + half.cross_s)
    points.add_passed_on(work, towards_first, far_forward, crossing)
    both = forward.time + far_forward.time
    start = after_stay(
        points.own_start(work), far_forward, lambda at, to: depth[to] * both[at], towards_last=False
    )
    points.add(work + depth * both, start)
    work = (warm_up + depth + 1 + deepest) * forward.time + (depth + 1) * far_forward.time
    points.add_passed_on(work, towards_last, far_backward)
    crossing = points.points[-1].wait_s + work + far_backward.time + far_weights.time + half.cross_s
    split = far_backward.time + far_weights.time + far_forward.time
    first_pair = after_stay(
        points.own_start(work),
        far_backward,
        lambda at, to: inner[to] * split[at],
        towards_last=True,
    )
    pairs = work + inner * split
    points.add(pairs, first_pair)
    # The deepest rank's first pair does not overlap, so its forward has been done before.
    more = half.near_forward.time - far_backward.time - far_weights.time
    work = pairs + half.near_forward.time - deepest * more
    points.add_passed_on(work, towards_first, half.far_forward, deepest * crossing)
    round_ = half.near_forward.time + half.far_forward.time

    def returning(at: int, to: slice) -> Floats:
        down = depth[to] - depth[at]
        return (down > 0) * deepest[to] * more[to] - down * round_[to]

    points.add(pairs, after_stay(first_pair, half.near_forward, returning, towards_last=True))
    return points


def _tails(half: _Half) -> WaitPoints:
    """Last forward and backward of either direction, mirrored, and the rounds between them.

    After the pairs of both directions come pairs of far forwards alone, while any are left.
    """
    far_backward, far_weights = half.far[1:]
    inner, deepest = half.inner, half.deepest
    points = _last_backwards(half)
    pair = half.far_forward
    work = half.backwards_s
    points.add_passed_on(work, towards_last, pair)
    end = points.points[-1].wait_s + work
    crossing = deepest * (end + pair.time + half.cross_s)
    turn = pair.time + far_backward.time + far_weights.time
    start = after_stay(end, pair, lambda at, to: inner[to] * turn[at], towards_last=True)
    points.add(work + inner * turn, start)
    points.add_passed_on(
        work + inner * turn + pair.time, towards_first, half.near_forward, crossing
    )
    return points


def _last_backwards(half: _Half) -> WaitPoints:
    """Wait points of the last backwards, mirrored: of both directions, then near ones.

    The last ones leave their W's to the end of the order. A path may stay with the backwards of
    both directions until another rank has only near ones left (`both`); or go deeper from a rank
    that has few of them and stay on another one until that has done its last far one (`again`).
    """
    (_, backward, weights), (_, far_backward, far_weights) = half.near, half.far
    inner, depth = half.inner, half.depth
    points = WaitPoints(np.zeros(depth.shape), few_batches=half.few_batches)
    far_late = np.floor(0.5 * (depth + 1))

    def late(rounds: Floats, rank: int | slice) -> Floats:
        """Time of the W's after so many last near backwards."""
        far = np.floor(0.5 * np.maximum(depth[rank] + 1 - inner[rank] + rounds, 0.0))
        return far * far_weights.time[rank] + (depth[rank] + 1 + rounds - far) * weights.time[rank]

    def ending(at: int, to: slice) -> Floats:
        return inner[to] * backward.time[at] + late(inner[to], at) - work[at]

    def both(at: int, to: slice) -> Floats:
        rounds = depth[at] + 1
        far = np.minimum(rounds, depth[to] + 1 - far_late[to])
        stay = rounds * (far_backward.time[to] + backward.time[to]) + far * far_weights.time[to]
        return stay + np.minimum(rounds, far_late[to]) * weights.time[to]

    def again(at: int, to: slice) -> Floats:
        rounds = depth[to]
        stay = (rounds + 1) * far_backward.time[at] + rounds * backward.time[at]
        stay += np.maximum(rounds + 1 - far_late[at], 0) * far_weights.time[at]
        stay += np.maximum(far_late[at] - depth[at] + rounds, 0) * weights.time[at]
        first = far_backward.time[to] + far_weights.time[to] - far_backward.time[at]
        return stay + (depth[at] > rounds) * first

    every = slice(None)
    work = late(np.zeros(inner.shape), every)
    points.add_passed_on(work, towards_last, backward)
    end = points.points[-1].wait_s + work
    crossing = half.deepest * (end + backward.time + half.cross_s)
    near = inner * backward.time + late(inner, every)
    points.add(near, after_stay(end, backward, ending, towards_last=True))
    end = points.own_start(near)
    points.add_passed_on(near + backward.time, towards_first, far_backward, crossing)
    turned = after_stay(
        points.own_start(near + backward.time), far_backward, again, towards_last=False
    )
    start = np.maximum(after_stay(end, backward, both, towards_last=True), turned)
    points.add(half.backwards_s, start)
    return points
