"""Systems as columns: where rows run on systems of one structure, figures hold one value per row.

A system is its structure (tiers, domains, size of a node, types, tables and curves) and its
figures (rates, bandwidths, capacities, latencies, efficiencies, prices). Systems of one structure
go through the same formulas at once: a figure that all share is a number, one that differs a
column.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.accelerator import MatmulBlocks, MatmulTiles
from shardwise.config.base import ConfigBase
from shardwise.config.system import EfficiencyCurve, ShapeTable, System
from shardwise.records import dataclass, replace

FigurePath = tuple[str | int, ...]
"""Where a figure stands: fields, keys and positions from the system inwards."""

_WORDS = (
    *("name", "description", "sources", "source", "as_of", "burst_efficiency", "benchmark"),
    *("rate_spread", "measured"),
)
"""What no formula of an estimate reads."""
_STRUCTURE = (
    "domain",
    "accelerators",
    "tile",
    "fill_exponent",
    "reduction_step",
    "weight_grad_share",
    "must_be_filled",
    "same_links",
    "slowed_by_compute",
    "processing",
    "asynchronous",
)
"""Numbers and words that say how a formula works, not with what."""
_INDIVISIBLE = (EfficiencyCurve, ShapeTable, MatmulTiles, MatmulBlocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemColumns:
    """Systems of one structure."""

    base: System
    """Has the structure, and the figures that all share."""
    figures: Mapping[FigurePath, Floats]
    """The others: one value per system."""
    count: int
    """How many systems there are."""

    def __len__(self) -> int:
        return self.count

    @classmethod
    def of(cls, systems: Sequence[System]) -> "SystemColumns":
        """Take the figures that differ; the systems must be of one structure."""
        base, *others = systems
        first = figures_of(base)
        rest = [figures_of(system) for system in others]
        columns = {path: [value, *(f[path] for f in rest)] for path, value in first.items()}
        differing = {
            path: np.array(values, dtype=np.float64)
            for path, values in columns.items()
            if any(value != values[0] for value in values)
        }
        return cls(base=base, figures=differing, count=len(systems))

    def of_networks(self, system: System) -> bool:
        """Whether they differ from a system in their networks alone: kernels take as long."""
        return self.base is system and all(path[0] == "network" for path in self.figures)

    def take(self, positions: Ints) -> "SystemColumns":
        """Some of the systems."""
        figures = {path: column[positions] for path, column in self.figures.items()}
        return replace(self, figures=figures, count=positions.size)

    def at(self, position: Ints) -> System:
        """One system for rows that run on several: what differs holds one value per row."""
        return with_figures(
            self.base, {path: column[position] for path, column in self.figures.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRows:
    """Which of several systems each row of a table runs on."""

    columns: SystemColumns
    position: Ints

    def take(self, index: Ints | Bools | slice) -> "SystemRows":
        """Some of the rows."""
        return replace(self, position=self.position[index])

    @property
    def system(self) -> System:
        """The system of the rows."""
        return self.columns.at(self.position)


def by_structure(systems: Sequence[System]) -> list[tuple[Ints, SystemColumns]]:
    """Group systems by their structure; each group comes with the positions of its members."""
    shapes: list[list[tuple[FigurePath, object]]] = []
    groups: list[list[int]] = []
    known: dict[int, int] = {}  # the same object again has the same structure
    for place, system in enumerate(systems):
        group = known.get(id(system))
        if group is None:
            shape = [(path, value) for path, value, figure in _walk(system, ()) if not figure]
            group = shapes.index(shape) if shape in shapes else len(shapes)
            if group == len(shapes):
                shapes.append(shape)
                groups.append([])
            known[id(system)] = group
        groups[group].append(place)
    return [
        (np.array(group, dtype=np.int64), SystemColumns.of([systems[place] for place in group]))
        for group in groups
    ]


def figures_of(system: System) -> dict[FigurePath, float]:
    """Every number of a system that may be a column, by where it stands."""
    return {path: value for path, value, figure in _walk(system, ()) if figure}


def with_figures(system: System, figures: Mapping[FigurePath, Any]) -> System:
    """The same system with other figures, numbers or columns; they are not validated."""
    changed: System = _replaced(system, figures)
    return changed


def _walk(value: object, path: FigurePath) -> Iterator[tuple[FigurePath, Any, bool]]:
    """Every leaf: where it stands, what is there, and whether it is a figure."""
    if isinstance(value, ConfigBase) and not isinstance(value, _INDIVISIBLE):
        for name in type(value).model_fields:
            if name in _STRUCTURE:
                yield (*path, name), getattr(value, name), False
            elif name not in _WORDS:
                yield from _walk(getattr(value, name), (*path, name))
    elif isinstance(value, Mapping):
        yield path, tuple(value), False
        for key, item in value.items():
            yield from _walk(item, (*path, key))
    elif isinstance(value, tuple):
        yield path, len(value), False
        for place, item in enumerate(value):
            yield from _walk(item, (*path, place))
    else:
        yield path, value, isinstance(value, (int, float))


def _replaced(value: Any, changes: Mapping[FigurePath, Any]) -> Any:
    if not changes:
        return value
    if () in changes:
        changed = changes[()]
        is_integer = isinstance(value, int) and isinstance(changed, float) and changed.is_integer()
        return int(changed) if is_integer else changed
    inside: dict[str | int, dict[FigurePath, Any]] = {}
    for path, changed in changes.items():
        inside.setdefault(path[0], {})[path[1:]] = changed
    if isinstance(value, ConfigBase):
        items = {str(n): _replaced(getattr(value, str(n)), some) for n, some in inside.items()}
        return value.model_copy(update=items)
    if isinstance(value, Mapping):
        return {**value, **{key: _replaced(value[key], some) for key, some in inside.items()}}
    return tuple(_replaced(item, inside.get(place, {})) for place, item in enumerate(value))
