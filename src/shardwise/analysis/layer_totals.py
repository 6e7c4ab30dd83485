"""Totals of a layer, FLOPs of a step, minimum bandwidths that hide communication, efficiency."""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import isfinite

import numpy as np

from shardwise.analysis.components import (
    FULL_LAYER,
    components_of,
    recomputed_parts,
    repeats_collectives,
    rerun_share,
    saved_activation_bytes,
)
from shardwise.analysis.results import (
    CommunicationTotals,
    Efficiency,
    LayerTotals,
    PhaseTotals,
    RequiredBandwidth,
)
from shardwise.arrays import Floats, combined, total
from shardwise.config.strategy_table import Table
from shardwise.config.system import FULL_DUPLEX
from shardwise.cost.component_costs import summed, trained_on
from shardwise.cost.kernels import product_peak
from shardwise.cost.layer_cost import LayerCost
from shardwise.cost.offload import both_ways_time, link_duplex
from shardwise.cost.operations import CollectiveCost, OperationCost
from shardwise.cost.optimizer import (
    MUON,
    TrainedWeights,
    state_bytes,
    trained_weights,
)
from shardwise.engine.data_parallel import backward_windows
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.step_time import Update, after_backward
from shardwise.engine.zero import shards
from shardwise.ops.operation import CollectiveKind, FlashAttention, Matmul, Phase

_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
_TENSOR = ("tp", "tp2")


def layer_totals(evaluation: Evaluation) -> tuple[LayerTotals, ...]:
    """One layer of each kind on one rank, for one micro-batch of a table of one row."""
    return tuple(
        _layer(count, costs, evaluation)
        for part, count, costs in evaluation.parts
        if part == "layer"
    )


def _layer(count: int, costs: Sequence[OperationCost], evaluation: Evaluation) -> LayerTotals:
    table, blocks = evaluation.step.table, evaluation.step.costs
    training, recomputed = bool(table.training[0]), recomputed_parts(table, "layer")
    parameters = sum(float(cost.operation.parameters[0]) for cost in costs)
    quantized = sum(float(cost.operation.read_quantized[0]) for cost in costs)
    weights = blocks.weight_sizes.resident(np.array([parameters]), np.array([quantized]))
    owned, gradients = _trained_shard(costs, table, 1), _trained_shard(costs, table, 2)
    state = float(state_bytes(table.optimizer, blocks.weight_sizes.master, owned)[0])
    checkpoint = float(blocks.boundary_bytes[0]) if recomputed == FULL_LAYER else 0.0
    saved = checkpoint + sum(saved_activation_bytes(cost, recomputed) for cost in costs)
    forward = _collectives(costs, Phase.FORWARD)
    backward = _collectives(costs, *_BACKWARD) if training else []
    repeating = [cost for cost in costs if repeats_collectives(cost, recomputed)]
    repeated = _collectives(repeating, Phase.FORWARD)
    every = [*forward, *backward, *repeated]
    return LayerTotals(
        count=count,
        forward=_phase(costs, Phase.FORWARD),
        recompute=_phase(costs, Phase.FORWARD, [rerun_share(cost, recomputed) for cost in costs]),
        input_grad=_phase(costs if training else [], Phase.INPUT_GRAD),
        weight_grad=_phase(costs if training else [], Phase.WEIGHT_GRAD),
        optimizer=_update(costs, gradients, owned, quantized, evaluation),
        tp_forward=_communication(forward, *_TENSOR),
        tp_backward=_communication([c for c in backward if not _regathers(c)], *_TENSOR),
        tp_again=_communication([*filter(_regathers, backward), *repeated], *_TENSOR),
        cp=_communication(every, "cp"),
        ep=_communication(every, "ep", "etp"),
        parameters=parameters,
        weight_bytes=float(weights[0]),
        gradient_bytes=float(gradients.weights[0] * blocks.gradient_bytes[0]) if training else 0.0,
        optimizer_bytes=state if training else 0.0,
        kept_bytes=saved if training else 0.0,
        working_bytes=max(float(cost.operation.working_bytes[0]) for cost in costs),
        boundary_bytes=float(evaluation.step.boundary.sent_bytes[0]),
    )


def matrix_flops(evaluation: Evaluation) -> int:
    """FLOPs of all GEMMs and attention in a step of one row, on one rank of every stage [FLOP].

    Sum over components of runs x FLOPs of forward and backward + reruns x FLOPs of recompute, plus
    Muon's products. Exact but for one rounding of the sum.
    """
    training = evaluation.step.table.training[0]
    phases = (Phase.FORWARD, *_BACKWARD) if training else (Phase.FORWARD,)
    step = update_flops(evaluation)
    for component in components_of(evaluation):
        costs = component.costs
        once = sum((_exact_flops(costs, phase) for phase in phases), Fraction(0))
        step += Fraction(component.runs) * once
        if component.reruns:
            rerun = [rerun_share(cost, component.recomputed) for cost in costs]
            step += Fraction(component.reruns) * _exact_flops(costs, Phase.FORWARD, rerun)
    return round(step)


