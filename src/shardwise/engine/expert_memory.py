"""The part of routed experts in the memory of a stage's weights."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.strategy_table import Table
from shardwise.cost.component_costs import ComponentCosts
from shardwise.engine.memory import StageMemory
from shardwise.engine.memory_tiers import in_tiers
from shardwise.engine.zero import (
    Shares,
    WeightTotals,
    gathers_master,
    largest_gradients,
    releases,
    weight_totals,
)
from shardwise.parallel.pipeline_layout import StageGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMemory:
    """Memory of the weights of routed experts on a rank, by kind [byte]."""

    weights: Floats
    gradients: Floats
    optimizer: Floats


def expert_memory(
    table: Table, costs: ComponentCosts, group: StageGroup, memory: StageMemory
) -> ExpertMemory | None:
    """The share of routed experts in `StageMemory`; None for a model without experts.

    Weights and optimizer state follow the ZeRO shards of expert replicas and the tier of all
    weights of layers. At the peak either all gradients of the stage are there, or none, or, where
    weights are updated in backward, those of its largest component.

    Parameters
    ----------
    table
        Strategies of n rows.
    costs
        Costs by component; columns of shape (n,).
    group
        One stage group; columns of shape (n,).
    memory
        Of the same rows (`stage_memory`).
    """
    layers, _ = weight_totals(costs, group)
    if layers.expert is None:
        return None
    experts = WeightTotals(layers.expert, None)
    shares = Shares.of(table, costs).of_experts()
    stored = experts.weights(shares, releases(table))
    state = in_tiers(
        experts.shared("state", shares.optimizer), table.offload_optimizer, group.layers
    )
    master = experts.shared("master", shares.optimizer) * state.share
    master = np.where(gathers_master(table, costs), master, 0.0)
    early = table.by_stack(lambda stack: stack.update_in_backward) & table.training
    gradients = np.where(
        early,
        largest_gradients(costs, group, Shares.of(table, costs).gradients, of_experts=True),
        experts.shared("gradients", shares.gradients),
    )
    return ExpertMemory(
        weights=in_tiers(stored, table.offload_weights, group.layers).here + master,
        gradients=np.where(memory.gradients > 0, gradients, 0.0),
        optimizer=state.here - master,
    )
