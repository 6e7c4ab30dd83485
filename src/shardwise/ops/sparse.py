"""Sparse attention: an indexer that selects keys, and attention over selected or compressed keys.

Latent attention over selected keys runs absorbed (arXiv 2512.02556; deepseek-ai/FlashMLA): queries
are multiplied with the up projection of keys, the core sees the compressed keys and values, which
all heads share, and its output is multiplied with the up projection of values. Compressed attention
is that of DeepSeek-V4: a window, and one key for each group of tokens.

Every tensor-parallel rank holds the indexer and runs it for all tokens (Megatron-LM main,
core/transformer/experimental_attention_variant/dsa.py). It is trained on its own loss, which
compares its scores with those of attention; no gradient reaches its inputs. This runs at any length
of a sequence: up to top-k tokens each query selects all keys before it.

Software without such kernels (`masked_selection` of a stack) scores all pairs in ordinary latent
attention and masks those that are not selected, at any length too, and does not train the indexer.
"""

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.model import Attention, Model
from shardwise.config.sparse import Compressed, Indexer
from shardwise.ops.linear import after_row_parallel, before_column_parallel, linear, shared_by_heads
from shardwise.ops.norm import norm
from shardwise.ops.operation import (
    FP32_BYTES,
    Collective,
    CollectiveKind,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    SelectedAttention,
    operations_in,
    zeros,
)
from shardwise.records import replace

_FULL = frozenset({"attention"})
_CORE = _FULL | {"core_attention"}
_QKV = _FULL | {"qkv"}
_UP = _QKV | {"mla_up"}
_INDEX_BYTES = 4
# Queries that read a block of selected keys together.
_BLOCK_QUERIES = 64
# Passes over the sum of the scores of all heads: written, masked (read and written), read.
_MASK_PASSES = 4.0
# Vector FLOPs per score of an indexer that is selected from.
_TOP_K_FLOPS = 4.0


def mean_selected(length: Floats, top_k: float) -> Floats:
    """Mean number of keys that causal queries attend to when each selects at most k of them.

    The query at place t (from 1) has min(t, k) keys: over L places the mean is
    k - k (k - 1) / (2 L) for k < L, else about L / 2.

    Parameters
    ----------
    length
        L, keys of a sequence [key]; shape (rows,).
    top_k
        k [key].
    """
    selected = np.minimum(top_k, length)
    return np.where(selected < length, top_k - top_k * (top_k - 1) / (2 * length), length / 2)


def sparse_keys(attention: Attention, length: Floats) -> Floats:
    """Mean number of keys that a query attends to, in the window and selected or compressed.

    Parameters
    ----------
    attention
        Attention with an indexer, compression, or both.
    length
        Tokens of a sequence, or of a packed document [token]; shape (rows,).
    """
    index, compressed = attention.indexer, attention.compressed
    if compressed is None:
        assert index is not None  # noqa: S101 - it is one of the two
        return mean_selected(length, float(index.top_k * index.block))
    assert attention.window is not None  # noqa: S101 - validated
    keys = mean_selected(length, float(attention.window))
    if compressed.ratio is not None:
        entries = length / compressed.ratio
        keys = keys + (entries / 2 if index is None else mean_selected(entries, float(index.top_k)))
    return keys


def index_keys(attention: Attention, length: Floats) -> Floats:
    """Mean number of keys that an indexer scores for a query: all earlier ones, pooled.

    Parameters
    ----------
    length
        Tokens of a sequence, or of a packed document [token]; shape (rows,).
    """
    index, compressed = attention.indexer, attention.compressed
    assert index is not None  # noqa: S101 - it has one
    return length / 2 / (index.pool if compressed is None else compressed.ratio or 1)


def sparse_flops(attention: Attention, length: Floats) -> Floats:
    """FLOPs of the core and of the indexer of one token, forward.

    2 H (d_qk + d_v) for each key, and 2 H_i (D_i + 1) for each that the indexer scores.

    Parameters
    ----------
    length
        Tokens of a sequence, or of a packed document [token]; shape (rows,).
    """
    qk, v = core_widths(attention)
    flops = 2.0 * attention.heads * (qk + v) * sparse_keys(attention, length)
    index = attention.indexer
    if index is None or index.shared:
        return flops
    return flops + 2.0 * index.heads * (index.head_dim + 1) * index_keys(attention, length)


def core_widths(attention: Attention) -> tuple[int, int]:
    """Widths of queries and of outputs of a head in the core; absorbed they are the compressed."""
    latent = attention.latent
    if latent is None:
        return attention.head_dim, attention.value_dim
    return latent.kv_rank + latent.rope_dim, latent.kv_rank


