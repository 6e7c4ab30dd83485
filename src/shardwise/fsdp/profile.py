"""One unsharded training step of a module tree: order, times and memory of its modules.

A profile is all that the planner knows of a model. It comes from a traced `torch.nn.Module`, from
module statistics in a file or from a model of the catalog. It knows nothing of sharding.

The step is cut into segments at every entry and exit of a module: first those of the forward pass
in the order they ran, then those of the backward pass. Within a segment no module begins or ends,
so the memory of FSDP is constant in it, and only its peak matters.

`check` refuses a profile that contradicts itself; `with_checkpoints` returns the same step with
some modules recomputed in backward.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.errors import Fault, InputError
from shardwise.frozen import FrozenDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor of weights, counted once however many modules hold it."""

    name: str
    """Fully qualified name at its first holder."""
    shape: tuple[int, ...]
    holders: tuple[int, ...]
    """Positions in `Profile.modules` of the modules that own it directly, ascending; more than one:
    it is tied, or its module runs more than once."""
    element_bytes: float
    """Size of one number in the profiled step [byte]."""
    trainable: bool = True
    gradient_segment: int = -1
    """Backward segment in which its gradient is complete; -1: it gets none."""

    @property
    def numel(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledModule:
    """One run of a module in the forward pass; a module that runs twice has two entries."""

    name: str
    """Fully qualified; empty for the root."""
    kind: str
    """Its class."""
    parent: int
    """Position of the module that called it; -1 for the root."""
    end: int
    """Position after its last descendant; the subtree is `[position, end)`."""
    forward: tuple[int, int]
    """Segments from its entry to its exit: `[first, after)`."""
    backward: tuple[int, int]
    """Segments from the gradient of its output to that of its input; empty without backward.

    Where no input needs a gradient it lasts to the end of the step, as FSDP2 releases it there.
    """
    output_bytes: float = 0.0
    reduced_last: bool = False
    """Whether no input of it needs a gradient, so that FSDP2 reduces its gradients last of all."""
    run: int = 0
    """0 for its first run, 1 for its second, ..."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Profile:
    """An unsharded step on one device, modules in the order in which they run forward."""

    name: str
    """Of the model, for people."""
    source: str
    """Its origin: a file, a factory, a model of the catalog."""
    modules: tuple[ProfiledModule, ...]
    parameters: tuple[Parameter, ...]
    forward_segments: int
    """How many of the segments belong to the forward pass and the loss."""
    seconds: Floats
    """Compute time of each segment [s]."""
    resident_bytes: Floats
    """Peak of each segment: activations, temporaries, and in backward all gradients of weights so
    far, unsharded; no weights, buffers or inputs [byte]."""
    end_bytes: Floats
    """The same at the end of each segment [byte]."""
    fixed_bytes: float = 0.0
    """Buffers and inputs, the same in every plan [byte]."""
    assumed: tuple[str, ...] = ()
    """Assumptions, for people."""
    never_run: tuple[str, ...] = ()
    """Modules with weights that never ran forward."""

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Position of each module's first run, by name."""
        found: dict[str, int] = {}
        for place, module in enumerate(self.modules):
            found.setdefault(module.name, place)
        return FrozenDict(found)

    @cached_property
    def ends(self) -> Ints:
        """`end` of each module."""
        return np.array([module.end for module in self.modules], dtype=np.int64)

    @cached_property
    def gradient_bytes(self) -> Floats:
        """Unsharded gradients of weights complete at the end of each segment [byte]."""
        added = np.zeros(len(self.seconds))
        for parameter in self.parameters:
            if parameter.gradient_segment >= 0:
                added[parameter.gradient_segment] += parameter.numel * parameter.element_bytes
        return np.cumsum(added)

    @cached_property
    def shared(self) -> tuple[Parameter, ...]:
        """Parameters with more than one holder."""
        return tuple(parameter for parameter in self.parameters if len(parameter.holders) > 1)

    def children(self, place: int) -> Sequence[int]:
        """Positions of the modules that one calls itself, in the order they run."""
        found = []
        at = place + 1
        while at < self.modules[place].end:
            found.append(at)
            at = self.modules[at].end
        return found


# The bytes at the end of a segment may exceed its peak by this much: rounding of sums.
_ROUNDING = 1e-9

_Found = Iterator[tuple[str, object, str]]


def check(profile: Profile) -> None:
    """Refuse a profile that contradicts itself.

    Modules make one tree in the order in which they run; the segments of a module lie inside those
    of its parent (backward, unless it is reduced last), and siblings run forward one after the
    other. Times and bytes are finite, not negative, and one for each segment; no segment begins or
    ends with more than its peak. Holders are modules, and gradients are computed in backward.
    """
    found = [*_arrays(profile)]
    if not profile.modules:
        found.append(("modules", 0, "must have one module, the root, at least"))
    if not found:
        found += _tree(profile.modules)
        found += _ranges(profile)
        found += _parameters(profile)
    if not found:
        found += _bytes(profile)
    if found:
        raise InputError(
            [Fault.of(field, value, text, profile.source) for field, value, text in found]
        )


def _arrays(profile: Profile) -> _Found:
    """Times and bytes: one for each segment, finite and not negative."""
    length = len(profile.seconds)
    if not 0 < profile.forward_segments <= length:
        problem = f"must be 1 to {length}, the segments that have a time"
        yield "forward_segments", profile.forward_segments, problem
    for name in ("seconds", "resident_bytes", "end_bytes"):
        values = getattr(profile, name)
        if values.shape != (length,):
            yield name, values.shape, f"must have one number for each of the {length} segments"
            continue
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        for at in wrong[:1].tolist():
            yield f"{name}[{at}]", float(values[at]), "must be finite and not negative"
    if not (np.isfinite(profile.fixed_bytes) and profile.fixed_bytes >= 0):
        yield "fixed_bytes", profile.fixed_bytes, "must be finite and not negative"


def _bytes(profile: Profile) -> _Found:
    """The peak of a segment is no less than its beginning and its end."""
    most = profile.resident_bytes * (1 + _ROUNDING) + _ROUNDING
    for what, level in (
        ("left at its end", profile.end_bytes),
        ("left by the segment before", np.concatenate([[0.0], profile.end_bytes[:-1]])),
    ):
        for at in np.flatnonzero(level > most)[:1].tolist():
            value = float(profile.resident_bytes[at])
            yield f"resident_bytes[{at}]", value, f"is less than the {level[at]:.0f} bytes {what}"


def _name(modules: Sequence[ProfiledModule], place: int) -> str:
    return f"modules[{place}] {modules[place].name!r}"


def _tree(modules: Sequence[ProfiledModule]) -> _Found:
    """One tree in forward order, and runs of a module counted from 0."""
    open_: list[int] = []
    runs: dict[str, int] = {}
    for place, module in enumerate(modules):
        while open_ and modules[open_[-1]].end <= place:
            open_.pop()
        parent = open_[-1] if open_ else -1
        if module.parent != parent:
            problem = f"must be {parent}, the innermost module that it runs in"
            yield f"{_name(modules, place)}.parent", module.parent, problem
        last = len(modules) if place == 0 else modules[parent].end
        if place == 0 and module.end != last:
            yield f"{_name(modules, 0)}.end", module.end, f"must be {last}: all run in the root"
        elif not place < module.end <= last:
            problem = f"must be {place + 1} to {last}, where its parent ends"
            yield f"{_name(modules, place)}.end", module.end, problem
        run = runs.get(module.name, 0)
        if module.run != run:
            yield f"{_name(modules, place)}.run", module.run, f"must be {run}"
        runs[module.name] = run + 1
        open_.append(place)


def _ranges(profile: Profile) -> _Found:
    """Segments of modules nest as these do, and siblings follow one another."""
    modules, loss, last = profile.modules, profile.forward_segments, len(profile.seconds)
    begins = [module.forward[0] for module in modules]
    for place, module in enumerate(modules):
        if place == 0:
            forward, backward = (0, loss), (loss, last)
            if module.forward[0] != 0 or not 0 < module.forward[1] <= loss:
                problem = f"must begin at 0 and end by {loss}, before the loss or after it"
                yield f"{_name(modules, 0)}.forward", module.forward, problem
        elif not 0 <= module.parent < place:
            continue  # reported by `_tree`
        else:
            parent = modules[module.parent]
            forward = (begins[module.parent], parent.forward[1])
            if not _inside(module.forward, forward):
                problem = f"must lie in {forward}: what siblings before it left of its parent"
                yield f"{_name(modules, place)}.forward", module.forward, problem
            begins[module.parent] = max(begins[module.parent], module.forward[1])
            backward = (loss, last) if module.reduced_last else parent.backward
        if module.backward[0] != module.backward[1] and not _inside(module.backward, backward):
            problem = f"must be empty or lie in {backward}"
            yield f"{_name(modules, place)}.backward", module.backward, problem


def _inside(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] <= inner[1] <= outer[1]


def _parameters(profile: Profile) -> _Found:
    names: set[str] = set()
    for parameter in profile.parameters:
        field = f"parameters {parameter.name!r}"
        if parameter.name in names:
            yield field, parameter.name, "is there twice"
        names.add(parameter.name)
        for name, value, problem in _parameter(profile, parameter):
            yield f"{field}.{name}", value, problem


def _parameter(profile: Profile, parameter: Parameter) -> _Found:
    holders, count = parameter.holders, len(profile.modules)
    if list(holders) != sorted(set(holders)) or not holders:
        yield "holders", holders, "must be one position or more, ascending"
    if any(not 0 <= place < count for place in holders):
        yield "holders", holders, f"must be positions of the {count} modules"
    if any(size < 1 for size in parameter.shape):
        yield "shape", parameter.shape, "must have no dimension below 1"
    size = parameter.element_bytes
    if not (np.isfinite(size) and size > 0):
        yield "element_bytes", size, "must be finite and more than 0"
    made, first, last = parameter.gradient_segment, profile.forward_segments, len(profile.seconds)
    if made != -1 and not first <= made < last:
        yield (
            "gradient_segment",
            made,
            f"must be -1 or a segment of backward, {first} to {last - 1}",
        )
    if made != -1 and not parameter.trainable:
        yield "gradient_segment", made, "must be -1: it is not trained"


def bytes_before(profile: Profile, segment: int) -> float:
    """Resident bytes of the profile at the beginning of a segment [byte]."""
    return float(profile.end_bytes[segment - 1]) if segment > 0 else 0.0


def saved_bytes(profile: Profile, place: int) -> float:
    """Bytes that checkpointing a module frees between its forward and its backward.

    These are the bytes that it saves in forward except its output, the next module's input.
    """
    first, after = profile.modules[place].forward
    grown = bytes_before(profile, after) - bytes_before(profile, first)
    return max(grown - profile.modules[place].output_bytes, 0.0)


def recompute_bytes(profile: Profile, place: int) -> float:
    """Peak of recomputing a checkpointed module, less the bytes at its end [byte].

    Memory grows from its saved input as in forward; at the end all saved tensors are back.
    """
    first, after = profile.modules[place].forward
    grown = float(np.max(profile.resident_bytes[first:after], initial=0.0))
    return grown - bytes_before(profile, first) - saved_bytes(profile, place)


def with_checkpoints(profile: Profile, places: Sequence[int]) -> Profile:
    """The step with some modules recomputed as their backward begins.

    Their saved tensors are freed from their exit to the entry of their backward, whose first
    segment also takes the time of their forward and reaches its peak.
    """
    if not places:
        return profile
    seconds = profile.seconds.copy()
    peaks, ends = profile.resident_bytes.copy(), profile.end_bytes.copy()
    for place in places:
        first, after = profile.modules[place].forward
        back = profile.modules[place].backward[0]
        seconds[back] += profile.seconds[first:after].sum()
        again = bytes_before(profile, back) + recompute_bytes(profile, place)
        peaks[back] = max(peaks[back], again)
    for place in places:
        after, back = profile.modules[place].forward[1], profile.modules[place].backward[0]
        saved = saved_bytes(profile, place)
        peaks[after:back] -= saved
        # The last segment of the module itself ends without its saved tensors.
        ends[after - 1 : back] -= saved
    return replace(profile, seconds=seconds, resident_bytes=peaks, end_bytes=ends)


def repeated_blocks(profile: Profile) -> tuple[int, ...]:
    """Positions of the modules of a list of two or more of one kind, outermost lists only."""
    found: list[int] = []
    lists: dict[tuple[int, str, str], list[int]] = {}
    for place, module in enumerate(profile.modules):
        head, _, tail = module.name.rpartition(".")
        if tail.isdigit() and module.run == 0:
            lists.setdefault((module.parent, head, module.kind), []).append(place)
    inside = np.zeros(len(profile.modules), dtype=bool)
    for places in lists.values():
        if len(places) > 1 and not inside[places[0]]:
            found += places
            for place in places:
                inside[place : profile.modules[place].end] = True
    return tuple(sorted(found))
