"""Whether one row is legal, known from rows that agree with it in every column that a test reads.

Estimates of one model on one system mostly differ in few columns, so that most tests are known.
"""

from collections.abc import Iterable
from functools import partial
from typing import cast

from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import KnownReads, SeenRow, known_of
from shardwise.parallel.constraints.constraint import Constraint, Test

# Rows that a test is known to pass.
_MOST_ROWS = 1 << 10


def known_legal(
    model: Model, system: System, table: Table, constraints: Iterable[Constraint]
) -> bool:
    """Whether a table of one row is seen to obey all constraints; False: it may obey them or not.

    Rows that avoid what was reported, and those on several systems, are not seen to.
    """
    if table.named is not None or (row := table.only_row()) is None:
        return False
    make = partial(_tests, table, constraints)
    for test, known in known_of(make, Constraint, model, system, *table.stacks):
        if known.find(row) is None:
            names: set[str] = set()
            if test(model, system, cast("Table", SeenRow(table, names)))[0]:
                return False
            known.save(row, names, result=True, most=_MOST_ROWS)
    return True


def _tests(
    table: Table, constraints: Iterable[Constraint]
) -> tuple[tuple[Test, KnownReads[bool]], ...]:
    """Every test of a release, with the rows that are known to pass it."""
    every = [test for constraint in constraints for test in constraint.tests(table)]
    return tuple([(test, KnownReads()) for test in every])
