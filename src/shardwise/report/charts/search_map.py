"""The best of every combination of two fields' values: as a heat map, and as a surface."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.planning.search.results import Plan, SearchResult
from shardwise.report.charts.common import (
    ACCENT,
    EMPTY,
    GOOD_IS_BRIGHT,
    INK,
    Figure,
    differ,
    dressed,
    graphs,
    lacks,
    log_axis,
)
from shardwise.report.charts.plans import (
    OBJECTIVE_SHOWN,
    Shown,
    in_full,
    ordered,
    rounded,
    run_words,
    short_name,
    value_word,
)

__all__ = ["heat_map", "is_surface", "surface"]

# Beyond so many times the best, all colours are the last one: the differences that matter are
# those among good plans.
_COLOUR_SPAN = 3.0
_AXES = 2
_LEAST_OF_A_SURFACE = 3
_MOST_COLUMNS_WITH_TEXT = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """The best plan for every combination of two fields' values; None where there is none."""

    down: str
    across: str
    rows: list[Any]
    columns: list[Any]
    plans: list[list[Plan | None]]

    def mapped(self, function: Callable[[Plan], Any], without: Any = None) -> list[list[Any]]:
        """A value of every plan, and another one where there is none."""
        return [[without if p is None else function(p) for p in row] for row in self.plans]

    @property
    def found(self) -> list[tuple[int, int, Plan]]:
        """Plans with their places."""
        return [
            (r, c, plan)
            for r, row in enumerate(self.plans)
            for c, plan in enumerate(row)
            if plan is not None
        ]

    @property
    def numeric(self) -> bool:
        """Whether both fields are numbers."""
        values = [*self.rows, *self.columns]
        return all(isinstance(v, int) and not isinstance(v, bool) for v in values)


