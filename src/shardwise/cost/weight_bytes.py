"""What the weights of a part of the model take: themselves, gradients and optimizer state."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.cost.optimizer import state_bytes
from shardwise.cost.trained import TrainedWeights
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
    *,
    parameters: Floats,
    quantized: Floats,
    trained: TrainedWeights,
    sizes: WeightSizes,
    gradient_bytes: Floats,
    optimizer: Ints,
    training: Bools,
) -> WeightBytes:
    """Bytes of so many weights; forward only there are neither gradients nor state.

    Parameters
    ----------
    quantized
        What of `parameters` products read quantised.
    gradient_bytes
        Of one gradient.
    optimizer
        Positions in `strategy.OPTIMIZERS`.
    """
    state = state_bytes(optimizer, sizes.plain, trained)
    return WeightBytes(
        stored=sizes.total(parameters, quantized, sizes.stored),
        copies=quantized * sizes.copies,
        frozen=(parameters - trained.weights) * sizes.plain,
        gradients=np.where(training, trained.weights * gradient_bytes, 0.0),
        state=np.where(training, state, 0.0),
    )
