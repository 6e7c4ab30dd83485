"""Memory of a stage's weights: ZeRO shards, and weights and gradients that are gathered."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from shardwise.arrays import Bools, Floats, total
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_OPTIMIZER, ZERO_WEIGHTS
from shardwise.config.strategy_table import Table
from shardwise.cost.component_costs import ComponentCosts, summed
from shardwise.cost.layer_cost import WeightBytes
from shardwise.cost.optimizer import TrainedWeights, unsharded_fp32
from shardwise.ops.operation import FP32_BYTES
from shardwise.parallel.pipeline_layout import StageGroup


def shards(table: Table, stage: int) -> tuple[Floats, Floats]:
    """Number of shards at a ZeRO stage: of dense weights, and of expert weights.

    1 in rows of a lower stage. Hybrid sharding shards within a subset of the replicas.

    Parameters
    ----------
    stage
        ZeRO stage: 1 optimizer state, 2 gradients, 3 weights.
    """
    split = table.zero >= stage
    share = table.shard_share
    return (
        np.where(split, np.maximum(table.replicas * share, 1.0), 1.0),
        np.where(split, np.maximum(table.expert_replicas * share, 1.0), 1.0),
    )


@dataclass(frozen=True, slots=True)
class Shares:
    """Share of a rank of what each ZeRO stage shards: (dense, expert) columns."""

    optimizer: tuple[Floats, Floats]
    gradients: tuple[Floats, Floats]
    weights: tuple[Floats, Floats]
    """Of trained weights. Weights gathered from the optimizer's copy have no shard of their own;
    weights that are not released after forward are unsharded."""
    on_replicas: Bools
    """Rows whose fp32 weights are stored on each replica, whatever ZeRO 1 shards."""
    frozen_only: tuple[Floats, Floats] | None
    """Share of frozen weights, which have no fp32 copy, in addition; None where no row has it."""

    @classmethod
    def of(cls, table: Table, costs: ComponentCosts) -> "Shares":
        """Compute the shares, once for all stages of the pipeline."""
        dense, expert = _inverse(table, ZERO_WEIGHTS)
        unsharded = np.where((table.zero >= ZERO_WEIGHTS) & ~table.fsdp_reshard, 1.0, 0.0)
        from_master = gathers_master(table, costs)
        frozen = None
        if np.any(from_master):
            frozen = np.where(from_master, dense, 0.0), np.where(from_master, expert, 0.0)
            dense, expert = dense - frozen[0], expert - frozen[1]
        return cls(
            optimizer=_inverse(table, ZERO_OPTIMIZER),
            gradients=_gradients(table, costs),
            on_replicas=unsharded_fp32(table, costs.weight_sizes),
            weights=(unsharded + dense, unsharded + expert),
            frozen_only=frozen,
        )

    def of_experts(self) -> "Shares":
        """The shares of expert weights in place of those of dense ones."""
        frozen = self.frozen_only

        def twice(both: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
            return both[1], both[1]

        return Shares(
            optimizer=twice(self.optimizer),
            gradients=twice(self.gradients),
            weights=twice(self.weights),
            on_replicas=self.on_replicas,
            frozen_only=None if frozen is None else twice(frozen),
        )


@dataclass(frozen=True, slots=True)
class WeightTotals:
    """Memory of the weights of some components on a rank: dense weights and expert weights."""

    dense: WeightBytes
    expert: WeightBytes | None

    def shared(self, name: str, shares: tuple[Floats, Floats]) -> Floats:
        """A rank's share of one field of `WeightBytes` [byte]."""
        size: Floats = getattr(self.dense, name) * shares[0]
        return size if self.expert is None else size + getattr(self.expert, name) * shares[1]

    def unsharded(self, name: str) -> Floats:
        """One field of `WeightBytes` before sharding [byte]."""
        size: Floats = getattr(self.dense, name)
        return size if self.expert is None else size + getattr(self.expert, name)

    def master(self, shares: Shares) -> Floats:
        """Weights of a rank that the optimizer updates, if products read others [byte]."""
        own = self.shared("master", shares.optimizer)
        if not np.any(shares.on_replicas):
            return own
        return np.where(shares.on_replicas, self.unsharded("master"), own)

    def state(self, shares: Shares) -> Floats:
        """Optimizer state of a rank, with these [byte]."""
        own = self.shared("state", shares.optimizer)
        if not np.any(shares.on_replicas):
            return own
        return own + self.master(shares) - self.shared("master", shares.optimizer)

    def weights(self, shares: Shares, releases: Bools) -> Floats:
        """Weights of a rank [byte], with quantized copies, unsharded until they are released."""
        resident = self.shared("stored", shares.weights)
        copies = self.unsharded("copies")
        if np.any(copies):
            resident = resident + np.where(releases, 0.0, copies)
        if shares.frozen_only is not None:
            resident = resident + self.shared("frozen", shares.frozen_only)
        return resident


