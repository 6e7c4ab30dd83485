"""The best strategies of a sweep side by side: configuration, time and memory of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from shardwise.config.strategy_fields import EXPERT_DEGREES, REPLICA_DEGREES
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.planning.sweep.results import Axis, PointPlan, SweepResult
from shardwise.report.charts.common import (
    ACCENT,
    COMPONENT_NAMES,
    EMPTY,
    INK,
    MEMORY_COLORS,
    PAPER,
    TIME_COLORS,
    Figure,
    Trace,
    component_bar,
    log_axis,
    plotly,
    spans_much,
    styled,
    subplots,
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
    label_of,
    missing,
    point_hover,
    point_name,
    series,
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
# The library has one color for the chosen button, so that themes do not change these.
_BUTTON_LOOK = {"bgcolor": "#d0d7de", "bordercolor": "#8b949e", "font": {"color": "#1f2328"}}
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

    Parameters
    ----------
    axis
        Columns of one system and one value of the other axes are grouped, along this axis; by
        default the only one that is varied.
    tokens
        Show the days that training on so many takes instead of the time of a step.
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
    title = f"Best strategies by {words}" if len(places) > 1 else "The best strategy"
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
    for component in TIME_PARTS:
        share = [column.plan.time_s[component] / column.plan.step_time_s for column in columns]
        if not any(share):
            continue
        shares.append([_PERCENT * s for s in share])
        amounts.append([s * total for s, total in zip(share, totals, strict=True)])
        name = COMPONENT_NAMES.get(component, component)
        texts = [
            f"{name} {percent:.1f} %, {rounded(amount)} {measure.unit}"
            for percent, amount in zip(shares[-1], amounts[-1], strict=True)
        ]
        bar = _component(name, TIME_COLORS[component], shares[-1], columns, texts)
        figure.add_trace(bar, row=2, col=1)
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
    sizes = {name: [memory[name] / GIB for memory in memories] for name in MEMORY_PARTS}
    sizes["runtime"] = [(memory["reserved"] - memory["total"]) / GIB for memory in memories]
    for component, values in sizes.items():
        name = COMPONENT_NAMES.get(component, component)
        texts = [f"{name} {rounded(value)} GiB" for value in values]
        color = MEMORY_COLORS[component]
        bar = _component(name, color, values, columns, texts)
        figure.add_trace(bar, row=3, col=1)
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
