"""Memory of a wrapping as PyTorch's own FSDP2 allocates it, run on fake tensors.

`verify` builds the model under `FakeTensorMode`, shards it over a process group that is fake too,
and runs one training step under `torch.distributed._tools.fsdp2_mem_tracker.FSDPMemTracker`. The
hooks, copies and collectives are those of a real run; only the numbers in the tensors are missing.

A step runs before the one that is counted: an optimizer's first step leaves tensors of *unsharded*
shape behind, because DTensor derives layouts on fake tensors.

Fake tensors are on the CPU. A model may have `stand_ins()`, a context in which modules run kernels
that save what those of an accelerator save.

The tracker of torch 2.13 (`torch/distributed/_tools/fsdp2_mem_tracker.py`) is corrected in three
ways:

- It replaces FSDP2's forward hooks by its own on each module, so that in a group
  (`fully_shard([a, b])`) every module ends the group's forward. Here FSDP2 keeps its hooks, and
  the methods of the parameter groups that they call are instrumented instead.
- It learns of the storages of gathered weights only after the first copy out of the all-gather
  buffer, so that it misses this copy. Here they are registered from the start.
- It counts gradients of weights as temporaries until they are reduced. Here they have their own
  category.
"""

# ruff: noqa: SLF001 - the tracker and FSDP2 have no public entry

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, Protocol

from shardwise.errors import InputError, nearest
from shardwise.fsdp.emit import bottom_up
from shardwise.fsdp.plan import Setting, Wrapping
from shardwise.fsdp.trace.torch_tools import (
    Module,
    Operator,
    Optimizer,
    Tensor,
    Value,
    default_dtype,
    no_garbage_collection,
    torch_dtype,
)

Phase = Literal["forward", "backward", "optimizer"]
_CHECKPOINT = "_checkpoint_wrapped_module"
_LEFT_OUT = "without the allocator's rounding and fragments, NCCL's buffers and the CUDA context"
_OF_CPU = "with kernels of the CPU, whose attention keeps its probabilities where it drops some"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Memory at one moment, or at the peak between two events."""

    phase: Phase
    place: str
    """The last event: `enter model.layers.0`, `gathered norm, lm_head`."""
    operation: str
    """The operator after which it was counted, as PyTorch names it; empty: between two."""
    total_bytes: int
    by_category: Mapping[str, int]
    """As `FSDPMemTracker` names them; they sum to the total [byte]."""


@dataclass(slots=True)
class Ledger:
    """Records the peak between every two events while the tracker runs."""

    current: Callable[[], Mapping[Any, int]] = dict
    """Current bytes of the tracker by category, with the sum as "Total" [byte]."""
    phase: Phase = "forward"
    place: str = "start"
    operation: str = ""
    moments: list[Moment] = field(default_factory=list)
    _peak: Moment | None = None

    def count(self) -> None:
        """Compare the current memory with the peak since the last event."""
        current = self.current()
        total = current.get("Total", 0)
        if self._peak is None or total > self._peak.total_bytes:
            self._peak = Moment(
                phase=self.phase,
                place=self.place,
                operation=self.operation,
                total_bytes=total,
                by_category={k.value: v for k, v in current.items() if k != "Total" and v},
            )

    def event(self, place: str, phase: Phase | None = None) -> None:
        """Record an event: store the peak since the last one and start again."""
        if self._peak is not None:
            self.moments.append(self._peak)
            self._peak = None
        self.operation, self.place, self.phase = "", place, phase or self.phase
        self.count()


def track_step(
    module: Module, optimizer: Optimizer, inputs: Value, step: Callable[[Ledger], None]
) -> Ledger:
    """Run one step under the tracker and record the peak after every event."""
    kind = import_module("torch.distributed._tools.fsdp2_mem_tracker").FSDPMemTracker
    device = import_module("torch").device("cpu")
    ledger = Ledger()

    def dispatch(
        self: object, func: Operator, types: Sequence[type], args: Value = (), kwargs: Value = None
    ) -> Value:
        ledger.operation = str(func)
        return kind.__torch_dispatch__(self, func, types, args, kwargs)

    tracker = type("Tracker", (kind,), {"__torch_dispatch__": dispatch})(module, optimizer)
    ledger.current = lambda: tracker._curr_mem_snap.get(device, {})
    with ExitStack() as undo:
        undo.callback(setattr, warnings, "formatwarning", warnings.formatwarning)  # ModTracker's
        tracker._update_peak_stats = lambda _state: ledger.count()
        tracker._instrument_fsdp_module = lambda: _instrument(tracker, module, ledger, undo)
        tracker._deregister_module_and_optimizer_hooks = lambda: _unhook_optimizer(tracker)
        tracker.track_inputs((inputs,))
        with tracker:
            step(ledger)
            ledger.event("end")
    return ledger


def _unhook_optimizer(tracker: Any) -> None:
    """Remove the tracker's own hooks from the optimizer."""
    for handle in tracker._optimizer_hook_handles or ():
        handle.remove()
    tracker._optimizer_hook_handles = None


