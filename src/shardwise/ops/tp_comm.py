"""Communication of tensor parallelism around a pair of split products.

Column-parallel products split their output, row-parallel ones their reduction. Without sequence
parallelism the partial sums are all-reduced; with it they are reduce-scattered along the sequence
and gathered again before the next column-parallel product (arXiv 2205.05198, section 4.2). The
variant that scatters between stages only all-reduces inside them. 2D products have other
collectives (`ops.summa`).
"""

import numpy as np

from shardwise.arrays import Floats
from shardwise.ops.operation import Collective, CollectiveKind, Phase, RankWork


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
