"""How strategies run, as a table above columns of a chart: degrees, batches, words that differ."""

from collections.abc import Callable, Sequence
from math import log2

from shardwise.planning.sweep.results import PointPlan
from shardwise.report.charts.common import INK, Figure, graphs
from shardwise.report.charts.plans import short_name, value_word

__all__ = ["CHARACTER", "WIDTH", "Rows", "add_configuration", "configuration"]

Rows = dict[str, Callable[[PointPlan], object]]
"""What is told of a strategy, by its name."""

_DEGREES = ("tp", "tp2", "cp", "pp", "vpp", "dp", "ep", "etp")
_ALWAYS = ("tp", "pp", "dp")
# Told where they differ among the columns.
_WORDS = ("recompute", "zero", "schedule", "tp_exchange", "cp_exchange", "dtype", "quantization")
_MICRO_BATCHES = "micro-batches"
_DEPTHS = [[0, "#f6f8fa"], [1, "#6cb0dc"]]
# Pixels of all columns together, and of a character in parts of its height.
WIDTH = 680
CHARACTER = 0.58
_LEAST_FONT, _MOST_FONT = 7.5, 12.0


def configuration(plans: Sequence[PointPlan]) -> Rows:
    """Return what is told of strategies: degrees and batches, and words in which they differ."""

    def reads(field: str) -> Callable[[PointPlan], object]:
        return lambda plan: plan.strategy.get(field, 1)

    fields = [f for f in _DEGREES if f in _ALWAYS or any(reads(f)(p) != 1 for p in plans)]
    rows = {short_name(field): reads(field) for field in fields}
    rows[short_name("micro_batch_size")] = reads("micro_batch_size")
    rows[_MICRO_BATCHES] = _micro_batches
    for field in _WORDS:
        if len({value_word(plan.strategy.get(field)) for plan in plans}) > 1:
            rows[short_name(field)] = reads(field)
    return rows


def _micro_batches(plan: PointPlan) -> int:
    """How many micro-batches a replica runs in a step."""
    words = plan.strategy
    return int(words["global_batch_size"] // (words["dp"] * words["micro_batch_size"]))


def add_configuration(
    figure: Figure, found: Sequence[tuple[float, PointPlan]], rows: Rows, *, columns: float
) -> None:
    """Draw strategies as columns of a table whose cells are darker the larger their numbers are.

    Parameters
    ----------
    found
        Place and strategy of each column.
    columns
        How many have room.
    """
    cells = [[value_word(read(plan)) for _, plan in found] for read in rows.values()]
    depths = [[_depth(read(plan)) for _, plan in found] for read in rows.values()]
    room = WIDTH / columns / CHARACTER
    fitting = [[word if len(word) * _LEAST_FONT <= room else "" for word in row] for row in cells]
    size = min(_MOST_FONT, room / max(1, *(len(word) for row in fitting for word in row)))
    for n, (place, _) in enumerate(
        found
    ):  # columns of their own: between lines of points there is none
        figure.add_trace(
            graphs().Heatmap(
                x=[place],
                dx=1,
                y=list(range(len(rows))),
                z=[[row[n]] for row in depths],
                zmin=0,
                zmax=max(max(row) for row in depths) or 1,
                colorscale=_DEPTHS,
                showscale=False,
                xgap=1,
                ygap=1,
                text=[[row[n]] for row in fitting],
                texttemplate="%{text}",
                textfont={"size": size, "color": INK},
                customdata=[[f"{name} {row[n]}"] for name, row in zip(rows, cells, strict=True)],
                hovertemplate="%{customdata}<extra></extra>",
                name="configuration",
            ),
            row=1,
            col=1,
        )
    figure.update_yaxes(
        tickvals=list(range(len(rows))),
        ticktext=list(rows),
        autorange="reversed",
        showgrid=False,
        row=1,
        col=1,
    )


def _depth(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return 0.0
    return log2(value)
