"""Records of figures that are looked up or calculated: rows, origins, inheritance, checks."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from keyword import iskeyword
from typing import Any, Literal
from unicodedata import normalize

from pydantic import BaseModel

from shardwise.config.expressions.formula import Part, canonical_names, path_text
from shardwise.config.expressions.quantity import Quantity
from shardwise.errors import (
    Fault,
    InputError,
    UnknownNameError,
    allowed_words,
    kind_of,
    nearest,
    shorten,
)
from shardwise.records import dataclass, field, replace

Place = tuple[Part, ...]
FORMS = ("value", "lookup", "field", "times", "formula", "description", "source")
"""Keys of a figure in its long form."""
REPLACE = "replace"
"""Key of a mapping that replaces what its base has, rather than merging with it."""
_UNMERGED = ("name", "description", "sources")
ADD, LIKE = "+", "like"
"""End of a key whose items are added to those of the base, and the key of one that is like another.
"""
NO_SOURCE = {"kind": "assumed", "text": "set in addition to the base, without a source"}


def is_figure(node: object) -> bool:
    """Whether a mapping is one figure in its long form, rather than a record of several."""
    if not isinstance(node, Mapping):
        return False
    keys = node.keys()
    return "lookup" in keys or "formula" in keys or ("value" in keys and keys <= set(FORMS))


def merged(base: Any, explicit: Any, at: Place, overridden: list[Place]) -> Any:
    """What a base has, with what a file sets over it.

    Mappings merge, unless they have `replace: true`; items of a list are set by a mapping of their
    names or positions; `NAME+` adds items to the list or mapping NAME; anything else that is set
    replaces what the base has.

    Raises
    ------
    ValueError
        If an item that is set is none of the base's, or one that is added is.
    """
    plain = isinstance(explicit, Mapping) and not is_figure(explicit)
    if plain and explicit.get(REPLACE) is True:
        base, explicit = None, {key: item for key, item in explicit.items() if key != REPLACE}
    if plain and isinstance(base, Mapping):
        result = dict(base)
        for key in sorted(explicit, key=lambda key: _adds(key, at)):
            adds = _adds(key, at)
            own = _key(base, key[:-1] if adds else key)
            join = extended if adds else merged
            result[own] = join(result.get(own), explicit[key], (*at, own), overridden)
        return result
    if plain and explicit and isinstance(base, (list, tuple)):
        items = list(base)
        for key, item in explicit.items():
            index = _position(items, key)
            if index is None:
                problem = f"the base has no item {shorten(key)} in {path_text(at)}"
                raise ValueError(problem + _hint(key, _names(items)))
            items[index] = merged(items[index], item, (*at, index), overridden)
        return items
    overridden.append(at)
    return explicit


def _adds(key: object, at: Place) -> bool:
    """Whether a key of a file with a base adds items: its name ends in a plus sign."""
    return isinstance(key, str) and key.endswith(ADD) and (bool(at) or key[:-1] not in _UNMERGED)


def extended(base: Any, added: Any, at: Place, overridden: list[Place]) -> Any:
    """A list or mapping of a base with the items that a file adds to it.

    Items of a list come last. One with `like` has the fields of the item of that name, and its own
    over them.

    Raises
    ------
    ValueError
        If the base has no list or mapping there, or has such an item.
    """
    name = f"{path_text(at)}{ADD}"
    if isinstance(added, Mapping) and (base is None or isinstance(base, Mapping)):
        there = [key for key in added if _key(base or {}, key) in (base or {})]
        if there:
            raise ValueError(f"{name}: the base has {shorten(there[0])}; set it in {path_text(at)}")
        overridden += [(*at, key) for key in added]
        return {**(base or {}), **added}
    if not isinstance(base, (Mapping, list, tuple, type(None))):
        raise ValueError(f"{name}: only lists and mappings have items")  # noqa: TRY004 - as others
    if not isinstance(added, (list, tuple)) or isinstance(base, Mapping):
        kind = "mapping" if isinstance(base, Mapping) else "list" if base else "list or a mapping"
        raise ValueError(f"{name}: must be a {kind}, not {kind_of(added)}")  # noqa: TRY004 - as others
    items = list(base or ())
    for item in added:
        own = dict(item) if isinstance(item, Mapping) else item
        if isinstance(own, dict):
            if "name" in own and _position(items, own["name"]) is not None:
                raise ValueError(f"{name}: the base has an item {shorten(own['name'])}")
            if LIKE in own:
                like = own.pop(LIKE)
                place = _position(items, like)
                if place is None:
                    problem = f"{name}: {LIKE}: there is no item {shorten(like)}"
                    raise ValueError(problem + _hint(like, _names(items)))
                own = merged(items[place], own, (), [])
        overridden.append((*at, len(items)))
        items.append(own)
    return items


def descend(node: Any, parts: Iterable[Part], whose: str) -> tuple[Any, Place]:
    """Follow a path into plain values; return what stands there and the keys and positions passed.

    Raises
    ------
    ValueError
        Naming the first step that is not there.
    """
    at: Place = ()
    for part in parts:
        step: Part | None = None
        known: list[str] = []
        if isinstance(node, Mapping):
            step, known = _key(node, part), [str(key) for key in node]
            step = step if step in node else None
        elif isinstance(node, (list, tuple)):
            step, known = _position(node, part), _names(node)
        if step is None:
            raise ValueError(f"{whose} has no {path_text((*at, part))}{_hint(part, known)}")
        node, at = node[step], (*at, step)
    return node, at


def sources_of(
    own: Mapping[str, Any],
    of_base: Mapping[str, Any],
    explicit: Mapping[str, Any],
) -> dict[str, Any]:
    """Origins of the figures of a config and its base, by dotted prefix.

    What the base says of a figure does not apply to one that is overridden. That one has its own
    source, or the one for all overrides, or what is known of it from how it was stated; null and an
    empty mapping, which state no figure, have none.

    Parameters
    ----------
    explicit
        What is known of each figure that is set, by its dotted place.
    """
    inherited = {
        field: source
        for field, source in of_base.items()
        if not any(f"{field}.".startswith(f"{place}.") for place in explicit)
    }
    covered = {
        place: _covering(own, place) or source
        for place, source in explicit.items()
        if source is not None
    }
    return inherited | covered | {field: source for field, source in own.items() if field}


def _covering(sources: Mapping[str, object], field: str) -> object:
    """The source of the longest prefix of a field that has one."""
    parts = field.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
    return next((sources[prefix] for prefix in prefixes if prefix in sources), None)


def _key(node: Mapping[object, object], part: object) -> Any:
    """The key of a mapping that a step means: a number as a key may be text in one of two files."""
    return part if part in node else next((key for key in node if str(key) == str(part)), part)


def _position(items: list[object] | tuple[object, ...], part: object) -> int | None:
    """The item of a list that a step means: by its name, or its position."""
    named = [n for n, item in enumerate(items) if isinstance(item, Mapping) and _is(item, part)]
    if len(named) == 1:
        return named[0]
    text = str(part)
    return int(text) if text.isdecimal() and len(text) < 10 and int(text) < len(items) else None  # noqa: PLR2004


def _is(item: Mapping[object, object], part: object) -> bool:
    return isinstance(part, str) and item.get("name") == part


def _names(items: list[object] | tuple[object, ...]) -> list[str]:
    names = [str(item["name"]) for item in items if isinstance(item, Mapping) and "name" in item]
    return names or [str(position) for position in range(len(items))]


def _hint(part: object, known: list[str]) -> str:
    return nearest(str(part), known) or (f"; {allowed_words(part, known)}" if known else "")


BASE = "base"
PARAMETERS = "parameters"


class UnknownRowError(ValueError):
    """A name that is neither an entry of the catalog nor a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry of the catalog, or a file, that another file refers to."""

    name: str
    config_type: type[BaseModel]
    fields: Mapping[str, Any]
    """All of it as plain values, defaults too."""
    explicit: Mapping[str, Any]
    """Only what its file sets."""
    parameters: Mapping[str, Quantity]
    formulas: Mapping[Place, "Inherited"]
    """By place: what it calculates, and so recalculates where a file overrides an input."""


Rows = Callable[[str, bool], Row]
"""Finds an entry by its name; whether it is to be a base, and so of the same config type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """A formula of a base, with what its file referred to."""

    node: Any
    """As it stands there: a text or a figure in its long form."""
    base: Row | None
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a figure came to be."""

    how: Literal["given", "looked up", "calculated"]
    by: str = ""
    """The formula, or the row and the field."""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Plain fields of a config, and where each is from."""

    data: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Quantity] = field(default_factory=dict)
    origins: Mapping[Place, Origin] = field(default_factory=dict)
    """By place; the longest prefix counts, a place without any is `given`."""
    formulas: Mapping[Place, Inherited] = field(default_factory=dict)
    """For files that this one is the base of."""

    def with_origin(self, fault: Fault) -> Fault:
        """A fault of the config, which says how its figure came to be if nobody wrote it."""
        ways = {path_text(path): origin for path, origin in self.origins.items() if path}
        origin = ways.get(fault.field)
        if origin is None or origin.how == "given":
            return fault
        return replace(fault, problem=f"{fault.problem} ({origin.how}: {origin.by})")


