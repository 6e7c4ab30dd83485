"""What a file sets, over what its base has, before any figure is calculated."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Any
from unicodedata import normalize

from pydantic import BaseModel

from shardwise.config.expressions.dimensions import canonical_names
from shardwise.config.expressions.formula import Part
from shardwise.config.expressions.records import (
    BASE,
    PARAMETERS,
    Inherited,
    Place,
    Row,
    Rows,
    UnknownRowError,
    descend,
    merged,
)
from shardwise.errors import Fault, InputError, UnknownNameError

METADATA_FIELDS = frozenset({"name", "description", "sources"})
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
