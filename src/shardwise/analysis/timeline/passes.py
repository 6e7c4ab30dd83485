"""Time and memory of one micro-batch on every virtual stage, by kind of pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from shardwise.analysis.pass_peaks import costs_by_pass
from shardwise.arrays import Floats, total
from shardwise.config.strategy_fields import COMM_AXES
from shardwise.cost.component_costs import (
    ComponentCosts,
    summed,
)
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.memory import moves, stage_memory
from shardwise.parallel.pipeline_layout import StageGroup
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD, WEIGHTS

WAITS = (*COMM_AXES, "offload")
"""What passes wait for besides kernels: collectives of these axes, and offloading."""


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


def stage_passes(evaluation: Evaluation, stages: StageGroup) -> StagePasses:
    """Return the passes of a table of one row through every virtual stage."""
    blocks = evaluation.step.costs
    forward_peak, backward_peak = _transient_bytes(evaluation, stages)

    def time(name: str) -> Floats:
        return summed(blocks, stages.work, attrgetter(f"times.{name}"))

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
        saved_bytes=summed(blocks, stages.work, lambda one: one.bytes.saved_bytes, layers=True),
        movable_bytes=summed(blocks, stages.work, lambda one: one.bytes.movable_bytes, layers=True),
        embedding_bytes=stages.resident[-2] * blocks.embedding.bytes.saved_bytes,
        moving_layers=summed(blocks, stages.work, lambda one: moves(one.bytes), layers=True),
    )


def _waits(
    blocks: ComponentCosts, stages: StageGroup, direction: str
) -> dict[str, dict[str, Floats]]:
    """Waits of one direction, exposed and hidden."""

    def of(name: str, axis: str) -> Floats:
        return summed(blocks, stages.work, attrgetter(f"times.{name}_{direction}_s.{axis}"))

    def link(name: str) -> Floats:
        return summed(blocks, stages.work, attrgetter(f"times.{name}"))

    exposed = {axis: of("exposed", axis) for axis in COMM_AXES}
    exposed["offload"] = link(f"offload_{direction}_exposed_s")
    alone = {axis: of("alone", axis) for axis in COMM_AXES}
    alone["offload"] = link(f"offload_{direction}_s")
    # Overlapped collectives slow kernels down; that counts as exposed, so it may exceed the rest.
    hidden = {name: np.maximum(0.0, alone[name] - exposed[name]) for name in WAITS}
    return {"exposed_s": exposed, "hidden_s": hidden}


def _transient_bytes(evaluation: Evaluation, stages: StageGroup) -> tuple[Floats, Floats]:
    """Peak of temporary tensors in a forward and in a backward pass [byte]."""
    table, first = evaluation.step.table, np.zeros_like(stages.first)
    costs = evaluation.step.costs
    forward, backward = costs_by_pass(table, costs, evaluation.parts, with_ends=False)
    return (
        stage_memory(table, forward, stages, first, phase="forward").buffers,
        stage_memory(table, backward, stages, first, phase="backward").buffers,
    )
