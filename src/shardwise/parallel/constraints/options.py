"""Constraints on options: recompute, sharding, offload, number formats, and what is trained."""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Bools, among
from shardwise.config.enums import (
    ZERO_OPTIMIZER,
    ZERO_WEIGHTS,
    Adapter,
    BaseWeights,
    CheckpointPlace,
    Dispatcher,
    Dtype,
    ExpertKernel,
    FrozenPart,
    GradientDtype,
    GraphScope,
    LoraPart,
    Loss,
    MasterDtype,
    MomentDtype,
    OffloadPart,
    Optimizer,
    Position,
    Quantization,
    Recompute,
    RecomputePart,
    Reference,
    Task,
)
from shardwise.config.mixer import GatedDelta, KimiDelta, Lightning
from shardwise.config.model import OWN_KIND, Layer, Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.ops.lora import Subset, components_of_model, runs_backward
from shardwise.ops.loss import FIGURES
from shardwise.ops.precision import OWN_MOMENTS, fp32_weights
from shardwise.parallel.constraints.constraint import Constraint, one, rule

_MEMORY_TIERS = 2
_ALL_TO_ALL = Dispatcher.ALL_TO_ALL.code
_USUAL_PARTS = RecomputePart.bits(("core_attention",))
_NORMS = ("attention_norm", "mlp_norm", "every_other")
# Matrix units that recipes need. Units that scale blocks of 32 or 16 themselves came with those of
# fp4 (NVIDIA Blackwell; arXiv 2509.25149, section 2).
_TYPES_OF = {
    "fp8_tensor": ("fp8",),
    "fp8_row": ("fp8",),
    "fp8_block": ("fp8",),
    "mxfp8": ("fp8", "fp4"),
    "nvfp4": ("fp4",),
}
# Parts of recompute that some models lack.
_IN_SOME_MODELS: dict[str, Callable[[Layer], bool]] = {
    "mla_up": lambda layer: (
        layer.attention is not None and bool(layer.attention.latent or layer.attention.compressed)
    ),
    "mlp": lambda layer: layer.mlp is not None,
    **dict.fromkeys(("moe", "experts"), lambda layer: layer.moe is not None),
    "shared_experts": lambda layer: layer.moe is not None and layer.moe.shared_ffn > 0,
    "mixer_gate": lambda layer: isinstance(layer.mixer, (GatedDelta, KimiDelta, Lightning)),
}


# Parts of offload that some layers save nothing of.
_SAVED_BY_SOME: dict[str, Callable[[Layer], bool]] = {
    "mlp_norm": lambda layer: not layer.parallel and bool(layer.mlp or layer.moe),
    "mlp": lambda layer: layer.mlp is not None or bool(layer.moe and layer.moe.shared_ffn),
    **dict.fromkeys(("router", "expert_up", "expert_down"), lambda layer: layer.moe is not None),
    "other": lambda _: False,
}
_USUAL_ADAPTED = LoraPart.bits(Strategy.model_fields["lora_parts"].default)
_FULL_HEAD = [Loss.FUSED_LINEAR.code, Loss.CHUNKED_RECOMPUTE.code]
_NOT_SUMMA = [word.code for word, one in FIGURES.items() if one.gathers or not one.whole]
_EMBEDDING, _HEAD = FrozenPart.bits(["embedding"]), FrozenPart.bits(["head"])


def _absent(model: Model) -> int:
    """Components that a model lacks, as bits of `FrozenPart`."""
    return ~components_of_model(model)


def _absent_adapted(model: Model) -> int:
    missing = set(FrozenPart.from_bits(_absent(model)))
    return LoraPart.bits(missing & set(LoraPart))


def _adapts_nothing(model: Model, table: Table) -> Bools:
    named = (table.lora_rank > 0) & (table.lora_parts != _USUAL_ADAPTED)
    lacks: Bools = named & ((table.lora_parts & _absent_adapted(model)) > 0)
    return lacks


def _has_no_target(model: Model, table: Table) -> Bools:
    """Rows whose adapters have no place in a model, or name experts that it lacks."""
    missing = Subset.of(table).adapted & _absent_adapted(model)
    experts = LoraPart.bits([LoraPart.EXPERTS])
    nothing: Bools = (missing == Subset.of(table).adapted) | ((missing & experts) > 0)
    return nothing


