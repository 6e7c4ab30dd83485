"""What runs once per step: transfers between stages, data-parallel collectives, the optimizer."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwise.analysis.results import OperationEstimate
from shardwise.arrays import Floats, Ints
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_WEIGHTS
from shardwise.config.system import System
from shardwise.cost.collective import NO_DATA, collective_time, transfer_time
from shardwise.cost.layer_cost import LayerBytes
from shardwise.engine.data_parallel import (
    Pieces,
    replica_collectives,
    replica_communication,
    replica_groups,
    shard_extents,
    unhidden_collectives,
)
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.step import Step
from shardwise.engine.step_time import Update
from shardwise.ops.operation import CollectiveKind

_EXPERTS, _GROUPS = ".experts", ".groups"


def step_operations(evaluation: Evaluation) -> Iterator[OperationEstimate]:
    """Yield what a table of one row does once per step, or in all micro-batches of a step.

    Data-parallel collectives add up to `comm_s.dp`, the parts of the optimizer to
    `time_s.optimizer`.
    """
    step, table = evaluation.step, evaluation.step.table
    directions = 2 if table.training[0] else 1
    sent = directions * table.micro_batches * table.vpp * step.boundary.sent_bytes
    empty_s = transfer_time(step.system, np.array([NO_DATA]), step.extents.pp)
    figures = {"volume_bytes": float(sent[0]), "latency_s": float(empty_s[0])}
    members = members_of(step.extents.pp)
    yield from _total(evaluation, "stage_transfers", "p2p", "pp", **figures, **members)
    yield from _replica_collectives(step)
    yield from _total(evaluation, "offload", "link", "offload")  # the rows of layers have its bytes
    yield from _optimizer(step)


def members_of(extents: Ints) -> dict[str, object]:
    """Members of a collective, and those within one domain of each tier.

    Parameters
    ----------
    extents
        Of its axis; shape (tiers, 1).
    """
    members = tuple(int(extent) for extent in extents[:, 0])
    return {"group": members[-1], "extents": members}


def _row(operation: str, kind: str, **figures: object) -> OperationEstimate:
    """An operation of a step; it is bound by the network unless `figures` say otherwise."""
    fields = {"bound": "network"} | figures
    return OperationEstimate(
        part="step", operation=operation, phase="step", count=1, kind=kind, **fields
    )


def _total(
    evaluation: Evaluation, operation: str, kind: str, axis: str, **figures: object
) -> Iterator[OperationEstimate]:
    """All communication of an axis in a step, if there is any."""
    alone, exposed = (float(time[0]) for time in evaluation.comm_s[axis])
    if alone > 0:
        yield _row(operation, kind, axis=axis, time_s=alone, exposed_s=exposed, **figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Collective:
    """One data-parallel collective, as often as it runs in a step."""

    operation: str
    kind: CollectiveKind
    buffers: list[tuple[float, Floats]]
    """How often in a step, and buffer [byte]."""
    members: Ints

    @property
    def volume_bytes(self) -> float:
        """All buffers of a step [byte]."""
        return sum(count * float(buffer[0]) for count, buffer in self.buffers)

    def time_s(self, system: System) -> float:
        """Time in a step, alone [s]."""
        return sum(count * self._once(system, buffer) for count, buffer in self.buffers)

    def latency_s(self, system: System) -> float:
        """Time of one without data [s]."""
        return self._once(system, np.array([NO_DATA]))

    def _once(self, system: System, buffer: Floats) -> float:
        return float(collective_time(system, self.kind, buffer, self.members)[0])


def _replica_collectives(step: Step) -> Iterator[OperationEstimate]:
    """Each data-parallel collective; exposed time is divided in proportion to the total."""
    named = _named_collectives(step)
    for name, (alone, exposed) in replica_communication(step).items():
        timed = [(one, one.time_s(step.system)) for one in named[name]]
        whole = sum(time for _, time in timed)
        for one, time in timed:
            if time > 0 and alone[0] > 0:
                yield _row(
                    one.operation,
                    one.kind.value,
                    axis="dp",
                    volume_bytes=one.volume_bytes,
                    latency_s=one.latency_s(step.system),
                    time_s=float(alone[0]) * time / whole,
                    exposed_s=float(exposed[0]) * time / whole,
                    **members_of(one.members),
                )


def _named_collectives(step: Step) -> dict[str, list[_Collective]]:
    """Data-parallel collectives by name in `ReplicaCommunication`."""
    table, once = step.table, replica_collectives(step)
    found = {
        name: _with_names(name, pieces, ("", _EXPERTS))
        for name, pieces in unhidden_collectives(step).items()
    }
    suffixes = ("", _GROUPS, _EXPERTS, _EXPERTS + _GROUPS)
    gradients = _with_names("gradients", once["gradients"], suffixes)
    if table.zero[0] < ZERO_GRADIENTS:
        weights = _with_names("weights", once["weights"], ("", _EXPERTS))
        return found | {"gradients": gradients, "weights_forward": weights}
    reductions = 1.0 if table.syncs_once[0] else float(table.micro_batches[0])
    scattered = _by_layer(step, "gradients", CollectiveKind.REDUCE_SCATTER, reductions)
    between = [one for one in gradients if one.operation.endswith(_GROUPS)]
    split = table.zero[0] >= ZERO_WEIGHTS
    gathers = float(table.micro_batches[0]) if split and not table.stays_gathered[0] else 1.0

    def weights_of(name: str) -> list[_Collective]:
        return _by_layer(step, name, CollectiveKind.ALL_GATHER, gathers)

    names = ("weights_forward", "weights_backward") if split else ("weights", "weights_backward")
    return found | {
        "gradients": scattered + between,
        "weights_forward": weights_of(names[0]),
        "weights_backward": weights_of(names[1]),
    }


def _with_names(name: str, pieces: Pieces, suffixes: tuple[str, ...]) -> list[_Collective]:
    return [
        _Collective(operation=name + suffix, kind=kind, buffers=[(1.0, buffer)], members=members)
        for suffix, (kind, buffer, members) in zip(suffixes, pieces, strict=False)
    ]


def _by_layer(step: Step, name: str, kind: CollectiveKind, times: float) -> list[_Collective]:
    """Collectives of sharded gradients or weights, layer by layer."""
    costs = step.costs
    trained_only = name == "weights"  # ZeRO-2 gathers what the update changed

    def size(part: LayerBytes, *, experts: bool) -> Floats:
        moved, trained = costs.weight_sizes.moved, part.expert_trained if experts else part.trained
        if kind is CollectiveKind.REDUCE_SCATTER:
            return trained.weights * costs.gradient_bytes
        if trained_only:
            return moved(trained.weights, trained.quantized)
        if experts:
            return moved(part.expert_parameters, part.quantized_expert_parameters)
        return moved(part.parameters, part.quantized_parameters)

    parts = [
        (times * float(np.broadcast_to(count, (1,))[0]), part.bytes)
        for count, part in zip(step.largest.resident, costs.components, strict=True)
        if part is not None
    ]
    return [
        _Collective(
            operation=name + suffix,
            kind=kind,
            buffers=[(count, size(part, experts=bool(suffix))) for count, part in parts],
            members=shard_extents(step.table, replicas),
        )
        for suffix, (_, replicas) in zip(("", _EXPERTS), replica_groups(step), strict=True)
    ]


def _optimizer(step: Step) -> Iterator[OperationEstimate]:
    """Each part of the optimizer step that takes time."""
    if not step.table.training[0]:
        return
    costs, update = step.costs, Update.of(step)
    memory_rate, products_s = float(costs.memory_rate[0]), float(update.products_s[0])
    if products_s:
        times = dict.fromkeys(("compute_s", "time_s", "exposed_s"), products_s)
        flops = products_s * float(costs.matrix_rate[0])
        yield _row("optimizer.newton_schulz", "matmul", bound="compute", flops=flops, **times)
    moved = {
        "gradients": update.moved.sweeps,
        "update": update.moved.update - update.moved.copies,
        "weights": update.moved.copies,
        "quantize": update.quantizing_s * costs.memory_rate,
    }
    for name, size in moved.items():
        number = float(size[0])
        times = dict.fromkeys(("memory_s", "time_s", "exposed_s"), number / memory_rate)
        if number > 0:
            yield _row(f"optimizer.{name}", "memory", bound="memory", bytes=number, **times)
