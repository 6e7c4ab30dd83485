"""Peak number of micro-batches whose activations a rank saves, for each schedule."""

from collections.abc import Callable, Mapping

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.enums import Schedule


def in_flight(
    *, schedule: Ints, micro_batches: Ints, stages: Ints, chunks: Ints, stage: Ints
) -> Floats:
    """Peak number of micro-batches whose activations a rank saves, in units of full stages.

    From the start of F to the end of W, or of a B that does both; the order alone decides,
    whatever the durations. 1F1B min(m, p - i), GPipe m, interleaved the warm-up and one more chunk
    (arXiv 2104.04473, section 2.2); ZB-H1 and ZB-V at most p (arXiv 2401.10241, table 2 and
    section 6); DualPipe p + 1 stages, of two copies (arXiv 2412.19437, table 2). A single stage
    runs each micro-batch forward and backward in turn with GPipe too.

    Parameters
    ----------
    schedule
        Position in `Schedule`.
    micro_batches, stages, chunks
        m, p, and v where interleaved.
    stage
        Rank i, from 0.
    """
    m, p, v, i = np.broadcast_arrays(micro_batches, stages, chunks, stage)
    return _chosen(
        np.broadcast_to(schedule, m.shape),
        {
            "1f1b": lambda: np.minimum(m, p - i),
            "interleaved": lambda: np.where(v > 1, _interleaved(m, p, v, i), np.minimum(m, p - i)),
            "gpipe": lambda: np.where(p > 1, m, 1),
            "zb-h1": lambda: np.minimum(m, p),
            "zb-v": lambda: (np.minimum(2 * p - 1 - i, m) + np.minimum(i + 1, m)) / 2,
            "dualpipe": lambda: p + 1,
        },
    )


def chunks_in_flight(
    *, schedule: Ints, micro_batches: Ints, stages: Ints, chunks: Ints, stage: Ints
) -> tuple[tuple[Floats, Floats], ...]:
    """Micro-batches saved by the first and by the second chunk of a rank at its possible peaks.

    ZB-V min(m, 2 p - 1 - i) and min(m, i + 1), or, once there are as many, 2 p - i and i, which is
    more where the first chunk is the larger one; DualPipe p - i and i + 1. Of other schedules the
    same number twice, in units of full stages.

    Parameters
    ----------
    schedule
        Code of `Schedule`; shape (rows,), as all columns below.
    micro_batches
        Micro-batches m of a step.
    stages
        Ranks p of the pipeline.
    stage
        Rank i of the pipeline, from 0.
    """
    m, p, i = micro_batches, stages, stage
    total = in_flight(schedule=schedule, micro_batches=m, stages=p, chunks=chunks, stage=stage)
    zb_v, dual = (schedule == Schedule(name).code for name in ("zb-v", "dualpipe"))
    if not np.any(zb_v | dual):
        return ((total, total),)
    first = np.where(zb_v, np.minimum(2 * p - 1 - i, m), np.where(dual, p - i, total))
    second = np.where(zb_v, np.minimum(i + 1, m), np.where(dual, i + 1, total))
    if not np.any(zb_v):
        return ((first, second),)
    later = zb_v & (m >= 2 * p - i)
    return (first, second), (np.where(later, 2 * p - i, first), np.where(later, i, second))


def peak_of_uneven_ends(
    saved: Floats,
    first: Floats,
    last: Floats,
    *,
    micro_batches: Ints,
    stages: Ints,
    chunks: Ints,
    stage: Ints,
) -> Floats:
    """`peak_of_uneven_chunks` where only the first and the last chunk differ from the others.

    The number in flight in the first and in the last chunk turns at few moments only.

    Parameters
    ----------
    saved, first, last
        Bytes saved by one micro-batch on all chunks, on the first and on the last of them, (rows,).
    micro_batches
        m, micro-batches per step; shape (n,).
    stages
        p, ranks of the pipeline; shape (n,).
    chunks
        v, chunks per rank; shape (n,).
    """
    m, p, v, i = micro_batches, stages, chunks, stage
    warm_up = 2 * (p - 1 - i) + 1
    within = np.where(v > 2, (saved - first - last) / np.maximum(v - 2, 1), last)  # noqa: PLR2004
    short, over = np.minimum(warm_up, p), np.maximum(warm_up - p, 0)
    more, less = first - within, last - within
    turns = (
        (p + over, short),
        (np.minimum(p + warm_up, 2 * p), 0 * p),
        (np.where(v > 2, 2 * p, p + short), over),  # noqa: PLR2004
        (np.where(warm_up < p, p + warm_up, 2 * p), over),
        (np.where(warm_up < p, p + warm_up, warm_up), np.where(warm_up < p, 0, p)),
    )
    most = np.maximum.reduce([a * more + b * less for a, b in turns])
    early = np.minimum(m, p) * (saved - last) + np.minimum(short, m) * last
    early = early + np.clip(np.minimum(over, m - p), 0, None) * first
    return np.where(m >= 2 * p, ((v - 1) * p + warm_up) * within + most, early)


