"""What a sweep found, as charts: those that fit what was varied, on one page."""

import html
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import isclose, log2, log10
from pathlib import Path
from typing import Any

from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import DEGREES
from shardwise.planning.sweep.results import Axis, PointPlan, SweepPoint, SweepResult
from shardwise.report.charts.common import (
    ACCENT,
    COMPONENT_NAMES,
    EMPTY,
    LINES,
    PAPER,
    TIME_COLORS,
    VEIL,
    Figure,
    dots,
    log_axis,
    plotly,
    spans_much,
    steps,
    styled,
    whiskers,
    write_page,
)
from shardwise.report.charts.maps import Map
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
from shardwise.report.charts.sweep_lines import (
    MOST_BARS,
    MOST_TORNADOES,
    optima,
    scaling,
    tornado,
    trend,
)
from shardwise.report.charts.sweep_points import (
    SYSTEM,
    axis_named,
    best_of,
    is_numeric,
    missing,
    number_axis,
    number_of,
    only,
    point_hover,
    series,
    shown_for,
    shown_in,
    sweep_words,
    time_for,
    varied,
)
from shardwise.units import counted

Marks = Mapping[str, Mapping[str, float]]
"""Points to mark by their name: values by axis, in the units of `SweepPoint.values`."""

_AXES = 2
_LEAST_OF_A_PLANE = 3
_ORIGINAL = "1x"
# Of words on the colors of a map, which are the same in both themes.
_ON_MAP = "#1f2328"


def heat_map(
    result: SweepResult,
    axes: Sequence[str] = (),
    *,
    tokens: float | None = None,
    marks: Marks | None = None,
) -> Figure:
    """Draw the best of every pair of values of two axes.

    Parameters
    ----------
    axes
        Two of the sweep, down and across; `system` stands for its systems. Where more are varied,
        the best over the others is shown. May be omitted where two are varied.
    tokens
        Show the days that training on so many takes.
    marks
        Points to mark. Where values are factors, the original system is marked anyway.
    """
    points, drawn = _map_of(result, axes, tokens)
    down, _ = _axes_of(result, drawn)
    figure = drawn.heat_map(
        _subtitle(result, drawn), upwards=down is not None and is_numeric(result, down)
    )
    for name, row, column in _marked_cells(points, drawn, marks or {}):
        _mark(figure, name, column, row, ax=0, ay=0, showarrow=False, yshift=-15, font_size=10)
    return figure


def contour(
    result: SweepResult,
    axes: Sequence[str] = (),
    *,
    tokens: float | None = None,
    marks: Marks | None = None,
) -> Figure:
    """Draw the best over two axes of numbers as filled contours; gray where there is nothing."""
    go = plotly()
    points, drawn = _map_of(result, axes, tokens)
    rows, columns = _numbers_of(result, drawn)
    figure = go.Figure(
        go.Contour(
            x=columns,
            y=rows,
            z=drawn.colored,
            **drawn.colors(),
            customdata=drawn.hover,
            hovertemplate="%{customdata}<extra></extra>",
            connectgaps=False,
            line={"color": PAPER, "width": 0.7},
            contours={"showlabels": not drawn.is_log, "labelfont": {"size": 11, "color": _ON_MAP}},
            ncontours=18,
            name=drawn.shown.title,
        )
    )
    empty = [
        (columns[c], rows[r], drawn.hover[r][c])
        for r, row in enumerate(drawn.values)
        for c, value in enumerate(row)
        if value is None
    ]
    figure.add_trace(
        dots(
            [x for x, _, _ in empty],
            [y for _, y, _ in empty],
            [text for _, _, text in empty],
            mode="markers",
            marker={"symbol": "x-thin", "size": 6, "line": {"color": "#8b949e", "width": 1.2}},
            showlegend=False,
            name="infeasible",
        )
    )
    drawn.styled(figure, _subtitle(result, drawn), height=600)
    figure.update_layout(plot_bgcolor=EMPTY)
    down, across = _axes_of(result, drawn)
    figure.update_xaxes(**_number_axis(result, across), range=_range(columns), showgrid=False)
    figure.update_yaxes(**_number_axis(result, down), range=_range(rows), showgrid=False)
    for name, y, x in _marked_numbers(result, points, drawn, marks or {}):
        _mark(figure, name, _place(x, columns), _place(y, rows))
    return figure


def is_plane(result: SweepResult, axes: Sequence[str]) -> bool:
    """Whether two axes have enough numbers for slopes, and a patch between four points."""
    _, drawn = _map_of(result, axes, None)
    return _has_numbers(result, drawn) and drawn.has_patch


def _known_axes(result: SweepResult) -> list[str]:
    systems = [SYSTEM] if len(result.systems) > 1 else []
    return [*systems, *(axis.name for axis in varied(result))]


def _subtitle(result: SweepResult, drawn: Map) -> str:
    subtitle = f"{sweep_words(result)}; {drawn.best_words}"
    over = [short_name(name) for name in _known_axes(result) if name not in drawn.names]
    return subtitle + (f"; each the best over {' and '.join(over)}" if over else "")


