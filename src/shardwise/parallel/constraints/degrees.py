"""Constraints on degrees: what tensor, context and expert parallelism must divide."""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.enums import CpExchange, Position, TpExchange, TpOverlap
from shardwise.config.model import OWN_KIND, Layer, Model, Moe
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.ops.attention import key_value_heads
from shardwise.parallel.constraints.constraint import Constraint, Test, any_of, joined, one


def _heads(model: Model, _: System, table: Table) -> Bools:
    return any_of(table, (layer.attention.heads % table.tp != 0 for layer in model.layers))


def _kv_heads(model: Model, _: System, table: Table) -> Bools:
    kinds = [
        key_value_heads(layer.attention, table.attention)
        for layer in model.layers
        if layer.attention.latent is None
    ]
    return any_of(table, ((kv % table.tp != 0) & (table.tp % kv != 0) for kv in kinds))


def _ffn(model: Model, _: System, table: Table) -> Bools:
    return any_of(table, (width % table.tp != 0 for width in _dense_widths(model)))


def _dense_widths(model: Model) -> list[int]:
    """MLP widths that tensor parallelism splits: of dense MLPs and of shared experts."""
    dense = {layer.mlp.ffn for layer in model.layers if layer.mlp is not None}
    shared = {layer.moe.shared_ffn for layer in model.layers if layer.moe is not None}
    return sorted(dense | (shared - {0}))


def _sequence(_: Model, __: System, table: Table) -> Bools:
    return table.sequence_parallel & (table.seq_len % (table.tp * table.cp) != 0)


def _context(_: Model, __: System, table: Table) -> Bools:
    return (table.cp > 1) & (table.seq_len % (2 * table.cp) != 0)


def _swapped_heads(model: Model, _: System, table: Table) -> Bools:
    swaps = (table.cp > 1) & (table.cp_exchange == CpExchange.ALL_TO_ALL.code)
    members = table.tp * table.cp
    return swaps & any_of(table, (layer.attention.heads % members != 0 for layer in model.layers))


def _unfused_context(model: Model, _: System, table: Table) -> Bools:
    fused = table.fused_attention
    if model.position in (Position.RELATIVE_XL, Position.RELATIVE_BIAS):
        fused = np.zeros_like(fused)
    return (table.cp > 1) & ~fused


def _latent_heads(model: Model, _: System, table: Table) -> Bools:
    latent = any(layer.attention.latent is not None for layer in model.layers)
    return (table.attention > 0) & latent


AXIS_CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        reason="heads",
        layout_only=True,
        field="tp",
        violated=_heads,
        problem=lambda m, _, __: (
            f"must divide the heads of the model, {joined(x.attention.heads for x in m.layers)}"
        ),
    ),
    Constraint(
        reason="kv_heads",
        field="tp",
        violated=_kv_heads,
        problem=lambda m, _, t: (
            "must divide or be a multiple of the key-value heads of the model, "
            + joined(int(key_value_heads(x.attention, t.attention)[0]) for x in m.layers)
        ),
    ),
    Constraint(
        reason="ffn",
        layout_only=True,
        field="tp",
        violated=_ffn,
        problem=lambda m, _, __: (
            f"must divide the MLP width of the model, {joined(_dense_widths(m))}"
        ),
    ),
    Constraint(
        reason="sequence",
        field="sequence_parallel",
        violated=_sequence,
        problem=lambda _, __, t: (
            f"with it tp {one(t.tp)} must divide seq_len {one(t.seq_len)}; "
            "without it (false) it need not"
            if one(t.cp) == 1
            else f"with it tp x cp = {one(t.tp * t.cp)} must divide seq_len {one(t.seq_len)}"
        ),
    ),
    Constraint(
        reason="context",
        field="cp",
        violated=_context,
        problem=lambda _, __, t: (
            f"2 x cp must divide seq_len {one(t.seq_len)}: each rank has an early and a late slice"
        ),
    ),
    Constraint(
        reason="context_heads",
        field="cp_exchange",
        violated=_swapped_heads,
        problem=lambda m, _, t: (
            f"tp x cp = {one(t.tp * t.cp)} must divide the heads of the model, "
            f"{joined(x.attention.heads for x in m.layers)}, which all_to_all splits"
        ),
    ),
    Constraint(
        reason="context_attention",
        field="cp",
        violated=_unfused_context,
        problem=lambda *_: (
            "needs a fused attention kernel: a stack with flash attention, 16 bits (or flash_fp32) "
            "and positions that it supports; allowed: 1"
        ),
    ),
    Constraint(
        reason="latent_heads",
        field="attention",
        violated=_latent_heads,
        problem=lambda m, _, __: (
            f"{m.name} has latent attention without key-value heads of its own; allowed: model"
        ),
    ),
)


