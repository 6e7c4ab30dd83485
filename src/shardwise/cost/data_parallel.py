"""Exchange of gradients and weights among replicas, and the optimizer's step."""

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.cost.collective import collective_time
from shardwise.ops.layer import DTYPE_BYTES
from shardwise.ops.operation import CollectiveKind
from shardwise.system import System

__all__ = ["exposed_exchange", "gradient_exchange", "optimizer_time"]

_FP32_BYTES = DTYPE_BYTES["fp32"]
# Passes over all local gradients beside the update itself: written to zero, read for the norm,
# and the larger part again to be scaled (1.5 in grade-A published runs, together with the update).
_GRADIENT_SWEEPS = 1.5


def gradient_exchange(
    system: System,
    *,
    parameters: Floats,
    gradient_bytes: Floats,
    element_bytes: Floats,
    sharded: Bools,
    extents: Ints,
) -> tuple[Floats, Floats]:
    """Time of exchanging gradients, and weights, among the replicas of a stage, alone [s].

    Unsharded: all-reduce of the gradients. Sharded optimizer state (ZeRO-1, arXiv 1910.02054):
    reduce-scatter of the gradients, each member updates its part, all-gather of the weights.

    Parameters
    ----------
    parameters
        Weights on this rank.
    gradient_bytes, element_bytes
        Size of a gradient and of a weight [byte].
    sharded
        Rows with sharded optimizer state.
    extents
        Of the data-parallel axis; shape (tiers, rows).
    """
    gradients = parameters * gradient_bytes

    def time(kind: CollectiveKind, buffer: Floats) -> Floats:
        return collective_time(system, kind, buffer, extents)

    reduced = time(CollectiveKind.ALL_REDUCE, gradients)
    scattered = time(CollectiveKind.REDUCE_SCATTER, gradients)
    gathered = time(CollectiveKind.ALL_GATHER, parameters * element_bytes)
    return np.where(sharded, scattered, reduced), np.where(sharded, gathered, 0.0)


def exposed_exchange(
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


def optimizer_time(
    *,
    parameters: Floats,
    owned: Floats,
    element_bytes: Floats,
    gradient_bytes: Floats,
    memory_rate: Floats,
) -> Floats:
    """Time of an Adam step [s]: its bytes over the rate of element-wise kernels.

    Per owned parameter: read the gradient, read and write master weight and two moments in fp32,
    write the weight if its type differs from the master's. Per local parameter: 1.5 sweeps over
    its gradient (zeroing, norm, clipping).
    """
    weight = np.where(element_bytes < _FP32_BYTES, element_bytes, 0.0)
    update = owned * (gradient_bytes + 6 * _FP32_BYTES + weight)
    return (update + _GRADIENT_SWEEPS * parameters * gradient_bytes) / memory_rate
