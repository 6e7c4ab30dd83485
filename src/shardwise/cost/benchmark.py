"""Times of single kernels as micro-benchmarks measure them, with casts and copies.

A benchmark runs a kernel in a short burst at boost clocks, or over and over; it quantizes a fresh
input before a product in fewer than 16 bits, and frameworks copy keys and values into a cache. All
of that is in the figures of `kernels.Benchmarked`; the kernels themselves are timed by
`matmul_times` and `attention_times`, as in an estimate.
"""

from dataclasses import replace

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.accelerator import (
    BenchmarkedAttention,
    BenchmarkedExperts,
    BenchmarkedMatmul,
    FusedAttention,
    MatmulKernel,
    ProductFigures,
    Throttle,
)
from shardwise.config.enums import ExpertChoices
from shardwise.config.system import Accelerator
from shardwise.cost.attention import AttentionRates, attention_times
from shardwise.cost.curve import share_at
from shardwise.cost.matmul import MatmulRates, matmul_times
from shardwise.ops.quantization import RECIPES

_RECIPES = {"fp8": "fp8_tensor", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
MATRIX_TYPES = {"bf16": "bf16"} | {name: RECIPES[of].matrix for name, of in _RECIPES.items()}
"""Type of the matrix units that products and experts of each kind run on."""
_RESULT_BYTES = 2.0
_SIZES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0}
_GROUP = 128
_MOST_GROUPS = 16


def _operand_bytes(name: str) -> float:
    return RECIPES[_RECIPES[name]].operand_bytes if name in _RECIPES else _RESULT_BYTES


def _throttled(time: Floats, launch: float, throttle: Throttle, sustained: Bools | bool) -> Floats:
    """Time of a kernel whose clocks fall while it runs: (t - t0) (1 + d / (1 + (tc / (t - t0))^2)).

    Kernels repeated for a second have figures that include it.
    """
    running = np.maximum(time - launch, 1e-12)
    slower = 1 + throttle.slowdown / (1 + (throttle.after / running) ** 2)
    slowed: Floats = launch + running * np.where(sustained, 1.0, slower)
    return slowed


def _matmul_rates(
    chip: Accelerator,
    matrix_type: str,
    figures: ProductFigures | BenchmarkedExperts,
    like: Floats,
    *,
    slowdown: Floats | float = 0.0,
) -> MatmulRates:
    peaks = {str(dtype): peak for dtype, peak in chip.matrix.items()}
    bandwidth = chip.memory[0].bandwidth
    one = np.ones_like(like)
    products = figures if isinstance(figures, ProductFigures) else None
    tiling = None if products is None else products.tiling
    assert chip.multiprocessors is not None  # noqa: S101 - validated: a closed form has them
    return MatmulRates(
        peak=one * peaks[matrix_type] * chip.speed,
        efficiency=figures.efficiency / (one + slowdown),
        fill_depth=one * figures.fill_depth,
        fill_tiles=one * figures.fill_tiles,
        fill_exponent=figures.fill_exponent,
        reduction_step=one * (1 if products is None else products.reduction_step),
        tilings=() if tiling is None else ((True, tiling),),
        memory_rate=one * figures.memory_efficiency * bandwidth,
        bandwidth=bandwidth,
        launch_s=one * figures.launch,
        multiprocessors=chip.multiprocessors,
    )


def matmul_benchmark(
    chip: Accelerator,
    name: str,
    figures: BenchmarkedMatmul,
    *,
    m: Floats,
    n: Floats,
    k: Floats,
    sustained: Bools | bool = False,
) -> Floats:
    """Time of one product with its cast [s]: `matmul_times`, throttled, and q m k / B.

    Operands are read and a result in 16 bits written once. The cast has a launch in that of the
    figures.

    Parameters
    ----------
    name
        Kind: bf16, fp8 (scaled per tensor), fp8_block or nvfp4.
    m
        Rows of the result [elements]; shape (n,).
    n
        Columns of the result [elements]; shape (n,).
    k
        Length of the reduction [elements]; shape (n,).
    sustained
        Whether the product is repeated for about a second: P e / (1 + s) and no other throttle.
    """
    one = np.ones_like(m)
    size = _operand_bytes(name)
    moved = size * (m + n) * k + _RESULT_BYTES * m * n
    slowdown = figures.throttle.sustained * np.where(sustained, one, 0.0)
    rates = _matmul_rates(chip, MATRIX_TYPES[name], figures, m, slowdown=slowdown)
    kernel_s = matmul_times(m, n, k, one, moved, rates)[2]
    cast = figures.cast_bytes * m * k / chip.memory[0].bandwidth
    if figures.cast_grouping:
        groups = np.gcd(np.ceil(m * k / _GROUP).astype(np.int64), _MOST_GROUPS)
        cast = cast * (1 + figures.cast_grouping * (_MOST_GROUPS / groups - 1))
    return _throttled(kernel_s, figures.launch, figures.throttle, sustained) + cast


