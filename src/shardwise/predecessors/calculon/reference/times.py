"""Primitive times: compute, memory, processing, network (section 1.2 of the specification).

Calculon 0.1.0, commit caa4b11. The efficiency is looked up by the size of the full operation: all
heads, the full matrix product; shapes do not matter.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.calculon.files import (
    DATATYPES,
    CalculonMemory,
    CalculonProcessor,
    CalculonSystem,
    Curve,
)

MEGA, GIGA, TERA = 1e6, 1e9, 1e12

NetworkOperation = Literal["p2p", "reduce_scatter", "all_gather", "all_reduce"]


def efficiency(size: Floats, curve: Curve, unit: float) -> Floats:
    """Share of the peak: of the first row (thresholds descend) with threshold x unit <= size."""
    thresholds, shares = np.array(curve[::-1]).T
    return shares[np.searchsorted(thresholds * unit, size, side="right") - 1]


def flop_time(
    flops: Floats, matrix: Bools | bool, system: CalculonSystem, datatype: Ints
) -> Floats:
    """Compute time [s] = FLOPs / (peak x efficiency(FLOPs)).

    Parameters
    ----------
    flops
        Of each operation; rows along the last axis.
    matrix
        Whether the matrix engine does it, or the vector engine.
    datatype
        Of each row, as a position in `DATATYPES`.
    """
    if matrix is True or matrix is False:
        return _engine_time(flops, system.matrix if matrix else system.vector, datatype)
    on_matrix = _engine_time(flops, system.matrix, datatype)
    return np.where(matrix, on_matrix, _engine_time(flops, system.vector, datatype))


def _engine_time(
    flops: Floats, processors: Mapping[str, CalculonProcessor], datatype: Ints
) -> Floats:
    time = np.empty_like(flops)
    for code in np.unique(datatype):
        processor = processors[DATATYPES[code]]
        rows = datatype == code
        some = flops[..., rows]
        share = efficiency(some, processor.gflops_efficiency, GIGA)
        time[..., rows] = some / (processor.tflops * TERA * share)
    return time


def memory_time(size: Floats, memory: CalculonMemory) -> Floats:
    """Time [s] to move bytes = bytes / (bandwidth x efficiency(bytes))."""
    return size / (memory.GBps * GIGA * efficiency(size, memory.MB_efficiency, MEGA))


def processing_time(compute_s: Floats, memory_s: Floats, system: CalculonSystem) -> Floats:
    """Time [s] of an operation: the larger of the two (roofline) or their sum (no_overlap)."""
    if system.processing_mode == "roofline":
        return np.maximum(compute_s, memory_s)
    return compute_s + memory_s


def network_time(
    size: Floats,
    operation: NetworkOperation,
    participants: Ints | int,
    system: CalculonSystem,
    network: Ints,
) -> Floats:
    """Time [s] = latency + bytes x scalar x (1 + offset / participants) / (bandwidth x efficiency).

    The latency is charged once, whatever the number of participants, and for 0 bytes too.
    """
    networks = system.networks
    rate = np.array([n.bandwidth * GIGA * n.efficiency for n in networks])[network]
    latency = np.array([n.latency for n in networks])[network]
    offset = np.array([getattr(n.ops, operation)[1] or 0.0 for n in networks])[network]
    volume = size * volume_factor(operation, system, network) * (1 + offset / participants)
    return latency + volume / rate


def volume_factor(operation: NetworkOperation, system: CalculonSystem, network: Ints) -> Floats:
    """The scalar of an operation: its volume over its data among many participants."""
    return np.array([getattr(n.ops, operation)[0] for n in system.networks])[network]


def processor_usage(system: CalculonSystem, network: Ints) -> Floats:
    """Share of the compute that a network uses while its traffic is hidden."""
    return np.array([n.processor_usage for n in system.networks])[network]
