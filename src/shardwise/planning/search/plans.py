"""Turn the findings of a search into the plans of its result.

Plans by rank, scale, chart cell and level; which of the best are tied; and training runs.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from shardwise.analysis.features import unmeasured_features
from shardwise.analysis.prediction_interval import distinguishable_ratio, interval_of, separable
from shardwise.arrays import Ints
from shardwise.config.degrees import LEVELLED_AXES, levels_text
from shardwise.config.model import Model
from shardwise.config.strategy_fields import EXPERT_DEGREES, REPLICA_DEGREES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import distinct_rows
from shardwise.errors import InputError
from shardwise.estimator import estimate, estimate_many
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.placement import place
from shardwise.planning.search.candidates import Candidates, Scale, refusals
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import dollars_per_token, top
from shardwise.planning.search.results import (
    Cell,
    LevelsPlan,
    Nearest,
    Plan,
    PlanRun,
    RankedPlan,
    ScaleResult,
    SearchResult,
    Ties,
    TrainingRuns,
)
from shardwise.planning.search.scan import Findings
from shardwise.planning.search.space import Space
from shardwise.planning.search.variants import Lines, settings_of
from shardwise.planning.training_time import TrainingRun, with_training

LEVELS_AXES = ("gpus", "global_batch_size", *REPLICA_DEGREES, *EXPERT_DEGREES, "extents")
"""Fields that determine the levels; several of their values may give the same levels."""

# Parts of a step that vary most among validated runs: overlap of communication, and waiting.
_UNCERTAIN = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "offload", "bubble", "other")


def interval_factors(model: Model, system: System, table: Table) -> list[float | None]:
    """Return the error range of each strategy: a measured time is within time / f and time x f.

    None forward only. Where figures of a system vary, the range is that of the system as it is.
    """
    counted = count_parameters(model)
    found: list[float | None] = []
    for row in range(len(table)):
        unmeasured = len(unmeasured_features(model, table.take(np.array([row]))))
        strategy = table.strategy(row)
        unit = interval_of(model, system, strategy, 1.0, counted, unmeasured=unmeasured)
        found.append(None if unit is None else unit.high_s)
    return found


def interval_fields(time_s: float, factor: float | None) -> dict[str, float]:
    """Return the fields of a plan that say its range: none without one."""
    if factor is None:
        return {}
    return {"interval_low_s": time_s / factor, "interval_high_s": time_s * factor}


def plans_of(query: SearchQuery, candidates: Candidates, numbers: Ints) -> tuple[Plan, ...]:
    """Return candidates by number as plans."""
    if not len(numbers):
        return ()
    rows = candidates.strategies(numbers)
    table = estimate_many(query.model, query.system, rows)
    usd: list[float | None] = [None] * len(table)
    if query.system.price is not None:
        usd = (dollars_per_token(table.step_time_s, rows, query.system) * 1e9).tolist()
    factors = interval_factors(query.model, query.system, rows)
    return tuple(
        Plan(
            strategy=rows.strategy(i).to_dict(),
            step_time_s=float(table.step_time_s[i]),
            tokens_per_s=float(table.tokens_per_s[i]),
            tokens_per_s_per_gpu=float(table.tokens_per_s[i]) / int(rows.gpus[i]),
            mfu=float(table.mfu[i]),
            memory_reserved_bytes=float(table.memory_reserved_bytes[i]),
            usd_per_billion_tokens=usd[i],
            **interval_fields(float(table.step_time_s[i]), factors[i]),
        )
        for i in range(len(table))
    )


def ranked_plans(
    query: SearchQuery, candidates: Candidates, lines: Lines
) -> tuple[RankedPlan, ...]:
    """Return the lines of a ranking as full estimates; the first ones if interrupted."""
    if not len(lines.number):
        return ()
    rows = candidates.strategies(lines.number)
    settings = settings_of(query.model, rows)
    found = []
    with suppress(KeyboardInterrupt):
        for i, best_s in enumerate(lines.best_step_time_s):
            one = estimate(query.model, query.system, rows.strategy(i))
            line: dict[str, Any] = {
                "variants": int(lines.variants[i]),
                "best_step_time_s": best_s,
                "settings": settings[i],
            }
            found.append(RankedPlan.extending(one, **line))
    return tuple(found)


def best_by_scale(
    query: SearchQuery, candidates: Candidates, by_scale: Mapping[Scale, Findings]
) -> tuple[ScaleResult, ...]:
    """Return the best plan of every scale; speedup is over the first scale that has a plan."""
    if len(by_scale) == 1:
        return ()
    first: Plan | None = None
    found = []
    for scale, findings in by_scale.items():
        best = next(iter(plans_of(query, candidates, findings.best.number[:1])), None)
        illegal = refusals([box for box in candidates.illegal if box.scale == scale])
        first = first or best
        speedup = efficiency = None
        if first is not None and best is not None:
            speedup = best.tokens_per_s / first.tokens_per_s
            efficiency = best.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu
        found.append(
            ScaleResult(
                gpus=scale.gpus,
                global_batch_size=scale.global_batch_size,
                candidates=candidates.number_at(scale),
                feasible=findings.feasible,
                rejected=dict((findings.rejected + illegal).most_common()),
                best=best,
                speedup=speedup,
                efficiency=efficiency,
            )
        )
    return tuple(found)


def best_by_cell(
    query: SearchQuery, candidates: Candidates, findings: Findings
) -> tuple[Cell, ...]:
    """Return the best plan of each combination of values of the axes."""
    return tuple(
        Cell(values={axis: plan.strategy[axis] for axis in query.axes}, plan=plan)
        for plan in plans_of(query, candidates, findings.cells.number)
    )


def nearest_of(query: SearchQuery, candidates: Candidates, findings: Findings) -> Nearest | None:
    """Return the strategy that exceeds memory by least, where nothing is feasible."""
    if findings.feasible or not len(findings.nearest):
        return None
    strategy = candidates.strategies(findings.nearest.number).strategy(0)
    tier = query.system.accelerator.memory[int(findings.nearest.second[0])]
    excess = float(findings.nearest.score[0])
    return Nearest(strategy=strategy.to_dict(), tier=tier.name, excess_bytes=excess)


def levels_space(space: Space, axes: Sequence[str]) -> Space:
    """Return the space with every way to fill the domains.

    With it the best plan of each combination of degrees, extents, accelerators and batch is exact.
    """
    if axes:
        problem = "contradicts levels, which has its own axes; choose one"
        raise InputError.of("axes", ",".join(axes), problem)
    if space.extents not in (None, "all"):
        problem = "contradicts levels, which tries all extents; choose one"
        raise InputError.of("extents", space.extents[0], problem)
    return space.fixed({"extents": "all"}, source="search")


def best_by_level(
    query: SearchQuery, candidates: Candidates, findings: Findings
) -> tuple[LevelsPlan, ...]:
    """Return the best plan of each combination of levels, accelerators and batch.

    Best first, at most `query.top`. The findings have `LEVELS_AXES` as their axes.
    """
    numbers = top(findings.cells, len(findings.cells)).number
    if not len(numbers):
        return ()
    rows = candidates.strategies(numbers)
    extents = place(query.system, rows)
    columns = [column for axis in LEVELLED_AXES for column in getattr(extents, axis)]
    firsts, _ = distinct_rows([rows.gpus, rows.global_batch_size, *columns])
    chosen = np.sort(firsts)[: query.top]
    plans = plans_of(query, candidates, numbers[chosen])
    by_axis = {axis: getattr(extents, axis)[:, chosen].T.tolist() for axis in LEVELLED_AXES}
    return tuple(
        LevelsPlan(
            levels={axis: _levels_text(by_axis[axis][row]) for axis in LEVELLED_AXES}, plan=plan
        )
        for row, plan in enumerate(plans)
    )


def _levels_text(extents: Sequence[int]) -> str:
    """Members that each tier adds, from the innermost outward, as in ``2x16``."""
    return levels_text([n // inner for n, inner in zip(extents, [1, *extents[:-1]], strict=True)])


def ties_of(best: Sequence[RankedPlan], objective: str = "step_time") -> Ties | None:
    """Return how many of the first plans measurements cannot separate, and how to order them.

    By features that no measured run used, then by settings, then by rank. None where the best
    stands out, and for forward passes, of which no runs were measured.
    """
    if not best or not best[0].strategy["training"]:
        return None
    figure = "step_time_s" if objective == "step_time" else "tokens_per_s_per_gpu"
    count = separable([getattr(plan, figure) for plan in best])
    if count == 1:
        return None

    def key(position: int) -> tuple[int, int, int]:
        plan = best[position]
        return len(plan.unmeasured_features), len(plan.settings), position

    order = sorted(range(count), key=key)
    safer = best[order[0]]
    return Ties(
        plans=count,
        within=distinguishable_ratio() - 1,
        safer=order[0],
        untried=tuple(
            one for one in best[0].unmeasured_features if one not in safer.unmeasured_features
        ),
        uncertain=sum(safer.time_s[part] for part in _UNCERTAIN) / safer.step_time_s,
        order=tuple(order),
    )


def with_training_runs(
    result: SearchResult, model: Model, system: System, run: TrainingRun
) -> SearchResult:
    """Return the result with a training run for each of the best plans, ranked by calendar time.

    The search itself optimizes steps, so this ranks its plans and not the full space: the best of
    each number of accelerators and batch, where there are several, else the best it returns. On
    one number of accelerators, with one type and optimizer, nothing is lost: failures come as
    often and checkpoints are as large with any plan, a run takes its steps times the same factor,
    and the order is that of tokens/s.

    Raises
    ------
    InputError
        If there can be no training run, as without training.
    """
    best = tuple(with_training(found, system, run) for found in result.best)
    plans = [scale.best.strategy for scale in result.scales if scale.best is not None]
    ranked = [with_training(estimate(model, system, plan), system, run) for plan in plans] or best
    runs = sorted(
        (PlanRun(strategy=e.strategy, run=e.whole_run) for e in ranked if e.whole_run is not None),
        key=lambda one: one.run.effective_days,
    )
    prices = [one.run.effective_usd for one in runs]
    known = [(price, position) for position, price in enumerate(prices) if price is not None]
    goodputs = [one.run.goodput for one in runs]
    overheads = {
        None if g is None else (g.job_mtbf_s, g.checkpoint_bytes, g.interval_s) for g in goodputs
    }
    training_runs = TrainingRuns(
        of="scales" if plans else "best",
        runs=tuple(runs),
        cheapest=min(known)[1] if known else None,
        order_is_of_steps=len(overheads) <= 1,
    )
    return result.model_copy(update={"best": best, "runs": training_runs})