def stage_parameters(costs: ComponentCosts, group: StageGroup) -> tuple[Floats, Floats]:
    """Number of weights on a rank of a stage: dense, and of routed experts."""
    return (
        summed(costs, group.resident, lambda one: one.bytes.parameters),
        summed(costs, group.resident, lambda one: one.bytes.expert_parameters),
    )


def weight_totals(costs: ComponentCosts, group: StageGroup) -> tuple[WeightTotals, WeightTotals]:
    """Memory of the weights of a rank's layers, and of its embedding and head."""
    counts = _counts(costs, group)

    def summed(places: slice, components: Sequence[WeightBytes | None]) -> WeightBytes | None:
        there = [(n, one) for n, one in zip(counts[places], components[places], strict=True) if one]
        if not there:
            return None
        columns = {
            f.name: total((n * getattr(one, f.name) for n, one in there), counts[0])
            for f in fields(WeightBytes)
        }
        return WeightBytes(**columns)

    def at(places: slice) -> WeightTotals:
        dense = summed(places, costs.weights)
        assert dense is not None  # noqa: S101 - every component has weights of its own
        return WeightTotals(dense, summed(places, costs.expert_weights))

    return at(slice(None, -2)), at(slice(-2, None))


def largest_gradients(
    costs: ComponentCosts,
    group: StageGroup,
    shares: tuple[Floats, Floats],
    *,
    of_experts: bool = False,
) -> Floats:
    """A rank's gradients of the component of a stage with the most [byte].

    Parameters
    ----------
    shares
        Share of a rank of gradients: dense, expert.
    of_experts
        Whether to return only those of this component's routed experts.
    """
    most = part = np.zeros_like(costs.memory_rate)
    for count, (one, expert) in zip(_counts(costs, group), _pairs(costs), strict=True):
        if one:
            size = WeightTotals(one, expert).shared("gradients", shares)
            larger = (count > 0) & (size > most)
            most = np.where(larger, size, most)
            if of_experts:
                own = 0.0 if expert is None else expert.gradients * shares[1]
                part = np.where(larger, own, part)
    return part if of_experts else most


def _counts(costs: ComponentCosts, group: StageGroup) -> list[Floats]:
    """How many of each of `ComponentCosts.weights` a rank stores, recomputed or not."""
    kinds = len(costs.kinds)
    both = zip(group.resident[:kinds], group.resident[kinds : 2 * kinds], strict=True)
    return [*(again + plain for again, plain in both), *group.resident[2 * kinds :]]


def _pairs(costs: ComponentCosts) -> Iterator[tuple[WeightBytes | None, WeightBytes | None]]:
    """Dense and expert weights of each component."""
    return zip(costs.weights, costs.expert_weights, strict=True)


def releases(table: Table) -> Bools:
    """Rows that gather weights layer by layer and release them after use."""
    rows: Bools = (table.zero >= ZERO_WEIGHTS) & table.fsdp_reshard
    return rows


