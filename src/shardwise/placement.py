"""Where the members of each axis sit: extents.

The extent of an axis on a tier is how many of its members share one domain of that tier. Axes are
laid over the accelerators from the innermost out; the extents of all axes on a tier multiply to at
most its domain. An axis may be given the one tier that all its exchanges take instead.
"""

import math
from dataclasses import dataclass, fields

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.system import System
from shardwise.table import Table
from shardwise.words import PLACED_AXES, PLACEMENTS

__all__ = ["Extents", "given_tiers", "place"]

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
    ep: Ints
    """Groups of experts; etp, ep and edp lie over the accelerators of tp, cp and dp together."""
    etp: Ints
    edp: Ints
    """Replicas of an expert."""

    @property
    def replicas(self) -> Ints:
        """Ranks that hold the same weights but those of experts: dp x cp."""
        return self.dp * self.cp

    def take(self, rows: Ints | slice) -> "Extents":
        """Extents of some rows."""
        return Extents(**{f.name: getattr(self, f.name)[:, rows] for f in fields(self)})


def place(system: System, table: Table) -> Extents:
    """Lay the axes over the domains in the order of each row's placement.

    Inside a node every accelerator is used: an axis of degree d takes e = gcd(d, c) of the room c.
    Beyond it, domains are filled with whole nodes and some may stay free (64 of a rack of 72): an
    axis takes the largest divisor of what is left of its degree that is at most the room left. A
    domain that is larger than the job has room for the whole job. An axis with a tier of its own
    has one member per domain inside that tier and all of them from there on.

    Parameters
    ----------
    system
        Gives the domain of each tier and the size of a node.
    table
        Strategies; uses the degrees, `gpus`, `placement` and the tiers given.
    """
    left = np.stack([table.tp, table.cp, table.dp, table.pp])
    degrees = left.copy()
    given = given_tiers(table)
    left = np.where(given >= 0, 1, left)  # what has a tier of its own takes no room by placement
    placed = left.copy()
    order = _ORDER[table.placement].T
    extents = np.ones((len(system.network), *degrees.shape), dtype=np.int64)
    inner, node = 1, system.node.accelerators
    for tier, described in enumerate(system.network):
        domain = described.domain
        if domain is None:
            left[:] = 1
        else:
            whole = table.gpus <= domain
            taken = np.prod(np.where(given == tier, degrees, 1), axis=0)
            if inner < node < domain and domain % node == 0 and node % inner == 0:
                inside = np.gcd(taken, node // inner)  # what has this tier takes whole nodes last
                _fill(left, order, node // inner // inside, whole=whole, exact=True)
                inner, taken = node, taken // inside
            _fill(left, order, domain // inner // taken, whole=whole, exact=inner < node)
            inner = domain
        own = np.where(given <= tier, degrees, 1)
        extents[tier] = np.where(given >= 0, own, placed // left)
    tp, cp, dp, pp = (extents[:, axis] for axis in range(len(PLACED_AXES)))
    etp, ep, edp = _of_experts(table, tp * cp * dp)
    return Extents(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, edp=edp)


def _of_experts(table: Table, room: Ints) -> tuple[Ints, Ints, Ints]:
    """Extents of etp, ep and the replicas of experts, from the inside out.

    They share what tp, cp and dp take of each tier: E_etp = gcd(etp, E), E_ep = gcd(ep, E / E_etp),
    and the replicas have the rest.

    Parameters
    ----------
    room
        E, accelerators of tp, cp and dp together in one domain of each tier; shape (tiers, rows).
    """
    etp = np.gcd(table.etp, room)
    ep = np.gcd(table.ep, room // etp)
    return etp, ep, room // (etp * ep)


def given_tiers(table: Table) -> Ints:
    """The tier each axis was given, -1 where the placement decides; shape (axes, rows)."""
    return np.stack([getattr(table, f"{axis}_tier") for axis in PLACED_AXES])


def _fill(left: Ints, order: Ints, room: Ints, *, whole: Bools, exact: bool) -> None:
    """Take from the degrees left, in order, what fits into the room of one domain.

    Parameters
    ----------
    left
        Degrees not placed yet, by axis and row; changed in place.
    order
        Axes from the inside out, by position and row.
    room
        Units of the tier inside that a domain connects.
    whole
        Rows whose job fits into one domain.
    exact
        Whether the units must divide the room.
    """
    rows = np.arange(left.shape[1])
    free = np.maximum(room, 1)
    for axes in order:
        degree = left[axes, rows]
        part = np.gcd(degree, free) if exact else _largest_divisors(degree, free)
        taken = np.where(whole, degree, part)
        left[axes, rows] = degree // taken
        free //= np.where(whole, 1, taken)


def _largest_divisors(numbers: Ints, limits: Ints) -> Ints:
    """The largest divisor of each number that is at most its limit."""
    pairs, where = np.unique(np.stack([numbers, limits]), axis=1, return_inverse=True)
    found = [_largest_divisor(number, limit) for number, limit in pairs.T.tolist()]
    return np.array(found, dtype=np.int64)[where.reshape(-1)]


def _largest_divisor(number: int, limit: int) -> int:
    if number <= limit:
        return number
    small = [d for d in range(1, min(limit, math.isqrt(number)) + 1) if number % d == 0]
    return max(*small, *(number // d for d in small if number // d <= limit), 1)
