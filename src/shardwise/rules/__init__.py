"""Which strategies are legal: every rule once, for one row or for ten million."""

from shardwise.rules.every import RULES, broken_rule, illegal_faults, refuse_illegal
from shardwise.rules.rule import Rule

__all__ = ["RULES", "Rule", "broken_rule", "illegal_faults", "refuse_illegal"]
