"""What a step would take with other network cards than those that a system assumes.

A system of the catalog describes the usual servers of an accelerator. Clusters have other numbers
and rates of network cards, and few people say theirs, so that the range of the step time covers
them.
"""

import math

from shardwise.analysis.results import AssumedNetwork
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.engine.evaluate import evaluate_row


def assumed_network(model: Model, system: System, table: Table) -> AssumedNetwork | None:
    """Step times of one legal row where the assumed links that it uses are slower and faster.

    By their `rate_spread`. None if the row uses no links that have one.
    """
    inside = [1, *(tier.domain or math.inf for tier in system.network)]
    assumed = [
        place
        for place, tier in enumerate(system.network)
        if tier.rate_spread > 1 and table.gpus[0] > inside[place]
    ]
    if not assumed:
        return None

    def step_s(*, faster: bool) -> float:
        network = list(system.network)
        for place in assumed:
            tier = network[place]
            factor = tier.rate_spread if faster else 1 / tier.rate_spread
            network[place] = tier.model_copy(update={"bandwidth": tier.bandwidth * factor})
        changed = system.model_copy(update={"network": tuple(network)})
        return float(evaluate_row(model, changed, table).step_time_s[0])

    tier = system.network[assumed[-1]]
    return AssumedNetwork(
        tier=tier.name,
        links_per_node=tier.links_per_node or system.node.accelerators,
        link_rate=tier.bandwidth,
        spread=tier.rate_spread,
        slower_step_s=step_s(faster=False),
        faster_step_s=step_s(faster=True),
    )
