"""What all charts share: plotly, colors, layout, and files."""

import html
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from math import floor, log10
from pathlib import Path
from typing import Any

from shardwise.config import files
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.report.charts.theme import (
    ACCENT,
    EMPTY,
    FONT,
    GREY,
    GRID,
    INK,
    LEGEND,
    LINES,
    MEMORY_COLORS,
    MUTED,
    PAPER,
    TIME_COLORS,
    VEIL,
    Drawn,
    Figure,
    Trace,
)
from shardwise.report.console import GIB
from shardwise.report.page.html import Chart, Page, page_html

__all__ = [
    "ACCENT",
    "AXIS",
    "BUTTONS",
    "COMPONENT_NAMES",
    "EMPTY",
    "GREY",
    "INK",
    "LEGEND",
    "LINES",
    "MEMORY_COLORS",
    "MUTED",
    "PAPER",
    "TIME_COLORS",
    "VEIL",
    "Drawn",
    "Figure",
    "Trace",
    "chart_error",
    "check_chart_file",
    "component_bar",
    "dots",
    "expected_mark",
    "layout_of",
    "limit_line",
    "log_axis",
    "log_axis_if_wide",
    "memory_components",
    "plotly",
    "spans_much",
    "steps",
    "styled",
    "subplots",
    "time_components",
    "whiskers",
    "write",
    "write_page",
]

COMPONENT_NAMES = {
    "tp_comm": "tp communication",
    "cp_comm": "cp communication",
    "ep_comm": "ep communication",
    "pp_comm": "pp transfer",
    "dp_comm": "dp communication",
    "bubble": "pipeline bubble",
    "other": "overhead",
    "runtime": "allocator and runtime",
}
"""Short names of components of time and memory whose key is no name."""
BUTTONS = ("zoom", "pan", "select", "lasso", "zoomin", "zoomout", "autoscale", "resetscale")
"""Buttons that charts of few bars go without."""
# Axes whose values differ by more than this factor are logarithmic.
_LOG_FROM = 5.0
_IMAGES = (".png", ".svg", ".pdf")
_SUFFIXES = (".html", ".json", *_IMAGES)
_log = logging.getLogger("shardwise.charts")
# Pixels of an image for each of a chart, so that print is sharp.
_SHARPNESS = 2
AXIS = {"gridcolor": GRID, "zeroline": False, "linecolor": INK, "automargin": True}
"""Of every axis of a figure."""
_IMAGE_WIDTH = 1180


def plotly() -> Any:
    """Return plotly's module of figures.

    Raises
    ------
    InputError
        If plotly is not installed.
    """
    return _imported("plotly.graph_objects")


def subplots(**words: Any) -> Figure:
    """Make a figure of several panels."""
    return _imported("plotly.subplots").make_subplots(**words)


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        problem = "charts need plotly, which is not installed: pip install 'shardwise[plots]'"
        raise InputError(Fault(problem=problem)) from None


def styled(
    figure: Figure, title: str, subtitle: str, *, height: int = 560, least_width: int = 0
) -> Figure:
    """Give a figure the layout of `layout_of`, and all its axes their grid."""
    layout = layout_of(title, subtitle, height=height, least_width=least_width)
    figure.update_layout(**layout)
    figure.update_xaxes(**AXIS)
    figure.update_yaxes(**AXIS)
    return figure


def layout_of(
    title: str, subtitle: str, *, height: int = 560, least_width: int = 0
) -> dict[str, Any]:
    """Title, fonts, margins and legend of a figure, as plotly's JSON.

    Parameters
    ----------
    least_width
        Pixels that it needs; a narrower page scrolls it.
    """
    small = f"<span style='font-size:13px;color:{MUTED}'>{html.escape(subtitle)}</span>"
    return {
        "template": "plotly_white",
        "font": {"family": FONT, "size": 13, "color": INK},
        "title": {
            "text": f"<b>{html.escape(title)}</b><br>{small}",
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 18},
            "font": {"size": 18},
        },
        "margin": {"l": 90, "r": 40, "t": 96, "b": 70},
        "height": height,
        "legend": LEGEND,
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
        "meta": {"title": title, "subtitle": subtitle, "least_width": least_width},
    }


