"""The order of plans by the 80 % quantile, and the plan that a search recommends."""

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from shardwise import Model, SearchResult, System, search
from shardwise.analysis.measured_plans import MeasuredPlan, MeasuredRow, best_measured
from shardwise.analysis.plan_classes import class_evidence
from shardwise.analysis.prediction_interval import distinguishable_ratio
from shardwise.analysis.saved_plan import read_plan
from shardwise.config.strategy import Strategy
from shardwise.planning.search import bounded, pieces, scan
from shardwise.planning.search.recommend import fastest_probability, safer_plan
from shardwise.planning.search.results import RankedPlan
from shardwise.planning.search.robust import CLAIM, measured_ceilings
from shardwise.report.tables.search import print_search

MIXTURE: dict[str, Any] = {
    "gpus": 16,
    "gbs": 64,
    "tp": [1, 2],
    "pp": [1, 2],
    "cp": 1,
    "ep": [8, 16],
    "vpp": 1,
    "micro_batch_size": 1,
    "zero": [1, 2, 3],
    "recompute": "full",
    "expert_overlap": [False, True],
}


def score(plan: RankedPlan, ceiling: MeasuredPlan) -> float:
    """The quantile of a plan; beyond the ceiling, of a class that nobody measured, as at it."""
    assert plan.step_time_p80_s is not None
    limit = plan.mfu * plan.step_time_s / (CLAIM * ceiling.mfu)
    counted = plan.step_time_s
    if not plan.measured_configurations and counted < limit:
        counted = limit - 0.001 * (limit - counted)
    return counted * plan.step_time_p80_s / plan.step_time_s


TOP = 4
CASE = ("qwen3-30b-a3b", "h100-sxm")


@pytest.fixture(scope="module")
def every() -> SearchResult:
    """Every plan of a small space that fits, by the mean."""
    found = search(*CASE, objective="step_time", all_variants=True, top=1000, **MIXTURE)
    assert found.feasible == len(found.best) > 40
    return found


