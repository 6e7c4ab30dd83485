"""Strategies as fields of Megatron-Core's configuration, and the way back.

Names are those of ModelParallelConfig, TransformerConfig, DistributedDataParallelConfig and
OptimizerConfig (Megatron-LM d98e8a64 of 2026-08-22), and of the training loop around them.
"""

from collections.abc import Mapping

from shardwise.config import enums
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.launchers.megatron.core_stack import CoreReading, Value

SAME: Mapping[str, str] = {
    "tp": "tensor_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "seq_len": "seq_length",
}
"""Fields of a strategy that are one number of Megatron-Core's configuration."""
RECOMPUTE_MODULES: Mapping[enums.RecomputePart, str] = {
    enums.RecomputePart.CORE_ATTENTION: "core_attn",
    enums.RecomputePart.ATTENTION_NORM: "layernorm",
    enums.RecomputePart.MLP_NORM: "layernorm",
    enums.RecomputePart.MLA_UP: "mla_up_proj",
    enums.RecomputePart.ACTIVATION: "moe_act",
    enums.RecomputePart.MLP: "mlp",
    enums.RecomputePart.MOE: "moe",
    enums.RecomputePart.SHARED_EXPERTS: "shared_experts",
    enums.RecomputePart.MIXER_GATE: "gdn_norm_out",
    enums.RecomputePart.STREAMS: "mhc",
}
OFFLOAD_MODULES: Mapping[enums.OffloadPart, str] = {
    enums.OffloadPart.ATTENTION_NORM: "attn_norm",
    enums.OffloadPart.QKV: "qkv_linear",
    enums.OffloadPart.CORE_ATTENTION: "core_attn",
    enums.OffloadPart.ATTENTION_OUT: "attn_proj",
    enums.OffloadPart.MLP_NORM: "mlp_norm",
    enums.OffloadPart.EXPERT_UP: "expert_fc1",
    enums.OffloadPart.ACTIVATION: "moe_act",
}
FUSED_EXPERTS = (
    enums.OffloadPart.EXPERT_UP,
    enums.OffloadPart.ACTIVATION,
    enums.OffloadPart.EXPERT_DOWN,
)
_FUSED_MODULE = "fused_group_mlp"
CP_TYPES = {
    enums.CpExchange.RING: "p2p",
    enums.CpExchange.ALL_GATHER: "all_gather",
    enums.CpExchange.ALL_TO_ALL: "a2a",
}
_DISPATCHERS = {
    enums.Dispatcher.ALL_TO_ALL: ("alltoall", None),
    enums.Dispatcher.ALL_GATHER: ("allgather", None),
    enums.Dispatcher.DEEPEP: ("flex", "deepep"),
    enums.Dispatcher.HYBRIDEP: ("flex", "hybridep"),
}
_FP8 = {
    enums.Quantization.FP8_TENSOR: ("hybrid", "tensorwise"),
    enums.Quantization.FP8_BLOCK: ("hybrid", "blockwise"),
    enums.Quantization.MXFP8: ("e4m3", "mxfp8"),
}
_OPTIMIZERS = {
    enums.Optimizer.ADAMW: ("adam", "fp32"),
    enums.Optimizer.ADAMW_BF16: ("adam", "bf16"),
    enums.Optimizer.ADAMW_8BIT: ("adam", "fp8"),
    enums.Optimizer.MUON: ("muon", "fp32"),
    enums.Optimizer.SGD_MOMENTUM: ("sgd", "fp32"),
    enums.Optimizer.SGD: ("sgd", "fp32"),
}
_MOMENTUM = 0.9
_SHARDING = {enums.ZERO_GRADIENTS: "optim_grads", enums.ZERO_WEIGHTS: "optim_grads_params"}
_ORDERS = {False: "tp-cp-dp-pp", True: "tp-cp-pp-dp"}


# --- Degrees and communication --------------------------------------------------------------------


