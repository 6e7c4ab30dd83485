"""Splits of layers that a space tries, and that its stack can run."""

from typing import Any

import numpy as np

from shardwise import Model, System
from shardwise.config.enums import Schedule
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import first_violation
from shardwise.parallel.constraints.pipeline import PIPELINE_CONSTRAINTS
from shardwise.parallel.constraints.software import SOFTWARE_LAYOUT_CONSTRAINT
from shardwise.parallel.pipeline_layout import layers_on_ranks
from shardwise.planning.search.layouts import LayerSplits
from shardwise.planning.search.space import SPLIT_FIELDS, Space

STAGES = (*SPLIT_FIELDS, "stage_layers")
"""Fields that split the layers."""
Splits = dict[tuple[int, ...], dict[str, Any]]
_RULES = (*PIPELINE_CONSTRAINTS, SOFTWARE_LAYOUT_CONSTRAINT)


def legal_splits(model: Model, system: System, space: Space, pp: int, vpp: int = 1) -> Splits:
    """Layers of each chunk in every legal split that is tried, with the fields that set them."""
    splits = LayerSplits(model, system, space)
    words = space.values("schedule", system) or ()
    schedule = next(word for word in words if (word == Schedule.INTERLEAVED) == (vpp > 1))
    columns = splits.take(np.array(splits.of(pp, vpp, Schedule(schedule).code), dtype=np.int64))
    count = len(columns["stage_layers"])
    lifted = (space.any_software or (False,))[0]
    few = {"pp": [pp] * count, "vpp": vpp, "dp": 1, "gbs": pp, "seq_len": 1}
    few |= {"schedule": [schedule] * count, "any_software": lifted}
    table = Table.of(model, few, system.stack).changed(**columns)
    legal = np.flatnonzero(first_violation(model, system, table, _RULES) < 0).tolist()
    found = {row: table.strategy(row) for row in legal}
    return {
        tuple(layers_on_ranks(model.depth, table, row)): {n: getattr(one, n) for n in STAGES}
        for row, one in found.items()
    }
