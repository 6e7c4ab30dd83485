"""Which strategies are legal: every rule once, for one row or for ten million."""

from shardwise.parallel.constraints.constraint import Rule
from shardwise.parallel.constraints.registry import (
    RULES,
    broken_rule,
    illegal_faults,
    refuse_illegal,
)

__all__ = ["RULES", "Rule", "broken_rule", "illegal_faults", "refuse_illegal"]
