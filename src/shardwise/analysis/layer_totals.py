"""What a layer adds up to, which bandwidths would hide what is exposed, and how efficient it is."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import isfinite

import numpy as np

from shardwise.analysis.recompute import ALL, exchanges_again, kept_bytes, parts_of, runs_again
from shardwise.analysis.results import (
    CommunicationTotals,
    Efficiency,
    LayerTotals,
    PhaseTotals,
    RequiredBandwidth,
)
from shardwise.arrays import Floats, combined, total
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import ComponentOperations, layer_bytes, layer_times, trained_on
from shardwise.cost.kernels import product_peak
from shardwise.cost.layer_times import COMM_AXES
from shardwise.cost.operations import CollectiveCost, OperationCost
from shardwise.cost.optimizer import (
    MUON,
    newton_schulz_time,
    optimizer_time,
    quantizing_time,
    state_bytes,
)
from shardwise.cost.trained_weights import TrainedWeights, trained_weights
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.overlap_windows import windows
from shardwise.engine.step_time import after_backward
from shardwise.engine.zero import shards
from shardwise.ops.operation import CollectiveKind, FlashAttention, Matmul, Phase

__all__ = ["efficiency", "layer_totals", "matrix_flops", "required_bandwidth", "update_flops"]

_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
_TENSOR = ("tp", "tp2")


def layer_totals(
    table: Table, evaluation: Evaluation, parts: Sequence[ComponentOperations]
) -> tuple[LayerTotals, ...]:
    """Each kind of layer of a table of one row: one layer, one micro-batch, one rank."""
    return tuple(
        _layer(count, costs, table, evaluation) for part, count, costs in parts if part == "layer"
    )


def _layer(
    count: int, costs: Sequence[OperationCost], table: Table, evaluation: Evaluation
) -> LayerTotals:
    blocks = evaluation.blocks
    training, parts = bool(table.training[0]), parts_of(table, "layer")
    gradient_bytes = blocks.gradient_bytes[0]
    parameters = sum(float(cost.operation.parameters[0]) for cost in costs)
    quantized = sum(float(cost.operation.read_quantized[0]) for cost in costs)
    changed = float(trained_weights([cost.operation for cost in costs], np.zeros(1)).quantized[0])
    weights = blocks.weight_sizes.held(np.array([parameters]), np.array([quantized]))
    owned, gradients = _shared(costs, table, 1), _shared(costs, table, 2)
    state = float(state_bytes(table.optimizer, blocks.element_bytes, owned)[0])
    working = max(float(cost.operation.working_bytes[0]) for cost in costs)
    checkpoint = float(blocks.boundary_bytes[0]) if parts == ALL else 0.0
    kept = checkpoint + sum(kept_bytes(cost, parts) for cost in costs)
    ahead = _of_phases(costs, Phase.FORWARD)
    back = _of_phases(costs, *_BACKWARD) if training else []
    gathered = [e for e in back if _regathers(e)]
    repeated = _of_phases([c for c in costs if exchanges_again(c, parts)], Phase.FORWARD)
    others = [*ahead, *back, *repeated]
    return LayerTotals(
        count=count,
        forward=_phase(costs, Phase.FORWARD),
        recompute=_phase(costs, Phase.FORWARD, [runs_again(cost, parts) for cost in costs]),
        input_grad=_phase(costs if training else [], Phase.INPUT_GRAD),
        weight_grad=_phase(costs if training else [], Phase.WEIGHT_GRAD),
        optimizer=_update(gradients, owned, quantized, changed, table, evaluation),
        tp_forward=_exchanges(ahead, *_TENSOR),
        tp_backward=_exchanges([e for e in back if not _regathers(e)], *_TENSOR),
        tp_again=_exchanges([*gathered, *repeated], *_TENSOR),
        cp=_exchanges(others, "cp"),
        ep=_exchanges(others, "ep", "etp"),
        parameters=parameters,
        weight_bytes=float(weights[0]),
        gradient_bytes=float(gradients.weights[0] * gradient_bytes) if training else 0.0,
        optimizer_bytes=state if training else 0.0,
        kept_bytes=kept if training else 0.0,
        working_bytes=working,
        boundary_bytes=float(evaluation.boundary.handed_bytes[0]),
    )


def matrix_flops(table: Table, evaluation: Evaluation, parts: Sequence[ComponentOperations]) -> int:
    """FLOPs of all matrix products and attention in a step of one row [FLOP].

    On one rank of every stage: those of each part of the model by its occurrences and the
    micro-batches, of recompute by the layers that run again, and Muon's by the copies of the
    weights. Exact but for one rounding of the sum.
    """
    again = _over_stages(evaluation, "work")
    phases = (Phase.FORWARD, *_BACKWARD) if table.training[0] else (Phase.FORWARD,)
    micro_batches, step = int(table.micro_batches[0]), update_flops(table, evaluation, parts)
    for place, (part, count, costs) in zip(_places(parts), parts, strict=True):
        rerun = [runs_again(cost, parts_of(table, part)) for cost in costs]
        once = sum((_exact_flops(costs, phase) for phase in phases), Fraction(0))
        step += micro_batches * count * once
        step += micro_batches * again[place] * _exact_flops(costs, Phase.FORWARD, rerun)
    return round(step)


def update_flops(
    table: Table, evaluation: Evaluation, parts: Sequence[ComponentOperations]
) -> Fraction:
    """FLOPs of Muon's products in a step of one row, on one rank of every stage [FLOP]."""
    held = _over_stages(evaluation, "held")
    kinds = sum(part == "layer" for part, _, _ in parts)
    flops = Fraction(0)
    for place, (part, _, costs) in zip(_places(parts), parts, strict=True):
        copies = held[place] + (held[kinds + place] if part == "layer" else 0)
        flops += copies * _muon_flops(table, costs)
    return flops


