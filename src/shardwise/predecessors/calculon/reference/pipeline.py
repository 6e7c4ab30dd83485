"""The pipeline: transfers, wall times, bubble, and offload (sections 1.6 and 1.9).

Calculon 0.1.0, commit caa4b11. A transfer to the second tier of memory hides behind compute only
where tier 1 is idle.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.predecessors.calculon.files import CalculonModel, CalculonSystem
from shardwise.predecessors.calculon.reference.block import BlockSpaces, BlockTimes
from shardwise.predecessors.calculon.reference.columns import AR, Columns
from shardwise.predecessors.calculon.reference.memory import BlockMemory, Depth
from shardwise.predecessors.calculon.reference.times import memory_time, network_time


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTransfer:
    """What a micro-batch sends to the next stage and receives back, per chunk."""

    fw_size: Floats
    bw_size: Floats
    """Bytes."""
    fw_s: Floats
    bw_s: Floats
    """Time [s]: in inference, too, a backward latency without bytes [Q13]."""


def stage_transfer(model: CalculonModel, columns: Columns, system: CalculonSystem) -> StageTransfer:
    """Bytes and times of the transfers between stages.

    A b under ar; A' b = (B // T) h b where activations are scattered; 0 without a pipeline.
    """
    c = columns
    tokens = c.microbatch_size * model.seq_size
    sent = np.where(c.tensor_par_comm_type == AR, tokens, tokens // c.tensor_par)
    size = sent * float(model.hidden) * c.element_bytes * (c.pipeline_par > 1)
    fw_s, bw_s = (
        network_time(s, "p2p", 2, system, c.pipeline_par_net) for s in (size, size * c.training)
    )
    return StageTransfer(fw_size=size, bw_size=size * c.training, fw_s=fw_s, bw_s=bw_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """Wall time of one block and micro-batch, base and edge, forward and backward [s]."""

    fw_base: Floats
    fw_edge: Floats
    bw_base: Floats
    bw_edge: Floats


def walls_of(times: BlockTimes, transfer: StageTransfer) -> Walls:
    """Wall time of one block: work and exposed communication; the edge block also sends."""
    (fw_base, fw_edge), (bw_base, bw_edge) = times.fw_tp, times.agrad_tp
    again_base, again_edge = times.recomm
    backward = times.re.time + times.agrad.time + times.wgrad.time
    return Walls(
        fw_base=times.fw.time + fw_base.exposed,
        fw_edge=times.fw.time + fw_edge.exposed + transfer.fw_s,
        bw_base=backward + again_base.exposed + bw_base.exposed,
        bw_edge=backward + again_edge.exposed + bw_edge.exposed + transfer.bw_s,
    )


def per_chunk(base: Floats, edge: Floats, depth: Depth) -> Floats:
    """(k - 1) base + edge."""
    return (depth.chunk_blocks - 1) * base + edge


def bubble_time(model: CalculonModel, walls: Walls, depth: Depth, columns: Columns) -> Floats:
    """Time [s] that processor 0 waits for the others.

    (P - 1 + extra) chunks, with extra = (v - 1) (P - N mod P) if P does not divide N; less what
    the stages that have one block less save: P - L mod P of them, if P does not divide L, times
    (F_b + F_e + B_b + B_e) / 2 if k > 1, else F_e + B_e.
    """
    stages, micro = columns.pipeline_par, depth.microbatches
    chunk = per_chunk(walls.fw_base, walls.fw_edge, depth) + per_chunk(
        walls.bw_base, walls.bw_edge, depth
    )
    uneven = micro % stages
    extra = np.where(uneven > 0, (depth.chunks - 1) * (stages - uneven), 0)
    left = model.num_blocks % stages
    short = np.where(left > 0, stages - left, 0)
    edge = walls.fw_edge + walls.bw_edge
    saved = np.where(depth.chunk_blocks > 1, (walls.fw_base + walls.bw_base + edge) / 2, edge)
    return (stages - 1 + extra) * chunk - short * saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Bytes that one block and micro-batch moves between the tiers."""

    activations: Floats
    """Its activations or its checkpoint, offloaded or not."""
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

    def excess(transfer: Floats, busy: Floats, wall: Floats, moved: Bools) -> Floats:
        return np.where(moved, np.maximum(0.0, transfer + busy - wall), 0.0)

    return Walls(
        fw_base=excess(fw_s, fw_busy, walls.fw_base, transfers.fw > 0),
        fw_edge=excess(fw_s, fw_busy, walls.fw_edge, transfers.fw > 0),
        bw_base=excess(bw_s, bw_busy, walls.bw_base, transfers.bw > 0),
        bw_edge=excess(bw_s, bw_busy, walls.bw_edge, transfers.bw > 0),
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
