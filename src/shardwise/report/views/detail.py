"""How timelines, graphs and methods of fine-tuning are shown in Python."""

from typing import Any

from shardwise.analysis.graph.records import ComputeGraph
from shardwise.planning.methods import MethodTable
from shardwise.report.charts.common import plotly
from shardwise.report.charts.timeline import pipeline_timeline
from shardwise.report.charts.totals import component_times, method_charts
from shardwise.report.console import count, gpu_count, plain_table, seconds, show
from shardwise.report.tables.methods import print_methods
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
        hint=".parts; .stages; .edges; .plot(); .to_dict()",
    )


def _print_graph(one: ComputeGraph) -> None:
    """Print a line for each component."""
    table = plain_table(
        "component", "in the model", "runs a step", "FLOPs", "kernels", "parameters"
    )
    for part in one.parts:
        flops, time_s = (
            sum(getattr(work, name) for work in part.phases.values())
            for name in ("flops", "time_s")
        )
        figures = (count(flops), seconds(time_s), count(part.parameters))
        table.add_row(part.name, f"{part.count:,}", f"{part.runs:,g}", *figures)
    show(table, "FLOPs and kernels: of one micro-batch on one rank; parameters: of one rank")


def _methods(found: MethodTable) -> Summary:
    best = found.cheapest()
    models, systems, methods = (
        ", ".join(dict.fromkeys(getattr(plan, name) for plan in found.plans))
        for name in ("model", "system", "finetune")
    )
    rows = [("systems", systems), ("methods", methods)]
    if best is not None:
        rows.append(("cheapest", f"{best.gpus} x {best.system}, {best.finetune}"))
    hint = ".explain() the table; .plot(); .plans; .to_dict()"
    return Summary(title=f"MethodTable: {models}", rows=rows, hint=hint)


VIEWS: dict[str, View[Any]] = {
    "ComputeGraph": View(
        summary=_graph,
        tables=_print_graph,
        charts=lambda one: {"components": component_times(one)},
    ),
    "MethodTable": View(summary=_methods, tables=print_methods, charts=method_charts),
    "Trace": View(
        summary=_trace,
        tables=print_trace,
        charts=lambda one: {"timeline": plotly().Figure(pipeline_timeline(one.timeline))},
    ),
}