def _places(parts: Sequence[ComponentOperations]) -> list[int]:
    """Where each part stands in the order of `ComponentCosts.parts`."""
    kinds = sum(part == "layer" for part, _, _ in parts)
    ends = {"mtp": 2 * kinds, "embedding": 2 * kinds + 1, "head": 2 * kinds + 2}
    numbers = iter(range(kinds))
    return [ends[part] if part in ends else next(numbers) for part, _, _ in parts]


def _over_stages(evaluation: Evaluation, name: str) -> list[Fraction]:
    """How many of each part all stages have, in the order of `ComponentCosts.parts`."""
    runs = evaluation.runs
    places = range(len(runs[0].work))
    return [
        sum((Fraction(float(r.length[0] * getattr(r, name)[n][0])) for r in runs), Fraction(0))
        for n in places
    ]


def _exact_flops(
    costs: Sequence[OperationCost], phase: Phase, shares: Sequence[float] | None = None
) -> Fraction:
    """FLOPs of the matrix products of a phase, of each operation the share that runs."""
    ran = zip(costs, [1.0] * len(costs) if shares is None else shares, strict=True)
    products = [
        Fraction(share) * Fraction(float(timed.kernel.flops[0]))
        for cost, share in ran
        for timed in cost.kernels
        if timed.kernel.phase is phase and isinstance(timed.kernel, (Matmul, FlashAttention))
    ]
    return sum(products, Fraction(0))


def _muon_flops(table: Table, costs: Sequence[OperationCost]) -> Fraction:
    """FLOPs of making the updates of a part orthogonal, on one rank of those that share them."""
    if table.optimizer[0] != MUON or not table.training[0]:
        return Fraction(0)
    shared = Fraction(0)
    for routed, ranks in zip((False, True), shards(table, 1), strict=True):
        own = [cost.operation for cost in costs if cost.operation.expert is routed]
        flops = trained_weights(own, np.zeros(1)).newton_schulz_flops
        shared += Fraction(float(flops[0])) / Fraction(float(ranks[0]))
    return shared


def _regathers(cost: CollectiveCost) -> bool:
    """Whether an exchange only brings back what was not kept whole."""
    collective = cost.collective
    return collective.phase is Phase.WEIGHT_GRAD and collective.kind is CollectiveKind.ALL_GATHER


def _phase(
    costs: Sequence[OperationCost], phase: Phase, shares: Sequence[float] | None = None
) -> PhaseTotals:
    """Kernels of a phase, of each operation the share that runs."""
    ran = zip(costs, [1.0] * len(costs) if shares is None else shares, strict=True)
    kernels = [(k, share) for c, share in ran for k in c.kernels if k.kernel.phase is phase]
    products = [(k, s) for k, s in kernels if isinstance(k.kernel, (Matmul, FlashAttention))]
    return PhaseTotals(
        flops=_sum(share * k.kernel.flops for k, share in kernels),
        matrix_flops=_sum(share * k.kernel.flops for k, share in products),
        bytes=_sum(share * k.kernel.bytes for k, share in kernels),
        compute_s=_sum(share * k.compute_s for k, share in kernels),
        memory_s=_sum(share * k.memory_s for k, share in kernels),
        time_s=_sum(share * k.time_s for k, share in kernels),
    )


