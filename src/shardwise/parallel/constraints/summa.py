"""Rules of 2D tensor parallelism: what both axes and the panels must divide, and where it ends.

Where neither axis splits anything, the products are whole and none of these holds.
"""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.enums import AttentionImplementation, Dtype, TpExchange, TpOverlap
from shardwise.config.model import OWN_KIND, Layer, Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.ops.attention import key_value_heads
from shardwise.parallel.constraints.constraint import Rule, any_of, one

__all__ = ["SUMMA_RULES", "reduced_widths"]

_CUT = [TpOverlap(name).code for name in ("ring", "pipe")]


def reduced_widths(model: Model) -> list[int]:
    """Widths that products reduce over, of their inputs."""
    heads = {layer.attention.heads * layer.attention.value_dim for layer in model.layers}
    inner = {layer.mlp.ffn for layer in model.layers if layer.mlp is not None}
    return sorted(heads | inner | {model.hidden})


def _listed(model: Model) -> str:
    return ", ".join(map(str, reduced_widths(model)))


def _any(table: Table, masks: list[Bools]) -> Bools:
    return any_of([np.zeros(len(table), dtype=np.bool_), *masks])


def _panels(model: Model, _: System, table: Table) -> Bools:
    given = np.maximum(table.summa_panels, 1)
    uneven = [width % given != 0 for width in reduced_widths(model)]
    wrong = (given % np.lcm(table.tp, table.tp2) != 0) | any_of(uneven)
    return table.summa & (table.summa_panels > 0) & wrong


def _is_causal(model: Model) -> bool:
    return any(layer.attention.causal for layer in model.layers)


def _parts(model: Model, table: Table) -> str:
    members = one(table.tp2) * (2 if _is_causal(model) else 1)
    told = "2 x tp2" if _is_causal(model) else "tp2"
    return f"{told} = {members} must divide seq_len {one(table.seq_len)}"


def _sequence(model: Model, _: System, table: Table) -> Bools:
    parts = table.tp2 * (2 if _is_causal(model) else 1)
    return (table.tp2 > 1) & (table.seq_len % parts != 0)


def _kv_heads(model: Model, _: System, table: Table) -> Bools:
    own = [layer.attention for layer in model.layers if layer.attention.latent is None]
    heads = [key_value_heads(attention, table.attention) for attention in own]
    return table.summa & _any(table, [number % table.tp != 0 for number in heads])


def _unfused(_: Model, __: System, table: Table) -> Bools:
    fused = table.by_stack(lambda stack: stack.attention == AttentionImplementation.FLASH)
    return (table.tp2 > 1) & ~(fused & (table.dtype != Dtype.FP32.code))


def _of_layers(some: Callable[[Layer], bool]) -> Callable[[Model, System, Table], Bools]:
    return lambda model, _, table: table.summa & any(map(some, model.layers))


def _refused(
    reason: str, field: str, broken: Callable[[Model, System, Table], Bools], problem: str
) -> Rule:
    """A rule that tells the same of every row."""
    return Rule(reason=reason, field=field, broken=broken, problem=lambda *_: problem)


SUMMA_RULES: tuple[Rule, ...] = (
    Rule(
        reason="tp2",
        field="tp2",
        broken=lambda _, __, t: (t.tp2 > 1) & (t.tp_exchange != TpExchange.SUMMA.code),
        problem=lambda _, __, t: (
            f"{one(t.tp2)} needs 2D products, tp_exchange summa; allowed without: 1"
        ),
    ),
    Rule(
        reason="summa_panels",
        field="summa_panels",
        broken=lambda _, __, t: (t.summa_panels > 0) & ~t.summa,
        problem=lambda *_: (
            "has an effect with tp_exchange summa, and tp or tp2 above 1, only; leave it out"
        ),
    ),
    Rule(
        reason="summa_hidden",
        field="tp",
        broken=lambda m, _, t: t.summa & (m.hidden % t.tp != 0),
        problem=lambda m, _, __: f"with tp_exchange summa it must divide the width {m.hidden}",
    ),
    Rule(
        reason="summa_widths",
        of_layout=True,
        field="tp2",
        broken=lambda m, _, t: _any(t, [width % t.tp2 != 0 for width in reduced_widths(m)]),
        problem=lambda m, _, __: f"must divide the rows of all weights, {_listed(m)}",
    ),
    Rule(
        reason="summa_cut",
        field="summa_panels",
        broken=_panels,
        problem=lambda m, _, t: (
            f"must be a multiple of tp {one(t.tp)} and tp2 {one(t.tp2)} that divides the rows of "
            f"all weights, {_listed(m)}"
        ),
    ),
    Rule(
        reason="summa_sequence",
        field="tp2",
        broken=_sequence,
        problem=lambda m, _, t: _parts(m, t),
    ),
    Rule(
        reason="summa_kv_heads",
        field="tp",
        broken=_kv_heads,
        problem=lambda m, _, t: (
            "with tp_exchange summa it must divide the key-value heads of the model, "
            + ", ".join(
                sorted({str(int(key_value_heads(x.attention, t.attention)[0])) for x in m.layers})
            )
        ),
    ),
    _refused(
        "summa_context",
        "cp",
        lambda _, __, t: t.summa & (t.cp > 1),
        "must be 1 with tp_exchange summa: tp2 splits the sequence",
    ),
    _refused(
        "summa_overlap",
        "tp_overlap",
        lambda _, __, t: t.summa & np.isin(t.tp_overlap, _CUT),
        "cuts what tp_exchange summa has cut in panels already; allowed: stack, none",
    ),
    _refused(
        "summa_attention",
        "tp2",
        _unfused,
        "needs a fused attention kernel: a stack with flash attention and a 16-bit type; "
        "allowed: 1",
    ),
    _refused(
        "summa_quantization",
        "quantization",
        lambda _, __, t: t.summa & (t.quantization > 0),
        "is not modelled with tp_exchange summa; allowed: none",
    ),
    _refused(
        "summa_lora",
        "lora_rank",
        lambda _, __, t: t.summa & (t.lora_rank > 0),
        "is not modelled with tp_exchange summa; leave it out",
    ),
    *(
        _refused(
            f"summa_{name}",
            "tp_exchange",
            broken,
            f"is not modelled with {told}; allowed: all_reduce, rs_ag, p2p_rs_ag",
        )
        for name, broken, told in (
            ("experts", _of_layers(lambda layer: layer.moe is not None), "experts"),
            (
                "latent",
                _of_layers(lambda layer: layer.attention.latent is not None),
                "latent attention",
            ),
            (
                "parallel",
                _of_layers(lambda layer: layer.parallel),
                "attention and MLP side by side",
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
