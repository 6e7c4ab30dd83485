"""Names and files of the catalog: models, systems and stacks, each figure with its source."""

import logging
import os
from functools import cache
from pathlib import Path

from shardwise import registry
from shardwise.catalog.aliases import Alias, meant
from shardwise.catalog.suggestions import suggestions
from shardwise.errors import InputError

__all__ = [
    "CATALOG",
    "CONFIG",
    "canonical",
    "find",
    "folders_of",
    "forget_notes",
    "holds",
    "is_own",
    "kind_elsewhere",
    "names",
    "note",
    "note_alias",
    "suggested",
    "team_file",
    "team_place",
]

CONFIG, CATALOG = "SHARDWISE_CONFIG", "SHARDWISE_CATALOG"
"""Environment variables: the configuration file of a team, and folders of catalog entries."""

_ROOT = Path(__file__).parent
_PACKAGE = f"{_ROOT}{os.sep}"
_KINDS = {"models": "model", "systems": "system", "stacks": "stack", "recipes": "recipe"}
_log = logging.getLogger("shardwise.names")
_noted: set[str] = set()


def team_place() -> str:
    """Return where the configuration file of a team is looked for."""
    if CONFIG in os.environ:
        return CONFIG
    base = os.environ.get("XDG_CONFIG_HOME", "") or "~/.config"
    return f"{base.rstrip('/')}/shardwise/config.yaml"


def team_file() -> Path | None:
    """Return the configuration file of a team; None without one."""
    named = os.environ.get(CONFIG)
    if named is not None:
        return Path(named) if named else None
    path = os.path.expanduser(team_place())  # noqa: PTH111 - stays as it is without a home
    return Path(path) if os.path.isfile(path) else None  # noqa: PTH113 - called often


def folders_of(named: str) -> tuple[Path, ...]:
    """Return the folders in the value of `CATALOG`.

    Raises
    ------
    InputError
        If one does not exist.
    """
    found = tuple(Path(one) for one in named.split(os.pathsep) if one)
    for folder in found:
        if not folder.is_dir():
            raise InputError.of("", str(folder), "no such folder", CATALOG)
    return found


def _roots() -> tuple[Path, ...]:
    """Folders of entries: those of the environment, of the team, and of this package."""
    named = os.environ.get(CATALOG, "")
    own = folders_of(named) if named else ()
    if team_file() is not None:
        own += registry.load("config.team:catalog_folders")()
    return (*own, _ROOT)


def _entries(folder: str) -> dict[str, Path]:
    found = _packaged(folder)
    for root in reversed(_roots()[:-1]):
        own = sorted((root / folder).glob("*.yaml"))
        found = found | {canonical(path.stem): path for path in own}
    return found


@cache
def _packaged(folder: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted((_ROOT / folder).glob("*.yaml"))}


def is_own(path: Path) -> bool:
    """Whether an entry is one of the environment or the team, and not of this package."""
    return not str(path).startswith(_PACKAGE)


def note(text: str) -> None:
    """Log something once in a command."""
    if text not in _noted:
        _noted.add(text)
        _log.warning(text)


def names(folder: str) -> list[str]:
    """Return the names of all entries in one folder of the catalog, in order."""
    return sorted(_entries(folder))


def containing(folder: str, text: str) -> list[str]:
    """Return the names of all entries in one folder that contain a text."""
    return [name for name in names(folder) if canonical(text) in name]


BASES = {"models": "llama3-8b", "systems": "h100-sxm"}
"""Entries to begin your own with, by folder."""


def canonical(name: str) -> str:
    """Return the catalog spelling of a name: lower case, dashes (`GPT3_1T` -> `gpt3-1t`)."""
    return name.lower().replace("_", "-").replace(" ", "-")


def find(folder: str, name: str) -> Path | None:
    """Return the file of the entry that a name means, or None if nothing there is called so."""
    exact = _entries(folder).get(canonical(name))
    if exact is not None:
        return exact
    alias = _alias(folder, name)
    return None if alias is None else _entries(folder)[alias.name]


def note_alias(folder: str, name: str) -> None:
    """Log once what a name means, and what else it may mean, unless it is that of an entry."""
    entry = _entries(folder).get(canonical(name))
    if entry is not None and is_own(entry) and canonical(name) in _packaged(folder):
        note(f"{name} is {entry}, not the entry of shardwise")
    alias = None if entry is not None else _alias(folder, name)
    if alias is not None:
        others = f" (also: {', '.join(alias.others)})" if alias.others else ""
        note(f"{name} means {alias.name}{others}")


def forget_notes() -> None:
    """Log again what names mean, in another command."""
    _noted.clear()


def suggested(folder: str, name: str) -> list[str]:
    """Return at most five entries that an unknown name may mean; nothing if none is close."""
    return suggestions(folder, canonical(name), names(folder))


def kind_elsewhere(folder: str, name: str) -> str | None:
    """Return what an unknown name is that another folder has: a model, system, stack or recipe."""
    others = (other for other in _KINDS if other != folder and find(other, name) is not None)
    return next((_KINDS[other] for other in others), None)


def _alias(folder: str, name: str) -> Alias | None:
    """What a name means that is none of an entry, nor of a file."""
    alias = _meant_of(folder, canonical(name), tuple(names(folder)))
    if alias is None or (Path(name).exists() if "/" in name else Path(name).is_file()):
        return None
    return alias


@cache
def _meant_of(folder: str, called: str, names: tuple[str, ...]) -> Alias | None:
    return meant(folder, called, names)


def holds(path: str | Path) -> bool:
    """Whether a file is one of the catalog, or of the catalog folders of a team."""
    place = Path(path).resolve()
    return any(place.is_relative_to(root.resolve()) for root in _roots())