def parallel_fields(model: Model, strategy: Strategy) -> dict[str, Value]:
    """Degrees, batch, tensor- and context-parallel communication, and order of the ranks."""
    split = strategy.tp > 1 and strategy.tp_exchange == enums.TpExchange.RS_AG
    fields: dict[str, Value] = {core: getattr(strategy, own) for own, core in SAME.items()}
    return fields | {
        "pipeline_model_parallel_size": strategy.pp,
        "expert_tensor_parallel_size": strategy.etp if model.has_experts else None,
        "sequence_parallel": split,
        "tp_comm_overlap": split and overlaps_tp(strategy),
        "cp_comm_type": CP_TYPES[strategy.cp_exchange] if strategy.cp > 1 else None,
        "overlap_p2p_comm": (
            strategy.schedule == enums.Schedule.INTERLEAVED
            and strategy.loaded_stack().pp_hidden > 0
        ),
        "use_tp_pp_dp_mapping": order_of(strategy) == _ORDERS[True],
    }


def overlaps_tp(strategy: Strategy) -> bool:
    """Whether tensor-parallel communication is split into pieces, where it can be."""
    if strategy.tp_overlap != enums.TpOverlap.STACK:
        return strategy.tp_overlap != enums.TpOverlap.NONE
    return strategy.loaded_stack().tp_hidden > 0


def order_of(strategy: Strategy) -> str | None:
    """Megatron-Core's order of the ranks that lays out the axes of a plan; None if there is none.

    Axes of one rank have no place.
    """
    degrees = {"tp": strategy.tp, "cp": strategy.cp, "dp": strategy.dp or 1, "pp": strategy.pp}

    def split(order: str) -> list[str]:
        return [axis for axis in order.split("-") if degrees[axis] > 1]

    known = [order for order in _ORDERS.values() if order in enums.PLACEMENTS]
    return next((one for one in known if split(one) == split(strategy.placement)), None)


def read_parallel(reading: CoreReading, gpus: int | None) -> None:
    """Read what `parallel_fields` writes."""
    for own, core in SAME.items():
        if core != SAME["global_batch_size"]:
            reading.set(own, reading.positive(core))
    tp, cp = reading.positive(SAME["tp"]), reading.positive(SAME["cp"])
    _read_expert_degrees(reading, tp)
    _read_batch(reading, gpus)
    split = reading.flag("sequence_parallel") and tp > 1
    reading.set("tp_exchange", enums.TpExchange.RS_AG if split else enums.TpExchange.ALL_REDUCE)
    if split and not reading.flag("tp_comm_overlap"):
        # Forward waits. Backward still gathers behind the GEMM of the input's gradient and scatters
        # behind that of the weights' (megatron/core/tensor_parallel/layers.py), as all-reduces do.
        reading.override("tp_hidden", 0.0)
    if (schedule := reading.word("pipeline_schedule")) is not None:
        reading.set("schedule", schedule)
    _read_cp(reading, cp)
    if not reading.flag("overlap_p2p_comm") and "vpp" in reading.strategy:
        reading.override("pp_hidden", 0.0)
    reading.set("placement", _ORDERS[reading.flag("use_tp_pp_dp_mapping")])


def _read_expert_degrees(reading: CoreReading, tp: int) -> None:
    etp = reading.positive("expert_tensor_parallel_size", tp)
    if reading.experts():
        reading.set("etp", etp)
    elif reading.positive(SAME["ep"]) > 1:
        reading.note(SAME["ep"], "the model has no experts")
        reading.set("ep", 1)


def _read_batch(reading: CoreReading, gpus: int | None) -> None:
    """Global batch; by default one micro-batch on every replica, or as many as forks say."""
    batch = reading.whole("global_batch_size")
    steps = reading.positive("gradient_accumulation_steps")
    ranks = reading.positive("pipeline_model_parallel_size")
    for axis in ("tp", "cp"):
        ranks *= reading.positive(SAME[axis])
    if gpus is not None:
        reading.set("gpus", gpus)
    if batch is not None:
        reading.set("global_batch_size", batch)
    elif gpus is not None and gpus % ranks == 0:
        replicas = gpus // ranks
        reading.set("global_batch_size", reading.positive("micro_batch_size") * steps * replicas)


def _read_cp(reading: CoreReading, cp: int) -> None:
    kinds = reading.words("cp_comm_type")
    if cp == 1:
        return
    known = {core: own for own, core in CP_TYPES.items()} | {
        "allgather": enums.CpExchange.ALL_GATHER
    }
    kind = kinds[0] if kinds else "p2p"
    if len(set(kinds)) > 1:
        reading.note("cp_comm_type", f"one type for all layers; {kind} is used")
    if kind not in (*known, "a2a+p2p"):
        reading.fault("cp_comm_type", kind, f"allowed: {', '.join(known)}, a2a+p2p")
    elif kind not in known:
        reading.note("cp_comm_type", "two levels are not modeled; predicted as a ring (p2p)")
    reading.set("cp_exchange", known.get(kind, enums.CpExchange.RING))


