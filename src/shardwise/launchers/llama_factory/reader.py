"""Files and commands of LLaMA-Factory as fields of a strategy."""

from collections.abc import Mapping

from shardwise.config.launch import Effect, Launch
from shardwise.errors import Fault, InputError
from shardwise.launchers.fine_tuning import methods
from shardwise.launchers.fine_tuning import reader as shared
from shardwise.launchers.fine_tuning.engines import Engine
from shardwise.launchers.fine_tuning.jobs import flags_in, is_mapping, top_keys
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.llama_factory import options
from shardwise.launchers.sections import Section
from shardwise.launchers.trl.reader import DECIDED, common_fields

NAME, TITLE, RELEASE = "llama-factory", "LLaMA-Factory", "0.9.5"
STARTS = (
    ("llamafactory-cli", "train"),
    ("lmf", "train"),
    ("llamafactory-cli", "*"),
    ("train.py",),
    ("train_bash.py",),
    ("*.py",),
)
MICRO, STEPS, LENGTH = "per_device_train_batch_size", "gradient_accumulation_steps", "cutoff_len"
_HF_BATCH, _RANK, _LENGTH = 8, 8, 2048
_UNSLOTH = "unsloth-2025"
_STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto")
_NO_REFERENCE = ("orpo", "simpo")


def recognise(text: str, _: str) -> bool:
    """Whether a text has options of LLaMA-Factory, or is a command of it."""
    if is_mapping(text):
        keys = top_keys(text)
        return "finetuning_type" in keys or ("stage" in keys and len(options.SURE & keys) > 1)
    keys = flags_in(text)
    return "llamafactory-cli train" in text or "finetuning_type" in keys


def read(text: LaunchText) -> Launch:
    """Read a file or a command, as `Launcher.read`."""
    reading = shared.reading_of(text, STARTS)
    top = reading.top
    _refuse_engines(reading)
    shared.read_model(reading, "model_name_or_path")
    pure = top.flag("pure_bf16", texts=True)
    dtype = "bf16" if pure else shared.half_type(top, default=None)
    sizes = shared.sizes_of(top, MICRO, _HF_BATCH, STEPS, 1)
    # FSDP1 unless the options say more, as in transformers before 5.9; torchao gathers with FSDP2.
    version = 2 if top.data.get("fp8_enable_fsdp_float8_all_gather") else 1
    engine = shared.engine_of_trainer(reading, sizes, dtype, version=version)
    method = _method(reading, dtype or _default_type(engine))
    method.pure = pure
    if pure:
        reading.decided |= dict.fromkeys(("weight_dtype", "master_dtype"), ("pure_bf16",))
    reading.fields |= methods.attention_of(top, "flash_attn") | _memory(top, method)
    if top.data.get("use_unsloth") and engine.kind == "ddp":
        engine.fields["stack"] = _UNSLOTH
    reading.fields["optimizer"] = _optimizer(top)
    reading.fields["seq_len"] = top.count(LENGTH) or _LENGTH
    reading.fields |= common_fields(top)
    _data(reading, method)
    shared.read_fp8(reading)
    if method.task not in ("sft", "pretrain"):
        own = engine.fields["stack"]
        stack = dict(own) if isinstance(own, Mapping) else {"base": own}
        engine.fields["stack"] = stack | {"fp32_log_probabilities": True}
    reading.decided |= {**DECIDED} | {"recompute": ("disable_gradient_checkpointing",)}
    known = options.NEUTRAL, options.COSTLY
    return shared.launch_of_reading(
        reading, NAME, (method, engine, sizes), seq_key=LENGTH, known=known
    )


def _default_type(engine: Engine) -> str:
    """Type of products where no option says it: that of the checkpoint, of today's models bf16."""
    found = engine.fields.get("dtype", "bf16")
    return str(found) if found != "fp32" else "bf16"


def _refuse_engines(reading: shared.Reading) -> None:
    """Refuse what runs another trainer inside."""
    top, environment = reading.top, reading.job.environment
    for key, variable in (("use_mca", "USE_MCA"), ("use_megatron_bridge", "USE_MEGATRON_BRIDGE")):
        if top.flag(key, texts=True) or environment.get(variable) in ("1", "true"):
            problem = "runs Megatron-LM inside, which is not read from this file: import its own"
            raise InputError(Fault.of(key, True, problem, reading.text.source))


