"""The few shapes that pictures are made of, as SVG."""

from dataclasses import dataclass
from html import escape

__all__ = ["CSS", "Panel", "box", "line", "path", "text", "text_width"]

CSS = """
text{font-family:system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1f2937}
.page{fill:#fff}
.panel{fill:#fbfcfd;stroke:#e5e7eb}
.stages{fill:#fff;stroke:#d5dae1}
.product{fill:#dbe9fb;stroke:#7aa5dd}
.other{fill:#f1f3f6;stroke:#c0c7d1}
.exchange{fill:#fdecd2;stroke:#e0a04e}
.input,.output{fill:#fff;stroke:#9aa3af}
.part{fill:#eef3fa;stroke:#a9bcd6}
.share{fill:#4f86cf;stroke:none}
.edge{fill:none;stroke:#98a2b0;stroke-width:1.2;marker-end:url(#tip)}
.residual{stroke:#2a9d8f;stroke-width:1.8}
.adapter{stroke-dasharray:4 3}
.stage{stroke:#e0a04e;stroke-width:1.8}
.h1{font-size:18px;font-weight:650}
.h2{font-size:14px;font-weight:650}
.sub,.key{font-size:11px;fill:#6b7280}
.key{font-size:10px}
.name{font-size:11.5px;font-weight:600;text-anchor:middle}
.line{font-size:10px;fill:#4b5563;text-anchor:middle}
.tensor{font-size:9px;fill:#6b7483;paint-order:stroke;stroke:#fbfcfd;stroke-width:3px}
"""
_ROUND = 5
# Mean width of a character over the size of the font, plain and bold.
_CHARACTER = (0.56, 0.61)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A part of a picture."""

    drawing: str
    width: float
    height: float


def text_width(words: str, size: float, *, bold: bool = False) -> float:
    """About how wide a text is; no font is at hand to measure it."""
    return len(words) * size * _CHARACTER[bold]


def text(x: float, y: float, words: str, kind: str) -> str:
    """Words in a style of `CSS`."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rectangle with round corners."""
    radius = min(_ROUND, height / 2)
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{radius:g}"/>'
    )


def path(points: str, kind: str) -> str:
    """A line along points as SVG tells them."""
    return f'<path class="{kind}" d="{points}"/>'


def line(start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    """A straight line."""
    return path(f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}", kind)
