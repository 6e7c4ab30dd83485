"""Kernels that PyTorch's operators launch on an accelerator, and their times on a system.

Every operator is a matrix product, attention, or a kernel that moves bytes. Products and fused
attention are timed by their shapes (`cost.kernels.KernelRates`), with the
attention kernel that PyTorch has. Everything else takes its launch and the time of its bytes:
t = t0 + bytes / B, in eager mode one kernel for each operator.
"""

# ruff: noqa: SLF001 - an operator's name is in its schema

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from shardwise.arrays import Floats, gather
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
class Timed:
    """A product or an attention kernel, timed by its shape."""

    kind: tuple[Any, ...]
    """Of a product: False, its phase, and whether it is grouped: of experts, each with weights of
    its own. Of attention: True, whether it is backward and causal, and the widths of a head."""
    segment: int
    dtype: str
    columns: tuple[float, ...]
    """Of a product (m, k) x (k, n): how many, m, n, k, and the bytes of a number read and written.
    Of attention: sequences, queries, keys, heads, heads of keys, and the bytes of a number."""


@dataclass(slots=True)
class KernelLog:
    """Kernels in the order they ran, each with the segment it ran in."""

    timed: list[Timed] = field(default_factory=list)
    moved: list[tuple[int, float]] = field(default_factory=list)
    """Segment, and bytes read and written by an element-wise kernel or a reduction."""
    segment: int = 0
    backward: bool = False
    _free: dict[Any, bool] = field(default_factory=dict)

    def record(
        self, func: Operator, args: Sequence[Value], kwargs: dict[str, Value], out: Value
    ) -> None:
        """Record the kernel of one operator."""
        name = func._schema.name
        if func not in self._free:
            is_free = name.startswith("prim::") or name in _FREE
            self._free[func] = is_free or getattr(func, "is_view", False)
        if self._free[func]:
            return
        one = _Call(args, kwargs, out)
        if name in _KERNELS:
            _KERNELS[name](self, one)
        else:
            self.moved.append((self.segment, _MOVED.get(name, _all_bytes)(one)))

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
        columns = (*shape, read, written)
        self.timed.append(Timed((False, phase, grouped), self.segment, dtype, columns))


_BATCHED = 3
"""Dimensions of the operands of a batch of products."""
_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}


@dataclass(frozen=True, slots=True)
class _Call:
    """What an operator took and returned."""

    args: Sequence[Any]
    kwargs: dict[str, Any]
    out: Any


def _bytes(value: Value) -> float:
    """Bytes of tensors among arguments or results; of expanded ones what is stored."""
    if hasattr(value, "untyped_storage"):
        return float(min(value.numel() * value.element_size(), value.untyped_storage().nbytes()))
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes, value))
    return 0.0


def _all_bytes(one: _Call) -> float:
    return _bytes([*one.args, *one.kwargs.values(), one.out])


def _gathered_bytes(one: _Call) -> float:
    return _bytes([*one.args[1:], *one.kwargs.values()]) + 2 * _bytes(one.out)


def _put_bytes(one: _Call) -> float:
    """Values are read, their destinations read and written; out of place, all is copied too."""
    copied = 0.0 if one.out is one.args[0] else 2 * _bytes(one.out)
    return copied + 3 * _bytes(one.args[2]) + _bytes(one.args[1])


_MOVED: dict[str, Callable[[_Call], float]] = {
    **dict.fromkeys(_WRITE_ONLY, lambda one: _bytes(one.out)),
    **dict.fromkeys(_GATHERS, _gathered_bytes),
    "aten::copy_": lambda one: _bytes(one.args[1]) + _bytes(one.out),
    "aten::index_put": _put_bytes,
    "aten::index_put_": _put_bytes,
    "aten::_index_put_impl_": _put_bytes,
}
"""Bytes read and written by operators that move others than all of their tensors."""


def _mm(log: KernelLog, one: _Call, operands: slice = slice(2)) -> None:
    """A product; in backward a transposed first operand sums over tokens."""
    first, second = one.args[operands]
    groups = first.shape[0] if first.dim() == _BATCHED else 1
    columns = second.shape[-1] if second.dim() > 1 else 1
    phase = "forward"
    if log.backward:
        transposed = first.dim() > 1 and first.stride(-1) != 1 and first.stride(-2) == 1
        phase = "weight_grad" if transposed else "input_grad"
    shape = (groups, first.shape[-2], columns, first.shape[-1])
    log.product(one.out, shape, (first, second), phase)


def _convolution(log: KernelLog, one: _Call) -> None:
    data, weight = one.args[:2]
    shape = _convolved(data, weight, one.out, *one.args[6:9:2])
    log.product(one.out, shape, (data, weight), "forward")


