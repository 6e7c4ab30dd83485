"""The attention block of a layer."""

from dataclasses import replace

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.model import Attention, Model
from shardwise.ops.exchange import after_row_parallel, before_column_parallel
from shardwise.ops.linear import linear
from shardwise.ops.norm import norm
from shardwise.ops.operation import (
    FlashAttention,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    zeros,
)
from shardwise.strategy import ATTENTIONS

__all__ = ["attention_operations", "key_value_heads"]

# T5 distance buckets per head (arXiv 1910.10683, section 2.1).
_RELATIVE_BUCKETS = 32
# Vector FLOPs per score: scale, mask, max, exponent, sum, division; and backward.
_SOFTMAX_FLOPS = (6.0, 4.0)
# Rotating a pair: four multiplications and two additions for two elements.
_ROPE_FLOPS = 3.0


def key_value_heads(attention: Attention, kind: Ints) -> Ints:
    """Key-value heads of the model, or as the strategy has it (position in `ATTENTIONS`)."""
    by_kind = {"model": attention.kv_heads, "multihead": attention.heads, "multiquery": 1}
    return np.array([by_kind[name] for name in ATTENTIONS])[kind]


def attention_operations(model: Model, attention: Attention, work: RankWork) -> list[Operation]:
    """Projections, positions, core and output of self-attention on one rank.

    Each rank has heads / tp query heads and max(kv_heads / tp, 1) key-value heads; more ranks than
    key-value heads hold copies of them. No flash kernel scores queries against positions too, so
    Transformer-XL positions always run unfused.
    """
    if model.position == "relative-xl":
        work = replace(work, flash=np.zeros_like(work.flash))
    heads = attention.heads / work.tp
    kv_heads = np.maximum(key_value_heads(attention, work.attention) / work.tp, 1.0)
    width = heads * attention.head_dim
    kv_width = kv_heads * attention.head_dim
    tokens = work.tokens
    operations = [
        linear(
            "attention.qkv",
            work,
            tokens=tokens,
            inputs=model.hidden,
            outputs=width + 2 * kv_width,
            bias=0.0 if attention.bias == "none" else width + 2 * kv_width,
            saved_tokens=work.kept_tokens,
            collectives=before_column_parallel(work, model.hidden),
        )
    ]
    if attention.qk_norm:
        heads_normed = tokens * (heads + kv_heads)
        operations.append(
            norm(
                "attention.qk_norm",
                work,
                tokens=heads_normed,
                width=attention.head_dim,
                parameters=2.0 * attention.head_dim * model.norm_parameters / model.hidden,
            )
        )
    operations += _positions(model, attention, work, width, kv_width)
    operations += _core(model, attention, work, heads, kv_heads)
    operations.append(
        linear(
            "attention.out",
            work,
            tokens=tokens,
            inputs=width,
            outputs=model.hidden,
            bias=model.hidden if attention.bias == "all" else 0.0,
            collectives=after_row_parallel(work, model.hidden),
        )
    )
    return operations


def _positions(
    model: Model, attention: Attention, work: RankWork, width: Floats, kv_width: Floats
) -> list[Operation]:
    """Rotate queries and keys, or project the relative positions."""
    none = zeros(work)
    if model.position == "rope":
        elements = work.tokens * (width + kv_width)
        moved = 2 * elements * work.element_bytes
        kernels = tuple(
            MemoryBound(phase=phase, bytes=moved, flops=_ROPE_FLOPS * elements)
            for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
        )
        operation = Operation(
            name="attention.rope",
            kernels=kernels,
            parameters=none,
            saved_bytes=none,
            working_bytes=moved / 2,
        )
        return [operation]
    if model.position == "relative-xl":
        # One projection of the sinusoids of all distances, plus the two learned vectors u and v.
        return [
            linear(
                "attention.relative",
                work,
                tokens=work.seq_len,
                inputs=model.hidden,
                outputs=width,
                parameters=model.hidden * width + 2 * width,
            )
        ]
    if model.position == "relative-bias":
        # One table for all layers, spread over them; looked up once for each pair of positions.
        heads = attention.heads / work.tp / model.depth
        pairs = heads * work.seq_len**2
        looked_up = tuple(
            MemoryBound(phase=phase, bytes=pairs * work.element_bytes, flops=pairs)
            for phase in (Phase.FORWARD, Phase.WEIGHT_GRAD)
        )
        table = Operation(
            name="attention.relative",
            kernels=looked_up,
            parameters=_RELATIVE_BUCKETS * heads,
            saved_bytes=none,
            working_bytes=none,
        )
        return [table]
    return []


