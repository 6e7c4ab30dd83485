"""Communication among the replicas of a stage: among whom, its time, and how much compute hides."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, total
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_OPTIMIZER, ZERO_WEIGHTS, Schedule
from shardwise.config.strategy_fields import COMM_AXES
from shardwise.config.strategy_table import Table
from shardwise.cost.collective import collective_time
from shardwise.cost.component_costs import summed
from shardwise.cost.layer_cost import LayerBytes, LayerCost
from shardwise.cost.links import processor_share
from shardwise.cost.operations import with_host, without_host
from shardwise.cost.optimizer import MUON, TrainedWeights
from shardwise.cost.overlap import exposed_communication, gradient_communication
from shardwise.engine.step import Step
from shardwise.engine.zero import reduced_bytes, releases, updated_weights
from shardwise.ops.embedding import vocabulary_share
from shardwise.ops.layer import rank_work
from shardwise.ops.lora import Subset
from shardwise.ops.operation import FP32_BYTES, CollectiveKind
from shardwise.parallel.placement import Extents
from shardwise.records import dataclass

Pieces = list[tuple[CollectiveKind, Floats, Ints]]
"""Collectives one after the other: kind, buffer [byte] of shape (n,), extents (tiers, n)."""

ReplicaCommunication = dict[str, tuple[Floats, Floats]]
"""Time alone and exposed time of each communication [s]: ``gradients``, ``weights_forward``
(gathered before forward, or once per step), ``weights_backward`` (gathered again), and once per
step ``momenta``, ``mirrors`` and ``embeddings``."""


_NEWTON_SCHULZ_BYTES = 2  # bf16 (arXiv 2502.16982, section 2.3)


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
    pass_s
        Time of one micro-batch's pass on the critical stage [s]; shape (n,).
    transfer_s
        Time of one transfer to the next stage that overlaps compute [s]; shape (n,).
    """
    outermost = _outermost(extents.replicas)
    chunk_s = pass_s
    for axis, time_s in inside_s.items():
        reach = getattr(extents, axis) * (extents.tp2 if axis == "tp" else 1)
        shared = np.any(_spanned(reach) & outermost, axis=0)
        chunk_s = chunk_s - np.where(shared, time_s, 0.0)
    shared = np.any(_spanned(extents.pp) & outermost, axis=0)
    chunk_s = chunk_s / table.vpp - np.where(shared, transfer_s, 0.0)
    chunk_s = np.maximum(0.0, chunk_s)
    return Windows(chunks=table.pp * (table.vpp - 1) * chunk_s, tail=chunk_s)


def _spanned(extents: Ints) -> Bools:
    """Tiers on which an axis has members or domains to connect; shape (tiers, n)."""
    return np.concatenate([extents[:1] > 1, extents[1:] > extents[:-1]])


def _outermost(extents: Ints) -> Bools:
    """The last of the tiers that an axis spans; shape (tiers, n)."""
    spanned = _spanned(extents)
    beyond = np.cumsum(spanned[::-1], axis=0)[::-1]
    found: Bools = spanned & (beyond == 1)
    return found


def replica_communication(step: Step) -> ReplicaCommunication:
    """Data-parallel communication in a step by kind, alone and exposed [s].

    With overlap, gradients are reduced behind the backward pass of the last micro-batch, and
    weights gathered behind the forward pass of the first. Where ZeRO shards gradients or weights,
    every micro-batch communicates them, behind its own passes, unless gradients are synchronized
    once per step. Kinds that no row has are absent.
    """
    table = step.table
    once = np.where(table.zero < ZERO_GRADIENTS, 1.0, 0.0)
    parts = {
        name: (once * alone, once * exposed)
        for name, (alone, exposed) in _once_per_step(step).items()
    }
    if np.any(table.zero >= ZERO_GRADIENTS):
        for name, (alone, exposed) in _by_layer(step).items():
            before = parts.get(name, (0.0, 0.0))
            parts[name] = (before[0] + (1 - once) * alone, before[1] + (1 - once) * exposed)
    overlap = table.dp_overlap
    parts = {
        name: (alone, np.where(overlap, exposed, alone)) for name, (alone, exposed) in parts.items()
    }
    for name, pieces in unhidden_collectives(step).items():
        time_s = _time_of(step, pieces)
        parts[name] = time_s, time_s
    for name, time_s in sharding_work(step).items():
        before = parts.get(name, (0.0, 0.0))
        parts[name] = before[0] + time_s, before[1] + time_s
    return parts


