"""Options of ms-swift that cost nothing, and those that do and have no word here.

Names and defaults are those of v4.5.2 (swift/arguments, swift/trainers/arguments.py).
"""

from collections.abc import Mapping

from shardwise.launchers.fine_tuning.options import COSTLY as TRAINER_COSTLY
from shardwise.launchers.fine_tuning.options import MIXTURE
from shardwise.launchers.fine_tuning.options import NEUTRAL as TRAINER_NEUTRAL
from shardwise.launchers.launch import fields_named
from shardwise.launchers.trl.options import ROLLOUT

NEUTRAL = (
    TRAINER_NEUTRAL
    | MIXTURE
    | ROLLOUT
    | fields_named(
        "tuner_backend adapters external_plugins custom_register_path model_kwargs load_args"
        " load_data_args packing_num_proc packing_strategy lazy_tokenize use_hf model_type"
        " task_type new_special_tokens num_labels problem_type max_model_len local_repo_path"
        " init_strategy ddp_timeout ignore_args_error use_swift_lora val_dataset cached_dataset"
        " cached_val_dataset split_dataset_ratio load_from_cache_file dataset_shuffle"
        " val_dataset_shuffle interleave_prob stopping_strategy shuffle_buffer_size download_mode"
        " columns strict disable_auto_column_mapping model_name model_author custom_dataset_info"
        " max_new_tokens num_beams stream stop_words logprobs top_logprobs template system"
        " truncation_strategy max_pixels agent_template norm_bbox use_chat_template padding_side"
        " loss_scale is_binary_loss_scale template_backend response_prefix enable_thinking"
        " preserve_thinking add_non_thinking_prefix reward_adapters reward_model_type"
        " reward_template reward_model_plugin"
        " label_smoothing cpo_alpha simpo_gamma sft_alpha lmbda kl_coef cliprange vf_coef gamma lam"
        " whiten_rewards swanlab_token swanlab_project swanlab_workspace swanlab_exp_name"
        " swanlab_mode add_version create_checkpoint_symlink freeze_vit freeze_aligner freeze_llm"
        " lorap_lr_ratio init_weights lora_bias vit_gradient_checkpointing"
        " enable_dft_loss enable_channel_loss max_shard_size check_model acc_strategy"
        " train_dataloader_shuffle max_epochs aligner_lr vit_lr ds3_gather_for_generation"
        " resume_only_model eval_metric early_stop_interval eval_use_evalscope eval_dataset_args"
        " eval_limit eval_generation_config extra_eval_args use_flash_ckpt rope_scaling"
        " zero_hpz_partition_size dataset_num_proc logging_dir rlhf_type nproc_per_node"
        " dynamic_sample log_entropy async_generate offload_model offload_optimizer"
        " gc_collect_after_offload move_model_batches sleep_level vllm_limit_mm_per_prompt"
        " vllm_server_pass_dataset multi_turn_scheduler max_turns vllm_engine_kwargs"
        " bnb_4bit_compute_dtype deepspeed_autotp_size loss_type rpo_alpha overlong_filter"
        " router_aux_loss_coef advantage_estimator kl_in_reward vllm_enable_lora merge_lora"
    )
)
COSTLY: Mapping[str, object] = {
    **TRAINER_COSTLY,
    "device_map": None,
    "max_memory": None,
    "experts_impl": None,
    "freeze_parameters": None,
    "freeze_parameters_regex": None,
    "freeze_parameters_ratio": 0.0,
    "trainable_parameters": None,
    "trainable_parameters_regex": None,
    "target_parameters": None,
    "target_regex": None,
    "use_galore": False,
    "galore_quantization": False,
    "lisa_activated_layers": 0,
    "use_logits_to_keep": None,
    "optimizer": None,
    "teacher_model": None,
    "bnb_4bit_quant_storage": None,
    "hqq_axis": None,
}
