"""Cost of a micro-batch on a rank, by component: a layer of each kind, the embedding, the head."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from shardwise.arrays import (
    ONLY_ROW,
    Bools,
    Floats,
    Ints,
    columns_in,
    equal,
    figures_in,
    fingerprint,
    gather,
    joined,
)
from shardwise.config.enums import Recompute
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import SystemColumns
from shardwise.cost.layer_cost import (
    NO_TIMES,
    LayerCommunication,
    LayerCost,
    LayerStorage,
    LayerTimes,
    LayerWork,
    RecomputedRows,
    WeightBytes,
    bytes_of_layer,
    layer_communication,
    layer_storage,
    layer_work,
    times_of_layer,
    weight_bytes,
)
from shardwise.cost.links import CollectiveTimes, Links, dispatch_processor_share
from shardwise.cost.operations import Machine, OperationCost, operation_cost
from shardwise.cost.optimizer import TrainedWeights
from shardwise.cost.overlap import with_expert_overlap, with_offload
from shardwise.distinct import (
    FEW_ROWS,
    Distinct,
    SeenRow,
    evaluate_distinct,
    known_of,
    known_row,
    known_rows,
)
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import KnownBlocks, layer_operations, mtp_operations, rank_work
from shardwise.ops.linear import with_accumulation
from shardwise.ops.lora import Subset, with_subset
from shardwise.ops.operation import FP32_BYTES, Matmul, Operation, Phase, RankWork
from shardwise.ops.precision import reduced_size
from shardwise.ops.quantization import WeightSizes, weight_sizes
from shardwise.parallel.pipeline_layout import StageGroup, distinct_stage_groups
from shardwise.parallel.placement import Extents, place
from shardwise.records import dataclass, fields, replace

# Rows whose costs are computed at a time: more would not stay in the cache.
BLOCK = 1 << 13

# A component of the model, how often it occurs, and the costs of its operations.
ComponentOperations = tuple[str, int, list[OperationCost]]
_Listed = tuple[str, int, Sequence[Operation]]
# Single rows whose operations are saved, of a model: each is some 200 KB.
_MOST_LISTED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSizes:
    """What the operations of a micro-batch are built from, as columns."""

    work: RankWork
    subset: Subset
    head_copy: Bools
    """Whether the rank of the head stores its own table."""
    mtp_copy: Bools
    """Whether modules of multi-token prediction store a copy of the embedding."""

    @classmethod
    def of(cls, model: Model, table: Table, *, longest: bool = True) -> "OperationSizes":
        """Read strategies: of the longest micro-batch, which memory must hold, or the usual one."""
        untied = np.full(len(table), not model.tied_embeddings)
        apart = table.pipelined
        if model.tied_embeddings or model.mtp:
            apart = apart & ~table.joins_ends
        return cls(
            work=rank_work(table, longest=longest),
            subset=Subset.of(table),
            head_copy=apart | untied,
            mtp_copy=apart & untied,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationInputs:
    """Sizes of the operations of a micro-batch, and what times their kernels, as columns."""

    sizes: OperationSizes
    machine: Machine

    @classmethod
    def of(cls, model: Model, system: System, table: Table) -> "OperationInputs":
        """Read strategies."""
        sizes = OperationSizes.of(model, table, longest=False)
        return cls(sizes=sizes, machine=Machine.of(system, table))


def operation_costs(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    inputs: OperationInputs | None = None,
) -> list[ComponentOperations]:
    """Cost every operation of the embedding, each kind of layer, and the head.

    Parameters
    ----------
    extents
        Placement of each axis; shape (tiers, n).
    inputs
        Those of the table, if already known.
    """
    inputs = OperationInputs.of(model, system, table) if inputs is None else inputs
    links = Links.of(system, table, extents)
    return list(_operation_costs(model, inputs, links))


def _operation_costs(
    model: Model, inputs: OperationInputs, links: Links
) -> Iterator[ComponentOperations]:
    known = _KnownCosts(inputs.machine, CollectiveTimes(links))
    for name, count, operations in _operations(model, inputs.sizes):
        yield name, count, [known.cost_of(operation) for operation in operations]


def _operations(model: Model, sizes: OperationSizes) -> Sequence[_Listed]:
    """Operations of each component, in forward order; of a single row, they are saved."""
    if sizes.head_copy.size != 1:
        return [*_listed(model, sizes)]
    columns = [column.tobytes() for column in columns_in(sizes)]
    key = (*columns, *figures_in(sizes))
    known: dict[Hashable, Sequence[_Listed]] = known_of(dict, _operations, model)
    if (found := known.get(key)) is None:
        found = known[key] = [*_listed(model, sizes)]
        if len(known) > _MOST_LISTED:
            known.pop(next(iter(known)), None)
    return found


def _listed(model: Model, sizes: OperationSizes) -> Iterator[_Listed]:
    work = sizes.work
    blocks: KnownBlocks = {}
    known: dict[int, tuple[Operation, Operation]] = {}

    def accumulated(operation: Operation) -> Operation:
        """An operation with the kernels that accumulate its weight gradients, made once."""
        if id(operation) not in known:
            [full] = with_accumulation([operation], work)
            known[id(operation)] = operation, full
        return known[id(operation)][1]

    parts = [("embedding", 1, embedding_operations(model, work))]
    parts += [
        ("layer", layer.count, layer_operations(model, layer, work, blocks))
        for layer in model.layers
    ]
    if model.mtp:
        mtp = mtp_operations(model, work, holds_table=sizes.mtp_copy)
        parts.append(("mtp", model.mtp, mtp))
    parts.append(("head", 1, head_operations(model, work, holds_copy=sizes.head_copy)))
    for name, count, listed in parts:
        own = with_subset(model, name, listed, work, sizes.subset)
        yield name, count, [accumulated(operation) for operation in own]


class _KnownCosts:
    """Costs of operations: those of one kind of layer may occur in others too."""

    def __init__(self, machine: Machine, times: CollectiveTimes) -> None:
        self._machine, self._times = machine, times
        self._costs: dict[Hashable, list[OperationCost]] = {}
        self._by_id: dict[int, tuple[Operation, OperationCost]] = {}

    def cost_of(self, operation: Operation) -> OperationCost:
        """Cost of an operation; of the same object, the same."""
        known = self._by_id.get(id(operation))
        if known is None:
            known = self._by_id[id(operation)] = operation, self._cost_of_equal(operation)
        return known[1]

    def _cost_of_equal(self, operation: Operation) -> OperationCost:
        """Cost of an operation, as it was found for an equal one before."""
        likely = fingerprint(operation.kernels[:1])  # of all kernels takes longer
        key = operation.name.removeprefix("mtp."), operation.expert, likely
        costs = self._costs.setdefault(key, [])
        for cost in costs:
            same = cost.operation
            if equal(same.kernels, operation.kernels) and equal(
                same.collectives, operation.collectives
            ):
                return replace(cost, operation=operation, same=cost)
        costs.append(operation_cost(operation, self._machine, self._times))
        return costs[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTotals:
    """Bytes of the operations of a micro-batch, whatever is recomputed or offloaded."""

    layers: tuple[LayerStorage, ...]
    """Of each of `ComponentOperations`."""
    element_bytes: Floats
    gradient_bytes: Floats
    boundary_bytes: Floats

    @classmethod
    def of(cls, model: Model, sizes: OperationSizes) -> "StorageTotals":
        """Add up the bytes of operations; no time is computed."""
        work = sizes.work
        return cls(
            layers=tuple(layer_storage(listed) for _, _, listed in _operations(model, sizes)),
            element_bytes=work.element_bytes,
            gradient_bytes=work.gradient_bytes,
            boundary_bytes=boundary_bytes(model, work),
        )


def boundary_bytes(model: Model, work: RankWork) -> Floats:
    """The residual stream on one rank [byte]."""
    return work.split_tokens * model.hidden * model.streams * work.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTotals:
    """What the operations of a micro-batch add up to, whatever is recomputed or offloaded."""

    work: tuple[LayerWork, ...]
    """Of each of `ComponentOperations`."""
    memory_rate: Floats
    matrix_rate: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the kernels and the collectives of a micro-batch add up to."""

    kernels: KernelTotals
    """Of each distinct input of operations."""
    communication: tuple[LayerCommunication, ...]
    """Of each of `ComponentOperations`, for each row of `Links`."""
    position: Ints
    """For each row of `Links`, which kernels it has."""

    def take(self, rows: Ints) -> "Totals":
        """Some rows of `Links`."""
        sent = gather(self.communication, rows)
        return replace(self, communication=sent, position=self.position[rows])


