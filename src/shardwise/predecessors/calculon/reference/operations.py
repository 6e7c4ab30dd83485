"""Sizes and operations of one block of one micro-batch on one processor (section 1.3).

Calculon 0.1.0, commit caa4b11. A block has 24 operations. With overlapped tensor-parallel
communication seven of them are empty (five under multiquery): see `tensor_parallel`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.calculon.files import CalculonModel
from shardwise.predecessors.calculon.reference.columns import (
    ATTN_ONLY,
    FULL,
    MULTIQUERY,
    NO_OVERLAP,
    RS_AG,
    Columns,
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
