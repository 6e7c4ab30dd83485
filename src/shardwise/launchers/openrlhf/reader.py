"""Commands of OpenRLHF: what is trained as fields of a strategy.

Names and defaults are those of v0.11.0 (openrlhf/cli/train_*.py) and, without sections, of older
releases.
"""

import re
from collections.abc import Mapping

from shardwise.config.enums import Batching
from shardwise.config.launch import Effect, Launch, Origin
from shardwise.launchers.fine_tuning import methods
from shardwise.launchers.fine_tuning import reader as shared
from shardwise.launchers.fine_tuning.engines import Given, deepspeed, stage_settings
from shardwise.launchers.fine_tuning.jobs import Settings, is_mapping
from shardwise.launchers.launch import LaunchText, fields_named

NAME, TITLE = "openrlhf", "OpenRLHF"
STARTS = (("openrlhf.cli.train_*",), ("train_*.py",))
_COMMAND = re.compile(r"openrlhf\.cli\.train_\w+|openrlhf/cli/train_\w+\.py")
_NAMES: Mapping[str, str] = {
    "data.max_len": "max_len",
    "train.batch_size": "train_batch_size",
    "train.micro_batch_size": "micro_train_batch_size",
    "train.dynamic_batch_enable": "use_dynamic_batch",
    "train.max_tokens_per_gpu": "train_max_tokens_per_gpu",
    "train.colocate_all": "colocate_all_models",
    "model.model_name_or_path": "pretrain",
    "actor.model_name_or_path": "pretrain",
    "model.gradient_checkpointing_enable": "gradient_checkpointing",
    "actor.gradient_checkpointing_enable": "gradient_checkpointing",
    "model.pretrain_mode_enable": "pretrain_mode",
    "ds.zero_stage": "zero_stage",
    "ds.zpg": "zpg",
    "ds.param_dtype": "param_dtype",
    "ds.attn_implementation": "attn_implementation",
    "ds.adam_offload": "adam_offload",
    "ds.overlap_comm": "overlap_comm",
    "ds.grad_accum_dtype": "grad_accum_dtype",
    "ds.use_liger_kernel": "use_liger_kernel",
    "ds.tensor_parallel_size": "ds_tensor_parallel_size",
    "ds.ring_attn_size": "ring_attn_size",
    "ds.packing_samples": "packing_samples",
    "ds.load_in_4bit": "load_in_4bit",
    "ds.lora.rank": "lora_rank",
    "ds.lora.target_modules": "target_modules",
    "ds.deepcompile": "deepcompile",
    "ds.experts_implementation": "experts_implementation",
    "rollout.max_new_tokens": "generate_max_len",
    "actor.num_nodes": "actor_num_nodes",
    "actor.num_gpus_per_node": "actor_num_gpus_per_node",
    "ref.offload": "ref_offload",
}
"""Options by section, and their names in older releases."""
_SECTIONS = fields_named(
    "ckpt logger eval adam muon data train model actor critic ref reward rollout vllm algo ds lora"
    " optim lr_scheduler lr_warmup_ratio min_lr_ratio max_norm use_ms"
)
_NEUTRAL = fields_named(
    "save_path save_steps logging_steps eval_steps ckpt_path max_ckpt_num max_ckpt_mem"
    " load_checkpoint use_universal_ckpt dataset dataset_probs train_split eval_split max_samples"
    " multiturn input_key output_key input_template apply_chat_template tokenizer_chat_template"
    " max_epochs learning_rate actor_learning_rate critic_learning_rate lr_warmup_ratio"
    " lr_scheduler l2 adam_betas seed use_wandb wandb_project wandb_run_name wandb_group"
    " wandb_org use_tensorboard disable_fast_tokenizer local_rank beta aux_loss_coef lora_alpha"
    " lora_dropout chosen_key rejected_key prompt_key label_key prompt_data prompt_data_probs"
    " prompt_split prompt_max_len generate_max_len rollout_batch_size micro_rollout_batch_size"
    " n_samples_per_prompt reward_pretrain critic_pretrain remote_rm_url init_kl_coef"
    " advantage_estimator normalize_reward freezing_actor_steps num_episodes save_hf_ckpt"
    " disable_ds_ckpt vllm_num_engines vllm_tensor_parallel_size vllm_sync_backend"
    " vllm_gpu_memory_utilization enforce_eager enable_prefix_caching vllm_enable_sleep"
    " deepspeed_enable_sleep ref_num_nodes ref_num_gpus_per_node reward_num_nodes"
    " reward_num_gpus_per_node critic_num_nodes critic_num_gpus_per_node actor_num_nodes"
    " actor_num_gpus_per_node colocate_all_models colocate_actor_ref colocate_critic_reward"
    " async_train gamma lambd temperature top_p kl_estimator use_kl_loss eps_clip"
    " ring_head_stride gradient_checkpointing_use_reentrant full_determinism ipo label_smoothing"
    " nll_loss_coef packing_samples ref_offload ref_pretrain bf16 flash_attn pretrain_mode"
    " dataset_split compute_fp32_loss value_head_prefix loss margin_loss dataloader_num_workers"
    " perf no_perf working_dir address runtime_env_json command"
)
_COSTLY: Mapping[str, object] = {
    "zpg": 1,
    "deepcompile": False,
    "experts_implementation": None,
    "freeze_prefix": None,
}
_TASKS = {"sft": "sft", "dpo": "dpo", "kto": "kto", "rm": "rm", "kd": "sft", "prm": "rm"}
_LENGTH, _MICRO, _BATCH = 2048, 8, 128
_PPO_MICRO = 1


