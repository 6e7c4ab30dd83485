"""Detail of one strategy: its stages and its operations."""

import numpy as np

from shardwise.blocks import operation_costs
from shardwise.cost.operations import ExchangeCost, KernelCost, OperationCost
from shardwise.evaluate import Evaluation, memory_of_stages
from shardwise.memory import StageMemory, head_decides, reserved_bytes, stage_parameters
from shardwise.model import Model
from shardwise.ops.layer import rank_work
from shardwise.ops.operation import FlashAttention, Matmul
from shardwise.placement import Extents, place
from shardwise.results import Memory, OperationEstimate, Peak, StageEstimate
from shardwise.system import System
from shardwise.table import Table

__all__ = ["memory_record", "operation_estimates", "stage_estimates"]

Part = tuple[str, int, list[OperationCost]]


def memory_record(memory: StageMemory, reserved: float, capacity: float, row: int) -> Memory:
    """One row of columns of memory as a record."""
    held = {
        name: float(np.broadcast_to(getattr(memory, name), memory.total.shape)[row])
        for name in ("weights", "gradients", "optimizer", "activations", "buffers", "total")
    }
    return Memory(**held, reserved=reserved, capacity=capacity)


def stage_estimates(
    model: Model, system: System, table: Table, evaluation: Evaluation
) -> tuple[StageEstimate, ...]:
    """Every pipeline stage of a table of one row."""
    blocks, stages = evaluation.blocks, int(table.pp[0])
    stage = np.arange(stages)
    first, last = stage == 0, stage == stages - 1
    memory = memory_of_stages(table, blocks, stage)
    stack = table.stacks[int(table.stack[0])]
    reserved = reserved_bytes(
        memory.total,
        slack=np.array([stack.allocator_slack]),
        runtime_memory=np.array([stack.runtime_memory]),
    )
    times = {
        name: block.forward_s + block.backward_s + block.recompute_s + block.tp_exposed_s
        for name, block in (
            ("layers", blocks.layers),
            ("embedding", blocks.embedding),
            ("head", blocks.head),
        )
    }
    seconds = times["layers"] / stages + first * times["embedding"] + last * times["head"]
    parameters = stage_parameters(
        blocks.layers, blocks.embedding, blocks.head, stages=table.pp, stage=stage
    )
    in_head = head_decides(blocks.layers, blocks.head, last)
    layer_peak = _largest_working_set(operation_costs(model, system, table))
    capacity = system.accelerator.memory[0].capacity
    return tuple(
        StageEstimate(
            stage=i,
            layers=model.depth // stages,
            parameters=float(parameters[i]),
            micro_batch_s=float(seconds[i]),
            **memory_record(memory, float(reserved[i]), capacity, i).to_dict(),
            peak=Peak(
                bytes=float(memory.total[i]),
                operation="loss" if in_head[i] else layer_peak,
                phase="backward",
            ),
        )
        for i in range(stages)
    )


def _largest_working_set(parts: list[Part]) -> str:
    layers = [cost for name, _, costs in parts if name == "layer" for cost in costs]
    return max(layers, key=lambda cost: float(cost.operation.working_bytes[0])).operation.name


def operation_estimates(
    model: Model, system: System, table: Table
) -> tuple[OperationEstimate, ...]:
    """Every kernel and exchange that a table of one row runs."""
    extents = place(system, table)
    element_bytes = rank_work(table).element_bytes
    rows: list[OperationEstimate] = []
    for part, count, costs in operation_costs(model, system, table):
        for cost in costs:
            first = len(rows)
            rows += [_kernel_row(part, count, cost, k) for k in cost.kernels if k.time_s[0] > 0]
            rows += [
                _exchange_row(part, count, cost, e, extents)
                for e in cost.exchanges
                if e.time_s[0] > 0
            ]
            held = float(cost.operation.parameters[0]), float(cost.operation.saved_bytes[0])
            if len(rows) > first:
                weights = held[0] * float(element_bytes[0])
                update = {"weight_bytes": weights, "saved_bytes": held[1]}
                rows[first] = rows[first].model_copy(update=update)
    return tuple(rows)


def _kernel_row(part: str, count: int, cost: OperationCost, timed: KernelCost) -> OperationEstimate:
    kernel = timed.kernel
    compute, memory, time = (float(t[0]) for t in (timed.compute_s, timed.memory_s, timed.time_s))
    launch = max(time - max(compute, memory), 0.0)
    spent = {"compute": compute, "memory": memory, "launch": launch}
    kinds = {Matmul: "matmul", FlashAttention: "attention"}
    return OperationEstimate(
        part=part,
        operation=cost.operation.name,
        phase=kernel.phase.value,
        count=count,
        kind=kinds.get(type(kernel), "memory"),
        flops=float(kernel.flops[0]),
        bytes=float(kernel.bytes[0]),
        compute_s=compute,
        memory_s=memory,
        time_s=time,
        exposed_s=time,
        bound=max(spent, key=lambda name: spent[name]),
        volume_bytes=0.0,
        group=1,
        extent=1,
        weight_bytes=0.0,
        saved_bytes=0.0,
    )


def _exchange_row(
    part: str, count: int, cost: OperationCost, timed: ExchangeCost, extents: Extents
) -> OperationEstimate:
    collective = timed.collective
    reach = getattr(extents, collective.axis)
    return OperationEstimate(
        part=part,
        operation=cost.operation.name,
        phase=collective.phase.value,
        count=count,
        kind=collective.kind.value,
        flops=0.0,
        bytes=0.0,
        compute_s=0.0,
        memory_s=0.0,
        time_s=float(timed.time_s[0]),
        exposed_s=float(timed.exposed_s[0]),
        bound="network",
        volume_bytes=float(collective.bytes[0]),
        group=int(reach[-1, 0]),
        extent=int(reach[0, 0]),
        weight_bytes=0.0,
        saved_bytes=0.0,
    )