def has_figures(data: Mapping[str, object]) -> bool:
    """Whether anything in a mapping is looked up, calculated or left to a base."""
    try:
        return BASE in data or PARAMETERS in data or _any_figure(data)
    except RecursionError:  # so deep that `resolve` refuses it
        return True


def _any_figure(node: object) -> bool:
    if isinstance(node, str):
        return is_formula(node)
    if isinstance(node, Mapping):
        return is_figure(node) or any(map(_any_figure, node.values()))
    return isinstance(node, (list, tuple)) and any(map(_any_figure, node))


def is_formula(node: object) -> bool:
    """Whether a text is a formula: it begins with an equals sign."""
    return isinstance(node, str) and node.lstrip().startswith("=")


def formula_of(text: str) -> str:
    """The formula of a text, without that sign; its lines (a block of YAML) as one."""
    return " ".join(text.strip().removeprefix("=").split())


_TOLERANCE = 1e-6
_NEEDS = (("field", "lookup"), ("times", "lookup"), ("lookup", "field"))


def check_keys(node: Mapping[str, object]) -> None:
    """Raise unless a figure has keys and values that it may have.

    Raises
    ------
    ValueError
        Naming the first that it may not have.
    """
    for key in node:
        if key not in FORMS:
            raise ValueError(f"unknown key {shorten(key)} of a figure{nearest(str(key), FORMS)}")
    for key, needed in _NEEDS:
        if key in node and needed not in node:
            raise ValueError(f"{key} needs {needed}")
    for word in ("lookup", "field", "formula"):
        if word in node and not isinstance(node[word], str):
            raise ValueError(f"{word} must be text, not {kind_of(node[word])}")
    times = node.get("times", 1)
    if isinstance(times, bool) or not isinstance(times, (int, float)):
        raise ValueError(f"times must be a number, not {shorten(times)}")  # noqa: TRY004 - as others
    if is_formula(node.get("value")) or is_figure(node.get("value")):
        raise ValueError("value must be set; what is calculated is a formula")


