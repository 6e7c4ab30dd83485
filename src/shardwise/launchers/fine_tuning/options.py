"""Options of the Hugging Face Trainer that cost nothing, and those that do and have no word here.

Names are those of transformers 5.24 (training_args.py) and of older releases.
"""

from collections.abc import Mapping

from shardwise.launchers.launch import fields_named

NEUTRAL = fields_named(
    "output_dir num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs"
    " warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2 adam_epsilon optim_args"
    " max_grad_norm bf16_full_eval fp16_full_eval fp16_opt_level half_precision_backend tf32"
    " use_cache average_tokens_across_devices logging_strategy logging_steps logging_first_step"
    " log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level"
    " log_level_replica logging_dir disable_tqdm report_to run_name project trackio_space_id"
    " trackio_bucket_id trackio_static_space_id eval_strategy evaluation_strategy eval_steps"
    " eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start"
    " eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics"
    " include_inputs_for_metrics include_tokens_per_second batch_eval_metrics save_only_model"
    " save_strategy save_steps save_on_each_node save_total_limit save_safetensors"
    " enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy"
    " hub_always_push hub_revision hub_model_revision load_best_model_at_end"
    " metric_for_best_model greater_is_better ignore_data_skip"
    " restore_callback_states_from_checkpoint full_determinism seed data_seed dataloader_drop_last"
    " dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers"
    " dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order"
    " remove_unused_columns label_names length_column_name ddp_timeout ddp_backend debug"
    " skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank"
    " overwrite_output_dir neftune_noise_alpha jit_mode_eval past_index callbacks wandb_entity"
    " wandb_project wandb_run_group wandb_name benchmarks trust_remote_code use_fast_tokenizer"
    " model_revision tokenizer_name_or_path tokenizer_name cache_dir token use_auth_token"
    " preprocessing_num_workers gradient_checkpointing_kwargs activation_checkpointing_kwargs"
    " lora_alpha lora_dropout use_rslora low_cpu_mem_usage chat_template beta tags"
)
"""Options that change neither time nor memory of a step."""
COSTLY: Mapping[str, object] = {
    "label_smoothing_factor": 0.0,
    "auto_find_batch_size": False,
    "torch_empty_cache_steps": None,
    "torch_compile_mode": None,
    "parallelism_config": None,
    "optim_target_modules": None,
    "ddp_bucket_cap_mb": None,
    "ddp_find_unused_parameters": None,
    "ddp_broadcast_buffers": None,
    "ddp_static_graph": None,
    "group_by_length": False,
    "train_sampling_strategy": "random",
    "use_cpu": False,
    "use_ipex": False,
    "tpu_num_cores": None,
    "mp_parameters": "",
    "ray_scope": "last",
}
"""Options that change time or memory and have no word here, with their defaults."""
WHY = "is not modeled, and changes time or memory"
OLD_KEYS = fields_named(
    "max_seq_length max_prompt_length torch_dtype overwrite_output_dir warmup_ratio group_by_length"
    " evaluation_strategy save_safetensors logging_dir push_to_hub_revision dataset_mixer"
)
"""Options that releases of 2026 no longer have: a file with one is of an older release."""
MIXTURE = fields_named(
    "dataset dataset_name dataset_config dataset_train_split dataset_test_split dataset_mixture"
    " dataset_mixer dataset_splits dataset_configs dataset_text_field dataset_kwargs"
    " dataset_num_proc dataset_prompt_column dataset_streaming dataset_split datasets eval_dataset"
    " chat_template_path system_prompt eos_token pad_token truncation_mode shuffle_dataset"
    " columns_to_remove text_column dataset_seed eval_split streaming num_workers"
)
"""Options of data whose lengths no file contains."""
