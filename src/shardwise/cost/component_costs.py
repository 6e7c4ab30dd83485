"""Cost of a micro-batch on a rank, by component: a layer of each kind, the embedding, the head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TypeVar

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather, joined, total
from shardwise.config.enums import Recompute
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_operations import (
    BLOCK,
    ComponentOperations,
    OperationInputs,
    Totals,
    by_kernels,
    totals_of,
)
from shardwise.cost.layer_communication import LayerCommunication
from shardwise.cost.layer_cost import (
    LayerBytes,
    LayerCost,
    LayerTimes,
    LayerWork,
    RecomputedRows,
    WeightBytes,
    layer_cost,
    weight_bytes,
)
from shardwise.cost.links import Links
from shardwise.cost.offload import with_offload
from shardwise.cost.optimizer import TrainedWeights
from shardwise.cost.overlap import with_expert_overlap
from shardwise.distinct import Distinct, evaluate_distinct
from shardwise.ops.quantization import WeightSizes, weight_sizes
from shardwise.parallel.pipeline_layout import StageGroup, distinct_stage_groups
from shardwise.parallel.placement import Extents, place

T = TypeVar("T")


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
class _Choices:
    """What else a strategy decides about the cost of layers, as columns."""

    kernels: Ints
    """Position among the distinct inputs of operations."""
    links: Ints
    """Position among the distinct rows of `Links`."""
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
    def of(cls, system: System, totals: Totals, table: Table, links: Ints) -> "_Choices":
        """Read strategies whose operations are known."""
        kernels = totals.position[links]
        element_bytes = totals.kernels.element_bytes[kernels]
        gradient_bytes = totals.kernels.gradient_bytes[kernels]
        separate = table.by_stack(lambda stack: stack.plain_gradients)
        separate &= gradient_bytes > element_bytes
        selective = table.recompute == Recompute.SELECTIVE.code
        return cls(
            kernels=kernels,
            links=links,
            system=table.on(system),
            training=table.training,
            recompute=RecomputedRows(
                full=table.recompute == Recompute.FULL.code,
                parts=np.where(selective, table.recompute_parts, 0),
                checkpoint_bytes=totals.kernels.boundary_bytes[kernels],
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
    of these; nor do kernels depend on the placement, so they are timed once for all of it.

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
    inputs = evaluate_distinct(partial(OperationInputs.of, model, system), table)
    links = evaluate_distinct(partial(Links.of, system), table, extents, inputs.position)
    if table.systems is None:
        links = by_kernels(links)
    totals = totals_of(model, inputs.values, links.values, costs)
    choices = evaluate_distinct(partial(_Choices.of, system, totals), table, links.position)
    several = choices.values
    if table.systems is not None or len(several.training) <= BLOCK:
        return Distinct(_component_costs(model, totals, several), choices.position)
    blocks = [
        _component_costs(model, totals, gather(several, slice(start, start + BLOCK)))
        for start in range(0, len(several.training), BLOCK)
    ]
    found = joined(blocks) or _component_costs(model, totals, several)
    found = replace(found, key=np.arange(len(several.training)))
    return Distinct(found, choices.position)


def _component_costs(model: Model, all_totals: Totals, choices: _Choices) -> ComponentCosts:
    totals = gather(all_totals.kernels, choices.kernels)
    communication = gather(all_totals.communication, choices.links)
    embedding, *inner, head = zip(totals.work, communication, strict=True)
    sizes, training = choices.weight_sizes, choices.training

    def layer(
        kind: tuple[LayerWork, LayerCommunication], again: RecomputedRows | None
    ) -> LayerCost:
        one = layer_cost(*kind, training=training, recompute=again, movable=choices.offload_parts)
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
    works = totals.work
    several = (*works[1 : 1 + len(kinds)], works[-2] if model.mtp else None, works[0], works[-1])
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
        embedding=layer_cost(*embedding, training=training),
        mtp=layer(inner[-1], recompute) if model.mtp else None,
        head=layer_cost(*head, training=training),
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
