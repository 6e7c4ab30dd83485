"""The order of plans by the 80 % quantile, and the plan that a search recommends."""

from typing import Any

import pytest

from shardwise import Model, SearchResult, System, search
from shardwise.analysis.measured_plans import MeasuredPlan
from shardwise.planning.search import bounded, pieces, scan
from shardwise.planning.search.results import RankedPlan
from shardwise.planning.search.robust import CLAIM, measured_ceilings

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
    monkeypatch.setattr(bounded, "_FIRST_BATCH", 1)
    monkeypatch.setattr(pieces, "_FIRST_LAYOUTS", 1)
    found = search(*CASE, all_variants=True, bounds=bounds, top=TOP, **MIXTURE)
    assert (found.timed < every.feasible) == bounds
    expected = sorted(score(plan, ceiling) for plan in every.best)[:TOP]
    assert [score(plan, ceiling) for plan in found.advised] == pytest.approx(expected, rel=1e-9)
    assert [plan.step_time_s for plan in found.best] == [p.step_time_s for p in every.best[:TOP]]
    of_mean = [dict(plan.strategy) for plan in found.best]
    assert any(dict(plan.strategy) not in of_mean for plan in found.advised)
