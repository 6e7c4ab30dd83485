"""When every pass of every micro-batch runs, and which message it waits for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from shardwise.analysis.stages import costs_by_pass
from shardwise.arrays import Bools, Floats, Ints, total
from shardwise.config.strategy_fields import COMM_AXES
from shardwise.cost.component_costs import ComponentCosts, summed
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.memory import moves, stage_memory
from shardwise.parallel.pipeline_layout import StageGroup
from shardwise.parallel.schedule.orders import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Action,
    chunks_of,
    orders,
    stage_of,
    virtual_stages,
)
from shardwise.parallel.schedule.simulate import simulate

WAITS = (*COMM_AXES, "offload")
"""What passes wait for besides kernels: collectives of these axes, and offloading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One kind of pass of one micro-batch: one value per virtual stage."""

    kernels_s: Mapping[str, Floats]
    """By purpose: forward, recompute, backward, weight_gradients [s]."""
    exposed_s: Mapping[str, Floats]
    """By `WAITS`, exposed [s]."""
    hidden_s: Mapping[str, Floats]
    """By `WAITS`, hidden behind kernels [s]."""
    transient_bytes: Floats
    """Peak of temporary tensors, in addition to saved activations [byte]."""

    @property
    def compute_s(self) -> Floats:
        """All kernels [s]."""
        return total(self.kernels_s.values(), self.transient_bytes)

    @property
    def time_s(self) -> Floats:
        """Kernels and exposed waits [s]."""
        return self.compute_s + total(self.exposed_s.values(), self.transient_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePasses:
    """Passes through every virtual stage, in the order of the model."""

    of: Mapping[str, Pass]
    """By kind: F; B without weight gradients; W, the weight gradients."""
    saved_bytes: Floats
    """Activations that the layers save from forward to backward, for a micro-batch [byte]."""
    movable_bytes: Floats
    """Those of them that are moved where activations are offloaded [byte]."""
    embedding_bytes: Floats
    """Saved by the embedding [byte]."""
    moving_layers: Floats
    """Number of layers that have any of `movable_bytes`."""


def stage_passes(evaluation: Evaluation, stages: StageGroup) -> StagePasses:
    """Return the passes of a table of one row through every virtual stage."""
    blocks = evaluation.step.costs
    forward_peak, backward_peak = _transient_bytes(evaluation, stages)

    def time(name: str) -> Floats:
        return summed(blocks, stages.work, attrgetter(f"times.{name}"))

    gradients = time("weight_grad_s")
    zero = np.zeros_like(gradients)
    forward = Pass(
        kernels_s={"forward": time("forward_s")},
        **_waits(blocks, stages, "forward"),
        transient_bytes=forward_peak,
    )
    backward = Pass(
        kernels_s={
            "recompute": time("recompute_s"),
            "backward": time("backward_s") - gradients,
        },
        **_waits(blocks, stages, "backward"),
        transient_bytes=backward_peak,
    )
    weights = Pass(
        kernels_s={"weight_gradients": gradients},
        exposed_s=dict.fromkeys(WAITS, zero),
        hidden_s=dict.fromkeys(WAITS, zero),
        transient_bytes=zero,
    )
    return StagePasses(
        of={FORWARD: forward, BACKWARD: backward, WEIGHTS: weights},
        saved_bytes=summed(blocks, stages.work, lambda one: one.bytes.saved_bytes, layers=True),
        movable_bytes=summed(blocks, stages.work, lambda one: one.bytes.movable_bytes, layers=True),
        embedding_bytes=stages.resident[-2] * blocks.embedding.bytes.saved_bytes,
        moving_layers=summed(blocks, stages.work, lambda one: moves(one.bytes), layers=True),
    )


def _waits(
    blocks: ComponentCosts, stages: StageGroup, direction: str
) -> dict[str, dict[str, Floats]]:
    """Waits of one direction, exposed and hidden."""

    def of(name: str, axis: str) -> Floats:
        return summed(blocks, stages.work, attrgetter(f"times.{name}_{direction}_s.{axis}"))

    def link(name: str) -> Floats:
        return summed(blocks, stages.work, attrgetter(f"times.{name}"))

    exposed = {axis: of("exposed", axis) for axis in COMM_AXES}
    exposed["offload"] = link(f"offload_{direction}_exposed_s")
    alone = {axis: of("alone", axis) for axis in COMM_AXES}
    alone["offload"] = link(f"offload_{direction}_s")
    # Overlapped collectives slow kernels down; that counts as exposed, so it may exceed the rest.
    hidden = {name: np.maximum(0.0, alone[name] - exposed[name]) for name in WAITS}
    return {"exposed_s": exposed, "hidden_s": hidden}


def _transient_bytes(evaluation: Evaluation, stages: StageGroup) -> tuple[Floats, Floats]:
    """Peak of temporary tensors in a forward and in a backward pass [byte]."""
    table, first = evaluation.step.table, np.zeros_like(stages.first)
    costs = evaluation.step.costs
    forward, backward = costs_by_pass(table, costs, evaluation.parts, with_ends=False)
    return (
        stage_memory(table, forward, stages, first, phase="forward").buffers,
        stage_memory(table, backward, stages, first, phase="backward").buffers,
    )


KINDS = (FORWARD, BACKWARD, WEIGHTS)
FORWARD_CODE, BACKWARD_CODE, WEIGHTS_CODE = range(len(KINDS))

# Rank, kind, micro-batch and chunk of every action.
_Order = list[tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Layout and schedule that micro-batches pass through."""

    schedule: str
    ranks: int
    chunks: int
    """Interleaved chunks per rank, v; 1 in other schedules."""
    micro_batches: int
    training: bool
    hop_s: float
    """Time of a message from rank to rank [s]."""
    hop_hidden: float
    """Share of it that overlaps with compute; the rest occupies the receiving rank."""

    @property
    def chunks_on_rank(self) -> int:
        """Virtual stages on a rank."""
        return chunks_of(self.schedule, self.chunks)

    @property
    def stage_of_chunk(self) -> Ints:
        """Virtual stage of every rank and chunk."""
        count = range(self.chunks_on_rank)
        return np.array(
            [
                [stage_of(self.schedule, rank=i, chunk=c, ranks=self.ranks) for c in count]
                for i in range(self.ranks)
            ]
        )

    @property
    def stages(self) -> int:
        """Virtual stages that a micro-batch passes."""
        return virtual_stages(self.schedule, ranks=self.ranks, chunks=self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Passes, one value each, rank by rank in the order of execution."""

    rank: Ints
    kind: Ints
    """Position in `KINDS`."""
    micro_batch: Ints
    chunk: Ints
    stage: Ints
    """Virtual stage."""
    has_weight_grads: Bools
    """Whether a backward computes weight gradients too, so that no later action does."""
    paired: Bools
    """Whether a forward runs at the same time as the next action, a backward."""
    start_s: Floats
    end_s: Floats
    source: Ints
    """The action whose result it waits for, -1 for none."""
    far: Bools
    """Whether that is another rank's, so that a message brings it."""
    waited_s: Floats
    """Time for which this message occupies the rank; messages of a pair are sequential."""

    def __len__(self) -> int:
        return len(self.rank)


def run(pipeline: Pipeline, passes: StagePasses) -> Actions:
    """Run one step through the event simulation.

    Where a share h of messages overlaps with compute, the step is simulated once with overlapped
    and once with blocking messages, and times are weighted by h and 1 - h, as in the closed form.
    Both simulations have the same orders, so the result is a valid step in which a message
    occupies a rank for 1 - h of its time: no action starts before its input arrives.
    """
    h = pipeline.hop_hidden if pipeline.hop_s > 0 and pipeline.ranks > 1 else 1.0
    order: _Order = []
    starts = ends = np.zeros(1)
    for share, blocking in ((h, False), (1 - h, True)):
        if share > 0:
            order, start, end = _simulated(pipeline, passes, blocking=blocking)
            starts, ends = starts + share * start, ends + share * end
    rank, kind, micro_batch, chunk = (np.array(column) for column in zip(*order, strict=True))
    stage = pipeline.stage_of_chunk[rank, chunk]
    source = _sources(pipeline, kind, stage, micro_batch)
    far = (source >= 0) & (rank[source] != rank)
    following = np.arange(1, len(rank) + 1) % len(rank)
    # Whether there is an action W for this stage and micro-batch.
    later = np.zeros((pipeline.stages, pipeline.micro_batches), dtype=np.bool_)
    later[stage[kind == WEIGHTS_CODE], micro_batch[kind == WEIGHTS_CODE]] = True
    return Actions(
        rank=rank,
        kind=kind,
        micro_batch=micro_batch,
        chunk=chunk,
        stage=stage,
        has_weight_grads=(kind == BACKWARD_CODE) & ~later[stage, micro_batch],
        paired=(kind == FORWARD_CODE)
        & (kind[following] == BACKWARD_CODE)
        & (rank[following] == rank)
        & (starts[following] == starts)
        & (ends[following] == ends)
        & (pipeline.schedule == "dualpipe"),
        start_s=starts,
        end_s=ends,
        source=source,
        far=far,
        waited_s=np.where(far, (1 - h) * pipeline.hop_s, 0.0),
    )


def _simulated(
    pipeline: Pipeline, passes: StagePasses, *, blocking: bool
) -> tuple[_Order, Floats, Floats]:
    """Every action, its start and its end [s]."""
    forward, backward, weights = (passes.of[kind].time_s.tolist() for kind in KINDS)
    if not pipeline.training:
        return _forward_only(pipeline, forward, blocking=blocking)
    done = simulate(
        pipeline.schedule,
        ranks=pipeline.ranks,
        micro_batches=pipeline.micro_batches,
        chunks=pipeline.chunks,
        forward_s=forward,
        input_grad_s=backward,
        weight_grad_s=weights,
        hop_s=pipeline.hop_s,
        blocking=blocking,
    )
    columns = (
        done.rank.tolist(),
        [KINDS.index(kind) for kind in done.kind],
        done.micro_batch.tolist(),
        done.chunk.tolist(),
    )
    return list(zip(*columns, strict=True)), done.start_s, done.end_s


def _forward_only(
    pipeline: Pipeline, forward_s: Sequence[float], *, blocking: bool
) -> tuple[_Order, Floats, Floats]:
    """Run forward passes on each rank, in the order of its schedule, until an input is missing."""
    ranks, hop_s = pipeline.ranks, pipeline.hop_s
    work = _forwards(pipeline)
    stage = pipeline.stage_of_chunk
    done: dict[tuple[int, int], float] = {}
    times: list[list[tuple[float, float]]] = [[] for _ in work]
    ready = list(range(ranks))
    while ready:
        rank = ready.pop()
        for one in work[rank][len(times[rank]) :]:
            at, k = int(stage[rank, one.chunk]), one.micro_batch
            if at and (at - 1, k) not in done:
                break
            hop = hop_s if at else 0.0
            free = times[rank][-1][1] if times[rank] else 0.0
            arrival = done.get((at - 1, k), 0.0)
            start = max(free, arrival) + hop if blocking else max(free, arrival + hop)
            done[at, k] = start + forward_s[at]
            times[rank].append((start, done[at, k]))
            ready.append((rank + 1) % ranks)
    order = [(i, FORWARD_CODE, one.micro_batch, one.chunk) for i in range(ranks) for one in work[i]]
    flat = np.array([pair for row in times for pair in row])
    return order, flat[:, 0], flat[:, 1]


def _forwards(pipeline: Pipeline) -> list[list[Action]]:
    every = orders(
        pipeline.schedule,
        ranks=pipeline.ranks,
        micro_batches=pipeline.micro_batches,
        chunks=pipeline.chunks,
    )
    return [[one for one in order if one.kind == FORWARD] for order in every]


def _sources(pipeline: Pipeline, kind: Ints, stage: Ints, micro_batch: Ints) -> Ints:
    """The action that computes the input of each action, on the same or another rank."""
    last = pipeline.stages - 1
    made = np.full((len(KINDS), pipeline.stages, pipeline.micro_batches), -1, dtype=np.int64)
    made[kind, stage, micro_batch] = np.arange(len(kind))
    before = np.where(stage > 0, made[FORWARD_CODE, stage - 1, micro_batch], -1)
    behind = np.where(
        stage < last,
        made[BACKWARD_CODE, np.minimum(stage + 1, last), micro_batch],
        made[FORWARD_CODE, stage, micro_batch],
    )
    return np.select(
        [kind == FORWARD_CODE, kind == BACKWARD_CODE],
        [before, behind],
        made[BACKWARD_CODE, stage, micro_batch],
    )
