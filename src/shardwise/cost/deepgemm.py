"""Compute time of a product whose library picks the block by what it loads: DeepGEMM on Hopper.

The library weighs each block by the bytes that pass the caches of level 1 and 2, over the share of
whole waves that its blocks fill. It shares operands between two neighbours where there is more than
one wave. Large blocks that all fit in a single wave run three to four times slower than the same
blocks in several, so that a product may take three times as long as one of a row more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, interpolated
from shardwise.config.accelerator import MatmulBlocks
from shardwise.cost.tiles import by_waves, tile_speed

__all__ = ["Blocks", "block_times", "chosen_blocks"]

# What the choice weighs, as DeepGEMM has it for Hopper (csrc/jit_kernels/heuristics/sm90.hpp, read
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
_LEVEL_2_MOST = int(8e6 / 1.3e3)  # of the whole chip
_NARROW = 16  # columns of the result that are stored with the narrowest pattern
_UNITS = 64  # least rows that the matrix units read


@dataclass(frozen=True, slots=True)
class Blocks:
    """The choice for each row."""

    rows: Floats
    columns: Floats
    waves: Floats
    """Whole ones."""


def _steps_in_flight(rows: int, columns: int, k: Floats) -> Floats:
    """Steps whose operands fit the shared memory beside the result."""
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
    """Block that the library takes for each product.

    The least max(l1, l2) / u, with l1 and l2 the clocks that the bytes of all blocks take to pass
    the caches of level 1 and 2, and u = blocks / (waves SM).
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
    """Compute time of products in these blocks [s]: waves as in `cost.tiles.tiled_times`.

    Blocks whose width is an odd multiple of 16 are slower by one share, those in a single wave by
    another that falls with their size.

    Parameters
    ----------
    count
        Blocks of the product.
    speed
        P e [FLOP/s].

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
