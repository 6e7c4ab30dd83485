"""Closed forms of the pipeline schedules 1F1B and interleaved 1F1B."""

import numpy as np

from shardwise.arrays import Floats, Ints

__all__ = ["bubble_time", "in_flight"]


def bubble_time(
    *,
    micro_batches: Ints,
    stages: Ints,
    chunks: Ints,
    stage_sum_s: Floats,
    slowest_s: Floats,
    hop_s: Floats,
) -> Floats:
    """Time the slowest stage waits in a step [s].

    With one chunk per stage, m equal micro-batches through stages of time t_i (forward and
    backward) take sum(t_i) + (m - 1) max(t_i), so the slowest stage waits sum(t_i) - max(t_i)
    (arXiv 2104.04473, section 2.2). With v chunks the pipeline fills v times faster: the wait is
    divided by v. Where m is not a multiple of the p stages, each of the v - 1 further rounds waits
    for (p - m mod p) chunks. Every hop from stage to stage delays filling and draining.

    Parameters
    ----------
    micro_batches, stages, chunks
        m, p, v.
    stage_sum_s, slowest_s
        sum(t_i) and max(t_i) of one micro-batch, exchanges included [s].
    hop_s
        A transfer to the next stage and the one back [s].
    """
    filling = (stage_sum_s - slowest_s) / chunks
    ragged = np.where((micro_batches % stages != 0) & (chunks > 1), 1.0, 0.0)
    missing = ragged * (chunks - 1) * (stages - micro_batches % stages)
    return filling + missing * slowest_s / chunks + (stages - 1) * hop_s


def in_flight(*, micro_batches: Ints, stages: Ints, chunks: Ints, stage: Ints) -> Floats:
    """Micro-batches whose activations a stage holds at its fullest, in units of whole stages.

    1F1B: min(m, p - i) on stage i. Interleaved: 2 (p - 1 - i) + (v - 1) p chunks are forwarded
    before the first backward, one more is under way; at most all m v of them (Megatron-LM's
    warm-up, arXiv 2104.04473, section 2.2).

    Parameters
    ----------
    micro_batches, stages, chunks
        m, p, v.
    stage
        i, from 0.
    """
    plain = np.minimum(micro_batches, stages - stage)
    warm_up = 2 * (stages - 1 - stage) + (chunks - 1) * stages + 1
    interleaved = np.minimum(micro_batches * chunks, warm_up) / chunks
    return np.where(chunks > 1, interleaved, plain).astype(np.float64)
