"""Wrappings that users specify: names with patterns and groups, in text or in a file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardwise.config import files
from shardwise.errors import InputError, nearest
from shardwise.fsdp.plan import Unit, Wrapping
from shardwise.fsdp.planner.planner import Planner
from shardwise.fsdp.profile import Profile

_ENDINGS = (".txt", ".json", ".yaml", ".yml", ".toml", ".gz")
_KEEP_SUFFIX = ":keep"
_MEMBERS = {"modules", "reshard_after_forward"}


def parse_wrapping(entry: object, planner: Planner) -> Wrapping:
    """Parse the wrapping that a user specifies.

    Parameters
    ----------
    given
        A `Wrapping`; a list of units; their text, comma-separated; or a file: lines of text, or a
        mapping with `units` or `unit_details`, as results have them, and `checkpointed`. A unit is
        a name, names joined by ``+`` or in a list for a group, or a mapping of `modules` and
        `reshard_after_forward`. ``*`` matches any number; ``:keep`` after a unit keeps its weights
        unsharded after forward.
    planner
        The profile, and whether all blocks are checkpointed.

    Raises
    ------
    InputError
        If it is none of these.
    """
    if isinstance(entry, Wrapping):
        return entry
    recompute = planner.checkpoint == "all"
    profile = planner.profile
    names = tuple(profile.modules[at].name for at in planner.checkpointable) if recompute else ()
    units: object = entry
    if isinstance(entry, Path) or (isinstance(entry, str) and entry.endswith(_ENDINGS)):
        units, checkpointed = _read_file(entry)
        names = names if checkpointed is None else checkpointed
    if isinstance(units, str):
        units = [part.strip() for part in units.split(",") if part.strip()]
    if not isinstance(units, Sequence):
        raise InputError.of("units", units, "must be names of modules, or lists of them for groups")
    found = [unit for one in units for unit in _parse_units(one, profile)]
    return Wrapping(units=tuple(found), checkpointed=names)


def _read_file(path: str | Path) -> tuple[object, tuple[str, ...] | None]:
    """Units of a file, and its checkpointed modules; None: not specified."""
    if str(path).removesuffix(".gz").endswith(".txt"):
        lines = (line.partition("#")[0].strip() for line in files.read_text(path).splitlines())
        return [line for line in lines if line], None
    data = files.read_mapping(path)
    units = data.get("unit_details", data.get("units"))
    if not isinstance(units, list):
        problem = "has no list of units; allowed: a list `units`, or lines of text in a .txt"
        raise InputError.at(str(path), problem, "units")
    recompute = data.get("checkpointed")
    are_names = isinstance(recompute, list) and all(isinstance(n, str) for n in recompute)
    if recompute is not None and not are_names:
        problem = "must be a list of names"
        raise InputError.at(str(path), problem, "checkpointed")
    # The root is a unit in every plan; results list it with no modules.
    left = [one for one in units if not (isinstance(one, Mapping) and one.get("modules") == [])]
    return left, None if recompute is None else tuple(recompute)


def _parse_units(entry: object, profile: Profile) -> Iterator[Unit]:
    """Units of one entry; several if it has a ``*``."""
    reshard = True
    if isinstance(entry, Unit):
        yield entry
        return
    if isinstance(entry, Mapping):
        reshard = entry.get("reshard_after_forward", True)
        # Further fields of a unit in results follow from these two.
        if "modules" not in entry or not isinstance(reshard, bool):
            problem = f"a unit as a mapping has {' and '.join(sorted(_MEMBERS))}"
            raise InputError.of("units", dict(entry), problem)
        entry = entry["modules"]
    if isinstance(entry, str):
        reshard = reshard and not entry.endswith(_KEEP_SUFFIX)
        entry = [part.strip() for part in entry.removesuffix(_KEEP_SUFFIX).split("+")]
    named = list(entry) if isinstance(entry, (list, tuple)) else []
    if not named or not all(isinstance(name, str) and name for name in named):
        raise InputError.of(
            "units", entry, "must be the name of a module, or a list of names for a group"
        )
    root = f"{profile.modules[0].kind}."
    # Statistics put the class of the model before a name; users may do so too.
    named = [n.removeprefix(root) if n not in profile.positions else n for n in named]
    for names in _expand(named, profile):
        yield Unit(modules=names, reshard_after_forward=reshard)


def _expand(names: Sequence[str], profile: Profile) -> Iterator[tuple[str, ...]]:
    """Names with each ``*`` replaced by the numbers that match the first of them in the model."""
    first = next((name for name in names if "*" in name), None)
    if first is None:
        yield tuple(names)
        return
    pattern = re.compile(re.escape(first).replace(r"\*", r"(\d+)"))
    matched = [match for name in profile.positions if (match := pattern.fullmatch(name))]
    if not matched:
        known = {re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in profile.positions}
        raise InputError.of("units", first, f"no module is called so{nearest(first, known)}")
    for match in matched:
        numbers = match.groups()
        yield tuple(_with_numbers(name, numbers) for name in names)


def _with_numbers(name: str, numbers: Sequence[str]) -> str:
    parts = name.split("*")
    found = parts[0]
    for place, part in enumerate(parts[1:]):
        found += numbers[min(place, len(numbers) - 1)] + part
    return found
