"""`Rule`: one condition that a legal strategy meets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System

__all__ = ["Rule", "any_of", "one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition that a legal strategy meets."""

    reason: str
    """A word for counting refusals."""
    field: str
    """The column to blame, unless `blame` says another."""
    broken: Callable[[Model, System, Table], Bools]
    """Which rows break it."""
    problem: Callable[[Model, System, Table], str]
    """What to tell about a table of one row that breaks it."""
    of_layout: bool = False
    """Whether it reads nothing but degrees, chunks, batch and placement."""
    blame: Callable[[Model, System, Table], str] | None = None
    """The column to blame in a table of one row, where it depends on the row."""


def any_of(masks: Sequence[Bools] | Bools) -> Bools:
    """Rows for which any of several masks holds."""
    return np.logical_or.reduce(masks)


def one(column: Ints) -> int:
    """The value of a column of one row."""
    return int(column[0])
