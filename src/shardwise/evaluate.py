"""From model, system and a table of strategies to times and memory: every formula, once, in order.

One row or ten million go through the same functions. What depends on few columns is evaluated once
for each distinct value of them and gathered.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather, once_per, total
from shardwise.cost.block import BlockCost, block_cost
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.data_parallel import gradient_exchange, hidden_exchange, optimizer_time
from shardwise.cost.operations import Machine, OperationCost, operation_cost
from shardwise.memory import StageMemory, reserved_bytes, stage_memory, stage_parameters
from shardwise.model import Model
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations, rank_work, stack_column
from shardwise.ops.operation import CollectiveKind, Operation, RankWork
from shardwise.placement import Extents, place
from shardwise.schedule.closed_form import bubble_time
from shardwise.strategy import RECOMPUTES
from shardwise.system import System
from shardwise.table import Table

__all__ = [
    "TIME_PARTS",
    "Blocks",
    "Evaluation",
    "blocks_of",
    "evaluate",
    "memory_of_stages",
    "micro_batches",
    "operation_costs",
]

TIME_PARTS = (
    "forward",
    "backward",
    "recompute",
    "optimizer",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "pp_comm",
    "dp_comm",
    "offload",
    "bubble",
    "other",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Cost of one rank's part of a micro-batch: all layers, the embedding, the head."""

    layers: BlockCost
    embedding: BlockCost
    head: BlockCost
    element_bytes: Floats
    gradient_bytes: Floats
    boundary_bytes: Floats
    """What one rank hands to the next stage [byte]."""
    memory_rate: Floats
    """Rate of element-wise kernels [byte/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Columns of results, one value per row."""

    time_s: dict[str, Floats]
    """Disjoint parts of the step, in the order of `TIME_PARTS` [s]."""
    step_time_s: Floats
    comm_s: dict[str, tuple[Floats, Floats]]
    """By axis: time of its exchanges alone, and what of it is exposed [s]."""
    memory: StageMemory
    """Of the fullest stage [byte]."""
    reserved_bytes: Floats
    fits: Bools
    fullest_stage: Ints
    recompute_flops: Floats
    """Run again in a step, per accelerator [FLOP]."""
    blocks: Blocks
    """What the times and bytes were added up from."""


def micro_batches(table: Table) -> Ints:
    """Micro-batches of one replica in a step."""
    return table.global_batch_size // (table.dp * table.micro_batch_size)


def blocks_of(model: Model, system: System, table: Table, extents: Extents) -> Blocks:
    """Cost the layers, the embedding and the head, row by row.

    Depends only on the columns named in `_block_columns`.
    """
    work = rank_work(table)
    machine = Machine.of(system, table, extents)
    layers, embedding, head = (
        [[operation_cost(o, machine) for o in operations] for operations in group]
        for group in _operations(model, table, work)
    )
    full = table.recompute == RECOMPUTES.index("full")
    selective = table.recompute == RECOMPUTES.index("selective")
    checkpoint = work.split_tokens * model.hidden * work.element_bytes
    whole: BlockCost | None = None
    for layer, costs in zip(model.layers, layers, strict=True):
        one = block_cost(
            costs, machine, full=full, selective=selective, checkpoint_bytes=checkpoint
        )
        count = layer.count
        whole = one.plus(one, count - 1) if whole is None else whole.plus(one, count)
    assert whole is not None  # noqa: S101 - a model has at least one kind of layer
    return Blocks(
        layers=whole,
        embedding=block_cost(embedding[0], machine),
        head=block_cost(head[0], machine),
        element_bytes=work.element_bytes,
        gradient_bytes=work.gradient_bytes,
        boundary_bytes=checkpoint,
        memory_rate=machine.memory_rate,
    )


def _operations(
    model: Model, table: Table, work: RankWork
) -> tuple[list[list[Operation]], list[list[Operation]], list[list[Operation]]]:
    holds_copy = (table.pp > 1) | np.full(len(table), not model.tied_embeddings)
    return (
        [layer_operations(model, layer, work) for layer in model.layers],
        [embedding_operations(model, work)],
        [head_operations(model, work, holds_copy=holds_copy)],
    )


def operation_costs(
    model: Model, system: System, table: Table
) -> list[tuple[str, int, list[OperationCost]]]:
    """Cost every operation by itself: (part of the model, how often, operations)."""
    work = rank_work(table)
    machine = Machine.of(system, table, place(system, table))
    layers, embedding, head = _operations(model, table, work)
    parts = [("embedding", 1, embedding[0])]
    for layer, operations in zip(model.layers, layers, strict=True):
        parts.append(("layer", layer.count, operations))
    parts.append(("head", 1, head[0]))
    return [
        (name, count, [operation_cost(o, machine) for o in operations])
        for name, count, operations in parts
    ]