def _axes_of(result: SweepResult, drawn: Map) -> tuple[Axis | None, Axis | None]:
    """Axes of a map, down and across; None for the systems."""
    down, across = (None if n == SYSTEM else axis_named(result, n) for n in drawn.names)
    return down, across


_Points = list[list[SweepPoint | None]]
"""The best point at every pair of values; None where nothing was evaluated."""


def _map_of(result: SweepResult, names: Sequence[str], tokens: float | None) -> tuple[_Points, Map]:
    """Lay the points of a sweep out over two axes, the best of those that meet."""
    known = _known_axes(result)
    names = list(names) or known
    if len(names) != _AXES or names[0] == names[1]:
        raise missing("two axes to draw over", f"name two of {', '.join(known) or 'none'}")
    if all(best_of(point) is None for point in result.points):
        raise missing("a feasible point", "give it more memory or more GPUs")
    axes = [None if name == SYSTEM else axis_named(result, name) for name in names]
    rows, columns = (result.systems if axis is None else axis.labels for axis in axes)
    shown = shown_for(result, tokens)
    points: _Points = [[None] * len(columns) for _ in rows]
    for point in result.points:
        r, c = (_position(result, axis, point) for axis in axes)
        if _beats(point, points[r][c], shown):
            points[r][c] = point
    plans = [[None if point is None else best_of(point) for point in row] for row in points]
    return points, Map(
        names=(names[0], names[1]),
        labels=(rows, columns),
        shown=shown,
        values=[[None if plan is None else shown.value(plan) for plan in row] for row in plans],
        hover=[
            [
                "was not evaluated" if point is None else point_hover(result, point, best_of(point))
                for point in row
            ]
            for row in points
        ],
    )


def _position(result: SweepResult, axis: Axis | None, point: SweepPoint) -> int:
    if axis is None:
        return result.systems.index(point.system)
    return point.at[result.axes.index(axis)]


def _beats(point: SweepPoint, before: SweepPoint | None, shown: Measure) -> bool:
    """Whether a point is drawn in place of another one."""
    if before is None:
        return True
    new, old = best_of(point), best_of(before)
    if new is None or old is None:
        return new is not None
    return shown.rank(new) < shown.rank(old)


def _has_numbers(result: SweepResult, drawn: Map) -> bool:
    """Whether both axes have three numbers or more, the same ones at every point."""
    for axis in _axes_of(result, drawn):
        if axis is None or not is_numeric(result, axis) or len(axis.labels) < _LEAST_OF_A_PLANE:
            return False
        places = {(_position(result, axis, p), p.values[axis.name]) for p in result.points}
        if len(places) != len(axis.labels):
            return False
    return True


def _numbers_of(result: SweepResult, drawn: Map) -> tuple[list[float], list[float]]:
    """Values down and across, in the units that they are shown in."""
    if not _has_numbers(result, drawn):
        what = f"{_LEAST_OF_A_PLANE} numbers on each of {' and '.join(drawn.names)}"
        raise missing(what, "draw a heat map, or the part of one system")
    down, across = (
        {_position(result, axis, p): number_of(axis, p) for p in result.points}
        for axis in _axes_of(result, drawn)
        if axis is not None
    )
    return [down[n] for n in sorted(down)], [across[n] for n in sorted(across)]


def _marked_cells(points: _Points, drawn: Map, marks: Marks) -> list[tuple[str, int, int]]:
    """Name, row and column of the points to mark."""
    found = [
        (name, r, c)
        for name, values in marks.items()
        for r, row in enumerate(points)
        for c, point in enumerate(row)
        if point is not None and _is_at(point, drawn.names, values)
    ]
    if all(_ORIGINAL in labels for labels in drawn.labels):
        row_of, column_of = (labels.index(_ORIGINAL) for labels in drawn.labels)
        if (row_of, column_of) not in [place[1:] for place in found]:
            found.append(("as it is", row_of, column_of))
    return found


def _is_at(point: SweepPoint, names: Sequence[str], values: Mapping[str, float]) -> bool:
    return all(
        name in values and isclose(point.values[name], values[name], rel_tol=1e-6) for name in names
    )


def _marked_numbers(
    result: SweepResult, points: _Points, drawn: Map, marks: Marks
) -> list[tuple[str, float, float]]:
    """Name, value down and value across of the points to mark, if they are on the map."""
    down, across = _axes_of(result, drawn)
    rows, columns = _numbers_of(result, drawn)
    found = []
    for name, values in marks.items():
        if down is None or across is None or not {down.name, across.name} <= set(values):
            continue
        y, x = shown_in(down, values[down.name]), shown_in(across, values[across.name])
        if min(rows) <= y <= max(rows) and min(columns) <= x <= max(columns):
            found.append((name, y, x))
    cells = [(name, rows[r], columns[c]) for name, r, c in _marked_cells(points, drawn, marks)]
    return found + [cell for cell in cells if cell[0] not in marks]


