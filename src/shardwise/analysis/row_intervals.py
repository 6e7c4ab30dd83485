"""Ranges of measured times for strategies of a table."""

import numpy as np

from shardwise.analysis.assumed_host import assumed_host
from shardwise.analysis.assumed_network import assumed_networks, other_networks
from shardwise.analysis.features import unmeasured_features
from shardwise.analysis.mixer_kernels import mixer_kernels
from shardwise.analysis.prediction_interval import interval_of
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.engine.evaluate import evaluate
from shardwise.ops.param_count import count_parameters


def interval_factors(
    model: Model, system: System, table: Table
) -> list[tuple[float, float] | None]:
    """Return the range of each strategy's measured time over its step time.

    None forward only. Where figures of a system vary, the range is that of the system as it is.
    """
    counted = count_parameters(model)
    found: list[tuple[float, float] | None] = []
    result = evaluate(model, system, table, other_networks(system, table))
    kernels = mixer_kernels(result)
    for row, network in enumerate(assumed_networks(result)):
        one = table.take(np.array([row]))
        host, step_s = assumed_host(model, system, one), float(result.step_time_s[row])
        interval = interval_of(
            *(model, system, table.strategy(row), 1.0, counted),
            unmeasured=len(unmeasured_features(model, one)),
            network=network and network.over(step_s),
            host=host and host.over(step_s),
            kernels=kernels[row],
        )
        found.append(None if interval is None else (interval.low_s, interval.high_s))
    return found
