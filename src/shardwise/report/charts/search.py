"""What a search found, as charts: by two axes, on a Pareto front, by scale, and where time goes."""

from collections.abc import Sequence
from itertools import combinations
from math import log10
from pathlib import Path
from typing import Any

from shardwise.planning.search.results import ScaleResult, SearchResult
from shardwise.report.charts.common import (
    ACCENT,
    INK,
    LINES,
    Figure,
    check_chart_file,
    differ,
    dressed,
    graphs,
    lacks,
    log_axis,
    subplots,
    write,
    write_page,
)
from shardwise.report.charts.plans import BESIDE, degrees, in_full, run_words, short_name
from shardwise.report.charts.search_map import heat_map, is_surface, surface
from shardwise.report.charts.search_parts import best_memory, best_time, rejections
from shardwise.report.console import GIB

__all__ = [
    "charts",
    "check_chart_file",
    "front",
    "heat_map",
    "scaling",
    "surface",
    "write",
    "write_charts",
]

_AXES_OF_A_MAP = 2
_MOST_LABELS = 12


def front(result: SearchResult) -> Figure:
    """Draw the Pareto front: time against memory, accelerators or price.

    Raises
    ------
    InputError
        If the search has no front, or plotly is not installed.
    """
    go = graphs()
    if not result.pareto:
        raise lacks("a Pareto front", "search with pareto='memory', 'gpus' or 'cost'")
    words, beside = BESIDE[result.pareto_against or "memory"]
    plans = sorted(result.pareto, key=beside)
    tokens = {p.strategy["global_batch_size"] * p.strategy["seq_len"] for p in plans}
    same = len(tokens) == 1
    times = [plan.step_time_s if same else 1e6 / plan.tokens_per_s for plan in plans]
    labelled = range(len(plans)) if len(plans) <= _MOST_LABELS else (0, len(plans) - 1)
    figure = go.Figure(
        go.Scatter(
            x=[beside(plan) for plan in plans],
            y=times,
            mode="lines+markers+text",
            line={"shape": "hv", "color": LINES[0], "width": 2},
            marker={"size": 9, "color": LINES[0], "line": {"color": "white", "width": 1}},
            text=[degrees(p.strategy) if i in labelled else "" for i, p in enumerate(plans)],
            textposition=["top right"] * (len(plans) - 1) + ["bottom left"],
            textfont={"size": 11, "color": "#57606a"},
            customdata=[in_full(plan, result.capacity_bytes) for plan in plans],
            hovertemplate="%{customdata}<extra></extra>",
            cliponaxis=False,
            showlegend=False,
            name="front",
        )
    )
    title = "time of a step [s]" if same else "time of a million tokens [s]"
    figure.update_yaxes(title=title, **(log_axis(times) if differ(times) else {}))
    figure.update_xaxes(title=words)
    if result.pareto_against == "memory":
        figure.update_xaxes(range=[0, 1.05 * result.capacity_bytes / GIB])
        figure.add_vline(
            x=result.capacity_bytes / GIB,
            line={"color": ACCENT, "dash": "dash"},
            annotation_text="what may be used",
            annotation_position="top left",
        )
    if result.pareto_against == "gpus":
        counts = sorted({int(beside(plan)) for plan in plans})
        figure.update_xaxes(type="log", tickvals=counts, ticktext=[f"{n:,}" for n in counts])
    subtitle = f"{run_words(result)}; no other strategy beats one of these {len(plans)} on both"
    against = {"memory": "memory", "gpus": "GPUs", "cost": "price"}
    return dressed(figure, f"Time against {against[result.pareto_against or 'memory']}", subtitle)


