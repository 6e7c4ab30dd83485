"""Collectives among the replicas of a stage: what is sent among whom."""

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.enums import ZERO_OPTIMIZER, Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.cost.component_costs import ComponentCosts
from shardwise.cost.optimizer import MUON, TrainedWeights
from shardwise.engine.critical_stage import LargestStage
from shardwise.ops.embedding import vocabulary_share
from shardwise.ops.layer import rank_work
from shardwise.ops.lora import Subset
from shardwise.ops.operation import CollectiveKind
from shardwise.parallel.placement import Extents

Pieces = list[tuple[CollectiveKind, Floats, Ints]]
"""Collectives one after the other: kind, buffer [byte] of shape (n,), extents (tiers, n)."""

_NEWTON_SCHULZ_BYTES = 2  # bf16 (arXiv 2502.16982, section 2.3)


def unhidden_collectives(
    model: Model, table: Table, extents: Extents, largest: LargestStage, costs: ComponentCosts
) -> dict[str, Pieces]:
    """Collectives once per step that no compute hides, by name in `ReplicaCommunication`.

    Parameters
    ----------
    model
        Architecture.
    table
        Strategies of n rows.
    extents
        Placement of each axis; shape (tiers, n).
    largest
        Weights of the stage that has most; columns of shape (n,).
    costs
        Sizes of weights and gradients; columns of shape (n,).
    """
    parts = {}
    if np.any(table.optimizer == MUON):
        parts["momenta"] = _completed_matrices(table, extents, largest)
    if np.any(table.schedule == Schedule.DUALPIPE.code):
        parts["mirrors"] = _between_mirrors(table, extents, largest, costs)
    if model.tied_embeddings or model.mtp:
        parts["embeddings"] = _copied_embeddings(model, table, extents, costs.gradient_bytes)
    return parts


def replica_collectives(
    table: Table, extents: Extents, largest: LargestStage, costs: ComponentCosts
) -> dict[str, Pieces]:
    """Collectives of gradients and of weights: of dense ones, then of routed experts.

    Each is one collective of all weights that the largest stage trains. Gradients are also added up
    among the groups of hybrid sharding, each after the sum within the groups.

    Parameters
    ----------
    table
        Strategies; a table of one row.
    extents
        Placement of each axis; shape (tiers, 1).
    largest
        Weights of the stage that has most; columns of shape (1,).
    costs
        Sizes of weights and gradients; columns of shape (1,).
    """
    sharded = table.zero[0] >= ZERO_OPTIMIZER
    kind = CollectiveKind.REDUCE_SCATTER if sharded else CollectiveKind.ALL_REDUCE
    between = between_shards(table, extents, largest, costs.gradient_bytes)
    gradients: Pieces = []
    weights: Pieces = []
    for (trained, replicas), after in zip(replica_groups(largest, extents), between, strict=True):
        shard = shard_extents(table, replicas)
        gradients += [(kind, trained.weights * costs.gradient_bytes, shard), after]
        moved = costs.weight_sizes.moved(trained.weights, trained.quantized)
        weights.append((CollectiveKind.ALL_GATHER, moved, shard))
    return {"gradients": gradients, "weights": weights}


def replica_groups(
    largest: LargestStage, extents: Extents
) -> tuple[tuple[TrainedWeights, Ints], ...]:
    """Trained weights without routed experts, and those of routed experts, with their replicas."""
    return (largest.trained, extents.replicas), (largest.expert_trained, extents.edp)


def shard_extents(table: Table, replicas: Ints) -> Ints:
    """Extents of the replicas that share one set of shards, the inner part of all of them."""
    members = np.maximum(replicas[-1] * table.shard_share, 1.0).astype(np.int64)
    return np.gcd(replicas, members)


def between_shards(
    table: Table, extents: Extents, largest: LargestStage, gradient_bytes: Floats
) -> Pieces:
    """Adding up gradient shards among the groups of hybrid sharding, once per step.

    Parameters
    ----------
    table
        Strategies of n rows.
    extents
        Placement of each axis; shape (tiers, n).
    largest
        Weights of the stage that has most; columns of shape (n,).
    gradient_bytes
        Size of a gradient [byte]; shape (n,).
    """
    pieces: Pieces = []
    for trained, replicas in replica_groups(largest, extents):
        shard = shard_extents(table, replicas)
        buffer = np.where(table.training, trained.weights * gradient_bytes / shard[-1], 0.0)
        pieces.append((CollectiveKind.ALL_REDUCE, buffer, replicas // shard))
    return pieces


def _between_mirrors(
    table: Table, extents: Extents, largest: LargestStage, costs: ComponentCosts
) -> Pieces:
    """Adding up gradients with the mirrored rank of DualPipe, once per step.

    Ranks i and p - 1 - i share both stages: an all-reduce, in pairs across the pipeline, of the
    gradients that the replicas have reduced before. Compute does not hide it.
    """
    pair = _ends_of_pipeline(table, extents)
    rows = table.training & (table.schedule == Schedule.DUALPIPE.code)
    return [
        (
            CollectiveKind.ALL_REDUCE,
            np.where(rows, trained.weights * costs.gradient_bytes / replicas[-1], 0.0),
            pair,
        )
        for trained, replicas in replica_groups(largest, extents)
    ]


def _ends_of_pipeline(table: Table, extents: Extents) -> Ints:
    """Extents of a pair of ranks as far apart as the first and the last stage."""
    pair = np.where(extents.pp >= table.pp, 2, 1)
    pair[-1] = 2
    return pair


def _completed_matrices(table: Table, extents: Extents, largest: LargestStage) -> Pieces:
    """Gathering momenta for Muon's iterations, which need full matrices, once per step.

    All-gather of 2 bytes for each weight of a matrix among the ranks that share the optimizer
    state, before the update; compute does not hide it. An upper bound: all matrices count as split,
    at most 1.25 times AdamW's bytes where gradients and weights are communicated in fp32 (arXiv
    2502.16982, section 2.3). Ranks whose share is many full matrices need less.
    """
    splits = (table.optimizer == MUON) & (table.zero >= ZERO_OPTIMIZER) & table.training
    return [
        (
            CollectiveKind.ALL_GATHER,
            np.where(splits, trained.matrices * _NEWTON_SCHULZ_BYTES, 0.0),
            shard_extents(table, replicas),
        )
        for trained, replicas in replica_groups(largest, extents)
    ]


def _copied_embeddings(
    model: Model, table: Table, extents: Extents, gradient_bytes: Floats
) -> Pieces:
    """Adding up the gradients of both copies of the embedding.

    The last stage has one for a tied head, or for multi-token prediction.
    """
    several = (table.pp > 1) & table.training & ~table.joins_ends
    several &= ~Subset.of(table).freezes("head" if model.tied_embeddings else "embedding")
    rows = vocabulary_share(model, rank_work(table))
    copied = np.where(several, rows * model.hidden / table.tp2, 0.0)
    pair = _ends_of_pipeline(table, extents)
    return [(CollectiveKind.ALL_REDUCE, copied * gradient_bytes, pair)]
