"""What must hold of every profile, whatever it was taken from."""

from collections.abc import Iterator, Sequence

import numpy as np

from shardwise.errors import Fault, InputError
from shardwise.fsdp.profile import Parameter, Profile, ProfiledModule

__all__ = ["check"]

# What is left at the end of a segment may pass its fullest moment by this much: rounding of sums.
_ROUNDING = 1e-9

_Found = Iterator[tuple[str, object, str]]


def check(profile: Profile) -> None:
    """Refuse a profile that contradicts itself.

    Modules make one tree in the order in which they run; the segments of a module lie inside those
    of its parent (backward, unless it is late), and siblings run forward one after the other.
    Times and bytes are finite, not negative, and one for each segment; no segment ends or begins
    with more than it holds at its fullest moment. Holders are modules, and gradients are made in
    backward.

    Raises
    ------
    InputError
        With one fault for each thing that is wrong.
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
            [
                Fault(source=profile.source, field=field, value=value, has_value=True, problem=text)
                for field, value, text in found
            ]
        )


def _arrays(profile: Profile) -> _Found:
    """Times and bytes: one for each segment, finite and not negative."""
    length = len(profile.seconds)
    if not 0 < profile.forward_segments <= length:
        problem = f"must be 1 to {length}, the segments that have a time"
        yield "forward_segments", profile.forward_segments, problem
    for name in ("seconds", "resident_bytes", "left_bytes"):
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
    """The fullest moment of a segment is no less full than its beginning and its end."""
    most = profile.resident_bytes * (1 + _ROUNDING) + _ROUNDING
    for what, level in (
        ("left at its end", profile.left_bytes),
        ("left by the segment before", np.concatenate([[0.0], profile.left_bytes[:-1]])),
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
    modules, ahead, last = profile.modules, profile.forward_segments, len(profile.seconds)
    begins = [module.forward[0] for module in modules]
    for place, module in enumerate(modules):
        if place == 0:
            forward, backward = (0, ahead), (ahead, last)
            if module.forward[0] != 0 or not 0 < module.forward[1] <= ahead:
                problem = f"must begin at 0 and end by {ahead}, before the loss or after it"
                yield f"{_name(modules, 0)}.forward", module.forward, problem
        elif not 0 <= module.parent < place:
            continue  # told already
        else:
            parent = modules[module.parent]
            forward = (begins[module.parent], parent.forward[1])
            if not _inside(module.forward, forward):
                problem = f"must lie in {forward}: what siblings before it left of its parent"
                yield f"{_name(modules, place)}.forward", module.forward, problem
            begins[module.parent] = max(begins[module.parent], module.forward[1])
            backward = (ahead, last) if module.late else parent.backward
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
