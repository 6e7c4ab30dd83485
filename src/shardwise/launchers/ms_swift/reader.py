"""Files and commands of ms-swift as fields of a strategy."""

import re

from shardwise.config.launch import Effect, Launch, Origin
from shardwise.errors import Fault, InputError
from shardwise.launchers.fine_tuning import methods
from shardwise.launchers.fine_tuning import reader as shared
from shardwise.launchers.fine_tuning.jobs import is_mapping, top_keys
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.ms_swift import options
from shardwise.launchers.trl.reader import DECIDED, common_fields, recompute_fields

NAME, TITLE = "ms-swift", "ms-swift"
STARTS = (
    ("megatron", "*"),
    ("swift", "sft"),
    ("swift", "pt"),
    ("swift", "rlhf"),
    ("*swift/cli/*.py",),
    ("sft.py",),
    ("rlhf.py",),
    ("pt.py",),
)
MICRO, STEPS, LENGTH = "per_device_train_batch_size", "gradient_accumulation_steps", "max_length"
_RANK = 8
_COMMAND = re.compile(
    r"(?:^|[\s/])(?:swift (?:sft|pt|rlhf)|megatron (?:sft|pt|rlhf))\b", re.MULTILINE
)
_OF_MEGATRON = (
    "micro_batch_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "recompute_granularity",
)
_TUNERS = ("tuner_type", "train_type", "sft_type")


def recognise(text: str, _: str) -> bool:
    """Whether a text has options of ms-swift, or is a command of it."""
    if is_mapping(text):
        keys = top_keys(text)
        return "model" in keys and bool({*_TUNERS} & keys)
    return _COMMAND.search(text) is not None


def read(text: LaunchText) -> Launch:
    """Read a file or a command, as `Launcher.read`."""
    reading = shared.reading_of(text, STARTS)
    if reading.job.program == "megatron" or any(one in reading.top for one in _OF_MEGATRON):
        problem = "is of Megatron-SWIFT, which is not read: name model and strategy"
        raise InputError(Fault(source=text.source, problem=problem))
    top = reading.top
    shared.read_model(reading, "model")
    sizes = shared.sizes_of(top, MICRO, 1, STEPS, None)
    loaded = shared.type_named(top, "torch_dtype") or "bf16"
    dtype = shared.half_type(top, default="bf16" if loaded == "fp32" else loaded)
    autotp = top.count("deepspeed_autotp_size")
    engine = shared.engine_of_trainer(reading, sizes, dtype)
    method = _method(reading, str(dtype), loaded)
    if "rlhf_type" in top and str(top.data["rlhf_type"]).lower() not in methods.PREFERENCE_TASKS:
        sizes.steps = sizes.steps or 1
    method.pure = method.rank is None and loaded == dtype != "fp32" and engine.kind == "ddp"
    if autotp is not None and autotp > 1:
        reading.fields |= {"tp": autotp, "tp_exchange": "all_reduce"}
    if (cp := top.count("sequence_parallel_size") or 1) > 1:
        reading.fields |= {"cp": cp, "cp_exchange": "all_to_all", "any_software": True}
    reading.fields |= methods.attention_of(top, "attn_impl") | recompute_fields(top, default=True)
    if methods.flag_of(top, "use_liger_kernel", default=False) and method.task in (
        "sft",
        "pretrain",
    ):
        reading.fields["loss"] = "fused_linear"
    reading.fields["optimizer"] = methods.optimizer_of(top, "optim", "adamw_torch_fused")
    reading.fields |= common_fields(top)
    key = _length(reading)
    shared.read_batching(reading)
    reading.decided |= {**DECIDED} | {"base_weights": ("quant_bits",), "lora_rank": ("lora_rank",)}
    known = options.NEUTRAL, options.COSTLY
    return shared.launch_of_reading(
        reading, NAME, (method, engine, sizes), seq_key=key, known=known
    )


def _method(reading: shared.Reading, dtype: str, loaded: str) -> methods.Method:
    top = reading.top
    method = methods.Method(task=_task(reading), dtype=dtype, loaded=loaded)
    key = next((one for one in _TUNERS if one in top), _TUNERS[0])
    kind = top.word(key, ("lora", "full", "longlora", "adalora", "llamapro", "vera"), "lora")
    if kind not in ("lora", "full"):
        top.wrong(key, "is not modeled; allowed: full, lora")
    rank, dora = top.count("lora_rank") or _RANK, top.flag("use_dora", texts=True)
    modules = methods.targets_of(top, "target_modules", ("all-linear",))
    saved = methods.saved_modules(top, "modules_to_save")
    named = shared.type_named(top, "lora_dtype")
    double = top.flag("bnb_4bit_use_double_quant", default=True, texts=True)
    base = methods.base_of(top, "quant_bits", double=double)
    top.value("bnb_4bit_quant_type")
    quantizer = top.value("quant_method")
    if kind != "lora":
        return method
    method.rank, method.dora, method.targets = rank, dora, (*modules, *saved)
    if named in ("bf16", "fp16"):
        method.pure = True
    if base is not None and quantizer not in (None, "bnb"):
        top.leave("quant_method", "is not modeled: predicted as bitsandbytes", Effect.COST)
    method.base = base
    return method


def _task(reading: shared.Reading) -> str:
    top, verb = reading.top, reading.job.verb
    word = str(top.value("rlhf_type") or ("dpo" if "rlhf" in verb else "")).lower()
    top.value("ref_model")
    top.value("reward_model")
    reading.origins["task"] = Origin.READ if word or verb else Origin.ASSUMED
    if word in methods.PREFERENCE_TASKS:
        if top.flag("precompute_ref_log_probs", texts=True):
            reading.fields["reference_model"] = "precomputed"
        return methods.PREFERENCE_TASKS[word]
    if word:
        reading.found.leave("rlhf_type", word, methods.NO_ROLLOUT, Effect.COST)
    return "pretrain" if "pt" in verb.split() else "sft"


def _length(reading: shared.Reading) -> str:
    """Set the length of a sequence, which is not assumed to be the longest of the model."""
    top = reading.top
    packed = methods.flag_of(top, "packing", default=False)
    key = "packing_length" if packed and "packing_length" in top else LENGTH
    length, own = top.count(key), top.count(LENGTH)
    if length or own:
        reading.fields["seq_len"] = length or own
    if "max_completion_length" in top and reading.job.settings.get("num_generations"):
        reading.fields.pop("seq_len", None)
        completion = top.count("max_completion_length")
        if own and completion:
            reading.fields["seq_len"] = own + completion
            reading.origins["seq_len"] = Origin.DERIVED
    return key
