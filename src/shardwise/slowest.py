"""The stage that the others wait for, the one that holds most, and what passes between stages."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.blocks import Blocks
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.memory import stage_parameters
from shardwise.model import Model
from shardwise.ops.layer import stack_column
from shardwise.ops.operation import CollectiveKind
from shardwise.placement import Extents
from shardwise.stages import layers_on
from shardwise.strategy import TP_EXCHANGES
from shardwise.system import System
from shardwise.table import Table

__all__ = ["Boundary", "SlowestStage", "boundary_of", "largest_stage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestStage:
    """What stands on the stage that the others wait for: the first or the last."""

    blocks: Blocks
    layers: Floats
    """Share of all layers."""
    embedding: Floats
    """1 or 0."""
    head: Floats

    @classmethod
    def of(cls, model: Model, table: Table, blocks: Blocks) -> "SlowestStage":
        """Compare the first stage, which has most layers, with the last, which has the head."""
        alone = table.pp == 1
        ends = np.zeros_like(table.pp), table.pp - 1
        first, last = (layers_on(model.depth, table.pp, stage) / model.depth for stage in ends)
        time_s = blocks.layers.time_s
        is_first = first * time_s + blocks.embedding.time_s > last * time_s + blocks.head.time_s
        return cls(
            blocks=blocks,
            layers=np.where(is_first, first, last),
            embedding=np.where(alone | is_first, 1.0, 0.0),
            head=np.where(alone | ~is_first, 1.0, 0.0),
        )

    def on(self, name: str) -> Floats:
        """One micro-batch on this stage."""
        layers, embedding, head = (
            getattr(block, name)
            for block in (self.blocks.layers, self.blocks.embedding, self.blocks.head)
        )
        here: Floats = self.layers * layers + self.embedding * embedding + self.head * head
        return here

    def elsewhere(self, name: str) -> Floats:
        """One micro-batch on all other stages."""
        layers, embedding, head = (
            getattr(block, name)
            for block in (self.blocks.layers, self.blocks.embedding, self.blocks.head)
        )
        there: Floats = (
            (1 - self.layers) * layers + (1 - self.embedding) * embedding + (1 - self.head) * head
        )
        return there


def largest_stage(model: Model, table: Table, blocks: Blocks) -> Floats:
    """Weights on a rank of the stage that holds most: the first or the last."""
    held = [
        stage_parameters(
            blocks.layers,
            blocks.embedding,
            blocks.head,
            depth=model.depth,
            stages=table.pp,
            stage=stage,
        )
        for stage in (np.zeros_like(table.pp), table.pp - 1)
    ]
    return np.maximum(*held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One micro-batch handed from a stage to the next by one rank."""

    handed_bytes: Floats
    """0 on a single stage."""
    message_s: Floats
    """Over the tier that the stages span [s]."""
    around_s: Floats
    """Exchanges among the tensor-parallel ranks for it, less those it saves [s]."""
    hidden: Floats
    """Share of the transfers that travels beside the compute: only where stages interleave."""

    @property
    def time_s(self) -> Floats:
        """All of it [s]."""
        return np.maximum(0.0, self.message_s + self.around_s)


def boundary_of(system: System, table: Table, extents: Extents, blocks: Blocks) -> Boundary:
    """Hand a micro-batch to the next stage.

    Without sequence parallelism every tensor-parallel rank holds the whole activation A and hands
    over all of it, or 1/tp of it that the receiving ranks gather (arXiv 2104.04473, section 4.1).
    The exchange p2p_rs_ag also scatters the last sum of a stage instead of reducing it in place:
    transfer of A / tp + all-gather + e (reduce-scatter - all-reduce), where the share e of the
    layers' exchanges is exposed.
    """
    whole = np.where(table.pp > 1, blocks.boundary_bytes, 0.0)
    at_edges = table.tp_exchange == TP_EXCHANGES.index("p2p_rs_ag")
    splits = at_edges | (stack_column(table, "pp_scatter_gather") > 0)
    splits &= (table.tp > 1) & ~table.sequence_parallel

    def exchange(kind: CollectiveKind, rows: Bools) -> Floats:
        return collective_time(system, kind, np.where(rows, whole, 0.0), extents.tp)

    around = exchange(CollectiveKind.ALL_GATHER, splits)
    if np.any(at_edges):
        alone = blocks.layers.tp_forward_s
        share = blocks.layers.tp_forward_exposed_s / np.where(alone > 0, alone, 1.0)
        scattered = exchange(CollectiveKind.REDUCE_SCATTER, splits & at_edges)
        around += share * (scattered - exchange(CollectiveKind.ALL_REDUCE, splits & at_edges))
    handed = np.where(splits, whole / table.tp, whole)
    return Boundary(
        handed_bytes=handed,
        message_s=transfer_time(system, handed, extents.pp),
        around_s=around,
        hidden=np.where(table.vpp > 1, stack_column(table, "pp_hidden"), 0.0),
    )