# --- Sharding and optimizer -----------------------------------------------------------------------


def sharding_fields(strategy: Strategy) -> dict[str, Value]:
    """ZeRO stage, hybrid sharding, gradients and overlap of data-parallel communication."""
    zero, stack = strategy.zero, strategy.loaded_stack()
    torch_fsdp = zero == enums.ZERO_WEIGHTS and not strategy.fsdp_reshard
    shards = strategy.dp_shard if zero else None
    overlapped = strategy.dp_overlap
    return {
        "use_distributed_optimizer": zero >= enums.ZERO_OPTIMIZER and not torch_fsdp,
        "use_megatron_fsdp": zero > enums.ZERO_OPTIMIZER and not torch_fsdp,
        "data_parallel_sharding_strategy": None if torch_fsdp else _SHARDING.get(zero),
        "use_torch_fsdp2": torch_fsdp,
        "torch_fsdp2_reshard_after_forward": not torch_fsdp,
        "num_distributed_optimizer_instances": (strategy.dp or 1) // shards if shards else 1,
        "overlap_grad_reduce": overlapped and not torch_fsdp,
        "overlap_param_gather": (
            overlapped and zero >= enums.ZERO_OPTIMIZER and not torch_fsdp and stack.gathers_behind
        ),
    }


def read_sharding(reading: CoreReading, gpus: int | None) -> None:
    """Read what `sharding_fields` writes."""
    torch_fsdp = reading.flag("use_torch_fsdp2")
    fsdp = reading.flag("use_megatron_fsdp") or reading.flag("use_custom_fsdp")
    distributed = reading.flag("use_distributed_optimizer")
    overlapped, behind = reading.flag("overlap_grad_reduce"), reading.flag("overlap_param_gather")
    reading.set("dp_overlap", overlapped or torch_fsdp)
    if torch_fsdp:
        reading.set("zero", enums.ZERO_WEIGHTS)
        reading.set("fsdp_reshard", reading.flag("torch_fsdp2_reshard_after_forward"))
    elif fsdp:
        known = {"no_shard": 0, "optim": enums.ZERO_OPTIMIZER}
        known |= {core: zero for zero, core in _SHARDING.items()}
        word = reading.word("data_parallel_sharding_strategy", tuple(known))
        reading.set("zero", known.get(word or "", enums.ZERO_WEIGHTS))
    elif (stage := reading.whole("zero_stage")) is not None:
        reading.set("zero", min(stage, enums.ZERO_WEIGHTS))
    else:
        reading.value("data_parallel_sharding_strategy")
        reading.set("zero", enums.ZERO_OPTIMIZER if distributed else 0)
        if distributed and overlapped and not behind:
            reading.override("gathers_behind", False)
    _read_instances(reading, gpus)


