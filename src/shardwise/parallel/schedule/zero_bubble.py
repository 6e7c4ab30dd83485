"""Closed forms of the zero-bubble schedules H1 and V."""

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.parallel.schedule.gpipe_1f1b import messages_of_one_chunk
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
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD, WEIGHTS
from shardwise.parallel.schedule.pipelines import Pipelines, Solution

Pass = tuple[str, int]

# Passes of ZB-V by chunk: F0 runs towards the last rank, F1 towards the first; B1 and B0 likewise.
F0, F1, B1, B0 = (FORWARD, 0), (FORWARD, 1), (BACKWARD, 1), (BACKWARD, 0)
W1, W0 = (WEIGHTS, 1), (WEIGHTS, 0)


def zb_h1(pipelines: Pipelines) -> Solution:
    """ZB-H1 (arXiv 2401.10241, section 2.3 and table 2).

    For equal stages and m >= p it idles (p - 1) max(F + B - W, F, B), B the gradient of the input
    alone: the paper's (p - 1) (F + B - W) for W <= F, B. Exact for any stages whose messages block
    or take 0 s; of pipelines with fewer micro-batches than ranks, one in a thousand is 1 % short.

    Messages that overlap compute delay the steady state only where two of them take longer than W:
    then a round trip between ranks sets the pace, as in 1F1B. Messages of a twentieth of a pass:
    0.5 % short at most, but for fewer micro-batches than ranks (1.1 %); of a fifth 3 %.

    Parameters
    ----------
    pipelines
        Pipelines of one schedule, columns of shape (rows,): passes and messages [s].
    """
    m, p = pipelines.micro_batches, pipelines.stages
    few_batches = pipelines.few_batches
    turns = [m - 1, p - m - 1, p - m, p - m + 1] if few_batches else ()
    ranks = Ranks.sample(pipelines.group_sizes, turns)
    forward, backward = pipelines.forwards(ranks), pipelines.backwards(ranks, pipelines.input_grad)
    weights = pipelines.without_messages(ranks, pipelines.weight_grad)
    busy = m * (forward.time + backward.time + weights.time)
    heads = _h1_heads(ranks, forward, backward, m, few_batches=few_batches)
    tails = _h1_tails(ranks, forward, backward, weights, m, few_batches=few_batches)
    step = longest(heads, busy, tails)
    if not pipelines.blocking and pipelines.hop_s.any():
        turn = longest_round_trip(ranks.index, forward + backward, weights.time)
        longest_pass_s = (forward.time + backward.time + weights.time).max(axis=0)
        step = step + np.maximum(m - p, 0) * np.maximum(turn - longest_pass_s, 0.0)
    return Solution(
        step_s=step,
        occupied_s=busy,
        messages=messages_of_one_chunk(ranks, m),
    )


def _h1_heads(
    ranks: Ranks, forward: Passes, backward: Passes, m: Ints, *, few_batches: bool
) -> WaitPoints:
    """As in 1F1B, and the first backward that a W follows, number i of rank i.

    Until then the pace of a rank is that of F and B alone, and a later rank, whose W's lag more,
    may be slower at that. Forward p - 1 comes just before that backward on every rank: so a rank
    whose W's lag less may be slower as well, until it passes that forward on.
    """
    i, p = ranks.index.astype(np.float64), ranks.count
    warm_up = np.minimum(p - 1 - i, m - 1)
    points = WaitPoints(forward.before, few_batches=few_batches)
    points.add(warm_up * forward.time, forward.before + warm_up * running_max(forward.time))
    first = (warm_up + 1) * forward.time
    points.add_passed_on(first, towards_first, backward)
    lag = np.minimum(i, m - 1)

    def before_first_weights(rank: int | slice, to: slice) -> Floats:
        forwards = np.minimum(lag[to] + p - i[rank], m)
        return forwards * forward.time[rank] + lag[to] * backward.time[rank]

    own = points.own_start(first) - first
    start = after_stay(own, backward, before_first_weights, towards_last=False)
    points.add(before_first_weights(slice(None), slice(None)), start)
    # Rank 0 does that forward before its first backward.
    work = (p - 1) * forward.time + i * backward.time
    start = towards_last(own * (1 - ranks.first) + work, forward)
    points.add(work, start, where=p <= m)
    return points


