"""Context parallelism around the attention core.

Each rank has S / cp tokens of every sequence, but their queries attend to the keys of all of it. In
a zigzag, each rank has one slice from the front and its mirror image from the end, so that causal
work is even. Windows shorter than a rank's slice would need the keys of neighbors only;
Transformer Engine communicates all keys nevertheless. With 2D products tp2 ranks split the sequence
in the same way, and gather keys and values.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.enums import CpExchange
from shardwise.config.model import Attention
from shardwise.ops.operation import Collective, CollectiveKind, Phase, RankWork, zeros
from shardwise.ops.summa import shared_keys

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
