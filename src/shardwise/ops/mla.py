"""Multi-head latent attention: queries, keys and values through narrow projections.

Equations: arXiv 2405.04434, section 2.1. Down projections and their norms are replicated on
every tensor-parallel rank and process its shard of the sequence; their output is gathered before
the up projections, which are split over heads (Megatron-LM core 0.12, multi_latent_attention.py).
"""

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.enums import AttentionBias
from shardwise.config.model import Attention, Latent, Model
from shardwise.ops.linear import before_column_parallel, linear, shared_by_heads
from shardwise.ops.norm import norm
from shardwise.ops.operation import (
    FP32_BYTES,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    operations_in,
    zeros,
)

ROPE_FLOPS = 3.0
"""Per rotated element: four multiplications and two additions for a pair."""
_ALL = frozenset({"attention", "qkv"})
_UP = _ALL | {"mla_up"}

# Functions of Megatron-LM, each about as long as a module (core 0.12, multi_latent_attention.py):
# queries and keys split, each rotated, joined again.
_ROPE_CALLS = 3.0


def rotated_bytes(elements: Floats, work: RankWork) -> Floats:
    """Bytes that rotating some elements moves [byte].

    Each is read and written once. Without a fused kernel it is copied to fp32, multiplied there,
    and copied back, unless it is in fp32 already.
    """
    size = work.element_bytes
    copies = np.where(size < FP32_BYTES, 2 * (FP32_BYTES + size), 0.0)
    found: Floats = elements * np.where(work.fused_rope, 2 * size, 2 * FP32_BYTES + copies)
    return found


def latent_projections(
    model: Model,
    attention: Attention,
    latent: Latent,
    work: RankWork,
    norm_parts: frozenset[str],
) -> list[Operation]:
    """Compress, normalize and expand queries (or project them at once), then keys and values.

    The compressed keys and values include the shared rotary keys. Both down projections save one
    input.

    Parameters
    ----------
    attention
        Heads and their widths [element].
    latent
        Widths of the compressed queries, keys and values [element].
    norm_parts
        Recompute parts that rebuild the input of attention; none without a norm before it.
    """
    heads = attention.heads / work.tp
    query_width = heads * attention.head_dim
    biased = attention.bias in (AttentionBias.QKV, AttentionBias.ALL)
    if latent.q_rank is None:
        queries = [
            linear(
                "attention.q",
                work,
                tokens=work.tokens,
                inputs=model.hidden,
                outputs=query_width,
                saved_tokens=work.saved_tokens,
                collectives=before_column_parallel(work, model.hidden),
                normed=bool(norm_parts),
                reruns_with=_UP,
                dropped_with=norm_parts,
            )
        ]
        saved = np.where(work.saved_tokens > work.split_tokens, work.split_tokens, 0.0)
    else:
        queries = [
            _down("q", model, work, norm_parts, latent.q_rank, work.split_tokens, biased=biased),
            *_normed_up("q", model, work, latent.q_rank, query_width),
        ]
        saved = zeros(work)
    compressed = latent.kv_rank + latent.rope_dim
    down = _down("kv", model, work, norm_parts, compressed, saved, biased=biased)
    expanded = heads * (attention.head_dim - latent.rope_dim + attention.value_dim)
    absorbs = is_absorbed(attention, work)
    return [
        *queries,
        down,
        *operations_in(_absorbed_queries(model, attention, latent, work), absorbs),
        *operations_in(_normed_up("kv", model, work, latent.kv_rank, expanded), ~absorbs),
    ]


def is_absorbed(attention: Attention, work: RankWork) -> Bools:
    """Rows whose core sees compressed keys and values: those that gather the selected ones."""
    return ~work.masked_selection & (attention.latent is not None and attention.indexer is not None)


def _down(
    what: str,
    model: Model,
    work: RankWork,
    norm_parts: frozenset[str],
    rank: int,
    saved_tokens: Floats,
    *,
    biased: bool,
) -> Operation:
    return linear(
        f"attention.{what}_down",
        work,
        tokens=work.split_tokens,
        inputs=model.hidden,
        outputs=rank,
        bias=rank if biased else 0.0,
        saved_tokens=saved_tokens,
        reruns_with=_ALL,
        dropped_with=norm_parts,
    )