def lookup_words(node: Mapping[str, object]) -> str:
    """A look-up as people say it: row, field and factor."""
    times = node.get("times", 1)
    return f"{node['lookup']} {node['field']}" + (f" times {times:g}" if times != 1 else "")


def check_agreement(figures: Mapping[str, Quantity], node: Mapping[str, object]) -> None:
    """Raise if a figure stated in several ways is not the same.

    Raises
    ------
    ValueError
        Naming all ways, with what each gives.
    """
    first = next(iter(figures.values()))
    for figure in figures.values():
        plain = not any(figure.powers) or not any(first.powers)
        away = abs(figure.value - first.value)
        close = away <= _TOLERANCE * max(abs(figure.value), abs(first.value))
        if not close or not (plain or figure.powers == first.powers):
            words = {"lookup": f"lookup {lookup_words(node)}" if "lookup" in node else ""}
            stated = (f"{words.get(way, way)} gives {one}" for way, one in figures.items())
            raise ValueError(f"contradicts itself: {', '.join(stated)}")


METADATA_FIELDS = frozenset(_UNMERGED)
"""Of one config; a base does not pass them on, except sources of what is not overridden."""
_RESERVED = {BASE, "lookup", "min", "max", "ceil", "floor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The tree of a file: its plain figures, and those to calculate."""

    tree: Mapping[str, Any]
    """Fields and, as `parameters`, figures that formulas use and the config type does not have."""
    base: Row | None
    overridden: tuple[Place, ...]
    """Places that the file sets over its base."""
    inherited: Mapping[Place, Inherited]
    """Formulas of the base that the file does not override."""

    @classmethod
    def of(
        cls, data: Mapping[str, Any], config_type: type[BaseModel], source: str, rows: Rows
    ) -> "Overrides":
        """Put what a mapping sets over its base, if it names one.

        Raises
        ------
        InputError
            If the base cannot be found, or has no such item, or parameters have bad names.
        """
        other = canonical_names(config_type)
        fields = {
            key if other.get(key, key) in data else other[key]: item for key, item in data.items()
        }
        parameters = _named_parameters(fields.pop(PARAMETERS, {}), source)
        if BASE not in fields:
            return cls(
                tree={**fields, PARAMETERS: parameters}, base=None, overridden=(), inherited={}
            )
        base = _base(fields.pop(BASE), config_type, source, rows)
        words = {word: fields.pop(word) for word in METADATA_FIELDS if word in fields}
        full = _with_formulas(base)
        of_base = {name: item for name, item in full.items() if name not in METADATA_FIELDS}
        overridden: list[Place] = []
        try:
            tree = merged(of_base, {**fields, PARAMETERS: parameters}, (), overridden) | words
        except ValueError as error:
            raise InputError(Fault(source=source, problem=str(error))) from None
        inherited = {at: one for at, one in base.formulas.items() if _at(tree, at) is one.node}
        return cls(tree=tree, base=base, overridden=tuple(overridden), inherited=inherited)


def _with_formulas(base: Row) -> dict[str, Any]:
    """What a base sets, with its formulas in place of their values."""
    tree = {**base.explicit, PARAMETERS: dict(base.parameters)}
    if not base.formulas:
        return tree
    tree = {name: deepcopy(item) if name != PARAMETERS else item for name, item in tree.items()}
    for at, formula in base.formulas.items():
        inside, step = _at(tree, at[:-1]), _step(tree, at)
        if step is not None:
            inside[step] = formula.node
    return tree


def _step(tree: object, at: Place) -> Part | None:
    """The last key of a place as the tree has it; None if it does not have the place."""
    try:
        return descend(tree, at, "")[1][-1]
    except ValueError:
        return None


def _at(tree: object, at: Place) -> Any:
    """What stands at a place, if anything does."""
    try:
        return descend(tree, at, "")[0]
    except ValueError:
        return None


def _base(named: object, config_type: type[BaseModel], source: str, rows: Rows) -> Row:
    here = Fault(source=source, field=BASE, value=named, has_value=True, problem="")
    if not isinstance(named, str):
        problem = f"must be the name or the file of a {config_type.__name__.lower()}"
        raise InputError(replace(here, problem=problem))
    try:
        return rows(named, True)
    except UnknownRowError as error:
        raise UnknownNameError(replace(here, problem=str(error))) from None
    except ValueError as error:
        raise InputError(replace(here, problem=str(error))) from None


def _named_parameters(parameters: object, source: str) -> dict[str, object]:
    """Parameters by their names as formulas read them, in which some letters are alike (NFKC).

    Raises
    ------
    InputError
        If they have names that a formula cannot use.
    """
    here = Fault(source=source, field=PARAMETERS, value=parameters, has_value=True, problem="")
    if not isinstance(parameters, Mapping):
        raise InputError(replace(here, problem="must be a mapping of names to figures"))
    named: dict[str, object] = {}
    for name, figure in parameters.items():
        problem = ""
        own = normalize("NFKC", name) if isinstance(name, str) else ""
        if not own.isidentifier():
            problem = "a name has letters, digits and underscores, and no digit first"
        elif own in _RESERVED or iskeyword(own):
            problem = "has a meaning of its own in formulas"
        elif own in named:
            problem = "is set twice, in letters that count as the same"
        if problem:
            raise InputError(replace(here, value=name, problem=problem))
        named[own] = figure
    return named
