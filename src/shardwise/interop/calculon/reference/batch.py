"""One step of the whole model on processor 0 (sections 1.5 and 1.11 of the specification).

Calculon 0.1.0, commit caa4b11.
"""

from dataclasses import dataclass

from shardwise.arrays import Floats, Ints, gather, once_per, total
from shardwise.interop.calculon.files import CalculonModel, CalculonSystem
from shardwise.interop.calculon.reference.block import (
    BlockSpaces,
    BlockTimes,
    Pass,
    block_spaces,
    block_times,
    operation_times,
    operations_of,
    summed,
)
from shardwise.interop.calculon.reference.columns import Columns
from shardwise.interop.calculon.reference.data_parallel import DataParallel, data_parallel
from shardwise.interop.calculon.reference.depth import Depth, depth_of
from shardwise.interop.calculon.reference.memory import Memory, memory_of
from shardwise.interop.calculon.reference.offload import (
    OffloadNeeds,
    Walls,
    bandwidth_needs,
    overheads,
    transfers_of,
)
from shardwise.interop.calculon.reference.optimizer import optimizer_pass
from shardwise.interop.calculon.reference.pipeline import (
    StageTransfer,
    added,
    bubble_time,
    per_chunk,
    stage_transfer,
    walls_of,
)

__all__ = ["Batch", "Holding", "StepTimes", "batch_of", "holding_of"]

# What a block's spaces and times depend on: evaluated once per distinct value.
_SPACE_KEYS = (
    "tensor_par",
    "microbatch_size",
    "datatype",
    "fused_activation",
    "attention_type",
    "activation_recompute",
    "tensor_par_comm_type",
    "tensor_par_overlap",
    "seq_par_ag_redo",
    "training",
)
_TIME_KEYS = (*_SPACE_KEYS, "tensor_par_net")
_OPTIMIZER_KEYS = ("tensor_par", "datatype", "attention_type", "tensor_par_overlap", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a row holds; known before anything is timed."""

    depth: Depth
    spaces: BlockSpaces
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Parts of a step that add up to its total [s], and link times."""

    fw: Floats
    bw: Floats
    optimizer: Floats
    recompute: Floats
    recomm: Floats
    bubble: Floats
    tp: Floats
    pp: Floats
    dp: Floats
    fw_offload: Floats
    bw_offload: Floats
    recomm_link: Floats
    tp_link: Floats
    total: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All that the statistics are made of."""

    holding: Holding
    block: BlockTimes
    optimizer: Pass
    transfer: StageTransfer
    exchange: DataParallel
    offload: OffloadNeeds
    step: StepTimes


def holding_of(model: CalculonModel, columns: Columns) -> Holding:
    """Memory of each row."""

    def evaluate(rows: Ints) -> BlockSpaces:
        some = gather(columns, rows)
        operations, shape = operations_of(model, some)
        return block_spaces(operations, shape, some)

    spaces = gather(*once_per([getattr(columns, name) for name in _SPACE_KEYS], evaluate))
    depth = depth_of(model, columns)
    return Holding(depth=depth, spaces=spaces, memory=memory_of(spaces, depth, columns))


def batch_of(
    model: CalculonModel, system: CalculonSystem, columns: Columns, holding: Holding
) -> Batch:
    """Time each row."""
    depth, block = holding.depth, holding.memory.block
    times = _block_times(model, system, columns)
    optimizer = _optimizer(model, system, columns)
    transfer = stage_transfer(model, columns, system)
    bare = walls_of(times, transfer)
    moved = transfers_of(holding.spaces, block, columns)
    more = overheads(moved, bare, times, system)
    walls = added(bare, more)
    exchange = data_parallel(block, times, optimizer, walls, transfer, depth, columns, system)
    bubble = bubble_time(model, walls, depth, columns)
    return Batch(
        holding=holding,
        block=times,
        optimizer=optimizer,
        transfer=transfer,
        exchange=exchange,
        offload=bandwidth_needs(moved, block, bare, times, columns),
        step=_step_times(times, optimizer, transfer, more, exchange, bubble, depth, columns),
    )


def _block_times(model: CalculonModel, system: CalculonSystem, columns: Columns) -> BlockTimes:
    def evaluate(rows: Ints) -> BlockTimes:
        some = gather(columns, rows)
        operations, shape = operations_of(model, some)
        return block_times(operations, operation_times(operations, shape, some, system), some)

    return gather(*once_per([getattr(columns, name) for name in _TIME_KEYS], evaluate))


def _optimizer(model: CalculonModel, system: CalculonSystem, columns: Columns) -> Pass:
    def evaluate(rows: Ints) -> Pass:
        some = gather(columns, rows)
        operations, _ = operations_of(model, some)
        return summed(optimizer_pass(operations.weights, some, system))

    keys = [getattr(columns, name) for name in _OPTIMIZER_KEYS]
    return gather(*once_per([*keys, columns.optimizer_shards], evaluate))


def _step_times(
    block: BlockTimes,
    optimizer: Pass,
    transfer: StageTransfer,
    offload: Walls,
    exchange: DataParallel,
    bubble: Floats,
    depth: Depth,
    columns: Columns,
) -> StepTimes:
    """Parts of the step.

    Work: k_p N blocks, the optimizer k_p. Communication and offload: N v chunks of k - 1 base
    blocks and an edge block. Transfers between stages are never hidden.
    """
    runs = depth.blocks * depth.microbatches
    chunk_runs = depth.microbatches * depth.chunks

    def chunked(base: Floats, edge: Floats) -> Floats:
        return chunk_runs * per_chunk(base, edge, depth)

    (fw_base, fw_edge), (bw_base, bw_edge) = block.fw_tp, block.agrad_tp
    again_base, again_edge = block.recomm
    piped = columns.pipeline_par > 1
    handed = piped * transfer.fw_s + (piped & columns.training) * transfer.bw_s
    parts = {
        "fw": runs * block.fw.time,
        "bw": runs * (block.agrad.time + block.wgrad.time),
        "optimizer": depth.blocks * optimizer.time,
        "fw_offload": chunked(offload.fw_base, offload.fw_edge),
        "bw_offload": chunked(offload.bw_base, offload.bw_edge),
        "recompute": runs * block.re.time,
        "recomm": chunked(again_base.exposed, again_edge.exposed),
        "bubble": bubble,
        "tp": chunked(fw_base.exposed, fw_edge.exposed) + chunked(bw_base.exposed, bw_edge.exposed),
        "pp": chunk_runs * handed,
        "dp": exchange.exposed,
    }
    return StepTimes(
        **parts,
        recomm_link=chunked(again_base.time, again_edge.time),
        tp_link=chunked(fw_base.time, fw_edge.time) + chunked(bw_base.time, bw_edge.time),
        total=total(parts.values(), bubble),
    )
