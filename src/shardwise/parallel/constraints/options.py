"""Rules of options: what is recomputed, sharded, offloaded, and of which type it is."""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.enums import (
    ZERO_OPTIMIZER,
    Dtype,
    OffloadPart,
    Quantization,
    Recompute,
    RecomputePart,
)
from shardwise.config.model import OWN_KIND, Layer, Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.constraints.constraint import Rule, one
from shardwise.parallel.constraints.lora import TRAINABLE_RULES

__all__ = ["DTYPE_RULE", "OPTION_RULES"]

_MEMORY_TIERS = 2
_ZERO_STAGES = (0, 1, 2, 3)
_USUAL_PARTS = RecomputePart.bits(("core_attention",))
_NORMS = ("attention_norm", "mlp_norm", "every_other")
# Types of matrix units that recipes need. Units that scale blocks of 32 or 16 themselves came with
# those of fp4 (NVIDIA Blackwell; arXiv 2509.25149, section 2).
_TYPES_OF = {
    "fp8_tensor": ("fp8",),
    "fp8_block": ("fp8",),
    "mxfp8": ("fp8", "fp4"),
    "nvfp4": ("fp4",),
}
# Parts of recompute that not every model has.
_OF_SOME: dict[str, Callable[[Layer], bool]] = {
    "mla_up": lambda layer: layer.attention.latent is not None,
    "mlp": lambda layer: layer.mlp is not None,
    "moe": lambda layer: layer.moe is not None,
}


# Parts of offload that not every layer keeps anything of.
_KEPT_BY_SOME: dict[str, Callable[[Layer], bool]] = {
    "mlp_norm": lambda layer: not layer.parallel,
    "mlp": lambda layer: layer.moe is None or layer.moe.shared_ffn > 0,
    **dict.fromkeys(("router", "expert_up", "expert_down"), lambda layer: layer.moe is not None),
    "other": lambda _: False,
}


def _dtype(_: Model, system: System, table: Table) -> Bools:
    unknown = np.array([name not in system.accelerator.matrix for name in Dtype])
    return unknown[table.dtype]


def _no_rate(_: Model, system: System, table: Table) -> Bools:
    """Recipes whose type the accelerator has no units for; mxfp8 scales blocks in those of fp4."""
    allowed = _allowed_recipes(system)
    return np.array([name not in allowed for name in Quantization])[table.quantization]


def _allowed_recipes(system: System) -> list[str]:
    known = {str(name) for name in system.accelerator.matrix}
    return [name for name in Quantization if set(_TYPES_OF.get(name, ())) <= known]


def _positions(model: Model, _: System, table: Table) -> Bools:
    if model.position != "learned":
        return np.zeros(len(table), dtype=np.bool_)
    return table.seq_len > (model.max_positions or model.seq_len or 0)


def _parts_unused(_: Model, __: System, table: Table) -> Bools:
    return (table.recompute != Recompute.SELECTIVE.code) & (table.recompute_parts != _USUAL_PARTS)


def _has_parts(table: Table, parts: tuple[str, ...]) -> Bools:
    found: Bools = (table.recompute == Recompute.SELECTIVE.code) & (
        (table.recompute_parts & RecomputePart.bits(parts)) > 0
    )
    return found


def _lacking(model: Model) -> int:
    """Parts of recompute that a model has none of, as bits."""
    return RecomputePart.bits(
        [part for part, has in _OF_SOME.items() if not any(map(has, model.layers))]
    )


def _parts_lacking(model: Model, _: System, table: Table) -> Bools:
    selective = table.recompute == Recompute.SELECTIVE.code
    lacks: Bools = selective & ((table.recompute_parts & ~_lacking(model)) == 0)
    return lacks


def _keeps_none(model: Model) -> int:
    """Parts that no layer of a model keeps anything of, as bits."""
    if any(layer.kind != OWN_KIND for layer in model.layers):
        return 0
    lacking = [part for part, has in _KEPT_BY_SOME.items() if not any(map(has, model.layers))]
    if model.mtp:
        lacking.remove("other")
    return OffloadPart.bits(lacking)


def _moves_nothing(model: Model, _: System, table: Table) -> Bools:
    named = table.offload_activations & (table.offload_parts > 0)
    nothing: Bools = named & ((table.offload_parts & ~_keeps_none(model)) == 0)
    return nothing


def _hybrid_experts(model: Model, _: System, table: Table) -> Bools:
    shared = table.expert_replicas * np.where(table.dp_shard > 0, table.dp_shard, table.dp)
    return (shared % table.dp != 0) & model.has_experts


def _no_second_tier(flag: str) -> Callable[[Model, System, Table], Bools]:
    return lambda _, system, table: (
        getattr(table, flag) & (len(system.accelerator.memory) < _MEMORY_TIERS)
    )


DTYPE_RULE = Rule(
    reason="dtype",
    field="dtype",
    broken=_dtype,
    problem=lambda _, s, __: (
        f"{s.accelerator.name} has no matrix rate for it; allowed: "
        + ", ".join(name for name in Dtype if name in s.accelerator.matrix)
    ),
)

