"""Whole runs of what a search found as a table."""

import numpy as np
from rich.table import Table

from shardwise.planning.search.results import TrainingRuns
from shardwise.report.console import count, percent, plain_table, seconds
from shardwise.report.tables.strategy_line import in_brief

__all__ = ["runs_table", "runs_told"]


def runs_table(found: TrainingRuns) -> Table:
    """One run a line, in the order of the calendar."""
    tokens = count(found.runs[0].run.tokens_asked)
    failing = found.runs[0].run.goodput is not None
    heads = ["GPUs", "batch", "step time", "days", "GPU-hours", "price"]
    if failing:
        heads += ["failures", "goodput", "effective days", "effective price"]
    table = plain_table(
        "",
        *heads,
        "degrees",
        left=0,
        title=f"Time to train on {tokens} tokens, shortest first",
        goes=("GPU-hours", "failures", "batch", "price"),
    )
    table.columns[-1].justify = "left"
    for rank, one in enumerate(found.runs, start=1):
        run = one.run
        row = [
            f"{run.gpus:,}",
            str(one.strategy["global_batch_size"]),
            seconds(run.step_time_s),
            _number(run.days.expected),
            _number(run.gpu_hours.expected),
            _dollars(None if run.usd is None else run.usd.expected),
        ]
        if run.goodput is not None:
            row += [
                _number(run.goodput.failures),
                percent(run.goodput.goodput),
                _number(run.effective_days),
                _dollars(run.effective_usd),
            ]
        cheapest = " $" if found.cheapest == rank - 1 else ""
        table.add_row(f"{rank}{cheapest}", *row, in_brief(one.strategy).split(",")[0])
    return table


def runs_told(found: TrainingRuns) -> str:
    """What was ranked, and what failures do to the order."""
    of = {
        "scales": "each is the best of its number of GPUs and batch",
        "best": "these are the best that were found",
    }
    told = [of[found.of] + ("; $ is the cheapest" if found.cheapest is not None else "")]
    if found.runs[0].run.goodput is None:
        told.append("failures and checkpoints are unknown: give --reliability")
    elif found.order_is_of_steps:
        told.append("failures lengthen all of them by one factor, and do not change the order")
    unknown = found.runs[0].run.unknown.get("waiting")
    if unknown is not None:
        told.append(f"waiting for repairs is unknown and left out: {unknown}")
    return "; ".join(told)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if not np.isfinite(value):
        return "never"
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.3g}"  # noqa: PLR2004


def _dollars(value: float | None) -> str:
    if value is None:
        return "-"
    return f"${value / 1e6:,.3g} M" if value >= 1e6 else f"${value:,.0f}"  # noqa: PLR2004
