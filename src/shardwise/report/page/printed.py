"""What verbs print on the terminal, as blocks of a page: the same tables and lines."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.report.console import collecting, notes_of
from shardwise.report.page.html import Block, DataTable, Facts, Lines

_BARS = "█▏ "


def printed_blocks(print_tables: Callable[[], None]) -> list[Block]:
    """Return what a function prints as blocks, in order."""
    with collecting() as things:
        print_tables()
    return [block for thing in things for block in _blocks(thing)]


def _blocks(thing: RenderableType) -> Iterator[Block]:
    """A table and the notes below it, or lines."""
    if isinstance(thing, Table) and (table := _table(thing)) is not None:
        yield table
    lines = notes_of(thing) if isinstance(thing, Table) else joined(_plain(thing).splitlines())
    if lines:
        yield Lines(items=lines)


def joined(lines: Sequence[str]) -> list[str]:
    """Return lines without empty ones; those that are indented continue the line before."""
    found: list[str] = []
    for line in lines:
        if line.startswith(" ") and found:
            found[-1] += f" {line.strip()}"
        elif line.strip():
            found.append(line.strip())
    return found


def _table(table: Table) -> Block | None:
    """A table; one without heads is pairs of names and values."""
    heads = [" ".join(_plain(column.header).split()) for column in table.columns]
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    rows = list(zip(*columns, strict=True))
    if not rows:
        return None
    if not any(heads):
        pairs = (zip(row[::2], row[1::2], strict=True) for row in rows)
        return Facts(items=[pair for row in pairs for pair in row])
    shown = [n for n in range(len(heads)) if heads[n] or not _is_drawing(columns[n])]
    return DataTable(
        caption=_plain(table.title or "").strip(),
        columns=[heads[n] for n in shown],
        rows=[[row[n] for n in shown] for row in rows],
        texts=[place for place, n in enumerate(shown) if table.columns[n].justify == "left"],
    )


def _is_drawing(cells: Sequence[str]) -> bool:
    """Whether a column is bars of characters."""
    return all(set(cell) <= set(_BARS) for cell in cells) and any(cells)


def _plain(thing: object) -> str:
    """Text as the terminal shows it."""
    if isinstance(thing, Text):
        return thing.plain
    return Text.from_markup(str(thing)).plain
