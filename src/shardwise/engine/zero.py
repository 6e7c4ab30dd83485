"""What the weights of a stage take: shares under ZeRO, and what is whole for a moment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from shardwise.arrays import Bools, Floats, total
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_OPTIMIZER, ZERO_WEIGHTS
from shardwise.config.strategy_table import Table
from shardwise.cost.component_costs import ComponentCosts
from shardwise.cost.layer_cost import WeightBytes
from shardwise.ops.operation import FP32_BYTES
from shardwise.parallel.pipeline_layout import StageGroup

__all__ = [
    "Shares",
    "Unsharded",
    "WeightTotals",
    "releases",
    "shards",
    "splits_last",
    "weight_totals",
]


def shards(table: Table, stage: int) -> tuple[Floats, Floats]:
    """Ranks that split what a ZeRO stage splits: of all weights but experts', and of experts'.

    1 in rows of a lower stage. Hybrid sharding splits among a part of the replicas.
    """
    split = table.zero >= stage
    share = table.shard_share
    return (
        np.where(split, np.maximum(table.replicas * share, 1.0), 1.0),
        np.where(split, np.maximum(table.expert_replicas * share, 1.0), 1.0),
    )


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a rank of what each stage of ZeRO splits, dense and of experts; and of weights."""

    optimizer: tuple[Floats, Floats]
    gradients: tuple[Floats, Floats]
    weights: tuple[Floats, Floats]
    """Of trained ones. Weights that are gathered from the optimizer's copy have no shard of their
    own; where they are not released after forward, they are whole."""
    frozen_only: tuple[Floats, Floats] | None
    """What a rank has more of frozen weights, which have no fp32 copy; None where no row has."""

    @classmethod
    def of(cls, table: Table, costs: ComponentCosts) -> "Shares":
        """Gather them, once for all stages of the pipeline."""
        dense, expert = _inverse(table, ZERO_WEIGHTS)
        unsharded = np.where((table.zero >= ZERO_WEIGHTS) & ~table.fsdp_reshard, 1.0, 0.0)
        from_master = _from_master(table, costs)
        frozen = None
        if np.any(from_master):
            frozen = np.where(from_master, dense, 0.0), np.where(from_master, expert, 0.0)
            dense, expert = dense - frozen[0], expert - frozen[1]
        return cls(
            optimizer=_inverse(table, ZERO_OPTIMIZER),
            gradients=_gradients(table),
            weights=(unsharded + dense, unsharded + expert),
            frozen_only=frozen,
        )


@dataclass(frozen=True, slots=True)
class WeightTotals:
    """What the weights of some parts of the model take on a rank, without experts' and theirs."""

    dense: WeightBytes
    expert: WeightBytes | None

    def shared(self, name: str, shares: tuple[Floats, Floats]) -> Floats:
        """A rank's shares of it [byte]."""
        size: Floats = getattr(self.dense, name) * shares[0]
        return size if self.expert is None else size + getattr(self.expert, name) * shares[1]

    def unsharded(self, name: str) -> Floats:
        """All of it [byte]."""
        size: Floats = getattr(self.dense, name)
        return size if self.expert is None else size + getattr(self.expert, name)

    def weights(self, shares: Shares, releases: Bools) -> Floats:
        """Weights of a rank [byte]; their quantised copies are whole, and last as long as these."""
        held = self.shared("stored", shares.weights)
        copies = self.unsharded("copies")
        if np.any(copies):
            held = held + np.where(releases, 0.0, copies)
        if shares.frozen_only is not None:
            held = held + self.shared("frozen", shares.frozen_only)
        return held


def weight_totals(costs: ComponentCosts, group: StageGroup) -> tuple[WeightTotals, WeightTotals]:
    """What the weights of layers take on a rank, and what those of embedding and head do."""
    counts = _counts(costs, group)

    def summed(places: slice, parts: Sequence[WeightBytes | None]) -> WeightBytes | None:
        there = [(n, one) for n, one in zip(counts[places], parts[places], strict=True) if one]
        if not there:
            return None
        columns = {
            f.name: total((n * getattr(one, f.name) for n, one in there), counts[0])
            for f in fields(WeightBytes)
        }
        return WeightBytes(**columns)

    def at(places: slice) -> WeightTotals:
        dense = summed(places, costs.weights)
        assert dense is not None  # noqa: S101 - every part has weights of its own
        return WeightTotals(dense, summed(places, costs.expert_weights))

    return at(slice(None, -2)), at(slice(-2, None))


