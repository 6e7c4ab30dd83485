"""What a layer adds up to, which bandwidths would hide what is exposed, and how efficient it is."""

from collections.abc import Iterable, Sequence
from math import isfinite

import numpy as np

from shardwise.arrays import Floats
from shardwise.blocks import PartCosts
from shardwise.cost.data_parallel import optimizer_time
from shardwise.cost.kernels import by_dtype
from shardwise.cost.operations import ExchangeCost, KernelCost, OperationCost
from shardwise.evaluate import Evaluation
from shardwise.memory import optimizer_state_bytes
from shardwise.model import Model
from shardwise.ops.operation import CollectiveKind, FlashAttention, Matmul, Phase
from shardwise.recompute import kept_bytes, mode_of, runs_again
from shardwise.replicas import windows
from shardwise.results import (
    Efficiency,
    ExchangeTotals,
    LayerTotals,
    PhaseTotals,
    RequiredBandwidth,
)
from shardwise.slowest import SlowestStage
from shardwise.stages import most_layers
from shardwise.system import System
from shardwise.table import Table

__all__ = ["efficiency", "layer_totals", "required_bandwidth"]

_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


def layer_totals(
    table: Table, evaluation: Evaluation, parts: Sequence[PartCosts]
) -> tuple[LayerTotals, ...]:
    """Each kind of layer of a table of one row: one layer, one micro-batch, one rank."""
    return tuple(
        _layer(count, costs, table, evaluation) for part, count, costs in parts if part == "layer"
    )


def _layer(
    count: int, costs: Sequence[OperationCost], table: Table, evaluation: Evaluation
) -> LayerTotals:
    blocks = evaluation.blocks
    training, mode = bool(table.training[0]), mode_of(table, "layer")
    again = [cost for cost in costs if runs_again(cost, mode)]
    element_bytes, gradient_bytes = blocks.element_bytes[0], blocks.gradient_bytes[0]
    parameters = sum(float(cost.operation.parameters[0]) for cost in costs)
    state = float(optimizer_state_bytes(blocks.element_bytes)[0]) / int(table.optimizer_shards[0])
    working = max(float(cost.operation.working_bytes[0]) for cost in costs)
    checkpoint = float(blocks.boundary_bytes[0]) if mode == "full" else 0.0
    kept = checkpoint + sum(kept_bytes(cost, mode) for cost in costs)
    exchanges = [exchange for cost in costs for exchange in cost.exchanges]
    ahead = [e for e in exchanges if e.collective.phase is Phase.FORWARD]
    back = [e for e in exchanges if e.collective.phase in _BACKWARD and training]
    gathered = [e for e in back if _regathers(e)]
    repeated = ahead if mode == "full" else []
    return LayerTotals(
        count=count,
        forward=_phase(costs, Phase.FORWARD),
        recompute=_phase(again, Phase.FORWARD),
        input_grad=_phase(costs if training else [], Phase.INPUT_GRAD),
        weight_grad=_phase(costs if training else [], Phase.WEIGHT_GRAD),
        optimizer=_update(parameters, table, evaluation),
        tp_forward=_exchanges(ahead),
        tp_backward=_exchanges([e for e in back if not _regathers(e)]),
        tp_again=_exchanges([*gathered, *repeated]),
        parameters=parameters,
        weight_bytes=parameters * float(element_bytes),
        gradient_bytes=parameters * float(gradient_bytes) if training else 0.0,
        optimizer_bytes=parameters * state if training else 0.0,
        kept_bytes=kept if training else 0.0,
        working_bytes=working,
        boundary_bytes=float(evaluation.boundary.handed_bytes[0]),
    )


def _regathers(cost: ExchangeCost) -> bool:
    """Whether an exchange only brings back what was not kept whole."""
    collective = cost.collective
    return collective.phase is Phase.WEIGHT_GRAD and collective.kind is CollectiveKind.ALL_GATHER


def _phase(costs: Iterable[OperationCost], phase: Phase) -> PhaseTotals:
    kernels = [k for cost in costs for k in cost.kernels if k.kernel.phase is phase]
    products = [k for k in kernels if isinstance(k.kernel, (Matmul, FlashAttention))]
    return PhaseTotals(
        flops=_sum(k.kernel.flops for k in kernels),
        matrix_flops=_sum(k.kernel.flops for k in products),
        bytes=_sum(k.kernel.bytes for k in kernels),
        **_times(kernels),
    )


def _times(kernels: Sequence[KernelCost]) -> dict[str, float]:
    return {
        "compute_s": _sum(k.compute_s for k in kernels),
        "memory_s": _sum(k.memory_s for k in kernels),
        "time_s": _sum(k.time_s for k in kernels),
    }


def _sum(columns: Iterable[Floats]) -> float:
    return float(sum(float(column[0]) for column in columns))


