"""The timeline of one strategy: its passes, what follows them, and what every rank holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwise.analysis.components import recomputed_parts
from shardwise.analysis.timeline.actions import KINDS, Actions, Pipeline, run
from shardwise.analysis.timeline.memory import MemoryAtActions, fullest, held_at_actions
from shardwise.analysis.timeline.passes import EXCHANGES, StagePasses, stage_passes
from shardwise.arrays import Floats
from shardwise.config.enums import ZERO_GRADIENTS, Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import ComponentOperations, operation_costs
from shardwise.engine.evaluate import Evaluation, evaluate
from shardwise.engine.memory import StageMemory, stage_memory
from shardwise.parallel.pipeline_layout import (
    StageGroup,
    by_stage,
    chunks_of,
    layers_on_ranks,
    virtual_stages,
)
from shardwise.parallel.schedule.orders import WEIGHTS

__all__ = [
    "AFTER",
    "RankTotals",
    "StepTimeline",
    "passes_in_step",
    "rank_totals",
    "seconds_of_actions",
    "step_timeline",
]

AFTER = ("replicas", "offload", "optimizer", "overhead")
"""What follows the last pass on all ranks, in this order."""

# From this stage of ZeRO on every micro-batch exchanges gradients (arXiv 1910.02054).


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step on every rank of a pipeline."""

    pipeline: Pipeline
    passes: StagePasses
    parts: tuple[ComponentOperations, ...]
    """Operations of the embedding, each kind of layer and the head with their costs."""
    stages: StageGroup
    """Every virtual stage."""
    layer_kinds: tuple[tuple[int, ...], ...]
    """Kinds of the layers of every virtual stage, in the order of the model."""
    again: frozenset[str]
    """What layers recompute that do: some of `RecomputePart`, or `recompute.ALL`."""
    actions: Actions
    held: MemoryAtActions
    memory: StageMemory
    """Of every rank as the estimate has it."""
    after_s: Mapping[str, float]
    """By `AFTER`."""
    replicas_hidden_s: float
    """What of the exchange among replicas runs beside the passes, once a step; 0 where every
    micro-batch exchanges its own [s]."""
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
        """All of it: the simulated passes, and what follows."""
        return self.passes_s + sum(self.after_s.values())

    @property
    def static_bytes(self) -> Floats:
        """Weights, gradients and optimizer state of every rank."""
        return self.memory.weights + self.memory.gradients + self.memory.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotals:
    """What the ranks do in a step and hold at their fullest: one value per rank."""

    kernels_s: Mapping[str, Floats]
    """By what they are for [s]."""
    exposed_s: Mapping[str, Floats]
    """By `EXCHANGES` [s]."""
    transfers_s: Floats
    """For which messages occupy the rank [s]."""
    idle_s: Floats
    """The rest until the last pass on any rank ends [s]."""
    peak_bytes: Floats
    peak_s: Floats
    """When it is first held: the start of an action, or of the update."""
    peak_action: tuple[int | None, ...]
    """This action; None in the update of the weights."""


def step_timeline(model: Model, system: System, table: Table) -> StepTimeline:
    """Build the timeline of a table of one legal row.

    After the last pass the exposed exchange among replicas, the optimizer and the rest of the step
    follow as long as the estimate has them, on all ranks at once: the step ends with the slowest.
    """
    evaluation = evaluate(model, system, table)
    parts = operation_costs(model, system, table, evaluation.extents)
    stages = virtual_stages(model, table)
    passes = stage_passes(table, evaluation, parts, stages)
    pipeline = _pipeline(table, evaluation)
    actions = run(pipeline, passes)
    order, ends = model.order, np.cumsum([0, *layers_on_ranks(model.depth, table, 0)]).tolist()
    position = np.arange(pipeline.ranks)
    held = held_at_actions(actions, passes, offloaded=bool(table.offload_activations[0]))
    return StepTimeline(
        pipeline=pipeline,
        passes=passes,
        parts=tuple(parts),
        stages=stages,
        layer_kinds=tuple(tuple(order[a:b]) for a, b in pairwise(ends)),
        again=recomputed_parts(table, "layer"),
        actions=actions,
        held=held,
        memory=stage_memory(table, evaluation.blocks, by_stage(evaluation.runs), position),
        after_s=_after(table, evaluation),
        replicas_hidden_s=_hidden(table, evaluation),
        estimated_s=float(evaluation.step_time_s[0]),
        fits=bool(evaluation.fits[0]),
    )


def passes_in_step(table: Table) -> int:
    """Forward and backward passes of a step of one row through all virtual stages."""
    directions = 2 if table.training[0] else 1
    return directions * int(table.pp[0] * chunks_of(table)[0] * table.micro_batches[0])


def _pipeline(table: Table, evaluation: Evaluation) -> Pipeline:
    return Pipeline(
        schedule=Schedule.from_code(int(table.schedule[0])),
        ranks=int(table.pp[0]),
        chunks=int(table.vpp[0]),
        micro_batches=int(table.micro_batches[0]),
        training=bool(table.training[0]),
        hop_s=float(evaluation.boundary.time_s[0]),
        hop_hidden=float(evaluation.boundary.hidden[0]),
    )


def _after(table: Table, evaluation: Evaluation) -> dict[str, float]:
    """What of the estimate stands in no pass [s].

    Offloaded weights and activations are moved in the passes: the rest of offload is the update's.
    """
    time = {part: float(column[0]) for part, column in evaluation.time_s.items()}
    moved = evaluation.slowest.on(lambda part: part.offload_exposed_s)
    in_passes = float(table.micro_batches[0] * moved[0])
    return {
        "replicas": time["dp_comm"],
        "offload": max(0.0, time["offload"] - in_passes),
        "optimizer": time["optimizer"],
        "overhead": time["other"],
    }


def _hidden(table: Table, evaluation: Evaluation) -> float:
    alone, exposed = evaluation.comm_s["dp"]
    return max(0.0, float(alone[0] - exposed[0])) if table.zero[0] < ZERO_GRADIENTS else 0.0


def rank_totals(timeline: StepTimeline) -> RankTotals:
    """Add up the actions of every rank."""
    actions, ranks = timeline.actions, timeline.pipeline.ranks

    def added(amount: Floats) -> Floats:
        column: Floats = np.bincount(actions.rank, weights=amount, minlength=ranks).astype(float)
        return column

    kernels, exposed = seconds_of_actions(timeline)
    busy = sum(map(added, (*kernels.values(), *exposed.values())), np.zeros(ranks))
    waited = added(actions.waited_s)
    total = timeline.static_bytes[actions.rank] + timeline.held.activations + timeline.held.live
    at = fullest(total, actions.rank)
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


def seconds_of_actions(timeline: StepTimeline) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Kernels by what they are for, and exposed exchanges, of every action [s]."""
    actions, zero = timeline.actions, np.zeros(len(timeline.actions))
    kernels: dict[str, Floats] = {}
    exposed = dict.fromkeys(EXCHANGES, zero)
    for code, kind in enumerate(KINDS):
        one = timeline.passes.of[kind]
        here = actions.kind == code
        if kind == WEIGHTS:
            here = here | actions.whole
        for name, column in one.kernels_s.items():
            kernels[name] = np.where(here, column[actions.stage], 0.0)
        if kind != WEIGHTS:
            for name, column in one.exposed_s.items():
                exposed[name] = exposed[name] + np.where(here, column[actions.stage], 0.0)
    return kernels, exposed
