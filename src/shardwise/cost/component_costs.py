"""Cost of a rank's part of a micro-batch: a layer of each kind, the embedding, the head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather, once_per, total
from shardwise.config.enums import Recompute, Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.expert_overlap import with_expert_overlap
from shardwise.cost.layer_cost import (
    LayerBytes,
    LayerCost,
    LayerWork,
    RecomputedRows,
    layer_cost,
    layer_work,
)
from shardwise.cost.layer_times import LayerTimes
from shardwise.cost.offload import with_offload
from shardwise.cost.operations import Machine, OperationCost, operation_cost
from shardwise.cost.trained_weights import TrainedWeights
from shardwise.cost.weight_bytes import WeightBytes, weight_bytes
from shardwise.ops.accumulation import with_accumulation
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations, rank_work
from shardwise.ops.lora import Subset, with_subset
from shardwise.ops.mtp import mtp_operations
from shardwise.ops.operation import Matmul, Operation, Phase, RankWork
from shardwise.ops.quantization import WeightSizes, weight_sizes
from shardwise.parallel.pipeline_layout import BOTH_ENDS_ON_A_RANK
from shardwise.parallel.placement import Extents

__all__ = [
    "ComponentCosts",
    "ComponentOperations",
    "component_costs",
    "operation_columns",
    "operation_costs",
]
__all__ += ["component_times", "layer_bytes", "layer_times", "part_bytes", "trained_on"]

T = TypeVar("T")

# A part of the model, how often it occurs, and what its operations cost.
ComponentOperations = tuple[str, int, list[OperationCost]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentCosts:
    """Cost of one rank's part of a micro-batch, by part of the model."""

    kinds: tuple[LayerCost, ...]
    """One layer of each kind, under the row's recompute."""
    plain: tuple[LayerCost, ...] | None
    """The same without recompute; None where every layer recomputes as the strategy says."""
    embedding: LayerCost
    mtp: LayerCost | None
    """One module of multi-token prediction, where the model has any."""
    head: LayerCost
    weights: tuple[WeightBytes | None, ...]
    """Of every kind of layer, a module of multi-token prediction, the embedding, the head: what
    their weights take, without those of routed experts."""
    expert_weights: tuple[WeightBytes | None, ...]
    """What those of routed experts take; None where a part has none."""
    element_bytes: Floats
    weight_sizes: WeightSizes
    gradient_bytes: Floats
    """Of one gradient as it accumulates and is exchanged."""
    held_gradient_bytes: Floats
    """With one in the row's own type where the stack keeps it beside."""
    boundary_bytes: Floats
    """The residual stream on one rank: what full recompute keeps of a layer [byte]."""
    memory_rate: Floats
    """Rate of element-wise kernels [byte/s]."""
    key: Ints
    """The same number in rows whose blocks cost the same."""
    matrix_rate: Floats
    """Rate of a product of matrices as wide as the model [FLOP/s]."""

    @property
    def parts(self) -> tuple[LayerCost | None, ...]:
        """Parts in the order that `StageGroup` counts them in."""
        plain = self.plain if self.plain is not None else (None,) * len(self.kinds)
        return (*self.kinds, *plain, self.mtp, self.embedding, self.head)

    @property
    def layers(self) -> tuple[LayerCost | None, ...]:
        """Parts that are made of layers: all but embedding and head."""
        return self.parts[:-2]


def component_times(
    blocks: ComponentCosts, counts: Sequence[Floats], select: Callable[[LayerTimes], Floats]
) -> Floats:
    """Add up a time over so many of each part, in the order of `ComponentCosts.parts`."""
    return _weighted(counts, _times(blocks.parts), select)


def part_bytes(
    blocks: ComponentCosts, counts: Sequence[Floats], select: Callable[[LayerBytes], Floats]
) -> Floats:
    """Add up bytes over so many of each part, in the order of `ComponentCosts.parts`."""
    return _weighted(counts, _bytes(blocks.parts), select)


def layer_times(
    blocks: ComponentCosts, counts: Sequence[Floats], select: Callable[[LayerTimes], Floats]
) -> Floats:
    """Add up a time over the parts that are made of layers alone."""
    return _weighted(counts[:-2], _times(blocks.layers), select)


