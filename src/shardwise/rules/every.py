"""Which strategies are legal: every rule once, for one row or for ten million."""

from collections.abc import Callable, Sequence

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.errors import Fault, InputError
from shardwise.model import Model
from shardwise.ops.attention import key_value_heads
from shardwise.rules.rule import Rule, any_of
from shardwise.rules.tiers import TIER_RULES, wrong_degrees
from shardwise.stages import most_layers
from shardwise.strategy import DTYPES, SCHEDULES, TP_EXCHANGES
from shardwise.system import System
from shardwise.table import Table

__all__ = ["RULES", "broken_rule", "illegal_faults", "refuse_illegal"]


_MEMORY_TIERS = 2


def _heads(model: Model, _: System, table: Table) -> Bools:
    return any_of([layer.attention.heads % table.tp != 0 for layer in model.layers])


def _kv_heads(model: Model, _: System, table: Table) -> Bools:
    kinds = [key_value_heads(layer.attention, table.attention) for layer in model.layers]
    return any_of([(kv % table.tp != 0) & (table.tp % kv != 0) for kv in kinds])


def _ffn(model: Model, _: System, table: Table) -> Bools:
    return any_of([layer.mlp.ffn % table.tp != 0 for layer in model.layers])


def _uneven_edges(_: Model, __: System, table: Table) -> Bools:
    scatters = (table.tp_exchange == TP_EXCHANGES.index("p2p_rs_ag")) & (table.pp > 1)
    return scatters & (table.micro_batch_size * table.seq_len % table.tp != 0)


def _stage_layers(model: Model, _: System, table: Table) -> Bools:
    return (table.pp > model.depth) | (most_layers(model.depth, table.pp) % table.vpp != 0)


def _kinds_across_stages(model: Model, _: System, table: Table) -> Bools:
    return (table.pp > 1) & (len(model.layers) > 1)


def _batch(_: Model, __: System, table: Table) -> Bools:
    return table.global_batch_size % (table.dp * table.micro_batch_size) != 0


def _schedule(_: Model, __: System, table: Table) -> Bools:
    return (table.schedule == SCHEDULES.index("interleaved")) != (table.vpp > 1)


def _dtype(_: Model, system: System, table: Table) -> Bools:
    unknown = np.array([name not in system.accelerator.matrix for name in DTYPES])
    return unknown[table.dtype]


def _positions(model: Model, _: System, table: Table) -> Bools:
    if model.position != "learned":
        return np.zeros(len(table), dtype=np.bool_)
    return table.seq_len > (model.max_positions or model.seq_len or 0)


def _accelerators(_: Model, system: System, table: Table) -> Bools:
    reach = system.network[-1].domain
    return table.gpus > reach if reach else np.zeros(len(table), dtype=np.bool_)


def _no_second_tier(flag: str) -> Callable[[Model, System, Table], Bools]:
    return lambda _, system, table: (
        getattr(table, flag) & (len(system.accelerator.memory) < _MEMORY_TIERS)
    )


def _not_yet(degree: str) -> Callable[[Model, System, Table], Bools]:
    return lambda _, __, table: getattr(table, degree) > 1


def _one(column: Ints) -> int:
    return int(column[0])


