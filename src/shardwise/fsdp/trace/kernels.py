"""Kernels that PyTorch's operators launch on an accelerator, and their times on a system.

Every operator is a matrix product, attention, or a kernel that moves bytes. Products and fused
attention are timed by their shapes (`cost.kernels.KernelRates`), with the
attention kernel that PyTorch has. Everything else takes its launch and the time of its bytes:
t = t0 + bytes / B, in eager mode one kernel for each operator.
"""

# ruff: noqa: SLF001 - an operator's name is in its schema

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints, gather
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy_table import Table
from shardwise.config.system import Accelerator, System
from shardwise.cost.kernels import KernelRates, memory_bound_times
from shardwise.errors import InputError
from shardwise.fsdp.plan import Dtype
from shardwise.fsdp.trace.torch_tools import Operator, Tensor, Value
from shardwise.ops.operation import FlashAttention, Kernel, Matmul, Phase

_FREE = {
    "aten::_local_scalar_dense", "aten::_reshape_alias", "aten::_unsafe_view", "aten::alias",
    "aten::detach", "aten::detach_", "aten::empty", "aten::empty_like", "aten::empty_strided",
    "aten::item", "aten::lift_fresh", "aten::new_empty", "aten::new_empty_strided",
    "aten::resize_", "aten::scalar_tensor", "aten::set_",
}  # fmt: skip
"""Operators that launch nothing, in addition to PyTorch's views and `prim` operators."""
_WRITE_ONLY = {
    "aten::bernoulli_", "aten::fill_", "aten::normal_", "aten::uniform_", "aten::zero_",
}  # fmt: skip
_GATHERS = {
    "aten::embedding", "aten::index", "aten::index_select", "aten::gather",
    "aten::nll_loss_forward", "aten::nll_loss2d_forward",
}  # fmt: skip
"""They read as many numbers of their first operand as they write."""


@dataclass(frozen=True, slots=True)
class Product:
    """`groups` products (m, k) x (k, n) in one kernel."""

    segment: int
    dtype: str
    groups: float
    m: float
    n: float
    k: float
    input_bytes: float
    output_bytes: float
    phase: str
    """forward, input_grad or weight_grad."""
    grouped: bool = False
    """Whether each has weights of its own: experts."""


@dataclass(frozen=True, slots=True)
class Attention:
    """A fused attention kernel."""

    segment: int
    dtype: str
    batch: float
    queries: float
    keys: float
    heads: float
    kv_heads: float
    head_dim: int
    v_head_dim: int
    causal: bool
    backward: bool
    element_bytes: float


@dataclass(slots=True)
class KernelLog:
    """Kernels in the order they ran, each with the segment it ran in."""

    products: list[Product] = field(default_factory=list)
    attention: list[Attention] = field(default_factory=list)
    moved: list[tuple[int, float]] = field(default_factory=list)
    """Segment, and bytes read and written by an element-wise kernel or a reduction."""
    segment: int = 0
    backward: bool = False
    _rules: dict[Any, "_Rule | None"] = field(default_factory=dict)

    def record(
        self, func: Operator, args: Sequence[Value], kwargs: dict[str, Value], out: Value
    ) -> None:
        """Record the kernel of one operator."""
        try:
            rule = self._rules[func]
        except KeyError:
            rule = self._rules[func] = _rule(func)
        if rule is not None:
            rule(self, args, kwargs, out)

    def product(
        self,
        out: Value,
        shape: tuple[float, float, float, float],
        operands: tuple[Any, Any],
        phase: str,
        *,
        grouped: bool = False,
    ) -> None:
        """Record a product of shape (groups, m, n, k); its bytes are those of its tensors."""
        groups, m, n, k = shape
        read = sum(map(_bytes, operands)) / max(groups * (m + n) * k, 1)
        written = _bytes(out) / max(groups * m * n, 1)
        dtype = _DTYPES.get(str(operands[0].dtype), "fp32")
        self.products.append(Product(self.segment, dtype, *shape, read, written, phase, grouped))

    def phase_of(self, first: Tensor) -> str:
        """Phase of a plain product; in backward a transposed first operand sums over tokens."""
        if not self.backward:
            return "forward"
        transposed = first.dim() > 1 and first.stride(-1) != 1 and first.stride(-2) == 1
        return "weight_grad" if transposed else "input_grad"


