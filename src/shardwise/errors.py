"""The one tree of exceptions that shardwise raises on purpose."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

_VALUE_WIDTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One problem of the input: where it is, the value, and what is allowed."""

    problem: str
    source: str = ""
    field: str = ""
    value: object = None
    has_value: bool = False

    @classmethod
    def of(cls, field: str, value: object, problem: str, source: str = "") -> "Fault":
        """Return the fault of a field whose value is shown."""
        return cls(source=source, field=field, value=value, has_value=True, problem=problem)

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.source, self.field) if part)
        what = self.problem
        if self.has_value:
            what = f"{shorten(self.value)}: {what}"
        return " ".join((f"{place}: {what}" if place else what).split())


class ShardwiseError(Exception):
    """Base of every error that shardwise raises on purpose."""


class InputError(ShardwiseError):
    """The input is wrong; `faults` has one entry for each problem."""

    def __init__(self, faults: Fault | Sequence[Fault]) -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))

    def __reduce__(self) -> tuple[type["InputError"], tuple[tuple[Fault, ...]]]:
        """Pickle the faults, so that another process gets them and not just their text."""
        return type(self), (self.faults,)


class UnknownNameError(InputError):
    """A name that is neither in the catalog nor a file."""


def refuse(faults: Iterable[Fault]) -> None:
    """Raise an `InputError` with all of some faults, if there are any."""
    if found := list(faults):
        raise InputError(found)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest known name, or an empty string."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def shorten(value: object) -> str:
    """Show a value on one line, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 3] + "..."
