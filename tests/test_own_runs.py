"""Run files: runs as models, systems and strategies of shardwise, and what was measured."""

import json

import pytest
import yaml

from rows import each_row
from shardwise import InputError, Model, estimate
from shardwise.validate.measured.predict import predict_runs
from shardwise.validate.measured.runs import read_runs

STRATEGY = {"gpus": 16, "tp": 2, "gbs": 32, "stack": "torchtitan-2025", "zero": 3}


def written(path, runs, **common):
    path.write_text(yaml.safe_dump({"common": common, "runs": runs}))
    return path


def problems(caught):
    return [str(fault) for fault in caught.value.faults]


def test_a_run_is_predicted_as_its_estimate(tmp_path):
    """The fields of the file, and nothing else: no assumption, no translation."""
    run = {
        "id": "one",
        "model": "llama3-8b",
        "system": "h100-sxm",
        "strategy": STRATEGY,
        "measured": {"step_time_s": "900 ms", "memory": "61 GiB", "memory_metric": "reserved"},
    }
    (found,) = predict_runs(read_runs(written(tmp_path / "runs.yaml", [run])))
    own = estimate("llama3-8b", "h100-sxm", STRATEGY)
    assert found.step_time_s == own.step_time_s
    assert (found.measured_step_time_s, found.run.measured_memory_gib) == (0.9, 61)
    peak = max(stage.reserved for stage in own.stages)
    runtime = found.run.case().strategy.loaded_stack().runtime_memory
    assert found.memory_gib == pytest.approx((peak - runtime) / 2**30)
    assert (found.run.assumed, found.run.ignored, found.refused) == ((), (), None)
    assert found.interval is not None


def test_a_stack_may_be_changed(tmp_path):
    """An own stack is a base with other figures; a row may set it outside of its strategy."""
    run = {"model": "llama3-8b", "gpus": 8, "gbs": 8, "step_time_s": 1}
    rows = [run, run | {"stack": {"base": "megatron-core-2025", "memory_traffic_factor": 3}}]
    path = written(tmp_path / "runs.yaml", rows, system="h100-sxm", stack="megatron-core-2025")
    plain, slow = predict_runs(read_runs(path))
    assert slow.step_time_s > plain.step_time_s


def test_all_forms_say_the_same(tmp_path):
    """YAML, JSON, and CSV with fields as columns."""
    run = {"id": "x", "model": "llama3-8b", "system": "h100-sxm", "gpus": 8, "tp": 2, "gbs": 16}
    rows = [run | {"tokens_per_s_per_gpu": 9000.5}]
    first = read_runs(written(tmp_path / "a.yaml", rows))
    (tmp_path / "b.json").write_text(json.dumps({"runs": rows}))
    keys = list(rows[0])
    lines = [",".join(keys), ",".join(str(rows[0][key]) for key in keys)]
    (tmp_path / "c.csv").write_text("\n".join(lines))
    for name in ("b.json", "c.csv"):
        assert read_runs(tmp_path / name) == first
    assert first[0].measured_step_time_s == pytest.approx(16 * 8192 / 8 / 9000.5)


@each_row(
    ("change", "problem"),
    [
        ({"model": None}, "model: is missing"),
        ({"system": None}, "system: is missing"),
        ({"system": "h1000"}, "h1000"),
        ({"step_time_s": None}, "has no measured value: step_time_s, tokens_per_s_per_gpu, memory"),
        ({"tokens_per_s_per_gpu": 3}, "step_time_s: give one of step_time_s and tokens_per_s"),
        ({"step_time_s": "fast"}, "step_time_s: 'fast': "),
        ({"memory_metric": "rss"}, "memory_metric: 'rss': allowed: allocated, reserved, device"),
        ({"tpp": 2}, "tpp: unknown key; did you mean 'tp'?"),
        ({"strategy": {"tp": 4}}, "tp: is set twice"),
        ({"measured": 3}, "measured: 3: must be a mapping"),
        ({"grade": "D"}, "grade: 'D': allowed: A, B, C"),
        ({"tp": 3}, "tp"),
    ],
)
def test_a_wrong_run_is_refused_and_the_others_are_scored(tmp_path, change, problem):
    """The reason names the field; a file of wrong runs alone is an error."""
    good = {"id": "b", "model": "llama3-8b", "system": "h100-sxm", "gpus": 8, "tp": 2, "gbs": 8}
    good["step_time_s"] = 1.0
    bad = {key: v for key, v in ({**good, "id": "a"} | change).items() if v is not None}
    wrong, right = predict_runs(read_runs(written(tmp_path / "runs.yaml", [bad, good])))
    assert problem in wrong.refused
    assert right.step_time_s is not None
    with pytest.raises(InputError) as caught:
        read_runs(written(tmp_path / "runs.yaml", [bad]))
    assert all(text.startswith(f"{tmp_path / 'runs.yaml'}: a: ") for text in problems(caught))


