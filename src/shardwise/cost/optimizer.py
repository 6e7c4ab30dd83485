"""Trained weights, the optimizer's state for them, and the time of its step."""

from collections.abc import Iterator, Sequence

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, combined, total
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_WEIGHTS, CpuOptimizer, Optimizer
from shardwise.config.strategy_table import Table
from shardwise.ops.operation import FP32_BYTES, Matmul, Operation, Phase
from shardwise.ops.quantization import WeightSizes
from shardwise.records import dataclass

_HALF = 2
UNFUSED_BYTES = 112.0
"""Bytes that an update moves per weight with fp32 state in addition to those of a fused one: one
pass for each of eight operations (80 bytes in all), and new memory for two of their results, whose
pages are cleared (torch/optim/adam.py, _single_tensor_adam). Both together take as long as 133 to
150 bytes of an addition in place, fused ones 26 to 30 (`benchmarks/cpu_optimizer.py`)."""
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
    """Those of them that products read quantized."""
    newton_schulz_flops: Floats
    """Of Muon's iterations on these matrices, once [FLOP]."""

    def over(self, ranks: Floats) -> "TrainedWeights":
        """Share of one rank if so many ranks divide them."""
        return combined(lambda column: column / ranks, self)

    def plus(self, other: "TrainedWeights") -> "TrainedWeights":
        """Both together."""
        return combined(np.add, self, other)


def newton_schulz_flops(rows: Floats, columns: Floats) -> Floats:
    """FLOPs of making a matrix orthogonal [FLOP].

    X of m x n, m <= n: five times A = X X^T, A A and (b A + c A A) X: 5 (4 m^2 n + 2 m^3)
    (arXiv 2502.16982, section 2.1; quintic iteration).

    Parameters
    ----------
    rows
        Rows of the matrix on one rank [elements]; shape (n,).
    columns
        Columns of the matrix on one rank [elements]; shape (n,).
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
    embedding and head are AdamW's (arXiv 2502.16982, section 2.2). Each rank treats its shard of a
    product split by tensor parallelism as a separate matrix, and weights that one product reads
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


# Moments per weight. Adam: two (arXiv 1412.6980, algorithm 1). Adafactor keeps sums of rows and
# columns only (arXiv 1804.04235, algorithm 4), Muon one moment of its matrices (arXiv 2502.16982,
# section 2.1), SGD one or none.
_MOMENTS = {
    "adamw": 2.0,
    "adamw-8bit": 2.0,
    "adamw-bf16": 2.0,
    "adafactor": 0.0,
    "muon": 1.0,
    "sgd-momentum": 1.0,
    "sgd": 0.0,
}
# Reads of the gradient, and of the weight in addition to its update: before it updates, Adafactor
# also sums the squares of the gradient by rows and columns, and computes the norms of its update
# and of the weights (arXiv 1804.04235, algorithm 4).
_GRADIENT_READS = dict.fromkeys(Optimizer, 1.0) | {"adafactor": 3.0}
_WEIGHT_READS = dict.fromkeys(Optimizer, 0.0) | {"adafactor": 1.0}
MUON = Optimizer.MUON.code
# Passes over all local gradients in addition to the update: zeroing, reading for the norm, and
# most of one more for scaling (1.5 in grade-A published runs, together with the update).
_GRADIENT_SWEEPS = 1.5


def _moments(optimizer: Ints) -> Floats:
    """Moments per weight that the row's optimizer itself updates."""
    return np.array([_MOMENTS[name] for name in Optimizer])[optimizer]


def state_size(moment_bytes: Floats) -> Floats:
    """Size of a moment over that of one in fp32, of torch's optimizers; 0 where one kernel updates.

    The temporary tensors of an update have the type of the moments (torch/optim/adam.py: the root
    of the second one). 8-bit optimizers have no such tensors (bitsandbytes, torchao).
    """
    return np.where(moment_bytes < _HALF, 0.0, moment_bytes / FP32_BYTES)


def least_state_bytes(
    optimizer: Ints, master_bytes: Floats, moment_bytes: Floats | float
) -> Floats:
    """Least state per trained weight [byte]: that of a matrix of a layer.

    Parameters
    ----------
    optimizer
        Codes of `Optimizer`; shape (n,).
    master_bytes, moment_bytes
        Size of a master and of a moment (`ops.precision`) [byte]; shape (n,).
    """
    return _moments(optimizer) * moment_bytes + master_bytes


def _moment_bytes(optimizer: Ints, moment_bytes: Floats, trained: TrainedWeights) -> Floats:
    """Moments of so many weights [byte]; what Muon leaves to AdamW has AdamW's."""
    own, muon = _moments(optimizer) * moment_bytes, optimizer == MUON
    if not np.any(muon):
        return own * trained.weights
    others = np.where(muon, _MOMENTS["adamw"] * moment_bytes, own)
    return own * trained.matrices + others * (trained.weights - trained.matrices)


def state_bytes(optimizer: Ints, sizes: WeightSizes, trained: TrainedWeights) -> Floats:
    """State of the weights [byte]: moments, and the weights that the optimizer updates.

    Parameters
    ----------
    optimizer
        Codes of `Optimizer`; shape (n,).
    sizes
        Bytes per weight [byte]; columns of shape (n,).
    trained
        Weights with gradients [elements]; columns of shape (n,).
    """
    return _moment_bytes(optimizer, sizes.moment, trained) + sizes.master * trained.weights


