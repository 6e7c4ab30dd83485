"""Gradient and weight communication among replicas: its time, and how much compute hides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, total
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_OPTIMIZER, ZERO_WEIGHTS
from shardwise.config.model import Model
from shardwise.config.strategy_fields import COMM_AXES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.cost.layer_cost import LayerBytes
from shardwise.cost.links import processor_share
from shardwise.cost.overlap import exposed_communication, gradient_communication
from shardwise.engine.critical_stage import CriticalStage, LargestStage
from shardwise.engine.replica_collectives import (
    Pieces,
    between_shards,
    shard_extents,
    unhidden_collectives,
)
from shardwise.ops.lora import Subset
from shardwise.ops.operation import CollectiveKind
from shardwise.parallel.placement import Extents


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Time in which data-parallel communication can run behind compute [s].

    With v interleaved chunks on p stages, communication of all chunks but one (gradients of the
    last micro-batch backward, weights of the first forward) runs behind p (v - 1) passes of a
    chunk, that of the remaining one behind a single pass.
    """

    chunks: Floats
    """For all chunks but one; shape (n,)."""
    tail: Floats
    """For the remaining chunk; shape (n,)."""


def windows(
    table: Table,
    extents: Extents,
    *,
    pass_s: Floats,
    inside_s: Mapping[str, Floats],
    transfer_s: Floats,
) -> Windows:
    """Windows of one direction.

    w = max(0, (pass - sum of inside) / v - transfer): communication inside layers, and transfers
    between stages that run concurrently with compute, occupy the outermost tier that the replicas
    span, if they use it. chunks = p (v - 1) w, tail = w.

    Parameters
    ----------
    table
        Strategies of n rows, with p and v.
    extents
        Placement of each axis; shape (tiers, n).
    pass_s
        Time of one micro-batch's pass on the critical stage [s]; shape (n,).
    inside_s
        Communication of each axis in that pass [s]; shape (n,).
    transfer_s
        Time of one transfer to the next stage that overlaps compute [s]; shape (n,).
    """
    members = extents.replicas
    chunk_s = pass_s
    for axis, time_s in inside_s.items():
        reach = getattr(extents, axis) * (extents.tp2 if axis == "tp" else 1)
        shared = _shares_tier(reach, members)
        chunk_s = chunk_s - np.where(shared, time_s, 0.0)
    chunk_s = chunk_s / table.vpp - np.where(_shares_tier(extents.pp, members), transfer_s, 0.0)
    chunk_s = np.maximum(0.0, chunk_s)
    return Windows(chunks=table.pp * (table.vpp - 1) * chunk_s, tail=chunk_s)


def _shares_tier(one: Ints, other: Ints) -> Bools:
    """Whether an axis spans the outermost tier that another one spans."""

    def reach(extents: Ints) -> Ints:
        inner = np.vstack([np.ones_like(extents[:1]), extents[:-1]])
        return np.where(extents > inner, 1, 0)

    tiers = np.arange(len(other))[:, np.newaxis]
    outermost = np.max(np.where(reach(other) > 0, tiers, -1), axis=0)
    return np.any((reach(one) > 0) & (tiers == outermost), axis=0)


ReplicaCommunication = dict[str, tuple[Floats, Floats]]
"""Time alone and exposed time of each communication [s]: ``gradients``, ``weights_forward``
(gathered before forward, or once per step), ``weights_backward`` (gathered again), and once per
step ``momenta``, ``mirrors`` and ``embeddings``."""


def communication_times(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    largest: LargestStage,
    critical: CriticalStage,
    transfer_s: Floats,
) -> tuple[Floats, Floats]:
    """Time of data-parallel communication in a step, alone and exposed [s].

    The sum over `replica_communication`.

    Parameters
    ----------
    model
        Architecture.
    system
        Network tiers.
    table
        Strategies of n rows.
    extents
        Placement of each axis; shape (tiers, n).
    largest
        Weights of the stage that has most; columns of shape (n,).
    critical
        Passes of the stage that sets the pace; columns of shape (n,).
    transfer_s
        Time of one transfer to the next stage that overlaps compute [s]; shape (n,).
    """
    parts = replica_communication(model, system, table, extents, largest, critical, transfer_s)
    zero = np.zeros_like(critical.costs.memory_rate)
    both = list(parts.values())
    return total((alone for alone, _ in both), zero), total((exposed for _, exposed in both), zero)