def _no_checkpoints(table: Table) -> Bools:
    """Rows that name a place of checkpoints and have none; the default of a stack may idle."""
    usual = table.by_stack(
        lambda stack: stack.field_defaults.get("checkpoint_place") == CheckpointPlace.HOST
    )
    return (table.checkpoint_place > 0) & ~table.offloads_checkpoints & ~usual


def _nothing_trained(model: Model, table: Table) -> Bools:
    every = components_of_model(model)
    nothing: Bools = (table.frozen & every) == every
    return nothing


def _frozen_tied(model: Model, table: Table) -> Bools:
    embedding, head = (table.frozen & _EMBEDDING) > 0, (table.frozen & _HEAD) > 0
    return (embedding != head) & model.tied_embeddings


def _half_of_tied(model: Model, table: Table) -> Bools:
    """Rows with adapters that train only one end of a model whose ends are tied."""
    trained = Subset.of(table)
    one_end = trained.freezes("embedding") != trained.freezes("head")
    return (table.lora_rank > 0) & one_end & model.tied_embeddings


def _recipe_of_frozen(table: Table) -> Bools:
    """Rows with a recipe for products, some of whose frozen weights the stack stores in 4 bits."""
    stored = table.in_effect("base_weights") != BaseWeights.DTYPE.code
    freezes = (table.lora_rank > 0) | (table.frozen > 0)
    rows: Bools = stored & freezes & (table.quantization != Quantization.NONE.code)
    return rows


def _unfused_activation(model: Model, table: Table) -> Bools:
    """Rows whose stack has no kernel that recomputes a gated activation."""
    blocks = [block for layer in model.layers for block in (layer.mlp, layer.moe)]
    gated = any(block is not None and block.gated for block in blocks)
    apart = table.by_compile("fused_swiglu") == 0
    return table.fused_activation & apart & gated


def _in_training(field: str) -> Constraint:
    return rule(
        f"{field}_training",
        field,
        lambda t: ~t.training & (getattr(t, field) > 0),
        "has an effect in training only; leave it out",
    )


