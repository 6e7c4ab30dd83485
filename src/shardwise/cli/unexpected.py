"""One line for an exception that nothing expected, and how to report it."""

import os
import traceback
from pathlib import Path

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
    return str(Fault(source=files.last_input(), problem=problem))


def _place(error: BaseException) -> str:
    """The innermost line of shardwise that the exception passed."""
    place, here = "", error.__traceback__
    while here is not None:
        path = Path(here.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            place = f" ({path.relative_to(_PACKAGE).as_posix()}:{here.tb_lineno})"
        here = here.tb_next
    return place
