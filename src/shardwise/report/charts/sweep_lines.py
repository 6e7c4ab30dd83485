"""Lines over one axis of a sweep: strong scaling, any other figure, one sweep over another."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from shardwise.planning.sweep.results import Axis, PointPlan, SweepPoint, SweepResult
from shardwise.report.charts.common import INK, Figure, differ, dressed, graphs, log_axis, subplots
from shardwise.report.charts.plans import rounded
from shardwise.report.charts.sweep_points import (
    Series,
    axis_named,
    best_of,
    is_numeric,
    missing,
    number_axis,
    number_of,
    place_words,
    reason,
    series,
    shown_for,
    sweep_words,
    time_for,
    told,
)

__all__ = ["ratio", "scaling", "trend"]

_GPUS = "gpus"
_CROSS = {"symbol": "x-thin", "size": 9}
# Where crosses stand, in parts of the height: one row for each line.
_FIRST_CROSS, _NEXT_CROSS = 0.02, 0.025


def scaling(result: SweepResult, *, tokens: float | None = None) -> Figure:
    """Draw strong scaling: time over GPUs, and throughput of each GPU beside the first's.

    Dashed is what each line would be if every GPU did as much as those of its first point. The
    lower panel is relative to the first line's smallest feasible number of GPUs.

    Parameters
    ----------
    tokens
        Show the days that training on so many takes instead of the time of a step.

    Raises
    ------
    InputError
        If the sweep has no axis of GPUs or nothing feasible, or plotly is not installed.
    """
    scatter = graphs().Scatter
    axis = axis_named(result, _GPUS)
    lines, measure = series(result, axis), time_for(result, tokens)
    first = _first(lines)
    unit = first[1].tokens_per_s_per_gpu
    figure = subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[3, 2])
    for number, line in enumerate(lines):
        words = _line(result, line, axis)
        plans = [plan for _, plan in line.feasible]
        times = [measure.value(plan) for plan in plans]
        figure.add_trace(scatter(y=times, **words), row=1, col=1)
        shares = [plan.tokens_per_s_per_gpu / unit for plan in plans]
        figure.add_trace(scatter(y=shares, **words, showlegend=False), row=2, col=1)
        if times and line.kind == 0:  # one for each colour: more cannot be told apart
            figure.add_trace(_ideal(line, axis, times[0]), row=1, col=1)
        _add_crosses(figure, line, axis, _without(line), number)
    found = [measure.value(plan) for _, plan in chain.from_iterable(s.feasible for s in lines)]
    figure.update_yaxes(title=measure.head, **log_axis(found), row=1, col=1)
    figure.update_yaxes(title="throughput of a GPU, relative", rangemode="tozero", row=2, col=1)
    place = place_words(result, first[0], along=axis)
    figure.add_hline(
        y=1,
        line={"color": INK, "dash": "dot", "width": 1},
        annotation_text=f"{place} with {first[0].values[axis.name]:,} GPUs",
        annotation_position="bottom right",
        annotation_font_size=11,
        row=2,
        col=1,
    )
    along = number_axis(axis, result.points)
    figure.update_xaxes(**{**along, "title": None, "type": "log"})
    figure.update_xaxes(title=along["title"], row=2, col=1)
    subtitle = f"{sweep_words(result)}; dashed: ideal"
    dressed(figure, f"Strong scaling of {result.model}", subtitle, height=720)
    return _with_legend(figure)


def trend(result: SweepResult, axis: str = "", *, tokens: float | None = None) -> Figure:
    """Draw the best over one axis of numbers, a line for each system and value of other axes.

    Raises
    ------
    InputError
        If the sweep has no such axis of numbers or nothing feasible, or plotly is not installed.
    """
    scatter = graphs().Scatter
    along = _numeric(result, axis)
    lines, shown = series(result, along), shown_for(result, tokens)
    _first(lines)
    figure = graphs().Figure()
    for number, line in enumerate(lines):
        values = [shown.value(plan) for _, plan in line.feasible]
        figure.add_trace(scatter(y=values, **_line(result, line, along)))
        _add_crosses(figure, line, along, _without(line), number)
    found = [shown.value(plan) for _, plan in chain.from_iterable(s.feasible for s in lines)]
    figure.update_yaxes(title=shown.head, **_room(found))
    figure.update_xaxes(**number_axis(along, result.points))
    dressed(figure, f"Best {shown.title} over {along.name}", sweep_words(result))
    return _with_legend(figure)


def ratio(
    result: SweepResult,
    other: SweepResult,
    axis: str = "",
    *,
    names: tuple[str, str] = ("the first", "the second"),
) -> Figure:
    """Draw the time of one sweep over that of another, at points that both have.

    Parameters
    ----------
    axis
        The axis of numbers to draw over, where several are varied.
    names
        What the sweeps are called: above 1 the second one is faster.

    Raises
    ------
    InputError
        If they have no feasible point in common, or plotly is not installed.
    """
    scatter = graphs().Scatter
    along = _numeric(result, axis)
    others = {_key(other, point): point for point in other.points}
    figure = graphs().Figure()
    found: list[float] = []
    for number, line in enumerate(series(result, along)):
        pairs = [(p, others[_key(result, p)]) for p in line.points if _key(result, p) in others]
        both = [(p, a, b) for p, q in pairs if (a := best_of(p)) and (b := best_of(q))]
        values = [b.tokens_per_s / a.tokens_per_s for _, a, b in both]
        found += values
        words = _line(result, line, along)
        words["x"] = [number_of(along, p) for p, _, _ in both]
        words["customdata"] = [
            f"{rounded(value)}<br><br><b>{names[0]}</b> {told(result, p, a)}"
            f"<br><br><b>{names[1]}</b> {told(other, p, b)}"
            for (p, a, b), value in zip(both, values, strict=True)
        ]
        figure.add_trace(scatter(y=values, **words))
        lone = [
            (p, "; ".join(_lacks(names, (p, q))))
            for p, q in pairs
            if not (best_of(p) and best_of(q))
        ]
        _add_crosses(figure, line, along, lone, number)
    if not found:
        raise missing("a feasible point in common with the other", "sweep the same values")
    figure.add_hline(y=1, line={"color": INK, "dash": "dot", "width": 1.5})
    figure.update_yaxes(title=f"time of {names[0]} / time of {names[1]}", **_room(found))
    figure.update_xaxes(**number_axis(along, result.points))
    subtitle = f"{sweep_words(result)}; above 1 {names[1]} is faster"
    dressed(figure, f"{names[0]} over {names[1]}", subtitle)
    return _with_legend(figure)


def _lacks(names: Sequence[str], points: Sequence[SweepPoint]) -> list[str]:
    """Which of two sweeps have nothing at a point, and why."""
    named = zip(names, points, strict=True)
    return [f"{name}: {reason(point)}" for name, point in named if best_of(point) is None]


def _key(result: SweepResult, point: SweepPoint) -> tuple[str, ...]:
    """System and labels of a point."""
    named = zip(result.axes, point.at, strict=True)
    return (point.system, *(axis.labels[place] for axis, place in named))


def _numeric(result: SweepResult, name: str) -> Axis:
    axis = axis_named(result, name)
    if not is_numeric(result, axis):
        raise missing(f"numbers on the axis {axis.name}", "draw it as bars or as a heat map")
    return axis


def _first(lines: Sequence[Series]) -> tuple[SweepPoint, PointPlan]:
    """The first feasible point of the first line that has one."""
    found = next(chain.from_iterable(line.feasible for line in lines), None)
    if found is None:
        raise missing("a feasible point", "give it more memory or more GPUs")
    return found


def _line(result: SweepResult, line: Series, axis: Axis) -> dict[str, Any]:
    """What is alike in all panels that show a line."""
    return {
        "x": [number_of(axis, point) for point, _ in line.feasible],
        "mode": "lines+markers",
        "line": {"color": line.colour, "width": 2},
        "marker": {"size": 8, "color": line.colour, "symbol": line.mark},
        "customdata": [told(result, point, plan) for point, plan in line.feasible],
        "hovertemplate": "%{customdata}<extra></extra>",
        "name": line.name,
        "legendgroup": line.name,
    }


def _ideal(line: Series, axis: Axis, time: float) -> Any:
    """What a line would be if every GPU did as much as those of its first point."""
    start = number_of(axis, line.feasible[0][0])
    numbers = sorted(n for n in {number_of(axis, point) for point in line.points} if n >= start)
    return graphs().Scatter(
        x=numbers,
        y=[time * start / n for n in numbers],
        mode="lines",
        line={"color": line.colour, "dash": "dash", "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=line.name,
        name=f"ideal {line.name}",
    )


def _without(line: Series) -> list[tuple[SweepPoint, str]]:
    """Points of a line that have no strategy, and why."""
    return [(point, reason(point)) for point in line.points if best_of(point) is None]


def _add_crosses(
    figure: Figure,
    line: Series,
    axis: Axis,
    lone: Sequence[tuple[SweepPoint, str]],
    number: int,
) -> None:
    """Mark where a line has nothing, at the bottom of the lowest panel, with the reasons."""
    if not lone:
        return
    panel = "2" if "xaxis2" in figure.layout else ""
    figure.add_trace(
        graphs().Scatter(
            x=[number_of(axis, point) for point, _ in lone],
            y=[_FIRST_CROSS + _NEXT_CROSS * number] * len(lone),
            mode="markers",
            marker={**_CROSS, "line": {"color": line.colour, "width": 2}},
            customdata=[f"<b>{line.name}</b><br>{why}" for _, why in lone],
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
            legendgroup=line.name,
            name=f"nothing {line.name}",
            xaxis=f"x{panel}",
            yaxis="y9",
        )
    )
    # An axis of its own, so that crosses keep their place whatever the values are.
    figure.update_layout(
        yaxis9={"overlaying": f"y{panel}", "range": [0, 1], "visible": False, "fixedrange": True}
    )


def _room(values: Sequence[float]) -> dict[str, Any]:
    """An axis of values: logarithmic where they differ much, else from a little below them."""
    if differ(values):
        return log_axis(values)
    return {"rangemode": "tozero" if max(values) > 2 * min(values) else "normal"}


def _with_legend(figure: Figure) -> Figure:
    figure.update_layout(legend={"orientation": "v", "x": 1.01, "y": 1})
    return figure
