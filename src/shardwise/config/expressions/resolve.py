"""Figures of a file: what is looked up, calculated or left to a base, calculated."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from shardwise import catalog
from shardwise.config import files
from shardwise.config.expressions.formula import (
    Part,
    canonical_names,
    evaluated,
    kind_at,
    kinds_at,
    parts_of,
    path_text,
)
from shardwise.config.expressions.quantity import Quantity, powers_of
from shardwise.config.expressions.records import (
    BASE,
    METADATA_FIELDS,
    NO_SOURCE,
    PARAMETERS,
    Inherited,
    Origin,
    Overrides,
    Place,
    Resolved,
    Row,
    Rows,
    UnknownRowError,
    check_agreement,
    check_keys,
    descend,
    formula_of,
    is_figure,
    is_formula,
    lookup_words,
    sources_of,
)
from shardwise.errors import Fault, InputError, did_you_mean, nearest, shorten
from shardwise.records import dataclass, field, replace
from shardwise.units import parse_quantity

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


# More faults, or names to compare a wrong one with, help nobody and would take long.
_MOST_FAULTS = 50
_MOST_NAMES = 200


def resolve(
    data: Mapping[str, object], config_type: type[BaseModel], *, source: str, rows: Rows
) -> Resolved:
    """Work out all figures of a mapping.

    Raises
    ------
    InputError
        With one fault for each figure that cannot be worked out.
    """
    try:
        overrides = Overrides.of(data, config_type, source, rows)
        own = overrides.tree.get("sources") or {}
        row_figures = RowFigures(find=rows)
        resolver = _Resolver(
            config_type=config_type,
            source=source,
            overrides=overrides,
            rows=row_figures,
            own_sources=own,
        )
        return resolver.resolved()
    except RecursionError:
        raise InputError(Fault(source=source, problem="is nested too deeply")) from None


@dataclass(slots=True, kw_only=True)
class _Resolver:
    """Calculates each figure once, when first needed; tracks those in progress."""

    config_type: type[BaseModel]
    source: str
    overrides: Overrides
    rows: RowFigures
    own_sources: Any
    known: dict[Place, Any] = field(default_factory=dict)
    failed: dict[Place, InputError] = field(default_factory=dict)
    at_work: list[Place] = field(default_factory=list)
    origins: dict[Place, Origin] = field(default_factory=dict)
    derived_sources: dict[Place, Any] = field(default_factory=dict)
    """Of what was looked up or calculated, as far as known."""

    def resolved(self) -> Resolved:
        faults: list[Fault] = []
        data = {key: self._plain(item, (key,), faults) for key, item in self.overrides.tree.items()}
        if faults:
            raise InputError([f for n, f in enumerate(faults) if f not in faults[:n]])
        del data[PARAMETERS]
        parameters = {
            name: self.figure((PARAMETERS, name)) for name in self.overrides.tree[PARAMETERS]
        }
        self._forget_unchanged()
        if "sources" in self.config_type.model_fields and isinstance(self.own_sources, Mapping):
            data["sources"] = self._sources(data)
        if self.overrides.base is not None:
            self.origins[()] = Origin(how="looked up", by=f"base {self.overrides.base.name}")
            for place in self.overrides.overridden:
                self.origins.setdefault(place, Origin(how="given"))
        return Resolved(
            data=data,
            parameters=parameters,
            origins=self.origins,
            formulas={at: self._handed_on(at) for at in self.known if self._calculates(at)},
        )

    def _forget_unchanged(self) -> None:
        """A formula of the base that comes to what it came to there is the base's figure."""
        base = self.overrides.base
        if base is None:
            return
        for at in self.overrides.inherited:
            own = at[0] == PARAMETERS
            before = base.parameters[str(at[1])] if own else figure_in(base, at, base.name)
            if self.figure(at).value == before.value:
                self.origins.pop(at, None)
                self.derived_sources.pop(at, None)

    def _calculates(self, at: Place) -> bool:
        node, _ = self._node(at)
        return isinstance(node, str) or "formula" in node

    def _handed_on(self, at: Place) -> Inherited:
        own = Inherited(node=self._node(at)[0], base=self.overrides.base, rows=self.rows.find)
        return self.overrides.inherited.get(at, own)

    def figure(self, at: Place) -> Quantity:
        """The figure at a place, with what it counts.

        Raises
        ------
        InputError
            If it cannot be worked out, or what stands there is no figure.
        """
        value = self.value(at)
        if isinstance(value, Quantity):
            return value
        try:
            return self._of_literal(value, at)
        except ValueError as error:
            raise self._fault(at, value, str(error)) from None

    def value(self, at: Place) -> Any:
        """What stands at a place of the tree, worked out if it is to be."""
        node, stored_at = self._node(at)
        if stored_at != at or not (is_formula(node) or is_figure(node)):
            return node
        if at in self.failed:
            raise self.failed[at]
        if at not in self.known:
            try:
                self.known[at] = self._worked_out(node, at)
            except InputError as error:
                self.failed[at] = error
                raise
        return self.known[at]

    def _node(self, at: Place) -> tuple[Any, Place]:
        """What stands at a place, and the place up to which it is of the tree, not looked up."""
        node: Any = self.overrides.tree
        for length, part in enumerate(at):
            if length and is_figure(node):
                return descend(self.value(at[:length]), at[length:], path_text(at[:length]))[0], at[
                    :length
                ]
            node = node[part]
        return node, at

    def _worked_out(self, node: Any, at: Place) -> object:
        """A formula or a figure in its long form."""
        if at in self.at_work:
            circle = [*self.at_work[self.at_work.index(at) :], at]
            problem = "needs itself: " + " needs ".join(map(path_text, circle))
            raise self._fault(at, node, problem)
        self.at_work.append(at)
        try:
            value = self._calculated(node, at) if isinstance(node, str) else self._long(node, at)
            if isinstance(value, Quantity):
                self._check(value, at)
        except ValueError as error:
            raise self._fault(at, node, str(error)) from None
        finally:
            self.at_work.pop()
        return value

    def _calculated(self, text: str, at: Place) -> Quantity:
        formula = formula_of(text)
        self.origins[at] = Origin(how="calculated", by=formula)
        self.derived_sources[at] = {"kind": "assumed", "text": f"calculated: {formula}"}
        return evaluated(formula, lambda parts: self._named(parts, at), self._rows_of(at).figure)

    def _long(self, node: Mapping[str, Any], at: Place) -> Any:
        """A figure stated in one or several ways, which must agree."""
        check_keys(node)
        found: dict[str, Any] = {}
        if "value" in node:
            found["value"] = node["value"]
        if "lookup" in node:
            found["lookup"] = self._looked_up(node, at)
        if "formula" in node:
            found["formula"] = self._calculated(node["formula"], at)
        if len(found) > 1:
            check_agreement({way: self._as_figure(one, at) for way, one in found.items()}, node)
        self._record_origin(node, at, found)
        return next(iter(found.values()))

    def _as_figure(self, value: object, at: Place) -> Quantity:
        return value if isinstance(value, Quantity) else self._of_literal(value, at)

    def _record_origin(
        self, node: Mapping[str, object], at: Place, found: Mapping[str, object]
    ) -> None:
        """Record how a figure in its long form came to be, and its source if it names one."""
        ways = [way for way in found if way != "value"]
        known = self.origins.get(at, Origin(how="given"))
        if len(ways) > 1 or (ways and "value" in found):
            by = f"{known.by} (agrees with {', '.join(w for w in found if w != ways[-1])})"
            known = replace(known, by=by)
        self.origins[at] = replace(known, description=str(node.get("description", "")))
        if "source" in node and at not in self.overrides.inherited:  # of what the base came to
            own = node["source"]
            source = {"kind": "assumed", "text": own} if isinstance(own, str) else own
            if isinstance(self.own_sources, Mapping):
                self.own_sources = {**self.own_sources, ".".join(map(str, at)): source}

    def _looked_up(self, node: Mapping[str, Any], at: Place) -> Any:
        row, path, times = node["lookup"], node["field"], node.get("times", 1)
        by = lookup_words(node)
        self.origins[at] = Origin(how="looked up", by=by)
        rows = self._rows_of(at)
        for inside, one in rows.sources(row, path, by, same=times == 1).items():
            self.derived_sources[(*at, *inside)] = one
        return rows.value(row, path, times)

    def _rows_of(self, at: Place) -> RowFigures:
        """Rows that a figure may refer to: those of the file that states it."""
        theirs = self.overrides.inherited.get(at)
        return self.rows if theirs is None else RowFigures(find=theirs.rows)

    def _named(self, parts: tuple[Part, ...], at: Place) -> Quantity:
        """The figure that a name in a formula stands for: nearby first, then outward."""
        first = parts[0]
        if first == BASE:
            return self._of_base(parts[1:], at)
        containers = [at[:length] for length in range(len(at) - 1, -1, -1)]
        for container in (*containers, (PARAMETERS,)):
            node, _ = self._node(container)
            if isinstance(node, Mapping) and not (container and is_figure(node)):
                own = (
                    canonical_names(self.config_type).get(str(first), first)
                    if not container
                    else first
                )
                if own in node:
                    return self._inside((*container, own), parts[1:])
        nearby = [str(n) for c in containers for n in _keys(self._node(c)[0])]
        nearby += list(self.overrides.tree[PARAMETERS])
        hint = nearest(str(first), nearby[:_MOST_NAMES])
        raise ValueError(f"needs {path_text(parts)}, which is not set{hint}")

    def _inside(self, start: Place, rest: tuple[Part, ...]) -> Quantity:
        """Follow the rest of a path through the tree, by names and positions."""
        place = start
        for part in rest:
            node = self.value(place)
            place = (*place, *descend(node, [part], path_text(place))[1])
        return self.figure(place)

    def _of_base(self, rest: tuple[Part, ...], at: Place) -> Quantity:
        """What the base has in the same place; a section of the file may have a base of its own."""
        for length in range(len(at) - 1, 0, -1):
            node, _ = self._node(at[:length])
            named = node.get(BASE) if isinstance(node, Mapping) else None
            if isinstance(named, str):
                return figure_in(
                    self._rows_of(at).row(named), rest or at[length:], f"the base {named}"
                )
        theirs = self.overrides.inherited.get(at)
        base = self.overrides.base if theirs is None else theirs.base
        if base is None:
            raise ValueError("needs base, but there is none: name one as base")
        return figure_in(base, rest or at, f"the base {base.name}")

    def _of_literal(self, value: object, at: Place) -> Quantity:
        """A value as it is written, a number or text, with what its place counts."""
        kind = kind_at(self.config_type, at)
        if kind is not None:
            return Quantity.of(parse_quantity(value, kind), kind)
        if isinstance(value, str):
            return Quantity.of_text(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError("is no figure")  # noqa: TRY004 - as other faults
        return Quantity(value) * Quantity(1)

    def _check(self, figure: Quantity, at: Place) -> None:
        """Raise if a figure does not count what its place does; plain numbers fit any."""
        kinds = kinds_at(self.config_type, at)
        if not kinds or not any(figure.powers):
            return
        if figure.powers not in [powers_of(kind) for kind in kinds]:
            wanted = " or ".join(kind or "a number" for kind in sorted(kinds, key=str))
            raise ValueError(f"gives {figure.kind}, must be {wanted}")

    def _plain(self, node: Any, at: Place, faults: list[Fault]) -> Any:
        """The tree from here on as plain values."""
        if at[0] in METADATA_FIELDS or len(faults) >= _MOST_FAULTS:
            return node
        if is_formula(node) or is_figure(node) or (at[0] == PARAMETERS and len(at) > 1):
            try:
                value = self.figure(at) if at[0] == PARAMETERS else self.value(at)
            except InputError as error:
                faults.extend(error.faults)
                return None
            return _number(value) if isinstance(value, Quantity) else value
        if isinstance(node, Mapping):
            return {key: self._plain(item, (*at, key), faults) for key, item in node.items()}
        if isinstance(node, (list, tuple)):
            return [self._plain(item, (*at, n), faults) for n, item in enumerate(node)]
        return node

    def _sources(self, data: Mapping[str, Any]) -> dict[str, object]:
        own = {self._placed(prefix, data): source for prefix, source in self.own_sources.items()}
        derived = {
            ".".join(map(str, at)): one
            for at, one in self.derived_sources.items()
            if at[0] != PARAMETERS
        }
        explicit = {
            ".".join(map(str, at)): None if self._node(at)[0] in (None, {}) else NO_SOURCE
            for at in self.overrides.overridden
            if at[0] not in ("sources", PARAMETERS)
        } | derived
        if self.overrides.base is not None:
            return sources_of(own, self.overrides.base.fields.get("sources") or {}, explicit)
        return {**sources_of(own, {}, explicit), **({"": own[""]} if "" in own else {})}

    @staticmethod
    def _placed(prefix: Any, data: Mapping[str, Any]) -> Any:
        """A prefix of sources with items of lists by position, if it names them."""
        try:
            _, place = descend(data, parts_of(prefix), "") if prefix else (None, ())
        except (ValueError, AttributeError):
            return prefix
        return ".".join(map(str, place))

    def _fault(self, at: Place, node: object, problem: str) -> InputError:
        shown = not is_figure(node)
        value = node.strip() if isinstance(node, str) else node
        return InputError(
            Fault(
                source=self.source,
                field=path_text(at),
                value=value,
                has_value=shown,
                problem=problem,
            )
        )


def _number(figure: Quantity) -> float:
    """A calculated number, as an integer if it is one."""
    value = figure.value
    is_integer = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_integer else value


def _keys(node: object) -> list[object]:
    return list(node) if isinstance(node, Mapping) else []
