"""Tensor-parallel communication of one block, alone or fused with its product (section 1.4).

Calculon 0.1.0, commit caa4b11. The last block of a chunk is its edge block, the others are base
blocks; they differ under p2p_rs_ag, which scatters only between chunks. Overlap "ring" and "pipe"
fuse communication with its matrix product.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.calculon.files import CalculonSystem
from shardwise.predecessors.calculon.reference.columns import P2P_RS_AG, RS_AG, Columns
from shardwise.predecessors.calculon.reference.operations import (
    Operation,
    Operations,
    Shapes,
    fork,
    linear,
)
from shardwise.predecessors.calculon.reference.times import flop_time, network_time, processing_time


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


FUSED_NAMES = {
    2: "AttnBlock_QKV_AG",
    11: "AttnBlock_MLP_RS",
    17: "MlpBlock_Mlp1_AG",
    20: "MlpBlock_Mlp2_RS",
}
"""Places of the fused products."""

MULTIQUERY_NAMES = {2: "AttnBlock_Query_AG", 3: "AttnBlock_KV_Fork"}
"""What differs under multiquery, where the keys' and values' products stay on their own."""

_EMPTY = Operation()


def fused_operations(shape: Shapes, plain: list[Operation]) -> list[Operation]:
    """The operations of a block whose communication is overlapped, in the same 24 places.

    One product makes queries, keys and values; under multiquery one the queries, from a fork.
    """
    s = shape
    width = s.heads_width
    first_width = np.where(s.multiquery, width // s.tp, 3 * width // s.tp)
    operations = list(plain)
    for place in (4, 12, 18, 21):
        operations[place] = _EMPTY
    operations[2] = _gathering(s, s.hidden, first_width, again=s.regather_attention)
    operations[3] = fork(
        s.full * s.multiquery,
        2,
        s.element_bytes,
        stored=~s.regather_attention,
        recomputed=s.regather_attention & s.multiquery,
    )
    key = linear(s, s.hidden, np.where(s.multiquery, s.key_width, 0), reuses=True)
    operations[5] = operations[6] = _where(s.multiquery, key)
    operations[11] = _reducing(s, width // s.tp, s.hidden)
    operations[17] = _gathering(s, s.hidden, s.feedforward // s.tp, again=s.regather_mlp)
    operations[20] = _reducing(s, s.feedforward // s.tp, s.hidden)
    return operations


def _where(condition: Bools, operation: Operation) -> Operation:
    """Return an operation in some rows; elsewhere it is empty."""
    names = Operation.__dataclass_fields__
    return Operation(**{name: getattr(operation, name) * condition for name in names})


def _gathering(shape: Shapes, inputs: int, outputs: Ints, *, again: Bools) -> Operation:
    """Gather, then a column-parallel product.

    Under rs_ag it saves only its own shard of the input, whether or not it gathers again;
    otherwise it has no gradient of its output [Q5].
    """
    plain = linear(shape, inputs, outputs)
    read, written = shape.tokens * inputs, shape.tokens * outputs
    saved = np.where(shape.rs_ag, read // shape.tp, read)
    gradient = np.where(shape.rs_ag, written, 0)
    return _fused(shape, plain, saved, gradient, gathers=True, again=again)


def _reducing(shape: Shapes, inputs: Ints, outputs: int) -> Operation:
    """A row-parallel product, then a reduction; without rs_ag it saves no input [Q5]."""
    plain = linear(shape, inputs, outputs)
    read, written = shape.tokens * inputs, shape.tokens * outputs
    saved = np.where(shape.rs_ag, read, 0)
    gradient = 2 * np.where(shape.rs_ag, written // shape.tp, written)
    return _fused(shape, plain, saved, gradient, gathers=False, again=shape.recompute_full)


def _fused(
    shape: Shapes, plain: Operation, saved: Ints, gradient: Ints, *, gathers: bool, again: Bools
) -> Operation:
    """Forward as the plain product; backward moves weights, saved input and gradient."""
    moved = shape.element_bytes * (plain.weights + saved + gradient)
    return Operation(
        inputs=plain.inputs,
        outputs=plain.outputs,
        fw_flops=plain.fw_flops,
        agrad_flops=plain.agrad_flops,
        wgrad_flops=plain.wgrad_flops,
        fw_bytes=plain.fw_bytes,
        agrad_bytes=moved,
        wgrad_bytes=moved,
        weights=plain.weights,
        activation_bytes=shape.element_bytes * saved,
        gradient_bytes=shape.element_bytes * gradient,
        matrix=True,
        stored=True,
        recomputed=shape.recompute_full,
        gathers=gathers,
        reduces=not gathers,
        communicates_again=again,
    )


def overlapped(
    compute_s: Floats,
    memory_s: Floats,
    link_s: Floats,
    *,
    tiles: Ints,
    usage: Floats,
    pipe: Bools,
    system: CalculonSystem,
) -> tuple[Floats, Floats]:
    """Time of a fused product, and of that what its communication exposes [s].

    With tf, tm the compute and memory time, n the link time, T tiles, u the share of the compute
    that the network uses, c = proc(tf, tm), c' = proc(tf / (1 - u), tm) and
    gap = (n - tf / (1 - u)) / T::

        n = 0:    time = c,                              exposed = 0
        gap > 0:  time = c / T + (T - 1) c' / T,         exposed = (T - 1) gap
        else:     time = c + (T - 1) (n / T) u,          exposed = 0

    The ring hides its first and last tile, too. The pipe adds n / T to both, so that the step
    counts it twice [Q6].
    """
    alone = processing_time(compute_s, memory_s, system)
    slowed_s = compute_s / (1 - usage)
    slowed = processing_time(slowed_s, memory_s, system)
    gap = (link_s - slowed_s) / tiles
    bound = gap > 0
    exposed = np.where(bound, (tiles - 1) * gap, 0.0)
    time = np.where(
        bound,
        alone / tiles + (tiles - 1) * slowed / tiles,
        alone + (tiles - 1) * (link_s / tiles) * usage,
    )
    twice = np.where(pipe, link_s / tiles, 0.0)
    linked = link_s > 0
    return np.where(linked, time + twice, alone), np.where(linked, exposed + twice, 0.0)
