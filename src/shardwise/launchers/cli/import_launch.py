"""`shardwise import`."""

from collections.abc import Mapping
from typing import Any

from shardwise import catalog
from shardwise.cli.help import OUTPUT, with_help
from shardwise.cli.launch import not_understood
from shardwise.cli.options import (
    JSON_FLAG,
    VARIABLES_OPTION,
    arg,
    flag_fault,
    launch_variables,
    opt,
)
from shardwise.cli.output import check_different_files, emit_json, log
from shardwise.config import files
from shardwise.config.arguments import whole_number
from shardwise.config.base import ConfigBase
from shardwise.config.launch import Launch
from shardwise.config.model import Model
from shardwise.config.software.resolve import is_description, resolve
from shardwise.config.strategy import Strategy
from shardwise.launchers.registry import read_launch
from shardwise.launchers.software import described_as
from shardwise.ops.param_count import count_parameters
from shardwise.report.tables.software import match_record


@with_help(examples=["shardwise import train.sh --output strategy.yaml"])
def command(
    file: str = arg(
        "FILE",
        "Launch file, recognized by its content: Megatron-LM command line, script or "
        "argument file; Megatron-Bridge or NeMo YAML; torchtitan TOML or Python (of "
        "several configurations FILE.py:NAME); DeepSpeed JSON; accelerate YAML; files and "
        "commands of fine-tuning (LLaMA-Factory, axolotl, TRL, torchtune, AutoModel, ms-swift, "
        "verl, OpenRLHF).",
    ),
    model: str | None = opt(
        "--model MODEL", "Model, for files without one (DeepSpeed, accelerate)."
    ),
    gpus: str | None = opt("--gpus N", "Number of GPUs, if the file does not set it."),
    stack: str | None = opt(
        "--stack STACK",
        'Software that runs it: a description ("Megatron-LM core_v0.12, 2025-05"), or a stack of '
        "the catalog or its file. Default: the release that the file names, else the launcher's.",
    ),
    set_: list[str] | None = VARIABLES_OPTION,
    json: bool = JSON_FLAG,
    output: str | None = opt(
        "--output -o FILE", "Write a strategy file (.yaml, .json, also .gz).", OUTPUT
    ),
    model_output: str | None = opt(
        "--model-output FILE", "Write a model file (.yaml, .json, also .gz).", OUTPUT
    ),
) -> int:
    """Read a launch file of a trainer: model, strategy, stack, and what is not understood.

    Scripts are parsed, never run. The file itself may also stand where other verbs expect MODEL, or
    with --strategy.
    """
    paths = {"output": output, "model_output": model_output}
    check_different_files(**paths)
    for path in paths.values():
        if path is not None:
            files.check_writable_ending(path)
    named = None if model is None else Model.load(model)
    number = whole_number("gpus", gpus)
    launch = read_launch(file, model=named, gpus=number, variables=launch_variables(set_ or ()))
    if stack is not None:
        launch = described_as(launch, stack)
    strategy = Strategy.validated(launch.strategy, source=launch.source)
    if model_output is not None:
        if launch.model is None:
            problem = "there is no model to write: the file holds none"
            raise flag_fault("model_output", model_output, problem)
        _write(launch.model, model_output)
    if output is not None:
        fields = strategy.explicit_fields(launch.strategy)
        files.write_mapping(output, fields, kind="strategy")
        log.info("wrote %s", output)
    record = launch_summary(launch)
    if json:
        emit_json(record)
    else:
        from shardwise.launchers.tables.launch import print_launch  # noqa: PLC0415 - slow to import

        print_launch(record)
    return 0


def _write(config: ConfigBase, path: str) -> None:
    config.to_file(path)
    log.info("wrote %s", path)


def launch_summary(launch: Launch) -> dict[str, Any]:
    """Return what a launch file says, as plain values."""
    strategy = Strategy.validated(launch.strategy, source=launch.source)
    fields: Mapping[str, Any] = strategy.explicit_fields(launch.strategy)
    model = launch.model
    stack = strategy.stack
    match = resolve(stack, None, model, strategy.stated_options) if is_description(stack) else None
    known = model is not None and catalog.find("models", model.name) is not None
    return {
        "source": launch.source,
        "launcher": launch.launcher,
        "release": launch.release,
        "fork": launch.fork,
        "model": None
        if model is None
        else {
            "name": model.name,
            "catalog": known and Model.load(model.name) == model,
            "parameters": count_parameters(model).total,
        },
        "stack": fields.get("stack"),
        "software": None if match is None else match_record(match),
        "strategy": {name: value for name, value in fields.items() if name != "stack"},
        "origins": {name: str(one) for name, one in launch.origins.items() if name in fields},
        "incomplete": list(launch.missing),
        "not_understood": not_understood(launch),
    }
