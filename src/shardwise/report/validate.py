"""A scoreboard as tables: every figure with ours and Calculon's beside it, and their scores."""

import textwrap
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from shardwise.report.console import is_narrow, plain_table, show
from shardwise.validate import Part, Scoreboard

__all__ = ["print_scoreboard", "print_suites"]

# Readable lines of text, as wide as the tables.
_TEXT_WIDTH = 80
_SYMBOLS = {"percent": "%"}
_DIGITS = 4
# Columns that the table of scores with all of its columns takes.
_WIDE = 90


def print_suites(suites: Mapping[str, str]) -> None:
    """Print each suite on a line."""
    table = plain_table("suite", "compares", left=2)
    for name, summary in suites.items():
        table.add_row(name, summary)
    show(table, Text("run one with: shardwise validate SUITE", style="dim"))


def print_scoreboard(board: Scoreboard) -> None:
    """Print each part with what it compares, then the scores of all."""
    show(Text(f"\n{board.suite}: {board.title}", style="bold"))
    show(Text("errors: predicted / reference - 1", style="dim"))
    for part in board.parts:
        unit = _SYMBOLS.get(part.unit, part.unit)
        show(Text(f"\n{part.title} [{unit}]", style="bold"), _rows(part), _notes(part))
    show(Text("\nErrors: mean of their sizes, largest, and mean with signs (bias)", style="bold"))
    show(_scores(board))


def _rows(part: Part) -> Table:
    table = plain_table("case", part.kind, "ours", "error", "Calculon", "error")
    for row in part.rows:
        table.add_row(
            row.case,
            _figure(row.reference),
            _figure(row.ours),
            _signed(row.ours_error),
            _figure(row.calculon),
            _signed(row.calculon_error),
        )
    return table


def _notes(part: Part) -> Text:
    compared = part.compared
    told = [
        f"{part.kind}: {compared.reference}",
        f"ours: {compared.ours}",
        f"Calculon: {compared.calculon}",
    ]
    return Text("\n".join(textwrap.fill(line, _TEXT_WIDTH) for line in told), style="dim")


def _scores(board: Scoreboard) -> Table:
    narrow = is_narrow(_WIDE)
    names = ("part",) if narrow else ("part", "against")
    scores = ("ours", "largest", "bias", "Calculon", "largest", "bias")
    table = plain_table(*names, "n", *scores, left=len(names))
    for part in board.parts:
        table.add_row(
            *((part.name,) if narrow else (part.name, part.kind)),
            str(len(part.rows)),
            *(
                cell
                for score in (part.ours, part.calculon)
                for cell in (_share(score.mape), _share(score.max), _signed(score.bias))
            ),
        )
    return table


def _figure(value: float) -> str:
    """Four digits, zeros at the end among them."""
    return f"{value:#.{_DIGITS}g}".removesuffix(".")


def _share(share: float) -> str:
    return f"{100 * share:.2f} %"


def _signed(share: float) -> str:
    """Show an error with its sign; what rounds to nothing has none."""
    rounded = round(100 * share, 2)
    return f"{rounded:+.2f} %" if rounded else "0.00 %"
