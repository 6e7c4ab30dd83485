"""What a verb writes, in each format, each verb that reads such a file reads back unchanged."""

import json
import random
from pathlib import Path

import pytest

from profiles import drawn
from rows import each_row
from shardwise import catalog
from shardwise.config.files import write_mapping
from shardwise.launchers.registry import LAUNCHERS
from written import record_of

MODEL, SYSTEM = "megatron-126m", "h100-sxm"
WORK = ("--gpus", 8, "--gbs", 16, "--json")
FORMATS = (".yaml", ".yml", ".json", ".yaml.gz", ".json.gz")
FORMS = [(one.name, ending) for one in LAUNCHERS for ending in one.endings]
FOLDERS = ("models", "systems", "stacks")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def samples():
    """Entries of the catalog with a format each: all in `nightly`, else one of each folder."""
    draw = random.Random(1)  # noqa: S311 - no secret
    for folder in FOLDERS:
        names = catalog.names(folder)
        for name in draw.sample(names, drawn(len(names), len(names))):
            yield folder, name, draw.choice(FORMATS)


@pytest.fixture
def predicted(shardwise):
    """Step time and memory of an estimate, or why there is none."""

    def call(*words):
        code, out, err = shardwise("estimate", *words)
        if code == 2:
            return err
        found = json.loads(out)
        return found["step_time_s"], found["memory_bytes"]["total"]

    return call


def question(folder, entry):
    """An estimate with an entry of the catalog, or its file."""
    dtype = () if folder == "models" else ("--dtype", "fp16")
    if folder == "stacks":
        return (MODEL, SYSTEM, *WORK, "--stack", entry)
    model, system = (entry, SYSTEM) if folder == "models" else (MODEL, entry)
    return (model, system, *WORK, "--seq-len", 1024, *dtype)


@each_row(("folder", "name", "ending"), list(samples()))
def test_entries_of_the_catalog_are_read_as_written(
    shardwise, predicted, tmp_path, folder, name, ending
):
    """By the verb that lists them and by `convert`, from its file and from the other's."""
    expected = predicted(*question(folder, name))
    first, second = tmp_path / f"first{ending}", tmp_path / f"second{ending}"
    assert shardwise(folder, name, "--output", first)[0] == 0
    assert shardwise("convert", first, second)[0] == 0
    assert shardwise(folder, second)[0] == 0
    assert predicted(*question(folder, first)) == expected
    assert predicted(*question(folder, second)) == expected


@each_row(("launcher", "ending"), FORMS)
def test_launch_files_are_read_as_written(shardwise, predicted, tmp_path, launcher, ending):
    """As MODEL, with --strategy, and through the files of `import`, in a format drawn for each."""
    case, fields = ("llama3-8b", SYSTEM), ("--gpus", 32, "--gbs", 64, "--tp", 4, "--zero", 2)
    file = tmp_path / f"run{ending}"
    code, _, err = shardwise("export", launcher, *case, *fields, "--nearest", "-o", file)
    assert code == 0, err
    draw = random.Random(f"{launcher}{ending}")  # noqa: S311 - no secret
    strategy, model = (tmp_path / f"{name}{draw.choice(FORMATS)}" for name in ("own", "model"))
    has_model = launcher not in ("deepspeed", "accelerate")
    more = ("--gpus", 32, "--gbs", 64)  # which some launchers set elsewhere
    written = ("--model-output", model) if has_model else ("--model", case[0])
    assert shardwise("import", file, *more[:2], "-o", strategy, *written)[0] == 0
    expected = predicted(*case, "--strategy", file, *more, "--json")
    assert isinstance(expected, tuple), expected
    read = model if has_model else case[0]
    assert predicted(read, SYSTEM, "--strategy", strategy, *more, "--json") == expected
    if has_model:
        assert predicted(file, SYSTEM, *more, "--json") == expected


@each_row("ending", FORMATS[2 : 2 + drawn(3)])
def test_plans_are_read_as_written(shardwise, tmp_path, ending):
    """By all verbs, as model, system or strategy; in place of others they are refused in a line."""
    file = tmp_path / f"found{ending}"
    search = (MODEL, SYSTEM, "--gpus", 4, "--gbs", 8, "--fix", "pp=1,mbs=1,zero=1", "--top", 2)
    assert shardwise("search", *search, "-o", file)[0] == 0
    plans = json.loads(shardwise("show", file, "--json")[1])["best"]
    assert record_of(shardwise("show", f"{file}#2", "--json")[1]) == plans[1]
    compared = json.loads(shardwise("compare", file, file, "--json")[1])
    assert {one["step_time_s"] for one in compared["scenarios"]} == {plans[0]["step_time_s"]}
    code, out, _ = shardwise("export", "megatron", f"{file}#2")
    assert (code, f"--tensor-model-parallel-size {plans[1]['strategy']['tp']}" in out) == (0, True)
    for words in (
        ("estimate", f"{file}#2"),
        ("estimate", f"{file}#2", SYSTEM),
        ("estimate", MODEL, f"{file}#2", "--strategy", f"{file}#2"),
        ("estimate", MODEL, SYSTEM, "--strategy", f"{file}#2"),
    ):
        found = json.loads(shardwise(*words, "--json")[1])
        assert found["step_time_s"] == pytest.approx(plans[1]["step_time_s"], rel=1e-12)
    for words in (
        ("estimate", MODEL, SYSTEM, "--stack", file),
        ("search", MODEL, SYSTEM, "--gpus", 4, "--gbs", 8, "--space", file),
        ("recipes", file),
        ("stacks", file),
    ):
        code, _, err = shardwise(*words)
        expected = f"error: {file}: is a saved result of search: show it with shardwise show\n"
        assert (code, err) == (2, expected)