_BATCHED = 3
"""Dimensions of the operands of a batch of products."""
_Rule = Callable[[KernelLog, Sequence[Any], dict[str, Any], Any], None]
_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}


def _rule(func: Operator) -> _Rule | None:
    """The rule that records an operator; None: it launches nothing."""
    schema = func._schema
    name = schema.name
    if name.startswith("prim::") or name in _FREE or getattr(func, "is_view", False):
        return None
    return _RULES.get(name, _moves_bytes)


def _bytes(value: Value) -> float:
    """Bytes of tensors among arguments or results; of expanded ones what is stored."""
    if hasattr(value, "untyped_storage"):
        return float(min(value.numel() * value.element_size(), value.untyped_storage().nbytes()))
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes, value))
    return 0.0


def _moves_bytes(
    log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value
) -> None:
    read = sum(map(_bytes, args)) + sum(map(_bytes, kwargs.values()))
    log.moved.append((log.segment, read + _bytes(out)))


def _writes(log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value) -> None:
    del args, kwargs
    log.moved.append((log.segment, _bytes(out)))


def _copies(log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value) -> None:
    del kwargs
    log.moved.append((log.segment, _bytes(args[1]) + _bytes(out)))


def _gathers(log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value) -> None:
    moved = sum(map(_bytes, args[1:])) + sum(map(_bytes, kwargs.values()))
    log.moved.append((log.segment, moved + 2 * _bytes(out)))


def _puts(log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value) -> None:
    """Values are read, their destinations read and written; out of place, all is copied too."""
    del kwargs
    copied = 0.0 if out is args[0] else 2 * _bytes(out)
    log.moved.append((log.segment, copied + 3 * _bytes(args[2]) + _bytes(args[1])))


def _mm(log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value) -> None:
    del kwargs
    first, second = args[:2]
    groups = first.shape[0] if first.dim() == _BATCHED else 1
    columns = second.shape[-1] if second.dim() > 1 else 1
    shape = (groups, first.shape[-2], columns, first.shape[-1])
    log.product(out, shape, (first, second), log.phase_of(first))


def _addmm(log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value) -> None:
    _mm(log, args[1:3], kwargs, out)


def _convolution(
    log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value
) -> None:
    del kwargs
    data, weight = args[:2]
    log.product(out, _convolved(data, weight, out, *args[6:9:2]), (data, weight), "forward")


def _convolution_backward(
    log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value
) -> None:
    """Two products of the size of the forward one, each if its gradient is requested."""
    del kwargs
    gradient, data, weight = args[:3]
    groups, m, n, k = _convolved(data, weight, gradient, *args[7:10:2])
    if args[10][0]:
        log.product(out[0], (groups, m, k, n), (gradient, weight), "input_grad")
    if args[10][1]:
        log.product(out[1], (groups, n, k, m), (gradient, data), "weight_grad")


def _convolved(
    data: Tensor, weight: Tensor, out: Value, transposed: bool, groups: int
) -> tuple[float, float, float, float]:
    """A convolution as products: places x (channels of a group x kernel) x channels."""
    places = data if transposed else out
    rows = places.shape[0] * prod(places.shape[2:])
    return groups, rows, weight.shape[0] / groups, prod(weight.shape[1:])


def _grouped_mm(
    log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value
) -> None:
    """Products of experts, their tokens evenly spread."""
    del kwargs
    first, second = args[:2]
    dims = first.dim(), second.dim()
    shape: tuple[float, float, float, float]
    if dims == (2, 3):
        groups = second.shape[0]
        shape = (groups, first.shape[0] / groups, second.shape[2], first.shape[1])
    elif dims == (2, 2):
        groups = out.shape[0]
        shape = (groups, first.shape[0], second.shape[1], first.shape[1] / groups)
    elif dims == (3, 2):
        groups = first.shape[0]
        shape = (groups, first.shape[1], second.shape[1] / groups, first.shape[2])
    else:
        shape = (first.shape[0], first.shape[1], second.shape[2], first.shape[2])
    backward = "weight_grad" if dims == (2, 2) else "input_grad"
    phase = backward if log.backward else "forward"
    log.product(out, shape, (first, second), phase, grouped=True)


