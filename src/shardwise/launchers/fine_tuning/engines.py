"""What runs a job: DDP, FSDP or DeepSpeed, with the files of accelerate and DeepSpeed.

Their own readers read these files; the trainer's values stand in for `auto`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from shardwise.config import files
from shardwise.config.launch import Origin
from shardwise.config.model import Model
from shardwise.config.plain import as_yaml
from shardwise.launchers import accelerate
from shardwise.launchers.deepspeed.files import config_fields
from shardwise.launchers.fine_tuning.jobs import Job, Settings, companion, read_settings
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.sections import AUTO, Found, Section
from shardwise.launchers.stacks import STACKS

STACK = STACKS["accelerate"]
_TRAINER_SIZES = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_BY_NAME = re.compile(r"(?:^|[_/-])z(?:ero)?[_-]?([0-3])(?![0-9])", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class Engine:
    """Who shards and reduces, as fields of a strategy."""

    kind: str
    """ddp, fsdp or deepspeed."""
    fields: dict[str, object] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Given:
    """What a trainer's own options say, which files of engines leave to it."""

    dtype: str | None
    """Type of products; None: files of engines say it."""
    micro: int | None
    steps: int | None
    gpus: int | None
    model: Model | None


def engine_of(job: Job, top: Section, given: Given, *, version: int = 2) -> Engine:
    """Return the engine of `deepspeed`, `fsdp` with `fsdp_config`, or of `accelerate launch`.

    Parameters
    ----------
    version
        Version of FSDP where the options name none.
    """
    named = top.value("deepspeed")
    if named not in (None, False, ""):
        if isinstance(named, Mapping):
            return deepspeed(dict(named), top.found, given)
        return deepspeed_file(str(named), top, given, job.folder)
    config = top.data.get("fsdp_config")
    words = fsdp_words(top)
    if words or (config and top.data.get("fsdp") is not False):
        return _fsdp(top, words, config if isinstance(config, Mapping) else {}, given, version)
    top.ignore("fsdp_config")
    if job.launcher:
        return launched(job.launcher, top.found, given, job.folder)
    # A command says what starts it; a file alone may be started with FSDP or DeepSpeed.
    origin = Origin.DEFAULT if job.program or given.gpus == 1 else Origin.ASSUMED
    return Engine(kind="ddp", fields={"stack": STACK, "zero": 0}, origins={"zero": origin})


# --- DeepSpeed ------------------------------------------------------------------------------------


def deepspeed_file(name: str, top: Section, given: Given, folder: Path | None) -> Engine:
    """Read DeepSpeed's JSON by its path, or a name that a trainer has for one.

    Of a file that is not here, a name with a stage in it says the stage.
    """
    place = companion(name, folder)
    if place is not None:
        return deepspeed(read_settings(files.read_text(place), str(place)), top.found, given)
    stage = _BY_NAME.search(PurePath(name).name)
    if stage is None:
        top.wrong("deepspeed", "no such file from here or from a folder above this file")
        return Engine(kind="deepspeed")
    own = PurePath(name).suffix == ""
    if not own:
        top.leave("deepspeed", f"is not modeled: the file is not here; by its name ZeRO {stage[1]}")
    engine = deepspeed(
        stage_settings(int(stage[1]), offload=offloads_by_name(name)), top.found, given
    )
    if not own:
        engine.origins["zero"] = Origin.ASSUMED
    return engine


def offloads_by_name(name: str) -> tuple[str, ...]:
    """Return what a configuration moves to the host by its name (zero3_bf16_cpuoffload_params)."""
    stem = PurePath(name).stem.lower()
    if "offload" not in stem:
        return ()
    if stem.endswith("params"):
        return ("param",)
    return ("optimizer", "param") if "3" in stem else ("optimizer",)


def stage_settings(stage: int, *, offload: tuple[str, ...] = ()) -> Settings:
    """Return a configuration of DeepSpeed as those of ms-swift and LLaMA-Factory are."""
    zero: Settings = {"stage": stage, "overlap_comm": False, "reduce_bucket_size": AUTO}
    zero |= {f"offload_{one}": {"device": "cpu"} for one in offload}
    half = {name: {"enabled": AUTO} for name in ("bf16", "fp16")}
    return {"zero_optimization": zero, **half}


