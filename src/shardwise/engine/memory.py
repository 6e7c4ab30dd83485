"""Peak memory of one rank of a pipeline stage."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Literal

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, among, total
from shardwise.config.enums import (
    ZERO_GRADIENTS,
    ZERO_WEIGHTS,
    Dtype,
    Recompute,
    Reference,
    Schedule,
    WeightDtype,
)
from shardwise.config.strategy_table import Table
from shardwise.cost.component_costs import ComponentCosts, summed
from shardwise.cost.layer_cost import LayerBytes
from shardwise.cost.optimizer import state_size
from shardwise.engine.host_update import (
    gradients_on_host,
    host_gradient_bytes,
    host_state_bytes,
)
from shardwise.engine.zero import (
    Shares,
    Unsharded,
    WeightTotals,
    gathers_master,
    largest_gradients,
    reduce_bucket,
    reduced_bytes,
    releases,
    sharded,
    weight_totals,
)
from shardwise.ops.operation import FP32_BYTES
from shardwise.parallel.pipeline_layout import StageGroup
from shardwise.parallel.schedule.in_flight import (
    chunks_in_flight,
    first_stage_in_flight,
    peak_of_uneven_chunks,
    peak_of_uneven_ends,
)
from shardwise.records import dataclass, replace

PassName = Literal["forward", "backward"]
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers")


@dataclass(frozen=True, slots=True)
class Tiers:
    """Bytes in the first and in the second memory tier."""

    here: Floats
    away: Floats
    share: Floats | float
    """Share of the movable bytes that is in the first tier."""


def in_tiers(size: Floats, offloaded: Bools, layers: Floats) -> Tiers:
    """Place bytes of layers: all in the first tier, or all in the second but two layers.

    The two are the layer that runs and the one in transit.

    Parameters
    ----------
    size
        All of them [byte]; shape (n,).
    """
    share = np.where(offloaded, np.minimum(1.0, 2.0 / np.maximum(layers, 1.0)), 1.0)
    return Tiers(size * share, np.where(offloaded, size, 0.0), share)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of a rank of one stage at its peak, by kind [byte]."""

    stored: Floats
    """Weights, but for those of `master`."""
    gradients: Floats
    state: Floats
    """Optimizer state, with fp32 copies of weights."""
    master: Floats
    """Of these, fp32 weights that are stored as such, and that ZeRO 3 gathers from (FSDP)."""
    activations: Floats
    """Saved between forward and backward, for the micro-batches in flight."""
    buffers: Floats
    """Transient: recomputed activations, gradients of activations, logits, gathered weights; or the
    update's copies of gradients, where the update needs more than forward and backward."""
    part: Ints
    """The component (see `ComponentCosts.components`) with the most transient bytes; one more than
    the head: the head once its weights have a gradient."""
    in_update: Bools
    """Whether the peak is in the update of the weights."""
    offloaded: Floats
    """Bytes in the second memory tier."""

    @property
    def total(self) -> Floats:
        """Sum of all kinds, as the allocator counts it."""
        return self.stored + self.gradients + self.state + self.activations + self.buffers

    @property
    def weights(self) -> Floats:
        """Weights, in fp32 where there are no others."""
        return self.stored + self.master

    @property
    def optimizer(self) -> Floats:
        """Moments, and fp32 copies of weights that are stored in a smaller type, too."""
        return self.state - self.master


