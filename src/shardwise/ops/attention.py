"""The attention block of a layer, with context parallelism around its core.

Each rank has S / cp tokens of every sequence, but their queries attend to the keys of all of it. In
a zigzag, each rank has one slice from the front and its mirror image from the end, so that causal
work is even. Windows shorter than a rank's slice would need the keys of neighbors only;
Transformer Engine communicates all keys nevertheless. With 2D products tp2 ranks split the sequence
in the same way, and gather keys and values.
"""

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.enums import (
    AttentionBias,
    AttentionGate,
    AttentionKind,
    CpExchange,
    Position,
    QkNorm,
)
from shardwise.config.model import Attention, Model
from shardwise.ops.linear import after_row_parallel, all_reduced, before_column_parallel, linear
from shardwise.ops.mla import (
    ROPE_FLOPS,
    absorbed_output,
    is_absorbed,
    latent_projections,
    latent_rope,
    rotated_bytes,
)
from shardwise.ops.norm import norm
from shardwise.ops.operation import (
    FP32_BYTES,
    Collective,
    CollectiveKind,
    FlashAttention,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    operations_in,
    zeros,
)
from shardwise.ops.quantization import by_recipe, cast
from shardwise.ops.sparse import (
    compressed_output,
    compressed_projections,
    index_operations,
    sparse_core,
)
from shardwise.ops.summa import row_split, shared_keys
from shardwise.records import dataclass, replace

# Keys, values and their gradients: two buffers of each in a ring, one in use and one in transfer
# (Transformer Engine's attention with point-to-point communication).
_RING_BUFFERS = 4
_CHUNK_CALLS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreWork:
    """Work of one rank in the attention core."""

    queries: Floats
    """Tokens of a sequence whose queries are on the rank."""
    sequence: Floats
    """Tokens of the full sequence."""
    heads: Floats
    """Query heads."""
    kv_heads: Floats
    """Heads of keys and values."""
    resident_bytes: Floats
    """Queries, keys and values at the input of the core [byte]."""
    output_bytes: Floats
    """Its output [byte]."""
    buffer_bytes: Floats
    """Keys, values and their gradients from other ranks, live in backward [byte]."""


def swaps_heads(work: RankWork) -> Bools:
    """Rows that trade the sequence for heads with all-to-alls (Ulysses)."""
    return (work.cp > 1) & (work.cp_exchange == CpExchange.ALL_TO_ALL.code)


def core_calls(work: RankWork) -> Floats:
    """Functions that the host runs for the core in one direction.

    One, and 4 for each chunk of the sequence that it attends to in turn (kernel, exchange, scaling
    and sum of what came before): one of each rank in a ring, two where all are gathered
    (Transformer Engine 2.0, context_parallel.py). Megatron-LM's functional tests with tiny models
    take 1.8 ms longer for a layer forward and backward with a ring of two ranks of H100.
    """
    ring = work.cp_exchange == CpExchange.RING.code
    gathers = work.cp_exchange == CpExchange.ALL_GATHER.code
    chunks = np.select([work.cp <= 1, ring, gathers], [0.0, work.cp, 2.0], 0.0)
    return 1 + _CHUNK_CALLS * chunks


def core_work(attention: Attention, work: RankWork, heads: Floats, kv_heads: Floats) -> CoreWork:
    """Queries and heads of one rank in the core.

    With all_to_all a rank has all tokens of heads / cp; fewer key-value heads than cp are
    replicated.
    """
    swapped = swaps_heads(work)
    shared = np.where(swapped, work.cp, 1.0)
    queries = work.seq_len * shared
    own_heads, own_kv_heads = heads / shared, np.maximum(kv_heads / shared, 1.0)
    per_element = work.sequences * queries * work.element_bytes
    qk, v = attention.head_dim, attention.value_dim
    keys_values = work.tokens * kv_heads * (qk + v) * work.element_bytes
    buffers = np.select(
        [
            (work.cp > 1) & (work.cp_exchange == CpExchange.RING.code),
            (work.cp > 1) & (work.cp_exchange == CpExchange.ALL_GATHER.code),
            work.tp2 > 1,
        ],
        [
            _RING_BUFFERS * keys_values,
            2 * work.cp * keys_values,
            2 * work.tp2 * keys_values,
        ],
        0.0,
    )
    return CoreWork(
        queries=queries,
        sequence=work.sequence,
        heads=own_heads,
        kv_heads=own_kv_heads,
        resident_bytes=per_element * (own_heads * qk + own_kv_heads * (qk + v)),
        output_bytes=per_element * own_heads * v,
        buffer_bytes=buffers,
    )


