"""Calculon's bundled systems in the catalog: its figures, its times, and how they are shown."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from samples import column
from shardwise import System
from shardwise.cli import run
from shardwise.config.strategy_table import Table
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.kernels import KernelRates
from shardwise.ops.operation import CollectiveKind, Matmul, MemoryBound, Phase
from test_catalog_systems import numeric_fields

GIB = 2**30
fast = examples(60)

# systems/a100_80g.json, a100_80e.json and h100_80g_nvl8.json of Calculon 0.1.0, commit caa4b11, in
# its units: TFLOP/s, shares from so many GFLOP or MB on, GiB, GB/s, [scalar, offset].
ENGINE = [[128, 0.95], [16, 0.9], [1, 0.6], [0, 0.1]]
VECTORS = [[16, 0.95], [1, 0.5], [0, 0.1]]
HBM = [[100, 0.9], [10, 0.75], [1, 0.6], [0, 0.3]]
HOST = [[100, 0.95], [10, 0.9], [1, 0.7], [0, 0.3]]
PLAIN = {"reduce_scatter": [1, 0], "all_gather": [1, 0], "all_reduce": [1, 0]}
RING = {"reduce_scatter": [1.5, -1], "all_gather": [1.5, -1], "all_reduce": [2, -1]}
A100 = {
    "matrix": {"fp16": [312, ENGINE]},
    "vector": {"fp16": [78, VECTORS]},
    "memory": [[80, 2048, HBM], [512, 32, HOST]],
    "networks": [
        [300, 0.65, 8, 10e-6, RING, True, 0.15],
        [25, 0.9, 65536, 20e-6, PLAIN, False, 0.02],
    ],
}
CALCULON: dict[str, dict[str, Any]] = {
    "calculon-a100-80g": A100,
    "calculon-a100-80e": A100
    | {
        "matrix": {"fp16": [312, [[128, 0.99], *ENGINE[1:]]]},
        "memory": [[8e10, 2048, HOST], [512, 32, HOST]],
    },
    "calculon-h100-80g-nvl8": {
        "matrix": {"fp8": [2000, ENGINE], "fp16": [1000, ENGINE]},
        "vector": {"fp8": [120, VECTORS], "fp16": [120, VECTORS]},
        "memory": [[80, 3072, HBM], [512, 450, HOST]],
        "networks": [
            [450, 0.65, 8, 10e-6, PLAIN | {"all_reduce": [1, 1]}, True, 0.15],
            [50, 0.9, 65536, 20e-6, PLAIN, False, 0.02],
        ],
    },
}


@pytest.fixture(params=CALCULON)
def name(request: pytest.FixtureRequest) -> str:
    """Each of Calculon's systems in turn."""
    return request.param


def points(rows: list[list[float]], unit: float) -> list[tuple[float, float]]:
    """Calculon's rows, which descend, as ascending points."""
    return [(size * unit, share) for size, share in reversed(rows)]


def test_engines_and_memories_are_calculons(name: str) -> None:
    """Peaks, curves, capacities and bandwidths, type by type and tier by tier."""
    chip, told = System.load(name).accelerator, CALCULON[name]
    for peaks, curves, engines in (
        (chip.matrix, chip.matmul_curve, told["matrix"]),
        (chip.vector, chip.vector_curve, told["vector"]),
    ):
        assert peaks == {dtype: tflops * 1e12 for dtype, (tflops, _) in engines.items()}
        for dtype, (_, rows) in engines.items():
            assert list(curves[dtype].points) == points(rows, 1e9)
            assert not curves[dtype].interpolate
    for tier, (gib, rate, rows) in zip(chip.memory, told["memory"], strict=True):
        assert (tier.capacity, tier.bandwidth) == (gib * GIB, rate * 1e9)
        assert tier.efficiency is not None
        assert list(tier.efficiency.points) == points(rows, 1e6)
    assert chip.processing == "no_overlap"
    assert (chip.multiprocessors, chip.attention, chip.matmul) == (None, None, {})
    assert (chip.memory_bound.efficiency, chip.memory_bound.launch) == (1, 0)


def test_networks_are_calculons(name: str) -> None:
    """Two tiers, whose messages pass once and whose all-to-all is taken to be as an all-gather."""
    system = System.load(name)
    assert system.node.accelerators == 8
    for index, told in enumerate(CALCULON[name]["networks"]):
        rate, share, size, latency, operations, filled, taken = told
        tier = system.network[index]
        assert system.tier_bandwidth(index) == rate * 1e9
        assert (tier.domain, tier.must_be_filled, tier.processor_share) == (size, filled, taken)
        assert tier.join_exponent == 1
        expected = operations | {"all_to_all": operations["all_gather"], "p2p": [1, None]}
        for kind, rates in tier.collectives.items():
            assert [rates.scale, rates.offset] == expected[kind]
            assert (rates.latency, rates.latency_per_member) == (latency, 0)
            assert rates.efficiency == {1: share}


def test_every_number_has_a_source_that_names_calculon(name: str) -> None:
    """Figures are published but for servers and all-to-all, which Calculon has not."""
    system = System.load(name)
    for field in numeric_fields(system.model_dump(exclude={"sources"})):
        source = system.source_of(field)
        assert source is not None
        assert "Calculon" in source.text
        assumed = field.startswith("node") or ".all_to_all." in field
        assert source.kind == ("assumed" if assumed else "published")


