"""Calculon: its files, its statistics and its formulas."""

from shardwise.config.formats import typed_format
from shardwise.predecessors.calculon.files import (
    CalculonExecution,
    CalculonModel,
    CalculonSystem,
    looks_like,
)
from shardwise.predecessors.calculon.reader import model_fields, strategy_fields, system_fields

__all__ = ["FORMATS"]

FORMATS = (
    typed_format("Calculon", "model", "model", looks_like, CalculonModel, model_fields),
    typed_format("Calculon", "system", "system", looks_like, CalculonSystem, system_fields),
    typed_format(
        "Calculon",
        "execution",
        "strategy",
        looks_like,
        CalculonExecution,
        lambda execution, *_: strategy_fields(execution),
    ),
)
