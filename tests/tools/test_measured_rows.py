"""`tools/measured_rows.py`: published rows as run files that are scored as the rows say."""

import json
import sys

import pytest

import measured_rows
from published_rows.hardware import system_of
from published_rows.packed import load_rows
from published_rows.translate import measured_run
from rows import each_row
from shardwise import catalog
from shardwise.validate.measured.predict import predict_runs
from shardwise.validate.measured.runs import load_runs, read_runs

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
WITHOUT_PROSE = {"description", "sources"}


def translated(path, monkeypatch, rows):
    """Exit code of the script on a file of rows, and the path of what it writes."""
    path.write_text(json.dumps(rows))
    out = path.with_name("runs.json")
    monkeypatch.setattr(sys, "argv", ["measured_rows.py", str(path), "-o", str(out)])
    return measured_rows.main(), out


def plain(run):
    """Fields of a run; those of the system without prose, which a base does not pass on."""
    fields = run.model_dump(exclude={"system"})
    return fields, run.system and run.system.model_dump(exclude=WITHOUT_PROSE)


def test_runs_are_what_rows_are_translated_to(tmp_path):
    """Every field of a sample of all sources, after JSON and back; predictions bit for bit."""
    rows = load_rows()[::40]
    text, refused = measured_rows.run_file(rows)
    path = tmp_path / "runs.json"
    path.write_text(text)
    found, expected = read_runs(path), tuple(map(measured_run, rows))
    assert [run.id for run in found] == [row.id for row in rows]
    for run, direct in zip(found, expected, strict=True):
        fields, system = plain(direct)
        if direct.refused is None:  # of a model with other sizes of the same name also these
            fields["setup"] = run.setup
        assert plain(run) == (fields | {"setup": run.setup}, system)
    assert refused == [(run.id, run.refused) for run in expected if run.refused]
    one, other = ([run for run in runs if run.refused is None][:8] for runs in (found, expected))
    for after, before in zip(predict_runs(one), predict_runs(other), strict=True):
        assert (after.step_time_s, after.memory_gib, after.interval) == (
            before.step_time_s, before.memory_gib, before.interval,
        )  # fmt: skip


@each_row("name", ["pythia", "amd-primus-blogs-docs", "internevo-7b-tables"])
def test_a_file_of_the_catalog_is_what_its_rows_say(name):
    """Byte for byte."""
    path = measured_rows.CATALOG / f"{name}.json"
    source = read_runs(path)[0].source
    text, _ = measured_rows.run_file([row for row in load_rows() if row.study == source])
    assert path.read_text() == text


@pytest.mark.nightly
def test_the_catalog_is_what_its_rows_say(monkeypatch, capsys):
    """All files; else `python tools/measured_rows.py --catalog` writes them."""
    monkeypatch.setattr(sys, "argv", ["measured_rows.py", "--catalog", "--check"])
    assert measured_rows.main() == 0
    assert "read 1867 rows: translated 1670, refused 197" in capsys.readouterr().out


def test_every_row_of_the_catalog_is_a_run():
    """None is lost."""
    assert [run.id for run in load_runs()] == [row.id for row in load_rows()]


def test_refused_rows_are_counted_and_stay(tmp_path, monkeypatch, capsys):
    """A line each with the reason; those that are not valid, too."""
    rows = [
        ROW,
        {**ROW, "id": "b", "hardware": {"accelerator": "X1", "count": 8}, "grade": "B"},
        {**ROW, "id": "c", "micro_batch": 1.5},
        {**ROW, "id": "a"},
    ]
    code, out = translated(tmp_path / "rows.json", monkeypatch, rows)
    assert code == 0
    assert capsys.readouterr().err.splitlines() == [
        "b: accelerator X1: not in the catalog",
        "c: micro_batch: 1.5: must be a whole number",
        "a: id: is set twice",
        f"read 4 rows: translated 1, refused 3; wrote {out}",
    ]
    first, second, third, fourth = read_runs(out)
    assert (first.refused, first.measured_step_time_s) == (None, 1.0)
    assert (second.refused, second.grade) == ("accelerator X1: not in the catalog", "B")
    assert (second.measured_step_time_s, second.gpus) == (1.0, 8)
    assert (third.refused, third.source) == ("micro_batch: 1.5: must be a whole number", "unknown")
    assert (fourth.id, fourth.refused) == ("a", "id: is set twice")


def test_a_file_without_rows_is_refused(tmp_path, monkeypatch, capsys):
    """With the reason and exit code 2."""
    code, out = translated(tmp_path / "rows.json", monkeypatch, [{"m": 1}])
    assert (code, out.exists()) == (2, False)
    assert "holds no measured runs" in capsys.readouterr().err


def test_models_of_one_name_and_other_sizes_are_no_choice():
    """Their setup says which they are; where all are alike, it has no sizes."""
    other = {**ROW, "id": "b", "model": {**ROW["model"], "layers": 16}}
    rows = [measured_rows.Run.validated(row) for row in (ROW, other)]
    short, _ = measured_rows.run_file(rows[:1])
    assert json.loads(short)["runs"][0]["setup"] == "Megatron-LM core_v0.12.0; bf16"
    text, _ = measured_rows.run_file(rows)
    setups = [run["setup"] for run in json.loads(text)["runs"]]
    assert "layers 16" in setups[1]
    assert setups[0] != setups[1]


@each_row("change", [{"inter": "8x 100Gb/s RoCE per node"}, {"per_node": 4}])
def test_a_changed_system_has_what_differs(change):
    """Tiers by name, over the entry of the catalog."""
    row = measured_rows.Run.validated(
        {**ROW, "hardware": {"accelerator": "H100", "count": 64, **change}}
    )
    found = measured_rows.changed(system_of(row, []))
    assert found["base"] in catalog.names("systems")
    assert set(found) <= {"name", "base", "network", "node", "accelerator"}
    assert set(found["network"]) <= {"nvlink", "fabric"}
