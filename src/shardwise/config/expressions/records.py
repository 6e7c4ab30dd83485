"""What is asked and told about figures: rows, origins, and the fields they come to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel

from shardwise.config.expressions.bases import Path, is_figure
from shardwise.config.expressions.formula import path_text
from shardwise.config.expressions.quantity import Quantity
from shardwise.errors import Fault

__all__ = [
    "BASE",
    "PARAMETERS",
    "Inherited",
    "Origin",
    "Resolved",
    "Row",
    "Rows",
    "UnknownRowError",
    "formula_of",
    "has_figures",
    "is_formula",
]

BASE = "base"
PARAMETERS = "parameters"


class UnknownRowError(ValueError):
    """A name that is neither an entry of the catalog nor a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry of the catalog, or a file, that another file refers to."""

    name: str
    noun: type[BaseModel]
    fields: Mapping[str, Any]
    """All of it as plain values, defaults too."""
    told: Mapping[str, Any]
    """Without what nobody told."""
    parameters: Mapping[str, Quantity]
    formulas: Mapping[Path, "Inherited"]
    """By place: what it calculates, and so calculates anew where something else is told."""


Rows = Callable[[str, bool], Row]
"""Finds an entry by its name; whether it is to be a base, and so of the same noun."""


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
    """Plain fields of a noun, and where each is from."""

    data: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Quantity] = field(default_factory=dict)
    origins: Mapping[Path, Origin] = field(default_factory=dict)
    """By place; the longest prefix counts, and nothing told is given."""
    formulas: Mapping[Path, Inherited] = field(default_factory=dict)
    """For files that this one is the base of."""

    def told(self, fault: Fault) -> Fault:
        """A fault of the noun, which says how its figure came to be if nobody wrote it."""
        ways = {path_text(path): origin for path, origin in self.origins.items() if path}
        origin = ways.get(fault.field)
        if origin is None or origin.how == "given":
            return fault
        return replace(fault, problem=f"{fault.problem} ({origin.how}: {origin.by})")


def has_figures(data: Mapping[str, Any]) -> bool:
    """Whether anything in a mapping is looked up, calculated or left to a base."""
    try:
        return BASE in data or PARAMETERS in data or _any_figure(data)
    except RecursionError:  # so deep that `resolve` refuses it
        return True


def _any_figure(node: Any) -> bool:
    if isinstance(node, str):
        return is_formula(node)
    if isinstance(node, Mapping):
        return is_figure(node) or any(map(_any_figure, node.values()))
    return isinstance(node, (list, tuple)) and any(map(_any_figure, node))


def is_formula(node: Any) -> bool:
    """Whether a text is a formula: it begins with an equals sign."""
    return isinstance(node, str) and node.lstrip().startswith("=")


def formula_of(text: str) -> str:
    """The formula of a text, without that sign."""
    return " ".join(text.strip().removeprefix("=").split())
