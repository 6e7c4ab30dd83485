"""Calculon 0.1.0 (commit caa4b11): its formulas exactly as published, faults included.

Section numbers and quirks such as [Q9] in the docstrings are those of the project's specification
of Calculon. Every formula is one function on arrays whose rows are executions.
"""

from shardwise.predecessors.calculon.reference.columns import WORDS, Columns
from shardwise.predecessors.calculon.reference.evaluation import (
    STAT_FIELDS,
    VERDICTS,
    Infeasible,
    Statistics,
    evaluate,
    layer_statistics,
    statistics,
)
from shardwise.predecessors.calculon.reference.optimum import (
    AXES,
    Found,
    SearchResult,
    SpaceSize,
    count,
    rows,
    search,
)
from shardwise.predecessors.calculon.reference.peers import groups, peers, peers_of_rank

__all__ = [
    "AXES",
    "STAT_FIELDS",
    "VERDICTS",
    "WORDS",
    "Columns",
    "Found",
    "Infeasible",
    "SearchResult",
    "SpaceSize",
    "Statistics",
    "count",
    "evaluate",
    "groups",
    "layer_statistics",
    "peers",
    "peers_of_rank",
    "rows",
    "search",
    "statistics",
]
