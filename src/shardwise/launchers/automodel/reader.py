"""Configurations and commands of NeMo AutoModel as fields of a strategy."""

import re
from collections.abc import Mapping

from shardwise.config.launch import Effect, Launch, Origin
from shardwise.launchers.automodel import options
from shardwise.launchers.fine_tuning.engines import Engine
from shardwise.launchers.fine_tuning.jobs import is_mapping, top_keys
from shardwise.launchers.fine_tuning.methods import (
    Method,
    attention_of,
    flag_of,
    optimizer_of,
    targets_of,
)
from shardwise.launchers.fine_tuning.reader import (
    Reading,
    Sizes,
    launch_of_reading,
    leave_rest,
    read_model,
    reading_of,
    set_batching,
    type_named,
)
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.sections import Section
from shardwise.launchers.stacks import STACKS

NAME, TITLE, RELEASE = "automodel", "NeMo AutoModel", "0.5.0"
STACK = STACKS[NAME]
STARTS = (
    ("automodel", "*", "llm"),
    ("automodel", "*"),
    ("finetune.py",),
    ("pretrain.py",),
    ("-m", "nemo_automodel.*"),
)
_RANK = 8
_DECIDED = {
    "zero": ("distributed.strategy",),
    "loss": ("loss_fn",),
    "lora_rank": ("peft.dim",),
    "lora_targets": ("peft.target_modules",),
    "optimizer": ("optimizer",),
    "global_batch_size": ("step_scheduler.global_batch_size",),
    "micro_batch_size": ("step_scheduler.local_batch_size",),
    "recompute": ("distributed.activation_checkpointing",),
    "seq_len": ("packed_sequence", "dataset"),
}


def recognise(text: str, _: str) -> bool:
    """Whether a text is a configuration with AutoModel's sections, or a command of it."""
    if is_mapping(text):
        keys = top_keys(text)
        return "step_scheduler" in keys and ("distributed" in keys or "nemo_automodel" in text)
    return re.search(r"(?:^|\s)automodel\s|nemo_automodel", text) is not None


def read(text: LaunchText) -> Launch:
    """Read a configuration or a command, as `Launcher.read`."""
    reading = reading_of(text, STARTS)
    top = reading.top
    _read_model(reading)
    engine = _engine(top)
    sizes = _sizes(reading, engine)
    method = _method(reading)
    reading.fields |= _loss(top) | _kernels(top) | _products(top) | _types(top, method)
    optimizer = top.section("optimizer")
    reading.fields["optimizer"] = optimizer_of(optimizer, "_target_", "AdamW")
    _length(reading)
    top.ignore("optimizer")
    reading.decided |= _DECIDED
    known = options.NEUTRAL, options.COSTLY
    return launch_of_reading(
        reading, NAME, (method, engine, sizes), seq_key="packed_sequence", known=known
    )


def _read_model(reading: Reading) -> None:
    """The model, by its own option or that of its configuration."""
    section = reading.top.section("model")
    key = "pretrained_model_name_or_path"
    inner = section.data.get("config")
    if key not in section and isinstance(inner, Mapping):
        name = inner.get(key) or inner.get("name_or_path")
        section.data = {**section.data, key: name} if name else section.data
    own = reading.top
    reading.top = section
    read_model(reading, key)
    reading.top = own


def _engine(top: Section) -> Engine:
    """Degrees and sharding of `distributed`."""
    section = top.section("distributed")
    fields: dict[str, object] = {"stack": STACK}
    word = section.word("strategy", ("fsdp2", "megatron_fsdp", "ddp"), "fsdp2")
    if word == "megatron_fsdp":
        section.leave("strategy", "is not modeled: predicted as FSDP2", Effect.COST)
    fields["zero"] = 0 if word == "ddp" else 3
    for key, field in options.DEGREES.items():
        if section.data.get(key) in ("none", "None"):
            section.ignore(key)
        elif (degree := section.count(key) or 1) > 1:
            fields[field] = degree
    split = flag_of(section, "sequence_parallel", default=False)
    if "tp" in fields:
        fields["tp_exchange"] = "rs_ag" if split else "all_reduce"
    if not flag_of(section, "reshard_after_forward", default=True):
        fields["fsdp_reshard"] = False
    if not flag_of(section, "defer_fsdp_grad_sync", default=True):
        fields["grad_sync"] = "micro_batch"
    replicas = section.data.get("dp_replicate_size")
    if isinstance(replicas, int) and replicas > 1:
        fields["dp_replicas"] = replicas
    fields |= _recompute(section)
    _pipeline(section)
    leave_rest(section, *options.DISTRIBUTED_NEUTRAL)
    return Engine(kind="fsdp", fields=fields, origins={"zero": Origin.DEFAULT})


