"""`shardwise diagnose`: launch file, log and trace in; tables or JSON out."""

import shlex

import pytest

from diagnosed_runs import traced_step
from shardwise import Strategy, System, diagnose, estimate
from shardwise.config.model import Model
from shardwise.launchers.diagnose.results import Diagnosis
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.registry import launcher_of
from shardwise.launchers.writing import launch_files
from written import record_of
from written_logs import Run, deepspeed, write_log
from written_traces import write_trace

FIELDS = {"gpus": 16, "global_batch_size": 32, "zero": 3, "recompute": "full"}
MISSING = ("--model", "llama3-8b", "--gpus", "16", "--recompute", "full")


@pytest.fixture
def slow_run(tmp_path, monkeypatch):
    """A run of DeepSpeed on slow links between nodes; returns the words of the command."""
    monkeypatch.chdir(tmp_path)
    launcher = launcher_of("deepspeed")
    model, system = Model.load("llama3-8b"), System.load("h100-sxm")
    strategy = Strategy.validated(FIELDS | {"stack": launcher.stack}).resolved(model)
    plan = LaunchPlan(model=model, system=system, strategy=strategy)
    written = launch_files(launcher, plan, ending=".json")
    (tmp_path / "ds.json").write_text(written[0].text)
    slow = system.to_dict()
    for tier in slow["network"]:
        tier["bandwidth"] /= 4 if tier["name"] == "fabric" else 1
    found = estimate(model, System.validated(slow), strategy, operations=True)
    run = Run(seconds=(found.step_time_s,) * 20, batch=32, memory=found.memory_bytes.total)
    write_log(tmp_path / "run.log", deepspeed, run)
    write_trace(tmp_path / "trace.json.gz", traced_step(found, 0.0), world=16)
    return ("diagnose", "ds.json", "h100-sxm", "--log", "run.log", *MISSING)


def test_tables_name_the_cause_and_the_change(shardwise, slow_run):
    """The slow tier with its gain, and the best change as a diff of the JSON."""
    code, out, _ = shardwise(*slow_run, "--trace", "trace.json.gz")

    assert code == 0
    assert "slow link: gain" in out
    assert "fabric" in out
    assert "+++ ds.json\n" in out
    assert '+  "train_micro_batch_size_per_gpu": 2,' in out


def test_json_is_what_python_returns(shardwise, slow_run, tmp_path):
    """The same record from both, which is read back; what a file holds is not printed as well."""
    words = (*slow_run, "--trace", "trace.json.gz", "--json")
    code, out, err = shardwise(*words)
    record = record_of(out)
    assert shardwise(*words, "-o", "d.json")[1] == ""
    found = diagnose(
        "ds.json",
        "h100-sxm",
        log="run.log",
        trace="trace.json.gz",
        model="llama3-8b",
        strategy={"gpus": 16, "recompute": "full"},
    )

    assert (code, err) == (0, "")
    assert record == found.to_dict()
    assert record_of((tmp_path / "d.json").read_text()) == record
    assert Diagnosis.read(record).to_dict() == record
    assert [one["cause"] for one in record["findings"]] == ["slow_link"]


def test_without_a_trace_the_level_is_compared(shardwise, slow_run):
    """The step is inside the interval: nothing is found, and a note says what a trace adds."""
    code, out, _ = shardwise(*slow_run, "--top", "1")

    assert code == 0
    assert "nothing is slower than the prediction allows" in out
    assert "--trace" in out
    assert "change 1" in out
    assert "change 2" not in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--log", "none.log"), "error: none.log: no such file"),
        (("--log", "ds.json"), "error: ds.json: holds no step of a training run"),
        (("--trace", "run.log"), "error: run.log: is no JSON"),
        (("--trace", "ds.json"), "error: ds.json: is no trace of PyTorch's profiler"),
        (("--top", "many"), "error: --top: 'many': must be a whole number"),
        (("--gpus", "12"), "error: "),
        (("--set", "TP"), "error: --set: 'TP': must be NAME=VALUE"),
        (("--tp", "none"), "error: --tp: 'none'"),
    ],
)
def test_bad_input_is_one_line(shardwise, slow_run, change, message):
    """Exit code 2 with the file or flag, the value and what is wrong."""
    code, out, err = shardwise(*slow_run, *change)

    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert len(err.splitlines()) == 1


def test_the_log_is_the_runs_own(shardwise, slow_run):
    """`--log` after the verb is read, and must be there; before the verb it is written."""
    log = slow_run.index("--log")
    without = (*slow_run[:log], *slow_run[log + 2 :])
    code, _, err = shardwise(*without)
    assert (code, err) == (2, "error: --log is missing: set it\n")

    assert shardwise("--log", "own.log", *slow_run)[0] == 0


def test_the_example_is_diagnosed_from_anywhere(shardwise, tmp_path, monkeypatch):
    """The files come with the package; a note has the command. Other files are refused."""
    monkeypatch.chdir(tmp_path)
    code, out, err = shardwise("diagnose", "--example", "--top", "1")
    assert (code, "slow link: gain" in out) == (0, True)
    program, *words = shlex.split(err.removeprefix("example: "))
    assert program == "shardwise"
    assert shardwise(*words, "--top", "1")[1] == out
    code, _, err = shardwise("diagnose", "--example", "--log", "x")
    assert (code, "has no effect with --example" in err) == (2, True)
    assert shardwise("diagnose")[0] == 2
