"""Saved results, by what their files hold."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from shardwise.analysis import Result
from shardwise.errors import Fault, InputError

MOST_BYTES = 2**28
"""Size of the largest file of a result: a search may list thousands of plans in full detail."""


class SavedKind(NamedTuple):
    """A kind of result, recognized by keys."""

    command: str
    keys: frozenset[str]
    module: str
    record: str


def _kind(command: str, keys: str, module: str, record: str) -> SavedKind:
    return SavedKind(command, frozenset(keys.split()), f"shardwise.{module}", record)


# The first that fits: explanations and models have all keys of a search.
_KINDS = (
    _kind("estimate", "step_time_s time_s", "analysis.results", "Estimate"),
    _kind("search --explain", "legal broken changes", "planning.search.results", "Explanation"),
    _kind("search --systems", "systems options front", "planning.cluster_options", "ClusterChoice"),
    _kind("models --largest-for", "ladder practical", "planning.search.results", "LargestModel"),
    _kind("search", "space best candidates", "planning.search.results", "SearchResult"),
    _kind("sweep", "systems axes points", "planning.sweep.results", "SweepResult"),
    _kind("compare", "per scenarios changes", "analysis.comparison", "Comparison"),
    _kind("diagnose", "measured predicted findings", "planning.diagnose.results", "Diagnosis"),
    _kind("recipes RECIPE", "recipe estimate error", "planning.recipes", "RecipeEstimate"),
)


def kind_of_saved(data: Mapping[str, object]) -> SavedKind | None:
    """Return which command wrote a result; None if it is none."""
    return next((one for one in _KINDS if one.keys <= data.keys()), None)


def read_saved(data: Mapping[str, Any], source: str) -> Result:
    """Return a saved result of any of these kinds.

    Raises
    ------
    InputError
        If it is none, damaged, or of another version.
    """
    kind = kind_of_saved(data)
    if kind is None:
        commands = ", ".join(one.command for one in _KINDS)
        problem = f"is no saved result (--json, --output) that can be shown; those are: {commands}"
        raise InputError(Fault(source=source, problem=problem))
    record: type[Result] = getattr(import_module(kind.module), kind.record)
    return record.read(data, source=source)
