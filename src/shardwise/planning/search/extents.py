"""Ways to seat the members of every axis in the domains of the network, as extents.

A tier is filled as far as the degrees allow: what a domain could hold and does not would only move
exchanges to slower tiers.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import gcd, isqrt, prod

from shardwise.config.enums import EXTENT_AXES
from shardwise.config.extents import extents_text
from shardwise.config.system import System

__all__ = ["divisors", "seatings"]

_PP = EXTENT_AXES.index("pp")
_Parts = tuple[int, ...]
"""Members of each axis that a tier adds."""


@lru_cache(maxsize=1 << 12)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors in ascending order."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def seatings(
    system: System, degrees: Sequence[int], experts: tuple[int, int] = (1, 1)
) -> list[str]:
    """Every way to fill the domains, as extents; one of them leaves nothing open.

    Parameters
    ----------
    degrees
        By axis, in the order of `EXTENT_AXES`.
    experts
        ep and etp: the groups of experts in a domain of the first tier are tried, too.
    """
    found = []
    for tiers in _by_tier(system, tuple(degrees), 0, 1):
        named = [dict(zip(EXTENT_AXES, parts, strict=True)) for parts in tiers]
        for groups in _expert_groups(tiers[:1], degrees, experts):
            first = [named[0] | ({"ep": groups} if groups else {})] if named else []
            found.append(extents_text([*first, *named[1:]]))
    return found


def _by_tier(system: System, left: _Parts, tier: int, inner: int) -> Iterator[tuple[_Parts, ...]]:
    """What this tier and those outside it add, but for the outermost, which takes the rest."""
    if tier == len(system.network) - 1:
        yield ()
        return
    domain = system.network[tier].domain or 1
    for parts in _fillings(left, domain // inner, max(system.node.accelerators // inner, 1)):
        rest = tuple(degree // part for degree, part in zip(left, parts, strict=True))
        for outer in _by_tier(system, rest, tier + 1, domain):
            yield (parts, *outer)


@lru_cache(maxsize=1 << 14)
def _fillings(left: _Parts, room: int, node: int) -> tuple[_Parts, ...]:
    """Parts of the degrees that fill a room best: whole nodes, or a share that divides a node."""
    if prod(left) <= room:
        return (left,)
    every = list(_parts(left, room))
    sizes = {prod(parts) for parts in every}
    whole = {size for size in sizes if size % min(node, room) == 0}
    best = max(whole or {size for size in sizes if min(node, room) % size == 0})
    return tuple(parts for parts in every if prod(parts) == best)


def _parts(left: _Parts, room: int) -> Iterator[_Parts]:
    """All parts whose product is at most the room; outer axes vary fastest."""
    if not left:
        yield ()
        return
    for part in divisors(left[0]):
        if part <= room:
            for rest in _parts(left[1:], room // part):
                yield (part, *rest)


def _expert_groups(
    tiers: Sequence[_Parts], degrees: Sequence[int], experts: tuple[int, int]
) -> list[int]:
    """Groups of experts in a domain of the first tier, 0 for as many as there may be."""
    ep, etp = experts
    if not tiers or ep == 1:
        return [0]
    room = prod(tiers[0]) // tiers[0][_PP]
    split = gcd(etp, room)
    most = gcd(ep, room // split)
    replicas = prod(degrees) // degrees[_PP] // (ep * etp)
    fewer = [n for n in divisors(most) if n < most and replicas % (room // (split * n)) == 0]
    return [0, *reversed(fewer)]
