"""`calibrate measure` on this machine: samples, what goes on, and what is refused."""

import json

import pytest

from shardwise import System
from shardwise.measure import benchmarks, machine
from shardwise.measure.samples import read_samples

torch = pytest.importorskip("torch")
SMALL = {"rows": (64,), "widths": [(64, 32), (128, 128)], "flops": 1e9, "seq": (32, 64)}
SMALL |= {"bytes": [2**12, 2**14, 2**16], "largest": 2**20, "messages": [2**10, 2**14]}
SMALL |= {"elements": 2**10}


@pytest.fixture
def small(monkeypatch):
    """The same benchmarks at sizes that take no time."""
    monkeypatch.setattr(benchmarks, "_grid", lambda plan: SMALL | {"device": plan.device})
    monkeypatch.setattr(benchmarks, "_SAMPLE_S", 1e-4)


def plan_of(path, **fields):
    """One rank on one thread."""
    usual = {"device": "cpu", "ranks": 1, "local_ranks": 1, "threads": 1, "quick": True}
    usual |= {"samples": str(path), "rounds": 1, "seconds": 60.0}
    return benchmarks.Plan(**usual | fields)


@pytest.mark.usefixtures("small")
def test_every_benchmark_of_a_processor_runs(tmp_path):
    """Each leaves one sample a round; only kernels that PyTorch lacks are refused."""
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"machine": {"device": "cpu"}}) + "\n")
    threads = torch.get_num_threads()
    benchmarks.measure(plan_of(path, rounds=2), 0)
    torch.set_num_threads(threads)
    samples = read_samples(path)
    assert samples.rounds == 2
    assert set(samples.refused) <= {"bf16 train_gemm"}  # on processors without instructions for it
    kinds = {dict(key)["kind"] for key in samples.times}
    assert kinds == {"train_gemm", "train_attention", "elementwise", "launch", "optimizer"}
    layouts = {key["layout"] for key, _ in samples.medians(kind="train_gemm")}
    assert layouts == {"TN", "NN", "NT"}
    assert {key["direction"] for key, _ in samples.medians(kind="train_attention")} == {
        "fwd",
        "bwd",
    }


def test_ranks_measure_collectives_and_a_second_call_goes_on(tmp_path, shardwise):
    """Two local processes; the file of the system and its samples; another machine is refused."""
    out = tmp_path / "mine.yaml"
    words = ["calibrate", "measure", "--device", "cpu", "--ranks", 2, "--quick", "-o", out]
    code, _, err = shardwise(*words, "--minutes", 0.01)
    assert code == 0, err
    system = System.load(out)
    assert system.node.accelerators == 2
    assert system.network[0].domain == 2
    assert system.measured is not None
    before = (tmp_path / "mine.samples.jsonl").read_text()
    ops = {key["op"] for key, _ in read_samples(tmp_path / "mine.samples.jsonl").medians(
        kind="collective")}  # fmt: skip
    assert ops <= {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}
    code, _, err = shardwise(*words, "--minutes", 0.01)
    assert code == 0, err
    after = (tmp_path / "mine.samples.jsonl").read_text()
    assert after.startswith(before)
    assert len(after) > len(before)
    code, _, err = shardwise("calibrate", "measure", "--device", "cpu", "--ranks", 1, "-o", out)
    assert code == 2
    assert "machine.ranks: is 2, not 1: choose another output" in err


def test_a_rank_that_fails_ends_in_one_line(tmp_path):
    """The error of the process, not a traceback."""
    plan = plan_of(tmp_path / "no-such-folder" / "x.jsonl", ranks=1)
    with pytest.raises(machine.InputError, match="rank 0: FileNotFoundError"):
        machine.run_ranks(plan)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has an accelerator")
def test_a_device_that_is_not_there_is_refused(shardwise):
    """Naming those that are allowed."""
    code, _, err = shardwise("calibrate", "measure", "--device", "cuda")
    assert code == 2
    assert "device" in err
    assert "allowed: cpu, cuda" in err