def _instrument(tracker: Any, module: Module, ledger: Ledger, undo: ExitStack) -> None:
    """Label existing tensors, and instrument modules, parameter groups and recomputation."""
    found = {m: n.replace(f"{_CHECKPOINT}.", "") for n, m in module.named_modules()}
    names = {m: n.removesuffix(f".{_CHECKPOINT}") or "root" for m, n in found.items()}
    tracker._mod_tracker.register_user_hooks(
        lambda m, _inputs: ledger.event(f"enter {names.get(m, '?')}"),
        lambda m, _inputs, _outputs: ledger.event(f"exit {names.get(m, '?')}"),
        lambda m, _gradients: ledger.event(f"enter {names.get(m, '?')}"),
        lambda m, _gradients: ledger.event(f"exit {names.get(m, '?')}"),
    )
    undo.callback(tracker._mod_tracker.clear_user_hooks)
    for buffer in module.buffers():
        tracker._update_and_maybe_create_winfos(buffer, tracker._ref_class.BUFFER)
    seen = set()
    for child in module.modules():
        if hasattr(child, _CHECKPOINT):
            _watch_recomputation(tracker, child._checkpoint_wrapped_module, undo)
        state = child._get_fsdp_state() if hasattr(child, "_get_fsdp_state") else None
        if state is not None and state not in seen:
            seen.add(state)
            name = ", ".join(names[m] for m in state._modules)
            groups = getattr(state, "_fsdp_param_groups", None)
            for group in [state._fsdp_param_group] if groups is None else groups:  # older torch
                if group is not None:
                    _Group(tracker, group, name, ledger).track_step(undo)


def _watch_recomputation(tracker: Any, inner: Module, undo: ExitStack) -> None:
    """Count recomputed tensors as activations; PyTorch stops midway, hence `always_call`."""

    def begin(*_: object) -> None:
        tracker._in_ac = tracker._mod_tracker.is_bw

    def end(*_: object) -> None:
        tracker._in_ac = False

    undo.callback(inner.register_forward_pre_hook(begin, prepend=True).remove)
    undo.callback(inner.register_forward_hook(end, always_call=True).remove)


class _Group:
    """Wraps the methods of a parameter group of FSDP2, to label tensors and record events."""

    def __init__(self, tracker: Any, group: Any, name: str, ledger: Ledger) -> None:
        self._tracker, self._group, self._name, self._ledger = tracker, group, name, ledger
        self._kinds, self._states = tracker._ref_class, type(tracker._fsdp_state)
        methods = ("unshard", "wait_for_unshard", "reshard", "post_backward")
        self._real = {method: getattr(group, method) for method in methods}

    def track_step(self, undo: ExitStack) -> None:
        """Label existing tensors, and replace the group's methods by these until `undo`."""
        self._tracker._instrument_fsdp_sharded_params_grads(self._group)
        for one in self._group.fsdp_params:
            for gathered in one.all_gather_outputs:  # empty for now, but the same storages later
                self._label(gathered, self._kinds.UNSHARDED_PARAM)
            weight = getattr(one, "_unsharded_param", None)
            if weight is not None and weight.requires_grad:
                hook = weight.register_post_accumulate_grad_hook(self._accumulated)
                undo.callback(hook.remove)
        for method in self._real:
            setattr(self._group, method, getattr(self, method))
            undo.callback(delattr, self._group, method)

    def unshard(self, async_op: bool = False) -> None:
        """Start a gather; FSDP2 calls this repeatedly, and only the first call has an effect."""
        idle = self._group._all_gather_result is None
        usual, self._tracker._fsdp_state = self._tracker._fsdp_state, self._states.PRE_FW
        self._real["unshard"](async_op)
        self._tracker._fsdp_state = usual
        if idle and self._group._all_gather_result is not None:
            self._ledger.event(f"gather {self._name}")

    def wait_for_unshard(self) -> None:
        """Copy weights out of the gather buffer."""
        pending = self._group._all_gather_result is not None
        self._real["wait_for_unshard"]()
        if pending:
            self._ledger.event(f"gathered {self._name}")

    def reshard(self) -> None:
        """Free gathered weights."""
        before = self._group._sharded_state
        self._real["reshard"]()
        if self._group._sharded_state != before:
            self._ledger.event(f"reshard {self._name}")

    def post_backward(self, *unused: object) -> None:
        """Reduce the gradients."""
        self._ledger.event(f"reduce {self._name}")
        usual, self._tracker._fsdp_state = self._tracker._fsdp_state, self._states.POST_BW
        self._real["post_backward"](*unused)
        self._tracker._fsdp_state = usual
        for one in self._group.fsdp_params:
            if one.sharded_param.grad is not None:
                self._label(one.sharded_param.grad, self._kinds.SHARDED_GRAD)
        self._ledger.event(f"reduced {self._name}")

    def _accumulated(self, weight: Tensor) -> None:
        self._label(weight.grad, self._kinds.UNSHARDED_GRAD)

    def _label(self, tensor: Tensor, kind: Any) -> None:
        self._tracker._update_and_maybe_create_winfos(tensor, kind)


