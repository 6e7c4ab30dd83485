"""From model, system and a table of strategies to times and memory: every formula, once, in order.

One row or ten million go through the same functions. What depends on few columns is evaluated once
for each distinct value of them and gathered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, combined, total
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import (
    ComponentCosts,
    ComponentOperations,
    PlacedCosts,
    component_times,
)
from shardwise.engine.critical_stage import Boundary, CriticalStage, LargestStage, boundary_of
from shardwise.engine.memory import StageMemory, reserved_bytes, stage_memory
from shardwise.engine.step_time import step_times
from shardwise.engine.zero import Shares
from shardwise.parallel.pipeline_layout import StageGroup
from shardwise.parallel.placement import Extents

__all__ = [
    "Evaluation",
    "Holding",
    "Timing",
    "evaluate",
    "fits",
    "held",
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
    slowest: CriticalStage
    """The stage that the others wait for."""
    largest: LargestStage
    """The stage that holds most weights."""
    recompute_flops: Floats
    """Run again in a step, per accelerator [FLOP]."""
    boundary: Boundary
    """What passes between stages."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Holding, Timing):
    """Columns of results, one value per row."""

    fits: Bools
    blocks: ComponentCosts
    """What the times and bytes were added up from."""
    runs: tuple[StageGroup, ...]
    """Which parts stand on which stages."""
    extents: Extents
    """Where the axes were placed."""


def evaluate(
    model: Model, system: System, table: Table, costs: Sequence[ComponentOperations] | None = None
) -> Evaluation:
    """Evaluate legal strategies: times of the step and memory of the fullest stage.

    Parameters
    ----------
    costs
        `operation_costs` of a table of one row, if they are known already.
    """
    placed = PlacedCosts.of(model, system, table, costs)
    extents, blocks = placed.extents.of_all(), placed.components.of_all()
    runs = placed.stages.of_all()
    holding = held(table, blocks, runs)
    timing = timed(model, system, table, extents, blocks, runs)
    parts = [(part, f.name) for part in (holding, timing) for f in fields(part)]
    return Evaluation(
        **{name: getattr(part, name) for part, name in parts},
        fits=fits(table.on(system), holding),
        blocks=blocks,
        runs=runs,
        extents=extents,
    )


def held(table: Table, blocks: ComponentCosts, runs: Sequence[StageGroup]) -> Holding:
    """Memory of the fullest stage; offloaded, of the one that does most.

    Of equal stages the first holds most: activations in flight only fall from stage to stage. With
    two unlike chunks on a rank it may be the last of them.
    """
    shares = Shares.of(table, blocks)
    fullest = stage_memory(table, blocks, runs[0], shares=shares)
    stage = np.broadcast_to(runs[0].first, fullest.total.shape)
    others = [(run, run.first) for run in runs[1:]]
    if np.any(table.joins_ends):
        others += [(run, run.last) for run in runs]
    for run, at in others:
        other = stage_memory(table, blocks, run, at, shares)
        fuller = other.total > fullest.total
        offloaded = np.maximum(fullest.offloaded, other.offloaded)
        fullest = combined(partial(_where, fuller), other, fullest)
        fullest = replace(fullest, offloaded=offloaded)
        stage = np.where(fuller, at, stage)
    return Holding(
        memory=fullest,
        reserved_bytes=reserved_bytes(
            fullest.total,
            slack=table.by_stack(lambda stack: stack.allocator_slack),
            runtime_memory=table.by_stack(lambda stack: stack.runtime_memory),
        ),
        fullest_stage=stage,
    )


def _where(rows: Bools, one: Any, other: Any) -> Any:
    return np.where(rows, one, other)


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


def timed(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    blocks: ComponentCosts,
    runs: Sequence[StageGroup],
    *,
    waits: bool = True,
) -> Timing:
    """Times of a step; without what stages wait for, which takes long to find, a bound of it."""
    system = table.on(system)
    slowest, largest = CriticalStage.of(blocks, runs), LargestStage.of(blocks, runs)
    boundary = boundary_of(system, table, extents, blocks)
    times, comm = step_times(
        model, system, table, extents, runs, slowest, largest, boundary, waits=waits
    )
    again = component_times(blocks, slowest.whole, lambda part: part.recompute_flops)
    return Timing(
        time_s=times,
        step_time_s=total(times.values(), blocks.memory_rate),
        comm_s=comm,
        slowest=slowest,
        largest=largest,
        recompute_flops=table.micro_batches * again / table.pp,
        boundary=boundary,
    )
