"""Closed forms of GPipe and 1F1B."""

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.parallel.schedule.paths import Gates, longest
from shardwise.parallel.schedule.pipelines import Pipelines, Solved
from shardwise.parallel.schedule.ranks import Passes, Ranks, so_far, towards_first

__all__ = ["gpipe", "longest_1f1b", "messages_of_linear", "one_f_one_b"]


def messages_of_linear(ranks: Ranks, micro_batches: Ints) -> Floats:
    """Messages that come in to every rank where it holds one stage."""
    return micro_batches * (2.0 - ranks.first - ranks.last)


def gpipe(given: Pipelines) -> Solved:
    """GPipe: T = sum f + (m - 1) max f + sum b + (m - 1) max b, b with the weights' gradient.

    Exact for any stages: all backwards follow the last forward of the last stage
    (arXiv 1811.06965, section 2.3, for equal ones).
    """
    ranks = Ranks.of(given.lengths)
    forward, backward = given.forwards(ranks), given.backwards(ranks, given.backward)
    m = given.micro_batches
    parts = [passes.total + (m - 1) * passes.at.max(axis=0) for passes in (forward, backward)]
    occupied = m * (forward.at + backward.at)
    return Solved(
        step_s=sum(parts, np.zeros(m.shape)),
        occupied_s=occupied,
        messages=messages_of_linear(ranks, m),
    )


def one_f_one_b(given: Pipelines) -> Solved:
    """1F1B (arXiv 2104.04473, section 2.2): exact for any stages whose messages block or take 0 s.

    For equal stages T = (m + p - 1) (f + b). Messages that travel beside compute delay the steady
    state as well, since a backward that comes one hop later lets the next forward start later:
    exact for equal stages then, else at most 2 % short (`_zigzag`).
    """
    m = given.micro_batches
    # With fewer micro-batches than ranks, those before this one do all forwards first.
    ranks = Ranks.of(given.lengths, [given.stages - m] if given.few else ())
    forward, backward = given.forwards(ranks), given.backwards(ranks, given.backward)
    step = longest_1f1b(ranks, forward, backward, m, few=given.few)
    if not given.blocking and given.hop_s.any():
        step = np.maximum(step, _zigzag(ranks, forward, backward, m, given.hop_s))
    return Solved(
        step_s=step,
        occupied_s=m * (forward.at + backward.at),
        messages=messages_of_linear(ranks, m),
    )


def longest_1f1b(
    ranks: Ranks, forward: Passes, backward: Passes, micro_batches: Ints, *, few: bool
) -> Floats:
    """Longest path: the order runs the same backwards in time, so tails are heads mirrored.

    Rank i waits for its first forward, for the last one of its warm-up, number p - 1 - i, since
    the slowest rank up to it sets the pace, and for its first backward.
    """
    busy = micro_batches * (forward.at + backward.at)
    heads = _gates(ranks, forward, backward, micro_batches, few=few)
    tails = _gates(ranks, backward, forward, micro_batches, few=few)
    return longest(heads, busy, tails)


def _gates(ranks: Ranks, first: Passes, then: Passes, micro_batches: Ints, *, few: bool) -> Gates:
    ahead = np.minimum(ranks.count - 1 - ranks.at, micro_batches - 1)
    gates = Gates(first.before, few=few)
    pace = so_far(first.at)
    gates.reach(ahead * first.at, first.before + ahead * pace)
    gates.spread((ahead + 1) * first.at, towards_first, then)
    return gates


def _zigzag(
    ranks: Ranks, forward: Passes, backward: Passes, micro_batches: Ints, hop_s: Floats
) -> Floats:
    """Longest path that goes down and up again between two ranks for every round of micro-batches.

    From rank a to b and back, L = b - a + 1 micro-batches take sum_a^b (f + b) + 2 (L - 1) hop:
    more than on the slowest of these ranks alone. What is left of the last round takes as many
    ranks before b; the last p - 1 - b micro-batches lead the path down from b to the last rank.
    """
    both = forward.at + backward.at
    hops = 2 * hop_s
    through = forward.through + backward.through
    before = forward.before + backward.before
    whole = through[-1]
    best = whole
    for high in range(ranks.at.shape[0]):
        rest = micro_batches - ranks.count + ranks.at[high]
        least = both[high]
        for low in range(high, -1, -1):
            least = np.minimum(least, both[low])
            rounds, left = np.divmod(rest, ranks.at[high] - ranks.at[low] + 1)
            path = rounds * (through[high] - before[low])
            path = path + left * least + hops * np.maximum(left - 1, 0)
            path = path + whole + whole - through[high]
            # Without a turn on b, the way down starts with one on the next rank, a hop less.
            path = path - np.where((rest == 0) & (ranks.at[high] < ranks.count - 1), hops, 0.0)
            best = np.maximum(best, np.where(rest >= 0, path, 0.0))
    return best
