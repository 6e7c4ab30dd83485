"""Bytes held on one rank of a pipeline stage at its fullest."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.cost.block import BlockCost
from shardwise.ops.layer import DTYPE_BYTES
from shardwise.schedule.closed_form import in_flight

__all__ = [
    "MEMORY_PARTS",
    "StageMemory",
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

    @property
    def total(self) -> Floats:
        """Everything at once, as the allocator counts it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


def stage_parameters(
    layers: BlockCost, embedding: BlockCost, head: BlockCost, *, stages: Ints, stage: Ints
) -> Floats:
    """Weights on a rank of a stage: its share of the layers, and what stands at the ends."""
    first, last = stage == 0, stage == stages - 1
    ends = np.where(first, embedding.parameters, 0.0) + np.where(last, head.parameters, 0.0)
    return layers.parameters / stages + ends


def stage_memory(
    layers: BlockCost,
    embedding: BlockCost,
    head: BlockCost,
    *,
    stages: Ints,
    chunks: Ints,
    micro_batches: Ints,
    stage: Ints,
    element_bytes: Floats,
    gradient_bytes: Floats,
    optimizer_shards: Ints,
    gradient_buffers: Bools,
) -> StageMemory:
    """Bytes on a rank of one stage at its fullest: in a backward pass, or in the update.

    Weights and gradients are whole, the optimizer state is split over `optimizer_shards`.
    Activations: kept bytes of the stage's layers for every micro-batch in flight, and on the first
    stage the embedding's. Buffers: the largest of a layer's backward (what is rebuilt plus the
    largest working set) and, on the last stage, of the head's with its logits; and a buffer for
    each shape of weights where the stack keeps them. In the update no activations are held, but
    gradients of 16 bits are copied to fp32, each rank its shard.

    Parameters
    ----------
    layers
        All layers of the model on one rank.
    gradient_buffers
        Rows whose stack keeps a buffer for each distinct shape of weights.
    stage
        Position of the stage, from 0; broadcasts against the rows.
    """
    first, last = stage == 0, stage == stages - 1
    parameters = stage_parameters(layers, embedding, head, stages=stages, stage=stage)
    flying = in_flight(micro_batches=micro_batches, stages=stages, chunks=chunks, stage=stage)
    kept = layers.saved_bytes / stages + np.where(first, embedding.saved_bytes, 0.0)
    master = np.where(element_bytes < _FP32_BYTES, _FP32_BYTES, 0.0)
    in_layer = layers.again_bytes + layers.working_bytes
    in_head = np.where(last, head.saved_bytes + head.working_bytes, 0.0)
    shapes = layers.gradient_buffer_bytes + np.where(last, head.gradient_buffer_bytes, 0.0)
    live = np.maximum(in_layer, in_head) + np.where(gradient_buffers, shapes, 0.0)
    copies = np.where(gradient_bytes < _FP32_BYTES, _FP32_BYTES, 0.0) * parameters
    copies = copies / optimizer_shards
    in_update = copies > kept * flying + live
    return StageMemory(
        weights=parameters * element_bytes,
        gradients=parameters * gradient_bytes,
        optimizer=parameters * (_MOMENT_BYTES + master) / optimizer_shards,
        activations=np.where(in_update, 0.0, kept * flying),
        buffers=np.where(in_update, copies, live),
        in_head=in_head > in_layer,
        in_update=in_update,
    )


def reserved_bytes(total: Floats, *, slack: Floats, runtime_memory: Floats) -> Floats:
    """What the accelerator's memory must hold: the allocator's blocks and the runtime's own."""
    return total * slack + runtime_memory
