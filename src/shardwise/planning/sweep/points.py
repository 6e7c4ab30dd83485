"""Points of a sweep, and groups of them that are evaluated together.

A point is one combination of values of the axes on one system. Points of a group have the same
model, the same fields of the strategy and systems of one structure: only figures differ.
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
from shardwise.planning.sweep.axes import Varied

__all__ = ["Grid", "Group", "Point"]

# In this order: a domain is laid over nodes, cards belong to what has become of a node.
_ORDER = ("node", "domain", "nics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of values on one system."""

    name: str
    """Of the system, as it was given."""
    at: tuple[int, ...]
    values: Mapping[str, Any]
    model: Model
    base: System
    """Has the structure of the point; of its figures those that are not varied."""
    figures: Mapping[FigurePath, float]
    """Those that are."""
    fields: Mapping[str, Any]
    """Fields of the strategy that are varied."""

    @property
    def system(self) -> System:
        """The system of the point."""
        return with_figures(self.base, self.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points whose systems differ in nothing but their figures."""

    places: Ints
    """Positions among all points."""
    model: Model
    base: System
    fields: Mapping[str, Any]
    systems: SystemColumns
    """One for each point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All points of a sweep."""

    points: tuple[Point, ...]
    assumed: tuple[str, ...]
    """What was changed along with what was asked for."""

    @classmethod
    def of(
        cls, model: Model, systems: Sequence[System], axes: Sequence[Varied], *, together: bool
    ) -> "Grid":
        """Every combination of values on every system; `together`: the first ones, the second."""
        points: list[Point] = []
        assumed: dict[str, None] = {}
        models: dict[tuple[int, ...], Model] = {}
        for system in systems:
            bases: dict[tuple[int, ...], System] = {}
            figures = _Figures(axes)
            numbers = [
                [
                    axis.number(system, model, place, as_factor=axis.as_factor(systems))
                    for place in range(len(axis.values))
                ]
                for axis in axes
            ]
            for at in _positions(axes, together=together):
                structural = _at(axes, at, "structure")
                if structural not in bases:
                    bases[structural], told = _restructured(system, axes, at)
                    assumed |= dict.fromkeys(f"{system.name}, {line}" for line in told)
                shaped = _at(axes, at, "model")
                if shaped not in models:
                    models[shaped] = _remodelled(model, axes, at)
                here = models[shaped]
                values = {a.name: n[place] for a, n, place in zip(axes, numbers, at, strict=True)}
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
        """Group the points, each group in their order."""
        alike: dict[Any, list[int]] = {}
        bases = list({id(point.base): point.base for point in self.points}.values())
        shape = {
            id(bases[member]): number
            for number, (members, _) in enumerate(by_structure(bases))
            for member in members.tolist()
        }
        for place, point in enumerate(self.points):
            fields = repr(sorted(point.fields.items(), key=lambda item: item[0]))
            key = shape[id(point.base)], id(point.model), fields
            alike.setdefault(key, []).append(place)
        for places in alike.values():
            first = self.points[places[0]]
            yield Group(
                places=np.array(places, dtype=np.int64),
                model=first.model,
                base=first.base,
                fields=first.fields,
                systems=_columns([self.points[place] for place in places]),
            )


def _positions(axes: Sequence[Varied], *, together: bool) -> Iterator[tuple[int, ...]]:
    every = [range(len(axis.values)) for axis in axes]
    return zip(*every, strict=True) if together and axes else product(*every)


def _at(axes: Sequence[Varied], at: Sequence[int], kind: str) -> tuple[int, ...]:
    """Positions on the axes of a kind."""
    return tuple(place for axis, place in zip(axes, at, strict=True) if axis.kind == kind)


def _restructured(
    system: System, axes: Sequence[Varied], at: Sequence[int]
) -> tuple[System, list[str]]:
    told: list[str] = []
    structural = [pair for pair in zip(axes, at, strict=True) if pair[0].kind == "structure"]
    for axis, place in sorted(
        structural, key=lambda pair: _ORDER.index(pair[0].name.split(".")[-1])
    ):
        system, more = axis.restructured(system, place)
        told += [f"{axis.name} {axis.values[place].label}: {line}" for line in more]
    return system, told


def _remodelled(model: Model, axes: Sequence[Varied], at: Sequence[int]) -> Model:
    for axis, place in zip(axes, at, strict=True):
        if axis.kind == "model":
            model = axis.remodelled(model, place)
    return model


class _Figures:
    """Figures at the values of each axis, looked up once for each system."""

    def __init__(self, axes: Sequence[Varied]) -> None:
        self._axes = axes
        self._known: dict[tuple[int, int, int], dict[FigurePath, float]] = {}

    def at(self, base: System, at: Sequence[int]) -> dict[FigurePath, float]:
        """What is varied of a system at a combination of values."""
        found: dict[FigurePath, float] = {}
        for number, (axis, place) in enumerate(zip(self._axes, at, strict=True)):
            if axis.kind == "figure":
                key = id(base), number, place
                if key not in self._known:
                    self._known[key] = axis.figures(base, place)
                found |= self._known[key]
        return found


def _fields(axes: Sequence[Varied], at: Sequence[int], model: Model) -> dict[str, Any]:
    """Fields of the strategy at a combination of values."""
    pairs = zip(axes, at, strict=True)
    fields = {axis.name: axis.values[place] for axis, place in pairs if axis.kind == "strategy"}
    if any(axis.name == "seq_len" for axis in axes):
        fields["seq_len"] = model.seq_len
    return fields


def _columns(points: Sequence[Point]) -> SystemColumns:
    """The systems of points of one structure."""
    distinct = {id(point.base): point.base for point in points}
    known = {key: figures_of(base) for key, base in distinct.items()}
    first = known[id(points[0].base)]
    unlike = {
        path for figures in known.values() for path in figures if figures[path] != first[path]
    }
    varied = unlike | {path for point in points for path in point.figures}
    columns = {
        path: np.array(
            [point.figures.get(path, known[id(point.base)][path]) for point in points],
            dtype=np.float64,
        )
        for path in sorted(varied, key=str)
    }
    return SystemColumns(base=points[0].base, figures=columns, count=len(points))