def attention_benchmark(
    chip: Accelerator,
    dtype: str,
    figures: BenchmarkedAttention,
    *,
    batch: Floats,
    seq: Floats,
    heads: Floats,
    kv_heads: Floats,
    head_dim: Floats,
    head_dim_v: Floats,
    causal: bool,
) -> Floats:
    """Time of forward attention with its copies and casts [s].

    `attention_times`, throttled, and (w kv_heads (d + v) + q heads d) batch seq / B.

    Parameters
    ----------
    dtype
        Type of queries, keys and values: bf16 or fp8.
    figures
        Fitted figures of such kernels, with w and q [byte].
    seq
        Length of a sequence [tokens]; shape (n,).
    head_dim
        d, width of a head of queries and keys [elements]; shape (n,).
    head_dim_v
        v, width of a head of values [elements]; shape (n,).
    causal
        Whether a query attends to earlier keys only.
    """
    size = 1.0 if dtype == "fp8" else _RESULT_BYTES
    moved = batch * seq * (heads * (head_dim * size + head_dim_v * _RESULT_BYTES))
    moved = moved + batch * seq * kv_heads * (head_dim + head_dim_v) * size
    kernel_s = _attention(
        chip,
        dtype,
        figures,
        (batch, seq, heads, head_dim, head_dim_v),
        moved,
        causal=causal,
        backward=False,
    )
    copied_bytes = figures.copy_bytes * kv_heads * (head_dim + head_dim_v)
    copied_bytes = (copied_bytes + figures.cast_bytes * heads * head_dim) * batch * seq
    throttled = _throttled(kernel_s, figures.launch, figures.throttle, sustained=False)
    return throttled + copied_bytes / chip.memory[0].bandwidth


def _attention(
    chip: Accelerator,
    dtype: str,
    figures: FusedAttention,
    shape: tuple[Floats, Floats, Floats, Floats, Floats],
    moved_bytes: Floats,
    *,
    causal: bool,
    backward: bool,
) -> Floats:
    """Total time by `attention_times` [s]; each of the few head widths separately."""
    peaks = {str(name): peak for name, peak in chip.matrix.items()}
    batch, seq, heads, head_dim, head_dim_v = shape
    assert chip.multiprocessors is not None  # noqa: S101 - validated: a closed form has them
    times = np.zeros_like(moved_bytes)
    for d, v in sorted(set(zip(head_dim.tolist(), head_dim_v.tolist(), strict=True))):
        rows = (head_dim == d) & (head_dim_v == v)
        one = np.ones_like(batch[rows])
        times[rows] = attention_times(
            sequences=batch[rows],
            seq_len=seq[rows],
            keys=seq[rows],
            heads=heads[rows],
            head_dim=d,
            v_head_dim=v,
            causal=causal,
            moved_bytes=moved_bytes[rows],
            rates=AttentionRates(
                peak=one * peaks[dtype] * chip.speed,
                memory_rate=figures.memory_efficiency
                * chip.memory[0].bandwidth
                * share_at(chip.memory[0].efficiency, moved_bytes[rows]),
                time_factor=one,
                kernel=figures,
                multiprocessors=chip.multiprocessors,
            ),
            backward=backward,
        )[2]
    return times


