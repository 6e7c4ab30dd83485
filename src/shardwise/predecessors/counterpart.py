"""A predecessor's statistic and ours: where ours is in an `Estimate`, and why the two differ."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.analysis.results import Estimate


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
