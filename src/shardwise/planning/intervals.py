"""Prediction intervals of many plans of one model and system."""

import numpy as np

from shardwise.analysis.features import unmeasured_features
from shardwise.analysis.prediction_interval import interval_of
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.ops.param_count import count_parameters


def interval_factors(model: Model, system: System, table: Table) -> list[float | None]:
    """Return the error range of each strategy: a measured time is within time / f and time x f.

    None forward only. Where figures of a system vary, the range is that of the system as it is.
    """
    counted = count_parameters(model)
    found: list[float | None] = []
    for row in range(len(table)):
        unmeasured = len(unmeasured_features(model, table.take(np.array([row]))))
        strategy = table.strategy(row)
        unit = interval_of(model, system, strategy, 1.0, counted, unmeasured=unmeasured)
        found.append(None if unit is None else unit.high_s)
    return found


def interval_fields(time_s: float, factor: float | None) -> dict[str, float]:
    """Return the fields of a plan that say its range: none without one."""
    if factor is None:
        return {}
    return {"interval_low_s": time_s / factor, "interval_high_s": time_s * factor}