def _no_experts(degree: str) -> Test:
    return lambda model, _, table: (getattr(table, degree) > 1) & (not model.has_experts)


def _moes(model: Model) -> list[Moe]:
    return [layer.moe for layer in model.layers if layer.moe is not None]


def _experts(model: Model) -> list[int]:
    return sorted({moe.experts for moe in _moes(model)})


def _expert_widths(model: Model) -> list[int]:
    return sorted({moe.ffn for moe in _moes(model)})


def _expert_ranks(_: Model, __: System, table: Table) -> Bools:
    return (table.tp * table.tp2 * table.cp * table.dp) % (table.ep * table.etp) != 0


def _may_split(table: Table) -> bool:
    """Whether a table of one row may have sequence parallelism."""
    bound = table.stacks[one(table.stack)].capabilities
    if bound is None or table.any_software.any():
        return True
    return bound.allows("tp_exchange", TpExchange.RS_AG)


def _split_routing(model: Model, _: System, table: Table) -> Bools:
    return (table.tp > 1) & ~table.sequence_parallel & model.has_experts


def _load(model: Model, _: System, table: Table) -> Bools:
    limited = (table.expert_capacity > 0) | (table.expert_imbalance > 1)
    return limited & (not model.has_experts)


def _two_loads(_: Model, __: System, table: Table) -> Bools:
    return (table.expert_capacity > 0) & (table.expert_imbalance > 1)


def _most_load(model: Model) -> float:
    """Largest load of an expert, every token once: E / k of an even load."""
    return max((moe.experts / moe.top_k for moe in _moes(model)), default=np.inf)


def _overloaded(model: Model, _: System, table: Table) -> Bools:
    most = _most_load(model)
    rows: Bools = (table.expert_capacity > most) | (table.expert_imbalance > most)
    return rows


