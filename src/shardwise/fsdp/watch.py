"""One step under `FSDPMemTracker`, with what it gets wrong mended.

What is mended, read in torch 2.13 (`torch/distributed/_tools/fsdp2_mem_tracker.py`):

- The tracker replaces FSDP2's forward hooks by its own on each module, so that in a group
  (`fully_shard([a, b])`) every module ends the group's forward. Here FSDP2 keeps its hooks, and
  the methods of the parameter groups that they call are watched instead.
- It meets the storages of gathered weights only after the first copy out of the gather buffer, so
  that this copy is not seen. Here they are known from the start.
- Gradients of weights count as temporaries until they are reduced. Here they are told apart.
"""
# ruff: noqa: SLF001 - the tracker and FSDP2 have no public way in

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

__all__ = ["Ledger", "Moment", "Phase", "watch"]

Phase = Literal["forward", "backward", "optimizer"]
_CHECKPOINT = "_checkpoint_wrapped_module"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is held at one moment, or at the fullest moment of a stretch of time."""

    phase: Phase
    place: str
    """The last thing that began or ended: `enter model.layers.0`, `gathered norm, lm_head`."""
    operation: str
    """The operator after which it was counted, as PyTorch names it; empty: between two."""
    total_bytes: int
    by_category: Mapping[str, int]
    """As `FSDPMemTracker` names them; they sum to the total [byte]."""


@dataclass(slots=True)
class Ledger:
    """Keeps the fullest moment of each stretch while the tracker runs."""

    held: Callable[[], Mapping[Any, int]] = dict
    """What the tracker counts now, by category, with the sum as "Total" [byte]."""
    phase: Phase = "forward"
    place: str = "start"
    operation: str = ""
    closed: list[Moment] = field(default_factory=list)
    _fullest: Moment | None = None

    def count(self) -> None:
        """Look at what is held now."""
        held = self.held()
        total = held.get("Total", 0)
        if self._fullest is None or total > self._fullest.total_bytes:
            self._fullest = Moment(
                phase=self.phase,
                place=self.place,
                operation=self.operation,
                total_bytes=total,
                by_category={k.value: v for k, v in held.items() if k != "Total" and v},
            )

    def turn(self, place: str, phase: Phase | None = None) -> None:
        """Close a stretch and begin the next."""
        if self._fullest is not None:
            self.closed.append(self._fullest)
            self._fullest = None
        self.operation, self.place, self.phase = "", place, phase or self.phase
        self.count()


def watch(module: Any, optimizer: Any, inputs: Any, step: Callable[[Ledger], None]) -> Ledger:
    """Run one step under the tracker and keep the fullest moment after every turn."""
    kind = import_module("torch.distributed._tools.fsdp2_mem_tracker").FSDPMemTracker
    device = import_module("torch").device("cpu")
    ledger = Ledger()

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ledger.operation = str(func)
        return kind.__torch_dispatch__(self, func, types, args, kwargs)

    tracker = type("Tracker", (kind,), {"__torch_dispatch__": dispatch})(module, optimizer)
    ledger.held = lambda: tracker._curr_mem_snap.get(device, {})
    with ExitStack() as undo:
        undo.callback(setattr, warnings, "formatwarning", warnings.formatwarning)  # ModTracker's
        tracker._update_peak_stats = lambda _state: ledger.count()
        tracker._instrument_fsdp_module = lambda: _instrument(tracker, module, ledger, undo)
        tracker._deregister_module_and_optimizer_hooks = lambda: _unhook_optimizer(tracker)
        tracker.track_inputs((inputs,))
        with tracker:
            step(ledger)
            ledger.turn("end")
    return ledger


def _unhook_optimizer(tracker: Any) -> None:
    """Take the tracker's own hooks off the optimizer."""
    for handle in tracker._optimizer_hook_handles or ():
        handle.remove()
    tracker._optimizer_hook_handles = None


def _instrument(tracker: Any, module: Any, ledger: Ledger, undo: ExitStack) -> None:
    """Label what stands there before the step, and watch modules, groups and recomputation."""
    found = {m: n.replace(f"{_CHECKPOINT}.", "") for n, m in module.named_modules()}
    names = {m: n.removesuffix(f".{_CHECKPOINT}") or "root" for m, n in found.items()}
    tracker._mod_tracker.register_user_hooks(
        lambda m, _inputs: ledger.turn(f"enter {names.get(m, '?')}"),
        lambda m, _inputs, _outputs: ledger.turn(f"exit {names.get(m, '?')}"),
        lambda m, _gradients: ledger.turn(f"enter {names.get(m, '?')}"),
        lambda m, _gradients: ledger.turn(f"exit {names.get(m, '?')}"),
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
                    _Group(tracker, group, name, ledger).watch(undo)


def _watch_recomputation(tracker: Any, inner: Any, undo: ExitStack) -> None:
    """Have what is computed again count as activations; PyTorch stops midway, hence always."""

    def begin(*_: Any) -> None:
        tracker._in_ac = tracker._mod_tracker.is_bw

    def end(*_: Any) -> None:
        tracker._in_ac = False

    undo.callback(inner.register_forward_pre_hook(begin, prepend=True).remove)
    undo.callback(inner.register_forward_hook(end, always_call=True).remove)


class _Group:
    """Stands between FSDP2 and a parameter group, to label tensors as they change hands."""

    def __init__(self, tracker: Any, group: Any, name: str, ledger: Ledger) -> None:
        self._tracker, self._group, self._name, self._ledger = tracker, group, name, ledger
        self._kinds, self._states = tracker._ref_class, type(tracker._fsdp_state)
        methods = ("unshard", "wait_for_unshard", "reshard", "post_backward")
        self._real = {method: getattr(group, method) for method in methods}

    def watch(self, undo: ExitStack) -> None:
        """Label what is there, and put these methods in place of the group's until `undo`."""
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
        """Start a gather: FSDP2 calls this again and again, and it does nothing but once."""
        idle = self._group._all_gather_result is None
        usual, self._tracker._fsdp_state = self._tracker._fsdp_state, self._states.PRE_FW
        self._real["unshard"](async_op)
        self._tracker._fsdp_state = usual
        if idle and self._group._all_gather_result is not None:
            self._ledger.turn(f"gather {self._name}")

    def wait_for_unshard(self) -> None:
        """Copy weights out of the gather buffer."""
        pending = self._group._all_gather_result is not None
        self._real["wait_for_unshard"]()
        if pending:
            self._ledger.turn(f"gathered {self._name}")

    def reshard(self) -> None:
        """Drop gathered weights."""
        before = self._group._sharded_state
        self._real["reshard"]()
        if self._group._sharded_state != before:
            self._ledger.turn(f"reshard {self._name}")

    def post_backward(self, *unused: Any) -> None:
        """Reduce the gradients."""
        self._ledger.turn(f"reduce {self._name}")
        usual, self._tracker._fsdp_state = self._tracker._fsdp_state, self._states.POST_BW
        self._real["post_backward"](*unused)
        self._tracker._fsdp_state = usual
        for one in self._group.fsdp_params:
            if one.sharded_param.grad is not None:
                self._label(one.sharded_param.grad, self._kinds.SHARDED_GRAD)
        self._ledger.turn(f"reduced {self._name}")

    def _accumulated(self, weight: Any) -> None:
        self._label(weight.grad, self._kinds.UNSHARDED_GRAD)

    def _label(self, tensor: Any, kind: Any) -> None:
        self._tracker._update_and_maybe_create_winfos(tensor, kind)
