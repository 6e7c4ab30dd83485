"""Which strategies are legal: every constraint once, for one row or for ten million."""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import TpExchange
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.parallel.constraints.constraint import (
    Constraint,
    joined,
    nearest_multiples,
    one,
)
from shardwise.parallel.constraints.degrees import (
    AXIS_CONSTRAINTS,
    EXPERT_CONSTRAINTS,
    SUMMA_CONSTRAINTS,
)
from shardwise.parallel.constraints.network import TIER_CONSTRAINTS, wrong_degrees
from shardwise.parallel.constraints.options import DTYPE_CONSTRAINT, OPTION_CONSTRAINTS
from shardwise.parallel.constraints.pipeline import PIPELINE_CONSTRAINTS
from shardwise.parallel.constraints.software import SOFTWARE_CONSTRAINTS

__all__ = ["CONSTRAINTS", "Constraint", "first_violation", "illegal_faults", "refuse_illegal"]


def _uneven_edges(_: Model, __: System, table: Table) -> Bools:
    scatters = (table.tp_exchange == TpExchange.P2P_RS_AG.code) & (table.pp > 1)
    return scatters & (table.micro_batch_size * table.seq_len % table.tp != 0)


def _batch(_: Model, __: System, table: Table) -> Bools:
    return table.global_batch_size % (table.dp * table.micro_batch_size) != 0


def _accelerators(_: Model, system: System, table: Table) -> Bools:
    reach = system.network[-1].domain
    return table.gpus > reach if reach else np.zeros(len(table), dtype=np.bool_)


CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        reason="degrees",
        layout_only=True,
        field="gpus",
        violated=lambda _, __, t: wrong_degrees(t),
        problem=lambda _, __, t: (
            f"must equal tp x cp x pp x dp = {one(t.tp)} x {one(t.cp)} x {one(t.pp)} "
            f"x {one(t.dp)} = {one(t.tp) * one(t.cp) * one(t.pp) * one(t.dp)}"
            if one(t.tp2) == 1
            else f"must equal tp x tp2 x cp x pp x dp = {one(t.tp)} x {one(t.tp2)} x {one(t.cp)} x "
            f"{one(t.pp)} x {one(t.dp)}"
        ),
    ),
    Constraint(
        reason="accelerators",
        layout_only=True,
        field="gpus",
        violated=_accelerators,
        problem=lambda _, s, __: f"the network connects at most {s.network[-1].domain}",
    ),
    DTYPE_CONSTRAINT,
    *SUMMA_CONSTRAINTS,
    *AXIS_CONSTRAINTS,
    Constraint(
        reason="edges",
        field="tp_exchange",
        violated=_uneven_edges,
        problem=lambda _, __, t: (
            f"tp {one(t.tp)} must divide micro_batch_size x seq_len = "
            f"{one(t.micro_batch_size * t.seq_len)}, which p2p_rs_ag scatters; all_reduce does not"
        ),
    ),
    *PIPELINE_CONSTRAINTS[:1],
    Constraint(
        reason="batch",
        layout_only=True,
        field="global_batch_size",
        violated=_batch,
        problem=lambda _, __, t: (
            f"must be a multiple of dp x micro_batch_size = {one(t.dp)} x "
            f"{one(t.micro_batch_size)} = {one(t.dp * t.micro_batch_size)}; nearest: "
            + joined(nearest_multiples(one(t.global_batch_size), one(t.dp * t.micro_batch_size)))
        ),
    ),
    *PIPELINE_CONSTRAINTS[1:],
    *EXPERT_CONSTRAINTS,
    *OPTION_CONSTRAINTS,
    *TIER_CONSTRAINTS,
    *SOFTWARE_CONSTRAINTS,
)


def first_violation(
    model: Model, system: System, table: Table, constraints: Sequence[Constraint] = CONSTRAINTS
) -> Ints:
    """Position in `CONSTRAINTS` of the first one that each row violates, or -1.

    Only `constraints` are checked.

    Parameters
    ----------
    model
        Architecture.
    system
        Accelerators and network tiers.
    table
        Strategies of n rows.
    constraints
        Constraints to check, in order.
    """
    first = np.full(len(table), -1, dtype=np.int64)
    for constraint in reversed(constraints):
        violated = constraint.violated(model, system, table)
        if violated.any():
            first = np.where(violated, CONSTRAINTS.index(constraint), first)
    return first


def illegal_faults(model: Model, system: System, table: Table) -> dict[str, Fault]:
    """One fault for each constraint that the first row violates, by the constraint's reason.

    Parameters
    ----------
    model
        Architecture.
    system
        Accelerators and network tiers.
    table
        Strategies of n rows.
    """
    row = table.take(slice(0, 1))
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
    """Raise one fault for each constraint that the first row violates.

    Parameters
    ----------
    model
        Architecture.
    system
        Accelerators and network tiers.
    table
        Strategies of n rows.
    """
    faults = illegal_faults(model, system, table)
    if faults:
        raise InputError(list(faults.values()))
