"""Cost of a micro-batch on a rank, by component: a layer of each kind, the embedding, the head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather, total
from shardwise.config.enums import Recompute
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.layer_cost import (
    LayerBytes,
    LayerCost,
    LayerTimes,
    LayerWork,
    RecomputedRows,
    WeightBytes,
    layer_cost,
    layer_work,
    weight_bytes,
)
from shardwise.cost.offload import with_offload
from shardwise.cost.operations import Machine, OperationCost, operation_cost
from shardwise.cost.optimizer import TrainedWeights
from shardwise.cost.overlap import with_expert_overlap
from shardwise.distinct import Distinct, evaluate_distinct
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations, mtp_operations, rank_work
from shardwise.ops.linear import with_accumulation
from shardwise.ops.lora import Subset, with_subset
from shardwise.ops.operation import Matmul, Phase, RankWork
from shardwise.ops.quantization import WeightSizes, weight_sizes
from shardwise.parallel.pipeline_layout import StageGroup, distinct_stage_groups
from shardwise.parallel.placement import Extents, place

T = TypeVar("T")

# A component of the model, how often it occurs, and the costs of its operations.
ComponentOperations = tuple[str, int, list[OperationCost]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentCosts:
    """Cost of a micro-batch on one rank, by component of the model."""

    kinds: tuple[LayerCost, ...]
    """One layer of each kind, under the row's recompute."""
    plain: tuple[LayerCost, ...] | None
    """The same without recompute; None where every layer recomputes as the strategy says."""
    embedding: LayerCost
    mtp: LayerCost | None
    """One module of multi-token prediction, where the model has any."""
    head: LayerCost
    weights: tuple[WeightBytes | None, ...]
    """Dense weights of each kind of layer, a module of multi-token prediction, the embedding and
    the head."""
    expert_weights: tuple[WeightBytes | None, ...]
    """Weights of routed experts; None where a component has none."""
    element_bytes: Floats
    weight_sizes: WeightSizes
    gradient_bytes: Floats
    """Size of a gradient as it accumulates and is communicated [byte]."""
    resident_gradient_bytes: Floats
    """The same, plus a gradient in the type of the weights where the stack stores it too [byte]."""
    boundary_bytes: Floats
    """The residual stream on one rank: what full recompute saves of a layer [byte]."""
    memory_rate: Floats
    """Rate of element-wise kernels [byte/s]."""
    key: Ints
    """The same number in rows whose components cost the same."""
    matrix_rate: Floats
    """Rate of a product of matrices as wide as the model [FLOP/s]."""

    @property
    def components(self) -> tuple[LayerCost | None, ...]:
        """Components in the order that `StageGroup` counts them in."""
        plain = self.plain if self.plain is not None else (None,) * len(self.kinds)
        return (*self.kinds, *plain, self.mtp, self.embedding, self.head)

    @property
    def layers(self) -> tuple[LayerCost | None, ...]:
        """Components made of layers: all but embedding and head."""
        return self.components[:-2]


def component_times(
    costs: ComponentCosts, counts: Sequence[Floats], select: Callable[[LayerTimes], Floats]
) -> Floats:
    """Add up a time over so many of each component, in the order of `ComponentCosts.components`.

    Parameters
    ----------
    costs
        Costs by component; columns of shape (n,).
    counts
        How often each component occurs; each of shape (n,).
    select
        Time of a component [s]; shape (n,).
    """
    return _weighted(counts, _times(costs.components), select)


def component_bytes(
    costs: ComponentCosts, counts: Sequence[Floats], select: Callable[[LayerBytes], Floats]
) -> Floats:
    """Add up bytes over so many of each component, in the order of `ComponentCosts.components`.

    Parameters
    ----------
    costs
        Costs by component; columns of shape (n,).
    counts
        How often each component occurs; each of shape (n,).
    select
        Bytes of a component [byte]; shape (n,).
    """
    return _weighted(counts, _bytes(costs.components), select)