@pytest.mark.parametrize("bounds", [False, True])
def test_the_best_by_quantile_are_those_of_all_plans(
    every: SearchResult, bounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every plan that fits, the few with the least quantile are found, with bounds or without.

    Some of them are not among those with the least mean.
    """
    model, system = Model.load(CASE[0]), System.load(CASE[1])
    ceiling = measured_ceilings(model, system, ["bf16"])["bf16"]
    # So that claims beyond the ceiling matter, one that half of the plans exceed.
    ceiling = ceiling.model_copy(update={"mfu": every.best[len(every.best) // 2].mfu / CLAIM})
    monkeypatch.setattr(
        "shardwise.planning.search.robust.measured_ceilings", lambda *_: {"bf16": ceiling}
    )
    monkeypatch.setattr(pieces, "FEW_CANDIDATES", 0)
    monkeypatch.setattr(scan, "_FIRST_TIMED", 1)  # so that limits leave out what follows
    monkeypatch.setattr(bounded, "_FIRST_ROWS", 1)
    monkeypatch.setattr(pieces, "_FIRST_LAYOUTS", 1)
    found = search(*CASE, all_variants=True, bounds=bounds, top=TOP, **MIXTURE)
    assert (found.timed < every.feasible) == bounds
    expected = sorted(score(plan, ceiling) for plan in every.best)[:TOP]
    assert len(found.advised) == TOP
    assert [score(plan, ceiling) for plan in found.advised] == pytest.approx(expected, rel=1e-9)
    assert [plan.step_time_s for plan in found.best] == [p.step_time_s for p in every.best[:TOP]]
    of_mean = [dict(plan.strategy) for plan in found.best]
    assert any(dict(plan.strategy) not in of_mean for plan in found.advised)


CLAIMS: dict[str, Any] = {
    "gpus": 512,
    "gbs": 4096,
    "tp": [1, 2],
    "pp": 1,
    "cp": 1,
    "ep": [128, 256],
    "micro_batch_size": 1,
    "expert_overlap": "all",
    "top": 3,
}
"""Around the plan that has the least mean: ZeRO-3, one stage, experts over 256 GPUs."""


@pytest.fixture(scope="module")
def claimed() -> SearchResult:
    """A search whose plans claim more than anyone measured on Hopper in bf16."""
    return search("deepseek-v3", "h200-sxm", **CLAIMS)


def test_a_claim_beyond_what_was_measured_is_not_recommended(claimed: SearchResult) -> None:
    """The plan to run is of a measured class; the one with the least mean is not."""
    plan = claimed.recommended
    assert plan is not None
    assert plan.measured_configurations
    assert not plan.beyond_measured
    assert claimed.best[0].measured_configurations == 0
    assert claimed.best[0].mfu > plan.mfu


def test_by_the_mean_on_request(claimed: SearchResult, capsys: pytest.CaptureFixture[str]) -> None:
    """With an objective its mean orders; a claim beyond what was measured is the first line."""
    found = search("deepseek-v3", "h200-sxm", objective="step_time", **CLAIMS)
    assert found.advised == ()
    plan = found.recommended
    assert plan is not None
    assert plan.strategy == found.best[0].strategy == claimed.best[0].strategy
    assert plan.strategy != claimed.advised[0].strategy
    assert plan.best_measured is not None
    assert plan.over_measured is not None
    assert (plan.best_measured.same_model, plan.best_measured.precision) == (True, "bf16")
    assert plan.beyond_measured
    assert plan.over_measured > CLAIM - 1
    assert plan.mfu / plan.best_measured.mfu == pytest.approx(1 + plan.over_measured)
    print_search(found)
    lines = "".join(capsys.readouterr().out.splitlines())
    warning, _, rest = lines.partition("run:")
    assert "warning:  beyond what was measured: " in warning
    assert plan.best_measured.id in warning
    assert "measured: " in rest


def test_a_saved_search_is_the_same(claimed: SearchResult, tmp_path: Path) -> None:
    """As JSON and back; without what is new, as files of earlier versions; plan 1 is the advice."""
    saved = json.loads(json.dumps(claimed.to_dict()))
    assert SearchResult.read(saved) == claimed
    new = ("recommended", "safer", "nearest_measured", "advised")
    older = SearchResult.read({name: v for name, v in saved.items() if name not in new})
    assert (older.recommendation, older.rows) == (None, claimed.best)
    file = tmp_path / "found.json"
    file.write_text(json.dumps(saved))
    assert read_plan(str(file)).estimate.strategy == claimed.advised[0].strategy
    assert read_plan(f"{file}#2").estimate.strategy == claimed.advised[1].strategy


@pytest.mark.parametrize("gap", [0.0, 0.05, 0.2])
def test_how_sure_the_fastest_of_two_is(gap: float) -> None:
    """Of one class they differ by the error of a pair, of others by those of their classes, too."""
    pair = np.log(distinguishable_ratio()) / 1.2816
    times = np.exp([0.0, gap])
    same = fastest_probability(times, np.array([0, 0]))
    assert same == pytest.approx(NormalDist().cdf(gap / pair), abs=0.01)
    unmeasured = np.flatnonzero(class_evidence().configurations == 0)[-2:]
    classes = class_evidence().deviation[unmeasured]
    others = NormalDist().cdf(gap / np.sqrt(pair**2 + np.sum(classes**2)))
    assert fastest_probability(times, unmeasured) == pytest.approx(others, abs=0.01)


def test_the_best_measured_run_of_a_model_or_its_nearest_relative() -> None:
    """By MFU, of one generation and precision; a relative has at most twice the parameters."""
    model, system = Model.load("llama3-70b"), System.load("h100-sxm")
    plan = MeasuredRow.of(model, system, Strategy(gpus=8, gbs=8).resolved(model, system))

    def run(name: str, mfu: float, **changes: Any) -> MeasuredRow:
        values = {field: getattr(plan, field) for field in plan.__slots__}
        return MeasuredRow(**(values | {"id": name, "mfu": mfu} | changes))

    runs = [
        run("slow", 0.3),
        run("other precision", 0.6, precision="fp8"),
        run("other generation", 0.6, generation="blackwell"),
        run("relative", 0.5, hidden=1, active=0.6 * plan.active, parameters=0.6 * plan.parameters),
        run("too small", 0.7, hidden=2, active=0.4 * plan.active, parameters=0.4 * plan.parameters),
    ]
    for known, name, same in (
        ([*runs, run("fast", 0.4)], "fast", True),
        (runs[1:], "relative", False),
    ):
        best = best_measured(plan, known)
        assert best is not None
        assert (best.id, best.same_model) == (name, same)
    assert best_measured(plan, runs[1:3]) is None


@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ((0.92, 0.91, 0.995), (3, 0.995)),
        ((0.92, 0.97, 0.91), (2, 0.97)),
        ((0.92, 0.92, 0.925), None),
        ((0.995, 0.999, 0.999), None),
    ],
)
def test_a_safer_plan(
    claimed: SearchResult,
    chances: tuple[float, ...],
    expected: tuple[int, float] | None,
) -> None:
    """The fastest that fits with 99 %, else the one that fits most likely, with its price."""
    pairs = zip(claimed.advised, chances, strict=True)
    rows = [plan.model_copy(update={"fits_probability": chance}) for plan, chance in pairs]
    found = safer_plan(rows)
    assert (found and (found.rank, found.fits_probability)) == expected
    if found is not None:
        times = (rows[found.rank - 1].step_time_s, rows[0].step_time_s)
        assert found.price == pytest.approx(times[0] / times[1] - 1)
