"""What commands print, as text."""

from collections.abc import Callable
from io import StringIO

from rich.console import Console, RenderableType
from rich.measure import Measurement

from shardwise.report.console import collecting

_WIDTH = 100
_WIDEST = 1000


def printed_text(print_tables: Callable[[], None]) -> str:
    """Return what a function prints as text without colors; wide tables have long lines."""
    with collecting() as things:
        print_tables()
    out = StringIO()
    for thing in things:
        console = Console(
            file=out,
            width=_width(thing),
            height=25,
            highlight=False,
            markup=False,
            emoji=False,
            force_jupyter=False,  # which displays instead of writing
            force_terminal=False,
            color_system=None,
        )
        console.print(thing)
    rows = (line.rstrip() for line in out.getvalue().splitlines())
    return "\n".join(rows).strip("\n")


def _width(thing: RenderableType) -> int:
    """Characters of a line: enough for a table, and for text a line that reads well."""
    if isinstance(thing, str) or not hasattr(thing, "columns"):
        return _WIDTH
    wide = Console(width=_WIDEST, height=25, markup=False, emoji=False)
    return max(_WIDTH, Measurement.get(wide, wide.options, thing).maximum)
