"""Scenarios side by side, as charts: parts of time and memory, and what the time changes by."""

import html
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from textwrap import wrap

from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.planning.compare.results import Change, Comparison, Outcome
from shardwise.report.charts.common import (
    ACCENT,
    INK,
    LINES,
    Figure,
    check_chart_file,
    dressed,
    graphs,
    write_page,
)
from shardwise.report.charts.estimate import MEMORY_COLOURS
from shardwise.report.charts.search_parts import TIME_COLOURS
from shardwise.report.console import GIB, percent, seconds
from shardwise.report.tables.compare import best_words, change_words, in_words, who_runs
from shardwise.report.tables.estimate import PART_NAMES
from shardwise.report.tables.estimate_parts import MEMORY_NAMES, NO_LIMIT

__all__ = ["charts", "check_chart_file", "memory", "times", "waterfall", "write_charts"]

_LEGEND = {"orientation": "h", "x": 0, "yanchor": "top", "traceorder": "normal"}
_BUTTONS = ("zoom", "pan", "select", "lasso", "zoomin", "zoomout", "autoscale", "resetscale")
# Pixels: of a bar with its gap, and of what stands above and below all bars.
_BAR = 46
_AROUND = 310
# And what the figures of an axis take.
_AXIS = 36
# Levels that are nearer to each other than this share of them are drawn from beyond 0.
_NEAR = 0.4
# What stays free for words before and behind all levels, as shares of what these span.
_SPARE = (0.5, 0.35)
_LABEL = 14


def times(found: Comparison) -> Figure:
    """Draw the parts of each scenario's time as one bar, the first on top."""
    figure = graphs().Figure()
    for part in TIME_PARTS:
        taken = [outcome.time_s[part] for outcome in found.scenarios]
        if any(taken):
            _add_part(figure, found, PART_NAMES[part], TIME_COLOURS[part], taken, seconds)
    unit = "a step" if found.per == "step" else "a million tokens"
    return _barred(figure, found, "Where the time goes", f"seconds of {unit}")


def memory(found: Comparison) -> Figure:
    """Draw what the fullest stage of each scenario holds, with what its accelerator has."""
    figure = graphs().Figure()
    for part in (*MEMORY_PARTS, "runtime"):
        held = [_held(outcome, part) / GIB for outcome in found.scenarios]
        if any(held):
            name = MEMORY_NAMES.get(part, part)
            _add_part(figure, found, name, MEMORY_COLOURS[part], held, lambda v: f"{v:.2f} GiB")
    limits = [outcome.memory_bytes.capacity for outcome in found.scenarios]
    figure.add_trace(
        graphs().Scatter(
            x=[limit / GIB if limit < NO_LIMIT else None for limit in limits],
            y=_labels(found),
            mode="markers",
            marker={
                "symbol": "line-ns",
                "size": 26,
                "line": {"color": ACCENT, "width": 3},
            },
            hovertemplate="the accelerator has %{x:.2f} GiB<extra></extra>",
            name="what the accelerator has",
        )
    )
    return _barred(figure, found, "What the fullest stage holds", "GiB of a GPU")


def _held(outcome: Outcome, part: str) -> float:
    held = outcome.memory_bytes
    size: float = held.reserved - held.total if part == "runtime" else getattr(held, part)
    return size


def _add_part(
    figure: Figure,
    found: Comparison,
    name: str,
    colour: str,
    values: Sequence[float],
    words: Callable[[float], str],
) -> None:
    figure.add_trace(
        graphs().Bar(
            x=list(values),
            y=_labels(found),
            orientation="h",
            name=name,
            marker={"color": colour, "line": {"color": "white", "width": 0.5}},
            customdata=[words(value) for value in values],
            hovertemplate=f"<b>{name}</b><br>%{{y}}: %{{customdata}}<extra></extra>",
        )
    )


def _labels(found: Comparison) -> list[str]:
    return [_cut(outcome.name) for outcome in found.scenarios]


def _cut(name: str) -> str:
    """A name in lines that leave room for bars."""
    return "<br>".join(html.escape(line) for line in wrap(name, _LABEL))


