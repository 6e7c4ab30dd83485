"""Which strategies are legal: every rule once, for one row or for ten million."""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import TpExchange
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.parallel.constraints.axes import AXIS_RULES, EXPERT_RULES
from shardwise.parallel.constraints.constraint import Rule, one
from shardwise.parallel.constraints.network import TIER_RULES, wrong_degrees
from shardwise.parallel.constraints.options import DTYPE_RULE, OPTION_RULES
from shardwise.parallel.constraints.pipeline import PIPELINE_RULES
from shardwise.parallel.constraints.summa import SUMMA_RULES

__all__ = ["RULES", "broken_rule", "illegal_faults", "refuse_illegal"]


def _uneven_edges(_: Model, __: System, table: Table) -> Bools:
    scatters = (table.tp_exchange == TpExchange.P2P_RS_AG.code) & (table.pp > 1)
    return scatters & (table.micro_batch_size * table.seq_len % table.tp != 0)


def _batch(_: Model, __: System, table: Table) -> Bools:
    return table.global_batch_size % (table.dp * table.micro_batch_size) != 0


def _accelerators(_: Model, system: System, table: Table) -> Bools:
    reach = system.network[-1].domain
    return table.gpus > reach if reach else np.zeros(len(table), dtype=np.bool_)


RULES: tuple[Rule, ...] = (
    Rule(
        reason="degrees",
        of_layout=True,
        field="gpus",
        broken=lambda _, __, t: wrong_degrees(t),
        problem=lambda _, __, t: (
            f"must equal tp x cp x pp x dp = {one(t.tp)} x {one(t.cp)} x {one(t.pp)} "
            f"x {one(t.dp)} = {one(t.tp) * one(t.cp) * one(t.pp) * one(t.dp)}"
            if one(t.tp2) == 1
            else f"must equal tp x tp2 x cp x pp x dp = {one(t.tp)} x {one(t.tp2)} x {one(t.cp)} x "
            f"{one(t.pp)} x {one(t.dp)}"
        ),
    ),
    Rule(
        reason="accelerators",
        of_layout=True,
        field="gpus",
        broken=_accelerators,
        problem=lambda _, s, __: f"the network connects at most {s.network[-1].domain}",
    ),
    DTYPE_RULE,
    *SUMMA_RULES,
    *AXIS_RULES,
    Rule(
        reason="edges",
        field="tp_exchange",
        broken=_uneven_edges,
        problem=lambda _, __, t: (
            f"tp {one(t.tp)} must divide micro_batch_size x seq_len = "
            f"{one(t.micro_batch_size * t.seq_len)}, which it scatters; all_reduce does not"
        ),
    ),
    *PIPELINE_RULES[:1],
    Rule(
        reason="batch",
        of_layout=True,
        field="global_batch_size",
        broken=_batch,
        problem=lambda _, __, t: (
            f"must be a multiple of dp x micro_batch_size = {one(t.dp)} x "
            f"{one(t.micro_batch_size)} = {one(t.dp * t.micro_batch_size)}"
        ),
    ),
    *PIPELINE_RULES[1:],
    *EXPERT_RULES,
    *OPTION_RULES,
    *TIER_RULES,
)


def broken_rule(model: Model, system: System, table: Table, rules: Sequence[Rule] = RULES) -> Ints:
    """For each row (and choice) the position in `RULES` of the first rule it breaks, or -1.

    Parameters
    ----------
    rules
        Those to hold the rows to.
    """
    first = np.full(len(table), -1, dtype=np.int64)
    for rule in reversed(rules):
        broken = rule.broken(model, system, table)
        if broken.any():
            first = np.where(broken, RULES.index(rule), first)
    return first


def illegal_faults(model: Model, system: System, table: Table) -> dict[str, Fault]:
    """One fault for each rule that the first row breaks, by the rule's reason."""
    row = table.take(slice(0, 1))
    broken = [rule for rule in RULES if rule.broken(model, system, row)[0]]
    named = [
        (rule, rule.blame(model, system, row) if rule.blame else rule.field) for rule in broken
    ]
    return {
        rule.reason: Fault(
            source="strategy",
            field=field,
            value=getattr(row.strategy(0), field),
            has_value=True,
            problem=rule.problem(model, system, row),
        )
        for rule, field in named
    }


def refuse_illegal(model: Model, system: System, table: Table) -> None:
    """Raise one fault for each rule that the first row breaks."""
    faults = illegal_faults(model, system, table)
    if faults:
        raise InputError(list(faults.values()))
