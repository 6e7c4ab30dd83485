"""`shardwise validate runs`: what is scored, what people and machines get, what is refused."""

import json
import sys
from types import ModuleType

import pytest

from measured_samples import predicted, refused, run_of
from shardwise.report.tables.measured import print_runs
from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.runs import load_runs
from shardwise.validate.measured.scoreboard import scoreboard
from shardwise.validate.measured.statistics import ReferencePrediction

OWN = [
    {
        "id": "mine-1",
        "model": "llama3-8b",
        "system": "h100-sxm",
        "gpus": 8,
        "global_batch_size": 8,
        "measured": {"step_time_s": 2.0},
    },
    {"id": "mine-2", "refused": "it is not said what ran", "grade": "B"},
]


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """Predict a tenth too much for every run that is not grade C; return the runs asked for."""
    seen = []

    def predict_runs(runs):
        seen.extend(runs)
        return tuple(map(_told, runs))

    monkeypatch.setattr("shardwise.validate.suites.predict_runs", predict_runs)
    return seen


def _told(run):
    if run.grade == "C":
        return Prediction(run=run, refused="hidden size is not known")
    time, count = run.measured_step_time_s, run.gpus or 1
    return Prediction(
        run=run,
        step_time_s=time and 1.1 * time,
        model_flops_per_step=float(count * (time or 1) * (2 + len(run.id) % 3)),
        peak_flops=10.0 * count,
    )


def test_all_runs_are_scored_as_json(shardwise, asked):
    """Rows and summary of the contract, of everything that is shipped."""
    code, out, err = shardwise("validate", "runs", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [row["id"] for row in found["rows"]] == [run.id for run in load_runs()]
    assert tuple(asked) == load_runs()
    overall = found["summary"]["overall"]
    assert (overall["rows"], overall["refused"], overall["n"]) == (1867, 335, 1441)
    assert [overall[name] for name in ("mape", "bias", "p90")] == pytest.approx([0.1] * 3)
    assert overall["skill"] > 0.5
    assert found["summary"]["grade"]["C"]["refused"] == 335


@pytest.mark.parametrize("words", [("--data",), ("runs", "--data")])
def test_a_file_of_ones_own_is_scored(shardwise, tmp_path, asked, words):
    """With or without the name of the suite; what is written to a file is not printed."""
    path, out_path = tmp_path / "mine.json", tmp_path / "out.json"
    path.write_text(json.dumps({"runs": OWN}))
    code, out, _ = shardwise("validate", *words, path, "--output", out_path)
    assert (code, out, len(asked)) == (0, "", 2)
    found = json.loads(out_path.read_text())
    assert [row["id"] for row in found["rows"]] == ["mine-1", "mine-2"]
    assert found["rows"][0]["error"] == pytest.approx(0.1)
    assert found["summary"]["overall"]["skill"] is None


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (("--grade", "A"), 778),
        (("--grade", "a, C"), 1113),
        (("--kind", "moe"), 336),
        (("--source", "simumax"), 30),
        (("--source", "simumax", "--kind", "dense", "--grade", "C"), 0),
        (("--source", "2205.05198", "--grade", "A"), 8),
    ],
)
def test_a_part_of_the_runs_is_scored(shardwise, asked, words, rows):
    """By grade, kind and a part of the source's name or reference, the baseline from all."""
    code, out, err = shardwise("validate", "runs", "--json", *words)
    assert len(asked) == 1867
    if rows:
        overall = json.loads(out)["summary"]["overall"]
        assert (overall["rows"], overall["skill"] is not None) == (rows, True)
    else:
        assert (code, out) == (2, "")
        assert err == "error: runs: has no runs of that grade, kind and source\n"


TO_LIST = "to list them: shardwise"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--grade", "D"), "--grade: 'D': allowed: A, B, C"),
        (("--kind", "mo"), "--kind: 'mo': allowed: dense, moe; did you mean 'moe'?"),
        (
            ("--source", "2402.15627"),
            f"--source: '2402.15627': matches no source; {TO_LIST} validate runs",
        ),
        (("--data", "none.json"), "none.json: no such file"),
        (("--plot", "a.gif"), "a.gif: charts are written as .html, .json, .png, .svg, .pdf"),
    ],
)
def test_wrong_words_are_refused(shardwise, asked, words, problem):
    """Before anything is predicted."""
    code, out, err = shardwise("validate", "runs", *words)
    assert (code, out, err, asked) == (2, "", f"error: {problem}\n", [])


def test_words_for_runs_are_refused_with_other_suites(shardwise):
    """Where they would do nothing."""
    code, _, err = shardwise("validate", "seqsel", "--grade", "A", "--plot", "a.html")
    assert code == 2
    assert err.splitlines() == [
        "error: --grade: 'A': is for the suite runs only",
        "error: --plot: 'a.html': is for the suite runs only",
    ]
    code, _, err = shardwise("validate", "--rows")
    assert (code, err) == (2, "error: --rows: needs a SUITE\n")
    code, _, err = shardwise("validate", "--kind", "moe")
    assert (code, err) == (2, "error: --kind: 'moe': is for the suite runs only\n")


