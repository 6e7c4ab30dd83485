"""Closed forms of the pipeline schedules 1F1B and interleaved 1F1B."""

import numpy as np

from shardwise.arrays import Floats, Ints

__all__ = ["bubble_time", "first_chunk_in_flight", "in_flight"]


def bubble_time(
    *,
    stages: Ints,
    chunks: Ints,
    micro_batches: Ints,
    others_s: Floats,
    forward_s: Floats,
    backward_s: Floats,
    hop_s: Floats,
    hop_hidden: Floats,
) -> Floats:
    """Time the slowest stage waits in a step [s].

    With one chunk per stage, m equal micro-batches through stages of time t_i (forward and
    backward) take sum(t_i) + (m - 1) max(t_i), so the slowest stage waits sum(t_i) - max(t_i)
    (arXiv 2104.04473, section 2.2). With v chunks the pipeline fills v times faster: the wait is
    divided by v. Every hop from stage to stage delays filling and draining: p - 1 hops. Those that
    travel beside the compute, as interleaving lets them, are met by one micro-batch on its way
    through all chunks: p (v - 1) more.

    Interleaved groups are of p micro-batches. If the last has r < p, each chunk but one of a stage
    waits p - r passes for it to come around: (v - 1) (p - r) passes of a chunk, of forward and
    backward if it is the only group, else of the longer of the two, since the other one fills the
    gap. (Megatron-LM refuses such batches.)

    Exact for equal stages, and for a slowest last stage, as with the head. A slow early stage
    overlaps part of its wait: too long by at most (p - 1) / 2 of its passes. Interleaved, what only
    the first chunk does, as the embedding, is met whole: too short by at most p embeddings. After
    an incomplete group, and where interleaved stages are uneven: within p passes of a chunk, the
    head among them, either way.

    Parameters
    ----------
    stages, chunks, micro_batches
        p, v, m.
    others_s
        sum(t_i) - max(t_i) of one micro-batch, exchanges included [s].
    forward_s, backward_s
        Passes of one micro-batch on the slowest stage [s].
    hop_s
        A transfer to the next stage and the one back [s].
    hop_hidden
        Share of the transfers that travels beside the compute.
    """
    met = stages - 1 + hop_hidden * stages * (chunks - 1)
    missing = np.where(micro_batches % stages == 0, 0, stages - micro_batches % stages)
    only = micro_batches < stages
    passes_s = np.where(only, forward_s + backward_s, np.maximum(forward_s, backward_s))
    incomplete = (chunks - 1) * missing * passes_s / chunks
    return others_s / chunks + incomplete + met * hop_s


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


def first_chunk_in_flight(*, micro_batches: Ints, stages: Ints, chunks: Ints) -> Ints:
    """Micro-batches whose first chunk the first stage holds at its fullest.

    1F1B: min(m, p). Interleaved, a second group of p enters the first chunk before the first group
    has come back to it: min(m, 2 p).
    """
    return np.minimum(micro_batches, stages * np.where(chunks > 1, 2, 1))
