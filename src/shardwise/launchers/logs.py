"""Logs of training runs: the trainer is recognized by its lines.

A new format is one module with `FORMAT`, and one line here.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from shardwise.config import files
from shardwise.errors import Fault, InputError
from shardwise.launchers import transformers_log as huggingface
from shardwise.launchers.deepspeed import log as deepspeed
from shardwise.launchers.maxtext import log as maxtext
from shardwise.launchers.megatron import log as megatron
from shardwise.launchers.megatron_bridge import log as megatron_bridge
from shardwise.launchers.megatron_bridge import nemo_log as nemo
from shardwise.launchers.run_log import LogBuilder, LogFormat, RunLog, without_colors
from shardwise.launchers.torchtitan import log as torchtitan

FORMATS: tuple[LogFormat, ...] = (
    megatron_bridge.FORMAT,
    megatron.FORMAT,
    torchtitan.FORMAT,
    maxtext.FORMAT,
    nemo.FORMAT,
    deepspeed.FORMAT,
    huggingface.FORMAT,
)
"""The first format whose marker and steps are in a log reads it."""

_CHUNK = 1 << 20
_MOST_LINE = 1 << 16
"""Characters of a line that are read; what is longer is cut."""


def read_log(path: str | Path) -> RunLog:
    """Read the log of a training run, gzipped or not, line by line.

    Raises
    ------
    InputError
        If it cannot be read, or holds no step of a format that is known.
    """
    builders = [LogBuilder(format=one) for one in FORMATS]
    last = ""
    for line, ended in _lines(path):
        if ended:
            _add(builders, line)
        else:
            last = line
    chosen = _chosen(builders)
    if chosen is None and last:  # the end of a log may be cut off in the middle of a number
        _add(builders, last)
        chosen = _chosen(builders)
    if chosen is None:
        known = "; ".join(f"{one.title}: {one.shows}" for one in FORMATS)
        problem = f"holds no step of a training run; looked for {known}"
        raise InputError(Fault(source=str(path), problem=problem))
    return chosen.built(str(path))


def _add(builders: list[LogBuilder], line: str) -> None:
    plain = without_colors(line)
    for builder in builders:
        builder.add(plain)


def _chosen(builders: list[LogBuilder]) -> LogBuilder | None:
    return next((one for one in builders if one.marked and one.has_time), None)


def _lines(path: str | Path) -> Iterator[tuple[str, bool]]:
    """Yield each line and whether it is complete; progress bars end lines with a return."""
    files.check_input_path(path)
    rest = ""
    try:
        with Path(path).open("rb") as stream:
            raw: io.BufferedReader | gzip.GzipFile = stream
            if str(path).endswith(".gz"):
                raw = gzip.GzipFile(fileobj=stream)
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline=None)
            while chunk := text.read(_CHUNK):
                *whole, rest = (rest + chunk).split("\n")
                yield from ((line[:_MOST_LINE], True) for line in whole)
                rest = rest[-_CHUNK:]
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Fault(source=str(path), problem=f"cannot be read: {reason}")) from None
    if rest:
        yield rest[:_MOST_LINE], False
