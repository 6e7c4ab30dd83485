"""Files of other tools and launchers: recognized by their content, read as shardwise fields."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from shardwise import registry
from shardwise.analysis.reference_results import ReferenceEstimate
from shardwise.analysis.saved import kind_of_saved
from shardwise.analysis.saved_plan import find_plan
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.formats import FileFormat
from shardwise.config.inputs import Inputs
from shardwise.config.launch import Launch
from shardwise.config.model import Model
from shardwise.config.readers import Kind
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_input import work_fields
from shardwise.config.system import System
from shardwise.errors import Fault, InputError

_CONFIGS: tuple[type[ConfigBase], ...] = (Model, System, Strategy, Stack)
_OTHERS = {
    frozenset({"traceEvents"}): "is the trace of a profiler: read it with shardwise diagnose",
    frozenset({"model", "system", "measured"}): "is a recipe: set it with --recipe",
    frozenset({"model", "system"}): "is a scenario: compare it with shardwise compare",
}
"""Keys of files that are no config, and what to do with them."""
_MOSTLY = 0.5


def share_of_fields(config: type[ConfigBase], data: Mapping[str, object]) -> float:
    """Return the share of a file's keys that a config type has, without keys of several types."""
    keys = set(data) - {"name", "description", "sources"}
    known = set(config.model_fields) | {"mbs", "gbs"}
    return len(keys & known) / len(keys) if keys else 0.0


def check_kind(config: type[ConfigBase], data: Mapping[str, object], source: str) -> None:
    """Refuse a file that holds something else than a config type, recognized by its fields.

    Raises
    ------
    InputError
        With one fault, in place of one for every field.
    """
    if _format_of(data) is not None:
        return
    if share_of_fields(config, data) >= _MOSTLY:
        return
    if (saved := kind_of_saved(data)) is not None:
        raise InputError(Fault(source=source, problem=saved.problem))
    if is_launch(source):
        problem = f"is a launch file; a {config.__name__.lower()} is expected"
        raise InputError(Fault(source=source, problem=problem))
    unread = registry.find("unread_file")
    if unread is not None and (known := unread(source)) is not None:
        raise InputError(Fault(source=source, problem=known))
    for keys, problem in _OTHERS.items():
        if keys <= set(data):
            raise InputError(Fault(source=source, problem=problem))
    best = max(_CONFIGS, key=lambda other: share_of_fields(other, data))
    if share_of_fields(best, data) > _MOSTLY:
        kind, expected = best.__name__.lower(), config.__name__.lower()
        raise InputError(
            Fault(source=source, problem=f"is a {kind} file; a {expected} is expected")
        )


def recognised(data: Mapping[str, object]) -> tuple[Kind, str] | None:
    """Return what a file of another tool holds, here and in its own words; None if it is none."""
    found = _format_of(data)
    return None if found is None else (found.kinds[0], f"{found.tool} {found.content}")


def native_fields(
    kind: Kind, data: Mapping[str, object], *, name: str, source: str
) -> Mapping[str, object]:
    """Return the fields of a model, system or strategy in a file.

    A mapping that no other tool would have written is returned as it is.

    Parameters
    ----------
    kind
        What the file should hold.
    name
        Name of a model or system whose file has none.

    Raises
    ------
    InputError
        If the file is another tool's, but bad, or not of this kind.
    """
    found = _format_of(data)
    if found is None:
        return data
    if kind not in found.kinds:
        problem = f"holds a {found.tool} {found.content}, not a {kind}"
        raise InputError(Fault(source=source, problem=problem))
    return found.read(kind, data, name, source)


def find_launch(
    path: str | Path, *, model: Model | str | None = None, gpus: int | None = None
) -> Launch | None:
    """Read a file if it is a launch file; None for a file of anything else.

    None also for what cannot be read as text: the reader of the expected file says why.

    Parameters
    ----------
    path
        The file.
    model, gpus
        Model and accelerators of the run, for files that do not hold them.

    Raises
    ------
    InputError
        If it is a launch file and wrong.
    """
    if not is_launch(path):
        return None
    found: Launch = registry.function("read_launch")(path, model=model, gpus=gpus)
    return found