def layer_bytes(
    blocks: ComponentCosts, counts: Sequence[Floats], select: Callable[[LayerBytes], Floats]
) -> Floats:
    """Add up bytes over the parts that are made of layers alone."""
    return _weighted(counts[:-2], _bytes(blocks.layers), select)


def trained_on(
    blocks: ComponentCosts, counts: Sequence[Floats], *, layers: bool = False
) -> tuple[TrainedWeights, TrainedWeights]:
    """Add up trained weights: without those of routed experts, and those.

    Parameters
    ----------
    layers
        Whether to count the parts that are made of layers alone.
    """
    add = layer_bytes if layers else part_bytes

    def summed(kind: str) -> TrainedWeights:
        def column(name: str) -> Floats:
            return add(blocks, counts, lambda held: getattr(getattr(held, kind), name))

        return TrainedWeights(**{f.name: column(f.name) for f in fields(TrainedWeights)})

    return summed("trained"), summed("expert_trained")


def _times(parts: Sequence[LayerCost | None]) -> list[LayerTimes | None]:
    return [None if part is None else part.times for part in parts]


def _bytes(parts: Sequence[LayerCost | None]) -> list[LayerBytes | None]:
    return [None if part is None else part.bytes for part in parts]


def _weighted(
    counts: Sequence[Floats], parts: Sequence[T | None], select: Callable[[T], Floats]
) -> Floats:
    """Add up a column of each part, so many times; a part that is not there has none."""
    pairs = zip(counts, parts, strict=True)
    return total((count * select(part) for count, part in pairs if part is not None), counts[0])


def operation_costs(
    model: Model, system: System, table: Table, extents: Extents
) -> list[ComponentOperations]:
    """Cost every operation of the embedding, each kind of layer, and the head."""
    work = rank_work(table)
    machine = Machine.of(system, table, extents)
    return [
        (name, count, [operation_cost(o, machine) for o in operations])
        for name, count, operations in _operations(model, table, work)
    ]


def _operations(
    model: Model, table: Table, work: RankWork
) -> list[tuple[str, int, list[Operation]]]:
    together = np.isin(table.schedule, BOTH_ENDS_ON_A_RANK)
    holds_copy = ((table.pp > 1) & ~together) | np.full(len(table), not model.tied_embeddings)
    parts = [("embedding", 1, embedding_operations(model, work))]
    parts += [
        ("layer", layer.count, layer_operations(model, layer, work)) for layer in model.layers
    ]
    if model.mtp:
        copied = (table.pp > 1) & ~together & np.full(len(table), not model.tied_embeddings)
        parts.append(("mtp", model.mtp, mtp_operations(model, work, holds_table=copied)))
    parts.append(("head", 1, head_operations(model, work, holds_copy=holds_copy)))
    subset = Subset.of(table)
    return [
        (name, count, with_accumulation(with_subset(model, name, listed, work, subset), work))
        for name, count, listed in parts
    ]


def operation_columns(model: Model, table: Table, extents: Extents) -> list[Ints | Bools]:
    """Columns that operations and their costs depend on."""
    columns: list[Ints | Bools] = [
        table.tp,
        table.tp2,
        table.summa_panels,
        table.pp > 1,
        table.micro_batch_size,
        table.seq_len,
        table.document_len,
        table.tp_exchange,
        table.tp_overlap,
        table.tp_regather,
        table.fused_activation,
        table.attention,
        table.dtype,
        table.quantization,
        table.training & (table.quantization > 0),
        table.stack,
        table.frozen,
        table.lora_rank,
        table.lora_parts,
        *extents.tp,
        *extents.tp2,
        table.cp,
        table.cp_exchange,
        *extents.cp,
    ]
    if model.tied_embeddings or model.mtp:  # who holds a copy of the words
        columns.append(np.isin(table.schedule, BOTH_ENDS_ON_A_RANK))
    if model.has_experts:
        capacity, imbalance = (
            np.unique(column, return_inverse=True)[1]
            for column in (table.expert_capacity, table.expert_imbalance)
        )
        columns += [table.ep, table.etp, capacity, imbalance, *extents.ep, *extents.etp]
        columns.append(table.dispatch_dtype)
    if table.systems is not None:
        columns.append(table.systems.position)
    return columns


