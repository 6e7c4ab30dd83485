"""Every matrix product of a step of one strategy: the rows of `--gemms`.

Runs are counted on one rank of every pipeline stage. FLOPs are integers whose sum is exactly
that of the step (`layer_totals.matrix_flops`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from shardwise.analysis.components import Component, components_of, rerun_share
from shardwise.analysis.operations import bound_by
from shardwise.analysis.results import Gemm
from shardwise.arrays import Floats
from shardwise.config.enums import Dtype, Quantization
from shardwise.config.strategy_table import Table
from shardwise.cost.operations import KernelCost, OperationCost
from shardwise.cost.optimizer import (
    MUON,
    NEWTON_SCHULZ_STEPS,
    newton_schulz_flops,
    updated_matrices,
)
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.zero import shards
from shardwise.ops.operation import FlashAttention, Matmul, Phase
from shardwise.ops.quantization import RECIPES

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
        panels = float(kernel.panels.count[0])
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
    names = _FUSED[kernel.phase]
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
