"""2D tensor parallelism: products whose inputs and weights are each split along two axes (SUMMA).

Ranks form a grid of tp x tp2. Each of them has 1/tp2 of the tokens of every sequence and, between
products, 1/tp of the width of each; of weights (k, f) it has k / tp2 rows and f / tp columns. A
product is split in panels along k. For each panel, its owners broadcast the columns of the input
among the tp ranks and the rows of the weights among the tp2 ranks, and all ranks add their shard
of the result (van de Geijn and Watts, SUMMA, 1997; of transformers: Optimus, arXiv
2104.05343). Heads and columns of the vocabulary are split by tp, so that attention and loss need
only the keys and values of the other tokens.
"""

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.enums import Norm
from shardwise.config.model import Model
from shardwise.ops.operation import (
    FP32_BYTES,
    Collective,
    CollectiveKind,
    Matmul,
    Operation,
    Panels,
    Phase,
    RankWork,
)
from shardwise.records import dataclass, replace

# Panels of an input and of weights in memory: one in use and one in transfer.
_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSplit:
    """One rank's share of a product whose input is split along its width."""

    inputs: Floats
    outputs: Floats
    saved_tokens: Floats
    """Rows of the input that it saves."""


def row_split(work: RankWork, inputs: int, outputs: int) -> RowSplit:
    """Split the reduction of a product among tp ranks, or its result where products are 2D.

    Parameters
    ----------
    inputs, outputs
        Widths of X and of Y of an unsplit product [element].
    """
    return RowSplit(
        inputs=inputs / np.where(work.summa, 1.0, work.tp),
        outputs=tp_share(work, outputs),
        saved_tokens=np.where(work.summa, work.split_tokens, work.tokens),
    )


def tp_share(work: RankWork, width: int) -> Floats:
    """Width on a rank that 2D products split by tp and other products replicate.

    Parameters
    ----------
    width
        Full width [element].
    """
    return width / np.where(work.summa, work.tp, 1.0)


def in_panels(operation: Operation, work: RankWork, *, biases: Floats) -> Operation:
    """The product Y = X W of a linear layer in panels, where products are 2D.

    With X (T, k) and W (k, f), T tokens and f columns on this rank, and n panels: forward X is
    broadcast over tp and W over tp2; for dX = dY W^T W is broadcast over tp2 and dX reduced over
    tp; for dW = X^T dY X is broadcast over tp and dW reduced over tp2. These buffers have T k and
    k f elements, 1/n of them at a time. Live in backward are dY and a rank's shard of dX, and two
    panels of each buffer, of which one is in transfer.

    Parameters
    ----------
    operation
        With the kernels of the full X, the columns of W, and b.
    """
    forward = next(kernel for kernel in operation.kernels if isinstance(kernel, Matmul))
    size = work.element_bytes * forward.batch
    inputs, weights = forward.m * forward.k * size, forward.k * forward.n * size
    # Broadcasts and sums of a 2D product's panels.
    input_bytes = np.where(work.summa & (work.tp > 1), inputs, 0.0)
    weight_bytes = np.where(work.tp2 > 1, weights, 0.0)
    send, add = CollectiveKind.BROADCAST, CollectiveKind.REDUCE
    collectives = tuple(
        Collective(phase=phase, kind=kind, axis=axis, bytes=size, panels=work.panels)
        for phase, kind, axis, size in (
            (Phase.FORWARD, send, "tp", input_bytes),
            (Phase.FORWARD, send, "tp2", weight_bytes),
            (Phase.INPUT_GRAD, send, "tp2", weight_bytes),
            (Phase.INPUT_GRAD, add, "tp", input_bytes),
            (Phase.WEIGHT_GRAD, send, "tp", input_bytes),
            (Phase.WEIGHT_GRAD, add, "tp2", weight_bytes),
        )
    )
    in_flight = [np.where(work.tp > 1, inputs, 0.0), np.where(work.tp2 > 1, weights, 0.0)]
    own = forward.m * (forward.k / work.tp + forward.n) * size
    working = own + _IN_FLIGHT / work.panels * (in_flight[0] + in_flight[1])
    panels = Panels(count=work.panels, ranks=work.tp2)
    return replace(
        operation,
        kernels=tuple(
            replace(kernel, panels=panels) if isinstance(kernel, Matmul) else kernel
            for kernel in operation.kernels
        ),
        collectives=(*operation.collectives, *collectives),
        parameters=(operation.parameters - biases) / work.tp2 + biases,
        working_bytes=np.where(work.summa, working, operation.working_bytes),
    )


def norm_statistics(model: Model, work: RankWork) -> tuple[Collective, ...]:
    """All-reduces of a norm's sums over the width that 2D products split by tp, in fp32 per token.

    Of x and x^2 forward, of dy w and dy w x backward; an RMSNorm needs the second ones only.
    """
    if not np.any(work.summa):
        return ()
    sums = 1 if model.norm == Norm.RMSNORM else 2
    reduced = np.where(work.summa & (work.tp > 1), work.tokens * sums * FP32_BYTES, 0.0)
    return tuple(
        Collective(phase=phase, kind=CollectiveKind.ALL_REDUCE, axis="tp", bytes=reduced)
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
    )


def shared_keys(work: RankWork, own_bytes: Floats) -> tuple[Collective, ...]:
    """Collectives of the keys and values of a sequence that tp2 ranks split.

    Gathered forward and again backward, their gradients reduce-scattered.

    Parameters
    ----------
    own_bytes
        Keys and values of one rank's tokens [byte].
    """
    if not np.any(work.tp2 > 1):
        return ()
    gathered = np.where(work.tp2 > 1, work.tp2 * own_bytes, 0.0)
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    return tuple(
        Collective(phase=phase, kind=kind, axis="tp2", bytes=gathered)
        for phase, kind in (
            (Phase.FORWARD, gather),
            (Phase.INPUT_GRAD, gather),
            (Phase.INPUT_GRAD, scatter),
        )
    )


def swapped_columns(work: RankWork, size: Floats) -> tuple[Collective, ...]:
    """All-to-alls that swap 1/tp2 of the columns of all tokens for all columns of 1/tp2 of them."""
    if not np.any(work.tp2 > 1):
        return ()
    swapped = np.where(work.tp2 > 1, size, 0.0)
    return tuple(
        Collective(phase=phase, kind=CollectiveKind.ALL_TO_ALL, axis="tp2", bytes=swapped)
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
    )
