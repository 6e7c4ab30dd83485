"""Suites and rows that are the same measured runs: one strategy and stack, one prediction."""

import pytest

from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.estimator import estimate
from shardwise.predecessors.validate.seqsel import Published
from shardwise.predecessors.validate.simumax import Measured
from shardwise.validate import validate
from shardwise.validate.measured.predict import predict_runs
from shardwise.validate.measured.runs import load_runs

RUNS = {run.id: run for run in load_runs()}
PAPER = {
    f"korthikanti22-t5-{size}-{row}": (model, mode)
    for size, model in {
        "22B": "megatron-22b", "175B": "gpt3-175b", "530B": "turing-530b", "1T": "megatron-1t",
    }.items()
    for row, mode in (("full", "full"), ("present", "seqsel"))
}  # fmt: skip
SIMUMAX = [run for run in RUNS.values() if run.source == "SimuMax measured runs"]


def _case(run):
    return run.id.removeprefix("simumax-b200-").removesuffix("_cef")


def _steps(suite, part):
    return {row.case: row for row in next(p for p in validate(suite).parts if p.name == part).rows}


@pytest.fixture(scope="module")
def paper():
    """Rows of table 5 that are among the runs: all but one."""
    return {name: case for name, case in PAPER.items() if name in RUNS}


def test_seven_of_eight_steps_of_the_paper_are_rows(paper):
    """The full recompute of 175 billion parameters is not."""
    assert set(PAPER) - set(paper) == {"korthikanti22-t5-175B-full"}


def test_the_paper_is_run_in_one_way(paper):
    """Model, system, strategy and stack of the suite are those that the rows are translated to."""
    published = Published.load("seqsel")
    for name, (model, mode) in paper.items():
        said, own = RUNS[name].case(), Model.load(model)
        layout = published.models[model].to_dict() | published.modes[mode].to_dict()
        del layout["calculon"]
        layout |= {"dtype": published.dtype, "stack": published.stack, "dp": 1, "zero": 0}
        layout["any_software"] = True
        assert said.system.name == published.system
        assert said.strategy.resolved(said.model) == Strategy.validated(layout).resolved(own)
        assert said.model.layers == own.layers
        assert said.model.dropout
        assert own.dropout


def test_the_paper_has_one_prediction(paper):
    """A padded vocabulary is the same whether rows print it so or not."""
    rows = _steps("seqsel", "tab5_step_time")
    for one in predict_runs([RUNS[name] for name in paper]):
        row = rows[" ".join(PAPER[one.run.id])]
        assert one.measured_step_time_s == row.reference
        assert one.step_time_s == pytest.approx(row.ours, rel=1e-9)


@pytest.mark.nightly
def test_the_runs_of_simumax_have_one_prediction():
    """Steps and peaks, to rounding, of all 30 rows: flags of the runs, and no figure of its own."""
    suite = validate("simumax")
    steps, peaks = (
        {row.case: row for row in next(p for p in suite.parts if p.name == name).rows}
        for name in ("b200_step", "b200_peak")
    )
    assert len(SIMUMAX) == 30
    for one in predict_runs(SIMUMAX):
        step, peak = steps[_case(one.run)], peaks[_case(one.run)]
        assert one.measured_step_time_s == pytest.approx(step.reference)
        assert one.step_time_s == pytest.approx(step.ours, rel=1e-9)
        assert one.memory_gib == pytest.approx(peak.ours, rel=1e-9)


def test_both_servers_of_simumax_run_the_same_software():
    """But for their loss, which one of them fuses: no fixed time, no traffic of their own."""
    servers = Measured.load("simumax").servers
    b200, a100 = servers["b200"].stack, servers["a100"].stack
    assert {field for field in b200 if b200[field] != a100[field]} == {
        "loss", "loss_figures", "loss_forward_bytes", "loss_backward_bytes", "loss_saved_bytes",
    }  # fmt: skip
    assert set(b200) == set(a100)
    said = SIMUMAX[0].case().strategy.stack
    strategy = Strategy.validated({"gpus": 8, "gbs": 8, "stack": b200})
    assert strategy.stack == said


def test_one_estimate_of_a_row_is_that_of_the_table():
    """Rows of one model on one system go through the tables of a search."""
    run = SIMUMAX[0]
    said = run.case()
    (one,) = predict_runs([run])
    alone = estimate(said.model, said.system, said.strategy)
    assert one.step_time_s == pytest.approx(alone.step_time_s, rel=1e-12)
