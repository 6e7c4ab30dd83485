"""Time of a step: its slowest stage, what that stage waits for, and what all ranks do together."""

import numpy as np

from shardwise.arrays import Floats, total
from shardwise.blocks import Blocks
from shardwise.cost.data_parallel import optimizer_time
from shardwise.cost.offload import optimizer_transfer
from shardwise.memory import optimizer_state_bytes
from shardwise.model import Model
from shardwise.ops.layer import stack_column
from shardwise.placement import Extents
from shardwise.replicas import exchange_times
from shardwise.schedule.closed_form import bubble_time
from shardwise.slowest import Boundary, SlowestStage
from shardwise.stages import most_layers
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
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    blocks: Blocks,
    parameters: Floats,
    boundary: Boundary,
) -> tuple[dict[str, Floats], dict[str, tuple[Floats, Floats]]]:
    """Time the step on its slowest stage, with what that stage waits for."""
    m = table.micro_batches
    slowest = SlowestStage.of(model, table, blocks)
    transfer = boundary.time_s
    hidden = boundary.hidden
    directions = np.where(table.training, 2.0, 1.0)
    transfers = directions * m * table.vpp * transfer
    bubble = bubble_time(
        stages=table.pp,
        chunks=table.vpp,
        micro_batches=m,
        others_s=slowest.elsewhere("time_s"),
        forward_s=slowest.on("forward_pass_s"),
        backward_s=slowest.on("backward_pass_s"),
        hop_s=directions * transfer,
        hop_hidden=hidden,
    )
    zero = np.zeros(len(table))
    update = optimizer_time(
        parameters=parameters,
        owned=parameters / table.optimizer_shards,
        element_bytes=blocks.element_bytes,
        gradient_bytes=blocks.gradient_bytes,
        memory_rate=blocks.memory_rate,
    )
    times = dict.fromkeys(TIME_PARTS, zero)
    times |= {
        "forward": m * slowest.on("forward_s"),
        "backward": m * slowest.on("backward_s"),
        "recompute": m * slowest.on("recompute_s"),
        "optimizer": np.where(table.training, update, 0.0),
        "tp_comm": m * slowest.on("tp_exposed_s"),
        "pp_comm": transfers * (1 - hidden),
        "bubble": bubble,
    }
    exchange, times["dp_comm"] = exchange_times(
        model, system, table, extents, parameters, slowest, hidden * boundary.message_s
    )
    moved, times["offload"] = _offload(model, system, table, slowest, times["optimizer"])
    times["other"] = _overheads(system, table, total(times.values(), zero))
    comm = {
        "tp": (m * slowest.on("tp_s"), times["tp_comm"]),
        "pp": (transfers, times["pp_comm"]),
        "dp": (exchange, times["dp_comm"]),
        "offload": (moved, times["offload"]),
    }
    return times, comm


def _offload(
    model: Model, system: System, table: Table, slowest: SlowestStage, update_s: Floats
) -> tuple[Floats, Floats]:
    """Time of all transfers to and from the second memory tier, alone and exposed [s].

    Those of the update are of the stage with most layers, as the optimizer's own time is.
    """
    blocks, m = slowest.blocks, table.micro_batches
    weights = blocks.layers.parameters * (most_layers(model.depth, table.pp) / model.depth)
    state = weights * optimizer_state_bytes(blocks.element_bytes) / table.optimizer_shards
    back, busy = slowest.on("backward_pass_s"), slowest.on("offload_backward_s")
    alone, exposed = optimizer_transfer(
        system,
        state_bytes=np.where(table.offload_optimizer & table.training, state, 0.0),
        weight_bytes=np.where(
            table.offload_weights & table.training, weights * blocks.element_bytes, 0.0
        ),
        idle_in_s=np.maximum(0.0, back - busy) + update_s,
        idle_out_s=back + update_s,
    )
    moved = slowest.on("offload_forward_s") + busy
    return m * moved + alone, m * slowest.on("offload_exposed_s") + exposed


def _overheads(system: System, table: Table, rest: Floats) -> Floats:
    """Fixed time of a step, and the wait for the slowest of many nodes [s]."""
    nodes = np.ceil(table.gpus / system.node.accelerators)
    growth = stack_column(table, "straggler_per_doubling") * np.log2(np.maximum(nodes, 1.0))
    return stack_column(table, "step_overhead") + growth * rest
