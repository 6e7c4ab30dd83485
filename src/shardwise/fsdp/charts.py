"""A plan of FSDP2 units as charts: what memory buys, and what each wrapping holds."""

import math
from collections.abc import Sequence
from pathlib import Path

from shardwise.fsdp.planner.evaluate import Evaluated
from shardwise.fsdp.planner.memory import CATEGORIES
from shardwise.fsdp.result import FsdpPlan
from shardwise.fsdp.tables import CATEGORY_WORDS, run_words
from shardwise.report.charts.common import (
    ACCENT,
    INK,
    LINES,
    PAPER,
    Figure,
    chart_error,
    plotly,
    styled,
    write_page,
)
from shardwise.report.console import GIB
from shardwise.units import readable

_ROOM = 0.06
_BAR_HEIGHT, _FRAME = 56, 190
_COLOURS = {
    "sharded_weights": LINES[0],
    "optimizer": LINES[4],
    "sharded_gradients": LINES[1],
    "unsharded_weights": LINES[3],
    "gradients": LINES[2],
    "all_gather_buffers": ACCENT,
    "reduce_scatter_buffers": LINES[5],
    "activations": LINES[6],
    "fixed": INK,
}


def front(result: FsdpPlan) -> Figure:
    """Draw the best wrappings by memory, with the budget, the usual ones and the user's marked."""
    go = plotly()
    if not result.front:
        raise chart_error("a Pareto front", "plan with pareto=True", whose="plan")
    plans = [one.plan for one in result.front]
    plans += [] if result.planned is None else [result.planned.plan]
    plans.sort(key=lambda plan: (plan.peak.total_bytes, plan.step_s))
    figure = go.Figure(
        go.Scatter(
            x=[_gib(plan) for plan in plans],
            y=[_ms(plan) for plan in plans],
            mode="lines+markers",
            line={"dash": "dot", "color": LINES[0], "width": 1.5},  # budgets between are not tried
            marker={"size": 8, "color": LINES[0], "line": {"color": PAPER, "width": 1}},
            customdata=[_hover("best for its memory", plan) for plan in plans],
            hovertemplate="%{customdata}<extra></extra>",
            name="best wrappings",
        )
    )
    marked = [(one.name, one.plan) for one in result.usual]
    marked += [] if result.own is None else [(result.own.name, result.own.plan)]
    symbols = ("square", "diamond", "triangle-up", "cross")
    for i, (name, plan) in enumerate(marked):
        _mark(figure, name, plan, color=LINES[(i + 1) % len(LINES)], symbol=symbols[i % 4])
    if result.planned is not None:
        _mark(figure, "best within the budget", result.planned.plan, color=ACCENT, symbol="star")
    every = [*plans, *(plan for _, plan in marked)]
    memories = [_gib(plan) for plan in every]
    if math.isfinite(result.budget_bytes):
        _budget(figure, result.budget_bytes / GIB, max(memories))
    figure.update_xaxes(title="peak memory of a GPU [GiB]", rangemode="tozero")
    figure.update_yaxes(title="step without the optimizer [ms]")
    styled(figure, "What memory buys", f"{run_words(result)}; the time axis does not start at 0")
    return figure


def _gib(plan: Evaluated) -> float:
    return plan.peak.total_bytes / GIB


def _ms(plan: Evaluated) -> float:
    return 1e3 * plan.step_s


def _hover(name: str, plan: Evaluated) -> str:
    """Text that is shown when the mouse rests on a wrapping."""
    lines = [f"<b>{name}</b>"]
    lines.append(f"peak {readable(plan.peak.total_bytes, 'bytes', 4)}")
    lines.append(f"step {readable(plan.step_s, 'seconds', 4)}")
    lines.append(f"exposed {readable(plan.exposed_s, 'seconds')}")
    lines.append(f"{len(plan.wrapping.units)} units besides the root")
    if again := plan.wrapping.checkpointed:
        lines.append(f"{len(again)} blocks checkpointed")
    return "<br>".join(lines)


def _mark(figure: Figure, name: str, plan: Evaluated, *, color: str, symbol: str) -> None:
    star = symbol == "star"
    figure.add_trace(
        plotly().Scatter(
            x=[_gib(plan)],
            y=[_ms(plan)],
            mode="markers",
            marker={
                "size": 17 if star else 12,
                "color": color,
                "symbol": symbol,
                "line": {"color": PAPER, "width": 1},
            },
            customdata=[_hover(name, plan)],
            hovertemplate="%{customdata}<extra></extra>",
            name=name,
        )
    )


def _budget(figure: Figure, budget: float, most: float) -> None:
    """A line at the budget; where it is far off, only words that say so."""
    if budget <= most * (1 + 4 * _ROOM):
        figure.add_vline(
            x=budget,
            line={"color": ACCENT, "dash": "dash", "width": 1.5},
            annotation_text=f"budget {budget:.4g} GiB",
            annotation_position="top",
            annotation_font={"color": ACCENT},
        )
        return
    figure.add_annotation(
        text=f"budget {budget:.4g} GiB →",
        x=1,
        y=1,
        xref="paper",
        yref="paper",
        xanchor="right",
        yanchor="bottom",
        showarrow=False,
        font={"color": ACCENT},
    )


def memory(result: FsdpPlan) -> Figure:
    """Draw the peak memory of each wrapping, by category."""
    go = plotly()
    rows: list[tuple[str, Evaluated]] = []
    if result.planned is not None:
        rows.append(("best", result.planned.plan))
    rows += [(one.name, one.plan) for one in result.usual]
    rows += [] if result.own is None else [(result.own.name, result.own.plan)]
    figure = go.Figure()
    for name in CATEGORIES:
        sizes = [plan.peak.bytes[name] / GIB for _, plan in rows]
        if max(sizes) <= 0:
            continue
        words = CATEGORY_WORDS[name]
        figure.add_trace(
            go.Bar(
                y=[row for row, _ in rows],
                x=sizes,
                orientation="h",
                name=words,
                marker={"color": _COLOURS[name]},
                hovertemplate=f"{words}: %{{x:.3f}} GiB<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="peak memory [GiB]")
    most = max(_gib(plan) for _, plan in rows)
    if math.isfinite(result.budget_bytes):
        _budget(figure, result.budget_bytes / GIB, most)
    height = _FRAME + _BAR_HEIGHT * len(rows)
    styled(figure, "What a GPU holds", run_words(result), height=height)
    return figure


def charts(result: FsdpPlan) -> dict[str, Figure]:
    """Draw all that a plan has, by name."""
    drawn: dict[str, Figure] = {}
    if result.front:
        drawn["front"] = front(result)
    return drawn | {"held": memory(result)}


def write_charts(result: FsdpPlan, path: str | Path) -> None:
    """Write all charts on one page, .html with all that it needs, or .json by name."""
    facts: Sequence[str] = (result.reason,) if result.planned is None else _facts(result)
    write_page(path, f"FSDP2 units of {result.model}", facts, charts(result))


def _facts(result: FsdpPlan) -> list[str]:
    planned = result.best()
    plan = planned.plan
    fact = f"Step {readable(plan.step_s, 'seconds')}, {readable(plan.exposed_s, 'seconds')} of it "
    fact += f"exposed communication; peak {readable(plan.peak.total_bytes, 'bytes', 4)}; "
    fact += f"{len(plan.wrapping.units)} units besides the root"
    if planned.optimal:
        return [f"{fact}; proved best of its space."]
    return [f"{fact}; nothing below {readable(planned.bound_s, 'seconds')} of exposed time exists."]
