"""What a file tells, over what its base has, before any figure is worked out."""

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

__all__ = ["WORDS", "Told"]

WORDS = frozenset({"name", "description", "sources"})
"""Of a noun itself; a base does not hand them on, but for sources of what is not told again."""
_RESERVED = {BASE, "lookup", "min", "max", "ceil", "floor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The tree of a file: given figures, and those to work out."""

    tree: Mapping[str, Any]
    """Fields and, as `parameters`, figures that formulas use and the noun does not see."""
    base: Row | None
    again: tuple[Place, ...]
    """Places of what is told beside a base."""
    inherited: Mapping[Place, Inherited]
    """Formulas of the base that nothing is told in place of."""

    @classmethod
    def of(cls, data: Mapping[str, Any], noun: type[BaseModel], source: str, rows: Rows) -> "Told":
        """Put what a mapping tells over its base, if it names one.

        Raises
        ------
        InputError
            If the base cannot be found, or has no such item, or parameters have bad names.
        """
        other = canonical_names(noun)
        fields = {
            key if other.get(key, key) in data else other[key]: item for key, item in data.items()
        }
        parameters = _named_parameters(fields.pop(PARAMETERS, {}), source)
        if BASE not in fields:
            return cls(tree={**fields, PARAMETERS: parameters}, base=None, again=(), inherited={})
        base = _base(fields.pop(BASE), noun, source, rows)
        words = {word: fields.pop(word) for word in WORDS if word in fields}
        whole = _with_formulas(base)
        of_base = {name: item for name, item in whole.items() if name not in WORDS}
        again: list[Place] = []
        try:
            tree = merged(of_base, {**fields, PARAMETERS: parameters}, (), again) | words
        except ValueError as error:
            raise InputError(Fault(source=source, problem=str(error))) from None
        inherited = {at: one for at, one in base.formulas.items() if _at(tree, at) is one.node}
        return cls(tree=tree, base=base, again=tuple(again), inherited=inherited)


def _with_formulas(base: Row) -> dict[str, Any]:
    """What a base tells, with its formulas in place of what they came to."""
    tree = {**base.told, PARAMETERS: dict(base.parameters)}
    if not base.formulas:
        return tree
    tree = {name: deepcopy(item) if name != PARAMETERS else item for name, item in tree.items()}
    for at, formula in base.formulas.items():
        inside, step = _at(tree, at[:-1]), _step(tree, at)
        if step is not None:
            inside[step] = formula.node
    return tree


def _step(tree: Any, at: Place) -> Part | None:
    """The last key of a place as the tree has it; None if it does not have the place."""
    try:
        return descend(tree, at, "")[1][-1]
    except ValueError:
        return None


def _at(tree: Any, at: Place) -> Any:
    """What stands at a place, if anything does."""
    try:
        return descend(tree, at, "")[0]
    except ValueError:
        return None


def _base(named: Any, noun: type[BaseModel], source: str, rows: Rows) -> Row:
    here = Fault(source=source, field=BASE, value=named, has_value=True, problem="")
    if not isinstance(named, str):
        problem = f"must be the name or the file of a {noun.__name__.lower()}"
        raise InputError(replace(here, problem=problem))
    try:
        return rows(named, True)
    except UnknownRowError as error:
        raise UnknownNameError(replace(here, problem=str(error))) from None
    except ValueError as error:
        raise InputError(replace(here, problem=str(error))) from None


def _named_parameters(given: Any, source: str) -> dict[str, Any]:
    """Parameters by their names as formulas read them, in which some letters are alike (NFKC).

    Raises
    ------
    InputError
        If they have names that a formula cannot use.
    """
    here = Fault(source=source, field=PARAMETERS, value=given, has_value=True, problem="")
    if not isinstance(given, Mapping):
        raise InputError(replace(here, problem="must be a mapping of names to figures"))
    named: dict[str, Any] = {}
    for name, figure in given.items():
        problem = ""
        own = normalize("NFKC", name) if isinstance(name, str) else ""
        if not own.isidentifier():
            problem = "a name has letters, digits and underscores, and no digit first"
        elif own in _RESERVED or iskeyword(own):
            problem = "has a meaning of its own in formulas"
        elif own in named:
            problem = "is given twice, in letters that count as the same"
        if problem:
            raise InputError(replace(here, value=name, problem=problem))
        named[own] = figure
    return named
