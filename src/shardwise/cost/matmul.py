"""Time of a matrix product from its shape."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.accelerator import MatmulBlocks, MatmulTiles
from shardwise.config.system import Processing
from shardwise.cost.curve import joined_times
from shardwise.cost.deepgemm import block_times, chosen_blocks
from shardwise.cost.tiles import tiled_times

__all__ = ["MatmulRates", "matmul_times", "product_times", "separate_matmul_times"]

# The form and its exponents were fitted to about 600,000 measured products on seven GPUs (A100 to
# GB300; ai-dynamo/aiconfigurator, commit 095f58a); freeing them gains at most half a point.
_TILE = 128
_ALIGN = 64
_JOIN_EXPONENT = 2.3
# The gradient of the weights reads both operands across their storage order: 5 % of the efficiency
# (SimuMax's measured training layouts on A100 and B200, 622 products).
WEIGHT_GRAD_EFFICIENCY = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRates:
    """What a product runs on, as columns: one value per row."""

    peak: Floats
    """Peak of the matrix units for the input type [FLOP/s]."""
    efficiency: Floats
    """Share of the peak: what a large product reaches, or on a curve this one."""
    fill_depth: Floats
    """Extra elements of the reduction for filling the pipeline."""
    fill_tiles: Floats
    """Tiles per multiprocessor that half-fill the chip."""
    memory_rate: Floats
    """Rate that operands and result move at [byte/s]."""
    launch_s: Floats
    """Launch and drain [s]."""
    bandwidth: Floats | float = np.inf
    """Full rate of the memory, which shares of partial results are told of [byte/s]."""
    compute_latency_s: float = 0.0
    """Least compute time of a kernel that runs [s]."""
    memory_latency_s: Floats | float = 0.0
    """Least memory time of a kernel that runs [s]."""
    multiprocessors: int
    fill_exponent: Floats | float = 2.5
    """How sharply the chip fills with tiles."""
    reduction_step: Floats | float = 1
    """The reduction is computed in whole steps of so many elements."""
    tilings: tuple[tuple[Bools | bool, MatmulTiles | MatmulBlocks], ...] = ()
    """Where waves of tiles count in place of that: rows, and what the tiles are like."""
    shaped: Bools | bool = True
    """Whether the shape counts: rows on the closed form; not on a curve over the FLOPs."""
    processing: Processing = "measured"


def matmul_times(
    m: Floats,
    n: Floats,
    k: Floats,
    batch: Floats,
    moved_bytes: Floats,
    rates: MatmulRates,
    *,
    weight_grad: bool = False,
) -> tuple[Floats, Floats, Floats]:
    """Return compute, memory and whole time [s] of `batch` products (m, k) x (k, n).

    t_c = 2 batch [m] [n] (k + k0) / (P e) (1 + (o / w)^x)^(1/x), t_m = bytes / B,
    t = t0 + (t_c^2.3 + t_m^2.3)^(1/2.3), with [m] rounded up to 64, w tiles of 128 x 128 per
    multiprocessor, x = 2.5 unless a system says otherwise. Where a system asks for waves of tiles,
    t_c is theirs (`cost.tiles`, `cost.block_choice`). Zero where there is no work. On a curve
    t_c = 2 batch m n k / (P e), with the efficiency e of 2 batch m n k FLOPs and without launch.
    Roofline and no_overlap join t_c and t_m by their maximum and their sum (see
    `cost.curve.joined_times`). A system may add a latency
    to t_c, to t_m or to both.

    Parameters
    ----------
    m, n, k
        Rows and columns of the result, length of the reduction.
    moved_bytes
        Operands and result [byte].
    rates
        P, e, k0, o, x, B, t0.
    weight_grad
        Whether the layout is that of a gradient of weights.

    Notes
    -----
    Mean error on held-out training shapes (m >= 1024; n, k >= 512) 4.7 to 7 % by GPU, as measured
    for short bursts.
    """
    work = m * n * k * batch
    busy = work > 0
    tiles = np.ceil(m / _TILE) * np.ceil(n / _TILE) * batch / rates.multiprocessors
    idle = rates.fill_tiles / np.where(busy, tiles, 1.0)
    padded = np.ceil(m / _ALIGN) * np.ceil(n / _ALIGN) * _ALIGN**2
    padded = padded if rates.shaped is True else np.where(rates.shaped, padded, m * n)
    layout = np.where(rates.shaped, WEIGHT_GRAD_EFFICIENCY, 1.0) if weight_grad else 1.0
    speed = rates.peak * rates.efficiency * layout
    if isinstance(rates.reduction_step, np.ndarray):
        k = np.ceil(k / rates.reduction_step) * rates.reduction_step
    compute = 2 * batch * padded * (k + rates.fill_depth) / speed
    compute *= (1 + idle**rates.fill_exponent) ** (1 / rates.fill_exponent)
    for rows, tiling in rates.tilings:
        compute = np.where(rows, _by_tiles(m, n, k, batch, speed, rates, tiling), compute)
    return _with_memory(compute, busy, moved_bytes, rates)


def _by_tiles(
    m: Floats,
    n: Floats,
    k: Floats,
    batch: Floats,
    speed: Floats,
    rates: MatmulRates,
    tiling: MatmulTiles | MatmulBlocks,
) -> Floats:
    units = rates.multiprocessors
    if isinstance(tiling, MatmulTiles):
        return tiled_times(
            m,
            n,
            k,
            batch,
            speed=speed,
            fill_depth=rates.fill_depth,
            memory_rate=rates.bandwidth,
            multiprocessors=units,
            tiles=tiling,
        )
    chosen = chosen_blocks(m, n, k, batch, units)
    return block_times(
        k,
        np.ceil(m / chosen.rows) * np.ceil(n / chosen.columns) * batch,
        chosen,
        speed=speed,
        fill_depth=rates.fill_depth,
        multiprocessors=units,
        blocks=tiling,
    )


def separate_matmul_times(
    m: Floats,
    n: Floats,
    k: Floats,
    batch: Floats,
    moved_bytes: Floats,
    rates: MatmulRates,
    *,
    kernels: Floats,
    weight_grad: bool = False,
) -> tuple[Floats, Floats, Floats]:
    """Return compute, memory and whole time [s] of products that run in several kernels in turn.

    c times those of one kernel of batch / c products and bytes / c, by `matmul_times`: tiles of
    other kernels do not help to fill the chip, and each has a launch.

    Parameters
    ----------
    kernels
        c, 1 or more. Batched and grouped kernels (CUTLASS) take all products: 1. One product of
        the library for each expert (Transformer Engine): `batch`.

    Notes
    -----
    Nothing is fitted for products of experts. SimuMax's 120 (commit 4dcaae5), called as Transformer
    Engine's grouped product is, in a kernel each (in one): B200 -18 %, mean absolute error 19 %
    (-31, 31), where its plain products are -14, 17; A100 +7, 7 (+1, 5), plain -1, 4. Less each
    GPU's median 9 and 5 % (13, 5). Whole expert blocks in CUTLASS's grouped kernels (H100 to GB200,
    64 or more tokens an expert; ai-dynamo/aiconfigurator, commit 095f58a; factors of products,
    bytes, tokens and a constant fitted by GPU) are 10 to 15 % off in one kernel, 19 to 26 % in a
    kernel each. Padding an expert's tokens to 128 gains those 0 to 0.7 points, and loses 0.3 to 0.8
    in SimuMax's.
    """
    one = matmul_times(
        m, n, k, batch / kernels, moved_bytes / kernels, rates, weight_grad=weight_grad
    )
    return one[0] * kernels, one[1] * kernels, one[2] * kernels


def product_times(
    flops: Floats, moved_bytes: Floats, rates: MatmulRates
) -> tuple[Floats, Floats, Floats]:
    """Return compute, memory and whole time [s] of a product of which only FLOPs are known.

    t_c = FLOPs / (P e), t_m and t as in `matmul_times`.
    """
    compute = flops / (rates.peak * rates.efficiency)
    return _with_memory(compute, flops > 0, moved_bytes, rates)


def _with_memory(
    compute: Floats, busy: Bools, moved_bytes: Floats, rates: MatmulRates
) -> tuple[Floats, Floats, Floats]:
    compute = compute + rates.compute_latency_s
    memory = moved_bytes / rates.memory_rate + rates.memory_latency_s
    joined = joined_times(compute, memory, rates.processing, _JOIN_EXPONENT)
    return (
        np.where(busy, compute, 0.0),
        np.where(busy, memory, 0.0),
        np.where(busy, rates.launch_s + joined, 0.0),
    )
