"""Which modules may be units, and where the units of a wrapping begin and end in the step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools
from shardwise.errors import Fault, InputError, nearest
from shardwise.fsdp.plan import Unit, Wrapping
from shardwise.fsdp.profile import Profile
from shardwise.fsdp.sizes import OwnSizes

__all__ = ["PlacedUnit", "allowed", "checkpointed", "placed", "refusals"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedUnit:
    """A unit and the modules whose weights it owns."""

    unit: Unit
    modules: tuple[int, ...]
    """Positions of the modules of the call, ascending."""
    owned: tuple[int, ...]
    """Positions whose own weights are the unit's: theirs and below, less those of units inside."""
    forward: tuple[int, int]
    backward: tuple[int, int]
    late: bool

    @property
    def name(self) -> str:
        """For people: the modules of the call."""
        return " + ".join(self.unit.modules) or "root"


def refusals(profile: Profile, sizes: OwnSizes) -> dict[int, str]:
    """Why a module may not be a unit, by position; those that may are left out.

    torch 2.13 rejects a parameter in two units ("shared with a parameter already managed by
    another FSDP group"), ignores units without parameters, and mixes frozen with trainable weights
    at the price of gathering both for one.
    """
    found: dict[int, str] = {}
    for place in range(1, len(profile.modules)):
        if reason := _refusal(profile, sizes, place):
            found[place] = reason
    return found


def _refusal(profile: Profile, sizes: OwnSizes, place: int) -> str:
    module = profile.modules[place]
    inside = slice(place, module.end)
    if not sizes.gathered[inside].any() and not _holds(profile, place):
        return "has no parameters: FSDP2 ignores it"
    if (outside := _tied_outside(profile, place)) is not None:
        return outside
    if sizes.trainable[inside].any() and sizes.frozen[inside].any():
        return "mixes frozen and trainable parameters"
    return ""


def _holds(profile: Profile, place: int) -> bool:
    end = profile.modules[place].end
    return any(place <= at < end for p in profile.shared for at in p.holders)


def _tied_outside(profile: Profile, place: int) -> str | None:
    """Tell of a parameter that is held both inside and outside a module."""
    end = profile.modules[place].end
    for parameter in profile.shared:
        inside = [place <= at < end for at in parameter.holders]
        if any(inside) and not all(inside):
            other = profile.modules[parameter.holders[inside.index(False)]]
            if profile.modules[parameter.holders[inside.index(True)]].name == other.name:
                return f"runs more than once: {other.name!r} runs outside it too"
            return f"shares the parameter {parameter.name!r} with {other.name!r} outside it"
    return None


def allowed(profile: Profile, sizes: OwnSizes) -> Bools:
    """Whether each module may be a unit of its own."""
    may = np.ones(len(profile.modules), dtype=bool)
    may[[0, *refusals(profile, sizes)]] = False
    return may


def placed(profile: Profile, sizes: OwnSizes, wrapping: Wrapping) -> tuple[PlacedUnit, ...]:
    """Units of a wrapping with the root first, then in the order they run.

    Raises
    ------
    InputError
        If a module is unknown or may not be a unit.
    """
    groups = [_positions(profile, unit) for unit in wrapping.units]
    faults = [
        fault
        for unit, at in zip(wrapping.units, groups, strict=True)
        for fault in _faults(profile, sizes, unit, at)
    ]
    owner = np.zeros(len(profile.modules), dtype=np.int64)
    order = sorted(range(len(groups)), key=lambda i: (groups[i][0], -profile.ends[groups[i][0]]))
    for number, i in enumerate(order, start=1):
        for at in groups[i]:
            if owner[at] > 0 and at in groups[order[owner[at] - 1]]:
                name = profile.modules[at].name
                faults.append(_fault(name, "stands in more than one unit"))
            owner[at : profile.ends[at]] = number
    if faults:
        raise InputError(faults)
    root = PlacedUnit(
        unit=Unit(modules=(), reshard_after_forward=False),
        modules=(0,),
        owned=tuple(np.flatnonzero(owner == 0).tolist()),
        forward=profile.modules[0].forward,
        backward=profile.modules[0].backward,
        late=True,
    )
    rest = [
        _placed(profile, wrapping.units[i], groups[i], np.flatnonzero(owner == number).tolist())
        for number, i in enumerate(order, start=1)
    ]
    return (root, *rest)


