"""Bytes held on one rank of a pipeline stage at its fullest."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, total
from shardwise.blocks import Blocks, layer_bytes, part_bytes
from shardwise.cost.block import BlockBytes
from shardwise.cost.weight_bytes import WeightBytes
from shardwise.ops.layer import DTYPE_BYTES, stack_column
from shardwise.schedule.in_flight import chunks_in_flight, first_stage_in_flight
from shardwise.stages import StageRun
from shardwise.strategy import ZERO_GRADIENTS, ZERO_OPTIMIZER, ZERO_WEIGHTS
from shardwise.table import Table

__all__ = [
    "MEMORY_PARTS",
    "Shares",
    "StageMemory",
    "moves",
    "reserved_bytes",
    "shards",
    "stage_memory",
    "stage_parameters",
]

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers")

_FP32_BYTES = DTYPE_BYTES["fp32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What a rank of one stage holds [byte]."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    """Kept between forward and backward of the micro-batches in flight."""
    buffers: Floats
    """Live for a moment: what recompute rebuilds, gradients of activations, logits, gathered
    weights; or, where the update of the weights needs more than forward and backward, its copies
    of gradients."""
    part: Ints
    """The part of the model (see `Blocks.parts`) in which most lives for a moment."""
    in_update: Bools
    """Whether the stage is fullest in the update of the weights."""
    offloaded: Floats
    """In the second memory tier."""

    @property
    def total(self) -> Floats:
        """Everything at once, as the allocator counts it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


def stage_parameters(blocks: Blocks, run: StageRun) -> tuple[Floats, Floats]:
    """Weights on a rank of a stage: without those of routed experts, and those."""
    return (
        part_bytes(blocks, run.held, lambda held: held.parameters),
        part_bytes(blocks, run.held, lambda held: held.expert_parameters),
    )


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
    beside_master: tuple[Floats, Floats] | None
    """What a rank has more of frozen weights, which have no fp32 copy; None where no row has."""

    @classmethod
    def of(cls, table: Table, blocks: Blocks) -> "Shares":
        """Gather them, once for all stages of the pipeline."""
        dense, expert = _inverse(table, ZERO_WEIGHTS)
        whole = np.where((table.zero >= ZERO_WEIGHTS) & ~table.fsdp_reshard, 1.0, 0.0)
        from_master = _from_master(table, blocks)
        frozen = None
        if np.any(from_master):
            frozen = np.where(from_master, dense, 0.0), np.where(from_master, expert, 0.0)
            dense, expert = dense - frozen[0], expert - frozen[1]
        return cls(
            optimizer=_inverse(table, ZERO_OPTIMIZER),
            gradients=_inverse(table, ZERO_GRADIENTS),
            weights=(whole + dense, whole + expert),
            beside_master=frozen,
        )


@dataclass(frozen=True, slots=True)
class _Standing:
    """What the weights of some parts of the model take on a rank, without experts' and theirs."""

    dense: WeightBytes
    expert: WeightBytes | None

    def shared(self, name: str, shares: tuple[Floats, Floats]) -> Floats:
        """A rank's shares of it [byte]."""
        size: Floats = getattr(self.dense, name) * shares[0]
        return size if self.expert is None else size + getattr(self.expert, name) * shares[1]

    def whole(self, name: str) -> Floats:
        """All of it [byte]."""
        size: Floats = getattr(self.dense, name)
        return size if self.expert is None else size + getattr(self.expert, name)

    def weights(self, shares: Shares, releases: Bools) -> Floats:
        """Weights of a rank [byte]; their quantised copies are whole, and last as long as these."""
        held = self.shared("stored", shares.weights)
        copies = self.whole("copies")
        if np.any(copies):
            held = held + np.where(releases, 0.0, copies)
        if shares.beside_master is not None:
            held = held + self.shared("frozen", shares.beside_master)
        return held


