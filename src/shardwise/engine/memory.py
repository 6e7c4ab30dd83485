"""Bytes held on one rank of a pipeline stage at its fullest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, total
from shardwise.config.enums import ZERO_WEIGHTS, Schedule
from shardwise.config.strategy_table import Table
from shardwise.cost.component_costs import ComponentCosts, component_bytes, layer_bytes
from shardwise.cost.layer_cost import LayerBytes
from shardwise.engine.zero import Shares, Unsharded, releases, weight_totals
from shardwise.ops.operation import FP32_BYTES
from shardwise.parallel.pipeline_layout import StageGroup
from shardwise.parallel.schedule.in_flight import (
    chunks_in_flight,
    first_stage_in_flight,
    peak_of_uneven_chunks,
    peak_of_uneven_ends,
)

__all__ = [
    "MEMORY_PARTS",
    "StageMemory",
    "moves",
    "reserved_bytes",
    "stage_memory",
    "stage_parameters",
]

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What a rank of one stage holds [byte]."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    """Kept between forward and backward of the micro-batches in flight."""
    buffers: Floats
    """Live for a moment: what recompute rebuilds, gradients of activations, logits, gathered
    weights; or, where the update of the weights needs more than forward and backward, its copies
    of gradients."""
    part: Ints
    """The component (see `ComponentCosts.components`) in which most lives for a moment."""
    in_update: Bools
    """Whether the stage is fullest in the update of the weights."""
    offloaded: Floats
    """In the second memory tier."""

    @property
    def total(self) -> Floats:
        """Everything at once, as the allocator counts it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


def stage_parameters(costs: ComponentCosts, group: StageGroup) -> tuple[Floats, Floats]:
    """Weights on a rank of a stage: without those of routed experts, and those."""
    return (
        component_bytes(costs, group.resident, lambda size: size.parameters),
        component_bytes(costs, group.resident, lambda size: size.expert_parameters),
    )


def stage_memory(
    table: Table,
    costs: ComponentCosts,
    group: StageGroup,
    stage: Ints | None = None,
    shares: Shares | None = None,
) -> StageMemory:
    """Bytes on a rank of a stage at its fullest: in a backward pass, or in the update.

    ZeRO splits the optimizer state (1), gradients (2) and weights (3) over the replicas. Split
    weights are gathered layer by layer, so many ahead; or stay whole from forward to backward where
    they are not released. Split gradients are whole for one layer.
    Activations: kept bytes of the stage's layers for every micro-batch in flight, and on the first
    stage the embedding's for those whose first chunk is. Buffers: what one micro-batch needs beyond
    that at its fullest moment, in a layer or, on the last stage, in the head with its logits (see
    `cost.activation_walk`); and a buffer for each shape of weights where the stack keeps them. In
    the update no activations are resident, but gradients of 16 bits are copied to fp32, each rank
    its shard, and there is what the stack's optimizer needs in addition. Forward only, there are
    weights, and the working set in addition to the residual stream.

    Parameters
    ----------
    stage
        Position of the stage; None: the first of the run, which holds most.
    shares
        Those of the table, if they are known already.
    """
    shares = shares or Shares.of(table, costs)
    counts = {"micro_batches": table.micro_batches, "stages": table.pp, "chunks": table.vpp}
    at = group.first if stage is None else stage
    activations = _activations(table, costs, group, at)
    layers, ends = weight_totals(costs, group)
    released = releases(table)
    here = _tiers(layers.weights(shares, released), table.offload_weights, group.layers)
    state = layers.shared("state", shares.optimizer)
    optimizer = _tiers(state, table.offload_optimizer, group.layers)

    looked_up = first_stage_in_flight(schedule=table.schedule, **counts)
    held = activations.here + group.resident[-2] * costs.embedding.bytes.saved_bytes * looked_up
    live, part = _live(table, costs, group, activations.share)
    local, updated = (
        layers.shared("gradients", share) + ends.shared("gradients", share)
        for share in (shares.gradients, shares.optimizer)
    )
    copies = updated / costs.resident_gradient_bytes * _update_bytes(table, costs)
    in_update = copies > held + live
    return StageMemory(
        weights=ends.weights(shares, released) + here.here,
        gradients=local,
        optimizer=ends.shared("state", shares.optimizer) + optimizer.here,
        activations=np.where(in_update, 0.0, held),
        buffers=np.where(in_update, copies, live),
        part=part,
        in_update=in_update,
        offloaded=here.away + activations.away + optimizer.away,
    )