def evaluate(model: Model, system: System, table: Table) -> Evaluation:
    """Evaluate legal strategies: times of the step and memory of the fullest stage."""
    extents, blocks = _shared(model, system, table)
    m = micro_batches(table)
    memory, fullest = _fullest_stage(table, blocks, m)
    reserved = reserved_bytes(
        memory.total,
        slack=stack_column(table, "allocator_slack"),
        runtime_memory=stack_column(table, "runtime_memory"),
    )
    times, comm = _times(model, system, table, extents, blocks, m)
    layers_here = blocks.layers.recompute_flops / table.pp
    return Evaluation(
        time_s=times,
        step_time_s=total(times.values(), blocks.memory_rate),
        comm_s=comm,
        memory=memory,
        reserved_bytes=reserved,
        fits=reserved <= system.accelerator.memory[0].capacity,
        fullest_stage=fullest,
        recompute_flops=m * layers_here,
        blocks=blocks,
    )


def _shared(model: Model, system: System, table: Table) -> tuple[Extents, Blocks]:
    """Place the axes and cost the blocks, once for each distinct value of what they depend on."""
    degrees = (table.tp, table.cp, table.dp, table.pp, table.placement)
    placed, where = once_per(degrees, lambda rows: _Placed(place(system, table.take(rows))))
    extents = placed.at(where)
    columns = (
        table.tp,
        table.cp,
        table.pp > 1,
        table.micro_batch_size,
        table.seq_len,
        table.sequence_parallel,
        table.dtype,
        table.recompute,
        table.stack,
        *extents.tp,
    )

    def cost(rows: Ints) -> Blocks:
        return blocks_of(model, system, table.take(rows), placed.at(where[rows]))

    blocks, position = once_per(columns, cost)
    return extents, gather(blocks, position)


@dataclass(frozen=True, slots=True)
class _Placed:
    """Extents, whose rows are their second dimension."""

    extents: Extents

    def at(self, rows: Ints) -> Extents:
        return Extents(
            tp=self.extents.tp[:, rows],
            cp=self.extents.cp[:, rows],
            dp=self.extents.dp[:, rows],
            pp=self.extents.pp[:, rows],
        )


def memory_of_stages(table: Table, blocks: Blocks, stage: Ints) -> StageMemory:
    """Bytes on a rank of the given stage(s); broadcasts stages against rows."""
    return stage_memory(
        blocks.layers,
        blocks.embedding,
        blocks.head,
        stages=table.pp,
        chunks=table.vpp,
        micro_batches=micro_batches(table),
        stage=stage,
        element_bytes=blocks.element_bytes,
        gradient_bytes=blocks.gradient_bytes,
        optimizer_shards=np.where(table.zero >= 1, table.dp, 1),
    )


def _fullest_stage(table: Table, blocks: Blocks, m: Ints) -> tuple[StageMemory, Ints]:
    """Memory of the fullest stage: the first, the second or the last.

    Between them activations in flight only fall from stage to stage, so the second is the fullest
    of those without embedding and head.
    """
    candidates = [np.zeros_like(m), np.minimum(1, table.pp - 1), table.pp - 1]
    memories = [memory_of_stages(table, blocks, stage) for stage in candidates]
    best = np.argmax([memory.total for memory in memories], axis=0)
    rows = np.arange(len(table))

    def chosen(name: str) -> Floats:
        values: Floats = np.stack([getattr(memory, name) for memory in memories])
        return values[best, rows]

    memory = StageMemory(
        weights=chosen("weights"),
        gradients=chosen("gradients"),
        optimizer=chosen("optimizer"),
        activations=chosen("activations"),
        buffers=chosen("buffers"),
    )
    return memory, np.stack(candidates)[best, rows]


