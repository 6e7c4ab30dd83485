"""What a step would take with other network cards than those that a system assumes.

A system of the catalog describes the usual servers of an accelerator. Clusters have other numbers
and rates of network cards, and few people say theirs, so that the range of the step time covers
them.
"""

import math
from dataclasses import replace

import numpy as np

from shardwise.analysis.results import AssumedNetwork
from shardwise.arrays import Floats
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, SystemColumns, SystemRows
from shardwise.distinct import distinct_rows
from shardwise.engine.evaluate import step_time_s


def assumed_networks(model: Model, system: System, table: Table) -> list[AssumedNetwork | None]:
    """Step times of legal rows where the assumed links that they use are slower and faster.

    By their `rate_spread`. None for a row that uses no links that have one.
    """
    inside = [1, *(tier.domain or math.inf for tier in system.network)]
    spread = [place for place, tier in enumerate(system.network) if tier.rate_spread > 1]
    found: list[AssumedNetwork | None] = [None] * len(table)
    if not spread:
        return found
    uses = np.stack([table.gpus > inside[place] for place in spread])
    firsts, group = distinct_rows(list(uses))
    for number, first in enumerate(firsts.tolist()):
        assumed = [place for place, used in zip(spread, uses[:, first], strict=True) if used]
        if not assumed:
            continue
        rows = np.flatnonzero(np.broadcast_to(group, len(table)) == number)
        tier = system.network[assumed[-1]]
        slower_s, faster_s = _step_times(model, system, table.take(rows), assumed)
        for at, row in enumerate(rows.tolist()):
            found[row] = AssumedNetwork(
                tier=tier.name,
                links_per_node=tier.links_per_node or system.node.accelerators,
                link_rate=tier.bandwidth,
                spread=tier.rate_spread,
                slower_step_s=float(slower_s[at]),
                faster_step_s=float(faster_s[at]),
            )
    return found


def _step_times(model: Model, system: System, table: Table, assumed: list[int]) -> Floats:
    """Step times with slower and with faster links of some tiers, shape (2, rows) [s]."""
    figures: dict[FigurePath, Floats] = {}
    for place in assumed:
        tier = system.network[place]
        factors = np.array([1 / tier.rate_spread, tier.rate_spread])
        figures["network", place, "bandwidth"] = tier.bandwidth * factors
    columns = SystemColumns(base=system, figures=figures, count=2)
    count = len(table)
    on_each = SystemRows(columns=columns, position=np.repeat([0, 1], count))
    both = replace(table.take(np.tile(np.arange(count), 2)), systems=on_each)
    return step_time_s(model, system, both).reshape(2, count)
