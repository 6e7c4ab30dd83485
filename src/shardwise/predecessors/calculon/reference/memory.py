"""Blocks of a processor, and its memory (sections 1.5 and 1.10 of the specification).

Calculon 0.1.0, commit caa4b11. Nothing is reserved for the framework.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.calculon.files import CalculonModel
from shardwise.predecessors.calculon.reference.block import BlockSpaces, state_bytes
from shardwise.predecessors.calculon.reference.columns import FULL, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Counts of blocks, chunks and micro-batches on processor 0, which has the most blocks."""

    blocks: Ints
    """k_p = ceil(num_blocks / P)."""
    chunks: Ints
    """v: chunks of blocks per processor."""
    chunk_blocks: Ints
    """k = k_p / v: all but the last are base blocks, the last is the edge block."""
    microbatches: Ints
    """N."""
    in_flight: Floats
    """phi: micro-batches whose activations are in memory at once, in units of all blocks."""


def depth_of(model: CalculonModel, columns: Columns) -> Depth:
    """Counts of blocks, chunks and micro-batches.

    phi = min(N, P), times 1 + (P - 1) / (v P) where v > 1.
    """
    stages, chunks = columns.pipeline_par, columns.pipeline_interleaving
    blocks = -(-model.num_blocks // stages)
    more = np.where(chunks > 1, 1 + (stages - 1) / (chunks * stages), 1.0)
    return Depth(
        blocks=blocks,
        chunks=chunks,
        chunk_blocks=blocks // chunks,
        microbatches=columns.microbatches,
        in_flight=np.minimum(columns.microbatches, stages) * more,
    )


_GRADIENT_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMemory:
    """Memory of one block besides its activations [bytes]."""

    weights: Floats
    gradient: Floats
    """Weight gradients in the datatype, of this processor's shard."""
    gradient_unsharded: Floats
    """Weight gradients in fp32, of one block at a time."""
    optimizer: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComponents:
    """Memory by component [bytes]."""

    weights: Floats
    activations: Floats
    checkpoints: Floats
    activation_gradients: Floats
    weight_gradients: Floats
    optimizer: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one processor [bytes]."""

    block: BlockMemory
    total: MemoryComponents
    """Of both tiers."""
    resident: MemoryComponents
    """What stays in tier 1 of an offloaded component; NaN where Calculon gives no figure."""
    tier1: Floats
    tier2: Floats


def block_memory(spaces: BlockSpaces, columns: Columns) -> BlockMemory:
    """Weights, gradients and optimizer state of one block; the last two only in training."""
    b, trained = columns.element_bytes, spaces.weights * columns.training
    share = trained / columns.optimizer_shards
    return BlockMemory(
        weights=b * spaces.weights,
        gradient=b * share,
        gradient_unsharded=_GRADIENT_BYTES * trained,
        optimizer=state_bytes(b) * share,
    )


def memory_of(spaces: BlockSpaces, depth: Depth, columns: Columns) -> Memory:
    """Memory of one processor, in both tiers.

    activations = working + storage (k_p phi - 1), checkpoints = k_p phi checkpoint; only the
    working set in inference. Weight gradients are fp32 for one block and in the datatype, sharded,
    for the others. Offloading activations moves the checkpoints under full recompute, else the
    activations; offloading the optimizer moves the sharded gradients of all blocks too.
    """
    c, block = columns, block_memory(spaces, columns)
    in_flight = depth.blocks * depth.in_flight
    total = MemoryComponents(
        weights=depth.blocks * block.weights,
        activations=spaces.working + spaces.storage * (in_flight - 1) * c.training,
        checkpoints=in_flight * spaces.checkpoint,
        activation_gradients=spaces.gradient,
        weight_gradients=block.gradient_unsharded + (depth.blocks - 1) * block.gradient,
        optimizer=depth.blocks * block.optimizer,
    )
    resident = MemoryComponents(
        weights=2 * block.weights,
        activations=spaces.working + spaces.storage,
        checkpoints=np.where(c.training, 2 * spaces.checkpoint, np.nan),
        activation_gradients=spaces.gradient,
        weight_gradients=block.gradient_unsharded + block.gradient,
        optimizer=2 * block.optimizer,
    )

    def in_tier1(offload: Bools, *names: str) -> Floats:
        stays = sum(np.nan_to_num(getattr(resident, name)) for name in names)
        return np.where(offload, stays, sum(getattr(total, name) for name in names))

    full = c.activation_recompute == FULL
    tier1 = (
        total.activation_gradients
        + in_tier1(c.weight_offload, "weights")
        + in_tier1(c.activations_offload, "activations", "checkpoints")
        + in_tier1(c.optimizer_offload, "weight_gradients", "optimizer")
    )
    tier2 = (
        c.weight_offload * total.weights
        + c.activations_offload * np.where(full, total.checkpoints, total.activations)
        + c.optimizer_offload * (depth.blocks * block.gradient + total.optimizer)
    )
    return Memory(block=block, total=total, resident=resident, tier1=tier1, tier2=tier2)
