"""Files and commands of axolotl as fields of a strategy."""

from shardwise.config.enums import Batching
from shardwise.config.launch import Effect, Launch
from shardwise.launchers.axolotl import options
from shardwise.launchers.fine_tuning import methods
from shardwise.launchers.fine_tuning import reader as shared
from shardwise.launchers.fine_tuning.engines import Engine
from shardwise.launchers.fine_tuning.jobs import is_mapping, top_keys
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.sections import Section
from shardwise.launchers.trl.reader import DECIDED, common_fields

NAME, TITLE, RELEASE = "axolotl", "axolotl", "0.18.0"
STARTS = (
    ("axolotl", "train"),
    ("-m", "axolotl.cli.train"),
    ("-m", "axolotl.cli.*"),
    ("finetune.py",),
)
MICRO, STEPS, LENGTH = "micro_batch_size", "gradient_accumulation_steps", "sequence_len"
_LENGTH = 512
_FLAGS = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "xformers_attention": "xformers",
    "flex_attention": "flex_attention",
    "eager_attention": "eager",
}
"""Options of releases before 0.17 that `attn_implementation` replaced."""
_ROLLOUTS = ("grpo", "gdpo", "ebft")


def recognise(text: str, _: str) -> bool:
    """Whether a text has options of axolotl, or is a command of it."""
    if is_mapping(text):
        keys = top_keys(text)
        return "base_model" in keys and bool(options.SURE & keys)
    return "axolotl train" in text or "axolotl.cli.train" in text


def read(text: LaunchText) -> Launch:
    """Read a file or a command, as `Launcher.read`."""
    reading = shared.reading_of(text, STARTS)
    top = reading.top
    shared.read_model(reading, "base_model")
    dtype = _type(top)
    sizes = _sizes(top)
    engine = shared.engine_of_trainer(reading, sizes, dtype, version=1)
    method = _method(reading, dtype)
    method.pure |= method.rank is None and dtype != "fp32" and engine.kind == "ddp"
    reading.fields |= _attention(top) | _recompute(reading) | _loss(top, method.task)
    reading.fields["optimizer"] = methods.optimizer_of(top, "optimizer", "adamw_torch_fused")
    reading.fields["seq_len"] = top.count(LENGTH) or _LENGTH
    reading.fields |= common_fields(top) | _degrees(top, engine)
    shared.read_fp8(reading)
    _data(reading)
    reading.decided |= {**DECIDED, **_DECIDED}
    known = options.NEUTRAL, options.COSTLY
    return shared.launch_of_reading(
        reading, NAME, (method, engine, sizes), seq_key=LENGTH, known=known
    )


_DECIDED = {
    "optimizer": ("optimizer",),
    "base_weights": ("load_in_4bit", "load_in_8bit", "adapter"),
    "loss": (options.FUSED_LIGER, options.CUT, options.CHUNKED, "plugins"),
}


def _type(top: Section) -> str:
    """Type of products, which weights are loaded in: bf16 unless another one is set."""
    halves = ("float16", "bfloat16", "tf32")
    top.ignore(*halves)
    if top.data.get("float16") is True:
        return "fp16"
    if top.data.get("fp16") == "auto":
        top.ignore("fp16")
    return shared.half_type(top, default="bf16") or "bf16"


