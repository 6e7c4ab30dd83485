"""Bytes held on one rank of a pipeline stage at its fullest."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, combined, total
from shardwise.blocks import Blocks, layer_bytes, part_bytes, trained_on
from shardwise.cost.block import BlockBytes
from shardwise.cost.optimizer import state_bytes
from shardwise.cost.trained import TrainedWeights
from shardwise.ops.layer import DTYPE_BYTES, stack_column
from shardwise.schedule.in_flight import chunks_in_flight, first_stage_in_flight
from shardwise.stages import StageRun
from shardwise.table import Table

__all__ = [
    "MEMORY_PARTS",
    "Shares",
    "StageMemory",
    "reserved_bytes",
    "shards",
    "stage_memory",
    "stage_parameters",
]

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers")

_FP32_BYTES = DTYPE_BYTES["fp32"]
# Stages of ZeRO (arXiv 1910.02054) from which on these are split.
_ZERO_OPTIMIZER, _ZERO_GRADIENTS, _ZERO_WEIGHTS = 1, 2, 3


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


@dataclass(frozen=True, slots=True)
class _Held:
    """Something that the ranks of a stage hold for each weight, dense and of experts."""

    dense: Floats
    expert: Floats

    @property
    def total(self) -> Floats:
        return self.dense + self.expert

    def times(self, dense: Floats, expert: Floats) -> "_Held":
        return _Held(self.dense * dense, self.expert * expert)


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
    beside_master: tuple[Floats, Floats]
    """What a rank has more of frozen weights, which have no fp32 copy."""

    @classmethod
    def of(cls, table: Table, blocks: Blocks) -> "Shares":
        """Gather them, once for all stages of the pipeline."""
        weights = _inverse(table, _ZERO_WEIGHTS)
        whole = np.where((table.zero >= _ZERO_WEIGHTS) & ~table.fsdp_reshard, 1.0, 0.0)
        from_master = _from_master(table, blocks)
        dense, expert = (whole + np.where(from_master, 0.0, share) for share in weights)
        frozen, frozen_expert = (np.where(from_master, share, 0.0) for share in weights)
        return cls(
            optimizer=_inverse(table, _ZERO_OPTIMIZER),
            gradients=_inverse(table, _ZERO_GRADIENTS),
            weights=(dense, expert),
            beside_master=(frozen, frozen_expert),
        )


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
    training = table.training
    shares = shares or Shares.of(table, blocks)
    counts = {"micro_batches": table.micro_batches, "stages": table.pp, "chunks": table.vpp}
    at = run.first if stage is None else stage
    flying = chunks_in_flight(schedule=table.schedule, stage=at, **counts)
    kept, layers = _in_flight(blocks, run, flying)
    trained = trained_on(blocks, run.held)
    trained_layers = trained_on(blocks, run.held, layers=True)
    trained_ends = (
        combined(np.subtract, trained[0], trained_layers[0]),
        combined(np.subtract, trained[1], trained_layers[1]),
    )
    parameters = _Held(*stage_parameters(blocks, run))
    element, gradient = blocks.element_bytes, blocks.gradient_bytes
    in_layers = _Held(
        layer_bytes(blocks, run.held, lambda held: held.parameters),
        layer_bytes(blocks, run.held, lambda held: held.expert_parameters),
    )
    ends = _Held(parameters.dense - in_layers.dense, parameters.expert - in_layers.expert)
    frozen = [
        _Held(held.dense - some[0].weights, held.expert - some[1].weights)
        for held, some in ((parameters, trained), (in_layers, trained_layers))
    ]
    apart = [held.times(*shares.beside_master).total * element for held in frozen]
    here = _tiers(
        _layer_weights(table, blocks, run, in_layers, shares.weights) + apart[1],
        table.offload_weights,
        run.layers,
    )
    optimizer = _tiers(
        _state(table, blocks, trained_layers, shares), table.offload_optimizer, run.layers
    )
    activations = _tiers(kept, table.offload_activations, layers)

    looked_up = first_stage_in_flight(schedule=table.schedule, **counts)
    held = activations.here + run.held[-2] * blocks.embedding.bytes.saved_bytes * looked_up
    live, part = _live(table, blocks, run)
    copied = np.where(gradient < _FP32_BYTES, _FP32_BYTES, 0.0)
    gradients = _Held(trained[0].weights, trained[1].weights)
    copies = np.where(training, gradients.times(*shares.optimizer).total * copied, 0.0)
    local = gradients.times(*shares.gradients).total
    in_update = copies > held + live
    return StageMemory(
        weights=ends.times(*shares.weights).total * element + apart[0] - apart[1] + here.here,
        gradients=np.where(training, local * gradient, 0.0),
        optimizer=_state(table, blocks, trained_ends, shares) + optimizer.here,
        activations=np.where(in_update, 0.0, held),
        buffers=np.where(in_update, copies, live),
        part=part,
        in_update=in_update,
        offloaded=here.away + activations.away + optimizer.away,
    )


def _layer_weights(
    table: Table,
    blocks: Blocks,
    run: StageRun,
    parameters: _Held,
    shares: tuple[Floats, Floats],
) -> Floats:
    """Bytes of a rank's weights of layers, of which it holds these shares.

    Quantised copies are of whole weights, and last as long as these do.
    """
    sizes = blocks.weight_sizes
    quantized = _Held(
        layer_bytes(blocks, run.held, lambda held: held.quantized_parameters),
        layer_bytes(blocks, run.held, lambda held: held.quantized_expert_parameters),
    )
    stored = _Held(
        sizes.total(parameters.dense, quantized.dense, sizes.stored),
        sizes.total(parameters.expert, quantized.expert, sizes.stored),
    )
    copies = np.where(_releases(table), 0.0, quantized.total * sizes.copies)
    return stored.times(*shares).total + copies


def _releases(table: Table) -> Bools:
    """Rows whose weights are whole for a layer at a time."""
    releases: Bools = (table.zero >= _ZERO_WEIGHTS) & table.fsdp_reshard
    return releases


def _in_flight(
    blocks: Blocks, run: StageRun, flying: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """What layers keep of all micro-batches in flight [byte], and how many layers that is.

    Chunks that are unlike keep each their own number of micro-batches.
    """
    second = [whole - first for whole, first in zip(run.held, run.chunk, strict=False)]
    kept, layers = 0.0 * blocks.memory_rate, 0.0 * blocks.memory_rate
    for counts, number in zip((run.chunk, second), flying, strict=True):
        ends = (blocks.memory_rate * 0.0,) * 2
        here = layer_bytes(blocks, (*counts, *ends), lambda held: held.saved_bytes)
        kept = kept + number * here
        layers = layers + number * sum(counts)
    return kept, layers


def _inverse(table: Table, stage: int) -> tuple[Floats, Floats]:
    """Share of a rank of what a ZeRO stage splits, dense and of experts."""
    dense, expert = shards(table, stage)
    return 1 / dense, 1 / expert


def _state(
    table: Table,
    blocks: Blocks,
    trained: tuple[TrainedWeights, TrainedWeights],
    shares: Shares,
) -> Floats:
    """Optimizer state of a rank for so many weights, without and of routed experts [byte]."""
    dense, expert = (state_bytes(table.optimizer, blocks.element_bytes, one) for one in trained)
    state = _Held(dense, expert).times(*shares.optimizer).total
    return np.where(table.training, state, 0.0)


def _from_master(table: Table, blocks: Blocks) -> Bools:
    """Rows whose trained weights ZeRO 3 gathers from the fp32 copy of the optimizer."""
    split = (table.zero >= _ZERO_WEIGHTS) & table.training
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
    fullest, where = np.full_like(zero, -np.inf), np.zeros(zero.shape, dtype=np.int64)
    shapes, scattered, unsplit, copies = zero, zero, zero, zero
    sizes = blocks.weight_sizes
    embedding, head = len(run.held) - 2, len(run.held) - 1
    for place, count, held in held_here:
        here = count > 0
        over = held.over_bytes
        if place == head:
            over = over + held.saved_bytes
            shapes = shapes + np.where(here, held.gradient_buffer_bytes, 0.0)
        elif place != embedding:
            over = over - _after(run, place, held_here)
            shapes = np.where(here, np.maximum(shapes, held.gradient_buffer_bytes), shapes)
            weights, quantized = held.all_parameters, held.all_quantized_parameters
            reduced = held.trained.weights + held.expert_trained.weights
            scattered = np.where(here, np.maximum(scattered, reduced), scattered)
            whole = sizes.total(weights, quantized, sizes.stored)
            unsplit = np.where(here, np.maximum(unsplit, whole), unsplit)
            copies = np.where(here, np.maximum(copies, quantized * sizes.copies), copies)
        fuller = here & (over > fullest)
        fullest, where = np.where(fuller, over, fullest), np.where(fuller, place, where)
    buffers = stack_column(table, "weight_gradient_buffers") > 0
    beside = np.where(buffers & table.training, shapes, 0.0)
    beside = beside + np.where(table.training, 0.0, blocks.boundary_bytes)
    releases = _releases(table)
    ahead = np.where(releases, 1.0 + table.fsdp_prefetch, 0.0)
    beside = beside + ahead * unsplit + np.where(releases, copies, 0.0)
    scatters = (table.zero >= _ZERO_GRADIENTS) & table.training
    whole = np.where(scatters, scattered * blocks.gradient_bytes, 0.0)
    return np.maximum(fullest, 0.0) + beside + whole, where


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