def layer_times(
    costs: ComponentCosts, counts: Sequence[Floats], select: Callable[[LayerTimes], Floats]
) -> Floats:
    """Add up a time over the components made of layers only.

    Parameters
    ----------
    costs
        Costs by component; columns of shape (n,).
    counts
        How often each component occurs; each of shape (n,).
    select
        Time of a component [s]; shape (n,).
    """
    return _weighted(counts[:-2], _times(costs.layers), select)


def layer_bytes(
    costs: ComponentCosts, counts: Sequence[Floats], select: Callable[[LayerBytes], Floats]
) -> Floats:
    """Add up bytes over the components made of layers only.

    Parameters
    ----------
    costs
        Costs by component; columns of shape (n,).
    counts
        How often each component occurs; each of shape (n,).
    select
        Bytes of a component [byte]; shape (n,).
    """
    return _weighted(counts[:-2], _bytes(costs.layers), select)


def trained_on(
    costs: ComponentCosts, counts: Sequence[Floats], *, layers: bool = False
) -> tuple[TrainedWeights, TrainedWeights]:
    """Add up trained weights: without those of routed experts, and those.

    Parameters
    ----------
    costs
        Costs by component; columns of shape (n,).
    counts
        How often each component occurs; each of shape (n,).
    layers
        Whether to count only the components made of layers.
    """
    add = layer_bytes if layers else component_bytes

    def summed(kind: str) -> TrainedWeights:
        def column(name: str) -> Floats:
            return add(costs, counts, lambda one: getattr(getattr(one, kind), name))

        return TrainedWeights(**{f.name: column(f.name) for f in fields(TrainedWeights)})

    return summed("trained"), summed("expert_trained")


def _times(parts: Sequence[LayerCost | None]) -> list[LayerTimes | None]:
    return [None if part is None else part.times for part in parts]


def _bytes(parts: Sequence[LayerCost | None]) -> list[LayerBytes | None]:
    return [None if part is None else part.bytes for part in parts]


