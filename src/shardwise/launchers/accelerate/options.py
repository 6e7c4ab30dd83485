"""Options of accelerate's YAML: words in both directions, and those that do not count.

Names and defaults are those of v1.14.0 (commands/launch.py, commands/config/config_args.py,
parallelism_config.py, utils/dataclasses.py).
"""

from collections.abc import Mapping

MIXED_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
"""`mixed_precision` by dtype."""
CP_STRATEGIES = {"all_gather": "allgather", "ring": "alltoall"}
"""`parallelism_config_cp_comm_strategy` by cp_exchange: alltoall rotates keys and values."""
RESHARDS = {3: True, 2: False}
"""`fsdp_reshard_after_forward` of FSDP2 by ZeRO stage."""
STRATEGIES: Mapping[str, tuple[int, bool]] = {
    "FULL_SHARD": (3, False),
    "SHARD_GRAD_OP": (2, False),
    "NO_SHARD": (0, False),
    "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (2, True),
}
"""`fsdp_sharding_strategy` of FSDP1, numbered from 1: ZeRO stage, and whether nodes replicate."""
OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw-8bit": "adamw_bnb_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "sgd-momentum": "sgd --optim_args momentum=0.9",
}
"""`--optim` of the Trainer by optimizer."""

MULTIPLE = ("MULTI_GPU", "MULTI_XPU", "MULTI_HPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA")
TYPES = ("NO", *MULTIPLE, "FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Kinds of `distributed_type` that are modeled."""

TOP_IGNORED = (
    "compute_environment",
    "debug",
    "downcast_bf16",
    "enable_cpu_affinity",
    "gpu_ids",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "main_training_function",
    "rdzv_backend",
    "same_network",
    "command_file",
    "commands",
    "tpu_env",
    "tpu_name",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "tpu_vm",
    "tpu_zone",
    "mpirun_config",
)
TOP_DEFAULTS: Mapping[str, object] = {"dynamo_backend": "NO"}
DYNAMO_IGNORED = ("mode", "use_dynamic", "use_fullgraph")
FSDP_IGNORED = (
    "fsdp_state_dict_type",
    "fsdp_cpu_ram_efficient_loading",
    "fsdp_sync_module_states",
    "fsdp_use_orig_params",
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_min_num_params",
)
FSDP_DEFAULTS: Mapping[str, object] = {
    "fsdp_forward_prefetch": False,
    "fsdp_ignored_modules": None,
    "fsdp_limit_all_gathers": True,
}
FP8_IGNORED = (
    "use_autocast_during_eval",
    "margin",
    "interval",
    "fp8_format",
    "format",
    "amax_history_len",
    "amax_history_length",
    "amax_compute_algo",
    "opt_level",
    "pad_inner_dim",
)
FP8_DEFAULTS: Mapping[str, object] = {"override_linear_precision": [False, False, False]}
SP_IGNORED = tuple(
    f"parallelism_config_{name}"
    for name in (
        "sp_seq_length_is_variable",
        "sp_attn_implementation",
        "sp_backend",
        "cp_seq_length_is_variable",
        "cp_attn_implementation",
    )
)
DEEPSPEED_IGNORED = (
    "gradient_clipping",
    "zero3_init_flag",
    "zero3_save_16bit_model",
    "deepspeed_multinode_launcher",
    "deepspeed_hostfile",
    "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter",
    "deepspeed_moe_layer_cls_names",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "seq_parallel_communication_data_type",
)
MEGATRON_DEGREES = {
    "tp_degree": "tp",
    "pp_degree": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
}
"""Degrees of the Megatron-LM plugin, without its prefix, by field."""
MEGATRON_IGNORED = (
    "gradient_clipping",
    "no_load_optim",
    "no_save_optim",
    "eod_mask_loss",
    "attention_dropout",
    "hidden_dropout",
    "attention_softmax_in_fp32",
    "calculate_per_token_loss",
    "use_rotary_position_embeddings",
)
MEGATRON_DEFAULTS: Mapping[str, object] = {
    "use_custom_fsdp": False,
    "use_precision_aware_optimizer": False,
    "overlap_cpu_optimizer_d2h_h2d": False,
    "attention_backend": True,
    "other_megatron_args": None,
}
NO_WORD = "shardwise models nothing of the kind"