def index_operations(
    model: Model, attention: Attention, work: RankWork, *, norm_parts: frozenset[str]
) -> list[Operation]:
    """Projections of the indexer, its scores and the selection; none where it is shared.

    Queries of H_i heads come from the compressed queries (of plain attention, from the input), one
    key and a weight for each head from the input. A pooled key is a gated mean of the keys of
    `pool` tokens, a key of compressed attention of twice `ratio` tokens, each in two versions.

    Saved are queries, keys and weights, for the indexer's own loss; nothing without it.

    Parameters
    ----------
    norm_parts
        Recompute parts that rebuild the input of attention; none without a norm before it.
    """
    index = attention.indexer
    if index is None or index.shared:
        return []
    latent = attention.latent or attention.compressed
    query_width = index.heads * index.head_dim
    weights, more = _index_widths(attention, index)
    outputs = weights + (0 if latent is not None else query_width)
    key = linear(
        "attention.index",
        work,
        tokens=work.tokens,
        inputs=model.hidden,
        outputs=float(outputs),
        parameters=float(model.hidden * outputs + more),
        saved_tokens=np.where(work.saved_tokens < work.tokens, work.tokens, 0.0),
        sixteen_bits=True,
        collectives=shared_by_heads(work, model.hidden)[:1],
        reruns_with=_QKV,
        dropped_with=norm_parts,
    )
    projections = [_detached(key)]
    if latent is not None:
        rank = float(latent.q_rank or 0)
        query = linear(
            "attention.index_q",
            work,
            tokens=work.tokens,
            inputs=rank,
            outputs=float(query_width),
            saved_tokens=zeros(work),  # by the projection to queries
            sixteen_bits=True,
            reruns_with=_QKV,
        )
        projections.append(_detached(query))
    masks = work.masked_selection & (attention.latent is not None)
    every = operations_in([*projections, _scores(attention, index, work)], ~masks)
    if masks.any():
        scores = _masked_scores(index, work)
        every += [_untrained(one) for one in operations_in([*projections, scores], masks)]
    return every


def _index_widths(attention: Attention, index: Indexer) -> tuple[int, int]:
    """Outputs of the projection to keys and weights, and parameters of norms and places."""
    width = index.head_dim
    if attention.compressed is not None:
        ratio = attention.compressed.ratio or 1
        return 4 * width + index.heads, 2 * ratio * width + width
    if index.block > 1:
        return width, 2 * width
    gate = (width, index.pool * width) if index.pool > 1 else (0, 0)
    return width + index.heads + gate[0], 2 * width + gate[1]


def _detached(operation: Operation) -> Operation:
    """An operation without gradients of its inputs."""
    kernels = (one for one in operation.kernels if one.phase is not Phase.INPUT_GRAD)
    return replace(operation, kernels=tuple(kernels))


def _untrained(operation: Operation) -> Operation:
    """A forward pass alone, of weights without gradients."""
    return replace(
        operation,
        kernels=tuple(one for one in operation.kernels if one.phase is Phase.FORWARD),
        collectives=tuple(one for one in operation.collectives if one.phase is Phase.FORWARD),
        trained_parameters=np.zeros_like(operation.parameters),
        saved_bytes=np.zeros_like(operation.parameters),
    )


def _masked_scores(index: Indexer, work: RankWork) -> Operation:
    """Scores of all pairs and the mask of those not selected, without a fused kernel.

    Scores of each head are products in fp32, written, read and written by the activation, and read
    by the sum over heads. That is masked, the largest are found, and a mask of the type of the row
    is written (transformers 5.24, models/deepseek_v32; NVIDIA-NeMo/Automodel 36044ad,
    models/deepseek_v32/layers.py, models/glm_moe_dsa/layers.py with `attn: sdpa`).
    """
    keys = work.sequence / index.pool
    pairs = work.sequences * work.seq_len * keys
    one, each = np.ones_like(work.tp), pairs * index.heads
    scores = Matmul(
        phase=Phase.FORWARD,
        m=work.seq_len * index.heads,
        n=keys,
        k=(index.head_dim + 1) * one,  # with the sum over heads
        input_bytes=FP32_BYTES * one,
        output_bytes=FP32_BYTES * one,
        batch=work.sequences,
    )
    moved = (3 * each + _MASK_PASSES * pairs) * FP32_BYTES + pairs * work.element_bytes
    flops = 3 * each + _TOP_K_FLOPS * pairs
    return Operation(
        name="attention.index_scores",
        host_calls=8.0,
        kernels=(scores, MemoryBound(phase=Phase.FORWARD, bytes=moved, flops=flops)),
        parameters=zeros(work),
        saved_bytes=zeros(work),
        working_bytes=2 * each * FP32_BYTES,
        reruns_with=_FULL,
    )


