"""How sweeps and choices of a cluster are shown in Python."""

from typing import Any

from shardwise.planning.cluster_choice import ClusterChoice, ClusterOption
from shardwise.planning.sweep.results import SweepPoint, SweepResult
from shardwise.report.charts.cluster import cluster_front
from shardwise.report.charts.sweep import charts
from shardwise.report.charts.sweep_points import best_of, point_name, sweep_words
from shardwise.report.console import count, gpu_count, seconds
from shardwise.report.tables.cluster import closing, days, dollars, print_cluster
from shardwise.report.tables.strategy_line import in_brief
from shardwise.report.tables.sweep import print_sweep
from shardwise.report.views.view import Summary, View


def _sweep(result: SweepResult) -> Summary:
    axes = ", ".join(f"{axis.name} ({len(axis.labels)})" for axis in result.axes)
    what = "best of a search at each" if result.searched else "one strategy"
    points = f"{len(result.points):,}: {axes or 'nothing varied'}; {what}"
    found = [(point, plan) for point in result.points if (plan := best_of(point)) is not None]
    if not found:
        fastest = "nothing is feasible at any point"
    else:
        point, plan = max(found, key=lambda pair: pair[1].tokens_per_s)
        fastest = f"{point_name(result, point)}: {seconds(plan.step_time_s)} a step"
    return Summary(
        title=f"SweepResult: {sweep_words(result)}",
        rows=[("points", points), ("most tokens/s", fastest)],
        hint=".explain() every point; .plot(); .to_frame(); .points",
    )


def _point(point: SweepPoint) -> Summary:
    values = ", ".join(f"{name} {value}" for name, value in point.values.items())
    plan = best_of(point)
    if plan is None:
        rows = [("nothing", point.problem or "is feasible")]
    else:
        rows = [("best", in_brief(plan.strategy)), ("step time", seconds(plan.step_time_s))]
    return Summary(title=f"SweepPoint: {point.system}, {values}", rows=rows)


def _cluster(found: ClusterChoice) -> Summary:
    answers = {"cheapest": found.cheapest, "fastest": found.fastest}
    rows = [(name, _option(found.options[n])) for name, n in answers.items() if n is not None]
    if why := closing(found):
        rows.append(("not met", "; ".join(why)))
    tokens = f"{count(found.tokens)} tokens"
    return Summary(
        title=f"ClusterChoice: {found.model}, {tokens}, {', '.join(found.systems)}",
        rows=rows,
        hint=".explain() every option; .plot(); .options; .within(deadline=, budget=)",
    )


def _option(one: ClusterOption) -> str:
    where = f"{gpu_count(one.gpus)} of {one.system}"
    time = "" if one.days is None else f", {days(one.days)} days"
    return f"{where}{time}, {dollars(one.usd)}"


VIEWS: dict[str, View[Any]] = {
    "ClusterChoice": View(
        summary=_cluster,
        tables=print_cluster,
        charts=lambda found: {"front": cluster_front(found)},
        folded=1,
    ),
    "SweepPoint": View(summary=_point),
    "SweepResult": View(summary=_sweep, tables=print_sweep, charts=charts),
}
