"""The plan that a search recommends: how sure it is, why it, and what is next to it."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwise import registry
from shardwise.analysis.measured_plans import MeasuredRow, best_measured, nearest_measured
from shardwise.analysis.plan_classes import PlanClass, class_codes, class_evidence
from shardwise.analysis.prediction_interval import distinguishable_ratio
from shardwise.analysis.variation import NORMAL_QUANTILE
from shardwise.arrays import Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import FIELDS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.engine.step_time import TIME_PARTS
from shardwise.planning.nearest import plan_words
from shardwise.planning.search.results import (
    FieldChange,
    RankedPlan,
    RecommendedPlan,
    RunnerUp,
    SaferPlan,
    SearchResult,
)
from shardwise.planning.search.robust import CLAIM

# Random numbers for each plan: the probability is exact to half a percent.
_DRAWS = 1 << 14
# Plans that may be the fastest; later ones hardly are.
_MOST_RIVALS = 20
# A safer plan fits with this probability, or as likely as any, and more likely than the first.
_SAFE, _SAFER_BY = 0.99, 0.01
_PARTS_NAMED = 2
# Plans closer than this are as fast.
_EQUAL = 5e-4
_FIELDS_NAMED = 4


def with_recommendation(
    result: SearchResult, model: Model, system: System, *, names: Sequence[str]
) -> SearchResult:
    """Return a result with the plan to run, a safer one and the nearest measured one.

    Parameters
    ----------
    names
        Model and system as the user wrote them.
    """
    if not result.rows:
        return result
    first, *others = result.rows
    strategies = [Strategy.validated(plan.strategy) for plan in result.rows]
    codes = class_codes(model, system, Table.of(model, strategies, system.stack))
    own = MeasuredRow.of(model, system, strategies[0])
    best = best_measured(own) if first.strategy["training"] else None
    over = None if best is None else first.mfu / best.mfu - 1
    runner_up = _runner_up(first, others[0]) if others else None
    one = PlanClass.of_code(int(codes[0]))
    fields: dict[str, Any] = {
        "fastest_probability": _fastest(result.rows, codes),
        "measured_class": one.in_words,
        "runner_up": runner_up,
        "why": _why(result, one, runner_up),
        "best_measured": best,
        "over_measured": over,
        "beyond_measured": over is not None and over > CLAIM - 1,
        **_next(result, model, system, strategies[0], names),
    }
    return result.model_copy(
        update={
            "recommended": RecommendedPlan.extending(first, **fields),
            "safer": safer_plan(result.rows),
            "nearest_measured": nearest_measured(own) if first.strategy["training"] else None,
        }
    )


def fastest_probability(step_time_s: Floats, codes: Ints) -> float:
    """Return the probability that the first of some plans is the fastest.

    The log of each time has an error of its own, from the differences of errors of pairs of
    measured runs, and that of its class, which plans of one class share. The error of a pair is
    normal, with `LEVEL` of its size below `distinguishable_ratio`.

    Parameters
    ----------
    codes
        Class of each plan.
    """
    evidence = class_evidence()
    own = np.log(distinguishable_ratio()) / NORMAL_QUANTILE / 2**0.5
    random = np.random.default_rng(0)
    classes, position = np.unique(codes, return_inverse=True)
    deviations = evidence.deviation[classes]
    error = random.normal(size=(_DRAWS, classes.size)) * deviations + evidence.shift[classes]
    logs = np.log(step_time_s) + error[:, position]
    logs += random.normal(size=logs.shape) * own
    return float(np.mean(logs.argmin(axis=1) == 0))


def _fastest(rows: Sequence[RankedPlan], codes: Ints) -> float | None:
    """Probability that the first plan is the fastest; None alone, and forward only."""
    if len(rows) == 1 or not rows[0].strategy["training"]:
        return None
    times = np.array([1 / plan.tokens_per_s_per_gpu for plan in rows[:_MOST_RIVALS]])
    return fastest_probability(times, codes[:_MOST_RIVALS])


def _runner_up(first: RankedPlan, other: RankedPlan) -> RunnerUp:
    """The next plan, and how it differs."""
    names = [n for n in FIELDS if first.strategy[n] != other.strategy[n]]
    if len(names) > 1:  # it follows from the other degrees
        names = [n for n in names if n != "dp"]
    parts = {part: other.time_s[part] - first.time_s[part] for part in TIME_PARTS}
    return RunnerUp(
        fields=tuple(
            FieldChange(field=n, given=first.strategy[n], value=other.strategy[n]) for n in names
        ),
        step_time_s=other.step_time_s,
        step_time_p80_s=other.step_time_p80_s,
        measured_configurations=other.measured_configurations,
        parts_s={n: s for n, s in sorted(parts.items(), key=lambda it: -abs(it[1])) if s},
    )


def _why(result: SearchResult, one: PlanClass, other: RunnerUp | None) -> str:
    """Why the first plan and not the next."""
    first = result.rows[0]
    if other is None:
        return "" if result.feasible > 1 else "no other plan fits"
    changes = [f"{c.field} {_word(c.value)}" for c in other.fields[:_FIELDS_NAMED]]
    more = len(other.fields) - len(changes)
    differs = ", ".join(changes) + (f" and {more} more fields" if more > 0 else "")
    # Per token of a GPU, as steps may differ in both.
    gap = first.tokens_per_s_per_gpu / result.rows[1].tokens_per_s_per_gpu - 1
    parts = list(other.parts_s.items())[:_PARTS_NAMED]
    where = ", ".join(f"{_part(n)} {s:+.3g} s" for n, s in parts)
    how = "as fast" if abs(gap) < _EQUAL else f"{_percent(gap)} {'slower' if gap > 0 else 'faster'}"
    text = f"the next plan ({differs}) is predicted {how}: {where}"
    if first.step_time_p80_s is not None and other.step_time_p80_s is not None and result.advised:
        factor = first.step_time_p80_s / first.step_time_s
        most = (1 + gap) * other.step_time_p80_s / other.step_time_s / factor - 1
        if gap < 0 or most - gap > _SAFER_BY:
            own, theirs = first.measured_configurations, other.measured_configurations
            text += f"; {theirs} measured configurations are of its class, {own} of this one"
            text += f" ({one.in_words}), so its 80 % quantile is {_percent(most)} longer"
    return text


def _percent(share: float) -> str:
    """Return the size of a share in per cent."""
    return f"{100 * abs(share):.1f} %"


def _part(name: str) -> str:
    axis, _, kind = name.partition("_")
    return f"{axis.upper()} communication" if kind == "comm" else name.replace("_", " ")


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value.get("name")) if isinstance(value, Mapping) else str(value)


def safer_plan(rows: Sequence[RankedPlan]) -> SaferPlan | None:
    """Return the fastest plan that fits almost surely, or the one that fits most likely.

    None where the first is as likely to fit.
    """
    chances = [plan.fits_probability for plan in rows]
    own = chances[0]
    if own is None or own >= _SAFE:
        return None
    known = [(place, chance) for place, chance in enumerate(chances) if chance is not None]
    safe = [place for place, chance in known if chance >= _SAFE]
    place = safe[0] if safe else max(known, key=lambda one: (one[1], -one[0]))[0]
    chance = chances[place]
    if chance is None or chance < own + _SAFER_BY:
        return None
    first, plan = rows[0], rows[place]
    return SaferPlan(
        rank=place + 1,
        strategy=plan.strategy,
        step_time_s=plan.step_time_s,
        step_time_p80_s=plan.step_time_p80_s,
        fits_probability=chance,
        price=first.tokens_per_s_per_gpu / plan.tokens_per_s_per_gpu - 1,
    )


def _next(
    result: SearchResult,
    model: Model,
    system: System,
    strategy: Strategy,
    names: Sequence[str],
) -> dict[str, Any]:
    """Command lines that look at the plan and write it for its launcher; or why it cannot."""
    described = result.space.get("stack")
    own = strategy.to_dict()["stack"]
    stack = described[0] if described and len(described) == 1 else own
    case = [*map(shlex.quote, names), *plan_words(model, strategy, described, system)]
    commands = {"estimate": " ".join(["shardwise", "estimate", *case])}
    launcher, why = result.launcher, ""
    if launcher is None and isinstance(stack, str) and (of := registry.find("launcher_of_stack")):
        launcher = of(stack)
        if launcher is not None:
            resolved = strategy.resolved(model, system)
            why = registry.function("why_not_written")(launcher, model, system, resolved)
    if launcher is not None and not why:
        commands["export"] = " ".join(["shardwise", "export", launcher, *case, "-o", "FILE"])
    return {"commands": commands, "not_written": why}
