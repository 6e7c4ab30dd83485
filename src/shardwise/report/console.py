"""The console for tables, and the format of numbers in them."""

import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from shutil import get_terminal_size
from typing import Any, TypeVar

from rich import box
from rich.console import Console, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text, TextType

from shardwise.units import counted, readable

T = TypeVar("T")

GIB = 2.0**30
# Files and pipes: two windows fit on a screen, and pages of a site show such lines.
_WIDTH_WITHOUT_TERMINAL = 120
_WIDEST, _MOST_DIGITS = 1000, 9
LEAST_TEXT = 16
"""Shorter lines of text are hard to read."""
_COLLECTED: ContextVar[list[RenderableType] | None] = ContextVar("collected", default=None)


class _Terminal(Console):
    """A console that keeps the exit code of the command when its pipe is closed.

    It prints text as it is: names of files and models may contain `[bold]` or `:x:`.
    """

    def __init__(self, width: int) -> None:
        # With a height rich does not read COLUMNS, which may be anything.
        super().__init__(width=width, height=25, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Print the rest to nowhere; rich would exit with 1, which means that nothing fits."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    @property
    def encoding(self) -> str:
        """UTF-8, so that tables look the same in others: `cli.streams` replaces what they lack."""
        return "utf-8"


class _Fitting(Table):
    """A table without frames that adapts to the width of the terminal."""

    def __init__(
        self,
        title: TextType | None,
        *,
        optional: Sequence[str] = (),
        wraps: Sequence[str] = (),
        notes: Mapping[str, str] | None = None,
        otherwise: Table | None = None,
    ) -> None:
        super().__init__(
            box=box.SIMPLE_HEAD,
            title=title,
            title_justify="left",
            title_style="bold",
            padding=(0, 1, 0, 0),
        )
        self.optional = optional
        self.wraps = wraps
        self.notes = notes or {}
        self.otherwise = otherwise

    def fitted(self, width: int) -> "tuple[_Fitting, list[str]]":
        """The table in lines of so many characters, as far as possible, and the omitted columns."""
        for left_out in range(len(self.optional) + 1):
            table = self._copy(self.optional[:left_out])
            if table._wrap(width):  # noqa: SLF001 - of the same class
                break
        else:
            if isinstance(self.otherwise, _Fitting):
                table = self.otherwise.fitted(width)[0]
        return table, list(self.optional[:left_out])

    def explained(self) -> list[str]:
        """Notes on the columns that it has."""
        heads = [column.header for column in self.columns]
        return [note for head, note in self.notes.items() if head in heads]

    def _wrap(self, width: int) -> bool:
        """Wrap columns of text where needed; return whether the table fits."""
        for column in self.columns:  # rich would measure all cells each time that it needs a width
            column.width = min(_longest(column), column.max_width or _WIDEST)
        over = _measured(self).maximum - width
        texts = [column for column in self.columns if column.header in self.wraps]
        if over <= 0 or not texts:
            return over <= 0
        long = [column.width or 0 for column in texts]
        for column, wide in zip(texts, shares_of(long, sum(long) - over), strict=True):
            column.no_wrap, column.overflow = False, "fold"
            column.width = column.max_width = wide
        return _measured(self).maximum <= width

    def _copy(self, left_out: Sequence[str]) -> "_Fitting":
        """The same table without some columns."""
        shown = [column for column in self.columns if column.header not in left_out]
        smaller = _Fitting(self.title, wraps=self.wraps, notes=self.notes)
        smaller.caption, smaller.caption_justify = self.caption, self.caption_justify
        for column in shown:
            smaller.add_column(
                column.header,
                justify=column.justify,
                no_wrap=column.no_wrap,
                overflow=column.overflow,
                max_width=column.max_width,
            )
        rows = zip(*(column.cells for column in shown), strict=True)
        for row, cells in zip(self.rows, rows, strict=True):
            smaller.add_row(*cells, style=row.style, end_section=row.end_section)
        return smaller


def notes_of(table: Table) -> list[str]:
    """Notes below a table on its columns."""
    return table.explained() if isinstance(table, _Fitting) else []


@contextmanager
def collecting() -> Iterator[list[RenderableType]]:
    """Collect what `show` would print while the block runs."""
    found: list[RenderableType] = []
    token = _COLLECTED.set(found)
    try:
        yield found
    finally:
        _COLLECTED.reset(token)


def show(*things: RenderableType, style: str | None = None) -> None:
    """Print on standard output without cutting tables.

    A table that does not fit omits optional columns, and a line says so; if that is not enough, its
    narrower form stands for it, or it is wider than the terminal.
    """
    collected = _COLLECTED.get()
    if collected is not None:
        collected += things
        return
    wide = _width()
    for thing in things:
        if isinstance(thing, _Fitting):
            table, left_out = thing.fitted(wide)
            _print(table, wide, style)
            for note in table.explained():
                _print(Text(note), wide, style)
            if left_out:
                names = " · ".join(map(_one_line, left_out))
                note = f"hidden: {names}; see a wider terminal or --json"
                _print(Text(note), wide, "dim")
        else:
            _print(thing, wide, style)


def _print(thing: RenderableType, width: int, style: str | None) -> None:
    flexible = isinstance(thing, (str, Text))
    width = width if flexible else max(width, _measured(thing).maximum)
    _Terminal(width).print(thing, style=style)


def _one_line(head: str) -> str:
    """The head of a column, whose unit may have its own line."""
    return " ".join(head.split())


def shares_of(needed: Sequence[int], room: int) -> list[int]:
    """Share room between columns by what they need; none gets less than `LEAST_TEXT` of it."""
    least = [min(one, LEAST_TEXT) for one in needed]
    narrow: set[int] = set()
    while True:
        others = [place for place in range(len(needed)) if place not in narrow]
        total = sum(needed[place] for place in others)
        left = room - sum(least[place] for place in narrow)
        more = {place for place in others if left * needed[place] // total < least[place]}
        if not more:
            break
        narrow |= more
    return [
        least[place] if place in narrow else left * one // total for place, one in enumerate(needed)
    ]


def _longest(column: Column) -> int:
    return max(_measured(cell).maximum for cell in (column.header, *column.cells))


def _measured(thing: RenderableType) -> Measurement:
    """Characters that it takes in a line, at least and at most."""
    console = _Terminal(_WIDEST)
    return Measurement.get(console, console.options, thing)


def _width() -> int:
    """Characters in a line: COLUMNS if it is set, or those of the terminal, or 120."""
    value = os.environ.get("COLUMNS", "")
    if value.isascii() and value.isdigit() and value.strip("0"):
        return min(int(value), _WIDEST) if len(value) <= _MOST_DIGITS else _WIDEST
    return get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL


def plain_table(
    *columns: str,
    left: int = 1,
    texts: Collection[str] = (),
    title: str | None = None,
    optional: Sequence[str] = (),
    wraps: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
    otherwise: Table | None = None,
) -> Table:
    """Return a table without frames: the first `left` columns left-aligned, numbers to the right.

    Parameters
    ----------
    texts
        Other columns that are left-aligned.
    optional
        Columns that a table omits where it does not fit, the first one first.
    wraps
        Columns of text that wrap there.
    notes
        Lines below it by the column that they explain; they go with the column.
    otherwise
        What to show where it does not fit without its optional columns; it has none of them.
    """
    table = _Fitting(title, optional=optional, wraps=wraps, notes=notes, otherwise=otherwise)
    for position, name in enumerate(columns):
        side: JustifyMethod = "left" if position < left or name in texts else "right"
        table.add_column(name, justify=side, no_wrap=True)
    return table


def as_markdown(table: Table) -> str:
    """Return a table with all of its columns as Markdown."""
    rows: list[Sequence[object]] = [*zip(*(one.cells for one in table.columns), strict=True)]
    sides = ["---:" if column.justify == "right" else "---" for column in table.columns]
    rows = [[column.header for column in table.columns], sides, *rows]
    cells = ([str(one).replace("|", "\\|").strip() for one in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def table_of(
    rows: Iterable[T],
    columns: Mapping[str, Callable[[T], RenderableType]],
    *,
    style: Callable[[T], str | None] = lambda _: None,
    **words: Any,
) -> Table:
    """Return a `plain_table` with a line for each row: columns by head, with the cell of a row."""
    table = plain_table(*columns, **words)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()), style=style(row))
    return table


def is_narrow(least: int) -> bool:
    """Whether the output is a terminal of fewer columns than that."""
    return _width() < least


def seconds(value: float) -> str:
    """A time with three digits; a dash for 0."""
    return readable(value, "seconds") if value else "-"


def gib(value: float) -> str:
    """Bytes in GiB."""
    return f"{value / GIB:.2f}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"


_ALMOST_SURE, _ROUNDING = 0.995, 1e-9


def chance(probability: float | None) -> str:
    """A probability in percent, rounded down to full ones; - where it is unknown."""
    if probability is None:
        return "-"
    least = math.floor(100 * probability + _ROUNDING)
    if least < 1:
        return "< 1 %"
    return f"{least} %" if probability < _ALMOST_SURE else "> 99 %"


def signed(share: float) -> str:
    """A change or an error in percent, with its sign."""
    return f"{100 * share:+.1f} %"


def both_ends(items: Sequence[T], most: int) -> list[T | None]:
    """All of a few items; of more, so many from both ends with None between them."""
    if len(items) <= most:
        return list(items)
    return [*items[: most // 2], None, *items[-(most // 2) :]]


def written(value: object) -> str:
    """A config value as people write it; a dash for none."""
    if value is None or value in ({}, [], ()):
        return "-"
    if isinstance(value, (list, tuple)):
        return ",".join(map(written, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def gpu_count(number: int) -> str:
    """A number of GPUs."""
    return counted(number, "GPU")


def count(value: float) -> str:
    """A count with a suffix: 70.6 B."""
    if not math.isfinite(value) or value == 0:
        return "-"
    for scale, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{suffix}"
    return f"{value:.4g}"