_Inputs = tuple[Sequence[Any], Mapping[str, Any]]


class Trackable(Protocol):
    """A model that can be built and run: `shardwise.fsdp.trace.factory` makes them."""

    def build(self) -> Module:
        """Build the module, on the current device and in the default dtype."""

    def inputs(self, module: Module, batch: int, seq_len: int) -> Any:
        """Make the inputs of the module: `(args, kwargs)`, a tuple or a mapping."""

    def loss(self, output: Value) -> Tensor:
        """Reduce the module's output to a scalar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One tracked training step: forward, loss, backward, optimizer; gradients begin as None."""

    peak: Moment
    forward: Moment
    """Peak of the forward pass and the loss."""
    backward: Moment
    optimizer: Moment
    """Peak of the optimizer's step; its start if there is no optimizer."""
    moments: tuple[Moment, ...]
    """Peak after each entry and exit of a module and each event of a unit, in order."""
    elapsed_seconds: float
    notes: tuple[str, ...] = ()
    """What the figures leave out, and PyTorch's warnings."""

    @property
    def peak_bytes(self) -> int:
        """Peak of the full step [byte]."""
        return self.peak.total_bytes


def verify(
    load: Trackable, wrapping: Wrapping, setting: Setting, *, batch: int, seq_len: int
) -> Verified:
    """Run one training step of the wrapped model on fake tensors and track its memory.

    It runs rank 0 of `setting.gpus`, which has the largest shards of unevenly split weights. The
    output of the module lives until the loss is computed, the loss until the end. A tensor counts
    from the call that allocates it to the one that frees it, regardless of streams.
    """
    began = time.perf_counter()
    torch = _torch()
    with _warnings() as warned, _fake_world(torch, setting) as mesh:
        module = load.build()
        module.train()
        inputs = _called(load.inputs(module, batch, seq_len))
        _wrap(module, wrapping, setting, mesh)
        optimizer = _optimizer(torch, module, setting)
        with getattr(load, "stand_ins", nullcontext)():  # for kernels of an accelerator
            _step(load, module, optimizer, inputs)
            module.zero_grad()
            with no_garbage_collection():
                ledger = track_step(
                    module,
                    optimizer,
                    inputs,
                    lambda ledger: _step(load, module, optimizer, inputs, ledger.event),
                )
    own = () if hasattr(load, "stand_ins") else (_OF_CPU,)
    notes = (_LEFT_OUT, *own, *warned)
    return _verified(ledger, time.perf_counter() - began, notes)


