"""The tree of module calls of a step, and when each begins and ends, as FSDP2's hooks see it.

Forward a call lasts from its pre-hook to its hook. Backward it begins when the gradient of one of
its outputs arrives, and ends when the gradients of its inputs are computed: FSDP2 tells the latter
by an autograd function that the inputs pass through, and so does this (PyTorch 2.13,
`torch/distributed/fsdp/_fully_shard`). Where it never ends, FSDP2 ends it after the whole step.
"""

# ruff: noqa: SLF001 - a storage has no other name; a tensor is told what calls return it

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from shardwise.fsdp.trace.torch_tools import grad_tensors, replace_tensors, tensors, torch_module

__all__ = ["Call", "Calls"]


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
    watched: bool = False
    """Whether an output needs a gradient, so that backward is seen."""


@dataclass(slots=True)
class Calls:
    """Hooks on all modules of a tree."""

    cut: Callable[[], int]
    """Ends a segment and begins the next, whose number it returns."""
    made: list[Call] = field(default_factory=list)
    in_backward: bool = False
    _open: list[int] = field(default_factory=list)
    _again: list[tuple[Call | None, int]] = field(default_factory=list)
    """Calls that backward is computing again, from the outside in, each with the segment that it
    began in; None: one that backward sees anyway."""
    _runs: dict[str, list[int]] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)

    def watch(self, module: Any) -> None:
        """Hang hooks on every module of a tree."""
        for name, one in module.named_modules():
            before = one.register_forward_pre_hook(
                partial(self._enter, name), prepend=True, with_kwargs=True
            )
            # Checkpointing stops computing again by an exception once it has all it needs.
            after = one.register_forward_hook(self._leave, always_call=True)
            self._handles += [before, after]

    def release(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def runs(self, name: str) -> list[int]:
        """Positions of a module's calls."""
        return self._runs.get(name, [])

    def _enter(
        self, name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.in_backward:
            return self._enter_again(name, args, kwargs)
        runs = self._runs.setdefault(name, [])
        call = Call(
            name=name,
            kind=type(module).__name__,
            parent=self._open[-1] if self._open else -1,
            run=len(runs),
            begin=self.cut(),
        )
        runs.append(len(self.made))
        self._open.append(len(self.made))
        self.made.append(call)
        return self._through_gate(call, args, kwargs)

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        del module, args
        if self.in_backward:
            self._leave_again(output)
            return
        call = self.made[self._open.pop()]
        call.end = len(self.made)
        sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors(output)}
        call.output_bytes = float(sum(sizes.values()))
        self._await_gradient(call, output)
        call.after = self.cut()

    def _enter_again(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Meet a call that backward computes again, which is no new one.

        Reentrant checkpointing ran it without gradients, so that backward is seen only now; the
        outermost of its modules begins here, as FSDP2 gathers weights here.
        """
        call = None
        if torch_module().is_grad_enabled():
            known = [one for one, _ in self._again]
            calls = (self.made[place] for place in reversed(self.runs(name)))
            call = next((one for one in calls if not one.watched and one not in known), None)
        began = self.cut() if call is not None and not self._again else -1
        self._again.append((call, began))
        return None if call is None else self._through_gate(call, args, kwargs)

    def _leave_again(self, output: Any) -> None:
        call, began = self._again.pop()
        if call is None:
            return
        self._await_gradient(call, output)
        if call.watched and call.backward_begin < 0:
            call.backward_begin = began

    def _through_gate(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Pass the inputs through the function that tells when their gradients are computed."""
        if not torch_module().is_grad_enabled():
            return None
        inputs = grad_tensors((args, kwargs))
        if not inputs:
            return None
        # One that is given twice stays one: modules ask whether queries are keys.
        distinct = list({id(one): one for one in inputs}.values())
        passed = _gate().apply(partial(self._gradients_left, call), *distinct)
        stands_for = {id(one): new for one, new in zip(distinct, passed, strict=True)}
        new_args, new_kwargs = replace_tensors(
            (args, kwargs), iter([stands_for[id(i)] for i in inputs])
        )
        return new_args, new_kwargs

    def _await_gradient(self, call: Call, output: Any) -> None:
        """Have the gradient of any output tell of the call.

        Of calls that return one and the same tensor the outermost was made last and begins first.
        """
        for tensor in grad_tensors(output):
            call.watched = True
            known = getattr(tensor, "_shardwise_calls", None)
            if known is not None and known[0] is tensor.grad_fn:
                known[1].append(call)
                continue
            calls = [call]
            tensor._shardwise_calls = (tensor.grad_fn, calls)
            tensor.register_hook(partial(self._gradient_came, calls))

    def _gradient_came(self, calls: list[Call], gradient: Any) -> None:
        del gradient
        for call in reversed(calls):
            if call.backward_begin < 0:
                call.backward_begin = self.cut()

    def _gradients_left(self, call: Call) -> None:
        call.backward_after = self.cut()


@cache
def _gate() -> Any:
    """An autograd function that hands its inputs on, and calls back once all have gradients.

    It detaches, rather than returning views, so that modules may still change inputs in place.
    """
    torch = torch_module()

    def forward(ctx: Any, tell: Callable[[], None], *inputs: Any) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.tell = tell
        return tuple(one.detach() for one in inputs)

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        ctx.tell()
        return (None, *gradients)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Gate", (torch.autograd.Function,), methods)