def totals_of(model: Model, inputs: OperationInputs, links: Links) -> Totals:
    """Add up the costs of operations, some of the rows of `Links` at a time.

    The times of all kernels of many rows would not stay in the cache.
    """
    kernels = links.kernels
    if kernels is None or links.several_systems or kernels.size <= BLOCK:
        return _totals_of_block(model, inputs, links)
    blocks = []
    count = len(inputs.sizes.mtp_copy)
    firsts = np.searchsorted(kernels, np.arange(count + 1))
    cuts = np.unique(np.searchsorted(firsts, range(BLOCK, kernels.size, BLOCK))).tolist()
    for start, end in pairwise([0, *cuts, count]):
        some = links.take(slice(firsts[start], firsts[end]))
        some = replace(some, kernels=kernels[firsts[start] : firsts[end]] - start)
        blocks.append(_totals_of_block(model, gather(inputs, slice(start, end)), some))
    found = joined(blocks)
    if found is None:
        return _totals_of_block(model, inputs, links)
    return replace(found, position=kernels)


def known_totals(model: Model, inputs: OperationInputs, links: Links) -> Distinct[Totals]:
    """Result of `totals_of`; rows that were added up before are not again."""
    kernels = np.asarray(links.kernels)
    if links.several_systems or kernels.size > FEW_ROWS:
        return Distinct(totals_of(model, inputs, links), np.arange(kernels.size))

    def of(rows: Ints) -> Totals:
        used, position = np.unique(kernels[rows], return_inverse=True)
        some = replace(links.take(rows), kernels=position)
        found = _totals_of_block(model, gather(inputs, used), some)
        sent = tuple(one.with_zeros(np.zeros(rows.size)) for one in found.communication)
        each = gather(found.kernels, found.position)
        return Totals(kernels=each, communication=sent, position=np.arange(rows.size))

    columns = [*columns_in(gather(inputs, kernels)), *links.columns]
    figures = [*figures_in(inputs), *figures_in(links)]
    found = known_rows(Totals, model, links.system).of(columns, figures, of)
    every = np.arange(found.values.position.size)
    return Distinct(replace(found.values, position=every), found.position)


