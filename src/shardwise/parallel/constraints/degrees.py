"""Constraints on degrees: what tensor, context and expert parallelism must divide."""

from collections.abc import Callable
from functools import partial

import numpy as np

from shardwise.arrays import Bools, among
from shardwise.config.enums import CpExchange, Position, TpExchange, TpOverlap
from shardwise.config.mixer import GatedDelta, Mamba1, Mamba2, Mixer, ShortConv
from shardwise.config.model import OWN_KIND, Layer, Model, Moe
from shardwise.config.strategy_table import Table
from shardwise.ops.attention import key_value_heads
from shardwise.parallel.constraints.constraint import Constraint, any_of, joined, one, rule

layout_rule = partial(rule, layout=True)
"""A rule that reads nothing but degrees, chunks, batch and placement."""


def split_heads(model: Model) -> list[tuple[str, int]]:
    """Heads, groups and channels that tensor parallelism splits: what, and how many."""
    found = [("heads", attention.heads) for attention in model.attentions]
    for mixer in model.mixers:
        found += _split_of_mixer(model, mixer)
    return list(dict.fromkeys(found))


def _split_of_mixer(model: Model, mixer: Mixer) -> list[tuple[str, int]]:
    match mixer:
        case Mamba2():
            return [("mamba heads", mixer.heads), ("mamba groups", mixer.groups)]
        case Mamba1():
            return [("mamba channels", mixer.width)]
        case GatedDelta():
            return [("key heads", mixer.key_heads), ("value heads", mixer.value_heads)]
        case ShortConv():
            return [("channels", model.hidden)]
        case _:
            return [("heads", mixer.heads)]


def most_heads(model: Model) -> int:
    """The highest degree of tensor parallelism that heads, groups and channels may allow."""
    numbers = [number for _, number in split_heads(model)]
    return min(numbers) if model.mixers else max(numbers, default=1)


def _split_mixers(model: Model) -> list[tuple[str, int]]:
    return [one for mixer in model.mixers for one in _split_of_mixer(model, mixer)]