def _sum(columns: Iterable[Floats]) -> float:
    return float(sum(float(column[0]) for column in columns))


def _exchanges(every: Sequence[CollectiveCost], *axes: str) -> CommunicationTotals:
    costs = [cost for cost in every if cost.collective.axis in axes]
    return CommunicationTotals(
        volume_bytes=_sum(cost.collective.bytes for cost in costs),
        time_s=_sum(cost.time_s for cost in costs),
        exposed_s=_sum(cost.exposed_s for cost in costs),
    )


def _of_phases(costs: Iterable[OperationCost], *phases: Phase) -> list[CollectiveCost]:
    return [e for cost in costs for e in cost.exchanges if e.collective.phase in phases]


def _shared(costs: Sequence[OperationCost], table: Table, stage: int) -> TrainedWeights:
    """A rank's part of the trained weights of a layer, split from a stage of ZeRO on."""
    dense, expert = (
        trained_weights(
            [cost.operation for cost in costs if cost.operation.expert is routed], np.zeros(1)
        ).over(ranks)
        for routed, ranks in zip((False, True), shards(table, stage), strict=True)
    )
    return dense.plus(expert)


def _update(
    gradients: TrainedWeights,
    owned: TrainedWeights,
    quantized: float,
    changed: float,
    table: Table,
    evaluation: Evaluation,
) -> PhaseTotals:
    """The optimizer's part for one layer, once a step: its bytes, and Muon's matrix products."""
    blocks = evaluation.blocks
    trains = 1.0 if table.training[0] else 0.0
    time = optimizer_time(
        table,
        held=combined(lambda column: trains * column, gradients),
        owned=combined(lambda column: trains * column, owned),
        element_bytes=blocks.element_bytes,
        gradient_bytes=blocks.gradient_bytes,
        memory_rate=blocks.memory_rate,
        matrix_rate=blocks.matrix_rate,
    )
    quantizing = quantizing_time(
        table,
        quantized=np.array([trains * quantized]),
        trained=np.array([trains * changed]),
        sizes=blocks.weight_sizes,
        memory_rate=blocks.memory_rate,
    )
    seconds = float(time[0] + quantizing[0])
    rate = blocks.matrix_rate
    products = trains * float(newton_schulz_time(table.optimizer, owned, rate)[0])
    flops = products * float(rate[0])
    return PhaseTotals(
        flops=flops,
        matrix_flops=flops,
        bytes=(seconds - products) * float(blocks.memory_rate[0]),
        compute_s=products,
        memory_s=seconds - products,
        time_s=seconds,
    )


def required_bandwidth(
    table: Table,
    evaluation: Evaluation,
    parts: Sequence[ComponentOperations],
) -> RequiredBandwidth:
    """Least rates that would hide what a table of one row moves beside compute [byte/s].

    Tensor parallelism: the largest over the exchanges of a layer that have a product beside them,
    bytes of the buffer over time of the product, of all buffers of a 2D product together. Replicas:
    bytes of gradients over their windows (`replicas.windows`).
    """
    blocks, boundary, slowest = evaluation.blocks, evaluation.boundary, evaluation.slowest
    free = windows(
        table,
        evaluation.extents,
        pass_s=slowest.on(lambda t: t.backward_pass_s),
        inside_s={axis: slowest.alone("backward", axis) for axis in COMM_AXES},
        transfer_s=boundary.hidden * boundary.message_s,
    )
    replicated = (table.replicas > 1) & table.training
    held = evaluation.largest.all_trained.weights * blocks.gradient_bytes
    gradients = np.where(replicated, held, 0.0)
    rates = {
        "dp_chunks": _rate(gradients * (1 - 1 / table.vpp), free.chunks),
        "dp_tail": _rate(gradients / table.vpp, free.tail),
        **_offload_rates(table, evaluation),
    }
    plain = {name: float(rate[0]) for name, rate in rates.items()}
    plain["tp_overlap"] = _tp_overlap(table, parts)
    return RequiredBandwidth(**{name: r if isfinite(r) else None for name, r in plain.items()})


