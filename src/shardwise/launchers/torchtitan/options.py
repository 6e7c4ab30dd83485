"""Options of torchtitan: those that stand for one field of a strategy, and those that do not count.

Names and defaults are those of v0.2.2 (config/job_config.py); older and newer names are listed as
what they became or were.
"""

from collections.abc import Mapping

from shardwise.launchers.launch import Item

OptionValue = bool | int | float | str | list[object] | None
"""A value as TOML has it; None: Python's."""
Options = dict[str, OptionValue]
"""Values of a configuration by their full name, such as `training.seq_len`."""


ATTENTION_BACKEND = "model_registry.attn_backend"
"""Of v0.3.0, whose default is `flex` (gpt_oss: `varlen`); `sdpa` tries cuDNN first, as the stack
does, `varlen` runs FlashAttention 3 on Hopper (models/common/attention.py). In TOML the flavor of a
model decides."""

ONE_TO_ONE: tuple[Item, ...] = (
    Item(path="parallelism.tensor_parallel_degree", field="tp", absent=1),
    Item(path="parallelism.pipeline_parallel_degree", field="pp", absent=1),
    Item(path="parallelism.context_parallel_degree", field="cp", absent=1),
    Item(path="parallelism.expert_parallel_degree", field="ep", absent=1),
    Item(path="parallelism.expert_tensor_parallel_degree", field="etp", absent=1),
    Item(path="training.seq_len", field="seq_len", absent=2048),
    Item(
        path="training.mixed_precision_param",
        field="dtype",
        absent="bfloat16",
        words={"bf16": "bfloat16", "fp32": "float32"},
    ),
    Item(
        path="parallelism.pipeline_parallel_schedule",
        field="schedule",
        absent="1F1B",
        words={
            "1f1b": "1F1B",
            "gpipe": "GPipe",
            "interleaved": "Interleaved1F1B",
            "zb-v": "ZBVZeroBubble",
        },
    ),
    Item(
        path="parallelism.context_parallel_rotate_method",
        field="cp_exchange",
        absent="allgather",
        words={"all_gather": "allgather", "ring": "alltoall"},
    ),
    Item(
        path="parallelism.enable_async_tensor_parallel",
        field="tp_overlap",
        absent=False,
        words={"stack": False, "ring": True},
    ),
    Item(
        path="parallelism.expert_parallel_comm_backend",
        field="dispatcher",
        absent="standard",
        words={"all_to_all": "standard", "deepep": "deepep"},
    ),
    Item(
        path="activation_checkpoint.mode",
        field="recompute",
        absent="selective",
        words={"none": "none", "selective": "selective", "full": "full"},
    ),
    Item(
        path=ATTENTION_BACKEND,
        field="attention_kernel",
        absent="sdpa",
        words={
            "cudnn": "sdpa",
            "stack": "sdpa",
            "triton": "flex",
            "flash3": "varlen",
            "flash4": "flex_flash",
        },
    ),
    Item(path="optimizer.name", field="optimizer", absent="AdamW", words={"adamw": "AdamW"}),
    Item(
        path="training.enable_cpu_offload",
        field="offload_weights",
        absent=False,
        words={False: False, True: True},
    ),
    Item(
        path="quantize.linear.float8.enable_fsdp_float8_all_gather",
        field="quantized_weights",
        absent=False,
        words={False: False, True: True},
    ),
)

ATTENTION_KERNELS = tuple(
    str(word) for one in ONE_TO_ONE if one.path == ATTENTION_BACKEND for word in one.words or ()
)

# Other options that decide the prediction, with their defaults.
OTHERS: Mapping[str, OptionValue] = {
    "model.name": "llama3",
    "model.flavor": "debugmodel",
    "model.converters": [],
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.dtype": "float32",
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.module_fqns_per_model_part": None,
    "parallelism.pipeline_parallel_split_points": [],
    "parallelism.pipeline_parallel_first_stage_less_layers": 1,
    "parallelism.pipeline_parallel_last_stage_less_layers": 1,
    "parallelism.pipeline_parallel_layers_per_stage": None,
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "activation_checkpoint.selective_ac_option": "2",
    "compile.enable": False,
    "compile.components": ["model", "loss"],
}
DEFAULTS: Mapping[str, OptionValue] = {
    **{option.path: option.absent for option in ONE_TO_ONE},
    **OTHERS,
}

WITHOUT_EFFECT: tuple[str, ...] = (
    "job.*",
    "profiling.*",
    "metrics.*",
    "checkpoint.*",
    "comm.*",
    "validation.*",
    "fault_tolerance.enable",
    "memory_estimation.*",
    "lr_scheduler.*",
    "debug.seed",
    "debug.print_config",
    "debug.save_config_file",
    "debug.moe_force_load_balance",
    "debug.enable_structured_logging",
    "model.hf_assets_path",
    "model.tokenizer_path",
    "model.print_after_conversion",
    "optimizer.lr",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.eps",
    "optimizer.weight_decay",
    "training.dataset",
    "training.dataset_path",
    "training.dataloader.*",
    "training.steps",
    "training.max_norm",
    "training.warmup_steps",
    "training.seed",
    "training.gc_freq",
    "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
    "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice",
    "activation_checkpoint.preserve_rng_state",
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    "activation_checkpoint.force_recompute_mm_shapes_by_fqns",
    "activation_checkpoint.determinism_check",
    "activation_checkpoint.visualize_memory_budget_pareto",
)
"""Options that change neither the time nor the memory of a step that we predict; `*`: a section."""

