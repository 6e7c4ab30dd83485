"""Closed form of the zero-bubble schedule H1."""

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.parallel.schedule.gpipe_1f1b import messages_of_linear
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

__all__ = ["zb_h1"]


def zb_h1(given: Pipelines) -> Solved:
    """ZB-H1 (arXiv 2401.10241, section 2.3 and table 2).

    For equal stages and m >= p it idles (p - 1) max(F + B - W, F, B), B the gradient of the input
    alone; the paper's (p - 1) (F + B - W) for W <= F, B. Exact for any stages whose messages block
    or take 0 s; of pipelines with fewer micro-batches than ranks, one in a thousand is 1 % short.

    Messages that travel beside compute delay the steady state only where two hops take longer
    than W: then a round trip between ranks sets the pace, as in 1F1B. Hops of a twentieth of a
    pass: 0.5 % short at most, but for fewer micro-batches than ranks (1.1 %); of a fifth 3 %.
    """
    m, p = given.micro_batches, given.stages
    ranks = Ranks.of(given.lengths, [m - 1, p - m - 1, p - m, p - m + 1] if given.few else ())
    forward, backward = given.forwards(ranks), given.backwards(ranks, given.input_grad)
    weights = given.alone(ranks, given.weight_grad)
    busy = m * (forward.at + backward.at + weights.at)
    heads, tails = (
        _heads(ranks, forward, backward, m, few=given.few),
        _tails(ranks, forward, backward, weights, m, few=given.few),
    )
    step = longest(heads, busy, tails)
    if not given.blocking and given.hop_s.any():
        turn = slowest_round(ranks.at, forward + backward, weights.at)
        slowest = (forward.at + backward.at + weights.at).max(axis=0)
        step = step + np.maximum(m - p, 0) * np.maximum(turn - slowest, 0.0)
    return Solved(
        step_s=step,
        occupied_s=busy,
        messages=messages_of_linear(ranks, m),
    )


def _heads(ranks: Ranks, forward: Passes, backward: Passes, m: Ints, *, few: bool) -> Gates:
    """As in 1F1B; and the first backward with a W behind it, number i of rank i.

    Until then a rank's pace is one of F and B alone, and a rank behind it, which lags more, may
    be slower at that. Forward p - 1 comes just before that backward on every rank: so a rank may
    be slower as well that lags less, until it passes that forward on.
    """
    i, p = ranks.at.astype(np.float64), ranks.count
    ahead = np.minimum(p - 1 - i, m - 1)
    gates = Gates(forward.before, few=few)
    gates.reach(ahead * forward.at, forward.before + ahead * so_far(forward.at))
    first = (ahead + 1) * forward.at
    gates.spread(first, towards_first, backward)
    lag = np.minimum(i, m - 1)

    def done(rank: int | slice, to: slice) -> Floats:
        forwards = np.minimum(lag[to] + p - i[rank], m)
        return forwards * forward.at[rank] + lag[to] * backward.at[rank]

    own = gates.starts(first) - first
    start = after_stay(own, backward, done, towards_last=False)
    gates.reach(done(slice(None), slice(None)), start)
    # Rank 0 does that forward before its first backward.
    work = (p - 1) * forward.at + i * backward.at
    start = towards_last(own * (1 - ranks.first) + work, forward)
    gates.reach(work, start, there=p <= m)
    return gates


def _tails(
    ranks: Ranks, forward: Passes, backward: Passes, weights: Passes, m: Ints, *, few: bool
) -> Gates:
    """Last backward, first backward after the last forward, last forward; W's come after them.

    Between the first two a rank's pace is one of B and W alone, and a rank before it may be slower.
    """
    i = ranks.at.astype(np.float64)
    ahead = np.minimum(ranks.count - 1 - i, m - 1)
    lag = np.minimum(i, m)

    def left(number: Floats | Ints) -> Floats:
        """W's after a backward."""
        return (m - np.maximum(number - lag, 0)) * weights.at

    last = left(m - 1)
    gates = Gates(np.zeros(last.shape), few=few)
    gates.spread(last, towards_last, backward)
    number = m - 1 - ahead

    def stay(rank: int, to: slice) -> Floats:
        late = np.clip(m - 1 - np.maximum(number[to], lag[rank]), 0, ahead[to])
        return ahead[to] * backward.at[rank] + late * weights.at[rank]

    start = after_stay(gates.starts(last), backward, stay, towards_last=True)
    gates.reach(ahead * backward.at + left(number), start)
    gates.spread((ahead + 1) * backward.at + left(number), towards_first, forward)
    return gates
