"""SimuMax: its files."""

from shardwise.config.formats import typed_format
from shardwise.predecessors.simumax.files import (
    SimumaxModel,
    SimumaxStrategy,
    SimumaxSystem,
    looks_like,
)
from shardwise.predecessors.simumax.reader import model_fields, strategy_fields, system_fields

__all__ = ["FORMATS"]

FORMATS = (
    typed_format("SimuMax", "model", "model", looks_like, SimumaxModel, model_fields),
    typed_format("SimuMax", "system", "system", looks_like, SimumaxSystem, system_fields),
    typed_format(
        "SimuMax",
        "strategy",
        "strategy",
        looks_like,
        SimumaxStrategy,
        lambda strategy, _, source: strategy_fields(strategy, source),
    ),
)
