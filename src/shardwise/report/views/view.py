"""How a kind of result is shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from shardwise.report.charts.theme import Figure

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A result in a few lines."""

    title: str
    rows: Sequence[tuple[str, str]] = ()
    """Names and values."""
    hint: str = ""
    """What to call next."""

    def __str__(self) -> str:
        wide = max((len(name) for name, _ in self.rows), default=0)
        rows = [f"{name:<{wide}}  {value}" for name, value in self.rows]
        return "\n  ".join([self.title, *rows, *([self.hint] if self.hint else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Generic[R]):
    """How a kind of result is shown."""

    summary: Callable[[R], Summary]
    tables: Callable[[R], None] = lambda _: None
    """Prints what the command prints."""
    charts: Callable[[R], Mapping[str, Figure]] = lambda _: {}
    """By name, the most important one first."""
    folded: int = 0
    """Blocks at the end of what is printed that a notebook folds."""
    html: Callable[[R], str] | None = None
    """For a notebook, where it is not the tables."""
