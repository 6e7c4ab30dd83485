"""Layers that the matrix units run: products and attention (section 4).

Sizes are in elements: b sequences of L tokens on one accelerator. Gradients of input and weights
are both in the backward pass.
"""

import numpy as np

from shardwise.arrays import Floats
from shardwise.interop.nersc.reference.inputs import NerscSystem
from shardwise.interop.nersc.reference.layer import Exchange, Layer

__all__ = ["attention", "column_split", "row_split", "summa"]


def column_split(name: str, tokens: Floats, k: float, width: Floats, system: NerscSystem) -> Layer:
    """Product (b L, k) x (k, F) of a weight split by columns, F = `width` on each of m1.

    FLOPs b L F (2 k - 1), and b L k (2 F - 1) + k F (2 b L - 1). Backward reduces and scatters the
    gradient of the input; the gathered input is kept.
    """
    size, data, weight = system.element_size, tokens * k, k * width
    flops = tokens * width * (2 * k - 1), data * (2 * width - 1) + weight * (2 * tokens - 1)
    reduced = data * size
    return Layer(
        name=name,
        flops_fwd=flops[0] * system.flops_units,
        flops_bwd=flops[1] * system.flops_units,
        moved_fwd=(data + tokens * width + weight) * size,
        moved_bwd=(2 * weight + 2 * data + 2 * tokens * width) * size,
        stored=data * size,
        weights=weight * size,
        fwd=(Exchange("reducescatter", np.zeros_like(reduced)),),
        bwd=(Exchange("reducescatter", reduced),),
        vector=False,
    )


def row_split(name: str, tokens: Floats, width: Floats, e: float, system: NerscSystem) -> Layer:
    """Product (b L, K) x (K, e) of a weight split by rows, K = `width` on each of m1.

    FLOPs b L e (2 K - 1), and b L K (2 e - 1) + K e (2 b L - 1). Forward reduces and scatters the
    result.
    """
    size, data, weight = system.element_size, tokens * width, width * e
    flops = tokens * e * (2 * width - 1), data * (2 * e - 1) + weight * (2 * tokens - 1)
    reduced = tokens * e * size
    return Layer(
        name=name,
        flops_fwd=flops[0] * system.flops_units,
        flops_bwd=flops[1] * system.flops_units,
        moved_fwd=(data + tokens * e + weight) * size,
        moved_bwd=(2 * weight + 2 * data + 2 * tokens * e) * size,
        stored=data * size,
        weights=weight * size,
        fwd=(Exchange("reducescatter", reduced),),
        bwd=(Exchange("reducescatter", np.zeros_like(reduced)),),
        vector=False,
    )


def summa(
    name: str,
    tokens: Floats,
    k: float,
    width: Floats,
    parts: tuple[Floats, Floats],
    panels: Floats,
    system: NerscSystem,
) -> Layer:
    """Product (b L, k) x (k, F) in panels, both operands split over m1 x m2.

    FLOPs 2 b L F k, and b L k (2 F - 1) + k F (2 b L - 1); the result passes memory once per panel.

    Parameters
    ----------
    parts
        Rows of the kept input, k // m1, and of the kept weight, k // m2.
    panels
        How many.
    """
    size, data, weight = system.element_size, tokens * k, k * width
    across, along = Exchange("broadcast", data * size), Exchange("broadcast", weight * size, 2)
    reduced = Exchange("reduce", data * size), Exchange("reduce", weight * size, 2)
    moved = data + weight + tokens * width * panels
    return Layer(
        name=name,
        flops_fwd=2 * tokens * width * k * system.flops_units,
        flops_bwd=(data * (2 * width - 1) + weight * (2 * tokens - 1)) * system.flops_units,
        moved_fwd=moved * size,
        moved_bwd=2 * moved * size,
        stored=tokens * parts[0] * size,
        weights=parts[1] * width * size,
        fwd=(across, along),
        bwd=(along, reduced[0], across, reduced[1]),
        vector=False,
        panels=True,
    )


def attention(
    b: Floats,
    heads: Floats,
    queries: Floats,
    keys: float,
    width: float,
    system: NerscSystem,
    *,
    gathers: bool,
) -> Layer:
    """Fused attention of H heads of width q: L queries on l keys, none masked.

    With X = b H L l scores and k = matrix over vector rate, which inflates vector FLOPs so that all
    can be timed at the matrix rate: forward b H L l (2 q - 1) + b H L q (2 l - 1) + k (4 X - b H
    L); backward four products, the forward's first product again, and k (5 X - b H L) + k (4 X - b
    H L).

    Parameters
    ----------
    gathers
        Whether keys and values are gathered over m2 in both passes and their gradients scattered.
    """
    units, size = system.flops_units, system.element_size
    inflated = system.matrix_flops_fp16 / system.vector_flops_fp16
    rows = b * heads * queries
    scores, data, columns = rows * keys, rows * width, b * heads * keys * width
    softmax = 3 * scores - rows
    forward = scores * (2 * width - 1) + data * (2 * keys - 1) + inflated * (softmax + scores)
    again = scores * (2 * width - 1) + inflated * (softmax + scores)
    backward = (
        data * (2 * keys - 1)
        + columns * (2 * queries - 1)
        + scores * (2 * width - 1)
        + columns * (2 * queries - 1)
        + inflated * (4 * scores - rows + scores)
        + again
    )
    stored = 4 * data + 2 * rows
    both = 2 * columns * size
    gathered = Exchange("allgather", both, 2)
    return Layer(
        name="fusedla",
        flops_fwd=forward * units,
        flops_bwd=backward * units,
        moved_fwd=(2 * data + 2 * columns + rows) * size,
        moved_bwd=(2 * columns + 2 * data + stored) * size,
        stored=stored * size,
        weights=np.zeros_like(rows),
        fwd=(gathered,) if gathers else (),
        bwd=(gathered, Exchange("reducescatter", both, 2)) if gathers else (),
        vector=False,
    )
