"""The scoreboard of measured runs: rows, groups, baseline and ranking, by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from measured_samples import predicted, refused, run_of
from shardwise.analysis.validated_runs import ValidatedRuns, validated_runs
from shardwise.report.tables.measured import print_runs
from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.runs import load_runs
from shardwise.validate.measured.scoreboard import scoreboard
from shardwise.validate.measured.statistics import ReferencePrediction

ROW = [
    "id", "source", "grade", "accelerator", "precision", "kind", "scale", "measured_step_time_s",
    "predicted_step_time_s", "error", "interval", "measured_memory_gib", "predicted_memory_gib",
    "memory_error", "assumed",
]  # fmt: skip


@pytest.fixture
def four():
    """Two sources: errors of +10 % and -30 % in one, +50 % in the other, and one refused."""
    return [
        predicted("a", 10.0, 11.0, flops=4.0, interval=(9.0, 12.0)),  # MFU 0.4
        predicted("b", 20.0, 14.0, flops=2.0, interval=(10.0, 18.0), count=64),  # MFU 0.1
        predicted("c", 2.0, 3.0, flops=0.6, source="logs", grade="B"),  # MFU 0.3
        refused("d", "no accelerator of that name", source="logs", grade=None, precision="fp8"),
    ]


def test_a_row_has_what_was_measured_and_what_we_say(four):
    """Every name of the contract; an error is predicted over measured, minus one."""
    one = Prediction(
        run=run_of("x", step=10.0, peak="50 GiB", assumed=("no recompute",)),
        step_time_s=11.0,
        memory_gib=45.0,
        interval=(9.0, 12.0),
    )
    (row,) = scoreboard([one]).to_dict()["rows"]
    assert list(row) == ROW
    assert row == {
        "id": "x",
        "source": "paper",
        "grade": "A",
        "accelerator": "H100",
        "precision": "bf16",
        "kind": "dense",
        "scale": "1-8",
        "measured_step_time_s": 10.0,
        "predicted_step_time_s": 11.0,
        "error": pytest.approx(0.1),
        "interval": (9.0, 12.0),
        "measured_memory_gib": 50.0,
        "predicted_memory_gib": 45.0,
        "memory_error": pytest.approx(-0.1),
        "assumed": ("no recompute",),
    }
    *_, last = scoreboard(four).to_dict()["rows"]
    assert list(last) == [*ROW, "refused"]
    assert last["refused"] == "no accelerator of that name"
    assert (last["grade"], last["predicted_step_time_s"], last["error"]) == ("none", None, None)


def test_memory_alone_is_compared(four):
    """Where a source prints no time."""
    one = Prediction(run=run_of("x", peak="60 GiB"), memory_gib=66.0)
    board = scoreboard([one, *four])
    assert board.rows[0].memory_error == pytest.approx(0.1)
    assert (board.overall.memory.n, board.overall.errors.n) == (1, 3)


def test_the_summary_by_hand(four):
    """Over all, and over the runs of each group."""
    found = scoreboard(four)
    summary = found.to_dict()["summary"]
    # Left out, `paper` has 0.3 of `logs`; `logs` has sqrt(0.4 x 0.1) = 0.2 of `paper`.
    baseline = (0.4 / 0.3 - 1 + 1 - 0.1 / 0.3 + 0.3 / 0.2 - 1) / 3
    assert summary["overall"] == {
        "rows": 4,
        "refused": 1,
        "n": 3,
        "mape": pytest.approx(0.3),
        "median_ape": pytest.approx(0.3),
        "bias": pytest.approx(0.1),
        "p90": pytest.approx(0.46),
        "skill": pytest.approx(1 - 0.3 / baseline),
        "coverage": 0.5,
        "memory": {"n": 0, "mape": None, "median_ape": None, "bias": None, "p90": None},
    }
    assert list(summary["source"]) == ["logs", "paper"]
    assert summary["source"]["paper"]["mape"] == pytest.approx(0.2)
    assert summary["source"]["logs"]["refused"] == 1
    assert {name: one["n"] for name, one in summary["grade"].items()} == {"A": 2, "B": 1, "none": 0}
    assert list(summary["scale"]) == ["1-8", "64-255"]
    assert list(summary["precision"]) == ["bf16", "fp8"]
    assert summary["precision"]["fp8"]["mape"] is None
    assert list(summary["kind"]) == ["dense"]
    assert list(summary["accelerator"]) == ["H100"]
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["suite"] == "runs"


def test_the_order_of_runs_is_of_no_account(four):
    """Runs without an error shift nobody's baseline."""
    turned = scoreboard(four[::-1])
    assert turned.overall.skill == pytest.approx(scoreboard(four).overall.skill)
    assert turned.overall.errors == scoreboard(four).overall.errors