def by_kernels(links: Distinct[Links]) -> Distinct[Links]:
    """Sort rows by their kernels."""
    kernels = links.values.kernels
    assert kernels is not None  # noqa: S101 - of several rows
    order = np.argsort(kernels, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return Distinct(links.values.take(order), place[links.position])


def _totals_of_block(model: Model, inputs: OperationInputs, links: Links) -> Totals:
    costs = list(_operation_costs(model, inputs, links))
    return Totals(
        kernels=_kernel_totals(model, inputs, costs, saved=links.one_accelerator),
        communication=tuple(layer_communication(listed) for _, _, listed in costs),
        position=np.asarray(links.kernels),
    )


def _kernel_totals(
    model: Model, inputs: OperationInputs, costs: Sequence[ComponentOperations], *, saved: bool
) -> KernelTotals:
    """Add up the kernels of operations; of one accelerator, they are saved between calls.

    They are the same for every placement, and in every network.
    """
    machine, count = inputs.machine, inputs.machine.captured.size

    def of(rows: Ints) -> KernelTotals:
        found = KernelTotals(
            work=tuple(layer_work(listed, machine) for _, _, listed in costs),
            memory_rate=machine.memory_rate,
            matrix_rate=_matrix_rate(machine, model.hidden, inputs.sizes.work.element_bytes),
        )
        return found if rows.size == count else gather(found, rows)

    if not saved:
        return of(np.arange(count))
    known = known_rows(KernelTotals, model, machine.kernels.chip)
    found = known.of(list(columns_in(inputs)), figures_in(inputs), of)
    return found.of_all()


def _matrix_rate(machine: Machine, width: int, element_bytes: Floats) -> Floats:
    """FLOPs over time of a product of square matrices in the row's type [FLOP/s]."""
    one = np.ones_like(machine.host_launch_s)
    side, size = width * one, element_bytes
    product = Matmul(
        phase=Phase.FORWARD, m=side, n=side, k=side, input_bytes=size, output_bytes=size, batch=one
    )
    return product.flops / machine.kernels.times(product)[2]


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
    """Size of a gradient as it accumulates [byte]."""
    reduce_bytes: Floats
    """The same in the type of the reduction (`engine.zero.reduced_bytes`) [byte]."""
    resident_gradient_bytes: Floats
    """The same, plus a gradient in the type of the weights where the stack stores it too [byte]."""
    boundary_bytes: Floats
    """The residual stream on one rank: what full recompute saves of a layer [byte]."""
    hidden: Floats
    """Width of the model [elements]."""
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


def summed(
    costs: ComponentCosts,
    counts: Sequence[Floats],
    select: Callable[[LayerCost], Floats],
    *,
    layers: bool = False,
) -> Floats:
    """Add up a column over so many of each component, in the order of `ComponentCosts.components`.

    With `layers` only those made of layers: all but embedding and head.
    """
    end = -2 if layers else None
    found: Floats | None = None
    for count, part in zip(counts[:end], costs.components[:end], strict=True):
        if part is not None:
            found = count * select(part) if found is None else found + count * select(part)
    return np.zeros(counts[0].shape) if found is None else found


def trained_on(
    costs: ComponentCosts, counts: Sequence[Floats], *, layers: bool = False
) -> tuple[TrainedWeights, TrainedWeights]:
    """Add up trained weights: without those of routed experts, and those."""

    def of(kind: str) -> TrainedWeights:
        def column(name: str) -> Floats:
            one = attrgetter(f"bytes.{kind}.{name}")
            return summed(costs, counts, one, layers=layers)

        return TrainedWeights(**{f.name: column(f.name) for f in fields(TrainedWeights)})

    return of("trained"), of("expert_trained")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recompute:
    """Which operations each row runs again, and whether it goes backward at all, as columns."""

    training: Bools
    rows: RecomputedRows
    some: bool
    """Whether any row recomputes only some of its layers."""

    @classmethod
    def of(cls, table: Table, checkpoint_bytes: Floats) -> "_Recompute":
        selective = table.recompute == Recompute.SELECTIVE.code
        return cls(
            training=table.training,
            rows=RecomputedRows(
                full=table.recompute == Recompute.FULL.code,
                parts=np.where(selective, table.recompute_parts, 0),
                checkpoint_bytes=checkpoint_bytes,
            ),
            some=bool(np.any(table.recomputes_some)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StorageChoices:
    """What else a strategy decides about the memory of layers, as columns."""

    kernels: Ints
    """Position among the distinct inputs of operations."""
    recompute: _Recompute
    weight_sizes: WeightSizes
    resident_gradient_bytes: Floats
    reduce_bytes: Floats
    optimizer: Ints
    offload_parts: Ints
    captured: Ints
    """Modules whose CUDA graphs need memory of their own, as bits of `GraphScope`."""
    persistence: Floats
    """Largest tensors that ZeRO-3 leaves gathered [elements]."""

    @classmethod
    def of(cls, model: Model, work: RankWork, table: Table, kernels: Ints) -> "_StorageChoices":
        """Read strategies whose operations are known."""
        element_bytes = work.element_bytes[kernels]
        gradient_bytes = work.gradient_bytes[kernels]
        separate = table.by_stack(lambda stack: stack.plain_gradients)
        separate &= gradient_bytes > element_bytes
        wide = table.by_stack(lambda stack: stack.fp32_checkpoints)
        checkpoint = boundary_bytes(model, work)[kernels]
        checkpoint = checkpoint * np.where(wide, FP32_BYTES / element_bytes, 1)
        return cls(
            kernels=kernels,
            recompute=_Recompute.of(table, checkpoint),
            weight_sizes=weight_sizes(table, element_bytes),
            resident_gradient_bytes=gradient_bytes + np.where(separate, element_bytes, 0.0),
            reduce_bytes=reduced_size(table, element_bytes, gradient_bytes),
            optimizer=table.optimizer,
            offload_parts=table.offload_parts,
            captured=table.own_graph_pools,
            persistence=_persistence(model, table),
        )


# Widths that the Trainer of transformers fills in for `auto` (transformers 4.38 to 5.24,
# integrations/deepspeed.py).
_PERSISTENT_WIDTHS = 10


def _persistence(model: Model, table: Table) -> Floats:
    """Largest tensors that ZeRO-3 leaves gathered [elements]."""
    size = table.by_stack(lambda stack: stack.persistence_threshold)
    by_width = table.by_stack(lambda stack: stack.buckets_by_width) & (size > 0)
    return np.where(by_width, _PERSISTENT_WIDTHS * model.hidden, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimeChoices:
    """What else a strategy decides about the times of layers, as columns."""

    links: Ints
    """Position among the distinct rows of `Links`."""
    storage: Ints
    """Position among the distinct rows of `_StorageChoices`."""
    system: System
    recompute: _Recompute
    overlaps_experts: Bools
    overlaps_by_nodes: Bools
    overlap_processors: Floats
    offload_weights: Bools
    offload_activations: Bools

    @classmethod
    def of(cls, system: System, table: Table, links: Ints, storage: Ints) -> "_TimeChoices":
        """Read strategies whose operations and memory are known."""
        return cls(
            links=links,
            storage=storage,
            system=table.on(system),
            recompute=_Recompute.of(table, np.zeros(links.shape)),
            overlaps_experts=table.overlaps_experts,
            overlaps_by_nodes=table.overlaps_by_nodes,
            overlap_processors=dispatch_processor_share(system, table),
            offload_weights=table.offload_weights,
            offload_activations=table.moves_activations,
        )


_Costed = tuple[Distinct[ComponentCosts], Distinct[ComponentCosts], Distinct[OperationInputs]]


def component_costs(
    model: Model,
    system: System,
    table: Table,
    extents: Extents | Distinct[Extents],
) -> Distinct[ComponentCosts]:
    """Cost a layer of each kind, the embedding and the head, once for rows that cost the same.

    Parameters
    ----------
    extents
        Placement of each axis; shape (tiers, n).
    """
    return costs_and_bytes(model, system, table, extents)[0]


def costs_and_bytes(
    model: Model,
    system: System,
    table: Table,
    extents: Extents | Distinct[Extents],
    held: Distinct[ComponentCosts] | None = None,
    inputs: Distinct[OperationInputs] | None = None,
) -> _Costed:
    """Result of `component_costs`, and the bytes alone, once for rows that need the same memory.

    Also the inputs of the operations, once for rows that have the same kernels.

    Operations do not depend on what is recomputed or offloaded, so they are costed once for all of
    these; nor do kernels and bytes depend on the placement: they are computed once for all of it.

    Parameters
    ----------
    held, inputs
        `stored_bytes` of the table and inputs of its operations, if already computed.
    """
    if inputs is None:
        of_kernels = table
        if table.systems is not None and table.systems.columns.of_networks(system):
            of_kernels = table.changed(systems=None)
        inputs = evaluate_distinct(partial(OperationInputs.of, model, system), of_kernels)
    links = evaluate_distinct(partial(Links.of, system), table, extents, inputs.position)
    links = by_kernels(links) if table.systems is None else links
    known = known_totals(model, inputs.values, links.values)
    totals, position = known.values, known.position[links.position]
    varied = bool(np.any(table.data_lengths >= 0))
    longest = held
    if longest is None:
        same = table.systems is None and not varied
        sizes = Distinct(inputs.values.sizes, inputs.position) if same else None
        longest = stored_bytes(model, table, sizes=sizes)
    # What is moved is usual; what memory must hold, the longest.
    usual = stored_bytes(model, table, longest=False) if varied else longest
    of_times = partial(_TimeChoices.of, system)
    chosen = evaluate_distinct(of_times, table, position, usual.position)

    costs_of = partial(_component_costs, model, totals, usual.values)
    count, in_blocks = len(chosen.values.links), table.systems is None
    found = _by_block(costs_of, chosen.values, count, in_blocks=in_blocks)
    return Distinct(found, chosen.position), longest, inputs


def costs_on_networks(
    model: Model, system: System, table: Table, extents: Extents, networks: SystemColumns
) -> tuple[_Costed, ComponentCosts]:
    """Result of `costs_and_bytes`, and the costs of every row on each network.

    They have the same kernels and bytes, and are computed together.

    Parameters
    ----------
    networks
        Systems that differ in their networks alone; the first is the system itself.
    """
    inputs = evaluate_distinct(partial(OperationInputs.of, model, system), table)
    varied = bool(np.any(table.data_lengths >= 0))
    sizes = None if varied else Distinct(inputs.values.sizes, inputs.position)
    held = stored_bytes(model, table, sizes=sizes)
    on_each, rows = table.on_each(networks)
    known = held.of_rows(rows), inputs.of_rows(rows)
    every = costs_and_bytes(model, system, on_each, gather(extents, rows), *known)[0].of_all()
    own = np.arange(len(table))
    return (Distinct(gather(every, own), own), held, inputs), every


def stored_bytes(
    model: Model,
    table: Table,
    *,
    longest: bool = True,
    also: Table | None = None,
    sizes: Distinct[OperationSizes] | None = None,
) -> Distinct[ComponentCosts]:
    """The bytes of `costs_and_bytes` alone, without times and placement.

    Once for rows that need the same memory; not again for rows whose bytes were computed before.
    They are of the longest micro-batch, or of the usual one.

    Parameters
    ----------
    also
        Other rows to compute and save, for a later call: together they take as long as alone.
    sizes
        Those of the operations of the table, if already known.
    """
    sizes, kept = _storage_choices(model, table, longest=longest, sizes=sizes)
    operations, choices, in_blocks = sizes.values, kept.values, table.systems is None
    if also is not None:
        others, more = _storage_choices(model, also, longest=longest)
        shift = operations.head_copy.size
        moved = replace(more.values, kernels=more.values.kernels + shift)
        every, decided = joined([operations, others.values]), joined([choices, moved])
        if every and decided and decided.kernels.size <= FEW_ROWS:
            operations, choices = every, decided

    def of(rows: Ints) -> ComponentCosts:
        some = gather(choices, rows)
        used, kernels = np.unique(some.kernels, return_inverse=True)
        storage = StorageTotals.of(model, gather(operations, used))
        bytes_of = partial(_component_bytes, model, storage)
        return _by_block(bytes_of, replace(some, kernels=kernels), rows.size, in_blocks=in_blocks)

    own = columns_in(replace(choices, kernels=choices.captured))
    columns = [*columns_in(gather(operations, choices.kernels)), *own]
    figures = [*figures_in(operations), *figures_in(choices)]
    found = known_rows(ComponentCosts, model).of(columns, figures, of)
    values = replace(found.values, key=np.arange(found.values.key.size))
    return Distinct(values, found.position[kept.position])


def _storage_choices(
    model: Model, table: Table, *, longest: bool, sizes: Distinct[OperationSizes] | None = None
) -> tuple[Distinct[OperationSizes], Distinct[_StorageChoices]]:
    """Distinct sizes of operations, and what else decides their memory."""
    if sizes is None:
        sizes = evaluate_distinct(partial(OperationSizes.of, model, longest=longest), table)
    choices_of = partial(_StorageChoices.of, model, sizes.values.work)
    return sizes, evaluate_distinct(choices_of, table, sizes.position)


def _by_block(
    formula: Callable[[T], ComponentCosts], choices: T, count: int, *, in_blocks: bool
) -> ComponentCosts:
    """Costs of so many rows, evaluated some at a time."""
    if not in_blocks or count <= BLOCK:
        return formula(choices)
    slices = [slice(start, start + BLOCK) for start in range(0, count, BLOCK)]
    blocks = [formula(gather(choices, rows)) for rows in slices]
    return replace(joined(blocks) or formula(choices), key=np.arange(count))


def _component_bytes(
    model: Model, totals: StorageTotals, choices: _StorageChoices
) -> ComponentCosts:
    """Bytes of the components, without their times and rates."""
    at = choices.kernels
    storage, no_rate = gather(totals.layers, at), np.full(at.shape, np.nan)
    again, training = choices.recompute.rows, choices.recompute.training

    def layer(part: LayerStorage, recompute: RecomputedRows | None) -> LayerCost:
        size = bytes_of_layer(
            part,
            training=training,
            recompute=recompute,
            movable=choices.offload_parts,
            captured=choices.captured,
            persistence=choices.persistence,
        )
        return LayerCost(times=NO_TIMES, bytes=size)

    def end(part: LayerStorage) -> LayerCost:
        size = bytes_of_layer(part, training=training, persistence=choices.persistence)
        return LayerCost(times=NO_TIMES, bytes=size)

    kinds = storage[1 : 1 + len(model.layers)]
    mtp = storage[-2] if model.mtp else None
    memory_of = partial(
        weight_bytes,
        sizes=choices.weight_sizes,
        gradient_bytes=choices.resident_gradient_bytes,
        optimizer=choices.optimizer,
        training=training,
    )
    several = (*kinds, mtp, storage[0], storage[-1])
    return ComponentCosts(
        kinds=tuple(layer(kind, again) for kind in kinds),
        plain=tuple(layer(kind, None) for kind in kinds) if choices.recompute.some else None,
        embedding=end(storage[0]),
        mtp=None if mtp is None else layer(mtp, again),
        head=end(storage[-1]),
        weights=tuple(memory_of(part, expert=False) for part in several),
        expert_weights=tuple(memory_of(part, expert=True) for part in several),
        element_bytes=totals.element_bytes[at],
        weight_sizes=choices.weight_sizes,
        gradient_bytes=totals.gradient_bytes[at],
        reduce_bytes=choices.reduce_bytes,
        resident_gradient_bytes=choices.resident_gradient_bytes,
        boundary_bytes=totals.boundary_bytes[at],
        hidden=np.full(at.shape, float(model.hidden)),
        memory_rate=no_rate,
        key=np.arange(len(at)),
        matrix_rate=no_rate,
    )


def _component_costs(
    model: Model, totals: Totals, held: ComponentCosts, choices: _TimeChoices
) -> ComponentCosts:
    """Times of the components, with their bytes."""
    costs = gather(held, choices.storage, but=(LayerTimes,))
    kernels = totals.position[choices.links]
    work = gather(totals.kernels.work, kernels)
    communication = gather(totals.communication, choices.links)
    timed = dict(enumerate(zip(work, communication, strict=True)))
    sizes, training, mixed = costs.weight_sizes, choices.recompute.training, model.has_experts

    def end(part: LayerCost, place: int) -> LayerCost:
        return replace(part, times=times_of_layer(*timed[place], training=training))

    def layer(part: LayerCost, place: int, again: RecomputedRows | None) -> LayerCost:
        times = times_of_layer(*timed[place], training=training, recompute=again)
        one = replace(part, times=times)
        if mixed:
            one = with_expert_overlap(
                one,
                *timed[place],
                training=training,
                rows=choices.overlaps_experts,
                by_nodes=choices.overlaps_by_nodes,
                processor_share=choices.overlap_processors,
            )
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

    recompute, last = choices.recompute.rows, len(timed) - 1
    plain = costs.plain
    return replace(
        costs,
        kinds=tuple(layer(kind, place, recompute) for place, kind in enumerate(costs.kinds, 1)),
        plain=plain and tuple(layer(kind, place, None) for place, kind in enumerate(plain, 1)),
        embedding=end(costs.embedding, 0),
        mtp=None if costs.mtp is None else layer(costs.mtp, last - 1, recompute),
        head=end(costs.head, last),
        memory_rate=totals.kernels.memory_rate[kernels],
        key=np.arange(len(choices.links)),
        matrix_rate=totals.kernels.matrix_rate[kernels],
    )


def _known_costs(
    model: Model,
    system: System,
    table: Table,
    extents: Distinct[Extents],
    networks: SystemColumns | None,
) -> tuple[_Costed, ComponentCosts | None]:
    """Costs of rows, and of each on each network.

    Of a single row, they are as they were found for one that costs the same.
    """

    def costed(
        table: Table, extents: Extents | Distinct[Extents]
    ) -> tuple[_Costed, ComponentCosts | None]:
        if networks is None:
            return costs_and_bytes(model, system, table, extents), None
        placed = extents.of_all() if isinstance(extents, Distinct) else extents
        return costs_on_networks(model, system, table, placed, networks)

    row = table.only_row()
    if row is None:
        return costed(table, extents)
    placed = extents.of_all()
    row |= {_PLACED + f.name: getattr(placed, f.name).tobytes() for f in fields(placed)}

    def found(names: set[str]) -> tuple[_Costed, ComponentCosts | None]:
        seen: Any = SeenRow(table, names), SeenRow(placed, names, _PLACED)
        (costs, held, inputs), every = costed(*seen)
        alone = Distinct(costs.of_all(), ONLY_ROW), Distinct(held.of_all(), ONLY_ROW), inputs
        return alone, every

    owners = model, system, networks, *table.stacks
    return known_row(found, row, PlacedCosts, *owners, most=_MOST_KNOWN)


def known_bytes(model: Model, table: Table) -> Distinct[ComponentCosts]:
    """Result of `stored_bytes`; of a single row, as it was found for one that needs the same."""
    row = table.only_row()
    if row is None:
        return stored_bytes(model, table)

    def found(names: set[str]) -> Distinct[ComponentCosts]:
        seen: Any = SeenRow(table, names)
        return Distinct(stored_bytes(model, seen).of_all(), ONLY_ROW)

    return known_row(found, row, known_bytes, model, *table.stacks, most=_MOST_KNOWN)


_PLACED = "extents."
# Single rows whose costs are saved, of a model on a system: each is some 50 KB.
_MOST_KNOWN = 128


@dataclass(frozen=True, slots=True)
class PlacedCosts:
    """Extents, layer costs and stages of a table's rows, each distinct one once."""

    extents: Distinct[Extents]
    components: Distinct[ComponentCosts]
    stages: Distinct[tuple[StageGroup, ...]]
    holdings: Distinct[ComponentCosts]
    """Bytes of the components alone: fewer distinct rows, since placement does not matter."""
    inputs: Distinct[OperationInputs]
    """Of the operations: fewer distinct rows, likewise."""
    on_networks: ComponentCosts | None = None
    """Of each row on each of several networks (`costs_on_networks`)."""

    @classmethod
    def of(
        cls, model: Model, system: System, table: Table, networks: SystemColumns | None = None
    ) -> "PlacedCosts":
        """Place the axes, cost the layers and lay out the stages."""
        extents = evaluate_distinct(partial(place, system), table)
        costed, on_networks = _known_costs(model, system, table, extents, networks)
        components, holdings, inputs = costed
        stages = distinct_stage_groups(model, table)
        return cls(extents, components, stages, holdings, inputs, on_networks)
