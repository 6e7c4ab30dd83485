"""The attention block of a layer."""

from dataclasses import replace

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.enums import AttentionBias, AttentionKind, Position, QkNorm
from shardwise.config.model import Attention, Model
from shardwise.ops.context import (
    CoreWork,
    context_collectives,
    core_calls,
    core_work,
    keys_met,
    swaps_heads,
)
from shardwise.ops.linear import linear
from shardwise.ops.mla import ROPE_FLOPS, latent_projections, latent_rope
from shardwise.ops.norm import norm
from shardwise.ops.operation import (
    FP32_BYTES,
    FlashAttention,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    zeros,
)
from shardwise.ops.summa import row_split
from shardwise.ops.tp_comm import after_row_parallel, all_reduced, before_column_parallel

_FULL = frozenset({"attention"})
_CORE = _FULL | {"core_attention"}
_QKV = _FULL | {"qkv"}

# T5 distance buckets per head (arXiv 1910.10683, section 2.1).
_RELATIVE_BUCKETS = 32
# Vector FLOPs per score: scale, mask, max, exponent, sum, division; and backward.
_SOFTMAX_FLOPS = (6.0, 4.0)


def key_value_heads(attention: Attention, kind: Ints) -> Ints:
    """Key-value heads of the model, or as the strategy has it (position in `AttentionKind`).

    Parameters
    ----------
    kind
        Code of `AttentionKind`; shape (rows,).
    """
    by_kind = {"model": attention.kv_heads, "multihead": attention.heads, "multiquery": 1}
    return np.array([by_kind[name] for name in AttentionKind])[kind]


def attention_operations(
    model: Model, attention: Attention, work: RankWork, *, norm_parts: frozenset[str]
) -> list[Operation]:
    """Projections, positions, core and output of self-attention on one rank.

    Each rank has heads / tp query heads and max(kv_heads / tp, 1) key-value heads; more ranks than
    key-value heads hold copies of them. No flash kernel scores queries against positions too, so
    Transformer-XL positions always run unfused.

    Parameters
    ----------
    norm_parts
        Recompute parts that rebuild the input of attention; none without a norm before it.
    """
    if model.position == Position.RELATIVE_XL:
        work = replace(work, flash=np.zeros_like(work.flash))
    heads = attention.heads / work.tp
    if attention.latent is not None:
        kv_heads = heads
        operations = latent_projections(model, attention, attention.latent, work, norm_parts)
    else:
        kv_heads = np.maximum(key_value_heads(attention, work.attention) / work.tp, 1.0)
        operations = [_projection(model, attention, work, heads, kv_heads, norm_parts)]
    if attention.qk_norm != QkNorm.NONE:
        operations.append(_qk_norm(model, attention, work, heads, kv_heads))
    operations += _positions(model, attention, work, heads, kv_heads)
    operations += _core(model, attention, work, heads, kv_heads)
    split = row_split(work, attention.heads * attention.value_dim, model.hidden)
    operations.append(
        linear(
            "attention.out",
            work,
            tokens=work.tokens,
            inputs=split.inputs,
            outputs=split.outputs,
            bias=split.outputs
            if attention.bias in (AttentionBias.OUTPUT, AttentionBias.ALL)
            else 0.0,
            saved_tokens=split.saved_tokens,
            collectives=after_row_parallel(work, model.hidden),
            saved_elsewhere=work.flash & ~swaps_heads(work),  # by the kernel that wrote it
            reruns_with=_FULL | {"every_other", "attention_out"},
            dropped_with=_FULL,
        )
    )
    return operations


def _projection(
    model: Model,
    attention: Attention,
    work: RankWork,
    heads: Floats,
    kv_heads: Floats,
    norm_parts: frozenset[str],
) -> Operation:
    """Queries, keys and values in one product."""
    outputs = (heads + kv_heads) * attention.head_dim + kv_heads * attention.value_dim
    return linear(
        "attention.qkv",
        work,
        tokens=work.tokens,
        inputs=model.hidden,
        outputs=outputs,
        bias=outputs if attention.bias in (AttentionBias.QKV, AttentionBias.ALL) else 0.0,
        saved_tokens=work.saved_tokens,
        collectives=before_column_parallel(work, model.hidden),
        normed=bool(norm_parts),
        reruns_with=_QKV,
        dropped_with=norm_parts,
    )


def _qk_norm(
    model: Model, attention: Attention, work: RankWork, heads: Floats, kv_heads: Floats
) -> Operation:
    """Normalize queries and keys: each head (with the same weights for all), or the full width.

    Over the full width, ranks add up the sums of squares of their heads, two numbers per token in
    fp32 (OLMo 2: arXiv 2501.00656, section 3).
    """
    per_width = model.norm_parameters / model.hidden
    normed_heads = heads + kv_heads
    full_width = attention.qk_norm == QkNorm.WIDTH
    weighted = {"head": 2 * np.ones_like(heads), "width": normed_heads, "unweighted": zeros(work)}
    return norm(
        "attention.qk_norm",
        model,
        work,
        tokens=work.tokens * normed_heads,
        width=attention.head_dim,
        parameters=weighted[attention.qk_norm] * attention.head_dim * per_width,
        collectives=all_reduced(work, work.tokens * 2 * FP32_BYTES) if full_width else (),
        reruns_with=_QKV,
        dropped_with=_QKV,
    )