def component_costs(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    costs: Sequence[ComponentOperations] | None = None,
) -> ComponentCosts:
    """Cost a layer of each kind, the embedding and the head, row by row.

    Depends only on the columns that `PlacedCosts` names. Operations do not depend on what is
    recomputed or offloaded, so they are costed once for all of these.

    Parameters
    ----------
    costs
        `operation_costs` of a table of one row, if they are known already.
    """

    def add_up(rows: Ints) -> tuple[tuple[LayerWork, ...], Floats, Floats]:
        some, where = table.take(rows), extents.take(rows)
        machine = Machine.of(system, some, where)
        parts = costs or operation_costs(model, system, some, where)
        works = tuple(layer_work(costs, machine) for _, _, costs in parts)
        rate = _matrix_rate(machine, model.hidden, rank_work(some).element_bytes)
        return works, machine.memory_rate, rate

    summed, position = once_per(operation_columns(model, table, extents), add_up)
    (embedding, *inner, head), memory_rate, matrix_rate = gather(summed, position)
    work = rank_work(table)
    sizes = weight_sizes(table, work.element_bytes)
    checkpoint = work.split_tokens * model.hidden * work.element_bytes
    recompute = RecomputedRows(
        full=table.recompute == Recompute.FULL.code,
        parts=np.where(table.recompute == Recompute.SELECTIVE.code, table.recompute_parts, 0),
        checkpoint_bytes=checkpoint,
    )

    overlaps = (table.expert_overlap | (table.schedule == Schedule.DUALPIPE.code)) & table.training

    taken = table.by_stack(lambda stack: stack.expert_overlap_processors)
    runs_on = table.on(system)

    def layer(kind: LayerWork, again: RecomputedRows | None) -> LayerCost:
        one = layer_cost(
            kind, training=table.training, recompute=again, movable=table.offload_parts
        )
        if model.has_experts:
            one = with_expert_overlap(one, overlaps, taken)
        return with_offload(
            runs_on,
            one,
            weight_bytes=sizes.held(one.bytes.all_parameters, one.bytes.all_quantized_parameters),
            training=table.training,
            weights=table.offload_weights,
            activations=table.offload_activations,
        )

    kinds = inner[: len(model.layers)]
    several = (*kinds, inner[-1] if model.mtp else None, embedding, head)
    beside = table.by_stack(lambda stack: stack.plain_gradients)
    beside &= work.gradient_bytes > work.element_bytes
    gradient_bytes = work.gradient_bytes + np.where(beside, work.element_bytes, 0.0)
    taken_by = partial(
        weight_bytes,
        sizes=sizes,
        gradient_bytes=gradient_bytes,
        optimizer=table.optimizer,
        training=table.training,
    )
    partly = bool(np.any(table.recompute_layers > 0))
    return ComponentCosts(
        kinds=tuple(layer(kind, recompute) for kind in kinds),
        plain=tuple(layer(kind, None) for kind in kinds) if partly else None,
        embedding=layer_cost(embedding, training=table.training),
        mtp=layer(inner[-1], recompute) if model.mtp else None,
        head=layer_cost(head, training=table.training),
        weights=tuple(taken_by(part, expert=False) for part in several),
        expert_weights=tuple(taken_by(part, expert=True) for part in several),
        element_bytes=work.element_bytes,
        weight_sizes=sizes,
        gradient_bytes=work.gradient_bytes,
        held_gradient_bytes=gradient_bytes,
        boundary_bytes=checkpoint,
        memory_rate=memory_rate,
        key=np.arange(len(table)),
        matrix_rate=matrix_rate,
    )


def _matrix_rate(machine: Machine, width: int, element_bytes: Floats) -> Floats:
    """FLOPs over time of a product of square matrices in the row's type [FLOP/s]."""
    one = np.ones_like(machine.host_launch_s)
    side, size = width * one, element_bytes
    product = Matmul(
        phase=Phase.FORWARD, m=side, n=side, k=side, input_bytes=size, output_bytes=size, batch=one
    )
    return product.flops / machine.kernels.times(product)[2]
