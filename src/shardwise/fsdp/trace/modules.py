"""The tree of module calls of a step, with their begin and end as FSDP2's hooks see them.

In forward a call lasts from its pre-hook to its hook. In backward it begins when the gradient of
one of its outputs is ready, and ends when the gradients of its inputs are: FSDP2 detects the latter
by an autograd function that the inputs pass through, and so does this module (PyTorch 2.13,
`torch/distributed/fsdp/_fully_shard`). If it never ends, FSDP2 ends it after the step.
"""

# ruff: noqa: SLF001 - storages have no public identity; tensors carry the calls that return them

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from shardwise.fsdp.trace.torch_tools import (
    Context,
    Module,
    Tensor,
    Value,
    grad_tensors,
    replace_tensors,
    tensors,
    torch_module,
)


@dataclass(slots=True, kw_only=True)
class Call:
    """One run of a module."""

    name: str
    kind: str
    parent: int
    run: int
    begin: int
    """First segment forward."""
    after: int = -1
    end: int = -1
    """Number of calls when it ended: position after its last descendant."""
    backward_begin: int = -1
    backward_after: int = -1
    output_bytes: float = 0.0
    has_gradient: bool = False
    """Whether an output needs a gradient, so that backward is seen."""


@dataclass(slots=True)
class Calls:
    """Hooks on all modules of a tree."""

    cut: Callable[[], int]
    """Ends a segment and begins the next, whose number it returns."""
    calls: list[Call] = field(default_factory=list)
    in_backward: bool = False
    _open: list[int] = field(default_factory=list)
    _recomputing: list[tuple[Call | None, int]] = field(default_factory=list)
    """Calls that backward is recomputing, from the outside in, each with the segment that it began
    in; None: a call that backward detects anyway."""
    _runs: dict[str, list[int]] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)

    def install(self, module: Module) -> None:
        """Register hooks on every module of a tree."""
        for name, one in module.named_modules():
            before = one.register_forward_pre_hook(
                partial(self._enter, name), prepend=True, with_kwargs=True
            )
            # Checkpointing stops the recomputation by an exception once it has all it needs.
            after = one.register_forward_hook(self._leave, always_call=True)
            self._handles += [before, after]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def runs(self, name: str) -> list[int]:
        """Positions of a module's calls."""
        return self._runs.get(name, [])

    def _enter(
        self, name: str, module: Module, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.in_backward:
            return self._enter_recomputation(name, args, kwargs)
        runs = self._runs.setdefault(name, [])
        call = Call(
            name=name,
            kind=type(module).__name__,
            parent=self._open[-1] if self._open else -1,
            run=len(runs),
            begin=self.cut(),
        )
        runs.append(len(self.calls))
        self._open.append(len(self.calls))
        self.calls.append(call)
        return self._pass_inputs(call, args, kwargs)

    def _leave(self, module: Module, args: Value, output: Value) -> None:
        del module, args
        if self.in_backward:
            self._leave_recomputation(output)
            return
        call = self.calls[self._open.pop()]
        call.end = len(self.calls)
        sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors(output)}
        call.output_bytes = float(sum(sizes.values()))
        self._hook_outputs(call, output)
        call.after = self.cut()

    def _enter_recomputation(
        self, name: str, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Enter a call that backward recomputes, which is not a new one.

        Reentrant checkpointing ran it without gradients, so that backward is detected only now; the
        outermost of its modules begins here, because FSDP2 gathers weights here.
        """
        call = None
        if torch_module().is_grad_enabled():
            seen = [one for one, _ in self._recomputing]
            calls = (self.calls[place] for place in reversed(self.runs(name)))
            call = next((one for one in calls if not one.has_gradient and one not in seen), None)
        began = self.cut() if call is not None and not self._recomputing else -1
        self._recomputing.append((call, began))
        return None if call is None else self._pass_inputs(call, args, kwargs)

    def _leave_recomputation(self, output: Value) -> None:
        call, began = self._recomputing.pop()
        if call is None:
            return
        self._hook_outputs(call, output)
        if call.has_gradient and call.backward_begin < 0:
            call.backward_begin = began

    def _pass_inputs(
        self, call: Call, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Pass the inputs through a function that reports when their gradients are ready."""
        if not torch_module().is_grad_enabled():
            return None
        inputs = grad_tensors((args, kwargs))
        if not inputs:
            return None
        # A tensor passed twice stays one tensor: modules test whether queries are keys.
        distinct = list({id(one): one for one in inputs}.values())
        passed = _gradient_gate().apply(partial(self._input_gradients_ready, call), *distinct)
        stands_for = {id(one): new for one, new in zip(distinct, passed, strict=True)}
        new_args, new_kwargs = replace_tensors(
            (args, kwargs), iter([stands_for[id(i)] for i in inputs])
        )
        return new_args, new_kwargs

    def _hook_outputs(self, call: Call, output: Value) -> None:
        """Hook the gradients of the outputs of a call.

        Of calls that return the same tensor, the outermost was registered last and begins first.
        """
        for tensor in grad_tensors(output):
            call.has_gradient = True
            seen = getattr(tensor, "_shardwise_calls", None)
            if seen is not None and seen[0] is tensor.grad_fn:
                seen[1].append(call)
                continue
            calls = [call]
            tensor._shardwise_calls = (tensor.grad_fn, calls)
            tensor.register_hook(partial(self._output_gradient_ready, calls))

    def _output_gradient_ready(self, calls: list[Call], gradient: Tensor) -> None:
        del gradient
        for call in reversed(calls):
            if call.backward_begin < 0:
                call.backward_begin = self.cut()

    def _input_gradients_ready(self, call: Call) -> None:
        call.backward_after = self.cut()


@cache
def _gradient_gate() -> Any:
    """An autograd function that returns its inputs, and calls back once all have gradients.

    It detaches, rather than returning views, so that modules may still modify inputs in place.
    """
    torch = torch_module()

    def forward(ctx: Context, callback: Callable[[], None], *inputs: Value) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.callback = callback
        return tuple(one.detach() for one in inputs)

    def backward(ctx: Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.callback()
        return (None, *gradients)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Gate", (torch.autograd.Function,), methods)
