"""Time of the optimizer step, and its parts."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_OPTIMIZER
from shardwise.config.strategy_table import Table
from shardwise.cost.component_costs import ComponentCosts, component_bytes
from shardwise.cost.optimizer import (
    UpdateBytes,
    newton_schulz_time,
    quantizing_time,
    update_bytes,
)
from shardwise.engine.critical_stage import LargestStage
from shardwise.engine.zero import shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The optimizer step of the stage that trains the most weights."""

    moved: UpdateBytes
    """At the rate of element-wise kernels."""
    products_s: Floats
    """Muon's iterations, which make the updates of matrices orthogonal; the ranks that share the
    state each do their share (arXiv 2502.16982, section 2.3) [s]."""
    quantizing_s: Floats
    """Quantizing the updated weights [s]."""

    @classmethod
    def of(cls, table: Table, costs: ComponentCosts, largest: LargestStage) -> "Update":
        """Compute the parts of the step.

        Parameters
        ----------
        table
            Strategies of n rows.
        costs
            Costs by component; columns of shape (n,).
        largest
            The stage that trains the most weights; columns of shape (n,).
        """
        reduced, owned = (
            largest.trained.over(dense).plus(largest.expert_trained.over(expert))
            for dense, expert in (shards(table, ZERO_GRADIENTS), shards(table, ZERO_OPTIMIZER))
        )
        return cls(
            moved=update_bytes(
                table,
                reduced=reduced,
                owned=owned,
                element_bytes=costs.element_bytes,
                gradient_bytes=costs.gradient_bytes,
            ),
            products_s=newton_schulz_time(table.optimizer, owned, costs.matrix_rate),
            quantizing_s=quantizing_time(
                table,
                quantized=component_bytes(
                    costs, largest.resident, lambda size: size.all_quantized_parameters
                ),
                trained=largest.all_trained.quantized,
                sizes=costs.weight_sizes,
                memory_rate=costs.memory_rate,
            ),
        )

    def time_s(self, table: Table, memory_rate: Floats) -> Floats:
        """Time of the step; 0 forward only [s].

        Parameters
        ----------
        table
            Strategies of n rows.
        memory_rate
            Rate of element-wise kernels [byte/s]; shape (n,).
        """
        moving = self.moved.total / memory_rate + self.products_s
        return np.where(table.training, moving + self.quantizing_s, 0.0)
