"""What a layer adds up to, which bandwidths would hide what is exposed, and how efficient it is."""

from collections.abc import Iterable, Sequence

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
from shardwise.placement import Extents
from shardwise.replicas import windows
from shardwise.results import (
    Efficiency,
    ExchangeTotals,
    LayerTotals,
    PhaseTotals,
    RequiredBandwidth,
)
from shardwise.slowest import SlowestStage, boundary_time
from shardwise.strategy import RECOMPUTES
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
    recompute = RECOMPUTES[int(table.recompute[0])]
    training = bool(table.training[0])
    again = [
        cost
        for cost in costs
        if training and (recompute == "full" or (recompute == "selective" and cost.operation.core))
    ]
    element_bytes, gradient_bytes = blocks.element_bytes[0], blocks.gradient_bytes[0]
    parameters = sum(float(cost.operation.parameters[0]) for cost in costs)
    state = float(optimizer_state_bytes(blocks.element_bytes)[0]) / int(table.optimizer_shards[0])
    working = max(float(cost.operation.working_bytes[0]) for cost in costs)
    saved = sum(float(cost.operation.saved_bytes[0]) for cost in costs)
    core = sum(
        float(cost.operation.core_bytes[0])
        for cost in costs
        if cost.operation.core_bytes is not None
    )
    checkpoint = float(blocks.boundary_bytes[0]) if recompute == "full" else 0.0
    kept = {"none": saved, "selective": saved - core, "full": checkpoint}[recompute]
    exchanges = [exchange for cost in costs for exchange in cost.exchanges]
    ahead = [e for e in exchanges if e.collective.phase is Phase.FORWARD]
    back = [e for e in exchanges if e.collective.phase in _BACKWARD and training]
    gathered = [e for e in back if _regathers(e)]
    repeated = ahead if recompute == "full" and training else []
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
        boundary_bytes=float(blocks.boundary_bytes[0]),
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
    system: System,
    table: Table,
    extents: Extents,
    evaluation: Evaluation,
    parts: Sequence[PartCosts],
) -> RequiredBandwidth:
    """Least rates that would hide what a table of one row moves beside compute [byte/s].

    Tensor parallelism: the largest over the exchanges of a layer that have a product beside them,
    bytes of the buffer over time of the product. Replicas: bytes of gradients over their windows
    (`replicas.windows`). Offload: bytes of one layer over its pass, whether or not it is offloaded;
    both directions of the link count alone.
    """
    blocks = evaluation.blocks
    layers, depth = blocks.layers, model.depth
    slowest = SlowestStage.of(model, table, blocks)
    free = windows(
        table,
        extents,
        pass_s=slowest.on("backward_pass_s"),
        tp_s=slowest.on("tp_backward_s"),
        transfer_s=boundary_time(system, table, extents, blocks),
    )
    replicated = (table.dp > 1) & table.training
    gradients = np.where(replicated, evaluation.parameters * blocks.gradient_bytes, 0.0)
    forward = (layers.forward_pass_s - layers.offload_forward_exposed_s) / depth
    backward = (layers.backward_pass_s - layers.offload_backward_exposed_s) / depth
    least = np.where(table.training, np.minimum(forward, backward), forward)
    weights = layers.parameters / depth * blocks.element_bytes
    kept = layers.saved_bytes / depth
    state = layers.parameters / depth * optimizer_state_bytes(blocks.element_bytes)
    state = np.where(table.training, state / table.optimizer_shards, 0.0)
    away = {
        "weights": np.where(table.offload_weights, weights, 0.0),
        "activations": np.where(table.offload_activations, kept, 0.0),
        "optimizer": np.where(table.offload_optimizer, state, 0.0),
    }
    both = np.maximum(
        _rate(np.maximum(away["weights"], away["activations"]), forward),
        _rate(away["weights"] + away["activations"] + away["optimizer"], backward),
    )
    return RequiredBandwidth(
        tp_overlap=_tp_overlap(table, parts),
        dp_chunks=float(_rate(gradients * (1 - 1 / table.vpp), free.chunks)[0]),
        dp_tail=float(_rate(gradients / table.vpp, free.tail)[0]),
        offload_weights=float(_rate(weights, least)[0]),
        offload_activations=float(_rate(kept, least)[0]),
        offload_optimizer=float(_rate(state, backward)[0]),
        offload=float(both[0]),
    )


def _rate(moved_bytes: Floats, window_s: Floats) -> Floats:
    """Bytes over a window; 0 where there is none to hide in."""
    return np.where(window_s > 0, moved_bytes / np.where(window_s > 0, window_s, 1.0), 0.0)


def _tp_overlap(table: Table, parts: Sequence[PartCosts]) -> float:
    needed = [0.0]
    for part, _, costs in parts:
        for cost in costs if part == "layer" else ():
            for exchange in cost.exchanges:
                beside = exchange.collective.split_with
                if beside is None or (beside is not Phase.FORWARD and not table.training[0]):
                    continue
                window = float(cost.kernel_s(beside)[0])
                needed.append(float(exchange.collective.bytes[0]) / window if window else 0.0)
    return max(needed)


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
