"""What a step would take with other network cards than those that a system assumes.

A system of the catalog describes the usual servers of an accelerator. Clusters have other numbers
and rates of network cards, and few people say theirs, so that the range of the step time covers
them.
"""

import math
from functools import partial

import numpy as np

from shardwise.analysis.results import AssumedNetwork
from shardwise.arrays import Floats
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, SystemColumns
from shardwise.distinct import known_of
from shardwise.engine.evaluate import Evaluation


def other_networks(system: System, table: Table) -> SystemColumns | None:
    """The system, and the same with slower and with faster links, by their `rate_spread`.

    None if no row uses links that have one.
    """
    if not any((table.gpus > inside).any() for _, inside in _assumed(system)):
        return None
    return known_of(partial(_with_other_links, system), SystemColumns, system)


def _with_other_links(system: System) -> SystemColumns:
    figures: dict[FigurePath, Floats] = {}
    for place, _ in _assumed(system):
        tier = system.network[place]
        factors = np.array([1.0, 1 / tier.rate_spread, tier.rate_spread])
        figures["network", place, "bandwidth"] = tier.bandwidth * factors
    return SystemColumns(base=system, figures=figures, count=3)


def _assumed(system: System) -> list[tuple[int, float]]:
    """Positions of tiers whose links are assumed, and up to how many accelerators need none."""
    inside = [1, *(tier.domain or math.inf for tier in system.network)]
    spread = enumerate(tier.rate_spread > 1 for tier in system.network)
    return [(place, inside[place]) for place, is_assumed in spread if is_assumed]


def assumed_networks(result: Evaluation) -> list[AssumedNetwork | None]:
    """Step times of rows with slower and with faster links; None for a row that uses none of them.

    Parameters
    ----------
    result
        Rows that were evaluated on `other_networks`.
    """
    system, gpus = result.step.system, result.step.table.gpus.tolist()
    return [_assumed_network(system, result, row, number) for row, number in enumerate(gpus)]


def _assumed_network(
    system: System, result: Evaluation, row: int, gpus: int
) -> AssumedNetwork | None:
    used = [place for place, inside in _assumed(system) if gpus > inside]
    if not used or result.network_step_s is None:
        return None
    tier = system.network[used[-1]]
    _, slower_s, faster_s = result.network_step_s[:, row].tolist()
    return AssumedNetwork(
        tier=tier.name,
        links_per_node=tier.links_per_node or system.node.accelerators,
        link_rate=tier.bandwidth,
        spread=tier.rate_spread,
        slower_step_s=slower_s,
        faster_step_s=faster_s,
    )
