"""Context parallelism around the attention core.

Each rank holds S / cp tokens of every sequence, but their queries meet the keys of all of it. In a
zigzag, each rank has one part from the front and its mirror image from the back, so that causal
work is even. Windows shorter than a rank's part would need the keys of neighbours only; that all
keys are exchanged all the same is what Transformer Engine does. Ranks that 2D products split the
sequence among share it in the same way, and gather keys and values.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.enums import CpExchange
from shardwise.config.model import Attention
from shardwise.ops.operation import Collective, CollectiveKind, Phase, RankWork, zeros
from shardwise.ops.summa import shared_keys

__all__ = ["CoreWork", "context_exchanges", "core_work", "keys_met", "swaps_heads"]

# Keys and values that wait while others are used, and their gradients: two buffers of each in a
# ring (Transformer Engine's attention with point-to-point exchanges).
_RING_BUFFERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreWork:
    """The part of the attention core that one rank does."""

    queries: Floats
    """Tokens of a sequence whose queries it has."""
    sequence: Floats
    """Tokens of the whole sequence."""
    heads: Floats
    """Query heads."""
    kv_heads: Floats
    """Heads of keys and values."""
    resident_bytes: Floats
    """Queries, keys and values as the core takes them [byte]."""
    output_bytes: Floats
    """Its output [byte]."""
    buffer_bytes: Floats
    """Keys, values and their gradients from other ranks, live in backward [byte]."""


def swaps_heads(work: RankWork) -> Bools:
    """Rows that swap the sequence for heads (Ulysses)."""
    return (work.cp > 1) & (work.cp_exchange == CpExchange.ALL_TO_ALL.code)


def core_work(attention: Attention, work: RankWork, heads: Floats, kv_heads: Floats) -> CoreWork:
    """Queries and heads of one rank in the core.

    With all_to_all a rank has all tokens of heads / cp; key-value heads fewer than that are copied.

    Parameters
    ----------
    heads, kv_heads
        Of one tensor-parallel rank.
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
    """Keys k, such that the pairs scored are queries x k, or half of that when causal.

    Triangles of length L (the sequence, a packed document or a chunk, whichever is shortest):
    k = L. A window of w < L tokens that slides over them scores w L - w^2 / 2 pairs when causal:
    k = 2 w - w^2 / L. Otherwise it reaches w - 1 tokens to either side, ends not subtracted:
    k = min(2 w - 1, L).
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


def context_exchanges(
    attention: Attention, work: RankWork, core: CoreWork, kv_heads: Floats
) -> tuple[Collective, ...]:
    """Exchanges of keys and values (or heads) forward and backward.

    ring: cp - 1 times a rank's keys and values pass on, in backward with their gradients, behind
    the core (arXiv 2310.01889). all_gather: keys and values are gathered before the core, again in
    backward, and their gradients reduce-scattered (arXiv 2407.21783, section 3.3.2). all_to_all:
    queries, keys and values go from all heads of S / cp tokens to heads / cp of all tokens, the
    output goes back, and so do the gradients (arXiv 2309.14509).

    Parameters
    ----------
    kv_heads
        Heads of keys and values before the exchange.
    """
    widths = attention.head_dim + attention.value_dim
    own = work.tokens * kv_heads * widths * work.element_bytes
    whole = work.cp * own
    passed = (work.cp - 1) * own
    forward, back = Phase.FORWARD, Phase.INPUT_GRAD

    def exchange(
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
        exchange(forward, "ring", CollectiveKind.P2P, passed, behind=forward),
        exchange(back, "ring", CollectiveKind.P2P, 2 * passed, behind=back),
        exchange(forward, "all_gather", gather, whole),
        exchange(back, "all_gather", gather, whole),
        exchange(back, "all_gather", scatter, whole),
        exchange(forward, "all_to_all", swap, core.resident_bytes),
        exchange(forward, "all_to_all", swap, core.output_bytes),
        exchange(back, "all_to_all", swap, core.output_bytes),
        exchange(back, "all_to_all", swap, core.resident_bytes),
        *shared_keys(work, own),
    )
