"""One step of a table's rows: their costs, the stages that matter, and transfers between stages."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from shardwise.arrays import Bools, Floats, among, combined, total
from shardwise.config.enums import Schedule, TpExchange
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.component_costs import ComponentCosts, summed, trained_on
from shardwise.cost.layer_cost import LayerTimes
from shardwise.cost.optimizer import TrainedWeights
from shardwise.ops.operation import CollectiveKind
from shardwise.parallel.pipeline_layout import StageGroup
from shardwise.parallel.placement import Extents
from shardwise.records import dataclass

# Schedules whose ranks wait for every message before the pass that needs it.
_IN_TURN = [Schedule(name).code for name in ("1f1b", "gpipe")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalStage:
    """The stage with the longest forward and backward pass, which the others wait for."""

    costs: ComponentCosts
    work: tuple[Floats, ...]
    """How many of each component the stage runs, in the order of `ComponentCosts.components`."""
    all_stages: tuple[Floats, ...]
    """How many of each component all stages together run."""

    @classmethod
    def of(cls, costs: ComponentCosts, groups: Sequence[StageGroup]) -> "CriticalStage":
        """Find the stage with the longest forward and backward pass."""
        work = groups[0].work
        longest = summed(costs, work, lambda one: one.times.time_s)
        for group in groups[1:]:
            time_s = summed(costs, group.work, lambda one: one.times.time_s)
            longer = time_s > longest
            longest = np.maximum(longest, time_s)
            work = _chosen(longer, group.work, work)
        all_stages = tuple(
            total((group.length * group.work[n] for group in groups), longest)
            for n in range(len(work))
        )
        return cls(costs=costs, work=work, all_stages=all_stages)

    def on(self, select: Callable[[LayerTimes], Floats]) -> Floats:
        """A time of one micro-batch on this stage [s]."""
        return summed(self.costs, self.work, lambda one: select(one.times))

    def alone(self, direction: str, axis: str) -> Floats:
        """Communication of an axis in one direction, as if nothing hid it [s]."""
        return self.on(lambda times: getattr(getattr(times, f"alone_{direction}_s"), axis))

    def exposed(self, direction: str, axis: str) -> Floats:
        """The part of it that lengthens the pass [s]."""
        return self.on(lambda times: getattr(getattr(times, f"exposed_{direction}_s"), axis))


def _chosen(rows: Bools, one: tuple[Floats, ...], other: tuple[Floats, ...]) -> tuple[Floats, ...]:
    return tuple(np.where(rows, a, b) for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestStage:
    """The stage whose ranks train the most weights."""

    trained: TrainedWeights
    """Trained weights, except those of routed experts."""
    expert_trained: TrainedWeights
    resident: tuple[Floats, ...]
    """How many of each component a rank stores, in the order of `ComponentCosts.components`."""

    @classmethod
    def of(cls, costs: ComponentCosts, groups: Sequence[StageGroup]) -> "LargestStage":
        """Find the stage with the most trained weights."""
        most, resident = trained_on(costs, groups[0].resident), groups[0].resident
        for group in groups[1:]:
            other = trained_on(costs, group.resident)
            more = other[0].weights + other[1].weights > most[0].weights + most[1].weights
            choose = partial(np.where, more)
            most = combined(choose, other[0], most[0]), combined(choose, other[1], most[1])
            resident = _chosen(more, group.resident, resident)
        return cls(trained=most[0], expert_trained=most[1], resident=resident)

    @property
    def all_trained(self) -> TrainedWeights:
        """All trained weights, with those of routed experts."""
        return self.trained.plus(self.expert_trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Transfer of one micro-batch from a rank to the next stage."""

    sent_bytes: Floats
    """Size of the message [byte]; 0 with a single stage."""
    message_s: Floats
    """Time of the message over the tier that the stages span [s]."""
    tp_comm_s: Floats
    """Tensor-parallel communication that the transfer adds, less what it saves [s]."""
    hidden: Floats
    """Share of the transfers that runs concurrently with compute: 0 for 1F1B and GPipe."""

    @property
    def time_s(self) -> Floats:
        """Time of the transfer with its tensor-parallel communication [s]."""
        return np.maximum(0.0, self.message_s + self.tp_comm_s)

    @property
    def overlapped_s(self) -> Floats:
        """Time of one transfer that overlaps compute [s]."""
        return self.hidden * self.message_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Rows of a table, placed and costed: what the formulas of a step read."""

    model: Model
    system: System
    """What the rows run on, perhaps each row on its own."""
    table: Table
    extents: Extents
    """Placement of each axis; shape (tiers, n)."""
    costs: ComponentCosts
    """Costs of the components that times and bytes are added up from."""
    groups: tuple[StageGroup, ...]
    """Components on each group of equal stages, first to last."""
    critical: CriticalStage
    """The stage with the longest passes, which the others wait for."""
    largest: LargestStage
    """The stage that trains the most weights."""
    boundary: Boundary
    """Transfer of a micro-batch between stages."""

    @property
    def host_call_s(self) -> Floats:
        """Time of the host to run one operation, besides its launches [s]."""
        return self.table.by_compile("host_call") / self.system.launch_speed

    @property
    def weight_calls_s(self) -> Floats:
        """Time of the host for the sharded weights of the largest stage, once through [s]."""
        calls = self.table.by_stack(lambda stack: stack.sharded_weight_calls)
        weighted = summed(self.costs, self.largest.resident, lambda one: one.bytes.weighted)
        return weighted * calls * self.host_call_s

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: Table,
        extents: Extents,
        costs: ComponentCosts,
        groups: tuple[StageGroup, ...],
    ) -> "Step":
        """Find the stages that matter, and the transfers between stages."""
        system = table.on(system)
        return cls(
            model=model,
            system=system,
            table=table,
            extents=extents,
            costs=costs,
            groups=groups,
            critical=CriticalStage.of(costs, groups),
            largest=LargestStage.of(costs, groups),
            boundary=boundary_of(system, table, extents, costs),
        )


def boundary_of(system: System, table: Table, extents: Extents, costs: ComponentCosts) -> Boundary:
    """Return the transfer of a micro-batch to the next stage.

    Without sequence parallelism or 2D products every tensor-parallel rank has the full activation
    A. It sends all of A, or 1/tp of it that the receiving ranks gather (arXiv 2104.04473,
    section 4.1). `tp_exchange` p2p_rs_ag also reduce-scatters the last sum of a stage instead of
    all-reducing it: transfer of A / tp + all-gather + e (reduce-scatter - all-reduce), where e is
    the exposed share of the layers' communication. A is `ComponentCosts.boundary_bytes`.
    """
    full = np.where(table.pp > 1, costs.boundary_bytes, 0.0)
    at_edges = table.tp_exchange == TpExchange.P2P_RS_AG.code
    splits = at_edges | table.by_stack(lambda stack: stack.pp_scatter_gather)
    splits &= (table.tp > 1) & ~table.sequence_parallel & ~table.summa

    def tp_collective(kind: CollectiveKind, rows: Bools) -> Floats:
        return collective_time(system, kind, np.where(rows, full, 0.0), extents.tp)

    tp_comm = tp_collective(CollectiveKind.ALL_GATHER, splits)
    if np.any(at_edges):
        layer = costs.kinds[0].times
        alone = layer.alone_forward_s.tp
        share = layer.exposed_forward_s.tp / np.where(alone > 0, alone, 1.0)
        scattered = tp_collective(CollectiveKind.REDUCE_SCATTER, splits & at_edges)
        tp_comm += share * (scattered - tp_collective(CollectiveKind.ALL_REDUCE, splits & at_edges))
    sent = np.where(splits, full / table.tp, full)
    return Boundary(
        sent_bytes=sent,
        message_s=transfer_time(system, sent, extents.pp),
        tp_comm_s=tp_comm,
        hidden=np.where(
            among(table.schedule, _IN_TURN), 0.0, table.by_stack(lambda stack: stack.pp_hidden)
        ),
    )