def keys_met(attention: Attention, sequence: Floats, document_len: Floats) -> Floats:
    """Keys k per query, such that queries x k pairs are scored, or half of that when causal.

    Triangles of length L (the sequence, a packed document or a chunk, whichever is shortest):
    k = L. A window of w < L tokens that slides over them scores w L - w^2 / 2 pairs when causal:
    k = 2 w - w^2 / L. Otherwise it reaches w - 1 tokens to either side, ends not subtracted:
    k = min(2 w - 1, L).

    Parameters
    ----------
    attention
        Attention of a layer: whether causal, its window or chunk [token].
    sequence
        Length of a sequence [token]; shape (rows,).
    document_len
        Length of a packed document [token]; shape (rows,).
    """
    length = np.minimum(sequence, document_len)
    if attention.chunk is not None:
        length = np.minimum(length, float(attention.chunk))
    if attention.window is None:
        return length
    if not attention.causal:
        return np.minimum(length, 2.0 * attention.window - 1)
    window = np.minimum(length, float(attention.window))
    return 2 * window - window**2 / length


def context_collectives(
    attention: Attention, work: RankWork, core: CoreWork, kv_heads: Floats
) -> tuple[Collective, ...]:
    """Collectives of keys and values (or heads) forward and backward.

    ring: cp - 1 times a rank sends keys and values on, in backward with their gradients, while the
    core computes (arXiv 2310.01889). all_gather: keys and values are gathered before the core,
    again in backward, and their gradients reduce-scattered (arXiv 2407.21783, section 3.3.2).
    all_to_all: queries, keys and values go from all heads of S / cp tokens to heads / cp of all
    tokens, the output returns, and so do the gradients (arXiv 2309.14509).

    Parameters
    ----------
    kv_heads
        Heads of keys and values before communication.
    """
    widths = attention.head_dim + attention.value_dim
    own = work.tokens * kv_heads * widths * work.element_bytes
    gathered = work.cp * own
    passed = (work.cp - 1) * own
    forward, backward = Phase.FORWARD, Phase.INPUT_GRAD

    def collective(
        phase: Phase, way: str, kind: CollectiveKind, size: Floats, behind: Phase | None = None
    ) -> Collective:
        runs = (work.cp > 1) & (work.cp_exchange == CpExchange(way).code)
        used = np.where(runs, size, zeros(work))
        in_ring = behind is not None
        return Collective(
            phase=phase, kind=kind, axis="cp", bytes=used, behind=behind, in_ring=in_ring
        )

    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    swap = CollectiveKind.ALL_TO_ALL
    return (
        collective(forward, "ring", CollectiveKind.P2P, passed, behind=forward),
        collective(backward, "ring", CollectiveKind.P2P, 2 * passed, behind=backward),
        collective(forward, "all_gather", gather, gathered),
        collective(backward, "all_gather", gather, gathered),
        collective(backward, "all_gather", scatter, gathered),
        collective(forward, "all_to_all", swap, core.resident_bytes),
        collective(forward, "all_to_all", swap, core.output_bytes),
        collective(backward, "all_to_all", swap, core.output_bytes),
        collective(backward, "all_to_all", swap, core.resident_bytes),
        *shared_keys(work, own),
    )


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
    if attention.compressed is not None:
        kv_heads = np.ones_like(heads)
        operations = compressed_projections(
            model, attention, attention.compressed, work, norm_parts
        )
    elif attention.latent is not None:
        kv_heads = heads
        operations = latent_projections(model, attention, attention.latent, work, norm_parts)
    else:
        kv_heads = np.maximum(key_value_heads(attention, work.attention) / work.tp, 1.0)
        operations = [_projection(model, attention, work, heads, kv_heads, norm_parts)]
    if attention.qk_norm != QkNorm.NONE:
        operations.append(_qk_norm(model, attention, work, heads, kv_heads))
    operations += _positions(model, attention, work, heads, kv_heads)
    operations += index_operations(model, attention, work, norm_parts=norm_parts)
    gathers = is_absorbed(attention, work) | (attention.is_sparse and attention.latent is None)
    operations += _cores(model, attention, work, heads, kv_heads, gathers)
    if attention.gate != AttentionGate.NONE:
        operations += _gate(model, attention, work, heads)
    if attention.compressed is not None:
        return operations + compressed_output(model, attention, attention.compressed, work)
    if attention.out_norm:
        operations.append(_out_norm(model, attention, work, heads))
    split = row_split(work, attention.heads * attention.value_dim, model.hidden)
    is_first = attention.gate == AttentionGate.NONE and not attention.out_norm
    by_kernel = work.flash & ~swaps_heads(work) & is_first & ~gathers
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
            saved_elsewhere=by_kernel,  # that wrote it
            reruns_with=_FULL | {"every_other", "attention_out"},
            dropped_with=_FULL,
        )
    )
    return operations


