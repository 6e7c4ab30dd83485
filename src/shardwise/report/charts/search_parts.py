"""Where time and memory of the best plans go, and what became of all candidates, as charts."""

from collections.abc import Sequence

from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.planning.search.results import SearchResult
from shardwise.report.charts.common import ACCENT, LINES, Figure, dressed, graphs
from shardwise.report.charts.plans import degrees, in_full, plan_of, rounded, run_words
from shardwise.report.console import GIB

__all__ = ["GREY", "PART_WORDS", "TIME_COLOURS", "best_memory", "best_time", "rejections"]

GREY = "#b0b7c0"
# In the order of `TIME_PARTS`: work in blues, exchanges in warm colours, waiting in greys.
TIME_COLOURS = {
    "forward": "#56b4e9",
    "backward": "#0072b2",
    "recompute": "#7f5f9e",
    "optimizer": "#009e73",
    "tp_comm": "#e69f00",
    "cp_comm": "#f0c75e",
    "ep_comm": "#b8860b",
    "pp_comm": "#cc79a7",
    "dp_comm": "#d55e00",
    "offload": "#8d5524",
    "bubble": GREY,
    "other": "#6e7681",
}
PART_WORDS = {
    "tp_comm": "tp exchange",
    "cp_comm": "cp exchange",
    "ep_comm": "ep exchange",
    "pp_comm": "pp transfer",
    "dp_comm": "dp exchange",
    "bubble": "pipeline bubble",
    "other": "overhead",
}


def best_time(result: SearchResult) -> Figure:
    """Draw where the step time of the best strategies goes, one bar each, the best on top."""
    figure = graphs().Figure()
    for part in TIME_PARTS:
        times = [estimate.time_s[part] for estimate in result.best]
        if any(times):
            name = PART_WORDS.get(part, part)
            figure.add_trace(_bars(result, times, name, TIME_COLOURS[part], "s"))
    return _stacked(figure, result, "Where time goes in the best strategies", "time of a step [s]")


def best_memory(result: SearchResult) -> Figure:
    """Draw what the fullest stage of the best strategies holds, one bar each."""
    figure = graphs().Figure()
    for part, colour in zip(MEMORY_PARTS, LINES, strict=False):
        held = [getattr(estimate.memory_bytes, part) / GIB for estimate in result.best]
        figure.add_trace(_bars(result, held, part, colour, "GiB"))
    beside = [(e.memory_bytes.reserved - e.memory_bytes.total) / GIB for e in result.best]
    figure.add_trace(_bars(result, beside, "allocator and runtime", GREY, "GiB"))
    figure.add_vline(
        x=result.capacity_bytes / GIB,
        line={"color": ACCENT, "dash": "dash"},
        annotation_text="what may be used",
        annotation_position="top",
    )
    axis = "memory of a GPU on the fullest stage [GiB]"
    return _stacked(figure, result, "What the best strategies hold", axis)


def rejections(result: SearchResult) -> Figure:
    """Draw how many candidates are feasible, and how many are rejected for each reason."""
    go = graphs()
    counts = {"feasible": result.feasible, **result.rejected}
    names = [f"too little {n.replace('_', ' ')}" if "memory" in n else n for n in counts]
    numbers = list(counts.values())
    figure = go.Figure(
        go.Bar(
            x=numbers,
            y=[name.replace("_", " ") for name in names],
            orientation="h",
            marker={"color": [LINES[0], *[GREY] * len(result.rejected)]},
            text=[f"{n:,}" for n in numbers],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{x:,}<extra></extra>",
            name="candidates",
        )
    )
    subtitle = f"{run_words(result)}; {result.candidates:,} strategies, none of them twice"
    dressed(figure, "What became of all strategies", subtitle, height=200 + 36 * len(counts))
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title="strategies")
    return figure


def _bars(
    result: SearchResult, values: Sequence[float], name: str, colour: str, unit: str
) -> Figure:
    """One part of every bar."""
    ranks = [f"{i}  {degrees(e.strategy)}" for i, e in enumerate(result.best, start=1)]
    strategies = [in_full(plan_of(e), result.capacity_bytes) for e in result.best]
    return graphs().Bar(
        x=list(values),
        y=ranks,
        orientation="h",
        name=name,
        marker={"color": colour, "line": {"color": "white", "width": 0.5}},
        text=[f"{name} {rounded(value)} {unit}" for value in values],
        textposition="none",
        customdata=strategies,
        hovertemplate="<b>%{text}</b><br><br>%{customdata}<extra></extra>",
    )


def _stacked(figure: Figure, result: SearchResult, title: str, axis: str) -> Figure:
    dressed(figure, title, run_words(result), height=230 + 32 * len(result.best))
    figure.update_layout(
        barmode="stack",
        bargap=0.25,
        legend={"orientation": "v", "x": 1.01, "y": 1, "traceorder": "normal"},
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    figure.update_xaxes(title=axis)
    return figure