def is_launch(path: str | Path) -> bool:
    """Whether a file is a launch file of a trainer."""
    launcher_of = registry.find("recognised_launcher")
    file, _ = files.file_and_name(path)
    try:
        text = files.read_text(file)
    except InputError:
        return False
    if launcher_of is None or launcher_of(text, file) is None:
        return False
    return not _is_other_tool(file)


def launch_fields(kind: Kind, path: str) -> Mapping[str, object] | None:
    """Return the model or strategy of a launch file, or of a saved plan; None for any other file.

    Raises
    ------
    InputError
        If it is a launch file without a model, or has an ending of no other file.
    """
    if (saved := find_plan(path)) is not None:
        if kind == "strategy":
            return saved.estimate.strategy
        noun = saved.model() if kind == "model" else System.load(saved.system())
        return noun.to_dict()
    if kind == "system" and not files.has_known_ending(path) and is_launch(path):
        raise InputError(Fault(source=path, problem="is a launch file; a system is expected"))
    found = None if kind == "system" else find_launch(path)
    if found is None:
        if kind != "system" and not files.has_known_ending(path):
            files.read_text(path)
            raise InputError(registry.function("not_recognised")(path))
        return None
    if kind == "strategy":
        return found.strategy
    if found.model is None:
        problem = (
            f"holds no model: name the model, and this file as the strategy ({found.launcher})"
        )
        raise InputError(Fault(source=path, problem=problem))
    return found.model.to_dict()


def _is_other_tool(path: str | Path) -> bool:
    """Whether a file that parses is that of a tool that the registry knows."""
    if not files.has_known_ending(path):
        return False
    try:
        return _format_of(files.read_mapping(path)) is not None
    except InputError:
        return False


def fetched_model(name: str) -> Mapping[str, object] | None:
    """Return the config.json of an owner/name on the Hugging Face hub; None for other names."""
    hub = registry.find("hub")
    return hub.fetch_config(name) if hub is not None and hub.is_hub_id(name) else None


def brought(
    model: str, system: Any, strategy: Any, fields: Mapping[str, Any], /, **words: Any
) -> Inputs | None:
    """Return model, system and strategy of an AMPeD configuration or a saved plan, else None."""
    is_plain = words["tables"] is None and words["rows"] is None
    if is_plain and (saved := find_plan(model)) is not None:
        if strategy is None and words["searched"]:
            fields = work_fields(saved.estimate.strategy) | dict(fields)
        elif strategy is None:
            fields = saved.fields(fields)
        return Inputs(
            model=saved.model(),
            system=saved.system() if system is None else system,
            strategy=strategy,
            fields=fields,
            run=words["run"],
        )
    amped = registry.find("amped_inputs")
    if amped is None:
        return None
    found: Inputs | None = amped.brought(model, system, strategy, fields, **words)
    return found


def brings_system(model: str) -> bool:
    """Return whether a model is an AMPeD configuration or a saved plan, which has a system, too."""
    amped = registry.find("amped_inputs")
    if find_plan(model) is not None:
        return True
    return amped is not None and amped.is_configuration(model)


def reference_estimate(name: str, inputs: Inputs, *, layers: bool) -> ReferenceEstimate:
    """Return the answer of another model."""
    answer: ReferenceEstimate = registry.function("reference_estimate")(name, inputs, layers=layers)
    return answer


@cache
def formats() -> tuple[FileFormat, ...]:
    """Return the formats of other tools' files; the first that recognizes a file reads it."""
    homes = (home for one in registry.additions() for home in one.formats)
    return tuple(found for home in homes for found in registry.load(home))


def _format_of(data: Mapping[str, object]) -> FileFormat | None:
    return next((one for one in formats() if one.recognise(data)), None)
