"""Communication behind compute: of data-parallel replicas and of experts."""

from dataclasses import replace

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.cost.layer_cost import ByAxis, LayerCost
from shardwise.ops.operation import CollectiveKind

__all__ = ["exposed_communication", "gradient_communication", "with_expert_overlap"]


def with_expert_overlap(block: LayerCost, rows: Bools, taken: Floats) -> LayerCost:
    """Hide exchanges of a layer's experts beside forward and backward of paired micro-batches.

    The forward pass of one micro-batch runs with the backward pass of another, and the exchanges
    of each beside the compute C of both (arXiv 2412.19437, section 3.2.1). They take the share u of
    the processor from it: hidden = min(X, C / (1 - u)), exposed = X - (1 - u) hidden, of the
    exposed exchanges X of both passes; each keeps its part.

    Parameters
    ----------
    rows
        Rows that overlap them.
    taken
        u.
    """
    times = block.times
    compute = times.forward_s + times.backward_s + times.recompute_s
    exposed = times.exposed_forward_s.ep + times.exposed_backward_s.ep
    hidden = np.minimum(exposed, compute / (1 - taken))
    left = (exposed - (1 - taken) * hidden) / np.where(exposed > 0, exposed, 1.0)
    share = np.where(rows, left, 1.0)

    def kept(side: ByAxis) -> ByAxis:
        return replace(side, ep=side.ep * share)

    times = replace(
        times,
        exposed_forward_s=kept(times.exposed_forward_s),
        exposed_backward_s=kept(times.exposed_backward_s),
    )
    return replace(block, times=times)


def gradient_communication(
    system: System,
    *,
    gradient_bytes: Floats,
    weight_bytes: Floats,
    sharded: Bools,
    extents: Ints,
) -> tuple[Floats, Floats]:
    """Time of exchanging gradients, and weights, among the replicas of a stage, alone [s].

    Unsharded: all-reduce of the gradients. Sharded optimizer state (ZeRO-1, arXiv 1910.02054):
    reduce-scatter of the gradients, each member updates its part, all-gather of the weights.

    Parameters
    ----------
    gradient_bytes, weight_bytes
        All gradients and weights on this rank [byte].
    sharded
        Rows with sharded optimizer state.
    extents
        Of the replicas; shape (tiers, rows).
    """

    def time(kind: CollectiveKind, buffer: Floats) -> Floats:
        return collective_time(system, kind, buffer, extents)

    reduced = time(CollectiveKind.ALL_REDUCE, gradient_bytes)
    scattered = time(CollectiveKind.REDUCE_SCATTER, gradient_bytes)
    gathered = time(CollectiveKind.ALL_GATHER, weight_bytes)
    return np.where(sharded, scattered, reduced), np.where(sharded, gathered, 0.0)


def exposed_communication(
    time_s: Floats,
    window_s: Floats,
    *,
    contention: Floats,
    tail: Floats,
    processor_share: Floats,
) -> Floats:
    """Exposed part of an exchange that runs behind compute [s].

    Behind compute it runs at `contention` of its speed, so a window W hides at most contention x W
    of it; of what is hidden, the share `tail` (first and last bucket) finds nothing to hide behind.
    While it runs it takes the share u of the processor from the compute, which lasts longer.
    hidden = min(t, contention W / (1 - u)) (1 - tail); exposed = t - hidden + u hidden.

    Parameters
    ----------
    time_s
        t, the exchange alone [s].
    window_s
        W, compute that it may run behind [s].
    processor_share
        u.
    """
    window_s = window_s / (1 - processor_share)
    hidden = np.minimum(time_s, contention * window_s) * (1 - tail)
    return time_s - hidden * (1 - processor_share)
