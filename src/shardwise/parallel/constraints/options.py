"""Constraints on options: recompute, sharding, offload, number formats, and what is trained."""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.enums import (
    ZERO_OPTIMIZER,
    Dispatcher,
    Dtype,
    FrozenPart,
    FrozenWeights,
    LoraPart,
    OffloadPart,
    Position,
    Quantization,
    Recompute,
    RecomputePart,
)
from shardwise.config.model import OWN_KIND, Layer, Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.ops.lora import Subset, components_of_model, runs_backward
from shardwise.parallel.constraints.constraint import Constraint, Test, one

_MEMORY_TIERS = 2
_ZERO_STAGES = (0, 1, 2, 3)
_ALL_TO_ALL = Dispatcher.ALL_TO_ALL.code
_USUAL_PARTS = RecomputePart.bits(("core_attention",))
_NORMS = ("attention_norm", "mlp_norm", "every_other")
# Matrix units that recipes need. Units that scale blocks of 32 or 16 themselves came with those of
# fp4 (NVIDIA Blackwell; arXiv 2509.25149, section 2).
_TYPES_OF = {
    "fp8_tensor": ("fp8",),
    "fp8_block": ("fp8",),
    "mxfp8": ("fp8", "fp4"),
    "nvfp4": ("fp4",),
}
# Parts of recompute that some models lack.
_IN_SOME_MODELS: dict[str, Callable[[Layer], bool]] = {
    "mla_up": lambda layer: layer.attention.latent is not None,
    "mlp": lambda layer: layer.mlp is not None,
    **dict.fromkeys(("moe", "experts"), lambda layer: layer.moe is not None),
    "shared_experts": lambda layer: layer.moe is not None and layer.moe.shared_ffn > 0,
}


# Parts of offload that some layers save nothing of.
_SAVED_BY_SOME: dict[str, Callable[[Layer], bool]] = {
    "mlp_norm": lambda layer: not layer.parallel,
    "mlp": lambda layer: layer.moe is None or layer.moe.shared_ffn > 0,
    **dict.fromkeys(("router", "expert_up", "expert_down"), lambda layer: layer.moe is not None),
    "other": lambda _: False,
}
_USUAL_ADAPTED = LoraPart.bits(Strategy.model_fields["lora_parts"].default)
_EMBEDDING, _HEAD = FrozenPart.bits(["embedding"]), FrozenPart.bits(["head"])
_IN_TRAINING = "has an effect in training only; leave it out"


def _absent(model: Model) -> int:
    """Components that a model lacks, as bits of `FrozenPart`."""
    return ~components_of_model(model)


def _absent_adapted(model: Model) -> int:
    missing = set(FrozenPart.from_bits(_absent(model)))
    return LoraPart.bits(missing & set(LoraPart))


def _adapts_nothing(model: Model, _: System, table: Table) -> Bools:
    named = (table.lora_rank > 0) & (table.lora_parts != _USUAL_ADAPTED)
    lacks: Bools = named & ((table.lora_parts & _absent_adapted(model)) > 0)
    return lacks


def _nothing_trained(model: Model, _: System, table: Table) -> Bools:
    every = components_of_model(model)
    nothing: Bools = (table.frozen & every) == every
    return nothing


def _frozen_tied(model: Model, _: System, table: Table) -> Bools:
    embedding, head = (table.frozen & _EMBEDDING) > 0, (table.frozen & _HEAD) > 0
    return (embedding != head) & model.tied_embeddings


def _half_of_tied(model: Model, _: System, table: Table) -> Bools:
    """Rows with adapters that train only one end of a model whose ends are tied."""
    trained = Subset.of(table)
    one_end = trained.freezes("embedding") != trained.freezes("head")
    return (table.lora_rank > 0) & one_end & model.tied_embeddings


def _recipe_of_frozen(_: Model, __: System, table: Table) -> Bools:
    """Rows with a recipe for products, some of whose frozen weights the stack stores in 4 bits."""
    stored = table.by_stack(lambda stack: stack.frozen_weights != FrozenWeights.DTYPE)
    freezes = (table.lora_rank > 0) | (table.frozen > 0)
    rows: Bools = stored & freezes & (table.quantization != Quantization.NONE.code)
    return rows


def _recomputes_nothing(model: Model, _: System, table: Table) -> Bools:
    return (table.recompute != Recompute.NONE.code) & ~runs_backward(model, Subset.of(table))


