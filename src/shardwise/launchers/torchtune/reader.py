"""Configurations and commands of torchtune as fields of a strategy.

Names and defaults are those of v0.6.1 (recipes, recipes/configs).
"""

import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import PurePath

from shardwise import catalog
from shardwise.config.launch import Effect, Launch, Origin
from shardwise.config.model import Model
from shardwise.launchers.fine_tuning import methods
from shardwise.launchers.fine_tuning import reader as shared
from shardwise.launchers.fine_tuning.engines import Engine
from shardwise.launchers.fine_tuning.jobs import is_mapping, top_keys
from shardwise.launchers.launch import LaunchText, fields_named
from shardwise.launchers.sections import Section

NAME, TITLE, STACK = "torchtune", "torchtune", "torchtune-2024"
STARTS = (("tune", "run"),)
MICRO, STEPS, LENGTH = "batch_size", "gradient_accumulation_steps", "tokenizer.max_seq_len"
_BATCH = 2
_NEUTRAL = fields_named(
    "output_dir checkpointer tokenizer dataset dataset_val batch_size_val run_val_every_n_steps"
    " seed shuffle epochs max_steps_per_epoch resume_from_checkpoint save_adapter_weights_only"
    " optimizer lr_scheduler loss clip_grad_norm metric_logger log_every_n_steps"
    " log_peak_memory_stats log_level device profiler cudnn_deterministic_mode name"
    " custom_sharded_layers collate_fn num_steps temperature top_k max_seq_length"
    " safe_serialization enable_async_checkpointing dataloader model epoch_size low_cpu_ram"
    " compile_note parallel_dims"
)
_COSTLY: Mapping[str, object] = {
    "optimizer_in_bwd": False,
    "quantizer": None,
    "fake_quant_after_n_steps": None,
    "teacher_model": None,
    "teacher_checkpointer": None,
    "kd_loss": None,
    "kd_ratio": None,
    "tensor_parallel_plan": None,
    "acc_strategy": None,
    "enable_fp8_training": False,
    "fp8_recipe_name": None,
}
_MLP = ("gate_proj", "up_proj", "down_proj")
_LOSSES = {
    "LinearCrossEntropyLoss": "chunked_logits",
    "CEWithChunkedOutputLoss": "chunked_logits",
    "CrossEntropyLoss": "eager",
}
_DECIDED = {
    "dtype": ("dtype",),
    "recompute": ("enable_activation_checkpointing",),
    "optimizer": ("optimizer",),
    "loss": ("loss",),
    "compile": ("compile",),
    "lora_rank": ("model.lora_rank",),
    "lora_targets": ("model.lora_attn_modules", "model.apply_lora_to_mlp"),
    "base_weights": ("model._component_", "model.quantize_base"),
    "seq_len": (LENGTH,),
    "zero": (),
}


def recognise(text: str, _: str) -> bool:
    """Whether a text is a configuration with torchtune's components, or a command of it."""
    if is_mapping(text):
        return "_component_: torchtune" in text and "model" in top_keys(text)
    return re.search(r"(?:^|\s)tune run\b", text) is not None


def read(text: LaunchText) -> Launch:
    """Read a configuration or a command, as `Launcher.read`."""
    reading = shared.reading_of(text, STARTS)
    top, model = reading.top, reading.top.section("model")
    component = str(model.value("_component_") or "")
    reading.model = text.model or _model(component, top)
    if reading.model is None:
        because = "no model of the catalog: name the model"
        reading.found.leave("model._component_", component, because, Effect.MODEL)
    sizes = shared.sizes_of(top, MICRO, _BATCH, STEPS, 1)
    engine = _engine(reading)
    method = _method(reading, component)
    half = method.dtype != "fp32"
    optimizer = methods.optimizer_of(top.section("optimizer"), "_component_", "AdamW")
    reading.fields["optimizer"] = "adamw-bf16" if optimizer == "adamw" and half else optimizer
    reading.fields |= _memory(top) | _loss(top, method)
    length = top.section("tokenizer").count("max_seq_len")
    if length is not None:
        reading.fields["seq_len"] = length
    if methods.flag_of(top.section("dataset"), "packed", default=False):
        shared.set_batching(reading, "packed", section=top.section("dataset"))
    reading.decided |= _DECIDED
    known = _NEUTRAL, _COSTLY
    return shared.launch_of_reading(
        reading, NAME, (method, engine, sizes), seq_key="max_seq_len", known=known
    )


