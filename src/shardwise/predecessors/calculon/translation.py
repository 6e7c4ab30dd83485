"""Runs as Calculon describes them: shardwise configurations, or its own files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shardwise import catalog
from shardwise.arrays import Ints
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.model import Model, ModelLike
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.parallel.placement import place
from shardwise.predecessors.calculon import reference as calculon
from shardwise.predecessors.calculon.files import (
    CalculonExecution,
    CalculonFile,
    CalculonModel,
    CalculonSystem,
    check_together,
    looks_like,
)
from shardwise.predecessors.calculon.writer import (
    calculon_execution,
    calculon_model,
    calculon_system,
)
from shardwise.predecessors.translation import with_dtype_of

T = TypeVar("T", bound=CalculonFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculonCase:
    """A run as Calculon describes it."""

    model: CalculonModel
    system: CalculonSystem
    execution: CalculonExecution

    def statistics(self) -> dict[str, float | int | None]:
        """Return Calculon's 96 statistics.

        Raises
        ------
        reference.calculon.Infeasible
            If Calculon refuses the run.
        """
        return calculon.statistics(self.model, self.system, self.execution)

    def answer(self) -> dict[str, Any]:
        """Return Calculon's statistics, or why it refuses the run."""
        try:
            return self.statistics()
        except calculon.Infeasible as refusal:
            return {"infeasible": refusal.reason, "message": refusal.sentence}

    def layers(self) -> list[dict[str, Any]]:
        """Return Calculon's statistics by operation."""
        return calculon.layer_statistics(self.model, self.system, self.execution)


def calculon_case(
    model: ModelLike,
    system: SystemLike,
    strategy: Strategy | Mapping[str, Any] | str | Path,
    *,
    source: str = "",
) -> CalculonCase:
    """Describe a run in Calculon's words; its own files are used as they are.

    Sequences are as long as the strategy says; one of Calculon's execution files leaves the length
    to the model.
    """
    named = source or _file_name(strategy, Strategy) or "strategy"
    the_system = system_for_calculon(system)
    execution = _own_file(strategy, Strategy, "execution", CalculonExecution)
    if execution is not None:
        the_model = model_for_calculon(model)
    else:
        loaded = Model.load(model)
        machine = System.load(system)
        complete = with_dtype_of(machine, Strategy.load(strategy))
        resolved = complete.resolved(loaded, machine.stack)
        the_model = model_for_calculon(model, seq_len=resolved.seq_len)
        execution = _execution(loaded, machine, resolved, named)
    check_together(the_model, the_system, execution, source=named)
    return CalculonCase(model=the_model, system=the_system, execution=execution)


def model_for_calculon(model: ModelLike, *, seq_len: int | None = None) -> CalculonModel:
    """Return a model of the catalog or of a file as Calculon's, its sequences of a set length."""
    theirs = _own_file(model, Model, "model", CalculonModel)
    length = {} if seq_len is None else {"seq_len": seq_len}
    if theirs is None:
        return calculon_model(Model.load(model).to_dict() | length, _file_name(model, Model))
    return theirs if seq_len is None else theirs.model_copy(update={"seq_size": seq_len})


def system_for_calculon(system: SystemLike) -> CalculonSystem:
    """Return a system of the catalog or of a file as Calculon's."""
    theirs = _own_file(system, System, "system", CalculonSystem)
    return theirs or calculon_system(System.load(system).to_dict(), _file_name(system, System))


def _file_name(name: object, config_type: type[ConfigBase]) -> str:
    """Name of the file that `ConfigBase.load` would read; empty if it is none."""
    if not isinstance(name, (str, Path)):
        return ""
    text = str(name).strip()
    if config_type.CATALOG is not None and catalog.find(config_type.CATALOG, text) is not None:
        return ""
    return text if isinstance(name, Path) or (text and files.is_file_name(text)) else ""


def _own_file(name: object, config_type: type[ConfigBase], kind: str, file: type[T]) -> T | None:
    """Parse a file or mapping that is already Calculon's."""
    if isinstance(name, Mapping):
        data, source = dict(name), kind
    elif source := _file_name(name, config_type):
        data = files.read_mapping(source)
    else:
        return None
    return file.parse(data, source) if looks_like(data) == kind else None


def _execution(model: Model, system: System, resolved: Strategy, source: str) -> CalculonExecution:
    extents = place(system, Table.of(model, [resolved]))
    tiers = {axis: _outermost(getattr(extents, axis)[:, 0]) for axis in ("tp", "pp", "dp")}
    chosen = {axis: getattr(resolved, f"{axis}_tier") for axis in tiers}
    return calculon_execution(
        resolved.to_dict(),
        multiquery=all(layer.attention.kv_heads == 1 for layer in model.layers),
        tiers=tiers | {axis: tier for axis, tier in chosen.items() if tier is not None},
        source=source,
    )


def _outermost(extents: Sequence[int] | Ints) -> int:
    """Position of the outermost tier that an axis spans; the innermost for an axis of one."""
    reached = np.asarray(extents)
    return int(np.argmax(reached == reached[-1]))