def _cores(
    model: Model,
    attention: Attention,
    work: RankWork,
    heads: Floats,
    kv_heads: Floats,
    gathers: Bools,
) -> list[Operation]:
    """The core of each row: of selected keys, with its output brought to its width, or of all."""
    operations = []
    if gathers.any():
        sparse = [sparse_core(attention, work, heads, kv_heads)]
        if attention.latent is not None:
            sparse.append(absorbed_output(attention, attention.latent, work))
        operations += operations_in(sparse, gathers)
    if not gathers.all():
        operations += operations_in(_core(model, attention, work, heads, kv_heads), ~gathers)
    return operations


def _projection(
    model: Model,
    attention: Attention,
    work: RankWork,
    heads: Floats,
    kv_heads: Floats,
    norm_parts: frozenset[str],
) -> Operation:
    """Queries, keys and values in one product, as far as they have projections."""
    keys = zeros(work) if attention.shared_keys else kv_heads * attention.head_dim
    is_projected = not (attention.shared_keys or attention.tied_values)
    values = kv_heads * attention.value_dim if is_projected else zeros(work)
    queries = heads * attention.head_dim
    if attention.gate == AttentionGate.FULL:
        queries = queries + heads * attention.value_dim
    outputs = queries + keys + values
    product = linear(
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
    return replace(product, joined=(queries, keys, values))


def _gate(model: Model, attention: Attention, work: RankWork, heads: Floats) -> list[Operation]:
    """Scale the output of the heads by a sigmoid, in one kernel: y = o sigmoid(g).

    Forward it reads o and g and writes y; backward it reads dy, o and g and writes both gradients.
    Both o and g are saved. A projection to g reads the input that the query projection saves.
    """
    width = heads * attention.value_dim
    gates = heads if attention.gate == AttentionGate.HEAD else width
    scaled, values = work.tokens * width, work.tokens * gates
    size = work.element_bytes
    applied = Operation(
        name="attention.gated",
        kernels=(
            MemoryBound(phase=Phase.FORWARD, bytes=(2 * scaled + values) * size, flops=2 * scaled),
            MemoryBound(
                phase=Phase.INPUT_GRAD, bytes=(3 * scaled + 2 * values) * size, flops=4 * scaled
            ),
        ),
        parameters=heads if attention.gate_bias else zeros(work),
        saved_bytes=(scaled + values) * size,
        working_bytes=(scaled + values) * size,
        reruns_with=_FULL,
        dropped_with=_FULL,
    )
    if attention.gate == AttentionGate.FULL:
        return [applied]
    projection = linear(
        "attention.gate",
        work,
        tokens=work.tokens,
        inputs=model.hidden,
        outputs=gates,
        saved_tokens=zeros(work),
        reruns_with=_QKV,
    )
    return [projection, applied]


def _out_norm(model: Model, attention: Attention, work: RankWork, heads: Floats) -> Operation:
    """Normalize the output of all heads; ranks add up the squares of theirs."""
    width = heads * attention.value_dim
    return norm(
        "attention.out_norm",
        model,
        work,
        tokens=work.tokens,
        width=width,
        parameters=width * model.norm_parameters / model.hidden,
        collectives=all_reduced(work, work.tokens * FP32_BYTES),
        reruns_with=_FULL,
        dropped_with=_FULL,
    )


def _qk_norm(
    model: Model, attention: Attention, work: RankWork, heads: Floats, kv_heads: Floats
) -> Operation:
    """Normalize queries and keys: each head (with the same weights for all), or the full width.

    Over the full width, ranks add up the sums of squares of their heads, two numbers per token in
    fp32 (OLMo 2: arXiv 2501.00656, section 3).
    """
    per_width = model.norm_parameters / model.hidden
    own_keys = 0 if attention.shared_keys else 1
    normed_heads = heads + own_keys * kv_heads
    full_width = attention.qk_norm == QkNorm.WIDTH
    weighted = {
        "head": (1 + own_keys) * np.ones_like(heads),
        "width": normed_heads,
        "unweighted": zeros(work),
    }
    return norm(
        "attention.qk_norm",
        model,
        work,
        tokens=work.tokens * (normed_heads + attention.v_norm * own_keys * kv_heads),
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
        if attention.rotary_dim == 0:
            return []
        if attention.latent is not None:
            return [latent_rope(attention, attention.latent, work)]
        turned = attention.head_dim if attention.rotary_dim is None else attention.rotary_dim
        turned_heads = heads if attention.shared_keys else heads + kv_heads
        elements = work.tokens * turned_heads * turned
        moved = rotated_bytes(elements, work)
        kernels = tuple(
            MemoryBound(phase=phase, bytes=moved, flops=ROPE_FLOPS * elements)
            for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
        )
        operation = Operation(
            name="attention.rope",
            kernels=kernels,
            parameters=none,
            saved_bytes=none,
            working_bytes=elements * work.element_bytes,
            reruns_with=_QKV | {"every_other"} | ({"mla_up"} if attention.compressed else set()),
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
    """Scores, softmax and weighted values: one kernel (flash) or several, row by row.

    With an indexer all pairs are scored, of no kernel that knows which are masked, and the mask of
    the keys that were not selected is read in both passes and saved: one for all heads, in the type
    of the row (`masked_selection`).
    """
    core = core_work(attention, work, heads, kv_heads)
    keys = keys_met(attention, core.sequence, work.document_len)
    masks = attention.indexer is not None
    flash = tuple(
        FlashAttention(
            phase=phase,
            sequences=work.sequences,
            seq_len=core.queries,
            keys=core.sequence if masks else keys,
            heads=np.where(work.flash, core.heads, 0.0),
            kv_heads=np.where(work.flash, core.kv_heads, 0.0),
            head_dim=float(attention.head_dim),
            v_head_dim=float(attention.value_dim),
            causal=attention.causal and not masks,
            element_bytes=work.element_bytes,
        )
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
    )
    mask = work.sequences * core.queries * core.sequence * work.element_bytes * masks
    rebuilds = _QKV | ({"every_other"} if attention.latent is None else {"mla_up"})
    # Of the products to queries, keys and values every other one is the second.
    half = work.sequences * core.queries * core.kv_heads * attention.head_dim * work.element_bytes
    products = Operation(
        name="attention.core",
        host_calls=core_calls(work),
        kernels=(
            *_in_eight_bits(flash, attention, work, core),
            *_unfused_products(model, attention, work, core),
            *(
                MemoryBound(phase=one.phase, bytes=mask, flops=zeros(work))
                for one in flash
                if masks
            ),
        ),
        collectives=context_collectives(attention, work, core, kv_heads),
        parameters=heads if attention.sinks else zeros(work),
        saved_bytes=core.resident_bytes + mask - _of_earlier_layer(attention, core, work),
        working_bytes=core.resident_bytes + 2 * core.output_bytes + core.buffer_bytes,
        reruns_with=_CORE,
        dropped_with=rebuilds,
        half_rebuilt_bytes=half,
    )
    return [products, _softmax(model, work, core)]


def _in_eight_bits(
    flash: tuple[FlashAttention, ...], attention: Attention, work: RankWork, core: CoreWork
) -> tuple[FlashAttention | MemoryBound, ...]:
    """The kernels, on operands of 8 bits in rows that have them, and what quantizes these.

    Both orientations are written: of queries, keys and values forward, of the gradient of the
    output backward (NVIDIA/TransformerEngine d0067d0, dot_product_attention/utils.py,
    combine_and_quantize); what is saved takes as much memory as in 16 bits. Backward such kernels
    score pairs outside of a window too: with windows of 128 keys on GB300 they take 4.2 times as
    long as in 16 bits at 4,096 tokens, 28 times at 32,768 (NVIDIA/cudnn-frontend 3929da2,
    benchmark/sdpa_benchmark_training, gpt_oss, cuDNN 9.22).
    """
    rows = work.flash & work.quantized_attention
    if not rows.any():
        return flash
    element = work.element_bytes
    size = by_recipe(work.quantization, lambda recipe: recipe.operand_bytes)
    everything = attention.model_copy(update={"window": None, "chunk": None})
    every = keys_met(everything, core.sequence, work.document_len)
    found: list[FlashAttention | MemoryBound] = []
    for kernel, moved in zip(flash, (core.resident_bytes, core.output_bytes), strict=True):
        keys = kernel.keys if kernel.phase is Phase.FORWARD else every
        found.append(replace(kernel, keys=np.where(rows, keys, kernel.keys)))
        elements = np.where(rows, moved / element, 0.0)
        found.append(cast(kernel.phase, elements, element + 2 * size))
    return tuple(found)


def _of_earlier_layer(attention: Attention, core: CoreWork, work: RankWork) -> Floats:
    """Keys and values that an earlier layer saves already [byte]."""
    if not attention.shared_keys:
        return zeros(work)
    widths = core.kv_heads * (attention.head_dim + attention.value_dim)
    return work.sequences * core.queries * widths * work.element_bytes


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
