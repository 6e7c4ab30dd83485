"""Products of activations with weights: forward, gradient of the input, gradient of the weights."""

import numpy as np

from shardwise.arrays import Floats
from shardwise.ops.operation import Collective, Matmul, MemoryBound, Operation, Phase, RankWork

__all__ = ["linear"]


def linear(
    name: str,
    work: RankWork,
    *,
    tokens: Floats,
    inputs: Floats | float,
    outputs: Floats | float,
    bias: Floats | float = 0.0,
    saved_tokens: Floats | None = None,
    collectives: tuple[Collective, ...] = (),
    parameters: Floats | float | None = None,
) -> Operation:
    """One linear layer Y = X W + b on one rank, X (tokens, inputs), W (inputs, outputs).

    FLOPs: 2 tokens inputs outputs for each of Y = X W, dX = dY W^T and dW = X^T dY. The gradient of
    the weights is read, added to and written in the type that gradients accumulate in.

    Parameters
    ----------
    tokens
        Rows of X.
    inputs, outputs
        This rank's share of the widths.
    bias
        Elements of b on this rank.
    saved_tokens
        Rows of X that stay on this rank until backward; all unless X is gathered again.
    parameters
        Weights and biases on this rank, if not inputs x outputs + bias.
    """
    one = np.ones_like(work.tp)
    inputs, outputs = inputs * one, outputs * one
    size = work.element_bytes

    def product(phase: Phase, m: Floats, n: Floats, k: Floats, output: Floats) -> Matmul:
        return Matmul(phase=phase, m=m, n=n, k=k, input_bytes=size, output_bytes=output, batch=one)

    kernels: list[Matmul | MemoryBound] = [
        product(Phase.FORWARD, tokens, outputs, inputs, size),
        product(Phase.INPUT_GRAD, tokens, inputs, outputs, size),
        product(Phase.WEIGHT_GRAD, inputs, outputs, tokens, 2 * work.gradient_bytes),
    ]
    if np.any(np.asarray(bias) > 0):  # forward it is an epilogue of the product
        summed = np.where(np.asarray(bias) > 0, tokens * outputs, 0.0)
        kernels.append(MemoryBound(phase=Phase.WEIGHT_GRAD, bytes=summed * size, flops=summed))
    held = inputs * outputs + bias if parameters is None else parameters * one
    return Operation(
        name=name,
        kernels=tuple(kernels),
        collectives=collectives,
        parameters=held,
        saved_bytes=(tokens if saved_tokens is None else saved_tokens) * inputs * size,
        working_bytes=tokens * (inputs + outputs) * size,
    )