def _times(
    model: Model, system: System, table: Table, extents: Extents, blocks: Blocks, m: Ints
) -> tuple[dict[str, Floats], dict[str, tuple[Floats, Floats]]]:
    """Time the step on its slowest stage, with what that stage waits for."""
    layers, embedding, head = blocks.layers, blocks.embedding, blocks.head

    def micro_batch_s(block: BlockCost) -> Floats:
        return block.forward_s + block.backward_s + block.recompute_s + block.tp_exposed_s

    per_stage = micro_batch_s(layers) / table.pp
    ends = micro_batch_s(embedding), micro_batch_s(head)
    alone = table.pp == 1
    with_embedding = np.where(alone | (ends[0] > ends[1]), 1.0, 0.0)
    with_head = np.where(alone | (ends[0] <= ends[1]), 1.0, 0.0)
    slowest = per_stage + with_embedding * ends[0] + with_head * ends[1]

    def on_slowest(name: str) -> Floats:
        ended = with_embedding * getattr(embedding, name) + with_head * getattr(head, name)
        whole: Floats = m * (getattr(layers, name) / table.pp + ended)
        return whole

    transfer = _boundary_time(system, table, extents, blocks)
    hidden = np.where(table.vpp > 1, stack_column(table, "pp_hidden"), 0.0)
    transfers = 2.0 * m * table.vpp * transfer
    bubble = bubble_time(
        micro_batches=m,
        stages=table.pp,
        chunks=table.vpp,
        stage_sum_s=table.pp * per_stage + ends[0] + ends[1],
        slowest_s=slowest,
        hop_s=2.0 * transfer,
    )
    largest = np.maximum(
        _parameters(table, blocks, np.zeros_like(m)), _parameters(table, blocks, table.pp - 1)
    )
    exchange, exchange_exposed = _data_parallel(
        model, system, table, extents, blocks, largest, slowest, m
    )
    zero = np.zeros(len(table))
    times = dict.fromkeys(TIME_PARTS, zero)
    times |= {
        "forward": on_slowest("forward_s"),
        "backward": on_slowest("backward_s"),
        "recompute": on_slowest("recompute_s"),
        "optimizer": optimizer_time(
            parameters=largest,
            owned=largest / np.where(table.zero >= 1, table.dp, 1),
            element_bytes=blocks.element_bytes,
            gradient_bytes=blocks.gradient_bytes,
            memory_rate=blocks.memory_rate,
        ),
        "tp_comm": on_slowest("tp_exposed_s"),
        "pp_comm": transfers * (1 - hidden),
        "dp_comm": exchange_exposed,
        "bubble": bubble,
    }
    times["other"] = _overheads(system, table, total(times.values(), zero))
    comm = {
        "tp": (on_slowest("tp_s"), times["tp_comm"]),
        "pp": (transfers, times["pp_comm"]),
        "dp": (exchange, times["dp_comm"]),
    }
    return times, comm


def _boundary_time(system: System, table: Table, extents: Extents, blocks: Blocks) -> Floats:
    """Time of handing a micro-batch to the next stage [s].

    Without sequence parallelism every tensor-parallel rank holds the whole activation A and hands
    over all of it, or 1/tp of it that the receiving ranks gather (arXiv 2104.04473, section 4.1).
    """
    whole = np.where(table.pp > 1, blocks.boundary_bytes, 0.0)
    splits = stack_column(table, "pp_scatter_gather") > 0
    splits &= (table.tp > 1) & ~table.sequence_parallel
    gathered = collective_time(
        system, CollectiveKind.ALL_GATHER, np.where(splits, whole, 0.0), extents.tp
    )
    handed = np.where(splits, whole / table.tp, whole)
    return transfer_time(system, handed, extents.pp) + gathered


def _parameters(table: Table, blocks: Blocks, stage: Ints) -> Floats:
    return stage_parameters(
        blocks.layers, blocks.embedding, blocks.head, stages=table.pp, stage=stage
    )


def _data_parallel(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    blocks: Blocks,
    parameters: Floats,
    slowest: Floats,
    m: Ints,
) -> tuple[Floats, Floats]:
    """Time of the exchange among replicas, alone and exposed [s].

    Overlapped, it runs behind the compute of one micro-batch; with interleaved stages behind that
    of all chunks but one, whose gradients are complete earlier.
    """
    alone = gradient_exchange(
        system,
        parameters=parameters,
        gradient_bytes=blocks.gradient_bytes,
        element_bytes=blocks.element_bytes,
        sharded=table.zero >= 1,
        extents=extents.dp,
    )
    rounds = np.minimum(table.pp, m) * (table.vpp - 1) / table.vpp + 1 / table.vpp
    exposed = hidden_exchange(
        alone,
        slowest * rounds,
        contention=stack_column(table, "dp_contention"),
        tail=stack_column(table, "dp_tail"),
    )
    exposed = np.where(table.dp_overlap, exposed, alone)
    if model.tied_embeddings:  # first and last stage add up their copies' gradients
        copied = np.where(table.pp > 1, np.ceil(model.vocab / table.tp) * model.hidden, 0.0)
        pair = np.where(extents.pp >= table.pp, 2, 1)
        pair[-1] = 2
        tied = collective_time(
            system, CollectiveKind.ALL_REDUCE, copied * blocks.gradient_bytes, pair
        )
        return alone + tied, exposed + tied
    return alone, exposed


def _overheads(system: System, table: Table, rest: Floats) -> Floats:
    """Fixed time of a step, and the wait for the slowest of many nodes [s]."""
    nodes = np.ceil(table.gpus / system.node.accelerators)
    growth = stack_column(table, "straggler_per_doubling") * np.log2(np.maximum(nodes, 1.0))
    return stack_column(table, "step_overhead") + growth * rest
