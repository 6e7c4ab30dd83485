"""The update on the host: its time, its transfers, and what the host stores for it."""

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_OPTIMIZER
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import ComponentCosts
from shardwise.cost.host import SUB_GROUP, drive_time, in_groups, update_time
from shardwise.cost.optimizer import TrainedWeights, host_update_bytes, state_bytes
from shardwise.cost.overlap import d2h_time, h2d_time
from shardwise.engine.step import Step
from shardwise.engine.zero import releases, scatters, shards
from shardwise.ops.operation import FP32_BYTES


def ranks_of_server(system: System, table: Table) -> Floats:
    """Ranks that share a server: one for each of its accelerators, or all there are."""
    return np.minimum(table.gpus, system.node.accelerators).astype(np.float64)


def gradient_rounds(table: Table) -> Ints:
    """How often a step reduces gradients: with every micro-batch, or once."""
    each = (table.zero >= ZERO_GRADIENTS) & ~(table.syncs_once & ~releases(table))
    rounds: Ints = np.where(each, table.micro_batches, 1)
    return rounds


def host_gradient_bytes(costs: ComponentCosts) -> Floats:
    """Size of a gradient on the host [byte]: fp32 where the weights that it updates are."""
    wide = costs.weight_sizes.is_stored | (costs.weight_sizes.master == FP32_BYTES)
    return np.where(wide, FP32_BYTES, costs.gradient_bytes)


def host_update_time(
    table: Table, costs: ComponentCosts, system: System, owned: TrainedWeights
) -> Floats:
    """Time of the update on the host, of all ranks of a server [s]; 0 in other rows.

    The longer of the update (`cost.host.update_time`) and the transfers from and to drives.

    Parameters
    ----------
    owned
        Weights that each rank updates; shape (rows,).
    """
    on_host = table.updates_on_host
    if not np.any(on_host):
        return np.zeros_like(costs.memory_rate)
    host, ranks, sizes = system.server, ranks_of_server(system, table), costs.weight_sizes
    moved = host_update_bytes(
        table, owned=owned, sizes=sizes, gradient_bytes=host_gradient_bytes(costs)
    )
    time_s = update_time(host, moved, ranks, table.threads)
    if np.any(table.offload_nvme):
        drives_s = drive_time(host, state_bytes(table.optimizer, sizes, owned), ranks)
        time_s = np.where(table.offload_nvme, np.maximum(time_s, drives_s), time_s)
    return np.where(on_host, time_s, 0.0)


def host_transfers(step: Step, communication_s: Floats) -> tuple[Floats, Floats]:
    """Transfers of gradients and updated weights, alone and exposed [s]; 0 in other rows.

    Gradients go to the host as they are reduced, behind the backward pass of the micro-batch and
    what it exposes of their reduction. Weights come back group by group, behind the update of the
    next group (`cost.host.in_groups`); weights that are offloaded themselves come in with the
    passes instead. An update that waits for no other gradients is hidden as they are, and counts
    as a transfer: max(0, t - backward) of it is exposed.

    Parameters
    ----------
    communication_s
        Exposed data-parallel communication of the step [s]; shape (rows,).
    """
    table, costs, largest = step.table, step.costs, step.largest
    dense, expert = shards(table, ZERO_OPTIMIZER)
    owned = largest.trained.over(dense).plus(largest.expert_trained.over(expert))
    rounds = gradient_rounds(table)
    window_s = step.critical.on(lambda times: times.backward_pass_s) + communication_s / rounds
    host_s = host_update_time(table, costs, step.system, owned)
    early_s = np.where(table.updates_early, host_s, 0.0)
    out_s = d2h_time(step.system, costs.gradient_bytes * owned.weights)
    late_s = np.maximum(0.0, np.maximum(out_s, early_s) - window_s)
    late_s = late_s + (rounds - 1) * np.maximum(0.0, out_s - window_s)
    stored = costs.weight_sizes.resident(owned.weights, owned.quantized)
    in_s = h2d_time(step.system, np.where(table.offload_weights, 0.0, stored))
    behind_s = in_groups(host_s, in_s, owned.weights) - host_s
    on_host = table.updates_on_host
    return (
        np.where(on_host, rounds * out_s + in_s + early_s, 0.0),
        np.where(on_host, late_s + behind_s, 0.0),
    )


def gradients_on_host(table: Table) -> Bools:
    """Rows whose gradients leave the accelerator as they are reduced: sharded ones."""
    rows: Bools = table.updates_on_host & scatters(table)
    return rows


def host_state_bytes(table: Table, state: Floats, gradients: Floats, weights: Floats) -> Floats:
    """Bytes of the update in the memory of the host [byte]: state and gradients of a rank.

    Per weight of AdamW with fp32 state: 4 + 4 + 4 and a gradient of 4, 16 in all (DeepSpeed,
    runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs). Where drives store them, those
    of the sub-group that is updated.

    Parameters
    ----------
    state, gradients
        Of a rank [byte]; shape (rows,).
    weights
        Weights that it updates [elements]; shape (rows,).
    """
    share = np.minimum(1.0, SUB_GROUP / np.maximum(weights, 1.0))
    both = (state + gradients) * np.where(table.offload_nvme, share, 1.0)
    return np.where(table.updates_on_host, both, 0.0)
