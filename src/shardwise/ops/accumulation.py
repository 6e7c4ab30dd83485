"""Gradients of weights that are not added by the product that gives them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwise.arrays import Bools
from shardwise.ops.operation import Matmul, MemoryBound, Operation, Phase, RankWork

__all__ = ["with_accumulation"]


def with_accumulation(operations: Sequence[Operation], work: RankWork) -> list[Operation]:
    """Operations of stacks whose products do not add to the gradients of earlier micro-batches.

    The product writes a gradient of its weights in the compute type; another kernel reads it, and
    reads and writes the sum: w + (w + 2 g) bytes per weight instead of 2 g. Until then the gradient
    is live beside the rest. So it is with 2D products, of the part that a rank has when the ranks
    have added up theirs.
    """
    if np.all(_fused(work)):
        return list(operations)
    return [_added_apart(operation, work) for operation in operations]


def _fused(work: RankWork) -> Bools:
    """Rows whose products add up the gradients: not where parts of them are sums over ranks."""
    return work.fused_accumulation & (work.tp2 == 1)


def _added_apart(operation: Operation, work: RankWork) -> Operation:
    apart = np.where(_fused(work), 0.0, 1.0)
    ahead = operation.forward_working_bytes
    for kernel in operation.kernels:
        if not isinstance(kernel, Matmul) or kernel.phase is not Phase.WEIGHT_GRAD:
            continue
        weights = apart * kernel.batch * kernel.own_rows * kernel.n
        moved = weights * (work.element_bytes + 2 * work.gradient_bytes)
        written = np.where(apart > 0, work.element_bytes, kernel.output_bytes)
        product = replace(kernel, output_bytes=written)
        others = (one for one in operation.kernels if one is not kernel)
        added = MemoryBound(phase=Phase.WEIGHT_GRAD, bytes=moved, flops=weights)
        return replace(
            operation,
            kernels=(*others, product, added),
            working_bytes=operation.working_bytes + weights * work.element_bytes,
            forward_working_bytes=operation.working_bytes if ahead is None else ahead,
        )
    return operation
