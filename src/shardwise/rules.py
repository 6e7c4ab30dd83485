"""Which strategies are legal: every rule once, for one row or for ten million."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.errors import Fault, InputError
from shardwise.model import Model
from shardwise.ops.attention import key_value_heads
from shardwise.placement import given_tiers, place
from shardwise.stages import most_layers
from shardwise.strategy import DTYPES, PLACED_AXES, SCHEDULES
from shardwise.system import System
from shardwise.table import Table

__all__ = ["RULES", "Rule", "broken_rule", "refuse_illegal"]


_MEMORY_TIERS = 2
_MOST_MEMBERS = 2**15  # of one axis on a tier: products of four of them stay in 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition that a legal strategy meets."""

    reason: str
    """A word for counting refusals."""
    field: str
    """The column to blame."""
    broken: Callable[[Model, System, Table], Bools]
    """Which rows break it."""
    problem: Callable[[Model, System, Table], str]
    """What to tell about a table of one row that breaks it."""


def _any(masks: Sequence[Bools]) -> Bools:
    return np.logical_or.reduce(masks)


def _heads(model: Model, _: System, table: Table) -> Bools:
    return _any([layer.attention.heads % table.tp != 0 for layer in model.layers])


def _kv_heads(model: Model, _: System, table: Table) -> Bools:
    kinds = [key_value_heads(layer.attention, table.attention) for layer in model.layers]
    return _any([(kv % table.tp != 0) & (table.tp % kv != 0) for kv in kinds])


def _ffn(model: Model, _: System, table: Table) -> Bools:
    return _any([layer.mlp.ffn % table.tp != 0 for layer in model.layers])


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


def _given_axes(table: Table) -> list[tuple[Ints, Ints]]:
    """Degree and tier of each axis that was given one (-1 elsewhere)."""
    return list(
        zip((getattr(table, axis) for axis in PLACED_AXES), given_tiers(table), strict=True)
    )


def _overfull(system: System, table: Table) -> Bools:
    """Rows with an axis on a tier of its own in which some domain has no room for all axes."""
    wrong = np.zeros(len(table), dtype=np.bool_)
    some = np.flatnonzero((given_tiers(table) >= 0).any(axis=0))
    if some.size:
        extents = place(system, table.take(some))
        for tier, described in enumerate(system.network):
            if described.domain is not None:
                reach = [getattr(extents, axis)[tier].astype(np.float64) for axis in PLACED_AXES]
                wrong[some] |= np.prod(reach, axis=0) > described.domain
    return wrong


def _unfilled(system: System, table: Table) -> Bools:
    """Rows in which groups leave part of a tier idle that must be filled with whole groups."""
    wrong = np.zeros(len(table), dtype=np.bool_)
    for tier, described in enumerate(system.network):
        if described.must_be_filled and described.domain is not None:
            members = np.ones(len(table), dtype=np.int64)
            for degree, given in _given_axes(table):
                members *= np.where(given == tier, np.minimum(degree, _MOST_MEMBERS), 1)
            wrong |= described.domain % members != 0
    return wrong


def _blamed(axis: str, wrong: Callable[[System, Table], Bools]) -> Callable[..., Bools]:
    """Blame the outermost axis that was given a tier."""
    later = PLACED_AXES[PLACED_AXES.index(axis) + 1 :]

    def broken(_: Model, system: System, table: Table) -> Bools:
        outermost = getattr(table, f"{axis}_tier") >= 0
        for other in later:
            outermost &= getattr(table, f"{other}_tier") < 0
        return outermost & wrong(system, table)

    return broken


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
        broken=lambda _, __, t: t.gpus != 1.0 * t.tp * t.cp * t.pp * t.dp,
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
    *(
        Rule(
            reason=f"{axis}_tier_size",
            field=f"{axis}_tier",
            broken=_blamed(axis, _overfull),
            problem=lambda _, s, t: (
                f"the axes laid on tiers ({_tiers(t)}) do not fit into domains of "
                + ", ".join(f"{x.domain} ({x.name})" for x in s.network if x.domain)
            ),
        )
        for axis in PLACED_AXES
    ),
    *(
        Rule(
            reason=f"{axis}_tier_filled",
            field=f"{axis}_tier",
            broken=_blamed(axis, _unfilled),
            problem=lambda _, s, t: (
                f"the axes laid on tiers ({_tiers(t)}) must divide domains that are to be filled: "
                + ", ".join(f"{x.domain} ({x.name})" for x in s.network if x.must_be_filled)
            ),
        )
        for axis in PLACED_AXES
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


def _tiers(table: Table) -> str:
    given = zip(PLACED_AXES, _given_axes(table), strict=True)
    return ", ".join(f"{axis} {_one(d)} on {_one(t)}" for axis, (d, t) in given if _one(t) >= 0)


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
    faults = [
        Fault(
            source="strategy",
            field=rule.field,
            value=getattr(row.strategy(0), rule.field),
            has_value=True,
            problem=rule.problem(model, system, row),
        )
        for rule in RULES
        if rule.broken(model, system, row)[0]
    ]
    if faults:
        raise InputError(faults)