EXPERT_CONSTRAINTS: tuple[Constraint, ...] = (
    *(
        Constraint(
            reason=f"{degree}_experts",
            layout_only=True,
            field=degree,
            violated=_no_experts(degree),
            problem=lambda m, _, __: f"{m.name} has no experts; allowed: 1",
        )
        for degree in ("ep", "etp")
    ),
    Constraint(
        reason="ep",
        layout_only=True,
        field="ep",
        violated=lambda m, _, t: any_of(t, (count % t.ep != 0 for count in _experts(m))),
        problem=lambda m, _, __: f"must divide the experts of the model, {joined(_experts(m))}",
    ),
    Constraint(
        reason="etp",
        layout_only=True,
        field="etp",
        violated=lambda m, _, t: any_of(t, (width % t.etp != 0 for width in _expert_widths(m))),
        problem=lambda m, _, __: f"must divide the experts' width, {joined(_expert_widths(m))}",
    ),
    Constraint(
        reason="expert_ranks",
        layout_only=True,
        field="ep",
        violated=_expert_ranks,
        problem=lambda _, __, t: (
            f"ep x etp = {one(t.ep * t.etp)} must divide tp x cp x dp = {one(t.tp * t.cp * t.dp)}"
        ),
    ),
    Constraint(
        reason="routing",
        field="sequence_parallel",
        violated=_split_routing,
        problem=lambda _, __, t: (
            f"experts with tp {one(t.tp)} need it: each rank routes its own tokens; allowed: true"
            if _may_split(t)
            else "experts need sequence parallelism with tp above 1; "
            f"{t.stacks[one(t.stack)].name} has none; allowed: 1"
        ),
        blame=lambda _, __, t: "sequence_parallel" if _may_split(t) else "tp",
    ),
    Constraint(
        reason="expert_load",
        field="expert_capacity",
        violated=_load,
        blame=lambda _, __, t: (
            "expert_capacity" if t.expert_capacity[0] > 0 else "expert_imbalance"
        ),
        problem=lambda m, _, __: f"{m.name} has no experts; leave it out",
    ),
    Constraint(
        reason="expert_overlap",
        field="expert_overlap",
        violated=lambda m, _, t: t.expert_overlap & (not m.has_experts),
        problem=lambda m, _, __: f"{m.name} has no experts; allowed: false",
    ),
    Constraint(
        reason="expert_overload",
        field="expert_capacity",
        violated=_overloaded,
        blame=lambda m, _, t: (
            "expert_capacity" if t.expert_capacity[0] > _most_load(m) else "expert_imbalance"
        ),
        problem=lambda m, _, __: (
            "exceeds every token once, experts / top_k of an even load; "
            f"allowed: at most {_most_load(m):g}"
        ),
    ),
    Constraint(
        reason="expert_loads",
        field="expert_imbalance",
        violated=_two_loads,
        problem=lambda *_: (
            "has no effect with expert_capacity, which loads all experts equally; allowed: 1"
        ),
    ),
)


def reduced_widths(model: Model) -> list[int]:
    """Widths of the inputs that matrix products reduce over.

    Parameters
    ----------
    model
        Architecture.
    """
    heads = {layer.attention.heads * layer.attention.value_dim for layer in model.layers}
    inner = {layer.mlp.ffn for layer in model.layers if layer.mlp is not None}
    return sorted(heads | inner | {model.hidden})


def _summa_panels(model: Model, _: System, table: Table) -> Bools:
    panels = np.maximum(table.summa_panels, 1)
    uneven = [width % panels != 0 for width in reduced_widths(model)]
    wrong = (panels % np.lcm(table.tp, table.tp2) != 0) | any_of(table, uneven)
    return table.summa & (table.summa_panels > 0) & wrong


def _is_causal(model: Model) -> bool:
    return any(layer.attention.causal for layer in model.layers)


def _parts(model: Model, table: Table) -> str:
    members = one(table.tp2) * (2 if _is_causal(model) else 1)
    name = "2 x tp2" if _is_causal(model) else "tp2"
    return f"{name} = {members} must divide seq_len {one(table.seq_len)}"


def _summa_sequence(model: Model, _: System, table: Table) -> Bools:
    parts = table.tp2 * (2 if _is_causal(model) else 1)
    return (table.tp2 > 1) & (table.seq_len % parts != 0)


def _summa_kv_heads(model: Model, _: System, table: Table) -> Bools:
    own = [layer.attention for layer in model.layers if layer.attention.latent is None]
    heads = [key_value_heads(attention, table.attention) for attention in own]
    return table.summa & any_of(table, [number % table.tp != 0 for number in heads])


def _unfused(_: Model, __: System, table: Table) -> Bools:
    return (table.tp2 > 1) & ~table.fused_attention


def _of_layers(some: Callable[[Layer], bool]) -> Test:
    return lambda model, _, table: table.summa & any(map(some, model.layers))


def _refusal(reason: str, field: str, violated: Test, problem: str) -> Constraint:
    """A constraint with the same answer for every row."""
    return Constraint(reason=reason, field=field, violated=violated, problem=lambda *_: problem)


