"""Commands and configurations of verl: the update of the policy as fields of a strategy.

Names and defaults are those of main of 2026-01-29, after v0.7.0
(verl/trainer/config/_generated_ppo_trainer.yaml, sft_trainer.yaml).
"""

import re

from shardwise.config.launch import Effect, Launch, Origin
from shardwise.launchers.fine_tuning import reader as shared
from shardwise.launchers.fine_tuning.engines import STACK, Engine
from shardwise.launchers.fine_tuning.jobs import is_mapping, top_keys
from shardwise.launchers.fine_tuning.methods import NO_ROLLOUT, Method, flag_of, targets_of
from shardwise.launchers.launch import LaunchText, fields_named
from shardwise.launchers.sections import Section

NAME, TITLE = "verl", "verl"
MEGATRON = "megatron-lm-2026"
STARTS = (("-m", "verl.trainer.*"), ("-m", "recipe.*"), ("main_ppo.py",), ("fsdp_sft_trainer.py",))
_COMMAND = re.compile(r"verl\.trainer\.\w+|verl/trainer/\w+\.py")
_GPUS, _PROMPT, _RESPONSE, _BATCH, _MICRO, _TOKENS = 8, 512, 512, 256, 4, 16384
_NEUTRAL = fields_named(
    "data algorithm trainer critic reward_model custom_reward_function reward_manager ray_init"
    " ray_kwargs global_profiler transfer_queue config_path config_name defaults optim hydra"
    " actor_rollout_ref model use_remove_padding reward async_training rollout"
)
_ROLLOUT = "generation, log-probabilities, reference, critic and rewards"
_MEGATRON_DEGREES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
}
_FSDP_NEUTRAL = fields_named(
    "fsdp_size wrap_policy forward_prefetch entropy_checkpointing use_orig_params seed strategy"
    " full_determinism param_offload optimizer_offload offload_policy model_dtype dtype"
    " use_torch_compile reshard_after_forward entropy_from_logits_with_chunking"
    " ulysses_sequence_parallel_size _target_ mixed_precision forward_only"
)
_ACTOR_NEUTRAL = fields_named(
    "optim use_kl_loss kl_loss_coef kl_loss_type entropy_coeff clip_ratio clip_ratio_low"
    " clip_ratio_high clip_ratio_c loss_agg_mode grad_clip shuffle ppo_epochs policy_loss"
    " checkpoint profiler strategy fsdp_config megatron ppo_mini_batch_size ppo_micro_batch_size"
    " ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu"
    " ulysses_sequence_parallel_size use_torch_compile data_loader_seed load_weight"
    " tis_imp_ratio_cap entropy_from_logits_with_chunking entropy_checkpointing"
    " recompute_old_log_prob rollout_n use_fused_kernels kl_loss_coeff use_remove_padding"
    " calculate_entropy freeze_vision_tower"
)
_MODEL_NEUTRAL = fields_named(
    "path partial_pretrain use_shm external_lib override_config trust_remote_code lora_alpha"
    " use_remove_padding custom_chat_template hf_config_path tokenizer_path exclude_modules"
    " fused_kernel_options lora_adapter_path enable_activation_offload use_liger strategy"
    " fsdp_config _target_ hybrid_engine lora target_parameters"
)
_MEGATRON_NEUTRAL = fields_named(
    "param_offload grad_offload optimizer_offload use_mbridge dist_checkpointing_path"
    " use_dist_checkpointing seed override_ddp_config vanilla_mbridge load_weight"
    " use_distributed_optimizer override_mcore_model_config profile use_remove_padding"
)


def recognise(text: str, _: str) -> bool:
    """Whether a text is a command of verl, or a configuration with its sections."""
    if is_mapping(text):
        return "actor_rollout_ref" in top_keys(text)
    return _COMMAND.search(text) is not None or "actor_rollout_ref." in text


def read(text: LaunchText) -> Launch:
    """Read a command or a configuration, as `Launcher.read`."""
    reading = shared.reading_of(text, STARTS)
    top = reading.top
    is_sft = "actor_rollout_ref" not in top
    if is_sft:
        actor, model = top, top.section("model")
        sharding = model.section("fsdp_config")
    else:
        inner = top.section("actor_rollout_ref")
        actor, model = inner.section("actor"), inner.section("model")
        sharding = actor.section("fsdp_config")
        reading.found.leave("actor_rollout_ref.rollout", _ROLLOUT, NO_ROLLOUT, Effect.COST)
    reading.top = model
    shared.read_model(reading, "partial_pretrain" if "partial_pretrain" in model else "path")
    reading.top = top
    reading.job.gpus = text.gpus or _accelerators(reading) or reading.job.gpus
    word = str(actor.data.get("strategy") or model.data.get("strategy") or "fsdp")
    by_megatron = word == "megatron" or "megatron" in actor
    engine = _megatron(actor) if by_megatron else _fsdp(actor, sharding, reading)
    method = _method(model, sharding)
    if by_megatron:
        method.task = "pretrain"
    sizes = _sizes(reading, actor, is_sft=is_sft)
    if flag_of(model, "enable_gradient_checkpointing", default=True) and not by_megatron:
        reading.fields["recompute"] = "full"
    fused = flag_of(model, "use_fused_kernels", default=False)
    if fused and by_megatron:
        model.leave("use_fused_kernels", "is not modeled: predicted as the loss of the stack")
    elif fused or flag_of(model, "use_liger", default=False):
        reading.fields["loss"] = "fused_linear"
    if flag_of(model, "enable_activation_offload", default=False):
        model.leave("enable_activation_offload", "is not modeled", Effect.COST)
    shared.leave_rest(sharding, *_FSDP_NEUTRAL)
    shared.leave_rest(model, *_MODEL_NEUTRAL, effect=Effect.MODEL)
    if not is_sft:
        shared.leave_rest(actor, *_ACTOR_NEUTRAL)
    own = "model" if is_sft else "actor_rollout_ref.model"
    reading.decided |= {
        "recompute": (f"{own}.enable_gradient_checkpointing",),
        "seq_len": ("data.max_length",),
        "zero": (),
    }
    neutral = _NEUTRAL | (_ACTOR_NEUTRAL if is_sft else frozenset())
    parts = method, engine, sizes
    return shared.launch_of_reading(reading, NAME, parts, seq_key="max_length", known=(neutral, {}))


