"""A plan as fields of Megatron-Core's configuration, and a launch from such fields.

Launchers on Megatron-Core (Megatron-LM, Megatron-Bridge) share this; each has its own way to write
the fields down. Besides fields of TransformerConfig, ModelParallelConfig, OptimizerConfig and
DistributedDataParallelConfig there are `micro_batch_size`, `global_batch_size`, `seq_length`,
`vocab_size`, `make_vocab_size_divisible_by`, `max_position_embeddings`, `position_embedding_type`,
`rotary_percent`, `share_embeddings_and_output_weights`, `use_torch_fsdp2`,
`torch_fsdp2_reshard_after_forward` and `use_tp_pp_dp_mapping`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shardwise.config.enums import ZERO_WEIGHTS, Quantization
from shardwise.config.launch import NotUnderstood, Origin
from shardwise.config.layer_precision import ends_in_16_bits, with_16_bit_ends, with_all_quantized
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, refuse
from shardwise.launchers.launch import LaunchPlan, fields_named, origins_of
from shardwise.launchers.megatron.core_hybrid import (
    PATTERN,
    blocks_of_layers,
    is_hybrid,
    pattern_of,
)
from shardwise.launchers.megatron.core_layout import expanded, read_stages, stage_fields
from shardwise.launchers.megatron.core_model import model_faults, model_fields, read_model
from shardwise.launchers.megatron.core_stack import (
    CoreReading,
    Fields,
    Value,
    attention_faults,
    read_stack,
    stack_fields,
)
from shardwise.launchers.megatron.core_strategy import (
    SAME,
    expert_fields,
    memory_fields,
    optimizer_fields,
    order_of,
    parallel_fields,
    precision_fields,
    read_experts,
    read_memory,
    read_optimizer,
    read_parallel,
    read_precision,
    read_sharding,
    sharding_fields,
)

CORE_SAYS = fields_named(
    "gpus tp pp cp ep etp dp vpp micro_batch_size global_batch_size seq_len dtype quantization"
    " quantized_weights attention recompute recompute_parts recompute_layers zero dp_shard"
    " fsdp_reshard optimizer schedule first_stage_layers last_stage_layers stage_layers"
    " embedding_as_layer loss_as_layer loss tp_exchange tp_overlap cp_exchange expert_capacity"
    " dispatcher expert_overlap expert_kernel cuda_graphs graph_scope dp_overlap"
    " offload_activations offload_parts offload_optimizer placement attention_kernel"
    " master_dtype moment_dtype gradient_dtype"
)
"""Fields of a strategy that fields of Megatron-Core say."""
DECIDED_BY: Mapping[str, tuple[str, ...]] = {
    **{own: (core,) for own, core in SAME.items()},
    "pp": ("pipeline_model_parallel_size",),
    "vpp": ("virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"),
    "etp": ("expert_tensor_parallel_size",),
    "schedule": ("virtual_pipeline_model_parallel_size", "pipeline_schedule"),
    "dtype": ("bf16", "fp16"),
    "zero": ("use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2", "zero_stage"),
    "dp_overlap": ("overlap_grad_reduce", "use_torch_fsdp2"),
    "fsdp_reshard": ("torch_fsdp2_reshard_after_forward",),
    "optimizer": ("optimizer",),
    "loss": ("cross_entropy_loss_fusion", "cross_entropy_fusion_impl"),
    "tp_exchange": ("sequence_parallel",),
    "cp_exchange": ("cp_comm_type",),
    "dispatcher": ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
    "expert_capacity": ("moe_expert_capacity_factor",),
    "placement": ("use_tp_pp_dp_mapping",),
    "attention_kernel": ("attention_backend",),
}
"""Fields of Megatron-Core that decide a field of a strategy; others are set where they are read."""
CORE_DEFAULTS: Fields = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "sequence_parallel": False,
    "tp_comm_overlap": False,
    "num_distributed_optimizer_instances": 1,
    "use_distributed_optimizer": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "data_parallel_sharding_strategy": "no_shard",
    "torch_fsdp2_reshard_after_forward": True,
    "grad_reduce_in_fp32": False,
    "gradient_accumulation_fusion": False,
    "overlap_p2p_comm": False,
    "optimizer": "adam",
    "sgd_momentum": 0.9,
    "normalization": "LayerNorm",
    "add_bias_linear": True,
    "gated_linear_unit": False,
    "activation_func": "gelu",
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "position_embedding_type": "learned_absolute",
    "rotary_percent": 1.0,
    "share_embeddings_and_output_weights": True,
    "make_vocab_size_divisible_by": 128,
    "moe_router_topk": 2,
    "moe_layer_freq": 1,
    "moe_router_score_function": "softmax",
    "moe_token_dispatcher_type": "allgather",
    "moe_flex_dispatcher_backend": "deepep",
    "cross_entropy_fusion_impl": "native",
    "attention_backend": "auto",
    "bias_activation_fusion": False,
    "cuda_graph_impl": "none",
    "softmax_type": "vanilla",
    "fp8_recipe": "delayed",
    "fp4_recipe": "nvfp4",
    "num_layers_at_start_in_bf16": 1,
    "num_layers_at_end_in_bf16": 1,
    "exp_avg_dtype": "fp32",
    "exp_avg_sq_dtype": "fp32",
    "main_grads_dtype": "fp32",
    "main_params_dtype": "fp32",
}
"""Defaults of the classes themselves; launchers have some of their own. What is not listed is off
or not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLaunch:
    """What fields of Megatron-Core say, as the fields of `Launch`."""

    model: Model
    strategy: Mapping[str, object]
    decided: Mapping[str, object]
    not_understood: tuple[NotUnderstood, ...]
    origins: Mapping[str, Origin]