def _number_axis(result: SweepResult, axis: Axis | None) -> dict[str, object]:
    return {} if axis is None else number_axis(axis, result.points)


def _place(number: float, values: Sequence[float]) -> float:
    """Where an annotation is on an axis of these values."""
    return log10(number) if min(values) > 0 and spans_much(values) else number


def _range(values: Sequence[float]) -> list[float]:
    return [_place(min(values), values), _place(max(values), values)]


def _mark(figure: Figure, name: str, x: float, y: float, **look: object) -> None:
    """Write a name next to a point, with an arrow to it unless it looks otherwise."""
    arrow = {"ax": 34, "ay": -30, "arrowhead": 2, "arrowcolor": ACCENT, "font_size": 12}
    text = f"<b>{html.escape(name)}</b>"
    words = {"text": text, "bgcolor": VEIL, "font_color": ACCENT}
    figure.add_annotation(x=x, y=y, **words, **{**arrow, **look})


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
    if len(result.points) != 1:
        remedy = "name one: only(result, systems=..., at={axis: label})"
        raise missing("one point only", remedy)
    point = result.points[0]
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
    """Draw the best of every point, time against something else, and those that none beats."""
    go = plotly()
    if against not in FRONT_AXES:
        raise missing(f"a front against {against}", f"allowed: {', '.join(FRONT_AXES)}")
    axis = FRONT_AXES[against]
    found = [(p, plan) for p in result.points if (plan := best_of(p)) is not None]
    if not found:
        raise missing("a feasible point", "give it more memory or more GPUs")
    if against == "cost" and any(plan.usd_per_billion_tokens is None for _, plan in found):
        raise missing("a price at every point", "give the systems usd_per_accelerator_hour")
    measure = time_for(result, tokens)
    figure = go.Figure()
    best = _unbeaten([(axis.value(plan), measure.value(plan)) for _, plan in found])
    figure.add_trace(steps(best, "none is better on both", color="#8c8c8c"))
    for number, system in enumerate(result.systems):
        own = [(point, plan) for point, plan in found if point.system == system]
        pairs = [(axis.value(plan), measure.value(plan)) for _, plan in own]
        figure.add_trace(
            dots(
                [x for x, _ in pairs],
                [y for _, y in pairs],
                [point_hover(result, point, plan) for point, plan in own],
                mode="markers",
                marker={
                    "color": LINES[number % len(LINES)],
                    "size": [12 if pair in best else 8 for pair in pairs],
                    "opacity": 0.9,
                    "line": {"color": PAPER, "width": 1},
                },
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


def _scale(update: Callable[..., object], title: str, values: Sequence[float]) -> None:
    update(title=title, **(log_axis(values) if spans_much(values) else {"rangemode": "tozero"}))


def _unbeaten(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other is below in one and not above in the other, from the left."""
    best: list[tuple[float, float]] = []
    for pair in sorted(set(pairs)):
        if not best or pair[1] < best[-1][1]:
            best.append(pair)
    return best


_GPUS = "gpus"
_HARDWARE = "system"
_PRICE = "price"
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
    if all(plan.usd_per_billion_tokens is not None for plan in found) and _is_priced(result):
        drawn["front-cost"] = front(result, "cost", tokens=tokens)
    drawn["front-memory"] = front(result, tokens=tokens)
    return drawn


def _is_priced(result: SweepResult) -> bool:
    """Whether prices count what the varied hardware costs: they differ where it does, or it is one.

    Without a price of its own, better hardware costs as much per hour as that of the system.
    """
    hardware = [axis for axis in varied(result) if axis.kind == _HARDWARE]
    if not hardware or any(axis.name == _PRICE for axis in result.axes):
        return True
    hourly: dict[str, set[float]] = {}
    for point in result.points:
        if (plan := best_of(point)) is not None and plan.usd_per_billion_tokens is not None:
            rate = plan.usd_per_billion_tokens * plan.tokens_per_s / plan.strategy["gpus"]
            hourly.setdefault(point.system, set()).add(float(f"{rate:.6g}"))
    return any(len(rates) > 1 for rates in hourly.values())


def write_charts(
    result: SweepResult,
    path: str | Path,
    *,
    tokens: float | None = None,
    marks: Marks | None = None,
) -> None:
    """Write all charts of a sweep on one page, .html with all that it needs, or .json by name."""
    empty = sum(best_of(point) is None for point in result.points)
    counts = (
        f"{counted(len(result.points), 'point')}, {len(result.points) - empty:,} of them feasible"
    )
    facts = [f"{counts}; {result.candidates:,} strategies in {result.elapsed_s:.1f} s"]
    facts += [f"Changed along with what was requested: {one}." for one in result.assumed]
    if not _is_priced(result):
        facts.append(
            "No chart of time against price: the price of the system does not count what the "
            f"varied hardware costs; vary {_PRICE} with it."
        )
    if not result.complete:
        facts.append("Interrupted: this is what was found at a part of the points.")
    write_page(path, sweep_words(result), facts, charts(result, tokens=tokens, marks=marks))