def _normed_up(
    what: str, model: Model, work: RankWork, rank: int, outputs: Floats
) -> list[Operation]:
    normed = norm(
        f"attention.{what}_norm",
        model,
        work,
        tokens=work.split_tokens,
        width=rank,
        parameters=rank * model.norm_parameters / model.hidden,
        reruns_with=_ALL,
        dropped_with=_ALL,
    )
    up = linear(
        f"attention.{what}_up",
        work,
        tokens=work.tokens,
        inputs=rank,
        outputs=outputs,
        saved_tokens=work.saved_tokens,
        collectives=before_column_parallel(work, rank),
        normed=True,
        reruns_with=_UP,
        dropped_with=_ALL,
    )
    return [normed, up]


def _absorbed_queries(
    model: Model, attention: Attention, latent: Latent, work: RankWork
) -> list[Operation]:
    """Normalize and gather the compressed keys and values; bring queries to their width.

    One product for each head with the up projection of keys, as many FLOPs as projecting keys.
    """
    return [
        norm(
            "attention.kv_norm",
            model,
            work,
            tokens=work.split_tokens,
            width=latent.kv_rank,
            parameters=latent.kv_rank * model.norm_parameters / model.hidden,
            collectives=shared_by_heads(work, latent.kv_rank),
            reruns_with=_ALL,
            dropped_with=_ALL,
        ),
        linear(
            "attention.q_absorb",
            work,
            tokens=work.tokens,
            inputs=float(attention.head_dim - latent.rope_dim),
            outputs=float(latent.kv_rank),
            batch=attention.heads / work.tp,
            reruns_with=_UP,
            dropped_with=_ALL,
        ),
    ]


def absorbed_output(attention: Attention, latent: Latent, work: RankWork) -> Operation:
    """Bring the output of an absorbed core to the width of values: one product for each head.

    Parameters
    ----------
    attention, latent
        Heads and their widths [element].
    """
    return linear(
        "attention.out_absorb",
        work,
        tokens=work.tokens,
        inputs=float(latent.kv_rank),
        outputs=float(attention.value_dim),
        batch=attention.heads / work.tp,
        reruns_with=frozenset({"attention"}),
        dropped_with=frozenset({"attention"}),
    )


def latent_rope(attention: Attention, latent: Latent, work: RankWork) -> Operation:
    """Rotate the rotary dimensions of queries in place; concatenate the two halves of keys.

    Keys and values are read as projected, with the one rotary key of all heads, and written
    separately. Without a fused kernel the halves of queries are concatenated too. Backward does the
    reverse.

    Parameters
    ----------
    attention
        Heads and their widths [element].
    latent
        Width of the rotary keys [element].
    """
    heads = attention.heads / work.tp
    rotated = heads * latent.rope_dim
    plain = heads * (attention.head_dim - latent.rope_dim + attention.value_dim)
    elements = 2 * rotated + (plain + latent.rope_dim) + (plain + rotated)
    absorbs = is_absorbed(attention, work)  # queries are joined, keys are the compressed ones
    plain = np.where(absorbs, heads * latent.kv_rank, plain)
    elements = np.where(absorbs, 2 * (plain + rotated + latent.rope_dim), elements)
    joined = 2 * heads * (attention.head_dim - latent.rope_dim)
    elements = elements - 2 * rotated + np.where(work.fused_rope, 0.0, joined)
    moved = work.tokens * elements * work.element_bytes
    moved = moved + rotated_bytes(work.tokens * rotated, work)
    kernels = tuple(
        MemoryBound(
            phase=phase, bytes=moved, flops=ROPE_FLOPS * work.tokens * (rotated + latent.rope_dim)
        )
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
    )
    return Operation(
        name="attention.rope",
        host_calls=_ROPE_CALLS,
        kernels=kernels,
        collectives=shared_by_heads(work, latent.rope_dim),
        parameters=zeros(work) + latent.rope_norm * latent.rope_dim,
        saved_bytes=zeros(work),
        working_bytes=work.tokens * (2 * plain + rotated) * work.element_bytes,
        reruns_with=_UP,
    )
