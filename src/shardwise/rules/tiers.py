"""Rules of the network: what has a tier of its own, and whether it fits into that tier."""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.model import Model
from shardwise.placement import given_tiers, place
from shardwise.rules.rule import Rule, any_of
from shardwise.system import System
from shardwise.table import Table
from shardwise.words import PLACED_AXES

__all__ = ["TIER_RULES", "wrong_degrees"]


def wrong_degrees(table: Table) -> Bools:
    """Rows whose degrees do not make up the accelerators."""
    return table.gpus != 1.0 * table.tp * table.cp * table.pp * table.dp


def _reach(system: System, table: Table) -> Floats:
    """Members that each axis adds on each tier, where degrees make up the accelerators.

    Shape (tiers, axes, rows); all 1 in rows with other degrees, which another rule refuses.
    """
    reach = np.ones((len(system.network), len(PLACED_AXES), len(table)))
    rows = np.flatnonzero(~wrong_degrees(table))
    if rows.size:
        extents = place(system, table.take(rows))
        whole = np.stack([getattr(extents, axis) for axis in PLACED_AXES], axis=1)
        reach[..., rows] = whole / np.vstack([np.ones_like(whole[:1]), whole[:-1]])
    return reach


def _overfull(system: System, table: Table) -> Bools:
    """Whether the axes have more members than a domain of a tier; shape (tiers, rows).

    Only an axis on a tier of its own can do that: placed ones take the room there is.
    """
    if not np.any(given_tiers(table) >= 0):
        return np.zeros((len(system.network), len(table)), dtype=np.bool_)
    members = np.cumprod(np.prod(_reach(system, table), axis=1), axis=0)
    return members > _domains(system)[:, np.newaxis]


def _unfilled(system: System, table: Table) -> Bools:
    """Whether groups leave part of a tier idle that must be filled; shape (tiers, rows)."""
    filled = [tier.must_be_filled and tier.domain is not None for tier in system.network]
    if not any(filled):
        return np.zeros((len(system.network), len(table)), dtype=np.bool_)
    domains = _domains(system)
    room = np.where(filled, domains, 1.0) / np.where(filled, [1.0, *domains[:-1]], 1.0)
    members = np.prod(_reach(system, table), axis=1)
    idle = np.array(filled)[:, np.newaxis] & (np.mod(room[:, np.newaxis], members) != 0)
    return idle & ~any_of(_overfull(system, table))


def _domains(system: System) -> Floats:
    return np.array([tier.domain or np.inf for tier in system.network])


def _crowding(
    wrong: Callable[[System, Table], Bools],
) -> Callable[[Model, System, Table], str]:
    """Blame the axis with most members on the first tier that is wrong, or its own tier."""

    def blamed(_: Model, system: System, table: Table) -> str:
        tier = int(np.argmax(wrong(system, table)[:, 0]))
        axis = int(np.argmax(_reach(system, table)[tier, :, 0]))
        name = PLACED_AXES[axis]
        return f"{name}_tier" if given_tiers(table)[axis, 0] >= 0 else name

    return blamed


def _crowd(
    wrong: Callable[[System, Table], Bools], told: str
) -> Callable[[Model, System, Table], str]:
    """Say how many members of which axes a tier has, and how many it connects."""

    def problem(_: Model, system: System, table: Table) -> str:
        tier = int(np.argmax(wrong(system, table)[:, 0]))
        extents = place(system, table)
        members = [int(getattr(extents, axis)[tier, 0]) for axis in PLACED_AXES]
        axes = " x ".join(f"{a} {n}" for a, n in zip(PLACED_AXES, members, strict=True) if n > 1)
        described = system.network[tier]
        return f"{axes} in a domain of {described.name} {told} its {described.domain} accelerators"

    return problem


def _tier(axis: str) -> Callable[[Model, System, Table], Bools]:
    return lambda _, system, table: getattr(table, f"{axis}_tier") >= len(system.network)


TIER_RULES: tuple[Rule, ...] = (
    *(
        Rule(
            reason=f"{axis}_tier",
            of_layout=True,
            field=f"{axis}_tier",
            broken=_tier(axis),
            problem=lambda _, s, __: (
                f"the network has {len(s.network)} tiers; allowed: 0 to {len(s.network) - 1}"
            ),
        )
        for axis in PLACED_AXES
    ),
    Rule(
        reason="tier_size",
        of_layout=True,
        field="placement",
        broken=lambda _, s, t: any_of(_overfull(s, t)),
        problem=_crowd(_overfull, "are more than"),
        blame=_crowding(_overfull),
    ),
    Rule(
        reason="tier_filled",
        of_layout=True,
        field="placement",
        broken=lambda _, s, t: any_of(_unfilled(s, t)),
        problem=_crowd(_unfilled, "must divide (and so fill)"),
        blame=_crowding(_unfilled),
    ),
)
