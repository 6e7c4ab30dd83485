"""Where the members of each axis sit: extents.

The extent of an axis on a tier is how many of its members share one domain of that tier. Axes are
laid over the accelerators from the innermost out; the extents of all axes on a tier multiply to at
most its domain.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Ints
from shardwise.strategy import PLACED_AXES, PLACEMENTS
from shardwise.system import System
from shardwise.table import Table

__all__ = ["Extents", "place"]

# For each placement and position from the inside out, the axis (as its position in PLACED_AXES).
_ORDER = np.array([[PLACED_AXES.index(axis) for axis in p.split("-")] for p in PLACEMENTS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
    """Members of an axis in one domain of each tier, innermost tier first; shape (tiers, rows).

    On the outermost tier the extent is the whole degree.
    """

    tp: Ints
    cp: Ints
    dp: Ints
    pp: Ints


def place(system: System, table: Table) -> Extents:
    """Lay the axes over the domains in the order of each row's placement.

    An axis takes, of what is left of a domain, the largest part that divides both: e = gcd(d, c),
    where d is its degree not yet placed and c the room left; a domain that is larger than the job
    has room for the whole job.

    Parameters
    ----------
    system
        Gives the domain of each tier.
    table
        Strategies; uses the degrees, `gpus` and `placement`.
    """
    rows = np.arange(len(table))
    degrees = np.stack([table.tp, table.cp, table.dp, table.pp])
    left = degrees.copy()
    extents = np.ones((len(system.network), *degrees.shape), dtype=np.int64)
    inner = 1
    for tier, described in enumerate(system.network):
        if described.domain is None:
            left[:] = 1
        else:
            room = np.full(len(table), described.domain // inner, dtype=np.int64)
            whole = table.gpus <= described.domain
            for position in range(len(PLACED_AXES)):
                axis = _ORDER[table.placement, position]
                degree = left[axis, rows]
                taken = np.where(whole, degree, np.gcd(degree, room))
                left[axis, rows] = degree // taken
                room //= np.where(whole, 1, taken)
            inner = described.domain
        extents[tier] = degrees // left
    tp, cp, dp, pp = (extents[:, axis] for axis in range(len(PLACED_AXES)))
    return Extents(tp=tp, cp=cp, dp=dp, pp=pp)
