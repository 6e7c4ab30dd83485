"""What a sweep found, as charts: those that fit what was varied, on one page."""

from itertools import combinations
from pathlib import Path

from shardwise.planning.sweep.results import SweepResult
from shardwise.report.charts.common import Figure, write_page
from shardwise.report.charts.sweep_bars import MOST_BARS, optima
from shardwise.report.charts.sweep_lines import MOST_TORNADOES, scaling, tornado, trend
from shardwise.report.charts.sweep_maps import Marks, contour, heat_map, is_plane
from shardwise.report.charts.sweep_plans import design_space, front, runners_up
from shardwise.report.charts.sweep_points import (
    SYSTEM,
    best_of,
    is_numeric,
    only,
    series,
    sweep_words,
    varied,
)

_GPUS = "gpus"
# More lines or maps than that are left to who asks for a part of the sweep.
_MOST_LINES = 14
_MOST_MAPS = 4
_LEAST_OF_A_FRONT = 3


def charts(
    result: SweepResult, *, tokens: float | None = None, marks: Marks | None = None
) -> dict[str, Figure]:
    """Draw all that fits what was varied, by name."""
    drawn: dict[str, Figure] = {}
    feasible = any(best_of(point) is not None for point in result.points)
    if feasible:
        drawn |= _lines(result, tokens)
    if any(point.best for point in result.points) and len(result.points) <= MOST_BARS:
        names = [axis.name for axis in varied(result)]
        drawn["optima"] = optima(result, names[-1] if names else "", tokens=tokens)
    if feasible:
        drawn |= _maps(result, tokens, marks) | _plans(result, tokens)
    if 0 < sum(bool(point.sensitivity) for point in result.points) <= MOST_TORNADOES:
        drawn["sensitivities"] = tornado(result)
    return drawn


def _lines(result: SweepResult, tokens: float | None) -> dict[str, Figure]:
    """Over each axis of numbers, where there are few enough lines."""
    drawn: dict[str, Figure] = {}
    for axis in varied(result):
        if is_numeric(result, axis) and len(series(result, axis)) <= _MOST_LINES:
            if axis.name == _GPUS:
                drawn["scaling"] = scaling(result, tokens=tokens)
            else:
                drawn[f"over-{axis.name}"] = trend(result, axis.name, tokens=tokens)
    return drawn


def _maps(result: SweepResult, tokens: float | None, marks: Marks | None) -> dict[str, Figure]:
    """Over each pair of axes besides which only the strategy is varied, for each system."""
    axes = varied(result)
    drawn: dict[str, Figure] = {}
    if len(result.systems) > 1 and len(axes) == 1:
        pair = (SYSTEM, axes[0].name)
        drawn["by-" + "-".join(pair)] = heat_map(result, pair, tokens=tokens, marks=marks)
    pairs = [
        (one.name, other.name)
        for one, other in combinations(axes, 2)
        if all(axis.kind == "strategy" for axis in axes if axis not in (one, other))
    ]
    strategic = {axis.name for axis in axes if axis.kind == "strategy"}
    parts = [only(result, systems=system) for system in result.systems[:_MOST_MAPS]]
    for part in parts:
        if all(best_of(point) is None for point in part.points):
            continue
        for pair in pairs:
            name = "-".join(pair if len(result.systems) == 1 else (*pair, part.systems[0]))
            drawn[f"by-{name}"] = heat_map(part, pair, tokens=tokens, marks=marks)
            if not strategic.intersection(pair) and is_plane(part, pair):
                drawn[f"contour-{name}"] = contour(part, pair, tokens=tokens, marks=marks)
    return drawn


def _plans(result: SweepResult, tokens: float | None) -> dict[str, Figure]:
    """The design space and fronts, as far as there is something to choose from."""
    drawn: dict[str, Figure] = {}
    found = [plan for point in result.points for plan in point.best if plan.fits]
    several = any(len(point.best) > 1 for point in result.points)
    if len(result.points) == 1 and len(found) > 1:
        drawn["runners-up"] = runners_up(result)
    fields = any(axis.kind == "strategy" and axis.name != _GPUS for axis in varied(result))
    if len(found) > 1 and (several or fields):
        drawn["design-space"] = design_space(result, tokens=tokens)
    if sum(best_of(point) is not None for point in result.points) < _LEAST_OF_A_FRONT:
        return drawn
    if len({plan.strategy["gpus"] for plan in found}) > 1:
        drawn["front-gpus"] = front(result, "gpus", tokens=tokens)
    if all(plan.usd_per_billion_tokens is not None for plan in found):
        drawn["front-cost"] = front(result, "cost", tokens=tokens)
    drawn["front-memory"] = front(result, tokens=tokens)
    return drawn


def write_charts(
    result: SweepResult,
    path: str | Path,
    *,
    tokens: float | None = None,
    marks: Marks | None = None,
) -> None:
    """Write all charts of a sweep on one page, .html with all that it needs, or .json by name."""
    empty = sum(best_of(point) is None for point in result.points)
    counts = f"{len(result.points):,} points, {len(result.points) - empty:,} of them feasible"
    facts = [f"{counts}; {result.candidates:,} strategies in {result.elapsed_s:.1f} s"]
    facts += [f"Changed along with what was requested: {one}." for one in result.assumed]
    if not result.complete:
        facts.append("Interrupted: this is what was found at a part of the points.")
    write_page(path, sweep_words(result), facts, charts(result, tokens=tokens, marks=marks))
