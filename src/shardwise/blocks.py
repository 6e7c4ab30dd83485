"""Cost of a rank's part of a micro-batch: all layers, the embedding, the head; per distinct row."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather, once_per
from shardwise.cost.block import BlockCost, BlockWork, block_cost, block_work
from shardwise.cost.offload import with_offload
from shardwise.cost.operations import Machine, OperationCost, operation_cost
from shardwise.model import Model
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations, rank_work
from shardwise.placement import Extents, place
from shardwise.strategy import RECOMPUTES
from shardwise.system import System
from shardwise.table import Table

__all__ = ["Blocks", "PartCosts", "PlacedBlocks", "blocks_of", "operation_costs", "placed_blocks"]


# A part of the model, how often it occurs, and what its operations cost.
PartCosts = tuple[str, int, list[OperationCost]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Cost of one rank's part of a micro-batch: all layers, the embedding, the head."""

    layers: BlockCost
    embedding: BlockCost
    head: BlockCost
    element_bytes: Floats
    gradient_bytes: Floats
    boundary_bytes: Floats
    """The residual stream on one rank: what full recompute keeps of a layer [byte]."""
    memory_rate: Floats
    """Rate of element-wise kernels [byte/s]."""


def operation_costs(
    model: Model, system: System, table: Table, extents: Extents
) -> list[PartCosts]:
    """Cost every operation of the embedding, each kind of layer, and the head."""
    work = rank_work(table)
    machine = Machine.of(system, table, extents)
    holds_copy = (table.pp > 1) | np.full(len(table), not model.tied_embeddings)
    parts = [("embedding", 1, embedding_operations(model, work))]
    parts += [
        ("layer", layer.count, layer_operations(model, layer, work)) for layer in model.layers
    ]
    parts.append(("head", 1, head_operations(model, work, holds_copy=holds_copy)))
    return [
        (name, count, [operation_cost(o, machine) for o in operations])
        for name, count, operations in parts
    ]


def _of_operations(table: Table, extents: Extents) -> tuple[Ints | Bools, ...]:
    """Columns that operations and their costs depend on."""
    return (
        table.tp,
        table.cp,
        table.pp > 1,
        table.micro_batch_size,
        table.seq_len,
        table.tp_exchange,
        table.tp_overlap,
        table.tp_regather,
        table.fused_activation,
        table.attention,
        table.dtype,
        table.stack,
        *extents.tp,
    )


def blocks_of(model: Model, system: System, table: Table, extents: Extents) -> Blocks:
    """Add up the costs of the layers, the embedding and the head, row by row.

    Depends only on the columns that `PlacedBlocks` names. Operations do not depend on what is
    recomputed or offloaded, so they are costed once for all of these.
    """

    def add_up(rows: Ints) -> tuple[tuple[BlockWork, ...], Floats]:
        some, where = table.take(rows), extents.take(rows)
        machine = Machine.of(system, some, where)
        parts = operation_costs(model, system, some, where)
        return tuple(block_work(costs, machine) for _, _, costs in parts), machine.memory_rate

    summed, position = once_per(_of_operations(table, extents), add_up)
    (embedding, *kinds, head), memory_rate = gather(summed, position)
    work = rank_work(table)
    full = table.recompute == RECOMPUTES.index("full")
    selective = table.recompute == RECOMPUTES.index("selective")
    checkpoint = work.split_tokens * model.hidden * work.element_bytes
    whole: BlockCost | None = None
    for layer, kind in zip(model.layers, kinds, strict=True):
        one = block_cost(
            kind,
            training=table.training,
            full=full,
            selective=selective,
            checkpoint_bytes=checkpoint,
        )
        one = with_offload(
            system,
            one,
            weight_bytes=one.parameters * work.element_bytes,
            training=table.training,
            weights=table.offload_weights,
            activations=table.offload_activations,
        )
        whole = one.plus(one, layer.count - 1) if whole is None else whole.plus(one, layer.count)
    assert whole is not None  # noqa: S101 - a model has at least one kind of layer
    return Blocks(
        layers=whole,
        embedding=block_cost(embedding, training=table.training),
        head=block_cost(head, training=table.training),
        element_bytes=work.element_bytes,
        gradient_bytes=work.gradient_bytes,
        boundary_bytes=checkpoint,
        memory_rate=memory_rate,
    )


@dataclass(frozen=True, slots=True)
class PlacedBlocks:
    """Extents and blocks of a table's rows, each distinct one once."""

    _placed: Extents
    _where: Ints
    _blocks: Blocks
    _position: Ints

    @classmethod
    def of(cls, model: Model, system: System, table: Table) -> "PlacedBlocks":
        """Place the axes and cost the blocks, once for each value of what they depend on."""
        tiers = (table.tp_tier, table.cp_tier, table.dp_tier, table.pp_tier)
        degrees = (table.tp, table.cp, table.dp, table.pp, table.placement, *tiers)
        placed, where = once_per(degrees, lambda rows: place(system, table.take(rows)))
        columns = (
            *_of_operations(table, placed.take(where)),
            table.recompute,
            table.training,
            table.offload_weights,
            table.offload_activations,
        )

        def cost(rows: Ints) -> Blocks:
            return blocks_of(model, system, table.take(rows), placed.take(where[rows]))

        blocks, position = once_per(columns, cost)
        return cls(placed, where, blocks, position)

    def extents(self, rows: Ints | slice) -> Extents:
        """Extents of some rows."""
        return self._placed.take(self._where[rows])

    def blocks(self, rows: Ints | slice) -> Blocks:
        """Blocks of some rows."""
        return gather(self._blocks, self._position[rows])


def placed_blocks(model: Model, system: System, table: Table) -> tuple[Extents, Blocks]:
    """Place the axes and cost the blocks of every row."""
    placed = PlacedBlocks.of(model, system, table)
    return placed.extents(slice(None)), placed.blocks(slice(None))
