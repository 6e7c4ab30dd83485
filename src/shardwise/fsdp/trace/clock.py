"""Times of the kernels of a step on a named system, by the formulas that estimates use.

Products and fused attention are timed by their shapes (`cost.kernels.KernelRates`), with the
attention kernel that PyTorch has. Everything else takes its launch and the time of its bytes:
t = t0 + bytes / B, in eager mode one kernel for each operator.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from shardwise.arrays import Floats, Ints, gather
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import Accelerator, System
from shardwise.cost.kernels import KernelRates
from shardwise.cost.memory_bound import memory_bound_times
from shardwise.errors import Fault, InputError
from shardwise.fsdp.plan import Dtype
from shardwise.fsdp.trace.kernels import Attention, KernelLog, Product
from shardwise.ops.operation import FlashAttention, Kernel, Matmul, Phase

__all__ = ["segment_seconds"]

_STACK = "torchtitan-eager"
"""PyTorch's own kernels; only its figures for products and attention are used."""
_ANY_MODEL = "llama2-7b"
"""Rates are columns of a table of strategies, which is that of a model; they depend on none."""

_Group = tuple[Kernel, Ints, list[str]]
"""Kernels of one kind as columns, with the segment and the type of each."""


def segment_seconds(log: KernelLog, segments: int, system: System, dtype: Dtype) -> Floats:
    """Time of the kernels of each segment, one after the other [s].

    Products in a type that the accelerator has no rate for count as in the compute type.

    Raises
    ------
    InputError
        If it has none for the compute type.
    """
    chip = system.accelerator
    known = [name for name in ("bf16", "fp16", "fp32") if name in {*map(str, chip.matrix)}]
    if dtype not in known:
        allowed = f"{chip.name} has matrix rates for {', '.join(known) or 'none of the types'}"
        fault = Fault(source="trace", field="dtype", value=dtype, has_value=True, problem=allowed)
        raise InputError(fault)
    rates = _rates(system, known)
    seconds = _moved(log.moved, segments, chip)
    for kernel, places, dtypes in (*_products(log.products), *_attentions(log.attention)):
        codes = [known.index(name if name in known else dtype) for name in dtypes]
        times = gather(rates, np.array(codes, dtype=np.int64)).times(kernel)[2]
        seconds += np.bincount(places, weights=times, minlength=segments)
    return seconds


def _rates(system: System, dtypes: Sequence[str]) -> KernelRates:
    """Rates in each type, a row each."""
    usual = {"gpus": 1, "global_batch_size": 1, "stack": _STACK}
    table = Table.of(Model.load(_ANY_MODEL), [{**usual, "dtype": name} for name in dtypes])
    return KernelRates.of(system, table)


def _moved(moved: Sequence[tuple[int, float]], segments: int, chip: Accelerator) -> Floats:
    """Time of element-wise kernels and reductions in each segment [s]."""
    places, sizes = np.array(moved, dtype=np.float64).reshape(-1, 2).T
    kernel = chip.memory_bound
    times = memory_bound_times(
        sizes,
        np.zeros_like(sizes),
        memory_rate=kernel.efficiency * chip.memory[0].bandwidth,
        vector_rate=np.inf,
        launch_s=kernel.launch,
        compute_latency_s=chip.compute_latency,
        processing=chip.processing,
    )[2]
    seconds = np.bincount(places.astype(np.int64), weights=times, minlength=segments)
    return seconds.astype(np.float64)


def _products(products: Sequence[Product]) -> Iterator[_Group]:
    """Products by phase, plain and of experts."""

    def kind(one: Product) -> tuple[str, bool]:
        return one.phase, one.grouped

    for (phase, grouped), found in groupby(sorted(products, key=kind), key=kind):
        rows = list(found)
        shapes = [(r.groups, r.m, r.n, r.k, r.input_bytes, r.output_bytes) for r in rows]
        groups, m, n, k, read, written = np.array(shapes, dtype=np.float64).T
        kernel = Matmul(
            phase=Phase(phase),
            m=m,
            n=n,
            k=k,
            input_bytes=read,
            output_bytes=written,
            batch=groups,
            grouped=grouped,
        )
        yield kernel, _segments(rows), [row.dtype for row in rows]


def _attentions(kernels: Sequence[Attention]) -> Iterator[_Group]:
    """Attention kernels by direction, mask and head width, each of which is evaluated apart."""

    def kind(one: Attention) -> tuple[bool, bool, int, int]:
        return one.backward, one.causal, one.head_dim, one.v_head_dim

    for (backward, causal, head_dim, v_head_dim), found in groupby(
        sorted(kernels, key=kind), key=kind
    ):
        rows = list(found)
        shapes = [(r.batch, r.queries, r.keys, r.heads, r.kv_heads, r.element_bytes) for r in rows]
        batch, queries, keys, heads, kv_heads, size = np.array(shapes, dtype=np.float64).T
        kernel = FlashAttention(
            phase=Phase.INPUT_GRAD if backward else Phase.FORWARD,
            sequences=batch,
            seq_len=queries,
            keys=keys,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            causal=causal,
            element_bytes=size,
        )
        yield kernel, _segments(rows), [row.dtype for row in rows]


def _segments(rows: Sequence[Product | Attention]) -> Ints:
    return np.array([row.segment for row in rows], dtype=np.int64)