READERS = (
    ("show", "FILE"),
    ("estimate", "FILE", SYSTEM),
    ("estimate", MODEL, "FILE"),
    ("estimate", MODEL, SYSTEM, "--strategy", "FILE"),
    ("estimate", MODEL, SYSTEM, "--stack", "FILE"),
    ("search", MODEL, SYSTEM, "--gpus", 4, "--gbs", 8, "--space", "FILE"),
    ("export", "megatron", "FILE"),
    ("recipes", "FILE"),
    ("systems", "FILE"),
    ("convert", "FILE", "copy.yaml"),
    ("calibrate", SYSTEM, "--from-runs", "FILE"),
    ("calibrate", SYSTEM, "--from-table", "FILE"),
    ("validate", "runs", "--data", "FILE"),
)
"""Verbs that read a file."""
UNREAD = {
    **{verb: (verb,) for verb in (*FOLDERS, "recipes")},
    "validate": ("validate", "runs", "--data", EXAMPLES / "runs.yaml"),
    "peers": ("peers", MODEL, SYSTEM, *WORK[:4]),
    "trace": ("trace", MODEL, SYSTEM, *WORK[:4]),
    "fsdp": ("fsdp", MODEL, "--gpus", 8, "--seconds", 0.1),
    "calibrate": ("calibrate", SYSTEM, "--from-runs", "runs.yaml"),
}
"""Commands whose results no verb reads."""
RUNS = {
    "common": {"model": "llama3-8b", "gpus": 8, "gbs": 32, "mbs": 1},
    "runs": [{"tp": tp, "step_time_s": 4.5} for tp in (2, 4, 8)],
}


def refusals(shardwise, file, readers):
    """Lines of the verbs that read a file."""
    for words in readers:
        code, out, err = shardwise(*(file if word == "FILE" else word for word in words))
        assert (code, out, err.count("\n")) == (2, "", 1), (words, err)
        assert err.startswith(f"error: {file}: "), words
        yield err


@each_row("name", UNREAD)
def test_results_that_no_verb_reads_are_refused(shardwise, tmp_path, monkeypatch, name):
    """In a line that says which command wrote the file, or what the verb reads instead."""
    monkeypatch.chdir(tmp_path)
    write_mapping("runs.yaml", RUNS)
    file = tmp_path / "result.json"
    code, out, err = shardwise(*UNREAD[name], "--json")
    assert code == 0, err
    file.write_text(out)
    readers = random.Random(name).sample(READERS[:-2], drawn(4, len(READERS) - 2))  # noqa: S311
    for line in refusals(shardwise, file, readers):
        other = "is not the result of" in line or "holds no measured runs" in line
        assert other or (name in line and "no verb reads it" in line), line


@each_row("ending", [".csv", ".csv.gz", ".parquet"][: drawn(1, 3)])
def test_tables_of_a_search_are_refused(shardwise, tmp_path, monkeypatch, ending):
    """In a line: they are for other programs."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"found{ending}"
    fix = ("--fix", "tp=2,pp=1,mbs=1,zero=1")
    assert shardwise("search", MODEL, SYSTEM, "--gpus", 4, "--gbs", 8, *fix, "--save", file)[0] == 0
    assert all("Traceback" not in line for line in refusals(shardwise, file, READERS))


@each_row("ending", FORMATS[: drawn(1, 5)])
def test_calibrated_systems_are_read_as_written(shardwise, predicted, tmp_path, ending):
    """With the speed that was fitted."""
    write_mapping(tmp_path / "runs.yaml", RUNS)
    file = tmp_path / f"system{ending}"
    words = ("calibrate", SYSTEM, "--from-runs", tmp_path / "runs.yaml", "--out", file, "--json")
    code, out, err = shardwise(*words)
    assert code == 0, err
    again = tmp_path / f"again{ending}"
    assert shardwise("convert", file, again)[0] == 0
    assert (
        json.loads(shardwise("systems", again, "--json")[1])["accelerator"]["speed"]
        == (json.loads(out)["speed"])
    )
    assert predicted(MODEL, again, *WORK) == predicted(MODEL, file, *WORK)
    assert predicted(MODEL, file, *WORK) != predicted(MODEL, SYSTEM, *WORK)


@each_row("verb", ["systems", "stacks", "show"])
def test_a_launch_file_where_another_is_expected_is_refused(shardwise, tmp_path, verb):
    """In a line, also where its format is one of shardwise's own files."""
    for launcher, ending in (("torchtitan", ".toml"), ("megatron-bridge", ".yaml")):
        file = tmp_path / f"run{ending}"
        plan = ("--gpus", 16, "--gbs", 16, "--tp", 8, "--zero", 3)
        assert (
            shardwise("export", launcher, "llama3-8b", SYSTEM, *plan, "--nearest", "-o", file)[0]
            == 0
        )
        code, _, err = shardwise(verb, file)
        assert code == 2
        assert err.startswith(f"error: {file}: is a launch file")
        assert err.count("\n") == 1


def test_defaults_of_another_trainer_are_checked_for_a_launcher(shardwise):
    """Megatron-LM shards optimizer states by default, which accelerate cannot."""
    case = ("export", "accelerate", "llama3-8b", SYSTEM, "--gpus", 8, "--gbs", 8)
    code, _, err = shardwise(*case, "--stack", "megatron-core-2025")
    assert code == 2
    assert "mixed precision of accelerate trains weights in fp32" in err