def stage_memory(
    table: Table,
    blocks: Blocks,
    run: StageRun,
    stage: Ints | None = None,
    shares: Shares | None = None,
) -> StageMemory:
    """Bytes on a rank of a stage at its fullest: in a backward pass, or in the update.

    ZeRO splits the optimizer state (1), gradients (2) and weights (3) over the replicas. Split
    weights are gathered layer by layer, so many ahead; or stay whole from forward to backward where
    they are not released. Split gradients are whole for one layer.
    Activations: kept bytes of the stage's layers for every micro-batch in flight, and on the first
    stage the embedding's for those whose first chunk is. Buffers: what one micro-batch needs beyond
    that at its fullest moment, in a layer or, on the last stage, in the head with its logits (see
    `cost.walk`); and a buffer for each shape of weights where the stack keeps them. In the
    update no activations are held, but gradients of 16 bits are copied to fp32, each rank its
    shard. Forward only, there are weights, and the working set beside the residual stream.

    Parameters
    ----------
    stage
        Position of the stage; None: the first of the run, which holds most.
    shares
        Those of the table, if they are known already.
    """
    shares = shares or Shares.of(table, blocks)
    counts = {"micro_batches": table.micro_batches, "stages": table.pp, "chunks": table.vpp}
    at = run.first if stage is None else stage
    flying = chunks_in_flight(schedule=table.schedule, stage=at, **counts)
    activations = _activations(table, blocks, run, flying)
    layers, ends = _standing(blocks, run)
    releases = _releases(table)
    here = _tiers(layers.weights(shares, releases), table.offload_weights, run.layers)
    state = layers.shared("state", shares.optimizer)
    optimizer = _tiers(state, table.offload_optimizer, run.layers)

    looked_up = first_stage_in_flight(schedule=table.schedule, **counts)
    held = activations.here + run.held[-2] * blocks.embedding.bytes.saved_bytes * looked_up
    live, part = _live(table, blocks, run)
    local, copies = (
        layers.shared("gradients", share) + ends.shared("gradients", share)
        for share in (shares.gradients, shares.optimizer)
    )
    element = blocks.gradient_bytes
    copies = copies * np.where(element < _FP32_BYTES, _FP32_BYTES / element, 0.0)
    in_update = copies > held + live
    return StageMemory(
        weights=ends.weights(shares, releases) + here.here,
        gradients=local,
        optimizer=ends.shared("state", shares.optimizer) + optimizer.here,
        activations=np.where(in_update, 0.0, held),
        buffers=np.where(in_update, copies, live),
        part=part,
        in_update=in_update,
        offloaded=here.away + activations.away + optimizer.away,
    )


def _standing(blocks: Blocks, run: StageRun) -> tuple[_Standing, _Standing]:
    """What the weights of layers take on a rank, and what those of embedding and head do."""
    counts = _counts(blocks, run)

    def summed(places: slice, parts: Sequence[WeightBytes | None]) -> WeightBytes | None:
        there = [(n, one) for n, one in zip(counts[places], parts[places], strict=True) if one]
        if not there:
            return None
        columns = {
            f.name: total((n * getattr(one, f.name) for n, one in there), counts[0])
            for f in fields(WeightBytes)
        }
        return WeightBytes(**columns)

    def standing(places: slice) -> _Standing:
        dense = summed(places, blocks.weights)
        assert dense is not None  # noqa: S101 - every part has weights of its own
        return _Standing(dense, summed(places, blocks.expert_weights))

    return standing(slice(None, -2)), standing(slice(-2, None))


def _counts(blocks: Blocks, run: StageRun) -> list[Floats]:
    """How many of each part of `Blocks.weights` a rank holds, whether they recompute or not."""
    kinds = len(blocks.kinds)
    both = zip(run.held[:kinds], run.held[kinds : 2 * kinds], strict=True)
    return [*(again + plain for again, plain in both), *run.held[2 * kinds :]]


def _pairs(blocks: Blocks) -> Iterator[tuple[WeightBytes | None, WeightBytes | None]]:
    """What the weights of each part take, without those of routed experts, and those."""
    return zip(blocks.weights, blocks.expert_weights, strict=True)


def _releases(table: Table) -> Bools:
    """Rows whose weights are whole for a layer at a time."""
    releases: Bools = (table.zero >= ZERO_WEIGHTS) & table.fsdp_reshard
    return releases


def _activations(
    table: Table, blocks: Blocks, run: StageRun, flying: tuple[Floats, Floats]
) -> "_Tiers":
    """What layers keep of all micro-batches in flight, and where it is.

    Of the parts that are offloaded two layers are here, of those that keep any of them: so what the
    layer that computes keeps is back by then, as the walk over its operations has it.
    """
    kept = _in_flight(blocks, run, flying, lambda held: held.saved_bytes)
    if not np.any(table.offload_activations):
        return _Tiers(kept, np.zeros_like(kept))
    movable = _in_flight(blocks, run, flying, lambda held: held.movable_bytes)
    layers = _in_flight(blocks, run, flying, moves)
    moved = _tiers(movable, table.offload_activations, layers)
    return _Tiers(kept - movable + moved.here, moved.away)


def moves(held: BlockBytes) -> Floats:
    """1 for a layer of which something is moved where activations are offloaded, else 0."""
    return np.where(held.movable_bytes > 0, 1.0, 0.0)


def _in_flight(
    blocks: Blocks,
    run: StageRun,
    flying: tuple[Floats, Floats],
    select: Callable[[BlockBytes], Floats],
) -> Floats:
    """Add up over the layers of all micro-batches in flight.

    Chunks that are unlike keep each their own number of micro-batches.
    """
    whole = layer_bytes(blocks, run.held, select)
    if flying[0] is flying[1]:
        return flying[0] * whole
    first = layer_bytes(blocks, (*run.chunk, *run.held[-2:]), select)
    return flying[0] * first + flying[1] * (whole - first)


def _inverse(table: Table, stage: int) -> tuple[Floats, Floats]:
    """Share of a rank of what a ZeRO stage splits, dense and of experts."""
    dense, expert = shards(table, stage)
    return 1 / dense, 1 / expert


