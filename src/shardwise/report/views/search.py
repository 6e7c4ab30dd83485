"""How searches, explanations and the largest model are shown in Python."""

from collections.abc import Mapping
from typing import Any

from shardwise.planning.compare import compare
from shardwise.planning.nearest import NearestPlan
from shardwise.planning.search.results import (
    Explanation,
    LargestFit,
    LargestModel,
    Recommendation,
    SearchResult,
)
from shardwise.report.charts.compare import charts as compare_charts
from shardwise.report.charts.estimate import charts as estimate_charts
from shardwise.report.charts.plans import search_words
from shardwise.report.charts.search import charts
from shardwise.report.charts.theme import Figure
from shardwise.report.console import count, gpu_count, seconds, written
from shardwise.report.tables.advice import recommendation_items
from shardwise.report.tables.explain import print_explanation
from shardwise.report.tables.largest_model import print_largest
from shardwise.report.tables.search import closing, print_search
from shardwise.report.tables.strategy_line import in_brief
from shardwise.report.views.estimate import memory_words, step_words
from shardwise.report.views.view import Summary, View


def _search(result: SearchResult) -> Summary:
    rows = [("considered", _counts(result))]
    best = next(iter(result.rows), None)
    if best is None:
        rows.append(("nothing fits", closing(result)[-1]))
        hint = ".explain() why; .to_dict()"
    else:
        rows += [("best", in_brief(best.strategy)), ("memory", memory_words(best))]
        rows += [("step time", step_words(best))]
        if (found := result.recommendation) is not None:
            items = dict(recommendation_items(found))
            rows[1] = ("run", items["run"])
            rows += [
                (name, items[name]) for name in ("warning", "sure", "measured") if name in items
            ]
        if result.avoided:
            rows.append(("avoided", "; ".join(one.values for one in result.avoided)))
        hint = f".rows the first {len(result.rows)}; .recommendation; .explain(); .plot()"
        hint += "; .to_frame(); .to_dict()"
    return Summary(title=f"SearchResult: {search_words(result)}", rows=rows, hint=hint)


def _counts(result: SearchResult) -> str:
    least = "" if result.counts_exact else "at least "
    counts = f"{result.candidates:,} strategies, {least}{result.feasible:,} feasible"
    return counts if result.complete else f"{counts}; interrupted"


def _explanation(found: Explanation) -> Summary:
    where = f"{found.model} on {gpu_count(found.strategy['gpus'])} of {found.system}"
    if not found.legal:
        broken = "; ".join(f"{one.field}: {one.problem}" for one in found.broken)
        rows = [("not legal", broken)]
    elif not found.fits:
        rows = [("does not fit", ", ".join(lack.tier for lack in found.shortages))]
    else:
        place = "not in the space" if found.rank is None else f"{found.rank:,}"
        rows = [("rank", f"{place} of {found.feasible:,} feasible strategies")]
    if found.loss is not None:
        rows.append(("slower by", seconds(found.loss.difference_s)))
    return Summary(
        title=f"Explanation: {where}",
        rows=[("strategy", in_brief(found.strategy)), *rows],
        hint=".explain() the reasons and the fewest changes; .best; .to_dict()",
    )


def _largest(found: LargestModel) -> Summary:
    return Summary(
        title=f"LargestModel: {gpu_count(found.gpus)} of {found.system}",
        rows=[("practical", _size(found.practical)), ("limit", _size(found))],
        hint=".explain() the shapes around the limit; .largest; .best; .to_dict()",
    )


def _size(fit: LargestFit) -> str:
    if fit.largest is None:
        return "nothing fits"
    return f"{count(fit.largest.parameters)} parameters ({fit.largest.name})"


def _nearest(found: NearestPlan) -> Summary:
    rows = [(one.field, f"{written(one.given)} -> {written(one.value)}") for one in found.changes]
    return Summary(title=f"NearestPlan: a step of {seconds(found.step_time_s)}", rows=rows)


def _recommendation(found: Recommendation) -> Summary:
    title = f"Recommendation: {found.plan.model} on {found.plan.system}"
    return Summary(title=title, rows=recommendation_items(found))


def _of_explanation(found: Explanation) -> Mapping[str, Figure]:
    """The strategy next to the best; alone, where there is only one of the two."""
    both = [one for one in (found.estimate, found.best) if one is not None]
    if len(both) == 1:
        return estimate_charts(both[0])
    return compare_charts(compare(*both, names=("yours", "best"))) if both else {}


def _of_largest(found: LargestModel) -> Mapping[str, Figure]:
    """The fastest strategy of the practical model, else of the largest."""
    best = found.practical.best or found.best
    return {} if best is None else estimate_charts(best)


VIEWS: dict[str, View[Any]] = {
    "Explanation": View(summary=_explanation, tables=print_explanation, charts=_of_explanation),
    "LargestModel": View(summary=_largest, tables=print_largest, charts=_of_largest),
    "NearestPlan": View(summary=_nearest),
    "Recommendation": View(summary=_recommendation),
    "SearchResult": View(summary=_search, tables=print_search, charts=charts, folded=1),
}