def _time_of(step: Step, pieces: Pieces) -> Floats:
    """Time of collectives one after the other [s]."""
    zero = np.zeros_like(step.costs.memory_rate)
    return total((collective_time(step.system, *piece) for piece in pieces), zero)


def _once_per_step(step: Step) -> ReplicaCommunication:
    """Full gradients and weights, of dense and expert replicas one after the other [s].

    With hybrid sharding the replicas of a shard group communicate among themselves; then the groups
    add up their shards, bucket by bucket.
    """
    table, costs, critical = step.table, step.costs, step.critical
    sums: list[Floats] = [np.zeros_like(costs.memory_rate)] * 2
    for trained, members in replica_groups(step):
        if trained is step.largest.expert_trained and not np.any(trained.weights):
            continue
        weights = updated_weights(table, costs, trained)
        times = gradient_communication(
            step.system,
            gradient_bytes=np.where(
                table.training, trained.weights * reduced_bytes(table, costs), 0.0
            ),
            weight_bytes=np.where(table.training, weights, 0.0),
            sharded=table.zero >= ZERO_OPTIMIZER,
            extents=shard_extents(table, members),
        )
        sums = [before + time for before, time in zip(sums, times, strict=True)]
    gradients_s, weights_s = sums[0] + _time_of(step, between_shards(step)), sums[1]
    in_backward = backward_windows(step, critical.on(lambda times: times.backward_pass_s))
    in_forward = forward_windows(step)
    return {
        "gradients": (gradients_s, _behind(step, gradients_s, in_backward)),
        "weights_forward": (weights_s, _behind(step, weights_s, in_forward)),
    }


def _behind(step: Step, time_s: Floats, free: Windows) -> Floats:
    """Exposed time of communication of all chunks that runs once per step [s]."""
    table, exposed = step.table, np.zeros_like(time_s)
    for part, window_s in ((1 - 1 / table.vpp, free.chunks), (1 / table.vpp, free.tail)):
        exposed = exposed + exposed_communication(
            part * time_s,
            window_s,
            contention=table.by_stack(lambda stack: stack.dp_contention),
            tail=table.by_stack(lambda stack: stack.dp_tail),
            processor_share=processor_share(step.system, step.extents.replicas),
        )
    return exposed


def backward_windows(step: Step, pass_s: Floats) -> Windows:
    """Windows of the last backward pass, of a time of `pass_s` on the critical stage [s]."""
    return _step_windows(step, pass_s, "backward")


def forward_windows(step: Step) -> Windows:
    """Windows of weights that are gathered once per step, behind the first forward pass [s]."""
    free = _step_windows(step, step.critical.on(lambda times: times.forward_pass_s), "forward")
    behind = step.table.by_stack(lambda stack: stack.gathers_behind)
    return Windows(chunks=behind * free.chunks, tail=behind * free.tail)


def _step_windows(step: Step, pass_s: Floats, direction: str) -> Windows:
    return windows(
        step.table,
        step.extents,
        pass_s=pass_s,
        inside_s={axis: step.critical.alone(direction, axis) for axis in COMM_AXES},
        transfer_s=step.boundary.overlapped_s,
    )


