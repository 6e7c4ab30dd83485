"""`shardwise measure`: what it refuses, how it adds up what processes measured, what it writes."""

import json
import sys

import pytest

from shardwise import Model, System
from shardwise.cli import run
from shardwise.errors import InputError
from shardwise.measure import job as jobs
from shardwise.measure import training
from shardwise.measure.buildable import model_faults
from shardwise.validate.calibrate.from_runs import read_run_times

ATTENTION = {"heads": 4, "kv_heads": 2, "head_dim": 16}
LAYER = {"count": 2, "attention": ATTENTION, "mlp": {"ffn": 96, "activation": "swiglu"}}
SMALL = {
    "name": "small",
    "hidden": 64,
    "vocab": 128,
    "seq_len": 32,
    "norm": "rmsnorm",
    "position": "rope",
    "layers": [LAYER],
}
MOE = {"experts": 4, "top_k": 2, "ffn": 32, "activation": "swiglu"}


def figures(*steps, **more):
    """What a process returns; each step is its forward, backward and optimizer, and its total."""
    names = ("forward", "backward", "optimizer", "step")
    record = {"steps": [dict(zip(names, one, strict=True)) for one in steps], "losses": [5.0]}
    usual = {"peak_bytes": 1000, "process_bytes": 9000, "attention": ["flash_attention_for_cpu"]}
    return record | usual | more


@pytest.fixture
def measured(monkeypatch):
    """Train with canned figures in place of processes; return the result and the jobs."""
    seen = []

    def call(real, quiet=None, *, model=SMALL, system="cpu-server", **strategy):
        def answer(job):
            seen.append(job)
            return quiet if job.silent else real

        monkeypatch.setattr(training, "run_job", answer)
        monkeypatch.setattr(training, "find_spec", lambda _: True)
        fields = {"gpus": 1, "micro_batch_size": 2, "global_batch_size": 4} | strategy
        chosen = training.Strategy.load(fields)
        plan = training.planned(Model.load(model), System.load(system), chosen)
        return training.train(plan), seen

    return call


def test_parts_are_those_of_the_slowest_process_and_sum_to_the_step(measured):
    """A step ends with its slowest process; what it takes more than a silent one is exposed."""
    steps = [(1, 3, 0.5, 6.0)] * 3
    real = [figures(*steps), figures((2, 3, 0.5, 7.0), (2, 3, 0.5, 8.0), (2, 3, 0.5, 9.0))]
    quiet = [figures((1, 2, 0.5, 4)), figures((1.5, 1.5, 0.25, 4))]
    found, seen = measured(real, quiet, gpus=2)
    assert found.step_time_s == 8.0
    assert {part.name: part.measured_s for part in found.parts} == {
        "forward": 1.5,
        "backward": 2.0,
        "optimizer": 0.5,
        training.REST: 4.0,
    }
    predicted = sum(part.predicted_s for part in found.parts)
    assert predicted == pytest.approx(found.prediction.step_time_s)
    assert [job.silent for job in seen] == [False, True] * 2
    assert (found.noise, found.spread) == (0.0, 1.5 / 8)


def test_the_noise_is_that_of_repeats(monkeypatch, measured):
    """Medians 10 and 11 of two repeats are 1 / 10.5 apart."""
    found, _ = measured([figures((1, 1, 1, 10))])
    both = iter([[figures((1, 1, 1, 10))], [figures((1, 1, 1, 11))]])
    monkeypatch.setattr(training, "run_job", lambda _: next(both))
    found = training.train(training.planned(found.model, found.system, found.strategy))
    assert found.noise == pytest.approx(1 / 10.5)


def test_stages_have_the_layers_of_the_estimate(measured):
    """Six layers in two stages; a pipeline needs no silent repeats."""
    model = SMALL | {"layers": [LAYER | {"count": 6}]}
    found, seen = measured([figures((1, 1, 1, 5))] * 2, model=model, gpus=2, pp=2)
    assert seen[0].stages == ((0, 3), (3, 6))
    assert not any(job.silent for job in seen)
    assert found.saved_bytes is None


@pytest.mark.parametrize(
    ("ran", "fields", "expected"),
    [
        ("flash_attention_for_cpu", {}, True),
        ("attention_math", {}, False),
        ("attention_math", {"attention_kernel": "unfused"}, True),
        ("efficient_attention", {}, False),
    ],
)
def test_attention_that_ran_is_compared_with_the_software(measured, ran, fields, expected):
    """By the operator of PyTorch."""
    found, _ = measured([figures((1, 1, 1, 3), attention=[ran])], **fields)
    assert found.attention_as_expected is expected


def test_runs_are_added_to_a_file_that_calibrate_reads(measured, tmp_path):
    """Models and systems of the user's own included; names differ."""
    path = tmp_path / "runs.json"
    own = System.load("cpu-server").to_dict() | {"name": "my-system"}
    for system in ("cpu-server", "cpu-server", own):
        found, _ = measured([figures((1, 1, 1, 3))], system=system, zero=0)
        training.add_run(found, path)
    names = [one["id"] for one in json.loads(path.read_text())["runs"]]
    assert names == [f"small-dp1-tp1-pp1-zero0-mbs2-gbs4-s32{end}" for end in ("", "-2", "-3")]
    usable, unusable = read_run_times(path, System.load(own))
    assert [run.measured_s for run in usable] == [3.0] * 3
    assert usable[0].model == Model.load(SMALL)
    assert unusable == []


