"""Measured runs predicted with the software as their sources name it."""

import json

import pytest

from measured_samples import refused
from shardwise.config.software.record import Software
from shardwise.config.software.resolve import resolve
from shardwise.validate.measured.predict import predict_as_typed, predict_runs
from shardwise.validate.measured.runs import read_runs
from shardwise.validate.measured.scoreboard import RunScore, scoreboard

RUN = {
    "id": "one",
    "model": "llama3-8b",
    "system": "h100-sxm",
    "stack": "unknown",
    "strategy": {"gpus": 8, "tp": 2, "gbs": 16, "grad_sync": "step"},
    "measured": {"step_time_s": 1},
}


def runs_of(tmp_path, *runs):
    """Runs of a file."""
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"runs": list(runs)}))
    return read_runs(path)


def test_what_a_source_says_replaces_the_stack_and_what_follows_from_it(tmp_path):
    """Words, or the fields of a description; a run that names no software stays as it is."""
    words = RUN | {"software": "Megatron-Core 0.12", "unstated": ["grad_sync"]}
    fields = words | {"id": "two", "software": {"trainer": "megatron-lm", "release": "0.12"}}
    said, typed, plain = runs_of(tmp_path, words, fields, RUN | {"id": "three"})
    assert (said.software.trainer, said.software.release) == ("megatron-lm", "0.12")
    assert typed.software == Software(trainer="megatron-lm", release="0.12")
    for run in (said, typed):
        some = run.as_typed()
        match = resolve(run.software, run.system, run.model)
        assert [weight for weight, _ in some] == [one.weight for one in match.candidates]
        assert [one.strategy.stack for _, one in some] == [c.stack for c in match.candidates]
        assert all("grad_sync" not in one.strategy.model_fields_set for _, one in some)
        assert all(one.strategy.tp == 2 for _, one in some)
    assert plain.as_typed() == ((1.0, plain),)


def test_the_interval_holds_all_that_may_be_meant(tmp_path):
    """The time is that of the most probable software; of one candidate it is its own estimate."""
    several = RUN | {"software": "torchtitan 0.2", "id": "several"}
    (run, plain) = runs_of(tmp_path, several, RUN)
    each = predict_runs([one for _, one in run.as_typed()])
    assert len(each) > 1
    typed, same = predict_as_typed([run, plain])
    assert (typed.run, typed.step_time_s) == (run, each[0].step_time_s)
    lows, highs = zip(*(one.interval for one in each), strict=True)
    assert min(lows) <= typed.interval[0] <= each[0].step_time_s
    assert typed.interval[1] <= max(highs)
    assert same == predict_runs([plain])[0]


def test_a_run_without_a_prediction_keeps_its_reason():
    """As typed too."""
    one = refused("a", "not modeled").run.model_copy(update={"refused": "not modeled"})
    assert [found.refused for found in predict_as_typed([one])] == ["not modeled"]


def test_the_command_scores_either_path(tmp_path, shardwise):
    """`--as-typed` predicts what the words of the source mean."""
    runs_of(tmp_path, RUN | {"software": "Megatron-Core 0.12"})
    words = ("validate", "runs", "--data", tmp_path / "runs.json", "--json")
    times = []
    for more in ((), ("--as-typed",)):
        code, out, _ = shardwise(*words, *more)
        assert code == 0
        times.append(json.loads(out)["rows"][0]["predicted_step_time_s"])
    assert times[0] != times[1]
    assert shardwise("validate", "seqsel", "--as-typed")[0] == 2


def test_the_mean_of_sources_counts_each_once(tmp_path):
    """Whatever their runs: one source of two runs, one of one."""
    rows = [RUN | {"id": str(n), "source": "ab"[n // 2]} for n in range(3)]
    rows[2] = rows[2] | {"measured": {"step_time_s": 2}}
    board = scoreboard(predict_runs(runs_of(tmp_path, *rows)))
    one, other = board.groups["source"].values()
    mean = RunScore.mean([one, other])
    assert mean.errors.n == 2
    assert mean.errors.mape == pytest.approx((one.errors.mape + other.errors.mape) / 2)
    assert mean.coverage == pytest.approx((one.coverage + other.coverage) / 2)
