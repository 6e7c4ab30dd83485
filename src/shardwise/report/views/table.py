"""How a table of estimates is shown in Python."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.analysis.estimate_table import EstimateTable
from shardwise.arrays import Bools, Floats
from shardwise.report.charts.common import ACCENT, GREY, LINES, Figure, plotly, styled
from shardwise.report.console import GIB, chance, gib, percent, plain_table, seconds, show
from shardwise.report.page.html import DataTable, block_html
from shardwise.report.tables.strategy_line import in_brief
from shardwise.report.views.view import Summary, View

if TYPE_CHECKING:
    from collections.abc import Sequence


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


_MOST_ROWS = 50
_MOST_REASONS = 3


def _summary(one: EstimateTable) -> Summary:
    fitting = int(np.count_nonzero(one.fits))
    refused = Counter(one.reason(int(row)) for row in np.flatnonzero(one.refused >= 0))
    rows = [("fit", f"{fitting:,}; {len(one) - fitting - refused.total():,} do not")]
    if refused:
        words = [f"{reason} {number:,}" for reason, number in refused.most_common(_MOST_REASONS)]
        rows.append(("break a rule", f"{refused.total():,}: {', '.join(words)}"))
    if fitting:
        best = int(np.argmax(np.where(one.fits, one.tokens_per_s / one.table.gpus, -np.inf)))
        figures = f"{seconds(float(one.step_time_s[best]))} a step, MFU {percent(one.mfu[best])}"
        rows.append((f"best, row {best}", f"{in_brief(_strategy(one, best))}: {figures}"))
    return Summary(
        title=f"EstimateTable: {len(one):,} strategies",
        rows=rows,
        hint=".to_frame() polars; .to_pandas(); .plot(); .explain()",
    )


def _strategy(one: EstimateTable, row: int) -> dict[str, Any]:
    return one.table.strategy(row).to_dict()


def _cells(one: EstimateTable) -> tuple[list[str], "list[Sequence[str]]"]:
    """Heads and rows: the fields that differ, then the main figures."""
    columns = one.table.take(slice(0, _MOST_ROWS)).to_columns()
    differ = {name: c for name, c in columns.items() if len({str(value) for value in c}) > 1}
    heads = [*differ, "step time", "MFU", "memory GiB", "fits"]
    rows: list[Sequence[str]] = []
    for row in range(min(len(one), _MOST_ROWS)):
        fields = [str(column[row]) for column in differ.values()]
        reason = one.reason(row)
        if reason is not None:
            rows.append([*fields, "-", "-", "-", reason])
            continue
        figures = [seconds(float(one.step_time_s[row])), percent(one.mfu[row])]
        memory = gib(float(one.memory_reserved_bytes[row]))
        rows.append([*fields, *figures, memory, _fits(one, row)])
    return heads, rows


def _fits(one: EstimateTable, row: int) -> str:
    likely = float(one.fits_probability[row])
    if math.isnan(likely):
        return "yes" if one.fits[row] else "no"
    return chance(likely)


def _print(one: EstimateTable) -> None:
    """Print the first rows."""
    heads, rows = _cells(one)
    table = plain_table(*heads, left=0, title=f"{len(one):,} strategies")
    for row in rows:
        table.add_row(*row)
    show(table)
    if len(one) > len(rows):
        show(f"and {len(one) - len(rows):,} more rows: to_frame()")


def _html(one: EstimateTable) -> str:
    heads, rows = _cells(one)
    caption = f"first {len(rows)} of {len(one):,} rows" if len(one) > len(rows) else ""
    return block_html(DataTable(caption=caption, columns=heads, rows=rows, texts=()))


def _charts(one: EstimateTable) -> Mapping[str, Figure]:
    rows = np.flatnonzero(one.refused < 0)
    if not len(rows):
        return {}
    speed: Floats = one.tokens_per_s[rows] / one.table.gpus[rows]
    words = [in_brief(_strategy(one, int(row))) for row in rows]
    memory = one.memory_reserved_bytes[rows] / GIB
    return {"memory-speed": memory_and_speed(memory, speed, one.fits[rows], words)}


VIEWS: dict[str, View[Any]] = {
    "EstimateTable": View(summary=_summary, tables=_print, charts=_charts, html=_html),
}
