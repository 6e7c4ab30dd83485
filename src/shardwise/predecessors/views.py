"""How answers of other models are shown in Python."""

from typing import Any

from shardwise.analysis.reference_results import ReferenceEstimate, ReferenceSearch
from shardwise.errors import shorten
from shardwise.report.views.view import Summary, View

_FEW = 3


def _estimate(result: ReferenceEstimate) -> Summary:
    statistics = list(result.statistics.items())
    rows = [(name, shorten(value)) for name, value in statistics[:_FEW]]
    if result.message is not None:
        rows.append(("infeasible", result.message))
    hint = f".statistics all {len(statistics)}; .layers; .to_dict()"
    return Summary(title=f"ReferenceEstimate: by {result.reference}", rows=rows, hint=hint)


def _search(result: ReferenceSearch) -> Summary:
    counts = f"{result.candidates:,} candidates, {result.feasible:,} feasible"
    best = shorten(result.best[0]) if result.best else "nothing is feasible"
    return Summary(
        title=f"ReferenceSearch: by {result.reference}",
        rows=[("considered", counts), ("best", best)],
        hint=f".best the first {len(result.best)}; .to_dict()",
    )


VIEWS: dict[str, View[Any]] = {
    "ReferenceEstimate": View(summary=_estimate),
    "ReferenceSearch": View(summary=_search),
}
