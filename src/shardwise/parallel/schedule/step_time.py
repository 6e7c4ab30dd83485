"""Time of a step by the closed form of each row's schedule."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather
from shardwise.parallel.schedule.dualpipe import dualpipe
from shardwise.parallel.schedule.forward_only import forward_only
from shardwise.parallel.schedule.gpipe_1f1b import gpipe, one_f_one_b
from shardwise.parallel.schedule.interleaved import interleaved
from shardwise.parallel.schedule.orders import SCHEDULES
from shardwise.parallel.schedule.paths import SAME
from shardwise.parallel.schedule.pipelines import Pipelines, Solved, Times
from shardwise.parallel.schedule.zb_h1 import zb_h1
from shardwise.parallel.schedule.zb_v import zb_v

__all__ = ["StepTime", "step_time"]

_SOLVERS: dict[str, Callable[[Pipelines], Solved]] = {
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "gpipe": gpipe,
    "zb-h1": zb_h1,
    "zb-v": zb_v,
    "dualpipe": dualpipe,
}


# So many rows stay in the cache: measured, blocks of 10,000 take up to twice as long by row.
_BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Time of a step, and of its slowest rank [s]; one value per row."""

    step_s: Floats
    """From the first pass to the end of the last one on any rank."""
    busy_s: Floats
    """In passes, on the rank that spends most in them."""
    transfer_s: Floats
    """In messages that this rank waits for beside no compute; of equal ranks, most."""

    @property
    def bubble_s(self) -> Floats:
        """The rest of the step on that rank."""
        return self.step_s - self.busy_s - self.transfer_s


def step_time(
    *,
    schedule: Ints,
    lengths: Ints,
    forward: Times,
    input_grad: Times,
    weight_grad: Times,
    micro_batches: Ints,
    chunks: Ints,
    hop_s: Floats,
    hop_hidden: Floats,
    pair_share: Floats | None = None,
    training: Bools | None = None,
) -> StepTime:
    """Time of a step through pipelines of R runs of equal stages; cost grows with R alone.

    Exact for equal stages, but for interleaved ones with an incomplete group; for 1F1B, GPipe,
    ZB-H1 and, without chunks, forward only with any stages. What the others miss on uneven stages
    stands with each of them: on average below 0.05 %, short rather than long. Rows must be such as
    `orders` accepts.

    Parameters
    ----------
    schedule
        Position in `SCHEDULES`, by row.
    lengths
        Stages in each run, 0 for none, (R, rows).
    forward, input_grad, weight_grad
        Seconds of one micro-batch.
    micro_batches, chunks
        m, and v where interleaved.
    hop_s
        Time of a message from rank to rank [s].
    hop_hidden
        Share of the messages that travel beside compute. The others occupy the rank that receives
        them: between all and none of them, times are interpolated.
    pair_share
        Time of DualPipe's overlapped forward and backward over the sum of both; None is 1.
    training
        False where the step goes forward only, whatever the schedule; None is True.
    """
    rows = micro_batches.shape[0]
    whole = Pipelines(
        lengths=lengths,
        forward=forward,
        input_grad=input_grad,
        weight_grad=weight_grad,
        micro_batches=micro_batches,
        chunks=chunks,
        hop_s=np.where(lengths.sum(axis=0) > 1, hop_s, 0.0),
        few=False,
        blocking=False,
        pair_share=np.ones(rows) if pair_share is None else pair_share,
    )
    like = whole.with_like_chunks()
    found = StepTime(step_s=np.zeros(rows), busy_s=np.zeros(rows), transfer_s=np.zeros(rows))
    plain = (schedule == SCHEDULES.index("interleaved")) & (chunks == 1)
    codes = np.where(plain, SCHEDULES.index("1f1b"), schedule)
    # Above this many, the first backward of every rank comes before its last forward; interleaved
    # passes of the second group come before the last but one.
    p = lengths.sum(axis=0)
    bound = np.where(schedule == SCHEDULES.index("interleaved"), 3 * p - 1, 2 * p)
    back = np.ones(rows, dtype=np.bool_) if training is None else training
    _solve(forward_only, whole, ~back, hop_hidden, found)
    for code, name in enumerate(SCHEDULES):
        for few in (False, True):
            chosen = back & (codes == code) & ((micro_batches <= bound) == few)
            for unlike in (False, True):
                part = whole if unlike else like
                rows = chosen & (whole.unlike_chunks == unlike)
                if rows.any():
                    _solve(_SOLVERS[name], replace(part, few=few), rows, hop_hidden, found)
    return found


def _solve(
    solver: Callable[[Pipelines], Solved],
    whole: Pipelines,
    chosen: Bools,
    hop_hidden: Floats,
    found: StepTime,
) -> None:
    """Fill in the chosen rows, block by block."""
    rows = np.flatnonzero(chosen)
    for start in range(0, rows.size, _BLOCK):
        _solve_block(solver, whole, rows[start : start + _BLOCK], hop_hidden, found)


def _solve_block(
    solver: Callable[[Pipelines], Solved],
    whole: Pipelines,
    at: Ints,
    hop_hidden: Floats,
    found: StepTime,
) -> None:
    given = _rows(whole, at)
    hidden = hop_hidden[at]
    free = not given.hop_s.any()
    ways = [
        (solver(replace(given, blocking=blocking)), share, blocking)
        for blocking, share in ((False, hidden), (True, 1 - hidden))
        if (share > 0).any() or (free and not blocking)
    ]
    if free:
        ways = [(ways[0][0], np.ones(at.size), ways[0][2])]
    solved, _, blocking = ways[0]
    messages_s = solved.messages * given.hop_s
    busy = solved.occupied_s - (messages_s if blocking else 0.0)
    met_s = (1 - hidden) * messages_s
    most = busy >= busy.max(axis=0) * (1 - SAME)
    slowest = np.argmax(np.where(most, met_s, -1.0), axis=0)[None]
    found.step_s[at] = sum(share * way.step_s for way, share, _ in ways)
    found.busy_s[at] = np.take_along_axis(busy, slowest, axis=0)[0]
    found.transfer_s[at] = np.take_along_axis(met_s, slowest, axis=0)[0]


def _rows(whole: Pipelines, at: Ints) -> Pipelines:
    columns = {
        name: gather(getattr(whole, name), at)
        for name in ("micro_batches", "chunks", "hop_s", "pair_share")
    }
    return Pipelines(
        lengths=whole.lengths[:, at],
        forward=whole.forward.take(at),
        input_grad=whole.input_grad.take(at),
        weight_grad=whole.weight_grad.take(at),
        few=whole.few,
        blocking=whole.blocking,
        **columns,
    )
