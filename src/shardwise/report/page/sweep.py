"""The report of a sweep."""

from collections.abc import Mapping, Sequence

from shardwise.config.base import Source
from shardwise.config.stack import Stack
from shardwise.config.system import System
from shardwise.planning.sweep.results import PointPlan, SweepPoint, SweepResult
from shardwise.report.charts.sweep import Marks, charts
from shardwise.report.charts.sweep_points import best_of, point_name, sweep_words
from shardwise.report.page.html import Lines
from shardwise.report.page.printed import printed_blocks
from shardwise.report.page.shared import Report, requested, source_table, time_words
from shardwise.report.tables.strategy_line import in_brief
from shardwise.report.tables.sweep import print_sweep


def report_of(
    result: SweepResult,
    command: str,
    systems: Sequence[System],
    *,
    tokens: float | None = None,
    marks: Marks | None = None,
) -> Report:
    """Return the report of a sweep."""
    question = [("model", result.model), ("systems", ", ".join(result.systems))]
    question += [(axis.name, ", ".join(axis.labels)) for axis in result.axes]
    question += requested(result.space or result.strategy or {})
    lines = [
        f"{result.candidates:,} strategies; points: {len(result.points):,}",
        "the best strategy was searched at each point"
        if result.searched
        else "one strategy was evaluated at each point",
        *(f"changed along with what was requested: {line}" for line in result.assumed),
        "intervals are those of the systems as they are, without what was varied",
    ]
    if not result.complete:
        lines.append("interrupted: this is what was found at a part of the points")
    return Report(
        title=f"What changes the best plan: {sweep_words(result)}",
        answer=_answer(result),
        question=question,
        charts=charts(result, tokens=tokens, marks=marks),
        results=printed_blocks(lambda: print_sweep(result)),
        assumptions=[Lines(items=lines)],
        sources=source_table(_sources(result, systems)),
        command=command,
    )


def _answer(result: SweepResult) -> str:
    """The first and the best point, with their intervals."""
    found = [(point, plan) for point in result.points if (plan := best_of(point)) is not None]
    if not found:
        return "Nothing is feasible at any point."
    best = max(found, key=lambda pair: pair[1].tokens_per_s)
    if len(found) == 1:
        return f"The best is {_point_words(result, *best)}."
    return f"From {_point_words(result, *found[0])} to {_point_words(result, *best)} at best."


def _point_words(result: SweepResult, point: SweepPoint, plan: PointPlan) -> str:
    words = time_words(plan.step_time_s, plan.interval_s)
    return f"{words} with {point_name(result, point)}, {in_brief(plan.strategy)}"


def _sources(result: SweepResult, systems: Sequence[System]) -> Mapping[str, Source]:
    """Sources of the systems, and of the stacks of the best strategies."""
    described: list[System | Stack] = list(systems)
    best = [plan for point in result.points for plan in point.best[:1]]
    stacks = {str(plan.strategy["stack"]): plan.strategy["stack"] for plan in best}
    described += map(Stack.load, stacks.values())
    return {
        f"{one.name}.{prefix}".rstrip("."): source
        for one in described
        for prefix, source in one.sources.items()
    }
