"""Notebooks of docs/notebooks as pages: run at the build, with their tables and charts."""

import json
import os
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
LIBRARY = "assets/plotly.min.js"
_CHART = "application/vnd.plotly.v1+json"
_LONGEST_S = 300
_DRAW = """<script>
for (const place of document.querySelectorAll(".notebook-chart")) {
  const chart = JSON.parse(place.querySelector("script").textContent);
  Plotly.newPlot(place, chart.data, chart.layout, {responsive: true});
}
</script>
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of the page of each notebook."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        yield f"notebooks/{path.stem}.md", _page(path, path.stat().st_mtime_ns)


def library() -> bytes:
    """Return plotly.js as the Python package has it."""
    return files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()


@cache
def _page(path: Path, _changed: int) -> str:
    """Run a notebook and return it as Markdown; a version of a file is run once."""
    os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")
    book = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(path.parent)}}
    NotebookClient(book, timeout=_LONGEST_S, resources=place).execute()
    title, *cells = [_cell(cell) for cell in book.cells]
    download = f"[Download the notebook]({path.name}). It was run when this page was made."
    script = f'<script src="../{LIBRARY}"></script>\n{_DRAW}'
    heading, _, rest = title.partition("\n")
    return "\n\n".join([heading, download, rest, *cells, script])


def _cell(cell: Any) -> str:
    """Return a cell with what it shows."""
    if cell.cell_type == "markdown":
        return str(cell.source)
    shown = [_output(output) for output in cell.outputs]
    return "\n\n".join([f"```python\n{cell.source}\n```", *filter(None, shown)])


def _output(output: Any) -> str:
    """Return an output of a cell: a chart, a table, or text."""
    data = output.get("data", {})
    if _CHART in data:
        text = json.dumps(data[_CHART]).replace("</", "<\\/")
        height = data[_CHART]["layout"].get("height", 450)
        inner = f'<script type="application/json">{text}</script>'
        return f'<div class="notebook-chart" style="height:{height}px">{inner}</div>'
    if "text/html" in data:
        lines = (line for line in data["text/html"].splitlines() if line.strip())
        return '<div class="notebook-output">' + "\n".join(lines) + "</div>"
    text = str(data.get("text/plain", output.get("text", ""))).rstrip()
    return f'<pre class="notebook-text">{escape(text)}</pre>' if text else ""
