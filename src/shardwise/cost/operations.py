"""Time of operations: kernels, collectives, and the exposed communication."""

from functools import cached_property

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, total
from shardwise.config.enums import TpOverlap
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.kernels import KernelRates
from shardwise.cost.links import CollectiveTimes, Links
from shardwise.ops.layer import modules_of
from shardwise.ops.operation import (
    Collective,
    Kernel,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
)
from shardwise.records import dataclass, replace

# Host time of a collective over that of an operation: no module, and no function of autograd where
# it is part of a product's (order of 40 us in torch.distributed).
_COLLECTIVE_CALLS = 0.5
# Share of the host's work that remains where CUDA graphs capture kernels: the replay of each graph
# of a part of a layer and what lies between them, or that of one graph. Assumed; of partial graphs,
# fitted before, with launches alone, half.
_LEFT_OF_LAYERS, _LEFT_OF_STEP = 0.3, 0.1
# Nodes of a layer in Megatron-Core's overlap of experts: attention with router, dispatch, experts,
# combine (model_chunk_schedule_plan.py); calls of the host for each, fitted (see `cost.overlap`).
_NODES, _NODE_CALLS = 4, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What operations run on: rates of the system by each row's dtype and stack, as columns."""

    kernels: KernelRates
    host_launch_s: Floats
    """Launch time of one kernel outside of CUDA graphs [s]."""
    host_call_s: Floats
    """Time of the host for one operation besides its launches, as `host_launch_s` [s]."""
    expert_wait_s: Floats
    """Time for which the host waits for one result of the router [s]."""
    captured: Ints
    """Modules of layers that CUDA graphs capture, as bits of `GraphScope`."""
    captures_step: Bools
    """Whether one CUDA graph captures forward and backward."""
    asynchronous: bool = True
    """Whether the host runs ahead of the kernels that it launches."""

    @classmethod
    def of(cls, system: System, table: Table) -> "Machine":
        """Gather the rates of each row."""
        captures_step = table.captures_step
        wait_s = table.by_stack(lambda stack: stack.expert_wait)
        on = table.on(system)
        return cls(
            kernels=KernelRates.of(system, table),
            host_launch_s=table.by_stack(lambda stack: stack.host_launch) / on.launch_speed,
            host_call_s=table.by_compile("host_call") / on.launch_speed,
            expert_wait_s=np.where(captures_step, 0.0, wait_s),  # no host can wait inside a graph
            captured=table.captured_modules,
            captures_step=captures_step,
            asynchronous=on.accelerator.asynchronous,
        )

    @property
    def nodes_s(self) -> Floats:
        """Time of the host for the nodes of a layer in one direction of an overlapped schedule [s].

        A call of autograd and two events each, next to the operations inside; what graphs of layers
        or of the step capture takes the same share of it as of operations.
        """
        left = np.where(self.captured > 0, _LEFT_OF_LAYERS, 1.0)
        found: Floats = _NODES * _NODE_CALLS * self.host_call_s
        return found * np.where(self.captures_step, _LEFT_OF_STEP, left)

    @property
    def memory_rate(self) -> Floats:
        """Rate at which element-wise kernels get through many bytes [byte/s]."""
        return self.kernels.memory_rate

    def launched(
        self, kernels_s: Floats, host_s: Floats, waits_s: Floats | float = 0.0
    ) -> "Launched":
        """One direction of operations; a CPU first launches and then runs each kernel."""
        zero = np.zeros_like(host_s)
        if not self.asynchronous:
            kernels_s, host_s = kernels_s + host_s, zero
        return Launched(kernels_s=kernels_s, host_s=host_s, waits_s=waits_s + zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """One kernel and its time."""

    kernel: Kernel
    compute_s: Floats
    memory_s: Floats
    time_s: Floats
    missed: Bools
    """Whether there is a table of measured shapes, but none close to this one."""
    launches: Floats
    """How many kernels are launched for it; 0: it does not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """One collective and its time, alone and exposed."""

    collective: Collective
    time_s: Floats
    hidden_s: Floats
    """Part that runs concurrently with compute [s]."""
    exposed_s: Floats
    """Part that is not hidden, and the time by which the hidden part slows compute [s]."""


@dataclass(frozen=True, kw_only=True)
class OperationCost:
    """One operation with the times of its kernels and collectives, computed when they are read."""

    operation: Operation
    machine: Machine
    times: CollectiveTimes
    same: "OperationCost | None" = None
    """That of another operation with equal kernels and collectives."""

    @cached_property
    def kernels(self) -> tuple[KernelCost, ...]:
        """Kernels with their times."""
        if self.same is not None:
            return self.same.kernels
        every = self.operation.kernels
        return tuple(_kernel_cost(kernel, self.operation, self.machine) for kernel in every)

    @cached_property
    def collectives(self) -> tuple[CollectiveCost, ...]:
        """Collectives with their times, those in panels last."""
        if self.same is not None:
            return self.same.collectives
        every, given = self.operation.collectives, (self, self.machine, self.times)
        costs = [_collective_cost(one, *given) for one in every if one.panels is None]
        if len(costs) < len(every):
            costs += [cost for phase in Phase for cost in _panel_costs(phase, *given)]
        return tuple(costs)

    def kernel_s(self, phase: Phase) -> Floats:
        """Time of the kernels of a phase [s]."""
        return self._passes[phase].kernels_s

    def launches(self, phase: Phase) -> Floats:
        """Number of kernels launched in a phase."""
        return self._passes[phase].launches

    def calls(self, phase: Phase) -> Floats:
        """Calls of the host in a phase: those of the operation and its collectives.

        One function of autograd computes both gradients; it counts with that of the input.
        """
        return self._calls[phase]

    def launching_s(self, phase: Phase) -> Floats:
        """Time of the host to run a phase and to launch its kernels [s]."""
        return self._launching_s[phase]

    @cached_property
    def _launching_s(self) -> dict[Phase, Floats]:
        machine = self.machine
        in_layers = machine.captured & modules_of(self.operation) > 0
        left = np.where(in_layers, _LEFT_OF_LAYERS, 1.0)
        left = np.where(machine.captures_step, _LEFT_OF_STEP, left)
        return {
            phase: left
            * (self.launches(phase) * machine.host_launch_s + calls * machine.host_call_s)
            for phase, calls in self._calls.items()
        }

    @cached_property
    def _passes(self) -> dict[Phase, "_Pass"]:
        like = self.operation.parameters
        passes = {}
        for phase in Phase:
            kernels = [cost for cost in self.kernels if cost.kernel.phase is phase]
            passes[phase] = _Pass(
                kernels_s=total([cost.time_s for cost in kernels], like),
                launches=total([cost.launches for cost in kernels], like),
            )
        return passes

    @cached_property
    def _calls(self) -> dict[Phase, Floats]:
        like = self.operation.parameters
        runs = {phase: self.launches(phase) > 0 for phase in Phase}
        of_input = self.launches(Phase.INPUT_GRAD) > 0
        runs[Phase.WEIGHT_GRAD] = runs[Phase.WEIGHT_GRAD] & ~of_input
        found = {}
        for phase in Phase:
            calls: list[Floats] = [np.where(runs[phase], self.operation.host_calls, 0.0)]
            calls += [
                np.where(one.bytes > 0, _COLLECTIVE_CALLS, 0.0)
                for one in self.operation.collectives
                if one.phase is phase
            ]
            found[phase] = total(calls, like)
        return found


@dataclass(frozen=True, slots=True)
class _Pass:
    """Kernels of one phase of an operation."""

    kernels_s: Floats
    launches: Floats


def with_host(device_s: Floats, host_s: Floats) -> Floats:
    """Time of work on the accelerator that the host launches piece by piece [s].

    (device^4 + host^4)^(1/4): the host runs ahead of the accelerator unless it is slower; the
    larger of the two, rounded where they meet. Exponent fitted on dense published runs (grade A,
    NVIDIA GPUs).
    """
    device, host = np.square(np.square(device_s)), np.square(np.square(host_s))
    joined: Floats = np.sqrt(np.sqrt(device + host))
    return joined


def without_host(joined_s: Floats, host_s: Floats) -> Floats:
    """Time d of the accelerator in join(d, h) of `with_host` [s]."""
    joined, host = np.square(np.square(joined_s)), np.square(np.square(host_s))
    device: Floats = np.sqrt(np.sqrt(np.maximum(0.0, joined - host)))
    return device


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One direction of a list of operations: time on the accelerator, and of the host."""

    kernels_s: Floats
    """Kernels, one after the other [s]."""
    host_s: Floats
    """Time of the host to launch them and the collectives [s]."""
    waits_s: Floats
    """Time that the accelerator is idle while the host waits for results [s]."""

    def compute_s(self, exposed_s: Floats | float) -> Floats:
        """Time of the pass without its exposed communication, during which the host runs ahead [s].

        join(kernels + exposed, host) - exposed + waits; at least the time of the kernels.
        """
        device_s = self.kernels_s + exposed_s
        return self.kernels_s + (with_host(device_s, self.host_s) - device_s) + self.waits_s


def operation_cost(
    operation: Operation, machine: Machine, times: "CollectiveTimes"
) -> OperationCost:
    """Time of an operation's kernels, and time and exposed part of its collectives.

    Parameters
    ----------
    operation
        Kernels and collectives of one micro-batch on one rank; sizes have shape (n,).
    machine
        Rates of the n rows.
    times
        Times of collectives alone, of m rows that have the kernels of one of the n rows each; of
        these m rows are the times of the operation's collectives.
    """
    return OperationCost(operation=operation, machine=machine, times=times)


def _kernel_cost(kernel: Kernel, operation: Operation, machine: Machine) -> KernelCost:
    compute, memory, time = machine.kernels.times(kernel)
    each = machine.kernels.launches(kernel)
    if operation.expert and isinstance(kernel, MemoryBound):  # quantizes for each expert separately
        product = next(k for k in operation.kernels if isinstance(k, Matmul))
        each = machine.kernels.launches(product) * kernel.passes
        more_s = (each - 1) * machine.kernels.chip.memory_bound.launch
        time = np.where(time > 0, time + more_s, 0.0)
    launches = np.where(time > 0, each, 0.0)
    return KernelCost(
        kernel=kernel,
        compute_s=compute,
        memory_s=memory,
        time_s=time,
        missed=machine.kernels.missed(kernel),
        launches=launches,
    )


def _collective_cost(
    collective: Collective, partial: OperationCost, machine: Machine, times: CollectiveTimes
) -> CollectiveCost:
    """Time of a collective alone, and the part that no product hides.

    With the overlap of the stack: split in pieces with a product of time G, the share `tp_hidden`
    of it is hidden, at most G; only among members of one domain of the innermost tier. Run behind a
    product, at most G is hidden. With ring or pipe: see `hidden_by_pieces`; messages in a ring are
    hidden like that under every stack. Communication uses the share u of the processor: G takes
    1 / (1 - u) times as long meanwhile, and u of the hidden time counts as exposed. G includes the
    host that launches the product.
    """
    links, time = times.links, times.alone_s(collective)
    if not time.any():  # the usual case: most rows of a space split few axes
        return CollectiveCost(collective=collective, time_s=time, hidden_s=time, exposed_s=time)
    extents = links.extents[collective.axis]
    used_share = times.processor_share(collective.axis)
    hidden = np.zeros_like(time)

    def window(phase: Phase) -> Floats:
        return _window(phase, partial, machine, links) / (1 - used_share)

    if collective.in_ring:
        if collective.behind is not None:
            product_s = window(collective.behind)
            hidden = hidden_by_pieces(time, product_s, extents[-1], first_hides=True)
        return CollectiveCost(
            collective=collective,
            time_s=time,
            hidden_s=hidden,
            exposed_s=time - hidden * (1 - used_share),
        )
    by_stack = links.tp_overlap == TpOverlap.STACK.code
    if collective.split_with is not None:
        product_s = window(collective.split_with)
        near = extents[0] == extents[-1]
        pieces = np.minimum(time * links.tp_hidden, product_s)
        hidden = np.where(by_stack & near & collective.stack_splits, pieces, hidden)
        for overlap in ("ring", "pipe"):
            chosen = links.tp_overlap == TpOverlap(overlap).code
            if chosen.any():
                cut = hidden_by_pieces(time, product_s, extents[-1], first_hides=overlap == "ring")
                hidden = np.where(chosen, cut, hidden)
    if collective.behind is not None:
        covered = np.minimum(time, window(collective.behind))
        runs = by_stack & links.tp_backward_async
        hidden = np.where(runs, np.maximum(hidden, covered), hidden)
    return CollectiveCost(
        collective=collective,
        time_s=time,
        hidden_s=hidden,
        exposed_s=time - hidden * (1 - used_share),
    )


def _panel_costs(
    phase: Phase, partial: OperationCost, machine: Machine, times: CollectiveTimes
) -> list[CollectiveCost]:
    """Time of a 2D product's collectives in panels; all but those of one panel may be hidden.

    Those of one panel, one after the other, take s, those of all n panels n s. The product of time
    G waits for the first panel (or for the sum of the last one); each other panel is communicated
    while the product computes one: exposed are s + (n - 1) max(s - G / n, 0); n s where nothing
    overlaps. Communication slows the product as in `_collective_cost`.
    """
    cut = [
        (collective, collective.panels)
        for collective in partial.operation.collectives
        if collective.panels is not None and collective.phase is phase
    ]
    if not cut:
        return []
    links = times.links
    panels = links.of_kernels(cut[0][1])
    each = [
        times.alone_s(replace(collective, bytes=collective.bytes / count))
        for collective, count in cut
    ]
    one = total(each, panels)
    used_share = np.max([times.processor_share(collective.axis) for collective, _ in cut], axis=0)
    window = _window(phase, partial, machine, links) / (panels * (1 - used_share))
    overlapped = np.where(
        links.tp_overlap == TpOverlap.NONE.code, 0.0, (panels - 1) * np.minimum(one, window)
    )
    share = overlapped / np.where(one > 0, panels * one, 1.0)
    return [
        CollectiveCost(
            collective=collective,
            time_s=panels * time,
            hidden_s=panels * time * share,
            exposed_s=panels * time * (1 - share * (1 - used_share)),
        )
        for (collective, _), time in zip(cut, each, strict=True)
    ]


def hidden_by_pieces(
    time_s: Floats, window_s: Floats, members: Ints, *, first_hides: bool
) -> Floats:
    """Part of a collective hidden by splitting it and its product into one piece per member [s].

    A piece of the collective runs concurrently with all but one of the n pieces of the product: the
    window is (n - 1) / n of the product's time. In a ring the collective takes n - 1 passes, one
    during each of them; a pipeline of n collectives exposes the first (or last) one, 1 / n of it.

    Parameters
    ----------
    first_hides
        Whether the first piece of the collective is hidden too (ring).
    """
    share = (members - 1) / members
    return np.minimum(time_s if first_hides else share * time_s, share * window_s)


def _window(phase: Phase, partial: OperationCost, machine: Machine, links: Links) -> Floats:
    """Time of an operation's kernels of a phase, behind which communication may run [s]."""
    one = machine.launched(partial.kernel_s(phase), partial.launching_s(phase))
    product_s = with_host(one.kernels_s, one.host_s)
    return links.of_kernels(product_s)
