"""NERSC transformer-perf-estimates: its files, its statistics and its formulas."""

from shardwise.config.formats import typed_format
from shardwise.predecessors.nersc.files import NerscModel, NerscSystem, looks_like
from shardwise.predecessors.nersc.reader import model_fields, system_fields

__all__ = ["FORMATS"]

FORMATS = (
    typed_format(
        "NERSC", "model", "model", looks_like, NerscModel, lambda m, name, _: model_fields(m, name)
    ),
    typed_format(
        "NERSC",
        "system",
        "system",
        looks_like,
        NerscSystem,
        lambda s, name, _: system_fields(s, name),
    ),
)
