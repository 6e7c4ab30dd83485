"""How many micro-batches' activations a rank keeps at its fullest, for each schedule."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.schedule.orders import SCHEDULES

__all__ = ["InFlight", "chunks_in_flight", "first_stage_in_flight", "in_flight"]


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """Micro-batches in units of whole stages, by row."""

    kept: Floats
    """Most between the start of F and the end of W, or of a B that does both."""
    waiting: Floats
    """Most at once that have done B and not yet W, the one whose W comes next among them: they
    hold only the inputs of weighted products and the gradients of their outputs."""


def in_flight(
    *, schedule: Ints, micro_batches: Ints, stages: Ints, chunks: Ints, stage: Ints
) -> InFlight:
    """Peaks on a rank: they follow from the order alone, whatever the passes take.

    1F1B min(m, p - i), GPipe m, interleaved the warm-up and one more chunk (arXiv 2104.04473,
    section 2.2); ZB-H1 and ZB-V at most p (arXiv 2401.10241, table 2 and section 6); DualPipe
    p + 1 stages, of two copies (arXiv 2412.19437, table 2).

    Parameters
    ----------
    schedule
        Position in `SCHEDULES`.
    micro_batches, stages, chunks
        m, p, and v where interleaved.
    stage
        Rank i, from 0.
    """
    m, p, v, i = micro_batches, stages, chunks, stage
    none = np.zeros(np.broadcast(schedule, m, p, v, i).shape)
    plain = np.minimum(m, p - i)
    depth = np.minimum(i, p - 1 - i)
    kept = {
        "1f1b": plain,
        "interleaved": np.where(v > 1, _interleaved(m, p, v, i), plain),
        "gpipe": m,
        "zb-h1": np.minimum(m, p),
        "zb-v": (np.minimum(2 * p - 1 - i, m) + np.minimum(i + 1, m)) / 2,
        "dualpipe": p + 1,
    }
    waiting = {
        "zb-h1": np.minimum(i + 1, m),
        "zb-v": _late_in_v(m, p, i),
        "dualpipe": depth + 1,
    }
    return InFlight(
        kept=_chosen(schedule, {name: kept[name] + none for name in SCHEDULES}),
        waiting=_chosen(schedule, {name: waiting.get(name, 0) + none for name in SCHEDULES}),
    )


def chunks_in_flight(
    *, schedule: Ints, micro_batches: Ints, stages: Ints, chunks: Ints, stage: Ints
) -> tuple[Floats, Floats]:
    """Micro-batches kept by the first and by the second chunk of a rank when it keeps most.

    ZB-V min(m, 2 p - 1 - i) and min(m, i + 1), DualPipe p - i and i + 1: their chunks are unlike
    each other. Of other schedules the same number twice, in units of whole stages.
    """
    m, p, i = micro_batches, stages, stage
    whole = in_flight(schedule=schedule, micro_batches=m, stages=p, chunks=chunks, stage=stage).kept
    zb_v, dual = (schedule == SCHEDULES.index(name) for name in ("zb-v", "dualpipe"))
    first = np.where(zb_v, np.minimum(2 * p - 1 - i, m), np.where(dual, p - i, whole))
    second = np.where(zb_v, np.minimum(i + 1, m), np.where(dual, i + 1, whole))
    return first * 1.0, second * 1.0


def first_stage_in_flight(
    *, schedule: Ints, micro_batches: Ints, stages: Ints, chunks: Ints
) -> Ints:
    """Micro-batches that the first virtual stage keeps at its fullest.

    1F1B and ZB-H1 min(m, p), GPipe m, ZB-V min(m, 2 p - 1), DualPipe p. Interleaved, a second group
    of p enters the first chunk before the first group has come back to it: min(m, 2 p).
    """
    m, p = micro_batches, stages
    most = {
        "1f1b": p,
        "interleaved": np.where(chunks > 1, 2, 1) * p,
        "gpipe": m,
        "zb-h1": p,
        "zb-v": 2 * p - 1,
        "dualpipe": p,
    }
    columns = [np.minimum(m, most[name] + np.zeros_like(m)) for name in SCHEDULES]
    return np.choose(schedule, columns)


def _chosen(schedule: Ints, columns: dict[str, Floats]) -> Floats:
    return np.choose(schedule, [columns[name] for name in SCHEDULES])


def _interleaved(m: Ints, p: Ints, v: Ints, i: Ints) -> Floats:
    """2 (p - 1 - i) + (v - 1) p + 1 places of the order, over v, less those that stay empty.

    Those places are of the first group, p in every chunk, and of the second one's first chunk.
    """
    places = np.minimum(2 * (p - 1 - i) + (v - 1) * p + 1, 2 * v * p)
    first, second = np.minimum(places, v * p), np.maximum(places - v * p, 0)
    chunk, place = np.divmod(first, p)
    of_first = chunk * np.minimum(m, p) + np.minimum(place, m)
    return (of_first + np.minimum(second, np.maximum(m - p, 0))) / v


def _late_in_v(m: Ints, p: Ints, i: Ints) -> Floats:
    """Backwards of ZB-V's end that come before their W: i of either chunk and one more."""
    n = np.maximum(m, 2 * p - 1)
    up, down = np.clip(m - n + p, 0, i), np.clip(m - n + i, 0, i)
    return np.maximum(up + down + (m > n - p + i), 1) / 2
