"""What a wrapping really holds: PyTorch's own FSDP2 run on fake tensors, every byte counted.

`verify` builds the model under `FakeTensorMode`, shards it over a process group that is fake too,
and runs one training step under `torch.distributed._tools.fsdp2_mem_tracker.FSDPMemTracker`. The
hooks, copies and collectives are those of a real run; only the numbers in the tensors are missing.

A step runs before the one that is counted: an optimizer's first step leaves tensors of *unsharded*
shape behind, from DTensor working out layouts on fake tensors.

Fake tensors are on the CPU. A load may have `stand_ins()`, a context in which modules run kernels
that keep what those of an accelerator do.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from shardwise.errors import Fault, InputError, nearest
from shardwise.fsdp.emit import bottom_up
from shardwise.fsdp.plan import Setting, Wrapping
from shardwise.fsdp.trace.torch_parts import default_dtype, no_collection, torch_dtype
from shardwise.fsdp.watch import Ledger, Moment, Phase, watch

__all__ = ["Load", "Moment", "Phase", "Verified", "verify"]

_Called = tuple[Sequence[Any], Mapping[str, Any]]


class Load(Protocol):
    """A model that can be built and run: `shardwise.fsdp.trace.factory` makes them."""

    def build(self) -> Any:
        """Build the module, on the current device and in the default dtype."""

    def inputs(self, module: Any, batch: int, seq_len: int) -> Any:
        """Make what the module is called with: `(args, kwargs)`, a tuple or a mapping."""

    def loss(self, output: Any) -> Any:
        """Reduce the module's output to a scalar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One tracked training step: forward, loss, backward, optimizer; gradients begin as None."""

    peak: Moment
    forward: Moment
    """Fullest moment of the forward pass and the loss."""
    backward: Moment
    optimizer: Moment
    """Fullest moment of the optimizer's step; its start where there is no optimizer."""
    moments: tuple[Moment, ...]
    """Fullest moment after each entry and exit of a module and each act of a unit, in order."""
    elapsed_seconds: float
    notes: tuple[str, ...] = ()
    """What the figures leave out, and what PyTorch warned of."""

    @property
    def peak_bytes(self) -> int:
        """Fullest moment of the whole step [byte]."""
        return self.peak.total_bytes


def verify(
    load: Load, wrapping: Wrapping, setting: Setting, *, batch: int, seq_len: int
) -> Verified:
    """Run one training step of the wrapped model on fake tensors and count what is held.

    Rank 0 of `setting.gpus` is run: of unevenly split weights it holds the most. The output of the
    module lives until the loss is computed, the loss until the end. A tensor counts from the call
    that makes it to the one that drops it, whatever streams would do.
    """
    began = time.perf_counter()
    torch = _torch()
    with _warnings() as warned, _fake_world(torch, setting) as mesh:
        module = load.build()
        module.train()
        called = _called(load.inputs(module, batch, seq_len))
        _wrap(module, wrapping, setting, mesh)
        optimizer = _optimizer(torch, module, setting)
        with _kernels(load):
            _step(load, module, optimizer, called)
            module.zero_grad()
            with no_collection():
                ledger = watch(
                    module,
                    optimizer,
                    called,
                    lambda ledger: _step(load, module, optimizer, called, ledger.turn),
                )
    return _verified(ledger, time.perf_counter() - began, (*_left_out(load), *warned))


def _kernels(load: Load) -> AbstractContextManager[Any]:
    """Those that stand in for an accelerator's, where the load has them."""
    stand_ins = getattr(load, "stand_ins", nullcontext)
    return stand_ins()


def _left_out(load: Load) -> Iterator[str]:
    """What the figures do not have."""
    yield "without the allocator's rounding and fragments, NCCL's buffers and the CUDA context"
    if not hasattr(load, "stand_ins"):
        yield "with kernels of the CPU, whose attention keeps its probabilities where it drops some"


def _torch() -> Any:
    """PyTorch with FSDP2 and its tracker, or a refusal that says what to install."""
    try:
        torch = import_module("torch")
    except ImportError:
        problem = "checking a wrapping needs torch: pip install 'shardwise[torch]'"
        raise InputError(Fault(source="verify", problem=problem)) from None
    try:
        import_module("torch.distributed._tools.fsdp2_mem_tracker")
        import_module("torch.testing._internal.distributed.fake_pg")  # registers "fake"
    except ImportError:
        problem = "has no memory tracker for FSDP2, or cannot load it; 2.13 has one"
        raise _refusal("torch", str(torch.__version__), problem) from None
    return torch


