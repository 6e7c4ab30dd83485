"""`trace`: profile one training step of a module on fake tensors.

A storage counts once, however many tensors view it, from the operator that returns it until its
last tensor is freed. What existed before the step (weights, buffers, inputs) does not count.

Calls of modules begin and end as FSDP2's hooks see them. In forward a call lasts from its pre-hook
to its hook. In backward it begins when the gradient of one of its outputs is ready, and ends when
the gradients of its inputs are: FSDP2 detects the latter by an autograd function that the inputs
pass through, and so does this module (PyTorch 2.13, `torch/distributed/fsdp/_fully_shard`). If it
never ends, FSDP2 ends it after the step.
"""

# ruff: noqa: SLF001 - storages and parameters have no public identity; tensors carry their calls

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from shardwise.config.system import System, SystemLike
from shardwise.errors import InputError
from shardwise.fsdp.plan import Dtype
from shardwise.fsdp.profile import Parameter, Profile, ProfiledModule
from shardwise.fsdp.trace.factory import LoadedModel, load_module
from shardwise.fsdp.trace.kernels import KernelLog, segment_seconds
from shardwise.fsdp.trace.torch_tools import (
    Context,
    Module,
    Operator,
    Storage,
    Tensor,
    Value,
    default_dtype,
    grad_tensors,
    no_garbage_collection,
    refuse_errors,
    replace_tensors,
    tensors,
    torch_dtype,
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


@dataclass(slots=True)
class Ledger:
    """Live bytes, and the peak and the end of each segment so far."""

    peaks: list[int] = field(default_factory=list)
    """Peak of each closed segment [byte]."""
    ends: list[int] = field(default_factory=list)
    """Bytes at the end of each."""
    live: int = 0
    peak: int = 0
    started: bool = False
    _known: dict[int, Any] = field(default_factory=dict)

    @property
    def segment(self) -> int:
        """Number of the open segment."""
        return len(self.peaks)

    def cut(self) -> int:
        """End a segment, begin the next and return its number; the first cut begins segment 0."""
        if self.started:
            self.peaks.append(self.peak)
            self.ends.append(self.live)
        self.started = True
        self.peak = self.live
        return len(self.peaks)

    def exclude(self, tensors: Iterable[Tensor]) -> float:
        """Never count these tensors; return the bytes of their storages."""
        found: dict[int, int] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage.nbytes()
            self._known.setdefault(storage._cdata, storage)
        return float(sum(found.values()))

    def record_storage(self, storage: Storage) -> None:
        """Count a storage that an operator returned, once."""
        place = storage._cdata
        if place in self._known:
            return
        size = storage.nbytes()

        def gone(_: object) -> None:
            self.live -= size
            del self._known[place]

        self._known[place] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)


