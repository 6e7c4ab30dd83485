"""A whole run as lines below an estimate."""

from rich.table import Table
from rich.text import Text

from shardwise.analysis.training_run.results import TrainingTime
from shardwise.report.console import count, plain_table

__all__ = ["training_block"]

_REMARK = "range and reasons"


def training_block(run: TrainingTime) -> Table:
    """Time to train, price, energy and emissions, and what failures leave of it."""
    title = f"time to train on {count(run.tokens_asked)} tokens"
    table = plain_table(title, "expected", _REMARK, wraps=(_REMARK,))
    table.columns[-1].justify = "left"
    for name, figure, remark in run.rows():
        known = "dim" if figure == "unknown" else "bold"
        table.add_row(name, Text(figure, style=known), remark)
    return table