def _inverse(table: Table, stage: int) -> tuple[Floats, Floats]:
    """Share of a rank of what a ZeRO stage shards: dense, expert."""
    dense, expert = shards(table, stage)
    return 1 / dense, 1 / expert


def sharded(table: Table) -> tuple[Floats, Floats]:
    """Share of a rank of weights as they are stored: dense, expert."""
    return _inverse(table, ZERO_WEIGHTS)


def _gradients(table: Table, costs: ComponentCosts) -> tuple[Floats, Floats]:
    """Share of a rank of gradients, dense and of experts.

    Those that wait for their reduction unsharded have its type (PyTorch, _fsdp_param.py,
    to_accumulated_grad_if_needed).
    """
    unsharded = (table.zero >= ZERO_GRADIENTS) & ~scatters(table)
    if not np.any(unsharded):
        return _inverse(table, ZERO_GRADIENTS)
    waiting = costs.reduce_bytes / costs.resident_gradient_bytes
    whole = np.where(table.syncs_once, waiting, 1.0)
    dense, expert = (np.where(unsharded, whole, share) for share in _inverse(table, ZERO_GRADIENTS))
    return dense, expert


def scatters(table: Table) -> Bools:
    """Rows whose ranks free the gradients that they do not update, layer by layer."""
    stores_all = table.by_stack(lambda stack: stack.unsharded_gradients)
    rows: Bools = (table.zero >= ZERO_GRADIENTS) & ~table.syncs_once & ~stores_all
    return rows


def gathers_master(table: Table, costs: ComponentCosts) -> Bools:
    """Rows whose trained weights ZeRO 3 gathers from the fp32 copy of the optimizer."""
    split = (table.zero >= ZERO_WEIGHTS) & table.training
    gathers = table.by_stack(lambda stack: stack.gathers_master) & (table.weight_dtype == 0)
    sizes = costs.weight_sizes
    rows: Bools = split & ((gathers & (sizes.master == FP32_BYTES)) | sizes.is_stored)
    return rows


def reduced_bytes(table: Table, costs: ComponentCosts) -> Floats:
    """Size of a gradient as replicas reduce it [byte].

    The type that a stack reduces in is that of ZeRO 2 and 3 (FSDP): DDP reduces gradients as they
    are.
    """
    named = (table.zero >= ZERO_GRADIENTS) | (table.reduce_dtype > 0)
    return np.where(named, costs.reduce_bytes, costs.gradient_bytes)


def updated_weights(table: Table, costs: ComponentCosts, trained: TrainedWeights) -> Floats:
    """Bytes of trained weights that replicas gather after the update [byte]: as they are stored."""
    moved = costs.weight_sizes.moved(trained.weights, trained.quantized)
    whole = unsharded_fp32(table, costs.weight_sizes)
    return np.where(whole, FP32_BYTES * trained.weights, moved)


# Widths squared that the Trainer of transformers fills in for `auto` (transformers 4.38 to 5.24,
# integrations/deepspeed.py).
_REDUCED_SQUARES, _PREFETCHED_SQUARES = 1.0, 0.9


def reduce_bucket(table: Table, costs: ComponentCosts) -> Floats:
    """Gradients that wait in a buffer for their reduction by ZeRO [elements]."""
    size = table.by_stack(lambda stack: stack.reduce_bucket_size)
    return _by_width(table, costs, size, _REDUCED_SQUARES)


def _by_width(table: Table, costs: ComponentCosts, size: Floats, squares: float) -> Floats:
    by_width = table.by_stack(lambda stack: stack.buckets_by_width) & (size > 0)
    return np.where(by_width, squares * costs.hidden**2, size)


