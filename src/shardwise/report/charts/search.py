"""What a search found, as charts: by two axes, on a Pareto front, by scale, and where time goes."""

from collections.abc import Sequence
from itertools import combinations
from math import log10
from pathlib import Path
from typing import Any

from shardwise.planning.search.results import Plan, ScaleResult, SearchResult
from shardwise.report.charts.common import (
    ACCENT,
    GREY,
    INK,
    LINES,
    MUTED,
    PAPER,
    Figure,
    Trace,
    chart_error,
    component_bar,
    dots,
    expected_mark,
    limit_line,
    log_axis,
    log_axis_if_wide,
    memory_components,
    plotly,
    styled,
    subplots,
    time_components,
    whiskers,
    write_page,
)
from shardwise.report.charts.maps import Map
from shardwise.report.charts.plans import (
    FRONT_AXES,
    OBJECTIVE_MEASURES,
    degrees,
    hover_text,
    ordered_values,
    range_of,
    rounded,
    search_words,
    short_name,
    value_word,
    whisker_words,
)
from shardwise.report.console import GIB

_AXES_OF_A_MAP = 2
_MOST_LABELS = 12
# Length of an axis over its longest bar: room for text.
_ROOM = 1.25
# Beyond so many times the best, all colors are the last one: the differences that matter are
# those among good plans.
_COLOR_SPAN = 3.0


def front(result: SearchResult) -> Figure:
    """Draw the Pareto front: time against memory, accelerators or price."""
    go = plotly()
    if not result.pareto:
        raise chart_error("a Pareto front", "search with pareto='memory', 'gpus' or 'cost'")
    axis = FRONT_AXES[result.pareto_against or "memory"]
    plans = sorted(result.pareto, key=axis.value)
    tokens = {p.strategy["global_batch_size"] * p.strategy["seq_len"] for p in plans}
    same = len(tokens) == 1
    times = [plan.step_time_s if same else 1e6 / plan.tokens_per_s for plan in plans]
    labelled = range(len(plans)) if len(plans) <= _MOST_LABELS else (0, len(plans) - 1)
    figure = go.Figure(
        dots(
            [axis.value(plan) for plan in plans],
            times,
            [hover_text(plan, result.capacity_bytes) for plan in plans],
            mode="lines+markers+text",
            line={"shape": "hv", "color": LINES[0], "width": 2},
            marker={"size": 9, "color": LINES[0], "line": {"color": PAPER, "width": 1}},
            text=[degrees(p.strategy) if i in labelled else "" for i, p in enumerate(plans)],
            textposition=["top right"] * (len(plans) - 1) + ["bottom left"],
            textfont={"size": 11, "color": MUTED},
            cliponaxis=False,
            showlegend=False,
            name="front",
            error_y=whiskers(times, list(map(range_of, plans, times))),
        )
    )
    title = "time of a step [s]" if same else "time of a million tokens [s]"
    figure.update_yaxes(title=title, **log_axis_if_wide(times))
    figure.update_xaxes(title=axis.axis_title)
    if result.pareto_against == "memory":
        figure.update_xaxes(range=[0, 1.05 * result.capacity_bytes / GIB])
        limit_line(figure, "usable memory", "top left", x=result.capacity_bytes / GIB)
    if result.pareto_against == "gpus":
        counts = sorted({int(axis.value(plan)) for plan in plans})
        figure.update_xaxes(type="log", tickvals=counts, ticktext=[f"{n:,}" for n in counts])
    subtitle = f"{search_words(result)}; no other strategy beats one of these {len(plans)} on both"
    subtitle += whisker_words(plans)
    return styled(figure, f"Time against {axis.title}", subtitle)


def scaling(result: SearchResult) -> Figure:
    """Draw the best throughput of every number of GPUs, and its share of an ideal growth."""
    feasible = [scale for scale in result.scales if scale.best is not None]
    if not feasible:
        raise chart_error(
            "several scales", "search several numbers of GPUs or batches: gpus='64..512'"
        )
    by = "gpus" if len({s.gpus for s in result.scales}) > 1 else "global_batch_size"
    other = "global_batch_size" if by == "gpus" else "gpus"
    figure = subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[3, 2])
    groups = sorted({getattr(scale, other) for scale in result.scales})
    for group, color in zip(groups, LINES * len(groups), strict=False):
        line = [scale for scale in feasible if getattr(scale, other) == group]
        line.sort(key=lambda scale: getattr(scale, by))
        _add_line(figure, result, line, by=by, name=f"{short_name(other)} {group}", color=color)
    ticks = sorted({getattr(scale, by) for scale in result.scales})
    _add_ideal(figure, feasible[0], ticks if by == "gpus" else ())
    for number in ticks:
        if all(getattr(scale, by) != number for scale in feasible):
            figure.add_annotation(
                text="nothing fits",
                x=log10(number),  # position of an annotation on a logarithmic axis
                y=0.05,
                yref="y domain",
                yanchor="bottom",
                textangle=-90,
                showarrow=False,
                font={"color": ACCENT},
            )
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{n:,}" for n in ticks])
    edge = 0.03 + 0.03 * log10(ticks[-1] / ticks[0])
    figure.update_xaxes(range=[log10(ticks[0]) - edge, log10(ticks[-1]) + edge])
    figure.update_xaxes(title=short_name(by), row=2, col=1)
    rates = [scale.best.tokens_per_s for scale in feasible if scale.best is not None]
    figure.update_yaxes(title="tokens/s", **log_axis(rates), row=1, col=1)
    figure.update_yaxes(title="efficiency [%]", rangemode="tozero", row=2, col=1)
    origin = f"efficiency: tokens/s per GPU over that of {feasible[0].gpus} GPUs"
    known = whisker_words(scale.best for scale in feasible if scale.best is not None)
    subtitle = f"{search_words(result)}; {origin}{known}"
    styled(figure, "Scaling of the best", subtitle, height=640)
    return figure