def stage_memory(
    table: Table,
    costs: ComponentCosts,
    group: StageGroup,
    stage: Ints | None = None,
    shares: Shares | None = None,
    phase: PassName | None = None,
) -> StageMemory:
    """Return the peak memory of a rank of a stage: in a pass, or in the update.

    ZeRO shards the optimizer state (1), gradients (2) and weights (3) over the replicas. Sharded
    weights are gathered layer by layer, `fsdp_prefetch` layers in advance; they stay unsharded
    from forward to backward where they are not released. Sharded gradients are unsharded for one
    layer.
    Activations: saved bytes of the stage's layers for every micro-batch in flight, and on the first
    stage those of the embedding. Buffers: the transient bytes of one micro-batch at its peak, in a
    layer or, on the last stage, in the head with its logits (see `cost.activation_walk`); and one
    buffer for each shape of weights where the stack allocates them. In the update no activations
    are resident; each rank copies its shard of 16-bit gradients to fp32, and the optimizer of the
    stack may need more. Where the host updates, it stores all state and gradients; sharded
    gradients leave the accelerator as they are reduced, and nothing is copied for the update.
    Forward only, there are weights, and the working set in addition to the residual stream.

    Parameters
    ----------
    stage
        Index of the stage, shape (n,); None: the first of the group, whose memory is largest.
    shares
        ZeRO shares of the table, if already computed.
    phase
        A pass, without the update, where `costs` have the peaks of this pass alone.
    """
    shares = shares or Shares.of(table, costs)
    counts = {"micro_batches": table.micro_batches, "stages": table.pp, "chunks": table.vpp}
    at = group.first if stage is None else stage
    activations = _activations(table, costs, group, at)
    layers, ends = weight_totals(costs, group)
    released = releases(table)
    here = in_tiers(layers.weights(shares, released), table.offload_weights, group.layers)
    state = layers.state(shares)
    as_weights = gathers_master(table, costs) | shares.on_replicas
    ends_state, ends_master = ends.state(shares), ends.master(shares)
    optimizer = in_tiers(state, table.offload_optimizer, group.layers)
    masters = ends_master + layers.master(shares) * optimizer.share
    here_state, away_state = ends_state + optimizer.here, optimizer.away

    looked_up = first_stage_in_flight(schedule=table.schedule, **counts)
    saved = activations.here + group.resident[-2] * costs.embedding.bytes.saved_bytes * looked_up
    live, in_layers, component = _live(table, costs, group, activations.share)
    local, updated = (
        layers.shared("gradients", share) + ends.shared("gradients", share)
        for share in (shares.gradients, shares.optimizer)
    )
    owned = updated / costs.resident_gradient_bytes
    copies = _updated_at_once(table, owned) * _update_bytes(table, costs)
    if np.any(on_host := table.updates_on_host):
        on_both = as_weights & ~table.offload_weights
        weights_here = np.where(on_both, ends_master + layers.master(shares), 0.0)
        masters = np.where(on_host, weights_here, masters)
        here_state = np.where(on_host, weights_here, here_state)
        resident = host_state_bytes(
            table, state + ends_state, owned * host_gradient_bytes(costs), owned
        )
        away_state = np.where(on_host, resident, away_state)
        local = np.where(gradients_on_host(table), 0.0, local)
        copies = np.where(on_host, 0.0, copies)
    pools, running = _graph_pools(table, costs, group, at)
    graphs = pools + np.where(table.captures_step, copies, 0.0)
    in_layers = replace(in_layers, bytes=in_layers.bytes + running + graphs)
    live, copies = live + graphs, copies + pools
    component = np.where(in_layers.bytes > live, in_layers.component, component)
    live = np.maximum(live, in_layers.bytes)
    peak = _peak(
        table,
        costs=costs,
        group=group,
        shares=shares.gradients,
        gradients=local,
        saved=saved,
        live=live,
        in_layers=in_layers,
        kept=_kept_inputs(table, costs, group),
        copies=copies,
        phase=phase,
    )
    gathered = summed(costs, group.resident, lambda one: one.bytes.persistent)
    of_reference = _reference_copy(table, (ends, layers))
    on_host = table.references == Reference.COPY_HOST.code
    return StageMemory(
        stored=ends.weights(shares, released)
        + here.here
        + np.where(released, gathered * costs.element_bytes, 0.0)
        + np.where(on_host, 0.0, of_reference),
        gradients=peak.gradients,
        state=here_state,
        master=np.where(as_weights, masters, 0.0),
        activations=peak.activations,
        buffers=peak.buffers + _buckets(table, costs, (layers, ends)),
        part=np.where(peak.of_layers, in_layers.component, component),
        in_update=peak.in_update,
        offloaded=here.away + activations.away + away_state + np.where(on_host, of_reference, 0.0),
    )


