"""Exchange of gradients and weights among replicas: how long, and what of it compute hides."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.cost.collective import collective_time
from shardwise.cost.data_parallel import exposed_exchange, gradient_exchange
from shardwise.cost.operations import processor_share
from shardwise.model import Model
from shardwise.ops.layer import stack_column
from shardwise.ops.operation import CollectiveKind
from shardwise.placement import Extents
from shardwise.slowest import SlowestStage
from shardwise.system import System
from shardwise.table import Table

__all__ = ["Windows", "exchange_times", "windows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Time for which the network of the replicas is free beside compute [s].

    With v interleaved chunks on p stages, what all chunks but one exchange (gradients of the last
    micro-batch backward, weights of the first forward) runs behind p (v - 1) passes of a chunk,
    what the remaining one exchanges behind a single pass.
    """

    chunks: Floats
    tail: Floats


def windows(
    table: Table,
    extents: Extents,
    *,
    pass_s: Floats,
    tp_s: Floats,
    transfer_s: Floats,
) -> Windows:
    """Windows of one direction.

    Tensor-parallel exchanges, and transfers between stages that travel beside the compute, occupy
    the outermost tier that the replicas span meanwhile, if they use it.

    Parameters
    ----------
    pass_s, tp_s
        One micro-batch on the slowest stage, and its tensor-parallel exchanges alone [s].
    transfer_s
        What of one transfer to the next stage travels beside the compute [s].
    """
    chunk_s = pass_s - np.where(_shares_tier(extents.tp, extents.dp), tp_s, 0.0)
    chunk_s = chunk_s / table.vpp - np.where(_shares_tier(extents.pp, extents.dp), transfer_s, 0.0)
    chunk_s = np.maximum(0.0, chunk_s)
    return Windows(chunks=table.pp * (table.vpp - 1) * chunk_s, tail=chunk_s)


def _shares_tier(one: Ints, other: Ints) -> Bools:
    """Whether an axis spans the outermost tier that another one spans."""

    def reach(extents: Ints) -> Ints:
        inner = np.vstack([np.ones_like(extents[:1]), extents[:-1]])
        return np.where(extents > inner, 1, 0)

    tiers = np.arange(len(other))[:, np.newaxis]
    outermost = np.max(np.where(reach(other) > 0, tiers, -1), axis=0)
    return np.any((reach(one) > 0) & (tiers == outermost), axis=0)


def exchange_times(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    parameters: Floats,
    slowest: SlowestStage,
    transfer_s: Floats,
) -> tuple[Floats, Floats]:
    """Time of the exchange among replicas, alone and exposed [s].

    Overlapped, gradients run behind the backward pass of the last micro-batch, gathered weights
    behind the forward pass of the first.

    Parameters
    ----------
    parameters
        Of the stage that holds most.
    transfer_s
        What of one transfer to the next stage travels beside the compute [s].
    """
    blocks = slowest.blocks
    alone = gradient_exchange(
        system,
        parameters=np.where(table.training, parameters, 0.0),
        gradient_bytes=blocks.gradient_bytes,
        element_bytes=blocks.element_bytes,
        sharded=table.zero >= 1,
        extents=extents.dp,
    )
    exposed = np.zeros_like(parameters)
    for time_s, direction in zip(alone, ("backward", "forward"), strict=True):
        free = windows(
            table,
            extents,
            pass_s=slowest.on(f"{direction}_pass_s"),
            tp_s=slowest.on(f"tp_{direction}_s"),
            transfer_s=transfer_s,
        )
        for part, window_s in ((1 - 1 / table.vpp, free.chunks), (1 / table.vpp, free.tail)):
            exposed = exposed + exposed_exchange(
                part * time_s,
                window_s,
                contention=stack_column(table, "dp_contention"),
                tail=stack_column(table, "dp_tail"),
                processor_share=processor_share(system, extents.dp),
            )
    whole = alone[0] + alone[1]
    exposed = np.where(table.dp_overlap, exposed, whole)
    if model.tied_embeddings:  # first and last stage add up their copies' gradients
        tied = _tied_embeddings(model, system, table, extents, blocks.gradient_bytes)
        return whole + tied, exposed + tied
    return whole, exposed


def _tied_embeddings(
    model: Model, system: System, table: Table, extents: Extents, gradient_bytes: Floats
) -> Floats:
    """Time of adding up the gradients of both copies of the embedding [s]."""
    several = (table.pp > 1) & table.training
    copied = np.where(several, np.ceil(model.vocab / table.tp) * model.hidden, 0.0)
    pair = np.where(extents.pp >= table.pp, 2, 1)
    pair[-1] = 2
    return collective_time(system, CollectiveKind.ALL_REDUCE, copied * gradient_bytes, pair)
