"""Names and files of the catalog: models, systems and stacks, each figure with its source."""

from functools import cache
from pathlib import Path

__all__ = ["canonical", "find", "names"]

_ROOT = Path(__file__).parent


@cache
def _entries(folder: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted((_ROOT / folder).glob("*.yaml"))}


def names(folder: str) -> list[str]:
    """Return the names of all entries in one folder of the catalog, in order."""
    return list(_entries(folder))


def canonical(name: str) -> str:
    """Return the catalog spelling of a name: lower case, dashes (`GPT3_1T` -> `gpt3-1t`)."""
    return name.lower().replace("_", "-").replace(" ", "-")


def find(folder: str, name: str) -> Path | None:
    """Return the file of a catalog entry, or None if there is none of that name."""
    return _entries(folder).get(canonical(name))