def _scores(attention: Attention, index: Indexer, work: RankWork) -> Operation:
    """Score all earlier keys and select some; backward, the gradient of the indexer's own loss.

    The loss compares the scores with those that attention gives the selected keys, which are
    computed once more. Scores are written and read once in fp32 for the selection; no kernel time
    of a selection is published, and one that is fused moves none of these bytes.
    """
    length = np.minimum(work.sequence, work.document_len)
    scored = index_keys(attention, length)
    size, one = work.element_bytes, np.ones_like(work.tp)
    keys = np.where(work.seq_len > 0, work.seq_len, 0.0) * work.sequences * index.head_dim * size

    def scores(phase: Phase) -> SelectedAttention:
        return SelectedAttention(
            phase=phase,
            sequences=work.sequences,
            seq_len=work.seq_len,
            keys=scored,
            heads=index.heads * one,
            kv_heads=one,
            head_dim=float(index.head_dim),
            v_head_dim=1.0,
            causal=False,
            element_bytes=size,
            gathered_bytes=keys * work.cp,
            index=True,
        )

    qk, _ = core_widths(attention)
    teacher = SelectedAttention(
        phase=Phase.WEIGHT_GRAD,
        sequences=work.sequences,
        seq_len=work.seq_len,
        keys=sparse_keys(attention, length) / 2,  # one product, where a gradient has two
        heads=attention.heads / work.tp,
        kv_heads=one,
        head_dim=float(qk),
        v_head_dim=0.0,
        causal=False,
        element_bytes=size,
        gathered_bytes=zeros(work),
        index=True,
    )
    written = work.tokens * scored * FP32_BYTES
    if index.block > 1:
        written = written * index.heads / index.block
    selection = MemoryBound(phase=Phase.FORWARD, bytes=2 * written, flops=_TOP_K_FLOPS * written)
    saved = work.tokens * (index.heads * (index.head_dim + 1) + index.head_dim) * size
    return Operation(
        name="attention.index_scores",
        host_calls=4.0,
        kernels=(scores(Phase.FORWARD), selection, scores(Phase.WEIGHT_GRAD), teacher),
        parameters=zeros(work),
        saved_bytes=saved,
        working_bytes=saved,
        reruns_with=_FULL,
        dropped_with=_QKV,
    )


def sparse_core(attention: Attention, work: RankWork, heads: Floats, kv_heads: Floats) -> Operation:
    """Attention of queries to the keys that each of them selects, in its window or compressed.

    All heads of a rank read a gathered key together, and queries of a tile a selected block. Saved
    are queries, keys and values, the places of selected keys (4 bytes each) and the logarithm of
    the sum of each row; the output is saved by what reads it.

    With context parallelism, ranks gather the keys of all tokens, and compressed ones.

    Parameters
    ----------
    heads, kv_heads
        Heads of this rank; shape (rows,).
    """
    index, compressed, latent = attention.indexer, attention.compressed, attention.latent
    qk, v = core_widths(attention)
    size = work.element_bytes
    # One width serves as keys and values of latent and compressed attention.
    key_width = kv_heads * (qk + v) if latent is None and compressed is None else qk * 1.0
    keys = sparse_keys(attention, np.minimum(work.sequence, work.document_len))
    is_blocked = index is not None and index.block > 1
    places = zeros(work)
    if index is not None and not index.shared:
        grouped = index.block if compressed is None else compressed.ratio or 1
        selected = np.minimum(float(index.top_k), np.ceil(work.sequence / grouped))
        places = selected * (index.heads if is_blocked else 1) * _INDEX_BYTES
    gathered = keys * key_width * size / (_BLOCK_QUERIES if is_blocked else 1)
    resident = work.tokens * (heads * qk + key_width) * size
    if compressed is not None and compressed.ratio is not None:
        resident = resident + work.tokens * qk * size / compressed.ratio
    output = work.tokens * heads * v * size
    kernels = tuple(
        SelectedAttention(
            phase=phase,
            sequences=work.sequences,
            seq_len=work.seq_len,
            keys=keys,
            heads=heads,
            kv_heads=kv_heads if is_blocked else np.ones_like(heads),
            head_dim=float(qk),
            v_head_dim=float(v),
            causal=False,
            element_bytes=size,
            gathered_bytes=work.tokens * (gathered + places),
        )
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
    )
    shared_width = key_width + (index.head_dim if index is not None and not index.shared else 0.0)
    return Operation(
        name="attention.core",
        kernels=kernels,
        collectives=_gathered_keys(work, shared_width),
        parameters=heads if attention.sinks else zeros(work),
        saved_bytes=resident + work.tokens * (places + heads * FP32_BYTES),
        working_bytes=resident + 2 * output,
        reruns_with=_CORE,
        dropped_with=_QKV if latent is None and compressed is None else _UP,
    )


