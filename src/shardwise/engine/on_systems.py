"""Times of a table's rows on each of several systems of one structure.

Placement, stages and memory are those of one system; component costs are computed once for each
distinct placement and each system.
"""

from dataclasses import dataclass, replace

import numpy as np

from shardwise.arrays import Floats, Ints, gather
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import SystemColumns, SystemRows
from shardwise.cost.component_costs import (
    ComponentCosts,
    PlacedCosts,
    component_costs,
    component_times,
)
from shardwise.cost.layer_cost import LayerBytes
from shardwise.cost.weight_bytes import WeightBytes
from shardwise.distinct import Distinct
from shardwise.engine.evaluate import timed
from shardwise.ops.quantization import WeightSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSystems:
    """Rows of a table and their component costs on each system."""

    _model: Model
    _system: System
    table: Table
    _placed: PlacedCosts
    _systems: SystemColumns
    _components: Distinct[ComponentCosts]
    """Each distinct placement on each system; the system varies fastest."""

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: Table,
        placed: PlacedCosts,
        systems: SystemColumns,
    ) -> "OnSystems":
        """Compute the component costs of placed rows on each system.

        Parameters
        ----------
        system, placed
            A system of that structure, and the rows placed on it.
        """
        _, firsts = np.unique(placed.components.position, return_index=True)
        rows = np.repeat(firsts, len(systems))
        on_each = SystemRows(
            columns=systems, position=np.tile(np.arange(len(systems)), firsts.size)
        )
        return cls(
            _model=model,
            _system=system,
            table=table,
            _placed=placed,
            _systems=systems,
            _components=component_costs(
                model, system, replace(table.take(rows), systems=on_each), placed.extents.take(rows)
            ),
        )

    def pass_times(self, rows: Ints, on: Ints) -> Floats:
        """Time of all passes on the critical stage of some rows, each on one system [s].

        A lower bound of the step time, fast to compute: it needs only times of layers.
        """
        position = self._components.position[self._on_each(rows, on)]
        costs = gather(
            self._components.values, position, but=(LayerBytes, WeightBytes, WeightSizes)
        )
        longest = [
            component_times(costs, group.work, lambda times: times.time_s)
            for group in self._placed.stages.take(rows)
        ]
        return self.table.micro_batches[rows] * np.max(longest, axis=0)

    def step_times(self, rows: Ints, on: Ints, *, waits: bool = True) -> Floats:
        """Times of a step of some rows, each on one of the systems [s]; shape (choices, rows).

        Parameters
        ----------
        waits
            Whether to include the pipeline bubble; without it times are lower bounds.
        """
        here = SystemRows(columns=self._systems, position=on)
        timing = timed(
            self._model,
            self._system,
            replace(self.table.take(rows), systems=here),
            self._placed.extents.take(rows),
            self._components.take(self._on_each(rows, on)),
            self._placed.stages.take(rows),
            waits=waits,
        )
        return np.atleast_2d(timing.step_time_s)

    def _on_each(self, rows: Ints, on: Ints) -> Ints:
        """Positions of the component costs of some rows, each on one system."""
        return self._placed.components.position[rows] * len(self._systems) + on
