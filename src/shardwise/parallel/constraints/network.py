"""Constraints on placement: tiers, extents, and whether the axes fit there."""

import math
from collections.abc import Callable

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.enums import EXTENT_AXES, PLACED_AXES, TIER_FIELDS
from shardwise.config.extents import members_per_tier
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.constraints.constraint import Constraint, one, rule
from shardwise.parallel.placement import explicit_extents, fixed_tiers, place


def wrong_degrees(table: Table) -> Bools:
    """Rows whose degrees do not multiply to the number of accelerators."""
    return table.gpus != 1.0 * table.tp * table.tp2 * table.cp * table.pp * table.dp


def _members_added(system: System, table: Table) -> Floats:
    """Members that each axis adds on each tier, where degrees multiply to the accelerators.

    Shape (tiers, axes, rows); all 1 in rows with other degrees, which another constraint rejects.
    """
    added = np.ones((len(system.network), len(EXTENT_AXES), len(table)))
    rows = np.flatnonzero(~wrong_degrees(table))
    if rows.size:
        extents = place(system, table.take(rows))
        total = np.stack([getattr(extents, axis) for axis in EXTENT_AXES], axis=1)
        added[..., rows] = total / np.vstack([np.ones_like(total[:1]), total[:-1]])
    return added


def _overfull(system: System, table: Table) -> Bools:
    """Whether the axes have more members than a domain of a tier; shape (tiers, rows).

    Only explicit tiers or extents can: axes placed by order use the room there is.
    """
    if not np.any(fixed_tiers(table) >= 0) and not np.any(table.extents >= 0):
        return np.zeros((len(system.network), len(table)), dtype=np.bool_)
    members = np.cumprod(np.prod(_members_added(system, table), axis=1), axis=0)
    return members > _domains(system)[:, np.newaxis]


def _unfilled(system: System, table: Table) -> Bools:
    """Whether groups leave accelerators idle in a tier that must be filled; (tiers, rows)."""
    filled = [tier.must_be_filled and tier.domain is not None for tier in system.network]
    if not any(filled):
        return np.zeros((len(system.network), len(table)), dtype=np.bool_)
    domains = _domains(system)
    room = np.where(filled, domains, 1.0) / np.where(filled, [1.0, *domains[:-1]], 1.0)
    members = np.prod(_members_added(system, table), axis=1)
    idle = np.array(filled)[:, np.newaxis] & (np.mod(room[:, np.newaxis], members) != 0)
    return idle & ~np.any(_overfull(system, table), axis=0)


def _domains(system: System) -> Floats:
    return np.array([tier.domain or np.inf for tier in system.network])


def _crowded(reason: str, wrong: Callable[[System, Table], Bools], relation: str) -> Constraint:
    """A rule for the members of all axes in a domain of a tier."""

    def blamed(_: object, system: System, table: Table) -> str:
        """The axis with most members on the first wrong tier, or its tier field."""
        tier = int(np.argmax(wrong(system, table)[:, 0]))
        axis = int(np.argmax(_members_added(system, table)[tier, :, 0]))
        if table.extents[0] >= 0:
            return "extents"
        name = EXTENT_AXES[axis]
        return f"{name[:2]}_tier" if fixed_tiers(table)[axis, 0] >= 0 else name

    def problem(_: object, system: System, table: Table) -> str:
        """The members of each axis in a domain of the tier, and its accelerators."""
        tier = int(np.argmax(wrong(system, table)[:, 0]))
        extents = place(system, table)
        members = [int(getattr(extents, axis)[tier, 0]) for axis in EXTENT_AXES]
        axes = " x ".join(f"{a} {n}" for a, n in zip(EXTENT_AXES, members, strict=True) if n > 1)
        described = system.network[tier]
        message = (
            f"{axes} in a domain of {described.name} {relation} its {described.domain} accelerators"
        )
        return message + _allowed(table, described.domain or 1, members, tier)

    return rule(
        reason,
        "placement",
        lambda _, s, t: np.any(wrong(s, t), axis=0),
        problem,
        layout=True,
        blame=blamed,
    )


def _allowed(table: Table, domain: int, members: list[int], tier: int) -> str:
    """Extents that one axis alone may have in a domain, as the user writes them."""
    if table.extents[0] < 0 or tier:
        return ""
    degrees = {axis: one(getattr(table, axis)) for axis in EXTENT_AXES}
    found = []
    for (axis, degree), here in zip(degrees.items(), members, strict=True):
        others = math.prod(members) // here
        fitting = [n for n in range(1, here) if degree % n == 0 and domain % (others * n) == 0]
        found += [f"{axis} {fitting[-1]}x{degree // fitting[-1]}"] if fitting else []
    return f"; allowed: {' or '.join(found)}" if found else ""


