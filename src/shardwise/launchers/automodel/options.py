"""Options of NeMo AutoModel by fields, those that cost nothing, and those that have no word here.

Names and defaults are those of v0.5.0 (nemo_automodel/components, examples/llm_finetune).
"""

from collections.abc import Mapping

from shardwise.launchers.launch import fields_named

LOSS = "nemo_automodel.components.loss."
LOSSES: Mapping[str, str] = {
    "masked_ce.MaskedCrossEntropy": "eager",
    "linear_ce.FusedLinearCrossEntropy": "cut",
    "te_parallel_ce.TEParallelCrossEntropy": "in_place",
    "chunked_ce.ChunkedCrossEntropy": "chunked",
}
"""Classes of losses by their module, and the loss."""
DEGREES: Mapping[str, str] = {"tp_size": "tp", "cp_size": "cp", "pp_size": "pp", "ep_size": "ep"}
DISPATCHERS: Mapping[str, str] = {
    "torch": "all_to_all",
    "deepep": "deepep",
    "uccl_ep": "deepep",
    "hybridep": "hybridep",
}
EXPERTS: Mapping[str, str] = {
    "te": "calls",
    "gmm": "grouped",
    "torch_mm": "grouped",
    "torch": "loop",
}
ATTENTION: Mapping[str, str] = {"te": "best", "flex": "triton", "eager": "eager"}
FP8: Mapping[str, str] = {
    "tensorwise": "fp8_tensor",
    "rowwise": "fp8_row",
    "rowwise_with_gw_hp": "fp8_row",
}
NEUTRAL = fields_named(
    "recipe dist_env rng seed dataset validation_dataset validation_datasets dataloader"
    " validation_dataloader checkpoint lr_scheduler ci wandb tokenizer slurm skypilot nvtx mlflow"
    " clip_grad_norm logger freeze_config parallelizer comet auto_resume benchmark"
)
STEP_NEUTRAL = fields_named(
    "ckpt_every_steps save_checkpoint_every_epoch val_every_steps num_epochs max_steps"
    " log_remote_every_steps gc_every_steps global_batch_size local_batch_size"
)
MODEL_NEUTRAL = fields_named(
    "_target_ trust_remote_code config name_or_path load_base_model output_hidden_states"
    " use_liger_kernel force_hf cache_dir revision torch_dtype text_config use_cache"
    " attn_implementation backend pretrained_model_name_or_path"
)
BACKEND_NEUTRAL = fields_named(
    "_target_ enable_hf_state_dict_adapter rope_fusion rms_norm linear enable_fsdp_optimizations"
    " gate_precision enable_deepep"
)
DISTRIBUTED_NEUTRAL = fields_named(
    "_target_ dp_size dp_shard_size backend use_hf_tp_plan pipeline moe strategy world_size"
    " reshard_after_forward dp_replicate_size sequence_parallel defer_fsdp_grad_sync"
    " activation_checkpointing enable_fsdp2_prefetch"
)
PEFT_NEUTRAL = fields_named(
    "_target_ alpha dropout use_triton exclude_modules dropout_position lora_A_init"
    " use_memory_efficient_lora match_all_linear"
)
COSTLY: Mapping[str, object] = {
    "qat": None,
    "kd": None,
    "teacher_model": None,
    "speculative": None,
    "te_fp8": None,
}
