"""Extents, layer costs and stages of a table's rows, each evaluated once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from shardwise.arrays import Ints, gather
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import ComponentCosts, ComponentOperations, component_costs
from shardwise.cost.layer_times import LayerTimes
from shardwise.cost.trained_weights import TrainedWeights
from shardwise.distinct import Distinct, evaluate_distinct
from shardwise.parallel.pipeline_layout import StageGroup, distinct_stage_groups
from shardwise.parallel.placement import Extents, place

__all__ = ["PlacedCosts"]


@dataclass(frozen=True, slots=True)
class PlacedCosts:
    """Extents, layer costs and stages of a table's rows, each distinct one once."""

    extents: Distinct[Extents]
    components: Distinct[ComponentCosts]
    stages: Distinct[tuple[StageGroup, ...]]

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: Table,
        costs: Sequence[ComponentOperations] | None = None,
    ) -> "PlacedCosts":
        """Place the axes, cost the layers and lay out the stages.

        Parameters
        ----------
        costs
            `operation_costs` of a table of one row, if they are known already.
        """
        extents = evaluate_distinct(partial(place, system), table)
        components = component_costs(model, system, table, extents, costs)
        return cls(extents, components, distinct_stage_groups(model, table))

    def without_times(self, rows: Ints | slice) -> ComponentCosts:
        """Costs of some rows for `memory` alone, which reads none of their times."""
        position = self.components.position[rows]
        return gather(self.components.values, position, but=(LayerTimes, TrainedWeights))