def _method(reading: shared.Reading, dtype: str) -> methods.Method:
    """Task, adapters and types of weights, which are loaded in the type of products."""
    top = reading.top
    stage = top.word("stage", _STAGES, "sft")
    preference = top.word(
        "pref_loss", ("sigmoid", "hinge", "ipo", "kto_pair", "orpo", "simpo"), "sigmoid"
    )
    task = {"pt": "pretrain", "ppo": "sft"}.get(stage, stage)
    if stage == "dpo" and preference in _NO_REFERENCE:
        task = "orpo"
    if stage == "ppo":
        top.leave("stage", methods.NO_ROLLOUT, Effect.COST)
    reading.decided["task"] = ("stage",)
    method = methods.Method(task=task, dtype=dtype, loaded=dtype)
    kind = top.word("finetuning_type", ("lora", "full", "freeze", "oft"), "lora")
    if kind in ("freeze", "oft"):
        top.wrong("finetuning_type", "is not modeled; allowed: full, lora")
    for key in ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"):
        top.value(key)
    top.ignore("oft_rank", "oft_block_size", "oft_target")
    rank, dora = top.count("lora_rank") or _RANK, top.flag("use_dora", texts=True)
    modules = methods.targets_of(top, "lora_target", ("all-linear",))
    saved = methods.saved_modules(top, "additional_target")
    base = _base(top)
    if kind == "lora":
        method.rank, method.dora, method.targets = rank, dora, (*modules, *saved)
        method.base = base
    elif base is not None:
        top.wrong("quantization_bit", "needs finetuning_type lora")
    for key in ("ref_model", "ref_model_adapters", "reward_model", "reward_model_adapters"):
        top.value(key)
    top.ignore("reward_model_type", "reward_model_quantization_bit")
    if "ref_model" in top and method.rank is not None and task in ("dpo", "kto"):
        reading.fields["reference_model"] = "copy"
    return method


def _base(top: Section) -> str | None:
    """Return the type of quantized weights, of bitsandbytes unless another one is named."""
    words = ("bnb", "hqq", "eetq", "gptq", "awq", "aqlm", "mxfp4", "fp8")
    if top.word("quantization_method", words, "bnb") != "bnb":
        top.leave("quantization_method", "is not modeled: predicted as bitsandbytes", Effect.COST)
    if top.word("quantization_type", ("fp4", "nf4"), "nf4") == "fp4":
        top.leave("quantization_type", "is not modeled: predicted as nf4, which has as many bits")
    double = top.flag("double_quantization", default=True, texts=True)
    return methods.base_of(top, "quantization_bit", double=double)


def _memory(top: Section, method: methods.Method) -> dict[str, object]:
    """Recompute, which is on unless it is switched off, and fused losses."""
    fields: dict[str, object] = {}
    top.value("gradient_checkpointing")
    unsloth = top.flag("use_unsloth", texts=True)
    on_host = top.flag("use_unsloth_gc", texts=True)
    if not top.flag("disable_gradient_checkpointing", texts=True):
        fields["recompute"] = "full"
        if on_host or unsloth:
            fields["checkpoint_place"] = "host"
    liger = top.flag("enable_liger_kernel", texts=True)
    top.value("use_liger_kernel")
    if liger and method.task in ("pretrain", "sft"):
        fields["loss"] = "fused_linear"
    return fields


def _optimizer(top: Section) -> str:
    named = methods.optimizer_of(top, "optim", "adamw_torch_fused")
    return "muon" if top.flag("use_muon", texts=True) else named


def _data(reading: shared.Reading, method: methods.Method) -> None:
    """Packed rows are full; unless packing is neat, their documents attend to each other."""
    top = reading.top
    packed = top.flag("packing", default=method.task == "pretrain", texts=True)
    if top.flag("neat_packing", texts=True) and packed:
        shared.set_batching(reading, "neat_packing")
