"""Components of a step, and every kernel and collective of one strategy: the rows of `--ops`.

A component is the embedding, a layer of one kind, a multi-token-prediction module or the head.
`cost.layer_cost` applies the same recompute rules to full columns.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from shardwise.analysis.results import OperationEstimate
from shardwise.arrays import Floats, Ints
from shardwise.config.enums import ZERO_GRADIENTS, ZERO_WEIGHTS, Recompute, RecomputePart
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.collective import NO_DATA, collective_time, transfer_time
from shardwise.cost.component_costs import ComponentOperations
from shardwise.cost.layer_cost import LayerBytes
from shardwise.cost.links import CollectiveTimes, Links
from shardwise.cost.operations import CollectiveCost, KernelCost, OperationCost
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
from shardwise.engine.zero import reduced_bytes
from shardwise.ops.operation import (
    CollectiveKind,
    FlashAttention,
    Matmul,
    Phase,
    Scan,
    SelectedAttention,
)
from shardwise.parallel.pipeline_layout import by_stage
from shardwise.records import dataclass, replace

FULL_LAYER = frozenset({"full"})
"""Value of `recomputed_parts` for full recompute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A component of the model and how often a rank of every stage runs it in a step."""

    name: str
    """`layer N` for a layer, with the number of its kind; otherwise the same as `part`."""
    part: str
    """embedding, layer, mtp or head."""
    kind: int
    """Number of the kind of layer; 0 for other components."""
    count: int
    """How often it occurs in the model."""
    costs: Sequence[OperationCost]
    recomputed: frozenset[str]
    """What recompute repeats of it (`recomputed_parts`)."""
    runs: float
    """Times that a micro-batch passes it, in a step of one replica."""
    reruns: float
    """Those of `runs` that recompute repeats; 0 where it repeats nothing of this component."""
    copies: float
    """How many copies of its weights the stages hold."""


def components_of(evaluation: Evaluation) -> list[Component]:
    """Components of a table of one row, counted over all pipeline stages."""

    def over_stages(name: str) -> list[float]:
        counts = [
            [float(run.length[0] * count[0]) for count in getattr(run, name)]
            for run in evaluation.step.groups
        ]
        return [sum(column) for column in zip(*counts, strict=True)]

    return list(_counted(evaluation, over_stages("work"), over_stages("resident")))


def critical_stage_components(
    evaluation: Evaluation, parts: Sequence[ComponentOperations] | None = None
) -> list[Component]:
    """Components of a table of one row, as often as the critical stage runs them.

    Parameters
    ----------
    parts
        Operations in place of those of the table.
    """
    work = [float(np.broadcast_to(count, (1,))[0]) for count in evaluation.step.critical.work]
    return list(_counted(evaluation, work, work, parts))


def stage_components(evaluation: Evaluation, stage: int | None) -> list[Component]:
    """Components of a table of one row, as often as one stage runs them; None: the critical one."""
    if stage is None:
        return critical_stage_components(evaluation)
    stages = by_stage(evaluation.step.groups)
    work, resident = (
        [float(count[stage]) for count in counts] for counts in (stages.work, stages.resident)
    )
    return list(_counted(evaluation, work, resident))


def _counted(
    evaluation: Evaluation,
    work: Sequence[float],
    resident: Sequence[float],
    parts: Sequence[ComponentOperations] | None = None,
) -> Iterator[Component]:
    """Count components in the order of `ComponentCosts.parts`.

    That order is: each kind of layer with recompute, each kind without it, mtp, embedding, head.
    """
    table, parts = evaluation.step.table, parts or evaluation.parts
    kinds = sum(part == "layer" for part, _, _ in parts)
    positions = {"mtp": 2 * kinds, "embedding": 2 * kinds + 1, "head": 2 * kinds + 2}
    micro_batches = float(table.micro_batches[0])
    kind = 0
    for part, count, costs in parts:
        is_layer = part == "layer"
        places = [kind, kinds + kind] if is_layer else [positions[part]]
        recomputed = recomputed_parts(table, part)
        runs = [micro_batches * work[place] for place in places]
        yield Component(
            name=f"layer {kind}" if is_layer else part,
            part=part,
            kind=kind if is_layer else 0,
            count=count,
            costs=costs,
            recomputed=recomputed,
            runs=sum(runs),
            reruns=runs[0] if recomputed else 0.0,
            copies=sum(resident[place] for place in places),
        )
        kind += is_layer


def recomputed_parts(table: Table, component: str) -> frozenset[str]:
    """Names of what is recomputed of a component, in a table of one row.

    Empty without recompute, for embedding and head, and forward only; `FULL_LAYER`, or some of
    `enums.RecomputePart`.
    """
    if component not in ("layer", "mtp") or not table.training[0]:
        return frozenset()
    mode = Recompute.from_code(int(table.recompute[0]))
    if mode == "selective":
        return frozenset(RecomputePart.from_bits(int(table.recompute_parts[0])))
    return FULL_LAYER if mode == "full" else frozenset()


def rerun_share(cost: OperationCost, recomputed: frozenset[str]) -> float:
    """Share of an operation's forward kernels that runs again before its backward."""
    rerunning = recomputed & cost.operation.reruns_with
    if rerunning == {"every_other"}:
        return cost.operation.rerun_share
    return float(recomputed == FULL_LAYER or bool(rerunning))