_TRAINABLE_CONSTRAINTS: tuple[Constraint, ...] = (
    rule(
        "frozen_adapters",
        "frozen",
        lambda t: (t.lora_rank > 0) & (t.frozen > 0),
        "lora_rank freezes all weights of the model; leave it out",
    ),
    rule(
        "frozen_lacking",
        "frozen",
        lambda m, t: (t.frozen & _absent(m)) > 0,
        lambda m, t: (
            f"{m.name} has no {', '.join(FrozenPart.from_bits(one(t.frozen) & _absent(m)))}"
        ),
    ),
    rule(
        "frozen_everything",
        "frozen",
        _nothing_trained,
        "leaves nothing to train; for forward only training is false",
    ),
    rule(
        "frozen_tied",
        "frozen",
        _frozen_tied,
        "embedding and head of {m.name} are tied; freeze both or none",
    ),
    _in_training("frozen"),
    _in_training("task"),
    rule(
        "task_pipeline",
        "task",
        lambda t: (t.task > Task.SFT.code) & (t.pp > 1),
        "is not modeled with pipeline stages; allowed with pp > 1: pretrain, sft",
    ),
    rule(
        "reference_model",
        "reference_model",
        lambda t: (t.reference_model > 0) & ~t.has_reference,
        "has no effect without task dpo or kto; leave it out",
    ),
    rule(
        "reference_adapter",
        "reference_model",
        lambda t: (t.reference_model == Reference.ADAPTER_OFF.code) & (t.lora_rank == 0),
        "needs adapters to switch off: set lora_rank; allowed: usual, copy, copy_host, precomputed",
    ),
    rule(
        "checkpoint_place",
        "checkpoint_place",
        _no_checkpoints,
        "are inputs of fully recomputed layers: needs recompute full, and no offload_activations",
    ),
    _in_training("lora_rank"),
    rule(
        "frozen_recipe",
        "quantization",
        _recipe_of_frozen,
        "products read 16-bit copies of frozen weights in another type; allowed: none",
    ),
    rule(
        "lora_parts",
        "lora_parts",
        lambda t: (t.lora_rank == 0) & (t.lora_parts != _USUAL_ADAPTED),
        "has no effect without lora_rank; leave it out",
    ),
    rule(
        "lora_targets",
        "lora_targets",
        lambda t: (t.lora_rank == 0) & (t.lora_targets > 0),
        "has no effect without lora_rank; leave it out",
    ),
    rule(
        "lora_targets_or_parts",
        "lora_targets",
        lambda t: (t.lora_targets > 0) & (t.lora_parts != _USUAL_ADAPTED),
        "lora_parts says what has adapters, too; set one",
    ),
    rule(
        "lora_targets_lacking",
        "lora_targets",
        lambda m, t: (t.lora_targets > 0) & (t.lora_rank > 0) & _has_no_target(m, t),
        lambda m, t: (
            f"{m.name} has no "
            + " or ".join(LoraPart.from_bits(one(Subset.of(t).adapted) & _absent_adapted(m)))
        ),
    ),
    rule(
        "adapter",
        "adapter",
        lambda t: (t.adapter != Adapter.LORA.code) & (t.lora_rank == 0),
        "has no effect without lora_rank; leave it out",
    ),
    rule(
        "adapter_tensor_parallel",
        "adapter",
        lambda t: (t.adapter == Adapter.DORA.code) & (t.tp * t.tp2 > 1),
        "norms of split weights are not modeled; allowed with tp > 1: lora",
    ),
    rule(
        "base_weights",
        "base_weights",
        lambda t: (t.base_weights > 0) & (t.lora_rank == 0) & (t.frozen == 0),
        "is the type of frozen weights: has no effect without lora_rank or frozen; leave it out",
    ),
    rule(
        "lora_lacking",
        "lora_parts",
        _adapts_nothing,
        lambda m, t: (
            f"{m.name} has no "
            + ", ".join(LoraPart.from_bits(one(t.lora_parts) & _absent_adapted(m)))
        ),
    ),
    rule(
        "lora_tied",
        "lora_parts",
        _half_of_tied,
        "embedding and head of {m.name} are tied; name both or none",
    ),
    rule(
        "recompute_frozen",
        "recompute",
        lambda m, t: (t.recompute != Recompute.NONE.code) & ~runs_backward(m, Subset.of(t)),
        "nothing before the head is trained or has a backward pass; allowed: none",
    ),
    rule(
        "fused_activation_stack",
        "fused_activation",
        _unfused_activation,
        "{stack.name} has no fused_swiglu kernel; allowed: false",
    ),
)


def _no_rate(_: Model, system: System, table: Table) -> Bools:
    """Recipes whose number format the accelerator has no matrix units for."""
    allowed = _allowed_recipes(system)
    return np.array([name not in allowed for name in Quantization])[table.quantization]


def _allowed_recipes(system: System) -> list[str]:
    known = {str(name) for name in system.accelerator.matrix}
    return [name for name in Quantization if set(_TYPES_OF.get(name, ())) <= known]


def _positions(model: Model, table: Table) -> Bools:
    if model.position != Position.LEARNED:
        return np.zeros(len(table), dtype=np.bool_)
    return table.seq_len > (model.max_positions or model.seq_len or 0)


def _parts_unused(table: Table) -> Bools:
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
    if part == "streams":
        return model.streams > 1
    return part not in _IN_SOME_MODELS or any(map(_IN_SOME_MODELS[part], model.layers))


def absent_parts(model: Model) -> int:
    """Parts of recompute that no layer of a model has, as bits."""
    return RecomputePart.bits([part for part in RecomputePart if not is_recomputable(model, part)])


def _parts_lacking(model: Model, table: Table) -> Bools:
    selective = table.recompute == Recompute.SELECTIVE.code
    lacks: Bools = selective & ((table.recompute_parts & ~absent_parts(model)) == 0)
    return lacks