def scaling(result: SearchResult) -> Figure:
    """Draw the best throughput of every number of GPUs, and its share of an ideal growth.

    Raises
    ------
    InputError
        If the search has one scale only or nothing feasible, or plotly is not installed.
    """
    feasible = [scale for scale in result.scales if scale.best is not None]
    if not feasible:
        raise lacks("several scales", "search several numbers of GPUs or batches: gpus='64..512'")
    by = "gpus" if len({s.gpus for s in result.scales}) > 1 else "global_batch_size"
    other = "global_batch_size" if by == "gpus" else "gpus"
    figure = subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[3, 2])
    groups = sorted({getattr(scale, other) for scale in result.scales})
    for group, colour in zip(groups, LINES * len(groups), strict=False):
        line = [scale for scale in feasible if getattr(scale, other) == group]
        line.sort(key=lambda scale: getattr(scale, by))
        _add_line(figure, result, line, by=by, name=f"{short_name(other)} {group}", colour=colour)
    ticks = sorted({getattr(scale, by) for scale in result.scales})
    _add_ideal(figure, feasible[0], ticks if by == "gpus" else ())
    for number in ticks:
        if all(getattr(scale, by) != number for scale in feasible):
            _add_nothing(figure, number)
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{n:,}" for n in ticks])
    edge = 0.03 + 0.03 * log10(ticks[-1] / ticks[0])
    figure.update_xaxes(range=[log10(ticks[0]) - edge, log10(ticks[-1]) + edge])
    figure.update_xaxes(title=short_name(by), row=2, col=1)
    rates = [scale.best.tokens_per_s for scale in feasible if scale.best is not None]
    figure.update_yaxes(title="tokens/s", **log_axis(rates), row=1, col=1)
    figure.update_yaxes(title="efficiency [%]", rangemode="tozero", row=2, col=1)
    origin = f"efficiency: tokens/s per GPU over that of {feasible[0].gpus} GPUs"
    dressed(figure, "Scaling of the best", f"{run_words(result)}; {origin}", height=640)
    figure.update_layout(legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0})
    return figure


def _add_line(
    figure: Figure,
    result: SearchResult,
    line: Sequence[ScaleResult],
    *,
    by: str,
    name: str,
    colour: str,
) -> None:
    """Draw throughput above and efficiency below for scales that differ in one thing."""
    plans = [scale.best for scale in line if scale.best is not None]
    words: dict[str, Any] = {
        "x": [getattr(scale, by) for scale in line],
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2.5},
        "marker": {"size": 9},
        "customdata": [in_full(plan, result.capacity_bytes) for plan in plans],
        "hovertemplate": "%{customdata}<extra></extra>",
        "name": name,
        "legendgroup": name,
    }
    scatter = graphs().Scatter
    figure.add_trace(scatter(y=[plan.tokens_per_s for plan in plans], **words), row=1, col=1)
    shares = [100 * (scale.efficiency or 0.0) for scale in line]
    figure.add_trace(scatter(y=shares, **words, showlegend=False), row=2, col=1)


def _add_ideal(figure: Figure, first: ScaleResult, numbers: Sequence[int]) -> None:
    """Draw what it would be if each GPU did as much as those of the first scale."""
    line = {"color": INK, "dash": "dot", "width": 1.5}
    if numbers and first.best is not None:
        rates = [first.best.tokens_per_s_per_gpu * number for number in numbers]
        words = {"mode": "lines", "line": line, "hoverinfo": "skip", "name": "ideal"}
        figure.add_trace(graphs().Scatter(x=list(numbers), y=rates, **words), row=1, col=1)
    figure.add_hline(y=100, line=line, row=2, col=1)


def _add_nothing(figure: Figure, number: int) -> None:
    figure.add_annotation(
        text="nothing fits",
        x=log10(number),  # where an annotation stands on a logarithmic axis
        y=0.05,
        yref="y domain",
        yanchor="bottom",
        textangle=-90,
        showarrow=False,
        font={"color": ACCENT},
    )


def charts(result: SearchResult) -> dict[str, Figure]:
    """Draw all that a search found, by name; what it was not asked for is left out."""
    drawn: dict[str, Figure] = {}
    if result.best:
        drawn |= {"best-time": best_time(result), "best-memory": best_memory(result)}
    fields = list(result.cells[0].values) if result.cells else []
    for axes in combinations(fields, _AXES_OF_A_MAP):
        drawn["by-" + "-".join(axes)] = heat_map(result, axes)
        if is_surface(result, axes):
            drawn["surface-" + "-".join(axes)] = surface(result, axes)
    if result.pareto:
        drawn["front"] = front(result)
    if any(scale.best is not None for scale in result.scales):
        drawn["scaling"] = scaling(result)
    if result.candidates:
        drawn["candidates"] = rejections(result)
    return drawn


def write_charts(result: SearchResult, path: str | Path) -> None:
    """Write all charts of a search on one page, .html with all that it needs, or .json by name."""
    told = f"{result.candidates:,} strategies, {result.feasible:,} of them feasible"
    facts = [f"{told}; searched in {result.elapsed_s:.1f} s"]
    if not result.best:
        facts.append("Nothing is feasible: each strategy breaks a rule or does not fit.")
    if not result.complete:
        facts.append("Interrupted: this is what was found in a part of the space.")
    write_page(path, run_words(result), facts, charts(result))