def update_flops(evaluation: Evaluation) -> Fraction:
    """FLOPs of Muon's products in a step of one row, on one rank of every stage [FLOP].

    Newton-Schulz iterations on the matrices of every component, divided by the ranks that share
    them; 0 for other optimizers and forward only.
    """
    table = evaluation.step.table
    if table.optimizer[0] != MUON or not table.training[0]:
        return Fraction(0)
    step = Fraction(0)
    for component in components_of(evaluation):
        for is_expert, ranks in zip((False, True), shards(table, 1), strict=True):
            own = [c.operation for c in component.costs if c.operation.expert is is_expert]
            flops = Fraction(float(trained_weights(own, np.zeros(1)).newton_schulz_flops[0]))
            step += Fraction(component.copies) * flops / Fraction(float(ranks[0]))
    return step


def _exact_flops(
    costs: Sequence[OperationCost], phase: Phase, shares: Sequence[float] | None = None
) -> Fraction:
    """FLOPs of the GEMMs and attention of a phase, each operation times its share."""
    ran = zip(costs, [1.0] * len(costs) if shares is None else shares, strict=True)
    products = [
        Fraction(share) * Fraction(float(timed.kernel.flops[0]))
        for cost, share in ran
        for timed in cost.kernels
        if timed.kernel.phase is phase and isinstance(timed.kernel, (Matmul, FlashAttention))
    ]
    return sum(products, Fraction(0))


def _regathers(cost: CollectiveCost) -> bool:
    """Whether it is an all-gather of a saved tensor of which each rank saved a shard."""
    collective = cost.collective
    return collective.phase is Phase.WEIGHT_GRAD and collective.kind is CollectiveKind.ALL_GATHER


def _phase(
    costs: Sequence[OperationCost], phase: Phase, shares: Sequence[float] | None = None
) -> PhaseTotals:
    """Kernels of a phase, each operation times its share."""
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


def _communication(collectives: Sequence[CollectiveCost], *axes: str) -> CommunicationTotals:
    costs = [cost for cost in collectives if cost.collective.axis in axes]
    return CommunicationTotals(
        volume_bytes=_sum(cost.collective.bytes for cost in costs),
        time_s=_sum(cost.time_s for cost in costs),
        exposed_s=_sum(cost.exposed_s for cost in costs),
    )


def _collectives(costs: Iterable[OperationCost], *phases: Phase) -> list[CollectiveCost]:
    return [e for cost in costs for e in cost.collectives if e.collective.phase in phases]


def _trained_shard(costs: Sequence[OperationCost], table: Table, stage: int) -> TrainedWeights:
    """Trained weights of a layer on one rank, sharded from a ZeRO stage on."""
    dense, expert = (
        trained_weights(
            [cost.operation for cost in costs if cost.operation.expert is is_expert], np.zeros(1)
        ).over(ranks)
        for is_expert, ranks in zip((False, True), shards(table, stage), strict=True)
    )
    return dense.plus(expert)


def _update(
    costs: Sequence[OperationCost],
    gradients: TrainedWeights,
    owned: TrainedWeights,
    quantized: float,
    evaluation: Evaluation,
) -> PhaseTotals:
    """The optimizer update of one layer in a step: its bytes, and Muon's matrix products."""
    trained = trained_weights([cost.operation for cost in costs], np.zeros(1)).quantized[0]
    table, blocks = evaluation.step.table, evaluation.step.costs
    trains = 1.0 if table.training[0] else 0.0
    reduced, owned = (combined(lambda n: trains * n, some) for some in (gradients, owned))
    update = Update.of_weights(
        table,
        blocks,
        reduced=reduced,
        owned=owned,
        quantized=np.array([trains * quantized]),
        trained=np.array([trains * trained]),
    )
    products, rate = float(update.products_s[0]), float(blocks.memory_rate[0])
    seconds = float(update.moved.total[0] / rate) + products + float(update.quantizing_s[0])
    flops = products * float(blocks.matrix_rate[0])
    return PhaseTotals(
        flops=flops,
        matrix_flops=flops,
        bytes=(seconds - products) * rate,
        compute_s=products,
        memory_s=seconds - products,
        time_s=seconds,
    )


def required_bandwidth(evaluation: Evaluation) -> RequiredBandwidth:
    """Minimum bandwidths that would hide transfers behind compute, for one row [byte/s].

    Tensor parallelism: the largest over the collectives of a layer that overlap with a GEMM, bytes
    of the buffer over time of the GEMM (of a 2D product, all buffers together). Data parallelism:
    bytes of gradients over their overlap windows (`engine.data_parallel`).
    """
    step, table = evaluation.step, evaluation.step.table
    window = backward_windows(step, step.critical.on(lambda t: t.backward_pass_s))
    replicated = (table.replicas > 1) & table.training
    trained = step.largest.all_trained.weights * step.costs.gradient_bytes
    gradients = np.where(replicated, trained, 0.0)
    rates = {
        "dp_chunks": _rate(gradients * (1 - 1 / table.vpp), window.chunks),
        "dp_tail": _rate(gradients / table.vpp, window.tail),
        **_offload_rates(evaluation),
    }
    plain = {name: float(rate[0]) for name, rate in rates.items()}
    plain["tp_overlap"] = _tp_overlap(evaluation)
    return RequiredBandwidth(**{name: r if isfinite(r) else None for name, r in plain.items()})