QUANTIZATION_RULES: tuple[Rule, ...] = (
    Rule(
        reason="quantization",
        field="quantization",
        broken=_no_rate,
        problem=lambda _, s, __: (
            f"{s.accelerator.name} has no matrix rate for it; "
            f"allowed: {', '.join(_allowed_recipes(s))}"
        ),
    ),
    Rule(
        reason="quantization_dtype",
        field="quantization",
        broken=lambda _, __, t: (t.quantization > 0) & (t.dtype == Dtype.FP32.code),
        problem=lambda *_: "quantises what is of 16 bits; needs dtype bf16 or fp16",
    ),
    Rule(
        reason="quantized_weights",
        field="quantized_weights",
        broken=lambda _, __, t: t.quantized_weights & (t.quantization == 0),
        problem=lambda *_: "has no effect with quantization none; leave it out",
    ),
    Rule(
        reason="dispatch_dtype",
        field="dispatch_dtype",
        broken=lambda m, _, t: (t.dispatch_dtype > 0) & (not m.has_experts),
        problem=lambda m, *_: f"{m.name} has no experts to send tokens to; leave it out",
    ),
    Rule(
        reason="dispatch_dtype_fp8",
        field="dispatch_dtype",
        broken=lambda _, s, t: (t.dispatch_dtype > 0) & ("fp8" not in s.accelerator.matrix),
        problem=lambda _, s, __: f"{s.accelerator.name} has no fp8; allowed: dtype",
    ),
)

OPTION_RULES: tuple[Rule, ...] = (
    *TRAINABLE_RULES,
    *QUANTIZATION_RULES,
    Rule(
        reason="positions",
        field="seq_len",
        broken=_positions,
        problem=lambda m, _, __: (
            f"{m.name} has {m.max_positions or m.seq_len} learned positions; allowed: up to that"
        ),
    ),
    Rule(
        reason="documents",
        field="document_len",
        broken=lambda _, __, t: t.document_len > t.seq_len,
        problem=lambda _, __, t: f"must be at most seq_len {one(t.seq_len)}",
    ),
    Rule(
        reason="recompute_parts",
        field="recompute_parts",
        broken=_parts_unused,
        problem=lambda *_: "has an effect with recompute selective only; leave it out",
    ),
    Rule(
        reason="parts_lacking",
        field="recompute_parts",
        broken=_parts_lacking,
        problem=lambda m, _, t: (
            f"{m.name} has no {' or '.join(RecomputePart.from_bits(one(t.recompute_parts)))}; "
            "nothing would run again"
        ),
    ),
    Rule(
        reason="norm_parts",
        field="recompute_parts",
        broken=lambda _, __, t: _has_parts(t, _NORMS) & t.sequence_parallel & ~t.tp_regather,
        problem=lambda *_: (
            "rebuilding the output of a norm does not gather it; with it tp_regather must be true"
        ),
    ),
    Rule(
        reason="activation_parts",
        field="recompute_parts",
        broken=lambda _, __, t: _has_parts(t, ("activation", "every_other")) & t.fused_activation,
        problem=lambda *_: "fused_activation computes the activation again already; give one",
    ),
    Rule(
        reason="recompute_layers",
        field="recompute_layers",
        broken=lambda _, __, t: (t.recompute_layers > 0) & (t.recompute == Recompute.NONE.code),
        problem=lambda *_: "has no effect with recompute none; leave it out",
    ),
    Rule(
        reason="recompute_depth",
        field="recompute_layers",
        broken=lambda m, _, t: t.recompute_layers > m.depth,
        problem=lambda m, _, __: f"must be at most the {m.depth} layers of {m.name}",
    ),
    Rule(
        reason="zero",
        field="zero",
        broken=lambda _, __, t: t.zero > _ZERO_STAGES[-1],
        problem=lambda *_: f"allowed: {', '.join(map(str, _ZERO_STAGES))}",
    ),
    Rule(
        reason="dp_shard",
        of_layout=True,
        field="dp_shard",
        broken=lambda _, __, t: (t.dp_shard > 0) & (t.dp % np.maximum(t.dp_shard, 1) != 0),
        problem=lambda _, __, t: f"must divide dp {one(t.dp)}",
    ),
    Rule(
        reason="dp_shard_zero",
        field="dp_shard",
        broken=lambda _, __, t: (t.dp_shard > 0) & (t.zero < ZERO_OPTIMIZER),
        problem=lambda *_: "zero 0 shards nothing; leave it out",
    ),
    Rule(
        reason="dp_shard_experts",
        of_layout=True,
        field="dp_shard",
        broken=_hybrid_experts,
        problem=lambda _, __, t: (
            f"of dp {one(t.dp)} must divide the {one(t.expert_replicas)} replicas of an expert"
        ),
    ),
    Rule(
        reason="fsdp_reshard",
        field="fsdp_reshard",
        broken=lambda _, __, t: ~t.fsdp_reshard & (t.zero < _ZERO_STAGES[-1]),
        problem=lambda *_: "has an effect with zero 3 only; leave it out",
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
    Rule(
        reason="offload_parts",
        field="offload_parts",
        broken=lambda _, __, t: ~t.offload_activations & (t.offload_parts > 0),
        problem=lambda *_: "has an effect with offload_activations only; leave it out",
    ),
    Rule(
        reason="offload_lacking",
        field="offload_parts",
        broken=_moves_nothing,
        problem=lambda m, _, t: (
            f"{m.name} has no {' or '.join(OffloadPart.from_bits(one(t.offload_parts)))}; "
            "nothing would be offloaded"
        ),
    ),
)