def _model(component: str, top: Section) -> Model | None:
    """The model of a builder, such as lora_llama3_1_8b, or of the folder of its checkpoint."""
    word = re.sub(r"^(?:lora|qlora|dora)_", "", component.rpartition(".")[2])
    folder = str(top.section("checkpointer").value("checkpoint_dir") or "").rstrip("/")
    for name in (*_names(word), PurePath(folder).name):
        if name and catalog.find("models", name) is not None:
            return Model.load(name)
    return None


def _names(word: str) -> Iterator[str]:
    """Names that a builder may stand for: its underscores are dashes or points."""
    pieces = word.split("_")
    most = 6
    if len(pieces) > most or not word:
        return
    for signs in product("-.", repeat=len(pieces) - 1):
        yield pieces[0] + "".join(a + b for a, b in zip(signs, pieces[1:], strict=True))


def _engine(reading: shared.Reading) -> Engine:
    """FSDP2 on several GPUs; recipes of a single device say so in their name."""
    top, job = reading.top, reading.job
    fields: dict[str, object] = {"stack": STACK}
    origins = {"zero": Origin.DERIVED}
    if job.gpus is None and "single_device" in f"{job.verb} {reading.text.source}":
        job.gpus = 1
        origins["gpus"] = Origin.DERIVED
    reshards = methods.flag_of(top, "fsdp_reshard_after_forward", default=True)
    fields["zero"] = 0 if job.gpus == 1 else 3 if reshards else 2
    if methods.flag_of(top, "fsdp_cpu_offload", default=False) and job.gpus != 1:
        fields |= {"offload_weights": True, "offload_optimizer": True}
    for key, field in (("tensor_parallel_dim", "tp"), ("context_parallel_dim", "cp")):
        if (degree := top.count(key) or 1) > 1:
            fields |= {field: degree, "any_software": True}  # since 2025, after the stack
    replicas = top.count("data_parallel_replicate_dim") or 1
    shard = (
        top.count("data_parallel_shard_dim", least=-1) if "data_parallel_shard_dim" in top else None
    )
    if replicas > 1 and shard not in (None, -1):
        fields["dp_shard"] = shard
    return Engine(kind="fsdp", fields=fields, origins=origins)


def _method(reading: shared.Reading, component: str) -> methods.Method:
    top, model = reading.top, reading.top.section("model")
    word = component.rpartition(".")[2]
    dtype = shared.type_named(top, "dtype") or "bf16"
    method = methods.Method(task=_task(reading), dtype=dtype, loaded=dtype)
    modules = methods.targets_of(model, "lora_attn_modules", ())
    mlp = methods.flag_of(model, "apply_lora_to_mlp", default=False)
    head = methods.flag_of(model, "apply_lora_to_output", default=False)
    rank = model.count("lora_rank")
    dora = methods.flag_of(model, "use_dora", default=False)
    quantized = methods.flag_of(model, "quantize_base", default=word.startswith("qlora_"))
    model.ignore("lora_alpha", "lora_dropout", "image_size", "max_seq_len")
    if word.startswith(("lora_", "qlora_", "dora_")) or rank is not None:
        method.rank, method.dora = rank or 8, dora or word.startswith("dora_")
        method.targets = (*modules, *(_MLP if mlp else ()), *(("head",) if head else ()))
        method.base = "nf4" if quantized else None
    model.leave_unread({}, "is not modeled", Effect.MODEL)
    return method


def _task(reading: shared.Reading) -> str:
    words = f"{reading.job.verb} {reading.top.section('loss').data.get('_component_', '')}".lower()
    if "dpo" in words:
        return "dpo"
    if any(one in words for one in ("grpo", "ppo")):
        reading.found.leave("loss", words.strip(), methods.NO_ROLLOUT, Effect.COST)
    return "sft"


def _memory(top: Section) -> dict[str, object]:
    fields: dict[str, object] = {}
    if methods.flag_of(top, "enable_activation_checkpointing", default=False):
        fields["recompute"] = "full"
    if methods.flag_of(top, "enable_activation_offloading", default=False):
        fields["offload_activations"] = True
    compiled = top.value("compile")
    on = any(compiled.values()) if isinstance(compiled, Mapping) else compiled in (True, "true")
    fields["compile"] = "layers" if on else "none"
    return fields


def _loss(top: Section, method: methods.Method) -> dict[str, object]:
    section = top.section("loss")
    word = str(section.value("_component_") or "").rpartition(".")[2]
    section.ignore(
        "num_output_chunks", "beta", "label_smoothing", "ignore_index", "kl_coeff", "epsilon"
    )
    if word in _LOSSES and method.task == "sft":
        return {"loss": _LOSSES[word]}
    return {}
