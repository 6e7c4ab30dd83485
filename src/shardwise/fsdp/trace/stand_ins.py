"""Stand-ins for kernels of an accelerator, for fake tensors on the CPU.

A CUDA device computes attention, dropout and RMSNorm in kernels of their own, which save little for
backward; the CPU composes them of many, which save more: with dropout it writes all scores. The
shapes here are those of PyTorch 2.13's CUDA kernels. Fake tensors have no numbers, so nothing is
computed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

from shardwise.fsdp.trace.torch_tools import (
    Context,
    Operator,
    Tensor,
    Value,
    torch_module,
)

# ruff: noqa: SLF001 - PyTorch has no public way to put a kernel in for a while


_SCHEMAS = {
    "attention": "(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal) -> (Tensor, Tensor)",
    "attention_backward": "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, "
    "Tensor lse, bool causal, bool mask_grad) -> (Tensor, Tensor, Tensor, Tensor)",
    "rms_norm": "(Tensor x, int dims, Tensor? weight) -> (Tensor, Tensor)",
    "rms_norm_backward": "(Tensor grad, Tensor x, Tensor? weight, Tensor rstd) -> (Tensor, Tensor)",
}
_HEADS = 4
"""Dimensions of what fused attention takes: batch, heads, tokens, width."""


@contextmanager
def stand_ins() -> Iterator[None]:
    """Run modules as on an accelerator; for the full step, recomputation in backward included."""
    with ExitStack() as undo:
        undo.enter_context(_whole_sequences())
        undo.enter_context(_kernels())
        yield


@contextmanager
def without_numbers() -> Iterator[None]:
    """Build modules that read numbers of tensors in their constructors.

    Truncated normal weights are drawn until all lie inside the bounds: here they are not drawn.
    Rates that grow from layer to layer are read from a `linspace`, which is therefore real.
    """
    init: Any = torch_module("torch.nn.init")
    torch: Any = torch_module()
    drawn, spaced = init._no_grad_trunc_normal_, torch.linspace

    def linspace(*args: Value, **kwargs: Value) -> Tensor:
        with torch_module("torch._subclasses.fake_tensor").unset_fake_temporarily():
            return spaced(*args, **kwargs).as_subclass(_real_tensor())

    init._no_grad_trunc_normal_ = lambda tensor, *_, **__: tensor
    torch.linspace = linspace
    try:
        yield
    finally:
        init._no_grad_trunc_normal_, torch.linspace = drawn, spaced


@cache
def _real_tensor() -> type:
    """A tensor whose functions run outside of fake modes, unless an argument is fake."""
    torch = torch_module()
    fake_tensor = torch_module("torch._subclasses.fake_tensor")
    usual = torch.Tensor.__torch_function__.__func__

    def run(
        cls: type, func: Operator, types: Sequence[type], args: Value = (), kwargs: Value = None
    ) -> Value:
        if any(issubclass(kind, fake_tensor.FakeTensor) for kind in types):
            return usual(cls, func, types, args, kwargs or {})
        with fake_tensor.unset_fake_temporarily():
            return usual(cls, func, types, args, kwargs or {})

    return type("Real", (torch.Tensor,), {"__torch_function__": classmethod(run)})


@contextmanager
def _whole_sequences() -> Iterator[None]:
    """Make models of Hugging Face treat inputs as not packed.

    They detect packing by the positions, which fake tensors do not have, and would build a mask
    that a real run does not have.
    """
    try:
        masks: Any = import_module("transformers.masking_utils")
    except ImportError:
        yield
        return
    name = "find_packed_sequence_indices"
    usual = getattr(masks, name, None)
    if usual is None:
        yield
        return
    setattr(masks, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(masks, name, usual)


@contextmanager
def _kernels() -> Iterator[None]:
    """Register the stand-ins with the dispatcher, which also serves checkpointing in backward."""
    torch_module()
    scoped = torch_module("torch.library")._scoped_library
    with scoped("aten", "IMPL") as library:
        for name, kernel in (
            ("scaled_dot_product_attention", _attention),
            ("dropout", _dropout),
            ("rms_norm", _rms_norm),
        ):
            library.impl(name, partial(_or_usual, name, kernel), "AutogradCPU")
        yield


def _or_usual(name: str, kernel: Callable[..., Value], *args: Value, **kwargs: Value) -> Value:
    """The result of a stand-in or, if it does not support the arguments, of the CPU's kernel."""
    out = kernel(*args, **kwargs)
    if out is not NotImplemented:
        return out
    torch = torch_module()
    usual = getattr(torch.ops.aten, name).default
    return usual._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _dropout(data: Tensor, share: float, train: bool) -> Value:
    """Dropout in one kernel, which saves a byte for each number."""
    if not train or not 0 < share < 1:
        return NotImplemented
    return torch_module().native_dropout(data, share, True)[0]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Attention in one kernel, also with dropout or a mask; masked scores are computed too.

    A boolean mask is converted to numbers first, as in PyTorch.
    """
    del dropout_p, scale, enable_gqa
    if not query.dim() == key.dim() == value.dim() == _HEADS:
        return NotImplemented
    if attn_mask is not None and not attn_mask.is_floating_point():
        attn_mask = attn_mask.to(query.dtype)
    return _functions()[0].apply(query, key, value, attn_mask, is_causal)


def _rms_norm(
    data: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Value:
    """RMSNorm in one kernel, where data and weight are of one type."""
    del eps
    if weight is not None and weight.dtype != data.dtype:
        return NotImplemented
    return _functions()[1].apply(data, len(shape), weight)


@cache
def _operators() -> Any:
    """Operators with the outputs of these kernels, and their library.

    They are registered with the dispatcher, so that a dispatch mode sees one kernel each.
    """
    torch = torch_module()
    library = torch.library.Library("shardwise", "FRAGMENT")
    made = {
        "attention": _attended,
        "attention_backward": _attention_gradients,
        "rms_norm": _normalized,
        "rms_norm_backward": _norm_gradients,
    }
    for name, schema in _SCHEMAS.items():
        library.define(name + schema)
        library.impl(name, made[name], "Meta")
    return torch.ops.shardwise, library


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Output, laid out by tokens, and the logarithm of each query's sum in fp32."""
    del k, mask, causal
    batch, heads, tokens, _ = q.shape
    out = q.new_empty((batch, tokens, heads, v.shape[-1])).transpose(1, 2)
    return out, q.new_empty((batch, heads, tokens), dtype=torch_module().float32)


