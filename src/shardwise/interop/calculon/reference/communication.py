"""Tensor-parallel communication of one block (section 1.4 of the specification).

Calculon 0.1.0, commit caa4b11. The last block of a chunk is its edge block, the others are base
blocks; they differ under p2p_rs_ag, which scatters only between chunks.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.interop.calculon.files import CalculonSystem
from shardwise.interop.calculon.reference.columns import P2P_RS_AG, RS_AG, Columns
from shardwise.interop.calculon.reference.operations import Operations
from shardwise.interop.calculon.reference.shapes import Shapes
from shardwise.interop.calculon.reference.times import flop_time, network_time

__all__ = ["Links", "Stage", "links_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one pass sends, per operation: arrays of shape (places, rows)."""

    size: Floats
    """Bytes of the full tensor."""
    net_s: Floats
    """On the network."""
    reduction_s: Floats
    """Vector time of the sums of what arrives, on the reducing side of a fused product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Communication of one block's forward pass, input gradient, and what is repeated."""

    fw: Stage
    agrad: Stage
    again: Stage


@dataclass(frozen=True, slots=True)
class _Collectives:
    """Sizes and times of each kind of communication, per row."""

    size: Floats
    gather_s: Floats
    scatter_s: Floats
    """Reduce-scatter if split, else all-reduce."""
    split: Bools


def links_of(
    operations: Operations, shape: Shapes, columns: Columns, system: CalculonSystem
) -> tuple[Links, Links]:
    """What base blocks and what edge blocks send.

    ====================== =============================== ================================
    .                      before a column-parallel product after a row-parallel product
    ====================== =============================== ================================
    forward                all-gather if split             reduce-scatter or all-reduce
    gradient of the input  reduce-scatter or all-reduce    all-gather if split
    repeated               as forward                      as forward
    ====================== =============================== ================================
    """
    comm = columns.tensor_par_comm_type
    edges = (comm == RS_AG, (comm == RS_AG) | (comm == P2P_RS_AG))
    size = shape.full * shape.element_bytes
    net = columns.tensor_par_net
    gather_s, scatter_s, reduce_s = (
        network_time(size, operation, shape.tp, system, net)
        for operation in ("all_gather", "reduce_scatter", "all_reduce")
    )
    sums = shape.full * (shape.tp - 1) / shape.tp
    reduction_s = flop_time(sums, False, system, columns.datatype)
    base, edge = (
        _links(
            operations,
            _Collectives(size, gather_s, np.where(split, scatter_s, reduce_s), split),
            reduction_s,
        )
        for split in edges
    )
    return base, edge


def _links(operations: Operations, kinds: _Collectives, reduction_s: Floats) -> Links:
    before, after = operations.gathers, operations.reduces
    fw = _stage(before, after, kinds)
    agrad = _stage(after, before, kinds)
    again = operations.communicates_again
    return Links(
        fw=Stage(size=fw[0], net_s=fw[1], reduction_s=after * reduction_s),
        agrad=Stage(size=agrad[0], net_s=agrad[1], reduction_s=before * reduction_s),
        again=Stage(size=fw[0] * again, net_s=fw[1] * again, reduction_s=np.zeros_like(fw[1])),
    )


def _stage(gathering: Bools, reducing: Bools, kinds: _Collectives) -> tuple[Floats, Floats]:
    """Bytes and time on the network of the operations that gather and of those that reduce."""
    gathers = gathering & kinds.split
    size = np.where(gathers | reducing, kinds.size, 0.0)
    gathered = np.where(gathers, kinds.gather_s, 0.0)
    return size, np.where(reducing, kinds.scatter_s, gathered)