def _update_bytes(table: Table, costs: ComponentCosts) -> Floats:
    """Bytes that the update holds for a moment of each weight that a rank updates.

    An fp32 copy of a gradient of 16 bits, a flat one before it, what the optimizer's kernels leave
    to one another.
    """
    element = costs.gradient_bytes
    flat = table.by_stack(lambda stack: stack.flat_gradients) & (table.zero > 0)
    return (
        np.where(element < FP32_BYTES, FP32_BYTES, 0.0)
        + np.where(flat & (table.zero < ZERO_WEIGHTS), element, 0.0)
        + table.by_stack(lambda stack: stack.update_bytes)
    )


def _activations(table: Table, costs: ComponentCosts, group: StageGroup, stage: Ints) -> "_Tiers":
    """What layers keep of all micro-batches in flight, and where it is.

    Of the parts that are offloaded two layers are here, of those that keep any of them: so what the
    layer that computes keeps is back by then, as the walk over its operations has it.
    """
    flight = _InFlight.of(table, costs, group, stage)
    if not np.any(table.offload_activations):
        kept = flight.total(lambda size: size.saved_bytes)
        return _Tiers(kept, np.zeros_like(kept), 1.0)
    movable = flight.total(lambda size: size.movable_bytes)
    moved = _tiers(movable, table.offload_activations, flight.total(moves))
    away = 1 - moved.share
    here = flight.total(lambda size: size.saved_bytes - away * size.movable_bytes)
    return _Tiers(here, moved.away, moved.share)


def moves(held: LayerBytes) -> Floats:
    """1 for a layer of which something is moved where activations are offloaded, else 0."""
    return np.where(held.movable_bytes > 0, 1.0, 0.0)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """Micro-batches in flight on a rank at its fullest, over whose layers bytes add up."""

    costs: ComponentCosts
    group: StageGroup
    moments: tuple[tuple[Floats, Floats], ...]
    """Of the first and of the second chunk, at each moment that may be the fullest; the same number
    where chunks are alike."""
    order: dict[str, Ints]
    """Columns that decide these numbers."""
    unlike_ends: Ints
    """Rows whose interleaved chunks are unlike, so that each keeps a number of its own: but for the
    first and the last they are alike,"""
    irregular: Ints
    """or not even these."""

    @classmethod
    def of(cls, table: Table, costs: ComponentCosts, group: StageGroup, stage: Ints) -> "_InFlight":
        order = {
            "micro_batches": table.micro_batches,
            "stages": table.pp,
            "chunks": table.vpp,
            "stage": stage,
        }
        unlike = group.uneven_chunks & (table.schedule == Schedule.INTERLEAVED.code)
        return cls(
            costs=costs,
            group=group,
            moments=chunks_in_flight(schedule=table.schedule, **order),
            order={name: np.broadcast_to(o, group.key.shape) for name, o in order.items()},
            unlike_ends=np.flatnonzero(unlike & ~group.uneven_middle_chunks),
            irregular=np.flatnonzero(unlike & group.uneven_middle_chunks),
        )

    def total(self, select: Callable[[LayerBytes], Floats]) -> Floats:
        """Add up what layers keep."""
        whole = layer_bytes(self.costs, self.group.resident, select)
        first, second = self.moments[0]
        if first is second:
            found = first * whole
        else:
            one = self._of_chunk(0, select, np.arange(self.group.key.size))
            found = np.maximum.reduce([a * one + b * (whole - one) for a, b in self.moments])
        at, order = self.unlike_ends, self._order_of(self.unlike_ends)
        if at.size:
            kept = np.broadcast_to(whole, found.shape)[at]
            first = self._of_chunk(0, select, at)
            last = self._of_chunk(order["chunks"] - 1, select, at)
            found[at] = peak_of_uneven_ends(kept, first, last, **order)
        at, order = self.irregular, self._order_of(self.irregular)
        if at.size:
            chunks = range(order["chunks"].max())
            kept = np.stack([self._of_chunk(chunk, select, at) for chunk in chunks])
            found[at] = peak_of_uneven_chunks(kept, **order)
        return found

    def _order_of(self, rows: Ints) -> dict[str, Ints]:
        return {name: column[rows] for name, column in self.order.items()}

    def _of_chunk(
        self, chunk: Ints | int, select: Callable[[LayerBytes], Floats], rows: Ints
    ) -> Floats:
        counts = self.group.contents.chunks[self.group.key[rows], chunk].T
        parts = zip(counts, self.costs.layers, strict=True)
        shape = self.group.key.shape
        sizes = (
            count * np.broadcast_to(select(part.bytes), shape)[rows]
            for count, part in parts
            if part is not None
        )
        return total(sizes, counts[0])


