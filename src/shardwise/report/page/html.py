"""Pages as records, and their HTML: text is escaped, charts are packed, nothing is loaded."""

import gzip
import html
import json
from base64 import b85encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files as resources
from typing import Any

from shardwise._version import __version__
from shardwise.report.charts.theme import DARK, LEGEND_SPACE, TITLE_SPACE, Figure

# Base 85 takes 5 letters for 4 bytes, base 64 takes 16 for 12: a page with the library stays below
# 2 MB. The letters that mean something in HTML are replaced by letters that base 85 does not use.
_MARKUP, _HARMLESS = b"<>&", b",.:"
_LEVEL = 9


def packed(data: bytes) -> str:
    """Return data as text that stands in a page as it is; `unpack` of page.js reads it."""
    squeezed = gzip.compress(data, _LEVEL, mtime=0)
    return b85encode(squeezed).translate(bytes.maketrans(_MARKUP, _HARMLESS)).decode("ascii")


def packed_json(data: Mapping[str, Any]) -> str:
    """Return plain values, packed."""
    return packed(json.dumps(data, separators=(",", ":"), allow_nan=False).encode())


@cache
def packed_library() -> str:
    """Return plotly.js as the Python package has it, packed."""
    return packed(resources("plotly").joinpath("package_data", "plotly.min.js").read_bytes())


@cache
def asset(name: str) -> str:
    """Return the style sheet or the script of pages."""
    return resources("shardwise.report.page").joinpath(name).read_text(encoding="utf-8")


_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data: blob:"
)
"""What a browser lets the page load: nothing. The chart library compiles shaders."""
_WITHOUT_SCRIPT = "The charts need JavaScript. Tables and text are complete."
_LONG = 40
"""Letters of a cell from which its column is wide."""
_MOST_VALUES = 12
"""Values of a trace that its description lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure on a page; its title becomes a heading."""

    name: str
    """Id of the element; unique on the page."""
    figure: Figure
    abreast: bool = False
    """Whether it shares a row with another, where the window is wide enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """A table that scrolls in its own box."""

    caption: str
    """Empty where the first head says what it is."""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Collection[int] = (0,)
    """Positions of columns of text, aligned left; the others are figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Terms and their values."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Text to copy."""

    text: str


Block = Chart | DataTable | Facts | Lines | Code


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what is below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page has; without sections its charts stand below the title."""

    title: str
    facts: Sequence[str] = ()
    """Lines below the title."""
    answer: str = ""
    """One sentence."""
    charts: Sequence[Chart] = ()
    sections: Sequence[Section] = field(default_factory=tuple)

    @property
    def all_charts(self) -> list[Chart]:
        """Charts of all sections, in order."""
        inside = [block for section in self.sections for block in section.blocks]
        return [*self.charts, *(block for block in inside if isinstance(block, Chart))]


def page_html(page: Page) -> str:
    """Return a page as the text of one file.

    Raises
    ------
    InputError
        If it has charts, and plotly is not installed.
    """
    charts = page.all_charts
    alone = [chart.figure.layout.meta["title"] for chart in charts] == [page.title]
    parts = [_head(page.title)] + ([] if alone else [f"<h1>{_text(page.title)}</h1>"])
    parts += [f'<p class="answer">{_text(page.answer)}</p>'] if page.answer else []
    parts += [f'<p class="fact">{_text(fact)}</p>' for fact in page.facts]
    if charts:
        parts.append('<p role="alert" data-failure hidden></p>')
        parts.append(f'<noscript><p role="alert">{_WITHOUT_SCRIPT}</p></noscript>')
    if len(page.sections) > 1:
        parts.append(_contents(page.sections))
    parts.append("<main>")
    parts += [_chart(chart, "h1" if alone else "h2") for chart in page.charts]
    for number, section in enumerate(page.sections, start=1):
        parts += [f'<h2 id="section-{number}">{_text(section.title)}</h2>']
        parts += [block_html(block) for block in section.blocks]
    parts += ["</main>", f"<footer>shardwise {_text(__version__)}</footer>"]
    if charts:
        data = {chart.name: _plain(chart.figure) for chart in charts}
        parts += [
            _packed("packed-library", packed_library()),
            _packed("packed-charts", packed_json({"charts": data, "dark": DARK})),
            f"<script>{asset('page.js')}</script>",
        ]
    return "\n".join([*parts, "</body></html>\n"])


def _head(title: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{asset("page.css")}</style></head><body>"""


