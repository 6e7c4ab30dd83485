"""A change of the strategy as a diff of the launch file.

The launcher writes both strategies; the lines that differ are the options that change. Those
options are then looked for in the file itself, where they are set directly or by a variable.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from shardwise.config.launch import Launch
from shardwise.launchers.launch import Launcher, LaunchPlan
from shardwise.launchers.writing import launch_files

_OPTION = re.compile(
    r"""^\s*(?P<name>--[\w-]+|"[\w.-]+"|[\w.-]+)(?P<mark>\s*[:=]\s*|\s+|\s*$)(?P<value>.*?)"""
    r"""(?P<end>\s*[,\\]*\s*)$"""
)
_PYTHON = ".py"
_VARIABLE = re.compile(r"""^["']?\$\{?(\w+)(?::?[-=][^}]*)?\}?["']?$""")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange:
    """An option of a launch file with its values; None: it is not there."""

    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.old)} -> {_shown(self.new)}"


def _shown(value: str | None) -> str:
    if value is None:
        return "(not set)"
    return value or "set"


def option_changes(
    launcher: Launcher, before: LaunchPlan, after: LaunchPlan, launch: Launch
) -> tuple[list[OptionChange], list[str]]:
    """Return the options in which the launch files of two plans differ.

    First those of the file itself, then what changes in the other files of the launch, such as the
    script next to a JSON.
    """
    release = launch.release if launch.release in launcher.releases else None
    suffix = PurePath(launch.source).suffix
    ending = suffix if suffix in launcher.endings else None
    old, new = (
        {
            one.ending: one.text
            for one in launch_files(launcher, plan, release=release, ending=ending)
        }
        for plan in (before, after)
    )
    own = suffix if suffix in old else next(iter(old))
    found = {
        name: list(_differences(old.get(name, "").splitlines(), new.get(name, "").splitlines()))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    }
    others = [
        f"in the {name} file: {change}"
        for name, changes in found.items()
        if name not in (own, _PYTHON)
        for change in changes
    ]
    others += ["the .py file changes"] if _PYTHON in found and own != _PYTHON else []
    return found.get(own, []), others


def _differences(old: Sequence[str], new: Sequence[str]) -> Iterator[OptionChange]:
    """Yield the options of lines that differ; options of one name are paired."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            continue
        removed, added = dict(_options(old[a:b])), dict(_options(new[c:d]))
        for name in dict.fromkeys((*removed, *added)):
            if removed.get(name) != added.get(name):
                yield OptionChange(name=name, old=removed.get(name), new=added.get(name))


def _options(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        match = _OPTION.match(line)
        if match and not line.lstrip().startswith("#"):
            yield match["name"], match["value"].strip()


def launch_diff(source: str, text: str, changes: Sequence[OptionChange]) -> str:
    """Return the unified diff of a launch file; empty where not all changes can be made in it.

    A value is set where the option or its variable has it. An option on a line of its own is
    removed; where one is to be added, its place is for people to choose.
    """
    lines = text.splitlines()
    edited = list(lines)
    for change in changes:
        done = _remove(edited, change) if change.new is None else _edit(edited, change)
        if not done:
            return ""
    names = {"fromfile": source, "tofile": source}
    return "\n".join(difflib.unified_diff(lines, edited, lineterm="", n=1, **names))


def _edit(lines: list[str], change: OptionChange) -> bool:
    """Set an option in some lines; whether it was found exactly once, with the old value."""
    # Lines that set an option, with its value.
    value = r"(?:\s*[:=]\s*|\s+)(?P<value>[^\s,\\)]+)"
    place = re.compile(rf"(?<![\w.-]){re.escape(change.name)}{value}")
    found = ((number, place.search(_code(line))) for number, line in enumerate(lines))
    hits = [(number, match) for number, match in found if match]
    if change.old is None or len(hits) != 1:
        return False
    number, match = hits[0]
    if match["value"].strip("\"'") == change.old.strip("\"'"):
        line = lines[number]
        lines[number] = line[: match.start("value")] + str(change.new) + line[match.end("value") :]
        return True
    variable = _VARIABLE.match(match["value"])
    return variable is not None and _assign(lines, variable[1], change)


def _remove(lines: list[str], change: OptionChange) -> bool:
    """Remove the line of an option; whether it has one of its own, or none at all."""
    place = re.compile(rf"(?<![\w.-]){re.escape(change.name)}(?![\w.-])")
    hits = [number for number, line in enumerate(lines) if place.search(_code(line))]
    if len(hits) != 1:
        return not hits
    match = _OPTION.match(lines[hits[0]])
    alone = match is not None and match["name"] == change.name and " " not in match["value"]
    if match is None or not alone or (change.name.startswith('"') and "," not in match["end"]):
        return False
    del lines[hits[0]]
    return True


def _assign(lines: list[str], variable: str, change: OptionChange) -> bool:
    """Set a variable that only this option reads."""
    read = re.compile(rf"\$\{{?{variable}\b")
    sets = re.compile(rf"^\s*(?:export\s+|readonly\s+)?{variable}=[\"']?([^\s\"'#;]+)")
    if sum(len(read.findall(_code(line))) for line in lines) != 1:
        return False
    hits = [(n, m) for n, line in enumerate(lines) if (m := sets.match(line))]
    if len(hits) != 1 or hits[0][1][1] != change.old:
        return False
    number, match = hits[0]
    line = lines[number]
    lines[number] = line[: match.start(1)] + str(change.new) + line[match.end(1) :]
    return True


def _code(line: str) -> str:
    """A line without what follows a comment sign at its start or after a space."""
    return re.split(r"(?:^|\s)#", line, maxsplit=1)[0]
