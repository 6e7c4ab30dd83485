"""Time of a step: its critical stage, the bubble, data-parallel communication and the update."""

from collections.abc import Mapping

import numpy as np

from shardwise.arrays import Floats, Ints, combined, total
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_OPTIMIZER
from shardwise.config.strategy_fields import COMM_AXES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import ComponentCosts, summed, trained_on
from shardwise.cost.operations import with_host
from shardwise.cost.optimizer import (
    TrainedWeights,
    UpdateBytes,
    newton_schulz_time,
    quantizing_time,
    state_bytes,
    update_bytes,
)
from shardwise.cost.overlap import optimizer_transfer
from shardwise.engine.data_parallel import replica_communication
from shardwise.engine.host_update import gradient_rounds, host_transfers, host_update_time
from shardwise.engine.pipeline import bubble_and_transfers
from shardwise.engine.step import Step
from shardwise.engine.zero import shards
from shardwise.parallel.pipeline_layout import chunks_of
from shardwise.records import dataclass, replace

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
    step: Step, *, waits: bool = True
) -> tuple[dict[str, Floats], dict[str, tuple[Floats, Floats]]]:
    """Return disjoint times of the step, and times of communication alone and exposed [s].

    Parameters
    ----------
    waits
        Whether to include the pipeline bubble; without it times are lower bounds.
    """
    table, critical, boundary = step.table, step.critical, step.boundary
    m, zero = table.micro_batches, np.zeros(len(table))
    directions = np.where(table.training, 2.0, 1.0)
    transfers = directions * m * chunks_of(table) * boundary.time_s
    bubble, exposed = bubble_and_transfers(step) if waits else (zero, zero)
    times = dict.fromkeys(TIME_PARTS, zero)
    forwards = 1.0 + table.unlearned_passes
    times |= {
        "forward": m * forwards * critical.on(lambda times: times.forward_s),
        "backward": m * critical.on(lambda times: times.backward_s),
        "recompute": m * critical.on(lambda times: times.recompute_s),
        "optimizer": Update.of(step).exposed_s(table, step.costs.memory_rate),
        "pp_comm": exposed,
        "bubble": bubble,
    }
    comm = {"pp": (transfers, times["pp_comm"])}
    for axis in COMM_AXES:
        both = ("forward", "backward")
        passes = {"forward": forwards, "backward": np.ones_like(forwards)}
        times[f"{axis}_comm"] = m * total(
            (passes[way] * critical.exposed(way, axis) for way in both), zero
        )
        alone = m * total((passes[way] * critical.alone(way, axis) for way in both), zero)
        comm[axis] = alone, times[f"{axis}_comm"]
    replicas = list(replica_communication(step).values())
    times["dp_comm"] = total((exposed for _, exposed in replicas), zero)
    comm["dp"] = total((alone for alone, _ in replicas), zero), times["dp_comm"]
    moved, times["offload"] = _offload(step, times)
    comm["offload"] = moved, times["offload"]
    if np.any(table.data_lengths >= 0):  # of the rank that the others wait for
        slower = 1 + table.batch_wait
        once = ("optimizer", "dp_comm")
        times |= {part: slower * times[part] for part in TIME_PARTS if part not in once}
        comm |= {n: (slower * a, slower * b) for n, (a, b) in comm.items() if n != "dp"}
    rest = total(times.values(), zero)
    times["other"] = _overheads(step.system, table, rest) + chunk_overhead(step.system, table)
    return times, {axis: comm[axis] for axis in (*COMM_AXES, "pp", "dp", "offload")}


def after_backward(table: Table, time_s: Mapping[str, Floats]) -> Floats:
    """Time after the last backward pass: exposed data-parallel communication and the update [s].

    Where ZeRO shards gradients, every micro-batch has an equal share of that communication, unless
    it runs once per step. `time_s` has the components of a step by name.
    """
    return time_s["dp_comm"] / gradient_rounds(table) + time_s["optimizer"]


