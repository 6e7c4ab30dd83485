"""Bytes held on one rank of a pipeline stage at its fullest."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.cost.block import BlockCost
from shardwise.ops.layer import DTYPE_BYTES
from shardwise.schedule.closed_form import first_chunk_in_flight, in_flight
from shardwise.stages import layers_on

__all__ = [
    "MEMORY_PARTS",
    "Offload",
    "StageMemory",
    "optimizer_state_bytes",
    "reserved_bytes",
    "stage_memory",
    "stage_parameters",
]

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers")

_FP32_BYTES = DTYPE_BYTES["fp32"]
# Two moments, and a master copy of weights in a smaller type (Adam; arXiv 1910.02054, section 3).
_MOMENT_BYTES = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What a rank of one stage holds [byte]."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    """Kept between forward and backward of the micro-batches in flight."""
    buffers: Floats
    """Live for a moment: what recompute rebuilds, gradients of activations, logits; or, where the
    update of the weights needs more than forward and backward, its copies of gradients."""
    in_head: Bools
    """Whether what lives for a moment is most in the head rather than in a layer."""
    in_update: Bools
    """Whether the stage is fullest in the update of the weights."""
    offloaded: Floats
    """In the second memory tier."""

    @property
    def total(self) -> Floats:
        """Everything at once, as the allocator counts it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Which parts of the layers wait in the second memory tier, row by row."""

    weights: Bools
    activations: Bools
    optimizer: Bools


def optimizer_state_bytes(element_bytes: Floats) -> Floats:
    """Two fp32 moments per parameter, and an fp32 master copy of weights in a smaller type."""
    return _MOMENT_BYTES + np.where(element_bytes < _FP32_BYTES, _FP32_BYTES, 0.0)


def stage_parameters(
    layers: BlockCost,
    embedding: BlockCost,
    head: BlockCost,
    *,
    depth: int,
    stages: Ints,
    stage: Ints,
) -> Floats:
    """Weights on a rank of a stage: its share of the layers, and what stands at the ends."""
    first, last = stage == 0, stage == stages - 1
    ends = np.where(first, embedding.parameters, 0.0) + np.where(last, head.parameters, 0.0)
    return layers.parameters * layers_on(depth, stages, stage) / depth + ends


def stage_memory(
    layers: BlockCost,
    embedding: BlockCost,
    head: BlockCost,
    *,
    depth: int,
    stages: Ints,
    chunks: Ints,
    micro_batches: Ints,
    stage: Ints,
    training: Bools,
    element_bytes: Floats,
    gradient_bytes: Floats,
    boundary_bytes: Floats,
    optimizer_shards: Ints,
    gradient_buffers: Bools,
    offload: Offload,
) -> StageMemory:
    """Bytes on a rank of one stage at its fullest: in a backward pass, or in the update.

    Weights and gradients are whole, the optimizer state is split over `optimizer_shards`.
    Activations: kept bytes of the stage's layers for every micro-batch in flight, and on the first
    stage the embedding's for those whose first chunk is. Buffers: the largest of a layer's
    backward (what is rebuilt plus the largest working set) and, on the last stage, of the head's
    with its logits; and a buffer for each shape of weights where the stack keeps them. In the
    update no activations are held, but gradients of 16 bits are copied to fp32, each rank its
    shard. Forward only, there are weights, and the working set beside the residual stream.

    Parameters
    ----------
    layers
        All layers of the model on one rank.
    boundary_bytes
        The residual stream of a micro-batch [byte].
    gradient_buffers
        Rows whose stack keeps a buffer for each distinct shape of weights.
    stage
        Position of the stage, from 0; broadcasts against the rows.
    """
    first, last = stage == 0, stage == stages - 1
    on_stage = layers_on(depth, stages, stage)
    parameters = stage_parameters(layers, embedding, head, depth=depth, stages=stages, stage=stage)
    in_layers = layers.parameters * on_stage / depth
    flying = in_flight(micro_batches=micro_batches, stages=stages, chunks=chunks, stage=stage)
    kept = layers.saved_bytes / depth * on_stage * flying
    state = np.where(training, optimizer_state_bytes(element_bytes) / optimizer_shards, 0.0)
    weights = _tiers(in_layers * element_bytes, offload.weights, on_stage)
    optimizer = _tiers(in_layers * state, offload.optimizer, on_stage)
    activations = _tiers(kept, offload.activations, on_stage * flying)

    looked_up = first_chunk_in_flight(micro_batches=micro_batches, stages=stages, chunks=chunks)
    held = activations.here + np.where(first, embedding.saved_bytes, 0.0) * looked_up
    in_layer = layers.again_bytes + layers.working_bytes
    in_head = np.where(last, head.saved_bytes + head.working_bytes, 0.0)
    shapes = layers.gradient_buffer_bytes + np.where(last, head.gradient_buffer_bytes, 0.0)
    beside = np.where(gradient_buffers & training, shapes, 0.0)
    beside = beside + np.where(training, 0.0, boundary_bytes)
    live = np.maximum(in_layer, in_head) + beside
    copies = np.where(gradient_bytes < _FP32_BYTES, _FP32_BYTES, 0.0) * parameters
    copies = np.where(training, copies / optimizer_shards, 0.0)
    in_update = copies > held + live
    ends = parameters - in_layers
    return StageMemory(
        weights=ends * element_bytes + weights.here,
        gradients=np.where(training, parameters * gradient_bytes, 0.0),
        optimizer=ends * state + optimizer.here,
        activations=np.where(in_update, 0.0, held),
        buffers=np.where(in_update, copies, live),
        in_head=in_head > in_layer,
        in_update=in_update,
        offloaded=weights.away + activations.away + optimizer.away,
    )


@dataclass(frozen=True, slots=True)
class _Tiers:
    """Bytes in the first and in the second memory tier."""

    here: Floats
    away: Floats


def _tiers(size: Floats, offloaded: Bools, layers: Floats | Ints) -> _Tiers:
    """Where bytes of so many layers are: all of them here, or all of them away and two here.

    The two are the layer that computes and the one in transit.
    """
    two = size * np.minimum(1.0, 2.0 / layers)
    return _Tiers(np.where(offloaded, two, size), np.where(offloaded, size, 0.0))


def reserved_bytes(total: Floats, *, slack: Floats, runtime_memory: Floats) -> Floats:
    """What the accelerator's memory must hold: the allocator's blocks and the runtime's own."""
    return total * slack + runtime_memory