def _offload_rates(table: Table, evaluation: Evaluation) -> dict[str, Floats]:
    """Each part alone, whether or not it is offloaded, and all that is offloaded together.

    Weights and activations, of these the parts that are to move: of the average layer of the
    slowest stage over its pass; forward they go different ways, backward both come in. Optimizer
    state: of the stage that trains most, with what else comes in then, over the last backward pass
    and what follows it; what goes back meanwhile is no more.
    """
    blocks, training, slowest = evaluation.blocks, table.training, evaluation.slowest
    layers = np.maximum(np.sum(slowest.work[:-2], axis=0), 1.0)

    forward = layer_times(
        blocks, slowest.work, lambda t: t.forward_pass_s - t.offload_forward_exposed_s
    )
    backward = layer_times(
        blocks, slowest.work, lambda t: t.backward_pass_s - t.offload_backward_exposed_s
    )
    forward, backward = forward / layers, backward / layers
    least = np.where(training, np.minimum(forward, backward), forward)
    last = slowest.on(lambda t: t.backward_pass_s - t.offload_backward_exposed_s)
    last = last + after_backward(table, evaluation.time_s)
    element = blocks.element_bytes
    weights = blocks.weight_sizes.held(
        layer_bytes(blocks, slowest.work, lambda held: held.all_parameters),
        layer_bytes(blocks, slowest.work, lambda held: held.all_quantized_parameters),
    )
    weights = weights / layers
    kept = layer_bytes(blocks, slowest.work, lambda held: held.movable_bytes) / layers
    most = evaluation.largest.held
    dense, expert = shards(table, 1)
    trained, expert_trained = trained_on(blocks, most, layers=True)
    owned = trained.over(dense).plus(expert_trained.over(expert))
    state = np.where(training, state_bytes(table.optimizer, element, owned), 0.0)
    fetched = np.where(table.offload_weights, weights, 0.0)
    taken = np.where(table.offload_activations, kept, 0.0)
    updated = np.where(table.offload_optimizer, state, 0.0)
    back = np.where(training, fetched + taken, 0.0)
    together = (
        _rate(np.maximum(fetched, taken), forward),
        _rate(back, backward),
        _rate(back * layers + updated, last),
    )
    return {
        "offload_weights": _rate(weights, least),
        "offload_activations": _rate(kept, least),
        "offload_optimizer": _rate(state, last),
        "offload": np.maximum.reduce(together),
    }


def _rate(moved_bytes: Floats, window_s: Floats) -> Floats:
    """Bytes over a window; infinite where they have none, 0 where nothing moves."""
    has_window = window_s > 0
    rate = np.where(has_window, moved_bytes / np.where(has_window, window_s, 1.0), np.inf)
    return np.where(moved_bytes > 0, rate, 0.0)


def _tp_overlap(table: Table, parts: Sequence[ComponentOperations]) -> float:
    needed = [np.zeros(1)]
    for part, _, costs in parts:
        for cost in costs if part == "layer" else ():
            phases = (Phase.FORWARD, *_BACKWARD) if table.training[0] else (Phase.FORWARD,)
            for phase in phases:
                every = [exchange.collective for exchange in cost.exchanges]
                moved = [c.bytes for c in every if c.split_with is phase]
                in_panels = [c.bytes for c in every if c.panels is not None and c.phase is phase]
                moved += [total(in_panels, np.zeros(1))]
                needed += [_rate(size, cost.kernel_s(phase)) for size in moved if size[0] > 0]
    return max(float(rate[0]) for rate in needed)


def efficiency(
    system: System, table: Table, evaluation: Evaluation, step_flops: float
) -> Efficiency:
    """Shares of a step of one row: of the peak while computing, of compute in time, and both.

    compute = FLOPs / (peak x time of kernels), system = time of kernels / step, total = product.

    Parameters
    ----------
    step_flops
        Model FLOPs of one accelerator in a step.
    """
    peak = float(product_peak(system.accelerator, table)[0])
    parts = evaluation.time_s
    busy = float(parts["forward"][0] + parts["backward"][0] + parts["optimizer"][0])
    step = float(evaluation.step_time_s[0])
    return Efficiency(
        compute=step_flops / (peak * busy), system=busy / step, total=step_flops / (peak * step)
    )
