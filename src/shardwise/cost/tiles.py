"""Compute time of a product by waves of tiles over the multiprocessors.

Where a library hides waves the closed form in `cost.matmul` is as good and much cheaper; on A100
waves show (mean error on products of training 4 % against 7 %).
"""

from itertools import product

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.accelerator import MatmulTiles

__all__ = ["by_waves", "tile_speed", "tiled_times"]

# Rows and columns of tiles that cuBLAS has kernels of, and parts of the reduction. More candidates
# fit worse: the fastest of many is too optimistic.
_TILES = ((128, 256), (128, 128), (64, 128), (64, 64))
_SPLITS = (1, 2, 4, 8)
# What a tile of 128 x 256 loads per FLOP, relative to which others lose speed.
_FULL_EDGE = 1 / 128 + 1 / 256
_PARTIAL_BYTES = 4.0  # of an element of a partial result: fp32, written and read by turns


def by_waves(tiles_per_unit: Floats, wave_share: float) -> Floats:
    """Waves that a number of tiles per multiprocessor takes: never less than one.

    w' = max(w, 1) + a (ceil(w) - max(w, 1)); a = 1: whole waves; 0: tiles as a fluid.
    """
    least = np.maximum(tiles_per_unit, 1.0)
    waves: Floats = least + wave_share * (np.ceil(tiles_per_unit) - least)
    return waves


def tile_speed(rows: Floats | float, columns: Floats | float, edge_weight: float) -> Floats | float:
    """Speed of a tile over that of one of 128 x 256: (1 + a e0) / (1 + a e) with e = 1/r + 1/c."""
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
    speed
        P e, peak times the share that large products reach [FLOP/s].
    fill_depth
        k0 [elements].
    memory_rate
        Bandwidth of the memory [byte/s].

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