def _h1_tails(
    ranks: Ranks, forward: Passes, backward: Passes, weights: Passes, m: Ints, *, few_batches: bool
) -> WaitPoints:
    """Last backward, first backward after the last forward, last forward; W's come after them.

    Between the first two the pace of a rank is that of B and W alone, and an earlier rank may be
    slower.
    """
    i = ranks.index.astype(np.float64)
    warm_up = np.minimum(ranks.count - 1 - i, m - 1)
    lag = np.minimum(i, m)

    def left(number: Floats | Ints) -> Floats:
        """W's after a backward."""
        return (m - np.maximum(number - lag, 0)) * weights.time

    last = left(m - 1)
    points = WaitPoints(np.zeros(last.shape), few_batches=few_batches)
    points.add_passed_on(last, towards_last, backward)
    number = m - 1 - warm_up

    def stay(rank: int, to: slice) -> Floats:
        late = np.clip(m - 1 - np.maximum(number[to], lag[rank]), 0, warm_up[to])
        return warm_up[to] * backward.time[rank] + late * weights.time[rank]

    start = after_stay(points.own_start(last), backward, stay, towards_last=True)
    points.add(warm_up * backward.time + left(number), start)
    points.add_passed_on((warm_up + 1) * backward.time + left(number), towards_first, forward)
    return points