@pytest.mark.parametrize("text", ["[]", '{"runs": 1}', "{"])
def test_a_file_of_something_else_is_not_written(tmp_path, text):
    """Nor is one with another ending."""
    path = tmp_path / "runs.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"runs\.json"):
        training.check_runs_file(path)
    assert path.read_text() == text
    with pytest.raises(InputError, match=r"allowed ending: \.json"):
        training.check_runs_file(tmp_path / "runs.yaml")


WINDOW = {"attention": ATTENTION | {"window": 8}}
LATENT = {"heads": 4, "kv_heads": 4, "head_dim": 16, "latent": {"kv_rank": 12, "rope_dim": 8}}
REFUSED = [
    (SMALL | {"streams": 4}, "streams: 4: cannot be built; allowed: 1"),
    (SMALL | {"position": "alibi"}, "position: 'alibi': cannot be built; allowed: rope, learned"),
    (SMALL | {"layers": [LAYER | WINDOW]}, "window: 8: cannot be built; allowed: none"),
    (SMALL | {"layers": [{"mlp": LAYER["mlp"], "count": 1}]}, "attention with mlp or moe"),
    ("qwen3-next-80b-a3b", "layers[0].mixer: 'mixer': cannot be built"),
]


@pytest.mark.parametrize(("model", "line"), REFUSED, ids=range(len(REFUSED)))
def test_models_that_cannot_be_built_are_refused_by_name(model, line):
    """With the field, its value and what is allowed."""
    faults = [str(fault) for fault in model_faults(Model.load(model))]
    assert any(line in fault for fault in faults), faults


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of models."""
    monkeypatch.chdir(tmp_path)
    experts = {"count": 2, "attention": ATTENTION, "moe": MOE}
    models = {"small": SMALL, "experts": SMALL | {"layers": [experts]}}
    models["latent"] = SMALL | {"layers": [LAYER | {"attention": LATENT}]}
    models["tied"] = SMALL | {"tied_embeddings": True}
    for name, model in models.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(model))
    return tmp_path


WORDS = [
    ("small --device tpu", "--device: 'tpu': allowed: cpu, cuda"),
    ("small --steps 0", "--steps"),
    ("small --runs runs.csv", "runs.csv: cannot be written; allowed ending: .json"),
    ("small --cp 2", "cp: 2: is not trained by measure; allowed: 1"),
    ("small --zero 1", "zero: 1: is not trained by measure; allowed: 0, 2, 3"),
    ("small --tp 2 --pp 2 --gpus 4", "pp: 2: is not trained by measure with tp above 1"),
    ("small --tp 2 --gpus 4 --dp 2", "dp: 2: is not trained by measure with tp or pp above 1"),
    ("small --tp 2 --zero 3", "zero: 3: is not trained by measure with tp or pp above 1"),
    ("experts --tp 2", "tp: 2: is not trained by measure with experts; allowed: 1"),
    ("latent --tp 2", "tp: 2: is not trained by measure with latent attention; allowed: 1"),
    ("tied --pp 2", "pp: 2: is not trained by measure with tied embeddings; allowed: 1"),
    ("small --compile layers", "compile: 'layers': is not trained by measure; allowed: none"),
    ("small", "measure: needs the extra torch: pip install 'shardwise[torch]'"),
]


@pytest.mark.parametrize(("words", "line"), WORDS, ids=[words for words, _ in WORDS])
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_trained_is_refused_in_a_line(monkeypatch, capsys, words, line):
    """Before any process starts, and with exit code 2."""
    monkeypatch.setattr(training, "find_spec", lambda _: None)
    model, *more = words.split()
    gpus = [] if "--gpus" in more else ["--gpus", "2"]
    batch = ["--gbs", "8", "--mbs", "1"]
    assert run(["measure", f"{model}.json", "cpu-server", *gpus, *batch, *more]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


SCRIPTS = {
    "import json, pathlib, sys; pathlib.Path(sys.argv[1], f'{sys.argv[2]}.json').write_text("
    "json.dumps({'error': 'ValueError: too small'})); sys.exit(1)": "ValueError: too small",
    "import sys; print('first'); sys.exit('no such device')": "ended with code 1: no such device",
    "import os; os.kill(os.getpid(), 9)": "ended with code -9: it printed nothing",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_a_process_that_fails_is_one_line(monkeypatch, script):
    """The others are ended, however long they would go on."""
    fields = {"dp": 2, "tp": 1, "pp": 1, "threads": 1}
    job = jobs.Job(**dict.fromkeys(jobs.Job.__slots__) | fields)
    wait = "import time; time.sleep(600)"

    def start(folder, rank, _, log):
        code = wait if rank == 0 else script
        words = [sys.executable, "-c", code, str(folder), str(rank)]
        return jobs.subprocess.Popen(words, stdout=log, stderr=log)

    monkeypatch.setattr(jobs, "_start", start)
    with pytest.raises(InputError) as error:
        jobs.run_job(job)
    assert str(error.value) == f"process 1: {SCRIPTS[script]}"


def test_one_gpu_trains_with_fsdp2(measured):
    """Its mixed precision casts the weights; on a processor nothing is cast."""
    found, seen = measured([figures((1, 1, 1, 5))], system="h100-sxm")
    assert (seen[0].device, seen[0].dtype, seen[0].zero, seen[0].fsdp) == ("cuda", "bf16", 3, True)
    assert found.prediction.strategy["stack"] == "pytorch-cuda"
    found, seen = measured([figures((1, 1, 1, 5))], system="h100-sxm", zero=0)
    assert not seen[-1].fsdp
    found, seen = measured([figures((1, 1, 1, 5))])
    assert (seen[-1].dtype, seen[-1].zero, seen[-1].fsdp) == ("fp32", 0, False)
