"""How timelines and graphs are shown in Python."""

from typing import Any

from shardwise.analysis.graph.records import ComputeGraph
from shardwise.report.charts.timeline import pipeline_timeline
from shardwise.report.console import count, gpu_count, seconds
from shardwise.report.tables.strategy_line import in_brief
from shardwise.report.tables.timeline import print_trace
from shardwise.report.trace import Trace
from shardwise.report.views.view import Summary, View


def _trace(one: Trace) -> Summary:
    line = one.timeline
    where = f"{gpu_count(one.strategy['gpus'])} of {one.system}"
    return Summary(
        title=f"Trace: {one.model} on {where}",
        rows=[
            ("strategy", in_brief(one.strategy)),
            ("step time", f"{seconds(line.step_s)}, {len(line.actions):,} passes"),
        ],
        hint=".explain() the ranks; .plot(); .to_file(path) for Perfetto; .to_dict()",
    )


def _graph(one: ComputeGraph) -> Summary:
    parts = ", ".join(f"{part.name} x {part.count}" for part in one.parts)
    totals = one.totals
    return Summary(
        title=f"ComputeGraph: {one.model} on {gpu_count(one.strategy['gpus'])} of {one.system}",
        rows=[
            ("strategy", in_brief(one.strategy)),
            ("components", parts),
            ("step", f"{count(totals.flops)} FLOPs, {count(totals.parameters)} parameters a rank"),
        ],
        hint=".parts; .stages; .edges; .to_dict()",
    )


VIEWS: dict[str, View[Any]] = {
    "ComputeGraph": View(summary=_graph),
    "Trace": View(
        summary=_trace,
        tables=print_trace,
        charts=lambda one: {"timeline": pipeline_timeline(one.timeline)},
    ),
}
