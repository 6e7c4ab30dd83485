"""Files of other systems, recognised by their content and turned into fields of our nouns."""

from collections.abc import Callable, Mapping
from typing import Any

from shardwise.config.readers import Kind
from shardwise.errors import Fault, InputError
from shardwise.interop.amped import files as amped_files
from shardwise.interop.amped.imported import fields_of
from shardwise.interop.calculon import files as calculon_files
from shardwise.interop.calculon import reader as calculon
from shardwise.interop.huggingface import hub
from shardwise.interop.huggingface import models as huggingface
from shardwise.interop.nersc import files as nersc_files
from shardwise.interop.nersc import reader as nersc
from shardwise.interop.simumax import files as simumax_files
from shardwise.interop.simumax import reader as simumax
from shardwise.interop.simumax import system as simumax_system
from shardwise.interop.simumax.system_files import SimumaxSystem

__all__ = ["fetched_model", "native_fields", "recognised"]

_CALCULON: dict[str, Kind] = {"model": "model", "system": "system", "execution": "strategy"}
# By whose file it is; of the mapping, a name for what has none, and where it was read.
_READERS: dict[str, Callable[[Mapping[str, Any], str, str], Mapping[str, Any]]] = {
    "Calculon model": lambda data, name, source: calculon.model_fields(
        calculon_files.CalculonModel.parse(data, source), name, source
    ),
    "Calculon system": lambda data, name, source: calculon.system_fields(
        calculon_files.CalculonSystem.parse(data, source), name, source
    ),
    "Calculon execution": lambda data, _, source: calculon.strategy_fields(
        calculon_files.CalculonExecution.parse(data, source), source
    ),
    "SimuMax model": lambda data, name, source: simumax.model_fields(
        simumax_files.SimumaxModel.validated(data, source=source), name, source
    ),
    "SimuMax system": lambda data, name, source: simumax_system.system_fields(
        SimumaxSystem.validated(data, source=source), name, source
    ),
    "SimuMax strategy": lambda data, _, source: simumax.strategy_fields(
        simumax_files.SimumaxStrategy.validated(data, source=source), source
    ),
    "NERSC model": lambda data, name, source: nersc.model_fields(
        nersc_files.NerscModel.validated(data, source=source), name
    ),
    "NERSC system": lambda data, name, source: nersc.system_fields(
        nersc_files.NerscSystem.validated(data, source=source), name
    ),
    "Hugging Face model": huggingface.model_fields,
}


def recognised(data: Mapping[str, Any]) -> tuple[Kind, str] | None:
    """Tell what a file of another system is, here and in its own words; None if it is none."""
    if amped := amped_files.looks_like(data):
        return "model", f"AMPeD {amped}"  # and a system and a strategy
    if theirs := calculon_files.looks_like(data):
        return _CALCULON[theirs], f"Calculon {theirs}"
    if known := simumax_files.looks_like(data):
        return known, f"SimuMax {known}"
    if found := nersc_files.looks_like(data):
        return found, f"NERSC {found}"
    return ("model", "Hugging Face model") if huggingface.looks_like(data) else None


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
    found = recognised(data)
    if found is None:
        return data
    holds, words = found
    if words == "AMPeD lookup tables":
        problem = "holds AMPeD's lookup tables; give the configuration that looks them up"
        raise InputError(Fault(source=source, problem=problem))
    if words == "AMPeD configuration":
        config = amped_files.read_config(data, source)
        return fields_of(kind, config, name)
    if holds != kind:
        raise InputError(Fault(source=source, problem=f"holds a {words}, not a {kind}"))
    return _READERS[words](data, name, source)


def fetched_model(name: str) -> Mapping[str, Any] | None:
    """Fetch the config.json of an owner/name on the Hugging Face hub; None if the name is none."""
    return hub.fetch_config(name) if hub.is_hub_id(name) else None