def zb_v(pipelines: Pipelines) -> Solution:
    """ZB-V (arXiv 2401.10241, section 6): virtual stages i and 2 p - 1 - i on rank i.

    Exact for equal stages; on uneven ones 0.01 % short on average, 1.1 % at most, since a path may
    change ranks elsewhere than at the wait points (2 % with p to 2 p micro-batches where every rank
    differs). With F = B = W every rank works without a gap from its first pass to its last; rank i
    starts i chunk passes later than rank 0, so a step that ends on all ranks together idles p - 1
    of them. With fewer than 2 p - 1 micro-batches ranks wait in between as well.

    Parameters
    ----------
    pipelines
        Pipelines of one schedule, columns of shape (rows,): passes and messages [s].
    """
    m, p = pipelines.micro_batches, pipelines.stages
    turns = (p - (m + 1) // 2, 2 * p - m, m - 1, np.abs(p - m)) if pipelines.few_batches else ()
    more = [turn - before for turn in turns for before in (0, 1)]
    ranks = Ranks.sample(pipelines.group_sizes, more)
    order = _VOrder(ranks, m, _v_passes(pipelines, ranks), few_batches=pipelines.few_batches)
    return Solution(
        step_s=longest(_v_heads(order), order.busy_s, _v_tails(order)),
        occupied_s=order.busy_s,
        messages=2.0 * m * (2.0 - ranks.first - ranks.last),
    )


def _v_passes(pipelines: Pipelines, ranks: Ranks) -> dict[Pass, Passes]:
    """F, B and W of both chunks; rank 0 has both ends of the model, rank p - 1 its middle."""
    forward, backward, weights = pipelines.forward, pipelines.input_grad, pipelines.weight_grad
    f0, f1 = (pipelines.with_messages(ranks, chunk_s) for chunk_s in forward.chunks_of_v)
    b0, b1 = (pipelines.with_messages(ranks, chunk_s) for chunk_s in backward.chunks_of_v)
    w0, w1 = (ranks.passes(chunk_s, pipelines.group_sizes) for chunk_s in weights.chunks_of_v)
    hop, none = pipelines.blocking_hop_s, np.zeros(pipelines.hop_s.shape)
    return {
        F0: ranks.with_ends(f0, forward.first_extra_s - hop, none),
        F1: ranks.with_ends(f1, forward.last_extra_s, -hop),
        B1: ranks.with_ends(b1, backward.last_extra_s - hop, none),
        B0: ranks.with_ends(b0, backward.first_extra_s, -hop),
        W1: ranks.with_ends(w1, weights.last_extra_s, none),
        W0: ranks.with_ends(w0, weights.first_extra_s, none),
    }


def _v_heads(order: "_VOrder") -> WaitPoints:
    """First pass of each kind; with few micro-batches also the last before the next kind.

    While a rank does F1 and F0 alone, a later rank may be slower at these; while it does F1, B1 and
    W1 alone, an earlier one.
    """
    rank, p, m, passes = order.rank, order.count, order.m, order.passes
    f0, f1, b1, w1 = passes[F0], passes[F1], passes[B1], passes[W1]
    points = WaitPoints(f0.before, few_batches=order.few_batches)
    warm_up = np.minimum(2 * (p - rank) - 2, m - 1)
    points.add(warm_up * f0.time, f0.before + warm_up * running_max(f0.time))

    def filling(at: int, to: slice) -> Floats:
        ups = np.minimum(rank[to], m - 1)
        return ups * f1.time[at] + np.clip(m - 2 * (p - rank[at]) + 1, 0, ups) * f0.time[at]

    def turning(at: int, to: slice) -> Floats:
        rounds = np.minimum(p - 1 - rank[to], m - 1)
        ups = np.minimum(rank[at] + 1 + rounds, m) - np.minimum(rank[at] + 1, m)
        return ups * f1.time[at] + rounds * (b1.time[at] + w1.time[at])

    start = _add_first(points, order, F1)
    start = after_stay(start, f1, filling, towards_last=False)
    points.add(order.before(F1, np.minimum(rank, m - 1)), start)
    start = _add_first(points, order, B1)
    start = after_stay(start, b1, turning, towards_last=True)
    points.add(order.before(B1, np.minimum(p - 1 - rank, m - 1)), start)
    _add_first(points, order, B0)
    return points


def _add_first(points: WaitPoints, order: "_VOrder", one: Pass) -> Floats:
    """Add the first pass of a kind; its start [s]."""
    direction = towards_last if one == B1 else towards_first
    work = order.before(one, order.none)
    points.add_passed_on(work, direction, order.passes[one])
    start = points.own_start(work)
    if order.few_batches and one != B0:
        points.add_passed_on(order.before(one, order.last), direction, order.passes[one])
    return start


def _v_tails(order: "_VOrder") -> WaitPoints:
    """Last pass of each kind, mirrored; and where a rank begins to do backwards alone.

    From its last F1 on, a rank does as many B0 and B1 as there are ranks before it; then B0 alone.
    """
    rank, p, m, n = order.rank, order.count, order.m, order.n
    f1, b1, b0, w1, w0 = (order.passes[one] for one in (F1, B1, B0, W1, W0))
    # The backward of the steady state comes after others on rank 0 alone.
    points = WaitPoints(order.none, few_batches=True)

    def add(one: Pass, number: Floats) -> Floats:
        direction = towards_first if one in {F0, B1} else towards_last
        work = order.after(one, number)
        points.add_passed_on(work, direction, order.passes[one])
        return points.own_start(work)

    steady = np.maximum(m - p, 0.0) + order.none
    alone = np.maximum(m - p + rank, 0.0)
    turned = np.minimum(p - rank + steady, m - 1)

    def ending(at: int, to: slice) -> Floats:
        late = n - p + rank[at]
        done = np.minimum(m - 1, n - p) + np.maximum(m - 1 - late, 0.0)
        before = np.minimum(alone[to], n - p) + np.maximum(alone[to] - late, 0.0)
        return (m - 1 - alone[to]) * b0.time[at] + (done - before) * w0.time[at]

    def again(at: int, to: slice) -> Floats:
        rounds = m - 1 - turned[to]
        early = n - p - steady[0] - rank[at] + rank[to]
        done = np.clip(early, 0, rounds) * w1.time[at]
        done += np.clip(early - 1, 0, rounds) * w0.time[at]
        return rounds * (b1.time[at] + b0.time[at]) + done

    def both(at: int, to: slice) -> Floats:
        rounds = alone[at] - steady[0]
        done = np.clip(n - p - steady[0], 0, rounds) * (w0.time[to] + w1.time[to])
        return rounds * (b0.time[to] + b1.time[to]) + done + b0.time[to]

    end = after_stay(add(B0, order.last), b0, ending, towards_last=True)
    work = order.after(B0, alone)
    points.add(work, end)
    left = points.own_start(work)
    end = after_stay(add(B1, order.last), b1, again, towards_last=False)
    points.add(order.after(B1, turned), end)
    if order.few_batches:
        add(B0, np.minimum(n - p, m - 1) + order.none)
        add(B0, order.none)
    end = after_stay(left, b0, both, towards_last=True)
    points.add(order.after(B0, steady) + b0.time, end)
    add(B0, steady)
    end = add(F1, order.last)
    if order.few_batches:
        add(B1, order.none)
    else:
        cycle = order.round_s - order.passes[F0].time
        end = after_stay(end, f1, lambda at, to: (p - 1 - rank[to]) * cycle[at], towards_last=True)
        points.add(order.after(F1, m - p + rank), end)
    add(F0, order.last)
    return points


class _VOrder:
    """Passes of each kind that a rank does before a pass, in the order of `orders`.

    Its phases, of n = max(m, 2 p - 1) micro-batches: a warm-up of 2 (p - i) - 1 F0; i rounds of F1
    and F0; p - i rounds of F1, B1, W1; the steady state; and the same in reverse. Passes of
    micro-batches from m on are left out.
    """

    def __init__(
        self, ranks: Ranks, micro_batches: Ints, passes: dict[Pass, Passes], *, few_batches: bool
    ) -> None:
        self.few_batches = few_batches
        self.passes = passes
        # As floats, since they are multiplied with times.
        self.rank, self.count, self.m = 1.0 * ranks.index, 1.0 * ranks.count, 1.0 * micro_batches
        self.n = np.maximum(self.m, 2 * self.count - 1)
        self.none = np.zeros(self.rank.shape)
        self.last = self.m - 1 + self.none
        self.round_s = sum((one.time for one in passes.values()), self.none)
        self.busy_s = micro_batches * self.round_s

    def before(self, one: Pass, number: Floats) -> Floats:
        """Time of a rank's passes before this one of a micro-batch [s]."""
        work = self.none.copy()
        for count, passes in zip(self._counts(one, number), self.passes.values(), strict=True):
            work += np.minimum(count, self.m) * passes.time
        return work

    def after(self, one: Pass, number: Floats) -> Floats:
        """Time of a rank's passes after it [s]."""
        return self.busy_s - self.before(one, number) - self.passes[one].time

    def _counts(self, one: Pass, number: Floats) -> tuple[Floats, ...]:
        """Number of F0, F1, B1, B0, W1 and W0 before one of the first four of a micro-batch."""
        i, p, n = self.rank, self.count, self.n
        if one == F0:
            warm_up = 2 * (p - i) - 1
            turn = number - warm_up - i
            steady = np.maximum(turn, 0)
            b1 = (turn >= 0) * (p - i + steady)
            return number, np.clip(number - warm_up + 1, 0, i) + b1, b1, steady, b1, steady
        if one == F1:
            steady = np.maximum(number - p + 1, 0)
            b1 = np.maximum(number - i, 0)
            f0 = np.minimum(2 * (p - i) - 1 + np.minimum(number, i) + steady, n)
            return f0, number, b1, steady, b1, steady
        if one == B1:
            steady = np.clip(number - (p - i) + 1, 0, n - p)
            f0, f1 = np.minimum(2 * p - i - 1 + steady, n), np.minimum(i + number + 1, n)
            late = np.maximum(number - (n - i), -1) + 1
            return f0, f1, number, steady + late, np.minimum(number, n - i), steady
        steady = np.minimum(number, n - p)
        late = np.clip(number - (n - p), 0, i)
        f0, f1 = np.minimum(2 * p - i + number, n), np.minimum(p + number, n)
        w0 = steady + np.maximum(number - (n - p + i), 0)
        return f0, f1, p - i + steady + late, number, p - i + steady, w0
