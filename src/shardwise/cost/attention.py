"""Time of a fused (flash) attention kernel from its shape."""

from collections.abc import Mapping

import numpy as np

from shardwise.arrays import Floats, interpolated
from shardwise.config.accelerator import FusedAttention, KernelTime
from shardwise.config.enums import Processing
from shardwise.cost.curve import joined_times
from shardwise.records import dataclass

# Form and exponents fitted to 149,000 measured attention kernels on seven GPUs (A100 to GB300;
# ai-dynamo/aiconfigurator, commit 095f58a).
_SPREAD_EXPONENT = 1.5
_JOIN_EXPONENT = 1.2
# Weight of the longest causal tile backward over forward: on SimuMax's measured kernels (commit
# 4dcaae5; 12 of A100, 32 of B200) 0.5 has the least mean error of the two GPUs.
_LONGEST_BACKWARD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRates:
    """Rates that an attention kernel runs at, as columns."""

    peak: Floats
    """Peak of the matrix units [FLOP/s]."""
    memory_rate: Floats
    """Rate that queries, keys, values and output move at [byte/s]."""
    time_factor: Floats
    """Time of the stack's kernel over that of the best one."""
    kernel: FusedAttention
    multiprocessors: int
    processing: Processing = Processing.MEASURED
    compute_latency_s: float = 0.0
    """Least compute time of a kernel that runs [s]."""


def head_efficiency(
    kernel: FusedAttention, head_dim: float, v_head_dim: float | None = None
) -> Floats:
    """Share of the peak at a head width: interpolated in its logarithm, constant outside.

    Parameters
    ----------
    head_dim
        Width of a head of queries and keys [elements].
    v_head_dim
        Width of a head of values [elements]; None: `head_dim`.
    """
    narrower = v_head_dim is not None and v_head_dim < head_dim
    known = (kernel.latent_efficiency if narrower else None) or kernel.efficiency
    widths = sorted(known)
    shares = [known[width] for width in widths]
    return interpolated(np.asarray(np.log(head_dim)), np.log(widths), shares)


def kernel_time_factor(time: float | KernelTime, keys: Floats, *, backward: bool) -> Floats | float:
    """Time of a kernel over that of the best one: interpolated in the logarithm of the keys.

    Parameters
    ----------
    time
        One factor, or factors by keys per query, forward and backward.
    keys
        Keys per query, as `FlashAttention.keys` counts them [tokens]; shape (n,).
    """
    if not isinstance(time, KernelTime):
        return time
    known = (time.backward if backward else None) or time.forward
    lengths = sorted(known)
    places = np.log(np.maximum(keys, 1.0))
    return interpolated(places, np.log(lengths), [known[length] for length in lengths])


def release_time_factor(
    times: Mapping[str, KernelTime], months: Floats, keys: Floats, *, backward: bool
) -> Floats:
    """Time of a kernel in the releases of some months over that of the accelerator's figures.

    log f(t) is linear between the months of `times`, constant outside; 1 without a month.

    Parameters
    ----------
    times
        Factors by month, such as 2026-02.
    months
        t, months since year 0, NaN where none is known; shape (n,).
    keys
        Keys per query, as `FlashAttention.keys` counts them [tokens]; shape (n,).
    """
    known = sorted(times)
    places, parts = [months_of(month) for month in known], np.eye(len(known))
    at = np.nan_to_num(months)
    log = np.zeros_like(months)
    for month, part in zip(known, parts, strict=True):
        factor = kernel_time_factor(times[month], keys, backward=backward)
        log = log + np.interp(at, places, part) * np.log(factor)
    return np.where(np.isnan(months), 1.0, np.exp(log))


def months_of(month: str) -> float:
    """Months since year 0 of one such as 2026-02; NaN of an empty one."""
    return 12.0 * int(month[:4]) + int(month[5:]) if month else np.nan


def attention_times(
    *,
    sequences: Floats,
    seq_len: Floats,
    keys: Floats,
    heads: Floats,
    head_dim: float,
    v_head_dim: float | None = None,
    causal: bool,
    moved_bytes: Floats,
    rates: AttentionRates,
    backward: bool,
) -> tuple[Floats, Floats, Floats]:
    """Return compute, memory and total time [s] of a flash attention kernel.

    Queries are handled in tiles of `tile`; a tile takes u = 4 tile w SM / (P e) seconds per key on
    one of SM multiprocessors, w the wider of d and v, for which kernels lay out both. The mean tile
    sees K = (k + tile) / 2 of the k keys when causal, at most k; each costs c more to fill.
    t_c = ((T (K + c) u / SM)^1.5 + (o (k + c) u)^1.5)^(1/1.5) with T tiles in all: the evenly
    spread work, joined with the longest tile, which others wait for when there are few. With the
    memory time:
    t = t0 + (t_c^1.2 + t_m^1.2)^(1/1.2), or their maximum or sum (`cost.curve.joined_times`).
    Backward, compute takes `backward_ratio` times as long, and the longest tile weighs half: such
    kernels spread over the keys too.

    Parameters
    ----------
    seq_len
        Queries of a sequence [tokens]; shape (n,).
    keys
        k, keys per query as `FlashAttention.keys` counts them [tokens]; shape (n,).
    heads
        Heads on one rank; where zero, the kernel does not run; shape (n,).
    head_dim
        d, width of a head of queries and keys [elements].
    v_head_dim
        v, width of a head of values [elements]; None: d.
    causal
        Whether a query attends to earlier keys only.
    moved_bytes
        Bytes of queries, keys, values, outputs (and their gradients) [byte]; shape (n,).
    rates
        P, e by head width d, o, c, memory rate, t0; columns of shape (n,).

    Notes
    -----
    Mean error on held-out forward kernels (s >= 1024, 8 or more heads) 3 to 7 % by GPU. The
    backward ratio is that of SimuMax's measured kernels, 2.9 to 3.3 at head width 128. On its 44
    backward kernels (A100, B200) the mean error is 11 %; with the full weight of the longest tile
    or the FLOPs of unequal widths 192 and 128 it is 17 to 25 %.
    """
    kernel = rates.kernel
    busy = heads > 0
    value_dim = head_dim if v_head_dim is None else v_head_dim
    efficiency = head_efficiency(kernel, head_dim, value_dim)
    tiles = sequences * heads * np.ceil(seq_len / kernel.tile)
    met = np.minimum((keys + kernel.tile) / 2, keys) if causal else keys
    width = max(head_dim, value_dim)
    unit = 4 * kernel.tile * width * rates.multiprocessors / (rates.peak * efficiency)
    even = tiles / rates.multiprocessors * (met + kernel.fill_keys) * unit
    longest = kernel.longest_weight * (keys + kernel.fill_keys) * unit
    longest = longest * (_LONGEST_BACKWARD if backward else 1.0)
    spread = (even**_SPREAD_EXPONENT + longest**_SPREAD_EXPONENT) ** (1 / _SPREAD_EXPONENT)
    compute = spread * rates.time_factor * (kernel.backward_ratio if backward else 1.0)
    compute = compute + rates.compute_latency_s
    memory = moved_bytes / rates.memory_rate
    joined = joined_times(compute, memory, rates.processing, _JOIN_EXPONENT)
    zero = np.zeros_like(joined)
    return (
        np.where(busy, compute, zero),
        np.where(busy, memory, zero),
        np.where(busy, kernel.launch + joined, zero),
    )