def _read_instances(reading: CoreReading, gpus: int | None) -> None:
    name = "num_distributed_optimizer_instances"
    instances = reading.positive(name)
    if instances == 1 or not reading.strategy["zero"]:
        return
    if gpus is None:
        reading.note(name, "the number of GPUs is not known")
        return
    ranks = reading.positive("pipeline_model_parallel_size")
    for axis in ("tp", "cp"):
        ranks *= reading.positive(SAME[axis])
    if gpus % (ranks * instances):
        reading.fault(name, instances, f"must divide the replicas of {gpus} GPUs")
        return
    reading.set("dp_shard", gpus // ranks // instances)


def optimizer_fields(strategy: Strategy) -> dict[str, Value]:
    """Update rule, type and place of its state."""
    name, moments = _OPTIMIZERS[strategy.optimizer]
    if moments == "fp32":
        moments = str(strategy.in_effect("moment_dtype"))
    on_host = strategy.offload_optimizer
    half = strategy.in_effect("master_dtype") == enums.MasterDtype.FP16
    aware = on_host or half or moments != "fp32"
    narrow = strategy.in_effect("gradient_dtype") == enums.GradientDtype.COMPUTE
    fields: dict[str, Value] = {
        "optimizer": name,
        "use_precision_aware_optimizer": aware,
        "optimizer_cpu_offload": on_host,
        "optimizer_offload_fraction": 1.0 if on_host else None,
        "exp_avg_dtype": moments if aware else None,
        "exp_avg_sq_dtype": moments if aware else None,
        "main_grads_dtype": "bf16"
        if aware and narrow and strategy.dtype == enums.Dtype.BF16
        else None,
        "main_params_dtype": "fp16" if half else None,
    }
    if name == "sgd":
        with_momentum = strategy.optimizer == enums.Optimizer.SGD_MOMENTUM
        fields["sgd_momentum"] = _MOMENTUM if with_momentum else 0.0
    return fields


def read_optimizer(reading: CoreReading) -> None:
    """Read what `optimizer_fields` writes."""
    name = reading.word("optimizer", ("adam", "adamw", "sgd", "muon", "dist_muon"))
    aware = reading.flag("use_precision_aware_optimizer")
    first, second = (_type(reading, one) for one in ("exp_avg_dtype", "exp_avg_sq_dtype"))
    moments = first if aware else "fp32"
    master, gradient = (_type(reading, one) for one in ("main_params_dtype", "main_grads_dtype"))
    if aware and master == "fp16":
        reading.set("master_dtype", enums.MasterDtype.FP16)
    if aware and gradient != "fp32" and reading.flag("grad_reduce_in_fp32"):
        reading.note("main_grads_dtype", "predicted in fp32, the type of grad_reduce_in_fp32")
    adam = {core: own for own, (kind, core) in _OPTIMIZERS.items() if kind == "adam"}
    if name == "sgd":
        momentum = reading.number("sgd_momentum")
        own = enums.Optimizer.SGD if momentum == 0 else enums.Optimizer.SGD_MOMENTUM
    elif name in ("muon", "dist_muon"):
        own = enums.Optimizer.MUON
    else:
        own = adam.get(moments, enums.Optimizer.ADAMW)
        if aware and second != moments:
            reading.note("exp_avg_sq_dtype", f"both moments are predicted in {moments}")
    reading.set("optimizer", own)
    if aware and (name != "adam" or moments not in adam) and moments in _SMALL:
        reading.set("moment_dtype", moments)
    if reading.flag("optimizer_cpu_offload"):
        reading.set("offload_optimizer", True)
        if (share := reading.number("optimizer_offload_fraction")) not in (None, 1):
            reading.note("optimizer_offload_fraction", f"{share:g} of it; predicted as all of it")


_SMALL = ("bf16", "fp16", "fp8")
_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "uint8": "fp8"}


def _type(reading: CoreReading, name: str) -> str:
    """A type, by the words of options and of PyTorch."""
    word = (reading.word(name) or "fp32").removeprefix("torch.")
    return _TYPES.get(word, word)


# --- Precision ------------------------------------------------------------------------------------


_QUANTIZED = {
    "quantized_attention": "fp8_dot_product_attention",
    "quantized_head": "fp8_output_proj",
}
"""Fields of a stack, recipes in which something else than products of layers is quantized."""


def precision_fields(strategy: Strategy) -> dict[str, Value]:
    """Types of weights, gradients and products."""
    recipe, only = strategy.quantization, strategy.quantized_weights
    stack = strategy.loaded_stack()
    fp4 = recipe == enums.Quantization.NVFP4
    kind, name = _FP8.get(recipe, (None, None))
    fields: dict[str, Value] = {
        "bf16": strategy.dtype == enums.Dtype.BF16,
        "fp16": strategy.dtype == enums.Dtype.FP16,
        "fp8": kind,
        "fp8_recipe": name,
        "fp8_param": only and kind is not None,
        "reuse_grad_buf_for_mxfp8_param_ag": only and recipe == enums.Quantization.MXFP8,
        "fp4": "e2m1" if fp4 else None,
        "fp4_recipe": "nvfp4" if fp4 else None,
        "fp4_param": only and fp4,
    }
    return fields | {core: recipe in getattr(stack, own) for own, core in _QUANTIZED.items()}