def _without_training(field: str) -> Test:
    return lambda _, __, table: ~table.training & (getattr(table, field) > 0)


def _unfused_activation(model: Model, _: System, table: Table) -> Bools:
    """Rows whose stack has no kernel that recomputes a gated activation."""
    blocks = [block for layer in model.layers for block in (layer.mlp, layer.moe)]
    gated = any(block is not None and block.gated for block in blocks)
    apart = table.by_stack(lambda stack: not stack.fused_swiglu)
    return table.fused_activation & apart & gated


_TRAINABLE_CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        reason="frozen_adapters",
        field="frozen",
        violated=lambda _, __, t: (t.lora_rank > 0) & (t.frozen > 0),
        problem=lambda *_: "lora_rank freezes all weights of the model; leave it out",
    ),
    Constraint(
        reason="frozen_lacking",
        field="frozen",
        violated=lambda m, _, t: (t.frozen & _absent(m)) > 0,
        problem=lambda m, _, t: (
            f"{m.name} has no {', '.join(FrozenPart.from_bits(one(t.frozen) & _absent(m)))}"
        ),
    ),
    Constraint(
        reason="frozen_everything",
        field="frozen",
        violated=_nothing_trained,
        problem=lambda *_: "leaves nothing to train; for forward only training is false",
    ),
    Constraint(
        reason="frozen_tied",
        field="frozen",
        violated=_frozen_tied,
        problem=lambda m, _, __: f"embedding and head of {m.name} are tied; freeze both or none",
    ),
    *(
        Constraint(
            reason=f"{field}_training",
            field=field,
            violated=_without_training(field),
            problem=lambda *_: _IN_TRAINING,
        )
        for field in ("frozen", "lora_rank")
    ),
    Constraint(
        reason="frozen_recipe",
        field="quantization",
        violated=_recipe_of_frozen,
        problem=lambda _, __, t: (
            f"products read 16-bit copies of frozen weights in "
            f"{t.stacks[one(t.stack)].frozen_weights}; allowed: none"
        ),
    ),
    Constraint(
        reason="lora_parts",
        field="lora_parts",
        violated=lambda _, __, t: (t.lora_rank == 0) & (t.lora_parts != _USUAL_ADAPTED),
        problem=lambda *_: "has no effect without lora_rank; leave it out",
    ),
    Constraint(
        reason="lora_lacking",
        field="lora_parts",
        violated=_adapts_nothing,
        problem=lambda m, _, t: (
            f"{m.name} has no "
            + ", ".join(LoraPart.from_bits(one(t.lora_parts) & _absent_adapted(m)))
        ),
    ),
    Constraint(
        reason="lora_tied",
        field="lora_parts",
        violated=_half_of_tied,
        problem=lambda m, _, __: f"embedding and head of {m.name} are tied; name both or none",
    ),
    Constraint(
        reason="recompute_frozen",
        field="recompute",
        violated=_recomputes_nothing,
        problem=lambda *_: (
            "nothing before the head is trained or has a backward pass; allowed: none"
        ),
    ),
    Constraint(
        reason="fused_activation_stack",
        field="fused_activation",
        violated=_unfused_activation,
        problem=lambda _, __, t: (
            f"{t.stacks[one(t.stack)].name} has no fused_swiglu kernel; allowed: false"
        ),
    ),
)


def _dtype(_: Model, system: System, table: Table) -> Bools:
    unknown = np.array([name not in system.accelerator.matrix for name in Dtype])
    return unknown[table.dtype]


def _no_rate(_: Model, system: System, table: Table) -> Bools:
    """Recipes whose number format the accelerator has no matrix units for."""
    allowed = _allowed_recipes(system)
    return np.array([name not in allowed for name in Quantization])[table.quantization]


def _allowed_recipes(system: System) -> list[str]:
    known = {str(name) for name in system.accelerator.matrix}
    return [name for name in Quantization if set(_TYPES_OF.get(name, ())) <= known]


def _positions(model: Model, _: System, table: Table) -> Bools:
    if model.position != Position.LEARNED:
        return np.zeros(len(table), dtype=np.bool_)
    return table.seq_len > (model.max_positions or model.seq_len or 0)


