"""`rule`: one condition that a legal strategy meets, as a row of a table of constraints.

    rule("tp2", "tp2", lambda m, t: t.tp2 > m.hidden, "must be at most the width {m.hidden}")

A row has a reason, which counts refusals, the field to blame, a test for the rows of a table that
break the rule, and what the message says about a table of one row. Functions take a table; or
model and table; or model, system and table. Braces in a text name a column of the row, or what it
runs: `{tp}`, `{m.name}`, `{s.accelerator.name}`, `{stack.name}`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType
from typing import Any, cast

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.capabilities import Reported
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.records import dataclass

Test = Callable[[Model, System, Table], Bools]
Text = Callable[[Model, System, Table], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One condition that a legal strategy meets."""

    reason: str
    """Short name, for counting refusals."""
    field: str
    """The field to blame, unless `blame` names another."""
    violated: Test
    """Rows that violate it."""
    problem: Text
    """Message for a table of one row that violates it."""
    layout_only: bool = False
    """Whether it reads nothing but degrees, chunks, batch and placement."""
    blame: Text | None = None
    """The field to blame in a table of one row, where it depends on the row."""
    parts: Callable[[Table], Iterable[Test]] | None = None
    """Tests of which a table violates one where it violates the condition: each reads less."""

    def tests(self, table: Table) -> Iterable[Test]:
        """Tests of which rows with the stacks of a table violate one, or none."""
        return (self.violated,) if self.parts is None else self.parts(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that the release of a stack requires of a strategy."""

    field: str
    """The field to blame."""
    violated: Test
    problem: Text
    """What the release runs, after its name, for a table of one row."""
    reads: tuple[str, ...]
    """Fields that decide it."""
    reported: Reported | None = None
    """What it only warns of."""


def rule(
    reason: str,
    field: str,
    test: Callable[..., Bools],
    text: str | Callable[..., str],
    *,
    layout: bool = False,
    blame: Callable[..., str] | None = None,
) -> Constraint:
    """Return a constraint; `layout` as `Constraint.layout_only`."""
    return Constraint(
        reason=reason,
        field=field,
        violated=with_all(test),
        problem=said(text),
        layout_only=layout,
        blame=blame and with_all(blame),
    )


def with_all(function: Callable[..., Any]) -> Callable[[Model, System, Table], Any]:
    """Let a function that takes a table, or model and table, be called with the system too."""
    match cast("FunctionType", function).__code__.co_argcount:
        case 1:
            return lambda model, system, table: function(table)  # noqa: ARG005 - see above
        case 2:
            return lambda model, system, table: function(model, table)  # noqa: ARG005 - see above
    return function


def said(text: str | Callable[..., str]) -> Text:
    """A message from a text with names in braces, or from a function."""
    if callable(text):
        return with_all(text)
    return partial(_filled, text) if "{" in text else lambda *_: text


def _filled(text: str, model: Model, system: System, table: Table) -> str:
    return text.format_map(_Named(model, system, table))


@dataclass(frozen=True, slots=True)
class _Named:
    """What braces in a text may name."""

    m: Model
    s: System
    table: Table

    def __getitem__(self, name: str) -> object:
        if name == "stack":
            return self.table.stacks[one(self.table.stack)]
        return getattr(self, name) if name in ("m", "s") else one(getattr(self.table, name))


def any_of(table: Table, masks: Iterable[Bools]) -> Bools:
    """Rows for which any of several masks holds; none without masks."""
    return np.logical_or.reduce([np.zeros(len(table), dtype=np.bool_), *masks])


def one(column: Ints) -> int:
    """The value of a column of one row."""
    return int(column[0])


def nearest_multiples(number: int, unit: int) -> tuple[int, ...]:
    """The multiples of a unit around a number that is none, without 0."""
    below = number // unit * unit
    return tuple(filter(None, (below, below + unit)))


def joined(numbers: Iterable[int]) -> str:
    """Distinct numbers in ascending order, as text."""
    return ", ".join(map(str, sorted(set(numbers))))
