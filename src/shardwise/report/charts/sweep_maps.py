"""The best of a sweep over two axes: as a heat map, as contours, and as a surface."""

import html
from collections.abc import Mapping, Sequence
from math import isclose, log10

from shardwise.planning.sweep.results import Axis, SweepPoint, SweepResult
from shardwise.report.charts.common import (
    ACCENT,
    EMPTY,
    PAPER,
    VEIL,
    Figure,
    plotly,
    spans_much,
)
from shardwise.report.charts.maps import Map
from shardwise.report.charts.plans import Measure, short_name
from shardwise.report.charts.sweep_points import (
    SYSTEM,
    axis_named,
    best_of,
    is_numeric,
    missing,
    number_axis,
    number_of,
    point_hover,
    shown_for,
    shown_in,
    sweep_words,
    varied,
)

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
        go.Scatter(
            x=[x for x, _, _ in empty],
            y=[y for _, y, _ in empty],
            mode="markers",
            marker={"symbol": "x-thin", "size": 6, "line": {"color": "#8b949e", "width": 1.2}},
            customdata=[text for _, _, text in empty],
            hovertemplate="%{customdata}<extra></extra>",
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
