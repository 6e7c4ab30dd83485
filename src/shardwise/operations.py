"""Every kernel and exchange of one strategy, row by row: what `--ops` shows."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.blocks import PartCosts
from shardwise.cost.operations import ExchangeCost, KernelCost, OperationCost
from shardwise.evaluate import Evaluation
from shardwise.model import Model
from shardwise.ops.operation import FlashAttention, Matmul, Phase
from shardwise.placement import Extents
from shardwise.recompute import kept_bytes, mode_of, runs_again
from shardwise.results import OperationEstimate
from shardwise.table import Table

__all__ = ["operation_estimates"]

_KINDS = {Matmul: "matmul", FlashAttention: "attention"}


def operation_estimates(
    model: Model,
    table: Table,
    evaluation: Evaluation,
    parts: Sequence[PartCosts],
) -> tuple[OperationEstimate, ...]:
    """List what a table of one row runs.

    Kernels and exchanges of the embedding, a layer of each kind and the head for one micro-batch,
    with what recompute runs again; then, for a whole step, transfers between stages, the exchange
    among replicas, and the optimizer.
    """
    training = bool(table.training[0])
    blocks, extents = evaluation.blocks, evaluation.extents
    element_bytes = float(blocks.element_bytes[0])
    rows: list[OperationEstimate] = []
    for part, count, costs in parts:
        mode = mode_of(table, part)
        for position, cost in enumerate(costs):
            kept = kept_bytes(cost, mode) if training else 0.0
            if mode == "full" and position == 0:
                kept = float(blocks.boundary_bytes[0])
            ran = [
                row
                for row in _rows(part, count, cost, extents)
                if training or row.phase == Phase.FORWARD
            ]
            if ran:
                weights = float(cost.operation.parameters[0]) * element_bytes
                update = {"weight_bytes": weights, "saved_bytes": kept}
                ran[0] = ran[0].model_copy(update=update)
            rows += ran
        for cost in costs:
            rows += [
                row.model_copy(update={"phase": "recompute"})
                for row in _rows(part, count, cost, extents)
                if row.phase == Phase.FORWARD and runs_again(cost, mode)
            ]
    return (*rows, *_step_rows(model, table, evaluation))


def _rows(
    part: str, count: int, cost: OperationCost, extents: Extents
) -> Iterator[OperationEstimate]:
    for kernel in cost.kernels:
        if kernel.time_s[0] > 0:
            yield _kernel_row(part, count, cost, kernel)
    for exchange in cost.exchanges:
        if exchange.time_s[0] > 0:
            yield _exchange_row(part, count, cost, exchange, extents)


def _kernel_row(part: str, count: int, cost: OperationCost, timed: KernelCost) -> OperationEstimate:
    kernel = timed.kernel
    compute, memory, time = (float(t[0]) for t in (timed.compute_s, timed.memory_s, timed.time_s))
    spent = {"compute": compute, "memory": memory, "launch": time - max(compute, memory)}
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
        bound=max(spent, key=lambda name: spent[name]),
    )


def _exchange_row(
    part: str, count: int, cost: OperationCost, timed: ExchangeCost, extents: Extents
) -> OperationEstimate:
    collective = timed.collective
    return OperationEstimate(
        part=part,
        operation=cost.operation.name,
        phase=collective.phase.value,
        count=count,
        kind=collective.kind.value,
        volume_bytes=float(collective.bytes[0]),
        time_s=float(timed.time_s[0]),
        exposed_s=float(timed.exposed_s[0]),
        bound="network",
        **_group(getattr(extents, collective.axis)),
    )


def _group(extents: Ints) -> dict[str, Any]:
    near = tuple(int(extent) for extent in extents[:, 0])
    return {"group": near[-1], "extents": near}


def _step_rows(model: Model, table: Table, evaluation: Evaluation) -> Iterator[OperationEstimate]:
    """What happens between micro-batches and once a step, as totals of the step."""
    blocks, extents = evaluation.blocks, evaluation.extents

    def exchange(
        name: str, kind: str, volume: Floats, axis: str, group: dict[str, Any]
    ) -> Iterator[OperationEstimate]:
        alone, exposed = evaluation.comm_s[axis]
        if alone[0] > 0:
            yield OperationEstimate(
                part="step",
                operation=name,
                phase="step",
                count=1,
                kind=kind,
                volume_bytes=float(volume[0]),
                time_s=float(alone[0]),
                exposed_s=float(exposed[0]),
                bound="network",
                **group,
            )

    directions = 2 if table.training[0] else 1
    handed = directions * table.micro_batches * table.vpp * evaluation.boundary.handed_bytes
    yield from exchange("stage_transfers", "p2p", handed, "pp", _group(extents.pp))
    gradients, weights = evaluation.parameters * blocks.gradient_bytes, blocks.element_bytes
    if table.dp[0] == 1:  # only the copies of tied embeddings on the first and the last stage
        words = np.ceil(model.vocab / table.tp) * model.hidden * blocks.gradient_bytes
        yield from exchange("tied_embeddings", "all_reduce", words, "dp", {"group": 2})
    elif table.zero[0] >= 1:
        volume = gradients + evaluation.parameters * weights
        kind = "reduce_scatter + all_gather"
        yield from exchange("replica_exchange", kind, volume, "dp", _group(extents.dp))
    else:
        yield from exchange("replica_exchange", "all_reduce", gradients, "dp", _group(extents.dp))
    nothing = np.zeros(1)  # the bytes of a step are those of layers, told there
    yield from exchange("offload", "link", nothing, "offload", {})
    update = float(evaluation.time_s["optimizer"][0])
    if not update:
        return
    yield OperationEstimate(
        part="step",
        operation="optimizer",
        phase="step",
        count=1,
        kind="memory",
        bytes=update * float(blocks.memory_rate[0]),
        memory_s=update,
        time_s=update,
        exposed_s=update,
        bound="memory",
    )
