"""Predecessors on measured runs: in whose words which runs are put, and what is refused why."""

import math

import pytest

from rows import each_row
from shardwise import Strategy
from shardwise.predecessors.amped.translation import amped_case
from shardwise.predecessors.calculon.translation import calculon_case
from shardwise.predecessors.nersc.translation import nersc_case
from shardwise.predecessors.validate.references import references
from shardwise.predecessors.validate.simumax import Measured
from shardwise.validate.measured.predict import predict_runs
from shardwise.validate.measured.runs import load_runs
from shardwise.validate.measured.statistics import ReferencePrediction

RUNS = {run.id: run for run in load_runs()}


def _told(*names):
    return references(predict_runs([RUNS[name] for name in names]))


def _changed(run, **fields):
    strategy = run.strategy.model_dump(exclude_unset=True) | fields
    return run.model_copy(update={"strategy": Strategy.validated(strategy)})


def _refused(name, of):
    (pair,) = _told(name)[of]
    assert pair.theirs_s is None
    return pair.refused


@each_row("mode", ["full", "present"])
def test_calculon_says_of_a_row_what_it_says_of_the_paper(mode):
    """Seconds that Calculon 0.1.0 prints for table 5, from the row instead of its own files."""
    (pair,) = _told(f"korthikanti22-t5-530B-{mode}")["calculon"]
    assert pair.theirs_s == pytest.approx({"full": 49.8926, "present": 34.4728}[mode], rel=1e-5)
    assert pair.measured_s == {"full": 49.05, "present": 37.83}[mode]
    assert pair.ours_s == predict_runs([RUNS[pair.id]])[0].step_time_s


def test_calculon_takes_bf16_as_fp16():
    """Its files have no rate of bf16; a run of either takes as long."""
    run = RUNS["korthikanti22-t5-22B-full"]
    (half,), (brain,) = (
        references(predict_runs([_changed(run, dtype=kind)]))["calculon"]
        for kind in ("fp16", "bf16")
    )
    assert brain.theirs_s == half.theirs_s == pytest.approx(1.39560, rel=1e-5)


def test_nersc_answers_on_our_system():
    """A dense GPT of one kind of layer, without recompute, as `--also` does."""
    name = "megatron-readme-h100-weak-7.1b"
    (pair,) = _told(name)["nersc"]
    said = RUNS[name].case()
    case = nersc_case(said.model, said.system, said.strategy)
    assert pair.theirs_s == case.answer()["t"]
    assert math.isfinite(pair.theirs_s)


def test_amped_answers_on_our_system():
    """A dense GPT of one kind of layer, at 0.51 of the peak; recompute is refused."""
    name = "megatron-readme-h100-weak-7.1b"
    (pair,) = _told(name)["amped"]
    said = RUNS[name].case()
    case = amped_case(said.model, said.system, said.strategy)
    assert pair.theirs_s == case.answer()["Total time to train (s)"]
    assert pair.theirs_s == pytest.approx(pair.measured_s, rel=0.1)
    assert _refused("korthikanti22-t5-22B-full", "amped").startswith(
        "strategy: recompute: 'full': AMPeD does not know it"
    )


def test_what_cannot_be_expressed_has_its_reason():
    """A lack of words, of a machine, or of memory."""
    gated = _refused("simumax-b200-llama3_70b_l12_tp1_pp2_dp4_mbc4_cef", "nersc")
    assert "knows no gated MLP" in gated
    assert "has keys and values of its own for each head" in gated
    assert _refused("simumax-b200-llama3_70b_l12_tp1_pp2_dp4_mbc4_cef", "calculon") == (
        "Calculon has no file of b200-sxm"
    )
    sizes = {"micro_batch_size": 16, "global_batch_size": 16}
    full = _changed(RUNS["korthikanti22-t5-22B-full"], recompute="none", **sizes)
    (pair,) = references(predict_runs([full]))["calculon"]
    said = full.case()
    answer = calculon_case(said.model, "calculon-a100-80g", said.strategy).answer()
    assert (pair.theirs_s, pair.refused) == (None, answer["message"])


def test_runs_that_we_refuse_are_asked_of_nobody():
    """There is nothing to put beside."""
    name = next(run.id for run in load_runs() if run.task == "pretrain-total")
    assert _told(name) == {"calculon": (), "nersc": (), "amped": ()}


def test_simumax_says_what_it_published():
    """Of its rows by their id, and with any of them of the 20 steps on its A100 server."""
    ours = [run for run in load_runs() if run.source == "SimuMax measured runs"]
    found = references(predict_runs(ours))
    measured = Measured.load("simumax")
    theirs = {f"simumax-b200-{run.id}_cef": run.their_step_s for run in measured.runs}
    assert len(found["simumax"]) == len(ours) == 30
    assert all(pair.theirs_s == theirs[pair.id] for pair in found["simumax"])
    last = next(run for run in measured.runs if run.id == "llama3-8b_l32_tp8_mbc32")
    assert found["simumax-a100"][-1] == ReferencePrediction(
        id="simumax-a100-llama3-8b_l32_tp8_mbc32",
        measured_s=27.56859,
        ours_s=measured.estimated(last, 1.0).step_time_s,
        theirs_s=27.7775,
    )
    assert len(found["simumax-a100"]) == 20
    assert "simumax" not in _told("korthikanti22-t5-22B-full")