def trace(
    source: object,
    *,
    system: SystemLike | None,
    batch: int,
    seq_len: int,
    dtype: Dtype = "bf16",
    name: str | None = None,
) -> Profile:
    """Profile one unsharded training step of a model, without weights and without a GPU.

    The step runs on the CPU on PyTorch's fake tensors, which have shapes and no numbers. Bytes are
    those of the tensors' storages, without an allocator's rounding. Times are those of the kernels
    on the system, one after the other. `batch` and `seq_len` are for models that do not make their
    own inputs; `dtype` is that of weights, activations and gradients.
    """
    if system is None:
        raise InputError.at("trace", "is missing: set it", "system")
    system = System.load(system)
    for name_, value in (("batch", batch), ("seq_len", seq_len)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            problem = "must be a whole number of 1 or more"
            raise InputError.of(name_, value, problem, "trace")
    load = load_module(source, batch=batch, seq_len=seq_len, name=name)
    fake = torch_module("torch._subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)
    with fake, default_dtype(torch_dtype(dtype)):
        step = _Step(load, batch, seq_len)
        with no_garbage_collection(), load.stand_ins():
            step.run()
        return step.profile(system, dtype)


class _Step:
    """One step: its model and inputs, and what was recorded."""

    def __init__(self, load: LoadedModel, batch: int, seq_len: int) -> None:
        self.load = load
        self.module = load.build()
        self.inputs = load.inputs(self.module, batch, seq_len)
        self.ledger = Ledger()
        self.log = KernelLog()
        self.calls = Calls(self._cut)
        self.forward_segments = 0
        self.gradient_segments: dict[int, int] = {}
        self.ledger.exclude(self.module.parameters())
        fixed = [*self.module.buffers(), *tensors(self.inputs)]
        self.fixed_bytes = self.ledger.exclude(fixed)

    def _cut(self) -> int:
        self.log.segment = self.ledger.cut()
        return self.log.segment

    def run(self) -> None:
        """Forward, loss and backward; the output is dropped as soon as the loss is known."""
        handles = [
            parameter.register_post_accumulate_grad_hook(self._gradient_complete)
            for parameter in self.module.parameters()
            if parameter.requires_grad
        ]
        self.calls.install(self.module)
        try:
            with (
                refuse_errors(self.load.source, "does not run"),
                _recording(self.ledger, self.log),
            ):
                self._run()
        finally:
            self.calls.remove()
            for handle in handles:
                handle.remove()

    def _run(self) -> None:
        args, kwargs = self.inputs
        loss = self.load.loss(self.module(*args, **kwargs))
        self.forward_segments = self._cut()
        if not loss.requires_grad:
            problem = "its loss depends on no trainable weight"
            raise InputError.at(self.load.source, problem)
        self.log.backward = self.calls.in_backward = True
        loss.backward()
        self._cut()

    def _gradient_complete(self, parameter: Tensor) -> None:
        self.gradient_segments[id(parameter)] = self.ledger.segment

    def profile(self, system: System, dtype: Dtype) -> Profile:
        """Turn the recorded step into a profile, with times."""
        segments = len(self.ledger.peaks)
        parameters, never_run = self._parameters()
        return Profile(
            name=self.load.name or type(self.module).__name__,
            source=self.load.source,
            modules=tuple(self._profiled(segments)),
            parameters=tuple(parameters),
            forward_segments=self.forward_segments,
            seconds=segment_seconds(self.log, segments, system, dtype),
            resident_bytes=np.array(self.ledger.peaks, dtype=np.float64),
            end_bytes=np.array(self.ledger.ends, dtype=np.float64),
            fixed_bytes=self.fixed_bytes,
            assumed=(*self.load.assumed, *_assumed(self.log, system)),
            never_run=tuple(never_run),
        )

    def _profiled(self, segments: int) -> Iterator[ProfiledModule]:
        for place, call in enumerate(self.calls.calls):
            begin, after = call.backward_begin, call.backward_after
            if begin < 0 <= after:  # its outputs are in opaque objects: it begins with a child
                inside = self.calls.calls[place + 1 : call.end]
                begin = min(
                    [one.backward_begin for one in inside if one.backward_begin >= 0] + [after]
                )
            record = begin >= 0
            reduced_last = record and after < 0
            yield ProfiledModule(
                name=call.name,
                kind=call.kind,
                parent=call.parent,
                end=call.end,
                forward=(call.begin, call.after),
                backward=(
                    begin if record else segments,
                    after if record and not reduced_last else segments,
                ),
                output_bytes=call.output_bytes,
                reduced_last=reduced_last,
                run=call.run,
            )

    def _parameters(self) -> tuple[list[Parameter], list[str]]:
        """Weights, each with the calls that own it, and modules with weights that never ran."""
        holders: dict[int, set[int]] = {}
        never_run = []
        for name, module in self.module.named_modules():
            own = [one for one in module._parameters.values() if one is not None]
            if own and not self.calls.runs(name):
                never_run.append(name)
            for one in own:
                holders.setdefault(id(one), set()).update(self._nearest_runs(name))
        found = [
            Parameter(
                name=name,
                shape=tuple(one.shape),
                holders=tuple(sorted(holders[id(one)])),
                element_bytes=one.element_size(),
                trainable=one.requires_grad,
                gradient_segment=self.gradient_segments.get(id(one), -1),
            )
            for name, one in self.module.named_parameters()
        ]
        return found, never_run

    def _nearest_runs(self, name: str) -> list[int]:
        """Calls of a module or, if it never ran, of its innermost ancestor that did."""
        while not (runs := self.calls.runs(name)) and name:
            name = name.rpartition(".")[0]
        return runs


def _assumed(log: KernelLog, system: System) -> list[str]:
    """Assumptions of the times, for people."""
    found = [f"one kernel per operator (no torch.compile), timed for {system.name}"]
    kinds = {one.kind for one in log.timed}
    if any(is_attention for is_attention, *_ in kinds):
        found.append("attention in one fused kernel")
    if any(not is_attention and grouped for is_attention, _, grouped, *_ in kinds):
        found.append("every expert takes as many tokens, in grouped products")
    return found


def _recording(ledger: Ledger, log: KernelLog) -> Any:
    """A dispatch mode that records every operator and its outputs in both."""
    torch = torch_module()
    tensor = torch.Tensor
    skipped = torch.ops.prim.device.default  # the most frequent operator; it runs nothing

    def dispatch(
        self: object, func: Operator, types: Sequence[type], args: Value = (), kwargs: Value = None
    ) -> Value:
        del self, types
        out = func(*args, **(kwargs or {}))
        if func is not skipped:
            several = out if isinstance(out, (tuple, list)) else (out,)
            for one in several:
                if isinstance(one, tensor):
                    ledger.record_storage(one.untyped_storage())
            log.record(func, args, kwargs or {}, out)
        return out

    base = torch_module("torch.utils._python_dispatch").TorchDispatchMode
    return type("Recording", (base,), {"__torch_dispatch__": dispatch})()
