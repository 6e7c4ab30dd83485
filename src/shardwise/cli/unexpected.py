"""One line for an exception that nothing expected, and how to report it."""

import os
import traceback
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from shardwise.config import files
from shardwise.errors import Fault, one_line

_ISSUES = "https://github.com/shardwise/shardwise/issues"
_VARIABLE = "SHARDWISE_TRACEBACK"
"""Environment variable that shows the traceback, if it is not empty."""
_PACKAGE = Path(__file__).parent.parent
_TEXT_WIDTH = 150


def line_of(error: BaseException) -> str:
    """Return what happened, in one line, with the file that was read last; print the traceback."""
    if os.environ.get(_VARIABLE):
        traceback.print_exception(error)
    if isinstance(error, OSError) and error.filename is not None:
        return str(Fault(source=str(error.filename), problem=error.strerror or str(error)))
    if isinstance(error, MemoryError):
        return str(Fault(source=files.last_input(), problem="needs more memory than there is"))
    text = one_line(f"{type(error).__name__}: {error}", _TEXT_WIDTH)
    problem = (
        f"unexpected {text}{_place(error)}; a fault of shardwise: please report the command and "
        f"the traceback, which {_VARIABLE}=1 shows, at {_ISSUES}"
    )
    return str(Fault(source=files.last_input(), field=_field(error), problem=problem))


def _place(error: BaseException) -> str:
    """The innermost line of shardwise that the exception passed."""
    places = [
        (_file(frame).relative_to(_PACKAGE).as_posix(), line) for frame, line in _frames(error)
    ]
    return " ({}:{})".format(*places[-1]) if places else ""


def _field(error: BaseException) -> str:
    """The field that the innermost function which names one was working on.

    By convention such functions call it `field`; validators of pydantic have it in `info`.
    """
    for frame, _ in reversed(_frames(error)):
        names = frame.f_locals
        field = names.get("field") or getattr(names.get("info"), "field_name", None)
        if isinstance(field, str):
            return field
    return ""


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Functions of shardwise that the exception passed, outermost first, and their lines."""
    passed = walk_tb(error.__traceback__)
    return [(frame, line) for frame, line in passed if _file(frame).is_relative_to(_PACKAGE)]


def _file(frame: FrameType) -> Path:
    return Path(frame.f_code.co_filename)
