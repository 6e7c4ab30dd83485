"""A bar on stderr for long work, if someone looks at it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Bar", "progress_bar"]

Bar = Callable[[float, int, str], None]
"""Called with what is done, what there is in all, and a word on what was found so far."""


@contextmanager
def progress_bar(what: str, *, counted: bool = True) -> Iterator[Bar | None]:
    """Show share, rate and time left while the block runs; None if stderr is no terminal.

    Parameters
    ----------
    counted
        Whether there are millions, whose rate says something.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[found]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, found="", rate="")

        def update(done: float, whole: int, found: str) -> None:
            elapsed = bar.tasks[0].elapsed
            rate = f"{done / elapsed / 1e6:.1f} million/s" if elapsed and counted else ""
            bar.update(task, completed=done, total=whole, found=found, rate=rate)

        yield update
