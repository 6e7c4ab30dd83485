"""Rules of degrees: what tensor, context and expert parallelism split must divide."""

from collections.abc import Callable, Iterable

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.enums import AttentionImplementation, CpExchange, Dtype
from shardwise.config.model import Layer, Model, Moe
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.ops.attention import key_value_heads
from shardwise.parallel.constraints.constraint import Rule, any_of, one

__all__ = ["AXIS_RULES", "EXPERT_RULES"]


def _heads(model: Model, _: System, table: Table) -> Bools:
    return any_of([layer.attention.heads % table.tp != 0 for layer in model.layers])


def _kv_heads(model: Model, _: System, table: Table) -> Bools:
    kinds = [
        key_value_heads(layer.attention, table.attention)
        for layer in model.layers
        if layer.attention.latent is None
    ]
    return _any(table, ((kv % table.tp != 0) & (table.tp % kv != 0) for kv in kinds))


def _ffn(model: Model, _: System, table: Table) -> Bools:
    return _any(table, (width % table.tp != 0 for width in _dense_widths(model)))


def _dense_widths(model: Model) -> list[int]:
    """Inner widths that tensor parallelism splits: of dense MLPs and of shared experts."""
    dense = {layer.mlp.ffn for layer in model.layers if layer.mlp is not None}
    shared = {layer.moe.shared_ffn for layer in model.layers if layer.moe is not None}
    return sorted(dense | (shared - {0}))


def _any(table: Table, masks: Iterable[Bools]) -> Bools:
    return any_of([np.zeros(len(table), dtype=np.bool_), *masks])


def _listed(model: Model, value: Callable[[Layer], int]) -> str:
    return ", ".join(str(number) for number in sorted({value(layer) for layer in model.layers}))


def _sequence(_: Model, __: System, table: Table) -> Bools:
    return table.sequence_parallel & (table.seq_len % (table.tp * table.cp) != 0)


def _context(_: Model, __: System, table: Table) -> Bools:
    return (table.cp > 1) & (table.seq_len % (2 * table.cp) != 0)


def _swapped_heads(model: Model, _: System, table: Table) -> Bools:
    swaps = (table.cp > 1) & (table.cp_exchange == CpExchange.ALL_TO_ALL.code)
    members = table.tp * table.cp
    return swaps & any_of([layer.attention.heads % members != 0 for layer in model.layers])


def _unfused_context(model: Model, _: System, table: Table) -> Bools:
    fused = table.by_stack(lambda stack: stack.attention == AttentionImplementation.FLASH)
    fused &= table.dtype != Dtype.FP32.code
    if model.position in ("relative-xl", "relative-bias"):
        fused = np.zeros_like(fused)
    return (table.cp > 1) & ~fused


def _latent_heads(model: Model, _: System, table: Table) -> Bools:
    latent = any(layer.attention.latent is not None for layer in model.layers)
    return (table.attention > 0) & latent


AXIS_RULES: tuple[Rule, ...] = (
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
            f"must divide the MLP width of the model, {', '.join(map(str, _dense_widths(m)))}"
        ),
    ),
    Rule(
        reason="sequence",
        field="sequence_parallel",
        broken=_sequence,
        problem=lambda _, __, t: (
            f"with it tp {one(t.tp)} must divide seq_len {one(t.seq_len)}; "
            "without it (false) it need not"
            if one(t.cp) == 1
            else f"with it tp x cp = {one(t.tp * t.cp)} must divide seq_len {one(t.seq_len)}"
        ),
    ),
    Rule(
        reason="context",
        field="cp",
        broken=_context,
        problem=lambda _, __, t: (
            f"2 x cp must divide seq_len {one(t.seq_len)}: each rank has an early and a late part"
        ),
    ),
    Rule(
        reason="context_heads",
        field="cp_exchange",
        broken=_swapped_heads,
        problem=lambda m, _, t: (
            f"tp x cp = {one(t.tp * t.cp)} must divide the heads of the model, "
            f"{_listed(m, lambda x: x.attention.heads)}, which it swaps for the sequence"
        ),
    ),
    Rule(
        reason="context_attention",
        field="cp",
        broken=_unfused_context,
        problem=lambda *_: (
            "needs a fused attention kernel: a stack with flash attention, a 16-bit type, and "
            "positions that it can do; allowed: 1"
        ),
    ),
    Rule(
        reason="latent_heads",
        field="attention",
        broken=_latent_heads,
        problem=lambda m, _, __: (
            f"{m.name} has latent attention without key-value heads of its own; allowed: model"
        ),
    ),
)


