"""Defaults of a team, which commands, Python and the explorer find without being named.

A configuration file names folders of further catalog entries, a price book, a stack and failure
rates. It is the file of the variable SHARDWISE_CONFIG, or `shardwise/config.yaml` in the folder of
XDG_CONFIG_HOME or `~/.config`. SHARDWISE_CATALOG lists folders, too. An empty SHARDWISE_CONFIG
turns the file off.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwise import catalog
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.prices import PriceBook
from shardwise.errors import InputError
from shardwise.records import dataclass


class TeamFile(ConfigBase):
    """A configuration file; files and folders are found from its own folder."""

    catalog: tuple[str, ...] = ()
    """Folders with entries in `models`, `systems`, `stacks` and `recipes`."""
    prices: str | None = None
    """Price book: prices in place of those of the catalog."""
    stack: str | None = None
    """Stack of strategies that name none, on every system."""
    reliability: str | None = None
    """Failure rates and checkpoints of training runs that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """What is in force."""

    file: Path | None
    """The configuration file; None without one."""
    folders: tuple[Path, ...] = ()
    """Folders that the file names."""
    prices: Path | None = None
    stack: str | None = None
    """Name, or a file."""
    reliability: Path | None = None


def in_force() -> Team:
    """Return the defaults in force.

    Raises
    ------
    InputError
        If the configuration file or the price book cannot be read; one fault for each thing that is
        wrong.
    """
    file = catalog.team_file()
    return Team(file=None) if file is None else _read(file, _stamp(file))


def _stamp(file: Path) -> int:
    return file.stat().st_mtime_ns if file.is_file() else 0


@lru_cache(maxsize=8)
def _read(file: Path, stamp: int) -> Team:
    del stamp
    with files.from_anywhere():
        read = TeamFile.validated(files.read_mapping(file), source=str(file))
    stack = read.stack
    if stack is not None and files.is_file_name(stack):
        stack = str(_found(file, "stack", stack))
    return Team(
        file=file,
        folders=tuple(_found(file, "catalog", one, folder=True) for one in read.catalog),
        prices=_found(file, "prices", read.prices) if read.prices else None,
        stack=stack,
        reliability=_found(file, "reliability", read.reliability) if read.reliability else None,
    )


def _found(file: Path, field: str, named: str, *, folder: bool = False) -> Path:
    """A file or folder that the configuration file names."""
    path = Path(os.path.normpath(file.parent / Path(named).expanduser()))
    if not (path.is_dir() if folder else path.is_file()):
        problem = f"no such {'folder' if folder else 'file'}: {path}"
        raise InputError.of(field, named, problem, str(file))
    return path


def catalog_folders() -> tuple[Path, ...]:
    """Return the catalog folders that the configuration file names."""
    return in_force().folders


def price_book() -> tuple[PriceBook, Path] | None:
    """Return the price book in force, with its file."""
    path = in_force().prices
    return None if path is None else (_book(path, _stamp(path)), path)


@lru_cache(maxsize=8)
def _book(file: Path, stamp: int) -> PriceBook:
    del stamp
    with files.from_anywhere():
        return PriceBook.validated(files.read_mapping(file), source=str(file))


def settings() -> list[dict[str, Any]]:
    """Return what `shardwise config` shows: each setting with its value and where it is set."""
    team, named = in_force(), os.environ.get(catalog.CATALOG, "")
    file = "" if team.file is None else str(team.file)
    every: list[tuple[str, object, str]] = [("file", file or None, catalog.team_place())]
    every += [("catalog", str(path), catalog.CATALOG) for path in catalog.folders_of(named)]
    every += [("catalog", str(path), file) for path in team.folders]
    every.append(("stack", team.stack, file if team.stack else "of each system"))
    book = price_book()
    if book is None:
        every.append(("prices", None, "of the catalog"))
    else:
        every.append(("prices", str(book[1]), file))
        for one in book[0].prices:
            used = book[0].of(one.system)
            if used is not None and used.source == one.source:
                unknown = catalog.find("systems", one.system) is None
                where = "no catalog entry; for a file of that name" if unknown else str(book[1])
                every.append((f"price of {one.system}", used.in_words, where))
    rates = None if team.reliability is None else str(team.reliability)
    every.append(("reliability", rates, file if rates else "unknown unless set"))
    return [{"setting": name, "value": value, "set_by": by} for name, value, by in every]
