"""One derived quantity of AMPeD: its inputs, its formula, its unit and what it is."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from shardwise.arrays import Floats

__all__ = ["Derived", "Formula", "as_derived", "formulas"]

Formula = Callable[..., Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A quantity that AMPeD calculates where a file says so."""

    inputs: tuple[str, ...]
    """Names of the parameters that its formula takes, in order."""
    function: Formula
    unit: str
    """Empty for a plain number."""
    description: str
    """In one line."""


def as_derived(function: Formula, unit: str) -> Derived:
    """Describe a formula by its own arguments and the first line of its docstring."""
    return Derived(
        inputs=tuple(inspect.signature(function).parameters),
        function=function,
        unit=unit,
        description=(inspect.getdoc(function) or "").partition("\n")[0],
    )


def formulas(known: dict[str, Derived]) -> Callable[[str], Callable[[Formula], Formula]]:
    """Return a decorator, given a unit, that adds a formula to a table under its own name."""

    def of(unit: str) -> Callable[[Formula], Formula]:
        def added(function: Formula) -> Formula:
            known[function.__name__] = as_derived(function, unit)
            return function

        return added

    return of
