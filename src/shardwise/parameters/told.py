"""What a file tells, over what its base has, before any figure is worked out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from shardwise.errors import Fault, InputError, UnknownNameError
from shardwise.parameters.based import Path, merged
from shardwise.parameters.kinds import canonical_names
from shardwise.parameters.records import BASE, PARAMETERS, Row, Rows, UnknownRowError

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
    again: tuple[Path, ...]
    """Places of what is told beside a base."""

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
        parameters = fields.pop(PARAMETERS, {})
        _check_parameters(parameters, source)
        if BASE not in fields:
            return cls(tree={**fields, PARAMETERS: parameters}, base=None, again=())
        base = _base(fields.pop(BASE), noun, source, rows)
        words = {word: fields.pop(word) for word in WORDS if word in fields}
        of_base = {name: item for name, item in base.told.items() if name not in WORDS}
        again: list[Path] = []
        try:
            tree = merged(of_base, fields, (), again)
        except ValueError as error:
            raise InputError(Fault(source=source, problem=str(error))) from None
        tree |= words | {PARAMETERS: {**base.parameters, **parameters}}
        return cls(tree=tree, base=base, again=tuple(again))


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


def _check_parameters(given: Any, source: str) -> None:
    """Raise unless parameters have names that a formula can use."""
    here = Fault(source=source, field=PARAMETERS, value=given, has_value=True, problem="")
    if not isinstance(given, Mapping):
        raise InputError(replace(here, problem="must be a mapping of names to figures"))
    for name in given:
        if not isinstance(name, str) or not name.isidentifier():
            problem = "a name has letters, digits and underscores, and no digit first"
            raise InputError(replace(here, value=name, problem=problem))
        if name in _RESERVED:
            raise InputError(
                replace(here, value=name, problem="has a meaning of its own in formulas")
            )
