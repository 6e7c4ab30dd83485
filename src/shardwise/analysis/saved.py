"""Saved results, by what their files hold."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shardwise import registry
from shardwise.analysis import Result
from shardwise.errors import Fault, InputError

MOST_BYTES = 2**28
"""Size of the largest file of a result: a search may list thousands of plans in full detail."""


class SavedKind(NamedTuple):
    """A kind of result, recognized by keys."""

    command: str
    keys: frozenset[str]
    home: str = ""
    """Its record, as `module:name`; empty if it cannot be shown."""

    @property
    def problem(self) -> str:
        """What it is, where something else is expected, and which verb reads it."""
        readers = "show it with shardwise show" if self.home else "no verb reads it"
        return f"is a saved result of {self.command}: {readers}"


def _kind(command: str, keys: str, home: str) -> SavedKind:
    return SavedKind(command, frozenset(keys.split()), home)


# The first that fits: explanations and models have all keys of a search; plans, of an estimate.
_KINDS = (
    _kind("estimate", "step_time_s time_s why", "planning.search.results:RecommendedPlan"),
    _kind("estimate", "step_time_s time_s settings", "planning.search.results:RankedPlan"),
    _kind("estimate", "step_time_s time_s", "analysis.results:Estimate"),
    _kind("search --explain", "legal broken changes", "planning.search.results:Explanation"),
    _kind("search --systems", "systems options front", "planning.cluster_choice:ClusterChoice"),
    _kind("models --largest-for", "ladder practical", "planning.search.results:LargestModel"),
    _kind("search", "space best candidates", "planning.search.results:SearchResult"),
    _kind("sweep", "systems axes points", "planning.sweep.results:SweepResult"),
    _kind("compare", "per scenarios changes", "analysis.comparison:Comparison"),
    *(_kind(verb, *words) for verb, words in registry.added("saved")),
    _kind("recipes RECIPE", "recipe estimate error", "planning.recipes:RecipeEstimate"),
)
# Results that people read, or other programs.
_UNREAD = (
    SavedKind("fsdp", frozenset({"units", "checkpointed", "unit_details"})),
    SavedKind("peers", frozenset({"axes", "embedding_groups", "ranks"})),
    SavedKind("trace", frozenset({"passes_s", "after_s", "ranks"})),
    SavedKind("validate", frozenset({"suite", "rows", "summary"})),
    SavedKind("calibrate", frozenset({"system", "level", "unusable"})),
    SavedKind("calibrate", frozenset({"system", "fits"})),
)
_LIST = SavedKind("models, systems, stacks or recipes (a list)", frozenset())


def kind_of_saved(data: Mapping[str, object]) -> SavedKind | None:
    """Return which command wrote a result; None if it is none."""
    found = next((one for one in (*_KINDS, *_UNREAD) if one.keys <= data.keys()), None)
    return _LIST if found is None and _is_list(data) else found


def _is_list(data: Mapping[str, object]) -> bool:
    """Whether these are entries of the catalog by name."""
    entries = data.items()
    return bool(data) and all(isinstance(v, Mapping) and v.get("name") == k for k, v in entries)


def read_saved(data: Mapping[str, Any], source: str) -> Result:
    """Return a saved result of any of these kinds.

    Raises
    ------
    InputError
        If it is none, damaged, or of another version.
    """
    kind = kind_of_saved(data)
    if kind is not None and not kind.home:
        raise InputError(Fault(source=source, problem=kind.problem))
    if kind is None:
        commands = ", ".join(dict.fromkeys(one.command for one in _KINDS))
        problem = f"is no saved result (--json, --output) that can be shown; those are: {commands}"
        raise InputError(Fault(source=source, problem=problem))
    record: type[Result] = registry.load(kind.home)
    return record.read(data, source=source)