def _listed_tiers(table: Table) -> Ints:
    """Tiers that each row's extents name."""
    numbers = np.array([*(len(members_per_tier(text)) for text in table.extent_lists), 0])
    return numbers[table.extents]


def _undivided(system: System, table: Table) -> Bools:
    """Whether the extents of an axis do not divide its degree; shape (axes, rows)."""
    members, _ = explicit_extents(table, len(system.network))
    degrees = np.stack([getattr(table, axis) for axis in EXTENT_AXES])
    return degrees % np.prod(np.maximum(members, 1), axis=0) != 0


def _wrong_expert_extents(_: object, system: System, table: Table) -> Bools:
    """Whether the extents of expert groups do not fit the accelerators of a tier."""
    groups = explicit_extents(table, len(system.network))[1]
    broken = np.zeros(len(table), dtype=np.bool_)
    rows = np.flatnonzero(np.any(groups > 0, axis=0) & ~wrong_degrees(table))
    if rows.size:
        some = table.take(rows)
        extents = place(system, some)
        room = extents.tp * extents.tp2 * extents.cp * extents.dp
        wrong = room % (extents.ep * extents.etp) != 0
        for reach in (extents.ep, extents.etp, np.maximum(extents.edp, 1)):
            wrong[1:] |= reach[1:] % reach[:-1] != 0
        broken[rows] = np.any(wrong, axis=0) | (extents.ep[-1] != some.ep)
    return broken


def _tier(field: str) -> Constraint:
    return rule(
        field,
        field,
        lambda _, s, t: getattr(t, field) >= len(s.network),
        lambda _, s, __: (
            f"the network has {len(s.network)} tiers; allowed: 0 to {len(s.network) - 1}"
        ),
        layout=True,
    )


def _beyond(_: object, system: System, table: Table) -> Bools:
    reach = system.network[-1].domain
    return table.gpus > reach if reach else np.zeros(len(table), dtype=np.bool_)


DEGREE_CONSTRAINTS: tuple[Constraint, ...] = (
    rule(
        "degrees",
        "gpus",
        wrong_degrees,
        lambda t: (
            f"must equal tp x cp x pp x dp = {one(t.tp)} x {one(t.cp)} x {one(t.pp)} "
            f"x {one(t.dp)} = {one(t.tp) * one(t.cp) * one(t.pp) * one(t.dp)}"
            if one(t.tp2) == 1
            else f"must equal tp x tp2 x cp x pp x dp = {one(t.tp)} x {one(t.tp2)} x {one(t.cp)} x "
            f"{one(t.pp)} x {one(t.dp)}"
        ),
        layout=True,
    ),
    rule(
        "accelerators",
        "gpus",
        _beyond,
        lambda _, s, __: f"the network connects at most {s.network[-1].domain}",
        layout=True,
    ),
)
TIER_CONSTRAINTS: tuple[Constraint, ...] = (
    *(_tier(f"{axis}_tier") for axis in PLACED_AXES),
    rule(
        "extents_tier",
        "extents",
        lambda t: (t.extents >= 0) & np.any(fixed_tiers(t) >= 0, axis=0),
        lambda t: (
            f"conflicts with {next(n for n in TIER_FIELDS if getattr(t, n)[0] >= 0)}; "
            "set one of them"
        ),
        layout=True,
    ),
    rule(
        "extents_tiers",
        "extents",
        lambda _, s, t: _listed_tiers(t) >= len(s.network),
        lambda _, s, t: (
            f"names {one(_listed_tiers(t))} tiers; the network has {len(s.network)}, of which the "
            f"outermost takes what is left; allowed: up to {len(s.network) - 1}"
        ),
        layout=True,
    ),
    rule(
        "extents_degrees",
        "extents",
        lambda _, s, t: np.any(_undivided(s, t), axis=0),
        lambda _, s, t: (
            "must divide the degrees; does not divide "
            + ", ".join(
                f"{axis} {one(getattr(t, axis))}"
                for axis, wrong in zip(EXTENT_AXES, _undivided(s, t)[:, 0], strict=True)
                if wrong
            )
        ),
        layout=True,
    ),
    rule(
        "extents_experts",
        "extents",
        _wrong_expert_extents,
        "groups of experts (ep {ep}, etp {etp}) must divide the accelerators of the other axes but "
        "pp on every tier, and what is left of both beyond it",
        layout=True,
    ),
    _crowded("tier_size", _overfull, "are more than"),
    _crowded("tier_filled", _unfilled, "must divide (and so fill)"),
)
