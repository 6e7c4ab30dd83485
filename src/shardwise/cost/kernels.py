"""Rates that kernels run at on a system, by each row's type and stack; the time of any kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.arrays import Floats
from shardwise.cost.attention import AttentionRates, attention_times
from shardwise.cost.curve import RowCurves, share_at
from shardwise.cost.matmul import MatmulRates, matmul_times, product_times
from shardwise.cost.memory_bound import memory_bound_times
from shardwise.ops.layer import stack_column
from shardwise.ops.operation import FlashAttention, Kernel, Matmul, MemoryBound, Phase
from shardwise.strategy import DTYPES
from shardwise.system import Accelerator, EfficiencyCurve, System
from shardwise.table import Table

__all__ = ["KernelRates", "by_dtype"]


def by_dtype(figures: Mapping[Any, float], table: Table) -> Floats:
    """A figure told by type of input, for each row's type; NaN where there is none."""
    values = [figures.get(name, np.nan) for name in DTYPES]
    return np.array(values, dtype=np.float64)[table.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """What kernels run on. Rates are those before the shares of curves, which depend on sizes."""

    chip: Accelerator
    matmul: MatmulRates
    matmul_curves: RowCurves
    attention: AttentionRates | None
    """None: attention is timed as a product."""
    vector_rate: Floats
    """Peak of the vector units [FLOP/s]."""
    vector_curves: RowCurves
    element_rate: Floats
    """Rate at which element-wise kernels get through their least bytes [byte/s]."""

    @classmethod
    def of(cls, system: System, table: Table) -> "KernelRates":
        """Gather the rates of each row."""
        chip = system.accelerator
        bandwidth = chip.memory[0].bandwidth

        def rate(field: str, *, on_curve: float) -> Floats:
            figures: dict[str, float] = dict.fromkeys(chip.matmul_curve, on_curve)
            figures |= {name: getattr(kernel, field) for name, kernel in chip.matmul.items()}
            return by_dtype(figures, table)

        def curves(figures: Mapping[Any, EfficiencyCurve]) -> RowCurves:
            return RowCurves(curves=tuple(map(figures.get, DTYPES)), codes=table.dtype)

        peak = by_dtype(chip.matrix, table)
        shaped = np.array([name in chip.matmul for name in DTYPES])[table.dtype]
        attention = None
        if chip.attention is not None:
            attention = AttentionRates(
                peak=peak,
                memory_rate=np.full_like(peak, chip.attention.memory_efficiency * bandwidth),
                time_factor=stack_column(table, "attention_time_factor"),
                kernel=chip.attention,
                multiprocessors=chip.multiprocessors or 1,
                processing=chip.processing,
            )
        return cls(
            chip=chip,
            matmul=MatmulRates(
                peak=peak,
                efficiency=rate("efficiency", on_curve=1.0),
                fill_depth=rate("fill_depth", on_curve=0.0),
                fill_tiles=rate("fill_tiles", on_curve=0.0),
                memory_rate=rate("memory_efficiency", on_curve=1.0) * bandwidth,
                launch_s=rate("launch", on_curve=0.0),
                multiprocessors=chip.multiprocessors or 1,
                shaped=shaped if chip.matmul_curve else True,
                processing=chip.processing,
            ),
            matmul_curves=curves(chip.matmul_curve),
            attention=attention,
            vector_rate=by_dtype(_by_type_or_fp32(chip.vector, chip.vector), table),
            vector_curves=curves(_by_type_or_fp32(chip.vector_curve, chip.vector)),
            element_rate=chip.memory_bound.efficiency
            * bandwidth
            / stack_column(table, "memory_traffic_factor"),
        )

    @property
    def memory_rate(self) -> Floats:
        """Rate at which element-wise kernels get through many bytes [byte/s]."""
        return self.element_rate * self._memory_share(np.full_like(self.element_rate, np.inf))

    def times(self, kernel: Kernel) -> tuple[Floats, Floats, Floats]:
        """Return compute, memory and whole time of a kernel [s].

        Shares of curves are those at the FLOPs and least bytes of the whole kernel, of all its
        products or heads; the kernel's own share of the bandwidth counts beside that of the bytes.
        """
        moved_bytes = kernel.bytes
        share = self._memory_share(moved_bytes)
        if isinstance(kernel, MemoryBound):
            return memory_bound_times(
                moved_bytes,
                kernel.flops,
                memory_rate=self.element_rate * share,
                vector_rate=self.vector_rate * self.vector_curves.shares(kernel.flops),
                launch_s=self.chip.memory_bound.launch,
                processing=self.chip.processing,
            )
        if isinstance(kernel, FlashAttention) and self.attention is not None:
            return attention_times(
                sequences=kernel.sequences,
                seq_len=kernel.seq_len,
                heads=kernel.heads,
                head_dim=kernel.head_dim,
                causal=kernel.causal,
                moved_bytes=moved_bytes,
                rates=replace(self.attention, memory_rate=self.attention.memory_rate * share),
                backward=kernel.phase is not Phase.FORWARD,
            )
        rates = replace(
            self.matmul,
            efficiency=self.matmul.efficiency * self.matmul_curves.shares(kernel.flops),
            memory_rate=self.matmul.memory_rate * share,
        )
        if isinstance(kernel, Matmul):
            return matmul_times(
                kernel.m,
                kernel.n,
                kernel.k,
                kernel.batch,
                moved_bytes,
                rates,
                weight_grad=kernel.phase is Phase.WEIGHT_GRAD,
            )
        return product_times(kernel.flops, moved_bytes, rates)

    def _memory_share(self, moved_bytes: Floats) -> Floats | float:
        curve = self.chip.memory[0].efficiency
        return share_at(curve, moved_bytes) if curve is not None else 1.0


def _by_type_or_fp32(figures: Mapping[Any, Any], known: Mapping[Any, float]) -> dict[str, Any]:
    """The figure of each type, fp32's for a type that is not known; none where there is none."""
    names = {name: name if name in known else "fp32" for name in DTYPES}
    return {name: figures[source] for name, source in names.items() if source in figures}
