"""Names and files of the catalog: models, systems and stacks, each figure with its source."""

import logging
from functools import cache
from pathlib import Path

from shardwise.catalog.aliases import Alias, meant
from shardwise.catalog.suggestions import suggestions

__all__ = [
    "canonical",
    "find",
    "forget_notes",
    "holds",
    "kind_elsewhere",
    "names",
    "note_alias",
    "suggested",
]

_ROOT = Path(__file__).parent
_KINDS = {"models": "model", "systems": "system", "stacks": "stack", "recipes": "recipe"}
_log = logging.getLogger("shardwise.names")
_noted: set[str] = set()


@cache
def _entries(folder: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted((_ROOT / folder).glob("*.yaml"))}


def names(folder: str) -> list[str]:
    """Return the names of all entries in one folder of the catalog, in order."""
    return list(_entries(folder))


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
    alias = None if canonical(name) in _entries(folder) else _alias(folder, name)
    if alias is None or name in _noted:
        return
    _noted.add(name)
    others = f" (also: {', '.join(alias.others)})" if alias.others else ""
    _log.warning("%s means %s%s", name, alias.name, others)


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
    alias = _meant(folder, canonical(name))
    if alias is None or (Path(name).exists() if "/" in name else Path(name).is_file()):
        return None
    return alias


@cache
def _meant(folder: str, called: str) -> Alias | None:
    return meant(folder, called, names(folder))


def holds(path: str | Path) -> bool:
    """Whether a file is one of the catalog."""
    return Path(path).resolve().is_relative_to(_ROOT)
