"""Norms, residual additions and dropout: kernels whose time is that of their bytes."""

import numpy as np

from shardwise.arrays import Floats
from shardwise.ops.operation import MemoryBound, Operation, Phase, RankWork

__all__ = ["norm", "residual"]

# Vector FLOPs per element of a norm: mean, variance, scale, shift; and of its gradients.
_NORM_FLOPS = (8.0, 14.0)


def norm(
    name: str,
    work: RankWork,
    *,
    tokens: Floats,
    width: Floats | float,
    parameters: float,
    saved: bool = True,
) -> Operation:
    """Normalise (tokens, width): read and write forward; read dy and x and write dx backward.

    The input is kept for backward (`saved`) unless the operation before keeps it.
    """
    elements = tokens * width
    size = elements * work.element_bytes
    forward, backward = _NORM_FLOPS
    return Operation(
        name=name,
        kernels=(
            MemoryBound(phase=Phase.FORWARD, bytes=2 * size, flops=forward * elements),
            MemoryBound(phase=Phase.INPUT_GRAD, bytes=3 * size, flops=backward * elements),
        ),
        parameters=np.full_like(work.tp, parameters),
        saved_bytes=size if saved else np.zeros_like(size),
        working_bytes=2 * size,
    )


def residual(
    name: str, work: RankWork, *, width: float, dropout: bool, branches: int = 1
) -> Operation:
    """Add the outputs of one or more branches to the residual stream: read all, write the sum.

    With dropout, a mask of one byte per element is written, kept, and read in backward. Without
    it the gradient passes unchanged to both branches and is added where they meet.
    """
    elements = work.split_tokens * width
    size = elements * work.element_bytes
    mask = elements if dropout else np.zeros_like(elements)
    return Operation(
        name=name,
        kernels=(
            MemoryBound(
                phase=Phase.FORWARD,
                bytes=(2 + branches) * size + mask,
                flops=(branches + dropout) * elements,
            ),
            MemoryBound(
                phase=Phase.INPUT_GRAD,
                bytes=(5 if dropout else 3) * size + mask,
                flops=(1 + dropout) * elements,
            ),
        ),
        parameters=np.zeros_like(elements),
        saved_bytes=mask,
        working_bytes=size,
    )
