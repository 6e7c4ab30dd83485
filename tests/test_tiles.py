"""Products by waves of tiles, and by the blocks that DeepGEMM picks on Hopper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise
from profiles import examples
from rows import each_row
from samples import column
from shardwise.config.accelerator import MatmulBlocks, MatmulTiles
from shardwise.config.system import System
from shardwise.cost.benchmark import training_matmul
from shardwise.cost.matmul import (
    Blocks,
    block_times,
    by_waves,
    chosen_blocks,
    tile_speed,
    tiled_times,
)

pytestmark = pytest.mark.any_software

fast = examples(60)
PEAK = 1e14
UNITS = 100
WAVE = 2 * 64 * 64 * 1000 * UNITS / PEAK
"""Of tiles of 64 x 64 over 1000 elements."""


def tiles(**given):
    figures = {"wave_share": 1, "edge_weight": 0, "split_latency": 1, "split_memory_efficiency": 1}
    return MatmulTiles.validated(figures | given)


def tiled(m, n, k=1000, *, batch=1, fill_depth=0.0, **given):
    return tiled_times(
        column(m),
        column(n),
        column(k),
        column(batch),
        speed=column(PEAK),
        fill_depth=column(fill_depth),
        memory_rate=1e12,
        multiprocessors=UNITS,
        tiles=tiles(**given),
    )[0]


def blocks(**given):
    figures = {"wave_share": 1, "edge_weight": 0, "narrow_share": 1, "alone_share": {16384: 1}}
    return MatmulBlocks.validated(figures | given)


def test_waves_round_up_as_far_as_the_share_says():
    """2.5 tiles on each take 3 waves, 2.5 as a fluid; less than one takes one."""
    assert by_waves(column(2.5), 1.0) == pytest.approx(3)
    assert by_waves(column(2.5), 0.0) == pytest.approx(2.5)
    assert by_waves(column(2.5), 0.5) == pytest.approx(2.75)
    assert by_waves(column(0.2), 1.0) == pytest.approx(1)


def test_small_tiles_load_more_per_flop():
    """With a weight of 64 elements, 64 x 64 runs at (1 + 0.75) / (1 + 2) of 128 x 256."""
    assert tile_speed(128, 256, 64) == pytest.approx(1)
    assert tile_speed(64, 64, 64) == pytest.approx(1.75 / 3)


def test_the_fastest_tile_is_chosen():
    """100 large tiles are one wave; of 101, small tiles lose less: nine waves."""
    assert tiled(12_800, 256) == pytest.approx(8 * WAVE)
    assert tiled(12_928, 256) == pytest.approx(9 * WAVE)
    assert tiled(12_928, 256, wave_share=0) == pytest.approx(8.08 * WAVE)
    assert tiled(1280, 256, batch=10) == pytest.approx(8 * WAVE)
    assert tiled(12_800, 256, fill_depth=100) == pytest.approx(8.8 * WAVE)


def test_a_split_reduction_fills_the_chip_and_costs():
    """One tile of 64 x 64 in eight parts: an eighth of the time, and 4 x 8 bytes per element."""
    assert tiled(64, 64) == pytest.approx(WAVE)
    split = tiled(64, 64, split_latency=1e-8)
    assert split == pytest.approx(WAVE / 8 + 1e-8 + 4 * 8 * 64 * 64 / 1e12)
    assert tiled(64, 64, split_latency=1e-8, split_memory_efficiency=0.5) > split


@given(
    m=st.integers(1, 20_000),
    n=st.integers(1, 5000),
    extra=st.integers(0, 500),
    share=st.floats(0, 1),
)
@fast
def test_more_rows_never_take_less(m, n, extra, share):
    """Waves of tiles grow with the product, unlike the closed form's fill of the chip."""
    assert tiled(m + extra, n, wave_share=share) >= tiled(m, n, wave_share=share) * (1 - 1e-12)


def test_deepgemm_takes_what_loads_least_by_hand():
    """On 132: 6 x 20 blocks of 256 x 128 in a wave; for 255 rows less smaller ones in two."""
    m, n, k = np.array([[1536, 2560, 4096], [1281, 2560, 4096], [2816, 1024, 4096.0]]).T
    found = chosen_blocks(m, n, k, np.ones(3), 132)
    assert found.rows.tolist() == [256, 128, 128]
    assert found.columns.tolist() == [128, 112, 192]
    assert found.waves.tolist() == [1, 2, 1]