def newton_schulz_time(optimizer: Ints, owned: TrainedWeights, matrix_rate: Floats) -> Floats:
    """Time of Muon's iterations on owned matrices [s]; 0 in rows of other optimizers.

    Parameters
    ----------
    optimizer
        Codes of `Optimizer`; shape (n,).
    matrix_rate
        Rate of matrix products [FLOP/s]; shape (n,).
    """
    return np.where(optimizer == MUON, owned.newton_schulz_flops, 0.0) / matrix_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBytes:
    """Bytes that an optimizer step moves on a rank [byte]."""

    sweeps: Floats
    """Zeroing, norm and clipping: passes over all local gradients."""
    update: Floats
    """Of the weights that the rank updates, with `copies`."""
    copies: Floats
    """Writing updated weights in a smaller type."""

    @property
    def total(self) -> Floats:
        """All of them [byte]."""
        return self.update + self.sweeps


def update_bytes(
    table: Table,
    *,
    reduced: TrainedWeights,
    owned: TrainedWeights,
    sizes: WeightSizes,
    gradient_bytes: Floats,
) -> UpdateBytes:
    """Bytes that an optimizer step moves [byte].

    Per owned weight: read the gradient, read and write its master and the state, write the weight
    that products read; without a master read and write the weight itself. Per local one: 1.5 sweeps
    over its gradient (zeroing, norm, clipping). Unsharded fp32 weights are cast as products read
    them (`quantizing_time`), not here.

    Parameters
    ----------
    reduced
        Weights whose reduced gradients the rank stores, after ZeRO shards them; shape (rows,).
    """
    copied = sizes.master > 0
    weight = np.where(copied & ~unsharded_fp32(table, sizes), sizes.plain, 0.0)
    updated_bytes = np.where(copied, sizes.master, sizes.plain)
    reads = np.array([_GRADIENT_READS[name] for name in Optimizer])[table.optimizer]
    again = np.array([_WEIGHT_READS[name] for name in Optimizer])[table.optimizer]
    each = reads * gradient_bytes + (2 + again) * updated_bytes + weight
    return UpdateBytes(
        sweeps=_GRADIENT_SWEEPS * reduced.weights * gradient_bytes,
        update=each * owned.weights + 2 * _moment_bytes(table.optimizer, sizes.moment, owned),
        copies=weight * owned.weights,
    )


def host_update_bytes(
    table: Table, *, owned: TrainedWeights, sizes: WeightSizes, gradient_bytes: Floats
) -> Floats:
    """Bytes that the host moves to update a rank's weights [byte].

    Those of an update on the accelerator (`update_bytes`): 36 for AdamW with fp32 state, gradients
    and a 16-bit copy, 28 with 16-bit moments. An update that is not fused moves `UNFUSED_BYTES`
    more, less with smaller moments.

    Parameters
    ----------
    owned
        Weights that the rank updates; shape (rows,).
    gradient_bytes
        Size of a gradient on the host [byte]; shape (rows,).
    """
    fused = update_bytes(
        table, reduced=owned, owned=owned, sizes=sizes, gradient_bytes=gradient_bytes
    )
    unfused = table.in_effect("cpu_optimizer") == CpuOptimizer.UNFUSED.code
    more = UNFUSED_BYTES * sizes.moment / FP32_BYTES * owned.weights
    return fused.total + np.where(unfused, more, 0.0)


def unsharded_fp32(table: Table, sizes: WeightSizes) -> Bools:
    """Rows whose weights are stored in fp32 on each replica; autocast makes 16-bit copies."""
    rows: Bools = sizes.is_stored & (table.zero < ZERO_GRADIENTS)
    return rows


def quantizing_time(
    table: Table,
    *,
    quantized: Floats,
    trained: Floats,
    local: Floats,
    sizes: WeightSizes,
    memory_rate: Floats,
) -> Floats:
    """Time of quantizing weights in a step of training, or of casting fp32 ones [s].

    Trained weights are quantized once after the update, for all micro-batches; where ZeRO-3 gathers
    weights, all weights are quantized after every gather, of which there is one per step where they
    stay gathered. Autocast reads unsharded fp32 weights and writes 16-bit ones once in each
    micro-batch (torch.autocast, cache_enabled).

    Parameters
    ----------
    quantized
        Weights of the rank that products read quantized [elements]; shape (rows,).
    trained
        Those of them that are trained [elements]; shape (rows,).
    local
        Trained weights of the rank whose gradients it stores [elements]; shape (rows,).
    sizes
        Bytes that quantizing one weight moves [byte]; columns of shape (rows,).
    memory_rate
        Rate of element-wise kernels [byte/s]; shape (rows,).
    """
    each = np.where(table.stays_gathered, 1, table.micro_batches)
    gathers = each * np.where(table.fsdp_reshard, 2.0, 1.0)
    each_step = np.where(table.zero >= ZERO_WEIGHTS, gathers * quantized, trained)
    moved = each_step * sizes.quantizing
    if np.any(cast := unsharded_fp32(table, sizes)):
        casts = table.micro_batches * (FP32_BYTES + sizes.plain) * local
        moved = moved + np.where(cast, casts, 0.0)
    return moved / memory_rate
