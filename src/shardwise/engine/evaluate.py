"""From model, system and a table of strategies to times and memory: every formula, once, in order.

One row or ten million go through the same functions. What depends on few columns is evaluated once
for each distinct value of them and gathered.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, combined, gather, total
from shardwise.config.enums import MemoryLimit
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import SystemColumns, SystemRows
from shardwise.cost.component_costs import (
    ComponentCosts,
    ComponentOperations,
    OperationInputs,
    PlacedCosts,
    component_costs,
    operation_costs,
    summed,
)
from shardwise.cost.layer_cost import LayerBytes, WeightBytes
from shardwise.distinct import Distinct, evaluate_distinct, known_of, take
from shardwise.engine.memory import StageMemory, reserved_bytes, stage_memory
from shardwise.engine.step import Step
from shardwise.engine.step_time import step_times
from shardwise.ops.quantization import WeightSizes
from shardwise.parallel.pipeline_layout import StageGroup, one_after_the_other
from shardwise.parallel.placement import Extents
from shardwise.records import dataclass, fields, replace

# Rows of all stages whose memory is computed at a time: few rows take as long as many.
_ROWS_AT_ONCE = 1 << 13


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Memory of the peak-memory stage of each row."""

    memory: StageMemory
    """In the first memory tier; offloaded bytes are those of the stage that offloads the most."""
    reserved_bytes: Floats
    peak_memory_stage: Ints

    def needed_bytes(self, system: System) -> Floats:
        """Bytes that must fit into the first memory tier (`Memory.limit_on`)."""
        limit = system.accelerator.memory[0].limit_on
        return self.reserved_bytes if limit == MemoryLimit.RESERVED else self.memory.total


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of a step."""

    step: Step
    time_s: dict[str, Floats]
    """Disjoint times of the step, in the order of `TIME_PARTS` [s]."""
    step_time_s: Floats
    comm_s: dict[str, tuple[Floats, Floats]]
    """By axis: time of its communication alone, and exposed [s]."""
    recompute_flops: Floats
    """Recomputed in a step, per accelerator [FLOP]."""

    def first(self, step: Step) -> "Timing":
        """Return the times of the first rows, those of a step."""
        count = len(step.table)
        return Timing(
            step=step,
            time_s={part: column[:count] for part, column in self.time_s.items()},
            step_time_s=self.step_time_s[:count],
            comm_s={
                axis: (alone[:count], exposed[:count])
                for axis, (alone, exposed) in self.comm_s.items()
            },
            recompute_flops=self.recompute_flops[:count],
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation(PeakMemory, Timing):
    """Columns of results, one value per row."""

    fits: Bools
    inputs: Distinct[OperationInputs]
    """Of the operations."""
    network_step_s: Floats | None
    """Step times on each of several networks, if they were of interest; shape (networks, n)."""

    @cached_property
    def parts(self) -> Sequence[ComponentOperations]:
        """Operations of each component with their costs; they read no more than `step.costs`."""
        step = self.step
        given = step.model, step.system, step.table, step.extents, self.inputs.of_all()
        return known_of(partial(operation_costs, *given), operation_costs, step.costs)


def evaluate(
    model: Model, system: System, table: Table, networks: SystemColumns | None = None
) -> Evaluation:
    """Evaluate legal strategies: times of the step and memory of the peak-memory stage.

    Parameters
    ----------
    networks
        Systems that differ in their networks alone, to time each row on; the first is the system
        itself. It takes little longer: formulas are evaluated for all at once.
    """
    placed = PlacedCosts.of(model, system, table, networks)
    extents, costs = placed.extents.of_all(), placed.components.of_all()
    holding = peak_memory(table, placed.holdings, placed.stages)
    groups, on_networks = placed.stages.of_all(), None
    if networks is None or placed.on_networks is None:
        timing = timed(model, system, table, extents, costs, groups)
    else:
        on_each, rows = table.on_each(networks)
        several = gather((extents, groups), rows)
        every = timed(model, system, on_each, several[0], placed.on_networks, several[1])
        on_networks = every.step_time_s.reshape(len(networks), len(table))
        step = Step.of(model, system, table, extents, costs, groups)
        timing = every.first(step)
    parts = [(part, f.name) for part in (holding, timing) for f in fields(part)]
    return Evaluation(
        **{name: getattr(part, name) for part, name in parts},
        fits=fits(timing.step.system, holding),
        inputs=placed.inputs,
        network_step_s=on_networks,
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
    """
    stages = groups if isinstance(groups, Distinct) else tuple(groups)
    return evaluate_distinct(_peak_memory, table, costs, stages, choices=True).of_all()