def log_axis(values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis that is labeled at 1, 2 and 5 of each decade."""
    decades = range(floor(log10(min(values))) - 1, floor(log10(max(values))) + 2)
    ticks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    words = [f"{tick:,.0f}" if tick >= 1 else f"{tick:g}" for tick in ticks]
    return {"type": "log", "tickvals": ticks, "ticktext": words}


def spans_much(values: Sequence[float]) -> bool:
    """Whether values differ by so much that an axis should be logarithmic."""
    return max(values) > _LOG_FROM * min(values)


def log_axis_if_wide(values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis where values differ by much, else one that plotly chooses."""
    return log_axis(values) if spans_much(values) else {}


def chart_error(what: str, remedy: str, *, whose: str = "search") -> InputError:
    """Return the error that a search or sweep does not have what a chart shows."""
    return InputError.at("charts", f"the {whose} has not {what}; {remedy}")


def component_bar(
    name: str,
    color: str,
    values: Sequence[float],
    places: Sequence[Any],
    *,
    vertical: bool = False,
    **words: Any,
) -> Trace:
    """One component of every bar of a stack."""
    sides = {"x": places, "y": list(values)}
    if not vertical:
        sides = {"x": list(values), "y": places, "orientation": "h"}
    marker = {"color": color, "line": {"color": PAPER, "width": 0.5}}
    return plotly().Bar(**sides, name=name, marker=marker, **words)


def time_components(
    times: Sequence[Mapping[str, float]], names: Mapping[str, str] = COMPONENT_NAMES
) -> Iterator[tuple[str, str, list[float]]]:
    """Yield name, color and times of each component that takes any, in the order of a step."""
    for part in TIME_PARTS:
        if any(spent := [time[part] for time in times]):
            yield names.get(part, part), TIME_COLORS[part], spent


def memory_components(
    memories: Sequence[Any], names: Mapping[str, str] = COMPONENT_NAMES
) -> Iterator[tuple[str, str, list[float]]]:
    """Yield name, color and sizes [GiB] of each component of memories, the runtime last."""
    every = [one if isinstance(one, Mapping) else vars(one) for one in memories]
    for part in MEMORY_PARTS:
        yield names.get(part, part), MEMORY_COLORS[part], [one[part] / GIB for one in every]
    runtime = [(one["reserved"] - one["total"]) / GIB for one in every]
    yield names.get("runtime", "runtime"), MEMORY_COLORS["runtime"], runtime


def limit_line(figure: Figure, text: str, side: str, **at: float) -> None:
    """Draw a line at a limit, at x or y, with a text at a side of it."""
    line = {"color": ACCENT, "dash": "dash"}
    draw = figure.add_vline if "x" in at else figure.add_hline
    draw(**at, line=line, annotation_text=text, annotation_position=side)


def dots(x: Sequence[Any], y: Sequence[Any], hover: Sequence[str], **look: Any) -> Trace:
    """Points, each with the text that is shown when the mouse rests on it."""
    template = "%{customdata}<extra></extra>"
    return plotly().Scatter(x=x, y=y, customdata=hover, hovertemplate=template, **look)


def steps(points: Sequence[tuple[Any, Any]], name: str, **line: Any) -> Trace:
    """A Pareto front: more of one figure buys nothing of the other until the next point."""
    return plotly().Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="lines",
        line={**line, "shape": "hv", "width": 1.5},
        hoverinfo="skip",
        name=name,
    )


def whiskers(
    values: Sequence[float], ranges: Sequence[tuple[float, float] | None], color: str = INK
) -> dict[str, Any]:
    """Prediction intervals as error bars of the values of a trace.

    Parameters
    ----------
    ranges
        The lower and upper end of each interval; None where there is none.
    """
    known = list(zip(values, ranges, strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if ends is None else ends[1] - value for value, ends in known],
        "arrayminus": [0.0 if ends is None else value - ends[0] for value, ends in known],
        "color": color,
        "thickness": 1.5,
        "width": 5,
    }


