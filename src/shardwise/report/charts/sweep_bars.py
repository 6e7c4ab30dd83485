"""The best strategies of a sweep side by side: how they run, where time goes, what they hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.planning.sweep.results import Axis, PointPlan, SweepPoint, SweepResult
from shardwise.report.charts.common import (
    ACCENT,
    EMPTY,
    INK,
    LINES,
    Figure,
    differ,
    dressed,
    graphs,
    log_axis,
    subplots,
)
from shardwise.report.charts.plans import Shown, rounded, short_name
from shardwise.report.charts.search_parts import GREY, PART_WORDS, TIME_COLOURS
from shardwise.report.charts.sweep_configurations import (
    CHARACTER,
    WIDTH,
    add_configuration,
    configuration,
)
from shardwise.report.charts.sweep_points import (
    axis_named,
    label_of,
    missing,
    place_words,
    series,
    sweep_words,
    time_for,
    told,
    varied,
)
from shardwise.report.console import GIB

__all__ = ["MOST_BARS", "optima"]

MOST_BARS = 60
"""More stand too close to be read."""

_HUNDRED = 100.0
# Columns are no wider than if there were as many as that.
_LEAST_COLUMNS = 6
# Characters that stand below the columns side by side.
_ROOM_FOR_LABELS = 100
_MOST_WITH_WORDS = 30
# Where legends stand, beyond the second axis.
_ASIDE = 1.1
# Letters of the names of groups [pixels], bold ones.
_HEADING = 11.0
# Between the bars of two lines.
_GAP = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A point, where it stands, and its strategy: also one held fixed that does not fit."""

    x: float
    label: str
    group: str
    point: SweepPoint

    @property
    def plan(self) -> PointPlan | None:
        return self.point.best[0] if self.point.best else None


def optima(result: SweepResult, axis: str = "", *, tokens: float | None = None) -> Figure:
    """Draw the best of each point as a column: how it runs, where time goes, what it holds.

    Above stands the configuration, with darker cells for larger numbers; in the middle the parts
    of the time, as shares with a line for the whole, or by a button as they are; below the memory
    of the fullest stage with what the accelerator has.

    Parameters
    ----------
    axis
        Columns of one system and one value of the other axes stand together, along this one; by
        default the only one that is varied.
    tokens
        Show the days that training on so many takes instead of the time of a step.

    Raises
    ------
    InputError
        If there are no strategies or too many points, or plotly is not installed.
    """
    graphs()
    along = axis_named(result, axis) if axis or varied(result) else None
    bars, measure = _bars(result, along), time_for(result, tokens)
    found = [(bar.x, bar.plan) for bar in bars if bar.plan is not None]
    rows = configuration([plan for _, plan in found])
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
    add_configuration(figure, found, rows, columns=bars[-1].x + 1)
    _add_times(figure, result, bars, measure)
    _add_memory(figure, result, bars)
    words = "system" if along is None else short_name(along.name)
    title = f"Best strategies by {words}" if len(bars) > 1 else "The best strategy"
    dressed(figure, title, sweep_words(result), height=260 + strip + 510)
    _label(figure, bars, "" if along is None else words)
    figure.update_layout(
        barmode="stack",
        bargap=0.18,
        legend={"orientation": "v", "x": _ASIDE, "y": 1, "traceorder": "normal"},
        margin={"t": 125, "b": 100},
    )
    return figure


def _bars(result: SweepResult, along: Axis | None) -> list[_Bar]:
    """Every point with its place: lines of points stand apart."""
    if not any(point.best for point in result.points):
        raise missing("a strategy at any point", "give it more memory or more GPUs")
    if len(result.points) > MOST_BARS:
        problem = f"so few points that {MOST_BARS} bars show them"
        raise missing(problem, "draw a part: only(result, systems=..., at={axis: labels})")
    bars: list[_Bar] = []
    for number, line in enumerate(series(result, along)):
        for point in line.points:
            label = place_words(result, point)
            if along is not None:
                label = label_of(result, along, point)
            group = line.name if along is not None else ""
            bars.append(_Bar(x=len(bars) + _GAP * number, label=label, group=group, point=point))
    return bars


