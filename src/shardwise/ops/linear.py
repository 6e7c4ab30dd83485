"""Products of activations with weights: forward, gradient of the input, gradient of the weights.

Tensor parallelism communicates around a pair of split products. Column-parallel products split
their output, row-parallel ones their reduction. Without sequence parallelism the partial sums are
all-reduced; with it they are reduce-scattered along the sequence and gathered again before the next
column-parallel product (arXiv 2205.05198, section 4.2). The variant that scatters between stages
only all-reduces inside them. 2D products have other collectives (`ops.summa`).
"""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.ops.operation import (
    Collective,
    CollectiveKind,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    kernel_in,
)
from shardwise.ops.quantization import Operands, quantized
from shardwise.ops.summa import in_panels
from shardwise.records import replace


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
    batch: Floats | float = 1.0,
    grouped: bool = False,
    expert: bool = False,
    sixteen_bits: Bools | bool = False,
    arriving_bytes: Floats | None = None,
    normed: bool = False,
    saved_elsewhere: Bools | bool = False,
    reruns_with: frozenset[str] = frozenset(),
    dropped_with: frozenset[str] = frozenset(),
) -> Operation:
    """One linear layer Y = X W + b on one rank, X (tokens, inputs), W (inputs, outputs).

    FLOPs: 2 tokens inputs outputs for each of Y = X W, dX = dY W^T and dW = X^T dY. The gradient of
    the weights is read, added to and written in the type that gradients accumulate in.

    Parameters
    ----------
    name
        Name of the operation.
    tokens
        Rows of X.
    inputs, outputs
        This rank's share of the widths; of a 2D product, the full width of X.
    bias
        Elements of b on this rank.
    saved_tokens
        Rows of X that stay on this rank until backward; all unless X is gathered again.
    parameters
        Weights and biases on this rank, if not inputs x outputs + bias.
    batch
        Number of such layers, each with its own X, W and b.
    grouped
        Whether these are the grouped products of experts, even of a single one.
    expert, reruns_with, dropped_with
        As in `Operation`; the dropped tensor is X.
    sixteen_bits
        Whether no recipe quantizes these products; a column where only some rows' do not.
    arriving_bytes, normed, saved_elsewhere
        With a recipe, as in `Operands`; `arriving_bytes` defaults to the row's type.
    """
    one = np.ones_like(work.tp)
    batch = batch * one
    inputs, outputs = inputs * one, outputs * one
    size = work.element_bytes

    def product(phase: Phase, m: Floats, n: Floats, k: Floats, output: Floats) -> Matmul:
        return Matmul(
            phase=phase,
            m=m,
            n=n,
            k=k,
            input_bytes=size,
            output_bytes=output,
            batch=batch,
            grouped=grouped,
        )

    kernels: list[Matmul | MemoryBound] = [
        product(Phase.FORWARD, tokens, outputs, inputs, size),
        product(Phase.INPUT_GRAD, tokens, inputs, outputs, size),
        product(Phase.WEIGHT_GRAD, inputs, outputs, tokens, 2 * work.gradient_bytes),
    ]
    biased = np.asarray(bias) > 0
    if biased.any():  # forward it is an epilogue of the product
        summed = np.where(biased, batch * tokens * outputs, 0.0)
        kernels.append(MemoryBound(phase=Phase.WEIGHT_GRAD, bytes=summed * size, flops=summed))
    weights = batch * (inputs * outputs + bias) if parameters is None else parameters * one
    saved = tokens if saved_tokens is None else saved_tokens
    operation = Operation(
        name=name,
        kernels=tuple(kernels),
        collectives=collectives,
        parameters=weights,
        saved_bytes=batch * saved * inputs * size,
        working_bytes=batch * tokens * (inputs + outputs) * size,
        expert=expert,
        reruns_with=reruns_with,
        dropped_with=dropped_with,
    )
    if work.summa.any():
        operation = in_panels(operation, work, biases=batch * bias)
    recipes = np.where(sixteen_bits, 0, work.quantization)
    if not recipes.any():
        return operation
    operands = Operands(
        inputs=batch * tokens * inputs,
        outputs=batch * tokens * outputs,
        weights=batch * inputs * outputs,
        arriving_bytes=size if arriving_bytes is None else arriving_bytes,
        normed=normed,
        saved_elsewhere=np.full(one.shape, saved_elsewhere),
    )
    made = quantized(operation, replace(work, quantization=recipes), operands)
    apart = recipes != work.quantization
    if not apart.any():
        return made
    both = zip((made, operation), (~apart, apart), strict=True)
    return replace(
        made, kernels=tuple(kernel_in(kernel, rows) for one, rows in both for kernel in one.kernels)
    )


