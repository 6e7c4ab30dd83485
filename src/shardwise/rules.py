"""Which strategies are legal: every rule once, for one row or for ten million."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.errors import Fault, InputError
from shardwise.model import Model
from shardwise.ops.attention import key_value_heads
from shardwise.placement import given_tiers, place
from shardwise.stages import most_layers
from shardwise.strategy import DTYPES, PLACED_AXES, SCHEDULES, TP_EXCHANGES
from shardwise.system import System
from shardwise.table import Table

__all__ = ["RULES", "Rule", "broken_rule", "refuse_illegal"]


_MEMORY_TIERS = 2


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
    blame: Callable[[Model, System, Table], str] | None = None
    """The column to blame in a table of one row, where it depends on the row."""


def _any(masks: Sequence[Bools] | Bools) -> Bools:
    return np.logical_or.reduce(masks)


def _heads(model: Model, _: System, table: Table) -> Bools:
    return _any([layer.attention.heads % table.tp != 0 for layer in model.layers])


def _kv_heads(model: Model, _: System, table: Table) -> Bools:
    kinds = [key_value_heads(layer.attention, table.attention) for layer in model.layers]
    return _any([(kv % table.tp != 0) & (table.tp % kv != 0) for kv in kinds])


def _ffn(model: Model, _: System, table: Table) -> Bools:
    return _any([layer.mlp.ffn % table.tp != 0 for layer in model.layers])


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


def _reach(system: System, table: Table) -> Floats:
    """Members that each axis adds on each tier, where degrees make up the accelerators.

    Shape (tiers, axes, rows); all 1 in rows with other degrees, which another rule refuses.
    """
    reach = np.ones((len(system.network), len(PLACED_AXES), len(table)))
    rows = np.flatnonzero(~_wrong_degrees(table))
    if rows.size:
        extents = place(system, table.take(rows))
        whole = np.stack([getattr(extents, axis) for axis in PLACED_AXES], axis=1)
        reach[..., rows] = whole / np.vstack([np.ones_like(whole[:1]), whole[:-1]])
    return reach


def _wrong_degrees(table: Table) -> Bools:
    return table.gpus != 1.0 * table.tp * table.cp * table.pp * table.dp


def _overfull(system: System, table: Table) -> Bools:
    """Whether the axes have more members than a domain of a tier; shape (tiers, rows).

    Only an axis on a tier of its own can do that: placed ones take the room there is.
    """
    if not np.any(given_tiers(table) >= 0):
        return np.zeros((len(system.network), len(table)), dtype=np.bool_)
    members = np.cumprod(np.prod(_reach(system, table), axis=1), axis=0)
    return members > _domains(system)[:, np.newaxis]


def _unfilled(system: System, table: Table) -> Bools:
    """Whether groups leave part of a tier idle that must be filled; shape (tiers, rows)."""
    filled = [tier.must_be_filled and tier.domain is not None for tier in system.network]
    if not any(filled):
        return np.zeros((len(system.network), len(table)), dtype=np.bool_)
    domains = _domains(system)
    room = np.where(filled, domains, 1.0) / np.where(filled, [1.0, *domains[:-1]], 1.0)
    members = np.prod(_reach(system, table), axis=1)
    idle = np.array(filled)[:, np.newaxis] & (np.mod(room[:, np.newaxis], members) != 0)
    return idle & ~_any(_overfull(system, table))


def _domains(system: System) -> Floats:
    return np.array([tier.domain or np.inf for tier in system.network])


def _crowding(
    wrong: Callable[[System, Table], Bools],
) -> Callable[[Model, System, Table], str]:
    """Blame the axis with most members on the first tier that is wrong, or its own tier."""

    def blamed(_: Model, system: System, table: Table) -> str:
        tier = int(np.argmax(wrong(system, table)[:, 0]))
        axis = int(np.argmax(_reach(system, table)[tier, :, 0]))
        name = PLACED_AXES[axis]
        return f"{name}_tier" if given_tiers(table)[axis, 0] >= 0 else name

    return blamed


def _crowd(
    wrong: Callable[[System, Table], Bools], told: str
) -> Callable[[Model, System, Table], str]:
    """Say how many members of which axes a tier has, and how many it connects."""

    def problem(_: Model, system: System, table: Table) -> str:
        tier = int(np.argmax(wrong(system, table)[:, 0]))
        extents = place(system, table)
        members = [int(getattr(extents, axis)[tier, 0]) for axis in PLACED_AXES]
        axes = " x ".join(f"{a} {n}" for a, n in zip(PLACED_AXES, members, strict=True) if n > 1)
        described = system.network[tier]
        return f"{axes} in a domain of {described.name} {told} its {described.domain} accelerators"

    return problem


def _no_second_tier(flag: str) -> Callable[[Model, System, Table], Bools]:
    return lambda _, system, table: (
        getattr(table, flag) & (len(system.accelerator.memory) < _MEMORY_TIERS)
    )


def _not_yet(degree: str) -> Callable[[Model, System, Table], Bools]:
    return lambda _, __, table: getattr(table, degree) > 1


def _tier(axis: str) -> Callable[[Model, System, Table], Bools]:
    return lambda _, system, table: getattr(table, f"{axis}_tier") >= len(system.network)


def _one(column: Ints) -> int:
    return int(column[0])


RULES: tuple[Rule, ...] = (
    Rule(
        reason="degrees",
        field="gpus",
        broken=lambda _, __, t: _wrong_degrees(t),
        problem=lambda _, __, t: (
            f"must equal tp x cp x pp x dp = {_one(t.tp)} x {_one(t.cp)} x {_one(t.pp)} "
            f"x {_one(t.dp)} = {_one(t.tp) * _one(t.cp) * _one(t.pp) * _one(t.dp)}"
        ),
    ),
    Rule(
        reason="accelerators",
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
        field="pp",
        broken=_kinds_across_stages,
        problem=lambda m, _, __: (
            f"the {len(m.layers)} kinds of layers of {m.name} over several stages are not modelled"
            "; allowed: 1"
        ),
    ),
    Rule(
        reason="batch",
        field="global_batch_size",
        broken=_batch,
        problem=lambda _, __, t: (
            f"must be a multiple of dp x micro_batch_size = {_one(t.dp)} x "
            f"{_one(t.micro_batch_size)} = {_one(t.dp * t.micro_batch_size)}"
        ),
    ),
    Rule(
        reason="stages",
        field="vpp",
        broken=lambda _, __, t: (t.vpp > 1) & (t.pp == 1),
        problem=lambda *_: "interleaving needs pp > 1; allowed: 1",
    ),
    Rule(
        reason="schedule",
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
    *(
        Rule(
            reason=f"{axis}_tier",
            field=f"{axis}_tier",
            broken=_tier(axis),
            problem=lambda _, s, __: (
                f"the network has {len(s.network)} tiers; allowed: 0 to {len(s.network) - 1}"
            ),
        )
        for axis in PLACED_AXES
    ),
    Rule(
        reason="tier_size",
        field="placement",
        broken=lambda _, s, t: _any(_overfull(s, t)),
        problem=_crowd(_overfull, "are more than"),
        blame=_crowding(_overfull),
    ),
    Rule(
        reason="tier_filled",
        field="placement",
        broken=lambda _, s, t: _any(_unfilled(s, t)),
        problem=_crowd(_unfilled, "must divide (and so fill)"),
        blame=_crowding(_unfilled),
    ),
    *(
        Rule(
            reason=degree,
            field=degree,
            broken=_not_yet(degree),
            problem=lambda *_: "this axis is not modelled yet; allowed: 1",
        )
        for degree in ("cp", "ep", "etp")
    ),
)


def _listed(model: Model, value: Callable[..., int]) -> str:
    return ", ".join(str(number) for number in sorted({value(layer) for layer in model.layers}))


def broken_rule(model: Model, system: System, table: Table) -> Ints:
    """Return, for each row, the position in `RULES` of the first rule it breaks, or -1."""
    first = np.full(len(table), -1, dtype=np.int64)
    for position in range(len(RULES) - 1, -1, -1):
        first[RULES[position].broken(model, system, table)] = position
    return first


def refuse_illegal(model: Model, system: System, table: Table) -> None:
    """Raise one fault for each rule that the first row breaks."""
    row = table.take(slice(0, 1))
    broken = [rule for rule in RULES if rule.broken(model, system, row)[0]]
    named = [
        (rule, rule.blame(model, system, row) if rule.blame else rule.field) for rule in broken
    ]
    faults = [
        Fault(
            source="strategy",
            field=field,
            value=getattr(row.strategy(0), field),
            has_value=True,
            problem=rule.problem(model, system, row),
        )
        for rule, field in named
    ]
    if faults:
        raise InputError(faults)