def _add_line(
    figure: Figure,
    result: SearchResult,
    line: Sequence[ScaleResult],
    *,
    by: str,
    name: str,
    color: str,
) -> None:
    """Draw throughput above and efficiency below for scales that differ in one thing."""
    plans = [scale.best for scale in line if scale.best is not None]
    words: dict[str, object] = {
        "x": [getattr(scale, by) for scale in line],
        "mode": "lines+markers",
        "line": {"color": color, "width": 2.5},
        "marker": {"size": 9},
        "customdata": [hover_text(plan, result.capacity_bytes) for plan in plans],
        "hovertemplate": "%{customdata}<extra></extra>",
        "name": name,
        "legendgroup": name,
    }
    scatter = plotly().Scatter
    rates = [plan.tokens_per_s for plan in plans]
    ranges = [range_of(plan, rate, is_rate=True) for plan, rate in zip(plans, rates, strict=True)]
    bars = whiskers(rates, ranges, color)
    figure.add_trace(scatter(y=rates, **words, error_y=bars), row=1, col=1)
    shares = [100 * (scale.efficiency or 0.0) for scale in line]
    figure.add_trace(scatter(y=shares, **words, showlegend=False), row=2, col=1)


def _add_ideal(figure: Figure, first: ScaleResult, numbers: Sequence[int]) -> None:
    """Draw what it would be if each GPU did as much as those of the first scale."""
    line = {"color": INK, "dash": "dot", "width": 1.5}
    if numbers and first.best is not None:
        rates = [first.best.tokens_per_s_per_gpu * number for number in numbers]
        words = {"mode": "lines", "line": line, "hoverinfo": "skip", "name": "ideal"}
        figure.add_trace(plotly().Scatter(x=list(numbers), y=rates, **words), row=1, col=1)
    figure.add_hline(y=100, line=line, row=2, col=1)


def best_time(result: SearchResult) -> Figure:
    """Draw where the step time of the best strategies goes, one bar each, the best on top."""
    figure = plotly().Figure()
    for component in time_components([estimate.time_s for estimate in result.rows]):
        figure.add_trace(_best_bars(result, *component, "s"))
    plans = [Plan.of(e, e.interval) for e in result.rows]
    totals = [plan.step_time_s for plan in plans]
    figure.add_trace(expected_mark(totals, [plan.interval_s for plan in plans], _ranks(result)))
    return _stacked(figure, result, "Where time goes in the best strategies", "time of a step [s]")


def best_memory(result: SearchResult) -> Figure:
    """Draw the memory of the peak-memory stage of the best strategies, one bar each."""
    figure = plotly().Figure()
    for component in memory_components([estimate.memory_bytes for estimate in result.rows]):
        figure.add_trace(_best_bars(result, *component, "GiB"))
    known = [one.memory_interval for one in result.rows]
    figure.add_trace(
        expected_mark(
            [one.memory_bytes.reserved / GIB for one in result.rows],
            [None if m is None else (m.reserved_low / GIB, m.reserved_high / GIB) for m in known],
            _ranks(result),
        )
    )
    limit_line(figure, "usable memory", "top", x=result.capacity_bytes / GIB)
    axis = "memory of a GPU on the peak-memory stage [GiB]"
    return _stacked(figure, result, "Memory of the best strategies", axis)


def _ranks(result: SearchResult) -> list[str]:
    return [f"{rank}  {degrees(e.strategy)}" for rank, e in enumerate(result.rows, start=1)]


def _best_bars(
    result: SearchResult, name: str, color: str, values: Sequence[float], unit: str
) -> Trace:
    """One component of the bars of the best strategies."""
    return component_bar(
        name,
        color,
        values,
        _ranks(result),
        text=[f"{name} {rounded(value)} {unit}" for value in values],
        textposition="none",
        customdata=[hover_text(Plan.of(e, e.interval), result.capacity_bytes) for e in result.rows],
        hovertemplate="<b>%{text}</b><br><br>%{customdata}<extra></extra>",
    )


