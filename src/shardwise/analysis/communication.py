"""Exchanges of one strategy by axis, direction and level, and what its experts add."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from shardwise.analysis.communication_record import Breakdown, CommunicationShare, MoeOverhead
from shardwise.analysis.recompute import exchanges_again, parts_of, runs_again
from shardwise.arrays import Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.cost.component_costs import ComponentOperations, operation_costs
from shardwise.cost.operations import CollectiveCost, KernelCost, OperationCost
from shardwise.engine.data_parallel import exchange_parts, exchanged
from shardwise.engine.evaluate import Evaluation
from shardwise.ops.operation import CollectiveKind, Phase

__all__ = ["breakdown_of", "inside_share"]

Direction = Literal["forward", "backward", "both"]

_GROUPS = {"tp": ("tp", "tp2"), "cp": ("cp",), "ep": ("ep", "etp")}
_CARRIES = {"tp": "activations", "cp": "activations", "ep": "tokens"}
_REPLICAS: dict[str, tuple[str, Direction]] = {
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
    """Share of an exchange that it takes among the members of one innermost domain alone.

    min(1, t' / t): t of all members (`cost.collective`), t' of those in one domain of the innermost
    tier with the same buffer, of an all-to-all the part of it that stays there. A message to the
    next member takes as long as one over the outermost tier that it may have to cross: all or
    nothing.

    Parameters
    ----------
    extents
        Members within one domain of each tier; shape (tiers, rows).
    """
    near = np.broadcast_to(extents[:1], extents.shape)
    whole = extents[-1] == extents[0]
    if kind is CollectiveKind.P2P or not (~whole & (extents[0] > 1)).any():
        return np.where(whole, 1.0, 0.0)
    stays = extents[0] / extents[-1] if kind is CollectiveKind.ALL_TO_ALL else 1.0
    inside = collective_time(system, kind, buffer_bytes * stays, near)
    time = collective_time(system, kind, buffer_bytes, extents)
    share = np.minimum(1.0, inside / np.where(time > 0, time, 1.0))
    return np.where(whole, 1.0, np.where(extents[0] > 1, share, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """A part of the model on the slowest stage."""

    costs: Sequence[OperationCost]
    again: frozenset[str]
    runs: float
    """Times that it runs in a step."""
    reruns: float
    """Those of them that recompute."""


def breakdown_of(
    model: Model,
    system: System,
    table: Table,
    evaluation: Evaluation,
    parts: Sequence[ComponentOperations],
) -> Breakdown:
    """Break a table of one row down."""
    runs = list(_on_slowest(table, evaluation, parts))
    shares = [
        *_inside_layers(system, table, evaluation, runs),
        *_between_stages(table, evaluation),
        *_among_replicas(model, system, table, evaluation),
    ]
    moe = _moe(model, system, table, evaluation, parts) if model.has_experts else None
    return Breakdown(exchanges=tuple(s for s in shares if s.total_s > 0), moe=moe)


def _on_slowest(
    table: Table, evaluation: Evaluation, parts: Sequence[ComponentOperations]
) -> Iterator[_Runs]:
    """Parts of the model as often as the slowest stage runs them in a step."""
    kinds = sum(part == "layer" for part, _, _ in parts)
    places = {"mtp": 2 * kinds, "embedding": 2 * kinds + 1, "head": 2 * kinds + 2}
    work = [
        float(table.micro_batches[0]) * float(np.broadcast_to(number, (1,))[0])
        for number in evaluation.slowest.work
    ]
    kind = 0
    for part, _, costs in parts:
        reruns = work[places.get(part, kind)]
        plain = work[kinds + kind] if part == "layer" else 0.0
        kind += part == "layer"
        again = parts_of(table, part)
        yield _Runs(costs=costs, again=again, runs=reruns + plain, reruns=reruns)


def _passes(
    table: Table, runs: Sequence[_Runs], direction: Direction
) -> Iterator[tuple[CollectiveCost, float]]:
    """Exchanges of a direction, each with how often it happens in a step."""
    training = bool(table.training[0])
    for part in runs:
        for cost in part.costs:
            repeated = part.reruns if exchanges_again(cost, part.again) else 0.0
            for exchange in cost.exchanges:
                ahead = exchange.collective.phase is Phase.FORWARD
                if direction == "forward":
                    number = part.runs if ahead else 0.0
                else:
                    number = repeated if ahead else part.runs * training
                if number:
                    yield exchange, number


def _levels(
    axis: str,
    what: str,
    direction: Direction,
    times: tuple[float, float],
    inside: float,
) -> list[CommunicationShare]:
    """Both levels of an exchange, alone and exposed [s]."""
    total_s, exposed_s = times
    shares: tuple[tuple[Literal["intra", "inter"], float], ...] = (
        ("intra", inside),
        ("inter", 1.0 - inside),
    )
    return [
        CommunicationShare(
            axis=axis,
            what=what,
            direction=direction,
            level=level,
            total_s=share * total_s,
            exposed_s=share * exposed_s,
        )
        for level, share in shares
    ]


def _inside_layers(
    system: System, table: Table, evaluation: Evaluation, runs: Sequence[_Runs]
) -> Iterator[CommunicationShare]:
    """Exchanges of tensor, context and expert parallelism."""
    m, slowest, extents = float(table.micro_batches[0]), evaluation.slowest, evaluation.extents
    directions: tuple[Direction, ...] = ("forward", "backward")
    for axis, members in _GROUPS.items():
        for direction in directions:
            near = whole = 0.0
            for exchange, number in _passes(table, runs, direction):
                collective = exchange.collective
                if collective.axis in members and exchange.time_s[0] > 0:
                    time_s = number * float(exchange.time_s[0])
                    kind = CollectiveKind.P2P if collective.in_ring else collective.kind
                    reach = getattr(extents, collective.axis)
                    share = inside_share(system, kind, collective.bytes, reach)
                    near, whole = near + time_s * float(share[0]), whole + time_s
            alone = m * float(slowest.alone(direction, axis)[0])
            exposed = m * float(slowest.exposed(direction, axis)[0])
            inside = near / whole if whole else 1.0
            yield from _levels(axis, _CARRIES[axis], direction, (alone, exposed), inside)


def _between_stages(table: Table, evaluation: Evaluation) -> list[CommunicationShare]:
    """Messages from stage to stage."""
    alone, exposed = (float(time[0]) for time in evaluation.comm_s["pp"])
    reach = evaluation.extents.pp[:, 0]
    inside = 1.0 if reach[0] == reach[-1] else 0.0
    direction: Direction = "both" if table.training[0] else "forward"
    return _levels("pp", "messages", direction, (alone, exposed), inside)


def _among_replicas(
    model: Model, system: System, table: Table, evaluation: Evaluation
) -> Iterator[CommunicationShare]:
    """Gradients, gathered weights and what else is exchanged once a step."""
    boundary, blocks = evaluation.boundary, evaluation.slowest.blocks
    extents, largest = evaluation.extents, evaluation.largest
    beside = boundary.hidden * boundary.message_s
    parts = exchange_parts(model, system, table, extents, largest, evaluation.slowest, beside)
    buffers = exchanged(table, extents, largest, blocks)
    shares = {}
    for name, pieces in buffers.items():
        near = whole = 0.0
        for kind, buffer, reach in pieces:
            time_s = collective_time(system, kind, buffer, reach)
            near += float((time_s * inside_share(system, kind, buffer, reach))[0])
            whole += float(time_s[0])
        shares[name] = near / whole if whole else 1.0
    reach = extents.pp[:, 0]
    ends = 1.0 if reach[0] == reach[-1] else 0.0
    for name, (alone, exposed) in parts.items():
        what, direction = _REPLICAS[name]
        inside = shares["weights"] if what in ("weights", "momenta") else ends
        inside = shares["gradients"] if what == "gradients" else inside
        yield from _levels("dp", what, direction, (float(alone[0]), float(exposed[0])), inside)


def _moe(
    model: Model,
    system: System,
    table: Table,
    evaluation: Evaluation,
    parts: Sequence[ComponentOperations],
) -> MoeOverhead:
    """What experts add: exchanges, gating, moving tokens, and the fullest rank's load."""
    runs = list(_on_slowest(table, evaluation, parts))
    m, slowest, training = float(table.micro_batches[0]), evaluation.slowest, table.training[0]

    def kernels(some: Sequence[_Runs], names: Sequence[str], *, ahead: bool) -> float:
        def own(kernel: KernelCost) -> bool:
            forward = kernel.kernel.phase is Phase.FORWARD
            return forward == ahead and (forward or bool(training))

        spent = 0.0
        for part in some:
            for cost in part.costs:
                if cost.operation.name.removeprefix("mtp.") in names:
                    spent += part.runs * _time(cost, own)
                    if not ahead:  # recompute belongs to the backward pass
                        rerun = part.reruns * runs_again(cost, part.again)
                        spent += rerun * _time(cost, lambda k: k.kernel.phase is Phase.FORWARD)
        return spent

    imbalance = 0.0
    if table.expert_imbalance[0] > 1:
        even = replace(table, expert_imbalance=np.ones_like(table.expert_imbalance))
        level = operation_costs(model, system, even, evaluation.extents)
        flat = list(_on_slowest(table, evaluation, level))
        for ahead in (True, False):
            imbalance += kernels(runs, _EXPERTS, ahead=ahead)
            imbalance -= kernels(flat, _EXPERTS, ahead=ahead)
    figures = {
        "exchange_forward_s": m * float(slowest.exposed("forward", "ep")[0]),
        "exchange_backward_s": m * float(slowest.exposed("backward", "ep")[0]),
        "gating_forward_s": kernels(runs, _GATING, ahead=True),
        "gating_backward_s": kernels(runs, _GATING, ahead=False),
        "permute_forward_s": kernels(runs, _PERMUTE, ahead=True),
        "permute_backward_s": kernels(runs, _PERMUTE, ahead=False),
        "imbalance_s": imbalance,
    }
    return MoeOverhead(**figures, total_s=sum(figures.values()))


def _time(cost: OperationCost, chosen: Callable[[KernelCost], bool]) -> float:
    """Time of some of an operation's kernels [s]."""
    return sum(float(kernel.time_s[0]) for kernel in cost.kernels if chosen(kernel))
