"""Strategies of a sweep side by side: runners-up, the design space, the Pareto front."""

from collections.abc import Callable, Sequence
from math import log2, log10
from typing import Any

from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import DEGREES
from shardwise.planning.sweep.results import PointPlan, SweepPoint, SweepResult
from shardwise.report.charts.common import (
    COMPONENT_NAMES,
    LINES,
    PAPER,
    TIME_COLORS,
    Figure,
    log_axis,
    plotly,
    spans_much,
    styled,
    whiskers,
)
from shardwise.report.charts.plans import (
    FRONT_AXES,
    Measure,
    degrees,
    ordered_values,
    range_of,
    short_name,
    value_word,
    whisker_words,
)
from shardwise.report.charts.sweep_points import (
    best_of,
    missing,
    point_hover,
    sweep_words,
    time_for,
    varied,
)

_WORK = ("forward", "backward")
_LEAST_LIMIT = 0.1
_PERCENT = 100.0
# Fields of a strategy that say nothing about its shape.
_NOT_DRAWN = ("sequence_parallel", "global_batch_size", "seq_len", "gpus")
_MOST_DIMENSIONS = 12
# Length of an axis over its longest bar: room for text.
_ROOM = 1.3
# Pixels of a column of the design space, and of all at its sides.
_DIMENSION, _AROUND = 75, 280


def limit(plan: PointPlan) -> str:
    """The largest component of the step besides forward and backward: what to improve.

    `work` where forward and backward take all but a tenth.
    """
    others = {part: seconds for part, seconds in plan.time_s.items() if part not in _WORK}
    if sum(others.values()) < _LEAST_LIMIT * plan.step_time_s:
        return "work"
    return max(others, key=lambda part: others[part])


def runners_up(result: SweepResult) -> Figure:
    """Draw how much longer the next best strategies of one point take than the best.

    Bars are colored by what limits them: the largest component besides forward and backward.
    """
    go = plotly()
    point = _one_point(result)
    plans = [plan for plan in point.best if plan.fits]
    if len(plans) <= 1:
        raise missing("several strategies at the point", "sweep with top=10")
    more = [_PERCENT * (plans[0].tokens_per_s / plan.tokens_per_s - 1) for plan in plans]
    names = _names(plans)
    figure = go.Figure()
    for part in dict.fromkeys(limit(plan) for plan in plans):
        rows = [n for n, plan in enumerate(plans) if limit(plan) == part]
        figure.add_trace(
            go.Bar(
                x=[more[n] for n in rows],
                y=[names[n] for n in rows],
                orientation="h",
                marker={"color": _limit_color(part)},
                text=[f"+{more[n]:.2f} %" if n else "the best" for n in rows],
                textposition="outside",
                cliponaxis=False,
                customdata=[point_hover(result, point, plans[n]) for n in rows],
                hovertemplate="%{customdata}<extra></extra>",
                name=_limit_word(part),
            )
        )
    title = f"The best {len(plans)} strategies and what limits them"
    styled(figure, title, sweep_words(result), height=220 + 40 * len(plans))
    figure.update_layout(bargap=0.4, barmode="overlay")
    order = {"categoryorder": "array", "categoryarray": names, "autorange": "reversed"}
    figure.update_yaxes(**order, showgrid=False)
    ends = [0, _ROOM * max(more)] if max(more) > 0 else None
    figure.update_xaxes(title="time beyond that of the best [%]", range=ends)
    return figure


def _names(plans: Sequence[PointPlan]) -> list[str]:
    """Rank and degrees of strategies, and in small print their other differences."""
    differing = [
        field
        for field in Strategy.model_fields
        if field not in (*_NOT_DRAWN, *DEGREES)
        and any(plan.strategy.get(field) != plans[0].strategy.get(field) for plan in plans)
    ]
    names = []
    for rank, plan in enumerate(plans, start=1):
        words = [f"{short_name(f)} {value_word(plan.strategy.get(f))}" for f in differing]
        small = f"<br><span style='font-size:10px'>{', '.join(words)}</span>" if words else ""
        names.append(f"{rank}  {degrees(plan.strategy)}{small}")
    return names


