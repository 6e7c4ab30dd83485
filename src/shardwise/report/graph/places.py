"""How far to the right the boxes of each level stand, so that most edges are straight.

Brandes and Köpf, 2001: boxes are strung on vertical lines with the middle one of their neighbours,
four times, from each side and end; a box stands in the mean of the middle two of its places.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

__all__ = ["neighbours", "straightened"]

_SPACE = 44.0
"""Between boxes of a level."""


def neighbours(chains: Mapping[tuple[str, str], Sequence[str]]) -> dict[str, list[str]]:
    """What stands before and after each box or point on the edges through it."""
    beside: dict[str, list[str]] = defaultdict(list)
    for chain in chains.values():
        for one, other in pairwise(chain):
            beside[one].append(other)
            beside[other].append(one)
    return beside


def straightened(
    levels: Sequence[Sequence[str]],
    beside: Mapping[str, Sequence[str]],
    widths: Mapping[str, float],
) -> dict[str, float]:
    """Middles of all boxes and points.

    Parameters
    ----------
    levels
        From top to bottom, each in order from left to right.
    """
    every = []
    for upwards in (False, True):
        for from_right in (False, True):
            rows = [list(row)[::-1] if from_right else list(row) for row in levels]
            roots = _lines(rows[::-1] if upwards else rows, beside)
            places = _packed(rows, roots, widths)
            middle = (min(places.values()) + max(places.values())) / 2
            sign = -1.0 if from_right else 1.0
            every.append({name: sign * (place - middle) for name, place in places.items()})
    return {name: _middle(places[name] for places in every) for row in levels for name in row}


def _middle(places: Iterable[float]) -> float:
    _, one, other, _ = sorted(places)
    return (one + other) / 2


def _lines(rows: Sequence[Sequence[str]], beside: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """For each box the first one of the vertical line that it is strung on; lines do not cross."""
    root = {name: name for row in rows for name in row}
    for earlier, row in pairwise(rows):
        place = {name: at for at, name in enumerate(earlier)}
        free = 0
        for name in row:
            above = sorted(
                (other for other in beside[name] if other in place), key=place.__getitem__
            )
            middles = above[(len(above) - 1) // 2 : len(above) // 2 + 1]
            for other in middles:
                if root[name] == name and place[other] >= free:
                    root[name] = root[other]
                    free = place[other] + 1
    return root


def _packed(
    rows: Sequence[Sequence[str]], root: Mapping[str, str], widths: Mapping[str, float]
) -> dict[str, float]:
    """Lines as far to the left as those left of them allow."""
    at = dict.fromkeys(root.values(), 0.0)
    for _ in at:  # as often as lines may stand side by side
        for row in rows:
            for one, other in pairwise(row):
                apart = (widths[one] + widths[other]) / 2 + _SPACE
                at[root[other]] = max(at[root[other]], at[root[one]] + apart)
    return {name: at[line] for name, line in root.items()}