def _gathered_keys(work: RankWork, width: Floats | float) -> tuple[Collective, ...]:
    """Gather the keys of all context-parallel ranks, again in backward, and reduce gradients."""
    size = np.where(work.cp > 1, work.tokens * work.cp * width * work.element_bytes, 0.0)
    forward, backward = Phase.FORWARD, Phase.INPUT_GRAD
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    return tuple(
        Collective(phase=phase, kind=kind, axis="cp", bytes=size)
        for phase, kind in ((forward, gather), (backward, gather), (backward, scatter))
    )


def compressed_projections(
    model: Model,
    attention: Attention,
    compressed: Compressed,
    work: RankWork,
    norm_parts: frozenset[str],
) -> list[Operation]:
    """Queries by way of a narrow width, the one key, and the compressed keys, with their norms.

    Projections of keys are replicated on tensor-parallel ranks, which run them for their shard of
    the sequence and gather the keys; queries are split over heads, with a norm without weights.
    """
    per_width = model.norm_parameters / model.hidden
    heads, width = attention.heads / work.tp, attention.head_dim
    operations = [
        linear(
            "attention.q_down",
            work,
            tokens=work.split_tokens,
            inputs=model.hidden,
            outputs=float(compressed.q_rank),
            saved_tokens=work.split_tokens,
            reruns_with=_QKV,
            dropped_with=norm_parts,
        ),
        norm(
            "attention.q_norm",
            model,
            work,
            tokens=work.split_tokens,
            width=float(compressed.q_rank),
            parameters=compressed.q_rank * per_width,
            reruns_with=_QKV,
            dropped_with=_QKV,
        ),
        linear(
            "attention.q_up",
            work,
            tokens=work.tokens,
            inputs=float(compressed.q_rank),
            outputs=heads * width,
            saved_tokens=work.saved_tokens,
            collectives=before_column_parallel(work, compressed.q_rank),
            normed=True,
            reruns_with=_UP,
            dropped_with=_QKV,
        ),
        norm(
            "attention.qk_norm",
            model,
            work,
            tokens=work.tokens * heads,
            width=float(width),
            parameters=0.0,
            reruns_with=_UP,
            dropped_with=_UP,
        ),
        linear(
            "attention.kv_down",
            work,
            tokens=work.split_tokens,
            inputs=model.hidden,
            outputs=float(width),
            saved_tokens=zeros(work),
            reruns_with=_QKV,
        ),
        norm(
            "attention.kv_norm",
            model,
            work,
            tokens=work.split_tokens,
            width=float(width),
            parameters=width * per_width,
            collectives=shared_by_heads(work, width),
            reruns_with=_QKV,
            dropped_with=_QKV,
        ),
    ]
    if compressed.ratio is not None:
        operations.append(_compressor(model, attention, compressed.ratio, work))
    return operations


def _compressor(model: Model, attention: Attention, ratio: int, work: RankWork) -> Operation:
    """Project keys and gates, and add `ratio` keys by the softmax of their gates.

    With an indexer there are two versions of both, for the keys that overlap.
    """
    width = attention.head_dim
    versions = 1 if attention.indexer is None else 2
    outputs = 2 * versions * width
    product = linear(
        "attention.compress",
        work,
        tokens=work.split_tokens,
        inputs=model.hidden,
        outputs=float(outputs),
        parameters=float(model.hidden * outputs + versions * ratio * width + width),
        saved_tokens=zeros(work),
        sixteen_bits=True,
        collectives=shared_by_heads(work, width / ratio),
        reruns_with=_QKV,
    )
    elements = work.split_tokens * outputs
    size = work.element_bytes
    pooled = tuple(
        MemoryBound(phase=phase, bytes=passes * elements * size, flops=6 * elements)
        for phase, passes in ((Phase.FORWARD, 1), (Phase.INPUT_GRAD, 2))
    )
    return replace(
        product,
        kernels=(*product.kernels, *pooled),
        saved_bytes=product.saved_bytes + elements * size,
        dropped_with=_QKV,
    )


def compressed_output(
    model: Model, attention: Attention, compressed: Compressed, work: RankWork
) -> list[Operation]:
    """Compress the output of each group of heads, and project what that gives to the model's width.

    Both products are split over groups: the first by columns, the second by rows.
    """
    groups = compressed.output_groups / work.tp
    heads = attention.heads / compressed.output_groups
    down = linear(
        "attention.out_down",
        work,
        tokens=work.tokens,
        inputs=heads * attention.head_dim,
        outputs=float(compressed.output_rank),
        batch=groups,
        reruns_with=_FULL | {"attention_out"},
        dropped_with=_FULL,
    )
    out = linear(
        "attention.out",
        work,
        tokens=work.tokens,
        inputs=groups * compressed.output_rank,
        outputs=float(model.hidden),
        collectives=after_row_parallel(work, model.hidden),
        reruns_with=_FULL | {"every_other", "attention_out"},
        dropped_with=_FULL,
    )
    return [down, out]