def _by_layer(step: Step) -> ReplicaCommunication:
    """Communication of sharded gradients and weights, layer by layer [s].

    Gradients are reduce-scattered in every backward pass (ZeRO-2 and 3). With ZeRO-3 weights are
    gathered before every forward pass and, if they were released, again before backward; with
    ZeRO-2 trained weights are gathered once per step. Prefetched gathers run behind the previous
    pass: a pass P hides at most P x contention; without prefetch nothing is hidden. Gradients that
    are synchronized once per step are reduce-scattered in the last backward pass, in the time that
    gathers leave free, and weights that are not released are then gathered in the first forward
    pass alone, chunk by chunk in a pipeline. Hybrid sharding adds up the shards among its groups
    once per step, in the time that other communication of the last backward pass leaves free.
    (arXiv 2304.11277, sections 3.3 and 4.)
    """
    table, costs, critical, training = step.table, step.costs, step.critical, step.table.training
    by_layer = [(count, part.bytes) for count, part in _components(step) if part is not None]
    shard = [shard_extents(table, members) for members in (step.extents.replicas, step.extents.edp)]

    def weights(part: LayerBytes) -> tuple[Floats, Floats]:
        moved = costs.weight_sizes.moved
        return (
            moved(part.parameters - releases(table) * part.persistent, part.quantized_parameters),
            moved(part.expert_parameters, part.quantized_expert_parameters),
        )

    def updated(part: LayerBytes) -> tuple[Floats, Floats]:
        moved, dense, expert = costs.weight_sizes.moved, part.trained, part.expert_trained
        return moved(dense.weights, dense.quantized), moved(expert.weights, expert.quantized)

    def gradients(part: LayerBytes) -> tuple[Floats, Floats]:
        size = reduced_bytes(table, costs)
        return part.trained.weights * size, part.expert_trained.weights * size

    def time(kind: CollectiveKind, sizes: Callable[[LayerBytes], tuple[Floats, Floats]]) -> Floats:
        spent = np.zeros_like(costs.memory_rate)
        for count, part in by_layer:
            dense, expert = sizes(part)
            spent = spent + count * collective_time(step.system, kind, dense, shard[0])
            if np.any(expert):
                spent = spent + count * collective_time(step.system, kind, expert, shard[1])
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
    used_share = processor_share(step.system, step.extents.replicas)

    def exposed(time_s: Floats, window_s: Floats) -> Floats:
        return exposed_communication(
            time_s, window_s, contention=contention, tail=tail, processor_share=used_share
        )

    forward_s = critical.on(lambda t: t.forward_pass_s)
    backward_s = critical.on(lambda t: t.backward_pass_s)
    prefetches = table.fsdp_prefetch > 0
    in_forward = np.where(prefetches, exposed(forward, forward_s), forward)
    together = exposed(backward, backward_s)
    share = again / np.where(backward > 0, backward, 1.0)  # of all communication behind the pass
    in_backward = np.where(prefetches, share * together, again)
    in_gradients = np.where(prefetches, (1 - share) * together, exposed(scattered, backward_s))
    reductions = np.where(last, 1, table.micro_batches)
    if np.any(last):
        gathers = np.where(prefetches, again, 0.0)
        window_s = np.maximum(0.0, backward_s - gathers * (1 - used_share) / contention)
        at_end = _behind(step, scattered, backward_windows(step, window_s))
        in_backward = np.where(last & prefetches, exposed(again, backward_s), in_backward)
        in_gradients = np.where(last, at_end, in_gradients)
    at_start = _behind(step, once, forward_windows(step))
    once_exposed = np.where(last, at_start, exposed(once, forward_s))
    groups = _time_of(step, between_shards(step))
    concurrent = np.where(prefetches, backward, scattered)
    left_s = np.maximum(0.0, backward_s - concurrent * (1 - used_share) / contention)
    return {
        "gradients": (
            reductions * scattered + groups,
            reductions * in_gradients + exposed(groups, left_s),
        ),
        "weights_forward": (m * forward + once, m * in_forward + once_exposed),
        "weights_backward": (m * again, m * in_backward),
    }


def _components(step: Step) -> Iterator[tuple[Floats, LayerCost | None]]:
    """Number and cost of the components of the stage with the most trained weights."""
    return zip(step.largest.resident, step.costs.components, strict=True)


def unhidden_collectives(step: Step) -> dict[str, Pieces]:
    """Collectives once per step that no compute hides, by name in `ReplicaCommunication`."""
    parts = {}
    if np.any(step.table.optimizer == MUON):
        parts["momenta"] = _completed_matrices(step)
    if np.any(step.table.schedule == Schedule.DUALPIPE.code):
        parts["mirrors"] = _between_mirrors(step)
    if step.model.tied_embeddings or step.model.mtp:
        parts["embeddings"] = _copied_embeddings(step)
    return parts