def _parts_unused(_: Model, __: System, table: Table) -> Bools:
    own = table.by_stack(
        lambda stack: RecomputePart.bits(
            stack.field_defaults.get("recompute_parts", ("core_attention",))
        )
    )
    usual = (table.recompute_parts == _USUAL_PARTS) | (table.recompute_parts == own)
    return (table.recompute != Recompute.SELECTIVE.code) & ~usual


def _has_parts(table: Table, parts: tuple[str, ...]) -> Bools:
    found: Bools = (table.recompute == Recompute.SELECTIVE.code) & (
        (table.recompute_parts & RecomputePart.bits(parts)) > 0
    )
    return found


def is_recomputable(model: Model, part: str) -> bool:
    """Whether some layer of a model has a part of recompute."""
    return part not in _IN_SOME_MODELS or any(map(_IN_SOME_MODELS[part], model.layers))


def _lacking(model: Model) -> int:
    """Parts of recompute that a model lacks, as bits."""
    return RecomputePart.bits([part for part in RecomputePart if not is_recomputable(model, part)])


def _parts_lacking(model: Model, _: System, table: Table) -> Bools:
    selective = table.recompute == Recompute.SELECTIVE.code
    lacks: Bools = selective & ((table.recompute_parts & ~_lacking(model)) == 0)
    return lacks


def _saves_none(model: Model) -> int:
    """Parts that no layer of a model saves anything of, as bits."""
    if any(layer.kind != OWN_KIND for layer in model.layers):
        return 0
    lacking = [part for part, has in _SAVED_BY_SOME.items() if not any(map(has, model.layers))]
    if model.mtp:
        lacking.remove("other")
    return OffloadPart.bits(lacking)


def _moves_nothing(model: Model, _: System, table: Table) -> Bools:
    named = table.offload_activations & (table.offload_parts > 0)
    nothing: Bools = named & ((table.offload_parts & ~_saves_none(model)) == 0)
    return nothing


def _hybrid_experts(model: Model, _: System, table: Table) -> Bools:
    shared = table.expert_replicas * np.where(table.dp_shard > 0, table.dp_shard, table.dp)
    return (shared % table.dp != 0) & model.has_experts


def _no_second_tier(flag: str) -> Test:
    return lambda _, system, table: (
        getattr(table, flag) & (len(system.accelerator.memory) < _MEMORY_TIERS)
    )


DTYPE_CONSTRAINT = Constraint(
    reason="dtype",
    field="dtype",
    violated=_dtype,
    problem=lambda _, s, __: (
        f"{s.accelerator.name} has no matrix rate for it; allowed: "
        + ", ".join(name for name in Dtype if name in s.accelerator.matrix)
    ),
)

_QUANTIZATION_CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        reason="quantization",
        field="quantization",
        violated=_no_rate,
        problem=lambda _, s, __: (
            f"{s.accelerator.name} has no matrix rate for it; "
            f"allowed: {', '.join(_allowed_recipes(s))}"
        ),
    ),
    Constraint(
        reason="quantization_dtype",
        field="quantization",
        violated=lambda _, __, t: (t.quantization > 0) & (t.dtype == Dtype.FP32.code),
        problem=lambda *_: "quantizes 16-bit tensors; needs dtype bf16 or fp16",
    ),
    Constraint(
        reason="quantized_weights",
        field="quantized_weights",
        violated=lambda _, __, t: t.quantized_weights & (t.quantization == 0),
        problem=lambda *_: "has no effect with quantization none; leave it out",
    ),
    Constraint(
        reason="dispatcher",
        field="dispatcher",
        violated=lambda m, _, t: (t.dispatcher != _ALL_TO_ALL) & (not m.has_experts),
        problem=lambda m, *_: f"{m.name} has no experts to send tokens to; leave it out",
    ),
    Constraint(
        reason="dispatch_dtype",
        field="dispatch_dtype",
        violated=lambda m, _, t: (t.dispatch_dtype > 0) & (not m.has_experts),
        problem=lambda m, *_: f"{m.name} has no experts to send tokens to; leave it out",
    ),
    Constraint(
        reason="dispatch_dtype_fp8",
        field="dispatch_dtype",
        violated=lambda _, s, t: (t.dispatch_dtype > 0) & ("fp8" not in s.accelerator.matrix),
        problem=lambda _, s, __: f"{s.accelerator.name} has no fp8; allowed: dtype",
    ),
)