def experts_benchmark(
    chip: Accelerator,
    name: str,
    figures: BenchmarkedExperts,
    *,
    gated: Bools,
    tokens: Floats,
    hidden: Floats,
    inter: Floats,
    topk: Floats,
    experts: Floats,
    tp: Floats,
    ep: Floats,
) -> Floats:
    """Time of a block of experts on one rank, evenly loaded [s].

    Two grouped products by `matmul_times` over experts of equal, padded rows, t0 for all kernels,
    and (q pairs h + r tokens h + i pairs f + c tokens experts) / B for kernels that choose,
    sort, quantize and add up tokens, h and f the widths of a token and between the products.

    Parameters
    ----------
    name
        Kind of `kernels.Benchmarked.experts`; its first word is the type.
    hidden
        Width of a token [elements]; shape (n,).
    inter
        Inner width before division by tp [elements]; shape (n,).
    """
    width = inter / tp
    chosen = {
        ExpertChoices.SPREAD: topk / ep,
        ExpertChoices.REPEATED: topk**2 / ep,
        ExpertChoices.LOCAL: experts / ep,
    }
    pairs = tokens * np.minimum(topk, chosen[figures.choices])
    used = np.minimum(experts / ep, pairs)
    rows = np.ceil(pairs / used / figures.row_step) * figures.row_step
    kind = next(
        known for known in sorted(MATRIX_TYPES, key=len, reverse=True) if name.startswith(known)
    )
    size = _operand_bytes(kind)
    rates = _matmul_rates(chip, MATRIX_TYPES[kind], figures, tokens)
    outer = width * np.where(gated, 2.0, 1.0)
    total = np.zeros_like(tokens)
    for n, k in ((outer, hidden), (hidden, width)):
        moved = used * (size * (rows + n) * k + _RESULT_BYTES * rows * n)
        total = total + matmul_times(rows, n, k, used, moved, rates)[2] - figures.launch
    moved = pairs * (figures.pair_bytes * hidden + figures.inner_bytes * width)
    moved = moved + tokens * (figures.token_bytes * hidden + figures.choice_bytes * experts)
    total = total + moved / chip.memory[0].bandwidth
    return _throttled(total + figures.launch, figures.launch, figures.throttle, sustained=False)


def training_matmul(
    chip: Accelerator,
    dtype: str,
    figures: MatmulKernel,
    *,
    groups: Floats,
    m: Floats,
    n: Floats,
    k: Floats,
    result_bytes: Floats,
    weight_grad: bool,
) -> Floats:
    """Time of a product with the figures of training [s]; `groups` in one kernel.

    Parameters
    ----------
    dtype
        Type of its operands: bf16, fp16 or fp32.
    m
        Rows of the result [elements]; shape (n,).
    n
        Columns of the result [elements]; shape (n,).
    k
        Length of the reduction [elements]; shape (n,).
    """
    moved = groups * (_SIZES[dtype] * (m + n) * k + result_bytes * m * n)
    rates = _matmul_rates(chip, dtype, figures, m)
    share = share_at(chip.memory[0].efficiency, moved)
    rates = replace(
        rates,
        memory_rate=rates.memory_rate * share,
        weight_grad_share=figures.weight_grad_share,
    )
    return matmul_times(m, n, k, groups, moved, rates, weight_grad=weight_grad)[2]


def training_attention(
    chip: Accelerator,
    dtype: str,
    figures: FusedAttention,
    *,
    batch: Floats,
    seq: Floats,
    heads: Floats,
    kv_heads: Floats,
    head_dim: Floats,
    head_dim_v: Floats,
    backward: bool,
) -> Floats:
    """Time of causal attention with the figures of training [s].

    Backward reads queries, keys, values, output and its gradient, and writes three gradients.

    Parameters
    ----------
    dtype
        Type of its operands: bf16, fp16 or fp32.
    seq
        Length of a sequence [tokens]; shape (n,).
    head_dim
        Width of a head of queries and keys [elements]; shape (n,).
    head_dim_v
        Width of a head of values [elements]; shape (n,).
    """
    moved = heads * (head_dim + head_dim_v) + kv_heads * (head_dim + head_dim_v)
    moved = _SIZES[dtype] * batch * seq * moved * (2 if backward else 1)
    shape = (batch, seq, heads, head_dim, head_dim_v)
    return _attention(chip, dtype, figures, shape, moved, causal=True, backward=backward)
