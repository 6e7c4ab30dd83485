"""Plans as torchtitan's TOML, and its TOML as strategies."""

import re
from collections.abc import Iterator, Mapping

from shardwise.config.launch import Launch
from shardwise.config.model import Model
from shardwise.config.parse import parse
from shardwise.config.plain import as_json, plain
from shardwise.errors import Fault, InputError, nearest
from shardwise.launchers.launch import LaunchFile, LaunchPlan, LaunchText
from shardwise.launchers.torchtitan.fields import (
    STEPS,
    Reading,
    options_of,
    origins,
    strategy_fields,
)
from shardwise.launchers.torchtitan.header import header
from shardwise.launchers.torchtitan.models import (
    FLAVORS,
    SUFFIXES,
    TOML_RELEASE,
    find_flavor,
    model_of,
)
from shardwise.launchers.torchtitan.options import Options, OptionValue, current_name

NAME = "torchtitan"
_SECTIONS = {"job", "model", "training", "parallelism", "activation_checkpoint", "optimizer"}
_RELEASE = re.compile(r"^# .*\btorchtitan v?(\d+\.\d+(?:\.\d+)?)\b", re.MULTILINE)
_OWN = re.compile(
    r"data_parallel_shard_degree|fsdp_reshard_after_forward|selective_ac_option|dump_folder|"
    r"hf_assets_path|local_batch_size|tensor_parallel_degree"
)


def is_toml(text: str) -> bool:
    """Whether a text has the sections of a torchtitan TOML, whatever is wrong in them."""
    sections = set(re.findall(r"^\s*\[([a-z_]+)\]\s*(?:#.*)?$", text, re.MULTILINE))
    return {"model", "training"} <= sections and (
        len(sections & _SECTIONS) >= 4 or bool(_OWN.search(text))  # noqa: PLR2004
    )


def read_toml(launch: LaunchText, overrides: Mapping[str, OptionValue] | None = None) -> Launch:
    """Read a TOML; `overrides` are options of a command line, by the names they have there.

    Raises
    ------
    InputError
        If it is no TOML, or values are wrong or missing.
    """
    data = parse(launch.text, ".toml", launch.source, most_bytes=len(launch.text))
    written = dict(_flat(data)) | dict(overrides or {})
    options: Options = {current_name(name): value for name, value in written.items()}
    return launch_of(launch, options)


def launch_of(launch: LaunchText, options: Options) -> Launch:
    """The launch of a configuration by its options.

    Raises
    ------
    InputError
        If values are wrong or missing.
    """
    reading = Reading(source=launch.source, set_options=options, gpus=launch.gpus)
    model = launch.model or model_named(reading)
    fields = strategy_fields(reading, model)
    release = _RELEASE.search(launch.text)
    return Launch(
        launcher=NAME,
        release=release[1] if release else None,
        source=launch.source,
        model=model,
        strategy=fields,
        not_understood=tuple(reading.left),
        origins=origins(reading, fields),
    )


def model_named(reading: Reading) -> Model:
    """Model of a family and flavor.

    Raises
    ------
    InputError
        If shardwise does not know them.
    """
    if (config := reading.set_options.get("model.config")) is not None:  # flame
        problem = "is a configuration of Hugging Face, which is not read here: name the model"
        raise InputError(Fault.of("model.config", config, problem, reading.source))
    family, name = (str(reading.options[f"model.{key}"]) for key in ("name", "flavor"))
    family = "llama3" if family == "llama" else family  # its name in 2024
    found = find_flavor(family, name) or find_flavor(family, f"{name}_irope")
    for suffix in SUFFIXES:
        if found is None and name.endswith(suffix):
            found = find_flavor(family, name.removesuffix(suffix))
            reading.leave(
                "model.flavor",
                "masks attention by document; set document_len for the length of documents",
            )
    if found is not None:
        return model_of(found)
    families = list(dict.fromkeys(one.family for one in FLAVORS))
    known = [one.flavor for one in FLAVORS if one.family == family] or families
    field = "model.flavor" if family in families else "model.name"
    value = reading.options[field]
    problem = f"shardwise knows {', '.join(known)}{nearest(str(value), known)}; or set a model"
    raise InputError(Fault.of(field, value, problem, reading.source))


def _flat(data: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, OptionValue]]:
    """Options by their full names."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif value is None or isinstance(value, (bool, int, float, str, list)):
            yield name, value
        else:
            yield name, str(value)


# Options that make a run short, quiet and independent of other files, and defaults to hold on to.
_RUN: Mapping[str, OptionValue] = {
    "profiling.enable_profiling": False,
    "metrics.log_freq": 10,
    "checkpoint.enable": False,
    "validation.enable": False,
    "training.dataset": "c4_test",
    "training.steps": STEPS,
    "training.mixed_precision_reduce": "float32",
    "optimizer.implementation": "fused",
    "lr_scheduler.warmup_steps": 2,
    "parallelism.disable_loss_parallel": False,
    "parallelism.context_parallel_load_balancer": "headtail",
    "activation_checkpoint.early_stop": False,
    "debug.moe_force_load_balance": False,
}
_ORDER = (
    *("job", "profiling", "metrics", "model", "optimizer", "lr_scheduler", "training"),
    *("parallelism", "checkpoint", "activation_checkpoint", "compile", "quantize"),
    *("validation", "debug"),
)
_TOML = "FILE.toml"


def write_toml(plan: LaunchPlan) -> LaunchFile:
    """Return the TOML of a plan that v0.2.2 can run."""
    options: Options = {
        "job.description": f"{plan.model.name} on {plan.strategy.gpus} x {plan.system.name}",
        **_RUN,
        **options_of(plan, TOML_RELEASE),
    }
    above = header(
        plan,
        TOML_RELEASE,
        f"--job.config_file {_TOML}",
        f"in a checkout of torchtitan {TOML_RELEASE} (its test tokenizer and data are used), "
        f"{_TOML} being this file",
    )
    return LaunchFile(ending=".toml", text=above + "".join(_sections(options)))


def _sections(options: Options) -> Iterator[str]:
    """Sections of a TOML file with their options, in the order of torchtitan's own files."""
    tables: dict[str, dict[str, OptionValue]] = {}
    for name, value in options.items():
        section, _, key = name.rpartition(".")
        tables.setdefault(section, {})[key] = value
    for section in sorted(tables, key=lambda name: (_ORDER.index(name.split(".")[0]), name)):
        yield f"\n[{section}]\n"
        for key, value in tables[section].items():
            yield f"{key} = {_as_toml(plain(value))}\n"


def _as_toml(value: object) -> str:
    """A value as TOML; lists of lists on lines of their own."""
    if isinstance(value, list):
        items = [_as_toml(item) for item in value]
        if value and isinstance(value[0], list):
            return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    if isinstance(value, str):
        return as_json(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
