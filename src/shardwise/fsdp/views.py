"""How FSDP plans are shown in Python."""

from typing import Any

from shardwise.fsdp.charts import charts
from shardwise.fsdp.result import FsdpPlan
from shardwise.fsdp.tables import print_plan, run_words
from shardwise.report.console import seconds
from shardwise.report.views.view import Summary, View
from shardwise.units import readable


def _plan(result: FsdpPlan) -> Summary:
    rows = [("run", run_words(result))]
    if result.planned is None:
        rows.append(("nothing fits", result.reason))
    else:
        plan = result.planned.plan
        exposed = f"{seconds(plan.exposed_s)} of exposed communication"
        proof = "proven best" if result.planned.optimal else "best found"
        rows += [
            ("units", f"{len(plan.wrapping.units)} and the root; {proof}"),
            ("step time", f"{seconds(plan.step_s)}, {exposed}"),
            ("memory", readable(plan.peak.total_bytes, "bytes")),
        ]
    return Summary(
        title=f"FsdpPlan: {result.model}",
        rows=rows,
        hint=".explain() the units; .plot(); .emitted() the calls; .to_dict()",
    )


VIEWS: dict[str, View[Any]] = {
    "FsdpPlan": View(summary=_plan, tables=print_plan, charts=charts, folded=1),
}