def _torch() -> ModuleType:
    """Import PyTorch with FSDP2 and its tracker, or raise an error that says what to install."""
    try:
        torch = import_module("torch")
    except ImportError:
        problem = "checking a wrapping needs torch: pip install 'shardwise[torch]'"
        raise InputError.at("verify", problem) from None
    try:
        import_module("torch.distributed._tools.fsdp2_mem_tracker")
        import_module("torch.testing._internal.distributed.fake_pg")  # registers "fake"
    except ImportError:
        problem = "has no memory tracker for FSDP2, or cannot load it; 2.13 has one"
        raise InputError.of("torch", str(torch.__version__), problem, "verify") from None
    return torch


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect warnings, each once; afterwards warnings are shown as before."""
    collected: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield collected
    collected += dict.fromkeys(f"warning: {' '.join(str(w.message).split())}" for w in caught)


@contextmanager
def _fake_world(torch: ModuleType, setting: Setting) -> Iterator[Any]:
    """Be rank 0 of a process group that communicates nothing; restore everything afterwards."""
    dist = torch.distributed
    if dist.is_initialized():
        problem = "a process group exists already; check in a process without one"
        raise InputError.at("verify", problem)
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    fake_mode = import_module("torch._subclasses.fake_tensor").FakeTensorMode
    with ExitStack() as undo:
        undo.enter_context(torch.random.fork_rng(devices=[]))
        dist.init_process_group("fake", store=store, rank=0, world_size=setting.gpus)
        undo.callback(dist.destroy_process_group)
        mesh = _mesh(setting)
        undo.enter_context(fake_mode(allow_non_fake_inputs=True))
        undo.enter_context(default_dtype(torch_dtype(setting.stored_dtype)))
        yield mesh


def _mesh(setting: Setting) -> Any:
    """One dimension to shard over, or two where there are replicas."""
    make = import_module("torch.distributed.device_mesh").init_device_mesh
    if setting.replicas == 1:
        return make("cpu", (setting.shards,), mesh_dim_names=("shard",))
    shape = (setting.replicas, setting.shards)
    return make("cpu", shape, mesh_dim_names=("replicate", "shard"))


def _called(inputs: Value) -> _Inputs:
    """Inputs as positional and keyword arguments."""
    match inputs:
        case Mapping():
            return (), inputs
        case (tuple() | list() as args, Mapping() as kwargs):
            return args, kwargs
        case tuple():
            return inputs, {}
        case _:
            return (inputs,), {}


def _wrap(module: Module, wrapping: Wrapping, setting: Setting, mesh: Any) -> None:
    """Wrap as the emitted code does: checkpoint, then shard from the inside out, root last."""
    checkpoint = import_module("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    fully_shard = import_module("torch.distributed.fsdp").fully_shard
    found = dict(module.named_modules(remove_duplicate=False))
    wanted = [("units", name) for unit in wrapping.units for name in unit.modules]
    for where, name in [*wanted, *(("checkpointed", n) for n in wrapping.checkpointed)]:
        if name not in found:
            raise InputError.of(
                where, name, f"no module of the model{nearest(name, found)}", "verify"
            )
    if recomputed := {found[name] for name in wrapping.checkpointed}:
        checkpoint.apply_activation_checkpointing(module, check_fn=recomputed.__contains__)
    shared = {"mesh": mesh, "mp_policy": _policy(setting)}
    named = ""
    try:
        for unit in bottom_up(wrapping.units):
            named = ", ".join(unit.modules)
            modules = [module.get_submodule(name) for name in unit.modules]
            target = modules if len(modules) > 1 else modules[0]
            fully_shard(target, **shared, reshard_after_forward=unit.reshard_after_forward)
        named = "all of them"
        fully_shard(module, **shared)
        module._get_fsdp_state()._lazy_init()
    except (AssertionError, RuntimeError, ValueError) as error:
        raise InputError.of("units", named, f"refused by FSDP2: {error}", "verify") from error


def _policy(setting: Setting) -> Any:
    """Dtypes of the mixed precision; None: no cast."""
    compute = torch_dtype(setting.compute_dtype)
    reduce = torch_dtype(setting.reduce_dtype)
    return import_module("torch.distributed.fsdp").MixedPrecisionPolicy(
        param_dtype=None if setting.compute_dtype == setting.stored_dtype else compute,
        reduce_dtype=None if setting.reduce_dtype == setting.compute_dtype else reduce,
    )


def _optimizer(torch: ModuleType, module: Module, setting: Setting) -> Optimizer:
    """PyTorch's own optimizer in its `foreach` form, the default on a GPU."""
    if setting.optimizer == "none":
        return None
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[setting.optimizer]
    return kind([p for p in module.parameters() if p.requires_grad], lr=1e-3, foreach=True)


def _step(
    load: Trackable,
    module: Module,
    optimizer: Optimizer,
    inputs: _Inputs,
    event: Callable[[str, Phase], None] = lambda _place, _phase: None,
) -> None:
    """One training step; the module's output is freed as soon as the loss is known."""
    event("start", "forward")
    loss = load.loss(module(*inputs[0], **inputs[1]))
    event("loss.backward()", "backward")
    loss.backward()
    event("optimizer.step()", "optimizer")
    if optimizer is not None:
        optimizer.step()


def _verified(ledger: Ledger, seconds: float, notes: tuple[str, ...]) -> Verified:
    """Peaks of the step and of its three phases."""

    def peak_of(*phases: Phase) -> Moment:
        return max((m for m in ledger.moments if m.phase in phases), key=lambda m: m.total_bytes)

    return Verified(
        peak=peak_of("forward", "backward", "optimizer"),
        forward=peak_of("forward"),
        backward=peak_of("backward"),
        optimizer=peak_of("optimizer"),
        moments=tuple(ledger.moments),
        elapsed_seconds=seconds,
        notes=notes,
    )