def _offload_rates(evaluation: Evaluation) -> dict[str, Floats]:
    """Bandwidths that hide offload: of each kind of data alone, and of all that is offloaded.

    Weights and activations (those that may move): of the average layer of the critical stage, over
    its pass. In a forward pass they move in opposite directions, in a backward pass both come in.
    Optimizer state: of the stage that trains the most weights, together with what else comes in,
    over the last backward pass and what follows it. What moves out at the same time is not more;
    where the directions slow each other down, it counts (`HostMemory.duplex`).
    """
    step, table, blocks = evaluation.step, evaluation.step.table, evaluation.step.costs
    training, critical = table.training, step.critical
    layers = np.maximum(np.sum(critical.work[:-2], axis=0), 1.0)

    def average(select: Callable[[LayerCost], Floats]) -> Floats:
        return summed(blocks, critical.work, select, layers=True) / layers

    forward = average(lambda one: one.times.forward_pass_s - one.times.offload_forward_exposed_s)
    backward = average(lambda one: one.times.backward_pass_s - one.times.offload_backward_exposed_s)
    shorter = np.where(training, np.minimum(forward, backward), forward)
    last = critical.on(lambda t: t.backward_pass_s - t.offload_backward_exposed_s)
    last = last + after_backward(table, evaluation.time_s)
    weights = blocks.weight_sizes.resident(
        summed(blocks, critical.work, lambda one: one.bytes.all_parameters, layers=True),
        summed(blocks, critical.work, lambda one: one.bytes.all_quantized_parameters, layers=True),
    )
    weights = weights / layers
    activations = average(lambda one: one.bytes.movable_bytes)
    dense, expert = shards(table, 1)
    trained, expert_trained = trained_on(blocks, step.largest.resident, layers=True)
    owned = trained.over(dense).plus(expert_trained.over(expert))
    state = np.where(training, state_bytes(table.optimizer, blocks.weight_sizes.master, owned), 0.0)
    moved_weights = np.where(table.offload_weights, weights, 0.0)
    moved_activations = np.where(table.offload_activations, activations, 0.0)
    moved_state = np.where(table.offload_optimizer, state, 0.0)
    in_backward = np.where(training, moved_weights + moved_activations, 0.0)
    duplex = link_duplex(step.system)
    loaded, stored = in_backward * layers + moved_state, moved_weights * layers + moved_state
    shared = np.where(stored > 0, (loaded + stored) / duplex, 0.0)
    together = (
        _rate(both_ways_time(moved_weights, moved_activations, duplex), forward),
        _rate(in_backward, backward),
        _rate(np.where(duplex < FULL_DUPLEX, np.maximum(loaded, shared), loaded), last),
    )
    return {
        "offload_weights": _rate(weights, shorter),
        "offload_activations": _rate(activations, shorter),
        "offload_optimizer": _rate(state, last),
        "offload": np.maximum.reduce(together),
    }


def _rate(moved_bytes: Floats, window_s: Floats) -> Floats:
    """Bytes over the time of a window; infinite without a window, 0 where nothing moves."""
    has_window = window_s > 0
    rate = np.where(has_window, moved_bytes / np.where(has_window, window_s, 1.0), np.inf)
    return np.where(moved_bytes > 0, rate, 0.0)


def _tp_overlap(evaluation: Evaluation) -> float:
    """Largest bandwidth that a collective needs to hide behind the GEMM that it overlaps."""
    training = evaluation.step.table.training[0]
    phases = (Phase.FORWARD, *_BACKWARD) if training else (Phase.FORWARD,)
    needed = [np.zeros(1)]
    for cost in (cost for part, _, costs in evaluation.parts if part == "layer" for cost in costs):
        collectives = [timed.collective for timed in cost.collectives]
        for phase in phases:
            moved = [c.bytes for c in collectives if c.split_with is phase]
            panels = [c.bytes for c in collectives if c.panels is not None and c.phase is phase]
            moved.append(total(panels, np.zeros(1)))
            needed += [_rate(size, cost.kernel_s(phase)) for size in moved if size[0] > 0]
    return max(float(rate[0]) for rate in needed)


def efficiency(evaluation: Evaluation, step_flops: float) -> Efficiency:
    """Efficiency of a step of one row, with `step_flops` model FLOPs of an accelerator in it.

    compute = FLOPs / (peak x time of kernels), system = time of kernels / step, total = product.
    """
    peak = float(product_peak(evaluation.step.system.accelerator, evaluation.step.table)[0])
    time_s = evaluation.time_s
    busy = float(time_s["forward"][0] + time_s["backward"][0] + time_s["optimizer"][0])
    step = float(evaluation.step_time_s[0])
    return Efficiency(
        compute=step_flops / (peak * busy), system=busy / step, total=step_flops / (peak * step)
    )