OPTION_CONSTRAINTS: tuple[Constraint, ...] = (
    *_TRAINABLE_CONSTRAINTS,
    *_QUANTIZATION_CONSTRAINTS,
    Constraint(
        reason="positions",
        field="seq_len",
        violated=_positions,
        problem=lambda m, _, __: (
            f"{m.name} has {m.max_positions or m.seq_len} learned positions; allowed: up to that"
        ),
    ),
    Constraint(
        reason="documents",
        field="document_len",
        violated=lambda _, __, t: t.document_len > t.seq_len,
        problem=lambda _, __, t: f"must be at most seq_len {one(t.seq_len)}",
    ),
    Constraint(
        reason="recompute_parts",
        field="recompute_parts",
        violated=_parts_unused,
        problem=lambda *_: "has no effect without recompute selective; leave it out",
    ),
    Constraint(
        reason="parts_lacking",
        field="recompute_parts",
        violated=_parts_lacking,
        problem=lambda m, _, t: (
            f"{m.name} has no {' or '.join(RecomputePart.from_bits(one(t.recompute_parts)))}; "
            "nothing would be recomputed"
        ),
    ),
    Constraint(
        reason="norm_parts",
        field="recompute_parts",
        violated=lambda _, __, t: _has_parts(t, _NORMS) & t.sequence_parallel & ~t.tp_regather,
        problem=lambda *_: (
            "recomputing the output of a norm does not gather it; tp_regather must be true"
        ),
    ),
    Constraint(
        reason="activation_parts",
        field="recompute_parts",
        violated=lambda _, __, t: _has_parts(t, ("activation", "every_other")) & t.fused_activation,
        problem=lambda *_: "fused_activation recomputes the activation already; set one of them",
    ),
    Constraint(
        reason="recompute_layers",
        field="recompute_layers",
        violated=lambda _, __, t: (t.recompute_layers > 0) & (t.recompute == Recompute.NONE.code),
        problem=lambda *_: "has no effect with recompute none; leave it out",
    ),
    Constraint(
        reason="recompute_depth",
        field="recompute_layers",
        violated=lambda m, _, t: t.recompute_layers > m.depth,
        problem=lambda m, _, __: f"must be at most the {m.depth} layers of {m.name}",
    ),
    Constraint(
        reason="zero",
        field="zero",
        violated=lambda _, __, t: t.zero > _ZERO_STAGES[-1],
        problem=lambda *_: f"allowed: {', '.join(map(str, _ZERO_STAGES))}",
    ),
    Constraint(
        reason="dp_shard",
        layout_only=True,
        field="dp_shard",
        violated=lambda _, __, t: (t.dp_shard > 0) & (t.dp % np.maximum(t.dp_shard, 1) != 0),
        problem=lambda _, __, t: f"must divide dp {one(t.dp)}",
    ),
    Constraint(
        reason="dp_shard_zero",
        field="dp_shard",
        violated=lambda _, __, t: (t.dp_shard > 0) & (t.zero < ZERO_OPTIMIZER),
        problem=lambda *_: "zero 0 shards nothing; leave it out",
    ),
    Constraint(
        reason="dp_shard_experts",
        layout_only=True,
        field="dp_shard",
        violated=_hybrid_experts,
        problem=lambda _, __, t: (
            f"of dp {one(t.dp)} must divide the {one(t.expert_replicas)} replicas of an expert"
        ),
    ),
    Constraint(
        reason="fsdp_reshard",
        field="fsdp_reshard",
        violated=lambda _, __, t: ~t.fsdp_reshard & (t.zero < _ZERO_STAGES[-1]),
        problem=lambda *_: "has no effect without zero 3; leave it out",
    ),
    *(
        Constraint(
            reason=flag,
            field=flag,
            violated=_no_second_tier(flag),
            problem=lambda _, s, __: (
                f"{s.accelerator.name} has no second memory tier to offload to; allowed: false"
            ),
        )
        for flag in ("offload_weights", "offload_activations", "offload_optimizer")
    ),
    Constraint(
        reason="offload_parts",
        field="offload_parts",
        violated=lambda _, __, t: ~t.offload_activations & (t.offload_parts > 0),
        problem=lambda *_: "has no effect without offload_activations; leave it out",
    ),
    Constraint(
        reason="offload_lacking",
        field="offload_parts",
        violated=_moves_nothing,
        problem=lambda m, _, t: (
            f"{m.name} has no {' or '.join(OffloadPart.from_bits(one(t.offload_parts)))}; "
            "nothing would be offloaded"
        ),
    ),
)
