"""A change of the strategy as a diff of the launch file.

The launcher writes both strategies; the lines that differ are the options that change. Those
options are then looked for in the file itself, where they are set directly or by a variable.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.interop.launch import Launcher, LaunchPlan
from shardwise.interop.launchers import launch_files

_OPTION = re.compile(
    r"""^\s*(?P<name>--[\w-]+|"[\w.-]+"|[\w.-]+)(?P<mark>\s*[:=]\s*|\s+|\s*$)(?P<value>.*?)"""
    r"""(?P<end>\s*[,\\]*\s*)$"""
)
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
    launcher: Launcher, before: LaunchPlan, after: LaunchPlan, release: str | None
) -> list[OptionChange]:
    """Return the options in which the launch files of two plans differ.

    Parameters
    ----------
    release
        Of the launch file; None or one that is not written: that written by default.
    """
    known = release if release in launcher.releases else None
    old, new = (
        [
            line
            for file in launch_files(launcher, plan, release=known)
            for line in file.text.splitlines()
        ]
        for plan in (before, after)
    )
    return list(_differences(old, new))


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
    """Return the unified diff of a launch file; empty where an option is not found in it.

    An option on a line of its own is removed or changed; an option that is not set yet is added
    after the first one that changes.

    Parameters
    ----------
    source
        Name of the file.
    text
        Its content.
    changes
        Options that change.
    """
    lines = text.splitlines()
    edited = list(lines)
    for change in changes:
        if change.old is None or change.new is None or not _edit(edited, change):
            return ""
    names = {"fromfile": source, "tofile": source}
    return "\n".join(difflib.unified_diff(lines, edited, lineterm="", n=1, **names))


def _edit(lines: list[str], change: OptionChange) -> bool:
    """Set an option in some lines; whether it was found exactly once."""
    assert change.old is not None and change.new is not None  # noqa: S101, PT018 - by its caller
    place = re.compile(rf"(?<![\w.-]){re.escape(change.name)}(\s*[:=]\s*|\s+)(\S+?)(?=[\s,\\)]|$)")
    hits = [(n, m) for n, line in enumerate(lines) if (m := place.search(_code(line)))]
    if len(hits) != 1:
        return False
    number, match = hits[0]
    if match[2].strip("\"'") == change.old.strip("\"'"):
        line = lines[number]
        lines[number] = line[: match.start(2)] + change.new + line[match.end(2) :]
        return True
    variable = _VARIABLE.match(match[2])
    return variable is not None and _assign(lines, variable[1], change)


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
