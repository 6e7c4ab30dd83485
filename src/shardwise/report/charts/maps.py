"""Values over two axes, as search and sweep draw them: heat map and contours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log10
from typing import Any

from shardwise.report.charts.common import (
    ACCENT,
    EMPTY,
    MUTED,
    Figure,
    Trace,
    log_axis,
    plotly,
    spans_much,
    styled,
)
from shardwise.report.charts.plans import Quantity, rounded, short_name

_GOOD_IS_BRIGHT = "Cividis"
"""Color scale that reads the same to the color-blind and in gray (Nunez et al., 2018)."""
_BLACK_FROM = 0.466
"""Share of the scale where black and white have the same contrast, 4.6 (WCAG 2.1, 1.4.3)."""
_MOST_COLUMNS_WITH_TEXT = 40
# Pixels that a column of a map needs, and what is at its sides.
_COLUMN, _AROUND = 34, 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """A value, or none, at every pair of labels of two axes, down and across."""

    names: tuple[str, str]
    labels: tuple[Sequence[str], Sequence[str]]
    shown: Quantity
    values: Sequence[Sequence[float | None]]
    hover: Sequence[Sequence[str]]
    """Text of every cell, also of those without a value."""
    clip: float | None = None
    """Values so many times worse than the best have the last color; None: where values differ by
    much, their logarithms are colored."""

    @property
    def found(self) -> list[tuple[int, int, float]]:
        """Row, column and value of every cell that has one, the best first."""
        cells = [
            (r, c, v)
            for r, row in enumerate(self.values)
            for c, v in enumerate(row)
            if v is not None
        ]
        return sorted(cells, key=lambda cell: cell[2] if self.shown.lower_is_better else -cell[2])

    @property
    def is_log(self) -> bool:
        """Whether colors are of logarithms."""
        return self.clip is None and spans_much([value for _, _, value in self.found])

    @property
    def colored(self) -> Sequence[Sequence[float | None]]:
        """What is colored: the values, or their logarithms."""
        if not self.is_log:
            return self.values
        return [[None if value is None else log10(value) for value in row] for row in self.values]

    @property
    def ends(self) -> tuple[float, float]:
        """Values of the first and the last color."""
        values = [value for _, _, value in self.found]
        least, most = min(values), max(values)
        if self.clip is None:
            return least, most
        if self.shown.lower_is_better:
            return least, min(most, least * self.clip)
        return max(least, most / self.clip), most

    def colors(self, low: str = "zmin", high: str = "zmax") -> dict[str, object]:
        """Arguments of a trace for the color scale, its ends under these names, and its bar."""
        ends = self.ends
        bar: dict[str, object] = {
            "title": {"text": self.shown.axis_title, "side": "right"},
            "outlinewidth": 0,
            "thickness": 16,
        }
        if self.is_log:
            scale = log_axis(ends)
            ticks = zip(scale["tickvals"], scale["ticktext"], strict=True)
            inside = {log10(tick): text for tick, text in ticks if ends[0] <= tick <= ends[1]}
            bar |= {"tickvals": list(inside), "ticktext": list(inside.values())}
            ends = log10(ends[0]), log10(ends[1])
        colors = _GOOD_IS_BRIGHT + ("_r" if self.shown.lower_is_better else "")
        return {"colorscale": colors, low: ends[0], high: ends[1], "colorbar": bar}

    def axis(self, side: int) -> dict[str, Any]:
        """The axis down (0) or across (1), with one place for each label."""
        return {
            "title": {"text": short_name(self.names[side])},
            "tickvals": list(range(len(self.labels[side]))),
            "ticktext": list(self.labels[side]),
        }

    def heat_map(self, subtitle: str, *, upwards: bool = False) -> Figure:
        """Draw cells, gray ones where there is no value, and a frame around the best."""
        go = plotly()
        columns = len(self.labels[1])
        written = columns <= _MOST_COLUMNS_WITH_TEXT
        font = {"size": max(8, min(14, 420 // columns))}
        look = {
            "xgap": 2,
            "ygap": 2,
            "customdata": self.hover,
            "hovertemplate": "%{customdata}<extra></extra>",
        }
        figure = go.Figure(
            go.Heatmap(
                z=[[1 if value is None else None for value in row] for row in self.values],
                colorscale=[[0, EMPTY], [1, EMPTY]],
                showscale=False,
                text=[["-" if value is None else "" for value in row] for row in self.values],
                textfont={**font, "color": MUTED},
                **look,
                texttemplate="%{text}" if written else None,
                name="infeasible",
            )
        )
        texts = [["" if value is None else rounded(value) for value in row] for row in self.values]
        figure.add_trace(
            go.Heatmap(
                z=self.colored,
                **self.colors(),
                text=texts,
                **look,
                name=self.shown.title,
            )
        )
        if written:
            figure.add_trace(self._texts(texts, font))
        row, column, _ = self.found[0]
        figure.add_shape(
            type="rect",
            x0=column - 0.5,
            x1=column + 0.5,
            y0=row - 0.5,
            y1=row + 0.5,
            line={"color": ACCENT, "width": 3},
        )
        height = 200 + 46 * max(5, min(20, len(self.labels[0])))
        self.styled(figure, subtitle, height=height, least_width=_AROUND + _COLUMN * columns)
        turned = {} if upwards else {"autorange": "reversed"}
        figure.update_xaxes(**self.axis(1), showgrid=False)
        figure.update_yaxes(**self.axis(0), showgrid=False, **turned)
        return figure

    def _texts(self, texts: Sequence[Sequence[str]], font: Mapping[str, object]) -> Trace:
        """Values of the cells in black or white, whichever has the higher contrast on its cell."""
        cells = [
            (row, column, value)
            for row, values in enumerate(self.values)
            for column, value in enumerate(values)
            if value is not None
        ]
        low, high = self.ends
        scaled: Callable[[float], float] = log10 if self.is_log else float
        span = scaled(high) - scaled(low)
        inks = []
        for _, _, value in cells:
            share = (scaled(value) - scaled(low)) / span if span else 0.0
            bright = 1 - share if self.shown.lower_is_better else share
            inks.append("#000000" if bright > _BLACK_FROM else "#ffffff")
        return plotly().Scatter(
            x=[column for _, column, _ in cells],
            y=[row for row, _, _ in cells],
            mode="text",
            text=[texts[row][column] for row, column, _ in cells],
            textfont={**font, "color": inks},
            hoverinfo="skip",
            showlegend=False,
            name="values",
        )

    def styled(self, figure: Figure, subtitle: str, *, height: int, least_width: int = 0) -> None:
        """Give a figure its title."""
        title = f"Best {self.shown.title} by {' and '.join(map(short_name, self.names))}"
        styled(figure, title, subtitle, height=height, least_width=least_width)

    @property
    def best_words(self) -> str:
        """The best value with its unit."""
        return f"best: {rounded(self.found[0][2])} {self.shown.unit}".rstrip()

    @property
    def has_patch(self) -> bool:
        """Whether four neighbors have values, so that contours have a patch between them."""
        return any(
            None not in (a[c], a[c + 1], b[c], b[c + 1])
            for a, b in pairwise(self.values)
            for c in range(len(a) - 1)
        )
