"""Time and memory of one micro-batch on every virtual stage, by kind of pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.analysis.components import FULL_LAYER, recomputed_parts
from shardwise.arrays import Floats, total
from shardwise.config.enums import RecomputePart
from shardwise.config.strategy_table import Table
from shardwise.cost.activation_walk import FORWARD_ONLY, FULL, Step, step_of, walk
from shardwise.cost.component_costs import (
    ComponentCosts,
    component_bytes,
    component_times,
    layer_bytes,
)
from shardwise.cost.component_operations import ComponentOperations
from shardwise.cost.layer_communication import COMM_AXES
from shardwise.cost.layer_cost import LayerCost, LayerTimes
from shardwise.cost.operations import OperationCost
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.memory import moves, stage_memory
from shardwise.parallel.pipeline_layout import StageGroup
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD, WEIGHTS

WAITS = (*COMM_AXES, "offload")
"""What passes wait for besides kernels: collectives of these axes, and offloading."""

# With so many layers, activations need more than the weight update does.
_MANY = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One kind of pass of one micro-batch: one value per virtual stage."""

    kernels_s: Mapping[str, Floats]
    """By purpose: forward, recompute, backward, weight_gradients [s]."""
    exposed_s: Mapping[str, Floats]
    """By `WAITS`, exposed [s]."""
    hidden_s: Mapping[str, Floats]
    """By `WAITS`, hidden behind kernels [s]."""
    transient_bytes: Floats
    """Peak of temporary tensors, in addition to saved activations [byte]."""

    @property
    def compute_s(self) -> Floats:
        """All kernels [s]."""
        return total(self.kernels_s.values(), self.transient_bytes)

    @property
    def time_s(self) -> Floats:
        """Kernels and exposed waits [s]."""
        return self.compute_s + total(self.exposed_s.values(), self.transient_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePasses:
    """Passes through every virtual stage, in the order of the model."""

    of: Mapping[str, Pass]
    """By kind: F; B without weight gradients; W, the weight gradients."""
    saved_bytes: Floats
    """Activations that the layers save from forward to backward, for a micro-batch [byte]."""
    movable_bytes: Floats
    """Those of them that are moved where activations are offloaded [byte]."""
    embedding_bytes: Floats
    """Saved by the embedding [byte]."""
    moving_layers: Floats
    """Number of layers that have any of `movable_bytes`."""


def stage_passes(
    table: Table, evaluation: Evaluation, parts: Sequence[ComponentOperations], stages: StageGroup
) -> StagePasses:
    """Return the passes of a table of one row.

    Parameters
    ----------
    parts
        Operations of the embedding, each kind of layer and the head, with their costs.
    stages
        Every virtual stage (see `stages.virtual_stages`).
    """
    blocks = evaluation.costs
    forward_peak, backward_peak = _transient_bytes(table, blocks, parts, stages)

    def time(name: str) -> Floats:
        return component_times(blocks, stages.work, lambda part: getattr(part, name))

    gradients = time("weight_grad_s")
    zero = np.zeros_like(gradients)
    forward = Pass(
        kernels_s={"forward": time("forward_s")},
        **_waits(blocks, stages, "forward"),
        transient_bytes=forward_peak,
    )
    backward = Pass(
        kernels_s={
            "recompute": time("recompute_s"),
            "backward": time("backward_s") - gradients,
        },
        **_waits(blocks, stages, "backward"),
        transient_bytes=backward_peak,
    )
    weights = Pass(
        kernels_s={"weight_gradients": gradients},
        exposed_s=dict.fromkeys(WAITS, zero),
        hidden_s=dict.fromkeys(WAITS, zero),
        transient_bytes=zero,
    )
    return StagePasses(
        of={FORWARD: forward, BACKWARD: backward, WEIGHTS: weights},
        saved_bytes=layer_bytes(blocks, stages.work, lambda one: one.saved_bytes),
        movable_bytes=layer_bytes(blocks, stages.work, lambda one: one.movable_bytes),
        embedding_bytes=component_bytes(blocks, _only(stages, -2), lambda one: one.saved_bytes),
        moving_layers=layer_bytes(blocks, stages.work, moves),
    )


def _only(stages: StageGroup, place: int) -> list[Floats]:
    """Counts of one component alone."""
    counts = [np.zeros_like(count) for count in stages.resident]
    counts[place] = stages.resident[place]
    return counts


def _waits(
    blocks: ComponentCosts, stages: StageGroup, direction: str
) -> dict[str, dict[str, Floats]]:
    """Waits of one direction, exposed and hidden."""

    def of(name: str, axis: str) -> Floats:
        def select(part: LayerTimes) -> Floats:
            time: Floats = getattr(getattr(part, f"{name}_{direction}_s"), axis)
            return time

        return component_times(blocks, stages.work, select)

    def link(name: str) -> Floats:
        return component_times(blocks, stages.work, lambda part: getattr(part, name))

    exposed = {axis: of("exposed", axis) for axis in COMM_AXES}
    exposed["offload"] = link(f"offload_{direction}_exposed_s")
    alone = {axis: of("alone", axis) for axis in COMM_AXES}
    alone["offload"] = link(f"offload_{direction}_s")
    # Overlapped collectives slow kernels down; that counts as exposed, so it may exceed the rest.
    hidden = {name: np.maximum(0.0, alone[name] - exposed[name]) for name in WAITS}
    return {"exposed_s": exposed, "hidden_s": hidden}


def _transient_bytes(
    table: Table, blocks: ComponentCosts, parts: Sequence[ComponentOperations], stages: StageGroup
) -> tuple[Floats, Floats]:
    """Peak of temporary tensors in a forward and in a backward pass [byte].

    `memory.stage_memory` has the peak of both together; here it is evaluated for each alone.
    """
    listed = listed_components(blocks, parts)
    both = [_over(table, blocks, *one) if one else (None, None) for one in listed]

    def live(direction: int) -> Floats:
        moments = [one[direction] for one in both]
        run = replace(stages, work=tuple(np.full_like(count, _MANY) for count in stages.work))
        first = np.zeros_like(stages.first)
        return stage_memory(table, _with_over(blocks, moments), run, first).buffers

    return live(0), live(1)


def listed_components(
    blocks: ComponentCosts, parts: Sequence[ComponentOperations]
) -> list[tuple[str, LayerCost, list[OperationCost]] | None]:
    """Name, cost and operations of every component, in the order of `ComponentCosts.parts`.

    Layers that do not recompute have the name `plain`.
    """
    operations = {name: costs for name, _, costs in parts}
    kinds = [costs for name, _, costs in parts if name == "layer"]
    named = [*(("layer", costs) for costs in kinds), *(("plain", costs) for costs in kinds)]
    named += [(name, operations.get(name, [])) for name in ("mtp", "embedding", "head")]
    return [
        None if cost is None else (name, cost, costs)
        for cost, (name, costs) in zip(blocks.components, named, strict=True)
    ]


def _over(
    table: Table,
    blocks: ComponentCosts,
    name: str,
    cost: LayerCost,
    operations: Sequence[OperationCost],
) -> tuple[Floats, Floats]:
    """Peak beyond saved activations, in the forward pass and in the backward pass [byte].

    Neither exceeds the peak of both, where full recompute does not count its first forward: the
    second forward needs at least as much.
    """
    steps = [step_of(one.operation) for one in operations]
    never = np.full_like(steps[0].saved, -np.inf)
    forward = [replace(step, backward=never) for step in steps]
    backward = [replace(step, forward=never) for step in steps]
    if not table.training[0]:
        return cost.bytes.over_bytes, np.zeros_like(never)
    recomputed = recomputed_parts(table, name)
    full = recomputed == FULL_LAYER
    recompute = FULL if full else RecomputePart.bits(recomputed)

    def over(some: Sequence[Step], how: int) -> Floats:
        return np.minimum(walk(some, how, blocks.boundary_bytes).over, cost.bytes.over_bytes)

    return over(forward, FORWARD_ONLY if full else recompute), over(backward, recompute)


def _with_over(blocks: ComponentCosts, moments: Sequence[Floats | None]) -> ComponentCosts:
    """The same costs with other peaks of temporary tensors."""
    changed = [
        None if part is None or over is None else _replaced(part, over)
        for part, over in zip(blocks.components, moments, strict=True)
    ]
    count = len(blocks.kinds)
    plain = [part for part in changed[count : 2 * count] if part is not None]
    mtp, embedding, head = changed[2 * count :]
    assert embedding is not None  # noqa: S101 - every model has both
    assert head is not None  # noqa: S101
    return replace(
        blocks,
        kinds=tuple(part for part in changed[:count] if part is not None),
        plain=tuple(plain) if plain else None,
        mtp=mtp,
        embedding=embedding,
        head=head,
    )


def _replaced(part: LayerCost, over: Floats) -> LayerCost:
    return replace(part, bytes=replace(part.bytes, over_bytes=over))
