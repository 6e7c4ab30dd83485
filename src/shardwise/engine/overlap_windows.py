"""Time for which the network of the replicas is free beside compute."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.strategy_table import Table
from shardwise.parallel.placement import Extents

__all__ = ["Windows", "windows"]


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
    inside_s: Mapping[str, Floats],
    transfer_s: Floats,
) -> Windows:
    """Windows of one direction.

    Exchanges inside layers, and transfers between stages that travel beside the compute, occupy
    the outermost tier that the replicas span meanwhile, if they use it.

    Parameters
    ----------
    pass_s, inside_s
        One micro-batch on the slowest stage, and the exchanges of each axis in it, alone [s].
    transfer_s
        What of one transfer to the next stage travels beside the compute [s].
    """
    members = extents.replicas
    chunk_s = pass_s
    for axis, time_s in inside_s.items():
        reach = getattr(extents, axis) * (extents.tp2 if axis == "tp" else 1)
        shared = _shares_tier(reach, members)
        chunk_s = chunk_s - np.where(shared, time_s, 0.0)
    chunk_s = chunk_s / table.vpp - np.where(_shares_tier(extents.pp, members), transfer_s, 0.0)
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
