"""Scenarios side by side, as charts: components of time and memory, and what changes the time."""

import html
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from textwrap import wrap

from shardwise.analysis.comparison import Change, Comparison
from shardwise.report.charts.common import (
    ACCENT,
    BUTTONS,
    INK,
    LINES,
    Figure,
    component_bar,
    expected_mark,
    memory_components,
    plotly,
    styled,
    time_components,
    write_page,
)
from shardwise.report.charts.estimate import MEMORY_NAMES, NO_LIMIT
from shardwise.report.console import GIB, percent, seconds
from shardwise.report.tables.compare import best_words, change_words, in_words, who_runs
from shardwise.report.tables.estimate import PART_NAMES

# Pixels: of a bar with its gap, and of everything above and below the bars.
_BAR = 46
_AROUND = 310
# Levels that are nearer to each other than this share of them are drawn from beyond 0.
_NEAR = 0.4
# What stays free for words before and behind all levels, as shares of what these span.
_SPARE = (0.5, 0.35)
_LABEL = 14


def times(found: Comparison) -> Figure:
    """Draw the components of each scenario's time as one bar, the first on top."""
    figure = plotly().Figure()
    for component in time_components([one.time_s for one in found.scenarios], PART_NAMES):
        _add_component(figure, found, *component, seconds)
    totals = [sum(outcome.time_s.values()) for outcome in found.scenarios]
    ranges = [
        None if known is None else (total * known.low_s / step, total * known.high_s / step)
        for total, known, step in (
            (total, outcome.interval, outcome.step_time_s)
            for total, outcome in zip(totals, found.scenarios, strict=True)
        )
    ]
    figure.add_trace(expected_mark(totals, ranges, _labels(found)))
    unit = "a step" if found.per == "step" else "a million tokens"
    return _barred(figure, found, "Where the time goes", f"time of {unit} [s]")


def memory(found: Comparison) -> Figure:
    """Draw the memory of the peak-memory stage of each scenario, with the capacity."""
    figure = plotly().Figure()
    memories = [outcome.memory_bytes for outcome in found.scenarios]
    for name, color, sizes in memory_components(memories, MEMORY_NAMES):
        if any(sizes):
            _add_component(figure, found, name, color, sizes, lambda v: f"{v:.2f} GiB")
    limits = [one.capacity for one in memories]
    figure.add_trace(
        plotly().Scatter(
            x=[limit / GIB if limit < NO_LIMIT else None for limit in limits],
            y=_labels(found),
            mode="markers",
            marker={
                "symbol": "line-ns",
                "size": 26,
                "line": {"color": ACCENT, "width": 3},
            },
            hovertemplate="capacity %{x:.2f} GiB<extra></extra>",
            name="capacity",
        )
    )
    return _barred(figure, found, "Memory of the peak-memory stage", "memory of a GPU [GiB]")


def _add_component(
    figure: Figure,
    found: Comparison,
    name: str,
    color: str,
    values: Sequence[float],
    words: Callable[[float], str],
) -> None:
    figure.add_trace(
        component_bar(
            name,
            color,
            values,
            _labels(found),
            customdata=[words(value) for value in values],
            hovertemplate=f"<b>{name}</b><br>%{{y}}: %{{customdata}}<extra></extra>",
        )
    )


def _labels(found: Comparison) -> list[str]:
    return [_wrapped(outcome.name) for outcome in found.scenarios]


def _wrapped(name: str) -> str:
    """A name in lines that leave room for bars."""
    return "<br>".join(html.escape(line) for line in wrap(name, _LABEL))


def _barred(figure: Figure, found: Comparison, title: str, axis: str) -> Figure:
    bars = _BAR * len(found.scenarios)
    styled(figure, title, "the first scenario on top", height=_AROUND + bars)
    figure.update_layout(
        barmode="stack",
        bargap=0.3,
        margin={"l": 60, "r": 20, "b": 20},
        modebar={"remove": BUTTONS},
    )
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title=axis, rangemode="tozero")
    return figure


def waterfall(change: Change, per: str = "step") -> Figure:
    """Draw how the time of the first scenario becomes that of another, component by component."""
    moved = [part for part in change.parts if part.delta_s]
    names = [PART_NAMES[part.part].replace(" ", "<br>", 1) for part in moved]
    labels = [_wrapped(change.against), *names, _wrapped(change.name)]
    steps = [change.before_s, *(part.delta_s for part in moved), change.after_s]
    signs = ["", *("+" if part.delta_s > 0 else "" for part in moved), ""]
    figure = plotly().Figure(
        plotly().Waterfall(
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
    more = "more" if change.delta_s > 0 else "less"
    subtitle = f"{seconds(abs(change.delta_s))} {more}, {percent(abs(change.share))}"
    subtitle += "; the axis begins beyond 0" if axis[0] else ""
    styled(figure, f"From {change.against} to {change.name}", subtitle, height=height)
    figure.update_layout(margin={"l": 60, "r": 60}, showlegend=False, modebar={"remove": BUTTONS})
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title=f"time {'of a step' if per == 'step' else f'per {per}'} [s]")
    figure.update_xaxes(range=axis)
    return figure


def _range(steps: Sequence[float]) -> list[float]:
    """Where the axis of a waterfall of levels begins and ends: not at 0 where changes are small."""
    levels = list(accumulate(steps))
    least, most = min(levels), max(levels)
    before, behind = (spare * ((most - least) or most) for spare in _SPARE)
    near = most - least < _NEAR * most and least > before
    return [least - before if near else 0.0, most + behind]


def charts(found: Comparison) -> dict[str, Figure]:
    """Draw all charts of a comparison, by name."""
    drawn = {"times": times(found), "memory": memory(found)}
    for position, change in enumerate(found.changes, start=2):
        drawn[f"change-{position}"] = waterfall(change, found.per)
    return drawn


def write_charts(found: Comparison, path: str | Path) -> None:
    """Write all charts of a comparison on one page, as `write_page` does."""
    differences = [
        f"{one.field.replace('_', ' ')} {' / '.join(map(in_words, one.values))}"
        for one in found.asked
    ]
    facts = [
        who_runs(found),
        f"differences: {'; '.join(differences) or 'nothing'}",
        *(change_words(change, found.per) for change in found.changes),
        *best_words(found),
        *found.notes,
    ]
    names = [outcome.name for outcome in found.scenarios]
    title = f"{', '.join(names[:-1])} and {names[-1]} side by side"
    write_page(path, title, facts, charts(found))