def test_people_get_tables(shardwise):
    """Headline, groups, order, worst and refused runs; every run if asked for."""
    code, out, _ = shardwise("validate", "runs")
    assert code == 0
    assert out.splitlines()[1:3] == [
        "1,867 measured training runs",
        "1,441 predicted, 335 refused, 91 without a time to compare",
    ]
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any(line.startswith("all 1,441 335 10.0 % 10.0 % 10.0 % +10.0 %") for line in lines)
    assert any(line.startswith("SimuMax measured runs 30 - 10.0 %") for line in lines)
    assert "hidden size is not known 335" in lines
    assert "100.0 % are ordered right." in out
    assert "All runs" not in out
    _, every, _ = shardwise("validate", "runs", "--rows", "--source", "SimuMax")
    assert all(run.id in every for run in load_runs() if run.source == "SimuMax measured runs")


def test_tables_show_the_farthest_off_and_what_there_is(capsys):
    """Sorted by size whatever the sign; no empty tables or columns."""
    rows = [
        predicted("near", 1.0, 1.01),
        predicted("low", 1.0, 0.5, memory=9.0, peak="10 GiB"),
        predicted("high", 1.0, 1.4),
        *(refused(f"r{n}", f"reason {n}") for n in range(22)),
    ]
    print_runs(scoreboard(rows), rows=True)
    out = capsys.readouterr().out
    worst = out[out.index("Farthest off") : out.index("refused because")]
    assert worst.index("low") < worst.index("high") < worst.index("near")
    assert "-50.0 %" in worst
    assert "2 others" in out
    assert ("Peak memory" in out, "GiB measured" in out) == (True, True)
    print_runs(scoreboard([predicted("x", 1.0, 1.0)]), rows=True)
    out = capsys.readouterr().out
    assert not any(head in out for head in ("refused because", "GiB", "Kendall", "longer than"))
    assert "without a time" not in out


@pytest.mark.parametrize("words", [(), ("--rows", "--source", "SimuMax"), ("--grade", "A")])
def test_narrow_terminals(shardwise, monkeypatch, words):
    """No line is wider than 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = shardwise("validate", "runs", *words)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_the_list_of_suites_has_the_collections(shardwise):
    """And a wrong name is told of it."""
    _, out, _ = shardwise("validate")
    assert "1,867 published training runs" in out
    _, _, err = shardwise("validate", "run")
    assert err == (
        "error: suite: 'run': no such suite; allowed: seqsel, simumax, nersc-collectives, "
        "amped, runs, kernels; did you mean 'runs'?\n"
    )


def test_charts_are_written_beside_the_figures(shardwise, tmp_path):
    """With --plot."""
    pytest.importorskip("plotly")
    path = tmp_path / "runs.json"
    code, out, _ = shardwise("validate", "runs", "--source", "simumax", "--plot", path)
    assert (code, "30 measured training runs" in out) == (0, True)
    assert list(json.loads(path.read_text())) == ["by-accelerator", "by-source", "errors"]


def test_predecessors_are_asked_where_wanted(shardwise, monkeypatch):
    """Of the runs that are scored alone, and only with --references."""
    asked = []

    def references(predictions):
        asked.extend(one.run.id for one in predictions)
        pairs = [
            ReferencePrediction(id=one.run.id, measured_s=1.0, ours_s=1.1, theirs_s=0.7)
            for one in predictions
        ]
        return {
            "elder": (
                *pairs,
                ReferencePrediction(id="x", measured_s=1.0, ours_s=1.0, refused="no word"),
            )
        }

    module = ModuleType("shardwise.predecessors.validate.references")
    module.references = references
    monkeypatch.setitem(sys.modules, module.__name__, module)
    _, out, _ = shardwise("validate", "runs", "--source", "SimuMax")
    assert ("Predecessors" in out, asked) == (False, [])
    _, out, _ = shardwise("validate", "runs", "--source", "SimuMax", "--references")
    assert "elder 30 1 30.0 % 30.0 % 30.0 % -30.0 % 10.0 % +10.0 %" in " ".join(out.split())
    assert len(asked) == 30
    _, out, _ = shardwise("validate", "runs", "--source", "SimuMax", "--references", "--json")
    found = json.loads(out)
    assert found["summary"]["references"]["elder"]["n"] == 30
    assert found["rows"][0]["references"]["elder"]["predicted_step_time_s"] == 0.7
    code, _, err = shardwise("validate", "seqsel", "--references")
    assert (code, err) == (2, "error: --references: is for the suite runs only\n")


def test_a_run_without_anything_is_listed(capsys):
    """Neither measured nor predicted."""
    print_runs(scoreboard([Prediction(run=run_of("bare"))]), rows=True)
    assert "1 without a time to compare" in capsys.readouterr().out
