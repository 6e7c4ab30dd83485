"""Offload to the second tier of memory (section 1.9 of the specification).

Calculon 0.1.0, commit caa4b11. A transfer hides behind compute only where tier 1 is idle.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.interop.calculon.files import CalculonSystem
from shardwise.interop.calculon.reference.block import BlockSpaces, BlockTimes
from shardwise.interop.calculon.reference.columns import Columns
from shardwise.interop.calculon.reference.memory import BlockMemory
from shardwise.interop.calculon.reference.times import memory_time

__all__ = [
    "OffloadNeeds",
    "Transfers",
    "Walls",
    "bandwidth_needs",
    "overheads",
    "transfers_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """Wall time of one block and micro-batch, base and edge, forward and backward [s]."""

    fw_base: Floats
    fw_edge: Floats
    bw_base: Floats
    bw_edge: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Bytes that one block and micro-batch moves between the tiers."""

    activations: Floats
    """What its activations or its checkpoint hold, offloaded or not."""
    fw: Floats
    """S_F = max(weights if offloaded, activations if offloaded)."""
    bw: Floats
    """S_B = weights + activations + optimizer state, each if offloaded; training only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadNeeds:
    """Bandwidth that hides offloading [byte/s], whether or not it is on.

    NaN where a block leaves tier 1 no idle time (Calculon divides by zero there).
    """

    activations: Floats
    weights: Floats
    optimizer: Floats
    together: Floats


def transfers_of(spaces: BlockSpaces, block: BlockMemory, columns: Columns) -> Transfers:
    """Bytes to move forward and backward."""
    c = columns
    activations = spaces.checkpoint + spaces.storage  # one of them is 0
    return Transfers(
        activations=activations,
        fw=np.maximum(c.weight_offload * block.weights, c.activations_offload * activations),
        bw=c.training
        * (
            c.weight_offload * block.weights
            + c.activations_offload * activations
            + c.optimizer_offload * block.optimizer
        ),
    )


def _busy(times: BlockTimes) -> tuple[Floats, Floats]:
    """Time that tier 1 is busy, forward and backward [s]."""
    return times.fw.mem_time, times.agrad.mem_time + times.wgrad.mem_time


def overheads(
    transfers: Transfers, walls: Walls, times: BlockTimes, system: CalculonSystem
) -> Walls:
    """What offloading adds to each block: max(0, transfer + time of tier 1 - wall time) [s]."""
    fw_s, bw_s = (memory_time(size, system.mem2) for size in (transfers.fw, transfers.bw))
    fw_busy, bw_busy = _busy(times)

    def beyond(transfer: Floats, busy: Floats, wall: Floats, moved: Bools) -> Floats:
        return np.where(moved, np.maximum(0.0, transfer + busy - wall), 0.0)

    return Walls(
        fw_base=beyond(fw_s, fw_busy, walls.fw_base, transfers.fw > 0),
        fw_edge=beyond(fw_s, fw_busy, walls.fw_edge, transfers.fw > 0),
        bw_base=beyond(bw_s, bw_busy, walls.bw_base, transfers.bw > 0),
        bw_edge=beyond(bw_s, bw_busy, walls.bw_edge, transfers.bw > 0),
    )


def bandwidth_needs(
    transfers: Transfers, block: BlockMemory, walls: Walls, times: BlockTimes, columns: Columns
) -> OffloadNeeds:
    """Bytes over the idle time of tier 1 in the shorter of base and edge block.

    `walls` are those without the overhead of offloading.
    """
    fw_busy, bw_busy = _busy(times)
    fw_idle = _positive(np.minimum(walls.fw_base, walls.fw_edge) - fw_busy)
    bw_idle = _positive(np.minimum(walls.bw_base, walls.bw_edge) - bw_busy)
    trained = columns.training
    optimizer = np.where(trained, (block.gradient + block.optimizer) / bw_idle, 0.0)
    backward = np.where(trained, transfers.bw / bw_idle, 0.0)
    return OffloadNeeds(
        activations=transfers.activations / fw_idle,
        weights=block.weights / fw_idle,
        optimizer=optimizer,
        together=np.maximum(transfers.fw / fw_idle, backward),
    )


def _positive(idle: Floats) -> Floats:
    """The idle time, NaN where there is none."""
    return np.where(idle != 0, idle, np.nan)
