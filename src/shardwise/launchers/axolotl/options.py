"""Options of axolotl that cost nothing, and those that do and have no word here.

Names and defaults are those of v0.18.0 (src/axolotl/utils/schemas, integrations/*/args.py).
"""

from collections.abc import Mapping

from shardwise.launchers.fine_tuning.options import COSTLY as TRAINER_COSTLY
from shardwise.launchers.fine_tuning.options import NEUTRAL as TRAINER_NEUTRAL
from shardwise.launchers.launch import fields_named

SURE = fields_named("micro_batch_size sequence_len adapter sample_packing datasets val_set_size")
NEUTRAL = TRAINER_NEUTRAL | fields_named(
    "strict auto_resume_from_checkpoints resize_token_embeddings_to_32x mean_resizing_embeddings"
    " shrink_embeddings reinit_weights trainer_cls trl vllm ebft process_reward_model"
    " center_rewards_coefficient dpo_use_weighting dpo_label_smoothing"
    " dpo_loss_type dpo_loss_weights dpo_beta rl_beta orpo_alpha rpo_alpha simpo_gamma cpo_alpha"
    " kto_desirable_weight kto_undesirable_weight datasets test_datasets shuffle_merged_datasets"
    " shuffle_before_merging_datasets dataset_prepared_path dataset_shard_num dataset_shard_idx"
    " skip_prepare_dataset num_dataset_shards_to_save pretraining_dataset dataset_processes"
    " dataset_num_proc dataset_exact_deduplication dataset_keep_in_memory push_dataset_to_hub"
    " hf_use_auth_token device device_map ddp do_causal_lm_eval eval_causal_lm_metrics"
    " do_bench_eval bench_dataset bench_split loss_watchdog_threshold loss_watchdog_patience"
    " gc_steps gc_collect_steps eval_sequence_len min_sample_len"
    " max_prompt_len sample_packing_group_size sample_packing_bin_size sample_packing_sequentially"
    " sample_packing_mp_start_method eval_sample_packing curriculum_sampling streaming"
    " streaming_multipack_buffer_size pretrain_multipack_buffer_size pretrain_multipack_attn"
    " flex_attn_compile_kwargs val_set_size early_stopping_patience num_epochs lr_scheduler"
    " lr_quadratic_warmup cosine_min_lr_ratio cosine_constant_lr_ratio lr_div_factor lr_groups"
    " adam_epsilon2 adam_beta3 embedding_lr embedding_lr_scale torchdistx_path train_on_inputs"
    " eval_batch_size saves_per_epoch evals_per_epoch base_model_config base_model_ignore_patterns"
    " cls_model_config tokenizer_config tokenizer_use_fast tokenizer_legacy"
    " tokenizer_use_mistral_common tokenizer_type processor_type processor_kwargs"
    " tokenizer_save_jinja_files model_type revision_of_model type_of_model is_llama_derived_model"
    " is_mistral_derived_model is_qwen_derived_model is_falcon_derived_model"
    " experimental_skip_move_to_device special_tokens tokens added_tokens_overrides eot_tokens"
    " chat_template chat_template_jinja chat_template_kwargs default_system_message image_size"
    " image_resize_algorithm role_boundaries lora_model_dir lora_fan_in_fan_out"
    " lora_out_dir peft_init_lora_weights peft_use_rslora loraplus_lr_ratio loraplus_lr_embedding"
    " merge_lora merge_method lora_on_cpu lora_rank_pattern lora_alpha_pattern gptq_groupsize"
    " gptq_model_v1 wandb_run_id wandb_mode wandb_watch wandb_log_model use_wandb use_mlflow"
    " mlflow_tracking_uri mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts use_comet"
    " comet_api_key comet_workspace comet_project_name comet_experiment_key comet_mode"
    " comet_online comet_experiment_config use_trackio trackio_project_name trackio_run_name"
    " use_otel_metrics otel_metrics_host otel_metrics_port use_tensorboard use_swanlab"
    " swanlab_project swanlab_experiment_name swanlab_description swanlab_mode swanlab_workspace"
    " swanlab_api_key swanlab_log_model swanlab_web_host swanlab_api_host"
    " swanlab_lark_webhook_url swanlab_lark_secret swanlab_log_completions"
    " swanlab_completion_log_interval swanlab_completion_max_buffer use_ray ray_run_name"
    " ray_num_workers resources_per_worker gradio_title excess_length_strategy"
    " adam_eps eta_min eval_table_size eval_max_new_tokens local_rank world_size"
    " save_first_step bfloat16 seed fsdp_final_state_dict_type qlora_sharded_model_loading"
    " low_cpu_mem_usage max_grad_norm heads_k_stride ring_attn_func multipack_real_batches"
    " tokenizer profiler_steps include_tokens_per_second fix_untrained_tokens kd_temperature"
    " noisy_embedding_alpha overrides_of_model_config overrides_of_model_kwargs llmcompressor"
    " liger_rope liger_rms_norm liger_rms_norm_gated liger_layer_norm liger_swiglu"
    " liger_glu_activation liger_use_token_scaling use_kernels flash_attn_rms_norm"
    " flash_attn_fuse_mlp flash_attn_fuse_qkv torch_compile_backend num_labels"
    " cut_cross_entropy_backend bnb_config_kwargs"
)
"""Fused norms and activations of Liger are predicted as those of the stack."""
COSTLY: Mapping[str, object] = {
    **TRAINER_COSTLY,
    "unfrozen_parameters": None,
    "freeze_mm_modules": None,
    "qat": None,
    "quantization": None,
    "dynamic_checkpoint": None,
    "embeddings_skip_upcast": None,
    "float32": None,
    "selective_checkpointing": None,
    "layer_offloading": None,
    "activation_offloading": None,
    "use_pose": None,
    "fused_attn_kernel": None,
    "gemma4_hybrid_attn_impl": None,
    "large_head_attention": None,
    "sdpa_varlen": None,
    "scaling_softmax": None,
    "experts_implementation": None,
    "quantize_moe_experts": False,
    "lora_mlp_kernel": None,
    "lora_qkv_kernel": None,
    "lora_o_kernel": None,
    "lora_embedding_kernel": None,
    "chunked_cross_entropy_num_chunks": None,
    "use_eaft": None,
    "tiled_mlp": None,
    "tiled_mlp_num_shards": None,
    "tiled_mlp_use_original_mlp": None,
    "llama4_linearized_experts": None,
    "deepcompile": None,
    "fp32_norms": None,
    "model_quantization_config": None,
    "model_quantization_config_kwargs": None,
    "use_onebitllms": None,
    "loftq_config": None,
    "lora_target_parameters": None,
    "peft": None,
    "peft_layers_to_transform": None,
    "peft_layer_replication": None,
    "peft_trainable_token_indices": None,
    "gptq": None,
    "relora": None,
    "lisa_n_layers": None,
    "model_config": None,
    "fp8_enable_fsdp_float8_all_gather": None,
    "use_scattermoe": None,
    "use_sonicmoe": None,
    "reward_model": None,
    "rope_scaling": None,
    "s2_attention": None,
    "flash_optimum": None,
    "dpo_use_liger_kernel": None,
    "dpo_padding_free": None,
}
FUSED_LIGER, CUT, CHUNKED = (
    "liger_fused_linear_cross_entropy",
    "cut_cross_entropy",
    "chunked_cross_entropy",
)
PLUGINS = ("LigerPlugin", "CutCrossEntropyPlugin")
"""Plugins whose options are read; others are listed."""
