"""Files that refer to others: what is read for them, and that none refers to itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from shardwise import catalog
from shardwise.config import files
from shardwise.config.expressions.dimensions import kind_at
from shardwise.config.expressions.formula import Part, parts_of, path_text
from shardwise.config.expressions.quantity import Quantity
from shardwise.config.expressions.records import Place, Row, Rows, UnknownRowError, descend
from shardwise.errors import did_you_mean, shorten

# Module of the config type of each catalog folder.
_HOMES = {"models": "model", "systems": "system", "stacks": "stack"}
_MOST_SUGGESTIONS = 5


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


def row_of(named: str, config_type: type[Any], chain: Chain, *, is_base: bool) -> Row:
    """The entry or file that a file refers to.

    Parameters
    ----------
    config_type
        Of the file that refers to it; a base has the same one.

    Raises
    ------
    ValueError
        If there is none, or it refers to itself.
    """
    folders = [config_type.CATALOG] if config_type.CATALOG else []
    folders += [] if is_base else [folder for folder in _HOMES if folder != config_type.CATALOG]
    verb = " is based on " if is_base else " looks up "
    found = next((folder for folder in folders if catalog.find(folder, named)), None)
    place = Path(named)
    if found is not None:
        config_type, place = _config_type_of(found), Path(found, catalog.canonical(named))
    elif named.strip() and files.is_file_name(named):
        named = _relative_to_source(named, chain.steps[-1])
        place = Path(named).resolve()
        _refuse_circle(named, config_type, chain.with_step(verb).steps)
        config_type = config_type if is_base else _config_type_like(named, config_type)
    else:
        known = [name for folder in folders for name in catalog.suggested(folder, named)]
        what = (
            f"no such {config_type.__name__.lower()}"
            if is_base
            else f"{shorten(named)}: no such entry"
        )
        problem = f"{what} in the catalog, and no such file"
        hint = f"; {did_you_mean(known[:_MOST_SUGGESTIONS])}" if known else ""
        raise UnknownRowError(problem + hint)
    if (place, config_type) not in chain.rows:
        loaded, resolved = config_type.explained(named, chain.with_step(verb))
        chain.rows[place, config_type] = Row(
            name=named,
            config_type=config_type,
            fields=loaded.to_dict(),
            explicit=loaded.explicit_fields(resolved.data),
            parameters=resolved.parameters,
            formulas=resolved.formulas,
        )
    return chain.rows[place, config_type]


def with_located_file(
    data: Mapping[str, object], name: str, folder: str, source: str
) -> Mapping[str, object]:
    """Find the file that a field of a mapping is, or is based on, unless it is in a folder."""
    value = data.get(name)
    named = value.get("base") if isinstance(value, Mapping) else value
    if not isinstance(named, str) or catalog.find(folder, named) is not None:
        return data
    found = _relative_to_source(named, source)
    return {**data, name: {**value, "base": found} if isinstance(value, Mapping) else found}


def _relative_to_source(named: str, source: str) -> str:
    """A file as it is named, or if there is none, the one next to the file that names it."""
    sibling = Path(source).parent / named
    return str(sibling) if not files.exists(named) and files.is_file(sibling) else named


def _refuse_circle(named: str, config_type: type[BaseModel], steps: Sequence[str]) -> None:
    """Raise if a file that is referred to is among those that led to it."""
    if Path(named).resolve() not in [Path(place).resolve() for place in steps[::2]]:
        return
    based = all(verb == " is based on " for verb in steps[1::2])
    own = f"no {config_type.__name__.lower()} can be its own base"
    problem = own if based else "look-ups go in a circle"
    raise ValueError(f"{problem}: {''.join((*steps, named))}")


def _config_type_of(folder: str) -> type[Any]:
    """The config type of a catalog folder, imported late: its module imports this one."""
    home = _HOMES[folder]
    found: type[Any] = getattr(import_module(f"shardwise.config.{home}"), home.capitalize())
    return found


def _config_type_like(named: str, config_type: type[Any]) -> type[Any]:
    """The config type with most of the keys of a file; first that of the file that refers to it."""
    keys = files.read_mapping(named).keys()
    config_types = dict.fromkeys((config_type, *map(_config_type_of, _HOMES)))
    return max(config_types, key=lambda one: len(keys & one.model_fields.keys()))


@dataclass(slots=True, kw_only=True)
class RowFigures:
    """Looks fields of rows up, each row once."""

    find: Rows
    found: dict[str, Row] = field(default_factory=dict)

    def row(self, name: str) -> Row:
        """The row of a name.

        Raises
        ------
        ValueError
            If there is none.
        """
        if name not in self.found:
            self.found[name] = self.find(name, False)
        return self.found[name]

    def figure(self, row: str, path: str) -> Quantity:
        """A field of a row that is a figure."""
        return figure_in(self.row(row), parts_of(path), row)

    def value(self, row: str, path: str, times: float) -> Any:
        """A field of a row: a figure, or anything else if it is used once."""
        value, _ = descend(self.row(row).fields, parts_of(path), row)
        if times == 1 and not _is_number(value):
            return value
        return self.figure(row, path) * Quantity(times)

    def sources(self, row: str, path: str, by: str, *, same: bool) -> dict[Place, dict[str, str]]:
        """Where a field that was looked up is from, and what is inside it, by place.

        Parameters
        ----------
        same
            Whether it is used unchanged, so that it is as good as the row says.
        """
        fields = self.row(row).fields
        stated = fields.get("sources") or {}
        _, place = descend(fields, parts_of(path), row)
        above = [_dotted(place[:length]) for length in range(len(place), -1, -1)]
        own = next((stated[prefix] for prefix in above if prefix in stated), None)
        text = f"looked up: {by}" + (f" ({own['text']})" if own else "")
        kind = own["kind"] if own and same else "assumed"
        found: dict[Place, dict[str, str]] = {(): {"kind": kind, "text": text}}
        inside = f"{_dotted(place)}."
        for prefix, one in stated.items() if same else ():
            if prefix.startswith(inside):
                text = f"looked up: {row} {prefix} ({one['text']})"
                steps = tuple(prefix.removeprefix(inside).split("."))
                found[steps] = {"kind": one["kind"], "text": text}
        return found


def figure_in(row: Row, parts: Sequence[Part], called: str) -> Quantity:
    """The figure at a path in a row, with what its field counts.

    Raises
    ------
    ValueError
        If there is no such field, or it is no figure.
    """
    value, place = descend(row.fields, parts, called)
    if not _is_number(value):
        shown = "null" if value is None else "no figure"
        raise ValueError(f"{path_text(place)} of {called} is {shown}")
    return Quantity.of(value, kind_at(row.config_type, place))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _dotted(place: Place) -> str:
    return ".".join(map(str, place))