def _exchanges(costs: Sequence[ExchangeCost]) -> ExchangeTotals:
    return ExchangeTotals(
        volume_bytes=_sum(cost.collective.bytes for cost in costs),
        time_s=_sum(cost.time_s for cost in costs),
        exposed_s=_sum(cost.exposed_s for cost in costs),
    )


def _update(parameters: float, table: Table, evaluation: Evaluation) -> PhaseTotals:
    """The optimizer's part for one layer, once a step: its time is that of its bytes."""
    blocks = evaluation.blocks
    held = np.array([parameters if table.training[0] else 0.0])
    time = optimizer_time(
        parameters=held,
        owned=held / table.optimizer_shards,
        element_bytes=blocks.element_bytes,
        gradient_bytes=blocks.gradient_bytes,
        memory_rate=blocks.memory_rate,
    )
    seconds = float(time[0])
    return PhaseTotals(
        flops=0.0,
        matrix_flops=0.0,
        bytes=seconds * float(blocks.memory_rate[0]),
        compute_s=0.0,
        memory_s=seconds,
        time_s=seconds,
    )


def required_bandwidth(
    model: Model,
    table: Table,
    evaluation: Evaluation,
    parts: Sequence[PartCosts],
) -> RequiredBandwidth:
    """Least rates that would hide what a table of one row moves beside compute [byte/s].

    Tensor parallelism: the largest over the exchanges of a layer that have a product beside them,
    bytes of the buffer over time of the product. Replicas: bytes of gradients over their windows
    (`replicas.windows`).
    """
    blocks, boundary = evaluation.blocks, evaluation.boundary
    slowest = SlowestStage.of(model, table, blocks)
    free = windows(
        table,
        evaluation.extents,
        pass_s=slowest.on("backward_pass_s"),
        tp_s=slowest.on("tp_backward_s"),
        transfer_s=boundary.hidden * boundary.message_s,
    )
    replicated = (table.dp > 1) & table.training
    gradients = np.where(replicated, evaluation.parameters * blocks.gradient_bytes, 0.0)
    rates = {
        "dp_chunks": _rate(gradients * (1 - 1 / table.vpp), free.chunks),
        "dp_tail": _rate(gradients / table.vpp, free.tail),
        **_offload_rates(model, table, evaluation, slowest),
    }
    plain = {name: float(rate[0]) for name, rate in rates.items()}
    plain["tp_overlap"] = _tp_overlap(table, parts)
    return RequiredBandwidth(**{name: r if isfinite(r) else None for name, r in plain.items()})


def _offload_rates(
    model: Model, table: Table, evaluation: Evaluation, slowest: SlowestStage
) -> dict[str, Floats]:
    """Each part alone, whether or not it is offloaded, and all that is offloaded together.

    Weights and activations: of one layer over its pass; forward they go different ways, backward
    both come in. Optimizer state: of the stage, with what else comes in then, over the last
    backward pass and the update; what goes back meanwhile is no more.
    """
    blocks, depth = evaluation.blocks, model.depth
    layers, training = blocks.layers, table.training
    forward = (layers.forward_pass_s - layers.offload_forward_exposed_s) / depth
    backward = (layers.backward_pass_s - layers.offload_backward_exposed_s) / depth
    least = np.where(training, np.minimum(forward, backward), forward)
    last = slowest.on("backward_pass_s") - slowest.on("offload_backward_exposed_s")
    last = last + evaluation.time_s["optimizer"]
    weights = layers.parameters / depth * blocks.element_bytes
    kept = layers.saved_bytes / depth
    each = optimizer_state_bytes(blocks.element_bytes) / table.optimizer_shards
    state = layers.parameters / depth * most_layers(depth, table.pp) * each
    state = np.where(training, state, 0.0)
    fetched = np.where(table.offload_weights, weights, 0.0)
    taken = np.where(table.offload_activations, kept, 0.0)
    updated = np.where(table.offload_optimizer, state, 0.0)
    back = np.where(training, fetched + taken, 0.0)
    together = (
        _rate(np.maximum(fetched, taken), forward),
        _rate(back, backward),
        _rate(back * slowest.layers * depth + updated, last),
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


def _tp_overlap(table: Table, parts: Sequence[PartCosts]) -> float:
    needed = [np.zeros(1)]
    for part, _, costs in parts:
        for cost in costs if part == "layer" else ():
            for exchange in cost.exchanges:
                beside = exchange.collective.split_with
                if beside is None or (beside is not Phase.FORWARD and not table.training[0]):
                    continue
                needed.append(_rate(exchange.collective.bytes, cost.kernel_s(beside)))
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
    peak = float(by_dtype(system.accelerator.matrix, table)[0])
    parts = evaluation.time_s
    busy = float(parts["forward"][0] + parts["backward"][0] + parts["optimizer"][0])
    step = float(evaluation.step_time_s[0])
    return Efficiency(
        compute=step_flops / (peak * busy), system=busy / step, total=step_flops / (peak * step)
    )
