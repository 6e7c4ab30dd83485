"""The console that tables go to, and how numbers look in them."""

import math
import os
import sys

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shardwise.units import readable

__all__ = ["GIB", "count", "gib", "percent", "plain_table", "seconds", "show"]

GIB = 2.0**30
# Wide enough for every table when the output goes to a file or a pipe.
_WIDTH_WITHOUT_TERMINAL = 150
_WIDEST = 1000


class _Terminal(Console):
    """A console whose exit code is the verb's own answer even if nobody reads on."""

    def on_broken_pipe(self) -> None:
        """Print the rest to nowhere; rich would exit with 1, which means that nothing fits."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(*things: RenderableType, style: str | None = None) -> None:
    """Print on standard output, never cutting a table: wider than the terminal if need be."""
    terminal = Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
    for thing in things:
        unlimited = terminal.options.update(max_width=_WIDEST)
        needed = Measurement.get(terminal, unlimited, thing).maximum
        flexible = isinstance(thing, (str, Text))
        width = terminal.width if flexible else max(terminal.width, needed)
        _Terminal(width=width, highlight=False).print(thing, style=style)


def plain_table(*columns: str, left: int = 1, title: str | None = None) -> Table:
    """Make a table without frames: the first `left` columns to the left, numbers to the right."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
    )
    for position, name in enumerate(columns):
        table.add_column(name, justify="left" if position < left else "right", no_wrap=True)
    return table


def is_narrow(least: int) -> bool:
    """Whether the output is a terminal of fewer columns than that."""
    return sys.stdout.isatty() and Console().width < least


def seconds(value: float) -> str:
    """Show a time with three digits; nothing for none."""
    return readable(value, "seconds") if value else "-"


def gib(value: float) -> str:
    """Show bytes in GiB."""
    return f"{value / GIB:.2f}"


def percent(share: float) -> str:
    """Show a share in percent."""
    return f"{100 * share:.1f} %"


def count(value: float) -> str:
    """Show a count with a suffix: 70.6 B."""
    if not math.isfinite(value) or value == 0:
        return "-"
    for scale, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{suffix}"
    return f"{value:.4g}"
