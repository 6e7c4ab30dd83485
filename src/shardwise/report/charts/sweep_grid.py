"""Points of a sweep laid out over two of its axes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

from shardwise.planning.sweep.results import Axis, PointPlan, SweepPoint, SweepResult
from shardwise.report.charts.plans import Shown
from shardwise.report.charts.sweep_points import (
    SYSTEM,
    axis_named,
    best_of,
    is_numeric,
    missing,
    number_of,
    shown_for,
    shown_in,
    varied,
)

__all__ = ["Map", "Marks", "has_numbers", "map_of", "marked_cells", "marked_numbers", "numbers_of"]

Marks = Mapping[str, Mapping[str, float]]
"""Points to mark by their name: values by axis, in the units of `SweepPoint.values`."""

_AXES = 2
_LEAST_OF_A_PLANE = 3
_AS_IT_IS = "1x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """The best point at every pair of values of two axes, down and across."""

    names: tuple[str, str]
    axes: tuple[Axis | None, Axis | None]
    """None where the systems stand on it."""
    labels: tuple[Sequence[str], Sequence[str]]
    points: list[list[SweepPoint | None]]
    """None where nothing was looked at."""
    shown: Shown

    def mapped(self, of: Callable[[SweepPoint, PointPlan], Any], without: Any = None) -> Any:
        """A value of every point that has a strategy, and another one of the others."""
        return [
            [
                without if point is None or (plan := best_of(point)) is None else of(point, plan)
                for point in row
            ]
            for row in self.points
        ]

    @property
    def values(self) -> list[list[float | None]]:
        """What is shown, at every pair."""
        cells: list[list[float | None]] = self.mapped(lambda _, plan: self.shown.value(plan))
        return cells

    @property
    def found(self) -> list[tuple[int, int, float]]:
        """Row, column and value of every pair that has a strategy, the best first."""
        cells = [
            (r, c, v)
            for r, row in enumerate(self.values)
            for c, v in enumerate(row)
            if v is not None
        ]
        return sorted(cells, key=lambda cell: cell[2] if self.shown.lower_is_better else -cell[2])


def map_of(result: SweepResult, axes: Sequence[str], tokens: float | None) -> Map:
    """Lay the points of a sweep out over two axes, the best of those that meet."""
    several = [SYSTEM] if len(result.systems) > 1 else []
    known = [*several, *(axis.name for axis in varied(result))]
    names = list(axes) or known
    if len(names) != _AXES or names[0] == names[1]:
        raise missing("two axes to draw over", f"name two of {', '.join(known) or 'none'}")
    if all(best_of(point) is None for point in result.points):
        raise missing("a feasible point", "give it more memory or more GPUs")
    found = [None if name == SYSTEM else axis_named(result, name) for name in names]
    labels = [result.systems if axis is None else axis.labels for axis in found]
    shown = shown_for(result, tokens)
    points: list[list[SweepPoint | None]] = [[None] * len(labels[1]) for _ in labels[0]]
    for point in result.points:
        r, c = (_position(result, axis, point) for axis in found)
        if _beats(point, points[r][c], shown):
            points[r][c] = point
    return Map(
        names=(names[0], names[1]),
        axes=(found[0], found[1]),
        labels=(labels[0], labels[1]),
        points=points,
        shown=shown,
    )


def _position(result: SweepResult, axis: Axis | None, point: SweepPoint) -> int:
    if axis is None:
        return result.systems.index(point.system)
    return point.at[result.axes.index(axis)]


def _beats(point: SweepPoint, before: SweepPoint | None, shown: Shown) -> bool:
    """Whether a point takes the place of one that was there."""
    if before is None:
        return True
    new, old = best_of(point), best_of(before)
    if new is None or old is None:
        return new is not None
    better = shown.value(new) - shown.value(old)
    return better < 0 if shown.lower_is_better else better > 0


def has_numbers(result: SweepResult, drawn: Map) -> bool:
    """Whether both axes have three numbers or more, the same ones at every point."""
    for axis in drawn.axes:
        if axis is None or not is_numeric(result, axis) or len(axis.labels) < _LEAST_OF_A_PLANE:
            return False
        places = {(_position(result, axis, p), p.values[axis.name]) for p in result.points}
        if len(places) != len(axis.labels):
            return False
    return True


def numbers_of(result: SweepResult, drawn: Map) -> tuple[list[float], list[float]]:
    """Values down and across, in the units that they are shown in."""
    if not has_numbers(result, drawn):
        what = f"{_LEAST_OF_A_PLANE} numbers on each of {' and '.join(drawn.names)}"
        raise missing(what, "draw a heat map, or the part of one system")
    down, across = (
        {_position(result, axis, point): number_of(axis, point) for point in result.points}
        for axis in drawn.axes
        if axis is not None
    )
    return [down[n] for n in sorted(down)], [across[n] for n in sorted(across)]


def marked_cells(drawn: Map, marks: Marks) -> list[tuple[str, int, int]]:
    """Name, row and column of what is to be marked."""
    found = []
    for name, values in marks.items():
        for r, row in enumerate(drawn.points):
            for c, point in enumerate(row):
                if point is not None and _is_at(point, drawn.names, values):
                    found.append((name, r, c))
    if all(_AS_IT_IS in labels for labels in drawn.labels):
        row_of, column_of = (labels.index(_AS_IT_IS) for labels in drawn.labels)
        if (row_of, column_of) not in [place[1:] for place in found]:
            found.append(("as it is", row_of, column_of))
    return found


def _is_at(point: SweepPoint, names: Sequence[str], values: Mapping[str, float]) -> bool:
    return all(
        name in values and isclose(point.values[name], values[name], rel_tol=1e-6) for name in names
    )


def marked_numbers(
    drawn: Map, marks: Marks, rows: Sequence[float], columns: Sequence[float]
) -> list[tuple[str, float, float]]:
    """Name, value down and value across of what is to be marked, if it is on the map."""
    down, across = drawn.axes
    found = []
    for name, values in marks.items():
        if down is None or across is None or not {down.name, across.name} <= set(values):
            continue
        y, x = shown_in(down, values[down.name]), shown_in(across, values[across.name])
        if min(rows) <= y <= max(rows) and min(columns) <= x <= max(columns):
            found.append((name, y, x))
    cells = [(name, rows[r], columns[c]) for name, r, c in marked_cells(drawn, marks)]
    return found + [cell for cell in cells if cell[0] not in marks]