def _counts(costs: ComponentCosts, group: StageGroup) -> list[Floats]:
    """How many of each of `ComponentCosts.weights` a rank holds, recomputed or not."""
    kinds = len(costs.kinds)
    both = zip(group.resident[:kinds], group.resident[kinds : 2 * kinds], strict=True)
    return [*(again + plain for again, plain in both), *group.resident[2 * kinds :]]


def _pairs(costs: ComponentCosts) -> Iterator[tuple[WeightBytes | None, WeightBytes | None]]:
    """What the weights of each part take, without those of routed experts, and those."""
    return zip(costs.weights, costs.expert_weights, strict=True)


def releases(table: Table) -> Bools:
    """Rows whose weights are whole for a layer at a time."""
    rows: Bools = (table.zero >= ZERO_WEIGHTS) & table.fsdp_reshard
    return rows


def _inverse(table: Table, stage: int) -> tuple[Floats, Floats]:
    """Share of a rank of what a ZeRO stage splits, dense and of experts."""
    dense, expert = shards(table, stage)
    return 1 / dense, 1 / expert


def _gradients(table: Table) -> tuple[Floats, Floats]:
    """Share of a rank of gradients, dense and of experts."""
    unsharded = splits_last(table)
    if not np.any(unsharded):
        return _inverse(table, ZERO_GRADIENTS)
    dense, expert = (np.where(unsharded, 1.0, share) for share in _inverse(table, ZERO_GRADIENTS))
    return dense, expert


def splits_last(table: Table) -> Bools:
    """Rows whose gradients are split with the last micro-batch of a step alone."""
    rows: Bools = table.by_stack(lambda stack: stack.whole_gradients) & (table.pp > 1)
    return rows


def _from_master(table: Table, costs: ComponentCosts) -> Bools:
    """Rows whose trained weights ZeRO 3 gathers from the fp32 copy of the optimizer."""
    split = (table.zero >= ZERO_WEIGHTS) & table.training
    gathers = table.by_stack(lambda stack: stack.gathers_master)
    rows: Bools = split & gathers & (costs.element_bytes < FP32_BYTES)
    return rows


@dataclass(frozen=True, slots=True)
class Unsharded:
    """What ZeRO has split and a rank holds whole while a part is at work [byte].

    From stage 2 on the gradients of the part, from 3 on its weights, and those of so many layers
    ahead. A tied head works with the embedding's table. Where embedding and head are gathered as
    one (`Stack.whole_ends`) their weights are whole all the time, and the head's gradient in their
    type behind it.
    """

    layer: Floats
    """Of the layer that has most of each."""
    embedding: Floats
    head: Floats

    @classmethod
    def of(cls, table: Table, costs: ComponentCosts, group: StageGroup) -> "Unsharded":
        """Gather it; nothing where no row splits gradients."""
        none = np.zeros_like(costs.memory_rate)
        scatters, released = (table.zero >= ZERO_GRADIENTS) & ~splits_last(table), releases(table)
        if not np.any(scatters | released):
            return cls(none, none, none)
        parts = [WeightTotals(one, expert) if one else None for one, expert in _pairs(costs)]
        counts = _counts(costs, group)
        in_layers = [(n, one) for n, one in zip(counts[:-2], parts[:-2], strict=True) if one]

        def most(name: str) -> Floats:
            sizes = [np.where(count > 0, one.unsharded(name), 0.0) for count, one in in_layers]
            return np.maximum.reduce(sizes)

        def unsharded(gradients: Floats, weights: Floats) -> Floats:
            later = weights + table.fsdp_prefetch * stored
            return np.where(scatters, gradients, 0.0) + np.where(released, later, 0.0)

        stored = most("stored")
        embedding, head = (one.dense for one in parts[-2:] if one)
        # A head with a table of its own has about as much, a tied one a norm.
        tied = (counts[-2] > 0) & (2 * head.stored < embedding.stored)
        of_embedding = embedding.stored
        of_head = head.stored + np.where(tied, of_embedding, 0.0)
        together = released & table.by_stack(lambda stack: stack.whole_ends)
        behind = np.where(together, counts[-1] * head.stored, 0.0)
        ends = np.where(together, counts[-2] * of_embedding, 0.0) + behind
        return cls(
            layer=unsharded(most("gradients"), stored + most("copies")) + ends + behind,
            embedding=unsharded(embedding.gradients, np.where(together, 0.0, of_embedding)) + ends,
            head=unsharded(
                head.gradients + np.where(tied, embedding.gradients, 0.0),
                np.where(together, 0.0, of_head),
            )
            + ends,
        )