def repeats_collectives(cost: OperationCost, recomputed: frozenset[str]) -> bool:
    """Whether its forward collectives run again too: `every_other` saves their results."""
    return recomputed == FULL_LAYER or bool(
        recomputed & cost.operation.reruns_with - {"every_other"}
    )


def saved_activation_bytes(cost: OperationCost, recomputed: frozenset[str]) -> float:
    """Activations of an operation saved for backward [byte].

    0 with full recompute, which saves the input of the layer alone.
    """
    if recomputed == FULL_LAYER:
        return 0.0
    return float(cost.operation.saved_bytes[0] - cost.operation.rebuilt_by(recomputed)[0])


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
            return trained.weights * reduced_bytes(step.table, costs)
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
    if host_s := float(update.host_s[0]):
        times = dict.fromkeys(("memory_s", "time_s", "exposed_s"), host_s)
        yield _row("optimizer.host", "memory", bound="memory", **times)
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


_SHARED = ("flops", "bytes", "compute_s", "memory_s", "time_s", "exposed_s")
_KINDS = {
    Matmul: "matmul",
    FlashAttention: "attention",
    SelectedAttention: "attention",
    Scan: "scan",
}


def operation_estimates(evaluation: Evaluation) -> tuple[OperationEstimate, ...]:
    """List the kernels and collectives of a table of one row.

    For one micro-batch: embedding, a layer of each kind and head, with what recompute repeats. Then
    for the full step (`step_operations`): pipeline transfers, each data-parallel collective, and
    the parts of the optimizer.
    """
    step, table, blocks = evaluation.step, evaluation.step.table, evaluation.step.costs
    training = bool(table.training[0])
    times = CollectiveTimes(Links.of(step.system, table, step.extents))
    rows: list[OperationEstimate] = []
    first = 0
    for part, count, costs in evaluation.parts:
        recomputed = recomputed_parts(table, part)
        for position, cost in enumerate(costs):
            saved = saved_activation_bytes(cost, recomputed) if training else 0.0
            if recomputed == FULL_LAYER and position == 0:
                saved = float(blocks.boundary_bytes[0])
            ran = [
                row
                for row in _rows(part, count, cost, times)
                if training or row.phase == Phase.FORWARD
            ]
            if ran:
                one = cost.operation
                sizes = blocks.weight_sizes
                weights = float(sizes.resident(one.parameters, one.read_quantized)[0])
                update = {"weight_bytes": weights, "saved_bytes": saved}
                ran[0] = ran[0].model_copy(update=update)
                first = len(rows)
            elif saved:  # fused into the kernel before it, like the softmax of flash attention
                saved += rows[first].saved_bytes
                rows[first] = rows[first].model_copy(update={"saved_bytes": saved})
            rows += ran
        rows += [row for cost in costs for row in _recomputed(part, count, cost, times, recomputed)]
    rows += step_operations(evaluation)
    return tuple(row.model_copy(update=_network(step.system, row)) for row in rows)


