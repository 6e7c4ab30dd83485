"""Run files: runs as models, systems and strategies of shardwise; and words that rows ignore."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rows import each_row
from shardwise import InputError, estimate
from shardwise.validate.measured.predict import predict_runs, translate
from shardwise.validate.measured.run import Run, RunFault
from shardwise.validate.measured.store import load_runs, read_runs
from shardwise.validate.measured.words import FEATURES, named_features, says_flash

STRATEGY = {"gpus": 16, "tp": 2, "gbs": 32, "stack": "torchtitan-2025", "zero": 3}
LEAST = {"id": "a", "model": {"name": "m"}, "hardware": {"accelerator": "H100"}}
ROW = {
    "id": "a",
    "model": {"name": "llama3-8b", "layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32,
              "kv_heads": 8, "vocab": 128256, "seq_len": 8192},
    "hardware": {"accelerator": "H100", "count": 8},
    "software": {"framework": "Megatron-LM", "version": "core_v0.12.0"},
    "precision": "bf16",
    "parallelism": {"dp": 4, "tp": 2, "pp": 1, "cp": 1},
    "micro_batch": 1,
    "global_batch": 8,
    "recompute": {"granularity": "none"},
    "measured": {"step_time_s": 1.0},
}  # fmt: skip


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
    runtime = translate(found.run).strategy.loaded_stack().runtime_memory
    assert found.memory_gib == pytest.approx((peak - runtime) / 2**30)
    assert (found.assumed, found.ignored, found.refused) == ((), (), None)
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
    assert isinstance(wrong.run, RunFault)
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


def ignored(**fields):
    (run,) = predict_runs([Run.validated({**ROW, **fields})])
    assert run.refused is None
    return run.ignored


def test_what_is_understood_is_not_ignored():
    """A row of plain words."""
    assert ignored() == ()
    features = {"tp-comm-overlap": True, "recipe": "x", "nccl_ub": False, "cuda_graphs": "yes"}
    assert ignored(features=features) == ()


@each_row(
    ("fields", "said"),
    [
        ({"features": {"moon": 1}}, "features.moon '1': not known"),
        ({"features": {"liger": "perhaps"}}, "features.liger 'perhaps': not understood"),
        ({"features": {"nccl_ub": True}},
         "features.nccl_ub 'True': not modeled (user buffers of NCCL)"),
        ({"recompute": {"granularity": "some"}}, "recompute 'some': not understood"),
        ({"recompute": {"recompute_modules": ["mlp", "tail"]}}, "recompute of tail: not known"),
        ({"recompute": {"cpu_offloading_num_layers": 4}},
         "activations of some layers on the host: not modeled"),
        ({"software": {"framework": "Trainer X"}},
         "software.framework 'Trainer X': not known; the stack is unknown"),
        ({"precision": "int3"}, "precision 'int3': not understood"),
        ({"attention_impl": "magic"}, "attention_impl 'magic': not understood"),
        ({"colour": "red"}, "colour: not known"),
        ({"parallelism": {"dp": 4, "tp": 2, "sdp": 2}}, "parallelism.sdp: not known"),
    ],
)  # fmt: skip
def test_what_is_ignored_is_said(fields, said):
    """Each word that the prediction does not use, once."""
    assert ignored(**fields) == (said,)


def test_every_word_of_the_bundled_rows_is_known():
    """No feature of the bundled runs is unknown: each is used, redundant or said not modeled."""
    words = {name for run in load_runs() for name in run.features}
    assert words <= FEATURES.keys()


@given(st.dictionaries(st.sampled_from(["x", *FEATURES]), st.none() | st.booleans()))
def test_names_of_features_are_stable(features):
    """One name for each; naming again changes nothing."""
    once = named_features(features)
    assert named_features(once) == once
    assert once.keys() <= {*FEATURES, "x"}


def test_two_names_of_one_feature():
    """The first that says something counts."""
    both = {"TP_COMM_OVERLAP": None, "tp-comm-overlap": True}
    assert named_features(both) == {"tp_comm_overlap": True}
    names = [alias for one in FEATURES.values() for alias in one.aliases]
    assert len(names) == len({*names})
    assert not {*names} & FEATURES.keys()


@each_row(
    ("text", "flash"),
    [
        ("unfused (pre-flash)", False),
        ("fused scaled masked softmax (no flash attention)", False),
        ("flash attention 2", True),
        ("TransformerEngine fused attention (cuDNN/flash)", True),
        ("not stated", None),
        (None, None),
    ],
)
def test_texts_of_attention(text, flash):
    """Whether its kernels are fused."""
    assert says_flash(text) is flash
