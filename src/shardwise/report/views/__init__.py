"""What people see of results in Python: a few lines, text, charts, and tables in notebooks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardwise import registry
from shardwise.report.charts.theme import Figure
from shardwise.report.views.view import View

if TYPE_CHECKING:
    from shardwise.analysis.comparison import Comparison

_OWN = {
    "Comparison": "report.views.comparison",
    "ClusterChoice": "report.views.sweep",
    "ComputeGraph": "report.views.detail",
    "Estimate": "report.views.estimate",
    "EstimateTable": "report.views.table",
    "Explanation": "report.views.search",
    "LargestModel": "report.views.search",
    "MethodTable": "report.views.detail",
    "NearestPlan": "report.views.search",
    "RecipeEstimate": "report.views.estimate",
    "Recommendation": "report.views.search",
    "SearchResult": "report.views.search",
    "SweepPoint": "report.views.sweep",
    "SweepResult": "report.views.sweep",
    "Trace": "report.views.detail",
    "TrainingTime": "report.views.estimate",
}
MODULES = {**_OWN, **dict(registry.added("views"))}
"""Module that shows a kind of result: only what is shown is imported."""


def _view_of(result: object) -> View[Any]:
    name = next(kind.__name__ for kind in type(result).__mro__ if kind.__name__ in MODULES)
    view: View[Any] = registry.load(MODULES[name]).VIEWS[name]
    return view


def brief(result: object) -> str:
    """Return a result in a few lines."""
    return str(_view_of(result).summary(result))


def print_tables(result: object) -> None:
    """Print what the command prints of a result."""
    _view_of(result).tables(result)


def text(result: object) -> str:
    """Return what the command prints of a result."""
    from shardwise.report.views.printout import printed_text  # noqa: PLC0415 - only where requested

    return printed_text(lambda: print_tables(result))


def html(result: object) -> str:
    """Return a result as a piece of HTML."""
    from shardwise.report.views.notebook import piece  # noqa: PLC0415 - only where requested

    return piece(_view_of(result), result)


def frame(result: Any) -> Any:
    """Return the best plans of a search as a data frame of polars."""
    from shardwise.report import search_csv  # noqa: PLC0415 - likewise

    return search_csv.frame(list(search_csv.rows_of(result.to_dict(), "best")), source="search")


def rows(result: Any, source: str) -> Any:
    """Return a result as a data frame of polars, as files of the command have it."""
    from shardwise.report import search_csv  # noqa: PLC0415 - likewise

    return search_csv.table(result.to_dict(), source=source)


def charts(result: object) -> Mapping[str, Figure]:
    """Return the charts of a result, by name; the most important one first."""
    return _view_of(result).charts(result)


def compare(scenarios: Sequence[Any], names: Sequence[str] | None) -> "Comparison":
    """Return estimates side by side."""
    from shardwise.planning.compare import compare as compared  # noqa: PLC0415 - likewise

    return compared(*scenarios, names=names)
