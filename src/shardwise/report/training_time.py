"""A whole run as lines below an estimate."""

from rich.table import Table
from rich.text import Text

from shardwise.report.console import count
from shardwise.training import TrainingTime

__all__ = ["training_block"]


def training_block(run: TrainingTime) -> Table:
    """Time to train, price, energy and emissions, and what failures leave of it."""
    title = Text(f"Time to train on {count(run.tokens_asked)} tokens", style="bold")
    grid = Table.grid(padding=(0, 3))
    grid.title, grid.title_justify = title, "left"
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for name, figure, remark in run.rows():
        known = "dim" if figure == "unknown" else "bold"
        grid.add_row(name, Text(figure, style=known), Text(remark))
    return grid