def _recompute(section: Section) -> dict[str, object]:
    value = section.value("activation_checkpointing")
    if value in (True, "true", "full"):
        return {"recompute": "full"}
    if value not in (None, False, "false"):
        because = "is not modeled: predicted without recompute"
        section.leave("activation_checkpointing", because, Effect.COST)
    return {}


_SCHEDULES = {"1f1b": "1f1b", "interleaved1f1b": "interleaved", "gpipe": "gpipe"}


def _pipeline(section: Section) -> None:
    pipeline = section.section("pipeline")
    pipeline.ignore(
        *("pp_schedule", "pp_microbatch_size", "scale_grads_in_schedule", "patch_inner_model"),
        *("patch_causal_lm_model", "round_virtual_stages_to_pp_multiple", "pp_batch_size"),
        *("layers_per_stage", "dtype"),
    )
    pipeline.leave_unread({}, "is not modeled", Effect.COST)
    moe = section.section("moe")
    leave_rest(moe, "wrap_outer_model", "ignore_router_for_ac", "reshard_after_forward")


def _sizes(reading: Reading, engine: Engine) -> Sizes:
    """Batch sizes; with stages a micro-batch is that of the schedule."""
    steps = reading.top.section("step_scheduler")
    batch, local = steps.count("global_batch_size"), steps.count("local_batch_size") or 1
    pipeline = reading.top.section("distributed").section("pipeline")
    fields = engine.fields
    micro = local
    if fields.get("pp"):
        micro = pipeline.count("pp_microbatch_size") or 1
        word = str(pipeline.data.get("pp_schedule", "1f1b")).lower()
        layers = pipeline.count("layers_per_stage")
        fields["schedule"] = _SCHEDULES.get(word, "1f1b")
        if word not in _SCHEDULES:
            pipeline.leave("pp_schedule", "is not modeled: predicted as 1f1b", Effect.COST)
        if fields["schedule"] == "interleaved" and layers and reading.model is not None:
            depth, pp = reading.model.depth, int(str(fields["pp"]))
            fields["vpp"] = max(-(-depth // (layers * pp)), 2)
        elif fields["schedule"] == "interleaved":
            fields["schedule"] = "1f1b"
            because = "needs layers_per_stage and the model: predicted as 1f1b"
            pipeline.leave("pp_schedule", because, Effect.COST)
    if batch is not None:
        fields["global_batch_size"] = batch
    replicas = fields.pop("dp_replicas", None)
    gpus = reading.job.gpus
    if isinstance(replicas, int) and gpus:
        degrees = [int(str(fields.get(name) or 1)) for name in ("tp", "cp", "pp")]
        ranks = gpus // (degrees[0] * degrees[1] * degrees[2])
        if ranks % replicas:
            problem = f"must divide the {ranks} data-parallel ranks"
            reading.top.section("distributed").wrong("dp_replicate_size", problem)
        fields["dp_shard"] = max(ranks // replicas, 1)
    leave_rest(steps, *options.STEP_NEUTRAL)
    return Sizes(micro_key="step_scheduler.local_batch_size", steps_key="", micro=micro, steps=1)


def _method(reading: Reading) -> Method:
    top = reading.top
    peft, model = top.section("peft"), top.section("model")
    named = type_named(model, "torch_dtype")
    method = Method(dtype="bf16", loaded=named or "bf16")
    bits = top.section("quantization")
    four, eight = (flag_of(bits, f"load_in_{n}bit", default=False) for n in (4, 8))
    double = flag_of(bits, "bnb_4bit_use_double_quant", default=False)
    leave_rest(bits, "bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "bnb_4bit_quant_storage")
    if not peft.data:
        return method
    method.rank, method.dora = peft.count("dim") or _RANK, flag_of(peft, "use_dora", default=False)
    every = flag_of(peft, "match_all_linear", default=False)
    default = ("all-linear",)
    method.targets = default if every else targets_of(peft, "target_modules", default)
    if every:
        peft.ignore("target_modules")
    type_named(peft, "lora_dtype")
    method.base = ("nf4" if double else "nf4_single") if four else "int8" if eight else None
    leave_rest(peft, *options.PEFT_NEUTRAL, effect=Effect.MODEL)
    return method


def _types(top: Section, method: Method) -> dict[str, object]:
    """Weights in fp32 are updated themselves; in bf16 as the stack does, without masters."""
    model = top.section("model")
    leave_rest(model, *options.MODEL_NEUTRAL, effect=Effect.MODEL)
    if method.loaded != "fp32" or method.rank is not None:
        return {}
    return {"weight_dtype": "fp32", "gradient_dtype": "fp32", "moment_dtype": "fp32"}


def _loss(top: Section) -> dict[str, object]:
    section = top.section("loss_fn")
    word = str(section.value("_target_") or "")
    section.ignore(*section.data)
    known = {one.rpartition(".")[2]: loss for one, loss in options.LOSSES.items()}
    loss = known.get(word.rpartition(".")[2])
    if loss is None and word:
        section.leave("_target_", "is not modeled: predicted as the loss of the stack", Effect.COST)
    return {} if loss is None else {"loss": loss}


def _kernels(top: Section) -> dict[str, object]:
    """Kernels of attention and experts, dispatcher, and compilation."""
    model = top.section("model")
    backend = model.section("backend")
    fields: dict[str, object] = {}
    word = str(backend.value("attn") or "")
    if word in options.ATTENTION:
        fields["attention_kernel"] = {"eager": "unfused"}.get(word, options.ATTENTION[word])
    elif word and word != "sdpa":
        backend.leave("attn", "is not modeled: predicted as the kernel of the stack", Effect.COST)
    else:
        fields |= attention_of(model, "attn_implementation")
    dispatcher, experts = (
        str(backend.value("dispatcher") or ""),
        str(backend.value("experts") or ""),
    )
    if top.section("distributed").data.get("ep_size") not in (None, 1, "none"):
        fields |= (
            {"dispatcher": options.DISPATCHERS[dispatcher]}
            if dispatcher in options.DISPATCHERS
            else {}
        )
        fields |= {"expert_kernel": options.EXPERTS[experts]} if experts in options.EXPERTS else {}
    balanced = flag_of(backend, "fake_balanced_gate", default=False)
    if balanced:
        fields["expert_imbalance"] = 1.0
    backend.ignore(*options.BACKEND_NEUTRAL)
    backend.leave_unread({"fake_gate_noise": None}, "is not modeled", Effect.COST)
    compiled = top.section("compile")
    if flag_of(compiled, "enabled", default=False):
        fields["compile"] = "layers"
    return fields


def _products(top: Section) -> dict[str, object]:
    """Products in fp8 (torchao)."""
    section = top.section("fp8")
    if not flag_of(section, "enabled", default=False):
        return {}
    word = section.word("recipe_name", tuple(options.FP8), "tensorwise")
    gathers = flag_of(section, "enable_fsdp_float8_all_gather", default=False)
    return {"quantization": options.FP8[word], "quantized_weights": gathers}


def _length(reading: Reading) -> None:
    """Length of packed rows, or that which the data are cut to."""
    top = reading.top
    packed, data = top.section("packed_sequence"), top.section("dataset")
    length = packed.count("packed_sequence_size", least=0)
    leave_rest(packed, "split_across_pack", "packing_strategy", "max_packs", "packing_ratio")
    cut = data.data.get("seq_length") or data.data.get("seq_len") or data.data.get("max_seq_length")
    if length:
        reading.fields["seq_len"] = length
        set_batching(reading, "packed_sequence_size", section=packed)
    elif isinstance(cut, int):
        reading.fields["seq_len"] = cut
