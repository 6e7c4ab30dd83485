"""What recompute keeps of one operation and what it runs again, for the detail of one strategy.

`cost.block` says the same of whole columns.
"""

from shardwise.cost.operations import OperationCost
from shardwise.strategy import RECOMPUTES
from shardwise.table import Table

__all__ = ["kept_bytes", "mode_of", "runs_again"]


def mode_of(table: Table, part: str) -> str:
    """Recompute of a part of the model in a table of one row: only layers, only in training."""
    applies = part == "layer" and bool(table.training[0])
    return RECOMPUTES[int(table.recompute[0])] if applies else "none"


def runs_again(cost: OperationCost, mode: str) -> bool:
    """Whether the operation's forward is run again before its backward."""
    return mode == "full" or (mode == "selective" and cost.operation.core)


def kept_bytes(cost: OperationCost, mode: str) -> float:
    """Activations of the operation kept for backward; under full, only a layer's input is."""
    if mode == "full":
        return 0.0
    saved = float(cost.operation.saved_bytes[0])
    core = cost.operation.core_bytes
    return saved - float(core[0]) if mode == "selective" and core is not None else saved
