"""A scoreboard as tables: figures of shardwise and a predecessor side by side, and scores."""

import textwrap
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from shardwise.report.console import plain_table, show
from shardwise.validate import Criterion, Part, Row, Score, Scoreboard

# Readable lines of text, as wide as the tables.
_TEXT_WIDTH = 80
_SYMBOLS = {"percent": "%"}
_NAMES = {"calculon": "Calculon", "nersc": "NERSC", "amped": "AMPeD", "simumax": "SimuMax"}
_DIGITS = 4


def print_suites(suites: Mapping[str, str]) -> None:
    """Print each suite on a line."""
    table = plain_table("suite", "compares", left=2, wraps=("compares",))
    for name, summary in suites.items():
        table.add_row(name, summary)
    show(table, Text("run one with: shardwise validate SUITE", style="dim"))


def print_scoreboard(board: Scoreboard, *, rows: bool = False) -> None:
    """Print the scores of each part by group, or with `rows` every figure; then those of all."""
    show(Text(f"\n{board.suite}: {board.title}", style="bold"))
    show(Text("errors: predicted / reference - 1", style="dim"))
    named = _NAMES[board.predecessor]
    elder = named if any(part.theirs for part in board.parts) else None
    described = None
    for part in board.parts:
        unit = _SYMBOLS.get(part.unit, part.unit)
        title = Text(f"\n{part.title} [{unit}]", style="bold")
        show(title, _rows(part, elder) if rows else _groups(part, named))
        if part.compared != described:
            show(_notes(part, named))
        described = part.compared
    show(Text("\nErrors: mean of their sizes, largest, and mean with signs (bias)", style="bold"))
    show(_scores(board, elder))
    if board.criterion is not None:
        show(_criterion(board, board.criterion))


def _rows(part: Part, elder: str | None) -> Table:
    heads = ("case", part.kind, "shardwise", "error", *((elder, "error") if elder else ()))
    has_status = any(row.status for row in part.rows)
    heads += ("status",) if has_status else ()
    table = plain_table(*heads, wraps=("case",))
    for row in part.rows:
        table.add_row(
            row.case,
            _figure(row.reference),
            _figure(row.ours),
            _signed(row.ours_error),
            *(_predecessor_cells(row) if elder else ()),
            *((row.status or "-",) if has_status else ()),
        )
    return table


def _predecessor_cells(row: Row) -> tuple[str, str]:
    """What the predecessor says, and its error."""
    if row.theirs is None or row.their_error is None:
        return "-", "-"
    return _figure(row.theirs), _signed(row.their_error)


def _criterion(board: Scoreboard, criterion: Criterion) -> Text:
    """Say how many rows are within the limit, and why others are not, together by reason."""
    beyond = board.beyond
    rows = sum(len(part.rows) for part in board.parts)
    limit = f"{100 * criterion.limit:g} %"
    lines = [
        f"Criterion: at most {limit} ({criterion.source}); {rows - len(beyond)} of {rows} rows"
    ]
    lines[0] += " are within." if beyond else ", all of them, are within."
    by_reason: dict[str, list[str]] = {}
    for name, error in beyond.items():
        why = criterion.why.get(name, "no reason is known")
        by_reason.setdefault(why, []).append(f"{name} {_signed(error)}")
    lines += [f"beyond: {', '.join(names)}: {why}" for why, names in by_reason.items()]
    return Text("\n" + "\n".join(textwrap.fill(line, _TEXT_WIDTH) for line in lines))


def _groups(part: Part, elder: str) -> Table:
    """Our errors over all rows and by group, with the predecessor's median next to them."""
    theirs = {} if part.theirs is None else {"all": part.theirs, **part.their_groups}
    heads = ("median", "median size", "mean size", "9 of 10 below", *([elder] if theirs else []))
    table = plain_table("of", "n", *heads)
    for name, score in {"all": part.ours, **part.groups}.items():
        sizes = (score.median_ape, score.mape, score.p90)
        median = [_signed(theirs[name].median) if name in theirs else "-"] if theirs else []
        table.add_row(name, str(score.n), _signed(score.median), *map(_share, sizes), *median)
    return table


def _notes(part: Part, elder: str) -> Text:
    compared = part.compared
    lines = [f"{part.kind}: {compared.reference}", f"shardwise: {compared.ours}"]
    if compared.theirs is not None:
        lines.append(f"{elder}: {compared.theirs}")
    return Text("\n".join(textwrap.fill(line, _TEXT_WIDTH) for line in lines), style="dim")


def _scores(board: Scoreboard, elder: str | None) -> Table:
    names = ("shardwise",) if elder is None else ("shardwise", elder)
    heads = [head for name in names for head in (name, "largest", "bias")]
    table = plain_table(
        "part", "against", "n", *heads, left=2, optional=("against",), wraps=("part",)
    )
    for part in board.parts:
        scores = (part.ours, part.theirs)[: len(names)]
        cells = (cell for score in scores for cell in _cells(score))
        table.add_row(part.name, part.kind, str(len(part.rows)), *cells)
    return table


def _cells(score: Score | None) -> tuple[str, str, str]:
    if score is None:
        return "-", "-", "-"
    return _share(score.mape), _share(score.max), _signed(score.bias)


def _figure(value: float) -> str:
    """Four digits, zeros at the end among them."""
    return f"{value:#.{_DIGITS}g}".removesuffix(".")


def _share(share: float) -> str:
    return f"{100 * share:.2f} %"


def _signed(share: float) -> str:
    """Show an error with its sign; what rounds to nothing has none."""
    rounded = round(100 * share, 2)
    return f"{rounded:+.2f} %" if rounded else "0.00 %"
