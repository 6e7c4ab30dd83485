"""Whole runs of what a search found: first on the calendar, cheapest, and what failures change."""

import json

import pytest

from shardwise import InputError, Space, estimate, search
from shardwise.cli import run
from shardwise.config.system import System
from shardwise.planning.training_time import TrainingRun, with_training

pytestmark = pytest.mark.any_software

FIXED = {"pp": 1, "tp": [1, 2], "zero": 1, "recompute": "none", "fused_activation": False}
FAILING = {"accelerator_mtbf": "2000 h", "checkpoint_time": "60 s", "restart_time": "10 min"}
OFTEN = FAILING | {"accelerator_mtbf": "6 h", "restart_time": "1 h"}


def _found(gpus, reliability, *, tokens="100B", **more):
    asked = {"tokens": tokens, "reliability": reliability}
    return search("llama3-8b", "h100-sxm", Space(), run=asked, gpus=gpus, gbs=64, **FIXED, **more)


def test_each_of_the_best_has_its_run():
    """In the estimate itself, as `estimate` has it."""
    found = _found(8, FAILING, top=3)
    system = System.load("h100-sxm")
    asked = TrainingRun.load({"tokens": "100B", "reliability": FAILING})
    for one in found.best:
        alone = with_training(estimate("llama3-8b", system, one.strategy), system, asked)
        assert one.whole_run == alone.whole_run
    assert found.runs.of == "best"
    assert [r.strategy for r in found.runs.runs] == [b.strategy for b in found.best]


def test_on_one_number_of_gpus_failures_do_not_reorder_plans():
    """Every plan fails as often and writes the same bytes: all runs are longer by one factor."""
    found = _found(16, FAILING, top=20, fits=None)
    runs = [one.run for one in found.runs.runs]
    factors = [r.effective_days / r.days.expected for r in runs]
    assert len({one.strategy["tp"] for one in found.runs.runs}) > 1
    assert factors == pytest.approx([factors[0]] * len(factors))
    assert [r.step_time_s for r in runs] == sorted(r.step_time_s for r in runs)
    assert found.runs.order_is_of_steps


def test_across_scales_failures_can_change_which_is_first():
    """64 GPUs are faster; where a GPU fails each 6 h, 8 of them end first."""
    seldom, often = (_found([8, 64], known, top=1).runs for known in (FAILING, OFTEN))
    assert [one.run.gpus for one in seldom.runs] == [64, 8]
    assert [one.run.gpus for one in often.runs] == [8, 64]
    assert not often.order_is_of_steps
    assert (seldom.of, often.of) == ("scales", "scales")
    days = [one.run.effective_days for one in often.runs]
    assert days == sorted(days)
    for found in (seldom, often):
        prices = [one.run.effective_usd for one in found.runs]
        assert prices[found.cheapest] == min(prices)


def test_the_command_line_ranks_runs(capsys):
    """A table and its record; without figures of failures that is said."""
    words = [
        "search",
        "llama3-8b",
        "h100-sxm",
        "--gpus",
        "8,16",
        "--gbs",
        "64",
        "--top",
        "1",
        "--tokens",
        "100B",
    ]
    words += ["--fix", "pp=1,tp=2,zero=1,recompute=none"]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "Time to train on 100 B tokens" in out
    assert "failures and checkpoints are unknown" in out
    assert run([*words, "--mtbf", "500h", "--checkpoint-time", "60s", "--restart-time", "1h"]) == 0
    assert "effective days" in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [one["run"]["gpus"] for one in record["runs"]["runs"]] == [16, 8]
    assert record["best"][0]["whole_run"]["tokens_asked"] == 1e11


@pytest.mark.parametrize(
    "more",
    [
        ["--count"],
        ["--explain", "tp=1"],
        pytest.param(["--reference", "calculon"], marks=pytest.mark.needs("predecessors")),
    ],
)
def test_flags_of_a_run_need_a_search(more, capsys):
    """They are not ignored."""
    words = ["search", "llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "64", "--tokens", "1B"]
    assert run([*words, *more]) == 2
    assert "tokens" in capsys.readouterr().err


def test_forward_only_has_no_run():
    """Nothing is trained."""
    with pytest.raises(InputError, match="forward only"):
        _found(8, None, training=False, top=1)