def replica_communication(
    model: Model,
    system: System,
    table: Table,
    extents: Extents,
    largest: LargestStage,
    critical: CriticalStage,
    transfer_s: Floats,
) -> ReplicaCommunication:
    """Data-parallel communication in a step by kind, alone and exposed [s].

    With overlap, gradients are reduced behind the backward pass of the last micro-batch, and
    weights gathered behind the forward pass of the first. Where ZeRO shards gradients or weights,
    every micro-batch communicates them, behind its own passes, unless gradients are synchronized
    once per step. Kinds that no row has are absent.

    Parameters
    ----------
    model
        Architecture.
    system
        Network tiers.
    table
        Strategies of n rows.
    extents
        Placement of each axis; shape (tiers, n).
    largest
        Weights of the stage that has most; columns of shape (n,).
    critical
        Passes of the stage that sets the pace; columns of shape (n,).
    transfer_s
        Time of one transfer to the next stage that overlaps compute [s]; shape (n,).
    """
    costs = critical.costs
    once = np.where(table.zero < ZERO_GRADIENTS, 1.0, 0.0)
    parts = {
        name: (once * alone, once * exposed)
        for name, (alone, exposed) in _once_per_step(
            system, table, extents, largest, critical, transfer_s
        ).items()
    }
    if np.any(table.zero >= ZERO_GRADIENTS):
        every = _by_layer(system, table, extents, largest, critical, transfer_s)
        for name, (alone, exposed) in every.items():
            before = parts.get(name, (0.0, 0.0))
            parts[name] = (before[0] + (1 - once) * alone, before[1] + (1 - once) * exposed)
    overlap = table.dp_overlap
    parts = {
        name: (alone, np.where(overlap, exposed, alone)) for name, (alone, exposed) in parts.items()
    }
    for name, pieces in unhidden_collectives(model, table, extents, largest, costs).items():
        time_s = _time_of(system, pieces, costs.memory_rate)
        parts[name] = time_s, time_s
    return parts


def _time_of(system: System, pieces: Pieces, like: Floats) -> Floats:
    """Time of collectives one after the other [s]."""
    return total((collective_time(system, *piece) for piece in pieces), np.zeros_like(like))


def _once_per_step(
    system: System,
    table: Table,
    extents: Extents,
    largest: LargestStage,
    critical: CriticalStage,
    transfer_s: Floats,
) -> ReplicaCommunication:
    """Full gradients and weights, of dense and expert replicas one after the other [s].

    With hybrid sharding the replicas of a shard group communicate among themselves; then the groups
    add up their shards, bucket by bucket.
    """
    costs = critical.costs
    groups = [(largest.trained, extents.replicas)]
    if np.any(largest.expert_trained.weights):
        groups.append((largest.expert_trained, extents.edp))
    sums: list[Floats] = [np.zeros_like(costs.memory_rate)] * 2
    for trained, members in groups:
        weights = costs.weight_sizes.moved(trained.weights, trained.quantized)
        times = gradient_communication(
            system,
            gradient_bytes=np.where(table.training, trained.weights * costs.gradient_bytes, 0.0),
            weight_bytes=np.where(table.training, weights, 0.0),
            sharded=table.zero >= ZERO_OPTIMIZER,
            extents=shard_extents(table, members),
        )
        sums = [before + time for before, time in zip(sums, times, strict=True)]
    sums[0] = sums[0] + _time_of(
        system,
        between_shards(table, extents, largest, costs.gradient_bytes),
        costs.memory_rate,
    )
    parts = {}
    passes = {
        "backward": critical.on(lambda times: times.backward_pass_s),
        "forward": critical.on(lambda times: times.forward_pass_s),
    }
    for time_s, (direction, pass_s) in zip(sums, passes.items(), strict=True):
        free = windows(
            table,
            extents,
            pass_s=pass_s,
            inside_s={axis: critical.alone(direction, axis) for axis in COMM_AXES},
            transfer_s=transfer_s,
        )
        if direction == "forward":
            behind = table.by_stack(lambda stack: stack.gathers_behind)
            free = Windows(chunks=behind * free.chunks, tail=behind * free.tail)
        exposed = _behind(system, table, extents, time_s, free)
        name = "gradients" if direction == "backward" else "weights_forward"
        parts[name] = time_s, exposed
    return parts


def _behind(
    system: System, table: Table, extents: Extents, time_s: Floats, free: Windows
) -> Floats:
    """Exposed time of communication of all chunks that runs once per step [s]."""
    exposed = np.zeros_like(time_s)
    for part, window_s in ((1 - 1 / table.vpp, free.chunks), (1 / table.vpp, free.tail)):
        exposed = exposed + exposed_communication(
            part * time_s,
            window_s,
            contention=table.by_stack(lambda stack: stack.dp_contention),
            tail=table.by_stack(lambda stack: stack.dp_tail),
            processor_share=processor_share(system, extents.replicas),
        )
    return exposed


