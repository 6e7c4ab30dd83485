"""The best of a sweep over two axes: as a heat map, as contours, and as a surface."""

from collections.abc import Sequence
from itertools import pairwise
from math import log10
from typing import Any

from shardwise.planning.sweep.results import Axis, SweepResult
from shardwise.report.charts.common import (
    ACCENT,
    EMPTY,
    GOOD_IS_BRIGHT,
    INK,
    Figure,
    differ,
    dressed,
    graphs,
    log_axis,
)
from shardwise.report.charts.plans import rounded, short_name
from shardwise.report.charts.sweep_grid import (
    Map,
    Marks,
    has_numbers,
    map_of,
    marked_cells,
    marked_numbers,
    numbers_of,
)
from shardwise.report.charts.sweep_points import (
    SYSTEM,
    is_numeric,
    number_axis,
    sweep_words,
    told,
    varied,
)

__all__ = ["Marks", "contour", "heat_map", "is_plane", "surface"]

_MOST_COLUMNS_WITH_TEXT = 24


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
        the best over the others is shown. Need not be given where two are varied.
    tokens
        Show the days that training on so many takes.
    marks
        Points to mark. Where values are factors, the system as it is is marked anyway.

    Raises
    ------
    InputError
        If the sweep has no such axes or nothing feasible, or plotly is not installed.
    """
    go = graphs()
    drawn = map_of(result, axes, tokens)
    values, shown = drawn.values, drawn.shown
    columns = len(drawn.labels[1])
    words = {"size": max(8, min(13, 420 // columns))}
    legible = "%{text}" if columns <= _MOST_COLUMNS_WITH_TEXT else None
    reasons = [
        [told(result, p) if p is not None else "was not looked at" for p in row]
        for row in drawn.points
    ]
    figure = go.Figure(
        go.Heatmap(
            z=[[1 if value is None else None for value in row] for row in values],
            colorscale=[[0, EMPTY], [1, EMPTY]],
            showscale=False,
            xgap=2,
            ygap=2,
            text=[["-" if value is None else "" for value in row] for row in values],
            texttemplate=legible,
            textfont={**words, "color": "#8b949e"},
            customdata=reasons,
            hovertemplate="%{customdata}<extra></extra>",
            name="infeasible",
        )
    )
    figure.add_trace(
        go.Heatmap(
            z=_heights(drawn),
            **_colours(drawn),
            xgap=2,
            ygap=2,
            text=[["" if value is None else rounded(value) for value in row] for row in values],
            texttemplate=legible,
            textfont=words,
            customdata=drawn.mapped(lambda point, plan: told(result, point, plan), without=""),
            hovertemplate="%{customdata}<extra></extra>",
            name=shown.title,
        )
    )
    _frame(figure, *drawn.found[0][:2])
    _dress(figure, result, drawn)
    figure.update_layout(height=220 + 44 * max(5, min(20, len(drawn.labels[0]))))
    figure.update_xaxes(**_ticks(drawn, 1), showgrid=False)
    down = drawn.axes[0]
    turned = {} if down is not None and is_numeric(result, down) else {"autorange": "reversed"}
    figure.update_yaxes(**_ticks(drawn, 0), **turned, showgrid=False)
    for name, row, column in marked_cells(drawn, marks or {}):
        _mark(figure, name, column, row)
    return figure


def contour(
    result: SweepResult,
    axes: Sequence[str] = (),
    *,
    tokens: float | None = None,
    marks: Marks | None = None,
) -> Figure:
    """Draw the best over two axes of numbers as filled contours; grey where there is nothing.

    Parameters
    ----------
    axes, tokens, marks
        As of `heat_map`.

    Raises
    ------
    InputError
        If the axes are not of three numbers each, else as `heat_map`.
    """
    go = graphs()
    drawn = map_of(result, axes, tokens)
    rows, columns = numbers_of(result, drawn)
    values, shown = drawn.values, drawn.shown
    logarithmic = differ([value for _, _, value in drawn.found])
    figure = go.Figure(
        go.Contour(
            x=columns,
            y=rows,
            z=_heights(drawn),
            **_colours(drawn),
            customdata=drawn.mapped(lambda point, plan: told(result, point, plan), without=""),
            hovertemplate="%{customdata}<extra></extra>",
            connectgaps=False,
            line={"color": "white", "width": 0.7},
            contours={"showlabels": not logarithmic, "labelfont": {"size": 11, "color": INK}},
            ncontours=18,
            name=shown.title,
        )
    )
    empty = [
        (columns[c], rows[r], point)
        for r, row in enumerate(drawn.points)
        for c, point in enumerate(row)
        if values[r][c] is None
    ]
    figure.add_trace(
        go.Scatter(
            x=[x for x, _, _ in empty],
            y=[y for _, y, _ in empty],
            mode="markers",
            marker={"symbol": "x-thin", "size": 6, "line": {"color": "#8b949e", "width": 1.2}},
            customdata=[told(result, p) if p else "was not looked at" for _, _, p in empty],
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
            name="infeasible",
        )
    )
    _dress(figure, result, drawn)
    figure.update_layout(height=600, plot_bgcolor=EMPTY)
    down, across = drawn.axes
    figure.update_xaxes(**_along(result, across), range=_range(columns), showgrid=False)
    figure.update_yaxes(**_along(result, down), range=_range(rows), showgrid=False)
    for name, y, x in marked_numbers(drawn, marks or {}, rows, columns):
        _mark(figure, name, _place(x, columns), _place(y, rows))
    return figure


def surface(
    result: SweepResult, axes: Sequence[str] = (), *, tokens: float | None = None
) -> Figure:
    """Draw the same as a surface in three dimensions, the best on top.

    Raises
    ------
    InputError
        As `contour`.
    """
    go = graphs()
    drawn = map_of(result, axes, tokens)
    rows, columns = numbers_of(result, drawn)
    colours = _colours(drawn)
    shown = drawn.shown
    found = [value for _, _, value in drawn.found]
    figure = go.Figure(
        go.Surface(
            x=columns,
            y=rows,
            z=drawn.values,
            surfacecolor=_heights(drawn),
            colorscale=colours["colorscale"],
            colorbar=colours["colorbar"],
            cmin=colours["zmin"],
            cmax=colours["zmax"],
            lighting={"ambient": 1, "diffuse": 0, "specular": 0},
            text=drawn.mapped(lambda point, plan: told(result, point, plan), without=""),
            hovertemplate="%{text}<extra></extra>",
            name=shown.title,
        )
    )
    _dress(figure, result, drawn)
    height: dict[str, Any] = {"title": {"text": shown.head}}
    if shown.lower_is_better:
        height["autorange"] = "reversed"
    if differ(found):
        height |= log_axis(found)
    down, across = drawn.axes
    figure.update_layout(
        height=660,
        scene={
            "xaxis": _along(result, across),
            "yaxis": _along(result, down),
            "zaxis": height,
            "camera": {
                "eye": {"x": -1.7, "y": -1.7, "z": 1.0},
                "center": {"x": 0, "y": 0, "z": -0.2},
            },
            "aspectmode": "manual",
            "aspectratio": {"x": 1.3, "y": 1.3, "z": 0.8},
        },
    )
    return figure


def is_plane(result: SweepResult, axes: Sequence[str]) -> bool:
    """Whether two axes have numbers enough for slopes, and a patch between four points."""
    drawn = map_of(result, axes, None)
    if not has_numbers(result, drawn):
        return False
    return any(
        None not in (a[c], a[c + 1], b[c], b[c + 1])
        for a, b in pairwise(drawn.values)
        for c in range(len(a) - 1)
    )


def _heights(drawn: Map) -> list[list[float | None]]:
    """Values as colours see them: their logarithms where they differ much."""
    if not differ([value for _, _, value in drawn.found]):
        return drawn.values
    return [[None if value is None else log10(value) for value in row] for row in drawn.values]


def _colours(drawn: Map) -> dict[str, Any]:
    """Colour scale, its ends and its key: good is bright."""
    found = [value for _, _, value in drawn.found]
    title = {"text": drawn.shown.head, "side": "right"}
    bar: dict[str, Any] = {"title": title, "outlinewidth": 0, "thickness": 16}
    least, most = min(found), max(found)
    if differ(found):
        scale = log_axis(found)
        ticks = zip(scale["tickvals"], scale["ticktext"], strict=True)
        inside = [(log10(tick), word) for tick, word in ticks if least <= tick <= most]
        bar |= {"tickvals": [t for t, _ in inside], "ticktext": [word for _, word in inside]}
        least, most = log10(least), log10(most)
    colours = GOOD_IS_BRIGHT + ("_r" if drawn.shown.lower_is_better else "")
    return {"colorscale": colours, "zmin": least, "zmax": most, "colorbar": bar}


def _dress(figure: Figure, result: SweepResult, drawn: Map) -> None:
    shown, best = drawn.shown, drawn.found[0][2]
    subtitle = f"{sweep_words(result)}; best: {rounded(best)} {shown.unit}".rstrip()
    several = [SYSTEM] if len(result.systems) > 1 else []
    over = [n for n in [*several, *(a.name for a in varied(result))] if n not in drawn.names]
    if over:
        subtitle += f"; each the best over {' and '.join(map(short_name, over))}"
    title = f"Best {shown.title} by {' and '.join(map(short_name, drawn.names))}"
    dressed(figure, title, subtitle)


def _ticks(drawn: Map, side: int) -> dict[str, Any]:
    """An axis with one place for each value."""
    labels = drawn.labels[side]
    return {
        "title": {"text": short_name(drawn.names[side])},
        "tickvals": list(range(len(labels))),
        "ticktext": list(labels),
    }


def _along(result: SweepResult, axis: Axis | None) -> dict[str, Any]:
    return {} if axis is None else number_axis(axis, result.points)


def _place(number: float, values: Sequence[float]) -> float:
    """Where an annotation stands on an axis of these values."""
    return log10(number) if min(values) > 0 and differ(values) else number


def _range(values: Sequence[float]) -> list[float]:
    return [_place(min(values), values), _place(max(values), values)]


def _frame(figure: Figure, row: int, column: int) -> None:
    """Frame the best cell."""
    figure.add_shape(
        type="rect",
        x0=column - 0.5,
        x1=column + 0.5,
        y0=row - 0.5,
        y1=row + 0.5,
        line={"color": ACCENT, "width": 3},
    )


def _mark(figure: Figure, name: str, x: float, y: float) -> None:
    """Write a name beside a point, with an arrow to it."""
    figure.add_annotation(
        text=f"<b>{name}</b>",
        x=x,
        y=y,
        ax=34,
        ay=-30,
        arrowhead=2,
        arrowcolor=ACCENT,
        bgcolor="rgba(255,255,255,0.85)",
        font={"color": ACCENT, "size": 12},
    )
