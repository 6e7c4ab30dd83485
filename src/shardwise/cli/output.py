"""Output of all verbs: tables or JSON, files, progress on stderr, the log."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations

from shardwise import registry
from shardwise.cli.command_line import quiet
from shardwise.cli.options import COMMAND_LINE, flag_fault
from shardwise.cli.streams import is_unicode
from shardwise.config import files
from shardwise.config.plain import as_json
from shardwise.errors import InputError

INTERRUPTED = 130
"""Exit code of interrupted work."""

MOST_POINTS = 10_000
"""Points of a sweep that need no --yes."""
_MANY_POINTS = 500

log = logging.getLogger("shardwise")

Bar = Callable[[float, int, str], None]
"""Called with the work done, all work, and a note on what was found so far."""


def emit_json(
    data: Mapping[str, object], output: str | None = None, *, written: bool = True
) -> None:
    """Print JSON, or write it to a file, by its ending as JSON, YAML or a table.

    Parameters
    ----------
    written
        Whether it says which version wrote it; not in formats of others, nor where each key is the
        name of an entry.
    """
    if output is not None and files.is_table_file(output):
        search_csv = registry.load("report.search_csv")
        files.write_table(search_csv.table(data, source=output), output)
        log.info("wrote %s", output)
        return
    data = files.with_writer(data) if written else data
    if output is not None:
        files.write_mapping(output, data)
        log.info("wrote %s", output)
        return
    escaped = not is_unicode(sys.stdout)
    sys.stdout.write(as_json(data, indent=2, escaped=escaped) + "\n")


def show(
    record: Callable[[], Mapping[str, object]],
    print_tables: Callable[[], None],
    *,
    json: bool,
    output: str | None,
    lacks: str = "",
    written: bool = True,
) -> None:
    """Write the record to a file, print it as JSON, or print tables.

    What a file holds is not printed again; of a .csv or .parquet file the record is.

    Parameters
    ----------
    lacks
        Why there is no feasible answer; printed on stderr, unless tables say it.
    written
        As of `emit_json`.
    """
    if json or output is not None:
        if lacks:
            note(lacks)
        data = record()
        if json and output is not None and files.is_table_file(output):
            emit_json(data, output)
            output = None
        emit_json(data, output, written=written)
    else:
        print_tables()


def printed(home: str, *arguments: object, **options: object) -> Callable[[], None]:
    """A function of `report.tables`, as `module:name`, imported when it is called."""
    return lambda: registry.load(f"report.tables.{home}")(*arguments, **options)


def check_pages(plot: str | None, report: str | None = None) -> None:
    """Refuse files of charts and of a report that cannot be written."""
    if plot is not None:
        registry.load("report.charts.common:check_chart_file")(plot)
    if report is not None:
        registry.load("report.page.shared:check_report_file")(report)


def write_page(verb: str, report: str | None, *arguments: object, **options: object) -> None:
    """Write the report of a verb, if there is a file for it."""
    if report is not None:
        page = registry.load(f"report.page.{verb}:report_of")(*arguments, **options)
        registry.load("report.page.shared:write_report")(page, report)


def note(text: str) -> None:
    """Print a line on stderr, unless --quiet is set; nothing is lost if that is full."""
    if quiet.get():
        return
    with suppress(OSError):
        print(text, file=sys.stderr)  # noqa: T201 - this is the command line


def check_different_files(**paths: str | None) -> None:
    """Refuse one file for two purposes; files by the flag that names them."""
    used = {flag: name for flag, name in paths.items() if name is not None}
    for (one, first), (other, second) in combinations(used.items(), 2):
        if files.is_same_file(first, second):
            raise flag_fault(other, second, f"is also the file of {one}")


def check_size(points: int, *, large: bool) -> None:
    """Print how many points a sweep has, if they are many; refuse too many without --yes."""
    if points > MOST_POINTS and not large:
        problem = f"makes {points:,} points; more than {MOST_POINTS:,} need --yes"
        raise InputError.at(COMMAND_LINE, problem, "vary")
    if points > _MANY_POINTS:
        note(f"{points:,} points")


class Stopwatch:
    """Seconds since it was created."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self._start:.3f} s"


@contextmanager
def progress_bar(what: str, *, counted: bool = True) -> Iterator[Bar | None]:
    """Show progress, rate and time left while the block runs, and what was found below them.

    None if stderr is not a terminal, and with --quiet.

    Parameters
    ----------
    counted
        Whether to show the rate, in millions per second.
    """
    if quiet.get() or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console, Group  # noqa: PLC0415 - slow to import
    from rich.live import Live  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text  # noqa: PLC0415

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    task, best = bar.add_task(what, total=None, rate=""), Text(no_wrap=True, overflow="ellipsis")
    with Live(Group(bar, best), console=Console(stderr=True), transient=True) as live:

        def update(done: float, total: int, found: str) -> None:
            elapsed = bar.tasks[0].elapsed
            rate = f"{done / elapsed / 1e6:.1f} million/s" if elapsed and counted else ""
            bar.update(task, completed=done, total=total, rate=rate)
            if found != best.plain:
                best.plain = found
                live.refresh()

        yield update