def _positions(
    model: Model, attention: Attention, work: RankWork, heads: Floats, kv_heads: Floats
) -> list[Operation]:
    """Rotate queries and keys, or project the relative positions."""
    none = zeros(work)
    if model.position == Position.ROPE:
        if attention.latent is not None:
            return [latent_rope(attention, attention.latent, work)]
        turned = attention.head_dim if attention.rotary_dim is None else attention.rotary_dim
        if turned == 0:
            return []
        elements = work.tokens * (heads + kv_heads) * turned
        moved = 2 * elements * work.element_bytes
        kernels = tuple(
            MemoryBound(phase=phase, bytes=moved, flops=ROPE_FLOPS * elements)
            for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
        )
        operation = Operation(
            name="attention.rope",
            kernels=kernels,
            parameters=none,
            saved_bytes=none,
            working_bytes=moved / 2,
            reruns_with=_QKV | {"every_other"},
        )
        return [operation]
    if model.position == Position.RELATIVE_XL:
        # One projection of the sinusoids of all distances, plus the two learned vectors u and v.
        width = heads * attention.head_dim
        return [
            linear(
                "attention.relative",
                work,
                tokens=work.seq_len * work.cp,
                inputs=model.hidden,
                outputs=width,
                parameters=model.hidden * width + 2 * width,
                sixteen_bits=True,
                reruns_with=_FULL,
                dropped_with=_FULL,
            )
        ]
    if model.position == Position.RELATIVE_BIAS:
        # One table for all layers, spread over them; looked up once for each pair of positions.
        heads = attention.heads / work.tp / model.depth
        pairs = heads * work.seq_len**2 * work.cp
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
            reruns_with=_CORE,
        )
        return [table]
    return []


def _core(
    model: Model, attention: Attention, work: RankWork, heads: Floats, kv_heads: Floats
) -> list[Operation]:
    """Scores, softmax and weighted values: one kernel (flash) or several, row by row."""
    core = core_work(attention, work, heads, kv_heads)
    flash = tuple(
        FlashAttention(
            phase=phase,
            sequences=work.sequences,
            seq_len=core.queries,
            keys=keys_met(attention, core.sequence, work.document_len),
            heads=np.where(work.flash, core.heads, 0.0),
            kv_heads=np.where(work.flash, core.kv_heads, 0.0),
            head_dim=float(attention.head_dim),
            v_head_dim=float(attention.value_dim),
            causal=attention.causal,
            element_bytes=work.element_bytes,
        )
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
    )
    rebuilds = _QKV | ({"every_other"} if attention.latent is None else {"mla_up"})
    # Of the products to queries, keys and values every other one is the second.
    keys = work.sequences * core.queries * core.kv_heads * attention.head_dim * work.element_bytes
    products = Operation(
        name="attention.core",
        host_calls=core_calls(work),
        kernels=(*flash, *_unfused_products(model, attention, work, core)),
        collectives=context_collectives(attention, work, core, kv_heads),
        parameters=heads if attention.sinks else zeros(work),
        saved_bytes=core.resident_bytes,
        working_bytes=core.resident_bytes + 2 * core.output_bytes + core.buffer_bytes,
        reruns_with=_CORE,
        dropped_with=rebuilds,
        half_rebuilt_bytes=keys,
    )
    return [products, _softmax(model, work, core)]


def _unfused_products(
    model: Model, attention: Attention, work: RankWork, core: CoreWork
) -> tuple[Matmul, ...]:
    """Scores Q K^T and output P V as batched products, and their four gradients.

    Pairs that are masked (causal, window, chunk, document) are multiplied like the others.
    Transformer-XL positions score the queries a second time, against the projected positions.
    """
    batch = np.where(work.flash, 0.0, work.sequences * core.heads)
    one = np.ones_like(work.tp)
    queries, keys = core.queries, core.sequence
    width, value_width = attention.head_dim * one, attention.value_dim * one
    size = work.element_bytes
    scores = 2 if model.position == Position.RELATIVE_XL else 1

    def product(phase: Phase, m: Floats, n: Floats, k: Floats, count: int = 1) -> list[Matmul]:
        matmul = Matmul(
            phase=phase, m=m, n=n, k=k, input_bytes=size, output_bytes=size, batch=batch
        )
        return [matmul] * count

    return (
        *product(Phase.FORWARD, queries, keys, width, scores),
        *product(Phase.FORWARD, queries, value_width, keys),
        *product(Phase.INPUT_GRAD, queries, keys, value_width),
        *product(Phase.INPUT_GRAD, keys, value_width, queries),
        *product(Phase.INPUT_GRAD, queries, width, keys, scores),
        *product(Phase.INPUT_GRAD, keys, width, queries, scores),
    )


def _softmax(model: Model, work: RankWork, core: CoreWork) -> Operation:
    """Scale, mask and softmax in one kernel, dropout in another, over scores that are stored.

    Saved for backward per score: the softmax and, with dropout, a mask byte and the dropped copy
    (5 a s^2 b bytes in all at 2 bytes: arXiv 2205.05198, section 4.1). Flash attention does this
    inside the core and saves the fp32 log of each row's sum. Where ranks swap heads, the output
    before the second all-to-all is saved in addition to the one after it.
    """
    rows = work.sequences * core.heads * core.queries
    scores = np.where(work.flash, 0.0, rows * core.sequence)
    size = scores * work.element_bytes
    mask = scores if model.dropout else np.zeros_like(scores)
    dropped = size if model.dropout else np.zeros_like(scores)
    statistics = np.where(work.flash, rows * FP32_BYTES, 0.0)
    swapped = np.where(swaps_heads(work), core.output_bytes, 0.0)
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
        saved_bytes=size + mask + dropped + statistics + swapped,
        working_bytes=size,
        reruns_with=_CORE,
        dropped_with=_CORE,
    )
