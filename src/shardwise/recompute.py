"""What recompute keeps of one operation and what it runs again, for the detail of one strategy.

`cost.block` says the same of whole columns.
"""

from shardwise.cost.operations import OperationCost
from shardwise.table import Table
from shardwise.words import RECOMPUTES, set_of

__all__ = ["ALL", "kept_bytes", "parts_of", "runs_again"]

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


def runs_again(cost: OperationCost, parts: frozenset[str]) -> bool:
    """Whether the operation's forward is run again before its backward."""
    return parts == ALL or bool(parts & cost.operation.reruns_with)


def kept_bytes(cost: OperationCost, parts: frozenset[str]) -> float:
    """Activations of the operation kept for backward; of a whole layer, only its input is."""
    if parts == ALL:
        return 0.0
    saved = float(cost.operation.saved_bytes[0])
    rebuilding = parts & cost.operation.dropped_with
    if rebuilding == {"every_other"}:
        return saved - float(cost.operation.rebuilt_by_every_other[0])
    if rebuilding:
        return saved - float(cost.operation.rebuilt_bytes[0])
    return saved
