"""Derived quantities of AMPeD: inputs, formula and unit of each, and how to compute a set of them.

AMPeD finds what a formula needs by calling it with a recorder, which sees one branch alone, and
runs into a cycle without end. Here a formula's signature names its inputs, and a cycle is a fault
with its name.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np

from shardwise.arrays import Floats
from shardwise.errors import Fault, InputError, nearest, refuse

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
    """Return a decorator for a unit that adds a formula to a table under its own name."""

    def of(unit: str) -> Callable[[Formula], Formula]:
        def added(function: Formula) -> Formula:
            known[function.__name__] = as_derived(function, unit)
            return function

        return added

    return of


def resolve(
    given: Mapping[str, Floats | float],
    calculated: Iterable[str],
    *,
    table: Mapping[str, Derived],
    source: str = "",
) -> dict[str, Floats]:
    """Compute quantities, each after those that it needs.

    Parameters
    ----------
    given
        Values by name: numbers, or columns of equal length.
    calculated
        Names of quantities to compute, in any order; the formula of one may need others of them.
    table
        Formulas by name.
    source
        File that faults name.

    Returns
    -------
    Given and computed values as arrays, 0-dimensional where all that a quantity depends on are
    numbers.

    Raises
    ------
    InputError
        For each name without a formula, each that is set too, each input that is neither set
        nor calculated; or for a cycle.
    """
    wanted = dict.fromkeys(calculated)
    refuse([*_unknown(given, wanted, table, source), *_missing(given, wanted, table, source)])
    needs = {name: [i for i in table[name].inputs if i in wanted] for name in wanted}
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        problem = f"is calculated from itself: {' needs '.join(circle)}; give one of them a value"
        raise InputError(Fault(source=source, field=circle[0], problem=problem)) from None
    values = {name: np.asarray(value, dtype=np.float64) for name, value in given.items()}
    for name in order:
        formula = table[name]
        result = formula.function(*(values[needed] for needed in formula.inputs))
        values[name] = np.asarray(result, dtype=np.float64)
    return values


def _unknown(
    given: Mapping[str, object],
    wanted: Iterable[str],
    table: Mapping[str, Derived],
    source: str,
) -> list[Fault]:
    faults = []
    for name in wanted:
        if name not in table:
            problem = f"is marked calculated, but AMPeD has no formula for it{nearest(name, table)}"
            faults.append(Fault(source=source, field=name, problem=problem))
        elif name in given:
            problem = "is both set and calculated; leave one out"
            faults.append(Fault(source=source, field=name, problem=problem))
    return faults


def _missing(
    given: Mapping[str, object],
    wanted: Mapping[str, object],
    table: Mapping[str, Derived],
    source: str,
) -> list[Fault]:
    """One fault for each input that is nowhere, naming all that need it."""
    needed_by: dict[str, list[str]] = {}
    for name in wanted:
        for needed in table[name].inputs if name in table else ():
            if needed not in given and needed not in wanted:
                needed_by.setdefault(needed, []).append(name)
    return [
        Fault(
            source=source,
            field=name,
            problem=f"is missing, and needed for {', '.join(users)}; give it"
            + (" or mark it calculated" if name in table else ""),
        )
        for name, users in needed_by.items()
    ]
