"""Plans as configurations of megatron-core and torchtitan, which check them themselves.

`megatron_run` and `titan_run` raise what the launchers raise. What a release has no option for is
left out; a word that no option stands for is a `KeyError`. Nothing needs a GPU: process groups are
fake, and Transformer Engine counts as its newest release, without its code.
"""

import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from megatron.core import num_microbatches_calculator, parallel_state
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import optimizer_config
    from megatron.core.transformer import transformer_config
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from torch.distributed.pipelining import schedules
    from torch.testing._internal.distributed.fake_pg import FakeStore

# Counts of layers as an option has them, and names of parts as Megatron's modules.
RECOMPUTE_MODULES = {
    "core_attention": "core_attn",
    "attention_norm": "layernorm",
    "mlp_norm": "layernorm",
    "mla_up": "mla_up_proj",
    "activation": "moe_act",
    "mlp": "mlp",
    "moe": "moe",
    "shared_experts": "shared_experts",
    "mixer_gate": "gdn_norm_out",
    "streams": "mhc",
}
OFFLOAD_MODULES = {
    "attention_norm": "attn_norm",
    "qkv": "qkv_linear",
    "core_attention": "core_attn",
    "attention_out": "attn_proj",
    "mlp_norm": "mlp_norm",
    "expert_up": "expert_fc1",
    "activation": "moe_act",
}
CP_TYPES = {"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"}
FP8 = {
    "fp8_tensor": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8_block": {"fp8": "hybrid", "fp8_recipe": "blockwise"},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
}
DISPATCHERS: Mapping[str | None, dict[str, str]] = {
    None: {"moe_token_dispatcher_type": "alltoall"},
    "all_to_all": {"moe_token_dispatcher_type": "alltoall"},
    "all_gather": {"moe_token_dispatcher_type": "allgather"},
    "deepep": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
    "hybridep": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
# Optimizer of Megatron, and the type of its moments.
OPTIMIZERS = {
    "adamw": ("adam", None),
    "adamw-bf16": ("adam", "bfloat16"),
    "adamw-8bit": ("adam", "uint8"),
    "sgd": ("sgd", None),
    "sgd-momentum": ("sgd", None),
    "muon": ("muon", None),
}
ORDERS = {"tp-cp-dp-pp": "tp-cp-ep-dp-pp", "tp-cp-pp-dp": "tp-cp-ep-pp-dp"}


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def ranks(count: int) -> Iterator[None]:
    """As rank 0 of so many, with process groups that send nothing."""
    torch.distributed.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def any_te_version(*_: object, **__: object) -> bool:
    return True


def te_modules() -> dict[str, ModuleType]:
    """Transformer Engine as `OptimizerConfig` looks for it: what its Adam accepts."""

    class FusedAdam:
        def __init__(
            self,
            master_weight_dtype: object,
            exp_avg_dtype: object,
            exp_avg_sq_dtype: object,
            use_decoupled_grad: object,
            store_param_remainders: object,
        ) -> None:
            raise NotImplementedError

    names = ("transformer_engine", "transformer_engine.pytorch")
    modules = {name: ModuleType(name) for name in (*names, f"{names[1]}.optimizers")}
    modules[f"{names[1]}.optimizers"].FusedAdam = FusedAdam  # type: ignore[attr-defined]
    return modules


# --- Megatron-Core --------------------------------------------------------------------------------


def architecture_options(model: Any, attention_kind: str) -> dict[str, Any]:
    """Options of `TransformerConfig` for an architecture, as far as strategies depend on it."""
    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    layers = [model.layers[kind] for kind in model.order]
    attention, experts = layers[0].attention, [layer.moe for layer in layers if layer.moe]
    dense = [layer.mlp for layer in layers if layer.mlp]
    block = (dense or experts)[0]
    groups = {"model": attention.kv_heads, "multihead": attention.heads, "multiquery": 1}
    options: dict[str, Any] = {
        "num_layers": len(layers),
        "mtp_num_layers": model.mtp or None,
        "hidden_size": model.hidden,
        "num_attention_heads": attention.heads,
        "num_query_groups": groups[attention_kind],
        "kv_channels": attention.head_dim,
        "ffn_hidden_size": block.ffn,
        "gated_linear_unit": block.gated,
        "activation_func": silu if block.gated else gelu,
        "add_bias_linear": block.bias,
        "add_qkv_bias": attention.bias in ("qkv", "all"),
        "normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm],
    }
    if attention.latent is not None:
        latent = attention.latent
        options |= {
            "multi_latent_attention": True,
            "q_lora_rank": latent.q_rank,
            "kv_lora_rank": latent.kv_rank,
            "qk_head_dim": attention.head_dim - latent.rope_dim,
            "qk_pos_emb_head_dim": latent.rope_dim,
            "v_head_dim": attention.value_dim,
        }
    if experts:
        moe = experts[0]
        options |= {
            "num_moe_experts": moe.experts,
            "moe_ffn_hidden_size": moe.ffn,
            "moe_layer_freq": [int(layer.moe is not None) for layer in layers],
            "moe_router_topk": moe.top_k,
            "moe_router_pre_softmax": moe.top_k == 1,
            "moe_router_dtype": "fp32",
            "moe_shared_expert_intermediate_size": moe.shared_ffn or None,
            "moe_grouped_gemm": True,
            "add_bias_linear": moe.bias,
        }
    return options


def parallel_options(strategy: Mapping[str, Any], has_experts: bool) -> dict[str, Any]:
    splits_sequence = {"rs_ag": True, "all_reduce": False}[strategy["tp_exchange"]]
    parallel = strategy["tp"] > 1 and splits_sequence
    overlap = {"stack": False, "none": False, "ring": True}[strategy["tp_overlap"]]
    {"1f1b": False, "interleaved": True}[strategy["schedule"]]
    options: dict[str, Any] = {
        "tensor_model_parallel_size": strategy["tp"],
        "sequence_parallel": parallel,
        "tp_comm_overlap": parallel and overlap,
        "pipeline_model_parallel_size": strategy["pp"],
        "virtual_pipeline_model_parallel_size": strategy["vpp"] if strategy["vpp"] > 1 else None,
        "context_parallel_size": strategy["cp"],
        "cp_comm_type": CP_TYPES[strategy["cp_exchange"]],
        "expert_model_parallel_size": strategy["ep"],
        "num_layers_in_first_pipeline_stage": strategy["first_stage_layers"],
        "num_layers_in_last_pipeline_stage": strategy["last_stage_layers"],
        "account_for_embedding_in_pipeline_split": strategy["embedding_as_layer"],
        "account_for_loss_in_pipeline_split": strategy["loss_as_layer"],
        "overlap_moe_expert_parallel_comm": strategy["expert_overlap"],
    }
    if has_experts:
        capacity = strategy["expert_capacity"]
        options |= DISPATCHERS[strategy.get("dispatcher")] | {
            "expert_tensor_parallel_size": strategy["etp"],
            "moe_expert_capacity_factor": capacity,
            "moe_pad_expert_input_to_capacity": capacity is not None,
        }
    return options


def layout_options(model: Any, strategy: Mapping[str, Any]) -> dict[str, Any]:
    """The layout string of counts of layers; multi-token prediction stands on the last stage."""
    if strategy["stage_layers"] is None:
        return {}
    stages = ["t" * count for count in strategy["stage_layers"]]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * model.mtp + "L"
    return {"pipeline_model_parallel_layout": "|".join(stages)}


def memory_options(model: Any, strategy: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if strategy["recompute"] == "selective":
        modules = {RECOMPUTE_MODULES[part] for part in strategy["recompute_parts"]}
        options |= {
            "recompute_granularity": "selective",
            "recompute_modules": sorted(modules),
            "recompute_num_layers": strategy["recompute_layers"],
        }
    elif strategy["recompute"] == "full":
        layers = strategy["recompute_layers"]
        options |= {
            "recompute_granularity": "full",
            "recompute_method": "uniform" if layers is None else "block",
            "recompute_num_layers": 1 if layers is None else layers // strategy["vpp"],
        }
    parts = strategy["offload_parts"] if strategy["offload_activations"] else None
    if parts:
        options |= {
            "fine_grained_activation_offloading": True,
            "offload_modules": [OFFLOAD_MODULES[part] for part in parts],
        }
    elif strategy["offload_activations"] or strategy["offload_weights"]:
        options |= {
            "cpu_offloading": True,
            "cpu_offloading_num_layers": sum(layer.count for layer in model.layers),
            "cpu_offloading_activations": strategy["offload_activations"],
            "cpu_offloading_weights": strategy["offload_weights"],
        }
    return options


def precision_options(strategy: Mapping[str, Any]) -> dict[str, Any]:
    dtype = strategy["dtype"]
    torch_type = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    options: dict[str, Any] = {
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "params_dtype": torch_type,
        "pipeline_dtype": torch_type,
    }
    recipe, only = strategy["quantization"], strategy["quantized_weights"]
    if recipe == "nvfp4":
        return options | {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param": only}
    if recipe == "none":
        return options | {"fp8_param": only}
    return options | FP8[recipe] | {"fp8_param": only}


def model_config(model: Any, strategy: Mapping[str, Any]) -> Any:
    """megatron-core's own configuration of a plan."""
    has_experts = any(layer.moe for layer in model.layers)
    options = (
        architecture_options(model, strategy["attention"])
        | parallel_options(strategy, has_experts)
        | layout_options(model, strategy)
        | memory_options(model, strategy)
        | precision_options(strategy)
    )
    is_latent = options.get("multi_latent_attention", False)
    core = transformer_config
    config = core.MLATransformerConfig if is_latent else core.TransformerConfig
    with quiet(), patch.object(core, "is_te_min_version", any_te_version):
        return config(**options)


def optimizer_configs(strategy: Mapping[str, Any]) -> tuple[Any, Any]:
    """megatron-core's own configurations of the optimizer and of data parallelism."""
    name, moments = OPTIMIZERS[strategy["optimizer"]]
    zero, overlaps = strategy["zero"], strategy["dp_overlap"]
    precision: dict[str, Any] = {"use_precision_aware_optimizer": strategy["offload_optimizer"]}
    if moments is not None:
        moment_type = getattr(torch, moments)
        precision = {
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": moment_type,
            "exp_avg_sq_dtype": moment_type,
        }
    stands_in = patch.object(optimizer_config, "is_te_min_version", any_te_version)
    with quiet(), stands_in, patch.dict(sys.modules, te_modules()):
        optimizer = optimizer_config.OptimizerConfig(
            optimizer=name,
            use_distributed_optimizer=zero > 0,
            optimizer_cpu_offload=strategy["offload_optimizer"],
            **precision,
        )
    replicas = DistributedDataParallelConfig(
        use_distributed_optimizer=zero > 0,
        use_megatron_fsdp=zero > 1,
        data_parallel_sharding_strategy=SHARDING.get(zero, "no_shard"),
        overlap_grad_reduce=overlaps,
        overlap_param_gather=overlaps and zero > 0,
    )
    return optimizer, replicas


def megatron_groups(strategy: Mapping[str, Any], has_experts: bool) -> None:
    """Let Megatron lay out its process groups."""
    dp, shard = strategy["dp"], strategy["dp_shard"]
    instances = 1
    if shard and strategy["zero"]:
        instances = dp // shard
        assert instances * shard == dp, f"dp_shard {shard} of dp {dp}"
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=strategy["tp"],
            pipeline_model_parallel_size=strategy["pp"],
            virtual_pipeline_model_parallel_size=(strategy["vpp"] if strategy["vpp"] > 1 else None),
            context_parallel_size=strategy["cp"],
            expert_model_parallel_size=strategy["ep"],
            expert_tensor_parallel_size=strategy["etp"] if has_experts else None,
            num_distributed_optimizer_instances=instances,
            order=ORDERS[canonical_order(strategy)],
            create_gloo_process_groups=False,
        )
        assert parallel_state.get_data_parallel_world_size() == dp
    finally:
        parallel_state.destroy_model_parallel()


def canonical_order(strategy: Mapping[str, Any]) -> str:
    """The launcher's placement that orders the axes of more than one rank as the plan does."""
    assert all(strategy[name] is None for name in strategy if name.endswith("_tier"))
    assert strategy["extents"] is None

    def split(order: str) -> list[str]:
        return [axis for axis in order.split("-") if strategy[axis] > 1]

    wanted = split(strategy["placement"])
    return next((order for order in ORDERS if split(order) == wanted), strategy["placement"])


def megatron_stages(config: Any) -> list[int]:
    """Layers that Megatron builds on each chunk, in the order of the layers."""
    chunks, size = config.virtual_pipeline_model_parallel_size, config.pipeline_model_parallel_size
    layout = config.pipeline_model_parallel_layout
    stages = [(chunk, rank) for chunk in range(chunks or 1) for rank in range(size)]
    if layout is not None:
        return [layout.layout[rank][chunk].count(LayerType.decoder) for chunk, rank in stages]
    return [
        get_num_layers_to_build(config, vp_stage=chunk if chunks else None, pp_rank=rank)
        for chunk, rank in stages
    ]


def megatron_run(model: Any, strategy: Mapping[str, Any]) -> Any:
    """Configure Megatron for a plan, as far as it checks one before it trains."""
    config = model_config(model, strategy)
    optimizer_configs(strategy)
    has_experts = any(layer.moe for layer in model.layers)
    with quiet(), ranks(strategy["gpus"]):
        megatron_groups(strategy, has_experts)
    assert sum(megatron_stages(config)) == config.num_layers
    batches = strategy["global_batch_size"], strategy["micro_batch_size"], strategy["dp"]
    calculator = num_microbatches_calculator.ConstantNumMicroBatchesCalculator
    micro_batches = calculator(*batches, decrease_batch_size_if_needed=False, rank=0).get()
    if strategy["vpp"] > 1:  # as `forward_backward_pipelining_with_interleaving` asks
        group = config.microbatch_group_size_per_vp_stage
        assert strategy["pp"] <= group <= micro_batches, f"{micro_batches} micro-batches"
        assert not 0 < micro_batches % group < strategy["pp"], f"{micro_batches} micro-batches"
    return config


# --- torchtitan -----------------------------------------------------------------------------------

TITAN_SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
}
TITAN_CONVERTERS = {
    "none": [],
    "fp8_tensor": ["quantize.linear.float8"],
    "fp8_row": ["quantize.linear.float8"],
    "mxfp8": ["quantize.linear.mx"],
}
TITAN_RECOMPUTE = {"none": "none", "full": "full", "selective": "selective"}


def titan_modules() -> tuple[Any, Any]:
    """torchtitan's configuration and meshes, without its models, which need Triton."""
    for name in ("torchtitan", "torchtitan.distributed"):
        if name not in sys.modules:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            bare = importlib.machinery.ModuleSpec(name, None, is_package=True)
            bare.submodule_search_locations = spec.submodule_search_locations
            sys.modules[name] = importlib.util.module_from_spec(bare)
    manager = importlib.import_module("torchtitan.config.manager")
    return manager, importlib.import_module("torchtitan.distributed.parallel_dims")


def titan_arguments(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the TOML of 0.2.x and what a plan sets them to."""
    zero, dp = strategy["zero"], strategy["dp"]
    is_sharded = dp * strategy["cp"] > 1
    shard = 1 if zero == 0 else strategy["dp_shard"] or dp
    reshard = {2: "never", 3: "always" if strategy["fsdp_reshard"] else "never"}
    parts = {"none": (), "full": (), "selective": strategy["recompute_parts"]}
    assert list(parts[strategy["recompute"]]) in ([], ["every_other"])
    assert {"rs_ag": True}[strategy["tp_exchange"]] if strategy["tp"] > 1 else True
    assert strategy["dtype"] in ("bf16", "fp32")
    overlap = {"stack": False, "none": False, "ring": True}[strategy["tp_overlap"]]
    rotate = {"ring": "alltoall", "all_gather": "allgather"}
    return {
        "training.local_batch_size": strategy["global_batch_size"] // dp,
        "training.global_batch_size": strategy["global_batch_size"],
        "training.seq_len": strategy["seq_len"],
        "training.mixed_precision_param": {"bf16": "bfloat16", "fp32": "float32"}[
            strategy["dtype"]
        ],
        "training.enable_cpu_offload": strategy["offload_weights"],
        "parallelism.data_parallel_replicate_degree": dp // shard,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.fsdp_reshard_after_forward": (
            reshard[zero] if is_sharded and zero else "default"
        ),
        "parallelism.tensor_parallel_degree": strategy["tp"],
        "parallelism.enable_async_tensor_parallel": overlap,
        "parallelism.pipeline_parallel_degree": strategy["pp"],
        "parallelism.pipeline_parallel_schedule": TITAN_SCHEDULES[strategy["schedule"]],
        "parallelism.pipeline_parallel_microbatch_size": strategy["micro_batch_size"],
        "parallelism.context_parallel_degree": strategy["cp"],
        "parallelism.context_parallel_rotate_method": (
            rotate[strategy["cp_exchange"]] if strategy["cp"] > 1 else "allgather"
        ),
        "parallelism.expert_parallel_degree": strategy["ep"],
        "parallelism.expert_tensor_parallel_degree": strategy["etp"],
        "parallelism.expert_parallel_comm_backend": {
            None: "standard",
            "all_to_all": "standard",
            "deepep": "deepep",
        }[strategy.get("dispatcher")],
        "activation_checkpoint.mode": TITAN_RECOMPUTE[strategy["recompute"]],
        "activation_checkpoint.selective_ac_option": "op",
        "optimizer.name": {"adamw": "AdamW"}[strategy["optimizer"]],
        "model.converters": TITAN_CONVERTERS[strategy["quantization"]],
    }


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    flags = []
    for key, value in arguments.items():
        section, option = key.split(".")
        if value is True or value is False:
            flags.append(f"--{section}.{'' if value else 'no-'}{option}")
        elif value != []:
            flags += [f"--{key}", ",".join(value) if isinstance(value, list) else str(value)]
    return flags


def titan_run(strategy: Mapping[str, Any]) -> Any:
    """Configure torchtitan 0.2 for a plan: its options, its meshes, PyTorch's schedule."""
    with quiet():
        manager, meshes = titan_modules()
        config = manager.ConfigManager().parse_args(as_flags(titan_arguments(strategy)))
    parallel = config.parallelism
    with quiet(), ranks(strategy["gpus"]):
        meshes.ParallelDims(
            dp_replicate=parallel.data_parallel_replicate_degree,
            dp_shard=parallel.data_parallel_shard_degree,
            cp=parallel.context_parallel_degree,
            tp=parallel.tensor_parallel_degree,
            pp=parallel.pipeline_parallel_degree,
            ep=parallel.expert_parallel_degree,
            etp=parallel.expert_tensor_parallel_degree,
            world_size=strategy["gpus"],
        ).build_mesh()
    if strategy["pp"] > 1:
        titan_schedule(strategy, parallel.pipeline_parallel_schedule)
    return config


def titan_schedule(strategy: Mapping[str, Any], name: str) -> None:
    """Let PyTorch order the passes of all stages."""
    pp = strategy["pp"]
    chunks = 2 if strategy["schedule"] == "zb-v" else strategy["vpp"]
    schedule = schedules.get_schedule_class(name)
    micro_batches = strategy["global_batch_size"] // (strategy["dp"] * strategy["micro_batch_size"])
    stage = SimpleNamespace(num_stages=pp * chunks, group_size=pp, group_rank=0, submod=None)
    if issubclass(schedule, schedules.PipelineScheduleSingle):
        assert chunks == 1, f"{name} has one stage per rank"
    else:
        assert chunks > 1, f"{name} has several stages per rank"
        schedule([stage] * chunks, micro_batches)