def test_a_file_is_scored_by_the_command(tmp_path, shardwise):
    """With the reason of the run that is refused."""
    good = {"id": "b", "model": "llama3-8b", "system": "h100-sxm", "gpus": 8, "gbs": 8}
    rows = [good | {"step_time_s": 1}, good | {"id": "c", "step_time_s": -1}, good | {"memory": 9}]
    path = written(tmp_path / "runs.yaml", rows)
    code, out, _ = shardwise("validate", "runs", "--data", path, "--json")
    found = json.loads(out)
    assert (code, [row["id"] for row in found["rows"]]) == (0, ["b", "c", "b"])
    assert found["rows"][0]["error"] is not None
    assert found["rows"][2]["refused"] == "id: is set twice"
    assert found["summary"]["overall"]["refused"] == 2


def test_runs_name_what_their_file_defines(tmp_path):
    """Models, systems and stacks of the file, by a name that none of the catalog needs to be."""
    stack = {"base": "megatron-core-2025", "memory_traffic_factor": 3}
    run = {"model": "small", "system": "mine", "gpus": 8, "gbs": 8, "step_time_s": 1}
    data = {
        "models": {"small": Model.load("llama3-8b").to_dict() | {"name": "small"}},
        "systems": {"mine": {"base": "h100-sxm", "price": None}},
        "stacks": {"slow": stack},
        "runs": [run | {"stack": "slow"}, run | {"stack": stack}, run | {"system": "h100-sxm"}],
    }
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(data))
    named, inline, plain = read_runs(path)
    assert named.strategy == inline.strategy
    assert named.model is inline.model
    assert (named.accelerator, plain.accelerator) == ("mine", "h100-sxm")
    data["stacks"] = {"slow": {"base": "nothing"}}
    path.write_text(json.dumps(data))
    wrong, *_ = read_runs(path)
    assert "stack: 'nothing': no such stack" in wrong.refused


def test_other_units_and_ranks_of_memory(tmp_path):
    """Errors are in the unit that was printed; of the last stage where that was logged."""
    run = {"model": "llama3-8b", "system": "h100-sxm", "gpus": 8, "pp": 4, "gbs": 8}
    measured = {"memory": "40.3 GB", "memory_unit": "GB"}
    rows = [run | {"measured": measured}, run | {"measured": measured | {"memory_rank": "last"}}]
    (most, last) = predict_runs(read_runs(written(tmp_path / "runs.yaml", rows)))
    stages = estimate("llama3-8b", "h100-sxm", {k: run[k] for k in ("gpus", "pp", "gbs")}).stages
    assert most.run.measured_memory_gib == 40.3
    assert most.memory_gib == max(stage.total for stage in stages) / 1e9
    assert last.memory_gib == stages[-1].total / 1e9


def test_flops_give_the_time_of_a_step(tmp_path):
    """Where nothing else was printed, as the source counts them; none if they have recompute."""
    run = {"model": "llama3-8b", "system": "h100-sxm", "gpus": 8, "gbs": 8}
    conventions = ("causal", "full-attention", "hardware")
    rows = [run | {"tflops_per_gpu": 400.0, "flops_convention": name} for name in conventions]
    causal, full, hardware = predict_runs(read_runs(written(tmp_path / "runs.yaml", rows)))
    flops = causal.model_flops_per_step
    assert causal.measured_step_time_s == pytest.approx(flops / (400e12 * 8))
    assert full.measured_step_time_s > causal.measured_step_time_s
    assert hardware.measured_step_time_s is None


@each_row(
    "text",
    [
        json.dumps([{"id": "a", "model": {"name": "m"}, "hardware": {"accelerator": "H100"}}]),
        '{"id": "a", "hardware": {"accelerator": "H100"}}\n{"id": "b"}\n',
        '{"format": "shardwise-measured-runs-1", "group": "g", "rows": []}',
    ],
)
def test_rows_of_published_runs_are_refused_with_what_translates_them(text, tmp_path, shardwise):
    """One line, with the command."""
    path = tmp_path / "rows.json"
    path.write_text(text)
    for words in (("validate", "runs", "--data"), ("calibrate", "h100-sxm", "--from-runs")):
        code, out, err = shardwise(*words, path)
        command = f"python tools/measured_rows.py {path} -o runs.json"
        assert (code, out) == (2, "")
        assert (
            err == f"error: {path}: has rows of published runs; translate them first: {command}\n"
        )


@each_row("text", ["3", "[]", '{"m": 1}', '[{"id": "a"}]', '{"rows": [{"hardware": "H100"}]}'])
def test_other_json_files_are_refused(text, tmp_path):
    """With what is allowed."""
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(InputError, match="holds no measured runs; allowed: a run file"):
        read_runs(path)
