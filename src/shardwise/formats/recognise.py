"""Files of other systems, recognised by their content and turned into fields of our nouns."""

from collections.abc import Mapping
from typing import Any, Literal

from shardwise.errors import Fault, InputError
from shardwise.formats.calculon import model_fields, strategy_fields, system_fields
from shardwise.formats.calculon_files import (
    CalculonExecution,
    CalculonModel,
    CalculonSystem,
    looks_like,
)

__all__ = ["native_fields"]

Kind = Literal["model", "system", "strategy"]
_CALCULON = {"model": "model", "system": "system", "execution": "strategy"}


def native_fields(
    kind: Kind, data: Mapping[str, Any], *, name: str, source: str
) -> Mapping[str, Any]:
    """Return the fields of a model, system or strategy that a file holds.

    A mapping that no other system would have written is returned as it is.

    Parameters
    ----------
    kind
        What the file is wanted to be.
    name
        What to call a model or system whose file has no name for it.

    Raises
    ------
    InputError
        If the file is another system's, but bad, or not of this kind.
    """
    file = looks_like(data)
    if file is None:
        return data
    if _CALCULON[file] != kind:
        problem = f"holds a Calculon {file}, not a {kind}"
        raise InputError(Fault(source=source, problem=problem))
    if file == "model":
        return model_fields(CalculonModel.parse(data, source), name)
    if file == "system":
        return system_fields(CalculonSystem.parse(data, source), name, source)
    return strategy_fields(CalculonExecution.parse(data, source), source)