def _from_master(table: Table, blocks: Blocks) -> Bools:
    """Rows whose trained weights ZeRO 3 gathers from the fp32 copy of the optimizer."""
    split = (table.zero >= ZERO_WEIGHTS) & table.training
    gathers = stack_column(table, "gathers_master") > 0
    rows: Bools = split & gathers & (blocks.element_bytes < _FP32_BYTES)
    return rows


def _live(table: Table, blocks: Blocks, run: StageRun) -> tuple[Floats, Ints]:
    """What lives for a moment beside what layers keep [byte], and in which part of the model most.

    The fullest moment of a part is in the last one of its kind on the stage: what stands after it
    is not kept yet or any more.
    """
    held_here = [
        (place, count, part.bytes)
        for place, (count, part) in enumerate(zip(run.held, blocks.parts, strict=True))
        if part is not None
    ]
    zero = np.zeros_like(blocks.memory_rate)
    whole = _Whole.of(table, blocks, run)
    fullest, where = np.full_like(zero, -np.inf), np.zeros(zero.shape, dtype=np.int64)
    shapes = zero
    embedding, head = len(run.held) - 2, len(run.held) - 1
    for place, count, held in held_here:
        here = count > 0
        over = held.over_bytes
        if place == head:
            over = over + held.saved_bytes + whole.head
            shapes = shapes + np.where(here, held.gradient_buffer_bytes, 0.0)
        elif place == embedding:
            over = over + whole.embedding
        else:
            over = over - _after(run, place, held_here) + whole.layer
            shapes = np.where(here, np.maximum(shapes, held.gradient_buffer_bytes), shapes)
        fuller = here & (over > fullest)
        fullest, where = np.where(fuller, over, fullest), np.where(fuller, place, where)
    buffers = stack_column(table, "weight_gradient_buffers") > 0
    beside = np.where(buffers & table.training, shapes, 0.0)
    beside = beside + np.where(table.training, 0.0, blocks.boundary_bytes)
    return np.maximum(fullest, 0.0) + beside, where


@dataclass(frozen=True, slots=True)
class _Whole:
    """What ZeRO has split and a rank holds whole while a part is at work [byte].

    From stage 2 on the gradients of the part, from 3 on its weights, and those of so many layers
    ahead. A tied head works with the embedding's table.
    """

    layer: Floats
    """Of the layer that has most of each."""
    embedding: Floats
    head: Floats

    @classmethod
    def of(cls, table: Table, blocks: Blocks, run: StageRun) -> "_Whole":
        """Gather it; nothing where no row splits gradients."""
        none = np.zeros_like(blocks.memory_rate)
        scatters, releases = table.zero >= ZERO_GRADIENTS, _releases(table)
        if not np.any(scatters):
            return cls(none, none, none)
        parts = [_Standing(one, expert) if one else None for one, expert in _pairs(blocks)]
        counts = _counts(blocks, run)
        in_layers = [(n, one) for n, one in zip(counts[:-2], parts[:-2], strict=True) if one]

        def most(name: str) -> Floats:
            sizes = [np.where(count > 0, one.whole(name), 0.0) for count, one in in_layers]
            return np.maximum.reduce(sizes)

        def whole(gradients: Floats, weights: Floats) -> Floats:
            later = weights + table.fsdp_prefetch * stored
            return np.where(scatters, gradients, 0.0) + np.where(releases, later, 0.0)

        stored = most("stored")
        embedding, head = (one.dense for one in parts[-2:] if one)
        # A head with a table of its own has about as much, a tied one a norm.
        tied = (counts[-2] > 0) & (2 * head.stored < embedding.stored)
        return cls(
            layer=whole(most("gradients"), stored + most("copies")),
            embedding=whole(embedding.gradients, embedding.stored),
            head=whole(
                head.gradients + np.where(tied, embedding.gradients, 0.0),
                head.stored + np.where(tied, embedding.stored, 0.0),
            ),
        )


def _after(
    run: StageRun, place: int, parts: Sequence[tuple[int, Floats, BlockBytes]]
) -> Floats | float:
    """What layers of other kinds keep that stand after the last one of a kind [byte]."""
    counts = run.after[:, place].T
    kept = [counts[other] * held.saved_bytes for other, _, held in parts if other < len(counts)]
    return total(kept, run.length) if len(kept) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class _Tiers:
    """Bytes in the first and in the second memory tier."""

    here: Floats
    away: Floats


def _tiers(size: Floats, offloaded: Bools, layers: Floats) -> _Tiers:
    """Where bytes of so many layers are: all of them here, or all of them away and two here.

    The two are the layer that computes and the one in transit.
    """
    two = size * np.minimum(1.0, 2.0 / np.maximum(layers, 1.0))
    return _Tiers(np.where(offloaded, two, size), np.where(offloaded, size, 0.0))


def reserved_bytes(total: Floats, *, slack: Floats, runtime_memory: Floats) -> Floats:
    """What the accelerator's memory must hold: the allocator's blocks and the runtime's own."""
    return total * slack + runtime_memory
