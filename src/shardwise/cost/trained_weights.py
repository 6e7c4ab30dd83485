"""Weights that are trained, and what making their updates orthogonal takes (Muon)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, combined, total
from shardwise.ops.operation import Matmul, Operation, Phase

__all__ = [
    "NEWTON_SCHULZ_STEPS",
    "TrainedWeights",
    "newton_schulz_flops",
    "trained_weights",
    "updated_matrices",
]

NEWTON_SCHULZ_STEPS = 5
"""Iterations that make Muon's update orthogonal (arXiv 2502.16982, section 2.1)."""
_OF_HEAD = ("head", "mtp.head")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedWeights:
    """Weights of a rank that have gradients, as columns."""

    weights: Floats
    matrices: Floats
    """Those of them in matrices of layers, which Muon updates; it leaves the rest to AdamW."""
    quantized: Floats
    """Those of them that products read quantised."""
    newton_schulz_flops: Floats
    """Of Muon's iterations on these matrices, once [FLOP]."""

    def over(self, ranks: Floats) -> "TrainedWeights":
        """What each of so many ranks has of them."""
        return combined(lambda column: column / ranks, self)

    def plus(self, other: "TrainedWeights") -> "TrainedWeights":
        """Both together."""
        return combined(np.add, self, other)


def newton_schulz_flops(rows: Floats, columns: Floats) -> Floats:
    """FLOPs of making a matrix orthogonal [FLOP].

    X of m x n, m <= n: five times A = X X^T, A A and (b A + c A A) X: 5 (4 m^2 n + 2 m^3)
    (arXiv 2502.16982, section 2.1; quintic iteration).
    """
    m, n = np.minimum(rows, columns), np.maximum(rows, columns)
    return NEWTON_SCHULZ_STEPS * (4 * m**2 * n + 2 * m**3)


def updated_matrices(operation: Operation) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Matrices of an operation that Muon updates: how many, their rows and columns on a rank."""
    for product in operation.kernels:
        if (
            isinstance(product, Matmul)
            and product.phase is Phase.WEIGHT_GRAD
            and operation.name not in _OF_HEAD
        ):
            yield product.batch, product.own_rows, product.n


def trained_weights(operations: Sequence[Operation], zero: Floats) -> TrainedWeights:
    """Add up the trained weights of operations.

    Matrices are those of products with a gradient of their weights but the head's: norms, biases,
    embedding and head are AdamW's (arXiv 2502.16982, section 2.2). Each rank takes its part of a
    product split by tensor parallelism as a matrix of its own, and weights that one product reads
    together as one (queries, keys and values; up and gate).
    """
    matrices, flops = [], []
    for operation in operations:
        for batch, rows, columns in updated_matrices(operation):
            matrices.append(batch * rows * columns)
            flops.append(batch * newton_schulz_flops(rows, columns))
    quantized = [
        np.where(o.trained > 0, o.quantized_parameters, 0.0)
        for o in operations
        if o.quantized_parameters is not None
    ]
    return TrainedWeights(
        weights=total([o.trained for o in operations], zero),
        matrices=total(matrices, zero),
        quantized=total(quantized, zero),
        newton_schulz_flops=total(flops, zero),
    )
