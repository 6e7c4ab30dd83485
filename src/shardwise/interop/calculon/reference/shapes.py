"""Sizes of a block of one micro-batch on one processor, and what is done twice (section 1.3)."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.interop.calculon.files import CalculonModel
from shardwise.interop.calculon.reference.columns import (
    ATTN_ONLY,
    FULL,
    MULTIQUERY,
    NO_OVERLAP,
    RS_AG,
    Columns,
)

__all__ = ["Shapes", "shapes_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Numbers of elements, unless a name says otherwise."""

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
