"""Closed form of interleaved 1F1B."""

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.parallel.schedule.gpipe_1f1b import longest_1f1b
from shardwise.parallel.schedule.interleaved_gain import gain_s
from shardwise.parallel.schedule.interleaved_gates import Kind, Side
from shardwise.parallel.schedule.paths import longest
from shardwise.parallel.schedule.pipelines import Pipelines, Solved, Times
from shardwise.parallel.schedule.ranks import Passes, Ranks

__all__ = ["interleaved"]


def interleaved(given: Pipelines) -> Solved:
    """Interleaved 1F1B (arXiv 2104.04473, section 2.2), two chunks per rank or more.

    For equal stages and whole groups of p micro-batches T = (m + (p - 1) / v) (f + b), exactly.
    Where the ends of the model make a chunk longer, its turns set the pace together with the
    slowest other rank: `gain_s`. An incomplete last group adds the waits of `_missing_s`.

    Whole groups: exact for any stages without ends and messages (but rare pipelines of two groups,
    0.1 % short), and with a head; with an embedding of several chunks 0.02 % short on average, 2 %
    at most; with messages beside compute 0.05 % short on average. With shorter last chunks on
    trailing ranks 0.1 % short at most, with messages beside compute 0.3 %; 2 % where rank 0 alone
    has none and a shorter first chunk. With last chunks of any length 0.15 % off on average, 4 % at
    most. The other chunks of a rank count as equal.

    An incomplete group: 0.2 to 0.8 % off on average, 3 % at most, with fewer than two
    groups 8 %, either way: which chunk of the last group waits for which is not resolved.
    (Megatron-LM refuses such batches.)
    """
    m, p, v = given.micro_batches, given.stages, given.chunks
    # Of one group, the ranks before the middle do all forwards before their first backward; of
    # fewer micro-batches than ranks, those before rank p - m.
    ranks = Ranks.of(given.lengths, [(p - 1) // 2, p // 2, p - m] if given.few else ())
    forward, backward = _kinds(given, ranks)
    turn_s = forward.base.at + backward.base.at
    ends_s = forward.ends_s(ranks) + backward.ends_s(ranks)
    busy = m * (v * turn_s + ends_s)
    there = Side(ranks, forward, backward, given)
    back = Side(ranks, backward, forward, given)
    waiting = busy + _missing_s(forward.base, backward.base, m, p, v)
    within = np.maximum(m / p - 2, 0.0)
    if within.any():
        waiting = waiting + within * gain_s(there, back, ends_s)
    step = longest(there.gates, waiting, back.gates)
    if (m < p).any():
        step = np.where(m < p, _one_group(there, back), step)
    return Solved(
        step_s=step,
        occupied_s=busy,
        messages=m * (2.0 * v - ranks.first - ranks.last),
    )


def _kinds(given: Pipelines, ranks: Ranks) -> tuple[Kind, Kind]:
    def kind(times: Times, first_hop_s: Floats | float, last_hop_s: Floats | float) -> Kind:
        apart = times.on_late is not None
        others_s, late_s = times.chunks_apart(given.chunks)
        base = given.arriving(ranks, others_s)
        last_s = times.on_last - last_hop_s
        late = given.arriving(ranks, late_s) if apart else base
        late = ranks.with_ends(late, np.zeros(last_s.shape), last_s)
        return Kind(
            base=base,
            late=late,
            late_s=late.at - base.at if apart else ranks.last * last_s,
            apart=apart,
            first_s=times.on_first - first_hop_s,
            round_s=base.total + given.beside_s,
        )

    hop = given.blocking_s
    return kind(given.forward, hop, 0.0), kind(given.backward, 0.0, hop)


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


def _one_group(there: Side, back: Side) -> Floats:
    """Fewer micro-batches than ranks: they go through the chunks one after the other.

    Each of the first v - 1 chunks takes a round of one micro-batch, or all of them on the slowest
    rank; then follows 1F1B. The embedding adds its own m passes where rank 0 is that slowest rank.
    """
    m, rounds, ranks = there.m, there.v - 1, there.ranks
    kinds = (there.kind, back.kind)
    apart = [np.maximum(kind.round_s, m * kind.base.at.max(axis=0)) * rounds for kind in kinds]
    none = np.zeros(there.p.shape)
    with_head = [kind.late for kind in kinds]
    with_ends = [ranks.with_ends(kind.late, kind.first_s, none) for kind in kinds]
    embedded = [
        np.maximum(time + kind.first_s, m * (rounds * kind.base.at[0] + kind.first_s))
        for time, kind in zip(apart, kinds, strict=True)
    ]
    return np.maximum(
        apart[0] + apart[1] + longest_1f1b(ranks, with_ends[0], with_ends[1], m, few=True),
        embedded[0] + embedded[1] + longest_1f1b(ranks, with_head[0], with_head[1], m, few=True),
    )
