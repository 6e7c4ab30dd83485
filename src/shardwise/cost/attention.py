"""Time of a fused (flash) attention kernel from its shape."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats
from shardwise.cost.curve import joined_times
from shardwise.system import AttentionKernel, Processing

__all__ = ["AttentionRates", "attention_times", "head_efficiency"]

# Form and exponents fitted to 149,000 measured attention kernels on seven GPUs (A100 to GB300;
# ai-dynamo/aiconfigurator, commit 095f58a).
_SPREAD_EXPONENT = 1.5
_JOIN_EXPONENT = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRates:
    """What an attention kernel runs on, as columns."""

    peak: Floats
    """Peak of the matrix units [FLOP/s]."""
    memory_rate: Floats
    """Rate that queries, keys, values and output move at [byte/s]."""
    time_factor: Floats
    """Time of the stack's kernel over that of the best one."""
    kernel: AttentionKernel
    multiprocessors: int
    processing: Processing = "measured"


def head_efficiency(kernel: AttentionKernel, head_dim: float) -> float:
    """Share of the peak at a head width: interpolated in its logarithm, constant outside."""
    widths = sorted(kernel.efficiency)
    shares = [kernel.efficiency[width] for width in widths]
    return float(np.interp(np.log(head_dim), np.log(widths), shares))


def attention_times(
    *,
    sequences: Floats,
    seq_len: Floats,
    heads: Floats,
    head_dim: float,
    causal: bool,
    moved_bytes: Floats,
    rates: AttentionRates,
    backward: bool,
) -> tuple[Floats, Floats, Floats]:
    """Return compute, memory and whole time [s] of a flash attention kernel.

    Queries are handled in tiles of `tile`; a tile takes u = 2 tile 2 d SM / (P e) seconds per key
    on one of SM multiprocessors. The mean tile sees K = (s + tile) / 2 keys when causal, at most s.
    t_c = ((T K u / SM)^1.5 + (o s u)^1.5)^(1/1.5) with T tiles in all: the evenly spread work,
    joined with the longest tile, which others wait for when there are few. With the memory time:
    t = t0 + (t_c^1.2 + t_m^1.2)^(1/1.2), or their maximum or sum (`cost.curve.joined_times`).
    Backward, compute takes `backward_ratio` times as long.

    Parameters
    ----------
    moved_bytes
        Bytes of queries, keys, values, outputs (and their gradients) [byte].
    rates
        P, e by head width d, o, memory rate, t0.

    Notes
    -----
    Mean error on held-out forward kernels (s >= 1024, 8 or more heads) 3 to 7 % by GPU. The
    backward ratio is that of SimuMax's measured kernels, 2.9 to 3.3 at head width 128.
    """
    kernel = rates.kernel
    busy = heads > 0
    efficiency = head_efficiency(kernel, head_dim)
    tiles = sequences * heads * np.ceil(seq_len / kernel.tile)
    keys = np.minimum((seq_len + kernel.tile) / 2, seq_len) if causal else seq_len
    unit = 4 * kernel.tile * head_dim * rates.multiprocessors / (rates.peak * efficiency)
    even = tiles / rates.multiprocessors * keys * unit
    longest = kernel.longest_weight * seq_len * unit
    spread = (even**_SPREAD_EXPONENT + longest**_SPREAD_EXPONENT) ** (1 / _SPREAD_EXPONENT)
    compute = spread * rates.time_factor * (kernel.backward_ratio if backward else 1.0)
    memory = moved_bytes / rates.memory_rate
    joined = joined_times(compute, memory, rates.processing, _JOIN_EXPONENT)
    zero = np.zeros_like(joined)
    return (
        np.where(busy, compute, zero),
        np.where(busy, memory, zero),
        np.where(busy, kernel.launch + joined, zero),
    )