def _sizes(top: Section) -> shared.Sizes:
    """Micro-batch and accumulation; `batch_size` is their product."""
    micro, steps, batch = top.count(MICRO) or 1, top.count(STEPS), top.count("batch_size")
    if steps is None and batch is not None:
        steps = max(batch // micro, 1)
        if batch % micro:
            top.wrong("batch_size", f"must be a multiple of {MICRO} {micro}")
    return shared.Sizes(micro_key=MICRO, steps_key=STEPS, micro=micro, steps=steps or 1)


def _method(reading: shared.Reading, dtype: str) -> methods.Method:
    """Task, adapters and types of frozen weights."""
    top = reading.top
    method = methods.Method(task=_task(reading), dtype=dtype, loaded=dtype)
    adapter = top.value("adapter")
    bits = {key: top.flag(key, texts=True) for key in ("load_in_4bit", "load_in_8bit")}
    rank = top.count("lora_r")
    dora = top.flag("peft_use_dora", texts=True)
    linear = top.flag("lora_target_linear", texts=True)
    if linear:
        top.ignore("lora_target_modules")
        modules: tuple[str, ...] = ("all-linear",)
    else:
        modules = methods.targets_of(top, "lora_target_modules", methods.DEFAULT_TARGETS)
    saved = methods.saved_modules(top, "lora_modules_to_save")
    if adapter in (None, "", "none"):
        if any(bits.values()):
            top.wrong(
                "load_in_4bit" if bits["load_in_4bit"] else "load_in_8bit", "needs an adapter"
            )
        return method
    if adapter not in ("lora", "qlora"):
        top.wrong("adapter", "is not modeled; allowed: lora, qlora")
    if rank is None:
        top.wrong("lora_r", "is required with an adapter")
    method.pure = not top.flag("peft_autocast_adapter_dtype", default=True, texts=True)
    method.rank, method.dora = rank, dora
    method.targets = (*modules, *saved)
    if bits["load_in_4bit"]:
        method.base = "nf4"
    elif bits["load_in_8bit"]:
        method.base = "int8"
    elif adapter == "qlora":
        top.leave("adapter", "without load_in_4bit the base has the type of products")
    return method


def _task(reading: shared.Reading) -> str:
    top = reading.top
    word = str(top.value("rl") or "").lower()
    reading.decided["task"] = ("rl",)
    if top.data.get("reward_model") is True:
        top.ignore("reward_model")
        return "rm"
    if word in ("", "none"):
        return "pretrain" if "pretraining_dataset" in top else "sft"
    if word in _ROLLOUTS:
        top.leave("rl", methods.NO_ROLLOUT, Effect.COST)
        return "sft"
    if word not in methods.PREFERENCE_TASKS:
        top.wrong("rl", f"allowed: {', '.join((*methods.PREFERENCE_TASKS, *_ROLLOUTS))}")
        return "sft"
    if top.flag("precompute_ref_log_probs", texts=True) and methods.PREFERENCE_TASKS[word] in (
        "dpo",
        "kto",
    ):
        reading.fields["reference_model"] = "precomputed"
    return methods.PREFERENCE_TASKS[word]


def _attention(top: Section) -> dict[str, object]:
    for key, word in _FLAGS.items():
        if top.flag(key, texts=True) and "attn_implementation" not in top:
            top.data = {**top.data, "attn_implementation": word}
    return methods.attention_of(top, "attn_implementation")


def _recompute(reading: shared.Reading) -> dict[str, object]:
    """Recompute of layers, with checkpoints on the device or on the host."""
    top = reading.top
    value = top.value("gradient_checkpointing")
    if value in (None, False, "false"):
        return {}
    if value in ("offload", "offload_disk", "unsloth"):
        if value == "offload_disk":
            top.leave("gradient_checkpointing", "is not modeled: on disk, predicted as on the host")
        return {"recompute": "full", "checkpoint_place": "host"}
    if value not in (True, "true"):
        top.wrong("gradient_checkpointing", "allowed: true, false, offload, offload_disk")
    return {"recompute": "full"}


def _loss(top: Section, task: str) -> dict[str, object]:
    """The loss of the head, by options and plugins; naming that of CCE turns it on."""
    value = top.value("plugins")
    plugins = [str(one) for one in value] if isinstance(value, list) else []
    named = {one.rpartition(".")[2] for one in plugins}
    for one in plugins:
        if one.rpartition(".")[2] not in options.PLUGINS:
            top.found.leave("plugins", one, "is not modeled", Effect.COST)
    fused = top.flag(options.FUSED_LIGER, texts=True)
    fused = fused or top.flag("liger_cross_entropy", texts=True)
    cut = top.flag(options.CUT, default="CutCrossEntropyPlugin" in named, texts=True)
    chunked = top.flag(options.CHUNKED, texts=True)
    top.ignore("flash_attn_cross_entropy", "unsloth_cross_entropy_loss")
    if task not in ("sft", "pretrain"):
        return {}
    word = "fused_linear" if fused else "cut" if cut else "chunked" if chunked else None
    return {} if word is None else {"loss": word}


def _degrees(top: Section, engine: Engine) -> dict[str, object]:
    """Degrees of axolotl's own options, next to an engine."""
    fields: dict[str, object] = {}
    tp = top.count("tensor_parallel_size") or 1
    cp = top.count("context_parallel_size") or top.count("sequence_parallel_degree") or 1
    ep = top.count("expert_parallel_size") or 1
    shard, replicas = top.count("dp_shard_size"), top.count("dp_replicate_size") or 1
    if tp > 1:
        fields |= {"tp": tp, "tp_exchange": "all_reduce"}
    if cp > 1:
        fields |= {"cp": cp, "cp_exchange": "all_to_all" if engine.kind == "deepspeed" else "ring"}
    if ep > 1:
        fields["ep"] = ep
    if shard is not None and replicas > 1 and engine.kind == "fsdp":
        fields["dp_shard"] = shard
    return fields


def _data(reading: shared.Reading) -> None:
    """Packed and flat rows have one attention for each document."""
    top = reading.top
    top.ignore("pad_to_sequence_len", "pad_to_multiple_of", "max_packed_sequence_len")
    top.ignore("pretraining_sample_concatenation")
    if top.flag("sample_packing", texts=True):
        shared.set_batching(reading, "sample_packing")
    elif top.flag("batch_flattening", texts=True) is True:
        shared.set_batching(reading, "batch_flattening", Batching.PADDING_FREE)
