"""Rows that run on systems of their own: each is what a single estimate on that system gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from shardwise import InputError, System, estimate, estimate_many
from shardwise.arrays import by_code, interpolated
from shardwise.config.system_columns import SystemColumns, by_structure, figures_of, with_figures

pytestmark = pytest.mark.any_software

# Strategies that between them use every figure: all axes and their tiers, offload, grouped experts,
# quantized types, measured tables, curves, rings.
CASES = {
    "dense": (
        "llama3-70b",
        "h100-sxm",
        {"gpus": 64, "tp": 8, "pp": 4, "gbs": 128, "offload_optimizer": True, "zero": 1},
    ),
    "experts": (
        "mixtral-8x7b",
        "gb200-nvl72",
        {"gpus": 64, "tp": 2, "pp": 4, "ep": 8, "gbs": 64, "zero": 1},
    ),
    "quantized": (
        "llama3-8b",
        "b200-sxm",
        {"gpus": 32, "tp": 4, "cp": 2, "gbs": 32, "quantization": "fp8_block", "zero": 3},
    ),
    "tables": ("llama3-8b", "simumax-b200", {"gpus": 16, "tp": 2, "pp": 2, "vpp": 2, "gbs": 32}),
    "curves": (
        "gpt3-175b",
        "calculon-a100-80g",
        {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "dtype": "fp16", "tp_overlap": "ring"}
        | {"offload_weights": True, "offload_activations": True},
    ),
}


def drawn(base, draw):
    """The same system with most of its figures changed."""
    changed = {}
    for path, value in figures_of(base).items():
        if draw.random() < 0.7:
            whole = isinstance(value, int)
            changed[path] = value * 2 if whole else value * draw.uniform(0.5, 1.0)
    return with_figures(base, changed)


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 2**32 - 1))
@examples(2)
def test_a_row_on_its_own_system_is_the_estimate_on_that_system(name, seed):
    model, base, strategy = CASES[name]
    draw = np.random.default_rng(seed)
    systems = [drawn(System.load(base), draw) for _ in range(3)]
    table = estimate_many(model, systems, strategy)
    for row, system in enumerate(systems):
        single = estimate(model, system, strategy)
        assert table.step_time_s[row] == pytest.approx(single.step_time_s, rel=1e-12)
        for part, seconds in single.time_s.items():
            close = pytest.approx(seconds, rel=1e-12, abs=1e-12 * single.step_time_s)
            assert table.time_s[part][row] == close, part
        assert table.fits[row] == single.fits
        assert table.mfu[row] == pytest.approx(single.mfu, rel=1e-12)
        assert table.memory_reserved_bytes[row] == single.memory_bytes.reserved


def test_every_figure_of_the_drawn_systems_is_one_of_the_formulas():
    """What is called a figure is a number, what is not is structure: none is left out."""
    figures = figures_of(System.load("h100-sxm"))
    told = {path[-1] for path in figures}
    for name in ("bandwidth", "capacity", "launch", "latency", "links_per_node", "join_exponent"):
        assert name in told
    for name in ("domain", "accelerators", "tile", "burst_efficiency", "must_be_filled"):
        assert name not in told
    assert all(isinstance(value, (int, float)) for value in figures.values())


def test_systems_of_several_structures_are_evaluated_in_groups_and_come_back_in_order():
    names = ["h100-sxm", "a100-80gb-sxm", "h200-sxm", "gb200-nvl72", "h100-sxm"]
    strategy = {"gpus": 144, "tp": 4, "pp": 4, "gbs": 144}
    table = estimate_many("llama3-8b", names, strategy)
    single = [estimate("llama3-8b", name, strategy).step_time_s for name in names]
    assert table.step_time_s == pytest.approx(single, rel=1e-12)
    groups = [rows.tolist() for rows, _ in by_structure([System.load(name) for name in names])]
    assert [0, 2, 4] in groups
    assert sorted(row for group in groups for row in group) == [0, 1, 2, 3, 4]


def test_a_system_that_lacks_a_type_refuses_its_row_alone():
    table = estimate_many(
        "llama3-8b", ["h100-sxm", "v100-sxm-32gb"], {"gpus": 8, "tp": 8, "gbs": 8, "zero": 1}
    )
    assert [table.reason(0), table.reason(1)] == [None, "dtype"]
    assert np.isfinite(table.step_time_s[0])
    assert np.isnan(table.step_time_s[1])


def test_each_row_needs_one_system():
    with pytest.raises(InputError) as refused:
        estimate_many("llama3-8b", ["h100-sxm"] * 3, {"gpus": 8, "tp": [4, 8], "gbs": 8})
    assert str(refused.value) == "system: 3 systems for 2 strategies; provide one for each"


def test_figures_that_agree_stay_numbers():
    base = samples.system()
    path = ("accelerator", "memory", 0, "bandwidth")
    columns = SystemColumns.of([base, with_figures(base, {path: 5e11})])
    assert list(columns.figures) == [path]
    here = columns.at(np.array([1, 0, 1]))
    assert here.accelerator.memory[0].bandwidth.tolist() == [
        5e11,
        base.accelerator.memory[0].bandwidth,
        5e11,
    ]
    assert here.network[0].bandwidth == base.network[0].bandwidth


def test_columns_are_taken_by_code_and_interpolated_as_numbers_are():
    codes = np.array([0, 1, 1])
    assert by_code([1.0, 2.0], codes).tolist() == [1.0, 2.0, 2.0]
    assert by_code([1.0, np.array([2.0, 3.0, 4.0])], codes).tolist() == [1.0, 3.0, 4.0]
    places, known = np.array([0.0, 1.5, 9.0]), np.array([1.0, 2.0, 4.0])
    shares = [0.5, 0.7, 0.9]
    plain = interpolated(places, known, shares)
    assert plain == pytest.approx([0.5, 0.6, 0.9])
    columns = [np.full(3, share) for share in shares]
    assert interpolated(places, known, columns) == pytest.approx(plain, rel=1e-14)