def deepspeed(data: Settings, found: Found, given: Given) -> Engine:
    """Return the fields of a configuration of DeepSpeed."""
    prefix = "deepspeed."
    own = dict(data)
    for half in ("bf16", "fp16"):
        section = own.get(half)
        if isinstance(section, Mapping) and section.get("enabled") == AUTO:
            own[half] = {**section, "enabled": given.dtype == half}
    sizes = dict(zip(_TRAINER_SIZES, (given.micro, given.steps), strict=True))
    for name, size in sizes.items():
        written = own.pop(name, None)
        if isinstance(written, int) and size is not None and written != size:
            found.wrong(prefix + name, written, f"must be the {size} of the trainer, or auto")
    batch = own.pop("train_batch_size", None)
    kept = found.not_understood
    before = len(kept)
    fields = config_fields(own, found, model=given.model, gpus=given.gpus, prefix=prefix)
    # The trainer turns checkpoints on, not the JSON.
    kept[before:] = [one for one in kept[before:] if not one.option.endswith("_checkpointing")]
    if isinstance(batch, int) and batch and given.gpus is None:
        found.leave(prefix + "train_batch_size", batch, "set gpus: it follows from them")
    return Engine(kind="deepspeed", fields=fields)


# --- accelerate -----------------------------------------------------------------------------------


def fsdp_words(top: Section) -> list[str]:
    """Return the words of the option `fsdp`: true, or strategy, wrapping and offload."""
    value = top.value("fsdp")
    if value in (None, False, ""):
        return []
    if value is True:
        return ["full_shard"]
    words = value if isinstance(value, list) else re.split(r"[\s,]+", str(value))
    return [str(word).lower() for word in words if word]


_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_FSDP1_ONLY = ("no_shard", "hybrid_shard", "hybrid_shard_zero2")


def _fsdp(
    top: Section, words: list[str], config: Mapping[str, Any], given: Given, version: int
) -> Engine:
    """FSDP by the options of transformers' TrainingArguments."""
    top.ignore("fsdp", "fsdp_config", "fsdp_version", "fsdp_final_state_dict_type")
    top.ignore("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
    own = {key if key.startswith("fsdp_") else f"fsdp_{key}": one for key, one in config.items()}
    number = top.data.get("fsdp_version") or own.pop("fsdp_version", None) or version
    if any(word in _FSDP1_ONLY for word in words):
        number = 1
    if own.pop("fsdp_cpu_offload", False) or "offload" in words:
        own["fsdp_offload_params"] = True
    strategy = next((word for word in words if word in _STRATEGIES), None)
    unknown = [
        word for word in words if word not in (*_STRATEGIES, "offload", "auto_wrap", "fsdp2")
    ]
    for word in unknown:
        top.wrong(
            "fsdp", f"has the word {word}; allowed: auto_wrap, offload, {', '.join(_STRATEGIES)}"
        )
    if number in (1, "1") and strategy is not None:
        own.setdefault("fsdp_sharding_strategy", strategy.upper())
    elif number in (2, "2"):
        own.pop("fsdp_sharding_strategy", None)
        own.pop("fsdp_backward_prefetch", None)
        if strategy == "shard_grad_op":
            own.setdefault("fsdp_reshard_after_forward", False)
    for name in _NEUTRAL_FSDP:
        own.pop(name, None)
    own.setdefault("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    own["fsdp_version"] = number
    return launched({"distributed_type": "FSDP", "fsdp_config": own}, top.found, given)


_NEUTRAL_FSDP = (
    *("fsdp_xla", "fsdp_xla_fsdp_v2", "fsdp_xla_fsdp_grad_ckpt", "fsdp_limit_all_gathers"),
    *("fsdp_final_state_dict_type", "fsdp_cpu_offload_pin_memory", "fsdp_mixed_precision_policy"),
)


def launched(settings: Settings, found: Found, given: Given, folder: Path | None = None) -> Engine:
    """Return the engine of a configuration of accelerate."""
    own: dict[str, Any] = dict(settings)
    kind = str(own.get("distributed_type", "NO")).upper()
    if given.dtype in ("bf16", "fp16"):
        own["mixed_precision"] = given.dtype
    if given.gpus is not None:
        own["num_processes"] = given.gpus
    nested = own.get("deepspeed_config")
    named = nested.get("deepspeed_config_file") if isinstance(nested, Mapping) else None
    if kind == "DEEPSPEED" and isinstance(named, str):
        place = companion(named, folder)
        if place is not None:
            return deepspeed(read_settings(files.read_text(place), str(place)), found, given)
    if kind == "DEEPSPEED" and isinstance(nested, Mapping):
        own["deepspeed_config"] = {k: v for k, v in nested.items() if k not in _TRAINER_SIZES}
    text = LaunchText(source=found.source, text=as_yaml(own), model=given.model, gpus=given.gpus)
    launch = accelerate.LAUNCHER.read(text)
    found.not_understood.extend(launch.not_understood)
    fields = dict(launch.strategy)
    engine = {"FSDP": "fsdp", "DEEPSPEED": "deepspeed"}.get(kind, "ddp")
    return Engine(kind=engine, fields=fields, origins=dict(launch.origins))
