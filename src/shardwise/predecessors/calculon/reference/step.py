"""Blocks of a processor, and its memory (sections 1.5 and 1.10 of the specification).

Calculon 0.1.0, commit caa4b11. Nothing is reserved for the framework.

The pipeline: transfers, wall times, bubble, and offload (sections 1.6 and 1.9).

Calculon 0.1.0, commit caa4b11. A transfer to the second tier of memory hides behind compute only
where tier 1 is idle.

One step of the model on processor 0 (sections 1.5, 1.7 and 1.11 of the specification).

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
    state_bytes,
    summed,
)
from shardwise.predecessors.calculon.reference.columns import (
    AR,
    FULL,
    Columns,
    memory_time,
    network_time,
    processor_usage,
    volume_factor,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Counts of blocks, chunks and micro-batches on processor 0, which has the most blocks."""

    blocks: Ints
    """k_p = ceil(num_blocks / P)."""
    chunks: Ints
    """v: chunks of blocks per processor."""
    chunk_blocks: Ints
    """k = k_p / v: all but the last are base blocks, the last is the edge block."""
    microbatches: Ints
    """N."""
    in_flight: Floats
    """phi: micro-batches whose activations are in memory at once, in units of all blocks."""


def depth_of(model: CalculonModel, columns: Columns) -> Depth:
    """Counts of blocks, chunks and micro-batches.

    phi = min(N, P), times 1 + (P - 1) / (v P) where v > 1.
    """
    stages, chunks = columns.pipeline_par, columns.pipeline_interleaving
    blocks = -(-model.num_blocks // stages)
    more = np.where(chunks > 1, 1 + (stages - 1) / (chunks * stages), 1.0)
    return Depth(
        blocks=blocks,
        chunks=chunks,
        chunk_blocks=blocks // chunks,
        microbatches=columns.microbatches,
        in_flight=np.minimum(columns.microbatches, stages) * more,
    )


_GRADIENT_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMemory:
    """Memory of one block besides its activations [bytes]."""

    weights: Floats
    gradient: Floats
    """Weight gradients in the datatype, of this processor's shard."""
    gradient_unsharded: Floats
    """Weight gradients in fp32, of one block at a time."""
    optimizer: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComponents:
    """Memory by component [bytes]."""

    weights: Floats
    activations: Floats
    checkpoints: Floats
    activation_gradients: Floats
    weight_gradients: Floats
    optimizer: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one processor [bytes]."""

    block: BlockMemory
    total: MemoryComponents
    """Of both tiers."""
    resident: MemoryComponents
    """What stays in tier 1 of an offloaded component; NaN where Calculon gives no figure."""
    tier1: Floats
    tier2: Floats


def block_memory(spaces: BlockSpaces, columns: Columns) -> BlockMemory:
    """Weights, gradients and optimizer state of one block; the last two only in training."""
    b, trained = columns.element_bytes, spaces.weights * columns.training
    share = trained / columns.optimizer_shards
    return BlockMemory(
        weights=b * spaces.weights,
        gradient=b * share,
        gradient_unsharded=_GRADIENT_BYTES * trained,
        optimizer=state_bytes(b) * share,
    )


def memory_of(spaces: BlockSpaces, depth: Depth, columns: Columns) -> Memory:
    """Memory of one processor, in both tiers.

    activations = working + storage (k_p phi - 1), checkpoints = k_p phi checkpoint; only the
    working set in inference. Weight gradients are fp32 for one block and in the datatype, sharded,
    for the others. Offloading activations moves the checkpoints under full recompute, else the
    activations; offloading the optimizer moves the sharded gradients of all blocks too.
    """
    c, block = columns, block_memory(spaces, columns)
    in_flight = depth.blocks * depth.in_flight
    total = MemoryComponents(
        weights=depth.blocks * block.weights,
        activations=spaces.working + spaces.storage * (in_flight - 1) * c.training,
        checkpoints=in_flight * spaces.checkpoint,
        activation_gradients=spaces.gradient,
        weight_gradients=block.gradient_unsharded + (depth.blocks - 1) * block.gradient,
        optimizer=depth.blocks * block.optimizer,
    )
    resident = MemoryComponents(
        weights=2 * block.weights,
        activations=spaces.working + spaces.storage,
        checkpoints=np.where(c.training, 2 * spaces.checkpoint, np.nan),
        activation_gradients=spaces.gradient,
        weight_gradients=block.gradient_unsharded + block.gradient,
        optimizer=2 * block.optimizer,
    )

    def in_tier1(offload: Bools, *names: str) -> Floats:
        stays = sum(np.nan_to_num(getattr(resident, name)) for name in names)
        return np.where(offload, stays, sum(getattr(total, name) for name in names))

    full = c.activation_recompute == FULL
    tier1 = (
        total.activation_gradients
        + in_tier1(c.weight_offload, "weights")
        + in_tier1(c.activations_offload, "activations", "checkpoints")
        + in_tier1(c.optimizer_offload, "weight_gradients", "optimizer")
    )
    tier2 = (
        c.weight_offload * total.weights
        + c.activations_offload * np.where(full, total.checkpoints, total.activations)
        + c.optimizer_offload * (depth.blocks * block.gradient + total.optimizer)
    )
    return Memory(block=block, total=total, resident=resident, tier1=tier1, tier2=tier2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTransfer:
    """What a micro-batch sends to the next stage and receives back, per chunk."""

    fw_size: Floats
    bw_size: Floats
    """Bytes."""
    fw_s: Floats
    bw_s: Floats
    """Time [s]: in inference, too, a backward latency without bytes [Q13]."""


def stage_transfer(model: CalculonModel, columns: Columns, system: CalculonSystem) -> StageTransfer:
    """Bytes and times of the transfers between stages.

    A b under ar; A' b = (B // T) h b where activations are scattered; 0 without a pipeline.
    """
    c = columns
    tokens = c.microbatch_size * model.seq_size
    sent = np.where(c.tensor_par_comm_type == AR, tokens, tokens // c.tensor_par)
    size = sent * float(model.hidden) * c.element_bytes * (c.pipeline_par > 1)
    fw_s, bw_s = (
        network_time(s, "p2p", 2, system, c.pipeline_par_net) for s in (size, size * c.training)
    )
    return StageTransfer(fw_size=size, bw_size=size * c.training, fw_s=fw_s, bw_s=bw_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """Wall time of one block and micro-batch, base and edge, forward and backward [s]."""

    fw_base: Floats
    fw_edge: Floats
    bw_base: Floats
    bw_edge: Floats


def walls_of(times: BlockTimes, transfer: StageTransfer) -> Walls:
    """Wall time of one block: work and exposed communication; the edge block also sends."""
    (fw_base, fw_edge), (bw_base, bw_edge) = times.fw_tp, times.agrad_tp
    again_base, again_edge = times.recomm
    backward = times.re.time + times.agrad.time + times.wgrad.time
    return Walls(
        fw_base=times.fw.time + fw_base.exposed,
        fw_edge=times.fw.time + fw_edge.exposed + transfer.fw_s,
        bw_base=backward + again_base.exposed + bw_base.exposed,
        bw_edge=backward + again_edge.exposed + bw_edge.exposed + transfer.bw_s,
    )


def per_chunk(base: Floats, edge: Floats, depth: Depth) -> Floats:
    """(k - 1) base + edge."""
    return (depth.chunk_blocks - 1) * base + edge


def bubble_time(model: CalculonModel, walls: Walls, depth: Depth, columns: Columns) -> Floats:
    """Time [s] that processor 0 waits for the others.

    (P - 1 + extra) chunks, with extra = (v - 1) (P - N mod P) if P does not divide N; less what
    the stages that have one block less save: P - L mod P of them, if P does not divide L, times
    (F_b + F_e + B_b + B_e) / 2 if k > 1, else F_e + B_e.
    """
    stages, micro = columns.pipeline_par, depth.microbatches
    chunk = per_chunk(walls.fw_base, walls.fw_edge, depth) + per_chunk(
        walls.bw_base, walls.bw_edge, depth
    )
    uneven = micro % stages
    extra = np.where(uneven > 0, (depth.chunks - 1) * (stages - uneven), 0)
    left = model.num_blocks % stages
    short = np.where(left > 0, stages - left, 0)
    edge = walls.fw_edge + walls.bw_edge
    saved = np.where(depth.chunk_blocks > 1, (walls.fw_base + walls.bw_base + edge) / 2, edge)
    return (stages - 1 + extra) * chunk - short * saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Bytes that one block and micro-batch moves between the tiers."""

    activations: Floats
    """Its activations or its checkpoint, offloaded or not."""
    fw: Floats
    """S_F = max(weights if offloaded, activations if offloaded)."""
    bw: Floats
    """S_B = weights + activations + optimizer state, each if offloaded; training only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadNeeds:
    """Bandwidth that hides offloading [byte/s], whether or not it is on.

    NaN where a block leaves tier 1 no idle time (Calculon divides by zero there).
    """

    activations: Floats
    weights: Floats
    optimizer: Floats
    together: Floats


def transfers_of(spaces: BlockSpaces, block: BlockMemory, columns: Columns) -> Transfers:
    """Bytes to move forward and backward."""
    c = columns
    activations = spaces.checkpoint + spaces.storage  # one of them is 0
    return Transfers(
        activations=activations,
        fw=np.maximum(c.weight_offload * block.weights, c.activations_offload * activations),
        bw=c.training
        * (
            c.weight_offload * block.weights
            + c.activations_offload * activations
            + c.optimizer_offload * block.optimizer
        ),
    )


def _busy(times: BlockTimes) -> tuple[Floats, Floats]:
    """Time that tier 1 is busy, forward and backward [s]."""
    return times.fw.mem_time, times.agrad.mem_time + times.wgrad.mem_time


def overheads(
    transfers: Transfers, walls: Walls, times: BlockTimes, system: CalculonSystem
) -> Walls:
    """What offloading adds to each block: max(0, transfer + time of tier 1 - wall time) [s]."""
    fw_s, bw_s = (memory_time(size, system.mem2) for size in (transfers.fw, transfers.bw))
    fw_busy, bw_busy = _busy(times)

    def excess(transfer: Floats, busy: Floats, wall: Floats, moved: Bools) -> Floats:
        return np.where(moved, np.maximum(0.0, transfer + busy - wall), 0.0)

    return Walls(
        fw_base=excess(fw_s, fw_busy, walls.fw_base, transfers.fw > 0),
        fw_edge=excess(fw_s, fw_busy, walls.fw_edge, transfers.fw > 0),
        bw_base=excess(bw_s, bw_busy, walls.bw_base, transfers.bw > 0),
        bw_edge=excess(bw_s, bw_busy, walls.bw_edge, transfers.bw > 0),
    )


def bandwidth_needs(
    transfers: Transfers, block: BlockMemory, walls: Walls, times: BlockTimes, columns: Columns
) -> OffloadNeeds:
    """Bytes over the idle time of tier 1 in the shorter of base and edge block.

    `walls` are those without the overhead of offloading.
    """
    fw_busy, bw_busy = _busy(times)
    fw_idle = _positive(np.minimum(walls.fw_base, walls.fw_edge) - fw_busy)
    bw_idle = _positive(np.minimum(walls.bw_base, walls.bw_edge) - bw_busy)
    trained = columns.training
    optimizer = np.where(trained, (block.gradient + block.optimizer) / bw_idle, 0.0)
    backward = np.where(trained, transfers.bw / bw_idle, 0.0)
    return OffloadNeeds(
        activations=transfers.activations / fw_idle,
        weights=block.weights / fw_idle,
        optimizer=optimizer,
        together=np.maximum(transfers.fw / fw_idle, backward),
    )


def _positive(idle: Floats) -> Floats:
    """The idle time, NaN where there is none."""
    return np.where(idle != 0, idle, np.nan)


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
