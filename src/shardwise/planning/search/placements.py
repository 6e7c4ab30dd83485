"""Enumerate placements: how the members of every axis fill the domains of the network.

A space tries placement orders and tiers, or, with ``extents: all``, every way to fill the domains.
A domain is filled as far as the degrees allow: leaving room in it would only move communication to
slower tiers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import gcd, isqrt, prod

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import EXTENT_AXES, TIER_FIELDS
from shardwise.config.extents import extents_text
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import distinct_rows, evaluate_distinct
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.placement import fixed_tiers, place
from shardwise.planning.search.space import Space

NETWORK_FIELDS = ("placement", "extents", *TIER_FIELDS)
NETWORK_RULES = tuple(r for r in CONSTRAINTS if "tier" in r.reason or r.field == "extents")
_PLACED_AXES = (*EXTENT_AXES, "ep", "etp")
_PP = EXTENT_AXES.index("pp")
_Members = tuple[int, ...]
"""Members of each axis that a tier adds."""


def placed(model: Model, system: System, space: Space, layouts: Table) -> tuple[Table, Ints]:
    """Return every layout with each of its distinct placements.

    With the position in `CONSTRAINTS` of the rule that each row breaks, or -1.
    """
    if space.values("extents", system) is None:
        return _with_all_extents(model, system, layouts)
    values = [space.values(name, system) or (None,) for name in NETWORK_FIELDS]
    combined = list(zip(*product(*values), strict=True))
    named: dict[str, object] = dict(zip(NETWORK_FIELDS, map(list, combined), strict=True))
    networks = Table.of(model, {"dp": 1, "gbs": 1, "seq_len": 1, **named})

    def of_degrees(degrees: Table) -> Ints:
        return _distinct_networks(model, system, degrees, networks)

    found = evaluate_distinct(of_degrees, layouts)
    outcome = found.values[found.position]  # layouts x networks
    row, network = np.nonzero(outcome >= _LEGAL)
    table = layouts.take(row).replaced(networks.take(network), NETWORK_FIELDS)
    return table, outcome[row, network]


_SKIPPED, _LEGAL = -2, -1


def _distinct_networks(model: Model, system: System, degrees: Table, networks: Table) -> Ints:
    """The rule that each network breaks, `_LEGAL`, or `_SKIPPED` if another one places the same.

    Shape (degrees, networks).
    """
    shape = len(degrees), len(networks)
    row, network = (index.ravel() for index in np.indices(shape))
    table = degrees.take(row).replaced(networks.take(network), NETWORK_FIELDS)
    tried = ~_without_effect(table, networks)
    outcome = np.full(tried.shape, _SKIPPED, dtype=np.int64)
    if tried.any():
        outcome[tried] = first_violation(model, system, table.take(tried), NETWORK_RULES)
        known = np.all(fixed_tiers(table) < len(system.network), axis=0)
        valid = np.flatnonzero(tried & known)  # the rules reject tiers that do not exist
        valid = valid[np.argsort(outcome[valid] >= 0, kind="stable")]  # legal ones stand for others
        extents = place(system, table.take(valid))
        columns = np.concatenate([getattr(extents, axis) for axis in _PLACED_AXES])
        firsts, _ = distinct_rows([row[valid], *columns])
        outcome[np.delete(valid, firsts)] = _SKIPPED
    return outcome.reshape(shape)


def _without_effect(table: Table, networks: Table) -> Bools:
    """Rows that change a field without effect from the first value."""
    tiers = fixed_tiers(table)
    single = np.stack([getattr(table, axis) == 1 for axis in EXTENT_AXES])
    single[:2] = single[0] & single[1]  # tp and tp2 have one tier
    same = np.any(single & (tiers != fixed_tiers(networks)[:, :1]), axis=0)
    without_order = np.all(single | (tiers >= 0), axis=0)
    return same | (without_order & (table.placement != networks.placement[0]))


def _with_all_extents(model: Model, system: System, layouts: Table) -> tuple[Table, Ints]:
    """Every layout with all extents that fill the domains, and the rule that it breaks, or -1."""

    def of_degrees(degrees: Table) -> list[list[str]]:
        rows = np.stack([getattr(degrees, axis) for axis in _PLACED_AXES]).T.tolist()
        return [all_extents(system, one[:-2], (one[-2], one[-1])) for one in rows]

    found = evaluate_distinct(of_degrees, layouts)
    every, where = found.values, found.position
    texts = {text: code for code, text in enumerate(dict.fromkeys(t for one in every for t in one))}
    codes = [np.array([texts[text] for text in one], dtype=np.int64) for one in every]
    rows = np.repeat(np.arange(len(layouts)), [len(every[position]) for position in where])
    extents = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(codes[position] for position in where)]
    )
    table = replace(layouts.take(rows), extents=extents, extent_lists=tuple(texts))
    return table, first_violation(model, system, table, NETWORK_RULES)


@lru_cache(maxsize=1 << 12)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def all_extents(
    system: System, degrees: Sequence[int], experts: tuple[int, int] = (1, 1)
) -> list[str]:
    """Return every way to fill the domains, as extents; one of them sets none.

    Parameters
    ----------
    degrees
        By axis, in the order of `EXTENT_AXES`.
    experts
        ep and etp: every number of expert groups in a domain of the first tier is tried.
    """
    found = []
    for tiers in _fillings(system, tuple(degrees), 0, 1):
        named = [dict(zip(EXTENT_AXES, members, strict=True)) for members in tiers]
        for groups in _expert_groups(tiers[:1], degrees, experts):
            first = [named[0] | ({"ep": groups} if groups else {})] if named else []
            found.append(extents_text([*first, *named[1:]]))
    return found


def _fillings(
    system: System, left: _Members, tier: int, inner: int
) -> Iterator[tuple[_Members, ...]]:
    """Members that a tier and those outside it add, except the outermost, which takes the rest."""
    if tier == len(system.network) - 1:
        yield ()
        return
    domain = system.network[tier].domain or 1
    node = max(system.node.accelerators // inner, 1)
    for members in _domain_fillings(left, domain // inner, node):
        rest = tuple(degree // added for degree, added in zip(left, members, strict=True))
        for outer in _fillings(system, rest, tier + 1, domain):
            yield (members, *outer)


@lru_cache(maxsize=1 << 14)
def _domain_fillings(left: _Members, room: int, node: int) -> tuple[_Members, ...]:
    """Members that fill a domain best: full nodes, or a share that divides a node."""
    if prod(left) <= room:
        return (left,)
    every = list(_parts(left, room))
    sizes = {prod(members) for members in every}
    full_nodes = {size for size in sizes if size % min(node, room) == 0}
    best = max(full_nodes or {size for size in sizes if min(node, room) % size == 0})
    return tuple(members for members in every if prod(members) == best)


def _parts(left: _Members, room: int) -> Iterator[_Members]:
    """All divisors of the degrees whose product is at most the room; outer axes vary fastest."""
    if not left:
        yield ()
        return
    for members in divisors(left[0]):
        if members <= room:
            for rest in _parts(left[1:], room // members):
                yield (members, *rest)


def _expert_groups(
    tiers: Sequence[_Members], degrees: Sequence[int], experts: tuple[int, int]
) -> list[int]:
    """Expert groups in a domain of the first tier, 0 for as many as possible."""
    ep, etp = experts
    if not tiers or ep == 1:
        return [0]
    room = prod(tiers[0]) // tiers[0][_PP]
    split = gcd(etp, room)
    most = gcd(ep, room // split)
    replicas = prod(degrees) // degrees[_PP] // (ep * etp)
    fewer = [n for n in divisors(most) if n < most and replicas % (room // (split * n)) == 0]
    return [0, *reversed(fewer)]