def with_accumulation(operations: Sequence[Operation], work: RankWork) -> list[Operation]:
    """Add kernels that accumulate weight gradients, for stacks whose products do not.

    The product writes a gradient of its weights in the compute type; another kernel reads it, and
    reads and writes the sum: w + (w + 2 g) bytes per weight instead of 2 g. Until then the gradient
    is live in addition to the rest. 2D products do the same with the shard that a rank has after
    the ranks have reduced theirs.

    Parameters
    ----------
    operations
        Operations of a layer, in order.
    """
    if np.all(_fused(work)):
        return list(operations)
    return [_with_added_kernel(operation, work) for operation in operations]


def _fused(work: RankWork) -> Bools:
    """Rows whose products accumulate gradients: not those that ranks must reduce first."""
    return work.fused_accumulation & (work.tp2 == 1)


def _with_added_kernel(operation: Operation, work: RankWork) -> Operation:
    separate = np.where(_fused(work), 0.0, 1.0)
    forward_working = operation.forward_working_bytes
    for kernel in operation.kernels:
        if not isinstance(kernel, Matmul) or kernel.phase is not Phase.WEIGHT_GRAD:
            continue
        weights = separate * kernel.batch * kernel.own_rows * kernel.n
        chunks = 1.0 if kernel.panels is None else kernel.panels.chunks
        added_to = weights * chunks
        moved = added_to * (work.element_bytes + 2 * work.gradient_bytes)
        written = np.where(separate > 0, work.element_bytes, kernel.output_bytes)
        product = replace(kernel, output_bytes=written)
        others = (one for one in operation.kernels if one is not kernel)
        added = MemoryBound(phase=Phase.WEIGHT_GRAD, bytes=moved, flops=added_to)
        return replace(
            operation,
            kernels=(*others, product, added),
            working_bytes=operation.working_bytes + weights * work.element_bytes,
            forward_working_bytes=(
                operation.working_bytes if forward_working is None else forward_working
            ),
        )
    return operation


def _where(work: RankWork, *, sequence_parallel: bool, width: Floats | float) -> Floats:
    """Bytes of the full activation (tokens, width) in rows with or without sequence parallelism."""
    uses = (work.tp > 1) & (work.sequence_parallel == sequence_parallel) & ~work.summa
    return np.where(uses, work.tokens * width * work.element_bytes, 0.0)


def before_column_parallel(work: RankWork, width: Floats | float) -> tuple[Collective, ...]:
    """Collectives of the input (tokens, width) of a column-parallel product.

    Forward: gather the sequence (sequence parallelism only). Backward: gather the input again for
    the gradient of the weights unless it was saved in full, overlapping the gradient of the input;
    reduce the gradient of the input, overlapping the gradient of the weights. All may be split with
    their product; stacks that do so by default only split the collectives of sequence parallelism
    (Transformer Engine's user buffers).

    Parameters
    ----------
    width
        Width of the full tensor [element]; a number, or shape (rows,).
    """
    split = _where(work, sequence_parallel=True, width=width)
    full = _where(work, sequence_parallel=False, width=width)
    gather, scatter, reduce = (
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_REDUCE,
    )
    backward, behind = Phase.INPUT_GRAD, Phase.WEIGHT_GRAD
    return (
        _piecewise(Phase.FORWARD, gather, split),
        Collective(
            phase=behind,
            kind=gather,
            axis="tp",
            bytes=np.where(work.regather, split, 0.0),  # of which only a shard was saved
            behind=backward,
            split_with=behind,
        ),
        _piecewise(backward, scatter, split, behind=behind),
        Collective(
            phase=backward, kind=reduce, axis="tp", bytes=full, behind=behind, split_with=backward
        ),
    )


