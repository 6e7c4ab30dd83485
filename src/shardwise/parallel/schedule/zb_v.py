"""Closed form of the zero-bubble schedule V."""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD
from shardwise.parallel.schedule.paths import Gates, longest
from shardwise.parallel.schedule.pipelines import Pipelines, Solved
from shardwise.parallel.schedule.ranks import (
    Passes,
    Ranks,
    after_stay,
    so_far,
    towards_first,
    towards_last,
)

__all__ = ["zb_v"]

Pass = tuple[str, int]
Counts = tuple[Floats, ...]

FIRST_DOWN, THEN_UP = (FORWARD, 0), (FORWARD, 1)
BACK_DOWN, BACK_UP = (BACKWARD, 1), (BACKWARD, 0)


def zb_v(given: Pipelines) -> Solved:
    """ZB-V (arXiv 2401.10241, section 6): virtual stages i and 2 p - 1 - i on rank i.

    Exact for equal stages; on uneven ones 0.01 % short on average, 1.1 % at most, since a path may
    change ranks elsewhere than at the gates (2 % with p to 2 p micro-batches where every rank
    differs). With F = B = W every rank works without a gap
    from its first pass to its last; rank i starts i chunk passes later than rank 0, so a step that
    ends on all ranks together idles p - 1 of them. With fewer than 2 p - 1 micro-batches ranks wait
    inside as well.
    """
    m, p = given.micro_batches, given.stages
    turns = (p - (m + 1) // 2, 2 * p - m, m - 1, np.abs(p - m)) if given.few else ()
    ranks = Ranks.of(given.lengths, [turn - before for turn in turns for before in (0, 1)])
    passes = _passes(given, ranks)
    order = _Order(ranks, m, passes, few=given.few)
    return Solved(
        step_s=longest(_heads(order), order.busy_s, _tails(order)),
        occupied_s=order.busy_s,
        messages=2.0 * m * (2.0 - ranks.first - ranks.last),
    )


def _passes(given: Pipelines, ranks: Ranks) -> dict[Pass, Passes]:
    """F, B and W of both chunks; rank 0 has both ends of the model, rank p - 1 its middle."""
    ahead, back, later = given.forward, given.input_grad, given.weight_grad
    down, up = (given.arriving(ranks, chunk_s) for chunk_s in ahead.chunks_of_v)
    back_up, back_down = (given.arriving(ranks, chunk_s) for chunk_s in back.chunks_of_v)
    early, late = (ranks.passes(chunk_s, given.lengths) for chunk_s in later.chunks_of_v)
    hop, none = given.blocking_s, np.zeros(given.hop_s.shape)
    return {
        FIRST_DOWN: ranks.with_ends(down, ahead.on_first - hop, none),
        THEN_UP: ranks.with_ends(up, ahead.on_last, -hop),
        BACK_DOWN: ranks.with_ends(back_down, back.on_last - hop, none),
        BACK_UP: ranks.with_ends(back_up, back.on_first, -hop),
        ("W", 1): ranks.with_ends(late, later.on_last, none),
        ("W", 0): ranks.with_ends(early, later.on_first, none),
    }


def _heads(order: "_Order") -> Gates:
    """First pass of each kind; with few micro-batches also the last before the next kind.

    Until its first second backward, and until its first backward of the steady state, a rank's
    pace is one that a rank behind it, or before it, may be slower at.
    """
    rank, p, m, passes = order.rank, order.count, order.m, order.passes
    down, up, back, weights = passes[FIRST_DOWN], passes[THEN_UP], passes[BACK_DOWN], passes["W", 1]
    gates = Gates(down.before, few=order.few)
    ahead = np.minimum(2 * (p - rank) - 2, m - 1)
    gates.reach(ahead * down.at, down.before + ahead * so_far(down.at))

    def filling(at: int, to: slice) -> Floats:
        ups = np.minimum(rank[to], m - 1)
        return ups * up.at[at] + np.clip(m - 2 * (p - rank[at]) + 1, 0, ups) * down.at[at]

    def turning(at: int, to: slice) -> Floats:
        rounds = np.minimum(p - 1 - rank[to], m - 1)
        ups = np.minimum(rank[at] + 1 + rounds, m) - np.minimum(rank[at] + 1, m)
        return ups * up.at[at] + rounds * (back.at[at] + weights.at[at])

    start = _reach_first(gates, order, THEN_UP)
    start = after_stay(start, up, filling, towards_last=False)
    gates.reach(order.before(THEN_UP, np.minimum(rank, m - 1)), start)
    start = _reach_first(gates, order, BACK_DOWN)
    start = after_stay(start, back, turning, towards_last=True)
    gates.reach(order.before(BACK_DOWN, np.minimum(p - 1 - rank, m - 1)), start)
    _reach_first(gates, order, BACK_UP)
    return gates


def _reach_first(gates: Gates, order: "_Order", one: Pass) -> Floats:
    """Add the first pass of a kind; when it starts."""
    spread = towards_last if one == BACK_DOWN else towards_first
    work = order.before(one, order.none)
    gates.spread(work, spread, order.passes[one])
    start = gates.starts(work)
    if order.few and one != BACK_UP:
        gates.spread(order.before(one, order.last), spread, order.passes[one])
    return start


def _tails(order: "_Order") -> Gates:
    """Last pass of each kind, mirrored; and where backwards go on alone, or ranks turn to them.

    From the last second forward on, a rank does backwards of both kinds, as many as it has ranks
    before it; then those of the first kind alone.
    """
    rank, p, m, n = order.rank, order.count, order.m, order.n
    then, down, up = (order.passes[one] for one in (THEN_UP, BACK_DOWN, BACK_UP))
    weights, later = order.passes["W", 0], order.passes["W", 1]
    # The backward of the steady state comes after others on rank 0 alone.
    gates = Gates(order.none, few=True)

    def add(one: Pass, number: Floats) -> Floats:
        spread = towards_first if one in {FIRST_DOWN, BACK_DOWN} else towards_last
        work = order.after(one, number)
        gates.spread(work, spread, order.passes[one])
        return gates.starts(work)

    steady = np.maximum(m - p, 0.0) + order.none
    alone = np.maximum(m - p + rank, 0.0)
    turned = np.minimum(p - rank + steady, m - 1)

    def ending(at: int, to: slice) -> Floats:
        late = n - p + rank[at]
        done = np.minimum(m - 1, n - p) + np.maximum(m - 1 - late, 0.0)
        before = np.minimum(alone[to], n - p) + np.maximum(alone[to] - late, 0.0)
        return (m - 1 - alone[to]) * up.at[at] + (done - before) * weights.at[at]

    def again(at: int, to: slice) -> Floats:
        rounds = m - 1 - turned[to]
        early = n - p - steady[0] - rank[at] + rank[to]
        done = np.clip(early, 0, rounds) * later.at[at]
        done += np.clip(early - 1, 0, rounds) * weights.at[at]
        return rounds * (down.at[at] + up.at[at]) + done

    def both(at: int, to: slice) -> Floats:
        rounds = alone[at] - steady[0]
        done = np.clip(n - p - steady[0], 0, rounds) * (weights.at[to] + later.at[to])
        return rounds * (up.at[to] + down.at[to]) + done + up.at[to]

    end = after_stay(add(BACK_UP, order.last), up, ending, towards_last=True)
    work = order.after(BACK_UP, alone)
    gates.reach(work, end)
    left = gates.starts(work)
    end = after_stay(add(BACK_DOWN, order.last), down, again, towards_last=False)
    gates.reach(order.after(BACK_DOWN, turned), end)
    if order.few:
        add(BACK_UP, np.minimum(n - p, m - 1) + order.none)
        add(BACK_UP, order.none)
    end = after_stay(left, up, both, towards_last=True)
    gates.reach(order.after(BACK_UP, steady) + up.at, end)
    add(BACK_UP, steady)
    end = add(THEN_UP, order.last)
    if order.few:
        add(BACK_DOWN, order.none)
    else:
        cycle = order.round_s - order.passes[FIRST_DOWN].at
        end = after_stay(
            end, then, lambda at, to: (p - 1 - rank[to]) * cycle[at], towards_last=True
        )
        gates.reach(order.after(THEN_UP, m - p + rank), end)
    add(FIRST_DOWN, order.last)
    return gates


class _Order:
    """How many passes of each kind a rank does before a pass, in the order of `orders`.

    Its phases, of n = max(m, 2 p - 1) micro-batches: warm-up of 2 (p - i) - 1 first forwards; i
    of the second with one of the first; p - i rounds of second F, B, W; the steady state; and as
    many the other way round. What is of micro-batches from m on is left out.
    """

    def __init__(
        self, ranks: Ranks, micro_batches: Ints, passes: dict[Pass, Passes], *, few: bool
    ) -> None:
        self.few = few
        self.passes = passes
        # As floats, since they are multiplied with times.
        self.rank, self.count, self.m = 1.0 * ranks.at, 1.0 * ranks.count, 1.0 * micro_batches
        self.n = np.maximum(self.m, 2 * self.count - 1)
        self.none = np.zeros(self.rank.shape)
        self.last = self.m - 1 + self.none
        self.round_s = sum((one.at for one in passes.values()), self.none)
        self.busy_s = micro_batches * self.round_s

    def before(self, one: Pass, number: Floats) -> Floats:
        """Time of the passes before this one of a micro-batch."""
        counts = self._counts(one, number)
        work = self.none.copy()
        for count, times in zip(counts, self.passes.values(), strict=True):
            work += np.minimum(count, self.m) * times.at
        return work

    def after(self, one: Pass, number: Floats) -> Floats:
        """Time of the passes after it."""
        return self.busy_s - self.before(one, number) - self.passes[one].at

    def _counts(self, one: Pass, number: Floats) -> Counts:
        """Of F0, F1, B1, B0, W1, W0."""
        counted: dict[Pass, Callable[[Floats], Counts]] = {
            FIRST_DOWN: self._before_first_down,
            THEN_UP: self._before_then_up,
            BACK_DOWN: self._before_back_down,
            BACK_UP: self._before_back_up,
        }
        return counted[one](number)

    def _before_first_down(self, number: Floats) -> Counts:
        i, p = self.rank, self.count
        warm = 2 * (p - i) - 1
        turn = number - warm - i
        steady = np.maximum(turn, 0)
        second = (turn >= 0) * (p - i + steady)
        return number, np.clip(number - warm + 1, 0, i) + second, second, steady, second, steady

    def _before_then_up(self, number: Floats) -> Counts:
        i, p = self.rank, self.count
        turn = np.maximum(number - p + 1, 0)
        second = np.maximum(number - i, 0)
        first = np.minimum(2 * (p - i) - 1 + np.minimum(number, i) + turn, self.n)
        return first, number, second, turn, second, turn

    def _before_back_down(self, number: Floats) -> Counts:
        i, p, n = self.rank, self.count, self.n
        turn = np.clip(number - (p - i) + 1, 0, n - p)
        first, second = np.minimum(2 * p - i - 1 + turn, n), np.minimum(i + number + 1, n)
        late = np.maximum(number - (n - i), -1) + 1
        return first, second, number, turn + late, np.minimum(number, n - i), turn

    def _before_back_up(self, number: Floats) -> Counts:
        i, p, n = self.rank, self.count, self.n
        steady = np.minimum(number, n - p)
        late = np.clip(number - (n - p), 0, i)
        first, then = np.minimum(2 * p - i + number, n), np.minimum(p + number, n)
        weights = steady + np.maximum(number - (n - p + i), 0)
        return first, then, p - i + steady + late, number, p - i + steady, weights
