"""Linear-attention mixers: gated delta rule, Kimi delta attention, lightning attention.

D is the width of a head (Dk of keys, Dv of values), w = H D, C the tokens of a chunk.
"""

import numpy as np

from shardwise.config.mixer import GatedDelta, KimiDelta, Lightning
from shardwise.config.model import Model
from shardwise.ops.linear import linear
from shardwise.ops.mixer_parts import (
    Core,
    CoreFlops,
    Inner,
    convolution,
    core_operation,
    fp32_state,
    gated_norm,
)
from shardwise.ops.operation import FP32_BYTES, RankWork

DELTA_CHUNK = 64
"""Tokens of a chunk of the delta-rule kernels of flash-linear-attention, which is fixed."""
_CALLS = 6.0
"""Functions of the delta-rule kernels: their time is at least 0.6 to 0.75 ms forward on GB200
(flash-linear-attention, README)."""
_LIGHTNING_CALLS = 4.0
_DECAY_RATIO = 1.5
"""Bytes of Kimi delta attention over those of the gated delta rule, with a decay per channel."""
_ALL = frozenset({"attention"})


def delta_flops(heads: int, key_dim: int, value_dim: int) -> CoreFlops:
    """FLOPs of the chunked delta rule for one token.

    Each head: 6 Dk Dv + C (6 Dk + 4 Dv) forward, of which 2 C (Dk + Dv) is the product with the
    inverse of a C x C triangle; making it, about C^2 / 3, is left out. Backward, with its
    recompute: 16 Dk Dv + C (18 Dk + 10 Dv) + 4 C^2.
    """
    chunk, product = DELTA_CHUNK, key_dim * value_dim
    return CoreFlops(
        state=6.0 * heads * product,
        chunk=float(heads * chunk * (6 * key_dim + 4 * value_dim)),
        backward_state=16.0 * heads * product,
        backward_chunk=float(heads * chunk * (18 * key_dim + 10 * value_dim + 4 * chunk)),
    )


def lightning_flops(mixer: Lightning) -> CoreFlops:
    """FLOPs of lightning attention for one token: each head 4 D^2 + 4 B D, backward 10, 12."""
    state = float(mixer.heads * mixer.head_dim**2)
    block = float(mixer.heads * mixer.block * mixer.head_dim)
    return CoreFlops(
        state=4 * state, chunk=4 * block, backward_state=10 * state, backward_chunk=12 * block
    )


def delta_bytes(heads: int, key_dim: int, value_dim: int) -> float:
    """Bytes that the chunked delta rule moves forward for one token [byte].

    Each head: 8 (Dk + Dv) for q, k, v, their products with the inverse and the output, 16 Dk Dv / C
    for chunk states in fp32 that are written and read twice.
    """
    return heads * (8.0 * (key_dim + value_dim) + 16.0 * key_dim * value_dim / DELTA_CHUNK)


def gated_delta_operations(_: Model, mixer: GatedDelta, work: RankWork) -> Inner:
    """Projection to q, k, v, z, beta and decay; convolution, scan, gated norm; projection back.

    Queries and keys are widened to the value heads before the kernel (Megatron-LM,
    gated_delta_net.py). Saved: the input of the convolution, normalized q and k, v, the inverse of
    every chunk (C elements of a token and head), decay and statistics of the norm in fp32.
    """
    values, projected = mixer.width, mixer.conv_width + mixer.width + 2 * mixer.value_heads
    heads, sizes = mixer.value_heads, (mixer.key_dim, mixer.value_dim)
    core = Core(
        name="mixer.core",
        kind=mixer.kind,
        flops=delta_flops(heads, *sizes),
        bytes=delta_bytes(heads, *sizes),
        backward_bytes=2.75,
        heads=heads,
        state_bytes=fp32_state(heads * mixer.key_dim * mixer.value_dim),
        parameters=2.0 * heads,
        saved_widths=heads * (2 * mixer.key_dim + mixer.value_dim + DELTA_CHUNK),
        saved_bytes=heads * FP32_BYTES,
        host_calls=_CALLS,
        swapped_in=projected / work.tp,
        swapped_out=values / work.tp,
    )
    operations = [
        convolution("mixer.conv", work, mixer.conv_width, mixer.conv),
        core_operation(work, core),
        gated_norm(
            "mixer.gate",
            work,
            values,
            parameters=mixer.value_dim,
            statistics=heads * FP32_BYTES,
        ),
    ]
    return Inner(inputs=projected / work.tp, operations=operations, outputs=values)


def kimi_delta_operations(model: Model, mixer: KimiDelta, work: RankWork) -> Inner:
    """The gated delta rule with a decay for each channel, and gates of low rank D.

    The narrow projections of decay and output gate are replicated on all tensor-parallel ranks.
    Saved in addition: the decay in fp32, its input, and a second matrix of each chunk.
    """
    heads, dim = mixer.heads, mixer.head_dim
    width = mixer.width
    full = int(mixer.full_rank_gate) + int(mixer.full_rank_decay)
    low = 2 - full
    core = Core(
        name="mixer.core",
        kind=mixer.kind,
        flops=delta_flops(heads, dim, dim),
        bytes=_DECAY_RATIO * delta_bytes(heads, dim, dim),
        backward_bytes=2.75,
        heads=heads,
        state_bytes=fp32_state(heads * dim * dim),
        parameters=width + heads,
        saved_widths=4.0 * width + 2 * heads * DELTA_CHUNK,
        saved_bytes=(width + heads) * FP32_BYTES,
        host_calls=_CALLS,
    )
    gates = []
    if low:
        rank = np.full_like(work.tp, dim * low)
        gates = [
            linear(
                "mixer.gate_down",
                work,
                tokens=work.tokens,
                inputs=model.hidden,
                outputs=rank,
                saved_tokens=np.zeros_like(work.tp),
                reruns_with=_ALL,
                dropped_with=_ALL,
            ),
            linear(
                "mixer.gate_up",
                work,
                tokens=work.tokens,
                inputs=dim,
                outputs=width / work.tp,
                batch=low,
                reruns_with=_ALL,
                dropped_with=_ALL,
            ),
        ]
    operations = [
        *gates,
        convolution("mixer.conv", work, mixer.conv_width, mixer.conv, neighbors=True),
        core_operation(work, core),
        gated_norm("mixer.gate", work, width, parameters=dim, statistics=heads * FP32_BYTES),
    ]
    return Inner(
        inputs=((3 + full) * width + heads) / work.tp, operations=operations, outputs=width
    )


def lightning_operations(_: Model, mixer: Lightning, work: RankWork) -> Inner:
    """Projection to q, k, v and a gate; scan over blocks, norm over all heads; projection back."""
    heads, dim = mixer.heads, mixer.head_dim
    width = mixer.width
    core = Core(
        name="mixer.core",
        kind=mixer.kind,
        flops=lightning_flops(mixer),
        bytes=heads * (8.0 * dim + 8.0 * dim * dim / mixer.block),
        backward_bytes=2.2,
        heads=heads,
        state_bytes=fp32_state(heads * dim * dim),
        parameters=0.0,
        saved_widths=3.0 * width,
        host_calls=_LIGHTNING_CALLS,
    )
    operations = [
        core_operation(work, core),
        gated_norm("mixer.gate", work, width, parameters=width / work.tp),
    ]
    return Inner(inputs=4 * width / work.tp, operations=operations, outputs=width)
