"""How the blocks are laid out over the pipeline (sections 1.5 and 1.6 of the specification)."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.interop.calculon.files import CalculonModel
from shardwise.interop.calculon.reference.columns import Columns

__all__ = ["Depth", "depth_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Counts of blocks, chunks and micro-batches on processor 0, which holds the most blocks."""

    blocks: Ints
    """k_p = ceil(num_blocks / P)."""
    chunks: Ints
    """v: chunks of blocks per processor."""
    chunk_blocks: Ints
    """k = k_p / v: all but the last are base blocks, the last is the edge block."""
    microbatches: Ints
    """N."""
    in_flight: Floats
    """phi: micro-batches whose activations are held at once, in units of all blocks."""


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
