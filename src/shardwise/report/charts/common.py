"""What all charts share: plotly, colors, layout, and files."""

import html
import json
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from math import floor, log10
from pathlib import Path
from typing import Any

from shardwise.config import files
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.errors import Fault, InputError

Figure = Any
"""A `plotly.graph_objects.Figure`; plotly is an extra, so its types are not at hand."""
Trace = Any
"""A trace of such a figure."""

ACCENT = "#d55e00"
"""What is best, or a limit."""
EMPTY = "#e9ebef"
"""Where nothing is feasible."""
INK = "#22272e"
GREY = "#b0b7c0"
_GRID = "#d9dde3"
_FONT = "Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
LINES = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5f9e", "#8c8c8c")
"""Colors of lines that the color-blind tell apart (Okabe and Ito, 2008), without the accent."""
# In the order of `TIME_PARTS`: work in blues, communication in warm colors, waiting in greys.
TIME_COLORS = {
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
MEMORY_COLORS = dict(zip(MEMORY_PARTS, LINES, strict=False)) | {"runtime": GREY, "free": EMPTY}
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
_SUFFIXES = (".html", ".json", ".png", ".svg")
_IMAGES = (".png", ".svg")
# Pixels of an image for each of a chart, so that print is sharp.
_SHARPNESS = 2
_IMAGE_WIDTH = 1180
_CONFIG = {"displaylogo": False, "responsive": True}


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


def styled(figure: Figure, title: str, subtitle: str, *, height: int = 560) -> Figure:
    """Give a figure its title, fonts, grid and margins."""
    small = f"<span style='font-size:13px;color:#57606a'>{html.escape(subtitle)}</span>"
    figure.update_layout(
        template="plotly_white",
        font={"family": _FONT, "size": 13, "color": INK},
        title={
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
        margin={"l": 90, "r": 40, "t": 96, "b": 70},
        height=height,
        hoverlabel={"align": "left", "font": {"family": _FONT, "size": 12}},
    )
    grid = {"gridcolor": _GRID, "zeroline": False, "linecolor": INK, "automargin": True}
    figure.update_xaxes(**grid)
    figure.update_yaxes(**grid)
    return figure


def log_axis(values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis that is labelled at 1, 2 and 5 of each decade."""
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
    return InputError(Fault(source="charts", problem=f"the {whose} has not {what}; {remedy}"))


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
    marker = {"color": color, "line": {"color": "white", "width": 0.5}}
    return plotly().Bar(**sides, name=name, marker=marker, **words)


def check_chart_file(path: str | Path) -> None:
    """Raise an `InputError` if charts cannot be written to a file.

    For a verb to call before it computes something that takes long.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        problem = f"charts are written as {', '.join(_SUFFIXES)}"
        raise InputError(Fault(source=str(path), problem=problem))
    files.check_output_path(path)
    plotly()
    if suffix in _IMAGES and find_spec("kaleido") is None:
        problem = f"{suffix} needs kaleido, which is not installed: pip install 'shardwise[images]'"
        raise InputError(Fault(source=str(path), problem=problem))


def write(figure: Figure, path: str | Path) -> None:
    """Write one figure: .html with all that it needs, .json as plotly reads it back, or an image.

    Raises
    ------
    InputError
        If charts cannot be written to the file: see `check_chart_file`.
    """
    check_chart_file(path)
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        files.write_text(path, figure.to_json() + "\n")
    elif suffix in _IMAGES:
        files.write_bytes(path, _image(figure, path, suffix))
    else:
        files.write_text(path, figure.to_html(include_plotlyjs=True, config=_CONFIG))


def _image(figure: Figure, path: str | Path, suffix: str) -> bytes:
    """A figure as an image; kaleido draws it with a browser of this machine."""
    size = {"width": _IMAGE_WIDTH, "height": figure.layout.height, "scale": _SHARPNESS}
    try:
        image: bytes = figure.to_image(format=suffix.removeprefix("."), **size)
    except RuntimeError as error:  # it found no browser
        first = next(iter(str(error).strip().splitlines()), "kaleido failed")
        raise InputError(Fault(source=str(path), problem=f"no image was drawn: {first}")) from None
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

    Of images there is one for each figure, with its name before the suffix: ``a-front.png``.

    Parameters
    ----------
    abreast
        Figures that share a row, two each, where the window is wide enough.
    """
    check_chart_file(path)
    place = Path(path)
    if place.suffix.lower() in _IMAGES:
        for name, figure in figures.items():
            write(figure, place.with_name(f"{place.stem}-{name}{place.suffix}"))
        return
    if place.suffix.lower() == ".json":
        plain = {name: json.loads(figure.to_json()) for name, figure in figures.items()}
        files.write_text(path, json.dumps(plain) + "\n")
        return
    parts = [_head(title)]
    parts += [*(f"<p>{html.escape(fact)}</p>" for fact in facts), "<main>"]
    for number, (name, figure) in enumerate(figures.items()):
        chart = figure.to_html(
            full_html=False,
            include_plotlyjs=number == 0,  # once: it is some megabytes
            config=_CONFIG,
            div_id=name,
        )
        kind = ' class="abreast"' if name in abreast else ""
        parts.append(f"<section{kind}>{chart}</section>")
    files.write_text(path, "\n".join([*parts, "</main></body></html>\n"]))


def _head(title: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ max-width: 1180px; margin: 2rem auto; padding: 0 1.5rem; color: {INK};
  font-family: {_FONT}; line-height: 1.5; }}
h1 {{ font-size: 1.6rem; margin-bottom: .4rem; }}
p {{ margin: .15rem 0; color: #57606a; }}
main {{ display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); column-gap: 1.5rem; }}
section {{ grid-column: 1 / -1; margin-top: 2.2rem; border-top: 1px solid {_GRID};
  padding-top: .6rem; }}
section.abreast {{ grid-column: auto; }}
@media (max-width: 56rem) {{ section.abreast {{ grid-column: 1 / -1; }} }}
@media (max-width: 30rem) {{ body {{ padding: 0 .6rem; }} }}
</style></head><body><h1>{html.escape(title)}</h1>"""