def _refusal(name: str, value: object, problem: str) -> InputError:
    """Refuse one input of `verify`."""
    fault = Fault(source="verify", field=name, value=value, has_value=True, problem=problem)
    return InputError(fault)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what is warned of, each once; afterwards warnings are shown as before."""
    collected: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield collected
    collected += dict.fromkeys(f"warning: {' '.join(str(w.message).split())}" for w in caught)


@contextmanager
def _fake_world(torch: Any, setting: Setting) -> Iterator[Any]:
    """Stand on rank 0 of a process group that moves nothing; leave everything as it was."""
    dist = torch.distributed
    if dist.is_initialized():
        problem = "a process group exists already; check in a process without one"
        raise InputError(Fault(source="verify", problem=problem))
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


def _called(inputs: Any) -> _Called:
    """Arguments and keywords, however the load gives them."""
    match inputs:
        case Mapping():
            return (), inputs
        case (tuple() | list() as args, Mapping() as kwargs):
            return args, kwargs
        case tuple():
            return inputs, {}
        case _:
            return (inputs,), {}


def _wrap(module: Any, wrapping: Wrapping, setting: Setting, mesh: Any) -> None:
    """Do what the emitted code does: checkpoint, then shard from the inside out, root last."""
    checkpoint = import_module("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    fully_shard = import_module("torch.distributed.fsdp").fully_shard
    found = dict(module.named_modules(remove_duplicate=False))
    wanted = [("units", name) for unit in wrapping.units for name in unit.modules]
    for where, name in [*wanted, *(("checkpointed", n) for n in wrapping.checkpointed)]:
        if name not in found:
            raise _refusal(where, name, f"no module of the model{nearest(name, found)}")
    if recomputed := {found[name] for name in wrapping.checkpointed}:
        checkpoint.apply_activation_checkpointing(module, check_fn=recomputed.__contains__)
    shared = {"mesh": mesh, "mp_policy": _policy(setting)}
    named = ""
    try:
        for unit in bottom_up(wrapping.units):
            named = ", ".join(unit.modules)
            modules = [module.get_submodule(name) for name in unit.modules]
            given = modules if len(modules) > 1 else modules[0]
            fully_shard(given, **shared, reshard_after_forward=unit.reshard_after_forward)
        named = "all of them"
        fully_shard(module, **shared)
        module._get_fsdp_state()._lazy_init()  # noqa: SLF001 - where FSDP2 looks at all of them
    except (AssertionError, RuntimeError, ValueError) as error:
        raise _refusal("units", named, f"refused by FSDP2: {error}") from error


def _policy(setting: Setting) -> Any:
    """The dtypes; None where nothing is to be cast."""
    compute = torch_dtype(setting.compute_dtype)
    reduce = torch_dtype(setting.reduce_dtype)
    return import_module("torch.distributed.fsdp").MixedPrecisionPolicy(
        param_dtype=None if setting.compute_dtype == setting.stored_dtype else compute,
        reduce_dtype=None if setting.reduce_dtype == setting.compute_dtype else reduce,
    )


def _optimizer(torch: Any, module: Any, setting: Setting) -> Any:
    """PyTorch's own, on lists of tensors, as it chooses on a GPU."""
    if setting.optimizer == "none":
        return None
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[setting.optimizer]
    return kind([p for p in module.parameters() if p.requires_grad], lr=1e-3, foreach=True)


def _step(
    load: Load,
    module: Any,
    optimizer: Any,
    called: _Called,
    turn: Callable[[str, Phase], None] = lambda _place, _phase: None,
) -> None:
    """One training step; the module's output is dropped as soon as the loss is known."""
    turn("start", "forward")
    loss = load.loss(module(*called[0], **called[1]))
    turn("loss.backward()", "backward")
    loss.backward()
    turn("optimizer.step()", "optimizer")
    if optimizer is not None:
        optimizer.step()


def _verified(ledger: Ledger, seconds: float, notes: Sequence[str]) -> Verified:
    """The fullest moments of the step and of its three phases."""

    def fullest(*phases: Phase) -> Moment:
        return max((m for m in ledger.closed if m.phase in phases), key=lambda m: m.total_bytes)

    return Verified(
        peak=fullest("forward", "backward", "optimizer"),
        forward=fullest("forward"),
        backward=fullest("backward"),
        optimizer=fullest("optimizer"),
        moments=tuple(ledger.closed),
        elapsed_seconds=seconds,
        notes=tuple(notes),
    )
