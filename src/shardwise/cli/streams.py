"""Standard streams that take every text: closed ones, and those that are not UTF-8."""

import codecs
import errno
import io
import os
import sys
from contextlib import suppress

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


def discard_output() -> None:
    """Send the rest of standard output nowhere, so that its end is no second error."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
