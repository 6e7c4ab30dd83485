"""Files that refer to others: what is read for them, and that none leads back to itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from shardwise import catalog
from shardwise.config import files
from shardwise.config.expressions.records import Row, UnknownRowError
from shardwise.errors import nearest

__all__ = ["Chain", "located_part", "row_of"]

# Where the nouns of the catalog are, by folder.
_HOMES = {"models": "model", "systems": "system", "stacks": "stack"}


@dataclass(frozen=True, slots=True)
class Chain:
    """Files that lead to one another."""

    steps: tuple[str, ...] = ()
    """With how between them: `a.yaml`, ` is based on `, `b.yaml`."""
    rows: dict[tuple[Path, type], Row] = field(default_factory=dict)
    """What was read on the way, so that each file is read once however many refer to it."""

    def with_step(self, step: str) -> "Chain":
        """The chain and one step more."""
        return Chain((*self.steps, step), self.rows)


def row_of(named: str, noun: type[Any], chain: Chain, *, is_base: bool) -> Row:
    """The entry or file that a file refers to.

    Parameters
    ----------
    noun
        Of the file that refers to it; a base is of the same.
    chain
        Files that lead to this reference.

    Raises
    ------
    ValueError
        If there is none, or it leads back to itself.
    """
    folders = [noun.CATALOG] if noun.CATALOG else []
    folders += [] if is_base else [folder for folder in _HOMES if folder != noun.CATALOG]
    verb = " is based on " if is_base else " looks up "
    found = next((folder for folder in folders if catalog.find(folder, named)), None)
    place = Path(named)
    if found is not None:
        noun, place = _noun_of(found), Path(found, catalog.canonical(named))
    elif named.strip() and files.is_file_name(named):
        named = _found_beside(named, chain.steps[-1])
        place = Path(named).resolve()
        _refuse_circle(named, noun, chain.with_step(verb).steps)
        noun = noun if is_base else _noun_like(named, noun)
    else:
        known = [name for folder in folders for name in catalog.names(folder)]
        what = f"no such {noun.__name__.lower()}" if is_base else f"{named!r}: no such entry"
        problem = f"{what} in the catalog, and no such file"
        raise UnknownRowError(problem + nearest(named, known))
    if (place, noun) not in chain.rows:
        loaded, resolved = noun.explained(named, chain.with_step(verb))
        chain.rows[place, noun] = Row(
            name=named,
            noun=noun,
            fields=loaded.to_dict(),
            told=loaded.explicit_fields(resolved.data),
            parameters=resolved.parameters,
            formulas=resolved.formulas,
        )
    return chain.rows[place, noun]


def located_part(data: Mapping[str, Any], part: str, folder: str, source: str) -> Mapping[str, Any]:
    """Find the file that a part of a mapping is, or is based on, where it is no entry of a folder.

    Parameters
    ----------
    source
        File of the mapping.
    """
    told = data.get(part)
    named = told.get("base") if isinstance(told, Mapping) else told
    if not isinstance(named, str) or catalog.find(folder, named) is not None:
        return data
    found = _found_beside(named, source)
    return {**data, part: {**told, "base": found} if isinstance(told, Mapping) else found}


def _found_beside(named: str, source: str) -> str:
    """A file as it is named, or if there is none, the one beside the file that names it."""
    beside = Path(source).parent / named
    try:
        return str(beside) if not Path(named).exists() and beside.is_file() else named
    except (OSError, ValueError):  # too long a name or with a zero byte, which reading it refuses
        return named


def _refuse_circle(named: str, noun: type[Any], steps: Sequence[str]) -> None:
    """Raise if a file that is referred to is among those that led to it."""
    if Path(named).resolve() not in [Path(place).resolve() for place in steps[::2]]:
        return
    based = all(verb == " is based on " for verb in steps[1::2])
    told = f"no {noun.__name__.lower()} can be its own base" if based else "look-ups go in a circle"
    raise ValueError(f"{told}: {''.join((*steps, named))}")


def _noun_of(folder: str) -> type[Any]:
    """The noun of a folder of the catalog: it stands above this module, so it is asked for late."""
    home = _HOMES[folder]
    found: type[Any] = getattr(import_module(f"shardwise.config.{home}"), home.capitalize())
    return found


def _noun_like(named: str, noun: type[Any]) -> type[Any]:
    """The noun that has most of the keys of a file, at first that of the file that refers to it."""
    keys = files.read_mapping(named).keys()
    nouns = dict.fromkeys((noun, *map(_noun_of, _HOMES)))
    return max(nouns, key=lambda one: len(keys & one.model_fields.keys()))