def _one_point(result: SweepResult) -> SweepPoint:
    if len(result.points) != 1:
        remedy = "name one: only(result, systems=..., at={axis: label})"
        raise missing("one point only", remedy)
    return result.points[0]


def _limit_word(part: str) -> str:
    return COMPONENT_NAMES.get(part, part)


def _limit_color(part: str) -> str:
    return TIME_COLORS["backward"] if part == "work" else TIME_COLORS[part]


def design_space(result: SweepResult, *, tokens: float | None = None) -> Figure:
    """Draw the best strategies of all points as lines across their fields and figures.

    The fields are those in which they differ; colors say what limits them. A part of any column
    can be chosen with the mouse.
    """
    go = plotly()
    found = [(point, plan) for point in result.points for plan in point.best if plan.fits]
    if len(found) <= 1:
        raise missing("several strategies", "vary fields of the strategy, or sweep with top=10")
    plans = [plan for _, plan in found]
    measure = time_for(result, tokens)
    columns: list[dict[str, object]] = []
    if len(result.systems) > 1:
        columns.append(_words_column("system", [point.system for point, _ in found]))
    axes = varied(result)
    for axis in axes:
        if axis.kind != "strategy":
            place = result.axes.index(axis)
            positions = [float(point.at[place]) for point, _ in found]
            columns.append(_column(short_name(axis.name), positions, axis.labels))
    hidden = set(_NOT_DRAWN) - {axis.name for axis in axes}
    for field in Strategy.model_fields:
        values = [plan.strategy.get(field) for plan in plans]
        if field not in hidden and any(value != values[0] for value in values):
            columns.append(_field_column(field, values))
    columns = columns[:_MOST_DIMENSIONS]
    columns.append(
        {"label": "memory [GiB]", "values": [FRONT_AXES["memory"].value(p) for p in plans]}
    )
    columns.append(
        _number_column(f"time [{measure.unit}]", [measure.value(plan) for plan in plans])
    )
    limits = sorted({limit(plan) for plan in plans}, key=[*TIME_COLORS, "work"].index)
    places = [float(limits.index(limit(plan))) for plan in plans]
    figure = go.Figure(
        go.Parcoords(
            dimensions=columns,
            line={"color": places, **_steps([_limit_color(part) for part in limits])},
            labelangle=-20,
            labelside="top",
            name="strategies",
        )
    )
    figure.data[0].line.colorbar = {
        "title": {"text": "limited by"},
        "tickvals": list(range(len(limits))),
        "ticktext": [_limit_word(part) for part in limits],
        "thickness": 14,
    }
    width = _AROUND + _DIMENSION * len(columns)
    title = f"{len(plans)} strategies and what limits them"
    styled(figure, title, sweep_words(result), height=620, least_width=width)
    figure.update_layout(margin={"t": 170, "l": 120, "r": 60})
    return figure


def _steps(colors: Sequence[str]) -> dict[str, object]:
    """A scale with one color for each integer."""
    count = len(colors)
    edges = [(n / count, (n + 1) / count, color) for n, color in enumerate(colors)]
    scale = [[end, color] for low, high, color in edges for end in (low, high)]
    return {"colorscale": scale, "cmin": -0.5, "cmax": count - 0.5, "showscale": True}


