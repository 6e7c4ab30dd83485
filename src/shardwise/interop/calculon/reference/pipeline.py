"""The pipeline: transfers, wall times of blocks and chunks, bubble (section 1.6).

Calculon 0.1.0, commit caa4b11.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats
from shardwise.interop.calculon.files import CalculonModel, CalculonSystem
from shardwise.interop.calculon.reference.block import BlockTimes
from shardwise.interop.calculon.reference.columns import AR, Columns
from shardwise.interop.calculon.reference.depth import Depth
from shardwise.interop.calculon.reference.offload import Walls
from shardwise.interop.calculon.reference.times import network_time

__all__ = ["StageTransfer", "added", "bubble_time", "per_chunk", "stage_transfer", "walls_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTransfer:
    """What a micro-batch hands to the next stage and gets back, per chunk."""

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


def walls_of(times: BlockTimes, transfer: StageTransfer) -> Walls:
    """Wall time of one block: work and exposed communication; the edge block hands over."""
    (fw_base, fw_edge), (bw_base, bw_edge) = times.fw_tp, times.agrad_tp
    again_base, again_edge = times.recomm
    backward = times.re.time + times.agrad.time + times.wgrad.time
    return Walls(
        fw_base=times.fw.time + fw_base.exposed,
        fw_edge=times.fw.time + fw_edge.exposed + transfer.fw_s,
        bw_base=backward + again_base.exposed + bw_base.exposed,
        bw_edge=backward + again_edge.exposed + bw_edge.exposed + transfer.bw_s,
    )


def added(walls: Walls, more: Walls) -> Walls:
    """Wall times with what offloading adds."""
    return Walls(
        fw_base=walls.fw_base + more.fw_base,
        fw_edge=walls.fw_edge + more.fw_edge,
        bw_base=walls.bw_base + more.bw_base,
        bw_edge=walls.bw_edge + more.bw_edge,
    )


def per_chunk(base: Floats, edge: Floats, depth: Depth) -> Floats:
    """(k - 1) base + edge."""
    return (depth.chunk_blocks - 1) * base + edge


def bubble_time(model: CalculonModel, walls: Walls, depth: Depth, columns: Columns) -> Floats:
    """Time [s] that processor 0 waits for the others.

    (P - 1 + extra) chunks, with extra = (v - 1) (P - N mod P) if P does not divide N; less what
    the stages that hold one block less save: P - L mod P of them, if P does not divide L, times
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