def test_blocks_are_timed_by_waves_width_and_company():
    """Two waves of 256 x 128; odd sixteenths are slower; alone in a wave large ones are."""

    def time(rows, columns, waves, count, **given):
        chosen = Blocks(column(rows), column(columns), column(waves))
        return block_times(
            column(1000),
            column(count),
            chosen,
            speed=column(PEAK),
            fill_depth=column(24),
            multiprocessors=UNITS,
            blocks=blocks(**given),
        )[0]

    wave = 2 * 256 * 128 * 1024 * UNITS / PEAK
    assert time(256, 128, 2, 110) == pytest.approx(2 * wave)
    assert time(256, 112, 2, 110, narrow_share=0.8) == pytest.approx(2 * wave * 112 / 128 / 0.8)
    assert time(256, 96, 2, 110, narrow_share=0.8) == pytest.approx(2 * wave * 96 / 128)
    alone = {16384: 1, 32768: 0.25}
    assert time(256, 128, 1, 90, alone_share=alone) == pytest.approx(4 * wave)
    assert time(256, 128, 2, 110, alone_share=alone) == pytest.approx(2 * wave)
    assert time(128, 128, 1, 90, alone_share=alone) == pytest.approx(wave / 2)
    assert time(128, 256, 2, 110, edge_weight=64) == pytest.approx(2 * wave)


def test_a_system_may_ask_for_tiles_while_training():
    """Its products are timed by waves then, of that type only; the others stay as they were."""
    fields = System.load("a100-80gb-sxm").to_dict()
    plain = System.validated(fields)
    fields["accelerator"]["matmul"]["bf16"]["tiling"] = tiles().to_dict()
    waves = System.validated(fields)
    shape = {name: column(value) for name, value in {"m": 4096, "n": 1792, "k": 4096}.items()}
    times = [
        training_matmul(
            system.accelerator,
            "bf16",
            system.accelerator.matmul["bf16"],
            **shape,
            groups=column(1),
            result_bytes=column(2),
            weight_grad=False,
        )[0]
        for system in (plain, waves)
    ]
    assert times[1] != pytest.approx(times[0], rel=1e-3)
    strategy = {"gpus": 8, "global_batch_size": 8}
    steps = [
        shardwise.estimate("llama2-7b", system, strategy | {"dtype": dtype}).step_time_s
        for dtype in ("bf16", "fp16")
        for system in (plain, waves)
    ]
    assert steps[1] != pytest.approx(steps[0], rel=1e-4)
    assert steps[3] == steps[2]


@each_row("figure", [{"fill_exponent": 0.5}, {"reduction_step": 4096}])
def test_exponent_and_step_of_a_type_leave_the_others_alone(figure):
    """`fill_exponent` and `reduction_step` of bf16 make bf16 slower, and nothing else."""
    fields = System.load("h100-sxm").to_dict()
    plain = System.validated(fields)
    fields["accelerator"]["matmul"]["bf16"] |= figure
    other = System.validated(fields)
    strategy = {"gpus": 8, "tp": 8, "global_batch_size": 8}
    for dtype, same in (("bf16", False), ("fp16", True)):
        steps = [
            shardwise.estimate("llama2-7b", system, strategy | {"dtype": dtype}).step_time_s
            for system in (plain, other)
        ]
        assert (steps[0] == steps[1]) is same
        assert steps[1] >= steps[0]


def test_figures_of_benchmarks_take_no_part_in_an_estimate():
    """Nor do their sources, which tell what an estimate stands on."""
    fields = System.load("h100-sxm").to_dict()
    assert fields["accelerator"]["benchmark"]["matmul"]["fp8_block"]["tiling"] is not None
    fields["accelerator"]["benchmark"] = None
    bare = System.validated(fields)
    strategy = {"gpus": 8, "tp": 8, "global_batch_size": 8}
    told = [shardwise.estimate("llama2-7b", s, strategy) for s in ("h100-sxm", bare)]
    assert told[0].step_time_s == told[1].step_time_s
    assert not any("benchmark" in field for field in told[0].provenance)
