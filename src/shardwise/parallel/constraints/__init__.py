"""Which strategies are legal: every constraint once, for one row or for ten million."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from shardwise.arrays import Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import KnownReads, SeenRow, known_of
from shardwise.errors import Fault, InputError
from shardwise.parallel.constraints.attention import ATTENTION_CONSTRAINTS
from shardwise.parallel.constraints.constraint import Constraint, Test
from shardwise.parallel.constraints.degrees import (
    AXIS_CONSTRAINTS,
    EXPERT_CONSTRAINTS,
    SUMMA_CONSTRAINTS,
)
from shardwise.parallel.constraints.network import DEGREE_CONSTRAINTS, TIER_CONSTRAINTS
from shardwise.parallel.constraints.options import DTYPE_CONSTRAINT, OPTION_CONSTRAINTS
from shardwise.parallel.constraints.pipeline import PIPELINE_CONSTRAINTS
from shardwise.parallel.constraints.software import REPORTED_CONSTRAINT, SOFTWARE_CONSTRAINTS
from shardwise.parallel.constraints.sparse import SPARSE_CONSTRAINTS

__all__ = [
    "CONSTRAINTS",
    "Constraint",
    "faults_of",
    "first_violation",
    "illegal_faults",
    "refuse_illegal",
]


CONSTRAINTS: tuple[Constraint, ...] = (
    *DEGREE_CONSTRAINTS,
    DTYPE_CONSTRAINT,
    *SUMMA_CONSTRAINTS,
    *AXIS_CONSTRAINTS,
    *PIPELINE_CONSTRAINTS,
    *EXPERT_CONSTRAINTS,
    *OPTION_CONSTRAINTS,
    *ATTENTION_CONSTRAINTS,
    *SPARSE_CONSTRAINTS,
    *TIER_CONSTRAINTS,
    *SOFTWARE_CONSTRAINTS,
    REPORTED_CONSTRAINT,
)


def first_violation(
    model: Model, system: System, table: Table, constraints: Sequence[Constraint] = CONSTRAINTS
) -> Ints:
    """Position in `CONSTRAINTS` of the first one that each row violates, or -1.

    Only `constraints` are checked.
    """
    first = np.full(len(table), -1, dtype=np.int64)
    for constraint in reversed(constraints):
        violated = constraint.violated(model, system, table)
        if violated.any():
            first = np.where(violated, CONSTRAINTS.index(constraint), first)
    return first


# Rows that a test is known to pass.
_MOST_KNOWN = 1 << 10


def known_legal(model: Model, system: System, table: Table) -> bool:
    """Whether a table of one row is seen to obey all constraints; False: it may obey them or not.

    A test passes rows that agree in every column that it reads: estimates of one model on one
    system mostly differ in few. Rows that avoid what was reported are not seen to obey.
    """
    if table.named is not None or (row := table.only_row()) is None:
        return False

    def tests() -> list[tuple[Test, KnownReads[bool]]]:
        return [(test, KnownReads()) for one in CONSTRAINTS for test in one.tests(table)]

    for test, known in known_of(tests, Constraint, model, system, *table.stacks):
        if known.find(row) is None:
            names: set[str] = set()
            if test(model, system, cast("Table", SeenRow(table, names)))[0]:
                return False
            known.save(row, names, result=True, most=_MOST_KNOWN)
    return True


def illegal_faults(model: Model, system: System, table: Table) -> dict[str, Fault]:
    """One fault for each constraint that the first row violates, by the constraint's reason."""
    row = table if len(table) == 1 else table.take(slice(0, 1))
    return {} if known_legal(model, system, row) else faults_of(model, system, row)


def faults_of(model: Model, system: System, row: Table) -> dict[str, Fault]:
    """Result of `illegal_faults` of a row that is seldom legal, or unlike others."""
    faults: dict[str, Fault] = {}
    for constraint in CONSTRAINTS:
        if constraint.reason not in faults and constraint.violated(model, system, row)[0]:
            blame = constraint.blame
            field = blame(model, system, row) if blame else constraint.field
            if constraint in SOFTWARE_CONSTRAINTS and field in {f.field for f in faults.values()}:
                continue  # what is wrong in itself need not be what software runs
            faults[constraint.reason] = Fault(
                source="strategy",
                field=field,
                value=getattr(row.strategy(0), field),
                has_value=True,
                problem=constraint.problem(model, system, row),
            )
    return faults


def refuse_illegal(model: Model, system: System, table: Table) -> None:
    """Raise one fault for each constraint that the first row violates."""
    faults = illegal_faults(model, system, table)
    if faults:
        raise InputError(list(faults.values()))
