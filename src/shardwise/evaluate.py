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

__all__ = [
    "Evaluation",
    "Holding",
    "Timing",
    "evaluate",
    "fits",
    "held",
    "memory_of_stages",
    "timed",
]


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What the fullest stage of each row holds."""

    memory: StageMemory
    """In the first memory tier; offloaded, of the stage that does most [byte]."""
    reserved_bytes: Floats
    fullest_stage: Ints


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of a step."""

    time_s: dict[str, Floats]
    """Disjoint parts of the step, in the order of `TIME_PARTS` [s]."""
    step_time_s: Floats
    comm_s: dict[str, tuple[Floats, Floats]]
    """By axis: time of its exchanges alone, and what of it is exposed [s]."""
    parameters: Floats
    """Weights on a rank of the stage that holds most."""
    recompute_flops: Floats
    """Run again in a step, per accelerator [FLOP]."""
    boundary: Boundary
    """What passes between stages."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Holding, Timing):
    """Columns of results, one value per row."""

    fits: Bools
    blocks: Blocks
    """What the times and bytes were added up from."""
    extents: Extents
    """Where the axes were placed."""


def evaluate(model: Model, system: System, table: Table) -> Evaluation:
    """Evaluate legal strategies: times of the step and memory of the fullest stage."""
    extents, blocks = placed_blocks(model, system, table)
    holding = held(model, table, blocks)
    timing = timed(model, system, table, extents, blocks)
    parts = [(part, f.name) for part in (holding, timing) for f in fields(part)]
    return Evaluation(
        **{name: getattr(part, name) for part, name in parts},
        fits=fits(system, holding),
        blocks=blocks,
        extents=extents,
    )


def held(model: Model, table: Table, blocks: Blocks) -> Holding:
    """Memory of the fullest stage: the first or the last; offloaded, of the one that does most.

    From stage to stage layers and activations in flight only fall, and only the last holds more
    than layers.
    """
    ends = np.zeros_like(table.pp), table.pp - 1
    first, last = (memory_of_stages(model, table, blocks, stage) for stage in ends)
    is_last = last.total > first.total
    chosen = {
        f.name: np.where(is_last, getattr(last, f.name), getattr(first, f.name))
        for f in fields(StageMemory)
    }
    chosen["offloaded"] = np.maximum(first.offloaded, last.offloaded)
    memory = StageMemory(**chosen)
    return Holding(
        memory=memory,
        reserved_bytes=reserved_bytes(
            memory.total,
            slack=stack_column(table, "allocator_slack"),
            runtime_memory=stack_column(table, "runtime_memory"),
        ),
        fullest_stage=np.where(is_last, ends[1], ends[0]),
    )


def fits(system: System, holding: Holding, capacity_bytes: float | None = None) -> Bools:
    """Rows that fit into the first memory tier, and what they offload into the second.

    Parameters
    ----------
    capacity_bytes
        Of the first tier, where not all of it may be used.
    """
    tiers = system.accelerator.memory
    room = tiers[0].capacity if capacity_bytes is None else capacity_bytes
    here = holding.reserved_bytes <= room
    return here & (holding.memory.offloaded <= tiers[1].capacity) if len(tiers) > 1 else here


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


def timed(model: Model, system: System, table: Table, extents: Extents, blocks: Blocks) -> Timing:
    """Times of a step."""
    parameters = largest_stage(model, table, blocks)
    boundary = boundary_of(system, table, extents, blocks)
    times, comm = step_times(model, system, table, extents, blocks, parameters, boundary)
    return Timing(
        time_s=times,
        step_time_s=total(times.values(), blocks.memory_rate),
        comm_s=comm,
        parameters=parameters,
        recompute_flops=table.micro_batches * blocks.layers.recompute_flops / table.pp,
        boundary=boundary,
    )
