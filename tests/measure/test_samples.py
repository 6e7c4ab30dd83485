"""The system of a machine from its samples."""

import numpy as np
import pytest

from machine_samples import accelerator_samples, samples_of, true_system
from shardwise import InputError, Stack, Strategy, System, estimate
from shardwise.measure.samples import fitted, read_samples, tables_of
from shardwise.validate.calibrate.predictions import predictions

TRUE = true_system()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A fit to samples without noise."""
    path = samples_of(TRUE, tmp_path_factory.mktemp("samples") / "made.samples.jsonl")
    return read_samples(path), fitted(System.load("cpu-server"), read_samples(path), "made")


def test_known_rates_are_recovered(found):
    """Rates of products, memory and element-wise FLOPs within 1 %, without the time of dispatch."""
    samples, calibration = found
    chip = calibration.system.accelerator
    reached = chip.matrix["fp32"] * chip.matmul["fp32"].efficiency
    assert reached == pytest.approx(0.95 * 190e9, rel=0.01)
    assert chip.matmul["fp32"].weight_grad_share == pytest.approx(0.6, rel=0.02)
    assert chip.vector["fp32"] == pytest.approx(12e9, rel=0.01)
    # Two ranks get 10 GB/s each, one alone 15.
    assert chip.memory[0].bandwidth == pytest.approx(15e9, rel=0.01)
    assert chip.memory[0].shared_bandwidth == pytest.approx(20e9, rel=0.01)
    assert chip.update_efficiency == pytest.approx(1.6, rel=0.01)  # of 16 GB/s while both run
    by_prefix = {fit.prefix: fit.after.mean for fit in calibration.fits}
    assert by_prefix["accelerator.matmul.fp32"] < 0.01
    assert by_prefix["accelerator.memory_bound"] < 0.01
    for op in ("all_reduce", "all_gather", "p2p"):
        assert by_prefix[f"network.0.collectives.{op}"] < 0.01
    assert samples.refused == {"x train_attention": "no"}


def test_times_of_every_size_are_recovered(found):
    """The fitted system times each collective as the true one does, within 1 %."""
    samples, calibration = found
    tables = {table.kind: table for table in tables_of(samples, less_us=2.0)}
    (one,) = predictions(tables["collective"], {"here": calibration.system})
    assert np.abs(one.predicted_us / tables["collective"].columns["latency_us"] - 1).max() < 0.01


def test_the_file_says_what_was_measured_and_what_is_a_prior(found, tmp_path):
    """Kinds with their errors and the date; other sources are priors; the file reads back."""
    _, calibration = found
    system = calibration.system
    assert set(system.measured.errors) == {"products", "memory", "collectives", "launches"}
    assert system.measured.on.isoformat() == "2026-11-27"
    assert system.sources["accelerator.matmul.fp32"].kind == "fitted"
    assert system.sources["node"].kind == "measured"
    assert system.sources["accelerator.attention"].kind == "assumed"
    assert system.sources["accelerator.attention"].text.startswith("prior of cpu-server, not mea")
    system.to_file(tmp_path / "made.yaml")
    assert System.load(tmp_path / "made.yaml") == system


def test_a_host_at_half_the_speed_launches_half_as_fast(found):
    """A small Linear takes 27 us instead of 13.5."""
    assert found[1].system.host.launch_speed == pytest.approx(0.5)


def test_noise_is_reported_and_outliers_do_not_count(tmp_path):
    """Medians of rounds of 1, 1, 1 and 5 times the time; half the range of quartiles."""
    path = samples_of(TRUE, tmp_path / "noisy.samples.jsonl", noise=(0.98, 1.0, 1.0, 1.02, 5.0))
    samples = read_samples(path)
    assert samples.rounds == 1  # the launches
    assert 0.005 < samples.spread < 0.02
    reached = fitted(System.load("cpu-server"), samples, "noisy").system.accelerator
    product = reached.matrix["fp32"] * reached.matmul["fp32"].efficiency
    assert product == pytest.approx(0.95 * 190e9, rel=0.01)


def test_an_estimate_runs_on_the_fitted_system(found):
    """With its stack, of one rank and of two."""
    for gpus in (1, 2):
        row = Strategy.load({"gpus": gpus, "gbs": 4, "seq_len": 128, "zero": 0})
        assert estimate("megatron-126m", found[1].system, row).step_time_s > 0
    assert Stack.load(found[1].system.stack).name == "pytorch-cpu"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty"),
        ('{"kind": "launch", "us": 1}\n', "line 1: does not say its machine"),
        ('{"machine": {}}\n{"kind": "launch"}\n', "line 2: is no sample of calibrate measure"),
        ('{"machine": {}}\nnonsense\n', "line 2: is no sample of calibrate measure"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, text, problem):
    """Naming the file and the line."""
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=problem):
        read_samples(path)


def test_an_accelerator_keeps_its_data_sheet_and_gets_its_own_rates(tmp_path):
    """Kernels that are slower by a quarter; the fastest kernel of attention is the best one."""
    base = System.load("h100-sxm")
    samples = read_samples(accelerator_samples(base, tmp_path / "x.jsonl", slower=1.25))
    system = fitted(base, samples, "x").system
    old, new = base.accelerator, system.accelerator
    assert new.matrix == old.matrix
    share = new.matmul["bf16"].efficiency / old.matmul["bf16"].efficiency
    assert share == pytest.approx(0.8, rel=0.03)
    assert new.matmul["fp16"] == new.matmul["bf16"]
    assert new.matmul["fp8"] == old.matmul["fp8"]
    width = new.attention.efficiency[128] / old.attention.efficiency[128]
    assert width == pytest.approx(0.8, rel=0.03)
    assert new.attention.other_kernels["flash2"] == pytest.approx(1.3, rel=0.01)
    assert new.attention.other_kernels["efficient"] == pytest.approx(1.6, rel=0.01)
    # Both directions at once take 256 MiB / 33 GB/s, alone 45 GB/s in the mean.
    host = new.memory[1]
    assert host.bandwidth * host.host.h2d_efficiency == pytest.approx(50e9, rel=1e-3)
    assert host.bandwidth * host.host.d2h_efficiency == pytest.approx(40e9, rel=1e-3)
    assert host.host.duplex == pytest.approx(2 * 33 / 45, rel=1e-3)
    assert system.host.core_bandwidth == pytest.approx(15e9, rel=1e-3)
    assert system.host.launch_speed == pytest.approx(1.5)
    assert set(system.measured.errors) == {"products", "attention", "copies", "launches"}
    assert system.network == base.network
