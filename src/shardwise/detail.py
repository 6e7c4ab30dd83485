"""Detail of one strategy: its stages."""

from collections.abc import Sequence

import numpy as np

from shardwise.blocks import PartCosts
from shardwise.evaluate import Evaluation, memory_of_stages
from shardwise.memory import (
    MEMORY_PARTS,
    StageMemory,
    reserved_bytes,
    stage_parameters,
)
from shardwise.model import Model
from shardwise.results import Memory, Peak, StageEstimate
from shardwise.schedule.closed_form import in_flight
from shardwise.stages import layers_on
from shardwise.system import System
from shardwise.table import Table

__all__ = ["memory_record", "stage_estimates"]


def memory_record(memory: StageMemory, reserved: float, system: System, row: int) -> Memory:
    """One row of columns of memory as a record."""
    columns = {name: getattr(memory, name) for name in (*MEMORY_PARTS, "total", "offloaded")}
    held = {
        name: float(np.broadcast_to(column, memory.total.shape)[row])
        for name, column in columns.items()
    }
    tiers = system.accelerator.memory
    return Memory(
        **held,
        reserved=reserved,
        capacity=tiers[0].capacity,
        offload_capacity=tiers[1].capacity if len(tiers) > 1 else 0.0,
    )


def stage_estimates(
    model: Model,
    system: System,
    table: Table,
    evaluation: Evaluation,
    parts: Sequence[PartCosts],
) -> tuple[StageEstimate, ...]:
    """Every pipeline stage of a table of one row."""
    blocks, stages = evaluation.blocks, int(table.pp[0])
    stage = np.arange(stages)
    first, last = stage == 0, stage == stages - 1
    memory = memory_of_stages(model, table, blocks, stage)
    stack = table.stacks[int(table.stack[0])]
    reserved = reserved_bytes(
        memory.total,
        slack=np.array([stack.allocator_slack]),
        runtime_memory=np.array([stack.runtime_memory]),
    )
    ends = first * blocks.embedding.time_s + last * blocks.head.time_s
    layers = layers_on(model.depth, table.pp, stage)
    seconds = blocks.layers.time_s * layers / model.depth + ends
    parameters = stage_parameters(
        blocks.layers,
        blocks.embedding,
        blocks.head,
        depth=model.depth,
        stages=table.pp,
        stage=stage,
    )
    flying = in_flight(
        micro_batches=table.micro_batches, stages=table.pp, chunks=table.vpp, stage=stage
    ) * np.where(table.training, 1.0, 0.0)
    in_layer = _largest_working_set(parts)
    in_head, in_update = (
        np.broadcast_to(where, memory.total.shape) for where in (memory.in_head, memory.in_update)
    )

    def peak(i: int) -> Peak:
        held = float(memory.total[i])
        if in_update[i]:
            return Peak(bytes=held, operation="optimizer", phase="update")
        phase = "backward" if table.training[0] else "forward"
        return Peak(bytes=held, operation="loss" if in_head[i] else in_layer, phase=phase)

    return tuple(
        StageEstimate(
            stage=i,
            layers=int(layers[i]),
            parameters=float(parameters[i]),
            in_flight=float(flying[i]),
            micro_batch_s=float(seconds[i]),
            **memory_record(memory, float(reserved[i]), system, i).to_dict(),
            peak=peak(i),
        )
        for i in range(stages)
    )


def _largest_working_set(parts: Sequence[PartCosts]) -> str:
    layers = [cost for name, _, costs in parts if name == "layer" for cost in costs]
    return max(layers, key=lambda cost: float(cost.operation.working_bytes[0])).operation.name