USUAL: Mapping[str, tuple[OptionValue, ...]] = {
    "training.mixed_precision_reduce": ("float32",),
    "training.gc_debug": (False,),
    "optimizer.implementation": ("fused", "foreach"),
    "optimizer.fused": (True,),
    "optimizer.early_step_in_backward": (False,),
    "parallelism.disable_loss_parallel": (False,),
    "parallelism.enable_loss_parallel": (True,),
    "parallelism.enable_compiled_autograd": (False,),
    "parallelism.pipeline_parallel_schedule_csv": ("", None),
    "parallelism.pipeline_parallel_expert_parallel_overlap": (True, False),
    "parallelism.context_parallel_load_balancer": ("headtail",),
    "parallelism.enable_fsdp_symm_mem": (False,),
    "parallelism.enable_sequence_parallel": (True,),
    "parallelism.spmd_backend": ("spmd_types", "partial_dtensor", "full_dtensor"),
    "training.disable_cuda_graphs": (True, False),
    "loss": ("CrossEntropyLoss.Config", "MTPLoss.Config", "ChunkedLossWrapper.Config"),
    "activation_checkpoint.early_stop": (False,),
    "activation_checkpoint.debug": (False,),
    "compile.backend": ("inductor",),
    "debug.deterministic": (False,),
    "debug.deterministic_warn_only": (False,),
    "model.norm_type": ("rmsnorm", "fused_rmsnorm"),
    "quantize.linear.float8.recipe_name": ("tensorwise", "rowwise", "rowwise_with_gw_hp", None),
    "quantize.linear.float8.emulate": (False,),
    "quantize.linear.float8.force_recompute_fp8_weight_in_bwd": (False,),
    "quantize.linear.float8.filter_fqns": (["output"], ["lm_head"], ["output", "router.gate"]),
    "quantize.grouped_mm.float8.fqns": (["experts"],),
    "quantize.linear.mx.recipe_name": ("mxfp8_cublas", "mxfp8", "mxfp8_cublas_rceil"),
    "quantize.linear.mx.filter_fqns": (["output"], ["output", "router.gate"]),
    "quantize.grouped_mm.mx.recipe_name": ("mxfp8",),
    "quantize.grouped_mm.mx.fqns": (["experts"],),
    "experimental.custom_import": ("",),
    "experimental.custom_args_module": ("",),
}
"""Options that count, with the values that the prediction assumes; others are listed."""

# Options of older releases, and what they became: 2024 (docs of the first releases), v0.1.0
# (torchtitan/config_manager.py) and v0.2.0.
RENAMED: Mapping[str, str] = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.enable_loss_parallel": "parallelism.enable_loss_parallel",
}
RENAMED_SECTIONS: Mapping[str, str] = {
    "float8": "quantize.linear.float8",
    "mx": "quantize.linear.mx",
    "quantize.dense": "quantize.linear",
    "quantize.moe": "quantize.grouped_mm",
}
MOVED_FROM_EXPERIMENTAL = (
    "enable_async_tensor_parallel",
    "enable_compiled_autograd",
    "pipeline_parallel_degree",
    "pipeline_parallel_split_points",
    "pipeline_parallel_schedule",
    "context_parallel_degree",
)
RENAMED_CONVERTERS: Mapping[str, str] = {
    "float8": "quantize.linear.float8",
    "mx": "quantize.linear.mx",
    "quantize.dense.float8": "quantize.linear.float8",
    "quantize.dense.mx": "quantize.linear.mx",
    "quantize.moe.float8": "quantize.grouped_mm.float8",
    "quantize.moe.mx": "quantize.grouped_mm.mx",
}
RENAMED_SCHEDULES: Mapping[str, str] = {"interleaved_1f1b": "Interleaved1F1B"}
"""Words of 2024 for schedules."""

OTHER_SCHEDULES: Mapping[str, str] = {
    "LoopedBFS": "interleaved",
    "InterleavedZeroBubble": "interleaved",
    "DualPipeV": "zb-v",
}
"""Schedules of PyTorch that shardwise has no word for, and the nearest that it has."""

# Converters of each recipe: of linear layers, and of grouped products of experts.
CONVERTERS: Mapping[str, tuple[str, str]] = {
    "fp8_tensor": ("quantize.linear.float8", "quantize.grouped_mm.float8"),
    "fp8_row": ("quantize.linear.float8", "quantize.grouped_mm.float8"),
    "mxfp8": ("quantize.linear.mx", "quantize.grouped_mm.mx"),
}


def current_name(name: str) -> str:
    """Name that an option has in v0.2.2."""
    section, _, last = name.rpartition(".")
    if section == "experimental" and last in MOVED_FROM_EXPERIMENTAL:
        return f"parallelism.{last}"
    for old, new in RENAMED_SECTIONS.items():
        if section == old or section.startswith(f"{old}."):
            return f"{new}{section[len(old) :]}.{last}"
    return RENAMED.get(name, name)


def has_no_effect(name: str) -> bool:
    """Whether an option is one of those that do not matter to a prediction."""
    return any(
        name.startswith(known[:-1]) if known.endswith("*") else name == known
        for known in WITHOUT_EFFECT
    )
