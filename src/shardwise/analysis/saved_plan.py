"""Plans that `estimate --json` and `search --json` saved, by file and number."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise import catalog, registry
from shardwise.analysis import Result
from shardwise.analysis.results import Estimate
from shardwise.analysis.saved import MOST_BYTES, kind_of_saved, read_saved
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.strategy_input import overriding
from shardwise.errors import InputError, UnknownNameError
from shardwise.ops.param_count import count_parameters
from shardwise.units import read_whole

_MARK = "#"
_WITH_PLANS = ("estimate", "search")
_EXPECTED = "the result of estimate --json or search --json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan of a saved result."""

    source: str
    """Its file and number, as `result.json#3`."""
    estimate: Estimate

    def model(self) -> Model:
        """Return the model of the catalog that has its name."""
        name, problem = self.estimate.model, "is none of the catalog: name the model or its file"
        try:
            found = Model.load(name)
        except UnknownNameError:
            raise InputError.of("model", name, problem, self.source) from None
        attention = found.with_attention(self.estimate.strategy["attention"])
        if count_parameters(attention).total != self.estimate.parameters:
            problem = (
                "has other parameters than the model of that name in the catalog: name its file"
            )
            raise InputError.of("model", name, problem, self.source)
        return found

    def system(self) -> str:
        """Return the name of its system in the catalog."""
        name = self.estimate.system
        if catalog.find("systems", name) is None:
            problem = "is none of the catalog: name the system or its file"
            raise InputError.of("system", name, problem, self.source)
        return name

    def fields(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of its strategy under others, without what follows from those."""
        return overriding(self.estimate.strategy, changed)[0]


def load(path: str | Path) -> Result:
    """Read a result that `save`, --json or --output wrote.

    Parameters
    ----------
    path
        Its file; FILE#3 is plan 3 of a search, an `Estimate`.

    Returns
    -------
    Of the class that wrote it, such as `SearchResult` or `Estimate`.

    Raises
    ------
    InputError
        If it is no result, damaged, or of a newer version.

    Examples
    --------
    >>> from shardwise import load
    >>> found = load("found.json")  # doctest: +SKIP
    >>> print(load("found.json#3"))  # doctest: +SKIP
    """
    file, number = split_plan(str(path))
    if number is not None:
        return read_plan(str(path)).estimate
    return read_saved(files.read_mapping(file, most_bytes=MOST_BYTES), file)


def find_plan(text: str) -> SavedPlan | None:
    """Read FILE or FILE#N if that names a saved result with plans; None if it names another file.

    Raises
    ------
    InputError
        If it is a saved result, but damaged or without this plan.
    """
    path, number = split_plan(text)
    if not files.has_known_ending(path) or not files.is_file(path):
        return None
    try:
        kind = kind_of_saved(files.read_mapping(path, most_bytes=MOST_BYTES))
    except InputError:  # the reader of the expected file says why
        return None
    has_plans = kind is not None and kind.command in _WITH_PLANS
    return read_plan(text) if has_plans or number is not None else None


def read_plan(text: str) -> SavedPlan:
    """Read a plan of a saved result: FILE, or FILE#N for the Nth plan of a search."""
    path, number = split_plan(text)
    return plan_of(files.read_mapping(path, most_bytes=MOST_BYTES), path, number or 1)


def plan_of(data: Mapping[str, Any], path: str, number: int) -> SavedPlan:
    """Return a plan of the content of a saved result."""
    source = f"{path}{_MARK}{number}"
    kind = kind_of_saved(data)
    if kind is not None and kind.command == "estimate":
        if number != 1:
            raise InputError.of("plan", number, "the file holds one estimate: use #1", path)
        found = read_saved(data, path)
        assert isinstance(found, Estimate)  # noqa: S101 - as all of that command
        return SavedPlan(source=source, estimate=found)
    field, plans = _listed(data, path)
    if number > len(plans):
        problem = f"must be a plan of the search, from 1 to {len(plans)}"
        raise InputError.of("plan", number, problem, path)
    place, plan = f"{field}[{number - 1}]", plans[number - 1]
    if not isinstance(plan, Mapping):
        raise InputError.at(path, "must be an estimate", place)
    ranked = registry.load("planning.search.results:RankedPlan")
    return SavedPlan(source=source, estimate=ranked.read(plan, source=path, field=place))


def count_plans(data: Mapping[str, Any], path: str) -> int:
    """Return how many plans a saved result has."""
    kind = kind_of_saved(data)
    return 1 if kind is not None and kind.command == "estimate" else len(_listed(data, path)[1])


def _listed(data: Mapping[str, Any], path: str) -> tuple[str, list[Any]]:
    """The key of the plans of a search, by the numbers of the printed table, and the plans."""
    kind = kind_of_saved(data)
    if kind is None or kind.command != "search":
        other = "" if kind is None else f": it is that of {kind.command}"
        raise InputError.at(path, f"is not {_EXPECTED}{other}")
    field = "advised" if data.get("advised") else "best"
    plans = data[field]
    if not isinstance(plans, list):
        raise InputError.at(path, "must be a list of plans", field)
    if not plans:
        raise InputError.at(path, "the search found no plan", field)
    return field, plans


def split_plan(text: str) -> tuple[str, int | None]:
    """Return the file and the number of FILE#N; a file may have the mark in its name."""
    text = text.strip()
    path, mark, number = text.rpartition(_MARK)
    if not mark or (not number.isdecimal() and files.exists(text)):
        return text, None
    place = read_whole(number) or 0
    if place < 1:
        problem = "must be FILE#N, with the number of a plan from 1"
        raise InputError.of("plan", text, problem)
    return path, place
