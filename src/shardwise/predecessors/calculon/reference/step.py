"""One step of the model on processor 0 (sections 1.5, 1.7 and 1.11 of the specification).

Calculon 0.1.0, commit caa4b11. Data-parallel communication of gradients and weights may be hidden.
"""

import operator
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, combined, gather, total
from shardwise.distinct import distinct_rows
from shardwise.predecessors.calculon.files import CalculonModel, CalculonSystem
from shardwise.predecessors.calculon.reference.block import (
    BlockSpaces,
    BlockTimes,
    Pass,
    block_spaces,
    block_times,
    operation_times,
    operations_of,
    optimizer_pass,
    summed,
)
from shardwise.predecessors.calculon.reference.columns import Columns
from shardwise.predecessors.calculon.reference.memory import (
    BlockMemory,
    Depth,
    Memory,
    depth_of,
    memory_of,
)
from shardwise.predecessors.calculon.reference.pipeline import (
    OffloadNeeds,
    StageTransfer,
    Walls,
    bandwidth_needs,
    bubble_time,
    overheads,
    per_chunk,
    stage_transfer,
    transfers_of,
    walls_of,
)
from shardwise.predecessors.calculon.reference.times import (
    network_time,
    processor_usage,
    volume_factor,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """Data-parallel communication of one step."""

    size: Floats
    """Bytes per block; gradients travel in the datatype."""
    link: Floats
    exposed: Floats
    """Time [s]."""
    chunk_bandwidth: Floats
    tail_bandwidth: Floats
    """Bandwidth that hides the communication of the first chunks, and of the last [byte/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overlap:
    """What data-parallel communication may hide behind, by the names of the specification."""

    t: Floats
    """Communication of one block [s]."""
    chunk: Floats
    """w: window of one chunk [s]."""
    tail: Floats
    """w_l: window of the last chunk [s]."""
    compute: Floats
    """c_b: compute time of one block, which communication slows by `usage` [s]."""
    usage: Floats
    """u."""
    chunk_bw: Floats
    """Wall time of a chunk's backward pass [s]."""


def data_parallel(
    block: BlockMemory,
    times: BlockTimes,
    optimizer: Pass,
    walls: Walls,
    transfer: StageTransfer,
    depth: Depth,
    columns: Columns,
    system: CalculonSystem,
) -> DataParallel:
    """Times of the communication; none without replicas or without training."""
    c = columns
    active = c.training & (c.data_par > 1)
    size = block.weights * active
    t = _block_communication(block.weights, c, system) * active
    overlap = _overlap(t, times, optimizer, walls, transfer, depth, c, system)
    first = _first_chunks(overlap, transfer, depth, c)
    last = _last_chunk(overlap, depth)
    hidden = active & c.data_par_overlap
    link = depth.blocks * t
    chunk_need, tail_need = _needs(size, overlap, transfer, depth, c, system)
    return DataParallel(
        size=size,
        link=link,
        exposed=np.where(hidden, t + first + last, link),
        chunk_bandwidth=np.where(hidden, chunk_need, 0.0),
        tail_bandwidth=np.where(hidden, tail_need, 0.0),
    )


def _block_communication(size: Floats, columns: Columns, system: CalculonSystem) -> Floats:
    """Reduce-scatter and all-gather if the optimizer is sharded, else an all-reduce [s]."""
    scatter, gather, reduce = (
        network_time(size, operation, columns.data_par, system, columns.data_par_net)
        for operation in ("reduce_scatter", "all_gather", "all_reduce")
    )
    return np.where(columns.optimizer_sharding, scatter + gather, reduce)


def _overlap(
    t: Floats,
    times: BlockTimes,
    optimizer: Pass,
    walls: Walls,
    transfer: StageTransfer,
    depth: Depth,
    columns: Columns,
    system: CalculonSystem,
) -> _Overlap:
    """Windows: backward wall time less the time that memory is busy.

    The memory time of recompute is inflated [Q9]. An optimizer that is not sharded runs within
    the window. Tensor-parallel traffic on the same network shortens it by its time.
    """
    c = columns
    step = np.where(c.optimizer_sharding, 0.0, optimizer.time - optimizer.mem_time)
    slowed = np.where(c.optimizer_sharding, 0.0, optimizer.flops_time)
    busy = times.agrad.mem_time + times.wgrad.mem_time + times.re.mem_time
    shared = c.data_par_net == c.tensor_par_net
    base, edge = (
        wall - busy + step - np.where(shared, again.time + agrad.time, 0.0)
        for wall, again, agrad in zip(
            (walls.bw_base, walls.bw_edge), times.recomm, times.agrad_tp, strict=True
        )
    )
    chunk = per_chunk(base, edge, depth)
    tail = chunk - transfer.bw_s - (walls.bw_base + walls.bw_edge) / 2 + step
    return _Overlap(
        t=t,
        chunk=chunk,
        tail=np.where(depth.chunk_blocks > 1, tail, 0.0),
        compute=times.agrad.flops_time + times.wgrad.flops_time + times.re.flops_time + slowed,
        usage=processor_usage(system, c.data_par_net),
        chunk_bw=per_chunk(walls.bw_base, walls.bw_edge, depth),
    )


def _first_chunks(o: _Overlap, transfer: StageTransfer, depth: Depth, columns: Columns) -> Floats:
    """Exposed time [s] of all chunks but the last.

    I = c_t - (P w - n_c pB) + P k c_b u; (v - 1) I if I > 0, else (v - 1) c_t u, where c_t = k t
    and n_c counts collisions with transfers between stages on the same network.
    """
    stages = columns.pipeline_par
    communication = depth.chunk_blocks * o.t
    per_round = np.where(depth.microbatches % stages > 0, depth.microbatches % stages, stages)
    met = np.minimum(np.floor(communication / np.where(o.chunk_bw > 0, o.chunk_bw, 1.0)), per_round)
    collisions = np.where(_same_network(columns), met, 0.0)
    slowdown = stages * depth.chunk_blocks * o.compute * o.usage
    idle = communication - (stages * o.chunk - collisions * transfer.bw_s) + slowdown
    exposed: Floats = np.where(idle > 0, idle, communication * o.usage)
    return (depth.chunks - 1) * exposed


def _last_chunk(o: _Overlap, depth: Depth) -> Floats:
    """Exposed time [s] of the last chunk but its last block, which is never hidden.

    I = (k - 1) t + c_b u - w_l; I if I > 0, else (k - 1) t u.
    """
    communication = (depth.chunk_blocks - 1) * o.t
    idle = communication + o.compute * o.usage - o.tail
    return np.where(idle > 0, idle, communication * o.usage)


def _needs(
    size: Floats,
    o: _Overlap,
    transfer: StageTransfer,
    depth: Depth,
    columns: Columns,
    system: CalculonSystem,
) -> tuple[Floats, Floats]:
    """Bandwidth needed: k W_b sigma / window [byte/s].

    For the first chunks the window spans v - 1 of them, the bytes are those of one [Q10].
    """
    c, k = columns, depth.chunk_blocks
    scatter, gather, reduce = (
        volume_factor(operation, system, c.data_par_net)
        for operation in ("reduce_scatter", "all_gather", "all_reduce")
    )
    sent = k * size * np.where(c.optimizer_sharding, scatter + gather, reduce)
    slowdown = c.pipeline_par * k * o.compute * o.usage
    collision = np.where(_same_network(c), transfer.bw_s, 0.0)
    chunk = (depth.chunks - 1) * (c.pipeline_par * o.chunk + slowdown - collision)
    tail = o.tail + (k - 1) * o.t * o.usage
    return _over_positive(sent, chunk), _over_positive(sent, tail)


def _over_positive(sent: Floats, window: Floats) -> Floats:
    return np.divide(sent, window, out=np.zeros_like(window), where=window > 0)


def _same_network(columns: Columns) -> Bools:
    return columns.data_par_net == columns.pipeline_par_net


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
class MemoryUse:
    """Memory of each row, known before anything is timed."""

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

    memory_use: MemoryUse
    block: BlockTimes
    optimizer: Pass
    transfer: StageTransfer
    dp: DataParallel
    offload: OffloadNeeds
    step: StepTimes


def memory_use_of(model: CalculonModel, columns: Columns) -> MemoryUse:
    """Memory of each row."""

    def evaluate(rows: Ints) -> BlockSpaces:
        some = gather(columns, rows)
        operations, shape = operations_of(model, some)
        return block_spaces(operations, shape, some)

    firsts, position = distinct_rows([getattr(columns, name) for name in _SPACE_KEYS])
    spaces = gather(evaluate(firsts), position)
    depth = depth_of(model, columns)
    return MemoryUse(depth=depth, spaces=spaces, memory=memory_of(spaces, depth, columns))


def batch_of(
    model: CalculonModel, system: CalculonSystem, columns: Columns, memory_use: MemoryUse
) -> Batch:
    """Time each row."""
    depth, block = memory_use.depth, memory_use.memory.block
    times = _block_times(model, system, columns)
    optimizer = _optimizer(model, system, columns)
    transfer = stage_transfer(model, columns, system)
    bare = walls_of(times, transfer)
    moved = transfers_of(memory_use.spaces, block, columns)
    more = overheads(moved, bare, times, system)
    walls = combined(operator.add, bare, more)
    dp = data_parallel(block, times, optimizer, walls, transfer, depth, columns, system)
    bubble = bubble_time(model, walls, depth, columns)
    return Batch(
        memory_use=memory_use,
        block=times,
        optimizer=optimizer,
        transfer=transfer,
        dp=dp,
        offload=bandwidth_needs(moved, block, bare, times, columns),
        step=_step_times(times, optimizer, transfer, more, dp, bubble, depth, columns),
    )


def _block_times(model: CalculonModel, system: CalculonSystem, columns: Columns) -> BlockTimes:
    def evaluate(rows: Ints) -> BlockTimes:
        some = gather(columns, rows)
        operations, shape = operations_of(model, some)
        return block_times(operations, operation_times(operations, shape, some, system), some)

    firsts, position = distinct_rows([getattr(columns, name) for name in _TIME_KEYS])
    return gather(evaluate(firsts), position)


def _optimizer(model: CalculonModel, system: CalculonSystem, columns: Columns) -> Pass:
    def evaluate(rows: Ints) -> Pass:
        some = gather(columns, rows)
        operations, _ = operations_of(model, some)
        return summed(optimizer_pass(operations.weights, some, system))

    keys = [getattr(columns, name) for name in _OPTIMIZER_KEYS]
    firsts, position = distinct_rows([*keys, columns.optimizer_shards])
    return gather(evaluate(firsts), position)


def _step_times(
    block: BlockTimes,
    optimizer: Pass,
    transfer: StageTransfer,
    offload: Walls,
    dp: DataParallel,
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
        "dp": dp.exposed,
    }
    return StepTimes(
        **parts,
        recomm_link=chunked(again_base.time, again_edge.time),
        tp_link=chunked(fw_base.time, fw_edge.time) + chunked(bw_base.time, bw_edge.time),
        total=total(parts.values(), bubble),
    )
