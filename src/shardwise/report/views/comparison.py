"""How comparisons are shown in Python."""

from typing import Any

from shardwise.analysis.comparison import Comparison
from shardwise.report.charts.compare import charts
from shardwise.report.tables.compare import best_words, change_words, print_comparison, who_runs
from shardwise.report.views.view import Summary, View

_MOST = 3


def _comparison(found: Comparison) -> Summary:
    fields = [one.field for one in found.asked]
    rows = [("differ in", ", ".join(fields) or "nothing")]
    rows += [("change", change_words(change, found.per)) for change in found.changes[:_MOST]]
    if len(found.changes) > _MOST:
        rows.append(("", f"and {len(found.changes) - _MOST} more"))
    if best := best_words(found):
        rows.append(("best", "; ".join(best)))
    return Summary(
        title=f"Comparison: {who_runs(found)}",
        rows=rows,
        hint=".explain() what makes the difference; .plot(); .to_frame()",
    )


VIEWS: dict[str, View[Any]] = {
    "Comparison": View(summary=_comparison, tables=print_comparison, charts=charts, folded=1),
}