SUMMA_CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        reason="tp2",
        field="tp2",
        violated=lambda _, __, t: (t.tp2 > 1) & (t.tp_exchange != TpExchange.SUMMA.code),
        problem=lambda _, __, t: (
            f"{one(t.tp2)} needs 2D products, tp_exchange summa; allowed without: 1"
        ),
    ),
    Constraint(
        reason="summa_panels",
        field="summa_panels",
        violated=lambda _, __, t: (t.summa_panels > 0) & ~t.summa,
        problem=lambda *_: (
            "has no effect without tp_exchange summa, and tp or tp2 above 1; leave it out"
        ),
    ),
    Constraint(
        reason="summa_hidden",
        field="tp",
        violated=lambda m, _, t: t.summa & (m.hidden % t.tp != 0),
        problem=lambda m, _, __: f"with tp_exchange summa it must divide the width {m.hidden}",
    ),
    Constraint(
        reason="summa_widths",
        layout_only=True,
        field="tp2",
        violated=lambda m, _, t: any_of(t, [width % t.tp2 != 0 for width in reduced_widths(m)]),
        problem=lambda m, _, __: (
            f"must divide the rows of all weights, {joined(reduced_widths(m))}"
        ),
    ),
    Constraint(
        reason="summa_cut",
        field="summa_panels",
        violated=_summa_panels,
        problem=lambda m, _, t: (
            f"must be a multiple of tp {one(t.tp)} and tp2 {one(t.tp2)} that divides the rows of "
            f"all weights, {joined(reduced_widths(m))}"
        ),
    ),
    Constraint(
        reason="summa_sequence",
        field="tp2",
        violated=_summa_sequence,
        problem=lambda m, _, t: _parts(m, t),
    ),
    Constraint(
        reason="summa_kv_heads",
        field="tp",
        violated=_summa_kv_heads,
        problem=lambda m, _, t: (
            "with tp_exchange summa it must divide the key-value heads of the model, "
            + ", ".join(
                sorted({str(int(key_value_heads(x.attention, t.attention)[0])) for x in m.layers})
            )
        ),
    ),
    _refusal(
        "summa_context",
        "cp",
        lambda _, __, t: t.summa & (t.cp > 1),
        "must be 1 with tp_exchange summa: tp2 splits the sequence",
    ),
    _refusal(
        "summa_overlap",
        "tp_overlap",
        lambda _, __, t: (
            t.summa & np.isin(t.tp_overlap, [TpOverlap.RING.code, TpOverlap.PIPE.code])
        ),
        "splits what tp_exchange summa splits in panels already; allowed: stack, none",
    ),
    _refusal(
        "summa_attention",
        "tp2",
        _unfused,
        "needs a fused attention kernel: a stack with flash attention and 16 bits (or flash_fp32); "
        "allowed: 1",
    ),
    _refusal(
        "summa_quantization",
        "quantization",
        lambda _, __, t: t.summa & (t.quantization > 0),
        "is not modeled with tp_exchange summa; allowed: none",
    ),
    _refusal(
        "summa_lora",
        "lora_rank",
        lambda _, __, t: t.summa & (t.lora_rank > 0),
        "is not modeled with tp_exchange summa; leave it out",
    ),
    *(
        _refusal(
            f"summa_{name}",
            "tp_exchange",
            violated,
            f"is not modeled with {feature}; allowed: all_reduce, rs_ag, p2p_rs_ag",
        )
        for name, violated, feature in (
            ("experts", _of_layers(lambda layer: layer.moe is not None), "experts"),
            (
                "latent",
                _of_layers(lambda layer: layer.attention.latent is not None),
                "latent attention",
            ),
            (
                "parallel",
                _of_layers(lambda layer: layer.parallel),
                "parallel attention and MLP",
            ),
            (
                "kind",
                _of_layers(lambda layer: layer.kind != OWN_KIND),
                "layers of registered kinds",
            ),
            ("prediction", lambda m, _, t: t.summa & (m.mtp > 0), "multi-token prediction"),
            (
                "positions",
                lambda m, _, t: t.summa & m.position.startswith("relative"),
                "relative positions",
            ),
        )
    ),
)
