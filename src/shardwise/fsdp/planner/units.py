"""Units of FSDP2: bytes of each module, which modules may be units, and where units run in a step.

Modules are identified by their position in `Profile.modules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.errors import Fault, InputError, nearest
from shardwise.fsdp.plan import DTYPE_BYTES, Setting, Unit, Wrapping
from shardwise.fsdp.profile import Profile

_MOMENTS = {"adamw": 2, "sgd": 0, "none": 0}
"""Numbers that an optimizer stores for each weight, in the type of the weight."""
_TEMPORARIES = {"adamw": 1, "sgd": 0, "none": 0}
"""Numbers that its step allocates for each weight and frees again."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ModuleSizes:
    """Bytes of the weights that each module holds itself, by position; shape (modules,).

    A tied weight counts at its first holder. The bytes of a unit are the sums over its modules.
    """

    gathered: Floats
    """Unsharded weights, and as much again for the all-gather's buffer [byte].

    Rows are padded to a multiple of the ranks: W ceil(d_0 / W) (numel / d_0) numbers of the compute
    type.
    """
    reduced: Floats
    """Input of the reduce-scatter: the same numbers of trainable weights in the type of the
    reduction [byte]."""
    gradients: Floats
    """Unsharded gradients in the compute type, without padding [byte]."""
    shard: Floats
    """Sharded weights on one rank [byte]."""
    shard_gradients: Floats
    """Their gradients after the reduction, resident until the step ends [byte].

    The shard in the stored type; with replicas also the buffer of its all-reduce, in the type of
    the reduction, if that is another.
    """
    scattered: Floats
    """Outputs of the reduce-scatter: in the type of the reduction, and cast to the stored one if
    that is another [byte]."""
    state: Floats
    """Optimizer state of them on one rank [byte]."""
    optimizer_step: Floats
    """Sharded gradients and temporaries at the peak of the optimizer's step [byte].

    AdamW in its `foreach` form allocates a list of square roots as large as the weights.
    """
    trainable: Bools
    """Whether a module holds weights that are trained."""
    frozen: Bools
    """Whether a module holds weights that are not."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LastGradients:
    """The gradient that stays alive while FSDP2 reduces a unit: that of its last parameter."""

    profile: Profile
    element_bytes: int

    @cached_property
    def _columns(self) -> tuple[Ints, Floats]:
        """First holder and bytes of each parameter that gets a gradient, in order."""
        some = [p for p in self.profile.parameters if p.trainable and p.gradient_segment >= 0]
        holders = np.array([p.holders[0] for p in some], dtype=np.int64)
        return holders, np.array([float(p.numel * self.element_bytes) for p in some])

    def of(self, owned: Bools) -> float:
        """Bytes of the last one among the modules that a unit owns, by position."""
        holders, sizes = self._columns
        found = np.flatnonzero(owned[holders])
        return float(sizes[found[-1]]) if found.size else 0.0

    def between(self, first: int, end: int) -> float:
        """The same for all modules from one position up to another."""
        holders, sizes = self._columns
        found = np.flatnonzero((holders >= first) & (holders < end))
        return float(sizes[found[-1]]) if found.size else 0.0


def module_sizes(profile: Profile, setting: Setting) -> ModuleSizes:
    """Sizes of the modules of a profile in a setting.

    Padding is that of `torch.distributed.fsdp.fully_shard` (torch 2.13, `FSDPParam`), which splits
    the first dimension.
    """
    n = len(profile.modules)
    sums = {name: np.zeros(n) for name in ("padded", "trained", "plain")}
    trainable, frozen = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for parameter in profile.parameters:
        holder = parameter.holders[0]
        rows = parameter.shape[0] if parameter.shape else 1
        across = parameter.numel // max(rows, 1)
        padded = setting.shards * -(-rows // setting.shards) * across
        sums["padded"][holder] += padded
        (trainable if parameter.trainable else frozen)[holder] = True
        if parameter.trainable:
            sums["trained"][holder] += padded
            sums["plain"][holder] += parameter.numel * (parameter.gradient_segment >= 0)
    stored, computed = DTYPE_BYTES[setting.stored_dtype], DTYPE_BYTES[setting.compute_dtype]
    shard = stored / setting.shards
    reduced = DTYPE_BYTES[setting.reduce_dtype]
    buffer = reduced if setting.replicas > 1 and reduced != stored else 0
    return ModuleSizes(
        gathered=sums["padded"] * computed,
        reduced=sums["trained"] * reduced,
        gradients=sums["plain"] * computed,
        shard=sums["padded"] * shard,
        shard_gradients=sums["trained"] * (stored + buffer) / setting.shards,
        scattered=sums["trained"]
        * (reduced + (stored if stored != reduced else 0))
        / setting.shards,
        state=sums["trained"] * shard * _MOMENTS[setting.optimizer],
        optimizer_step=sums["trained"] * shard * (1 + _TEMPORARIES[setting.optimizer]),
        trainable=trainable,
        frozen=frozen,
    )


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
    reduced_last: bool

    @property
    def name(self) -> str:
        """For people: the modules of the call."""
        return " + ".join(self.unit.modules) or "root"


def _refusal(profile: Profile, sizes: ModuleSizes, place: int) -> str:
    module = profile.modules[place]
    inside = slice(place, module.end)
    tied = (place <= at < module.end for p in profile.shared for at in p.holders)
    if not sizes.gathered[inside].any() and not any(tied):
        return "has no parameters: FSDP2 ignores it"
    if (outside := _tied_outside(profile, place)) is not None:
        return outside
    if sizes.trainable[inside].any() and sizes.frozen[inside].any():
        return "mixes frozen and trainable parameters"
    return ""


def _tied_outside(profile: Profile, place: int) -> str | None:
    """Name a parameter that belongs to modules inside and outside a module."""
    end = profile.modules[place].end
    for parameter in profile.shared:
        inside = [place <= at < end for at in parameter.holders]
        if any(inside) and not all(inside):
            other = profile.modules[parameter.holders[inside.index(False)]]
            if profile.modules[parameter.holders[inside.index(True)]].name == other.name:
                return f"runs more than once: {other.name!r} runs outside it too"
            return f"shares the parameter {parameter.name!r} with {other.name!r} outside it"
    return None


def allowed(profile: Profile, sizes: ModuleSizes) -> Bools:
    """Whether each module may be a unit of its own.

    torch 2.13 rejects a parameter in two units ("shared with a parameter already managed by
    another FSDP group"), ignores units without parameters, and mixes frozen with trainable weights
    at the price of gathering both for one.
    """
    may = [not _refusal(profile, sizes, place) for place in range(1, len(profile.modules))]
    return np.array([False, *may])


def place_units(profile: Profile, sizes: ModuleSizes, wrapping: Wrapping) -> tuple[PlacedUnit, ...]:
    """Units of a wrapping with the root first, then in the order they run."""
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
                faults.append(Fault.of("units", name, "stands in more than one unit"))
            owner[at : profile.ends[at]] = number
    if faults:
        raise InputError(faults)
    root = PlacedUnit(
        unit=Unit(modules=(), reshard_after_forward=False),
        modules=(0,),
        owned=tuple(np.flatnonzero(owner == 0).tolist()),
        forward=profile.modules[0].forward,
        backward=profile.modules[0].backward,
        reduced_last=True,
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
            raise InputError.of("units", name, _unknown(profile, name))
        found.append(profile.positions[name])
    if not found or 0 in found:
        name = unit.modules[0] if unit.modules else ""
        raise InputError.of(
            "units", name, "the root is a unit of its own in every plan; leave it out"
        )
    return sorted(found)


def _unknown(profile: Profile, name: str) -> str:
    if name in profile.never_run:
        return "never runs in the forward pass, so it has no place in the order of units"
    if any(module.name.startswith(f"{name}.") for module in profile.modules):
        return "holds modules but has no forward of its own; name those it holds"
    return "no such module" + nearest(name, profile.positions)


def _faults(profile: Profile, sizes: ModuleSizes, unit: Unit, at: Sequence[int]) -> list[Fault]:
    if len(at) == 1:
        reason = _refusal(profile, sizes, at[0])
        return [Fault.of("units", unit.modules[0], reason)] if reason else []
    found = []
    ends = [profile.modules[place].end for place in at]
    if any(second < end for second, end in zip(at[1:], ends, strict=False)):
        found.append(
            Fault.of("units", unit.modules[0], "a group may not hold a module inside another of it")
        )
    inside = np.zeros(len(profile.modules), dtype=bool)
    for place, end in zip(at, ends, strict=True):
        inside[place:end] = True
    for parameter in profile.shared:
        is_inside = inside[list(parameter.holders)]
        if is_inside.any() and not is_inside.all():
            problem = f"shares the parameter {parameter.name!r} with a module outside the group"
            found.append(Fault.of("units", unit.modules[0], problem))
    if sizes.trainable[inside].any() and sizes.frozen[inside].any():
        found.append(Fault.of("units", unit.modules[0], "mixes frozen and trainable parameters"))
    if not sizes.gathered[inside].any():
        found.append(Fault.of("units", unit.modules[0], "has no parameters: FSDP2 ignores it"))
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
        reduced_last=first.reduced_last,
    )


def checkpointed(
    profile: Profile, wrapping: Wrapping, units: Sequence[PlacedUnit]
) -> tuple[int, ...]:
    """Positions of the checkpointed modules.

    Raises
    ------
    InputError
        If one is unknown, lies inside another, or holds a unit: FSDP2 gathers that in the middle of
        the recomputation, which is not modeled.
    """
    found = []
    for name in wrapping.checkpointed:
        if name not in profile.positions:
            raise InputError.of("checkpoint", name, _unknown(profile, name))
        found.append(profile.positions[name])
    found.sort()
    for one, other in pairwise(found):
        if other < profile.ends[one]:
            problem = f"lies inside {profile.modules[one].name!r}, which is checkpointed too"
            raise InputError.of("checkpoint", profile.modules[other].name, problem)
    for place in found:
        for unit in units[1:]:
            if place < unit.modules[0] < profile.ends[place]:
                problem = f"the unit {unit.name!r} lies inside it; checkpoint full units"
                raise InputError.of("checkpoint", profile.modules[place].name, problem)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A unit that may begin at a position."""

    unit: Unit
    first: int
    """Position of its first module."""
    last: int
    """Position of its last module; the same if it is one."""
    end: int
    """Position after all its modules."""


def possible_units(
    profile: Profile,
    sizes: ModuleSizes,
    *,
    reshard: Sequence[bool],
    most_grouped: int,
) -> list[list[Edge]]:
    """All units that may begin at each position: modules, and groups of neighbors in one call.

    Neighbors have the same parent; those between them without parameters are not named.
    """
    may = allowed(profile, sizes)
    holds = np.concatenate([[0.0], np.cumsum(sizes.gathered)])
    groups = _groups(profile, most_grouped, holds)
    found: list[list[Edge]] = [[] for _ in profile.modules]
    for place in range(1, len(profile.modules)):
        for group in groups[place]:
            end = int(profile.ends[group[-1]])
            if not (may[place] if len(group) == 1 else _allowed(profile, sizes, group, end)):
                continue
            names = tuple(profile.modules[at].name for at in group)
            found[place] += [
                Edge(
                    unit=Unit(modules=names, reshard_after_forward=freed),
                    first=place,
                    last=group[-1],
                    end=end,
                )
                for freed in reshard
            ]
    return found


def _groups(profile: Profile, most: int, holds: Floats) -> list[list[tuple[int, ...]]]:
    """Modules and groups of neighbors with parameters that begin at each position."""
    found: list[list[tuple[int, ...]]] = [[] for _ in profile.modules]
    for parent in range(len(profile.modules)):
        children = [
            at for at in profile.children(parent) if holds[profile.modules[at].end] > holds[at]
        ]
        for i, first in enumerate(children):
            found[first] += [
                tuple(children[i : i + length])
                for length in range(1, min(most, len(children) - i) + 1)
            ]
    return found


def _allowed(profile: Profile, sizes: ModuleSizes, group: Sequence[int], end: int) -> bool:
    """Whether a group of several modules may be a unit."""
    inside = slice(group[0], end)
    if sizes.trainable[inside].any() and sizes.frozen[inside].any():
        return False
    for parameter in profile.shared:
        within = [group[0] <= at < end for at in parameter.holders]
        if any(within) and not all(within):
            return False
    return len({profile.modules[at].name for at in group}) == len(group)