def _positions(profile: Profile, unit: Unit) -> list[int]:
    found = []
    for name in unit.modules:
        if name not in profile.positions:
            raise InputError(_fault(name, _unknown(profile, name)))
        found.append(profile.positions[name])
    if not found or 0 in found:
        name = unit.modules[0] if unit.modules else ""
        raise InputError(_fault(name, "the root is a unit of its own in every plan; leave it out"))
    return sorted(found)


def _unknown(profile: Profile, name: str) -> str:
    if name in profile.unrun:
        return "never runs in the forward pass, so it has no place in the order of units"
    if any(module.name.startswith(f"{name}.") for module in profile.modules):
        return "holds modules but has no forward of its own; name those it holds"
    return "no such module" + nearest(name, profile.positions)


def _fault(name: str, problem: str) -> Fault:
    return Fault(field="units", value=name, has_value=True, problem=problem)


def _faults(profile: Profile, sizes: OwnSizes, unit: Unit, at: Sequence[int]) -> list[Fault]:
    if len(at) == 1:
        reason = _refusal(profile, sizes, at[0])
        return [_fault(unit.modules[0], reason)] if reason else []
    found = []
    ends = [profile.modules[place].end for place in at]
    if any(second < end for second, end in zip(at[1:], ends, strict=False)):
        found.append(_fault(unit.modules[0], "a group may not hold a module inside another of it"))
    inside = np.zeros(len(profile.modules), dtype=bool)
    for place, end in zip(at, ends, strict=True):
        inside[place:end] = True
    for parameter in profile.shared:
        held = inside[list(parameter.holders)]
        if held.any() and not held.all():
            problem = f"shares the parameter {parameter.name!r} with a module outside the group"
            found.append(_fault(unit.modules[0], problem))
    if sizes.trainable[inside].any() and sizes.frozen[inside].any():
        found.append(_fault(unit.modules[0], "mixes frozen and trainable parameters"))
    if not sizes.gathered[inside].any():
        found.append(_fault(unit.modules[0], "has no parameters: FSDP2 ignores it"))
    return found


def _placed(profile: Profile, unit: Unit, at: Sequence[int], owned: Sequence[int]) -> PlacedUnit:
    first, last = profile.modules[at[0]], profile.modules[at[-1]]
    # FSDP2 hooks the output of the last module for what comes before backward, and the inputs of
    # the first for what comes after.
    return PlacedUnit(
        unit=unit,
        modules=tuple(at),
        owned=tuple(owned),
        forward=(first.forward[0], last.forward[1]),
        backward=(last.backward[0], first.backward[1]),
        late=first.late,
    )


def checkpointed(
    profile: Profile, wrapping: Wrapping, units: Sequence[PlacedUnit]
) -> tuple[int, ...]:
    """Positions of the checkpointed modules.

    Raises
    ------
    InputError
        If one is unknown, lies inside another, or holds a unit: FSDP2 gathers that in the middle of
        computing again, which is not modelled.
    """
    found = []
    for name in wrapping.checkpointed:
        if name not in profile.positions:
            problem = _unknown(profile, name)
            raise InputError(Fault(field="checkpoint", value=name, has_value=True, problem=problem))
        found.append(profile.positions[name])
    for one, other in zip(sorted(found), sorted(found)[1:], strict=False):
        if other < profile.ends[one]:
            name = profile.modules[other].name
            problem = f"lies inside {profile.modules[one].name!r}, which is checkpointed too"
            raise InputError(Fault(field="checkpoint", value=name, has_value=True, problem=problem))
    for place in found:
        for unit in units[1:]:
            if place < unit.modules[0] < profile.ends[place]:
                problem = f"the unit {unit.name!r} lies inside it; checkpoint whole units"
                name = profile.modules[place].name
                raise InputError(
                    Fault(field="checkpoint", value=name, has_value=True, problem=problem)
                )
    return tuple(sorted(found))