def _offload(step: Step, time_s: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Time of all transfers to and from the second memory tier, alone and exposed [s].

    Transfers of the update are those of the stage that trains the most weights, like the time of
    the optimizer: of state, or of gradients and weights where the host updates.

    Parameters
    ----------
    time_s
        The components of a step by name: communication of gradients and the update do not use this
        link.
    """
    table, costs, critical = step.table, step.costs, step.critical
    after_s = after_backward(table, time_s)
    m = table.micro_batches
    trained, expert = trained_on(costs, step.largest.resident, layers=True)
    dense_shards, expert_shards = shards(table, ZERO_OPTIMIZER)
    owned = trained.over(dense_shards).plus(expert.over(expert_shards))
    state = state_bytes(table.optimizer, costs.weight_sizes, owned)
    updated = trained.plus(expert)
    weights = costs.weight_sizes.resident(updated.weights, updated.quantized)
    backward = critical.on(lambda times: times.backward_pass_s)
    busy = critical.on(lambda times: times.offload_backward_s)
    moves = table.training & ~table.updates_on_host
    alone, exposed = optimizer_transfer(
        step.system,
        state_bytes=np.where(table.offload_optimizer & moves, state, 0.0),
        weight_bytes=np.where(table.offload_weights & moves, weights, 0.0),
        idle_in_s=np.maximum(0.0, backward - busy) + after_s,
        idle_out_s=backward + after_s,
    )
    if np.any(table.updates_on_host):
        more, late = host_transfers(step, time_s["dp_comm"])
        alone, exposed = alone + more, exposed + late
    moved = critical.on(lambda times: times.offload_forward_s) + busy
    return m * moved + alone, m * critical.on(lambda times: times.offload_exposed_s) + exposed


def _overheads(system: System, table: Table, rest: Floats) -> Floats:
    """Fixed time of a step, and the wait for the slowest node [s].

    o + w log2(nodes) + g log2(nodes) rest, with o, w and g of the stack.
    """
    doublings = node_doublings(system, table.gpus)
    wait_s = table.by_stack(lambda stack: stack.step_wait)
    fixed_s = table.by_stack(lambda stack: stack.step_overhead) + wait_s * doublings
    growth = table.by_stack(lambda stack: stack.straggler_per_doubling) * doublings
    return fixed_s + growth * rest


# Calls of the host at each chunk of an overlapped interleaved schedule. Fitted, with the calls of
# nodes in `cost.operations`, on published runs of Megatron-Bridge that overlap experts without a
# graph of the step (25.11 to 26.08; on H100 fewer fit Qwen3-235B, and more fit Qwen3-30B), and on
# two pairs of runs with and without overlap (Megatron-Bridge pull request 1760).
_CHUNK_CALLS = 20.0


def chunk_overhead(system: System, table: Table) -> Floats:
    """Time of the host between the chunks of an overlapped interleaved schedule [s].

    m v n c, with m micro-batches, v chunks, n calls of c each: a plan of the nodes of the chunk is
    built (model_chunk_schedule_plan.py), the messages of both passes are awaited and sent, and no
    rank runs ahead of its neighbors. One graph of the step has none of it.
    """
    rows = table.overlaps_by_nodes & (table.pp > 1) & ~table.captures_step
    calls = table.micro_batches * table.vpp * _CHUNK_CALLS
    call_s = table.by_compile("host_call") / system.launch_speed
    return np.where(rows, calls * call_s, 0.0)


def node_doublings(system: System, gpus: Ints) -> Floats:
    """log2 of the nodes."""
    nodes = np.ceil(gpus / system.node.accelerators)
    doublings: Floats = np.log2(np.maximum(nodes, 1.0))
    return doublings


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The optimizer step of some weights of a rank."""

    moved: UpdateBytes
    """At the rate of element-wise kernels of the accelerator; 0 where the host updates."""
    host_s: Floats
    """Of the host, for the ranks of a server together; 0 where the accelerator updates [s]."""
    products_s: Floats
    """Muon's iterations, which make the updates of matrices orthogonal; the ranks that share the
    state each do their share (arXiv 2502.16982, section 2.3) [s]."""
    quantizing_s: Floats
    """Quantizing the updated weights [s]."""
    launching_s: Floats | float = 0.0
    """Of the host to launch the kernels, where these do not hide it [s]."""

    @classmethod
    def of(cls, step: Step) -> "Update":
        """The update of the stage that trains the most weights."""
        largest = step.largest
        reduced, owned = (
            largest.trained.over(dense).plus(largest.expert_trained.over(expert))
            for dense, expert in (
                shards(step.table, ZERO_GRADIENTS),
                shards(step.table, ZERO_OPTIMIZER),
            )
        )
        update = cls.of_weights(
            step.table,
            step.costs,
            step.system,
            reduced=reduced,
            owned=owned,
            quantized=summed(
                step.costs, largest.resident, lambda one: one.bytes.all_quantized_parameters
            ),
            trained=largest.all_trained.quantized,
        )
        return replace(update, launching_s=_update_launches(step, update))

    @classmethod
    def of_weights(
        cls,
        table: Table,
        costs: ComponentCosts,
        system: System,
        *,
        reduced: TrainedWeights,
        owned: TrainedWeights,
        quantized: Floats,
        trained: Floats,
    ) -> "Update":
        """The update of weights; shape (n,).

        Parameters
        ----------
        reduced, owned
            Weights whose reduced gradients the rank stores, and those that it updates.
        quantized, trained
            Weights with a quantized copy, and those of them that are trained.
        """
        moved = update_bytes(
            table,
            reduced=reduced,
            owned=owned,
            sizes=costs.weight_sizes,
            gradient_bytes=costs.gradient_bytes,
        )
        on_host = table.updates_on_host
        if np.any(on_host):
            moved = combined(lambda column: np.where(on_host, 0.0, column), moved)
        return cls(
            moved=moved,
            host_s=host_update_time(table, costs, system, owned),
            products_s=newton_schulz_time(table.optimizer, owned, costs.matrix_rate),
            quantizing_s=quantizing_time(
                table,
                quantized=quantized,
                trained=trained,
                local=reduced.weights,
                sizes=costs.weight_sizes,
                memory_rate=costs.memory_rate,
            ),
        )

    def time_s(self, table: Table, memory_rate: Floats) -> Floats:
        """Time of the step; 0 forward only [s]."""
        moving = self.moved.total / memory_rate + self.products_s + self.host_s + self.launching_s
        return np.where(table.training, moving + self.quantizing_s, 0.0)

    def exposed_s(self, table: Table, memory_rate: Floats) -> Floats:
        """Time of the step without what the host does during backward, which is of offload [s]."""
        return self.time_s(table, memory_rate) - np.where(table.updates_early, self.host_s, 0.0)


def _update_launches(step: Step, update: Update) -> Floats:
    """Time of the host to launch the update of sharded weights that its kernels do not hide [s].

    n calls of c for each operation with weights (`Stack.sharded_weight_calls`).
    """
    table, costs = step.table, step.costs
    calls = table.by_stack(lambda stack: stack.sharded_weight_calls)
    zero = np.zeros_like(costs.memory_rate)
    if not np.any(calls):
        return zero
    launching_s = step.weight_calls_s
    if step.system.accelerator.asynchronous:
        kernels_s = update.moved.total / costs.memory_rate
        launching_s = with_host(kernels_s, launching_s) - kernels_s
    return np.where(table.zero >= ZERO_GRADIENTS, launching_s, zero)
