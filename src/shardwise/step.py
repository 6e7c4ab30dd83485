"""Time of a step: its slowest stage, what that stage waits for, and what all ranks do together."""

import numpy as np

from shardwise.arrays import Floats, total
from shardwise.blocks import Blocks
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.data_parallel import exposed_exchange, gradient_exchange, optimizer_time
from shardwise.memory import stage_parameters
from shardwise.model import Model
from shardwise.ops.layer import stack_column
from shardwise.ops.operation import CollectiveKind
from shardwise.placement import Extents
from shardwise.schedule.closed_form import bubble_time
from shardwise.system import System
from shardwise.table import Table

__all__ = ["TIME_PARTS", "largest_stage", "step_times"]

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
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    blocks: Blocks,
    parameters: Floats,
) -> tuple[dict[str, Floats], dict[str, tuple[Floats, Floats]]]:
    """Time the step on its slowest stage, with what that stage waits for."""
    layers, embedding, head = blocks.layers, blocks.embedding, blocks.head
    m = table.micro_batches
    alone = table.pp == 1
    with_embedding = np.where(alone | (embedding.time_s > head.time_s), 1.0, 0.0)
    with_head = np.where(alone | (embedding.time_s <= head.time_s), 1.0, 0.0)

    def on_slowest(name: str) -> Floats:
        """One micro-batch on the slowest stage."""
        ends = with_embedding * getattr(embedding, name) + with_head * getattr(head, name)
        whole: Floats = getattr(layers, name) / table.pp + ends
        return whole

    transfer = _boundary_time(system, table, extents, blocks)
    hidden = np.where(table.vpp > 1, stack_column(table, "pp_hidden"), 0.0)
    transfers = 2.0 * m * table.vpp * transfer
    bubble = bubble_time(
        stages=table.pp,
        chunks=table.vpp,
        others_s=layers.time_s / table.pp * (table.pp - 1)
        + (1 - with_embedding) * embedding.time_s
        + (1 - with_head) * head.time_s,
        hop_s=2.0 * transfer,
        hop_hidden=hidden,
    )
    windows = on_slowest("backward_pass_s"), on_slowest("forward_pass_s")
    exchange, exchange_exposed = _data_parallel(
        model, system, table, extents, blocks, parameters, windows
    )
    zero = np.zeros(len(table))
    times = dict.fromkeys(TIME_PARTS, zero)
    times |= {
        "forward": m * on_slowest("forward_s"),
        "backward": m * on_slowest("backward_s"),
        "recompute": m * on_slowest("recompute_s"),
        "optimizer": optimizer_time(
            parameters=parameters,
            owned=parameters / table.optimizer_shards,
            element_bytes=blocks.element_bytes,
            gradient_bytes=blocks.gradient_bytes,
            memory_rate=blocks.memory_rate,
        ),
        "tp_comm": m * on_slowest("tp_exposed_s"),
        "pp_comm": transfers * (1 - hidden),
        "dp_comm": exchange_exposed,
        "bubble": bubble,
    }
    times["other"] = _overheads(system, table, total(times.values(), zero))
    comm = {
        "tp": (m * on_slowest("tp_s"), times["tp_comm"]),
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


def largest_stage(table: Table, blocks: Blocks) -> Floats:
    """Weights on a rank of the stage that holds most: the first or the last."""
    held = [
        stage_parameters(blocks.layers, blocks.embedding, blocks.head, stages=table.pp, stage=stage)
        for stage in (np.zeros_like(table.pp), table.pp - 1)
    ]
    return np.maximum(*held)


def _data_parallel(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    blocks: Blocks,
    parameters: Floats,
    windows: tuple[Floats, Floats],
) -> tuple[Floats, Floats]:
    """Time of the exchange among replicas, alone and exposed [s].

    Overlapped, gradients run behind the backward pass of the last micro-batch, gathered weights
    behind the forward pass of the first. With v interleaved chunks on p stages the gradients of
    all chunks but one are complete earlier: the window is p (v - 1) / v + 1 / v passes.

    Parameters
    ----------
    parameters
        Of the stage that holds most.
    windows
        Backward and forward pass of one micro-batch on the slowest stage [s].
    """
    alone = gradient_exchange(
        system,
        parameters=parameters,
        gradient_bytes=blocks.gradient_bytes,
        element_bytes=blocks.element_bytes,
        sharded=table.zero >= 1,
        extents=extents.dp,
    )
    passes = table.pp * (table.vpp - 1) / table.vpp + 1 / table.vpp
    contention, tail = stack_column(table, "dp_contention"), stack_column(table, "dp_tail")
    parts = [
        exposed_exchange(time, window * passes, contention=contention, tail=tail)
        for time, window in zip(alone, windows, strict=True)
    ]
    exposed = parts[0] + parts[1]
    whole = alone[0] + alone[1]
    exposed = np.where(table.dp_overlap, exposed, whole)
    if model.tied_embeddings:  # first and last stage add up their copies' gradients
        copied = np.where(table.pp > 1, np.ceil(model.vocab / table.tp) * model.hidden, 0.0)
        pair = np.where(extents.pp >= table.pp, 2, 1)
        pair[-1] = 2
        tied = collective_time(
            system, CollectiveKind.ALL_REDUCE, copied * blocks.gradient_bytes, pair
        )
        return whole + tied, exposed + tied
    return whole, exposed


def _overheads(system: System, table: Table, rest: Floats) -> Floats:
    """Fixed time of a step, and the wait for the slowest of many nodes [s]."""
    nodes = np.ceil(table.gpus / system.node.accelerators)
    growth = stack_column(table, "straggler_per_doubling") * np.log2(np.maximum(nodes, 1.0))
    return stack_column(table, "step_overhead") + growth * rest