def _add_times(figure: Figure, result: SweepResult, bars: Sequence[_Bar], measure: Shown) -> None:
    """Stack the parts of the time: as shares beside a line for the whole, or as they are."""
    found = [(bar, bar.plan) for bar in bars if bar.plan is not None]
    x = [bar.x for bar, _ in found]
    wholes = [measure.value(plan) for _, plan in found]
    hover = [told(result, bar.point, plan) for bar, plan in found]
    shares: list[list[float]] = []
    amounts: list[list[float]] = []
    first = len(figure.data)
    figure.add_trace(_nothing(result, bars), row=2, col=1)
    empty = len(bars) - len(found)
    top = 1.12 * max(wholes)
    shares.append([_HUNDRED] * empty)
    amounts.append([top] * empty)
    for part in TIME_PARTS:
        share = [plan.time_s[part] / plan.step_time_s for _, plan in found]
        if not any(share):
            continue
        shares.append([_HUNDRED * s for s in share])
        amounts.append([s * whole for s, whole in zip(share, wholes, strict=True)])
        name = PART_WORDS.get(part, part)
        texts = [
            f"{name} {_HUNDRED * s:.1f} %, {rounded(s * whole)} {measure.unit}"
            for s, whole in zip(share, wholes, strict=True)
        ]
        look = {"color": TIME_COLOURS[part], "line": {"color": "white", "width": 0.5}}
        bar_words = {"text": texts, "textposition": "none", "customdata": hover}
        trace = graphs().Bar(x=x, y=shares[-1], name=name, marker=look, **bar_words)
        trace.hovertemplate = "<b>%{text}</b><br><br>%{customdata}<extra></extra>"
        figure.add_trace(trace, row=2, col=1)
    figure.add_trace(_whole(bars, measure), row=2, col=1, secondary_y=True)
    first_axis = {"title": "share of the time [%]", "range": [0, 100], "secondary_y": False}
    figure.update_yaxes(**first_axis, row=2, col=1)
    second = {"title": measure.head, "showgrid": False, "secondary_y": True}
    scale = log_axis(wholes) if differ(wholes) else {"range": [0, top], "tickmode": "auto"}
    figure.update_yaxes(**second, **scale, row=2, col=1)
    parts = list(range(first, first + len(shares)))
    _add_buttons(figure, parts, shares, amounts, top, measure)


def _whole(bars: Sequence[_Bar], measure: Shown) -> Any:
    """The line of the whole time, parted where columns are."""
    found = [bar for bar in bars if bar.plan is not None]
    x: list[float | None] = []
    y: list[float | None] = []
    for n, bar in enumerate(found):
        if n and found[n - 1].group != bar.group:
            x, y = [*x, None], [*y, None]
        x.append(bar.x)
        y.append(None if bar.plan is None else measure.value(bar.plan))
    return graphs().Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        line={"color": INK, "width": 1.5, "dash": "dot"},
        marker={"size": 7, "color": "white", "line": {"color": INK, "width": 1.5}},
        hoverinfo="skip",
        cliponaxis=False,
        name=measure.title,
    )


def _add_buttons(
    figure: Figure,
    parts: list[int],
    shares: list[list[float]],
    amounts: list[list[float]],
    top: float,
    measure: Shown,
) -> None:
    """Let the reader choose shares of the time or the time itself."""
    buttons = [
        {
            "label": "shares",
            "method": "update",
            "args": [
                {"y": shares},
                {"yaxis2.title.text": "share of the time [%]", "yaxis2.range": [0, 100]},
                parts,
            ],
        },
        {
            "label": measure.unit,
            "method": "update",
            "args": [
                {"y": amounts},
                {"yaxis2.title.text": measure.head, "yaxis2.range": [0, top]},
                parts,
            ],
        },
    ]
    place = {"x": _ASIDE, "xanchor": "left", "y": 0.36, "yanchor": "bottom"}
    figure.update_layout(
        updatemenus=[{"type": "buttons", "direction": "right", "buttons": buttons, **place}]
    )


