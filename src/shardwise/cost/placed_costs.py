"""Extents, blocks and stages of a table's rows, each evaluated once."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.arrays import Ints, gather, once_per
from shardwise.config.enums import Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import (
    ComponentCosts,
    ComponentOperations,
    component_costs,
    operation_columns,
)
from shardwise.cost.layer_times import LayerTimes
from shardwise.cost.trained_weights import TrainedWeights
from shardwise.parallel.pipeline_layout import StageGroup, distinct_stage_groups
from shardwise.parallel.placement import Extents, place

__all__ = ["PlacedCosts", "placed_costs"]


@dataclass(frozen=True, slots=True)
class PlacedCosts:
    """Extents, blocks and stages of a table's rows, each distinct one once."""

    _placed: Extents
    _where: Ints
    _blocks: ComponentCosts
    _position: Ints
    _runs: tuple[StageGroup, ...]
    _pipeline: Ints

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: Table,
        costs: Sequence[ComponentOperations] | None = None,
    ) -> "PlacedCosts":
        """Place the axes and cost the blocks, once for each value of what they depend on.

        Those of one row may be known already, as in `component_costs`.
        """
        tiers = (table.tp_tier, table.cp_tier, table.dp_tier, table.pp_tier)
        degrees = [table.tp, table.tp2, table.cp, table.dp, table.pp, table.placement, *tiers]
        degrees.append(table.extents)
        if model.has_experts:
            degrees += [table.ep, table.etp]
        placed, where = once_per(degrees, lambda rows: place(system, table.take(rows)))
        columns = (
            *operation_columns(model, table, placed.take(where)),
            table.recompute,
            table.recompute_parts,
            table.recompute_layers > 0,
            table.expert_overlap,
            table.schedule == Schedule.DUALPIPE.code,
            table.training,
            table.quantized_weights,
            table.offload_weights,
            table.offload_activations,
            table.optimizer,
            table.offload_parts,
        )

        def cost(rows: Ints) -> ComponentCosts:
            return component_costs(model, system, table.take(rows), placed.take(where[rows]), costs)

        blocks, position = once_per(columns, cost)
        return cls(placed, where, blocks, position, *distinct_stage_groups(model, table))

    def of_every_row(self) -> tuple[Extents, ComponentCosts, tuple[StageGroup, ...]]:
        """Extents, blocks and stages of all rows."""
        placed, blocks = self._placed.take(self._where), gather(self._blocks, self._position)
        return placed, blocks, gather(self._runs, self._pipeline)

    def extents(self, rows: Ints | slice) -> Extents:
        """Extents of some rows."""
        return self._placed.take(self._where[rows])

    def blocks(self, rows: Ints | slice) -> ComponentCosts:
        """Blocks of some rows."""
        return gather(self._blocks, self._position[rows])

    def without_times(self, rows: Ints | slice) -> ComponentCosts:
        """Blocks of some rows for `memory` alone, which asks for none of their times."""
        return gather(self._blocks, self._position[rows], but=(LayerTimes, TrainedWeights))

    @property
    def position(self) -> Ints:
        """The number of each row's blocks among the distinct ones."""
        return self._position

    def runs(self, rows: Ints | slice) -> tuple[StageGroup, ...]:
        """Stages of some rows."""
        return gather(self._runs, self._pipeline[rows])


def placed_costs(
    model: Model, system: System, table: Table, costs: Sequence[ComponentOperations] | None = None
) -> tuple[Extents, ComponentCosts, tuple[StageGroup, ...]]:
    """Place the axes, cost the blocks and lay out the stages of every row."""
    return PlacedCosts.of(model, system, table, costs).of_every_row()