def read_precision(reading: CoreReading) -> None:
    """Read what `precision_fields` writes."""
    half = {"bf16": enums.Dtype.BF16, "fp16": enums.Dtype.FP16}
    dtype = next((own for core, own in half.items() if reading.flag(core)), enums.Dtype.FP32)
    reading.set("dtype", dtype)
    for name in half:
        reading.flag(name)
    fp8, fp4 = reading.word("fp8"), reading.word("fp4")
    reading.flag("reuse_grad_buf_for_mxfp8_param_ag")
    only = reading.flag("fp8_param"), reading.flag("fp4_param")
    recipe8, recipe4 = reading.word("fp8_recipe"), reading.word("fp4_recipe")
    recipe = enums.Quantization.NONE
    if fp8:
        known = {core: own for own, (_, core) in _FP8.items()} | {
            "delayed": enums.Quantization.FP8_TENSOR
        }
        if recipe8 == "delayed":
            reading.note("fp8_recipe", "delayed scaling is predicted as current scaling")
        elif recipe8 not in known:
            reading.note("fp8_recipe", "predicted as one scale for each tensor")
        recipe = known.get(recipe8 or "", enums.Quantization.FP8_TENSOR)
    elif fp4:
        if recipe4 not in (None, "nvfp4"):
            reading.note("fp4_recipe", "predicted as nvfp4")
        recipe = enums.Quantization.NVFP4
    if recipe != enums.Quantization.NONE:
        reading.set("quantization", recipe)
    if (fp8 and only[0]) or (fp4 and only[1]):
        reading.set("quantized_weights", True)
    for own, core in _QUANTIZED.items():
        others = tuple(one for one in getattr(reading.stack, own) if one != recipe)
        on = reading.flag(core) and recipe != enums.Quantization.NONE
        reading.override(own, (*others, recipe) if on else others)


# --- Memory ---------------------------------------------------------------------------------------


def memory_fields(strategy: Strategy) -> dict[str, Value]:
    """Recompute, and activations that are offloaded."""
    modules = _offload_modules(strategy)
    fields: dict[str, Value] = {
        "recompute_granularity": None,
        "recompute_method": None,
        "recompute_num_layers": None,
        "recompute_modules": None,
        "fine_grained_activation_offloading": strategy.offload_activations,
        "offload_modules": modules,
        "use_transformer_engine_op_fuser": _FUSED_MODULE in (modules or ()),
    }
    if strategy.recompute == enums.Recompute.FULL:
        layers = strategy.recompute_layers
        fields["recompute_granularity"] = "full"
        fields["recompute_method"] = "uniform" if layers is None else "block"
        fields["recompute_num_layers"] = 1 if layers is None else layers // strategy.vpp
    elif strategy.recompute == enums.Recompute.SELECTIVE:
        again = dict.fromkeys(RECOMPUTE_MODULES[part] for part in strategy.recompute_parts)
        fields |= {"recompute_granularity": "selective", "recompute_modules": tuple(again)}
    return fields


def _offload_modules(strategy: Strategy) -> tuple[str, ...] | None:
    parts = strategy.offload_parts if strategy.offload_activations else None
    if parts is None:
        return None
    fused = all(part in parts for part in FUSED_EXPERTS)
    single = [part for part in parts if not (fused and part in FUSED_EXPERTS)]
    modules = [OFFLOAD_MODULES[part] for part in single]
    return (*modules, *([_FUSED_MODULE] if fused else []))


def read_memory(reading: CoreReading) -> None:
    """Read what `memory_fields` writes."""
    granularity = reading.word("recompute_granularity", ("full", "selective"))
    method = reading.word("recompute_method", ("uniform", "block"))
    number = reading.whole("recompute_num_layers")
    modules = reading.words("recompute_modules")
    if granularity == enums.Recompute.FULL:
        reading.set("recompute", enums.Recompute.FULL)
        if method == "block" and number:
            chunks = reading.strategy.get("vpp", 1)
            reading.set("recompute_layers", number * (chunks if isinstance(chunks, int) else 1))
        elif number is not None and number > 1:
            reading.note("recompute_num_layers", "inputs are predicted for every layer")
    elif granularity == enums.Recompute.SELECTIVE:
        _read_modules(reading, modules or ("core_attn",))
    if reading.flag("distribute_saved_activations"):
        reading.note("distribute_saved_activations", "not modeled")
    _read_offload(reading)