def _core(
    model: Model, attention: Attention, work: RankWork, heads: Floats, kv_heads: Floats
) -> list[Operation]:
    """Scores, softmax and weighted values: one kernel (flash) or several, row by row."""
    size = work.element_bytes
    tokens = work.tokens
    flash_heads = np.where(work.flash, heads, 0.0)
    flash = tuple(
        FlashAttention(
            phase=phase,
            sequences=work.sequences,
            seq_len=work.seq_len,
            heads=flash_heads,
            kv_heads=np.where(work.flash, kv_heads, 0.0),
            head_dim=float(attention.head_dim),
            causal=attention.causal,
            element_bytes=size,
        )
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
    )
    qkv_bytes = tokens * (heads + 2 * kv_heads) * attention.head_dim * size
    # Flash keeps, beside queries, keys and values, the fp32 log of each row's sum.
    statistics = np.where(work.flash, tokens * heads * 4, 0.0)
    core = Operation(
        name="attention.core",
        kernels=(*flash, *_unfused_products(model, attention, work, heads)),
        parameters=zeros(work),
        saved_bytes=qkv_bytes + statistics,
        working_bytes=qkv_bytes + 2 * tokens * heads * attention.head_dim * size,
        core=True,
        core_bytes=statistics,
    )
    return [core, _unfused_softmax(model, work, heads)]


def _unfused_products(
    model: Model, attention: Attention, work: RankWork, heads: Floats
) -> tuple[Matmul, ...]:
    """Scores Q K^T and output P V as batched products, and their four gradients.

    Transformer-XL positions score the queries a second time, against the projected positions.
    """
    batch = np.where(work.flash, 0.0, work.sequences * heads)
    seq_len, head_dim = work.seq_len, np.full_like(work.tp, attention.head_dim)
    size = work.element_bytes
    scores = 2 if model.position == "relative-xl" else 1

    def product(phase: Phase, n: Floats, k: Floats, count: int) -> tuple[Matmul, ...]:
        one = Matmul(
            phase=phase, m=seq_len, n=n, k=k, input_bytes=size, output_bytes=size, batch=batch
        )
        return (one,) * count

    return (
        *product(Phase.FORWARD, seq_len, head_dim, scores),
        *product(Phase.FORWARD, head_dim, seq_len, 1),
        *product(Phase.INPUT_GRAD, seq_len, head_dim, 1),
        *product(Phase.INPUT_GRAD, head_dim, seq_len, 1 + 2 * scores),
    )


def _unfused_softmax(model: Model, work: RankWork, heads: Floats) -> Operation:
    """Scale, mask and softmax in one kernel, dropout in another, over scores that are stored.

    Kept for backward per score: the softmax and, with dropout, a mask byte and the dropped copy
    (5 a s^2 b bytes in all at 2 bytes: arXiv 2205.05198, section 4.1).
    """
    scores = np.where(work.flash, 0.0, work.sequences * heads * work.seq_len**2)
    size = scores * work.element_bytes
    mask = scores if model.dropout else np.zeros_like(scores)
    dropped = size if model.dropout else np.zeros_like(scores)
    forward, backward = _SOFTMAX_FLOPS
    return Operation(
        name="attention.softmax",
        kernels=(
            MemoryBound(phase=Phase.FORWARD, bytes=2 * size, flops=forward * scores),
            MemoryBound(phase=Phase.FORWARD, bytes=2 * dropped + mask, flops=mask),
            MemoryBound(phase=Phase.INPUT_GRAD, bytes=2 * dropped + mask, flops=mask),
            MemoryBound(phase=Phase.INPUT_GRAD, bytes=3 * size, flops=backward * scores),
        ),
        parameters=zeros(work),
        saved_bytes=size + mask + dropped,
        working_bytes=size,
        core=True,
        core_bytes=size + mask + dropped,
    )
