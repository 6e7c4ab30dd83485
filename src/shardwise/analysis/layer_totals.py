"""Totals of a layer, FLOPs of a step, minimum bandwidths, efficiency, products.

Of matrix products (the rows of `--gemms`) runs are counted on one rank of every pipeline stage.
FLOPs are integers whose sum is exactly that of the step (`layer_totals.matrix_flops`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite

import numpy as np

from shardwise.analysis.operations import (
    FULL_LAYER,
    Component,
    bound_by,
    components_of,
    recomputed_parts,
    repeats_collectives,
    rerun_share,
    saved_activation_bytes,
)
from shardwise.analysis.results import (
    CommunicationTotals,
    Efficiency,
    Gemm,
    LayerTotals,
    PhaseTotals,
    RequiredBandwidth,
)
from shardwise.arrays import Floats, combined, total
from shardwise.config.enums import Dtype, Quantization
from shardwise.config.strategy_table import Table
from shardwise.config.system import FULL_DUPLEX
from shardwise.cost.component_costs import summed, trained_on
from shardwise.cost.kernels import product_peak
from shardwise.cost.layer_cost import LayerCost
from shardwise.cost.operations import CollectiveCost, KernelCost, OperationCost
from shardwise.cost.optimizer import (
    MUON,
    NEWTON_SCHULZ_STEPS,
    TrainedWeights,
    newton_schulz_flops,
    state_bytes,
    trained_weights,
    updated_matrices,
)
from shardwise.cost.overlap import both_ways_time, link_duplex
from shardwise.engine.data_parallel import backward_windows
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.step_time import Update, after_backward
from shardwise.engine.zero import reduced_bytes, shards
from shardwise.ops.operation import (
    PRODUCTS,
    CollectiveKind,
    FlashAttention,
    Matmul,
    Phase,
    SelectedAttention,
)
from shardwise.ops.quantization import RECIPES

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
    state = float(state_bytes(table.optimizer, blocks.weight_sizes, owned)[0])
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
        if timed.kernel.phase is phase and isinstance(timed.kernel, PRODUCTS)
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
    products = [(k, s) for k, s in kernels if isinstance(k.kernel, PRODUCTS)]
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
    trained = step.largest.all_trained.weights * reduced_bytes(step.table, step.costs)
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
    state = np.where(training, state_bytes(table.optimizer, blocks.weight_sizes, owned), 0.0)
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


_LINEAR = {
    Phase.FORWARD: "Y = X W",
    Phase.INPUT_GRAD: "dX = dY W^T",
    Phase.WEIGHT_GRAD: "dW = X^T dY",
}
# Products inside a flash-attention kernel.
_FUSED = {
    Phase.FORWARD: ("S = Q K^T", "O = P V"),
    Phase.INPUT_GRAD: (
        "S = Q K^T",
        "dP = dO V^T",
        "dV = P^T dO",
        "dQ = dS K",
        "dK = dS^T Q",
    ),
}
_CORE = "attention.core"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """One product of a kernel."""

    operation: str
    name: str
    direction: str
    batch: float
    m: float
    k: float
    n: float
    share: float = 1.0
    dtype: str
    runs: Fraction
    flops: Fraction
    """Of one run."""
    run_s: float
    bound: str


def gemm_estimates(evaluation: Evaluation) -> tuple[Gemm, ...]:
    """List the matrix products of a step of a table of one row.

    For each component: forward and backward, then recompute, then the products of the optimizer.
    FLOPs are rounded so that their sum is the rounded sum.
    """
    phases = tuple(Phase) if evaluation.step.table.training[0] else (Phase.FORWARD,)
    gemms: list[Gemm] = []
    before = Fraction(0)
    peaks = {str(name): peak for name, peak in evaluation.step.system.accelerator.matrix.items()}
    for component in components_of(evaluation):
        for product in _products(component, phases, evaluation):
            after = before + product.runs * product.flops
            flops = round(after) - round(before)
            gemms.append(_gemm(component.name, product, flops, peaks[product.dtype]))
            before = after
    return tuple(gemms)


def _gemm(part: str, product: _Product, flops: int, peak: float) -> Gemm:
    runs = float(product.runs)
    return Gemm(
        part=part,
        operation=product.operation,
        product=product.name,
        direction=product.direction,
        batch=_integer(product.batch),
        m=_integer(product.m),
        k=_integer(product.k),
        n=_integer(product.n),
        share=product.share,
        dtype=product.dtype,
        count=_integer(runs),
        flops=flops,
        run_s=product.run_s,
        time_s=runs * product.run_s,
        efficiency=float(product.flops) / (product.run_s * peak),
        bound=product.bound,
    )


def _integer(number: float) -> int | float:
    """Return the number as an int where it is an integer."""
    return int(number) if number == int(number) else number


def _products(
    component: Component, phases: Sequence[Phase], evaluation: Evaluation
) -> Iterator[_Product]:
    """Products of a component, with their runs in a step."""
    table = evaluation.step.table
    for cost in component.costs:
        for product in _of_operation(cost, phases, table):
            yield replace(product, runs=Fraction(component.runs) * product.runs)
    for cost in component.costs:
        share = rerun_share(cost, component.recomputed)
        if not share * component.reruns:
            continue
        for product in _of_operation(cost, (Phase.FORWARD,), table):
            yield replace(  # a share of its columns
                product,
                direction="recompute",
                share=share * product.share,
                flops=Fraction(share) * product.flops,
                run_s=share * product.run_s,
                runs=Fraction(component.reruns) * product.runs,
            )
    if table.optimizer[0] == MUON and table.training[0]:
        yield from _of_update(component, evaluation)


def _of_operation(cost: OperationCost, phases: Sequence[Phase], table: Table) -> Iterator[_Product]:
    """Products of one pass through an operation, in the order of its kernels."""
    unfused = _unfused_names(cost)
    for position, timed in enumerate(cost.kernels):
        kernel = timed.kernel
        if kernel.phase not in phases or not float(kernel.flops[0]):
            continue
        if isinstance(kernel, FlashAttention):
            yield from _fused(cost, timed, kernel, Dtype.from_code(int(table.dtype[0])))
        elif isinstance(kernel, Matmul):
            name = unfused.get(position, _LINEAR[kernel.phase])
            yield _single(cost, timed, kernel, name, table)


def _unfused_names(cost: OperationCost) -> dict[int, str]:
    """Names of the products of unfused attention, by the position of their kernel."""
    if not cost.operation.name.endswith(_CORE):
        return {}
    positions = [n for n, timed in enumerate(cost.kernels) if isinstance(timed.kernel, Matmul)]
    if not positions:
        return {}
    scores = len(positions) // 3 - 1  # 2 with relative positions, which have keys of their own
    keys = ["S = Q K^T", "S' = Q R^T"][:scores]
    queries = ["dQ = dS K", "dQ' = dS R"][:scores]
    key_gradients = ["dK = dS^T Q", "dR = dS^T Q"][:scores]
    names = [*keys, "O = P V", "dP = dO V^T", "dV = P^T dO", *queries, *key_gradients]
    return dict(zip(positions, names, strict=True))


def _single(
    cost: OperationCost, timed: KernelCost, kernel: Matmul, name: str, table: Table
) -> _Product:
    """The product of a GEMM kernel; of a kernel that runs panel by panel, that of one panel."""
    flops, panels = Fraction(float(kernel.flops[0])), 1.0
    if kernel.panels is not None:
        panels = float(kernel.panels.kernels[0])
        kernel = kernel.panel(kernel.panels)
    return _Product(
        operation=cost.operation.name,
        name=name,
        direction=kernel.phase.value,
        batch=_first(kernel.batch),
        m=_first(kernel.m),
        k=_first(kernel.k),
        n=_first(kernel.n),
        dtype=_operand_type(kernel, table),
        runs=Fraction(panels),
        flops=flops / Fraction(panels),
        run_s=_first(timed.time_s) / panels,
        bound=bound_by(timed),
    )


def _operand_type(kernel: Matmul, table: Table) -> str:
    recipe = Quantization.from_code(int(table.quantization[0]))
    if kernel.quantized and recipe in RECIPES:
        return RECIPES[recipe].matrix
    return Dtype.from_code(int(table.dtype[0]))


def _fused(
    cost: OperationCost, timed: KernelCost, kernel: FlashAttention, dtype: str
) -> Iterator[_Product]:
    """The products inside a flash-attention kernel, with its time divided by FLOPs."""
    queries, keys = _first(kernel.seq_len), _first(kernel.keys)
    qk, v = kernel.head_dim, kernel.v_head_dim
    shapes = {  # m, k, n, and the head dimension that FLOPs are proportional to
        "S = Q K^T": (queries, qk, keys, qk),
        "O = P V": (queries, keys, v, v),
        "dP = dO V^T": (queries, v, keys, v),
        "dV = P^T dO": (keys, queries, v, v),
        "dQ = dS K": (queries, keys, qk, qk),
        "dK = dS^T Q": (keys, queries, qk, qk),
    }
    names = _FUSED.get(kernel.phase, ())
    if isinstance(kernel, SelectedAttention) and kernel.index:  # scores, or their two gradients
        is_forward = kernel.phase is Phase.FORWARD
        names = ("S = Q K^T",) if is_forward else ("dQ = dS K", "dK = dS^T Q")
    widths = sum(Fraction(shapes[name][3]) for name in names)
    for name in names:
        m, k, n, width = shapes[name]
        share = Fraction(width) / widths
        yield _Product(
            operation=cost.operation.name,
            name=name,
            direction=kernel.phase.value,
            batch=_first(kernel.sequences * kernel.heads),
            m=m,
            k=k,
            n=n,
            share=0.5 if kernel.causal else 1.0,
            dtype=dtype,
            runs=Fraction(1),
            flops=share * Fraction(_first(kernel.flops)),
            run_s=float(share) * _first(timed.time_s),
            bound=bound_by(timed),
        )


def _of_update(component: Component, evaluation: Evaluation) -> Iterator[_Product]:
    """Muon's products on one rank: five times three for each matrix of m x n, m <= n.

    Timed like a GEMM as wide as the model, as in `cost.optimizer`.
    """
    table, rate = evaluation.step.table, _first(evaluation.step.costs.matrix_rate)
    ranks = dict(zip((False, True), shards(table, 1), strict=True))
    for cost in component.costs:
        for matrix in updated_matrices(cost.operation):
            batch, rows, columns = (_first(size) for size in matrix)
            m, n = min(rows, columns), max(rows, columns)
            once = Fraction(batch) * Fraction(_first(newton_schulz_flops(*matrix[1:])))
            # 2 m^2 n, 2 m^3 and 2 m^2 n of 4 m^2 n + 2 m^3.
            sizes = {"A = X X^T": (n, m), "A A": (m, m), "(b A + c A A) X": (m, n)}
            weighed = 2 * Fraction(n) + Fraction(m)
            runs = NEWTON_SCHULZ_STEPS * Fraction(component.copies)
            runs /= Fraction(_first(ranks[cost.operation.expert]))
            for name, (k, columns_of) in sizes.items():
                share = Fraction(max(k, columns_of)) / weighed
                flops = share * once / NEWTON_SCHULZ_STEPS
                if flops:
                    yield _Product(
                        operation=cost.operation.name,
                        name=name,
                        direction="optimizer",
                        batch=batch,
                        m=m,
                        k=k,
                        n=columns_of,
                        dtype=Dtype.from_code(int(table.dtype[0])),
                        runs=runs,
                        flops=flops,
                        run_s=float(flops) / rate,
                        bound="compute",
                    )


def _first(column: Floats) -> float:
    return float(np.asarray(column)[0])