def _stacked(figure: Figure, result: SearchResult, title: str, axis: str) -> Figure:
    styled(figure, title, search_words(result), height=230 + 32 * len(result.rows))
    figure.update_layout(
        barmode="stack",
        bargap=0.25,
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    figure.update_xaxes(title=axis)
    return figure


def rejections(result: SearchResult) -> Figure:
    """Draw how many candidates are feasible, and how many are rejected for each reason."""
    go = plotly()
    counts = {"feasible": result.feasible, **result.rejected}
    if left_out := result.looked_at - sum(counts.values()):
        counts["left out as too slow"] = left_out
    names = [f"too little {n.replace('_', ' ')}" if "memory" in n else n for n in counts]
    numbers = list(counts.values())
    figure = go.Figure(
        go.Bar(
            x=numbers,
            y=[name.replace("_", " ") for name in names],
            orientation="h",
            marker={"color": [LINES[0], *[GREY] * (len(counts) - 1)]},
            text=[f"{n:,}" for n in numbers],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{x:,}<extra></extra>",
            name="candidates",
        )
    )
    subtitle = f"{search_words(result)}; {result.candidates:,} different strategies"
    title = "How many strategies are feasible, and why others are not"
    styled(figure, title, subtitle, height=200 + 36 * len(counts))
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title="strategies", range=[0, _ROOM * max(*numbers, 1)])
    return figure


def heat_map(result: SearchResult, axes: Sequence[str] = ()) -> Figure:
    """Draw the best plan for every combination of two fields' values, colored by the objective."""
    drawn = _map_of(result, axes)
    subtitle = f"{search_words(result)}; {drawn.best_words}"
    if any(not drawn.ends[0] <= value <= drawn.ends[1] for _, _, value in drawn.found):
        subtitle += f"; {_COLOR_SPAN:g} times worse or more: darkest"
    return drawn.heat_map(subtitle)


def _map_of(result: SearchResult, axes: Sequence[str]) -> Map:
    """Lay the cells of a search out over two axes, the best of those that meet."""
    fields = list(result.cells[0].values) if result.cells else []
    chosen = list(axes) or fields
    if len(chosen) != _AXES_OF_A_MAP or not set(chosen) <= set(fields):
        found = f" (this one: {', '.join(fields)})" if fields else ""
        raise chart_error(f"two axes to draw over{found}", "search with axes=('tp', 'pp')")
    down, across = chosen
    rows, columns = (_values(result, field) for field in chosen)
    plans: list[list[Plan | None]] = [[None] * len(columns) for _ in rows]
    shown = OBJECTIVE_MEASURES[result.objective]
    for cell in result.cells:
        r, c = rows.index(cell.values[down]), columns.index(cell.values[across])
        before = plans[r][c]
        if before is None or shown.rank(cell.plan) < shown.rank(before):
            plans[r][c] = cell.plan
    return Map(
        names=(down, across),
        labels=([value_word(value) for value in rows], [value_word(value) for value in columns]),
        shown=shown,
        values=[[None if plan is None else shown.value(plan) for plan in row] for row in plans],
        hover=[
            [
                "no feasible strategy here" if p is None else hover_text(p, result.capacity_bytes)
                for p in row
            ]
            for row in plans
        ],
        clip=_COLOR_SPAN,
    )


def _values(result: SearchResult, field: str) -> list[Any]:
    """Values that the space names, and those that something was found with."""
    named = result.space.get(field)
    declared = list(named) if isinstance(named, (list, tuple)) else []
    return ordered_values(field, [*declared, *(cell.values[field] for cell in result.cells)])


def charts(result: SearchResult) -> dict[str, Figure]:
    """Draw all that a search found, by name; what was not requested is left out."""
    drawn: dict[str, Figure] = {}
    if result.rows:
        drawn |= {"best-time": best_time(result), "best-memory": best_memory(result)}
    fields = list(result.cells[0].values) if result.cells else []
    for axes in combinations(fields, _AXES_OF_A_MAP):
        drawn["by-" + "-".join(axes)] = heat_map(result, axes)
    if result.pareto:
        drawn["front"] = front(result)
    if any(scale.best is not None for scale in result.scales):
        drawn["scaling"] = scaling(result)
    if result.candidates:
        drawn["candidates"] = rejections(result)
    return drawn


def write_charts(result: SearchResult, path: str | Path) -> None:
    """Write all charts of a search on one page, .html with all that it needs, or .json by name."""
    least = "" if result.counts_exact else "at least "
    counts = f"{result.candidates:,} strategies, {least}{result.feasible:,} of them feasible"
    facts = [f"{counts}; searched in {result.elapsed_s:.1f} s"]
    if not result.rows:
        facts.append("Nothing is feasible: each strategy breaks a rule or does not fit.")
    if not result.complete:
        facts.append("Interrupted: this is what was found in a part of the space.")
    write_page(path, search_words(result), facts, charts(result))
