"""Inputs of a verb: names and files, or an AMPeD configuration, which holds all of them."""

from collections.abc import Mapping
from typing import Any

from shardwise import registry
from shardwise.cli.options import COMMAND_LINE
from shardwise.config import files
from shardwise.config import inputs as config_inputs
from shardwise.config.inputs import Inputs
from shardwise.config.model import Model
from shardwise.config.readers import foreign
from shardwise.errors import InputError


def read_inputs(
    model: str | Model,
    system: str | None,
    *,
    strategy: str | None,
    flags: Mapping[str, Any],
    run: Mapping[str, Any],
    tables: str | None = None,
    searched: bool = False,
) -> Inputs:
    """Read model, system and strategy from the command line or an AMPeD configuration.

    With a configuration as MODEL, SYSTEM is optional; other arguments override the configuration.
    """
    if system is None:
        system_or_config(model, system)
    return config_inputs.read_inputs(
        model, system, strategy, flags, run=run, tables=tables, searched=searched
    )


def show_imported(inputs: Inputs) -> None:
    """Print how the fields of the configuration were read, if there is one."""
    if inputs.imported is not None:
        registry.function("print_amped_import")(inputs.imported)


def system_or_config(model: str | Model, system: str | None) -> str:
    """Return the system, or an AMPeD configuration as MODEL, which includes it."""
    if system is not None:
        return system
    if isinstance(model, str):
        if foreign().brings_system(model):
            return model
        if files.is_file_name(model.strip()):
            Model.load(model)  # a fault of the file is more useful
    problem = "Missing argument SYSTEM, such as h100-sxm (to list them: shardwise systems)"
    raise InputError.at(COMMAND_LINE, problem)
