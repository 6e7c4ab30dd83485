"""Time of a matrix product from its shape: a closed form, waves of tiles, or DeepGEMM's blocks.

Where a library hides waves, the closed form is as good as waves of tiles and much faster. On A100
waves show (mean error on products of training 4 % against 7 %).

DeepGEMM on Hopper picks the block by what it loads: it weighs each block by the bytes that pass the
caches of level 1 and 2, over the share of full waves that its blocks fill. Two neighbors share
operands where there is more than one wave. Large blocks that all fit in a single wave run three to
four times slower than the same blocks in several, so that a product may take three times as long as
one of a row more.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from shardwise.arrays import Bools, Floats, interpolated
from shardwise.config.accelerator import MatmulBlocks, MatmulTiles
from shardwise.config.enums import Processing
from shardwise.cost.curve import joined_times
from shardwise.records import dataclass

# Rows and columns of tiles that cuBLAS has kernels of, and parts of the reduction. More candidates
# fit worse: the fastest of many is too optimistic.
_TILES = ((128, 256), (128, 128), (64, 128), (64, 64))
_SPLITS = (1, 2, 4, 8)
# What a tile of 128 x 256 loads per FLOP, relative to which others lose speed.
_FULL_EDGE = 1 / 128 + 1 / 256
_PARTIAL_BYTES = 4.0  # of an element of a partial result: fp32, written and read by turns


def by_waves(tiles_per_unit: Floats, wave_share: float) -> Floats:
    """Waves that a number of tiles per multiprocessor takes: never less than one.

    w' = max(w, 1) + a (ceil(w) - max(w, 1)); a = 1: full waves; 0: tiles as a fluid.

    Parameters
    ----------
    tiles_per_unit
        w, tiles per multiprocessor; shape (n,).
    wave_share
        a, fitted by accelerator; 0 to 1.
    """
    least = np.maximum(tiles_per_unit, 1.0)
    waves: Floats = least + wave_share * (np.ceil(tiles_per_unit) - least)
    return waves


def tile_speed(rows: Floats | float, columns: Floats | float, edge_weight: float) -> Floats | float:
    """Speed of a tile over that of one of 128 x 256: (1 + a e0) / (1 + a e) with e = 1/r + 1/c.

    Parameters
    ----------
    rows
        r, rows of the tile [elements]; a number or shape (n,).
    columns
        c, columns of the tile [elements]; a number or shape (n,).
    edge_weight
        a, fitted by accelerator.
    """
    edge = 1 / rows + 1 / columns
    return (1 + edge_weight * _FULL_EDGE) / (1 + edge_weight * edge)


def tiled_times(
    m: Floats,
    n: Floats,
    k: Floats,
    batch: Floats,
    *,
    speed: Floats,
    fill_depth: Floats,
    memory_rate: Floats | float,
    multiprocessors: int,
    tiles: MatmulTiles,
) -> Floats:
    """Compute time of the fastest choice of a tile r x c and a split s of the reduction [s].

    w = batch ceil(m/r) ceil(n/c) s / SM tiles on each multiprocessor take w' waves (`by_waves`), a
    wave 2 r c (k/s + k0) SM / (P e f) with f the tile's speed (`tile_speed`). A split of s > 1 adds
    t_s + 4 s batch m n / B.

    Parameters
    ----------
    m
        Rows of the result [elements]; shape (n,).
    n
        Columns of the result [elements]; shape (n,).
    k
        Length of the reduction [elements]; shape (n,).
    speed
        P e, peak times the share that large products reach [FLOP/s]; shape (n,).
    fill_depth
        k0, extra elements of the reduction [elements]; shape (n,).
    memory_rate
        B, bandwidth of the memory [byte/s]; a number or shape (n,).
    multiprocessors
        SM, multiprocessors of the chip.
    tiles
        a of waves and of edges, t_s, and the share of B for partial results.

    Notes
    -----
    Fitted to 28,671 products of A100 (ai-dynamo/aiconfigurator, commit 095f58a): mean error of
    those with m >= 1024; n, k >= 512 4.1 %, of others 11 %.
    """
    best: Floats | None = None
    for (rows, columns), split in product(_TILES, _SPLITS):
        count = np.ceil(m / rows) * np.ceil(n / columns) * batch * split
        wave = 2 * rows * columns * (k / split + fill_depth) * multiprocessors
        wave = wave / (speed * tile_speed(rows, columns, tiles.edge_weight))
        time = by_waves(count / multiprocessors, tiles.wave_share) * wave
        if split > 1:
            partial_bytes = _PARTIAL_BYTES * split * batch * m * n
            time = time + tiles.split_latency
            time += partial_bytes / (tiles.split_memory_efficiency * memory_rate)
        best = time if best is None else np.minimum(best, time)
    assert best is not None  # noqa: S101 - there are candidates
    return best


# Figures of the choice in DeepGEMM for Hopper (csrc/jit_kernels/heuristics/sm90.hpp, read
# in commit 10747d4): fp8 operands, bf16 result, scales of 1 x 128 and 128 x 128.
_ROWS = (64, 128, 256)
_COLUMNS = (*range(16, 129, 16), 144, 160, 192)
_NEIGHBOURS = ((1, 1), (1, 2), (2, 1))
"""Blocks along m and n that load an operand once for two."""
_STEP = 128
"""Elements of the reduction in a step."""
_LARGE = 128 * 192
_SHARED_BYTES = 232_448
_LEAST_STEPS = 3
_LEAST_STEPS_SMALL = 4
_MOST_STEPS = 16
_LEVEL_1_RATE = 128  # bytes a clock of each multiprocessor
_LEVEL_2_RATE = 64
_LEVEL_2_MOST = int(8e6 / 1.3e3)  # of the full chip
_NARROW = 16  # columns of the result that are stored with the narrowest pattern
_UNITS = 64  # least rows that the matrix units read


@dataclass(frozen=True, slots=True)
class Blocks:
    """The choice for each row."""

    rows: Floats
    columns: Floats
    waves: Floats
    """Waves of blocks, rounded up."""


def _steps_in_flight(rows: int, columns: int, k: Floats) -> Floats:
    """Steps whose operands fit the shared memory together with the result."""
    result = np.ceil(rows * columns * 2 / 1024) * 1024
    scales = np.ceil(np.ceil(k / _STEP) * 4 * (1 if _STEP % columns == 0 else 2) / 8) * 8
    step = (rows + columns) * _STEP + np.ceil(rows * 4 / 128) * 128
    left = _SHARED_BYTES - result - _MOST_STEPS * 16 - scales
    steps: Floats = np.minimum(np.floor(left / step), _MOST_STEPS)
    return steps


def _candidates() -> Iterator[tuple[int, int, int, int]]:
    for along_m, along_n in _NEIGHBOURS:
        for rows in _ROWS:
            for columns in _COLUMNS:
                if rows <= _STEP or columns <= _STEP:
                    yield along_m, along_n, rows, columns


def chosen_blocks(m: Floats, n: Floats, k: Floats, batch: Floats, multiprocessors: int) -> Blocks:
    """Block that the library chooses for each product.

    The least max(l1, l2) / u, with l1 and l2 the clocks that the bytes of all blocks take to pass
    the caches of level 1 and 2, and u = blocks / (waves SM).

    Parameters
    ----------
    m
        Rows of the result [elements]; shape (n,).
    n
        Columns of the result [elements]; shape (n,).
    k
        Length of the reduction [elements]; shape (n,).
    multiprocessors
        SM, multiprocessors of the chip.
    """
    level_2 = min(_LEVEL_2_RATE * multiprocessors, _LEVEL_2_MOST)
    level_1 = _LEVEL_1_RATE * multiprocessors
    least = np.full(np.broadcast_shapes(m.shape, n.shape, k.shape, batch.shape), np.inf)
    found: list[Floats] = [np.zeros_like(least) for _ in range(3)]
    for along_m, along_n, rows, columns in _candidates():
        steps = _steps_in_flight(rows, columns, k)
        fits = steps >= (_LEAST_STEPS if rows * columns >= _LARGE else _LEAST_STEPS_SMALL)
        blocks = np.ceil(m / rows) * np.ceil(n / columns) * batch
        waves = np.ceil(blocks / multiprocessors)
        if along_m * along_n > 1:
            fits &= waves > 1
        result = 2 * rows * columns
        far = k * (rows // along_n + columns // along_m) + result
        near = k * (rows + columns) + k * (max(rows, _UNITS) + columns) + 2 * result
        clocks = np.maximum(np.floor(far * blocks / level_2), np.floor(near * blocks / level_1))
        weighed = np.floor(clocks * waves * multiprocessors / np.maximum(blocks, 1.0))
        better = fits & (weighed < least)
        least = np.where(better, weighed, least)
        here = (np.full_like(waves, rows), np.full_like(waves, columns), waves)
        found = [np.where(better, *pair) for pair in zip(here, found, strict=True)]
    return Blocks(*found)


def block_times(
    k: Floats,
    count: Floats,
    chosen: Blocks,
    *,
    speed: Floats,
    fill_depth: Floats,
    multiprocessors: int,
    blocks: MatmulBlocks,
) -> Floats:
    """Compute time of products in these blocks [s]: waves as in `tiled_times`.

    Blocks whose width is an odd multiple of 16 are slower by one share, those in a single wave by
    another that falls with their size.

    Parameters
    ----------
    k
        Length of the reduction [elements]; shape (n,).
    speed
        P e, peak times the share that large products reach [FLOP/s]; shape (n,).
    fill_depth
        k0, extra elements of the reduction [elements]; shape (n,).
    multiprocessors
        SM, multiprocessors of the chip.

    Notes
    -----
    On 23,700 products each of H100 and H200 (DeepGEMM in SGLang 0.5.14; ai-dynamo/aiconfigurator,
    commit 095f58a) the mean error with m >= 1024; n, k >= 512 is 5 and 6.6 %; by the closed form 12
    and 14 %.
    """
    area = chosen.rows * chosen.columns
    sizes = sorted(blocks.alone_share)
    shares = [blocks.alone_share[size] for size in sizes]
    alone = interpolated(np.log(area), np.log(sizes), shares)
    pace = tile_speed(chosen.rows, chosen.columns, blocks.edge_weight)
    pace = pace * np.where(chosen.columns % (2 * _NARROW) == _NARROW, blocks.narrow_share, 1.0)
    pace = pace * np.where(chosen.waves == 1, alone, 1.0)
    wave = 2 * area * (k + fill_depth) * multiprocessors / (speed * pace)
    times: Floats = by_waves(count / multiprocessors, blocks.wave_share) * wave
    return times


# The form and its exponents were fitted to about 600,000 measured products on seven GPUs (A100 to
# GB300; ai-dynamo/aiconfigurator, commit 095f58a); freeing them gains at most half a point.
_TILE = 128
_ALIGN = 64
_JOIN_EXPONENT = 2.3


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRates:
    """Rates that a product runs at, as columns: one value per row."""

    peak: Floats
    """Peak of the matrix units for the input type [FLOP/s]."""
    efficiency: Floats
    """Share of the peak that a large product reaches; on a curve, that this one reaches."""
    fill_depth: Floats
    """Extra elements of the reduction for filling the pipeline."""
    fill_tiles: Floats
    """Tiles per multiprocessor that half-fill the chip."""
    memory_rate: Floats
    """Rate that operands and result move at [byte/s]."""
    launch_s: Floats
    """Launch and drain [s]."""
    bandwidth: Floats | float = np.inf
    """Full rate of the memory, to which the shares for partial results refer [byte/s]."""
    compute_latency_s: float = 0.0
    """Least compute time of a kernel that runs [s]."""
    memory_latency_s: Floats | float = 0.0
    """Least memory time of a kernel that runs [s]."""
    multiprocessors: int
    fill_exponent: Floats | float = 2.5
    """How sharply the chip fills with tiles."""
    reduction_step: Floats | float = 1
    """The reduction is computed in steps of so many elements, rounded up."""
    weight_grad_share: Floats | float = 0.95
    """Efficiency of gradients of weights over that of other products."""
    tilings: tuple[tuple[Bools | bool, MatmulTiles | MatmulBlocks], ...] = ()
    """Rows that count waves of tiles instead of the closed form, and the figures of their tiles."""
    shaped: Bools | bool = True
    """Whether the shape counts: rows on the closed form; not on a curve over the FLOPs."""
    processing: Processing = Processing.MEASURED


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
    """Return compute, memory and total time [s] of `batch` products (m, k) x (k, n).

    t_c = 2 batch [m] [n] (k + k0) / (P e) (1 + (o / w)^x)^(1/x), t_m = bytes / B,
    t = t0 + (t_c^2.3 + t_m^2.3)^(1/2.3), with [m] rounded up to 64, w tiles of 128 x 128 per
    multiprocessor, x = 2.5 unless a system says otherwise. Where a system asks for waves of tiles,
    t_c is theirs (`tiled_times`, `block_times`). Zero where there is no work. On a curve
    t_c = 2 batch m n k / (P e), with the efficiency e of 2 batch m n k FLOPs and without launch.
    Roofline and no_overlap join t_c and t_m by their maximum and their sum (see
    `cost.curve.joined_times`). A system may add a latency
    to t_c, to t_m or to both.

    Parameters
    ----------
    m
        Rows of the result [elements]; shape (n,).
    n
        Columns of the result [elements]; shape (n,).
    k
        Length of the reduction [elements]; shape (n,).
    rates
        P, e, k0, o, x, B, t0; columns of shape (n,).

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
    layout = np.where(rates.shaped, rates.weight_grad_share, 1.0) if weight_grad else 1.0
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
    """Return compute, memory and total time [s] of products that run in several kernels in turn.

    c times those of one kernel of batch / c products and bytes / c, by `matmul_times`: tiles of
    other kernels do not help to fill the chip, and each has a launch.

    Parameters
    ----------
    m
        Rows of the result [elements]; shape (n,).
    n
        Columns of the result [elements]; shape (n,).
    k
        Length of the reduction [elements]; shape (n,).
    kernels
        c, 1 or more; shape (n,). Batched and grouped kernels (CUTLASS) run all products: 1. One
        product of the library for each expert (Transformer Engine): `batch`.

    Notes
    -----
    Nothing is fitted for products of experts. SimuMax's 120 (commit 4dcaae5), called as Transformer
    Engine's grouped product is, in a kernel each (in one): B200 -18 %, mean absolute error 19 %
    (-31, 31), where its plain products are -14, 17; A100 +7, 7 (+1, 5), plain -1, 4. Less each
    GPU's median 9 and 5 % (13, 5). Full expert blocks in CUTLASS's grouped kernels (H100 to GB200,
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
    """Return compute, memory and total time [s] of a product of which only FLOPs are known.

    t_c = FLOPs / (P e), t_m and t as in `matmul_times`.

    Parameters
    ----------
    flops
        FLOPs of the product; where zero, the kernel does not run; shape (n,).
    rates
        P, e, B, t0; columns of shape (n,).
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