def _add_memory(figure: Figure, result: SweepResult, bars: Sequence[_Bar]) -> None:
    """Stack what the fullest stage holds, with what the accelerator has."""
    found = [(bar, bar.plan) for bar in bars if bar.plan is not None]
    x = [bar.x for bar, _ in found]
    hover = [told(result, bar.point, plan) for bar, plan in found]

    def add(name: str, held: list[float], colour: str) -> None:
        figure.add_trace(
            graphs().Bar(
                x=x,
                y=held,
                name=name,
                marker={"color": colour, "line": {"color": "white", "width": 0.5}},
                text=[f"{name} {rounded(value)} GiB" for value in held],
                textposition="none",
                customdata=hover,
                hovertemplate="<b>%{text}</b><br><br>%{customdata}<extra></extra>",
                legend="legend2",
            ),
            row=3,
            col=1,
        )

    memories = [plan.memory_bytes for _, plan in found]
    for part, colour in zip(MEMORY_PARTS, LINES, strict=False):
        add(part, [memory[part] / GIB for memory in memories], colour)
    beside = [(memory["reserved"] - memory["total"]) / GIB for memory in memories]
    add("allocator and runtime", beside, GREY)
    capacity = [memory["capacity"] / GIB for memory in memories]
    figure.add_trace(
        graphs().Scatter(
            x=[edge for place in x for edge in (place - 0.5, place + 0.5, None)],
            y=[edge for most in capacity for edge in (most, most, None)],
            mode="lines",
            line={"color": ACCENT, "width": 2, "dash": "dash"},
            hoverinfo="skip",
            name="what it has",
            legend="legend2",
        ),
        row=3,
        col=1,
    )
    figure.update_yaxes(title="memory of a GPU [GiB]", rangemode="tozero", row=3, col=1)
    figure.update_layout(legend2={"x": _ASIDE, "y": 0.33, "yanchor": "top", "traceorder": "normal"})


def _nothing(result: SweepResult, bars: Sequence[_Bar]) -> Any:
    """Grey columns where there is no strategy, with the reasons."""
    empty = [bar for bar in bars if bar.plan is None]
    return graphs().Bar(
        x=[bar.x for bar in empty],
        y=[_HUNDRED] * len(empty),
        marker={"color": EMPTY},
        text=["nothing fits" if len(bars) <= _MOST_WITH_WORDS else ""] * len(empty),
        textangle=-90,
        textposition="inside",
        insidetextanchor="start",
        textfont={"color": ACCENT, "size": 12},
        customdata=[told(result, bar.point) for bar in empty],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
        name="nothing",
    )


def _label(figure: Figure, bars: Sequence[_Bar], axis: str) -> None:
    """Name columns below, groups of them below that; mark those that do not fit."""
    middle = bars[-1].x / 2
    half = max(middle + 0.6, _LEAST_COLUMNS / 2)
    figure.update_xaxes(showgrid=False, range=[middle - half, middle + half])
    longest = max(len(bar.label) for bar in bars)
    ticks = {
        "tickvals": [bar.x for bar in bars],
        "ticktext": [_marked(bar) for bar in bars],
        "tickangle": 0 if longest * len(bars) <= _ROOM_FOR_LABELS else -90,
    }
    figure.update_xaxes(**ticks, showticklabels=False)
    figure.update_xaxes(title=axis, showticklabels=True, row=3, col=1)
    for group in dict.fromkeys(bar.group for bar in bars):
        places = [bar.x for bar in bars if bar.group == group]
        if len(places) == len(bars):
            return
        lines = _lines(group, WIDTH * (len(places) + 0.6) / (2 * half))
        figure.add_annotation(
            text=f"<b>{'<br>'.join(lines.words)}</b>",
            font={"size": lines.font},
            x=(places[0] + places[-1]) / 2,
            y=1.0,
            yref="y domain",
            yanchor="bottom",
            yshift=2,
            showarrow=False,
        )


class _Lines(NamedTuple):
    words: list[str]
    font: float
    """Size of its letters in pixels."""


def _lines(group: str, room: float) -> _Lines:
    """A name in two lines, what and which, or in one for each word, as large as there is room."""
    for words in (group.split(" ", 1), group.split(" ")):
        font = room / CHARACTER / max(map(len, words))
        if font >= _HEADING:
            return _Lines(words, _HEADING)
    return _Lines(words, font)


def _marked(bar: _Bar) -> str:
    if bar.plan is None or bar.plan.fits:
        return bar.label
    return f"{bar.label}<br><span style='color:{ACCENT}'>does not fit</span>"
