"""Closed form of the zero-bubble schedule V."""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.schedule.orders import BACKWARD, FORWARD
from shardwise.schedule.paths import Gates, longest
from shardwise.schedule.pipelines import Pipelines, Solved
from shardwise.schedule.ranks import (
    NEVER,
    Passes,
    Ranks,
    after_stay,
    so_far,
    towards_first,
    towards_last,
)

__all__ = ["zb_v"]

Pass = tuple[str, int]
Counts = tuple[Floats | Ints, ...]

FIRST_DOWN, THEN_UP = (FORWARD, 0), (FORWARD, 1)
BACK_DOWN, BACK_UP = (BACKWARD, 1), (BACKWARD, 0)
_IN_TURN: tuple[Pass, ...] = (FIRST_DOWN, THEN_UP, BACK_DOWN, BACK_UP)


def zb_v(given: Pipelines) -> Solved:
    """ZB-V (arXiv 2401.10241, section 6): virtual stages i and 2 p - 1 - i on rank i.

    Exact for equal stages; on uneven ones 0.1 % short on average, 3 % at most (with fewer
    micro-batches than 2 p - 1, 6 %), since a path may change ranks elsewhere than at the gates.
    Messages beside compute: 0.15 % short on average. With F = B = W every rank works without a gap
    from its first pass to its last; rank i starts i chunk passes later than rank 0, so a step that
    ends on all ranks together idles p - 1 of them. With fewer than 2 p - 1 micro-batches ranks wait
    inside as well.
    """
    m, p = given.micro_batches, given.stages
    few = given.few
    turns = (p - (m + 1) // 2, 2 * p - m, m - 1, np.abs(p - m)) if few else ()
    ranks = Ranks.of(given.lengths, [turn - before for turn in turns for before in (0, 1)])
    passes = _passes(given, ranks)
    order = _Order(ranks, m, passes)
    return Solved(
        step_s=longest(_heads(order, few=few), order.busy_s, _tails(order, few=few)),
        occupied_s=order.busy_s,
        messages=2.0 * m * (2.0 - ranks.first - ranks.last),
    )


def _passes(given: Pipelines, ranks: Ranks) -> dict[Pass, Passes]:
    """F, B and W of both chunks; rank 0 has both ends of the model, rank p - 1 its middle."""
    ahead, back, later = given.forward, given.input_grad, given.weight_grad
    forward = given.arriving(ranks, ahead.on_stage * 0.5)
    backward = given.arriving(ranks, back.on_stage * 0.5)
    weights = ranks.passes(later.on_stage * 0.5, given.lengths)
    hop, none = given.blocking_s, np.zeros(given.hop_s.shape)
    return {
        FIRST_DOWN: ranks.with_ends(forward, ahead.on_first - hop, none),
        THEN_UP: ranks.with_ends(forward, ahead.on_last, -hop),
        BACK_DOWN: ranks.with_ends(backward, back.on_last - hop, none),
        BACK_UP: ranks.with_ends(backward, back.on_first, -hop),
        ("W", 1): ranks.with_ends(weights, later.on_last, none),
        ("W", 0): ranks.with_ends(weights, later.on_first, none),
    }


def _heads(order: "_Order", *, few: bool) -> Gates:
    """First pass of each kind; with few micro-batches also the last before the next kind."""
    down = order.passes[FIRST_DOWN]
    gates = Gates(down.before, few=few)
    ahead = np.minimum(2 * (order.count - order.rank) - 2, order.m - 1)
    pace = so_far(down.at)
    gates.reach(ahead * down.at, down.before + ahead * pace)
    last = np.broadcast_to(order.m - 1, order.rank.shape)

    def add(one: Pass) -> Floats:
        """Add its first pass, with few micro-batches its last one too; when the first starts."""
        spread = towards_last if one == BACK_DOWN else towards_first
        work = order.before(one, np.zeros_like(order.rank))
        gates.spread(work, spread, order.passes[one])
        start = gates.starts(work)
        if few and one != BACK_UP:
            gates.spread(order.before(one, last), spread, order.passes[one])
        return start

    up, back = order.passes[THEN_UP], order.passes[BACK_DOWN]
    rank, count, m = order.rank, order.count, order.m

    def filling(at: int, to: slice) -> Floats:
        ups = np.minimum(rank[to], m - 1)
        downs = np.clip(m - 2 * (count - rank[at]) + 1, 0, ups)
        return ups * up.at[at] + downs * down.at[at]

    start = after_stay(add(THEN_UP), up, filling, towards_last=False)
    gates.reach(order.before(THEN_UP, np.minimum(rank, m - 1)), start)

    def turning(at: int, to: slice) -> Floats:
        rounds = np.minimum(count - 1 - rank[to], m - 1)
        ups = np.minimum(rank[at] + 1 + rounds, m) - np.minimum(rank[at] + 1, m)
        return ups * up.at[at] + rounds * (back.at[at] + order.passes["W", 1].at[at])

    start = after_stay(add(BACK_DOWN), back, turning, towards_last=True)
    gates.reach(order.before(BACK_DOWN, np.minimum(count - 1 - rank, m - 1)), start)
    add(BACK_UP)
    return gates


def _tails(order: "_Order", *, few: bool) -> Gates:
    """Last pass of each kind, and the backward that ends the steady state, number n - p."""
    # The backward of the steady state comes after others on rank 0 alone.
    gates = Gates(np.zeros(order.rank.shape), few=True)
    last = np.broadcast_to(order.m - 1, order.rank.shape)

    def add(one: Pass, number: Ints) -> None:
        spread = towards_first if one in {FIRST_DOWN, BACK_DOWN} else towards_last
        gates.spread(order.after(one, number), spread, order.passes[one])

    rank, count, m, n = order.rank, order.count, order.m, order.n
    down, up = order.passes[BACK_DOWN], order.passes[BACK_UP]
    then = order.passes[THEN_UP]
    weights = order.passes["W", 0]
    add(BACK_UP, last)
    ending = np.clip(m - count + rank, 0, m - 1)

    def alone(at: int, to: slice) -> Floats:
        later = n - count + rank[at]
        done = np.minimum(m - 1, n - count) + np.maximum(m - 1 - later, 0)
        before = np.minimum(ending[to], n - count) + np.maximum(ending[to] - later, 0)
        return (m - 1 - ending[to]) * up.at[at] + (done - before) * weights.at[at]

    work = order.after(BACK_UP, ending)
    gates.reach(work, after_stay(gates.starts(order.after(BACK_UP, last)), up, alone, towards_last=True))
    left = gates.starts(work)
    add(BACK_DOWN, last)
    steady = np.maximum(m - count, 0)
    number = np.minimum(count - rank + steady, m - 1)

    def again(at: int, to: slice) -> Floats:
        rounds = m - 1 - number[to]
        early = n - count - steady - rank[at] + rank[to]
        done = np.clip(early, 0, rounds) * order.passes["W", 1].at[at]
        done = done + np.clip(early - 1, 0, rounds) * weights.at[at]
        return rounds * (down.at[at] + up.at[at]) + done

    start = after_stay(gates.starts(order.after(BACK_DOWN, last)), down, again, towards_last=False)
    gates.reach(order.after(BACK_DOWN, number), start)
    if few:
        add(BACK_UP, np.broadcast_to(np.minimum(n - count, m - 1), rank.shape))
        add(BACK_UP, np.zeros_like(order.rank))

    def both(at: int, to: slice) -> Floats:
        rounds = ending[at] - steady[0]
        done = np.clip(n - count - steady[0], 0, rounds) * both_weights[to]
        return rounds * (up.at[to] + down.at[to]) + done + up.at[to]

    both_weights = weights.at + order.passes["W", 1].at
    steady = np.broadcast_to(steady, rank.shape)
    start = after_stay(left, up, both, towards_last=True)
    gates.reach(order.after(BACK_UP, steady) + up.at, start)
    add(BACK_UP, steady)
    add(THEN_UP, last)
    if few:
        add(BACK_DOWN, np.zeros_like(order.rank))
    else:
        cycle = np.add.reduce([one.at for one in order.passes.values()]) - order.passes[FIRST_DOWN].at
        start = after_stay(
            gates.starts(order.after(THEN_UP, last)), then,
            lambda at, to: (count - 1 - rank[to]) * cycle[at], towards_last=True)
        gates.reach(order.after(THEN_UP, m - count + rank), start)
    add(FIRST_DOWN, last)
    return gates


class _Order:
    """How many passes of each kind a rank does before a pass, in the order of `orders`.

    Its phases, of n = max(m, 2 p - 1) micro-batches: warm-up of 2 (p - i) - 1 first forwards; i
    of the second with one of the first; p - i rounds of second F, B, W; the steady state; and as
    many the other way round. What is of micro-batches from m on is left out.
    """

    def __init__(self, ranks: Ranks, micro_batches: Ints, passes: dict[Pass, Passes]) -> None:
        self.rank, self.count = ranks.at, ranks.count
        self.m = micro_batches
        self.n = np.maximum(micro_batches, 2 * ranks.count - 1)
        self.passes = passes
        self.busy_s = micro_batches * np.add.reduce([one.at for one in passes.values()])

    def before(self, one: Pass, number: Ints) -> Floats:
        """Time of the passes before this one of a micro-batch."""
        times = self.passes.values()
        counts = self._counts(one, number)
        done = [np.minimum(n, self.m) * t.at for n, t in zip(counts, times, strict=True)]
        return np.add.reduce(done)

    def after(self, one: Pass, number: Ints) -> Floats:
        """Time of the passes after it."""
        return self.busy_s - self.before(one, number) - self.passes[one].at

    def _counts(self, one: Pass, number: Ints) -> Counts:
        """Of F0, F1, B1, B0, W1, W0."""
        counted: dict[Pass, Callable[[Ints], Counts]] = {
            FIRST_DOWN: self._before_first_down,
            THEN_UP: self._before_then_up,
            BACK_DOWN: self._before_back_down,
            BACK_UP: self._before_back_up,
        }
        return counted[one](number)

    def _before_first_down(self, number: Ints) -> Counts:
        i, p = self.rank, self.count
        warm = 2 * (p - i) - 1
        turn = number - warm - i
        steady = np.maximum(turn, 0)
        second = np.where(turn >= 0, p - i + steady, 0)
        return number, np.clip(number - warm + 1, 0, i) + second, second, steady, second, steady

    def _before_then_up(self, number: Ints) -> Counts:
        i, p = self.rank, self.count
        turn = np.maximum(number - p + 1, 0)
        second = np.maximum(number - i, 0)
        first = np.minimum(2 * (p - i) - 1 + np.minimum(number, i) + turn, self.n)
        return first, number, second, turn, second, turn

    def _before_back_down(self, number: Ints) -> Counts:
        i, p, n = self.rank, self.count, self.n
        turn = np.clip(number - (p - i) + 1, 0, n - p)
        first, second = np.minimum(2 * p - i - 1 + turn, n), np.minimum(i + number + 1, n)
        late = np.maximum(number - (n - i), -1) + 1
        return first, second, number, turn + late, np.minimum(number, n - i), turn

    def _before_back_up(self, number: Ints) -> Counts:
        i, p, n = self.rank, self.count, self.n
        steady = number < n - p
        late = np.clip(number - (n - p), 0, i)
        first = np.where(steady, np.minimum(2 * p - i + number, n), n)
        second = np.where(steady, p - i + number, n - i)
        weights = np.minimum(number, n - p) + np.maximum(number - (n - p + i), 0)
        then = np.where(steady, p + number, n)
        return first, then, second + late, number, second, weights