def _field_column(field: str, values: Sequence[Any]) -> dict[str, Any]:
    """One field of the strategies; numbers by their logarithms, as they double."""
    distinct = ordered_values(field, values)
    words = [value_word(value) for value in distinct]
    numbers = [v for v in distinct if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    if len(numbers) == len(distinct):
        shown = _column(short_name(field), [log2(value) for value in values], words)
        return {**shown, "tickvals": [log2(value) for value in distinct]}
    places = [float(distinct.index(value)) for value in values]
    return _column(short_name(field), places, words)


def _words_column(label: str, values: Sequence[str]) -> dict[str, object]:
    distinct = list(dict.fromkeys(values))
    return _column(label, [float(distinct.index(value)) for value in values], distinct)


def _column(label: str, places: list[float], words: Sequence[str]) -> dict[str, Any]:
    ticks = {"tickvals": list(range(len(words))), "ticktext": list(words)}
    return {"label": label, "values": places, **ticks}


def _number_column(label: str, values: list[float]) -> dict[str, object]:
    """Numbers, the least on top, by their logarithms where they differ much."""
    if not spans_much(values):
        return {"label": label, "values": values, "range": [max(values), min(values)]}
    ends = [log10(max(values)), log10(min(values))]
    scale = log_axis(values)
    ticks = zip(scale["tickvals"], scale["ticktext"], strict=True)
    inside = {log10(t): word for t, word in ticks if min(values) <= t <= max(values)}
    return {
        "label": label,
        "values": [log10(value) for value in values],
        "range": ends,
        "tickvals": list(inside),  # others would lengthen the column
        "ticktext": list(inside.values()),
    }


def front(result: SweepResult, against: str = "memory", *, tokens: float | None = None) -> Figure:
    """Draw the best of every point, time against something else, and those that none beats on both.

    Parameters
    ----------
    against
        ``memory``, ``gpus`` or ``cost``.
    """
    go = plotly()
    if against not in FRONT_AXES:
        raise missing(f"a front against {against}", f"allowed: {', '.join(FRONT_AXES)}")
    axis = FRONT_AXES[against]
    found = _feasible(result)
    if not found:
        raise missing("a feasible point", "give it more memory or more GPUs")
    if against == "cost" and any(plan.usd_per_billion_tokens is None for _, plan in found):
        raise missing("a price at every point", "give the systems usd_per_accelerator_hour")
    measure = time_for(result, tokens)
    figure = go.Figure()
    best = _unbeaten([(axis.value(plan), measure.value(plan)) for _, plan in found])
    look = {"shape": "hv", "color": "#8c8c8c", "width": 1.5}
    figure.add_trace(
        go.Scatter(
            x=[x for x, _ in best],
            y=[y for _, y in best],
            mode="lines",
            line=look,
            hoverinfo="skip",
            name="none is better on both",
        )
    )
    for number, system in enumerate(result.systems):
        own = [(point, plan) for point, plan in found if point.system == system]
        pairs = [(axis.value(plan), measure.value(plan)) for _, plan in own]
        figure.add_trace(
            go.Scatter(
                x=[x for x, _ in pairs],
                y=[y for _, y in pairs],
                mode="markers",
                marker={
                    "color": LINES[number % len(LINES)],
                    "size": [12 if pair in best else 8 for pair in pairs],
                    "opacity": 0.9,
                    "line": {"color": PAPER, "width": 1},
                },
                customdata=[point_hover(result, point, plan) for point, plan in own],
                hovertemplate="%{customdata}<extra></extra>",
                name=system,
                error_y=_whiskers([plan for _, plan in own], measure, number),
            )
        )
    _scale(figure.update_yaxes, measure.axis_title, [measure.value(plan) for _, plan in found])
    _scale(figure.update_xaxes, axis.axis_title, [axis.value(plan) for _, plan in found])
    if against == "gpus":
        counts = sorted({int(axis.value(plan)) for _, plan in found})
        figure.update_xaxes(tickvals=counts, ticktext=[f"{n:,}" for n in counts])
    known = whisker_words(plan for _, plan in found)
    subtitle = f"{sweep_words(result)}; the best of every point{known}"
    styled(figure, f"Time against {axis.title}", subtitle)
    return figure


def _whiskers(plans: Sequence[PointPlan], measure: Measure, number: int) -> dict[str, Any]:
    """Prediction intervals of times, pale so that points stay visible."""
    times = [measure.value(plan) for plan in plans]
    bars = whiskers(times, list(map(range_of, plans, times)), LINES[number % len(LINES)])
    return bars | {"thickness": 0.8, "width": 3}


def _feasible(result: SweepResult) -> list[tuple[SweepPoint, PointPlan]]:
    return [(p, plan) for p in result.points if (plan := best_of(p)) is not None]


def _scale(update: Callable[..., object], title: str, values: Sequence[float]) -> None:
    update(title=title, **(log_axis(values) if spans_much(values) else {"rangemode": "tozero"}))


def _unbeaten(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other is below in one and not above in the other, from the left."""
    best: list[tuple[float, float]] = []
    for pair in sorted(set(pairs)):
        if not best or pair[1] < best[-1][1]:
            best.append(pair)
    return best
