"""What recompute keeps of one operation and what it runs again, for the detail of one strategy.

`cost.block` says the same of whole columns.
"""

from shardwise.config.enums import RECOMPUTES, set_of
from shardwise.config.strategy_table import Table
from shardwise.cost.operations import OperationCost

__all__ = ["ALL", "exchanges_again", "kept_bytes", "parts_of", "runs_again"]

ALL = frozenset({"full"})
"""Whole layers are run again."""


def parts_of(table: Table, part: str) -> frozenset[str]:
    """What is recomputed of a part of the model in a table of one row.

    Only layers are, and only in training. All of a layer, or some of `words.RECOMPUTE_PARTS`.
    """
    if part not in ("layer", "mtp") or not table.training[0]:
        return frozenset()
    mode = RECOMPUTES[int(table.recompute[0])]
    if mode == "selective":
        return frozenset(set_of(int(table.recompute_parts[0])))
    return ALL if mode == "full" else frozenset()


def runs_again(cost: OperationCost, parts: frozenset[str]) -> float:
    """Share of the operation's forward that is run again before its backward."""
    rerunning = parts & cost.operation.reruns_with
    if rerunning == {"every_other"}:
        return cost.operation.rerun_share
    return float(parts == ALL or bool(rerunning))


def exchanges_again(cost: OperationCost, parts: frozenset[str]) -> bool:
    """Whether its exchanges are run again too: `every_other` keeps what they bring."""
    return parts == ALL or bool(parts & cost.operation.reruns_with - {"every_other"})


def kept_bytes(cost: OperationCost, parts: frozenset[str]) -> float:
    """Activations of the operation kept for backward; of a whole layer, only its input is."""
    if parts == ALL:
        return 0.0
    return float(cost.operation.saved_bytes[0] - cost.operation.rebuilt_by(parts)[0])