def _no_experts(degree: str) -> Callable[[Model, System, Table], Bools]:
    return lambda model, _, table: (getattr(table, degree) > 1) & (not model.has_experts)


def _moes(model: Model) -> list[Moe]:
    return [layer.moe for layer in model.layers if layer.moe is not None]


def _experts(model: Model) -> list[int]:
    return sorted({moe.experts for moe in _moes(model)})


def _expert_widths(model: Model) -> list[int]:
    return sorted({moe.ffn for moe in _moes(model)})


def _expert_ranks(_: Model, __: System, table: Table) -> Bools:
    return (table.tp * table.tp2 * table.cp * table.dp) % (table.ep * table.etp) != 0


def _split_routing(model: Model, _: System, table: Table) -> Bools:
    return (table.tp > 1) & ~table.sequence_parallel & model.has_experts


def _load(model: Model, _: System, table: Table) -> Bools:
    given = (table.expert_capacity > 0) | (table.expert_imbalance > 1)
    return given & (not model.has_experts)


def _two_loads(_: Model, __: System, table: Table) -> Bools:
    return (table.expert_capacity > 0) & (table.expert_imbalance > 1)


def _most_load(model: Model) -> float:
    """Every token once: E / k of an even load."""
    return max((moe.experts / moe.top_k for moe in _moes(model)), default=np.inf)


def _overloaded(model: Model, _: System, table: Table) -> Bools:
    most = _most_load(model)
    rows: Bools = (table.expert_capacity > most) | (table.expert_imbalance > most)
    return rows


def _each(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


EXPERT_RULES: tuple[Rule, ...] = (
    *(
        Rule(
            reason=f"{degree}_experts",
            of_layout=True,
            field=degree,
            broken=_no_experts(degree),
            problem=lambda m, _, __: f"{m.name} has no experts; allowed: 1",
        )
        for degree in ("ep", "etp")
    ),
    Rule(
        reason="ep",
        of_layout=True,
        field="ep",
        broken=lambda m, _, t: _any(t, (count % t.ep != 0 for count in _experts(m))),
        problem=lambda m, _, __: f"must divide the experts of the model, {_each(_experts(m))}",
    ),
    Rule(
        reason="etp",
        of_layout=True,
        field="etp",
        broken=lambda m, _, t: _any(t, (width % t.etp != 0 for width in _expert_widths(m))),
        problem=lambda m, _, __: f"must divide the experts' width, {_each(_expert_widths(m))}",
    ),
    Rule(
        reason="expert_ranks",
        of_layout=True,
        field="ep",
        broken=_expert_ranks,
        problem=lambda _, __, t: (
            f"ep x etp = {one(t.ep * t.etp)} must divide tp x cp x dp = {one(t.tp * t.cp * t.dp)}"
        ),
    ),
    Rule(
        reason="routing",
        field="sequence_parallel",
        broken=_split_routing,
        problem=lambda _, __, t: (
            f"experts with tp {one(t.tp)} need it: each rank routes its part of the tokens; "
            "allowed: true"
        ),
    ),
    Rule(
        reason="expert_load",
        field="expert_capacity",
        broken=_load,
        blame=lambda _, __, t: (
            "expert_capacity" if t.expert_capacity[0] > 0 else "expert_imbalance"
        ),
        problem=lambda m, _, __: f"{m.name} has no experts; leave it out",
    ),
    Rule(
        reason="expert_overlap",
        field="expert_overlap",
        broken=lambda m, _, t: t.expert_overlap & (not m.has_experts),
        problem=lambda m, _, __: f"{m.name} has no experts; allowed: false",
    ),
    Rule(
        reason="expert_overload",
        field="expert_capacity",
        broken=_overloaded,
        blame=lambda m, _, t: (
            "expert_capacity" if t.expert_capacity[0] > _most_load(m) else "expert_imbalance"
        ),
        problem=lambda m, _, __: (
            "is more than every token once, experts / top_k of an even load; "
            f"allowed: at most {_most_load(m):g}"
        ),
    ),
    Rule(
        reason="expert_loads",
        field="expert_imbalance",
        broken=_two_loads,
        problem=lambda *_: (
            "has no effect with expert_capacity, which gives every expert the same; allowed: 1"
        ),
    ),
)