RULES: tuple[Rule, ...] = (
    Rule(
        reason="degrees",
        of_layout=True,
        field="gpus",
        broken=lambda _, __, t: wrong_degrees(t),
        problem=lambda _, __, t: (
            f"must equal tp x cp x pp x dp = {_one(t.tp)} x {_one(t.cp)} x {_one(t.pp)} "
            f"x {_one(t.dp)} = {_one(t.tp) * _one(t.cp) * _one(t.pp) * _one(t.dp)}"
        ),
    ),
    Rule(
        reason="accelerators",
        of_layout=True,
        field="gpus",
        broken=_accelerators,
        problem=lambda _, s, __: f"the network connects at most {s.network[-1].domain}",
    ),
    Rule(
        reason="dtype",
        field="dtype",
        broken=_dtype,
        problem=lambda _, s, __: (
            f"{s.accelerator.name} has no matrix rate for it; allowed: "
            + ", ".join(name for name in DTYPES if name in s.accelerator.matrix)
        ),
    ),
    Rule(
        reason="heads",
        of_layout=True,
        field="tp",
        broken=_heads,
        problem=lambda m, _, __: (
            f"must divide the heads of the model, {_listed(m, lambda x: x.attention.heads)}"
        ),
    ),
    Rule(
        reason="kv_heads",
        field="tp",
        broken=_kv_heads,
        problem=lambda m, _, t: (
            "must divide or be a multiple of the key-value heads of the model, "
            + _listed(m, lambda x: int(key_value_heads(x.attention, t.attention)[0]))
        ),
    ),
    Rule(
        reason="ffn",
        of_layout=True,
        field="tp",
        broken=_ffn,
        problem=lambda m, _, __: (
            f"must divide the MLP width of the model, {_listed(m, lambda x: x.mlp.ffn)}"
        ),
    ),
    Rule(
        reason="sequence",
        field="sequence_parallel",
        broken=lambda _, __, t: t.sequence_parallel & (t.seq_len % (t.tp * t.cp) != 0),
        problem=lambda _, __, t: (
            f"with it tp {_one(t.tp)} must divide seq_len {_one(t.seq_len)}; "
            "without it (false) it need not"
        ),
    ),
    Rule(
        reason="edges",
        field="tp_exchange",
        broken=_uneven_edges,
        problem=lambda _, __, t: (
            f"tp {_one(t.tp)} must divide micro_batch_size x seq_len = "
            f"{_one(t.micro_batch_size * t.seq_len)}, which it scatters; all_reduce does not"
        ),
    ),
    Rule(
        reason="layers",
        of_layout=True,
        field="pp",
        broken=_stage_layers,
        problem=lambda m, _, t: (
            f"must be at most the {m.depth} layers"
            if _one(t.pp) > m.depth
            else f"gives stages of up to {_one(most_layers(m.depth, t.pp))} layers, "
            f"which vpp {_one(t.vpp)} must divide"
        ),
    ),
    Rule(
        reason="layer_kinds",
        of_layout=True,
        field="pp",
        broken=_kinds_across_stages,
        problem=lambda m, _, __: (
            f"the {len(m.layers)} kinds of layers of {m.name} over several stages are not modelled"
            "; allowed: 1"
        ),
    ),
    Rule(
        reason="batch",
        of_layout=True,
        field="global_batch_size",
        broken=_batch,
        problem=lambda _, __, t: (
            f"must be a multiple of dp x micro_batch_size = {_one(t.dp)} x "
            f"{_one(t.micro_batch_size)} = {_one(t.dp * t.micro_batch_size)}"
        ),
    ),
    Rule(
        reason="stages",
        of_layout=True,
        field="vpp",
        broken=lambda _, __, t: (t.vpp > 1) & (t.pp == 1),
        problem=lambda *_: "interleaving needs pp > 1; allowed: 1",
    ),
    Rule(
        reason="schedule",
        of_layout=True,
        field="schedule",
        broken=_schedule,
        problem=lambda _, __, t: f"interleaved needs vpp > 1, 1f1b vpp = 1; vpp is {_one(t.vpp)}",
    ),
    Rule(
        reason="positions",
        field="seq_len",
        broken=_positions,
        problem=lambda m, _, __: (
            f"{m.name} has {m.max_positions or m.seq_len} learned positions; allowed: up to that"
        ),
    ),
    Rule(
        reason="zero",
        field="zero",
        broken=lambda _, __, t: t.zero > 1,
        problem=lambda *_: "stages 2 and 3 are not modelled yet; allowed: 0, 1",
    ),
    *(
        Rule(
            reason=flag,
            field=flag,
            broken=_no_second_tier(flag),
            problem=lambda _, s, __: (
                f"{s.accelerator.name} has no second memory tier to offload to; allowed: false"
            ),
        )
        for flag in ("offload_weights", "offload_activations", "offload_optimizer")
    ),
    *TIER_RULES,
    *(
        Rule(
            reason=degree,
            of_layout=True,
            field=degree,
            broken=_not_yet(degree),
            problem=lambda *_: "this axis is not modelled yet; allowed: 1",
        )
        for degree in ("cp", "ep", "etp")
    ),
)


def _listed(model: Model, value: Callable[..., int]) -> str:
    return ", ".join(str(number) for number in sorted({value(layer) for layer in model.layers}))


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
        if np.any(broken):
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
