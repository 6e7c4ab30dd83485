"""The pipeline of one step as a chart: which pass of which micro-batch a rank runs, and when."""

from dataclasses import dataclass

import numpy as np

from shardwise.analysis.timeline.actions import KINDS
from shardwise.analysis.timeline.step import StepTimeline
from shardwise.arrays import Bools
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD, WEIGHTS
from shardwise.report.charts.common import AXIS, GREY, TIME_COLORS, Drawn, Trace, layout_of
from shardwise.report.console import seconds

_NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHTS: "weight gradients"}
_COLORS = {
    FORWARD: TIME_COLORS["forward"],
    BACKWARD: TIME_COLORS["backward"],
    WEIGHTS: TIME_COLORS["recompute"],
}
_AFTER = {
    "replicas": ("dp communication", TIME_COLORS["dp_comm"]),
    "offload": ("offload", TIME_COLORS["offload"]),
    "optimizer": ("optimizer", TIME_COLORS["optimizer"]),
    "overhead": ("overhead", GREY),
}
_MS = 1e3
_MOST_BARS = 4000
"""Passes that are drawn; a browser moves so many without delay."""
_MOST_LABELS = 400
_RANK_HEIGHT, _FRAME = 34, 240
_MOST_HEIGHT = 900


def pipeline_timeline(timeline: StepTimeline, *, most_bars: int = _MOST_BARS) -> Drawn:
    """Draw the passes of every rank of a pipeline, and what follows the last one.

    Of long steps the first micro-batches are drawn: as many as a browser moves without delay.
    """
    traces: list[Trace] = []
    drawn = _drawn(timeline, most_bars)
    for code, kind in enumerate(KINDS):
        chosen = drawn.shown & (timeline.actions.kind == code)
        if chosen.any():
            traces.append(_passes(timeline, chosen, kind))
    if drawn.micro_batches == timeline.pipeline.micro_batches:
        traces += _after(timeline)
    ranks = timeline.pipeline.ranks
    layout = layout_of("Pipeline of one step", _words(timeline, drawn), height=_height(ranks))
    layout["margin"] |= {"l": 60, "r": 20}
    layout |= {
        "barmode": "overlay",
        "bargap": 0.15,
        "dragmode": "zoom",
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "xaxis": AXIS | {"title": {"text": "time [ms]"}, "rangemode": "tozero", "tickformat": ","},
        "yaxis": AXIS
        | {
            "title": {"text": "pipeline rank"},
            "autorange": "reversed",
            "tickmode": "array",
            "tickvals": list(range(ranks)),
        },
    }
    return {"data": traces, "layout": layout}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """Which passes are drawn."""

    shown: Bools
    micro_batches: int


def _drawn(timeline: StepTimeline, most_bars: int) -> _Drawn:
    actions = timeline.actions
    count = timeline.pipeline.micro_batches
    per_micro_batch = max(1, len(actions) // max(1, count))
    first = min(count, max(1, most_bars // per_micro_batch))
    return _Drawn(shown=actions.micro_batch < first, micro_batches=first)


def _passes(timeline: StepTimeline, chosen: Bools, kind: str) -> Trace:
    """Bars of one kind of pass."""
    actions = timeline.actions
    start, end = actions.start_s[chosen] * _MS, actions.end_s[chosen] * _MS
    micro, stage = actions.micro_batch[chosen], actions.stage[chosen]
    few = int(chosen.sum()) <= _MOST_LABELS
    return dict(
        type="bar",
        orientation="h",
        name=_NAMES[kind],
        base=start.tolist(),
        x=(end - start).tolist(),
        y=actions.rank[chosen].tolist(),
        **({"text": [str(one) for one in micro.tolist()]} if few else {}),
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        marker={"color": _COLORS[kind], "line": {"color": "white", "width": 0.5}},
        customdata=np.stack([micro, stage, start, end], axis=1).tolist(),
        hovertemplate=(
            f"<b>{_NAMES[kind]}</b>, micro-batch %{{customdata[0]}}<br>"
            "rank %{y}, virtual stage %{customdata[1]}<br>"
            "%{customdata[2]:.2f} to %{customdata[3]:.2f} ms<extra></extra>"
        ),
    )


def _after(timeline: StepTimeline) -> list[Trace]:
    """Bars of what follows the last pass, on all ranks at once."""
    traces: list[Trace] = []
    start = timeline.passes_s
    ranks = list(range(timeline.pipeline.ranks))
    for name, time in timeline.after_s.items():
        if time > 0:
            title, color = _AFTER[name]
            trace = {
                "type": "bar",
                "orientation": "h",
                "name": title,
                "base": [start * _MS] * len(ranks),
                "x": [time * _MS] * len(ranks),
                "y": ranks,
                "marker": {"color": color},
                "hovertemplate": f"<b>{title}</b><br>%{{x:.2f}} ms<extra></extra>",
            }
            traces.append(trace)
        start += time
    return traces


def _words(timeline: StepTimeline, drawn: _Drawn) -> str:
    pipeline = timeline.pipeline
    number = pipeline.micro_batches
    part = (
        f"the first {drawn.micro_batches} of {number}" if drawn.micro_batches < number else number
    )
    return (
        f"{pipeline.schedule}, {part} micro-batches, {seconds(timeline.step_s)} per step; "
        "drag to zoom, double-click to reset"
    )


def _height(ranks: int) -> int:
    return min(_MOST_HEIGHT, _FRAME + _RANK_HEIGHT * ranks)
