"""The stage that the others wait for, the one that holds most, and what passes between stages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardwise.arrays import Bools, Floats, combined, total
from shardwise.config.enums import Schedule, TpExchange
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.component_costs import ComponentCosts, component_times, trained_on
from shardwise.cost.layer_cost import LayerTimes
from shardwise.cost.optimizer import TrainedWeights
from shardwise.ops.operation import CollectiveKind
from shardwise.parallel.pipeline_layout import StageGroup
from shardwise.parallel.placement import Extents

# Schedules whose ranks wait for every message before the pass that needs it.
_IN_TURN = [Schedule(name).code for name in ("1f1b", "gpipe")]

__all__ = ["Boundary", "CriticalStage", "LargestStage", "boundary_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalStage:
    """What stands on the stage that the others wait for."""

    blocks: ComponentCosts
    work: tuple[Floats, ...]
    """How many of each part, in the order of `ComponentCosts.parts`."""
    held: tuple[Floats, ...]
    """How many of them its rank holds."""
    whole: tuple[Floats, ...]
    """How many of each part all stages have."""

    @classmethod
    def of(cls, blocks: ComponentCosts, runs: Sequence[StageGroup]) -> "CriticalStage":
        """Find the stage with the longest forward and backward pass."""
        work, held = runs[0].work, runs[0].resident
        longest = component_times(blocks, work, lambda part: part.time_s)
        for run in runs[1:]:
            time_s = component_times(blocks, run.work, lambda part: part.time_s)
            longer = time_s > longest
            longest = np.maximum(longest, time_s)
            work = _chosen(longer, run.work, work)
            held = _chosen(longer, run.resident, held)
        parts = range(len(work))
        whole = tuple(total((r.length * r.work[n] for r in runs), longest) for n in parts)
        return cls(blocks=blocks, work=work, held=held, whole=whole)

    def on(self, select: Callable[[LayerTimes], Floats]) -> Floats:
        """A time of one micro-batch on this stage [s]."""
        return component_times(self.blocks, self.work, select)

    def alone(self, direction: str, axis: str) -> Floats:
        """Exchanges of an axis in one direction, as if nothing hid them [s]."""
        return self.on(lambda part: getattr(getattr(part, f"alone_{direction}_s"), axis))

    def exposed(self, direction: str, axis: str) -> Floats:
        """The same as far as they lengthen the pass [s]."""
        return self.on(lambda part: getattr(getattr(part, f"exposed_{direction}_s"), axis))


def _chosen(rows: Bools, one: tuple[Floats, ...], other: tuple[Floats, ...]) -> tuple[Floats, ...]:
    return tuple(np.where(rows, a, b) for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestStage:
    """The stage whose ranks train most weights."""

    trained: TrainedWeights
    """Without those of routed experts."""
    expert_trained: TrainedWeights
    held: tuple[Floats, ...]
    """How many of each part, in the order of `ComponentCosts.parts`."""

    @classmethod
    def of(cls, blocks: ComponentCosts, runs: Sequence[StageGroup]) -> "LargestStage":
        """Find it."""
        most, held = trained_on(blocks, runs[0].resident), runs[0].resident
        for run in runs[1:]:
            other = trained_on(blocks, run.resident)
            more = other[0].weights + other[1].weights > most[0].weights + most[1].weights
            choose = partial(np.where, more)
            most = combined(choose, other[0], most[0]), combined(choose, other[1], most[1])
            held = _chosen(more, run.resident, held)
        return cls(trained=most[0], expert_trained=most[1], held=held)

    @property
    def all_trained(self) -> TrainedWeights:
        """With those of routed experts."""
        return self.trained.plus(self.expert_trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One micro-batch handed from a stage to the next by one rank."""

    handed_bytes: Floats
    """0 on a single stage."""
    message_s: Floats
    """Over the tier that the stages span [s]."""
    around_s: Floats
    """Exchanges among the tensor-parallel ranks for it, less those it saves [s]."""
    hidden: Floats
    """Share of the transfers that travels beside the compute: only where stages interleave, or
    both directions do."""

    @property
    def time_s(self) -> Floats:
        """All of it [s]."""
        return np.maximum(0.0, self.message_s + self.around_s)


def boundary_of(system: System, table: Table, extents: Extents, blocks: ComponentCosts) -> Boundary:
    """Hand a micro-batch to the next stage.

    Without sequence parallelism or 2D products every tensor-parallel rank holds the whole
    activation A and hands over all of it, or 1/tp of it that the receiving ranks gather (arXiv
    2104.04473, section 4.1). The exchange p2p_rs_ag also scatters the last sum of a stage instead
    of reducing it in place: transfer of A / tp + all-gather + e (reduce-scatter - all-reduce),
    where the share e of the layers' exchanges is exposed.
    """
    whole = np.where(table.pp > 1, blocks.boundary_bytes, 0.0)
    at_edges = table.tp_exchange == TpExchange.P2P_RS_AG.code
    splits = at_edges | table.by_stack(lambda stack: stack.pp_scatter_gather)
    splits &= (table.tp > 1) & ~table.sequence_parallel & ~table.summa

    def exchange(kind: CollectiveKind, rows: Bools) -> Floats:
        return collective_time(system, kind, np.where(rows, whole, 0.0), extents.tp)

    around = exchange(CollectiveKind.ALL_GATHER, splits)
    if np.any(at_edges):
        layer = blocks.kinds[0].times
        alone = layer.alone_forward_s.tp
        share = layer.exposed_forward_s.tp / np.where(alone > 0, alone, 1.0)
        scattered = exchange(CollectiveKind.REDUCE_SCATTER, splits & at_edges)
        around += share * (scattered - exchange(CollectiveKind.ALL_REDUCE, splits & at_edges))
    handed = np.where(splits, whole / table.tp, whole)
    return Boundary(
        handed_bytes=handed,
        message_s=transfer_time(system, handed, extents.pp),
        around_s=around,
        hidden=np.where(
            np.isin(table.schedule, _IN_TURN), 0.0, table.by_stack(lambda stack: stack.pp_hidden)
        ),
    )
