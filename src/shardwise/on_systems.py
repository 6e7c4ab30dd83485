"""Times of a table's rows on each of several systems of one structure.

Placement, stages and memory are those of one system; blocks are costed once for each distinct one
and each system.
"""

from dataclasses import dataclass, replace

import numpy as np

from shardwise.arrays import Floats, Ints, gather
from shardwise.blocks import Blocks, PlacedBlocks, blocks_of
from shardwise.evaluate import timed
from shardwise.model import Model
from shardwise.system import System
from shardwise.system_columns import SystemColumns, SystemRows
from shardwise.table import Table

__all__ = ["OnSystems"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSystems:
    """Rows of a table, and what their blocks cost on each system."""

    _model: Model
    _system: System
    _table: Table
    _placed: PlacedBlocks
    _systems: SystemColumns
    _blocks: Blocks
    """Every distinct one on each system, systems changing first."""

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: Table,
        placed: PlacedBlocks,
        systems: SystemColumns,
    ) -> "OnSystems":
        """Cost the blocks of placed rows on each system.

        Parameters
        ----------
        system, placed
            A system of that structure, and the rows placed on it.
        """
        _, firsts = np.unique(placed.position, return_index=True)
        rows, on_each = _each(firsts, systems)
        return cls(
            _model=model,
            _system=system,
            _table=table,
            _placed=placed,
            _systems=systems,
            _blocks=blocks_of(
                model, system, replace(table.take(rows), systems=on_each), placed.extents(rows)
            ),
        )

    def step_times(self, rows: Ints) -> Floats:
        """Times of a step of some rows [s]; shape (choices, rows, systems)."""
        several, on_each = _each(rows, self._systems)
        position = self._placed.position[several] * len(self._systems) + on_each.position
        timing = timed(
            self._model,
            self._system,
            replace(self._table.take(several), systems=on_each),
            self._placed.extents(several),
            gather(self._blocks, position),
            self._placed.runs(several),
        )
        return timing.step_time_s.reshape(-1, rows.size, len(self._systems))


def _each(rows: Ints, systems: SystemColumns) -> tuple[Ints, SystemRows]:
    """Every row on every system, systems changing first."""
    several = len(systems)
    position = np.tile(np.arange(several), rows.size)
    return np.repeat(rows, several), SystemRows(columns=systems, position=position)