def _read_modules(reading: CoreReading, modules: tuple[str, ...]) -> None:
    """Read modules that selective recompute runs again."""
    parts = [part for part, core in RECOMPUTE_MODULES.items() if core in modules]
    if any(core not in RECOMPUTE_MODULES.values() for core in modules):
        known = ", ".join(dict.fromkeys(RECOMPUTE_MODULES.values()))
        reading.note("recompute_modules", f"predicted without what is none of {known}")
    if parts:
        reading.set("recompute", enums.Recompute.SELECTIVE)
        reading.set("recompute_parts", parts)


def _read_offload(reading: CoreReading) -> None:
    layers = reading.whole("cpu_offloading_num_layers")
    for name in ("cpu_offloading", "cpu_offloading_activations", "cpu_offloading_weights"):
        reading.flag(name)
    if layers:
        reading.note("cpu_offloading_num_layers", "activations of some layers only: not modeled")
    modules = reading.words("offload_modules")
    fused = reading.flag("use_transformer_engine_op_fuser")
    fused &= reading.strategy.get("quantization") not in reading.stack.fused_expert_recipes
    if fused and _FUSED_MODULE not in modules and reading.experts():
        reading.note("use_transformer_engine_op_fuser", "predicted without")
    if not reading.flag("fine_grained_activation_offloading"):
        return
    parts = [part for part, core in OFFLOAD_MODULES.items() if core in modules]
    if _FUSED_MODULE in modules:
        parts += FUSED_EXPERTS
    known = (*OFFLOAD_MODULES.values(), _FUSED_MODULE)
    if any(core not in known for core in modules):
        reading.note("offload_modules", f"predicted without what is none of {', '.join(known)}")
    if parts:
        reading.set("offload_activations", True)
        reading.set("offload_parts", parts)


# --- Experts --------------------------------------------------------------------------------------


def expert_fields(strategy: Strategy) -> dict[str, Value]:
    """Dispatch of tokens to experts; for models that have experts."""
    kind, backend = _DISPATCHERS[strategy.dispatcher or enums.Dispatcher.ALL_TO_ALL]
    capacity = strategy.expert_capacity
    stack = strategy.loaded_stack()
    sms = {
        "deepep": stack.deepep_multiprocessors,
        "hybridep": stack.hybridep_multiprocessors,
    }
    return {
        "moe_token_dispatcher_type": kind,
        "moe_flex_dispatcher_backend": backend,
        "moe_flex_dispatcher_num_sms": sms[backend] if backend else None,
        "moe_expert_capacity_factor": capacity,
        "moe_pad_expert_input_to_capacity": capacity is not None,
        "overlap_moe_expert_parallel_comm": strategy.expert_overlap,
    }


def read_experts(reading: CoreReading) -> None:
    """Read what `expert_fields` writes; nothing of it counts without experts."""
    kind = reading.word(
        "moe_token_dispatcher_type", ("allgather", "alltoall", "alltoall_seq", "flex")
    )
    backend = reading.word("moe_flex_dispatcher_backend") or "deepep"
    sms = reading.whole("moe_flex_dispatcher_num_sms")
    capacity = reading.number("moe_expert_capacity_factor")
    pads, overlaps = (
        reading.flag(name)
        for name in ("moe_pad_expert_input_to_capacity", "overlap_moe_expert_parallel_comm")
    )
    balanced = reading.flag("moe_router_force_load_balancing")
    sends = reading.positive(SAME["ep"]) * reading.positive(
        "expert_tensor_parallel_size", reading.positive(SAME["tp"])
    )
    if not reading.experts():
        return
    known = {core: own for own, core in _DISPATCHERS.items()}
    if kind == "flex" and ("flex", backend) not in known:
        reading.note("moe_flex_dispatcher_backend", "predicted as hybridep")
        backend = "hybridep"
    own = known.get((kind or "", backend if kind == "flex" else None), enums.Dispatcher.ALL_TO_ALL)
    if sends > 1:
        reading.set("dispatcher", own)
    if sms is not None and own.sends_once:
        reading.override(f"{own}_multiprocessors", sms)
    if capacity is not None:
        reading.set("expert_capacity", capacity)
        if not pads:
            reading.note("moe_expert_capacity_factor", "predicted with padding to the capacity")
    if overlaps:
        reading.set("expert_overlap", True)
    if balanced:
        reading.set("expert_imbalance", 1.0)