def _reference_copy(table: Table, of: Sequence[WeightTotals]) -> Floats:
    """Weights of a frozen copy of the model on a rank, sharded as those of the policy are [byte].

    In the type that they were loaded in: that of the policy's weights (TRL 1.9, create_model_from_
    path and prepare_deepspeed, prepare_fsdp).
    """
    rows = among(table.references, (Reference.COPY.code, Reference.COPY_HOST.code))
    if not np.any(rows):
        return np.zeros(table.gpus.shape)
    wide = (table.in_effect("weight_dtype") == WeightDtype.FP32.code) & (table.lora_rank == 0)
    size = total((one.shared("stored", sharded(table)) for one in of), np.zeros(table.gpus.shape))
    return np.where(rows, np.where(wide & (table.dtype != Dtype.FP32.code), 2.0, 1.0) * size, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    """What is resident in addition to weights and optimizer state at the peak of a stage [byte]."""

    gradients: Floats
    activations: Floats
    buffers: Floats
    of_layers: Bools
    """Whether the component with the most transient bytes is sought among layers and embedding."""
    in_update: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """Peak transient bytes of some components, and the one with this peak."""

    bytes: Floats
    component: Ints


def _peak(
    table: Table,
    *,
    costs: ComponentCosts,
    group: StageGroup,
    shares: tuple[Floats, Floats],
    gradients: Floats,
    saved: Floats,
    live: Floats,
    in_layers: _Live,
    kept: Floats,
    copies: Floats,
    phase: PassName | None,
) -> _Peak:
    """The largest of three moments: before backward, at its end, and in the update.

    Before:  G0 + saved + live,
    at its end:  G + saved / layers + live of layers + kept,
    update:  G + copies.

    G are the gradients of the stage. G0 is G, but for steps of one micro-batch in software that
    frees gradients after the update: then G0 = 0. In between, each layer frees its activations and
    adds its gradients, so that no moment needs more than the larger of both ends. `kept` is what
    backward adds to saved activations instead of freeing them. Where weights are updated in
    backward, G and G0 are the gradients of the largest component, and there is no later update.

    Parameters
    ----------
    shares
        Share of a rank of gradients: dense, expert.
    gradients
        Local gradients of the stage [byte]; shape (n,), as all that follow.
    saved, live
        Saved activations, and the peak of transient bytes [byte].
    kept
        Inputs and gradients that software keeps until the end of backward [byte]; 0: none.
    copies
        Transient bytes of the update [byte].
    phase
        Forward: before backward alone; backward: without the update.
    """
    early = table.by_stack(lambda stack: stack.update_in_backward) & table.training
    frees = table.by_stack(lambda stack: stack.clears_gradients) & (table.micro_batches == 1)
    frees = (frees & (table.pp == 1)) | early
    keeps = kept > 0
    in_update = (copies > saved + live) & (phase is None)
    if not np.any(frees | keeps):  # gradients are there throughout
        return _Peak(
            gradients=gradients,
            activations=np.where(in_update, 0.0, saved),
            buffers=np.where(in_update, copies, live),
            of_layers=keeps,
            in_update=in_update,
        )
    largest = largest_gradients(costs, group, shares) if np.any(early) else gradients
    final = np.where(early, largest, gradients)
    first = np.where(early, largest, np.where(frees, 0.0, gradients))
    copies = np.where(early, 0.0, copies)
    held = np.where(keeps, saved + kept, saved / np.maximum(group.layers, 1.0))
    before, end = first + saved + live, final + held + in_layers.bytes
    at_end = (frees | keeps) & (end > before) & (phase != "forward")
    larger = (final + copies > np.where(at_end, end, before)) & (phase is None)
    in_update = np.where(frees | keeps, larger, in_update)
    return _Peak(
        gradients=np.where(at_end | in_update, final, first),
        activations=np.where(in_update, 0.0, np.where(at_end, held, saved)),
        buffers=np.where(in_update, copies, np.where(at_end, in_layers.bytes, live)),
        of_layers=at_end,
        in_update=in_update,
    )


def _kept_inputs(table: Table, costs: ComponentCosts, group: StageGroup) -> Floats:
    """Gradients of the inputs of layers that FSDP1 keeps until backward ends [byte].

    Its hook on a frozen shard refers to the input of the layer and so to that input's gradient,
    where the layer runs again in backward (reentrant checkpoints have inputs of their own):
    PyTorch 2.1 to 2.6, torch/distributed/fsdp/_runtime_utils.py,
    _register_post_backward_reshard_only_hook. The inputs themselves, which are the saved
    activations, are not freed either.
    """
    rows = table.by_stack(lambda stack: stack.keeps_frozen_inputs) & (table.zero >= ZERO_WEIGHTS)
    rows &= (table.lora_rank > 0) | (table.frozen > 0)
    rows &= (table.recompute == Recompute.FULL.code) & table.training
    if not np.any(rows):
        return np.zeros_like(costs.memory_rate)
    return np.where(rows, group.layers * costs.boundary_bytes, 0.0)


def _buckets(table: Table, costs: ComponentCosts, of: Sequence[WeightTotals]) -> Floats:
    """Buffers of gradients that wait for their reduction by ZeRO [byte].

    None with ZeRO 1 where gradients accumulate in more bytes than weights have: DeepSpeed's BF16
    optimizer reduces them in place (deepspeed/runtime/engine.py, _configure_bf16_optimizer).
    """
    size = reduce_bucket(table, costs)
    if not np.any(size):
        return np.zeros_like(costs.memory_rate)
    trained = sum(one.unsharded("gradients") for one in of) / costs.resident_gradient_bytes
    number = np.where(table.dp_overlap & (table.zero < ZERO_WEIGHTS), 2.0, 1.0)
    used = np.minimum(size, trained) * number * reduced_bytes(table, costs)
    in_place = (table.zero < ZERO_GRADIENTS) & (costs.gradient_bytes > costs.element_bytes)
    return np.where(table.training & (table.zero > 0) & ~in_place, used, 0.0)


def _updated_at_once(table: Table, owned: Floats) -> Floats:
    """Weights whose gradients a rank copies at a time [elements]: all, or those of a sub-group."""
    size = table.by_stack(lambda stack: stack.sub_group_size)
    grouped = (size > 0) & (table.zero >= ZERO_WEIGHTS)
    return np.where(grouped, np.minimum(owned, size), owned)


def _update_bytes(table: Table, costs: ComponentCosts) -> Floats:
    """Transient bytes of the update per weight that a rank updates.

    An fp32 copy of a 16-bit gradient (where weights have one too), a flat copy before it, and
    buffers between the optimizer's kernels, in the type of its state.
    """
    element = costs.gradient_bytes
    flat = table.by_stack(lambda stack: stack.flat_gradients) & (table.zero > 0)
    copies = table.by_stack(lambda stack: stack.copies_gradients)
    grouped = table.by_stack(lambda stack: stack.sub_group_size > 0)
    copied = copies & (costs.weight_sizes.master == FP32_BYTES) & (element < FP32_BYTES)
    return (
        np.where(copied, FP32_BYTES, 0.0)
        + np.where(flat & ((table.zero < ZERO_WEIGHTS) | grouped), element, 0.0)
        + table.by_stack(lambda stack: stack.update_bytes) * state_size(costs.weight_sizes.moment)
    )


# Rows of experts for which a graph of the step has memory, over those of an even load: static
# buffers of the layer that runs (moe_expert_rank_capacity_factor), and the paged stash of what
# layers save (moe_paged_stash_buffer_size_factor_cuda): NVIDIA-NeMo/Megatron-Bridge 4211.
_STATIC_ROWS, _STASH_ROWS = 1.5, 1.2


def _graph_pools(
    table: Table, costs: ComponentCosts, group: StageGroup, stage: Ints
) -> tuple[Floats, Floats]:
    """Memory of CUDA graphs in addition to that of the same step without them [byte].

    First what is there at all times. Graphs of layers that share no pool: what a layer saves in the
    captured modules and the largest transient bytes of one of their operations, of all layers and
    micro-batches in flight. Nothing else can use this memory, so that the eager peak next to it is
    as high as before. A graph of the step keeps its activations while weights are updated (added in
    `stage_memory`), and what experts save is in a stash with room for more rows than they get,
    which all layers share.

    Second, while a layer runs in a graph of the step: what its experts save is in static buffers
    before it is copied to the stash, and after it is copied back, and their transient bytes are
    those of static buffers, too (Megatron-Core, paged_stash.py, stash_paged_tensors and
    reload_paged_tensors).
    """
    none = np.zeros_like(costs.memory_rate)
    if not np.any(table.own_graph_pools):
        return none, none
    step, flight = table.captures_step, _InFlight.of(table, costs, group, stage)
    saved = flight.total(lambda size: size.graph_bytes)
    own = saved + flight.total(lambda size: size.graph_working_bytes)
    running = largest_layer(
        costs,
        group,
        lambda size: (
            _STATIC_ROWS * size.graph_bytes + (_STATIC_ROWS - 1) * size.graph_working_bytes
        ),
    )
    return np.where(step, (_STASH_ROWS - 1) * saved, own), np.where(step, running, 0.0)


def _activations(table: Table, costs: ComponentCosts, group: StageGroup, stage: Ints) -> Tiers:
    """Saved activations of all micro-batches in flight, by memory tier.

    Two of the layers with offloaded activations have theirs in the first tier: the layer that runs
    and the next one. So the activations of a layer return before its backward pass, as
    `cost.activation_walk` assumes. Where experts overlap, each layer that runs forward is saved
    before the one that runs backward with it is freed. The warm-up has another chunk there
    (Megatron-Core, schedules.py, get_pp_rank_microbatches), in place of the one that 1F1B runs
    forward before its first backward pass.
    """
    flight = _InFlight.of(table, costs, group, stage)
    paired = np.zeros_like(costs.memory_rate)
    if np.any(table.overlaps_by_nodes):
        one = largest_layer(costs, group, lambda size: size.saved_bytes)
        paired = np.where(table.overlaps_by_nodes & (table.micro_batches > 1), one, 0.0)
    if not np.any(table.moves_activations):
        saved = flight.total(lambda size: size.saved_bytes) + paired
        return Tiers(saved, np.zeros_like(saved), 1.0)
    movable = flight.total(lambda size: size.movable_bytes)
    moved = in_tiers(movable, table.moves_activations, flight.total(moves))
    away = 1 - moved.share
    here = flight.total(lambda size: size.saved_bytes - away * size.movable_bytes) + paired
    return Tiers(here, moved.away, moved.share)


def largest_layer(
    costs: ComponentCosts, group: StageGroup, select: Callable[[LayerBytes], Floats]
) -> Floats:
    """Bytes of the layer of a stage that has most of them [byte]; shape (n,)."""
    layers = zip(group.resident, costs.layers, strict=False)
    sizes = [np.where(n > 0, select(one.bytes), 0.0) for n, one in layers if one is not None]
    return reduce(np.maximum, sizes, np.zeros_like(costs.memory_rate))


def moves(size: LayerBytes) -> Floats:
    """1 for a layer with activations to move where they are offloaded, else 0."""
    return np.where(size.movable_bytes > 0, 1.0, 0.0)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """Micro-batches in flight on a rank at its peak, to add up bytes of their layers."""

    costs: ComponentCosts
    group: StageGroup
    moments: tuple[tuple[Floats, Floats], ...]
    """In flight of the first and of the second chunk, at each moment that may be the peak; the same
    number where chunks are equal."""
    order: dict[str, Ints]
    """Columns that determine these numbers."""
    unlike_ends: Ints
    """Rows whose interleaved chunks save different bytes: only the first and the last differ."""
    irregular: Ints
    """Rows whose middle chunks differ too."""

    @classmethod
    def of(cls, table: Table, costs: ComponentCosts, group: StageGroup, stage: Ints) -> "_InFlight":
        order = {
            "micro_batches": table.micro_batches,
            "stages": table.pp,
            "chunks": table.vpp,
            "stage": stage,
        }
        unlike = group.uneven_chunks & (table.schedule == Schedule.INTERLEAVED.code)
        return cls(
            costs=costs,
            group=group,
            moments=_buffered(table, stage, chunks_in_flight(schedule=table.schedule, **order)),
            order={name: np.broadcast_to(o, group.key.shape) for name, o in order.items()},
            unlike_ends=np.flatnonzero(unlike & ~group.uneven_middle_chunks),
            irregular=np.flatnonzero(unlike & group.uneven_middle_chunks),
        )

    def total(self, select: Callable[[LayerBytes], Floats]) -> Floats:
        """Add up bytes of layers over the micro-batches in flight."""
        all_chunks = summed(
            self.costs, self.group.resident, lambda one: select(one.bytes), layers=True
        )
        first, second = self.moments[0]
        if first is second:
            found = first * all_chunks
        else:
            one = self._of_chunk(0, select, np.arange(self.group.key.size))
            found = np.maximum.reduce([a * one + b * (all_chunks - one) for a, b in self.moments])
        at, order = self.unlike_ends, self._order_of(self.unlike_ends)
        if at.size:
            saved = np.broadcast_to(all_chunks, found.shape)[at]
            first = self._of_chunk(0, select, at)
            last = self._of_chunk(order["chunks"] - 1, select, at)
            found[at] = peak_of_uneven_ends(saved, first, last, **order)
        at, order = self.irregular, self._order_of(self.irregular)
        if at.size:
            chunks = np.arange(order["chunks"].max())[:, np.newaxis]
            saved = self._of_chunk(chunks, select, at)
            found[at] = peak_of_uneven_chunks(saved, **order)
        return found

    def _order_of(self, rows: Ints) -> dict[str, Ints]:
        return {name: column[rows] for name, column in self.order.items()}

    def _of_chunk(
        self, chunk: Ints | int, select: Callable[[LayerBytes], Floats], rows: Ints
    ) -> Floats:
        counts = np.moveaxis(self.group.contents.chunks[self.group.key[rows], chunk], -1, 0)
        layers = zip(counts, self.costs.layers, strict=True)
        shape = self.group.key.shape
        sizes = (
            count * np.broadcast_to(select(layer.bytes), shape)[rows]
            for count, layer in layers
            if layer is not None
        )
        return total(sizes, counts[0])


def _buffered(
    table: Table, stage: Ints, moments: tuple[tuple[Floats, Floats], ...]
) -> tuple[tuple[Floats, Floats], ...]:
    """Micro-batches in flight where a stage reserves 2 pp buffers for what it saves.

    All stages but the last do so, for at most as many as there are micro-batches
    (Oneflow-Inc/oneflow, job_rewriter/pipeline_buffer_pass.cpp).
    """
    rows = table.by_stack(lambda stack: stack.pipeline_buffers) & (stage < table.pp - 1)
    if not np.any(rows):
        return moments
    least = np.where(rows & table.training, np.minimum(table.micro_batches, 2.0 * table.pp), 0.0)
    wide = []
    for first, second in moments:
        larger = np.maximum(first, least)
        wide.append((larger, larger if first is second else np.maximum(second, least)))
    return tuple(wide)


def _live(
    table: Table, costs: ComponentCosts, group: StageGroup, here_share: Floats | float
) -> tuple[Floats, "_Live", Ints]:
    """Peak transient bytes in addition to saved ones, the same without the head, and the component.

    The peak of a component is in the last one of its kind on the stage: activations of later layers
    are not saved yet, or already released.
    """
    resident = [
        (place, count, component.bytes)
        for place, (count, component) in enumerate(
            zip(group.resident, costs.components, strict=True)
        )
        if component is not None
    ]
    zero = np.zeros_like(costs.memory_rate)
    unsharded = Unsharded.of(table, costs, group)
    most, where = np.full_like(zero, -np.inf), np.zeros(zero.shape, dtype=np.int64)
    of_layers, layer = most, where
    shapes = zero
    embedding, head = len(group.resident) - 2, len(group.resident) - 1
    following = _following(group, resident, here_share)
    for place, count, size in resident:
        here, at = count > 0, np.full_like(where, place)
        over = size.over_bytes
        if place == head:
            trained = size.trained_over_bytes + unsharded.head_gradients
            at = np.where(trained > over, head + 1, head)
            over = np.maximum(over, trained) + size.saved_bytes + unsharded.head
            shapes = shapes + np.where(here, size.gradient_buffer_bytes, 0.0)
        elif place == embedding:
            over = over + unsharded.embedding
        else:
            over = over - following[place] + unsharded.layer
            shapes = np.where(here, np.maximum(shapes, size.gradient_buffer_bytes), shapes)
        more = here & (over > most)
        most, where = np.where(more, over, most), np.where(more, at, where)
        if place != head:
            more = here & (over > of_layers)
            of_layers, layer = np.where(more, over, of_layers), np.where(more, place, layer)
    buffers = table.by_stack(lambda stack: stack.weight_gradient_buffers)
    extra = np.where(buffers & table.training, shapes, 0.0)
    extra = extra + np.where(table.training, 0.0, costs.boundary_bytes)
    without = _Live(bytes=np.maximum(of_layers, 0.0) + extra, component=layer)
    return np.maximum(most, 0.0) + extra, without, where


def _following(
    group: StageGroup,
    resident: Sequence[tuple[int, Floats, LayerBytes]],
    here_share: Floats | float,
) -> Floats:
    """Saved bytes in the first tier of layers that follow the last one of each component.

    Shape (components, n); 0 for embedding and head, and where all layers are alike.
    """
    ends = 2
    layers = [part for part in resident if part[0] < len(group.resident) - ends]
    none = np.zeros((len(group.resident) - ends, 1))
    if len(layers) == 1:
        return none
    saved = (
        group.contents.following(other)[group.key].T
        * (size.saved_bytes - (1 - here_share) * size.movable_bytes)
        for other, _, size in layers
    )
    return total(saved, none)


def reserved_bytes(total: Floats, *, slack: Floats, runtime_memory: Floats) -> Floats:
    """Reserved memory [byte], total * slack + runtime_memory: blocks of the allocator, and runtime.

    Parameters
    ----------
    total
        Bytes that are allocated at the peak [byte]; shape (n,).
    runtime_memory
        Memory of the runtime and its libraries [byte]; shape (n,).
    """
    return total * slack + runtime_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMemory:
    """Memory of the weights of routed experts on a rank, by kind [byte]."""

    weights: Floats
    gradients: Floats
    optimizer: Floats


def expert_memory(
    table: Table, costs: ComponentCosts, group: StageGroup, memory: StageMemory
) -> ExpertMemory | None:
    """The share of routed experts in `StageMemory`; None for a model without experts.

    Weights and optimizer state follow the ZeRO shards of expert replicas and the tier of all
    weights of layers. At the peak either all gradients of the stage are there, or none, or, where
    weights are updated in backward, those of its largest component.

    Parameters
    ----------
    memory
        Of the same rows (`stage_memory`).
    """
    layers, _ = weight_totals(costs, group)
    if layers.expert is None:
        return None
    experts = WeightTotals(layers.expert, None)
    shares = Shares.of(table, costs).of_experts()
    stored = experts.weights(shares, releases(table))
    state = in_tiers(experts.state(shares), table.offload_optimizer, group.layers)
    as_weights = gathers_master(table, costs) | shares.on_replicas
    on_host = table.updates_on_host
    share = np.where(on_host, np.where(table.offload_weights, 0.0, 1.0), state.share)
    master = np.where(as_weights, experts.master(shares) * share, 0.0)
    early = table.by_stack(lambda stack: stack.update_in_backward) & table.training
    gradients = np.where(
        early,
        largest_gradients(costs, group, Shares.of(table, costs).gradients, of_experts=True),
        experts.shared("gradients", shares.gradients),
    )
    return ExpertMemory(
        weights=in_tiers(stored, table.offload_weights, group.layers).here + master,
        gradients=np.where(memory.gradients > 0, gradients, 0.0),
        optimizer=np.where(on_host, 0.0, state.here - master),
    )
