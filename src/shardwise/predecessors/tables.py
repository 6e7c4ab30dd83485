"""A predecessor's statistics next to ours: theirs, ours in an `Estimate`, why the two differ."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.report.console import plain_table, show

Amount = Callable[[str, Any], str]
"""Formats a figure, by its name and value."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """One statistic of a predecessor and ours."""

    name: str
    """As the predecessor names it."""
    ours: str
    """Fields of `Estimate` and numbers, joined by " * ", " + " and " - "; items of tuples by
    position."""
    reason: str = ""
    """Why the two differ; empty where they mean the same."""

    def value(self, result: Estimate) -> float:
        """Return our value."""
        added, *subtracted = self.ours.split(" - ")
        total = sum(_product(result, term) for term in added.split(" + "))
        return total - sum(_product(result, term) for term in subtracted)


def _product(result: Estimate, term: str) -> float:
    product = 1.0
    for path in term.split(" * "):
        product *= _at(result, path)
    return product


def _at(result: Any, path: str) -> float:
    if path.isdigit():
        return float(path)
    for part in path.split("."):
        if part.isdigit():
            result = result[int(part)]
        elif isinstance(result, Mapping):
            result = result[part]
        else:
            result = getattr(result, part)
    return math.inf if result is None else float(result)


_REFUSALS = {
    "calculon": "Calculon refuses this run",
    "amped": "AMPeD refuses this run",
    "nersc": "It does not fit by NERSC's model",
}


def print_refusal(reference: str, message: object) -> None:
    """Say why another model gives no figures."""
    show(f"{_REFUSALS[reference]}: {message}")


def print_pairs(
    predecessor: str,
    counterparts: Iterable[Counterpart],
    result: Estimate,
    statistics: Mapping[str, float | None],
    amount: Amount,
) -> None:
    """Print a predecessor's figures next to the estimate, with differences and their reasons."""
    table = plain_table(
        *(f"{predecessor}'s name", "shardwise", predecessor, "difference", "may come from"),
        wraps=("may come from",),
    )
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    table.columns[-1].max_width = 70
    for counterpart in counterparts:
        value, reference = counterpart.value(result), statistics[counterpart.name]
        if not value and not reference:
            continue
        difference = "-" if not reference else f"{100 * (value / reference - 1):+.1f} %"
        same = reference is not None and abs(value - reference) <= 1e-9 * abs(reference)
        table.add_row(
            counterpart.name,
            amount(counterpart.name, value),
            amount(counterpart.name, reference),
            difference,
            "" if same else counterpart.reason,
        )
    show(table)


def print_figures(heads: tuple[str, str], title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print names and figures."""
    table = plain_table(*heads, title=title)
    for row in rows:
        table.add_row(*row)
    show(table)


def print_columns(
    title: str,
    head: str,
    columns: Sequence[str],
    layers: Iterable[Mapping[str, Any]],
    amount: Amount,
) -> None:
    """Print figures of operations or layers by name; columns on the right go first."""
    table = plain_table(head, *columns, title=title, optional=tuple(reversed(columns)))
    for layer in layers:
        table.add_row(layer["name"], *(amount(name, layer[name]) for name in columns))
    show(table)
