"""From model, system and a table of strategies to times and memory: every formula, once, in order.

One row or ten million go through the same functions. What depends on few columns is evaluated once
for each distinct value of them and gathered.
"""

from dataclasses import dataclass, fields

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, total
from shardwise.blocks import Blocks, placed_blocks
from shardwise.memory import Offload, StageMemory, reserved_bytes, stage_memory
from shardwise.model import Model
from shardwise.ops.layer import stack_column
from shardwise.placement import Extents
from shardwise.slowest import Boundary, boundary_of, largest_stage
from shardwise.step import step_times
from shardwise.system import System
from shardwise.table import Table

__all__ = ["Evaluation", "evaluate", "memory_of_stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Columns of results, one value per row."""

    time_s: dict[str, Floats]
    """Disjoint parts of the step, in the order of `TIME_PARTS` [s]."""
    step_time_s: Floats
    comm_s: dict[str, tuple[Floats, Floats]]
    """By axis: time of its exchanges alone, and what of it is exposed [s]."""
    memory: StageMemory
    """Of the fullest stage [byte]."""
    reserved_bytes: Floats
    fits: Bools
    fullest_stage: Ints
    parameters: Floats
    """Weights on a rank of the stage that holds most."""
    recompute_flops: Floats
    """Run again in a step, per accelerator [FLOP]."""
    blocks: Blocks
    """What the times and bytes were added up from."""
    boundary: Boundary
    """What passes between stages."""
    extents: Extents
    """Where the axes were placed."""


def evaluate(model: Model, system: System, table: Table) -> Evaluation:
    """Evaluate legal strategies: times of the step and memory of the fullest stage."""
    extents, blocks = placed_blocks(model, system, table)
    memory, fullest = _fullest_stage(model, table, blocks)
    reserved = reserved_bytes(
        memory.total,
        slack=stack_column(table, "allocator_slack"),
        runtime_memory=stack_column(table, "runtime_memory"),
    )
    parameters = largest_stage(model, table, blocks)
    boundary = boundary_of(system, table, extents, blocks)
    times, comm = step_times(model, system, table, extents, blocks, parameters, boundary)
    return Evaluation(
        time_s=times,
        step_time_s=total(times.values(), blocks.memory_rate),
        comm_s=comm,
        memory=memory,
        reserved_bytes=reserved,
        fits=_fits(system, memory, reserved),
        fullest_stage=fullest,
        recompute_flops=table.micro_batches * blocks.layers.recompute_flops / table.pp,
        parameters=parameters,
        blocks=blocks,
        boundary=boundary,
        extents=extents,
    )


def _fits(system: System, memory: StageMemory, reserved: Floats) -> Bools:
    """Rows that fit into the first memory tier, and what they offload into the second."""
    tiers = system.accelerator.memory
    fits = reserved <= tiers[0].capacity
    if len(tiers) > 1:
        fits &= memory.offloaded <= tiers[1].capacity
    return fits


def memory_of_stages(model: Model, table: Table, blocks: Blocks, stage: Ints) -> StageMemory:
    """Bytes on a rank of the given stage(s); broadcasts stages against rows."""
    return stage_memory(
        blocks.layers,
        blocks.embedding,
        blocks.head,
        depth=model.depth,
        stages=table.pp,
        chunks=table.vpp,
        micro_batches=table.micro_batches,
        stage=stage,
        training=table.training,
        element_bytes=blocks.element_bytes,
        gradient_bytes=blocks.gradient_bytes,
        boundary_bytes=blocks.boundary_bytes,
        optimizer_shards=table.optimizer_shards,
        gradient_buffers=stack_column(table, "weight_gradient_buffers") > 0,
        offload=Offload(
            weights=table.offload_weights,
            activations=table.offload_activations,
            optimizer=table.offload_optimizer,
        ),
    )


def _fullest_stage(model: Model, table: Table, blocks: Blocks) -> tuple[StageMemory, Ints]:
    """Memory of the fullest stage: the first or the last; offloaded, of the one that does most.

    From stage to stage layers and activations in flight only fall, and only the last holds more
    than layers.
    """
    candidates = [np.zeros_like(table.pp), table.pp - 1]
    memories = [memory_of_stages(model, table, blocks, stage) for stage in candidates]
    best = np.argmax([memory.total for memory in memories], axis=0)
    rows = np.arange(len(table))

    chosen = {
        field.name: np.stack([getattr(memory, field.name) for memory in memories])[best, rows]
        for field in fields(StageMemory)
    }
    chosen["offloaded"] = np.maximum(*(memory.offloaded for memory in memories))
    return StageMemory(**chosen), np.stack(candidates)[best, rows]
