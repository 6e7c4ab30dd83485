"""Places for the boxes of a graph: in levels from top to bottom, long edges around them.

A layered layout in four steps (Sugiyama, Tagawa and Toda, 1981): levels by longest path, a point on
every level that an edge passes, an order in which few edges cross, places near their neighbours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwise.report.graph.places import neighbours, straightened

__all__ = ["Layout", "Point", "layered"]

Point = tuple[float, float]
_Edge = tuple[str, str]

_SWEEPS = 8
_LEVEL = 46.0
"""Between levels: room for the text of an edge."""
_PASSING = 16.0
"""Width of an edge that passes a level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where boxes and edges are."""

    places: dict[str, Point]
    """Of boxes, the middle of their upper side."""
    routes: dict[_Edge, list[Point]]
    """Of edges, the points that they pass."""
    width: float
    height: float


def layered(sizes: Mapping[str, Point], edges: Sequence[_Edge]) -> Layout:
    """Lay out boxes of some widths and heights.

    Parameters
    ----------
    sizes
        By id.
    edges
        From id to id, without circles.
    """
    level = _levels(list(sizes), edges)
    widths = {name: width for name, (width, _) in sizes.items()}
    chains = {edge: _chain(edge, level) for edge in dict.fromkeys(edges)}
    for chain in chains.values():
        for name in chain[1:-1]:
            widths[name] = _PASSING
    levels = _ordered(level, chains)
    across = straightened(levels, neighbours(chains), widths)
    heights = [max(sizes[name][1] if name in sizes else 0.0 for name in row) for row in levels]
    tops = [sum(heights[:n]) + n * _LEVEL for n in range(len(heights))]
    places = {name: (across[name], tops[level[name]]) for name in sizes}
    left = min(across[name] - widths[name] / 2 for name in across)
    right = max(across[name] + widths[name] / 2 for name in across)
    routes = {
        edge: [
            (x - left, y) for x, y in _route(chain, sizes, across, tops, heights, level[edge[0]])
        ]
        for edge, chain in chains.items()
    }
    return Layout(
        places={name: (x - left, y) for name, (x, y) in places.items()},
        routes=routes,
        width=right - left,
        height=tops[-1] + heights[-1],
    )


def _levels(names: Sequence[str], edges: Sequence[_Edge]) -> dict[str, int]:
    """The longest path to each box; one that nothing leads to stands right before its target."""
    level = dict.fromkeys(names, 0)
    for _ in names:  # as often as the longest path may be long
        for source, target in edges:
            level[target] = max(level[target], level[source] + 1)
    for name in names:
        ahead = [level[target] for source, target in edges if source == name]
        if ahead and not any(target == name for _, target in edges):
            level[name] = min(ahead) - 1
    return level


def _chain(edge: _Edge, level: Mapping[str, int]) -> list[str]:
    """Both ends of an edge and a point on every level between them."""
    source, target = edge
    between = range(level[source] + 1, level[target])
    return [source, *(f"{source}\0{target}\0{n}" for n in between), target]


def _ordered(level: Mapping[str, int], chains: Mapping[_Edge, Sequence[str]]) -> list[list[str]]:
    """Boxes and points of each level, put in the order of the mean place of their neighbours."""
    levels: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for name, at in level.items():
        levels[at].append(name)
    for (source, _), chain in chains.items():
        for distance, name in enumerate(chain[1:-1], start=1):
            levels[level[source] + distance].append(name)
    beside = neighbours(chains)
    for sweep in range(_SWEEPS):
        rows = levels if sweep % 2 == 0 else levels[::-1]
        for earlier, row in pairwise(rows):
            places = {name: place for place, name in enumerate(earlier)}
            means = {}
            for place, name in enumerate(row):
                known = [places[other] for other in beside[name] if other in places]
                means[name] = sum(known) / len(known) if known else float(place)
            row.sort(key=lambda name, means=means: means[name])  # type: ignore[misc]
    return levels


def _route(
    chain: Sequence[str],
    sizes: Mapping[str, Point],
    across: Mapping[str, float],
    tops: Sequence[float],
    heights: Sequence[float],
    first: int,
) -> list[Point]:
    """From the lower side of the source past every level to the upper side of the target."""
    start = across[chain[0]]
    points = [(start, tops[first] + sizes[chain[0]][1]), (start, tops[first] + heights[first])]
    for distance, name in enumerate(chain[1:-1], start=1):
        at = first + distance
        points += [(across[name], tops[at]), (across[name], tops[at] + heights[at])]
    return [*points, (across[chain[-1]], tops[first + len(chain) - 1])]
