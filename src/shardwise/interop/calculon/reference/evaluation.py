"""What Calculon says of executions: one, or a table of them."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints, gather
from shardwise.interop.calculon.files import (
    CalculonExecution,
    CalculonModel,
    CalculonSystem,
    check_together,
)
from shardwise.interop.calculon.reference.batch import batch_of, holding_of
from shardwise.interop.calculon.reference.columns import Columns
from shardwise.interop.calculon.reference.layers import layers_of
from shardwise.interop.calculon.reference.stats import STAT_FIELDS, statistics_of
from shardwise.interop.calculon.reference.verdicts import (
    VERDICTS,
    Infeasible,
    explain,
    memory_verdict,
    placement_verdict,
)

__all__ = ["Statistics", "evaluate", "layer_statistics", "statistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of a table of executions."""

    verdict: Ints
    """Position in `VERDICTS`; 0 is feasible."""
    values: dict[str, Floats]
    """The 96 statistics by name, in the order of `STAT_FIELDS`.

    NaN where Calculon says nothing, and in rows that fail before memory is known; a row that only
    lacks memory has them, and `proc_mem_tier1_cap_req` says how much it needs.
    """

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]

    def row(self, index: int) -> dict[str, float | int | None]:
        """Return one row, with None for NaN."""
        return {name: _plain(float(column[index])) for name, column in self.values.items()}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def evaluate(model: CalculonModel, system: CalculonSystem, executions: Columns) -> Statistics:
    """Evaluate a table of executions that have passed `check_together` with model and system.

    A row is evaluated as if it stood alone, but costs a fraction of a microsecond to a few.
    """
    verdict = placement_verdict(model, system, executions)
    placed = np.flatnonzero(verdict == 0)
    some = gather(executions, placed)
    values = {name: np.full(len(executions), np.nan) for name in STAT_FIELDS}
    if placed.size:
        holding = holding_of(model, some)
        memory = holding.memory
        verdict[placed] = memory_verdict(memory.tier1, memory.tier2, system)
        batch = batch_of(model, system, some, holding)
        for name, column in statistics_of(batch, some, system).items():
            values[name][placed] = column
    return Statistics(verdict=verdict, values=values)


def statistics(
    model: CalculonModel, system: CalculonSystem, execution: CalculonExecution
) -> dict[str, float | int | None]:
    """Evaluate one execution.

    Raises
    ------
    InputError
        If the execution does not go with the model and the system.
    Infeasible
        If Calculon refuses it, with its reason.
    """
    check_together(model, system, execution)
    columns = Columns.of([execution])
    found = evaluate(model, system, columns)
    reason = VERDICTS[int(found.verdict[0])]
    if reason:
        needs = {
            "tier1": float(found["proc_mem_tier1_cap_req"][0]),
            "tier2": float(found["proc_mem_tier2_cap_req"][0]),
        }
        raise Infeasible(reason, explain(reason, model, system, execution, needs))
    return found.row(0)


def layer_statistics(
    model: CalculonModel, system: CalculonSystem, execution: CalculonExecution
) -> list[dict[str, Any]]:
    """List the operations of a block as Calculon's `-l`: 48 fields each.

    Inference does not change them: Calculon shows what the backward pass would take.
    """
    statistics(model, system, execution)  # refuses what cannot run
    columns = Columns.of([execution])
    columns = replace(columns, training=np.ones_like(columns.training))
    return layers_of(model, system, columns)
