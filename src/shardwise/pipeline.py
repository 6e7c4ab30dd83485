"""How long all micro-batches of a step take to pass through the stages."""

from collections.abc import Callable, Sequence

import numpy as np

from shardwise.arrays import Floats, Ints, gather, once_per, total
from shardwise.blocks import Blocks
from shardwise.cost.block import BlockTimes
from shardwise.schedule.pipelines import Times
from shardwise.schedule.step_time import StepTime, step_time
from shardwise.slowest import Boundary, SlowestStage
from shardwise.stages import StageRun
from shardwise.table import Table

__all__ = ["bubble_and_transfers"]


def bubble_and_transfers(
    table: Table, runs: Sequence[StageRun], slowest: SlowestStage, boundary: Boundary
) -> tuple[Floats, Floats]:
    """Time that the slowest stage waits in a step, and what of its transfers is exposed [s].

    The step is the closed form of the schedule; its passes on the slowest stage and the messages
    that this stage waits for beside no compute are taken from it, the rest is the bubble.
    """
    blocks = slowest.blocks
    hop_s = boundary.time_s
    _, hop = np.unique(hop_s, return_inverse=True)
    columns = (blocks.key, runs[0].key, table.micro_batches, hop, table.training)
    lengths = np.stack([run.length.astype(np.int64) for run in runs])
    forward = _times(blocks, runs, lambda part: part.forward_pass_s)
    input_grad = _times(blocks, runs, lambda part: part.backward_pass_s - part.weight_grad_s)
    weight_grad = _times(blocks, runs, lambda part: part.weight_grad_s)

    def of_rows(rows: Ints) -> StepTime:
        return step_time(
            schedule=table.schedule[rows],
            lengths=lengths[:, rows],
            forward=forward.take(rows),
            input_grad=input_grad.take(rows),
            weight_grad=weight_grad.take(rows),
            micro_batches=table.micro_batches[rows],
            chunks=table.vpp[rows],
            hop_s=hop_s[rows],
            hop_hidden=boundary.hidden[rows],
            training=table.training[rows],
        )

    distinct, where = once_per(columns, of_rows)
    found = gather(distinct, where)
    busy = table.micro_batches * slowest.on(lambda part: part.time_s)
    waiting = np.where(table.pp > 1, np.maximum(0.0, found.step_s - busy), 0.0)
    transfers = np.minimum(found.transfer_s, waiting)
    return waiting - transfers, transfers


def _times(
    blocks: Blocks, runs: Sequence[StageRun], select: Callable[[BlockTimes], Floats]
) -> Times:
    """One kind of pass on the layers of a stage of each run, and on embedding and head [s]."""
    kinds = len(blocks.layers) - 1
    columns = [None if part is None else select(part.times) for part in blocks.layers[:kinds]]
    zero = np.zeros_like(blocks.memory_rate)
    on_stage = [
        total(
            (n * column for n, column in zip(run.own, columns, strict=True) if column is not None),
            zero,
        )
        for run in runs
    ]
    on_last = select(blocks.head.times)
    if blocks.mtp is not None:
        modules = np.max([run.held[kinds] for run in runs], axis=0)
        on_last = on_last + modules * select(blocks.mtp.times)
    return Times(
        on_stage=np.stack(on_stage), on_first=select(blocks.embedding.times), on_last=on_last
    )
