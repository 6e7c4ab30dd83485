"""Charts of a training run, of the components of a model, and of methods of fine-tuning."""

from math import isfinite

from shardwise.analysis.graph.records import ComputeGraph
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.planning.methods import MethodPlan, MethodTable
from shardwise.report.charts.common import (
    GREY,
    LINES,
    TIME_COLORS,
    Figure,
    component_bar,
    plotly,
    styled,
    whiskers,
)
from shardwise.report.console import count, gpu_count, percent
from shardwise.report.tables.cluster import days, dollars

_SHARES = {
    "useful": ("training", TIME_COLORS["forward"]),
    "checkpoints": ("checkpoints", TIME_COLORS["dp_comm"]),
    "lost_work": ("lost work", TIME_COLORS["pp_comm"]),
    "restarts": ("restarts", TIME_COLORS["offload"]),
    "waiting": ("waiting for repairs", GREY),
}
_PHASES = {
    "forward": ("forward", TIME_COLORS["forward"]),
    "input_grad": ("gradient of input", TIME_COLORS["backward"]),
    "weight_grad": ("gradient of weights", TIME_COLORS["optimizer"]),
    "recompute": ("recompute", TIME_COLORS["recompute"]),
}
_ROW_HEIGHT, _FRAME = 34, 230


def days_of_run(run: TrainingTime) -> Figure:
    """Draw the calendar days of a training run by what they are spent on, with their range.

    A run that never finishes has no bars.
    """
    figure = plotly().Figure()
    total = run.effective_days
    amount = run.days if run.goodput is None else run.goodput.days
    shares = {"useful": 1.0} if run.goodput is None else run.goodput.share
    place = [f"{gpu_count(run.gpus)}<br>of {run.system}"]
    drawn = [name for name in _SHARES if isfinite(total) and shares.get(name)]
    for name in drawn:
        words, color = _SHARES[name]
        hover = f"{words}: %{{x:.3g}} days<extra></extra>"
        bar = component_bar(words, color, [total * shares[name]], place, hovertemplate=hover)
        if name == drawn[-1] and amount is not None and amount.low is not None:
            # The whisker of the last bar is at the end of the stack.
            ends = (amount.low, amount.low if amount.high is None else amount.high)
            bar.error_x = whiskers([total], [ends])
        figure.add_trace(bar)
    price = "price unknown" if run.effective_usd is None else dollars(run.effective_usd)
    words = f"{days(total)} days" if isfinite(total) else "never finishes"
    subtitle = f"{run.model}, {count(run.tokens_asked)} tokens: {words}, {price}"
    if run.goodput is None:
        subtitle += "; failures and checkpoints unknown"
    styled(figure, "Days of the training run", subtitle, height=300)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="calendar days", rangemode="tozero")
    return figure


def component_times(graph: ComputeGraph) -> Figure:
    """Draw the time of each component in a step, on one rank of every stage, by phase."""
    figure = plotly().Figure()
    places = [f"{part.name} x {part.count}" for part in graph.parts]
    for phase, (words, color) in _PHASES.items():
        times = [
            (part.reruns if phase == "recompute" else part.runs) * part.phases[phase].time_s
            if phase in part.phases
            else 0.0
            for part in graph.parts
        ]
        if any(times):
            hover = f"%{{y}}, {words}: %{{x:,.3g}} s<extra></extra>"
            figure.add_trace(component_bar(words, color, times, places, hovertemplate=hover))
    where = f"{graph.model} on {gpu_count(graph.strategy['gpus'])} of {graph.system}"
    subtitle = f"{where}; kernels of a step on one rank of every stage, without communication"
    height = _FRAME + _ROW_HEIGHT * len(places)
    styled(figure, "Time of the components", subtitle, height=height)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="time in a step [s]")
    figure.update_yaxes(autorange="reversed")
    return figure


def method_charts(found: MethodTable) -> dict[str, Figure]:
    """Draw the fewest accelerators of each method, and the price of a token where it is known."""
    fitting = [plan for plan in found.plans if plan.gpus]
    priced = [plan for plan in fitting if plan.usd_per_million_tokens]
    drawn: dict[str, Figure] = {}
    if fitting:
        title = "Accelerators for fine-tuning"
        drawn["gpus"] = _bars(fitting, [float(one.gpus or 0) for one in fitting], title, "GPUs")
    if priced:
        usd = [one.usd_per_million_tokens or 0.0 for one in priced]
        drawn["price"] = _bars(priced, usd, "Price of fine-tuning", "USD per million tokens")
    return drawn


def _bars(plans: list[MethodPlan], values: list[float], title: str, axis: str) -> Figure:
    """A bar for each plan, in the color of its method."""
    figure = plotly().Figure()
    methods = list(dict.fromkeys(plan.finetune for plan in plans))
    for color, method in zip(LINES, methods, strict=False):
        own = [(p, v) for p, v in zip(plans, values, strict=True) if p.finetune == method]
        figure.add_trace(
            component_bar(
                method,
                color,
                [value for _, value in own],
                [f"{p.model}, {p.seq_len:,} tokens<br>{p.system}" for p, _ in own],
                customdata=[_hover(plan) for plan, _ in own],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    places = {(plan.model, plan.seq_len, plan.system) for plan in plans}
    height = _FRAME + _ROW_HEIGHT * len(places) * max(1, len(methods) // 2)
    styled(figure, title, "the fewest, as a power of 2, on which it fits with 90 %", height=height)
    figure.update_xaxes(title=axis, rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return figure


def _hover(plan: MethodPlan) -> str:
    """What is shown when the mouse rests on a plan."""
    sure = "" if plan.fits_probability is None else f", fits with {percent(plan.fits_probability)}"
    rate = f"{plan.tokens_per_s:,.0f} tokens/s"
    return f"<b>{plan.gpus} x {plan.system}</b>, {plan.finetune}{sure}<br>{rate}"
