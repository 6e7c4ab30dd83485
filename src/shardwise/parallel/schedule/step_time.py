"""Time of a step by the closed form of each row's schedule."""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather
from shardwise.config.enums import Schedule
from shardwise.parallel.schedule.dualpipe import dualpipe
from shardwise.parallel.schedule.gpipe_1f1b import forward_only, gpipe, one_f_one_b
from shardwise.parallel.schedule.interleaved import interleaved
from shardwise.parallel.schedule.longest_path import TOLERANCE, ranks_sampled
from shardwise.parallel.schedule.pipelines import Pipelines, Solution, Times
from shardwise.parallel.schedule.zero_bubble import zb_h1, zb_v
from shardwise.records import dataclass, replace

Solver = Callable[[Pipelines], Solution]

_SOLVERS: dict[str, Solver] = {
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "gpipe": gpipe,
    "zb-h1": zb_h1,
    "zb-v": zb_v,
    "dualpipe": dualpipe,
}
_1F1B, _INTERLEAVED = Schedule.ONE_F_ONE_B.code, Schedule.INTERLEAVED.code

# So many rows stay in the cache: measured, blocks of 10,000 take up to twice as long by row.
_BLOCK = 2048


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Time of a step, and of its slowest rank [s]; one value per row."""

    step_s: Floats
    """From the first pass to the end of the last one on any rank."""
    busy_s: Floats
    """In passes, on the rank that spends most in them."""
    transfer_s: Floats
    """In messages that this rank waits for and no compute hides; of equal ranks, the most."""

    @property
    def bubble_s(self) -> Floats:
        """The rest of the step on that rank."""
        return self.step_s - self.busy_s - self.transfer_s


def step_time(
    *,
    schedule: Ints,
    group_sizes: Ints,
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
    """Time of a step through pipelines of G groups of equal stages; cost grows with G alone.

    Exact for equal stages, but for interleaved ones with an incomplete group; for 1F1B, GPipe,
    ZB-H1 and, without chunks, forward only with any stages. The error of the others on uneven
    stages stands with each of them: on average below 0.05 %, short rather than long. Rows must be
    such as `orders` accepts.

    Parameters
    ----------
    schedule
        Position in `Schedule`, (rows,).
    group_sizes
        Stages in each group, 0 for none, (G, rows).
    forward, input_grad, weight_grad
        Time of one micro-batch [s].
    micro_batches, chunks
        m, and v where interleaved, (rows,).
    hop_hidden
        Share of the messages that overlap compute, (rows,). The others occupy the rank that
        receives them: between all and none of them, times are interpolated.
    pair_share
        Time of DualPipe's overlapped forward and backward over the sum of both; None is 1.
    training
        False where the step goes forward only, whatever the schedule; None is True.
    """
    rows = micro_batches.shape[0]
    p = group_sizes.sum(axis=0)
    pipelines = Pipelines(
        group_sizes=group_sizes,
        forward=forward,
        input_grad=input_grad,
        weight_grad=weight_grad,
        micro_batches=micro_batches,
        chunks=chunks,
        hop_s=np.where(p > 1, hop_s, 0.0),
        few_batches=False,
        blocking=False,
        pair_share=np.ones(rows) if pair_share is None else pair_share,
    )
    equal_chunks = pipelines.with_equal_chunks()
    result = StepTime(step_s=np.zeros(rows), busy_s=np.zeros(rows), transfer_s=np.zeros(rows))
    codes = np.where((schedule == _INTERLEAVED) & (chunks == 1), _1F1B, schedule)
    # Above this many, the first backward of every rank comes before its last forward; interleaved
    # passes of the second group come before the last but one.
    few = micro_batches <= np.where(schedule == _INTERLEAVED, 3 * p - 1, 2 * p)
    backward = np.ones(rows, dtype=np.bool_) if training is None else training
    _solve(forward_only, pipelines, ~backward, hop_hidden, result)
    for code, name in enumerate(Schedule):
        for few_batches in (False, True):
            chosen = backward & (codes == code) & (few == few_batches)
            for uneven in (False, True):
                selected = chosen & (pipelines.uneven_chunks == uneven)
                if selected.any():
                    kind = replace(pipelines if uneven else equal_chunks, few_batches=few_batches)
                    _solve(_SOLVERS[name], kind, selected, hop_hidden, result)
    return result


def _solve(
    solver: Solver, pipelines: Pipelines, chosen: Bools, hop_hidden: Floats, result: StepTime
) -> None:
    """Fill in the chosen rows, block by block."""
    rows = np.flatnonzero(chosen)
    if rows.size > _BLOCK:
        rows = rows[np.argsort(ranks_sampled(pipelines.group_sizes[:, rows]), kind="stable")]
    for start in range(0, rows.size, _BLOCK):
        block = rows[start : start + _BLOCK]
        _solve_block(solver, _take(pipelines, block), hop_hidden[block], block, result)


def _solve_block(
    solver: Solver, pipelines: Pipelines, hidden: Floats, rows: Ints, result: StepTime
) -> None:
    """Interpolate between messages that all overlap compute and messages that all block."""
    if pipelines.hop_s.any():
        ways = [
            (solver(replace(pipelines, blocking=blocking)), share, blocking)
            for blocking, share in ((False, hidden), (True, 1 - hidden))
            if (share > 0).any()
        ]
    else:
        ways = [(solver(pipelines), np.ones(rows.size), False)]
    solution, _, blocking = ways[0]
    messages_s = solution.messages * pipelines.hop_s
    busy = solution.occupied_s - (messages_s if blocking else 0.0)
    exposed_s = (1 - hidden) * messages_s
    busiest = busy >= busy.max(axis=0) * (1 - TOLERANCE)
    critical = np.argmax(np.where(busiest, exposed_s, -1.0), axis=0)[None]
    result.step_s[rows] = sum(share * way.step_s for way, share, _ in ways)
    result.busy_s[rows] = np.take_along_axis(busy, critical, axis=0)[0]
    result.transfer_s[rows] = np.take_along_axis(exposed_s, critical, axis=0)[0]


def _take(pipelines: Pipelines, rows: Ints) -> Pipelines:
    """Some rows of pipelines."""
    return replace(
        pipelines,
        group_sizes=pipelines.group_sizes[:, rows],
        forward=pipelines.forward.take(rows),
        input_grad=pipelines.input_grad.take(rows),
        weight_grad=pipelines.weight_grad.take(rows),
        micro_batches=gather(pipelines.micro_batches, rows),
        chunks=gather(pipelines.chunks, rows),
        hop_s=gather(pipelines.hop_s, rows),
        pair_share=gather(pipelines.pair_share, rows),
    )
