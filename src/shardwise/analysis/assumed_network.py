"""What a step would take with other network cards than those that a system assumes.

A system of the catalog describes the usual servers of an accelerator. Clusters have other numbers
and rates of network cards, and few people say theirs, so that the range of the step time covers
them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwise.analysis.results import AssumedNetwork
from shardwise.arrays import Floats, Ints, gather
from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, SystemColumns, SystemRows
from shardwise.cost.component_costs import ComponentCosts, costs_and_bytes
from shardwise.distinct import Distinct, distinct_rows, known_of
from shardwise.engine.evaluate import Evaluation, timed

# Rows whose costs on other networks are saved: each is some 100 KB.
_MOST_KNOWN = 256


def assumed_networks(result: Evaluation) -> list[AssumedNetwork | None]:
    """Step times of rows where the assumed links that they use are slower and faster.

    By their `rate_spread`. None for a row that uses no links that have one.
    """
    system, table = result.step.system, result.step.table
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
        slower_s, faster_s = _step_times(result, rows, tuple(assumed))
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


def _step_times(result: Evaluation, rows: Ints, assumed: tuple[int, ...]) -> Floats:
    """Step times of some rows with slower and with faster links of some tiers, shape (2, rows) [s].

    Placement and stages are those of the rows; of a single row, the costs on both networks are
    saved with its own, which read as much of it.
    """
    step, count = result.step, rows.size
    others: dict[tuple[int, ...], SystemColumns] = known_of(dict, SystemColumns, step.system)
    if assumed not in others:
        others[assumed] = _with_other_links(step.system, assumed)
    on_each = SystemRows(columns=others[assumed], position=np.repeat([0, 1], count))
    twice = np.tile(rows, 2)
    table = replace(step.table.take(twice), systems=on_each)
    extents, groups = gather((step.extents, step.groups), twice)

    def costs() -> ComponentCosts:
        known = Distinct(step.costs, twice), result.inputs.of_rows(twice)
        return costs_and_bytes(step.model, step.system, table, extents, *known)[0].of_all()

    if len(step.table) == 1:
        owners = step.costs, on_each.columns
        found = known_of(costs, SystemRows, *owners, most=_MOST_KNOWN)
    else:
        found = costs()
    timing = timed(step.model, step.system, table, extents, found, groups)
    return timing.step_time_s.reshape(2, count)


def _with_other_links(system: System, assumed: Sequence[int]) -> SystemColumns:
    """The system with slower and with faster links of some tiers."""
    figures: dict[FigurePath, Floats] = {}
    for place in assumed:
        tier = system.network[place]
        factors = np.array([1 / tier.rate_spread, tier.rate_spread])
        figures["network", place, "bandwidth"] = tier.bandwidth * factors
    return SystemColumns(base=system, figures=figures, count=2)
