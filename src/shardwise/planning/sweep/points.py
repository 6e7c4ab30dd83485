"""Points of a sweep, and groups of them that are evaluated together.

A point is one combination of values of the axes on one system. Points of a group have the same
model, the same fields of the strategy and systems of one structure; only figures differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from shardwise.arrays import Ints
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.config.system_columns import (
    FigurePath,
    SystemColumns,
    by_structure,
    figures_of,
    with_figures,
)
from shardwise.planning.sweep.axes import VariedAxis
from shardwise.planning.sweep.results import SweepPoint

# The order of changes: a domain depends on the node, network cards depend on both.
_ORDER = ("node", "domain", "nics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of values on one system."""

    name: str
    """Of the system before any change."""
    at: tuple[int, ...]
    values: Mapping[str, Any]
    model: Model
    base: System
    """The system with the structure of the point, before its figures are varied."""
    figures: Mapping[FigurePath, float]
    """The varied figures."""
    fields: Mapping[str, Any]
    """The varied fields of the strategy."""

    @property
    def system(self) -> System:
        """Return the system of the point."""
        return with_figures(self.base, self.figures)

    def found(self, **found: Any) -> SweepPoint:
        """Return the point with what was found there."""
        return SweepPoint(system=self.name, at=self.at, values=dict(self.values), **found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points whose systems differ in figures only."""

    positions: Ints
    """Positions among all points."""
    points: Sequence[Point]
    model: Model
    base: System
    fields: Mapping[str, Any]
    systems: SystemColumns
    """One system for each point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All points of a sweep."""

    points: tuple[Point, ...]
    assumed: tuple[str, ...]
    """Notes on what else changed."""

    @classmethod
    def of(
        cls, model: Model, systems: Sequence[System], axes: Sequence[VariedAxis], *, together: bool
    ) -> "Grid":
        """Return every combination of values on every system, or pairs if axes go `together`."""
        points: list[Point] = []
        assumed: dict[str, None] = {}
        models: dict[tuple[int, ...], Model] = {}
        for system in systems:
            bases: dict[tuple[int, ...], System] = {}
            figures = _Figures(axes)
            numbers = [
                [
                    axis.number(system, model, position, as_factor=axis.as_factor(systems))
                    for position in range(len(axis.values))
                ]
                for axis in axes
            ]
            for at in _positions(axes, together=together):
                structural = _at(axes, at, "structure")
                if structural not in bases:
                    bases[structural], notes = _changed_system(system, axes, at)
                    assumed |= dict.fromkeys(f"{system.name}, {note}" for note in notes)
                shaped = _at(axes, at, "model")
                if shaped not in models:
                    models[shaped] = _changed_model(model, axes, at)
                here = models[shaped]
                values = {a.name: n[i] for a, n, i in zip(axes, numbers, at, strict=True)}
                points.append(
                    Point(
                        name=system.name,
                        at=at,
                        values=values,
                        model=here,
                        base=bases[structural],
                        figures=figures.at(bases[structural], at),
                        fields=_fields(axes, at, here),
                    )
                )
        return cls(points=tuple(points), assumed=tuple(assumed))

    def groups(self) -> Iterator[Group]:
        """Yield groups of points, in their order."""
        grouped: dict[object, list[int]] = {}
        bases = list({id(point.base): point.base for point in self.points}.values())
        shape = {
            id(bases[member]): number
            for number, (members, _) in enumerate(by_structure(bases))
            for member in members.tolist()
        }
        for position, point in enumerate(self.points):
            fields = repr(sorted(point.fields.items(), key=lambda item: item[0]))
            key = shape[id(point.base)], id(point.model), fields
            grouped.setdefault(key, []).append(position)
        for positions in grouped.values():
            first, points = self.points[positions[0]], [self.points[i] for i in positions]
            yield Group(
                positions=np.array(positions, dtype=np.int64),
                points=points,
                model=first.model,
                base=first.base,
                fields=first.fields,
                systems=_columns(points),
            )


def _positions(axes: Sequence[VariedAxis], *, together: bool) -> Iterator[tuple[int, ...]]:
    every = [range(len(axis.values)) for axis in axes]
    return zip(*every, strict=True) if together and axes else product(*every)


def _at(axes: Sequence[VariedAxis], at: Sequence[int], kind: str) -> tuple[int, ...]:
    """Positions on the axes of a kind."""
    return tuple(i for axis, i in zip(axes, at, strict=True) if axis.kind == kind)


def _changed_system(
    system: System, axes: Sequence[VariedAxis], at: Sequence[int]
) -> tuple[System, list[str]]:
    notes: list[str] = []
    structural = [pair for pair in zip(axes, at, strict=True) if pair[0].kind == "structure"]
    structural.sort(key=lambda pair: _ORDER.index(pair[0].name.split(".")[-1]))
    for axis, position in structural:
        system, more = axis.changed_system(system, position)
        notes += [f"{axis.name} {axis.values[position].label}: {note}" for note in more]
    return system, notes


def _changed_model(model: Model, axes: Sequence[VariedAxis], at: Sequence[int]) -> Model:
    for axis, position in zip(axes, at, strict=True):
        if axis.kind == "model":
            model = axis.changed_model(model, position)
    return model


class _Figures:
    """Figures at the values of each axis, computed once for each system."""

    def __init__(self, axes: Sequence[VariedAxis]) -> None:
        self._axes = axes
        self._known: dict[tuple[int, int, int], dict[FigurePath, float]] = {}

    def at(self, base: System, at: Sequence[int]) -> dict[FigurePath, float]:
        """Return the varied figures of a system at a combination of values."""
        found: dict[FigurePath, float] = {}
        for number, (axis, position) in enumerate(zip(self._axes, at, strict=True)):
            if axis.kind == "figure":
                key = id(base), number, position
                if key not in self._known:
                    self._known[key] = axis.figures(base, position)
                found |= self._known[key]
        return found


def _fields(axes: Sequence[VariedAxis], at: Sequence[int], model: Model) -> dict[str, object]:
    """Fields of the strategy at a combination of values."""
    pairs = zip(axes, at, strict=True)
    fields = {axis.name: axis.values[i] for axis, i in pairs if axis.kind == "strategy"}
    if any(axis.name == "seq_len" for axis in axes):
        fields["seq_len"] = model.seq_len
    return fields


def _columns(points: Sequence[Point]) -> SystemColumns:
    """The systems of points of one structure."""
    distinct = {id(point.base): point.base for point in points}
    known = {key: figures_of(base) for key, base in distinct.items()}
    first = known[id(points[0].base)]
    differing = {
        path for figures in known.values() for path in figures if figures[path] != first[path]
    }
    varied = differing | {path for point in points for path in point.figures}
    columns = {
        path: np.array(
            [point.figures.get(path, known[id(point.base)][path]) for point in points],
            dtype=np.float64,
        )
        for path in sorted(varied, key=str)
    }
    return SystemColumns(base=points[0].base, figures=columns, count=len(points))