def recognise(text: str, _: str) -> bool:
    """Whether a text is a command of OpenRLHF."""
    return not is_mapping(text) and _COMMAND.search(text) is not None


def read(text: LaunchText) -> Launch:
    """Read a command, as `Launcher.read`."""
    reading = shared.reading_of(text, STARTS, _renamed)
    top, job, found = reading.top, reading.job, reading.found
    job.open = {_NAMES.get(name, name): variable for name, variable in job.open.items()}
    word = job.verb.split()[0].rpartition("train_")[2].removesuffix(".py")
    rollout = word.startswith(("ppo", "grpo"))
    if rollout:
        found.leave("command", word, methods.NO_ROLLOUT, Effect.COST)
        job.gpus = text.gpus or _actors(reading) or job.gpus
    shared.read_model(reading, "pretrain")
    task = "pretrain" if top.flag("pretrain_mode") else _TASKS.get(word, "sft")
    dtype = _type(reading)
    method = methods.Method(task=task, dtype=dtype, loaded=dtype)
    rank = top.count("lora_rank", least=0)
    modules = methods.targets_of(top, "target_modules", ("all-linear",))
    bits = top.flag("load_in_4bit")
    if rank:
        method.rank, method.targets = rank, modules
        method.base = "nf4" if bits else None
    sizes = _sizes(reading, rollout=rollout)
    given = Given(dtype=dtype, micro=sizes.micro, steps=None, gpus=job.gpus, model=reading.model)
    engine = deepspeed(_configuration(reading), found, given)
    reading.fields |= methods.attention_of(top, "attn_implementation")
    if methods.flag_of(top, "gradient_checkpointing", default=False):
        reading.fields["recompute"] = "full"
    if (
        methods.flag_of(top, "use_liger_kernel", default=False)
        and task in ("sft", "pretrain")
        and not rollout
    ):
        reading.fields["loss"] = "fused_linear"
    if methods.flag_of(top, "packing_samples", default=False):
        shared.set_batching(reading, "packing_samples", Batching.PADDING_FREE)
    reading.decided |= {"zero": ("zero_stage",), "dtype": ("param_dtype", "bf16"), "optimizer": ()}
    known = _NEUTRAL | _SECTIONS, _COSTLY
    return shared.launch_of_reading(
        reading, NAME, (method, engine, sizes), seq_key="max_len", known=known
    )


def _renamed(settings: Settings) -> Settings:
    """Settings by the names of older releases, which have no sections."""
    found = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}

    def walk(section: Mapping[str, object], prefix: str) -> None:
        for key, value in section.items():
            path = f"{prefix}{key}"
            if isinstance(value, Mapping) and path not in _NAMES:
                walk(value, f"{path}.")
            elif path in _NAMES:
                found.setdefault(_NAMES[path], value)

    walk({key: value for key, value in settings.items() if isinstance(value, Mapping)}, "")
    return found


def _actors(reading: shared.Reading) -> int | None:
    """GPUs of the policy."""
    nodes = reading.top.count("actor_num_nodes")
    each = reading.top.count("actor_num_gpus_per_node")
    if nodes is None and each is None:
        return None
    reading.origins["gpus"] = Origin.DERIVED
    return (nodes or 1) * (each or 8)


def _type(reading: shared.Reading) -> str:
    top = reading.top
    if top.flag("bf16"):
        return "bf16"
    return shared.type_named(top, "param_dtype") or ("bf16" if "param_dtype" not in top else "fp32")


def _sizes(reading: shared.Reading, *, rollout: bool) -> shared.Sizes:
    top = reading.top
    micro = top.count("micro_train_batch_size") or (_PPO_MICRO if rollout else _MICRO)
    batch = top.count("train_batch_size") or _BATCH
    length = top.count("max_len") or (_LENGTH if not rollout else None)
    if length is None:
        prompt, answer = top.count("prompt_max_len"), top.count("generate_max_len")
        length = (prompt or 1024) + (answer or 1024)
        reading.origins["seq_len"] = Origin.DERIVED
    reading.fields |= {"seq_len": length, "global_batch_size": batch}
    if top.flag("use_dynamic_batch"):
        tokens = top.count("train_max_tokens_per_gpu") or 16192
        because = "micro-batches hold as many samples as it allows at the full length"
        top.leave("train_max_tokens_per_gpu", because)
        own = max(batch // (reading.job.gpus or 1), 1)
        most = min(max(tokens // length, 1), own)
        micro = next(one for one in range(most, 0, -1) if own % one == 0)
        reading.origins["micro_batch_size"] = Origin.DERIVED
    return shared.Sizes(micro_key="micro_train_batch_size", steps_key="", micro=micro, steps=1)


def _configuration(reading: shared.Reading) -> Settings:
    """DeepSpeed's configuration, as OpenRLHF makes it."""
    top = reading.top
    stage = top.count("zero_stage", least=0)
    offload = ("optimizer",) if top.flag("adam_offload") else ()
    settings = stage_settings(2 if stage is None else stage, offload=offload)
    settings["zero_optimization"]["overlap_comm"] = top.flag("overlap_comm")
    kind = top.value("grad_accum_dtype")
    if kind is not None:
        settings["data_types"] = {"grad_accum_dtype": kind}
    if (tp := top.count("ds_tensor_parallel_size") or 1) > 1:
        settings["tensor_parallel"] = {"autotp_size": tp}
    if (cp := top.count("ring_attn_size") or 1) > 1:
        reading.fields |= {"cp": cp, "cp_exchange": "ring", "any_software": True}
    return settings
