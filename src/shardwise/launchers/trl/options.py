"""Options of TRL that cost nothing, and those that do and have no word here.

Names and defaults are those of v1.9.0 (trl/trainer/*_config.py, trl/trainer/model_config.py) and
of releases since 0.8.
"""

from collections.abc import Mapping

from shardwise.launchers.fine_tuning.options import COSTLY, MIXTURE, NEUTRAL
from shardwise.launchers.launch import fields_named

MODEL = "model_name_or_path"
MICRO, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
LENGTHS = ("max_length", "max_seq_length", "model_max_length", "block_size", "cutoff_len")
"""Options for the length of a sequence: of TRL, of its older releases, of scripts."""
OWN = fields_named(
    "max_length max_seq_length packing use_peft lora_r load_in_4bit load_in_8bit loss_type"
    " dataset_name dataset_mixture dataset_mixer num_generations max_completion_length"
    " max_prompt_length assistant_only_loss completion_only_loss precompute_ref_log_probs beta"
)
"""Options that scripts without TRL do not have."""
OTHERS = fields_named("finetuning_type tuner_type train_type sft_type base_model")
"""Options of trainers with readers of their own."""
OPEN_INSTRUCT = fields_named("use_slow_tokenizer dataset_mix_dir dataset_mixer_list")
"""Options of files of open-instruct, whose defaults differ from those of TRL."""
ROLLOUT = fields_named(
    "num_generations num_generations_eval max_completion_length max_prompt_length"
    " generation_batch_size steps_per_generation temperature top_p top_k min_p generation_kwargs"
    " chat_template_kwargs repetition_penalty cache_implementation use_vllm vllm_mode"
    " vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url"
    " vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port"
    " vllm_gpu_memory_utilization vllm_max_model_length vllm_max_model_len vllm_device vllm_dtype"
    " vllm_tensor_parallel_size vllm_guided_decoding_regex num_iterations epsilon delta"
    " epsilon_high importance_sampling_level reward_weights reward_funcs"
    " multi_objective_aggregation scale_rewards mask_truncated_completions top_entropy_quantile"
    " max_tool_calling_iterations log_completions num_completions_to_print log_unique_prompts"
    " ds3_gather_for_generation use_transformers_continuous_batching use_transformers_paged"
    " vllm_importance_sampling_correction vllm_importance_sampling_mode"
    " vllm_importance_sampling_cap off_policy_mask_threshold wandb_log_unique_prompts"
    " cosine_min_value_wrong cosine_max_value_wrong cosine_min_value_correct"
    " cosine_max_value_correct cosine_max_len repetition_n_grams repetition_max_penalty"
    " code_language code_eval_test_batch_size code_eval_scoring_mode parallel_code_exec_per_proc"
    " code_provider e2b_router_url morph_router_url ioi_provider max_resample_attempts"
    " soft_punish_cache"
)
"""Options of generation and rewards, which are not predicted."""
TRL_NEUTRAL = (
    NEUTRAL
    | MIXTURE
    | ROLLOUT
    | fields_named(
        "model_init_kwargs router_aux_loss_coef disable_dropout completion_only_loss"
        " assistant_only_loss eval_packing precompute_ref_batch_size loss_weights f_divergence_type"
        " f_alpha_divergence_coef label_smoothing use_weighting discopop_tau ref_model_mixup_alpha"
        " ref_model_sync_steps desirable_weight undesirable_weight center_rewards_coefficient"
        " lora_task_type bnb_4bit_compute_dtype label_pad_token_id padding_value is_encoder_decoder"
        " generate_during_eval rpo_alpha hub_model_revision ignore_bias_buffers num_proc"
        " ld_alpha pad_to_multiple_of padding_side config script_args gradient_checkpointing_kwargs"
        " code_revision model_code_revision config_name train_file validation_file data_path"
        " eval_data_path validation_split_percentage lazy_preprocess"
    )
)
TRL_COSTLY: Mapping[str, object] = {
    **COSTLY,
    "bnb_4bit_quant_storage": None,
    "lora_target_parameters": None,
    "cast_lm_head_to_fp32": False,
    "sync_ref_model": False,
    "ref_adapter_name": None,
    "max_target_length": None,
}
