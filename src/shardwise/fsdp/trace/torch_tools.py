"""PyTorch where it is installed, the names of its types, and tensors inside what modules take."""

import dataclasses
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from shardwise.errors import Fault, InputError
from shardwise.fsdp.plan import Dtype

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload
    from torch.autograd.function import FunctionCtx

    Tensor: TypeAlias = torch.Tensor
    Storage: TypeAlias = torch.UntypedStorage
    TorchDtype: TypeAlias = torch.dtype
    Module: TypeAlias = torch.nn.Module
    Optimizer: TypeAlias = torch.optim.Optimizer
    Operator: TypeAlias = OpOverload
    Context: TypeAlias = FunctionCtx
else:  # PyTorch is an extra, and imported where it is first used
    Tensor = Storage = TorchDtype = Module = Optimizer = Operator = Context = object

Value: TypeAlias = Any
"""What operators and modules take and return: tensors, numbers, None, and containers of them."""

_NAMES: dict[Dtype, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def torch_module(name: str = "torch") -> ModuleType:
    """Import a module of PyTorch, or raise an error that says what to install."""
    try:
        return import_module(name)
    except ImportError:
        problem = "needs the extra torch: pip install 'shardwise[torch]'"
        raise InputError.at("trace", problem) from None


@contextmanager
def refuse_errors(source: str, what: str, value: object = None) -> Iterator[None]:
    """Refuse a model whose code raises anything or ends the process; interrupts pass."""
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        problem = f"{what}: {describe_error(error)}"
        has_value = value is not None
        raise InputError(
            Fault(source=source, value=value, has_value=has_value, problem=problem)
        ) from error


def describe_error(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    kind = type(error).__name__
    lines = str(error).strip().splitlines()
    text = f"{kind}: {lines[0]}" if lines else kind
    if any(word in kind for word in ("DataDependent", "DynamicOutput")):
        text += " (it needs a number of a tensor, and fake tensors have none)"
    return text


def torch_dtype(dtype: Dtype) -> TorchDtype:
    """PyTorch's dtype of a type."""
    if dtype not in _NAMES:
        problem = f"no such type; allowed: {', '.join(_NAMES)}"
        raise InputError.of("dtype", dtype, problem, "trace")
    return getattr(torch_module(), _NAMES[dtype])


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, whose timing is no property of a model or a wrapping."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def default_dtype(dtype: TorchDtype) -> Iterator[None]:
    """Build modules in a type: fake parameters cannot be cast later."""
    torch = torch_module()
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


def tensors(value: Value) -> Iterator[Tensor]:
    """Tensors in tuples, lists, mappings and dataclasses, in order; no others, as in FSDP2."""
    if isinstance(value, torch_module().Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


def grad_tensors(value: Value) -> list[Tensor]:
    """Those of them that gradients flow to."""
    return [tensor for tensor in tensors(value) if tensor.requires_grad]


def replace_tensors(value: Value, new: Iterator[Tensor]) -> Value:
    """The value with new tensors in place of those of `grad_tensors`, in their order.

    Containers without any of them are not copied.
    """
    if isinstance(value, torch_module().Tensor):
        return next(new) if value.requires_grad else value
    if not grad_tensors(value):
        return value
    kind: Any = type(value)
    if isinstance(value, Mapping):
        items = {key: replace_tensors(item, new) for key, item in value.items()}
        of_fields = dataclasses.is_dataclass(kind)  # as are outputs of Hugging Face
        if of_fields:
            return kind(**items)
        copied: Any = copy(value)
        copied.update(items)
        return copied
    if isinstance(value, (tuple, list)):
        members = [replace_tensors(item, new) for item in value]
        return kind(*members) if hasattr(kind, "_fields") else kind(members)
    names = [field.name for field in dataclasses.fields(value)]
    return dataclasses.replace(value, **{n: replace_tensors(getattr(value, n), new) for n in names})
