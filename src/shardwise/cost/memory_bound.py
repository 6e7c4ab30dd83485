"""Time of element-wise kernels and reductions."""

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.system import Processing
from shardwise.cost.curve import joined_times

__all__ = ["memory_bound_times"]

_JOIN_EXPONENT = np.inf  # the larger


def memory_bound_times(
    moved_bytes: Floats,
    flops: Floats,
    *,
    memory_rate: Floats | float,
    vector_rate: Floats | float,
    launch_s: float,
    compute_latency_s: float = 0.0,
    processing: Processing = "measured",
) -> tuple[Floats, Floats, Floats]:
    """Return compute, memory and whole time [s]: t = t0 + max(t1 + flops / V, bytes / B).

    Processing without overlap: t = t0 + t1 + flops / V + bytes / B.

    Parameters
    ----------
    moved_bytes
        Bytes read and written [byte]; where zero, the kernel does not run.
    memory_rate
        Bandwidth times the share of it that such kernels reach [byte/s].
    vector_rate
        Peak of the vector units times the share of it that these FLOPs reach [FLOP/s].
    launch_s
        t0, time of a kernel without work [s].
    compute_latency_s
        t1, its compute time [s].
    """
    compute = flops / vector_rate + compute_latency_s * (moved_bytes > 0)
    memory = moved_bytes / memory_rate
    joined = joined_times(compute, memory, processing, _JOIN_EXPONENT)
    return compute, memory, np.where(moved_bytes > 0, launch_s + joined, 0.0)
