"""Placement of the members of each axis on the network: extents.

The extent of an axis on a tier is how many of its members share one domain of that tier; the
extents of all axes on a tier multiply to at most its domain. A strategy may set extents. Else
axes are laid over the accelerators from the innermost out, or are fixed to the one tier that all
their communication uses.
"""

import math

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import EXTENT_AXES, PLACEMENTS
from shardwise.config.extents import EXTENT_NAMES, axis_order, members_per_tier
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.records import dataclass, fields

# For each placement and position from the inside out, the axis (as its position in EXTENT_AXES).
_ORDER = np.array([[EXTENT_AXES.index(axis) for axis in axis_order(p)] for p in PLACEMENTS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
    """Members of an axis in one domain of each tier, innermost tier first; shape (tiers, rows).

    On the outermost tier the extent is the full degree.
    """

    tp: Ints
    tp2: Ints
    cp: Ints
    dp: Ints
    pp: Ints
    ep: Ints
    """Groups of experts; etp, ep and edp share the accelerators of all axes but pp."""
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
    Beyond it, domains are filled with full nodes and some may stay free (64 of a rack of 72): an
    axis takes the largest divisor of what is left of its degree that is at most the room left. A
    domain that is larger than the job has room for the full job. An axis with a tier of its own
    has one member per domain inside that tier and all of them from there on. On a tier with
    explicit extents the axes take those, and nothing else.

    Parameters
    ----------
    table
        Strategies; uses the degrees, `gpus`, `placement` and the tiers or extents they set.
    """
    left = np.stack([getattr(table, axis) for axis in EXTENT_AXES])
    degrees = left.copy()
    fixed = fixed_tiers(table)
    left = np.where(fixed >= 0, 1, left)  # what has a tier of its own takes no room by placement
    placed = left.copy()
    explicit, experts = explicit_extents(table, len(system.network))
    order = _ORDER[table.placement].T
    extents = np.ones((len(system.network), *degrees.shape), dtype=np.int64)
    inner, node = 1, system.node.accelerators
    for tier, described in enumerate(system.network):
        domain = described.domain
        if domain is None:
            left[:] = 1
        else:
            listed = explicit[tier, 0] > 0
            fits = (table.gpus <= domain) & ~listed
            rest = np.maximum(left // np.maximum(explicit[tier], 1), 1)
            left = np.where(listed, rest, left)
            used = np.prod(np.where(fixed == tier, degrees, 1), axis=0)
            used = np.where(listed, domain, used)  # there is no room for anything else
            if inner < node < domain and domain % node == 0 and node % inner == 0:
                inside = np.gcd(used, node // inner)  # what has this tier takes full nodes last
                _fill(left, order, node // inner // inside, fits=fits, exact=True)
                inner, used = node, used // inside
            _fill(left, order, domain // inner // used, fits=fits, exact=inner < node)
            inner = domain
        own = np.where(fixed <= tier, degrees, 1)
        extents[tier] = np.where(fixed >= 0, own, placed // left)
    tp, tp2, cp, dp, pp = (extents[:, axis] for axis in range(len(EXTENT_AXES)))
    etp, ep, edp = _of_experts(table, tp * tp2 * cp * dp, experts)
    return Extents(tp=tp, tp2=tp2, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, edp=edp)


def explicit_extents(table: Table, tiers: int) -> tuple[Ints, Ints]:
    """Members that the extents of a strategy add on each tier: of the axes, of the expert groups.

    Shapes (tiers, axes, rows) and (tiers, rows), 0 where none is set. Tiers beyond those of
    the network are left out.

    Parameters
    ----------
    table
        Strategies; uses `extents`.
    """
    known = np.zeros((len(table.extent_lists) + 1, tiers, len(EXTENT_NAMES)), dtype=np.int64)
    for position, text in enumerate(table.extent_lists):
        listed = members_per_tier(text)[:tiers]
        known[position, : len(listed)] = listed
    members = np.moveaxis(known[table.extents], 0, -1)
    return members[:, :-1], members[:, -1]


def _of_experts(table: Table, room: Ints, explicit: Ints) -> tuple[Ints, Ints, Ints]:
    """Extents of etp, ep and the replicas of experts, from the inside out.

    They share what all axes but pp take of each tier: E_etp = gcd(etp, E), E_ep = gcd(ep, E /
    E_etp), or the product of the explicit extents up to it, and the replicas have the rest.

    Parameters
    ----------
    room
        E, accelerators of all axes but pp in one domain of each tier; shape (tiers, rows).
    explicit
        Groups of experts that the extents of a strategy add on each tier, 0 where none is set;
        shape (tiers, rows).
    """
    etp = np.gcd(table.etp, room)
    ep = np.gcd(table.ep, room // etp)
    ep = np.where(explicit > 0, np.cumprod(np.maximum(explicit, 1), axis=0), ep)
    return etp, ep, room // (etp * ep)


def fixed_tiers(table: Table) -> Ints:
    """The tier that each axis is fixed to, -1 where the placement decides; shape (axes, rows).

    Both tensor-parallel axes have the same.

    Parameters
    ----------
    table
        Strategies; uses the tier fields of the axes.
    """
    return np.stack([getattr(table, f"{axis[:2]}_tier") for axis in EXTENT_AXES])


def _fill(left: Ints, order: Ints, room: Ints, *, fits: Bools, exact: bool) -> None:
    """Take from the degrees left, in order, what fits into the room of one domain.

    Parameters
    ----------
    left
        Degrees not placed yet, by axis and row; changed in place.
    exact
        Whether the units must divide the room.
    """
    rows = np.arange(left.shape[1])
    free = np.maximum(room, 1)
    for axes in order:
        degree = left[axes, rows]
        divisor = np.gcd(degree, free) if exact else _largest_divisors(degree, free)
        used = np.where(fits, degree, divisor)
        left[axes, rows] = degree // used
        free //= np.where(fits, 1, used)


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
