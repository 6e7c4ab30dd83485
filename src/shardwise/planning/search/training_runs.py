"""Whole runs of what a search found: which ends first on the calendar, and which is cheapest.

The search itself knows steps only, so this is a ranking of its results and not of its whole space:
of the best of each number of accelerators and batch, where there are several, else of the best
that it returns. On one number of accelerators, with one type and optimizer, that is no loss:
failures come as often and checkpoints are as large whatever the plan (`whole_run`), a run takes
its steps times the same factor, and the order is that of tokens/s.
"""

from collections.abc import Sequence
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.estimator import estimate
from shardwise.planning.search.results import PlanRun, SearchResult, TrainingRuns
from shardwise.planning.training_time import Run, with_training

__all__ = ["with_training_runs"]


def with_training_runs(
    result: SearchResult, model: Model, system: System, run: Run
) -> SearchResult:
    """The same result with the run of each of the best, and all runs in order of the calendar.

    Raises
    ------
    InputError
        If the run cannot be, as without training.
    """
    best = tuple(with_training(found, system, run) for found in result.best)
    plans: Sequence[dict[str, Any]] = [
        scale.best.strategy for scale in result.scales if scale.best is not None
    ]
    ran = [with_training(estimate(model, system, plan), system, run) for plan in plans] or best
    runs = sorted((_plan_run(found) for found in ran), key=lambda one: one.run.effective_days)
    prices = [one.run.effective_usd for one in runs]
    known = [(price, place) for place, price in enumerate(prices) if price is not None]
    whole = TrainingRuns(
        of="scales" if plans else "best",
        runs=tuple(runs),
        cheapest=min(known)[1] if known else None,
        order_is_of_steps=_same_factor(runs),
    )
    return result.model_copy(update={"best": best, "runs": whole})


def _plan_run(found: Estimate) -> PlanRun:
    assert found.whole_run is not None  # noqa: S101 - `with_training` put it there
    return PlanRun(strategy=found.strategy, run=found.whole_run)


def _same_factor(runs: Sequence[PlanRun]) -> bool:
    """Whether failures and checkpoints make all runs longer by one factor."""

    def key(run: TrainingTime) -> tuple[float, ...]:
        found = run.goodput
        return () if found is None else (found.job_mtbf_s, found.checkpoint_bytes, found.interval_s)

    return len({key(one.run) for one in runs}) <= 1
