"""Options of LLaMA-Factory that cost nothing, and those that do and have no word here.

Names and defaults are those of main of 2026-08-18, after v0.9.5 (src/llamafactory/hparams).
"""

from collections.abc import Mapping

from shardwise.launchers.fine_tuning.options import COSTLY as TRAINER_COSTLY
from shardwise.launchers.fine_tuning.options import NEUTRAL as TRAINER_NEUTRAL
from shardwise.launchers.launch import fields_named

SURE = fields_named("finetuning_type cutoff_len template lora_target stage")
NEUTRAL = TRAINER_NEUTRAL | fields_named(
    "adapter_name_or_path adapter_folder cache_dir use_fast_tokenizer resize_vocab"
    " split_special_tokens add_tokens add_special_tokens new_special_tokens_config"
    " init_special_tokens model_revision low_cpu_mem_usage infer_backend offload_folder"
    " use_kv_cache infer_dtype hf_hub_token ms_hub_token om_hub_token print_param_status"
    " quantization_device_map image_max_pixels image_min_pixels image_do_pan_and_scan"
    " crop_to_patches video_max_pixels video_min_pixels video_fps video_maxlen use_audio_in_video"
    " audio_sampling_rate vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank"
    " vllm_config template dataset eval_dataset dataset_dir media_dir train_on_prompt mask_history"
    " streaming buffer_size mix_strategy interleave_probs overwrite_cache preprocessing_batch_size"
    " preprocessing_num_workers max_samples eval_num_beams ignore_pad_token_for_loss val_size"
    " eval_on_each_dataset tool_format default_system enable_thinking preserve_thinking"
    " tokenized_path data_shared_file_system lora_alpha lora_dropout loraplus_lr_ratio"
    " loraplus_lr_embedding use_rslora pissa_init pissa_iter pissa_convert create_new_adapter"
    " pref_beta pref_ftx pref_bco_weight dpo_label_smoothing kto_chosen_weight"
    " kto_rejected_weight simpo_gamma ppo_buffer_size ppo_epochs ppo_score_norm ppo_target"
    " ppo_whiten_rewards ld_alpha use_swanlab swanlab_project swanlab_workspace swanlab_run_name"
    " swanlab_mode swanlab_api_key swanlab_logdir swanlab_lark_webhook_url swanlab_lark_secret"
    " use_dft_loss use_asft_loss asft_alpha use_eaft_loss eaft_alpha freeze_vision_tower"
    " freeze_multi_modal_projector compute_accuracy disable_shuffling early_stopping_steps"
    " plot_loss include_effective_tokens_per_second ray_num_workers ray_init_kwargs master_addr"
    " master_port fp8_backend rope_scaling use_reentrant_gc predict_with_generate"
    " flash_attn_note galore_target galore_rank galore_update_interval galore_scale"
    " galore_proj_type galore_layerwise apollo_target apollo_rank apollo_update_interval"
    " apollo_scale apollo_proj apollo_proj_type apollo_scale_type apollo_layerwise"
    " apollo_scale_front badam_mode badam_start_block badam_switch_mode badam_switch_interval"
    " badam_update_ratio badam_mask_mode badam_verbose enable_torch_profiler profiler_output_dir"
    " num_beams max_length max_new_tokens top_k top_p temperature do_sample repetition_penalty"
    " length_penalty skip_special_tokens export_dir moe_aux_loss_coef"
)
COSTLY: Mapping[str, object] = {
    **TRAINER_COSTLY,
    "shift_attn": False,
    "mixture_of_depths": None,
    "upcast_layernorm": False,
    "upcast_lmhead_output": False,
    "train_from_scratch": False,
    "use_kt": False,
    "use_v1_kernels": None,
    "ref_model_quantization_bit": None,
    "use_llama_pro": False,
    "use_galore": False,
    "use_apollo": False,
    "use_badam": False,
    "use_adam_mini": False,
    "use_hyper_parallel": False,
    "hyper_parallel_cp_size": 1,
    "freeze_language_model": False,
    "fp8_enable_fsdp_float8_all_gather": False,
    "module_dropout": 0.0,
    "block_diag_attn": False,
}
"""GaLore, APOLLO, BAdam and Adam-mini change the state of the optimizer."""