def after_row_parallel(work: RankWork, width: Floats | float) -> tuple[Collective, ...]:
    """Collectives of the output (tokens, width) of a row-parallel product.

    Forward: reduce the partial sums. Backward: gather the gradient (sequence parallelism only).

    Parameters
    ----------
    width
        Width of the full tensor [element]; a number, or shape (rows,).
    """
    split = _where(work, sequence_parallel=True, width=width)
    full = _where(work, sequence_parallel=False, width=width)
    scatter, reduce = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE
    gather = CollectiveKind.ALL_GATHER
    return (
        _piecewise(Phase.FORWARD, scatter, split),
        Collective(
            phase=Phase.FORWARD, kind=reduce, axis="tp", bytes=full, split_with=Phase.FORWARD
        ),
        _piecewise(Phase.INPUT_GRAD, gather, split),
    )


def shared_by_heads(work: RankWork, width: float) -> tuple[Collective, ...]:
    """Collectives of (tokens, width) that the heads of all ranks share, made from sequence shards.

    Forward: gather (sequence parallelism only). Backward: reduce the gradients of the heads.

    Parameters
    ----------
    width
        Width of the full tensor [element].
    """
    split = _where(work, sequence_parallel=True, width=width)
    full = _where(work, sequence_parallel=False, width=width)
    forward, backward = Phase.FORWARD, Phase.INPUT_GRAD
    return (
        Collective(phase=forward, kind=CollectiveKind.ALL_GATHER, axis="tp", bytes=split),
        Collective(phase=backward, kind=CollectiveKind.REDUCE_SCATTER, axis="tp", bytes=split),
        Collective(phase=backward, kind=CollectiveKind.ALL_REDUCE, axis="tp", bytes=full),
    )


def gathered_columns(work: RankWork, width: float) -> tuple[Collective, ...]:
    """Collectives that gather the columns of an output (tokens, width), split again afterwards.

    Forward: gather. Backward: reduce-scatter, after a gather of the sequence shards (sequence
    parallelism only).

    Parameters
    ----------
    width
        Width of the full tensor [element].
    """
    split = _where(work, sequence_parallel=True, width=width)
    full = split + _where(work, sequence_parallel=False, width=width)
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    return (
        Collective(phase=Phase.FORWARD, kind=gather, axis="tp", bytes=full),
        Collective(phase=Phase.INPUT_GRAD, kind=gather, axis="tp", bytes=split),
        Collective(phase=Phase.INPUT_GRAD, kind=scatter, axis="tp", bytes=full),
    )


def all_reduced(work: RankWork, size: Floats) -> tuple[Collective, ...]:
    """All-reduces of `size` bytes forward and backward.

    Parameters
    ----------
    size
        Size of the buffer on each rank [byte]; shape (rows,).
    """
    reduced = np.where(work.tp > 1, size, 0.0)
    return tuple(
        Collective(phase=phase, kind=CollectiveKind.ALL_REDUCE, axis="tp", bytes=reduced)
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
    )


def _piecewise(
    phase: Phase, kind: CollectiveKind, size: Floats, behind: Phase | None = None
) -> Collective:
    return Collective(
        phase=phase,
        kind=kind,
        axis="tp",
        bytes=size,
        behind=behind,
        split_with=phase,
        stack_splits=True,
    )