def heat_map(result: SearchResult, axes: Sequence[str] = ()) -> Figure:
    """Draw the best plan for every combination of two fields' values, coloured by the objective.

    Parameters
    ----------
    axes
        Two of the axes of the search, down and across, where it had more; the best over the
        others' values is shown.

    Raises
    ------
    InputError
        If the search has no such axes, or plotly is not installed.
    """
    go, shown = graphs(), OBJECTIVE_SHOWN[result.objective]
    grid = _grid(result, axes)
    values = grid.mapped(shown.value)
    texts = grid.mapped(lambda plan: rounded(shown.value(plan)), without="")
    hover = grid.mapped(lambda plan: in_full(plan, result.capacity_bytes), without="")
    columns = len(grid.columns)
    size = max(8, min(14, 420 // columns))
    figure = go.Figure(
        go.Heatmap(
            z=grid.mapped(lambda _: None, without=1),
            colorscale=[[0, EMPTY], [1, EMPTY]],
            showscale=False,
            xgap=2,
            ygap=2,
            text=grid.mapped(lambda _: "", without="-"),
            texttemplate="%{text}",
            textfont={"size": size, "color": "#8b949e"},
            hovertemplate="no feasible strategy here<extra></extra>",
            name="infeasible",
        )
    )
    figure.add_trace(
        go.Heatmap(
            z=values,
            **_colours(values, shown),
            xgap=2,
            ygap=2,
            text=texts,
            texttemplate="%{text}" if columns <= _MOST_COLUMNS_WITH_TEXT else None,
            textfont={"size": size},
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
            colorbar={"title": {"text": shown.head}, "outlinewidth": 0, "thickness": 16},
            name=shown.title,
        )
    )
    row, column, best = _best(grid, shown)
    figure.add_shape(
        type="rect",
        x0=column - 0.5,
        x1=column + 0.5,
        y0=row - 0.5,
        y1=row + 0.5,
        line={"color": ACCENT, "width": 3},
    )
    subtitle = f"{run_words(result)}; best: {rounded(shown.value(best))} {shown.unit}".rstrip()
    if _clipped(values, shown):
        subtitle += f"; {_COLOUR_SPAN:g} times worse or more: darkest"
    dressed(
        figure,
        f"Best {shown.title} by {short_name(grid.down)} and {short_name(grid.across)}",
        subtitle,
        height=200 + 46 * max(5, min(20, len(grid.rows))),
    )
    figure.update_xaxes(**_ticks(grid.across, grid.columns), showgrid=False)
    figure.update_yaxes(**_ticks(grid.down, grid.rows), showgrid=False, autorange="reversed")
    return figure


def surface(result: SearchResult, axes: Sequence[str] = ()) -> Figure:
    """Draw the same as a surface in three dimensions, with a point for every plan.

    Raises
    ------
    InputError
        As `heat_map`.
    """
    go, shown = graphs(), OBJECTIVE_SHOWN[result.objective]
    grid = _grid(result, axes)
    values = grid.mapped(shown.value)
    colours = _colours(values, shown)
    figure = go.Figure(
        go.Surface(
            z=values,
            surfacecolor=values,  # by itself, where the height is logarithmic
            colorscale=colours["colorscale"],
            cmin=colours["zmin"],
            cmax=colours["zmax"],
            lighting={"ambient": 1, "diffuse": 0, "specular": 0},
            opacity=0.9,
            hoverinfo="skip",
            colorbar={"title": {"text": shown.head}, "outlinewidth": 0, "thickness": 16},
            name=shown.title,
        )
    )
    best = _best(grid, shown)
    for name, places, mark in (
        ("plans", [place for place in grid.found if place != best], {"size": 3, "color": INK}),
        ("best", [best], {"size": 8, "color": ACCENT}),
    ):
        figure.add_trace(
            go.Scatter3d(
                x=[column for _, column, _ in places],
                y=[row for row, _, _ in places],
                z=[shown.value(plan) for _, _, plan in places],
                mode="markers",
                marker=mark,
                text=[in_full(plan, result.capacity_bytes) for _, _, plan in places],
                hovertemplate="%{text}<extra></extra>",
                name=name,
                showlegend=False,
            )
        )
    numbers = [shown.value(plan) for _, _, plan in grid.found]
    height: dict[str, Any] = {"title": {"text": shown.head}}
    if shown.lower_is_better:
        height["autorange"] = "reversed"
    if differ(numbers):
        height |= log_axis(numbers)
    dressed(
        figure,
        f"Best {shown.title} over {short_name(grid.down)} and {short_name(grid.across)}",
        f"{run_words(result)}; the best, in orange, is on top",
        height=640,
    )
    figure.update_layout(
        margin={"l": 10, "r": 10, "b": 10},
        scene={
            "xaxis": _ticks(grid.across, grid.columns),
            "yaxis": _ticks(grid.down, grid.rows),
            "zaxis": height,
            "camera": {"eye": {"x": 1.6, "y": -1.7, "z": 1.0}, "center": {"z": -0.2}},
            "aspectratio": {"x": 1.3, "y": 1.3, "z": 0.8},
        },
    )
    return figure


def is_surface(result: SearchResult, axes: Sequence[str]) -> bool:
    """Whether there are numbers enough for slopes, and a patch between four plans."""
    grid = _grid(result, axes)
    if min(len(grid.rows), len(grid.columns)) < _LEAST_OF_A_SURFACE or not grid.numeric:
        return False
    rows = zip(grid.plans, grid.plans[1:], strict=False)
    return any(
        None not in (a[c], a[c + 1], b[c], b[c + 1]) for a, b in rows for c in range(len(a) - 1)
    )


def _grid(result: SearchResult, axes: Sequence[str]) -> _Grid:
    """Lay the cells of a search out over two axes."""
    fields = list(result.cells[0].values) if result.cells else []
    chosen = list(axes) or fields
    if len(chosen) != _AXES or not set(chosen) <= set(fields):
        found = f" (this one: {', '.join(fields)})" if fields else ""
        raise lacks(f"two axes to draw over{found}", "search with axes=('tp', 'pp')")
    down, across = chosen
    rows, columns = (_values(result, field) for field in chosen)
    plans: list[list[Plan | None]] = [[None] * len(columns) for _ in rows]
    shown = OBJECTIVE_SHOWN[result.objective]
    for cell in result.cells:
        r, c = rows.index(cell.values[down]), columns.index(cell.values[across])
        before = plans[r][c]
        if before is None or _rank(cell.plan, shown) < _rank(before, shown):
            plans[r][c] = cell.plan
    return _Grid(down=down, across=across, rows=rows, columns=columns, plans=plans)


def _values(result: SearchResult, field: str) -> list[Any]:
    """Values that the space names, and those that something was found with."""
    named = result.space.get(field)
    declared = list(named) if isinstance(named, (list, tuple)) else []
    return ordered(field, [*declared, *(cell.values[field] for cell in result.cells)])


def _rank(plan: Plan, shown: Shown) -> float:
    value = shown.value(plan)
    return value if shown.lower_is_better else -value


def _best(grid: _Grid, shown: Shown) -> tuple[int, int, Plan]:
    return min(grid.found, key=lambda place: _rank(place[2], shown))


def _clipped(values: Sequence[Sequence[float | None]], shown: Shown) -> bool:
    """Whether some values lie beyond the colours."""
    ends = _colours(values, shown)
    return any(not ends["zmin"] <= v <= ends["zmax"] for row in values for v in row if v)


def _colours(values: Sequence[Sequence[float | None]], shown: Shown) -> dict[str, Any]:
    """Colour scale and its ends: good is bright."""
    numbers = [value for row in values for value in row if value is not None]
    least, most = min(numbers), max(numbers)
    if shown.lower_is_better:
        most = min(most, least * _COLOUR_SPAN)
    else:
        least = max(least, most / _COLOUR_SPAN)
    scale = GOOD_IS_BRIGHT + ("_r" if shown.lower_is_better else "")
    return {"colorscale": scale, "zmin": least, "zmax": most}


def _ticks(field: str, values: Sequence[Any]) -> dict[str, Any]:
    """An axis with one place for each value."""
    return {
        "title": {"text": short_name(field)},
        "tickvals": list(range(len(values))),
        "ticktext": [value_word(value) for value in values],
    }
