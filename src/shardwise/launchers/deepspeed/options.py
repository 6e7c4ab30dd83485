"""Options of DeepSpeed's JSON, as fields of a strategy or with no word here.

Names and defaults are those of v0.19.5 (runtime/config.py, runtime/zero/config.py,
runtime/tensor_parallel/config.py, module_inject/auto_ep_config.py).
"""

from collections.abc import Mapping

from shardwise.launchers.launch import Item

TP = Item(path="tensor_parallel.autotp_size", field="tp", absent=1, idle=(0,))
EP = Item(path="expert_parallel.autoep_size", field="ep", absent=1)
SHARD = Item(path="zero_optimization.mics_shard_size", field="dp_shard", absent=None, idle=(-1, 0))
DEGREES = (
    TP,
    Item(path="sequence_parallel_size", field="cp", absent=1),
    Item(path="pipeline.stages", field="pp", absent=1, idle=("auto",)),
    EP,
    SHARD,
)

BATCHES = {
    "train_micro_batch_size_per_gpu": "micro_batch_size (mbs)",
    "train_batch_size": "global_batch_size (gbs)",
    "gradient_accumulation_steps": "global_batch_size (gbs)",
}
"""Batch sizes, which the Trainer may fill in, and the field that sets them here."""

OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "adamw": ("AdamW", {}),
    "adamw-bf16": ("AdamW", {}),
    "muon": ("Muon", {}),
    "adafactor": ("Adafactor", {}),
    "sgd": ("SGD", {}),
    "sgd-momentum": ("SGD", {"momentum": 0.9}),
}
"""Optimizers as `optimizer.type` with parameters; those that DeepSpeed does not have are torch's.
8-bit ones come with the client (bitsandbytes)."""
OF_TORCH = ("adafactor", "sgd", "sgd-momentum")
AUTOCAST_TYPES = {
    **dict.fromkeys(("torch.bfloat16", "bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("torch.float16", "fp16", "float16", "half"), "fp16"),
}
"""Types of `torch_autocast`, as DeepSpeed spells them."""
OPTIMIZER_TYPES = {"adam": "adamw", "adamw": "adamw", "muon": "muon", "adafactor": "adafactor"}
"""Optimizers by `optimizer.type` in lower case; of SGD the momentum decides."""

ZERO_DEFAULTS: Mapping[str, object] = {
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "use_multi_rank_bucket_allreduce": True,
    "allgather_partitions": True,
    "allgather_bucket_size": 500_000_000,
    "stage3_model_persistence_threshold": None,
    "stage3_use_all_reduce_for_fetch_params": False,
    "stage3_module_granularity_threshold": 0,
    "stage3_allgather_sequential": False,
    "round_robin_gradients": False,
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
    "zeropp_loco_param": None,
    "mics_hierarchical_params_gather": False,
    "zenflow": None,
    "leaf_module": None,
}
"""Options of ZeRO that change time or memory and have no word here, with their defaults."""
ZERO_IGNORED = (
    "load_from_fp32_weights",
    "elastic_checkpoint",
    "stage3_gather_16bit_weights_on_model_save",
    "gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "ignore_unused_parameters",
    "legacy_stage1",
    "memory_efficient_linear",
    "pipeline_loading_checkpoint",
    "override_module_apply",
    "log_trace_cache_warnings",
    "enable_sanity_checks",
    "cpu_offload_use_pin_memory",
)
OFFLOAD_DEFAULTS: Mapping[str, object] = {
    "ratio": 1.0,
    "cpuadam_cores_perc": None,
    "max_in_cpu": None,
}
OFFLOAD_IGNORED = (
    "super_offload",  # read with the fields of the host
    "nvme_path",
    "pin_memory",
    "buffer_count",
    "buffer_size",
    "pipeline_read",
    "pipeline_write",
    "fast_init",
)
TOP_DEFAULTS: Mapping[str, object] = {
    "amp": None,
    "torch_autocast": None,
    "seq_parallel_communication_data_type": None,
    "sparse_attention": None,
    "sparse_gradients": False,
    "compression_training": None,
    "data_efficiency": None,
    "curriculum_learning": None,
    "progressive_layer_drop": None,
    "quantize_training": None,
    "weight_quantization": None,
    "hybrid_engine": None,
    "compile": None,
    "graph_harvesting": False,
    "elasticity": None,
    "use_data_before_expert_parallelism": False,
    "disable_allgather": False,
}
"""Other options that change time or memory and have no word here, with their defaults."""
TOP_IGNORED = (
    "gradient_clipping",
    "scheduler",
    "steps_per_print",
    "wall_clock_breakdown",
    "memory_breakdown",
    "dump_state",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "prescale_gradients",
    "gradient_predivide_factor",
    "dataloader_drop_last",
    "checkpoint",
    "nebula",
    "datastates",
    "flops_profiler",
    "autotuning",
    "tensorboard",
    "wandb",
    "comet",
    "csv_monitor",
    "monitor_config",
    "comms_logger",
    "comms_config",
    "eigenvalue",
    "timers",
    "aio",
    "vocabulary_size",
    "managed_gradient_accumulation",
    "log_level",
    "zero_optimization",
)
_SCALES = (
    "loss_scale",
    "initial_scale_power",
    "loss_scale_window",
    "hysteresis",
    "consecutive_hysteresis",
    "min_loss_scale",
)
CHECKPOINT_DEFAULTS: Mapping[str, object] = {
    "partition_activations": False,
    "contiguous_memory_optimization": False,
    "number_checkpoints": None,
    "synchronize_checkpoint_boundary": False,
    "profile": False,
}
SECTION_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "tensor_parallel": {
        "preset_model": None,
        "partition_config": None,
        "tp": None,
        "injection_policy_tuple": None,
    },
    "expert_parallel": {
        "use_grouped_mm": True,
        "disable_triton_grouped_mm": False,
        "load_balance_coeff": None,
    },
    "pipeline": {"partition": "best", "activation_checkpoint_interval": 0},
    "bf16": {},
    "fp16": {},
    "optimizer": {"legacy_fusion": False},
    "data_types": {"param_dtype": None, "buffer_dtype": None},
}
SECTION_IGNORED: Mapping[str, tuple[str, ...]] = {
    "tensor_parallel": ("dtype", "keep_module_on_host", "preset_model"),
    "expert_parallel": ("preset_model", "validate_folding_routing"),
    "pipeline": ("seed_layers", "pipe_partitioned", "grad_partitioned"),
    "bf16": ("immediate_grad_update", "check_grad_overflow", "auto_cast", *_SCALES),
    "fp16": ("auto_cast", *_SCALES),
    "optimizer": ("params",),
}
OFFLOADS: Mapping[str, tuple[str, str]] = {
    "offload_weights": ("offload_param", "cpu_offload_param"),
    "offload_optimizer": ("offload_optimizer", "cpu_offload"),
}
"""Sections of what is offloaded, and their older names."""
NO_WORD = "shardwise models nothing of the kind"