def _peak_memory(table: Table, costs: ComponentCosts, groups: tuple[StageGroup, ...]) -> PeakMemory:
    stages = [(group, group.first) for group in groups]
    if np.any(table.joins_ends):
        stages += [(group, group.last) for group in groups]
    count = len(table)
    at_once = max(1, _ROWS_AT_ONCE // max(count, 1))
    peak: StageMemory | None = None
    for start in range(0, len(stages), at_once):
        some = stages[start : start + at_once]
        each = _memory_of_each(table, costs, some)
        for (_, at), other in zip(some, each, strict=True):
            if peak is None:
                peak, stage = other, np.broadcast_to(at, other.total.shape)
                continue
            more = other.total > peak.total
            offloaded = np.maximum(peak.offloaded, other.offloaded)
            peak = combined(partial(_where, more), other, peak)
            peak = replace(peak, offloaded=offloaded)
            stage = np.where(more, at, stage)
    assert peak is not None  # noqa: S101 - a pipeline has a stage
    return PeakMemory(
        memory=peak,
        reserved_bytes=reserved_bytes(
            peak.total,
            slack=table.by_stack(lambda stack: stack.allocator_slack),
            runtime_memory=table.by_stack(lambda stack: stack.runtime_memory),
        ),
        peak_memory_stage=stage,
    )


def _memory_of_each(
    table: Table, costs: ComponentCosts, stages: Sequence[tuple[StageGroup, Ints]]
) -> Iterator[StageMemory]:
    """Memory of each stage: formulas are evaluated for all at once."""
    count, number = len(table), len(stages)
    if number == 1:
        yield stage_memory(table, costs, *stages[0])
        return
    rows = np.tile(np.arange(count), number)
    found = stage_memory(
        table.take(rows),
        take(costs, rows),
        one_after_the_other([group for group, _ in stages]),
        np.concatenate([at for _, at in stages]),
    )
    for n in range(number):
        yield combined(partial(_part, slice(n * count, (n + 1) * count)), found)


def _part(rows: slice, column: Floats) -> Floats:
    return column[..., rows] if column.shape[-1] > 1 else column


def _where(rows: Bools, one: Floats, other: Floats) -> Floats:
    return np.where(rows, one, other)


def fits(system: System, holding: PeakMemory, capacity_bytes: float | None = None) -> Bools:
    """Rows that fit into the first memory tier, and what they offload into the usable second.

    Parameters
    ----------
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
    groups: tuple[StageGroup, ...],
    *,
    waits: bool = True,
) -> Timing:
    """Times of a step.

    Parameters
    ----------
    waits
        Whether to include the pipeline bubble, which is slow to compute; without it times are lower
        bounds.
    """
    step = Step.of(model, system, table, extents, costs, groups)
    times, comm = step_times(step, waits=waits)
    again = summed(costs, step.critical.all_stages, lambda one: one.times.recompute_flops)
    return Timing(
        step=step,
        time_s=times,
        step_time_s=total(times.values(), costs.memory_rate),
        comm_s=comm,
        recompute_flops=table.micro_batches * again / table.pp,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSystems:
    """Rows of a table and their component costs on each of several systems of one structure.

    Placement, stages and memory are those of one system; component costs are computed once for each
    distinct placement and each system.
    """

    _model: Model
    _system: System
    table: Table
    _placed: PlacedCosts
    _systems: SystemColumns
    _components: Distinct[ComponentCosts]
    """Each distinct placement on each system; the system varies fastest."""

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: Table,
        placed: PlacedCosts,
        systems: SystemColumns,
    ) -> "OnSystems":
        """Compute the component costs of placed rows on each system.

        Parameters
        ----------
        system, placed
            A system of that structure, and the rows placed on it.
        """
        _, firsts = np.unique(placed.components.position, return_index=True)
        rows = np.repeat(firsts, len(systems))
        on_each = SystemRows(
            columns=systems, position=np.tile(np.arange(len(systems)), firsts.size)
        )
        return cls(
            _model=model,
            _system=system,
            table=table,
            _placed=placed,
            _systems=systems,
            _components=component_costs(
                model, system, replace(table.take(rows), systems=on_each), placed.extents.take(rows)
            ),
        )

    def pass_times(self, rows: Ints, on: Ints) -> Floats:
        """Time of all passes on the critical stage of some rows, each on one system [s].

        A lower bound of the step time, fast to compute: it needs only times of layers.
        """
        position = self._components.position[self._on_each(rows, on)]
        costs = gather(
            self._components.values, position, but=(LayerBytes, WeightBytes, WeightSizes)
        )
        longest = [
            summed(costs, group.work, lambda one: one.times.time_s)
            for group in self._placed.stages.take(rows)
        ]
        return self.table.micro_batches[rows] * np.max(longest, axis=0)

    def step_times(self, rows: Ints, on: Ints, *, waits: bool = True) -> Floats:
        """Times of a step of some rows, each on one of the systems [s]; shape (choices, rows).

        Parameters
        ----------
        waits
            Whether to include the pipeline bubble; without it times are lower bounds.
        """
        here = SystemRows(columns=self._systems, position=on)
        timing = timed(
            self._model,
            self._system,
            replace(self.table.take(rows), systems=here),
            self._placed.extents.take(rows),
            self._components.take(self._on_each(rows, on)),
            self._placed.stages.take(rows),
            waits=waits,
        )
        return np.atleast_2d(timing.step_time_s)

    def _on_each(self, rows: Ints, on: Ints) -> Ints:
        """Positions of the component costs of some rows, each on one system."""
        return self._placed.components.position[rows] * len(self._systems) + on
