"""Communication of one strategy by axis, direction and level, and the overhead of its experts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from shardwise.analysis.operations import (
    Component,
    critical_stage_components,
    repeats_collectives,
    rerun_share,
)
from shardwise.analysis.results import Breakdown, CommunicationShare, MoeOverhead
from shardwise.arrays import Floats, Ints
from shardwise.config.strategy_fields import COMM_AXES, COUNTED_WITH, EXPERT_DEGREES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.cost.component_costs import operation_costs
from shardwise.cost.operations import CollectiveCost
from shardwise.engine.data_parallel import replica_collectives, replica_communication
from shardwise.engine.evaluate import Evaluation
from shardwise.ops.operation import CollectiveKind, Phase

Direction = Literal["forward", "backward", "both"]
Level = Literal["intra", "inter"]

_DATA_PARALLEL: dict[str, tuple[str, Direction]] = {
    "gradients": ("gradients", "backward"),
    "weights_forward": ("weights", "forward"),
    "weights_backward": ("weights", "backward"),
    "momenta": ("momenta", "both"),
    "mirrors": ("mirrors", "both"),
    "embeddings": ("embeddings", "both"),
}
_GATING = ("moe.router", "moe.top_k")
_PERMUTE = ("moe.dispatch", "moe.combine")
_EXPERTS = ("moe.up", "moe.activation", "moe.down")


def inside_share(
    system: System, kind: CollectiveKind, buffer_bytes: Floats, extents: Ints
) -> Floats:
    """Share of a collective's time that its members in one innermost domain need alone.

    min(1, t' / t): t of all members (`cost.collective`), t' of those in one domain of the innermost
    tier with the same buffer (for an all-to-all, with the part of it that stays there). A P2P
    message takes the time of the outermost tier that it may cross, so its share is 0 or 1.

    Parameters
    ----------
    extents
        Members within one domain of each tier; shape (tiers, rows).

    Returns
    -------
    Share between 0 and 1; shape (rows,).
    """
    innermost = np.broadcast_to(extents[:1], extents.shape)
    all_inside = extents[-1] == extents[0]
    if kind is CollectiveKind.P2P or not (~all_inside & (extents[0] > 1)).any():
        return np.where(all_inside, 1.0, 0.0)
    stays = extents[0] / extents[-1] if kind is CollectiveKind.ALL_TO_ALL else 1.0
    inside = collective_time(system, kind, buffer_bytes * stays, innermost)
    time = collective_time(system, kind, buffer_bytes, extents)
    share = np.minimum(1.0, inside / np.where(time > 0, time, 1.0))
    return np.where(all_inside, 1.0, np.where(extents[0] > 1, share, 0.0))


def breakdown_of(evaluation: Evaluation) -> Breakdown:
    """Break down the communication of a table of one row on its critical stage."""
    components = critical_stage_components(evaluation)
    # Messages between pipeline stages.
    total_s, exposed_s = (float(time[0]) for time in evaluation.comm_s["pp"])
    direction: Direction = "both" if evaluation.step.table.training[0] else "forward"
    shares = [
        *_layer_communication(evaluation, components),
        *_levels("pp", "messages", direction, (total_s, exposed_s), _stages_inside(evaluation)),
        *_data_parallel(evaluation),
    ]
    moe = _moe(evaluation, components) if evaluation.step.model.has_experts else None
    return Breakdown(exchanges=tuple(s for s in shares if s.total_s > 0), moe=moe)


def _repetitions(
    table: Table, components: Sequence[Component], direction: Direction
) -> Iterator[tuple[CollectiveCost, float]]:
    """Collectives of a direction, each with how often it runs in a step."""
    training = bool(table.training[0])
    for component in components:
        for cost in component.costs:
            repeats = repeats_collectives(cost, component.recomputed)
            for timed in cost.collectives:
                is_forward = timed.collective.phase is Phase.FORWARD
                if direction == "forward":
                    number = component.runs if is_forward else 0.0
                elif is_forward:
                    number = component.reruns if repeats else 0.0
                else:
                    number = component.runs * training
                if number:
                    yield timed, number


def _levels(
    axis: str, what: str, direction: Direction, times_s: tuple[float, float], inside: float
) -> list[CommunicationShare]:
    """Divide total and exposed time [s] between the levels."""
    total_s, exposed_s = times_s
    shares: dict[Level, float] = {"intra": inside, "inter": 1.0 - inside}
    return [
        CommunicationShare(
            axis=axis,
            what=what,
            direction=direction,
            level=level,
            total_s=share * total_s,
            exposed_s=share * exposed_s,
        )
        for level, share in shares.items()
    ]


def _layer_communication(
    evaluation: Evaluation, components: Sequence[Component]
) -> Iterator[CommunicationShare]:
    """Communication of tensor, context and expert parallelism."""
    table, system = evaluation.step.table, evaluation.step.system
    m, stage, extents = (
        float(table.micro_batches[0]),
        evaluation.step.critical,
        evaluation.step.extents,
    )
    directions: tuple[Direction, ...] = ("forward", "backward")
    for axis in COMM_AXES:
        for direction in directions:
            inside_s = total_s = 0.0
            for timed, number in _repetitions(table, components, direction):
                collective = timed.collective
                if COUNTED_WITH[collective.axis] == axis and timed.time_s[0] > 0:
                    time_s = number * float(timed.time_s[0])
                    kind = CollectiveKind.P2P if collective.in_ring else collective.kind
                    members_at = getattr(extents, collective.axis)
                    share = inside_share(system, kind, collective.bytes, members_at)
                    inside_s, total_s = inside_s + time_s * float(share[0]), total_s + time_s
            alone_s = m * float(stage.alone(direction, axis)[0])
            exposed_s = m * float(stage.exposed(direction, axis)[0])
            inside = inside_s / total_s if total_s else 1.0
            what = "tokens" if axis in EXPERT_DEGREES else "activations"
            yield from _levels(axis, what, direction, (alone_s, exposed_s), inside)


def _stages_inside(evaluation: Evaluation) -> float:
    """1 if all pipeline stages are in one domain of the innermost network tier, else 0."""
    members = evaluation.step.extents.pp[:, 0]
    return 1.0 if members[0] == members[-1] else 0.0


def _data_parallel(evaluation: Evaluation) -> Iterator[CommunicationShare]:
    """Gradients, all-gathered weights and the other communication of a step."""
    step, system = evaluation.step, evaluation.step.system
    inside = {}
    for name, pieces in replica_collectives(step).items():
        inside_s = total_s = 0.0
        for kind, buffer, members in pieces:
            time_s = collective_time(system, kind, buffer, members)
            inside_s += float((time_s * inside_share(system, kind, buffer, members))[0])
            total_s += float(time_s[0])
        inside[name] = inside_s / total_s if total_s else 1.0
    inside["momenta"] = inside["weights"]
    for name, (alone, exposed) in replica_communication(step).items():
        what, direction = _DATA_PARALLEL[name]
        share = inside[what] if what in inside else _stages_inside(evaluation)
        yield from _levels("dp", what, direction, (float(alone[0]), float(exposed[0])), share)


def _moe(evaluation: Evaluation, components: Sequence[Component]) -> MoeOverhead:
    """Time that experts add: communication, gating, permuting tokens, and load imbalance."""
    step, table = evaluation.step, evaluation.step.table
    m, stage, training = float(table.micro_batches[0]), step.critical, table.training[0]

    def kernels_s(some: Sequence[Component], names: Sequence[str], *, forward: bool) -> float:
        """Time of operations in a step; recompute belongs to the backward pass."""
        spent = 0.0
        for component in some:
            for cost in component.costs:
                if cost.operation.name.removeprefix("mtp.") not in names:
                    continue
                times = {True: 0.0, False: 0.0}
                for kernel in cost.kernels:
                    times[kernel.kernel.phase is Phase.FORWARD] += float(kernel.time_s[0])
                if forward:
                    spent += component.runs * times[True]
                else:
                    spent += component.runs * (times[False] if training else 0.0)
                    rerun = component.reruns * rerun_share(cost, component.recomputed)
                    spent += rerun * times[True]
        return spent

    imbalance = 0.0
    if table.expert_imbalance[0] > 1:
        even = replace(table, expert_imbalance=np.ones_like(table.expert_imbalance))
        parts = operation_costs(step.model, step.system, even, step.extents)
        balanced = critical_stage_components(evaluation, parts)
        for forward in (True, False):
            imbalance += kernels_s(components, _EXPERTS, forward=forward)
            imbalance -= kernels_s(balanced, _EXPERTS, forward=forward)
    figures = {
        "exchange_forward_s": m * float(stage.exposed("forward", "ep")[0]),
        "exchange_backward_s": m * float(stage.exposed("backward", "ep")[0]),
        "gating_forward_s": kernels_s(components, _GATING, forward=True),
        "gating_backward_s": kernels_s(components, _GATING, forward=False),
        "permute_forward_s": kernels_s(components, _PERMUTE, forward=True),
        "permute_backward_s": kernels_s(components, _PERMUTE, forward=False),
        "imbalance_s": imbalance,
    }
    return MoeOverhead(**figures, total_s=sum(figures.values()))