def peak_of_uneven_chunks(
    saved: Floats, *, micro_batches: Ints, stages: Ints, chunks: Ints, stage: Ints
) -> Floats:
    """Peak of what the chunks of an interleaved rank save together, where they differ [bytes].

    After the warm-up the number in flight stays the same, but they move on: p at a time through
    each chunk, forward from the first one on, backward from the last one on. So the saved bytes
    peak where either direction comes to another chunk; with fewer than 2 p micro-batches, at the
    end of the warm-up.

    Parameters
    ----------
    saved
        Bytes saved by one micro-batch on each chunk, (chunks, rows).
    micro_batches
        m, micro-batches per step; shape (n,).
    stages
        p, ranks of the pipeline; shape (n,).
    chunks
        v, chunks per rank; shape (n,).
    """
    m, p, v, i = micro_batches, stages, chunks, stage
    warm_up = 2 * (p - 1 - i) + 1

    def of(chunk: Ints) -> Floats:
        found: Floats = np.take_along_axis(saved, np.atleast_2d(chunk % v), axis=0)
        return found

    before = np.arange(saved.shape[0])[:, np.newaxis] < v - 1
    now = np.minimum(m, p) * (before * saved).sum(axis=0)
    now = now + np.minimum(np.minimum(warm_up, p), m) * of(v - 1)[0]
    now = now + np.clip(np.minimum(warm_up - p, m - p), 0, None) * of(0 * v)[0]
    short = warm_up < p
    first = np.where(short, p - warm_up, 2 * p - warm_up)
    turn = np.arange(saved.shape[0])[:, np.newaxis]
    left, entered = of(v - 1 - turn), np.where(short, v - 1 + turn, v + turn)
    moves = [first * (of(entered) - left), (p - first) * (of(entered + 1) - left)]
    every = np.stack(moves, axis=1).reshape(2 * len(turn), -1)
    most = np.cumsum([now, *every], axis=0).max(axis=0)
    return np.where(m >= 2 * p, most, now)


def first_stage_in_flight(
    *, schedule: Ints, micro_batches: Ints, stages: Ints, chunks: Ints
) -> Floats:
    """Peak number of micro-batches that the first virtual stage saves.

    1F1B and ZB-H1 min(m, p), GPipe m where p > 1, ZB-V min(m, 2 p - 1), DualPipe p. Interleaved, a
    second group of p enters the first chunk before the first group has returned to it: min(m, 2 p).

    Parameters
    ----------
    schedule
        Code of `Schedule`; shape (rows,), as all columns below.
    micro_batches
        Micro-batches m of a step.
    stages
        Ranks p of the pipeline.
    """
    m, p = micro_batches, stages
    most = _chosen(
        schedule,
        {
            "1f1b": lambda: p,
            "interleaved": lambda: np.where(chunks > 1, 2, 1) * p,
            "gpipe": lambda: np.where(p > 1, m, 1),
            "zb-h1": lambda: p,
            "zb-v": lambda: 2 * p - 1,
            "dualpipe": lambda: p,
        },
    )
    return np.minimum(m, most)


def _chosen(schedule: Ints, formulas: Mapping[str, Callable[[], Floats | Ints]]) -> Floats:
    """Evaluate each row by the formula of its schedule, 0 without one."""
    found = np.zeros(schedule.shape)
    for code, name in enumerate(Schedule):
        rows = schedule == code
        if name in formulas and rows.any():
            found = np.where(rows, formulas[name](), found)
    return found


def _interleaved(m: Ints, p: Ints, v: Ints, i: Ints) -> Floats:
    """(2 (p - 1 - i) + (v - 1) p + 1) / v places in the order, less those of missing micro-batches.

    The places belong to the first group, p in every chunk, and to the second one's first chunk.
    """
    places = np.minimum(2 * (p - 1 - i) + (v - 1) * p + 1, 2 * v * p)
    first, second = np.minimum(places, v * p), np.maximum(places - v * p, 0)
    chunk, place = np.divmod(first, p)
    of_first = chunk * np.minimum(m, p) + np.minimum(place, m)
    return (of_first + np.minimum(second, np.maximum(m - p, 0))) / v
