"""Cost of a rank's part of a micro-batch: all layers, the embedding, the head; per distinct row."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints, gather, once_per
from shardwise.cost.block import BlockCost, block_cost
from shardwise.cost.operations import Machine, OperationCost, operation_cost
from shardwise.model import Model
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations, rank_work
from shardwise.ops.operation import Operation, RankWork
from shardwise.placement import Extents, place
from shardwise.strategy import RECOMPUTES
from shardwise.system import System
from shardwise.table import Table

__all__ = ["Blocks", "blocks_of", "operation_costs", "placed_blocks"]


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


def blocks_of(model: Model, system: System, table: Table, extents: Extents) -> Blocks:
    """Cost the layers, the embedding and the head, row by row.

    Depends only on the columns that `placed_blocks` names.
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


def placed_blocks(model: Model, system: System, table: Table) -> tuple[Extents, Blocks]:
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
