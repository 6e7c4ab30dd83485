"""Memory of the weights of a component on one rank, before sharding among replicas."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.cost.layer_cost import LayerStorage
from shardwise.cost.optimizer import state_bytes
from shardwise.ops.quantization import WeightSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Memory of the weights of a stage on one rank, before sharding among replicas [byte]."""

    stored: Floats
    """Weights as they are stored, which ZeRO-3 shards."""
    copies: Floats
    """Quantized copies stored in addition."""
    frozen: Floats
    """Weights that are not trained, in the type of the row or in that of frozen ones."""
    gradients: Floats
    state: Floats
    """Optimizer state, with the fp32 copy of weights in a smaller type."""
    master: Floats
    """That copy alone."""


def weight_bytes(
    part: LayerStorage | None,
    *,
    expert: bool,
    sizes: WeightSizes,
    gradient_bytes: Floats,
    optimizer: Ints,
    training: Bools,
) -> WeightBytes | None:
    """Memory of the weights of a component: of its routed experts, or of all others.

    None without the component, or where it has no experts. Without training there are neither
    gradients nor state.

    Parameters
    ----------
    part
        Totals of the component's operations (`layer_storage`).
    expert
        Whether to count the weights of routed experts, or the others.
    sizes
        Bytes per weight [byte]; columns of shape (n,).
    optimizer
        Codes of `Optimizer`; shape (n,).
    """
    if part is None or (expert and not np.any(part.expert_parameters)):
        return None
    weights, quantized, trained = (
        (part.expert_parameters, part.quantized_expert_parameters, part.expert_trained)
        if expert
        else (part.parameters, part.quantized_parameters, part.trained)
    )
    state = state_bytes(optimizer, sizes.master, trained)
    return WeightBytes(
        stored=sizes.total(weights, quantized, sizes.stored),
        copies=quantized * sizes.copies,
        frozen=sizes.total(weights - trained.weights, quantized, sizes.frozen),
        gradients=np.where(training, trained.weights * gradient_bytes, 0.0),
        state=np.where(training, state, 0.0),
        master=np.where(training, sizes.master * trained.weights, 0.0),
    )
