"""What the weights of a part of the model take: themselves, gradients and optimizer state."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.cost.layer_cost import LayerWork
from shardwise.cost.optimizer import state_bytes
from shardwise.ops.quantization import WeightSizes

__all__ = ["WeightBytes", "weight_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Of the weights that a rank of a stage has, before replicas split them, as columns [byte]."""

    stored: Floats
    """As they are held, and split where weights are."""
    copies: Floats
    """Quantised, beside them."""
    frozen: Floats
    """What of the weights is not trained, in the type of the row."""
    gradients: Floats
    state: Floats
    """Of the optimizer, with its fp32 copy of weights in a smaller type."""


def weight_bytes(
    part: LayerWork | None,
    *,
    expert: bool,
    sizes: WeightSizes,
    gradient_bytes: Floats,
    optimizer: Ints,
    training: Bools,
) -> WeightBytes | None:
    """What the weights of a part take, without those of routed experts, or those.

    None without the part, or where it has no experts. Forward only there are neither gradients nor
    state.

    Parameters
    ----------
    gradient_bytes
        Of one gradient.
    optimizer
        Codes of `Optimizer`.
    """
    if part is None or (expert and not np.any(part.expert_parameters)):
        return None
    held, quantized, trained = (
        (part.expert_parameters, part.quantized_expert_parameters, part.expert_trained)
        if expert
        else (part.parameters, part.quantized_parameters, part.trained)
    )
    state = state_bytes(optimizer, sizes.plain, trained)
    return WeightBytes(
        stored=sizes.total(held, quantized, sizes.stored),
        copies=quantized * sizes.copies,
        frozen=(held - trained.weights) * sizes.plain,
        gradients=np.where(training, trained.weights * gradient_bytes, 0.0),
        state=np.where(training, state, 0.0),
    )