def _saves_none(model: Model) -> int:
    """Parts that no layer of a model saves anything of, as bits."""
    if any(layer.kind != OWN_KIND for layer in model.layers):
        return 0
    lacking = [part for part, has in _SAVED_BY_SOME.items() if not any(map(has, model.layers))]
    if model.mtp:
        lacking.remove("other")
    return OffloadPart.bits(lacking)


def _moves_nothing(model: Model, table: Table) -> Bools:
    named = table.offload_activations & (table.offload_parts > 0)
    nothing: Bools = named & ((table.offload_parts & ~_saves_none(model)) == 0)
    return nothing


def _captured_in(model: Model) -> int:
    """Modules that some layer of a model has, as bits of `GraphScope`."""
    mamba = any(mixer.kind.startswith("mamba") for mixer in model.mixers)
    words = [GraphScope.MAMBA] if mamba else []
    if model.attentions or any(not mixer.kind.startswith("mamba") for mixer in model.mixers):
        words.append(GraphScope.ATTN)
    if any(layer.mlp is not None for layer in model.layers):
        words.append(GraphScope.MLP)
    if model.has_experts:
        words += [GraphScope.MOE, GraphScope.MOE_ROUTER]
    return GraphScope.bits(words)


def _hybrid_experts(model: Model, table: Table) -> Bools:
    shared = table.expert_replicas * np.where(table.dp_shard > 0, table.dp_shard, table.dp)
    return (shared % table.dp != 0) & model.has_experts


def _second_tier(flag: str) -> Constraint:
    return rule(
        flag,
        flag,
        lambda _, s, t: getattr(t, flag) & (len(s.accelerator.memory) < _MEMORY_TIERS),
        "{s.accelerator.name} has no second memory tier to offload to; allowed: false",
    )


def _of_the_host(name: str) -> Constraint:
    return rule(
        name,
        name,
        lambda t: (getattr(t, name) > 0) & ~t.updates_on_host,
        "has no effect unless the host updates offloaded optimizer state (offload_optimizer, "
        "cpu_optimizer); leave it out",
    )


DTYPE_CONSTRAINT = rule(
    "dtype",
    "dtype",
    lambda _, s, t: np.array([name not in s.accelerator.matrix for name in Dtype])[t.dtype],
    lambda _, s, __: (
        f"{s.accelerator.name} has no matrix rate for it; allowed: "
        + ", ".join(name for name in Dtype if name in s.accelerator.matrix)
    ),
)

_QUANTIZATION_CONSTRAINTS: tuple[Constraint, ...] = (
    rule(
        "quantization",
        "quantization",
        _no_rate,
        lambda _, s, __: (
            f"{s.accelerator.name} has no matrix rate for it; "
            f"allowed: {', '.join(_allowed_recipes(s))}"
        ),
    ),
    rule(
        "quantization_dtype",
        "quantization",
        lambda t: (t.quantization > 0) & (t.dtype == Dtype.FP32.code),
        "quantizes 16-bit tensors; needs dtype bf16 or fp16",
    ),
    rule(
        "quantized_weights",
        "quantized_weights",
        lambda t: t.quantized_weights & (t.quantization == 0),
        "has no effect with quantization none; leave it out",
    ),
    rule(
        "dispatcher",
        "dispatcher",
        lambda m, t: (t.dispatcher != _ALL_TO_ALL) & (not m.has_experts),
        "{m.name} has no experts to send tokens to; leave it out",
    ),
    rule(
        "dispatch_dtype",
        "dispatch_dtype",
        lambda m, t: (t.dispatch_dtype > 0) & (not m.has_experts),
        "{m.name} has no experts to send tokens to; leave it out",
    ),
    rule(
        "expert_kernel",
        "expert_kernel",
        lambda m, t: (t.expert_kernel > 0) & (not m.has_experts),
        "{m.name} has no experts; leave it out",
    ),
    rule(  # grouped GEMMs with SwiGLU and casts (NVIDIA/Megatron-LM 6815c0fe of 2026-05-15)
        "expert_kernel_fused",
        "expert_kernel",
        lambda _, s, t: (
            (t.expert_kernel == ExpertKernel.FUSED.code) & ("fp4" not in s.accelerator.matrix)
        ),
        "fused kernels of experts are those of Blackwell, not of {s.accelerator.name}; "
        "allowed: stack, loop, calls, grouped",
    ),
    rule(
        "dispatch_dtype_fp8",
        "dispatch_dtype",
        lambda _, s, t: (t.dispatch_dtype > 0) & ("fp8" not in s.accelerator.matrix),
        "{s.accelerator.name} has no fp8; allowed: dtype",
    ),
)