def _accelerators(reading: shared.Reading) -> int | None:
    """GPUs by `trainer`, whose defaults are one node of eight."""
    section = reading.top.section("trainer")
    nodes, each = section.count("nnodes"), section.count("n_gpus_per_node")
    if nodes is None and each is None:
        return None
    reading.origins["gpus"] = Origin.DERIVED
    return (nodes or 1) * (each or _GPUS)


def _fsdp(actor: Section, sharding: Section, reading: shared.Reading) -> Engine:
    """FSDP, whose weights and state go to the host between phases, not during an update."""
    fields: dict[str, object] = {"stack": STACK, "zero": 3}
    if not flag_of(sharding, "reshard_after_forward", default=True):
        fields["zero"] = 2
    host = flag_of(sharding, "offload_policy", default=False)
    if host or flag_of(sharding, "cpu_offload", default=False):
        fields |= {"offload_weights": True, "offload_optimizer": True}
    cp = actor.count("ulysses_sequence_parallel_size") or 1
    if cp > 1:
        fields |= {"cp": cp, "cp_exchange": "all_to_all", "any_software": True}
    size = sharding.data.get("fsdp_size")
    gpus = reading.job.gpus
    if isinstance(size, int) and size > 0 and gpus and gpus // cp > size:
        fields["dp_shard"] = size
    return Engine(kind="fsdp", fields=fields, origins={"zero": Origin.DEFAULT})


def _megatron(actor: Section) -> Engine:
    section = actor.section("megatron")
    fields: dict[str, object] = {"stack": MEGATRON, "zero": 1}
    for key, field in _MEGATRON_DEGREES.items():
        if (degree := section.count(key) or 1) > 1:
            fields[field] = degree
    chunks = section.count("virtual_pipeline_model_parallel_size")
    if chunks and chunks > 1:
        fields |= {"vpp": chunks, "schedule": "interleaved"}
    split = flag_of(section, "sequence_parallel", default=True)
    if "tp" in fields:
        fields["tp_exchange"] = "rs_ag" if split else "all_reduce"
    override = section.section("override_transformer_config")
    word = override.word("recompute_granularity", ("none", "selective", "full"), "none")
    if word != "none":
        fields["recompute"] = word
    shared.leave_rest(override, "recompute_method", "recompute_num_layers", "recompute_modules")
    shared.leave_rest(section, *_MEGATRON_NEUTRAL)
    return Engine(kind="megatron", fields=fields)


def _method(model: Section, sharding: Section) -> Method:
    named = shared.type_named(sharding, "model_dtype") or "fp32"
    method = Method(dtype="bf16", loaded=named)
    rank = model.count("lora_rank", least=0)
    modules = targets_of(model, "target_modules", ("all-linear",))
    if rank:
        method.rank, method.targets = rank, modules
    return method


def _sizes(reading: shared.Reading, actor: Section, *, is_sft: bool) -> shared.Sizes:
    """Samples of an update; with dynamic batches, as many as tokens allow at the full length."""
    data = reading.top.section("data")
    if is_sft:
        length = data.count("max_length") or 1024
        micro = data.count("micro_batch_size_per_gpu") or _MICRO
        batch = data.count("train_batch_size") or _BATCH
        reading.fields |= {"seq_len": length, "global_batch_size": batch}
        return shared.Sizes(
            micro_key="data.micro_batch_size_per_gpu", steps_key="", micro=micro, steps=1
        )
    prompt, response = data.count("max_prompt_length"), data.count("max_response_length")
    length = (prompt or _PROMPT) + (response or _RESPONSE)
    reading.fields["seq_len"] = length
    reading.origins["seq_len"] = Origin.DERIVED
    samples = reading.top.section("actor_rollout_ref").section("rollout").count("n") or 1
    prompts = actor.count("ppo_mini_batch_size") or _BATCH
    reading.fields["global_batch_size"] = prompts * samples
    key = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    if flag_of(actor, "use_dynamic_bsz", default=False):
        tokens = actor.count("ppo_max_token_len_per_gpu") or _TOKENS
        cp = actor.count("ulysses_sequence_parallel_size") or 1
        because = "micro-batches hold as many samples as it allows at the full length"
        actor.leave("ppo_max_token_len_per_gpu", because)
        reading.origins["micro_batch_size"] = Origin.DERIVED
        replicas = max((reading.job.gpus or 1) // cp, 1)
        micro = _divisor(prompts * samples // replicas, max(tokens * cp // length, 1))
        return shared.Sizes(micro_key=key, steps_key="", micro=micro, steps=1)
    micro_each = actor.count("ppo_micro_batch_size_per_gpu")
    every = actor.count("ppo_micro_batch_size")
    if micro_each is None and every is not None and reading.job.gpus:
        micro_each = max(every // reading.job.gpus, 1)
    if micro_each is None:
        reading.origins["micro_batch_size"] = Origin.ASSUMED
    return shared.Sizes(micro_key=key, steps_key="", micro=micro_each or 1, steps=1)


def _divisor(own: int, most: int) -> int:
    """The largest number of samples that divides those of a rank."""
    samples = max(own, 1)
    return next(one for one in range(min(most, samples), 0, -1) if samples % one == 0)
