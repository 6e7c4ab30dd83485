"""Time of a step: its critical stage, the bubble, data-parallel communication and the update."""

from collections.abc import Mapping, Sequence

import numpy as np

from shardwise.arrays import Floats, Ints, total
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_OPTIMIZER
from shardwise.config.model import Model
from shardwise.config.strategy_fields import COMM_AXES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import trained_on
from shardwise.cost.offload import optimizer_transfer
from shardwise.cost.optimizer import state_bytes
from shardwise.engine.critical_stage import Boundary, CriticalStage, LargestStage
from shardwise.engine.data_parallel import communication_times
from shardwise.engine.pipeline import bubble_and_transfers
from shardwise.engine.update import Update
from shardwise.engine.zero import releases, shards
from shardwise.parallel.pipeline_layout import StageGroup, chunks_of
from shardwise.parallel.placement import Extents

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
    groups: Sequence[StageGroup],
    critical: CriticalStage,
    largest: LargestStage,
    boundary: Boundary,
    *,
    waits: bool = True,
) -> tuple[dict[str, Floats], dict[str, tuple[Floats, Floats]]]:
    """Return disjoint times of the step, and times of communication alone and exposed [s].

    Parameters
    ----------
    model
        Architecture.
    system
        Accelerators and network tiers.
    table
        Strategies of n rows.
    extents
        Placement of each axis; shape (tiers, n).
    groups
        Stage groups of the pipelines, first to last.
    critical, largest
        The critical stage, and the stage that trains the most weights.
    boundary
        Transfer of one micro-batch to the next stage.
    waits
        Whether to include the pipeline bubble; without it times are lower bounds.
    """
    m, costs = table.micro_batches, critical.costs
    hidden = boundary.hidden
    directions = np.where(table.training, 2.0, 1.0)
    transfers = directions * m * chunks_of(table) * boundary.time_s
    zero = np.zeros(len(table))
    bubble, exposed = (
        bubble_and_transfers(table, groups, critical, boundary) if waits else (zero, zero)
    )
    times = dict.fromkeys(TIME_PARTS, zero)
    times |= {
        "forward": m * critical.on(lambda times: times.forward_s),
        "backward": m * critical.on(lambda times: times.backward_s),
        "recompute": m * critical.on(lambda times: times.recompute_s),
        "optimizer": Update.of(table, costs, largest).time_s(table, costs.memory_rate),
        "pp_comm": exposed,
        "bubble": bubble,
    }
    comm = {"pp": (transfers, times["pp_comm"])}
    for axis in COMM_AXES:
        both = ("forward", "backward")
        times[f"{axis}_comm"] = m * total((critical.exposed(way, axis) for way in both), zero)
        alone = m * total((critical.alone(way, axis) for way in both), zero)
        comm[axis] = alone, times[f"{axis}_comm"]
    dp_comm, times["dp_comm"] = communication_times(
        model, system, table, extents, largest, critical, hidden * boundary.message_s
    )
    after_s = after_backward(table, times)
    moved, times["offload"] = _offload(system, table, critical, largest, after_s)
    times["other"] = _overheads(system, table, total(times.values(), zero))
    comm |= {"dp": (dp_comm, times["dp_comm"]), "offload": (moved, times["offload"])}
    return times, {axis: comm[axis] for axis in (*COMM_AXES, "pp", "dp", "offload")}


def after_backward(table: Table, time_s: Mapping[str, Floats]) -> Floats:
    """Time after the last backward pass: exposed data-parallel communication and the update [s].

    Where ZeRO shards gradients, every micro-batch has an equal share of that communication, unless
    it runs once per step.

    Parameters
    ----------
    table
        Strategies of n rows.
    time_s
        Time of each component of a step by name [s]; each of shape (n,).
    """
    each = (table.zero >= ZERO_GRADIENTS) & ~(table.syncs_once & ~releases(table))
    rounds = np.where(each, table.micro_batches, 1)
    return time_s["dp_comm"] / rounds + time_s["optimizer"]


def _offload(
    system: System, table: Table, critical: CriticalStage, largest: LargestStage, after_s: Floats
) -> tuple[Floats, Floats]:
    """Time of all transfers to and from the second memory tier, alone and exposed [s].

    Transfers of the update are those of the stage that trains the most weights, like the time of
    the optimizer.

    Parameters
    ----------
    after_s
        Time after the last backward pass that does not use this link [s].
    """
    costs, m = critical.costs, table.micro_batches
    trained, expert = trained_on(costs, largest.resident, layers=True)
    dense_shards, expert_shards = shards(table, ZERO_OPTIMIZER)
    owned = trained.over(dense_shards).plus(expert.over(expert_shards))
    state = state_bytes(table.optimizer, costs.weight_sizes.master, owned)
    updated = trained.plus(expert)
    weights = costs.weight_sizes.resident(updated.weights, updated.quantized)
    backward = critical.on(lambda times: times.backward_pass_s)
    busy = critical.on(lambda times: times.offload_backward_s)
    alone, exposed = optimizer_transfer(
        system,
        state_bytes=np.where(table.offload_optimizer & table.training, state, 0.0),
        weight_bytes=np.where(table.offload_weights & table.training, weights, 0.0),
        idle_in_s=np.maximum(0.0, backward - busy) + after_s,
        idle_out_s=backward + after_s,
    )
    moved = critical.on(lambda times: times.offload_forward_s) + busy
    return m * moved + alone, m * critical.on(lambda times: times.offload_exposed_s) + exposed


def _overheads(system: System, table: Table, rest: Floats) -> Floats:
    """Fixed time of a step, and the wait for the slowest node [s]."""
    per_doubling = table.by_stack(lambda stack: stack.straggler_per_doubling)
    fixed_s = fixed_time(
        system,
        table.gpus,
        table.by_stack(lambda stack: stack.step_overhead),
        table.by_stack(lambda stack: stack.step_wait),
    )
    return fixed_s + straggler_growth(system, table.gpus, per_doubling) * rest


def fixed_time(system: System, gpus: Ints, overhead_s: Floats, wait_s: Floats) -> Floats:
    """Time of a step that is independent of its work [s].

    o + w log2(nodes)

    Parameters
    ----------
    system
        Its accelerators on a node.
    gpus
        Accelerators; shape (n,).
    overhead_s
        o of the stack [s]; shape (n,).
    wait_s
        w of the stack [s]; shape (n,).
    """
    return overhead_s + wait_s * _doublings(system, gpus)


def straggler_growth(system: System, gpus: Ints, per_doubling: Floats) -> Floats:
    """Wait for the slowest node, over the time of a step without it.

    growth = g log2(nodes)

    Parameters
    ----------
    system
        Its accelerators on a node.
    gpus
        Accelerators; shape (n,).
    per_doubling
        g of the stack; shape (n,).
    """
    return per_doubling * _doublings(system, gpus)


def _doublings(system: System, gpus: Ints) -> Floats:
    """log2 of the nodes."""
    nodes = np.ceil(gpus / system.node.accelerators)
    doublings: Floats = np.log2(np.maximum(nodes, 1.0))
    return doublings
