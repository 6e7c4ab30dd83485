"""Scripts and files of TRL and the Hugging Face Trainer as fields of a strategy."""

import re
from collections.abc import Mapping

from shardwise.config.launch import Effect, Launch, Origin
from shardwise.launchers.fine_tuning import methods
from shardwise.launchers.fine_tuning import reader as shared
from shardwise.launchers.fine_tuning.jobs import flags_in, is_mapping, top_keys
from shardwise.launchers.fine_tuning.options import COSTLY, MIXTURE, NEUTRAL, OLD_KEYS
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.sections import Section
from shardwise.launchers.trl import options

NAME, TITLE = "trl", "TRL and the Hugging Face Trainer"
RELEASE, OLD_RELEASE = "1.9.0", "before 1.0"
STARTS = (
    ("trl", "*"),
    ("-m", "trl.scripts.*"),
    ("*.py",),
    ("-m", "*"),
)
_COMMAND = re.compile(
    r"(?:^|[\s/])trl (?:sft|dpo|kto|reward|grpo|rloo)\b"
    r"|accelerate launch(?:\\\n|[^\n])*\.py(?:\\\n|[^\n])*--config[ =]"
)
_DPO_LOSSES = ("apo_zero", "apo_down", "sigmoid", "hinge", "ipo", "sppo_hard", "exo_pair", "robust")
_HF_BATCH = 8
_LOSSES = {
    "chunked_nll": {"loss": "chunked_recompute"},
    "nll": {"loss": "eager"},
    "dft": {"loss": "eager"},
}


def recognise(text: str, _: str) -> bool:
    """Whether a text has options of the Trainer: those of a file, or of a command."""
    if not is_mapping(text) and _COMMAND.search(text) is not None:
        return True
    keys = top_keys(text) if is_mapping(text) else flags_in(text)
    if options.OTHERS & keys or (is_mapping(text) and options.OPEN_INSTRUCT & keys):
        return False
    sure = {options.MICRO, options.STEPS, "num_train_epochs", "learning_rate"} & keys
    return options.MICRO in keys or (len(sure) > 1 and options.MODEL in keys)


def read(text: LaunchText) -> Launch:
    """Read a script or a file, as `Launcher.read`."""
    reading = shared.reading_of(text, STARTS)
    top = reading.top
    shared.read_model(reading, options.MODEL)
    is_trl = bool(options.OWN & reading.job.settings.keys()) or "trl" in reading.job.verb
    is_old = bool(OLD_KEYS & reading.job.settings.keys()) or not is_trl
    task, rollout = _task(reading)
    if rollout:
        reading.found.leave("task", rollout, methods.NO_ROLLOUT, Effect.COST)
    dtype = shared.half_type(top, default="bf16" if is_trl and not is_old else None)
    sizes = shared.sizes_of(top, options.MICRO, _HF_BATCH, options.STEPS, 1)
    engine = shared.engine_of_trainer(reading, sizes, dtype, version=1 if is_old else 2)
    method = _method(reading, task, dtype or str(engine.fields.get("dtype", "fp32")))
    loaded_half = method.rank is None and method.loaded == method.dtype != "fp32"
    method.pure = loaded_half and engine.kind == "ddp"
    if method.pure:
        reading.decided |= dict.fromkeys(_PURE_FIELDS, ("torch_dtype", "dtype"))
    reading.fields |= methods.attention_of(top, "attn_implementation")
    reading.fields |= recompute_fields(top, default=is_trl and not is_old)
    reading.fields |= _loss(top, is_trl=is_trl and not is_old, task=task, rollout=bool(rollout))
    reading.fields["optimizer"] = methods.optimizer_of(top, "optim", "adamw_torch_fused")
    reading.fields |= common_fields(top)
    length = _length(reading, is_trl=is_trl, rollout=bool(rollout))
    if top.value("packing_strategy") == "wrapped":  # documents attend to each other
        top.flag("packing")
    elif is_trl:
        shared.read_batching(reading)
    top.ignore("packing", "padding_free")
    reading.decided |= DECIDED
    own = options.TRL_NEUTRAL, options.TRL_COSTLY
    known = own if is_trl else (NEUTRAL | MIXTURE | options.TRL_NEUTRAL, COSTLY)
    release = None if not is_trl else OLD_RELEASE if is_old else RELEASE
    parts = method, engine, sizes
    return shared.launch_of_reading(
        reading, NAME, parts, seq_key=length, known=known, release=release
    )


_PURE_FIELDS = ("weight_dtype", "master_dtype", "gradient_dtype", "moment_dtype")
DECIDED: Mapping[str, tuple[str, ...]] = {
    "dtype": ("bf16", "fp16", "deepspeed"),
    "optimizer": ("optim",),
    "recompute": ("gradient_checkpointing", "activation_checkpointing", "fsdp_config"),
    "loss": ("loss_type", "use_liger_kernel"),
    "lora_rank": ("lora_r", "lora_rank"),
    "lora_targets": ("lora_target_modules", "lora_target", "target_modules"),
    "base_weights": ("load_in_4bit", "load_in_8bit", "torch_dtype", "dtype"),
    "zero": ("deepspeed", "fsdp", "fsdp_config"),
}


_SURE_TASKS = {"desirable_weight": "kto", "center_rewards_coefficient": "rm"}
"""Tasks by options that no other has."""