def expected_mark(
    values: Sequence[float],
    ranges: Sequence[tuple[float, float] | None],
    places: Sequence[Any],
) -> Trace:
    """A mark at each predicted time, with its prediction interval as a whisker."""
    return plotly().Scatter(
        x=list(values),
        y=list(places),
        error_x=whiskers(values, ranges),
        mode="markers",
        marker={"symbol": "diamond", "size": 7, "color": INK, "line": {"color": PAPER, "width": 1}},
        hoverinfo="skip",
        name="predicted, and range of 8 in 10 runs",
    )


def check_chart_file(path: str | Path) -> None:
    """Raise an `InputError` if charts cannot be written to a file.

    For a verb to call before it computes something that takes long. An image may be FILE#CHART.
    """
    path, _ = _image_and_chart(path)
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        problem = f"charts are written as {', '.join(_SUFFIXES)}"
        raise InputError.at(path, problem)
    files.check_output_path(path)
    plotly()
    if suffix in _IMAGES and find_spec("kaleido") is None:
        problem = f"{suffix} needs kaleido, which is not installed: pip install 'shardwise[images]'"
        raise InputError.at(path, problem)


def _image_and_chart(path: str | Path) -> tuple[str, str]:
    """Return the file and the name of the chart of FILE#CHART; without one the name is empty."""
    file, _, chart = str(path).rpartition("#")
    is_image = Path(file).suffix.lower() in _IMAGES
    return (file, chart) if is_image else (str(path), "")


def write(figure: Figure, path: str | Path) -> None:
    """Write one figure: .html with all that it needs, .json for plotly, or an image."""
    check_chart_file(path)
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        files.write_text(path, figure.to_json() + "\n")
    elif suffix in _IMAGES:
        files.write_bytes(path, _image(figure, path, suffix))
    else:
        title = figure.layout.meta["title"]
        page = Page(title=title, charts=[Chart(name="chart", figure=figure)])
        files.write_text(path, page_html(page))


def _image(figure: Figure, path: str | Path, suffix: str) -> bytes:
    """A figure as an image; kaleido draws it with a browser of this machine."""
    size = {"width": _IMAGE_WIDTH, "height": figure.layout.height, "scale": _SHARPNESS}
    try:
        image: bytes = figure.to_image(format=suffix.removeprefix("."), **size)
    except RuntimeError as error:  # it found no browser
        first = next(iter(str(error).strip().splitlines()), "kaleido failed")
        raise InputError.at(path, f"no image was drawn: {first}") from None
    return image


def write_page(
    path: str | Path,
    title: str,
    facts: Sequence[str],
    figures: Mapping[str, Figure],
    *,
    abreast: Collection[str] = (),
) -> None:
    """Write named figures on one page: .html with all that it needs, or .json by name.

    An image has one of them: the first, or in FILE#CHART that of the name.
    """
    check_chart_file(path)
    file, chart = _image_and_chart(path)
    place = Path(file)
    if place.suffix.lower() in _IMAGES:
        chosen = chart or next(iter(figures))
        if chosen not in figures:
            raise InputError.of("chart", chart, allowed_words(chart, tuple(figures)), file)
        write(figures[chosen], place)
        others = [f"{file}#{name}" for name in figures if name != chosen]
        if others:
            _log.info("%s has the chart %s; others: %s", file, chosen, ", ".join(others))
        return
    if place.suffix.lower() == ".json":
        plain = {name: json.loads(figure.to_json()) for name, figure in figures.items()}
        files.write_text(path, json.dumps(plain) + "\n")
        return
    drawn = [
        Chart(name=name, figure=figure, abreast=name in abreast) for name, figure in figures.items()
    ]
    files.write_text(path, page_html(Page(title=title, facts=facts, charts=drawn)))