def _attention_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *rest: Value
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, and of every score where the mask is trained."""
    del grad
    torch = torch_module()
    scores = (*q.shape[:3], k.shape[2]) if mask is not None and rest[-1] else (0,)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), q.new_empty(scores)


def _normalized(x: Tensor, dims: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    del weight
    torch = torch_module()
    ones = (1,) * dims
    return torch.empty_like(x), x.new_empty((*x.shape[:-dims], *ones), dtype=torch.float32)


def _norm_gradients(grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    del grad, rstd
    torch = torch_module()
    return torch.empty_like(x), x.new_empty((0,)) if weight is None else torch.empty_like(weight)


@cache
def _functions() -> tuple[Any, Any]:
    """Differentiable versions of attention and RMSNorm."""
    ops = _operators()[0]

    def attention(
        ctx: Context, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool
    ) -> Tensor:
        out, lse = ops.attention(q, k, v, mask, causal)
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.causal = causal
        return out

    def attention_backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out, lse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3]
        found = ops.attention_backward(grad, q, k, v, mask, out, lse, ctx.causal, wanted)
        scores = found[3].sum_to_size(mask.shape) if wanted else None  # over what was expanded
        return (*found[:3], scores, None)

    def rms_norm(ctx: Context, x: Tensor, dims: int, weight: Tensor) -> Tensor:
        out, rstd = ops.rms_norm(x, dims, weight)
        ctx.save_for_backward(x, weight, rstd)
        return out

    def rms_norm_backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        data, weights = ops.rms_norm_backward(grad, *ctx.saved_tensors)
        return data, None, weights if ctx.needs_input_grad[2] else None

    return (
        _function("FusedAttention", attention, attention_backward),
        _function("FusedRMSNorm", rms_norm, rms_norm_backward),
    )


def _function(name: str, forward: Callable[..., Value], backward: Callable[..., Value]) -> Any:
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch_module().autograd.Function,), methods)