def _grouped_backward(
    log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value
) -> None:
    """Both gradients of the products of experts, as transformers computes them without a kernel."""
    del kwargs
    data, weight, _, gradient = args[:4]
    groups, k, n = weight.shape
    rows = data.shape[0] / groups
    log.product(out[0], (groups, rows, k, n), (gradient, weight), "input_grad", grouped=True)
    log.product(out[1], (groups, k, n, rows), (data, gradient), "weight_grad", grouped=True)


def _attention(log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value) -> None:
    del out
    causal = args[4] if len(args) > 4 else kwargs.get("is_causal", False)  # noqa: PLR2004
    _record_attention(log, args[:3], causal=causal, backward=False)


def _attention_backward(
    log: KernelLog, args: Sequence[Value], kwargs: dict[str, Value], out: Value
) -> None:
    del out, kwargs
    _record_attention(log, args[1:4], causal=args[7], backward=True)


def _record_attention(log: KernelLog, of: Sequence[Value], *, causal: bool, backward: bool) -> None:
    """Queries, keys and values of shape (batch, heads, tokens, width)."""
    query, key, value = of
    log.attention.append(
        Attention(
            segment=log.segment,
            dtype=_DTYPES.get(str(query.dtype), "fp32"),
            batch=query.shape[0],
            queries=query.shape[2],
            keys=key.shape[2],
            heads=query.shape[1],
            kv_heads=key.shape[1],
            head_dim=query.shape[3],
            v_head_dim=value.shape[3],
            causal=causal,
            backward=backward,
            element_bytes=query.element_size(),
        )
    )


_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_WRITE_ONLY, _writes),
    **dict.fromkeys(_GATHERS, _gathers),
    "aten::copy_": _copies,
    "aten::index_put": _puts,
    "aten::index_put_": _puts,
    "aten::_index_put_impl_": _puts,
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::addmm": _addmm,
    "aten::baddbmm": _addmm,
    "aten::mv": _mm,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_grouped_mm": _grouped_mm,
    "transformers::grouped_mm_fallback": _grouped_mm,
    "transformers::grouped_mm_fallback_backward": _grouped_backward,
    _FLASH: _attention,
    f"{_FLASH}_backward": _attention_backward,
    "shardwise::attention": _attention,
    "shardwise::attention_backward": _attention_backward,
}


_STACK = "torchtitan-eager"
"""PyTorch's own kernels; only its figures for products and attention are used."""
_ANY_MODEL = "llama2-7b"
"""Rates are columns of a strategy table, which needs a model; they do not depend on it."""

_Group = tuple[Kernel, Ints, list[str]]
"""Kernels of one kind as columns, with the segment and the type of each."""


def segment_seconds(log: KernelLog, segments: int, system: System, dtype: Dtype) -> Floats:
    """Time of the kernels of each segment, one after the other [s].

    Products in a type that the accelerator has no rate for count as in the compute type.
    """
    chip = system.accelerator
    known = [name for name in ("bf16", "fp16", "fp32") if name in {*map(str, chip.matrix)}]
    if dtype not in known:
        allowed = f"{chip.name} has matrix rates for {', '.join(known) or 'none of the types'}"
        raise InputError.of("dtype", dtype, allowed, "trace")
    rates = _rates(system, known)
    seconds = _moved(log.moved, segments, chip)
    for kernel, places, dtypes in (*_products(log.products), *_attentions(log.attention)):
        codes = [known.index(name if name in known else dtype) for name in dtypes]
        times = gather(rates, np.array(codes, dtype=np.int64)).times(kernel)[2]
        seconds += np.bincount(places, weights=times, minlength=segments)
    return seconds


def _rates(system: System, dtypes: Sequence[str]) -> KernelRates:
    """Rates of each type, one row each: products alone, without the gaps of a training step."""
    stack = Stack.load(_STACK).model_copy(update={"matmul_time_factor": 1.0})
    rows = [{"gpus": 1, "global_batch_size": 1, "stack": stack, "dtype": name} for name in dtypes]
    table = Table.of(Model.load(_ANY_MODEL), rows)
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
    """Attention kernels by direction, mask and head width; each group is one evaluation."""

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