def _network(system: System, row: OperationEstimate) -> dict[str, object]:
    """The outermost tier that a collective crosses, and its bandwidth for one accelerator."""
    if row.group == 1 or not row.extents:
        return {}
    tier = row.extents.index(row.group)
    name, bandwidth = system.network[tier].name, system.tier_bandwidth(tier)
    return {"network": name, "link_bandwidth": bandwidth}


def missed_operations(evaluation: Evaluation) -> tuple[str, ...]:
    """Operations with a kernel that is unlike all shapes in the system's measured tables."""
    training = bool(evaluation.step.table.training[0])
    names = [
        cost.operation.name
        for _, _, costs in evaluation.parts
        for cost in costs
        for timed in cost.kernels
        if timed.missed[0] and timed.time_s[0] > 0
        if training or timed.kernel.phase is Phase.FORWARD
    ]
    return tuple(dict.fromkeys(names))


def _rows(
    part: str, count: int, cost: OperationCost, times: CollectiveTimes
) -> Iterator[OperationEstimate]:
    for kernel in cost.kernels:
        if kernel.time_s[0] > 0:
            yield _kernel_row(part, count, cost, kernel)
    for collective in cost.collectives:
        if collective.time_s[0] > 0:
            yield _collective_row(part, count, cost, collective, times)


def _recomputed(
    part: str, count: int, cost: OperationCost, times: CollectiveTimes, recomputed: frozenset[str]
) -> Iterator[OperationEstimate]:
    """What recompute repeats of an operation."""
    share = rerun_share(cost, recomputed)
    for row in _rows(part, count, cost, times):
        if (
            row.phase == Phase.FORWARD
            and share > 0
            and (row.group == 1 or repeats_collectives(cost, recomputed))
        ):
            figures = {name: share * getattr(row, name) for name in _SHARED} if share < 1 else {}
            yield row.model_copy(update={"phase": "recompute"} | figures)


def _kernel_row(part: str, count: int, cost: OperationCost, timed: KernelCost) -> OperationEstimate:
    kernel = timed.kernel
    compute, memory, time = (float(t[0]) for t in (timed.compute_s, timed.memory_s, timed.time_s))
    return OperationEstimate(
        part=part,
        operation=cost.operation.name,
        phase=kernel.phase.value,
        count=count,
        kind=_KINDS.get(type(kernel), "memory"),
        flops=float(kernel.flops[0]),
        bytes=float(kernel.bytes[0]),
        compute_s=compute,
        memory_s=memory,
        time_s=time,
        exposed_s=time,
        bound=bound_by(timed),
        missed=bool(timed.missed[0]),
    )


def bound_by(timed: KernelCost) -> str:
    """What limits a kernel: compute, memory or launch."""
    compute, memory, time = (float(t[0]) for t in (timed.compute_s, timed.memory_s, timed.time_s))
    spent = {"compute": compute, "memory": memory, "launch": time - max(compute, memory)}
    return max(spent, key=lambda name: spent[name])


def _collective_row(
    part: str, count: int, cost: OperationCost, timed: CollectiveCost, times: CollectiveTimes
) -> OperationEstimate:
    collective = timed.collective
    empty = replace(collective, bytes=np.full_like(collective.bytes, NO_DATA))
    return OperationEstimate(
        part=part,
        operation=cost.operation.name,
        phase=collective.phase.value,
        count=count,
        kind=collective.kind.value,
        axis=collective.axis,
        volume_bytes=float(collective.bytes[0]),
        time_s=float(timed.time_s[0]),
        exposed_s=float(timed.exposed_s[0]),
        bound="network",
        latency_s=float(times.alone_s(empty)[0]),
        **members_of(times.links.extents[collective.axis]),
    )
