"""Measured runs as charts: predicted against measured times, and a histogram of errors."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shardwise.report.charts.common import (
    ACCENT,
    INK,
    LINES,
    PAPER,
    Figure,
    chart_error,
    dots,
    log_axis,
    plotly,
    styled,
    write_page,
)
from shardwise.validate.measured.scoreboard import Scoreboard, ScoredRun

By = Literal["accelerator", "source"]

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
# Shares that the band of the first chart is wide, and percent that a bar of the second is.
_BAND = 0.10
_BAR = 5
# Larger errors count in the bars at the ends.
_FARTHEST = 100
_BAND_COLOUR = "rgba(140, 140, 140, 0.18)"


def against_measured(board: Scoreboard, by: By = "accelerator") -> Figure:
    """Draw the predicted time of each run over the measured one, in colors of one kind of group."""
    go = plotly()
    rows = _compared(board)
    times = [time for row in rows for time in _times(row)]
    ends = [min(times) / 1.3, max(times) * 1.3]
    figure = go.Figure()
    line = {"mode": "lines", "hoverinfo": "skip", "x": ends, "line": {"width": 0}}
    figure.add_trace(go.Scatter(y=[(1 - _BAND) * t for t in ends], showlegend=False, **line))
    band = {"fill": "tonexty", "fillcolor": _BAND_COLOUR, "name": f"within {_BAND:.0%}"}
    figure.add_trace(go.Scatter(y=[(1 + _BAND) * t for t in ends], **line, **band))
    equal = line | {"line": {"color": INK, "width": 1, "dash": "dot"}}
    figure.add_trace(go.Scatter(y=ends, name="equal", **equal))
    names = [name for name, score in board.groups[by].items() if score.errors.n]
    for number, name in enumerate(names):
        some = [row for row in rows if getattr(row, by) == name]
        figure.add_trace(
            dots(
                [row.measured_step_time_s for row in some],
                [row.predicted_step_time_s for row in some],
                [_hover(row) for row in some],
                mode="markers",
                marker={
                    "color": LINES[number % len(LINES)],
                    "symbol": _SYMBOLS[number // len(LINES) % len(_SYMBOLS)],
                    "size": 7,
                    "opacity": 0.75,
                },
                name=name,
            )
        )
    figure.update_xaxes(title="measured time of a step [s]", **log_axis(times))
    figure.update_yaxes(title="predicted [s]", **log_axis(times))
    styled(figure, "Predicted against measured", _summary(board), height=680)
    return figure


def error_histogram(board: Scoreboard) -> Figure:
    """Draw how many runs have errors of each size, models with and without experts apart."""
    go = plotly()
    figure = go.Figure()
    rows = _compared(board)
    for kind, color in zip(board.groups["kind"], LINES, strict=False):
        errors = [100 * (row.error or 0.0) for row in rows if row.kind == kind]
        figure.add_trace(
            go.Histogram(
                # Half a bar inside the end, so that they count in the last bar.
                x=[max(-_FARTHEST, min(_FARTHEST - _BAR / 2, error)) for error in errors],
                xbins={"start": -_FARTHEST, "end": _FARTHEST, "size": _BAR},
                marker={"color": color, "line": {"color": PAPER, "width": 1}},
                hovertemplate="%{x} %: %{y} runs<extra></extra>",
                name=kind,
            )
        )
    figure.add_vline(x=0, line={"color": ACCENT, "dash": "dash"})
    ticks = list(range(-_FARTHEST, _FARTHEST + 1, 20))
    ends = {-_FARTHEST: f"-{_FARTHEST}", _FARTHEST: f"{_FARTHEST} and more"}
    words = [ends.get(tick, f"{tick:+d}" if tick else "0") for tick in ticks]
    figure.update_xaxes(title="predicted / measured - 1 [%]", tickvals=ticks, ticktext=words)
    figure.update_yaxes(title="runs")
    figure.update_layout(barmode="stack", bargap=0)
    return styled(figure, "Errors of the time of a step", _summary(board))


def charts(board: Scoreboard) -> dict[str, Figure]:
    """Draw all charts of a scoreboard, by name."""
    return {
        "by-accelerator": against_measured(board),
        "by-source": against_measured(board, "source"),
        "errors": error_histogram(board),
    }


def write_charts(board: Scoreboard, path: str | Path) -> None:
    """Write all charts on one page, .html with all that it needs, or .json by name."""
    score = board.overall
    fact = f"{score.rows:,} runs: {score.counts}"
    write_page(path, "Measured training runs", [fact], charts(board))


def _compared(board: Scoreboard) -> Sequence[ScoredRun]:
    rows = [row for row in board.rows if row.error is not None]
    if not rows:
        raise chart_error(
            "a run with a measured and a predicted time", "score others", whose="scoreboard"
        )
    return rows


def _times(row: ScoredRun) -> tuple[float, float]:
    return row.measured_step_time_s or 0.0, row.predicted_step_time_s or 0.0


def _summary(board: Scoreboard) -> str:
    errors = board.overall.errors
    sizes = f"mean size of the errors {errors.mape:.1%}, median {errors.median_ape:.1%}"
    return f"{errors.n:,} runs; {sizes}, bias {errors.bias:+.1%}"


def _hover(row: ScoredRun) -> str:
    """Text that is shown when the mouse rests on a run."""
    measured, predicted = _times(row)
    lines = [
        f"<b>{html.escape(row.id)}</b>",
        html.escape(f"{row.source}, grade {row.grade}"),
        html.escape(f"{row.accelerator}, {row.precision}, {row.kind}, {row.scale} accelerators"),
        f"measured {measured:.4g} s, predicted {predicted:.4g} s ({row.error or 0.0:+.1%})",
    ]
    if row.interval is not None:
        lines.append("between {:.4g} and {:.4g} s".format(*row.interval))
    lines += [html.escape(f"assumed: {one}") for one in row.assumed]
    return "<br>".join(lines)