def test_the_measured_mfu_is_model_flops_over_what_could_be_done():
    """8 FLOPs in 10 s where 4 FLOP/s are possible; None where any of it is not known."""
    one = Prediction(run=run_of("x", step=10.0), model_flops_per_step=8.0, peak_flops=4.0)
    assert one.measured_mfu == pytest.approx(0.2)
    assert replace(one, peak_flops=None).measured_mfu is None
    assert replace(one, run=run_of("x")).measured_mfu is None


def test_the_baseline_may_be_of_more_runs_than_are_scored(four):
    """What is looked at does not change what it is compared with; one source has no baseline."""
    whole, part = scoreboard(four), scoreboard(four[:2], among=four)
    assert part.overall.skill == whole.groups["source"]["paper"].skill
    assert math.isnan(scoreboard(four[:2]).overall.skill)


def test_order_is_judged_inside_studies():
    """Throughput per accelerator, so that runs of other batches and counts compare."""
    rows = [
        predicted("a", 1.0, 1.0),  # 4,096 tokens/s on each
        predicted("b", 1.0, 1.1, batch=16),  # 8,192, told 7,447
        predicted("c", 1.0, 0.2, batch=16, count=16),  # 4,096, told 20,480
        predicted("d", 9.0, 0.1, source="other"),
        predicted("e", 9.0, 0.1, task="lora"),
        predicted("f", 9.0, 0.1, seq_len=2048),
        predicted("g", 9.0, 0.1, accelerator="A100"),
        predicted("h", 9.0, 0.1, batch=None),
    ]
    ranking = scoreboard(rows).ranking
    assert (ranking.pairs, ranking.in_order) == (2, 0.5)  # b before a, but c before b
    assert (ranking.studies, ranking.tau, ranking.choices) == (1, 0.0, 0)


def test_choices_are_between_ways_to_run_the_same():
    """The one predicted best takes 12 s, the best 10 s; other runs are no alternatives."""
    same = [predicted("a", 10.0, 9.0), predicted("b", 12.0, 8.0), predicted("c", 15.0, 9.5)]
    others = [
        {"batch": 16},
        {"count": 16},
        {"precision": "fp8"},
        {"seq_len": 8192},
        {"setup": "NeMo 25.07"},
        {"setup": "94GB"},
    ]
    rest = [predicted(str(n), 1.0, 0.1, **fields) for n, fields in enumerate(others)]
    ranking = scoreboard([*same, *rest]).ranking
    assert ranking.choices == 1
    assert ranking.regret == ranking.most_regret == pytest.approx(0.2)
    assert scoreboard(same[:2]).ranking.choices == 0


def test_predecessors_are_scored_on_what_they_can_express(four):
    """Their errors and ours over the same runs, by hand; those of others' runs count, too."""
    pairs = (
        ReferencePrediction(id="a", measured_s=10.0, ours_s=11.0, theirs_s=8.0),
        ReferencePrediction(id="b", measured_s=20.0, ours_s=14.0, theirs_s=24.0),
        ReferencePrediction(id="c", measured_s=2.0, ours_s=3.0, refused="no gated MLP"),
        ReferencePrediction(id="e", measured_s=None, ours_s=3.0, theirs_s=2.0),
        ReferencePrediction(id="f", measured_s=4.0, ours_s=4.0, theirs_s=4.0),
    )
    board = scoreboard(four, references={"elder": pairs, "silent": pairs[2:3]})
    found = board.to_dict()
    assert list(found["summary"]["references"]) == ["elder", "silent"]
    assert found["summary"]["references"]["elder"] == {
        "rows": 5,
        "refused": 1,
        "n": 3,
        "mape": pytest.approx(0.4 / 3),
        "median_ape": pytest.approx(0.2),
        "bias": pytest.approx(0.0),
        "p90": pytest.approx(0.2),
        "ours": {
            "n": 3,
            "mape": pytest.approx(0.4 / 3),
            "median_ape": pytest.approx(0.1),
            "bias": pytest.approx(-0.2 / 3),
            "p90": pytest.approx(0.26),
        },
    }
    assert found["summary"]["references"]["silent"]["mape"] is None
    a, _, c, d = found["rows"]
    assert a["references"] == {
        "elder": {"predicted_step_time_s": 8.0, "error": pytest.approx(-0.2)}
    }
    assert c["references"]["silent"] == {"refused": "no gated MLP"}
    assert list(c) == [*ROW, "references"]
    assert list(d) == [*ROW, "refused"]
    assert pairs[3].to_dict() == {"predicted_step_time_s": 2.0, "error": None}
    assert scoreboard(four).to_dict()["summary"]["references"] == {}