def _wide(table: Table) -> Bools:
    """Rows that store trained weights in fp32."""
    return fp32_weights(table, np.where(table.dtype == Dtype.FP32.code, 4.0, 2.0))


_OWN_MOMENTS = np.array(
    [OWN_MOMENTS.get(name, MomentDtype.STACK).code for name in Optimizer], dtype=np.int64
)

_TYPE_CONSTRAINTS: tuple[Constraint, ...] = (
    rule(
        "weight_dtype_recipe",
        "weight_dtype",
        lambda t: _wide(t) & t.quantized_weights,
        "fp32 weights are not stored in the type of quantization; allowed: stack, compute",
    ),
    rule(
        "master_dtype",
        "master_dtype",
        lambda t: _wide(t) & (t.master_dtype > 0) & (t.master_dtype != MasterDtype.NONE.code),
        "weights in fp32 are updated themselves; allowed: stack, none, or weight_dtype compute",
    ),
    rule(
        "gradient_dtype",
        "gradient_dtype",
        lambda t: _wide(t) & (t.gradient_dtype == GradientDtype.COMPUTE.code),
        "gradients of weights in fp32 are fp32; allowed: stack, fp32, or weight_dtype compute",
    ),
    rule(
        "moment_dtype",
        "moment_dtype",
        lambda t: (
            (t.moment_dtype > 0)
            & (_OWN_MOMENTS[t.optimizer] > 0)
            & (t.moment_dtype != _OWN_MOMENTS[t.optimizer])
        ),
        "the name of the optimizer says the type of its moments; leave it out, or choose adamw",
    ),
)

