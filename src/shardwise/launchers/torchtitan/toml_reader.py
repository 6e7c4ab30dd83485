"""TOML files of torchtitan v0.1 to v0.2.2, and the scripts that launch them."""

import re
from collections.abc import Iterator, Mapping

from shardwise.config.launch import Launch
from shardwise.config.model import Model
from shardwise.config.parse import parse
from shardwise.errors import Fault, InputError, nearest
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.torchtitan.flavors import (
    FLAVORS,
    SUFFIXES,
    find_flavor,
    model_of,
)
from shardwise.launchers.torchtitan.options import Options, OptionValue, current_name
from shardwise.launchers.torchtitan.to_fields import Reading, strategy_fields

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
    )


def model_named(reading: Reading) -> Model:
    """Model of a family and flavor.

    Raises
    ------
    InputError
        If shardwise does not know them.
    """
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
