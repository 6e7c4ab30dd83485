"""`convert`: a model, system or strategy in a file, as shardwise or another tool has it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, overload

from shardwise import catalog
from shardwise.analysis.reference_results import known_reference
from shardwise.analysis.saved import kind_of_saved
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.model import Model, ModelLike
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, check_path, check_word, refuse
from shardwise.foreign import is_launch, recognised, share_of_fields
from shardwise.predecessors.calculon.translation import (
    calculon_case,
    model_for_calculon,
    system_for_calculon,
)
from shardwise.predecessors.nersc.translation import nersc_model, nersc_system

CONFIGS: Mapping[str, type[ConfigBase]] = {
    "model": Model,
    "system": System,
    "strategy": Strategy,
    "stack": Stack,
}
TARGETS = ("calculon", "nersc")
_UNUSED = "is for a strategy for Calculon"
_MISSING = "is missing: a strategy for Calculon needs its networks"

Kind = Literal["model", "system", "strategy", "stack"]


@overload
def convert(
    file: str | Path, *, to: None = None, kind: Kind | None = None
) -> Model | System | Strategy | Stack: ...


@overload
def convert(
    file: str | Path,
    *,
    to: Literal["calculon", "nersc"],
    kind: Kind | None = None,
    model: ModelLike | None = None,
    system: SystemLike | None = None,
) -> dict[str, Any]: ...


def convert(
    file: str | Path,
    *,
    to: Literal["calculon", "nersc"] | None = None,
    kind: Kind | None = None,
    model: ModelLike | None = None,
    system: SystemLike | None = None,
) -> Model | System | Strategy | Stack | dict[str, Any]:
    """Read a model, system, strategy or stack of any tool, and write it as another tool does.

    Parameters
    ----------
    file
        A file of shardwise, Calculon, SimuMax, NERSC, AMPeD or Hugging Face, or a catalog name.
    to
        Tool whose format to return: ``calculon`` or ``nersc``; by default that of shardwise.
    kind
        What the file contains, if its keys are ambiguous; what to read of an AMPeD configuration,
        which contains a model, a system and a strategy.
    model, system
        Of a strategy for Calculon, which places its groups on the networks of the system.

    Returns
    -------
    A config object, whose `to_file` writes it; or with `to` the content of the other tool's file.

    Raises
    ------
    InputError
        If the file is wrong, or the other tool has no word for something.

    Examples
    --------
    >>> from shardwise import convert
    >>> convert("gpt3-175b", to="nersc")
    {'l': 2048, 'e': 12288, 'h': 96, 'depth': 96, 'f': 49152}
    """
    check_path("file", file)
    target = None if to is None else known_reference(to, "to", TARGETS)
    found = kind_of(file) if kind is None else kind
    check_word("kind", found, tuple(CONFIGS))
    networks = {"model": model, "system": system}
    if target != "calculon" or found != "strategy":
        refuse(Fault.of(n, v, _UNUSED) for n, v in networks.items() if v is not None)
    if target is None:
        config: Any = CONFIGS[found].load(file)
        return config
    if target == "nersc":
        return _for_nersc(found, str(file))
    return _for_calculon(found, file, model, system)


def kind_of(file: str | Path) -> str:
    """Return the type of a file or catalog name, a key of `CONFIGS`."""
    for name, config in CONFIGS.items():
        if is_in_catalog(file, config):
            return name
    if is_launch(file):
        problem = "is a launch file: read it with shardwise import"
        raise InputError(Fault(source=str(file), problem=problem))
    data = files.read_mapping(file)
    recognized = recognised(data)
    if recognized is not None:
        return recognized[0]
    saved = kind_of_saved(data)
    if saved is not None:
        raise InputError(Fault(source=str(file), problem=saved.problem))
    shares = {name: share_of_fields(config, data) for name, config in CONFIGS.items()}
    best = max(shares, key=lambda name: shares[name])
    if shares[best] == 0:
        problem = f"is not a {', '.join(CONFIGS)} or result of a search or sweep; "
        raise InputError(Fault(source=str(file), problem=problem + "set its kind"))
    return best


def is_in_catalog(file: str | Path, config: type[ConfigBase]) -> bool:
    """Whether the catalog has a config of some type and name."""
    name = str(file).strip()
    return config.CATALOG is not None and catalog.find(config.CATALOG, name) is not None


def _for_calculon(
    kind: str, file: str | Path, model: ModelLike | None, system: SystemLike | None
) -> dict[str, Any]:
    if kind == "model":
        return model_for_calculon(file).to_dict()
    if kind == "system":
        return system_for_calculon(file).to_dict()
    if kind != "strategy":
        problem = f"contains a {kind}, for which Calculon has no format"
        raise InputError(Fault(source=str(file), problem=problem))
    if model is None or system is None:
        networks = {"model": model, "system": system}
        raise InputError(
            [Fault(field=n, problem=_MISSING) for n, v in networks.items() if v is None]
        )
    return calculon_case(model, system, file).execution.to_dict()


def _for_nersc(kind: str, file: str) -> dict[str, Any]:
    if kind == "model":
        fields = nersc_model(Model.load(file), file).to_dict()
    elif kind == "system":
        fields = nersc_system(System.load(file), file).to_dict()
    else:
        problem = f"contains a {kind}, for which NERSC has no format"
        raise InputError(Fault(source=file, problem=problem))
    return {name: value for name, value in fields.items() if value is not None}