def _barred(figure: Figure, found: Comparison, title: str, axis: str) -> Figure:
    bars = _BAR * len(found.scenarios)
    dressed(figure, title, f"{axis}, the first on top", height=_AROUND + bars)
    figure.update_layout(
        barmode="stack",
        bargap=0.3,
        margin={"l": 60, "r": 20, "b": 20},
        legend=_LEGEND | {"y": -_AXIS / (bars + _AXIS), "font": {"size": 12}},
        modebar={"remove": _BUTTONS},
    )
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(rangemode="tozero")
    return figure


def waterfall(change: Change, per: str = "step") -> Figure:
    """Draw how the time of the first scenario becomes that of another, part by part."""
    moved = [part for part in change.parts if part.delta_s]
    names = [PART_NAMES[part.part].replace(" ", "<br>", 1) for part in moved]
    labels = [_cut(change.against), *names, _cut(change.name)]
    steps = [change.before_s, *(part.delta_s for part in moved), change.after_s]
    signs = ["", *("+" if part.delta_s > 0 else "" for part in moved), ""]
    figure = graphs().Figure(
        graphs().Waterfall(
            orientation="h",
            y=labels,
            x=steps,
            measure=["absolute", *["relative"] * len(moved), "total"],
            text=[f"{sign}{seconds(value)}" for sign, value in zip(signs, steps, strict=True)],
            textposition="outside",
            cliponaxis=False,
            increasing={"marker": {"color": ACCENT}},
            decreasing={"marker": {"color": LINES[1]}},
            totals={"marker": {"color": LINES[0]}},
            connector={"line": {"color": INK, "width": 0.7, "dash": "dot"}},
            customdata=[
                "",
                *(", ".join(n.replace("_", " ") for n in part.inputs) for part in moved),
                "",
            ],
            hovertemplate="%{y}: %{text}<br>%{customdata}<extra></extra>",
            name="change",
        )
    )
    height = _AROUND - 80 + _BAR * len(labels)
    axis = _range(steps[:-1])
    told = signed_words(change) + ("; the axis begins beyond 0" if axis[0] else "")
    dressed(figure, f"From {change.against} to {change.name}", told, height=height)
    figure.update_layout(margin={"l": 60, "r": 60}, showlegend=False, modebar={"remove": _BUTTONS})
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title=f"time {'of a step' if per == 'step' else f'per {per}'} [s]")
    figure.update_xaxes(range=axis)
    return figure


def _range(steps: Sequence[float]) -> list[float]:
    """Where the axis of a waterfall begins and ends: not at 0 if the changes were too small then.

    Parameters
    ----------
    steps
        The first level, and what is added to it one after the other.
    """
    levels = list(accumulate(steps))
    least, most = min(levels), max(levels)
    before, behind = (spare * ((most - least) or most) for spare in _SPARE)
    near = most - least < _NEAR * most and least > before
    return [least - before if near else 0.0, most + behind]


def signed_words(change: Change) -> str:
    """The change in brief."""
    more = "more" if change.delta_s > 0 else "less"
    return f"{seconds(abs(change.delta_s))} {more}, {percent(abs(change.share))}"


def charts(found: Comparison) -> dict[str, Figure]:
    """Draw all that a comparison shows, by name."""
    drawn = {"times": times(found), "memory": memory(found)}
    for position, change in enumerate(found.changes, start=2):
        drawn[f"change-{position}"] = waterfall(change, found.per)
    return drawn


def write_charts(found: Comparison, path: str | Path) -> None:
    """Write all charts of a comparison on one page, as `figures.write_page` does."""
    told = [
        f"{one.field.replace('_', ' ')} {' / '.join(map(in_words, one.values))}"
        for one in found.asked
    ]
    facts = [
        who_runs(found),
        f"asked differently: {'; '.join(told) or 'nothing'}",
        *(change_words(change, found.per) for change in found.changes),
        *best_words(found),
        *found.notes,
    ]
    names = [outcome.name for outcome in found.scenarios]
    title = f"{', '.join(names[:-1])} and {names[-1]} side by side"
    write_page(path, title, facts, charts(found))