def test_perfect_predictions_of_all_runs():
    """No error, skill 1, tau 1, no regret; as many pairs and choices as there are."""
    runs = [run for run in load_runs() if run.refused is None]
    times = [(run, run.measured_step_time_s) for run in runs]
    exact = [
        Prediction(
            run=run,
            step_time_s=time,
            interval=None if time is None else (time, time),
            model_flops_per_step=float(place + 1),
            peak_flops=1.0,
        )
        for place, (run, time) in enumerate(times)
    ]
    board = scoreboard(exact)
    assert (board.overall.rows, board.overall.errors.n, board.overall.errors.p90) == (1670, 1572, 0)
    assert board.overall.skill == board.overall.coverage == board.ranking.in_order == 1
    assert (board.ranking.tau, board.ranking.most_regret) == (pytest.approx(1), 0)
    assert (board.ranking.pairs > 3000, board.ranking.choices) == (True, 37)
    slow = [replace(one, step_time_s=one.step_time_s and 2 * one.step_time_s) for one in exact]
    assert scoreboard(slow).overall.errors.bias == 1
    assert scoreboard(slow).ranking == board.ranking


def test_shipped_runs_are_scored_with_their_source_left_out(monkeypatch):
    """By hand: errors of +10 %, -20 % and +50 % where left out; of fitted runs that have a time."""
    known = ValidatedRuns(
        ids=("a", "b", "c", "d", "e"),
        sources=np.array(["paper"] * 5),
        features={},
        errors=np.log([1.1, 0.8, 1.5, 9.0, 9.0]),
        unseen=np.zeros(5),
        accelerator_out=np.zeros(5),
        fitted=np.array([True, True, True, False, True]),
    )
    monkeypatch.setattr("shardwise.validate.measured.statistics.validated_runs", lambda: known)
    rows = [
        predicted("a", 10.0, 9.0, flops=4.0, interval=(8.0, 10.125)),  # a factor of 1.125
        predicted("b", 10.0, 9.0, flops=2.0, interval=(8.0, 11.16)),  # 1.24, below 1 / 0.8
        predicted("c", 10.0, 9.0, flops=2.0, kind="moe"),
        predicted("d", 1.0, 1.0, grade="B"),
        refused("e", "why"),
        predicted("f", 1.0, 1.0, flops=0.5, source="logs", count=1),  # MFU 0.5, not validated
    ]
    board = scoreboard(rows)
    told = board.to_dict()["summary"]["left_out"]
    # MFU of the rows 0.4, 0.2, 0.2 over 0.5 of the other source, less one.
    assert told["all"] == {
        "n": 3,
        "mape": pytest.approx(0.8 / 3),
        "median_ape": pytest.approx(0.2),
        "bias": pytest.approx(0.4 / 3),
        "p90": pytest.approx(0.44),
        "skill": pytest.approx(1 - 0.8 / 1.4),
        "coverage": 0.5,
    }
    assert (told["dense"]["n"], told["moe"]["n"]) == (2, 1)
    assert told["moe"]["coverage"] is None
    assert list(told) == ["all", "dense", "moe"]
    assert scoreboard(rows[3:]).to_dict()["summary"]["left_out"] == {}


def test_the_headline_tells_both(capsys):
    """Rows of runs whose source was left out, where there are such."""
    known = validated_runs()
    fitted = np.array(known.ids)[known.fitted]
    one = next(run for run in load_runs() if run.grade == "A" and run.id in fitted)
    print_runs(scoreboard([Prediction(run=one, step_time_s=1.0)]))
    out = capsys.readouterr().out
    assert "source left out: fitted runs (grade A)" in out
    assert any(
        line.split()[:5] == ["source", "left", "out", "all", "1"] for line in out.split("\n")
    )
    print_runs(scoreboard([predicted("x", 1.0, 1.0)]))
    assert "source left out: " not in capsys.readouterr().out