def _contents(sections: Sequence[Section]) -> str:
    """Links to sections, and to the charts in them."""

    def link(name: str, words: str, below: str = "") -> str:
        return f'<li><a href="#{_text(name)}">{_text(words)}</a>{below}</li>'

    items = []
    for number, section in enumerate(sections, start=1):
        charts = [block for block in section.blocks if isinstance(block, Chart)]
        titles = [link(f"title-{c.name}", c.figure.layout.meta["title"]) for c in charts]
        below = f"<ul>{''.join(titles)}</ul>" if titles else ""
        items.append(link(f"section-{number}", section.title, below))
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def _text(text: str) -> str:
    return html.escape(text)


def _packed(name: str, data: str) -> str:
    return f'<script type="application/octet-stream" id="{name}">{data}</script>'


def block_html(block: Block) -> str:
    """Return a block as a piece of HTML."""
    match block:
        case Chart():
            return _chart(block, "h3")
        case DataTable():
            return _table(block)
        case Facts(items=items):
            pairs = (f"<dt>{_text(term)}</dt><dd>{_text(value)}</dd>" for term, value in items)
            return f"<dl>{''.join(pairs)}</dl>"
        case Lines(items=lines):
            return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"
        case Code(text=text):
            return f'<pre tabindex="0"><code>{_text(text)}</code></pre>'


def _table(table: DataTable) -> str:
    """A table in a box that can be scrolled by keyboard, too."""
    long = {n for row in table.rows for n, text in enumerate(row) if len(text) > _LONG}

    def cell(position: int, text: str, *, head: bool) -> str:
        words = "text" if position in table.texts else ""
        words += " long" if words and position in long else ""
        kind = f' class="{words}"' if words else ""
        if head:
            return f'<th scope="col"{kind}>{_text(text)}</th>'
        if position == 0:
            return f'<th scope="row"{kind}>{_text(text)}</th>'
        return f"<td{kind}>{_text(text)}</td>"

    def row(cells: Sequence[str], *, head: bool = False) -> str:
        return f"<tr>{''.join(cell(n, text, head=head) for n, text in enumerate(cells))}</tr>"

    label = _text(table.caption or table.columns[0] or "results")
    caption = f"<caption>{_text(table.caption)}</caption>" if table.caption else ""
    body = "\n".join(row(cells) for cells in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table>{caption}<thead>{row(table.columns, head=True)}</thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _chart(chart: Chart, heading: str) -> str:
    """The box of a chart, with its title, and its content in words for screen readers."""
    meta = chart.figure.layout.meta
    name, kind = _text(chart.name), " abreast" if chart.abreast else ""
    words = _text(described(chart.figure))
    return (
        f'<figure class="chart{kind}"><figcaption><{heading} id="title-{name}">'
        f"{_text(meta['title'])}</{heading}><p>{_text(meta['subtitle'])}</p></figcaption>"
        f'<div class="scroll" tabindex="0" role="group" aria-label="{words}">'
        f'<div class="plot" id="{name}" data-chart="{name}"></div></div></figure>'
    )


def described(figure: Figure) -> str:
    """Return a chart in words: its title, and the values of short traces."""
    meta = figure.layout.meta
    words = [f"Chart: {meta['title']}. {meta['subtitle']}".rstrip(". ") + "."]
    for trace in figure.data:
        values = _values(trace)
        if trace.name and 0 < len(values) <= _MOST_VALUES:
            words.append(f"{trace.name}: {', '.join(values)}.")
    return " ".join(words)


def _values(trace: Any) -> list[str]:
    """Values of a trace, with their places where these are words."""
    if trace.type not in ("bar", "scatter", "waterfall"):
        return []
    sides = (trace.y, trace.x) if trace.orientation == "h" else (trace.x, trace.y)
    places, values = (list(side) if side is not None else [] for side in sides)
    found = []
    for place, value in zip(places, values, strict=False):
        if isinstance(value, (int, float)):
            name = f"{place} ".replace("<br>", " ")
            found.append(f"{name}{value:.4g}")
    return found


def _plain(figure: Figure) -> dict[str, Any]:
    """Data and layout for the page: without the title, which is a heading, and the template."""
    plain: dict[str, Any] = json.loads(figure.to_json())
    layout = plain["layout"]
    layout.pop("template", None)
    layout.pop("title", None)
    margin: Mapping[str, float] = layout.get("margin", {})
    above = max(LEGEND_SPACE, margin.get("t", 0) - TITLE_SPACE)
    sides = {"l": 12, "r": min(margin.get("r", 40), 24), "b": 40}
    if any(trace["type"] == "parcoords" for trace in plain["data"]):
        sides = {}  # its labels reach into the margins
    layout["margin"] = {**margin, "t": above, **sides}
    height = layout.get("height", 560) - margin.get("t", 96) + above
    inner = height - above - margin.get("b", 70)
    layout |= {"height": height, "meta": {**(layout.get("meta") or {}), "inner_height": inner}}
    return {"data": plain["data"], "layout": layout}
