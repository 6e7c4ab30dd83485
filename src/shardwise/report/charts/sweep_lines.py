"""A sweep over one axis as lines, and what would help most as bars."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log2
from typing import Any

from shardwise.config.strategy_fields import EXPERT_DEGREES, REPLICA_DEGREES
from shardwise.planning.sweep.results import Axis, Influence, PointPlan, SweepPoint, SweepResult
from shardwise.report.charts.common import (
    ACCENT,
    EMPTY,
    GREY,
    INK,
    LINES,
    MUTED,
    PAPER,
    Figure,
    Trace,
    component_bar,
    dots,
    log_axis,
    memory_components,
    plotly,
    spans_much,
    styled,
    subplots,
    time_components,
    whiskers,
)
from shardwise.report.charts.plans import (
    Measure,
    range_of,
    rounded,
    short_name,
    value_word,
    whisker_words,
)
from shardwise.report.charts.sweep_points import (
    Series,
    axis_named,
    best_of,
    is_numeric,
    label_of,
    missing,
    number_axis,
    number_of,
    point_hover,
    point_name,
    reason,
    series,
    shown_for,
    sweep_words,
    time_for,
    varied,
)
from shardwise.report.console import GIB
from shardwise.report.tables.strategy_line import ALWAYS_SHOWN

MOST_BARS = 60
"""More are too close to be read."""

_PERCENT = 100.0
# Columns are no wider than if there were as many as that.
_LEAST_COLUMNS = 6
# Characters of all labels below the columns for which there is room side by side.
_ROOM_FOR_LABELS = 100
_MOST_WITH_WORDS = 30
# Pixels of a column with its label, and of the axes at both sides.
_COLUMN_WIDTH, _SIDES = 60, 160
_FEW = 3
# The library has one color for the chosen button: style sheets of pages change that one.
_BUTTON_LOOK = {"bgcolor": EMPTY, "bordercolor": GREY, "font": {"color": INK}}
# Between the names of groups and the buttons.
_BUTTONS = 40
# Size of the bold names of groups [pixels].
_HEADING = 11.0
# Between the columns of two lines.
_GAP = 0.7

_DEGREES = (*REPLICA_DEGREES, "vpp", "dp", *EXPERT_DEGREES)
# Shown where they differ among the columns.
_OPTIONS = ("recompute", "zero", "schedule", "tp_exchange", "cp_exchange", "dtype", "quantization")
_DEPTHS = [[0, "#f6f8fa"], [1, "#6cb0dc"]]
# Pixels of all columns together, and the width of a character as a share of its height.
_WIDTH = 680
_CHARACTER = 0.58
_LEAST_FONT, _MOST_FONT = 7.5, 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Empty:
    """A point without a strategy, at its place."""

    x: float
    label: str
    group: str
    hover: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column(_Empty):
    """A point with its strategy: also a fixed one that does not fit."""

    plan: PointPlan


def optima(result: SweepResult, axis: str = "", *, tokens: float | None = None) -> Figure:
    """Draw the best of each point as a column: its configuration, time and memory.

    On top is the configuration, with darker cells for larger numbers; in the middle the components
    of the time, as shares with a line for the total, or by a button in seconds; below the memory of
    the peak-memory stage with the capacity.
    """
    plotly()
    along = axis_named(result, axis) if axis or varied(result) else None
    places, measure = _places(result, along), time_for(result, tokens)
    columns = [place for place in places if isinstance(place, _Column)]
    rows = _configuration([column.plan for column in columns])
    rows[f"time [{measure.unit}]"] = lambda plan: rounded(measure.value(plan))
    strip = 26 * len(rows)
    figure = subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.035,
        row_heights=[strip, 300, 210],
        specs=[[{}], [{"secondary_y": True}], [{}]],
    )
    _add_configuration(figure, columns, rows, room=_WIDTH / (places[-1].x + 1) / _CHARACTER)
    _add_times(figure, places, columns, measure)
    _add_memory(figure, columns)
    words = "system" if along is None else short_name(along.name)
    title = "The best strategy" if result.searched else "Time and memory of the strategy"
    if len(places) > 1:
        title = f"{'Best strategies' if result.searched else title} by {words}"
    width = _SIDES + min(_WIDTH, _COLUMN_WIDTH * max(_FEW, len(places)))
    subtitle = sweep_words(result) + whisker_words(column.plan for column in columns)
    styled(figure, title, subtitle, height=330 + strip + 510, least_width=width)
    _add_labels(figure, places, "" if along is None else words)
    figure.update_layout(
        barmode="stack",
        bargap=0.18,
        margin={"t": 155, "b": 100},
    )
    return figure


def _places(result: SweepResult, along: Axis | None) -> list[_Empty]:
    """Every point with its place, a gap between lines of points."""
    if not any(point.best for point in result.points):
        raise missing("a strategy at any point", "give it more memory or more GPUs")
    if len(result.points) > MOST_BARS:
        problem = f"so few points that {MOST_BARS} bars show them"
        raise missing(problem, "draw a part: only(result, systems=..., at={axis: labels})")
    places: list[_Empty] = []
    for number, line in enumerate(series(result, along)):
        for point in line.points:
            plan = point.best[0] if point.best else None
            x, hover = len(places) + _GAP * number, point_hover(result, point, plan)
            label, group = point_name(result, point), ""
            if along is not None:
                label, group = label_of(result, along, point), line.name
            if plan is None:
                places.append(_Empty(x=x, label=label, group=group, hover=hover))
            else:
                places.append(_Column(x=x, label=label, group=group, hover=hover, plan=plan))
    return places


def _add_times(
    figure: Figure, places: Sequence[_Empty], columns: Sequence[_Column], measure: Measure
) -> None:
    """Stack the components of the time: as shares with a line for the total, or as they are."""
    empty = [place for place in places if not isinstance(place, _Column)]
    totals = [measure.value(column.plan) for column in columns]
    top = 1.12 * max(totals)
    first = len(figure.data)
    figure.add_trace(_empty_columns(empty, few=len(places) <= _MOST_WITH_WORDS), row=2, col=1)
    shares = [[_PERCENT] * len(empty)]
    amounts = [[top] * len(empty)]
    for name, color, spent in time_components([column.plan.time_s for column in columns]):
        share = [s / c.plan.step_time_s for s, c in zip(spent, columns, strict=True)]
        shares.append([_PERCENT * s for s in share])
        amounts.append([s * total for s, total in zip(share, totals, strict=True)])
        texts = [
            f"{name} {percent:.1f} %, {rounded(amount)} {measure.unit}"
            for percent, amount in zip(shares[-1], amounts[-1], strict=True)
        ]
        figure.add_trace(_component(name, color, shares[-1], columns, texts), row=2, col=1)
    figure.add_trace(_total_line(columns, measure), row=2, col=1, secondary_y=True)
    share_axis = {"title": "share of the time [%]", "range": [0, 100]}
    figure.update_yaxes(**share_axis, secondary_y=False, row=2, col=1)
    second = {"title": measure.axis_title, "showgrid": False, "secondary_y": True}
    scale = log_axis(totals) if spans_much(totals) else {"range": [0, top], "tickmode": "auto"}
    figure.update_yaxes(**second, **scale, row=2, col=1)
    traces = list(range(first, first + len(shares)))
    buttons = [
        {
            "label": label,
            "method": "update",
            "args": [
                {"y": values},
                {"yaxis2.title.text": title, "yaxis2.range": [0, most]},
                traces,
            ],
        }
        for label, values, title, most in (
            ("shares", shares, "share of the time [%]", 100),
            (measure.unit, amounts, measure.axis_title, top),
        )
    ]
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": _BUTTONS}}
    figure.update_layout(
        updatemenus=[
            {"type": "buttons", "direction": "right", "buttons": buttons, **_BUTTON_LOOK, **place}
        ]
    )


def _component(
    name: str,
    color: str,
    values: Sequence[float],
    columns: Sequence[_Column],
    texts: Sequence[str],
    **words: object,
) -> Trace:
    return component_bar(
        name,
        color,
        values,
        [column.x for column in columns],
        vertical=True,
        text=texts,
        textposition="none",
        customdata=[column.hover for column in columns],
        hovertemplate="<b>%{text}</b><br><br>%{customdata}<extra></extra>",
        **words,
    )


def _empty_columns(empty: Sequence[_Empty], *, few: bool) -> Trace:
    """Gray columns where there is no strategy, with the reasons."""
    return plotly().Bar(
        x=[place.x for place in empty],
        y=[_PERCENT] * len(empty),
        marker={"color": EMPTY},
        text=["nothing fits" if few else ""] * len(empty),
        textangle=-90,
        textposition="inside",
        insidetextanchor="start",
        textfont={"color": ACCENT, "size": 12},
        customdata=[place.hover for place in empty],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
        name="nothing",
    )


def _total_line(columns: Sequence[_Column], measure: Measure) -> Trace:
    """The line of the total time, interrupted between groups of columns."""
    x: list[float | None] = []
    y: list[float | None] = []
    for n, column in enumerate(columns):
        if n and columns[n - 1].group != column.group:
            x, y = [*x, None], [*y, None]
        x.append(column.x)
        y.append(measure.value(column.plan))
    values = [0.0 if value is None else value for value in y]
    ranges = iter([range_of(column.plan, measure.value(column.plan)) for column in columns])
    ends = [None if value is None else next(ranges) for value in y]
    return plotly().Scatter(
        x=x,
        y=y,
        error_y=whiskers(values, ends),
        mode="lines+markers",
        line={"color": INK, "width": 1.5, "dash": "dot"},
        marker={"size": 7, "color": PAPER, "line": {"color": INK, "width": 1.5}},
        hoverinfo="skip",
        cliponaxis=False,
        name=measure.title,
    )


def _add_memory(figure: Figure, columns: Sequence[_Column]) -> None:
    """Stack the memory of the peak-memory stage, with a line at the capacity."""
    memories = [column.plan.memory_bytes for column in columns]
    for name, color, sizes in memory_components(memories):
        texts = [f"{name} {rounded(size)} GiB" for size in sizes]
        figure.add_trace(_component(name, color, sizes, columns, texts), row=3, col=1)
    capacity = [memory["capacity"] / GIB for memory in memories]
    figure.add_trace(
        plotly().Scatter(
            x=[edge for c in columns for edge in (c.x - 0.5, c.x + 0.5, None)],
            y=[edge for most in capacity for edge in (most, most, None)],
            mode="lines",
            line={"color": ACCENT, "width": 2, "dash": "dash"},
            hoverinfo="skip",
            name="capacity",
        ),
        row=3,
        col=1,
    )
    figure.update_yaxes(title="memory of a GPU [GiB]", rangemode="tozero", row=3, col=1)


def _add_labels(figure: Figure, places: Sequence[_Empty], axis: str) -> None:
    """Name columns below, and groups of them on top; mark those that do not fit."""
    middle = places[-1].x / 2
    half = max(middle + 0.6, _LEAST_COLUMNS / 2)
    figure.update_xaxes(showgrid=False, range=[middle - half, middle + half])
    longest = max(len(place.label) for place in places)
    ticks = {
        "tickvals": [place.x for place in places],
        "ticktext": [_marked(place) for place in places],
        "tickangle": 0 if longest * len(places) <= _ROOM_FOR_LABELS else -90,
    }
    figure.update_xaxes(**ticks, showticklabels=False)
    figure.update_xaxes(title=axis, showticklabels=True, row=3, col=1)
    for group in dict.fromkeys(place.group for place in places):
        members = [place.x for place in places if place.group == group]
        if len(members) == len(places):
            return
        words, size = _heading(group, _WIDTH * (len(members) + 0.6) / (2 * half))
        figure.add_annotation(
            text=f"<b>{'<br>'.join(words)}</b>",
            font={"size": size},
            x=(members[0] + members[-1]) / 2,
            y=1.0,
            yref="y domain",
            yanchor="bottom",
            yshift=2,
            showarrow=False,
        )


def _heading(group: str, room: float) -> tuple[list[str], float]:
    """A name in two lines, or in one for each word, and the largest font with enough room."""
    for words in (group.split(" ", 1), group.split(" ")):
        size = room / _CHARACTER / max(map(len, words))
        if size >= _HEADING:
            return words, _HEADING
    return words, size


def _marked(place: _Empty) -> str:
    if not isinstance(place, _Column) or place.plan.fits:
        return place.label
    return f"{place.label}<br><span style='color:{ACCENT}'>does not fit</span>"


_Rows = dict[str, Callable[[PointPlan], object]]
"""What the table shows of a strategy, by the name of the row."""


def _configuration(plans: Sequence[PointPlan]) -> _Rows:
    """Degrees, batches, and options in which strategies differ."""

    def reads(field: str) -> Callable[[PointPlan], object]:
        return lambda plan: plan.strategy.get(field, 1)

    fields = [f for f in _DEGREES if f in ALWAYS_SHOWN or any(reads(f)(p) != 1 for p in plans)]
    rows = {short_name(field): reads(field) for field in fields}
    rows[short_name("micro_batch_size")] = reads("micro_batch_size")
    rows["micro-batches"] = _micro_batches
    for field in _OPTIONS:
        if len({value_word(plan.strategy.get(field)) for plan in plans}) > 1:
            rows[short_name(field)] = reads(field)
    return rows


def _micro_batches(plan: PointPlan) -> int:
    s = plan.strategy
    return int(s["global_batch_size"] // (s["dp"] * s["micro_batch_size"]))


def _add_configuration(
    figure: Figure, columns: Sequence[_Column], rows: _Rows, *, room: float
) -> None:
    """Draw strategies as columns of a table whose cells are darker the larger their numbers are.

    Parameters
    ----------
    room
        Width of a column, in characters of one pixel height.
    """
    cells = [[value_word(read(column.plan)) for column in columns] for read in rows.values()]
    depths = [[_depth(read(column.plan)) for column in columns] for read in rows.values()]
    fitting = [[word if len(word) * _LEAST_FONT <= room else "" for word in row] for row in cells]
    size = min(_MOST_FONT, room / max(1, *(len(word) for row in fitting for word in row)))
    for n, column in enumerate(columns):  # one map each: there are gaps between groups
        figure.add_trace(
            plotly().Heatmap(
                x=[column.x],
                dx=1,
                y=list(range(len(rows))),
                z=[[row[n]] for row in depths],
                zmin=0,
                zmax=max(max(row) for row in depths) or 1,
                colorscale=_DEPTHS,
                showscale=False,
                xgap=1,
                ygap=1,
                text=[[row[n]] for row in fitting],
                texttemplate="%{text}",
                textfont={"size": size, "color": INK},
                customdata=[[f"{name} {row[n]}"] for name, row in zip(rows, cells, strict=True)],
                hovertemplate="%{customdata}<extra></extra>",
                name="configuration",
            ),
            row=1,
            col=1,
        )
    ticks = {"tickvals": list(range(len(rows))), "ticktext": list(rows)}
    figure.update_yaxes(**ticks, autorange="reversed", showgrid=False, row=1, col=1)


def _depth(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return 0.0
    return log2(value)


def whiskers_of(plans: Sequence[PointPlan], shown: Measure, color: str) -> dict[str, Any]:
    """Return the prediction intervals of what is shown of plans, as error bars."""
    values = [shown.value(plan) for plan in plans]
    is_rate = not shown.lower_is_better
    pairs = zip(plans, values, strict=True)
    return whiskers(values, [range_of(p, v, is_rate=is_rate) for p, v in pairs], color)


def point_bars(result: SweepResult, line: Series, axis: Axis, shown: Measure) -> Trace:
    """Return the points of a line as bars, with the reasons where there is nothing."""
    best = [best_of(point) for point in line.points]
    values = [None if plan is None else shown.value(plan) for plan in best]
    plans = [plan for plan in best if plan is not None]
    bars = whiskers_of(plans, shown, INK)
    for name in ("array", "arrayminus"):  # a place for each point
        ends = iter(bars[name])
        bars[name] = [0.0 if plan is None else next(ends) for plan in best]
    return plotly().Bar(
        x=[label_of(result, axis, point) for point in line.points],
        y=values,
        error_y=bars,
        marker={"color": line.color},
        text=["nothing fits" if value is None else rounded(value) for value in values],
        textposition="inside",
        insidetextanchor="middle",
        customdata=[
            point_hover(result, point, plan) for point, plan in zip(line.points, best, strict=True)
        ],
        hovertemplate="%{customdata}<extra></extra>",
        name=line.name,
    )


_GPUS = "gpus"
_CROSS = {"symbol": "x-thin", "size": 9}
# Height of crosses as a share of the axis: one row for each line.
_FIRST_CROSS, _NEXT_CROSS = 0.02, 0.025
_LEAST_OF_A_LINE = 3
_BEYOND_ZERO = "; the axis does not start at 0"
# Pixels that bars of two panels with their texts need.
_TORNADO = 720
MOST_TORNADOES = 6
"""Points whose sensitivities are drawn side by side."""
_MOST_FIGURES = 15
# Length of an axis over its longest bar: room for text.
_ROOM = 1.3
# Less than this counts as no effect: of the elasticity, or of the step time after a new search.
_LEAST_ELASTICITY = 1e-4


def scaling(result: SweepResult, *, tokens: float | None = None) -> Figure:
    """Draw strong scaling: time over GPUs, and throughput per GPU relative to the first.

    Dashed is what each line would be if every GPU did as much as those of its first point. The
    lower panel is relative to the first line's smallest feasible number of GPUs.
    """
    scatter = plotly().Scatter
    axis = axis_named(result, _GPUS)
    lines, measure = series(result, axis), time_for(result, tokens)
    first = _first(lines)
    unit = first[1].tokens_per_s_per_gpu
    figure = subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[3, 2])
    for number, line in enumerate(lines):
        words = _line(result, line, axis)
        plans = [plan for _, plan in line.feasible]
        times = [measure.value(plan) for plan in plans]
        bars = whiskers(times, list(map(range_of, plans, times)), line.color)
        figure.add_trace(scatter(y=times, **words, error_y=bars), row=1, col=1)
        shares = [plan.tokens_per_s_per_gpu / unit for plan in plans]
        figure.add_trace(scatter(y=shares, **words, showlegend=False), row=2, col=1)
        if times and line.kind == 0:  # one for each color: more are not legible
            figure.add_trace(_ideal(line, axis, times[0]), row=1, col=1)
        _add_crosses(figure, line, axis, _without(line), number)
    found = [measure.value(plan) for _, plan in chain.from_iterable(s.feasible for s in lines)]
    figure.update_yaxes(title=measure.axis_title, **log_axis(found), row=1, col=1)
    figure.update_yaxes(title="throughput of a GPU, relative", rangemode="tozero", row=2, col=1)
    place = point_name(result, first[0], along=axis)
    figure.add_hline(
        y=1,
        line={"color": INK, "dash": "dot", "width": 1},
        row=2,
        col=1,
    )
    along = number_axis(axis, result.points)
    figure.update_xaxes(**{**along, "title": None, "type": "log"})
    figure.update_xaxes(title=along["title"], row=2, col=1)
    unity = f"relative to a GPU of {place} with {first[0].values[axis.name]:,}"
    subtitle = f"{sweep_words(result)}; dashed: ideal; below: {unity}{_known(lines)}"
    return styled(figure, f"Strong scaling of {result.model}", subtitle, height=720)


def trend(result: SweepResult, axis: str = "", *, tokens: float | None = None) -> Figure:
    """Draw the best over one axis of numbers, a line for each system and value of other axes.

    Two numbers are bars from zero.
    """
    scatter = plotly().Scatter
    along = _numeric(result, axis)
    lines, shown = series(result, along), shown_for(result, tokens)
    _first(lines)
    figure = plotly().Figure()
    best = f"Best {shown.title}" if result.searched else shown.title[0].upper() + shown.title[1:]
    title, subtitle = f"{best} over {along.name}", sweep_words(result) + _known(lines)
    if len({number_of(along, point) for point in result.points}) < _LEAST_OF_A_LINE:
        for line in lines:
            figure.add_trace(point_bars(result, line, along, shown))
        figure.update_yaxes(title=shown.axis_title, rangemode="tozero")
        figure.update_xaxes(title=short_name(along.name), type="category", showgrid=False)
        styled(figure, title, subtitle)
        return figure.update_layout(barmode="group", bargap=0.5, showlegend=len(lines) > 1)
    for number, line in enumerate(lines):
        plans = [plan for _, plan in line.feasible]
        values = [shown.value(plan) for plan in plans]
        bars = whiskers_of(plans, shown, line.color)
        figure.add_trace(scatter(y=values, **_line(result, line, along), error_y=bars))
        _add_crosses(figure, line, along, _without(line), number)
    found = [shown.value(plan) for _, plan in chain.from_iterable(s.feasible for s in lines)]
    scale = _value_axis(found)
    subtitle += _BEYOND_ZERO if scale.get("rangemode") == "normal" else ""
    figure.update_yaxes(title=shown.axis_title, **scale)
    figure.update_xaxes(**number_axis(along, result.points))
    return styled(figure, title, subtitle)


def _known(lines: Sequence[Series]) -> str:
    """What the whiskers of lines are."""
    return whisker_words(plan for line in lines for _, plan in line.feasible)


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
    """
    scatter = plotly().Scatter
    along = _numeric(result, axis)
    others = {_key(other, point): point for point in other.points}
    figure = plotly().Figure()
    found: list[float] = []
    for number, line in enumerate(series(result, along)):
        pairs = [(p, others[_key(result, p)]) for p in line.points if _key(result, p) in others]
        both = [(p, a, b) for p, q in pairs if (a := best_of(p)) and (b := best_of(q))]
        values = [b.tokens_per_s / a.tokens_per_s for _, a, b in both]
        found += values
        words = _line(result, line, along)
        words["x"] = [number_of(along, p) for p, _, _ in both]
        words["customdata"] = [
            f"{rounded(value)}<br><br><b>{names[0]}</b> {point_hover(result, p, a)}"
            f"<br><br><b>{names[1]}</b> {point_hover(other, p, b)}"
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
    figure.update_yaxes(title=f"time of {names[0]} / time of {names[1]}", **_value_axis(found))
    figure.update_xaxes(**number_axis(along, result.points))
    subtitle = f"{sweep_words(result)}; above 1 {names[1]} is faster"
    return styled(figure, f"{names[0]} over {names[1]}", subtitle)


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
    """Arguments of a line that all panels share."""
    return {
        "x": [number_of(axis, point) for point, _ in line.feasible],
        "mode": "lines+markers",
        "line": {"color": line.color, "width": 2},
        "marker": {"size": 8, "color": line.color, "symbol": line.mark},
        "customdata": [point_hover(result, point, plan) for point, plan in line.feasible],
        "hovertemplate": "%{customdata}<extra></extra>",
        "name": line.name,
        "legendgroup": line.name,
    }


def _ideal(line: Series, axis: Axis, time: float) -> Trace:
    """What a line would be if every GPU did as much as those of its first point."""
    start = number_of(axis, line.feasible[0][0])
    numbers = sorted(n for n in {number_of(axis, point) for point in line.points} if n >= start)
    return plotly().Scatter(
        x=numbers,
        y=[time * start / n for n in numbers],
        mode="lines",
        line={"color": line.color, "dash": "dash", "width": 1.5},
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
        dots(
            [number_of(axis, point) for point, _ in lone],
            [_FIRST_CROSS + _NEXT_CROSS * number] * len(lone),
            [f"<b>{line.name}</b><br>{why}" for _, why in lone],
            mode="markers",
            marker={**_CROSS, "line": {"color": line.color, "width": 2}},
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


def _value_axis(values: Sequence[float]) -> dict[str, object]:
    """An axis of values: logarithmic where they differ much, else from a little below them."""
    if spans_much(values):
        return log_axis(values)
    return {"rangemode": "tozero" if max(values) > 2 * min(values) else "normal"}


def tornado(result: SweepResult) -> Figure:
    """Draw how the step time answers to each figure of the system, the most influential on top.

    The hardware comes first, then the constants of the model. A bar of -0.4 says: one per
    cent more makes the step 0.4 % shorter. Next to it is what doubling (or halving what is better
    less) saves, to the right, and what the opposite costs, to the left, and what the best strategy
    with that figure saves and costs. Several points are drawn side by side.
    """
    points = [point for point in result.points if point.sensitivity]
    if not points:
        raise missing("sensitivities", "sweep with sensitivity=True")
    if len(points) > MOST_TORNADOES:
        problem = f"sensitivities of so few points that {MOST_TORNADOES} colors show them"
        raise missing(problem, "draw a part: only(result, systems=..., at={axis: label})")
    names = _ranked(points)
    figure = subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.04)
    for number, point in enumerate(points):
        _add_bars(figure, result, point, names, LINES[number], alone=len(points) == 1)
    styled(
        figure,
        "What would help most",
        f"{sweep_words(result)}; the figures that matter",
        height=240 + (20 + 16 * len(points)) * len(names),
        least_width=_TORNADO,
    )
    order = {"categoryorder": "array", "categoryarray": names, "autorange": "reversed"}
    figure.update_yaxes(**order, showgrid=False)
    figure.update_xaxes(title="% of step time for 1 % more", row=1, col=1)
    figure.update_xaxes(title="costs (left) and saves (right) of the step [%]", row=1, col=2)
    known = list(chain.from_iterable(point.sensitivity for point in points))
    most = max(max(one.saved, one.best_saved or 0.0) for one in known)
    least = max(max(one.lost, one.best_lost or 0.0) for one in known if one.figure in names)
    ends = [-_ROOM * _PERCENT * least, _ROOM * _PERCENT * max(most, _LEAST_ELASTICITY)]
    figure.update_xaxes(range=ends, row=1, col=2)
    _divide(figure, known, names)
    figure.add_vline(x=0, line={"color": MUTED, "width": 1})
    again = any(one.best_saved is not None for one in known)
    figure.update_layout(bargap=0.25, showlegend=again or len(points) > 1)
    return figure


def _ranked(points: Sequence[SweepPoint]) -> list[str]:
    """Figures by kind and the size of their elasticity, those that matter also after a search."""
    sizes: dict[str, tuple[float, float]] = {}
    hardware: set[str] = set()
    for one in chain.from_iterable(point.sensitivity for point in points):
        before, again = sizes.get(one.figure, (0.0, 0.0))
        other = max(one.best_saved or 0.0, one.best_lost or 0.0)
        sizes[one.figure] = (max(before, abs(one.elasticity)), max(again, other))
        if one.kind == "hardware":
            hardware.add(one.figure)
    most = sorted(sizes, key=lambda name: -max(sizes[name]))[:_MOST_FIGURES]
    matter = [name for name in most if max(sizes[name]) >= _LEAST_ELASTICITY]
    return sorted(matter, key=lambda name: (name not in hardware, -sizes[name][0], -sizes[name][1]))


def _divide(figure: Figure, known: Sequence[Influence], names: Sequence[str]) -> None:
    """Draw a line between the hardware and the constants, with the names of both."""
    hardware = {one.figure for one in known if one.kind == "hardware"}
    count = sum(name in hardware for name in names)
    words = ((0, "hardware", count), (count, "constants of the model", len(names) - count))
    for first, text, size in words:
        if size:
            figure.add_annotation(
                text=f"<i>{text}</i>",
                x=1,
                xref="x2 domain",
                xanchor="right",
                y=first + size - 0.5,
                yref="y2",
                yanchor="bottom",
                showarrow=False,
                font={"color": MUTED},
            )
    if 0 < count < len(names):
        figure.add_hline(y=count - 0.5, line={"color": MUTED, "width": 1, "dash": "dot"})


def _add_bars(
    figure: Figure,
    result: SweepResult,
    point: SweepPoint,
    names: Sequence[str],
    color: str,
    *,
    alone: bool,
) -> None:
    """Elasticities of one point at the left, at the right what is saved."""
    known = {one.figure: one for one in point.sensitivity}
    own = [known[name] for name in names if name in known]
    place = point_hover(result, point, best_of(point))
    words = {
        "y": [one.figure for one in own],
        "orientation": "h",
        "customdata": [f"<b>{one.figure}</b>: {_saving(one)}<br><br>{place}" for one in own],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    bar = plotly().Bar
    name = point_name(result, point)
    look = {"marker": {"color": color}, "legendgroup": name, "name": name, "offsetgroup": name}
    figure.add_trace(bar(x=[one.elasticity for one in own], **words, **look), row=1, col=1)
    texts = {"textposition": "outside", "cliponaxis": False} if alone else {"textposition": "none"}
    figure.add_trace(
        bar(
            x=[_PERCENT * one.saved for one in own],
            text=[f"{one.factor:.3g}x: {_PERCENT * one.saved:.1f} %" for one in own],
            **texts,
            **words,
            **look,
            showlegend=False,
        ),
        row=1,
        col=2,
    )
    figure.add_trace(
        bar(
            x=[-_PERCENT * one.lost for one in own],
            text=[_cost(one) for one in own],
            **texts,
            **words,
            marker={"color": color, "opacity": 0.55},
            legendgroup=name,
            offsetgroup=name,
            name=f"{name}: costs",
            showlegend=False,
        ),
        row=1,
        col=2,
    )
    again = [one for one in own if one.best_saved is not None]
    if alone and again:
        look = {"marker": {"color": LINES[1]}, "name": "with the best strategy then"}
        for number, values in enumerate(
            (
                [one.best_saved or 0.0 for one in again],
                [-one.best_lost if one.best_lost is not None else 0.0 for one in again],
            )
        ):
            figure.add_trace(
                bar(
                    x=[_PERCENT * value for value in values],
                    **{**words, "y": [one.figure for one in again]},
                    text=[
                        "nothing fits"
                        if number and one.best_lost is None
                        else f"{abs(_PERCENT * value):.1f} %"
                        for one, value in zip(again, values, strict=True)
                    ],
                    **texts,
                    **look,
                    legendgroup="again",
                    offsetgroup="again",
                    showlegend=number == 0,
                ),
                row=1,
                col=2,
            )


def _cost(one: Influence) -> str:
    """What the worse figure costs the same strategy."""
    if not one.worse_fits:
        return f"{one.worse_factor:.3g}x: does not fit"
    return f"{one.worse_factor:.3g}x: {_PERCENT * one.lost:.1f} %"


def _saving(one: Influence) -> str:
    text = f"{one.factor:.3g}x saves {_PERCENT * one.saved:.1f} %"
    if one.best_saved is not None:
        text += f", {_PERCENT * one.best_saved:.1f} % with the best strategy then"
    text += f"; {one.worse_factor:.3g}x costs {_PERCENT * one.lost:.1f} %"
    text += "" if one.worse_fits else " and does not fit"
    if one.best_saved is None:
        return text
    if one.best_lost is None:
        return f"{text}, nothing fits then"
    return f"{text}, {_PERCENT * one.best_lost:.1f} % with the best strategy then"
