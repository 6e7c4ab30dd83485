"""Time of operations: their kernels on the accelerator, their exchanges, and what is exposed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.arrays import Floats, total
from shardwise.cost.attention import AttentionRates, attention_times
from shardwise.cost.collective import collective_time
from shardwise.cost.matmul import MatmulRates, matmul_times
from shardwise.cost.memory_bound import memory_bound_times
from shardwise.ops.layer import stack_column
from shardwise.ops.operation import Collective, FlashAttention, Kernel, Matmul, Operation, Phase
from shardwise.placement import Extents
from shardwise.strategy import DTYPES
from shardwise.system import System
from shardwise.table import Table

__all__ = [
    "ExchangeCost",
    "KernelCost",
    "Machine",
    "OperationCost",
    "by_dtype",
    "operation_cost",
    "with_host",
]


# The host hides behind the accelerator unless it is slower: the larger of the two, rounded where
# they meet. Dense layers, grade-A published runs on NVIDIA GPUs.
_HOST_EXPONENT = 4.0


def by_dtype(figures: Mapping[Any, float], table: Table) -> Floats:
    """A figure told by type of input, for each row's type; NaN where there is none."""
    values = [figures.get(name, np.nan) for name in DTYPES]
    return np.array(values, dtype=np.float64)[table.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The system and stack as an operation meets them: rates by the row's dtype and stack."""

    system: System
    extents: Extents
    matmul: MatmulRates
    attention: AttentionRates
    memory_rate: Floats
    """Rate at which element-wise kernels get through their least bytes [byte/s]."""
    host_launch_s: Floats
    tp_hidden: Floats
    tp_backward_async: Floats

    @classmethod
    def of(cls, system: System, table: Table, extents: Extents) -> "Machine":
        """Gather the rates of each row."""
        chip = system.accelerator
        bandwidth = chip.memory[0].bandwidth

        def rate(field: str) -> Floats:
            return by_dtype({n: getattr(k, field) for n, k in chip.matmul.items()}, table)

        peak = by_dtype(chip.matrix, table)
        matmul = MatmulRates(
            peak=peak,
            efficiency=rate("efficiency"),
            fill_depth=rate("fill_depth"),
            fill_tiles=rate("fill_tiles"),
            memory_rate=rate("memory_efficiency") * bandwidth,
            launch_s=rate("launch"),
            multiprocessors=chip.multiprocessors,
        )
        attention = AttentionRates(
            peak=peak,
            memory_rate=np.full_like(peak, chip.attention.memory_efficiency * bandwidth),
            time_factor=stack_column(table, "attention_time_factor"),
            kernel=chip.attention,
            multiprocessors=chip.multiprocessors,
        )
        traffic = stack_column(table, "memory_traffic_factor")
        return cls(
            system=system,
            extents=extents,
            matmul=matmul,
            attention=attention,
            memory_rate=chip.memory_bound.efficiency * bandwidth / traffic,
            host_launch_s=stack_column(table, "host_launch"),
            tp_hidden=stack_column(table, "tp_hidden"),
            tp_backward_async=stack_column(table, "tp_backward_async"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """One kernel and its time."""

    kernel: Kernel
    compute_s: Floats
    memory_s: Floats
    time_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCost:
    """One collective and its time, alone and as far as it lengthens the step."""

    collective: Collective
    time_s: Floats
    exposed_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCost:
    """One operation with the times of its kernels and exchanges."""

    operation: Operation
    kernels: tuple[KernelCost, ...]
    exchanges: tuple[ExchangeCost, ...]

    def kernel_s(self, phase: Phase) -> Floats:
        """Time of the kernels of a phase [s]."""
        times = [cost.time_s for cost in self.kernels if cost.kernel.phase is phase]
        return total(times, self.operation.parameters)

    def launches(self, phase: Phase) -> Floats:
        """Kernels that run in a phase."""
        runs = [
            np.where(cost.time_s > 0, 1.0, 0.0)
            for cost in self.kernels
            if cost.kernel.phase is phase
        ]
        return total(runs, self.operation.parameters)


def with_host(kernels_s: Floats, host_s: Floats) -> Floats:
    """Time of kernels that the host launches one by one [s]: (kernels^4 + host^4)^(1/4)."""
    return (kernels_s**_HOST_EXPONENT + host_s**_HOST_EXPONENT) ** (1 / _HOST_EXPONENT)


def operation_cost(operation: Operation, machine: Machine) -> OperationCost:
    """Time the kernels of an operation, then what of its exchanges they do not hide."""
    kernels = tuple(_kernel_cost(kernel, machine) for kernel in operation.kernels)
    partial = OperationCost(operation=operation, kernels=kernels, exchanges=())
    exchanges = tuple(_exchange_cost(c, partial, machine) for c in operation.collectives)
    return OperationCost(operation=operation, kernels=kernels, exchanges=exchanges)


def _kernel_cost(kernel: Kernel, machine: Machine) -> KernelCost:
    if isinstance(kernel, Matmul):
        times = matmul_times(
            kernel.m,
            kernel.n,
            kernel.k,
            kernel.batch,
            kernel.bytes,
            machine.matmul,
            weight_grad=kernel.phase is Phase.WEIGHT_GRAD,
        )
    elif isinstance(kernel, FlashAttention):
        times = attention_times(
            sequences=kernel.sequences,
            seq_len=kernel.seq_len,
            heads=kernel.heads,
            head_dim=kernel.head_dim,
            causal=kernel.causal,
            moved_bytes=kernel.bytes,
            rates=machine.attention,
            backward=kernel.phase is not Phase.FORWARD,
        )
    else:
        chip = machine.system.accelerator
        times = memory_bound_times(
            kernel.bytes,
            kernel.flops,
            memory_rate=machine.memory_rate,
            vector_rate=chip.vector,
            launch_s=chip.memory_bound.launch,
        )
    compute, memory, time = times
    return KernelCost(kernel=kernel, compute_s=compute, memory_s=memory, time_s=time)


def _exchange_cost(
    collective: Collective, partial: OperationCost, machine: Machine
) -> ExchangeCost:
    """Time an exchange alone; expose what neither splitting nor running behind a product hides.

    Cut in pieces with a product of time G, the share `tp_hidden` of it is hidden, at most G; only
    among members of one domain of the innermost tier. Run behind a product, at most G is hidden.
    G includes the host that launches the product.
    """
    extents = getattr(machine.extents, collective.axis)
    time = collective_time(machine.system, collective.kind, collective.bytes, extents)
    hidden = np.zeros_like(time)
    if collective.split_with is not None:
        near = extents[0] == extents[-1]
        pieces = np.minimum(
            time * machine.tp_hidden, _window(collective.split_with, partial, machine)
        )
        hidden = np.where(near, pieces, 0.0)
    if collective.behind is not None:
        covered = np.minimum(time, _window(collective.behind, partial, machine))
        hidden = np.where(machine.tp_backward_async > 0, np.maximum(hidden, covered), hidden)
    return ExchangeCost(collective=collective, time_s=time, exposed_s=time - hidden)


def _window(phase: Phase, partial: OperationCost, machine: Machine) -> Floats:
    """Time of an operation's kernels of a phase that something may run behind [s]."""
    return with_host(partial.kernel_s(phase), partial.launches(phase) * machine.host_launch_s)