def _swapped_mixers(model: Model, table: Table) -> Bools:
    """Rows whose all-to-alls cannot split the heads of a mixer, nor repeat its groups."""
    wrong = np.zeros(len(table), dtype=np.bool_)
    for mixer in model.mixers:
        if isinstance(mixer, Mamba2):
            groups = np.maximum(mixer.groups // table.tp, 1)
            wrong |= (mixer.heads // table.tp % table.cp != 0) | (
                (groups % table.cp != 0) & (table.cp % groups != 0)
            )
        elif isinstance(mixer, GatedDelta):
            wrong |= mixer.key_heads // table.tp % table.cp != 0
    return wrong


def _heads(model: Model) -> str:
    return joined(attention.heads for attention in model.attentions)


def _kv_heads(model: Model, table: Table) -> Bools:
    kinds = [
        key_value_heads(attention, table.attention)
        for attention in model.attentions
        if attention.latent is None
    ]
    return any_of(table, ((kv % table.tp != 0) & (table.tp % kv != 0) for kv in kinds))


def _dense_widths(model: Model) -> list[int]:
    """MLP widths that tensor parallelism splits: of dense MLPs and of shared experts."""
    dense = {layer.mlp.ffn for layer in model.layers if layer.mlp is not None}
    shared = {layer.moe.shared_ffn for layer in model.layers if layer.moe is not None}
    return sorted(dense | (shared - {0}))


def _swapped_heads(model: Model, table: Table) -> Bools:
    swaps = (table.cp > 1) & (table.cp_exchange == CpExchange.ALL_TO_ALL.code)
    members = table.tp * table.cp
    return swaps & any_of(table, (one.heads % members != 0 for one in model.attentions))


def _unfused_context(model: Model, table: Table) -> Bools:
    fused = table.fused_attention
    if model.position in (Position.RELATIVE_XL, Position.RELATIVE_BIAS):
        fused = np.zeros_like(fused)
    return (table.cp > 1) & ~fused


AXIS_CONSTRAINTS: tuple[Constraint, ...] = (
    layout_rule(
        "heads",
        "tp",
        lambda m, t: any_of(t, (one.heads % t.tp != 0 for one in m.attentions)),
        lambda m, _: f"must divide the heads of the model, {_heads(m)}",
    ),
    layout_rule(
        "mixer_heads",
        "tp",
        lambda m, t: any_of(t, (number % t.tp != 0 for _, number in _split_mixers(m))),
        lambda m, _: (
            "must divide what it splits of mixers, "
            + ", ".join(dict.fromkeys(f"{number} {what}" for what, number in _split_mixers(m)))
        ),
    ),
    rule(
        "mixer_context",
        "cp",
        _swapped_mixers,
        lambda m, t: (
            f"trades tokens for heads of mixers: it must divide their heads / tp, and with"
            f" tp {one(t.tp)} divide their groups / tp or be a multiple of them; "
            + ", ".join(dict.fromkeys(f"{number} {what}" for what, number in _split_mixers(m)))
        ),
    ),
    rule(
        "kv_heads",
        "tp",
        _kv_heads,
        lambda m, t: (
            "must divide or be a multiple of the key-value heads of the model, "
            + joined(int(key_value_heads(x, t.attention)[0]) for x in m.attentions)
        ),
    ),
    layout_rule(
        "ffn",
        "tp",
        lambda m, t: any_of(t, (width % t.tp != 0 for width in _dense_widths(m))),
        lambda m, _: f"must divide the MLP width of the model, {joined(_dense_widths(m))}",
    ),
    rule(
        "sequence",
        "sequence_parallel",
        lambda t: t.sequence_parallel & (t.seq_len % (t.tp * t.cp) != 0),
        lambda t: (
            f"with it tp {one(t.tp)} must divide seq_len {one(t.seq_len)}; "
            "without it (false) it need not"
            if one(t.cp) == 1
            else f"with it tp x cp = {one(t.tp * t.cp)} must divide seq_len {one(t.seq_len)}"
        ),
    ),
    rule(
        "context",
        "cp",
        lambda t: (t.cp > 1) & (t.seq_len % (2 * t.cp) != 0),
        "2 x cp must divide seq_len {seq_len}: each rank has an early and a late slice",
    ),
    rule(
        "context_heads",
        "cp_exchange",
        _swapped_heads,
        lambda m, t: (
            f"tp x cp = {one(t.tp * t.cp)} must divide the heads of the model, {_heads(m)}, "
            "which all_to_all splits"
        ),
    ),
    rule(
        "context_attention",
        "cp",
        _unfused_context,
        "needs a fused attention kernel: a stack with flash attention, 16 bits (or flash_fp32) "
        "and positions that it supports; allowed: 1",
    ),
    rule(
        "latent_heads",
        "attention",
        lambda m, t: (t.attention > 0) & is_latent(m),
        "{m.name} has latent attention without key-value heads of its own; allowed: model",
    ),
    rule(
        "edges",
        "tp_exchange",
        lambda t: (
            (t.tp_exchange == TpExchange.P2P_RS_AG.code)
            & (t.pp > 1)
            & (t.micro_batch_size * t.seq_len % t.tp != 0)
        ),
        lambda t: (
            f"tp {one(t.tp)} must divide micro_batch_size x seq_len = "
            f"{one(t.micro_batch_size * t.seq_len)}, which p2p_rs_ag scatters; all_reduce does not"
        ),
    ),
)


def is_latent(model: Model) -> bool:
    """Whether some layer has latent or compressed attention."""
    return any(one.latent or one.compressed for one in model.attentions)


def _moes(model: Model) -> list[Moe]:
    return [layer.moe for layer in model.layers if layer.moe is not None]


def _experts(model: Model) -> list[int]:
    return sorted({moe.experts for moe in _moes(model)})


def _expert_widths(model: Model) -> list[int]:
    return sorted({moe.ffn for moe in _moes(model)})


def _may_split(table: Table) -> bool:
    """Whether a table of one row may have sequence parallelism."""
    bound = table.stacks[one(table.stack)].capabilities
    if bound is None or table.any_software.any():
        return True
    return bound.allows("tp_exchange", TpExchange.RS_AG)


def _load(model: Model, table: Table) -> Bools:
    limited = (table.expert_capacity > 0) | (table.expert_imbalance > 1)
    return limited & (not model.has_experts)


def _most_load(model: Model) -> float:
    """Largest load of an expert, every token once: E / k of an even load."""
    return max((moe.experts / moe.top_k for moe in _moes(model)), default=np.inf)


def _overloaded(model: Model, table: Table) -> Bools:
    most = _most_load(model)
    rows: Bools = (table.expert_capacity > most) | (table.expert_imbalance > most)
    return rows


def _no_experts(degree: str) -> Constraint:
    def violated(model: Model, table: Table) -> Bools:
        return (getattr(table, degree) > 1) & (not model.has_experts)

    return layout_rule(f"{degree}_experts", degree, violated, "{m.name} has no experts; allowed: 1")


EXPERT_CONSTRAINTS: tuple[Constraint, ...] = (
    _no_experts("ep"),
    _no_experts("etp"),
    layout_rule(
        "ep",
        "ep",
        lambda m, t: any_of(t, (count % t.ep != 0 for count in _experts(m))),
        lambda m, _: f"must divide the experts of the model, {joined(_experts(m))}",
    ),
    layout_rule(
        "etp",
        "etp",
        lambda m, t: any_of(t, (width % t.etp != 0 for width in _expert_widths(m))),
        lambda m, _: f"must divide the experts' width, {joined(_expert_widths(m))}",
    ),
    layout_rule(
        "expert_ranks",
        "ep",
        lambda t: (t.tp * t.tp2 * t.cp * t.dp) % (t.ep * t.etp) != 0,
        lambda t: (
            f"ep x etp = {one(t.ep * t.etp)} must divide tp x cp x dp = {one(t.tp * t.cp * t.dp)}"
            f"{f'; etp is {one(t.etp)}' if one(t.etp) > 1 else ''}"
        ),
    ),
    rule(
        "routing",
        "sequence_parallel",
        lambda m, t: (t.tp > 1) & ~t.sequence_parallel & m.has_experts,
        lambda t: (
            f"experts with tp {one(t.tp)} need it: each rank routes its own tokens; allowed: true"
            if _may_split(t)
            else "experts need sequence parallelism with tp above 1; "
            f"{t.stacks[one(t.stack)].name} has none; allowed: 1"
        ),
        blame=lambda t: "sequence_parallel" if _may_split(t) else "tp",
    ),
    rule(
        "expert_load",
        "expert_capacity",
        _load,
        "{m.name} has no experts; leave it out",
        blame=lambda t: "expert_capacity" if t.expert_capacity[0] > 0 else "expert_imbalance",
    ),
    rule(
        "expert_overlap",
        "expert_overlap",
        lambda m, t: t.expert_overlap & (not m.has_experts),
        "{m.name} has no experts; allowed: false",
    ),
    rule(
        "expert_overload",
        "expert_capacity",
        _overloaded,
        lambda m, _: (
            "exceeds every token once, experts / top_k of an even load; "
            f"allowed: at most {_most_load(m):g}"
        ),
        blame=lambda m, t: (
            "expert_capacity" if t.expert_capacity[0] > _most_load(m) else "expert_imbalance"
        ),
    ),
    rule(
        "expert_loads",
        "expert_imbalance",
        lambda t: (t.expert_capacity > 0) & (t.expert_imbalance > 1),
        "has no effect with expert_capacity, which loads all experts equally; allowed: 1",
    ),
)


def reduced_widths(model: Model) -> list[int]:
    """Widths of the inputs that matrix products reduce over."""
    heads = {one.heads * one.value_dim for one in model.attentions}
    inner = {layer.mlp.ffn for layer in model.layers if layer.mlp is not None}
    return sorted(heads | inner | {model.hidden})


def _summa_panels(model: Model, table: Table) -> Bools:
    panels = np.maximum(table.summa_panels, 1)
    uneven = [width % panels != 0 for width in reduced_widths(model)]
    wrong = (panels % np.lcm(table.tp, table.tp2) != 0) | any_of(table, uneven)
    return table.summa & (table.summa_panels > 0) & wrong


def _sequence_parts(model: Model) -> int:
    """Parts of the sequence on each rank of tp2: with a causal mask an early and a late one."""
    return 2 if any(one.causal for one in model.attentions) else 1


def _summa_sequence(model: Model, table: Table) -> str:
    parts = _sequence_parts(model)
    name = "2 x tp2" if parts > 1 else "tp2"
    return f"{name} = {one(table.tp2) * parts} must divide seq_len {one(table.seq_len)}"


def _summa_kv_heads(model: Model, table: Table) -> Bools:
    own = [attention for attention in model.attentions if attention.latent is None]
    heads = [key_value_heads(attention, table.attention) for attention in own]
    return table.summa & any_of(table, [number % table.tp != 0 for number in heads])


def _not_with_summa(name: str, feature: str, has: Callable[[Model], bool]) -> Constraint:
    text = f"is not modeled with {feature}; allowed: all_reduce, rs_ag, p2p_rs_ag"
    return rule(f"summa_{name}", "tp_exchange", lambda m, t: t.summa & has(m), text)


def _some(has: Callable[[Layer], bool]) -> Callable[[Model], bool]:
    return lambda model: any(map(has, model.layers))


SUMMA_CONSTRAINTS: tuple[Constraint, ...] = (
    rule(
        "tp2",
        "tp2",
        lambda t: (t.tp2 > 1) & (t.tp_exchange != TpExchange.SUMMA.code),
        "{tp2} needs 2D products, tp_exchange summa; allowed without: 1",
    ),
    rule(
        "summa_panels",
        "summa_panels",
        lambda t: (t.summa_panels > 0) & ~t.summa,
        "has no effect without tp_exchange summa, and tp or tp2 above 1; leave it out",
    ),
    rule(
        "summa_hidden",
        "tp",
        lambda m, t: t.summa & (m.hidden % t.tp != 0),
        "with tp_exchange summa it must divide the width {m.hidden}",
    ),
    layout_rule(
        "summa_widths",
        "tp2",
        lambda m, t: any_of(t, [width % t.tp2 != 0 for width in reduced_widths(m)]),
        lambda m, _: f"must divide the rows of all weights, {joined(reduced_widths(m))}",
    ),
    rule(
        "summa_cut",
        "summa_panels",
        _summa_panels,
        lambda m, t: (
            f"must be a multiple of tp {one(t.tp)} and tp2 {one(t.tp2)} that divides the rows of "
            f"all weights, {joined(reduced_widths(m))}"
        ),
    ),
    rule(
        "summa_sequence",
        "tp2",
        lambda m, t: (t.tp2 > 1) & (t.seq_len % (t.tp2 * _sequence_parts(m)) != 0),
        _summa_sequence,
    ),
    rule(
        "summa_kv_heads",
        "tp",
        _summa_kv_heads,
        lambda m, t: (
            "with tp_exchange summa it must divide the key-value heads of the model, "
            + ", ".join(
                sorted({str(int(key_value_heads(x, t.attention)[0])) for x in m.attentions})
            )
        ),
    ),
    rule(
        "summa_context",
        "cp",
        lambda t: t.summa & (t.cp > 1),
        "must be 1 with tp_exchange summa: tp2 splits the sequence",
    ),
    rule(
        "summa_overlap",
        "tp_overlap",
        lambda t: t.summa & among(t.tp_overlap, [TpOverlap.RING.code, TpOverlap.PIPE.code]),
        "splits what tp_exchange summa splits in panels already; allowed: stack, none",
    ),
    rule(
        "summa_attention",
        "tp2",
        lambda t: (t.tp2 > 1) & ~t.fused_attention,
        "needs a fused attention kernel: a stack with flash attention and 16 bits (or flash_fp32); "
        "allowed: 1",
    ),
    rule(
        "summa_quantization",
        "quantization",
        lambda t: t.summa & (t.quantization > 0),
        "is not modeled with tp_exchange summa; allowed: none",
    ),
    rule(
        "summa_lora",
        "lora_rank",
        lambda t: t.summa & (t.lora_rank > 0),
        "is not modeled with tp_exchange summa; leave it out",
    ),
    _not_with_summa("experts", "experts", _some(lambda layer: layer.moe is not None)),
    _not_with_summa("latent", "latent attention", is_latent),
    _not_with_summa("mixers", "mixers", lambda m: bool(m.mixers)),
    _not_with_summa("parallel", "parallel attention and MLP", _some(lambda layer: layer.parallel)),
    _not_with_summa(
        "kind", "layers of registered kinds", _some(lambda layer: layer.kind != OWN_KIND)
    ),
    _not_with_summa("prediction", "multi-token prediction", lambda m: m.mtp > 0),
    _not_with_summa("positions", "relative positions", lambda m: m.position.startswith("relative")),
)
