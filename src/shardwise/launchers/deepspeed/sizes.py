"""Counts of weights that DeepSpeed's ZeRO 3 measures in elements."""

from shardwise.config.model import Model
from shardwise.ops.param_count import count_parameters


def layer_weights(model: Model) -> int:
    """Return the weights of an average layer [elements]."""
    counted = count_parameters(model)
    ends = counted.embedding + counted.breakdown.get("head", 0)
    return max(1, (counted.total - ends) // model.depth)


def lives_through_step(model: Model) -> int:
    """Return the elements between the two uses of the first weight: forward and backward of all.

    Weights whose next use is nearer than `stage3_max_reuse_distance` stay gathered, as far as
    `stage3_max_live_parameters` has room.
    """
    return 2 * count_parameters(model).total
