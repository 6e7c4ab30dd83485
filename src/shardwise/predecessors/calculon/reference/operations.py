"""Sizes and operations of one block of one micro-batch on one processor (section 1.3).

Calculon 0.1.0, commit caa4b11. A block has 24 operations. With overlapped tensor-parallel
communication seven of them are empty (five under multiquery): see below.

Tensor-parallel communication of one block, alone or fused with its product (section 1.4).

Calculon 0.1.0, commit caa4b11. The last block of a chunk is its edge block, the others are base
blocks; they differ under p2p_rs_ag, which scatters only between chunks. Overlap "ring" and "pipe"
fuse communication with its matrix product.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.calculon.files import CalculonModel, CalculonSystem
from shardwise.predecessors.calculon.reference.columns import (
    ATTN_ONLY,
    FULL,
    MULTIQUERY,
    NO_OVERLAP,
    P2P_RS_AG,
    RS_AG,
    Columns,
    flop_time,
    network_time,
    processing_time,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Numbers of elements, unless documented otherwise."""

    tp: Ints
    element_bytes: Floats
    tokens: Ints
    """B = microbatch x seq_size."""
    hidden: int
    full: Floats
    """A = B h: the activations of all tokens."""
    sharded: Floats
    """A' = (B // T) h: of a T-th of the tokens."""
    local: Floats
    """X = A' under rs_ag, else A: what norms, dropouts and residuals work on."""
    head_width: int
    queries: Floats
    """q s = ((m a) // T) s: rows of the attention's batched products."""
    scores: Floats
    """q s^2: the products' results."""
    probabilities: Floats
    """Z = (a // T) s^2 m: what softmax and its dropout work on."""
    seq_size: int
    heads_width: int
    """a d."""
    key_width: Ints
    """Outputs of the K and V products: (a d) // T, or d under multiquery."""
    feedforward: int
    inner: Floats
    """g = f B // T: inner activations of the MLP."""
    rs_ag: Bools
    fused: Bools
    """Whether tensor-parallel communication is fused with its product (overlap ring or pipe)."""
    fused_activation: Bools
    multiquery: Bools
    recompute_full: Bools
    recompute_attention: Bools
    """Whether the attention core is recomputed: attn_only or full."""
    regather_attention: Bools
    """redoA: the input of Q, K, V is gathered again in the backward pass. Also under attn_only
    without sequence parallelism, where there is nothing to gather [Q1]."""
    regather_mlp: Bools
    """redoM: the same of the MLP's input."""


