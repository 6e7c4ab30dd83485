"""What `shardwise fsdp` is given, read; progress, and where code and records go."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from shardwise.cli.options import emit_json, log
from shardwise.cli.progress import Bar
from shardwise.config import files
from shardwise.errors import Fault, InputError
from shardwise.fsdp.api import Progress
from shardwise.fsdp.emit import Form

__all__ = ["check_places", "given_names", "positive", "show_code", "told"]

COMMAND_LINE = "command line"
_ENDINGS = (".txt", ".json", ".yaml", ".yml", ".toml", ".gz")


def given_names(texts: Sequence[str] | None) -> str | list[str] | None:
    """Names of ``--units a,b --units c``, or the file that the one text names; None: none."""
    if not texts:
        return None
    if len(texts) == 1 and texts[0].endswith(_ENDINGS):
        return texts[0]
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def positive(field: str, text: str | None) -> float | None:
    """Read a number above 0; None if it was not given."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        problem = "must be a number above 0"
        raise InputError(
            Fault(source=COMMAND_LINE, field=field, value=text, has_value=True, problem=problem)
        )
    return number


def told(bar: Bar | None) -> Progress | None:
    """Progress of a plan on a bar; no figures are known of most of it."""
    if bar is None:
        return None
    return lambda what, done, of: bar(done, of or 1, what)


def check_places(output: str | None, plot: str | None, emit: str | None) -> None:
    """Refuse files that cannot be written, before anything is computed."""
    if output is not None:
        if emit is None:
            files.check_writable_ending(output)
        else:
            files.check_output_path(output)
    if plot is None:
        return
    from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow

    check_chart_file(plot)
    if output is not None and Path(output).absolute() == Path(plot).absolute():
        problem = "is the file of output, too"
        raise InputError(
            Fault(source=COMMAND_LINE, field="plot", value=plot, has_value=True, problem=problem)
        )


def show_code(
    form: Form, record: Mapping[str, Any], name: str, *, json: bool, output: str | None
) -> None:
    """Write code to a file, or print it; what it cannot say goes to standard error."""
    for note in form.notes:
        typer.echo(f"note: {note}", err=True)
    if output is not None:
        files.write_text(output, form.text)
        log.info("wrote %s", output)
    if json:
        code = {"form": name, "text": form.text, "notes": list(form.notes)}
        emit_json({**record, "emitted": code})
    elif output is None:
        typer.echo(form.text, nl=False)