def replica_collectives(step: Step) -> dict[str, Pieces]:
    """Collectives of gradients and of weights of one row: of dense ones, then of routed experts.

    Each is one collective of all weights that the largest stage trains. Gradients are also added up
    among the groups of hybrid sharding, each after the sum within the groups.
    """
    table, costs = step.table, step.costs
    sharded = table.zero[0] >= ZERO_OPTIMIZER
    kind = CollectiveKind.REDUCE_SCATTER if sharded else CollectiveKind.ALL_REDUCE
    gradients: Pieces = []
    weights: Pieces = []
    for (trained, replicas), after in zip(replica_groups(step), between_shards(step), strict=True):
        shard = shard_extents(table, replicas)
        gradients += [(kind, trained.weights * reduced_bytes(table, costs), shard), after]
        moved = updated_weights(table, costs, trained)
        weights.append((CollectiveKind.ALL_GATHER, moved, shard))
    return {"gradients": gradients, "weights": weights}


def replica_groups(step: Step) -> tuple[tuple[TrainedWeights, Ints], ...]:
    """Trained weights without routed experts, and those of routed experts, with their replicas."""
    largest, extents = step.largest, step.extents
    return (largest.trained, extents.replicas), (largest.expert_trained, extents.edp)


def shard_extents(table: Table, replicas: Ints) -> Ints:
    """Extents of the replicas that share one set of shards, the inner part of all of them."""
    members = np.maximum(replicas[-1] * table.shard_share, 1.0).astype(np.int64)
    return np.gcd(replicas, members)