def _weighted(
    counts: Sequence[Floats], parts: Sequence[T | None], select: Callable[[T], Floats]
) -> Floats:
    """Add up a column of each component, multiplied by its count; skip absent components."""
    pairs = zip(counts, parts, strict=True)
    return total((count * select(part) for count, part in pairs if part is not None), counts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationInputs:
    """What the operations of a micro-batch are built and costed from, as columns."""

    work: RankWork
    subset: Subset
    machine: Machine
    head_copy: Bools
    """Whether the rank of the head stores its own table."""
    mtp_copy: Bools
    """Whether modules of multi-token prediction store a copy of the embedding."""

    @classmethod
    def of(cls, model: Model, system: System, table: Table, extents: Extents) -> "OperationInputs":
        """Read strategies and where their axes are placed."""
        untied = np.full(len(table), not model.tied_embeddings)
        apart = table.pipelined
        if model.tied_embeddings or model.mtp:
            apart = apart & ~table.joins_ends
        return cls(
            work=rank_work(table),
            subset=Subset.of(table),
            machine=Machine.of(system, table, extents),
            head_copy=apart | untied,
            mtp_copy=apart & untied,
        )


def operation_costs(
    model: Model, system: System, table: Table, extents: Extents
) -> list[ComponentOperations]:
    """Cost every operation of the embedding, each kind of layer, and the head.

    Parameters
    ----------
    model
        Architecture.
    system
        Accelerators and network tiers.
    table
        Strategies of n rows.
    extents
        Placement of each axis; shape (tiers, n).
    """
    return _operation_costs(model, OperationInputs.of(model, system, table, extents))


def _operation_costs(model: Model, inputs: OperationInputs) -> list[ComponentOperations]:
    work = inputs.work
    parts = [("embedding", 1, embedding_operations(model, work))]
    parts += [
        ("layer", layer.count, layer_operations(model, layer, work)) for layer in model.layers
    ]
    if model.mtp:
        mtp = mtp_operations(model, work, holds_table=inputs.mtp_copy)
        parts.append(("mtp", model.mtp, mtp))
    parts.append(("head", 1, head_operations(model, work, holds_copy=inputs.head_copy)))
    costs = []
    for name, count, listed in parts:
        operations = with_accumulation(with_subset(model, name, listed, work, inputs.subset), work)
        costs.append((name, count, [operation_cost(o, inputs.machine) for o in operations]))
    return costs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """What the operations of a micro-batch add up to, whatever is recomputed or offloaded."""

    work: tuple[LayerWork, ...]
    """Of each of `ComponentOperations`."""
    element_bytes: Floats
    gradient_bytes: Floats
    boundary_bytes: Floats
    memory_rate: Floats
    matrix_rate: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """What else a strategy decides about the cost of layers, as columns."""

    operations: Ints
    """Position among the distinct operations."""
    system: System
    training: Bools
    recompute: RecomputedRows
    recomputes_some: bool
    """Whether any row recomputes only some of its layers."""
    overlaps_experts: Bools
    overlap_processors: Floats
    weight_sizes: WeightSizes
    resident_gradient_bytes: Floats
    optimizer: Ints
    offload_weights: Bools
    offload_activations: Bools
    offload_parts: Ints

    @classmethod
    def of(cls, system: System, totals: _Totals, table: Table, operations: Ints) -> "_Choices":
        """Read strategies whose operations are known."""
        element_bytes = totals.element_bytes[operations]
        gradient_bytes = totals.gradient_bytes[operations]
        separate = table.by_stack(lambda stack: stack.plain_gradients)
        separate &= gradient_bytes > element_bytes
        selective = table.recompute == Recompute.SELECTIVE.code
        return cls(
            operations=operations,
            system=table.on(system),
            training=table.training,
            recompute=RecomputedRows(
                full=table.recompute == Recompute.FULL.code,
                parts=np.where(selective, table.recompute_parts, 0),
                checkpoint_bytes=totals.boundary_bytes[operations],
            ),
            recomputes_some=bool(np.any(table.recomputes_some)),
            overlaps_experts=table.overlaps_experts,
            overlap_processors=table.by_stack(lambda stack: stack.expert_overlap_processors),
            weight_sizes=weight_sizes(table, element_bytes),
            resident_gradient_bytes=gradient_bytes + np.where(separate, element_bytes, 0.0),
            optimizer=table.optimizer,
            offload_weights=table.offload_weights,
            offload_activations=table.offload_activations,
            offload_parts=table.offload_parts,
        )


def component_costs(
    model: Model,
    system: System,
    table: Table,
    extents: Extents | Distinct[Extents],
    costs: Sequence[ComponentOperations] | None = None,
) -> Distinct[ComponentCosts]:
    """Cost a layer of each kind, the embedding and the head, once for rows that cost the same.

    Operations do not depend on what is recomputed or offloaded, so they are costed once for all
    of these.

    Parameters
    ----------
    model
        Architecture.
    system
        Accelerators and network tiers.
    table
        Strategies of n rows.
    extents
        Placement of each axis; shape (tiers, n).
    costs
        `operation_costs` of a table of one row, if already computed.
    """
    inputs = evaluate_distinct(partial(OperationInputs.of, model, system), table, extents)
    totals = _totals(model, inputs.values, costs)
    choices = evaluate_distinct(partial(_Choices.of, system, totals), table, inputs.position)
    found = _component_costs(model, totals, choices.values)
    return Distinct(found, choices.position)


def _totals(
    model: Model, inputs: OperationInputs, costs: Sequence[ComponentOperations] | None
) -> _Totals:
    machine, work = inputs.machine, inputs.work
    parts = costs or _operation_costs(model, inputs)
    return _Totals(
        work=tuple(layer_work(costs, machine) for _, _, costs in parts),
        element_bytes=work.element_bytes,
        gradient_bytes=work.gradient_bytes,
        boundary_bytes=work.split_tokens * model.hidden * work.element_bytes,
        memory_rate=machine.memory_rate,
        matrix_rate=_matrix_rate(machine, model.hidden, work.element_bytes),
    )


def _component_costs(model: Model, totals: _Totals, choices: _Choices) -> ComponentCosts:
    totals = gather(totals, choices.operations)
    embedding, *inner, head = totals.work
    sizes, training = choices.weight_sizes, choices.training

    def layer(kind: LayerWork, again: RecomputedRows | None) -> LayerCost:
        one = layer_cost(kind, training=training, recompute=again, movable=choices.offload_parts)
        if model.has_experts:
            one = with_expert_overlap(one, choices.overlaps_experts, choices.overlap_processors)
        return with_offload(
            choices.system,
            one,
            weight_bytes=sizes.resident(
                one.bytes.all_parameters, one.bytes.all_quantized_parameters
            ),
            training=training,
            weights=choices.offload_weights,
            activations=choices.offload_activations,
        )

    kinds = inner[: len(model.layers)]
    several = (*kinds, inner[-1] if model.mtp else None, embedding, head)
    memory_of = partial(
        weight_bytes,
        sizes=sizes,
        gradient_bytes=choices.resident_gradient_bytes,
        optimizer=choices.optimizer,
        training=training,
    )
    recompute = choices.recompute
    return ComponentCosts(
        kinds=tuple(layer(kind, recompute) for kind in kinds),
        plain=tuple(layer(kind, None) for kind in kinds) if choices.recomputes_some else None,
        embedding=layer_cost(embedding, training=training),
        mtp=layer(inner[-1], recompute) if model.mtp else None,
        head=layer_cost(head, training=training),
        weights=tuple(memory_of(part, expert=False) for part in several),
        expert_weights=tuple(memory_of(part, expert=True) for part in several),
        element_bytes=totals.element_bytes,
        weight_sizes=sizes,
        gradient_bytes=totals.gradient_bytes,
        resident_gradient_bytes=choices.resident_gradient_bytes,
        boundary_bytes=totals.boundary_bytes,
        memory_rate=totals.memory_rate,
        key=np.arange(len(training)),
        matrix_rate=totals.matrix_rate,
    )


def _matrix_rate(machine: Machine, width: int, element_bytes: Floats) -> Floats:
    """FLOPs over time of a product of square matrices in the row's type [FLOP/s]."""
    one = np.ones_like(machine.host_launch_s)
    side, size = width * one, element_bytes
    product = Matmul(
        phase=Phase.FORWARD, m=side, n=side, k=side, input_bytes=size, output_bytes=size, batch=one
    )
    return product.flops / machine.kernels.times(product)[2]


@dataclass(frozen=True, slots=True)
class PlacedCosts:
    """Extents, layer costs and stages of a table's rows, each distinct one once."""

    extents: Distinct[Extents]
    components: Distinct[ComponentCosts]
    stages: Distinct[tuple[StageGroup, ...]]

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: Table,
        costs: Sequence[ComponentOperations] | None = None,
    ) -> "PlacedCosts":
        """Place the axes, cost the layers and lay out the stages.

        Parameters
        ----------
        costs
            `operation_costs` of a table of one row, if already computed.
        """
        extents = evaluate_distinct(partial(place, system), table)
        components = component_costs(model, system, table, extents, costs)
        return cls(extents, components, distinct_stage_groups(model, table))

    def without_times(self, rows: Ints | slice) -> ComponentCosts:
        """Costs of some rows for `memory` alone, which reads none of their times."""
        position = self.components.position[rows]
        return gather(self.components.values, position, but=(LayerTimes, TrainedWeights))
