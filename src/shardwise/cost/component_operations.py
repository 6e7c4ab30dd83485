"""Operations of a micro-batch on a rank, by component of the model: their costs, and the totals."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, equal, fingerprint, gather, joined
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.layer_communication import LayerCommunication, layer_communication
from shardwise.cost.layer_cost import LayerStorage, LayerWork, layer_storage, layer_work
from shardwise.cost.links import CollectiveTimes, Links
from shardwise.cost.operations import Machine, OperationCost, operation_cost
from shardwise.distinct import Distinct
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import KnownBlocks, layer_operations, mtp_operations, rank_work
from shardwise.ops.linear import with_accumulation
from shardwise.ops.lora import Subset, with_subset
from shardwise.ops.operation import Matmul, Operation, Phase, RankWork
from shardwise.parallel.placement import Extents

# Rows whose costs are computed at a time: more would not stay in the cache.
BLOCK = 1 << 14

# A component of the model, how often it occurs, and the costs of its operations.
ComponentOperations = tuple[str, int, list[OperationCost]]


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
    def of(cls, model: Model, table: Table) -> "OperationSizes":
        """Read strategies."""
        untied = np.full(len(table), not model.tied_embeddings)
        apart = table.pipelined
        if model.tied_embeddings or model.mtp:
            apart = apart & ~table.joins_ends
        return cls(
            work=rank_work(table),
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
        return cls(sizes=OperationSizes.of(model, table), machine=Machine.of(system, table))


def operation_costs(
    model: Model, system: System, table: Table, extents: Extents
) -> list[ComponentOperations]:
    """Cost every operation of the embedding, each kind of layer, and the head.

    Parameters
    ----------
    extents
        Placement of each axis; shape (tiers, n).
    """
    inputs = OperationInputs.of(model, system, table)
    links = Links.of(system, table, extents)
    return list(_operation_costs(model, inputs, links))


def _operation_costs(
    model: Model, inputs: OperationInputs, links: Links
) -> Iterator[ComponentOperations]:
    known = _KnownCosts(inputs.machine, CollectiveTimes(links))
    for name, count, operations in _operations(model, inputs.sizes):
        yield name, count, [known.cost_of(operation) for operation in operations]


def _operations(
    model: Model, sizes: OperationSizes
) -> Iterator[tuple[str, int, Sequence[Operation]]]:
    """Operations of each component, in forward order."""
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
                return replace(cost, operation=operation)
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
        every = [operations for _, _, operations in _operations(model, sizes)]
        return cls.of_operations(model, sizes, every)

    @classmethod
    def of_operations(
        cls, model: Model, sizes: OperationSizes, operations: Sequence[Sequence[Operation]]
    ) -> "StorageTotals":
        """Add up the bytes of the operations of each component."""
        work = sizes.work
        return cls(
            layers=tuple(map(layer_storage, operations)),
            element_bytes=work.element_bytes,
            gradient_bytes=work.gradient_bytes,
            boundary_bytes=work.split_tokens * model.hidden * work.element_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTotals:
    """What the operations of a micro-batch add up to, whatever is recomputed or offloaded."""

    work: tuple[LayerWork, ...]
    """Of each of `ComponentOperations`."""
    storage: StorageTotals
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


def totals_of(
    model: Model,
    inputs: OperationInputs,
    links: Links,
    costs: Sequence[ComponentOperations] | None,
) -> Totals:
    """Add up the costs of operations, some of the rows of `Links` at a time.

    The times of all kernels of many rows would not stay in the cache.
    """
    kernels = links.kernels
    if costs or kernels is None or links.several_systems or kernels.size <= BLOCK:
        return _totals_of_block(model, inputs, links, costs)
    blocks = []
    count = len(inputs.sizes.mtp_copy)
    firsts = np.searchsorted(kernels, np.arange(count + 1))
    cuts = np.unique(np.searchsorted(firsts, range(BLOCK, kernels.size, BLOCK))).tolist()
    for start, end in pairwise([0, *cuts, count]):
        some = links.take(slice(firsts[start], firsts[end]))
        some = replace(some, kernels=kernels[firsts[start] : firsts[end]] - start)
        blocks.append(_totals_of_block(model, gather(inputs, slice(start, end)), some, None))
    found = joined(blocks)
    if found is None:
        return _totals_of_block(model, inputs, links, None)
    return replace(found, position=kernels)


def by_kernels(links: Distinct[Links]) -> Distinct[Links]:
    """Sort rows by their kernels."""
    kernels = links.values.kernels
    assert kernels is not None  # noqa: S101 - of several rows
    order = np.argsort(kernels, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return Distinct(links.values.take(order), place[links.position])


def _totals_of_block(
    model: Model,
    inputs: OperationInputs,
    links: Links,
    costs: Sequence[ComponentOperations] | None,
) -> Totals:
    machine, sizes = inputs.machine, inputs.sizes
    kernels, every, communication = [], [], []
    for _, _, operations in costs or _operation_costs(model, inputs, links):
        kernels.append(layer_work(operations, machine))
        every.append([cost.operation for cost in operations])
        communication.append(layer_communication(operations))
    return Totals(
        kernels=KernelTotals(
            work=tuple(kernels),
            storage=StorageTotals.of_operations(model, sizes, every),
            memory_rate=machine.memory_rate,
            matrix_rate=_matrix_rate(machine, model.hidden, sizes.work.element_bytes),
        ),
        communication=tuple(communication),
        position=np.asarray(links.kernels),
    )


def _matrix_rate(machine: Machine, width: int, element_bytes: Floats) -> Floats:
    """FLOPs over time of a product of square matrices in the row's type [FLOP/s]."""
    one = np.ones_like(machine.host_launch_s)
    side, size = width * one, element_bytes
    product = Matmul(
        phase=Phase.FORWARD, m=side, n=side, k=side, input_bytes=size, output_bytes=size, batch=one
    )
    return product.flops / machine.kernels.times(product)[2]
