"""Inputs of a question: model, system and strategy, or one file that brings several of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise import catalog
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.readers import foreign
from shardwise.config.strategy_input import explicit_fields, work_fields
from shardwise.errors import Fault, InputError
from shardwise.records import dataclass

_NO_SYSTEM = "is missing: name a system, such as h100-sxm, or a file"
_NEEDS_CONFIG = "is for an AMPeD configuration as MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Model, system and strategy: catalog names, files, or read from an AMPeD configuration."""

    model: Any
    system: Any
    strategy: Any = None
    """A strategy or its file, whose fields `fields` override."""
    fields: Mapping[str, Any]
    run: Mapping[str, Any]
    """What a training run is, such as its tokens; those of the configuration by default."""
    config: Any = None
    """The configuration, if it sets model, system and strategy."""
    changed: frozenset[str] = frozenset()
    """Fields that override its strategy."""
    imported: Mapping[str, Any] | None = None
    """How the fields of the configuration were read."""

    def imported_record(self) -> dict[str, Any]:
        """Return how the fields of the configuration were read; empty without one."""
        return {} if self.imported is None else {"imported": self.imported}

    def question(self) -> dict[str, Any]:
        """Return the fields that say what is trained and with what, which a search keeps."""
        own = {} if self.strategy is None else explicit_fields(self.strategy)
        return work_fields(own | dict(self.fields))


def read_inputs(
    model: Any,
    system: Any,
    strategy: Any,
    fields: Mapping[str, Any],
    *,
    run: Mapping[str, Any] | None = None,
    tables: str | Path | None = None,
    rows: Mapping[str, str] | None = None,
    searched: bool = False,
) -> Inputs:
    """Return model, system and strategy; an AMPeD configuration brings those that are missing.

    Parameters
    ----------
    model, system, strategy
        Of a user; None for a system or strategy that the configuration brings.
    run
        What a training run is; `tokens` are those of the configuration by default.
    tables
        Lookup tables of the configuration; by default those in its folder.
    rows
        Rows of the tables to use in place of its own: `accelerator`, `transformer`.
    searched
        Whether the strategy is searched, for the work that the configuration describes.

    Raises
    ------
    InputError
        If the system is missing for another model, or the configuration is wrong.
    """
    run = run or {}
    words = {"run": run, "tables": tables, "rows": rows, "searched": searched}
    if is_file(model):
        found = foreign().brought(str(model), system, strategy, fields, **words)
        if isinstance(found, Inputs):
            return found
    for field, value in {"tables": tables, "rows": rows}.items():
        if value is not None:
            raise InputError(Fault.of(field, value, _NEEDS_CONFIG))
    system = system_of(model, system)
    return Inputs(model=model, system=system, strategy=strategy, fields=fields, run=run)


def is_file(model: object) -> bool:
    """Whether a model is a file, or FILE#N, by its ending, and none of the catalog."""
    path = str(model).strip() if isinstance(model, (str, Path)) else ""
    known = any(map(files.has_known_ending, (path, path.rpartition("#")[0])))
    return known and catalog.find("models", path) is None


def system_of(model: Any, system: Any) -> Any:
    """Return the system, or the AMPeD configuration that `model` is, which has one.

    Raises
    ------
    InputError
        If it is missing.
    """
    if system is not None:
        return system
    if is_file(model) and foreign().brings_system(str(model)):
        return model
    Model.load(model)  # a fault of the model is more useful
    raise InputError(Fault(field="system", problem=_NO_SYSTEM))