def share_of(rows: list[list[float]], size: float) -> float:
    """Calculon's look-up: the first row, largest threshold first, that the size reaches."""
    return next(share for threshold, share in rows if size >= threshold)


@fast
@given(
    st.sampled_from(sorted(CALCULON)),
    st.integers(1, 4096),
    st.integers(1, 4096),
    st.integers(1, 4096),
    st.integers(1, 64),
)
def test_a_product_takes_calculons_time(name: str, m: int, n: int, k: int, batch: int) -> None:
    """FLOPs / (peak x share of these FLOPs) + bytes / (bandwidth x share of these bytes)."""
    told = CALCULON[name]
    row = {"dp": 1, "gbs": 1, "dtype": "fp16", "stack": "calculon"}
    table = Table.of(samples.model(), row)
    rates = KernelRates.of(System.load(name), table)
    sides = {"m": column(m), "n": column(n), "k": column(k), "batch": column(batch)}
    flops, moved = 2.0 * m * n * k * batch, 2.0 * batch * (m * k + n * k + m * n)
    (tflops, by_flops), (_, rate, by_bytes) = told["matrix"]["fp16"], told["memory"][0]
    computing = flops / (tflops * 1e12 * share_of(by_flops, flops / 1e9))
    moving = moved / (rate * 1e9 * share_of(by_bytes, moved / 1e6))
    for phase in Phase:
        product = Matmul(phase=phase, **sides, input_bytes=column(2), output_bytes=column(2))
        times = np.concatenate(rates.times(product))
        assert times == pytest.approx([computing, moving, computing + moving], rel=1e-12)
    tflops, by_flops = told["vector"]["fp16"]
    computing = flops / (tflops * 1e12 * share_of(by_flops, flops / 1e9))
    pass_over = MemoryBound(phase=Phase.FORWARD, bytes=column(moved), flops=column(flops))
    plain = Table.of(
        samples.model(), {"dp": 1, "gbs": 1, "dtype": "fp16", "stack": samples.stack()}
    )
    times = np.concatenate(KernelRates.of(System.load(name), plain).times(pass_over))
    assert times == pytest.approx([computing, moving, computing + moving], rel=1e-12)


@fast
@given(
    st.sampled_from(sorted(CALCULON)),
    st.integers(0, 1),
    st.sampled_from(sorted(RING)),
    st.integers(2, 8),
    st.floats(1, 1e11),
)
def test_an_exchange_takes_calculons_time(
    name: str, index: int, kind: str, members: int, size: float
) -> None:
    """Latency + bytes x scalar x (1 + offset / members) / (bandwidth x efficiency)."""
    rate, share, _, latency, operations, *_ = CALCULON[name]["networks"][index]
    scalar, offset = operations[kind]
    extents = np.array([[1 if index else members], [members]])
    arguments = System.load(name), CollectiveKind(kind), column(size), extents
    expected = latency + size * scalar * (1 + offset / members) / (rate * 1e9 * share)
    assert collective_time(*arguments) == pytest.approx(expected, rel=1e-12)
    sent = transfer_time(System.load(name), column(size), extents)
    assert sent == pytest.approx(latency + size / (rate * 1e9 * share), rel=1e-12)


def test_curves_are_shown_point_by_point(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per point with its unit and origin; what the file does not say is left out."""
    assert run(["systems", "calculon-a100-80e"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    start = lines.index("accelerator.memory.0.efficiency")
    shown = ["from 0 0.3", "from 1 MB 0.7", "from 10 MB 0.9", "from 100 MB 0.95"]
    assert lines[start + 1 : start + 5] == [f"{line} published [1]" for line in shown]
    start = lines.index("accelerator.matmul_curve.fp16")
    shown = ["from 0 0.1", "from 1 GFLOP 0.6", "from 16 GFLOP 0.9", "from 128 GFLOP 0.99"]
    assert lines[start + 1 : start + 5] == [f"{line} published [1]" for line in shown]
    assert "join_exponent 1.0 published [4]" in lines
    assert not any("interpolate" in line for line in lines)


def test_interpolated_curves_say_at(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A share holds at a size, not from it on; odd sizes are plain numbers."""
    fields = System.load("calculon-a100-80g").to_dict()
    odd = {"points": [[0, 0.1], [1234567.5, 0.5]], "interpolate": True}
    fields["accelerator"]["matmul_curve"]["fp16"] = odd
    file = tmp_path / "mine.yaml"
    System.validated(fields).to_file(file)
    assert System.load(file).accelerator.matmul_curve["fp16"].interpolate
    assert run(["systems", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "at 0 " in shown
    assert "at 1234567.5 " in shown


def test_defaults_of_a_system_are_not_shown_as_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """A data sheet says nothing of join exponents or scales."""
    assert run(["systems", "h100-sxm"]) == 0
    shown = capsys.readouterr().out
    assert not any(word in shown for word in ("join_exponent", "scale", "processing"))
    assert run(["systems", "h100-sxm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["network"][0]["join_exponent"] == 0.6


def test_a_step_is_estimated(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Systems of curves alone go through the whole pipeline."""
    arguments = ["gpt3-175b", name, "--gpus=512", "--gbs=512", "--tp=8", "--pp=8", "--dtype=fp16"]
    assert run(["estimate", *arguments]) == 0
    assert "step time" in capsys.readouterr().out