def _task(reading: shared.Reading) -> tuple[str, str]:
    """Return the task by the command, the options or the path of the file; and that of rollouts."""
    keys = reading.job.settings
    loss = keys.get("loss_type")
    losses = loss if isinstance(loss, list) else [loss]
    words = re.split(r"[^a-z0-9]+", f"{reading.job.verb} {reading.text.source}".lower())
    if {"num_generations", "reward_funcs"} & keys.keys():
        return "sft", next((one for one in methods.ROLLOUTS if one in words), "grpo")
    if sure := next((one for key, one in _SURE_TASKS.items() if key in keys), None):
        reading.origins["task"] = Origin.DERIVED
        return sure, ""
    named = [one for one in (*methods.PREFERENCE_TASKS, *methods.ROLLOUTS) if one in words]
    if any(one in _DPO_LOSSES for one in losses) and "kto" not in words:
        named = ["dpo"]
    for one in named:
        reading.origins["task"] = Origin.DERIVED
        return ("sft", one) if one in methods.ROLLOUTS else (methods.PREFERENCE_TASKS[one], "")
    if "max_prompt_length" in keys and "beta" in keys:
        reading.origins["task"] = Origin.DERIVED
        return "dpo", ""
    reading.origins["task"] = Origin.ASSUMED
    return "sft", ""


def _method(reading: shared.Reading, task: str, dtype: str) -> methods.Method:
    """Adapters, types of weights, and the reference model."""
    top = reading.top
    key = "torch_dtype" if "torch_dtype" in top else "dtype"
    named = shared.type_named(top, key)
    is_auto = top.data.get(key) == "auto"
    top.ignore("torch_dtype", "dtype")
    method = methods.Method(task=task, dtype=dtype, loaded=named or (dtype if is_auto else "fp32"))
    for name, wide in (("load_in_4bit", "nf4"), ("load_in_8bit", "int8")):
        if top.flag(name, texts=True):
            method.base = wide
    nested = top.flag("use_bnb_nested_quant", texts=True)
    kind = top.word("bnb_4bit_quant_type", ("nf4", "fp4"), "nf4")
    if method.base == "nf4" and not nested:
        method.base = "nf4_single"
    if kind == "fp4":
        top.leave("bnb_4bit_quant_type", "is not modeled: predicted as nf4, which has as many bits")
    rank = top.count("lora_r") or top.count("lora_rank")
    dora = top.flag("use_dora", texts=True)
    modules = methods.targets_of(top, "lora_target_modules", methods.DEFAULT_TARGETS)
    saved = methods.saved_modules(top, "lora_modules_to_save")
    if top.flag(
        "use_peft", default="use_peft" not in reading.job.settings and bool(rank), texts=True
    ):
        method.rank, method.dora = rank or 16, dora
        method.targets = (*modules, *saved)
    elif method.base is not None:
        top.wrong("load_in_4bit", "needs adapters: set use_peft")
    if top.flag("precompute_ref_log_probs", texts=True) and task in ("dpo", "kto"):
        reading.fields["reference_model"] = "precomputed"
    return method


def recompute_fields(top: Section, *, default: bool) -> dict[str, object]:
    """Return recompute, and where checkpoints wait."""
    on = [
        methods.flag_of(top, key, default=default)
        for key in ("gradient_checkpointing", "activation_checkpointing")
        if key in top
    ]
    fields: dict[str, object] = {}
    if any(on) or (not on and default):
        fields["recompute"] = "full"
    if methods.flag_of(top, "activation_offloading", default=False):
        top.leave("activation_offloading", "is not modeled: every saved tensor moves to the host")
    return fields


def _loss(top: Section, *, is_trl: bool, task: str, rollout: bool) -> dict[str, object]:
    """The loss of the head: Liger's, or of SFT since 1.7 in chunks."""
    config = top.value("liger_kernel_config")
    liger = methods.flag_of(
        top, "use_liger_kernel", default=methods.flag_of(top, "use_liger", default=False)
    )
    methods.flag_of(top, "use_liger_loss", default=False)
    value = top.value("loss_type")
    if liger and not (
        isinstance(config, Mapping) and config.get("fused_linear_cross_entropy") is False
    ):
        return {"loss": "fused_linear"}
    if task != "sft" or rollout:
        return {}
    if isinstance(value, str) and value in _LOSSES:
        return dict(_LOSSES[value])
    if value is not None:
        top.leave("loss_type", "is not modeled: loss, predicted as cross entropy")
        return {}
    return {"loss": "chunked_recompute"} if is_trl else {}


def common_fields(top: Section) -> dict[str, object]:
    """Return compilation and when gradients are reduced."""
    fields: dict[str, object] = {}
    backend = top.value("torch_compile_backend")
    if methods.flag_of(top, "torch_compile", default=backend is not None):
        fields["compile"] = "whole"
    config = top.value("accelerator_config")
    kwargs = config.get("gradient_accumulation_kwargs") if isinstance(config, Mapping) else None
    if isinstance(kwargs, Mapping) and kwargs.get("sync_each_batch"):
        fields["grad_sync"] = "micro_batch"
    return fields


def _length(reading: shared.Reading, *, is_trl: bool, rollout: bool) -> str:
    """Set the length of a sequence; return its option."""
    top = reading.top
    if rollout:
        prompt, completion = top.count("max_prompt_length"), top.count("max_completion_length")
        if prompt and completion:
            reading.fields["seq_len"] = prompt + completion
            reading.origins["seq_len"] = Origin.DERIVED
        return "max_completion_length"
    key = next((one for one in options.LENGTHS if one in top), options.LENGTHS[0])
    length = top.count(key)
    for other in options.LENGTHS:
        if other in top and other != key:
            top.leave(other, f"{key} sets the length of a sequence")
    if length is None and is_trl and key not in reading.job.settings:
        length = 1024
    if length is not None:
        reading.fields["seq_len"] = length
    top.count("max_prompt_length")
    top.count("max_completion_length")
    return key
