"""A table of estimates as a chart: memory against speed."""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.report.charts.common import ACCENT, GREY, LINES, Figure, plotly, styled


def memory_and_speed(
    memory_gib: Floats, tokens_per_s: Floats, fits: Bools, words: Sequence[str]
) -> Figure:
    """Draw each strategy by the memory it needs and its tokens per second and GPU."""
    go = plotly()
    figure = go.Figure()
    for name, chosen, color in (("fits", fits, LINES[0]), ("does not fit", ~fits, GREY)):
        rows = np.flatnonzero(chosen)
        if len(rows):
            _add(figure, name, memory_gib[rows], tokens_per_s[rows], [words[int(n)] for n in rows])
            figure.data[-1].marker = {"color": color, "size": 9}
    if fits.any():
        best = int(np.argmax(np.where(fits, tokens_per_s, -np.inf)))
        _add(figure, "best", memory_gib[[best]], tokens_per_s[[best]], [words[best]])
        ring = {"color": ACCENT, "size": 16, "symbol": "circle-open", "line": {"width": 2}}
        figure.data[-1].marker = ring
    subtitle = f"{len(words):,} strategies that break no rule"
    styled(figure, "Memory and speed of each strategy", subtitle)
    figure.update_xaxes(title="memory of the peak-memory stage [GiB]")
    figure.update_yaxes(title="tokens/s per GPU", rangemode="tozero")
    return figure


def _add(figure: Figure, name: str, x: Floats, y: Floats, words: Sequence[str]) -> None:
    figure.add_trace(
        plotly().Scatter(
            x=x.tolist(),
            y=y.tolist(),
            mode="markers",
            name=name,
            text=list(words),
            hovertemplate="%{text}<br>%{y:,.0f} tokens/s per GPU, %{x:.1f} GiB<extra></extra>",
        )
    )
