"""Every kernel and collective of one strategy: the rows of `--ops`."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shardwise.analysis.components import (
    FULL_LAYER,
    recomputed_parts,
    repeats_collectives,
    rerun_share,
    saved_activation_bytes,
)
from shardwise.analysis.results import OperationEstimate
from shardwise.analysis.step_operations import members_of, step_operations
from shardwise.arrays import Floats
from shardwise.config.system import System
from shardwise.cost.collective import NO_DATA
from shardwise.cost.component_costs import ComponentCosts
from shardwise.cost.links import CollectiveTimes, Links
from shardwise.cost.operations import CollectiveCost, KernelCost, OperationCost
from shardwise.engine.evaluate import Evaluation
from shardwise.ops.operation import FlashAttention, Matmul, Phase

_SHARED = ("flops", "bytes", "compute_s", "memory_s", "time_s", "exposed_s")
_KINDS = {Matmul: "matmul", FlashAttention: "attention"}


def operation_estimates(evaluation: Evaluation) -> tuple[OperationEstimate, ...]:
    """List the kernels and collectives of a table of one row.

    For one micro-batch: embedding, a layer of each kind and head, with what recompute repeats. Then
    for the full step (`step_operations`): pipeline transfers, each data-parallel collective, and
    the parts of the optimizer.
    """
    step, table, blocks = evaluation.step, evaluation.step.table, evaluation.step.costs
    training = bool(table.training[0])
    times = CollectiveTimes(Links.of(step.system, table, step.extents))
    rows: list[OperationEstimate] = []
    first = 0
    for part, count, costs in evaluation.parts:
        recomputed = recomputed_parts(table, part)
        for position, cost in enumerate(costs):
            saved = saved_activation_bytes(cost, recomputed) if training else 0.0
            if recomputed == FULL_LAYER and position == 0:
                saved = float(blocks.boundary_bytes[0])
            ran = [
                row
                for row in _rows(part, count, cost, times)
                if training or row.phase == Phase.FORWARD
            ]
            if ran:
                weights = float(_weight_bytes(cost, blocks)[0])
                update = {"weight_bytes": weights, "saved_bytes": saved}
                ran[0] = ran[0].model_copy(update=update)
                first = len(rows)
            elif saved:  # fused into the kernel before it, like the softmax of flash attention
                saved += rows[first].saved_bytes
                rows[first] = rows[first].model_copy(update={"saved_bytes": saved})
            rows += ran
        rows += [row for cost in costs for row in _recomputed(part, count, cost, times, recomputed)]
    rows += step_operations(evaluation)
    return tuple(row.model_copy(update=_network(step.system, row)) for row in rows)


def _network(system: System, row: OperationEstimate) -> dict[str, object]:
    """The outermost tier that a collective crosses, and its bandwidth for one accelerator."""
    if row.group == 1 or not row.extents:
        return {}
    tier = row.extents.index(row.group)
    name, bandwidth = system.network[tier].name, system.tier_bandwidth(tier)
    return {"network": name, "link_bandwidth": bandwidth}


def missed_operations(evaluation: Evaluation) -> tuple[str, ...]:
    """Operations with a kernel that is unlike all shapes in the system's measured tables."""
    training = bool(evaluation.step.table.training[0])
    names = [
        cost.operation.name
        for _, _, costs in evaluation.parts
        for cost in costs
        for timed in cost.kernels
        if timed.missed[0] and timed.time_s[0] > 0
        if training or timed.kernel.phase is Phase.FORWARD
    ]
    return tuple(dict.fromkeys(names))


def _weight_bytes(cost: OperationCost, blocks: ComponentCosts) -> Floats:
    """Bytes of an operation's weights with their quantized copies."""
    return blocks.weight_sizes.resident(cost.operation.parameters, cost.operation.read_quantized)


def _rows(
    part: str, count: int, cost: OperationCost, times: CollectiveTimes
) -> Iterator[OperationEstimate]:
    for kernel in cost.kernels:
        if kernel.time_s[0] > 0:
            yield _kernel_row(part, count, cost, kernel)
    for collective in cost.collectives:
        if collective.time_s[0] > 0:
            yield _collective_row(part, count, cost, collective, times)


def _recomputed(
    part: str, count: int, cost: OperationCost, times: CollectiveTimes, recomputed: frozenset[str]
) -> Iterator[OperationEstimate]:
    """What recompute repeats of an operation."""
    share = rerun_share(cost, recomputed)
    for row in _rows(part, count, cost, times):
        if (
            row.phase == Phase.FORWARD
            and share > 0
            and (row.group == 1 or repeats_collectives(cost, recomputed))
        ):
            figures = {name: share * getattr(row, name) for name in _SHARED} if share < 1 else {}
            yield row.model_copy(update={"phase": "recompute"} | figures)


def _kernel_row(part: str, count: int, cost: OperationCost, timed: KernelCost) -> OperationEstimate:
    kernel = timed.kernel
    compute, memory, time = (float(t[0]) for t in (timed.compute_s, timed.memory_s, timed.time_s))
    return OperationEstimate(
        part=part,
        operation=cost.operation.name,
        phase=kernel.phase.value,
        count=count,
        kind=_KINDS.get(type(kernel), "memory"),
        flops=float(kernel.flops[0]),
        bytes=float(kernel.bytes[0]),
        compute_s=compute,
        memory_s=memory,
        time_s=time,
        exposed_s=time,
        bound=bound_by(timed),
        missed=bool(timed.missed[0]),
    )


def bound_by(timed: KernelCost) -> str:
    """What limits a kernel: compute, memory or launch."""
    compute, memory, time = (float(t[0]) for t in (timed.compute_s, timed.memory_s, timed.time_s))
    spent = {"compute": compute, "memory": memory, "launch": time - max(compute, memory)}
    return max(spent, key=lambda name: spent[name])


def _collective_row(
    part: str, count: int, cost: OperationCost, timed: CollectiveCost, times: CollectiveTimes
) -> OperationEstimate:
    collective = timed.collective
    empty = replace(collective, bytes=np.full_like(collective.bytes, NO_DATA))
    return OperationEstimate(
        part=part,
        operation=cost.operation.name,
        phase=collective.phase.value,
        count=count,
        kind=collective.kind.value,
        axis=collective.axis,
        volume_bytes=float(collective.bytes[0]),
        time_s=float(timed.time_s[0]),
        exposed_s=float(timed.exposed_s[0]),
        bound="network",
        latency_s=float(times.alone_s(empty)[0]),
        **members_of(times.links.extents[collective.axis]),
    )
