"""`Constraint`: one condition that a legal strategy meets."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System

Test = Callable[[Model, System, Table], Bools]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One condition that a legal strategy meets."""

    reason: str
    """Short name, for counting refusals."""
    field: str
    """The field to blame, unless `blame` names another."""
    violated: Test
    """Rows that violate it."""
    problem: Callable[[Model, System, Table], str]
    """Message for a table of one row that violates it."""
    layout_only: bool = False
    """Whether it reads nothing but degrees, chunks, batch and placement."""
    blame: Callable[[Model, System, Table], str] | None = None
    """The field to blame in a table of one row, where it depends on the row."""
    parts: Callable[[Table], Iterable[Test]] | None = None
    """Tests of which a table violates one where it violates the condition: each reads less."""

    def tests(self, table: Table) -> Iterable[Test]:
        """Tests of which rows with the stacks of a table violate one, or none."""
        return (self.violated,) if self.parts is None else self.parts(table)


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
