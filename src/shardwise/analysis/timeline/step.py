"""The timeline of one strategy: passes, what follows them, and the memory of every rank."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwise.analysis.operations import recomputed_parts, rerun_share
from shardwise.analysis.timeline.actions import (
    BACKWARD_CODE,
    FORWARD_CODE,
    KINDS,
    WAITS,
    WEIGHTS_CODE,
    Actions,
    Pipeline,
    StagePasses,
    run,
    stage_passes,
)
from shardwise.arrays import Floats, Ints
from shardwise.config.enums import ZERO_GRADIENTS, Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import ComponentOperations
from shardwise.cost.operations import OperationCost
from shardwise.engine.evaluate import Evaluation, evaluate
from shardwise.engine.memory import StageMemory, stage_memory
from shardwise.engine.step import Step
from shardwise.ops.operation import Phase
from shardwise.parallel.pipeline_layout import (
    StageGroup,
    by_stage,
    chunks_of,
    layers_on_ranks,
    virtual_stages,
)
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD, WEIGHTS

AFTER = ("replicas", "offload", "optimizer", "overhead")
"""What follows the last pass on all ranks, in this order."""

# Layers whose offloaded activations are in device memory: the one that computes and the next.
_RESIDENT_LAYERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAtActions:
    """Memory of an action's rank from its start to its end [byte]; one value per action."""

    activations: Floats
    """Saved activations; those of a micro-batch count from the start of its forward."""
    after: Floats
    """Saved activations when the action has ended."""
    live: Floats
    """Peak of temporary tensors during the action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step on every rank of a pipeline."""

    pipeline: Pipeline
    passes: StagePasses
    parts: tuple[ComponentOperations, ...]
    """Operations of the embedding, each kind of layer and the head, with their costs."""
    stages: StageGroup
    """Every virtual stage."""
    layer_kinds: tuple[tuple[int, ...], ...]
    """Kinds of the layers of every virtual stage, in the order of the model."""
    recomputed: frozenset[str]
    """What layers recompute: values of `RecomputePart`, or `components.FULL_LAYER`."""
    actions: Actions
    memory_at_actions: MemoryAtActions
    memory: StageMemory
    """Of every rank, from the estimate."""
    after_s: Mapping[str, float]
    """By `AFTER`."""
    dp_hidden_s: float
    """Data-parallel communication hidden behind the passes, once a step; 0 where every
    micro-batch has its own [s]."""
    estimated_s: float
    """Time of the step by the closed form."""
    fits: bool
    """Whether the estimate fits in memory."""

    @property
    def passes_s(self) -> float:
        """From the start of the step to the end of the last pass on any rank."""
        return float(self.actions.end_s.max())

    @property
    def step_s(self) -> float:
        """The simulated passes, and what follows."""
        return self.passes_s + sum(self.after_s.values())

    @property
    def static_bytes(self) -> Floats:
        """Weights, gradients and optimizer state of every rank."""
        return self.memory.weights + self.memory.gradients + self.memory.optimizer

    def stage_label(self, stage: int) -> str:
        """Components of a virtual stage: `layers 0-9, head`."""
        first = sum(len(kinds) for kinds in self.layer_kinds[:stage])
        count = len(self.layer_kinds[stage])
        layers = f"layers {first}-{first + count - 1}" if count > 1 else f"layer {first}"
        mtp, embedding, head = (float(number[stage]) for number in self.stages.resident[-3:])
        named = {layers: count, "embedding": embedding, "mtp": mtp, "head": head}
        return ", ".join(name for name, number in named.items() if number) or "no layers"

    def rank_label(self, rank: int) -> str:
        """Components of a rank, chunk by chunk."""
        stages = self.pipeline.stage_of_chunk[rank].tolist()
        return "; ".join(self.stage_label(stage) for stage in stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotals:
    """Times and peak memory of the ranks in a step: one value per rank."""

    kernels_s: Mapping[str, Floats]
    """By purpose [s]."""
    exposed_s: Mapping[str, Floats]
    """By `WAITS` [s]."""
    transfers_s: Floats
    """Time for which messages occupy the rank [s]."""
    idle_s: Floats
    """The rest until the last pass on any rank ends [s]."""
    peak_bytes: Floats
    peak_s: Floats
    """When the peak is first reached: the start of an action, or of the weight update."""
    peak_action: tuple[int | None, ...]
    """This action; None for the weight update."""


def step_timeline(model: Model, system: System, table: Table) -> StepTimeline:
    """Build the timeline of a table of one legal row.

    After the last pass follow exposed data-parallel communication, the optimizer and the rest of
    the step, with the times of the estimate, on all ranks at once.
    """
    evaluation = evaluate(model, system, table)
    step = evaluation.step
    stages = virtual_stages(model, table)
    passes = stage_passes(evaluation, stages)
    pipeline = _pipeline(step)
    actions = run(pipeline, passes)
    order, ends = model.order, np.cumsum([0, *layers_on_ranks(model.depth, table, 0)]).tolist()
    position = np.arange(pipeline.ranks)
    once, (alone, exposed) = table.zero[0] < ZERO_GRADIENTS, evaluation.comm_s["dp"]
    at_actions = memory_at_actions(actions, passes, offloaded=bool(table.moves_activations[0]))
    return StepTimeline(
        pipeline=pipeline,
        passes=passes,
        parts=tuple(evaluation.parts),
        stages=stages,
        layer_kinds=tuple(tuple(order[a:b]) for a, b in pairwise(ends)),
        recomputed=recomputed_parts(table, "layer"),
        actions=actions,
        memory_at_actions=at_actions,
        memory=stage_memory(table, step.costs, by_stage(step.groups), position),
        after_s=_after(evaluation),
        dp_hidden_s=max(0.0, float(alone[0] - exposed[0])) if once else 0.0,
        estimated_s=float(evaluation.step_time_s[0]),
        fits=bool(evaluation.fits[0]),
    )


def passes_in_step(table: Table) -> int:
    """Forward and backward passes of a step of one row through all virtual stages."""
    directions = 2 if table.training[0] else 1
    return directions * int(table.pp[0] * chunks_of(table)[0] * table.micro_batches[0])


def _pipeline(step: Step) -> Pipeline:
    table, boundary = step.table, step.boundary
    return Pipeline(
        schedule=Schedule.from_code(int(table.schedule[0])),
        ranks=int(table.pp[0]),
        chunks=int(table.vpp[0]),
        micro_batches=int(table.micro_batches[0]),
        training=bool(table.training[0]),
        hop_s=float(boundary.time_s[0]),
        hop_hidden=float(boundary.hidden[0]),
    )


def _after(evaluation: Evaluation) -> dict[str, float]:
    """Times of the estimate that belong to no pass [s].

    Offloaded weights and activations move during passes; the rest of offload belongs to the update.
    """
    time = {part: float(column[0]) for part, column in evaluation.time_s.items()}
    moved = evaluation.step.critical.on(lambda part: part.offload_exposed_s)
    in_passes = float(evaluation.step.table.micro_batches[0] * moved[0])
    return {
        "replicas": time["dp_comm"],
        "offload": max(0.0, time["offload"] - in_passes),
        "optimizer": time["optimizer"],
        "overhead": time["other"],
    }


def rank_totals(timeline: StepTimeline) -> RankTotals:
    """Add up the actions of every rank."""
    actions, ranks = timeline.actions, timeline.pipeline.ranks

    def added(amount: Floats) -> Floats:
        column: Floats = np.bincount(actions.rank, weights=amount, minlength=ranks).astype(float)
        return column

    kernels, exposed = action_times(timeline)
    busy = sum(map(added, (*kernels.values(), *exposed.values())), np.zeros(ranks))
    waited = added(actions.waited_s)
    memory = timeline.memory_at_actions
    total = timeline.static_bytes[actions.rank] + memory.activations + memory.live
    at = peak_actions(total, actions.rank)
    most, when = total[at], actions.start_s[at]
    update = timeline.memory.in_update
    in_update_s = timeline.passes_s + timeline.after_s["replicas"] + timeline.after_s["offload"]
    return RankTotals(
        kernels_s={name: added(column) for name, column in kernels.items()},
        exposed_s={name: added(column) for name, column in exposed.items()},
        transfers_s=waited,
        idle_s=timeline.passes_s - busy - waited,
        peak_bytes=np.where(update, timeline.static_bytes + timeline.memory.buffers, most),
        peak_s=np.where(update, in_update_s, when),
        peak_action=tuple(None if late else int(one) for late, one in zip(update, at, strict=True)),
    )


def action_times(timeline: StepTimeline) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Kernels by purpose, and exposed waits, of every action [s]."""
    actions, zero = timeline.actions, np.zeros(len(timeline.actions))
    kernels: dict[str, Floats] = {}
    exposed = dict.fromkeys(WAITS, zero)
    for code, kind in enumerate(KINDS):
        one = timeline.passes.of[kind]
        here = actions.kind == code
        if kind == WEIGHTS:
            here = here | actions.has_weight_grads
        for name, column in one.kernels_s.items():
            kernels[name] = np.where(here, column[actions.stage], 0.0)
        if kind != WEIGHTS:
            for name, column in one.exposed_s.items():
                exposed[name] = exposed[name] + np.where(here, column[actions.stage], 0.0)
    return kernels, exposed


def memory_at_actions(actions: Actions, passes: StagePasses, *, offloaded: bool) -> MemoryAtActions:
    """Add up saved activations: from the start of F to the end of W, or of a B that does both.

    Of offloaded activations two layers are resident. The two of a pair have the same memory: what
    the forward saves, what the backward has not yet released, and the larger of their peaks.
    """
    saved, after = _running(actions, passes.saved_bytes[actions.stage])
    if offloaded:
        moved, moved_after = _running(actions, passes.movable_bytes[actions.stage])
        layers, layers_after = _running(actions, passes.moving_layers[actions.stage])
        saved = saved - moved * _offloaded_share(layers)
        after = after - moved_after * _offloaded_share(layers_after)
    embedding, embedding_after = _running(actions, passes.embedding_bytes[actions.stage])
    live = np.select(
        [actions.kind == FORWARD_CODE, actions.kind == BACKWARD_CODE],
        [passes.of[kind].transient_bytes[actions.stage] for kind in (FORWARD, BACKWARD)],
        0.0,
    )
    first = np.flatnonzero(actions.paired)
    live[first] = live[first + 1] = np.maximum(live[first], live[first + 1])
    return MemoryAtActions(activations=saved + embedding, after=after + embedding_after, live=live)


def _offloaded_share(layers: Floats) -> Floats:
    """Share of offloaded activations that is in the second tier, by the number of layers."""
    share: Floats = 1.0 - np.minimum(1.0, _RESIDENT_LAYERS / np.maximum(layers, 1.0))
    return share


def _running(actions: Actions, amount: Floats) -> tuple[Floats, Floats]:
    """The amount while each action runs, and when it has ended."""
    saved = np.where(actions.kind == FORWARD_CODE, amount, 0.0)
    releases = (actions.kind == WEIGHTS_CODE) | actions.has_weight_grads
    released = np.where(releases, amount, 0.0)
    first = np.searchsorted(actions.rank, np.unique(actions.rank))
    during, after = np.empty_like(amount), np.empty_like(amount)
    for start, end in zip(first, [*first[1:], len(actions)], strict=True):
        ends = np.cumsum(saved[start:end] - released[start:end])
        after[start:end] = ends
        during[start:end] = ends + released[start:end]
    return during, after


def peak_actions(total: Floats, rank: Ints) -> Ints:
    """For each rank, the first action with the most memory."""
    order = np.lexsort((np.arange(len(rank)), -total, rank))
    first: Ints = order[np.searchsorted(rank[order], np.unique(rank))]
    return first


_PHASES = {
    "forward": (Phase.FORWARD,),
    "recompute": (Phase.FORWARD,),
    "backward": (Phase.INPUT_GRAD,),
    "weight_gradients": (Phase.WEIGHT_GRAD,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentKernels:
    """Kernels of a layer, the embedding or the head."""

    name: str
    kernels: tuple[tuple[str, float], ...]
    """Operation and time, without that of the host [s]."""


def kernels_of_pass(timeline: StepTimeline, stage: int, *work: str) -> list[ComponentKernels]:
    """Kernels of one micro-batch on a virtual stage, in the order in which they run.

    Parameters
    ----------
    work
        Their purposes: keys of `Pass.kernels_s`; several for a backward with weight gradients.
    """
    phases = [phase for name in work for phase in _PHASES[name]]
    again = work == ("recompute",)
    found = []
    for name, costs, reruns in _in_order(timeline, stage):
        shares = [rerun_share(c, timeline.recomputed) * reruns if again else 1.0 for c in costs]
        times = [
            (c.operation.name, share * sum(float(c.kernel_s(p)[0]) for p in phases))
            for c, share in zip(costs, shares, strict=True)
        ]
        kernels = [one for one in times if one[1] > 0]
        if kernels:
            found.append((name, kernels))
    forward = phases[0] is Phase.FORWARD
    step = 1 if forward else -1
    return [
        ComponentKernels(name=name, kernels=tuple(some[::step])) for name, some in found[::step]
    ]


def _in_order(
    timeline: StepTimeline, stage: int
) -> Iterator[tuple[str, Sequence[OperationCost], bool]]:
    """Name, operations, and whether it recomputes, of every component of a virtual stage."""
    of = {name: costs for name, _, costs in timeline.parts}
    layers = [costs for name, _, costs in timeline.parts if name == "layer"]
    counts = [float(count[stage]) for count in timeline.stages.resident]
    first = sum(len(kinds) for kinds in timeline.layer_kinds[:stage])
    recompute = sum(counts[: len(layers)])
    if counts[-2]:
        yield "embedding", of["embedding"], False
    for place, kind in enumerate(timeline.layer_kinds[stage]):
        yield f"layer {first + place}", layers[kind], place < recompute
    for module in range(int(counts[-3])):
        yield f"mtp {module}", of["mtp"], True
    if counts[-1]:
        yield "head", of["head"], False
