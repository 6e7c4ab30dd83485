"""The command line that is running, as a report repeats it."""

import shlex
from collections.abc import Sequence
from contextvars import ContextVar

# Options that only say where results go.
DESTINATIONS = (
    *("--report", "--plot", "--graph", "--out", "--output", "-o", "--log", "--save"),
    *("--csv", "--model-output"),
)
_SWITCHES = ("--json", "--verbose", "--save-all", "--quiet", "-q")
_words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
quiet: ContextVar[bool] = ContextVar("quiet", default=False)
"""Whether notes and progress are left out."""


def note_command(words: Sequence[str]) -> None:
    """Remember the words of the command, without the name of the program."""
    _words.set(tuple(words))


def entered_words() -> tuple[str, ...]:
    """Return the words of the command, without the name of the program."""
    return _words.get()


def command_line() -> str:
    """Return the command as a shell reads it, without the files that it writes."""
    shown = []
    words = iter(_words.get())
    for word in words:
        if word in DESTINATIONS:
            next(words, None)
        elif word not in _SWITCHES and not word.startswith(tuple(f"{d}=" for d in DESTINATIONS)):
            shown.append(word)
    return shlex.join(["shardwise", *shown])