def _convolution_backward(log: KernelLog, one: _Call) -> None:
    """Two products of the size of the forward one, each if its gradient is requested."""
    gradient, data, weight = one.args[:3]
    groups, m, n, k = _convolved(data, weight, gradient, *one.args[7:10:2])
    if one.args[10][0]:
        log.product(one.out[0], (groups, m, k, n), (gradient, weight), "input_grad")
    if one.args[10][1]:
        log.product(one.out[1], (groups, n, k, m), (gradient, data), "weight_grad")


def _convolved(
    data: Tensor, weight: Tensor, out: Value, transposed: bool, groups: int
) -> tuple[float, float, float, float]:
    """A convolution as products: places x (channels of a group x kernel) x channels."""
    places = data if transposed else out
    rows = places.shape[0] * prod(places.shape[2:])
    return groups, rows, weight.shape[0] / groups, prod(weight.shape[1:])


def _grouped_mm(log: KernelLog, one: _Call) -> None:
    """Products of experts, their tokens evenly spread."""
    first, second = one.args[:2]
    dims = first.dim(), second.dim()
    shape: tuple[float, float, float, float]
    if dims == (2, 3):
        groups = second.shape[0]
        shape = (groups, first.shape[0] / groups, second.shape[2], first.shape[1])
    elif dims == (2, 2):
        groups = one.out.shape[0]
        shape = (groups, first.shape[0], second.shape[1], first.shape[1] / groups)
    elif dims == (3, 2):
        groups = first.shape[0]
        shape = (groups, first.shape[1], second.shape[1] / groups, first.shape[2])
    else:
        shape = (first.shape[0], first.shape[1], second.shape[2], first.shape[2])
    backward = "weight_grad" if dims == (2, 2) else "input_grad"
    phase = backward if log.backward else "forward"
    log.product(one.out, shape, (first, second), phase, grouped=True)


def _grouped_backward(log: KernelLog, one: _Call) -> None:
    """Both gradients of the products of experts, as transformers computes them without a kernel."""
    data, weight, _, gradient = one.args[:4]
    groups, k, n = weight.shape
    rows = data.shape[0] / groups
    log.product(one.out[0], (groups, rows, k, n), (gradient, weight), "input_grad", grouped=True)
    log.product(one.out[1], (groups, k, n, rows), (data, gradient), "weight_grad", grouped=True)


def _attention(log: KernelLog, one: _Call, *, backward: bool = False) -> None:
    """Queries, keys and values of shape (batch, heads, tokens, width)."""
    query, key, value = one.args[1:4] if backward else one.args[:3]
    place = 7 if backward else 4
    causal = one.args[place] if len(one.args) > place else one.kwargs.get("is_causal", False)
    kind = (True, backward, causal, query.shape[3], value.shape[3])
    dtype = _DTYPES.get(str(query.dtype), "fp32")
    sizes = (query.shape[0], query.shape[2], key.shape[2], query.shape[1], key.shape[1])
    log.timed.append(Timed(kind, log.segment, dtype, (*sizes, query.element_size())))


_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
_addmm = partial(_mm, operands=slice(1, 3))
_attention_backward = partial(_attention, backward=True)
_KERNELS: dict[str, Callable[[KernelLog, _Call], None]] = {
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
    kind = attrgetter("kind")
    for key, found in groupby(sorted(log.timed, key=kind), key=kind):
        rows = list(found)
        codes = [known.index(row.dtype if row.dtype in known else dtype) for row in rows]
        kernel = _kernel(key, np.array([row.columns for row in rows], dtype=np.float64).T)
        times = gather(rates, np.array(codes, dtype=np.int64)).times(kernel)[2]
        places = np.array([row.segment for row in rows], dtype=np.int64)
        seconds += np.bincount(places, weights=times, minlength=segments)
    return seconds


def _kernel(kind: tuple[Any, ...], columns: Floats) -> Kernel:
    """Kernels of one kind: one evaluation for all."""
    if kind[0]:
        _, backward, causal, head_dim, v_head_dim = kind
        sequences, queries, keys, heads, kv_heads, size = columns
        return FlashAttention(
            phase=Phase.INPUT_GRAD if backward else Phase.FORWARD,
            sequences=sequences,
            seq_len=queries,
            keys=keys,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            causal=causal,
            element_bytes=size,
        )
    groups, m, n, k, read, written = columns
    return Matmul(
        phase=Phase(kind[1]),
        m=m,
        n=n,
        k=k,
        input_bytes=read,
        output_bytes=written,
        batch=groups,
        grouped=kind[2],
    )


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