def shapes_of(model: CalculonModel, columns: Columns) -> Shapes:
    """Sizes of a block, and what is recomputed or gathered again."""
    tp, m, s = columns.tensor_par, columns.microbatch_size, model.seq_size
    tokens = m * s
    rs_ag = columns.tensor_par_comm_type == RS_AG
    multiquery = columns.attention_type == MULTIQUERY
    recompute = columns.activation_recompute
    full, attention = recompute == FULL, (recompute == FULL) | (recompute == ATTN_ONLY)
    full_size = (tokens * model.hidden).astype(np.float64)
    sharded = (tokens // tp * model.hidden).astype(np.float64)
    heads_width = model.attn_heads * model.attn_size
    queries = (m * model.attn_heads // tp).astype(np.float64) * s
    return Shapes(
        tp=tp,
        element_bytes=columns.element_bytes,
        tokens=tokens,
        hidden=model.hidden,
        full=full_size,
        sharded=sharded,
        local=np.where(rs_ag, sharded, full_size),
        head_width=model.attn_size,
        queries=queries,
        scores=queries * s,
        probabilities=(model.attn_heads // tp).astype(np.float64) * s**2 * m,
        seq_size=s,
        heads_width=heads_width,
        key_width=np.where(multiquery, model.attn_size, heads_width // tp),
        feedforward=model.feedforward,
        inner=(model.feedforward * tokens // tp).astype(np.float64),
        rs_ag=rs_ag,
        fused=columns.tensor_par_overlap != NO_OVERLAP,
        fused_activation=columns.fused_activation,
        multiquery=multiquery,
        recompute_full=full,
        recompute_attention=attention,
        regather_attention=attention | columns.seq_par_ag_redo,
        regather_mlp=full | columns.seq_par_ag_redo,
    )


NAMES = (
    "AttnBlock_Fork",
    "AttnBlock_LayerNorm",
    "AttnBlock_F",
    "AttnBlock_Multihead_Fork",
    "AttnBlock_Query",
    "AttnBlock_Key",
    "AttnBlock_Value",
    "AttnBlock_Multihead_Key_Query",
    "AttnBlock_Multihead_SoftMax",
    "AttnBlock_Multihead_DropOut",
    "AttnBlock_Multihead_Attn",
    "AttnBlock_MLP",
    "AttnBlock_G",
    "AttnBlock_DropOut",
    "AttnBlock_Residual",
    "MlpBlock_Fork",
    "MlpBlock_LayerNorm",
    "MlpBlock_F",
    "MlpBlock_Mlp1",
    "MlpBlock_GeLU",
    "MlpBlock_Mlp2",
    "MlpBlock_G",
    "MlpBlock_DropOut",
    "MlpBlock_Residual",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation as columns; scalars apply to all rows.

    FLOPs and bytes are those of the forward pass, the gradient of the input (`agrad`) and that of
    the weights (`wgrad`).
    """

    fw_flops: Floats | float = 0.0
    agrad_flops: Floats | float = 0.0
    wgrad_flops: Floats | float = 0.0
    fw_bytes: Floats | float = 0.0
    agrad_bytes: Floats | float = 0.0
    wgrad_bytes: Floats | float = 0.0
    inputs: Floats | float = 0.0
    """Elements read."""
    outputs: Floats | float = 0.0
    """Elements written."""
    weights: Floats | float = 0.0
    """Elements; their gradient and optimizer state follow from it."""
    activation_bytes: Floats | float = 0.0
    """Saved for the backward pass."""
    gradient_bytes: Floats | float = 0.0
    """Gradient of the activations."""
    matrix: Bools | bool = False
    """Done by the matrix engine; the optimizer step never is."""
    reuses: Bools | bool = False
    """Its activation is another operation's: not counted in the working set."""
    stored: Bools | bool = False
    """Its activation is saved from forward to backward pass."""
    output_dropped: Bools | bool = False
    """Its output, which the next operation stores, is recomputed instead."""
    recomputed: Bools | bool = False
    """Run again in the backward pass."""
    gathers: Bools | bool = False
    """Communicates before a column-parallel product ("F" of Megatron)."""
    reduces: Bools | bool = False
    """Communicates after a row-parallel product ("G")."""
    communicates_again: Bools | bool = False
    """Its communication is repeated in the backward pass."""


class Operations(Operation):
    """All operations of a block: arrays of shape (operations, rows)."""

    fw_flops: Floats
    agrad_flops: Floats
    wgrad_flops: Floats
    fw_bytes: Floats
    agrad_bytes: Floats
    wgrad_bytes: Floats
    inputs: Floats
    outputs: Floats
    weights: Floats
    activation_bytes: Floats
    gradient_bytes: Floats
    matrix: Bools
    reuses: Bools
    stored: Bools
    output_dropped: Bools
    recomputed: Bools
    gathers: Bools
    reduces: Bools
    communicates_again: Bools


def stacked(operations: Sequence[Operation], rows: int) -> Operations:
    """Stack operations to arrays of shape (operations, rows)."""

    def stack(name: str, kind: type[np.generic]) -> Any:
        filled = np.zeros((len(operations), rows), dtype=kind)
        for place, operation in enumerate(operations):
            value = getattr(operation, name)
            if isinstance(value, np.ndarray) or value:
                filled[place] = value
        return filled

    kinds = {f.name: np.bool_ if f.default is False else np.float64 for f in fields(Operation)}
    return Operations(**{name: stack(name, kind) for name, kind in kinds.items()})


def choose(condition: Bools, first: Operations, second: Operations) -> Operations:
    """Take the operations of a row from the first where the condition holds, else the second."""
    return Operations(
        **{
            f.name: np.where(condition, getattr(first, f.name), getattr(second, f.name))
            for f in fields(Operation)
        }
    )


def plain_operations(shape: Shapes) -> list[Operation]:
    """The 24 operations of a block whose communication is not overlapped."""
    s, b = shape, shape.element_bytes
    heads = s.heads_width // s.tp
    return [
        fork(s.local, 2, b, stored=True, recomputed=s.recompute_full),
        _layer_norm(s),
        _before_columns(s, again=s.regather_attention),
        # [Q1]: under ar and attn_only nothing can give the dropped input back. Running it again
        # costs nothing, but counts in the prefix sums of [Q9].
        fork(s.full, 3, b, stored=~s.regather_attention, recomputed=s.regather_attention),
        linear(s, s.hidden, heads, reuses=True),
        linear(s, s.hidden, s.key_width, reuses=True),
        linear(s, s.hidden, s.key_width, reuses=True),
        *_attention_core(s),
        linear(s, heads, s.hidden, stored=True),
        _after_rows(s),
        _dropout(s),
        _residual(s),
        fork(s.local, 2, b, stored=True, recomputed=s.recompute_full),
        _layer_norm(s),
        _before_columns(s, again=s.regather_mlp),
        linear(s, s.hidden, s.feedforward // s.tp, stored=~s.regather_mlp),
        _gelu(s),
        linear(s, s.feedforward // s.tp, s.hidden, stored=True),
        _after_rows(s),
        _dropout(s),
        _residual(s),
    ]


def fork(
    size: Floats, ways: int, element_bytes: Floats, *, stored: Bools | bool, recomputed: Bools
) -> Operation:
    """One tensor used several ways: nothing forward; backward adds up the ways' gradients."""
    return Operation(
        inputs=size,
        agrad_flops=ways * size,
        agrad_bytes=(ways + 1) * size * element_bytes,
        activation_bytes=size * element_bytes,
        stored=stored,
        recomputed=recomputed,
    )


def linear(
    shape: Shapes,
    inputs: Ints | int,
    outputs: Ints | int,
    *,
    stored: Bools | bool = False,
    reuses: bool = False,
) -> Operation:
    """A matrix product of B tokens: 2 B in out FLOPs; moves inputs, weights and outputs."""
    tokens, b = shape.tokens.astype(np.float64), shape.element_bytes
    read, written, weights = (
        tokens * inputs,
        tokens * outputs,
        np.asarray(inputs * outputs, dtype=np.float64),
    )
    flops, moved = 2 * read * outputs, b * (read + written + weights)
    return Operation(
        inputs=read,
        outputs=written,
        fw_flops=flops,
        agrad_flops=flops,
        wgrad_flops=flops,
        fw_bytes=moved,
        agrad_bytes=moved,
        wgrad_bytes=moved,
        weights=weights,
        activation_bytes=b * read,
        gradient_bytes=b * written,
        matrix=True,
        reuses=reuses,
        stored=stored,
        recomputed=shape.recompute_full,
    )


def _layer_norm(shape: Shapes) -> Operation:
    """9, 14 and 7 FLOPs per element; moves 2 X + 2 h; its 2 h weights are on every processor."""
    x, b = shape.local, shape.element_bytes
    weights = 2.0 * shape.hidden
    moved = b * (2 * x + weights)
    return Operation(
        inputs=x,
        outputs=x,
        fw_flops=9 * x,
        agrad_flops=14 * x,
        wgrad_flops=7 * x,
        fw_bytes=moved,
        agrad_bytes=moved,
        wgrad_bytes=moved,
        weights=weights,
        activation_bytes=b * x,
        gradient_bytes=b * x,
        reuses=True,
        recomputed=shape.recompute_full,
    )


def _before_columns(shape: Shapes, *, again: Bools) -> Operation:
    """Communication before a column-parallel product: its sums, and what it moves in memory."""
    present = shape.tp > 1
    a, b = shape.full * present, shape.element_bytes
    part = np.where(shape.rs_ag, a / shape.tp, 0.0)
    return Operation(
        inputs=a,
        outputs=a,
        agrad_flops=a * (shape.tp - 1) / shape.tp,
        fw_bytes=np.where(shape.rs_ag, 2 * a * b, 0.0),
        agrad_bytes=2 * a * b,
        activation_bytes=part * b,
        gradient_bytes=np.where(shape.rs_ag, part, a) * b,
        stored=True,
        gathers=present,
        communicates_again=again & present,
    )


def _after_rows(shape: Shapes) -> Operation:
    """Communication after a row-parallel product; its activation is only in the working set."""
    present = shape.tp > 1
    a, b = shape.full * present, shape.element_bytes
    part = np.where(shape.rs_ag, a / shape.tp, 0.0)
    return Operation(
        inputs=a,
        outputs=a,
        fw_flops=a * (shape.tp - 1) / shape.tp,
        fw_bytes=2 * a * b,
        agrad_bytes=np.where(shape.rs_ag, 2 * a * b, 0.0),
        activation_bytes=np.where(shape.rs_ag, part, a) * b,
        gradient_bytes=part * b,
        reduces=present,
        communicates_again=shape.recompute_full & present,
    )


def _attention_core(shape: Shapes) -> list[Operation]:
    """Q K^T, softmax, dropout, P V, unfused.

    Under recompute of the attention the scores and the probabilities are dropped. The dropout's
    gradient is one byte per element, as its mask [Q2].
    """
    d, b, again = shape.head_width, shape.element_bytes, shape.recompute_attention
    q, scores, z = shape.queries * shape.head_width, shape.scores, shape.probabilities
    flops, moved = 2 * scores * d, b * (2 * q + scores)
    return [
        Operation(
            inputs=2 * q,
            outputs=scores,
            activation_bytes=b * 2 * q,
            gradient_bytes=b * scores,
            stored=True,
            output_dropped=again,
            recomputed=again,
            fw_flops=flops,
            agrad_flops=2 * flops,
            fw_bytes=moved,
            agrad_bytes=moved,
            matrix=True,
        ),
        Operation(
            inputs=z,
            outputs=z,
            fw_flops=5 * z,
            agrad_flops=8 * z,
            fw_bytes=2 * z * b,
            agrad_bytes=2 * z * b,
            activation_bytes=z * b,
            gradient_bytes=z * b,
            stored=True,
            output_dropped=again,
            recomputed=again,
        ),
        _dropout_of(z, b, stored=~again, recomputed=again),
        Operation(
            inputs=scores + q,
            outputs=q,
            activation_bytes=b * (scores + q),
            gradient_bytes=b * q,
            stored=True,
            recomputed=shape.recompute_full,
            fw_flops=flops,
            agrad_flops=2 * flops,
            fw_bytes=moved,
            agrad_bytes=moved,
            matrix=True,
        ),
    ]


def _dropout_of(
    size: Floats, element_bytes: Floats, *, stored: Bools | bool, recomputed: Bools
) -> Operation:
    """Dropout: one FLOP per element, two moves, and a mask of one byte per element."""
    moved = 2 * size * element_bytes + size
    return Operation(
        inputs=size,
        outputs=size,
        fw_flops=size,
        agrad_flops=size,
        fw_bytes=moved,
        agrad_bytes=moved,
        activation_bytes=size,
        gradient_bytes=size,
        stored=stored,
        recomputed=recomputed,
    )


def _dropout(shape: Shapes) -> Operation:
    return _dropout_of(
        shape.local, shape.element_bytes, stored=True, recomputed=shape.recompute_full
    )


def _residual(shape: Shapes) -> Operation:
    """Addition of the fork's other way."""
    x, b = shape.local, shape.element_bytes
    return Operation(
        inputs=2 * x,
        outputs=x,
        fw_flops=x,
        agrad_flops=2 * x,
        fw_bytes=3 * x * b,
        agrad_bytes=3 * x * b,
        activation_bytes=2 * x * b,
        gradient_bytes=x * b,
        reuses=True,
        recomputed=shape.recompute_full,
    )


def _gelu(shape: Shapes) -> Operation:
    """8 and 13 FLOPs per element; fused it stores nothing, but takes the same time."""
    g, b = shape.inner, shape.element_bytes
    saved = np.where(shape.fused_activation, 0.0, g * b)
    return Operation(
        inputs=g,
        outputs=g,
        fw_flops=8 * g,
        agrad_flops=13 * g,
        fw_bytes=2 * g * b,
        agrad_bytes=2 * g * b,
        activation_bytes=saved,
        gradient_bytes=saved,
        stored=True,
        recomputed=shape.recompute_full,
    )


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
