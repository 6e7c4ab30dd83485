"""The choice of a cluster: days against money, with the front, deadline and budget."""

from collections.abc import Sequence
from math import log10
from pathlib import Path

from shardwise.analysis.training_run.time import DAY_S
from shardwise.planning.cluster_choice import ClusterChoice, ClusterOption
from shardwise.report.charts.common import (
    ACCENT,
    GREY,
    INK,
    LINES,
    MUTED,
    Figure,
    chart_error,
    dots,
    log_axis_if_wide,
    plotly,
    steps,
    styled,
    write,
)
from shardwise.report.console import chance, count
from shardwise.report.tables.cluster import days, dollars
from shardwise.report.tables.strategy_line import in_brief

_MILLION = 1e6
_ROOM = 1.25


def write_chart(found: ClusterChoice, path: str | Path) -> None:
    """Write the chart of a choice to a file."""
    write(cluster_front(found), path)


def cluster_front(found: ClusterChoice) -> Figure:
    """Draw every option by its days and its price, with the front between both.

    Colors are systems, labels numbers of accelerators; larger rings are the two answers. Options
    without a price are named below the title.
    """
    plotly()
    priced = [n for n, one in enumerate(found.options) if _is_priced(one)]
    if not priced:
        remedy = "set prices, as in --price NAME=USD"
        raise chart_error("an option with days and a price", remedy, whose="choice of a cluster")
    figure = plotly().Figure()
    front = [(one.days, _millions(one)) for one in (found.options[n] for n in found.front)]
    figure.add_trace(steps(front, "front", color=INK, dash="dot"))
    for number, system in enumerate(found.systems):
        own = [n for n in priced if found.options[n].system == system]
        if own:
            _add_system(figure, found, own, LINES[number % len(LINES)])
    _add_answers(figure, found)
    words = [f"{count(found.tokens)} tokens"]
    if found.unpriced:
        words.append(f"no price: {', '.join(found.unpriced)}")
    styled(figure, f"Which cluster for {found.model}", "; ".join(words), height=620)
    x = [found.options[n].days or 0.0 for n in priced]
    y = [_millions(found.options[n]) for n in priced]
    limit = None if found.deadline_s is None else found.deadline_s / DAY_S
    text = "" if limit is None else f"deadline {days(limit)} days"
    _add_axis(figure, "x", "days", x, limit, text)
    limit = None if found.budget_usd is None else found.budget_usd / _MILLION
    _add_axis(figure, "y", "price [million USD]", y, limit, f"budget {dollars(found.budget_usd)}")
    return figure


def _is_priced(one: ClusterOption) -> bool:
    return one.days is not None and one.usd is not None


def _millions(one: ClusterOption) -> float:
    return (one.usd or 0.0) / _MILLION


def _add_system(figure: Figure, found: ClusterChoice, positions: Sequence[int], color: str) -> None:
    """Draw the sizes of one system."""
    own = [found.options[n] for n in positions]
    batches = len({one.global_batch_size for one in found.options}) > 1
    labels = [f"{one.gpus:,}" + (f" / {one.global_batch_size:,}" if batches else "") for one in own]
    figure.add_trace(
        dots(
            [one.days for one in own],
            [_millions(one) for one in own],
            [_hover(one) for one in own],
            mode="markers+text",
            text=labels,
            textposition="top right",
            textfont={"size": 11, "color": color},
            marker={"size": 10, "color": color},
            name=own[0].system,
            cliponaxis=False,
        )
    )


def _hover(one: ClusterOption) -> str:
    """What is shown when the mouse rests on an option."""
    lines = [
        f"<b>{one.gpus:,} x {one.system}</b>, batch {one.global_batch_size:,}",
        f"{days(one.days or 0.0)} days, {dollars(one.usd)}",
    ]
    if one.plan is not None:
        lines.append(in_brief(one.plan.strategy))
        if one.plan.fits_probability is not None:
            lines.append(f"fits with {chance(one.plan.fits_probability)}")
    return "<br>".join(lines)


def _add_answers(figure: Figure, found: ClusterChoice) -> None:
    """Ring the cheapest in time and the fastest in budget."""
    cheapest = "cheapest" if found.deadline_s is None else "cheapest in time"
    fastest = "fastest" if found.budget_usd is None else "fastest in budget"
    for position, name, size in ((found.cheapest, cheapest, 18), (found.fastest, fastest, 24)):
        if position is None or not _is_priced(found.options[position]):
            continue
        one = found.options[position]
        figure.add_trace(
            plotly().Scatter(
                x=[one.days],
                y=[_millions(one)],
                mode="markers",
                marker={
                    "size": size,
                    "symbol": "circle-open" if position == found.cheapest else "square-open",
                    "color": ACCENT,
                    "line": {"width": 2},
                },
                hoverinfo="skip",
                name=name,
            )
        )


def _add_axis(
    figure: Figure,
    axis: str,
    title: str,
    values: Sequence[float],
    limit: float | None,
    text: str,
) -> None:
    """Scale an axis for all values and a limit, which is a line with a text."""
    every = [*values] if limit is None else [*values, limit]
    scale = log_axis_if_wide(every)
    low, high = min(every) / _ROOM, max(every) * _ROOM
    ends = [log10(low), log10(high)] if scale else [low, high]
    update = figure.update_xaxes if axis == "x" else figure.update_yaxes
    update(title=title, range=ends, **scale)
    if limit is None:
        return
    line = {"color": GREY, "width": 1.5, "dash": "dash"}
    # An annotation is placed in logarithms where the axis is logarithmic, a line in values.
    place = log10(limit) if scale else limit
    note = {"text": text, "showarrow": False, "font": {"color": MUTED, "size": 11}}
    if axis == "x":
        figure.add_vline(x=limit, line=line)
        side = {"x": place, "xanchor": "right", "y": 1, "yref": "y domain", "yanchor": "bottom"}
    else:
        figure.add_hline(y=limit, line=line)
        side = {"y": place, "yanchor": "bottom", "x": 1, "xref": "x domain", "xanchor": "right"}
    figure.add_annotation(**note, **side)