def prefetched_bytes(table: Table, costs: ComponentCosts, layer_bytes: Floats) -> Floats:
    """Weights that ZeRO 3 gathers in advance [byte].

    They are `fsdp_prefetch` layers; 1 stands for a bucket where the stack has one, of which no more
    than a layer is counted: the bucket is filled with the weights that come next.

    Parameters
    ----------
    layer_bytes
        Weights of the largest layer of a stage [byte]; shape (n,).
    """
    bucket = table.by_stack(lambda stack: stack.prefetch_bucket_size)
    filled = _by_width(table, costs, bucket, _PREFETCHED_SQUARES) * costs.element_bytes
    one = np.where(bucket > 0, np.minimum(filled, layer_bytes), layer_bytes)
    return np.where(table.fsdp_prefetch == 1, one, table.fsdp_prefetch * layer_bytes)


@dataclass(frozen=True, slots=True)
class Unsharded:
    """Unsharded weights and gradients that ZeRO needs while a component runs [byte].

    From ZeRO 2 on these are the gradients of the component, from ZeRO 3 on also its weights and
    those of the prefetched layers. A tied head reads the embedding table. Where embedding and head
    are gathered together (`Stack.whole_ends`), their weights stay unsharded, and the gradient of a
    head that is trained follows in the type of the weights. DeepSpeed leaves weights gathered that
    are used again soon: at the end of forward the last ones, which backward uses first.
    """

    layer: Floats
    """The largest gradients and the largest weights of any layer."""
    embedding: Floats
    head: Floats
    """Weights alone: there are no gradients before the loss has run backward."""
    head_gradients: Floats

    @classmethod
    def of(cls, table: Table, costs: ComponentCosts, group: StageGroup) -> "Unsharded":
        """Add them up; zeros if no row shards gradients."""
        none = np.zeros_like(costs.memory_rate)
        scattered, released = scatters(table), releases(table)
        if not np.any(scattered | released):
            return cls(none, none, none, none)
        components = [WeightTotals(one, expert) if one else None for one, expert in _pairs(costs)]
        counts = _counts(costs, group)
        in_layers = [(n, one) for n, one in zip(counts[:-2], components[:-2], strict=True) if one]

        def most(name: str) -> Floats:
            sizes = [np.where(count > 0, one.unsharded(name), 0.0) for count, one in in_layers]
            return np.maximum.reduce(sizes)

        limit = np.minimum(
            table.by_stack(lambda stack: stack.max_live_parameters),
            table.by_stack(lambda stack: stack.max_reuse_distance) / 2,
        )
        every = sum(
            count * one.unsharded("stored")
            for count, one in zip(counts, components, strict=True)
            if one
        )
        kept = np.minimum(limit * costs.element_bytes, every)

        def gathered(gradients: Floats, weights: Floats) -> Floats:
            prefetched = np.maximum(weights + ahead, kept)
            return np.where(scattered, gradients, 0.0) + np.where(released, prefetched, 0.0)

        stored = most("stored")
        ahead = prefetched_bytes(table, costs, stored)
        embedding, head = (one.dense for one in components[-2:] if one)
        # An untied head is about as large as the embedding; a tied one stores only a norm.
        tied = (counts[-2] > 0) & (2 * head.stored < embedding.stored)
        of_embedding = embedding.stored
        of_head = head.stored + np.where(tied, of_embedding, 0.0)
        together = released & table.by_stack(lambda stack: stack.whole_ends)
        of_ends = np.where(together, counts[-1] * head.stored, 0.0)
        behind = np.where(head.gradients > 0, of_ends, 0.0)
        ends = np.where(together, counts[-2] * of_embedding, 0.0) + of_ends
        return cls(
            layer=gathered(most("gradients"), stored + most("copies")) + ends + behind,
            embedding=gathered(embedding.gradients, np.where(together, 0.0, of_embedding)) + ends,
            head=gathered(none, np.where(together, 0.0, of_head)) + ends,
            head_gradients=np.where(
                scattered, head.gradients + np.where(tied, embedding.gradients, 0.0), 0.0
            ),
        )
