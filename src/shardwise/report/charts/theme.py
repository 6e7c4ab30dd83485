"""Colors and fonts of charts and pages, light and dark."""

from typing import Any

from shardwise.engine.memory import MEMORY_PARTS

Figure = Any
"""A `plotly.graph_objects.Figure`; plotly is an extra, so its types are not at hand."""
Trace = Any
"""A trace of such a figure."""
Drawn = dict[str, Any]
"""A figure as plotly's JSON: plotly's objects take longer than most charts do."""

ACCENT = "#d55e00"
"""What is best, or a limit."""
EMPTY = "#e9ebef"
"""Where nothing is feasible."""
INK = "#22272e"
MUTED = "#57606a"
GREY = "#b0b7c0"
GRID = "#d9dde3"
PAPER = "white"
VEIL = "rgba(255,255,255,0.85)"
"""Behind words on a map."""
FONT = "Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DARK = {
    INK: "#e6edf3",
    MUTED: "#a5aeb8",
    GRID: "#3d444d",
    PAPER: "#14181d",
    VEIL: "rgba(20,24,29,0.85)",
    EMPTY: "#343b44",
    GREY: "#8b949e",
    "#f6f8fa": "#1d2228",
    "#6cb0dc": "#2b6a94",
    "#0072b2": "#2b83c4",
    "#56b4e9": "#8fd0f5",
    "#8d5524": "#c08552",
    "#7f5f9e": "#a98bc9",
}
"""Colors of a dark page, by the color of a light one that they replace."""
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
LEGEND = {
    "orientation": "h",
    "x": 0,
    "xref": "container",
    "xanchor": "left",
    "y": 0,
    "yref": "container",
    "yanchor": "bottom",
    "traceorder": "normal",
    "font": {"size": 12},
    "maxheight": 2000,
}
"""A legend in lines as long as the chart below the axes, which makes room for itself."""
TITLE_SPACE = 60
"""Pixels of a title with its subtitle, which a page shows as text."""
LEGEND_SPACE = 30
"""Pixels above a chart for the buttons of the chart library."""
