"""A linear layer whose products run in fewer than 16 bits: its casts, and what it keeps and sends.

The input is quantised before its product, the gradient of the output before both of its own; a
quantised input is what is kept, and what tensor-parallel ranks gather (NVIDIA/TransformerEngine,
docs/features/low_precision_training/performance_considerations.rst).
"""

from dataclasses import dataclass, replace

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.ops.operation import (
    Collective,
    CollectiveKind,
    Kernel,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
)
from shardwise.ops.quantization import by_recipe

__all__ = ["Operands", "quantized"]

_ORIENTATIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """What the products of a linear layer Y = X W read, for one rank."""

    inputs: Floats
    """Elements of X."""
    outputs: Floats
    """Elements of Y."""
    weights: Floats
    """Elements of W."""
    arriving_bytes: Floats
    """Size of an element of X as it comes; below 16 bits it is quantised already [byte]."""
    normed: bool
    """Whether X comes from a norm that nothing else reads."""
    saved_elsewhere: Bools
    """Whether X is kept, or rebuilt, in 16 bits for others, and need not be kept a second time."""


def quantized(operation: Operation, work: RankWork, operands: Operands) -> Operation:
    """The same linear layer in each row's recipe.

    Casts, in bytes for each element, q that of the recipe's operands, e that of the type, r passes
    over what is cast: X forward r e + q, and q more for the orientation that the gradient of the
    weights reads, which is kept; that one backward instead, r e + q, where X is kept in 16 bits.
    dY backward r e + 2 q. Nothing for X where a norm writes it quantised. With sequence
    parallelism each rank casts its part before it is gathered. Recipes that fuse also sum up the
    gradient of the bias on the way.
    """
    rows = work.quantization > 0
    size = by_recipe(work.quantization, lambda recipe: recipe.operand_bytes)
    fuses = by_recipe(work.quantization, lambda recipe: recipe.fuses) > 0
    share = np.where(rows, size / work.element_bytes, 1.0)
    kernels = [_in_recipe(kernel, rows, size, fuses) for kernel in operation.kernels]
    saved = np.where(operands.saved_elsewhere, 1.0, share)
    copies = np.where(rows, _ORIENTATIONS * size * operands.outputs, 0.0)
    return replace(
        operation,
        kernels=(*kernels, *_casts(operation, work, operands, size, fuses)),
        collectives=tuple(_gathered(c, work, share) for c in operation.collectives),
        quantized_parameters=np.where(rows, operands.weights, 0.0),
        saved_bytes=operation.saved_bytes * saved,
        working_bytes=operation.working_bytes + copies,
    )


def _in_recipe(kernel: Kernel, rows: Bools, size: Floats, fuses: Bools) -> Kernel:
    """A product on operands of the recipe; a sum of the bias's gradient that a cast does too."""
    if isinstance(kernel, Matmul):
        operand = np.where(rows, size, kernel.input_bytes)
        return replace(kernel, input_bytes=operand, quantized=True)
    if isinstance(kernel, MemoryBound):
        summed = np.where(fuses, 0.0, 1.0)
        return replace(kernel, bytes=summed * kernel.bytes, flops=summed * kernel.flops)
    return kernel


def _casts(
    operation: Operation, work: RankWork, operands: Operands, size: Floats, fuses: Bools
) -> tuple[MemoryBound, ...]:
    rows, element = work.quantization > 0, work.element_bytes
    read = element * by_recipe(work.quantization, lambda recipe: recipe.reads)
    eight_bits = by_recipe(work.quantization, lambda recipe: recipe.matrix == "fp8") > 0
    arrives = operands.arriving_bytes < element
    kept = work.training & ~operands.saved_elsewhere
    written = size * (np.where(arrives & eight_bits, 0.0, 1.0) + np.where(kept, 1.0, 0.0))
    ahead = np.where(arrives, operands.arriving_bytes, read) + written
    fused = operands.normed & fuses & ~operands.saved_elsewhere
    inputs = np.where(rows, operands.inputs, 0.0) * _own_part(operation, work, Phase.FORWARD)
    outputs = np.where(rows, operands.outputs, 0.0) * _own_part(operation, work, Phase.INPUT_GRAD)
    return (
        _cast(Phase.FORWARD, inputs, np.where(fused | (written == 0), 0.0, ahead)),
        _cast(Phase.INPUT_GRAD, outputs, read + _ORIENTATIONS * size),
        _cast(Phase.WEIGHT_GRAD, inputs, np.where(operands.saved_elsewhere, read + size, 0.0)),
    )


def _cast(phase: Phase, elements: Floats, element_bytes: Floats) -> MemoryBound:
    moved = elements * element_bytes
    return MemoryBound(phase=phase, bytes=moved, flops=np.where(moved > 0, elements, 0.0))


def _own_part(operation: Operation, work: RankWork, phase: Phase) -> Floats:
    """Share of an operand that a rank casts: of what is gathered in a phase its own part."""
    gathers = np.zeros(work.tp.shape, dtype=np.bool_)
    for collective in operation.collectives:
        if collective.phase is phase and collective.kind is CollectiveKind.ALL_GATHER:
            gathers = gathers | (collective.bytes > 0)
    return np.where(gathers, 1 / work.tp, 1.0)


def _gathered(collective: Collective, work: RankWork, share: Floats) -> Collective:
    """Inputs are gathered in one orientation, gradients of outputs in those of the recipe."""
    if collective.kind is not CollectiveKind.ALL_GATHER:
        return collective
    if collective.phase is Phase.INPUT_GRAD:
        share = share * by_recipe(work.quantization, lambda r: r.gathered_gradients, none=1.0)
    return replace(collective, bytes=collective.bytes * share)