def _live(
    table: Table, costs: ComponentCosts, group: StageGroup, here_share: Floats | float
) -> tuple[Floats, Ints]:
    """What lives for a moment beside what layers keep [byte], and in which part of the model most.

    The fullest moment of a part is in the last one of its kind on the stage: what stands after it
    is not kept yet or any more.
    """
    held_here = [
        (place, count, part.bytes)
        for place, (count, part) in enumerate(zip(group.resident, costs.components, strict=True))
        if part is not None
    ]
    zero = np.zeros_like(costs.memory_rate)
    whole = Unsharded.of(table, costs, group)
    fullest, where = np.full_like(zero, -np.inf), np.zeros(zero.shape, dtype=np.int64)
    shapes = zero
    embedding, head = len(group.resident) - 2, len(group.resident) - 1
    for place, count, held in held_here:
        here = count > 0
        over = held.over_bytes
        if place == head:
            over = over + held.saved_bytes + whole.head
            shapes = shapes + np.where(here, held.gradient_buffer_bytes, 0.0)
        elif place == embedding:
            over = over + whole.embedding
        else:
            over = over - _after(group, place, held_here, here_share) + whole.layer
            shapes = np.where(here, np.maximum(shapes, held.gradient_buffer_bytes), shapes)
        fuller = here & (over > fullest)
        fullest, where = np.where(fuller, over, fullest), np.where(fuller, place, where)
    buffers = table.by_stack(lambda stack: stack.weight_gradient_buffers)
    beside = np.where(buffers & table.training, shapes, 0.0)
    beside = beside + np.where(table.training, 0.0, costs.boundary_bytes)
    return np.maximum(fullest, 0.0) + beside, where


def _after(
    group: StageGroup,
    place: int,
    parts: Sequence[tuple[int, Floats, LayerBytes]],
    here_share: Floats | float,
) -> Floats | float:
    """What layers of other kinds keep here that stand after the last one of a kind [byte]."""
    counts = group.contents.after[group.key, place].T
    kept = [
        counts[other] * (held.saved_bytes - (1 - here_share) * held.movable_bytes)
        for other, _, held in parts
        if other < len(counts)
    ]
    return total(kept, group.length) if len(kept) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class _Tiers:
    """Bytes in the first and in the second memory tier."""

    here: Floats
    away: Floats
    share: Floats | float
    """What of those that may move is here."""


def _tiers(size: Floats, offloaded: Bools, layers: Floats) -> _Tiers:
    """Where bytes of so many layers are: all of them here, or all of them away and two here.

    The two are the layer that computes and the one in transit.
    """
    share = np.where(offloaded, np.minimum(1.0, 2.0 / np.maximum(layers, 1.0)), 1.0)
    return _Tiers(size * share, np.where(offloaded, size, 0.0), share)


def reserved_bytes(total: Floats, *, slack: Floats, runtime_memory: Floats) -> Floats:
    """What the accelerator's memory must hold: the allocator's blocks and the runtime's own."""
    return total * slack + runtime_memory