OPTION_CONSTRAINTS: tuple[Constraint, ...] = (
    *_TRAINABLE_CONSTRAINTS,
    *_QUANTIZATION_CONSTRAINTS,
    *_TYPE_CONSTRAINTS,
    rule(
        "positions",
        "seq_len",
        _positions,
        lambda m, _: (
            f"{m.name} has {m.max_positions or m.seq_len} learned positions; allowed: up to that"
        ),
    ),
    rule(
        "documents",
        "document_len",
        lambda t: t.document_len > t.seq_len,
        "must be at most seq_len {seq_len}",
    ),
    rule(
        "documents",
        "document_len",
        lambda t: (t.document_len > 0) & (t.data_lengths >= 0),
        "follows from data_lengths; leave it out",
    ),
    rule(
        "recompute_parts",
        "recompute_parts",
        _parts_unused,
        "has no effect without recompute selective; leave it out",
    ),
    rule(
        "parts_lacking",
        "recompute_parts",
        _parts_lacking,
        lambda m, t: (
            f"{m.name} has no {' or '.join(RecomputePart.from_bits(one(t.recompute_parts)))}; "
            "nothing would be recomputed"
        ),
    ),
    rule(
        "norm_parts",
        "recompute_parts",
        lambda t: _has_parts(t, _NORMS) & t.sequence_parallel & ~t.tp_regather,
        "recomputing the output of a norm does not gather it; tp_regather must be true",
    ),
    rule(
        "activation_parts",
        "recompute_parts",
        lambda t: _has_parts(t, ("activation", "every_other")) & t.fused_activation,
        "fused_activation recomputes the activation already; set one of them",
    ),
    rule(
        "recompute_layers",
        "recompute_layers",
        lambda t: (t.recompute_layers > 0) & (t.recompute == Recompute.NONE.code),
        "has no effect with recompute none; leave it out",
    ),
    rule(
        "recompute_depth",
        "recompute_layers",
        lambda m, t: t.recompute_layers > m.depth,
        "must be at most the {m.depth} layers of {m.name}",
    ),
    rule(
        "loss_parallel",
        "loss",
        lambda t: (t.loss == Loss.LOSS_PARALLEL.code) & (t.tp == 1),
        "splits the vocabulary among tensor-parallel ranks: needs tp > 1",
    ),
    rule(
        "loss_of_full_head",
        "loss",
        lambda t: among(t.loss_in_effect, _FULL_HEAD) & (t.tp > 1),
        "reads the full head on one rank (Liger's kernel, TRL's chunked_nll); allowed: tp 1",
    ),
    rule(
        "loss_of_2d_products",
        "loss",
        lambda t: t.summa & among(t.loss_in_effect, _NOT_SUMMA) & (t.loss > 0),
        "is not modeled with tp_exchange summa; allowed: stack, losses that split the vocabulary",
    ),
    rule(
        "graph_scope",
        "graph_scope",
        lambda t: (t.graph_scope > 0) & (t.captured_modules == 0),
        "has no effect without cuda_graphs partial; leave it out",
    ),
    rule(
        "graph_scope_lacking",
        "graph_scope",
        lambda m, t: (t.graph_scope > 0) & ((t.graph_scope & _captured_in(m)) == 0),
        lambda m, t: (
            f"{m.name} has no {' or '.join(GraphScope.from_bits(one(t.graph_scope)))}; "
            "nothing would be captured"
        ),
    ),
    rule("zero", "zero", lambda t: t.zero > ZERO_WEIGHTS, "allowed: 0, 1, 2, 3"),
    rule(
        "dp_shard",
        "dp_shard",
        lambda t: (t.dp_shard > 0) & (t.dp % np.maximum(t.dp_shard, 1) != 0),
        "must divide dp {dp}",
        layout=True,
    ),
    rule(
        "dp_shard_zero",
        "dp_shard",
        lambda t: (t.dp_shard > 0) & (t.zero < ZERO_OPTIMIZER),
        "zero 0 shards nothing; leave it out",
    ),
    rule(
        "dp_shard_experts",
        "dp_shard",
        _hybrid_experts,
        "of dp {dp} must divide the {expert_replicas} replicas of an expert",
        layout=True,
    ),
    rule(
        "fsdp_reshard",
        "fsdp_reshard",
        lambda t: ~t.fsdp_reshard & (t.zero < ZERO_WEIGHTS),
        "has no effect without zero 3; leave it out",
    ),
    *map(_second_tier, ("offload_weights", "offload_activations", "offload_optimizer")),
    rule(
        "cpu_optimizer",
        "cpu_optimizer",
        lambda t: (t.cpu_optimizer > 0) & ~t.may_update_on_host,
        "has no effect without offload_optimizer, or with muon and adamw-8bit; leave it out",
    ),
    *map(_of_the_host, ("host_threads", "offload_nvme")),
    rule(
        "drives",
        "offload_nvme",
        lambda _, s, t: t.offload_nvme & t.updates_on_host & np.asarray(s.server.nvme_read is None),
        "{s.name} has no local drives (host.nvme_read, host.nvme_write); allowed: false",
    ),
    rule(
        "checkpoint_tier",
        "checkpoint_place",
        lambda _, s, t: (t.checkpoint_place > 0) & (len(s.accelerator.memory) < _MEMORY_TIERS),
        "{s.accelerator.name} has no second memory tier to offload to; allowed: device",
    ),
    rule(
        "reference_tier",
        "reference_model",
        lambda _, s, t: (
            (t.reference_model == Reference.COPY_HOST.code)
            & (len(s.accelerator.memory) < _MEMORY_TIERS)
        ),
        "{s.accelerator.name} has no second memory tier; allowed: usual, copy, precomputed",
    ),
    rule(
        "offload_parts",
        "offload_parts",
        lambda t: ~t.offload_activations & (t.offload_parts > 0),
        "has no effect without offload_activations; leave it out",
    ),
    rule(
        "offload_lacking",
        "offload_parts",
        _moves_nothing,
        lambda m, t: (
            f"{m.name} has no {' or '.join(OffloadPart.from_bits(one(t.offload_parts)))}; "
            "nothing would be offloaded"
        ),
    ),
)