def between_shards(step: Step) -> Pieces:
    """Adding up gradient shards among the groups of hybrid sharding, once per step."""
    pieces: Pieces = []
    for trained, replicas in replica_groups(step):
        shard = shard_extents(step.table, replicas)
        size = trained.weights * reduced_bytes(step.table, step.costs) / shard[-1]
        buffer = np.where(step.table.training, size, 0.0)
        pieces.append((CollectiveKind.ALL_REDUCE, buffer, replicas // shard))
    return pieces


def _between_mirrors(step: Step) -> Pieces:
    """Adding up gradients with the mirrored rank of DualPipe, once per step.

    Ranks i and p - 1 - i share both stages: an all-reduce, in pairs across the pipeline, of the
    gradients that the replicas have reduced before. Compute does not hide it.
    """
    pair, size = _ends_of_pipeline(step), reduced_bytes(step.table, step.costs)
    rows = step.table.training & (step.table.schedule == Schedule.DUALPIPE.code)
    return [
        (
            CollectiveKind.ALL_REDUCE,
            np.where(rows, trained.weights * size / replicas[-1], 0.0),
            pair,
        )
        for trained, replicas in replica_groups(step)
    ]


def _ends_of_pipeline(step: Step) -> Ints:
    """Extents of a pair of ranks as far apart as the first and the last stage."""
    pair = np.where(step.extents.pp >= step.table.pp, 2, 1)
    pair[-1] = 2
    return pair


def _completed_matrices(step: Step) -> Pieces:
    """Gathering momenta for Muon's iterations, which need full matrices, once per step.

    All-gather of 2 bytes for each weight of a matrix among the ranks that share the optimizer
    state, before the update; compute does not hide it. An upper bound: all matrices count as split,
    at most 1.25 times AdamW's bytes where gradients and weights are communicated in fp32 (arXiv
    2502.16982, section 2.3). Ranks whose share is many full matrices need less.
    """
    table = step.table
    splits = (table.optimizer == MUON) & (table.zero >= ZERO_OPTIMIZER) & table.training
    return [
        (
            CollectiveKind.ALL_GATHER,
            np.where(splits, trained.matrices * _NEWTON_SCHULZ_BYTES, 0.0),
            shard_extents(table, replicas),
        )
        for trained, replicas in replica_groups(step)
    ]


def _copied_embeddings(step: Step) -> Pieces:
    """Adding up the gradients of both copies of the embedding.

    The last stage has one for a tied head, or for multi-token prediction.
    """
    model, table = step.model, step.table
    several = (table.pp > 1) & table.training & ~table.joins_ends
    several &= ~Subset.of(table).freezes("head" if model.tied_embeddings else "embedding")
    rows = vocabulary_share(model, rank_work(table))
    copied = np.where(several, rows * model.hidden / table.tp2, 0.0)
    buffer = copied * reduced_bytes(step.table, step.costs)
    return [(CollectiveKind.ALL_REDUCE, buffer, _ends_of_pipeline(step))]


def sharding_work(step: Step) -> dict[str, Floats]:
    """Time that plain PyTorch adds next to the collectives of replicas in a step, by kind [s].

    None where fitted figures of the stack have it. Kernels copy between the buffers of FSDP2 and
    tensors: of weights of b bytes in n shards, a shard in fp32 is cast to the compute type,
    (4 + b) / n, and what is gathered is split into weights, 2 b; gradients are joined in the type r
    in which they are reduced, b + r. With one shard the collectives are copies too, 2 b and 2 r.
    (_fsdp_collectives.py: all_gather_copy_in, split_with_sizes_copy, _chunk_cat.) DDP copies
    gradients into its buckets, 2 r (reducer.cpp, mark_variable_ready_dense).

    The host calls hooks, events and copies of each layer and each weight. A pass of which the
    accelerator takes d and the host h is join(d + copies, h + calls) with them, not join(d, h).
    """
    table, costs, critical = step.table, step.costs, step.critical
    copies = table.by_stack(lambda stack: stack.sharding_copies)
    calls = table.by_stack(lambda stack: stack.sharding_calls)
    if not np.any(copies + calls):
        return {}
    sharded, split = table.zero >= ZERO_GRADIENTS, table.zero >= ZERO_WEIGHTS
    shards = shard_extents(table, step.extents.replicas)[-1]
    alone = np.where(shards == 1, 2.0, 0.0)
    size, reduced = costs.element_bytes, reduced_bytes(table, costs)
    resident = step.largest.resident
    weights = summed(costs, resident, lambda one: one.bytes.all_parameters)
    trained = step.largest.all_trained.weights
    per_byte = np.where(copies, 1 / costs.memory_rate, 0.0)
    gather_s = per_byte * weights * (size * (2 + alone) + (FP32_BYTES + size) / shards)
    reduce_s = per_byte * trained * (size + reduced * (1 + alone))
    bucket_s = np.where(table.replicas > 1, per_byte * trained * 2 * reduced, 0.0)

    layers = total((n * (part is not None) for n, part in _components(step)), weights)
    calls_s = np.where(sharded, layers * calls * step.host_call_s + step.weight_calls_s, 0.0)

    def more(pass_s: Floats, host_s: Floats, copies_s: Floats) -> Floats:
        if not step.system.accelerator.asynchronous:
            return copies_s + calls_s
        device_s = without_host(pass_s, host_s)
        both: Floats = with_host(device_s + copies_s, host_s + calls_s) - pass_s
        return np.maximum(0.0, both)

    m, training = table.micro_batches, table.training
    once = np.where(split & ~table.stays_gathered, 1.0, 1 / m)
    again = np.where(split & table.fsdp_reshard, gather_s, 0.0)
    reductions = np.where(table.syncs_once, 1 / m, 1.0)
    forward_s = more(
        critical.on(lambda one: one.forward_pass_s),
        critical.on(lambda one: one.forward_host_s),
        np.where(sharded, once * gather_s, 0.0),
    )
    backward_s = more(
        critical.on(lambda one: one.backward_pass_s),
        critical.on(lambda one: one.backward_host_s),
        np.where(sharded, again + reductions * reduce_s, 0.0),
    )
    buckets_s = np.where(sharded, 0.0, bucket_s)
    return {
        "weights_forward": m * forward_s,
        "gradients": np.where(training, m * backward_s + buckets_s, 0.0),
    }
