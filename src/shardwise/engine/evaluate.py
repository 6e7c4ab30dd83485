"""From model, system and a table of strategies to times and memory: every formula, once, in order.

One row or ten million go through the same functions. What depends on few columns is evaluated once
for each distinct value of them and gathered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, combined, total
from shardwise.config.enums import MemoryLimit
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import ComponentCosts, PlacedCosts, component_times
from shardwise.cost.component_operations import ComponentOperations
from shardwise.distinct import Distinct, evaluate_distinct
from shardwise.engine.critical_stage import Boundary, CriticalStage, LargestStage, boundary_of
from shardwise.engine.memory import StageMemory, reserved_bytes, stage_memory
from shardwise.engine.step_time import step_times
from shardwise.engine.zero import Shares
from shardwise.parallel.pipeline_layout import StageGroup
from shardwise.parallel.placement import Extents


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Memory of the peak-memory stage of each row."""

    memory: StageMemory
    """In the first memory tier; offloaded bytes are those of the stage that offloads the most."""
    reserved_bytes: Floats
    peak_memory_stage: Ints

    def needed_bytes(self, system: System) -> Floats:
        """Bytes that must fit into the first memory tier (`Memory.limit_on`).

        Parameters
        ----------
        system
            Accelerators with their memory.
        """
        limit = system.accelerator.memory[0].limit_on
        return self.reserved_bytes if limit == MemoryLimit.RESERVED else self.memory.total


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of a step."""

    time_s: dict[str, Floats]
    """Disjoint times of the step, in the order of `TIME_PARTS` [s]."""
    step_time_s: Floats
    comm_s: dict[str, tuple[Floats, Floats]]
    """By axis: time of its communication alone, and exposed [s]."""
    critical: CriticalStage
    """The stage with the longest passes, which the others wait for."""
    largest: LargestStage
    """The stage that trains the most weights."""
    recompute_flops: Floats
    """Recomputed in a step, per accelerator [FLOP]."""
    boundary: Boundary
    """Transfer of a micro-batch between stages."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(PeakMemory, Timing):
    """Columns of results, one value per row."""

    fits: Bools
    costs: ComponentCosts
    """Costs of the components that times and bytes are added up from."""
    groups: tuple[StageGroup, ...]
    """Components on each group of equal stages."""
    extents: Extents
    """Placement of the axes on the network tiers."""


def evaluate(
    model: Model, system: System, table: Table, known: Sequence[ComponentOperations] | None = None
) -> Evaluation:
    """Evaluate legal strategies: times of the step and memory of the peak-memory stage.

    Parameters
    ----------
    model
        Architecture.
    system
        Accelerators and network tiers.
    table
        Strategies of n rows.
    known
        `operation_costs` of a table of one row, if already computed.
    """
    placed = PlacedCosts.of(model, system, table, known)
    extents, costs = placed.extents.of_all(), placed.components.of_all()
    groups = placed.stages.of_all()
    holding = peak_memory(table, placed.holdings, placed.stages)
    timing = timed(model, system, table, extents, costs, groups)
    parts = [(part, f.name) for part in (holding, timing) for f in fields(part)]
    return Evaluation(
        **{name: getattr(part, name) for part, name in parts},
        fits=fits(table.on(system), holding),
        costs=costs,
        groups=groups,
        extents=extents,
    )


def peak_memory(
    table: Table,
    costs: ComponentCosts | Distinct[ComponentCosts],
    groups: Sequence[StageGroup] | Distinct[tuple[StageGroup, ...]],
) -> PeakMemory:
    """Memory of the peak-memory stage; offloaded bytes, of the stage that offloads the most.

    Of equal stages the first has the peak: activations in flight only fall from stage to stage.
    With two different chunks on a rank it may be the last of them.

    Parameters
    ----------
    table
        Strategies of n rows, perhaps with several choices.
    costs
        Costs by component; columns of shape (n,).
    groups
        Stage groups of the pipelines; columns of shape (n,).
    """
    stages = groups if isinstance(groups, Distinct) else tuple(groups)
    return evaluate_distinct(_peak_memory, table, costs, stages, choices=True).of_all()


def _peak_memory(table: Table, costs: ComponentCosts, groups: tuple[StageGroup, ...]) -> PeakMemory:
    shares = Shares.of(table, costs)
    peak = stage_memory(table, costs, groups[0], shares=shares)
    stage = np.broadcast_to(groups[0].first, peak.total.shape)
    others = [(group, group.first) for group in groups[1:]]
    if np.any(table.joins_ends):
        others += [(group, group.last) for group in groups]
    for group, at in others:
        other = stage_memory(table, costs, group, at, shares)
        more = other.total > peak.total
        offloaded = np.maximum(peak.offloaded, other.offloaded)
        peak = combined(partial(_where, more), other, peak)
        peak = replace(peak, offloaded=offloaded)
        stage = np.where(more, at, stage)
    return PeakMemory(
        memory=peak,
        reserved_bytes=reserved_bytes(
            peak.total,
            slack=table.by_stack(lambda stack: stack.allocator_slack),
            runtime_memory=table.by_stack(lambda stack: stack.runtime_memory),
        ),
        peak_memory_stage=stage,
    )


def _where(rows: Bools, one: Floats, other: Floats) -> Floats:
    return np.where(rows, one, other)


def fits(system: System, holding: PeakMemory, capacity_bytes: float | None = None) -> Bools:
    """Rows that fit into the first memory tier, and what they offload into the usable second.

    Parameters
    ----------
    system
        Accelerators and network tiers.
    holding
        Memory of the peak-memory stage [byte]; columns of shape (n,).
    capacity_bytes
        Usable bytes of the first tier; None: its full capacity.
    """
    tiers = system.accelerator.memory
    room = tiers[0].capacity if capacity_bytes is None else capacity_bytes
    here = holding.needed_bytes(system) <= room
    return here & (holding.memory.offloaded <= tiers[1].usable_bytes) if len(tiers) > 1 else here


def timed(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    costs: ComponentCosts,
    groups: Sequence[StageGroup],
    *,
    waits: bool = True,
) -> Timing:
    """Times of a step.

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
        Costs by component; columns of shape (n,).
    groups
        Stage groups of the pipelines; columns of shape (n,).
    waits
        Whether to include the pipeline bubble, which is slow to compute; without it times are lower
        bounds.
    """
    system = table.on(system)
    critical, largest = CriticalStage.of(costs, groups), LargestStage.of(costs, groups)
    boundary = boundary_of(system, table, extents, costs)
    times, comm = step_times(
        model, system, table, extents, groups, critical, largest, boundary, waits=waits
    )
    again = component_times(costs, critical.all_stages, lambda times: times.recompute_flops)
    return Timing(
        time_s=times,
        step_time_s=total(times.values(), costs.memory_rate),
        comm_s=comm,
        critical=critical,
        largest=largest,
        recompute_flops=table.micro_batches * again / table.pp,
        boundary=boundary,
    )
