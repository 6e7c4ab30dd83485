"""Communication behind compute: of data-parallel replicas and of experts."""

from dataclasses import replace

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.cost.layer_communication import ByAxis, LayerCommunication
from shardwise.cost.layer_cost import LayerCost, LayerWork, passes_with_host
from shardwise.ops.operation import CollectiveKind


def with_expert_overlap(
    layer: LayerCost,
    work: LayerWork,
    communication: LayerCommunication,
    *,
    training: Bools,
    rows: Bools,
    processor_share: Floats,
) -> LayerCost:
    """Hide communication of a layer's experts behind compute of paired micro-batches.

    The forward pass of one micro-batch runs with the backward pass of another; the communication of
    each runs concurrently with the compute C of both (arXiv 2412.19437, section 3.2.1) and uses the
    share u of the processor: hidden = min(X, C / (1 - u)), exposed = X - (1 - u) hidden, with X the
    exposed communication of both passes, which is divided in proportion. The host runs ahead only
    during what stays exposed.

    Parameters
    ----------
    processor_share
        u, share of the processor; shape (n,).
    """
    if not np.any(rows):
        return layer
    times = layer.times
    passes = passes_with_host(work, communication, training=training, expert_share=0.0)
    compute = sum(passes, times.recompute_s)
    exposed = times.exposed_forward_s.ep + times.exposed_backward_s.ep
    hidden = np.minimum(exposed, compute / (1 - processor_share))
    left = (exposed - (1 - processor_share) * hidden) / np.where(exposed > 0, exposed, 1.0)
    share = np.where(rows, left, 1.0)

    def scaled(side: ByAxis) -> ByAxis:
        return replace(side, ep=side.ep * share)

    forward_s, backward_s = passes_with_host(
        work, communication, training=training, expert_share=share
    )
    times = replace(
        times,
        forward_s=forward_s,
        backward_s=backward_s,
        weight_grad_s=backward_s * work.weight_grad_share,
        exposed_forward_s=scaled(times.exposed_forward_s),
        exposed_backward_s=scaled(times.exposed_backward_s),
    )
    return replace(layer, times=times)


def gradient_communication(
    system: System,
    *,
    gradient_bytes: Floats,
    weight_bytes: Floats,
    sharded: Bools,
    extents: Ints,
) -> tuple[Floats, Floats]:
    """Time of reducing gradients, and of gathering weights, among replicas of a stage, alone [s].

    Unsharded: all-reduce of the gradients. Sharded optimizer state (ZeRO-1, arXiv 1910.02054):
    reduce-scatter of the gradients, each member updates its shard, all-gather of the weights.

    Parameters
    ----------
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
    """Exposed time of communication that runs behind compute [s].

    Behind compute it runs at `contention` of its speed, so a window W hides at most contention x W
    of it; of what is hidden, the share `tail` (first and last bucket) finds nothing to hide behind.
    While it runs it uses the share u of the processor, and the compute takes longer.
    hidden = min(t, contention W / (1 - u)) (1 - tail); exposed = t - hidden + u hidden.

    Parameters
    ----------
    time_s
        t, the communication alone [s]; shape (n,).
    window_s
        W, compute that it may run behind [s]; shape (n,).
    contention
        Share of its speed that communication reaches behind compute; shape (n,).
    tail
        Share of the hidden time in the first and the last bucket; shape (n,).
    processor_share
        u.
    """
    window_s = window_s / (1 - processor_share)
    hidden = np.minimum(time_s, contention * window_s) * (1 - tail)
    return time_s - hidden * (1 - processor_share)