def _by_layer(
    system: System,
    table: Table,
    extents: Extents,
    largest: LargestStage,
    critical: CriticalStage,
    transfer_s: Floats,
) -> ReplicaCommunication:
    """Communication of sharded gradients and weights, layer by layer [s].

    Gradients are reduce-scattered in every backward pass (ZeRO-2 and 3). With ZeRO-3 weights are
    gathered before every forward pass and, if they were released, again before backward; with
    ZeRO-2 trained weights are gathered once per step. Prefetched gathers run behind the previous
    pass: a pass P hides at most P x contention; without prefetch nothing is hidden. Gradients that
    are synchronized once per step are reduce-scattered in the last backward pass, in the time that
    gathers leave free, and weights that are not released are then gathered in the first forward
    pass alone. Hybrid sharding adds up the shards among its groups once per step, in the time that
    other communication of the last backward pass leaves free.
    (arXiv 2304.11277, sections 3.3 and 4.)
    """
    costs, training = critical.costs, table.training
    by_layer = [
        (count, part.bytes)
        for count, part in zip(largest.resident, costs.components, strict=True)
        if part is not None
    ]
    shard = shard_extents(table, extents.replicas), shard_extents(table, extents.edp)

    def weights(part: LayerBytes) -> tuple[Floats, Floats]:
        moved = costs.weight_sizes.moved
        return (
            moved(part.parameters, part.quantized_parameters),
            moved(part.expert_parameters, part.quantized_expert_parameters),
        )

    def updated(part: LayerBytes) -> tuple[Floats, Floats]:
        moved, dense, expert = costs.weight_sizes.moved, part.trained, part.expert_trained
        return moved(dense.weights, dense.quantized), moved(expert.weights, expert.quantized)

    def gradients(part: LayerBytes) -> tuple[Floats, Floats]:
        size = costs.gradient_bytes
        return part.trained.weights * size, part.expert_trained.weights * size

    def time(kind: CollectiveKind, sizes: Callable[[LayerBytes], tuple[Floats, Floats]]) -> Floats:
        spent = np.zeros_like(costs.memory_rate)
        for count, part in by_layer:
            dense, expert = sizes(part)
            spent = spent + count * collective_time(system, kind, dense, shard[0])
            if np.any(expert):
                spent = spent + count * collective_time(system, kind, expert, shard[1])
        return spent

    gathered = time(CollectiveKind.ALL_GATHER, weights)
    scattered = np.where(training, time(CollectiveKind.REDUCE_SCATTER, gradients), 0.0)
    split = table.zero >= ZERO_WEIGHTS
    m = np.where(table.stays_gathered, 1, table.micro_batches)
    last = table.syncs_once
    again = np.where(split & table.fsdp_reshard & training, gathered, 0.0)
    some_frozen = np.any(Subset.of(table).frozen)
    changed = time(CollectiveKind.ALL_GATHER, updated) if some_frozen else gathered
    once = np.where(split | ~training, 0.0, changed)
    forward, backward = np.where(split, gathered, 0.0), again + scattered
    contention = table.by_stack(lambda stack: stack.dp_contention)
    tail = table.by_stack(lambda stack: stack.dp_tail)
    used_share = processor_share(system, extents.replicas)

    def exposed(time_s: Floats, window_s: Floats) -> Floats:
        return exposed_communication(
            time_s, window_s, contention=contention, tail=tail, processor_share=used_share
        )

    forward_s, backward_s = (
        critical.on(lambda t: t.forward_pass_s),
        critical.on(lambda t: t.backward_pass_s),
    )
    prefetches = table.fsdp_prefetch > 0
    in_forward = np.where(prefetches, exposed(forward, forward_s), forward)
    together = exposed(backward, backward_s)
    share = again / np.where(backward > 0, backward, 1.0)  # of all communication behind the pass
    in_backward = np.where(prefetches, share * together, again)
    in_gradients = np.where(prefetches, (1 - share) * together, exposed(scattered, backward_s))
    reductions = np.where(last, 1, table.micro_batches)
    if np.any(last):
        gathers = np.where(prefetches, again, 0.0)
        free = windows(
            table,
            extents,
            pass_s=np.maximum(0.0, backward_s - gathers * (1 - used_share) / contention),
            inside_s={axis: critical.alone("backward", axis) for axis in COMM_AXES},
            transfer_s=transfer_s,
        )
        at_end = _behind(system, table, extents, scattered, free)
        in_backward = np.where(last & prefetches, exposed(again, backward_s), in_backward)
        in_gradients = np.where(last, at_end, in_gradients)
    groups = _time_of(
        system,
        between_shards(table, extents, largest, costs.gradient_bytes),
        costs.memory_rate,
    )
    concurrent = np.where(prefetches, backward, scattered)
    left_s = np.maximum(0.0, backward_s - concurrent * (1 - used_share) / contention)
    return {
        "gradients": (
            reductions * scattered + groups,
            reductions * in_gradients + exposed(groups, left_s),
        ),
        "weights_forward": (m * forward + once, m * in_forward + exposed(once, forward_s)),
        "weights_backward": (m * again, m * in_backward),
    }
