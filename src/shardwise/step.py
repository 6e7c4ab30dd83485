"""Time of a step: its slowest stage, what that stage waits for, and what all ranks do together."""

import numpy as np

from shardwise.arrays import Floats, Ints, total
from shardwise.blocks import Blocks
from shardwise.cost.block import BlockCost
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.data_parallel import gradient_exchange, hidden_exchange, optimizer_time
from shardwise.memory import stage_parameters
from shardwise.model import Model
from shardwise.ops.layer import stack_column
from shardwise.ops.operation import CollectiveKind
from shardwise.placement import Extents
from shardwise.schedule.closed_form import bubble_time
from shardwise.system import System
from shardwise.table import Table

__all__ = ["TIME_PARTS", "step_times"]

TIME_PARTS = (
    "forward",
    "backward",
    "recompute",
    "optimizer",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "pp_comm",
    "dp_comm",
    "offload",
    "bubble",
    "other",
)


def step_times(
    model: Model, system: System, table: Table, extents: Extents, blocks: Blocks, m: Ints
) -> tuple[dict[str, Floats], dict[str, tuple[Floats, Floats]]]:
    """Time the step on its slowest stage, with what that stage waits for."""
    layers, embedding, head = blocks.layers, blocks.embedding, blocks.head

    def micro_batch_s(block: BlockCost) -> Floats:
        return block.forward_s + block.backward_s + block.recompute_s + block.tp_exposed_s

    per_stage = micro_batch_s(layers) / table.pp
    ends = micro_batch_s(embedding), micro_batch_s(head)
    alone = table.pp == 1
    with_embedding = np.where(alone | (ends[0] > ends[1]), 1.0, 0.0)
    with_head = np.where(alone | (ends[0] <= ends[1]), 1.0, 0.0)
    slowest = per_stage + with_embedding * ends[0] + with_head * ends[1]

    def on_slowest(name: str) -> Floats:
        ended = with_embedding * getattr(embedding, name) + with_head * getattr(head, name)
        whole: Floats = m * (getattr(layers, name) / table.pp + ended)
        return whole

    transfer = _boundary_time(system, table, extents, blocks)
    hidden = np.where(table.vpp > 1, stack_column(table, "pp_hidden"), 0.0)
    transfers = 2.0 * m * table.vpp * transfer
    bubble = bubble_time(
        micro_batches=m,
        stages=table.pp,
        chunks=table.vpp,
        stage_sum_s=table.pp * per_stage + ends[0] + ends[1],
        slowest_s=slowest,
        hop_s=2.0 * transfer,
    )
    largest = np.maximum(
        _parameters(table, blocks, np.zeros_like(m)), _parameters(table, blocks, table.pp - 1)
    )
    exchange, exchange_exposed = _data_parallel(
        model, system, table, extents, blocks, largest, slowest, m
    )
    zero = np.zeros(len(table))
    times = dict.fromkeys(TIME_PARTS, zero)
    times |= {
        "forward": on_slowest("forward_s"),
        "backward": on_slowest("backward_s"),
        "recompute": on_slowest("recompute_s"),
        "optimizer": optimizer_time(
            parameters=largest,
            owned=largest / np.where(table.zero >= 1, table.dp, 1),
            element_bytes=blocks.element_bytes,
            gradient_bytes=blocks.gradient_bytes,
            memory_rate=blocks.memory_rate,
        ),
        "tp_comm": on_slowest("tp_exposed_s"),
        "pp_comm": transfers * (1 - hidden),
        "dp_comm": exchange_exposed,
        "bubble": bubble,
    }
    times["other"] = _overheads(system, table, total(times.values(), zero))
    comm = {
        "tp": (on_slowest("tp_s"), times["tp_comm"]),
        "pp": (transfers, times["pp_comm"]),
        "dp": (exchange, times["dp_comm"]),
    }
    return times, comm


def _boundary_time(system: System, table: Table, extents: Extents, blocks: Blocks) -> Floats:
    """Time of handing a micro-batch to the next stage [s].

    Without sequence parallelism every tensor-parallel rank holds the whole activation A and hands
    over all of it, or 1/tp of it that the receiving ranks gather (arXiv 2104.04473, section 4.1).
    """
    whole = np.where(table.pp > 1, blocks.boundary_bytes, 0.0)
    splits = stack_column(table, "pp_scatter_gather") > 0
    splits &= (table.tp > 1) & ~table.sequence_parallel
    gathered = collective_time(
        system, CollectiveKind.ALL_GATHER, np.where(splits, whole, 0.0), extents.tp
    )
    handed = np.where(splits, whole / table.tp, whole)
    return transfer_time(system, handed, extents.pp) + gathered


def _parameters(table: Table, blocks: Blocks, stage: Ints) -> Floats:
    return stage_parameters(
        blocks.layers, blocks.embedding, blocks.head, stages=table.pp, stage=stage
    )


def _data_parallel(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    blocks: Blocks,
    parameters: Floats,
    slowest: Floats,
    m: Ints,
) -> tuple[Floats, Floats]:
    """Time of the exchange among replicas, alone and exposed [s].

    Overlapped, it runs behind the compute of one micro-batch; with interleaved stages behind that
    of all chunks but one, whose gradients are complete earlier.
    """
    alone = gradient_exchange(
        system,
        parameters=parameters,
        gradient_bytes=blocks.gradient_bytes,
        element_bytes=blocks.element_bytes,
        sharded=table.zero >= 1,
        extents=extents.dp,
    )
    rounds = np.minimum(table.pp, m) * (table.vpp - 1) / table.vpp + 1 / table.vpp
    exposed = hidden_exchange(
        alone,
        slowest * rounds,
        contention=stack_column(table, "dp_contention"),
        tail=stack_column(table, "dp_tail"),
    )
    exposed = np.where(table.dp_overlap, exposed, alone)
    if model.tied_embeddings:  # first and last stage add up their copies' gradients
        copied = np.where(table.pp > 1, np.ceil(model.vocab / table.tp) * model.hidden, 0.0)
        pair = np.where(extents.pp >= table.pp, 2, 1)
        pair[-1] = 2
        tied = collective_time(
            system, CollectiveKind.ALL_REDUCE, copied * blocks.gradient_bytes, pair
        )
        return alone + tied, exposed + tied
    return alone, exposed


def _overheads(system: System, table: Table, rest: Floats) -> Floats:
    """Fixed time of a step, and the wait for the slowest of many nodes [s]."""
    nodes = np.ceil(table.gpus / system.node.accelerators)
    growth = stack_column(table, "straggler_per_doubling") * np.log2(np.maximum(nodes, 1.0))
    return stack_column(table, "step_overhead") + growth * rest
