"""Standard streams that take every text: closed ones, and those that are not UTF-8."""

import codecs
import errno
import io
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from shardwise.cli.command_line import DESTINATIONS

_LOOK_ALIKES = {
    "█": "#",
    "▏": "|",
    "·": "-",
    "→": ">",
    "×": "x",  # noqa: RUF001 - it is the one that is meant
    "µ": "u",
    "μ": "u",
    "–": "-",  # noqa: RUF001 - likewise
    "─": "-",
    "━": "-",
    "…": "~",
    "⛁": " ",
}
"""ASCII for characters that tables and bars have, as wide as they are."""
_HANDLER = "shardwise.look_alikes"


def _look_alikes(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding does not have; other characters are escaped, as Python does."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    text = "".join(
        _LOOK_ALIKES.get(one) or one.encode("ascii", "backslashreplace").decode() for one in missing
    )
    return text, error.end


codecs.register_error(_HANDLER, _look_alikes)


def is_unicode(stream: object) -> bool:
    """Whether a stream can hold all characters."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return codecs.lookup(encoding).name.startswith("utf")


def prepare() -> None:
    """Make standard output and standard error take every text."""
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


class _ClosedStream(io.TextIOBase):
    """Standard output that was closed before the start; Python has None there."""

    def write(self, text: str) -> int:
        """Refuse any text."""
        if not text:
            return 0
        raise OSError(errno.EBADF, "it is closed")

    def fileno(self) -> int:
        """Return its usual descriptor."""
        return 1


def _open_closed() -> None:
    """Keep closed standard streams from being None, and files from getting their descriptors."""
    streams: tuple[object, ...] = (sys.stdin, sys.stdout, sys.stderr)
    for descriptor, stream in enumerate(streams):
        if stream is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    if streams[1] is None:
        sys.stdout = _ClosedStream()
    if streams[2] is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


STDIN = "-"
_GZIP = b"\x1f\x8b"
_YAML_LINE = re.compile(r"(?:---|- |[\w.$\"'-]+[ \t]*:(?:[ \t]|$))")


@contextmanager
def stdin_as_file(words: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Yield arguments in which a file with what standard input has replaces `-`, and that file.

    Its ending is that of its content, as readers tell formats by it. `-#3` is plan 3 of it. After
    an option that writes, `-` is standard output.
    """
    places = [
        at
        for at, word in enumerate(words)
        if word.partition("#")[0] == STDIN and (at == 0 or words[at - 1] not in DESTINATIONS)
    ]
    if not places:
        yield list(words), ""
        return
    content = sys.stdin.buffer.read()
    with tempfile.TemporaryDirectory(prefix="shardwise-") as folder:
        file = Path(folder) / f"stdin{_ending_of(content)}"
        file.write_bytes(content)
        for at in places:
            words = [*words[:at], str(file) + words[at].removeprefix(STDIN), *words[at + 1 :]]
        yield list(words), str(file)


def _ending_of(content: bytes) -> str:
    """Return the ending of a file with a content: JSON, TOML, YAML, gzipped JSON, or none."""
    if content.startswith(_GZIP):
        return ".json.gz"
    text = content.decode("utf-8-sig", "replace").lstrip()
    if text.startswith("{"):
        return ".json"
    if text.startswith("#!"):
        return ".sh"
    with suppress(tomllib.TOMLDecodeError):
        return ".toml" if tomllib.loads(text) else ""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return ".yaml" if _YAML_LINE.match(next(lines, "")) else ""


def discard_output() -> None:
    """Send the rest of standard output nowhere, so that its end is no second error."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