def core_faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what Megatron-Core has no field for, in a strategy that its stack can run."""
    yield from model_faults(with_all_quantized(model))
    if ends_in_16_bits(model) is None:
        problem = "Megatron-Core: layers in 16 bits are the first and the last ones"
        yield Fault.of("model.layers.quantized", False, problem)
    if not strategy.training:
        yield Fault.of("training", False, "Megatron-Core: a run trains; allowed: true")
    for name in ("extents", "tp_tier", "cp_tier", "dp_tier", "pp_tier"):
        if (value := getattr(strategy, name)) is not None:
            problem = "Megatron-Core: ranks follow placement; leave it out"
            yield Fault.of(name, value, problem)
    if strategy.zero == ZERO_WEIGHTS and not (strategy.fsdp_reshard or strategy.dp_overlap):
        problem = "Megatron-Core: torch FSDP2, which fsdp_reshard false needs, always overlaps"
        yield Fault.of("dp_overlap", False, problem)
    yield from attention_faults(strategy)
    if order_of(strategy) is None:
        problem = "Megatron-Core: allowed: tp-cp-dp-pp, tp-cp-pp-dp"
        yield Fault.of("placement", strategy.placement, problem)


def core_fields(plan: LaunchPlan) -> dict[str, Value]:
    """Return a plan as fields of Megatron-Core's configuration, also those at their default.

    A field that is None is not set. Types are words: bf16, fp16, fp32, fp8.
    """
    model = with_all_quantized(plan.model).with_attention(plan.strategy.attention)
    strategy = plan.strategy
    fields = model_fields(model)
    fields.setdefault("max_position_embeddings", strategy.seq_len)
    stages = stage_fields(model, strategy)
    if is_hybrid(model) and (bars := stages["pipeline_model_parallel_layout"]) is not None:
        counts = [stage.count("t") for stage in expanded(str(bars))]
        modules = str(fields[PATTERN]).partition("/")
        fields[PATTERN] = pattern_of(model, counts) + "".join(modules[1:])
        stages |= dict.fromkeys(
            ("pipeline_model_parallel_layout", "virtual_pipeline_model_parallel_size")
        )
    return (
        fields
        | parallel_fields(model, strategy)
        | stages
        | sharding_fields(strategy)
        | optimizer_fields(strategy)
        | precision_fields(strategy)
        | _ends(plan)
        | memory_fields(strategy)
        | (expert_fields(strategy) if model.has_experts else {})
        | stack_fields(model, strategy)
    )


_ENDS = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")


def _ends(plan: LaunchPlan) -> dict[str, Value]:
    """Layers at the ends that no recipe quantizes; those of a pattern are its blocks."""
    counts = ends_in_16_bits(plan.model) or (0, 0)
    if plan.strategy.quantization == Quantization.NONE or not any(counts):
        return {"first_last_layers_bf16": False}
    each = blocks_of_layers(plan.model)
    return {"first_last_layers_bf16": True} | {
        name: each * count for name, count in zip(_ENDS, counts, strict=True)
    }


def _with_ends(model: Model, reading: CoreReading) -> Model:
    """The model with the layers that no recipe quantizes."""
    counts = [reading.whole(name) or 0 for name in _ENDS]
    if not reading.flag("first_last_layers_bf16") or not reading.strategy.get("quantization"):
        return model
    each = blocks_of_layers(model)
    for name, count in zip(_ENDS, counts, strict=True):
        if not 0 <= count <= each * model.depth:
            reading.fault(name, count, f"must be at most the {each * model.depth} layers")
        elif count % each:
            reading.note(name, "ends between the two blocks of a layer, which is quantized")
    refuse(reading.faults)
    return with_16_bit_ends(model, *(count // each for count in counts))


def read_core_fields(
    fields: Fields,
    *,
    stack: str,
    source: str,
    name: str,
    gpus: int | None,
    defaults: Fields = CORE_DEFAULTS,
    neutral: Callable[[str], bool] = lambda _: False,
    option: Callable[[str], str] = str,
    padded_to: int = 0,
) -> CoreLaunch:
    """Return the model and the strategy that fields of Megatron-Core describe.

    Parameters
    ----------
    gpus
        Accelerators; None: not known.
    padded_to
        Vocabulary where no field has it; 0: it is needed.

    Raises
    ------
    InputError
        If a value is wrong or missing.
    """
    reading = CoreReading(
        fields=fields,
        defaults=defaults,
        stack=Stack.load(stack),
        source=source,
        option=option,
    )
    read_stages(reading)
    read_parallel(reading, gpus)
    read_sharding(reading, gpus)
    read_optimizer(reading)
    read_precision(reading)
    read_memory(reading)
    read_experts(reading)
    read_stack(reading)
    model = read_model(reading, name, padded_to)
    refuse(reading.faults)
    assert model is not None  # noqa: S101 - without faults there is one
    loaded = _with_ends(Model.validated(model, source=source), reading)
    for unused in sorted(set(fields) - reading.used):
        value = fields[unused]
        if value not in (None, False, ()) and value != defaults.get(unused) and not neutral(unused):
            reading.note(unused, "not modeled")
    overrides = {"base": stack, **reading.overrides} if reading.overrides else stack
    strategy = dict(reading.strategy) | {"stack": overrides}
    Strategy.validated(strategy, source=source)
    derived = {"stack": Origin.ASSUMED}
    if fields.get("global_batch_size") is None and defaults.get("global_batch_size") is None:
        derived["global_batch_size"] = Origin.DERIVED
    if reading.strategy.get("etp") and fields.get("expert_tensor_parallel_size") is None:
        derived["etp"] = Origin.DERIVED
    written = [one for one, value in fields.items() if value is not None]
    return CoreLaunch(
        model=loaded,
        strategy=strategy,
        decided=reading.decided,
        not_understood=tuple(reading.not_understood),
        origins=origins_of(strategy, DECIDED_BY, written, derived),
    )
