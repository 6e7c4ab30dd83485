"""Rates that kernels run at on a system, by each row's type and stack; the time of any kernel."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, among, by_code, distinct_values
from shardwise.config.accelerator import KernelTime, MatmulKernel
from shardwise.config.enums import AttentionKernel, Dtype, Processing, Quantization
from shardwise.config.software.mixers import scan_rates
from shardwise.config.strategy_table import Table
from shardwise.config.system import Accelerator, EfficiencyCurve, ShapeTable, System
from shardwise.cost.attention import (
    AttentionRates,
    attention_times,
    kernel_time_factor,
    months_of,
    release_time_factor,
)
from shardwise.cost.curve import RowCurves, joined_times, share_at
from shardwise.cost.matmul import MatmulRates, matmul_times, product_times, separate_matmul_times
from shardwise.cost.scan import scan_times
from shardwise.distinct import distinct_rows
from shardwise.ops.operation import (
    FlashAttention,
    Kernel,
    Matmul,
    MemoryBound,
    Phase,
    Scan,
    SelectedAttention,
)
from shardwise.ops.quantization import RECIPES, by_recipe
from shardwise.records import dataclass, replace

# Shares of the matrix peak, forward and backward, of attention to selected keys on accelerators
# without published figures: on Hopper 0.65 and 0.10, on Blackwell 0.64 and 0.36, on CDNA 4 0.22 and
# 0.12 (catalog/systems).
_SPARSE_SHARES = (0.5, 0.1)
# Measured shapes left out one by one (SimuMax commit 4dcaae5: 847 of products, grouped products and
# attention on A100 and B200) are timed 10.0 % off from the nearest other one, 9.2, 8.5 and 8.6 %
# off from the nearest 2, 3 and 4, and 12.1 % off with the mean share of their phase.
_NEIGHBOURS = 3
# Sizes further apart than this say little about each other. In those measurements no kernel is
# that far from all others, so the figure is a choice: two doublings.
_REACH = 4.0
_DISTANCES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShapes:
    """What a table says of one phase."""

    logs: Floats
    """Logarithms of the sizes, one row for each measured kernel."""
    measured: Floats
    """Share of the peak of each."""
    fallback: float

    @classmethod
    def of(cls, table: ShapeTable, phase: Phase) -> "MeasuredShapes":
        """Take the rows of a phase and of any; shares over the FLOPs that are done."""
        rows = [*table.rows.get(phase.value, ()), *table.rows.get("any", ())]
        figures = np.array(rows, dtype=np.float64).reshape(len(rows), len(table.sizes) + 1)
        part = 0.5 if table.counts_all_pairs else 1.0
        return cls(
            logs=np.log(figures[:, :-1]),
            measured=figures[:, -1] * part,
            fallback=table.fallback * part,
        )

    def shares(self, sizes: Sequence[Floats]) -> tuple[Floats, Bools]:
        """Share of the peak at each shape, and whether it was too far from all measured ones.

        At a measured shape its share. Else sum(e_i / d_i^2) / sum(1 / d_i^2) over the three
        nearest of those within a factor of 4 in every size, and what is as near as the third; d is
        the distance in the logarithms of the sizes. The fallback where there are none, and where a
        size is 0: no kernel runs.

        Parameters
        ----------
        sizes
            Columns of equal length, in the order of the table's sizes.
        """
        firsts, position = distinct_rows(sizes)
        shares, missed = self._distinct(np.stack([size[firsts] for size in sizes], axis=1))
        return shares[position], missed[position]

    def _distinct(self, shapes: Floats) -> tuple[Floats, Bools]:
        shares = np.full(len(shapes), self.fallback)
        runs: Bools = np.all(shapes > 0, axis=1)
        missed = runs.copy()
        if not self.measured.size:
            return shares, missed
        chunk = max(1, _DISTANCES_AT_ONCE // self.logs.size)
        places = np.flatnonzero(runs)
        for start in range(0, places.size, chunk):
            part = places[start : start + chunk]
            found, near = self._interpolated(np.log(shapes[part]))
            shares[part] = np.where(near, found, self.fallback)
            missed[part] = ~near
        return shares, missed

    def _interpolated(self, logs: Floats) -> tuple[Floats, Bools]:
        """Share at each shape, NaN-free but meaningless where nothing is close; what is close."""
        gaps = np.abs(logs[:, None] - self.logs)
        far = np.sqrt((gaps**2).sum(axis=2))
        # A factor of exactly 4 is within reach, whatever its logarithms round to.
        far[(gaps > np.log(_REACH) + 1e-9).any(axis=2)] = np.inf
        nearest = far.argmin(axis=1)
        least = far[np.arange(len(far)), nearest]
        near = np.isfinite(least)
        last = min(_NEIGHBOURS, self.measured.size) - 1
        limit = np.partition(far, last, axis=1)[:, last] * (1 + 1e-9)
        counted = far <= np.minimum(limit, np.finfo(np.float64).max)[:, None]
        scale = np.where(near, np.maximum(least, 1e-9), 1.0)
        weights = np.where(counted, (scale[:, None] / np.maximum(far, 1e-9)) ** 2, 0.0)
        total = weights.sum(axis=1)
        mean = (weights * self.measured).sum(axis=1) / np.where(near, total, 1.0)
        return np.where(least == 0, self.measured[nearest], mean), near


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTables:
    """For each row the table of its type, if it has one."""

    shapes: Mapping[int, Mapping[Phase, MeasuredShapes]]
    """By the codes of types that have a table."""
    sizes: Mapping[int, tuple[str, ...]]
    """What those tables know a shape by."""
    codes: Ints
    """Type of each row."""

    @classmethod
    def of(cls, tables: Sequence[ShapeTable | None], codes: Ints) -> "RowTables":
        """Prepare the tables, one or none by code of a type, for rows of these types."""
        used = ((code, tables[code]) for code in distinct_values(codes))
        present = {code: table for code, table in used if table is not None}
        return cls(
            shapes={
                code: {phase: MeasuredShapes.of(table, phase) for phase in Phase}
                for code, table in present.items()
            },
            sizes={code: table.sizes for code, table in present.items()},
            codes=codes,
        )

    @property
    def present(self) -> Bools:
        """Rows whose type has a table."""
        return np.isin(self.codes, list(self.shapes))

    def shares(self, kernel: Mapping[str, Floats | float], phase: Phase) -> tuple[Floats, Bools]:
        """Share of the peak at each row's shape, 1 in rows without a table; whether it missed.

        Parameters
        ----------
        kernel
            Sizes by name, at least those of the tables.
        """
        *columns, codes = np.broadcast_arrays(*kernel.values(), self.codes)
        size_of = dict(zip(kernel, columns, strict=True))
        shares = np.ones(codes.shape)
        missed = np.zeros(codes.shape, dtype=np.bool_)
        for code, phases in self.shapes.items():
            rows = codes == code
            sizes = [size_of[name][rows] for name in self.sizes[code]]
            shares[rows], missed[rows] = phases[phase].shares(sizes)
        return shares, missed


_JOIN_EXPONENT = np.inf  # the larger


def memory_bound_times(
    moved_bytes: Floats,
    flops: Floats,
    *,
    memory_rate: Floats | float,
    vector_rate: Floats | float,
    launch_s: float,
    compute_latency_s: float = 0.0,
    processing: Processing = Processing.MEASURED,
) -> tuple[Floats, Floats, Floats]:
    """Return compute, memory and total time [s]: t = t0 + max(t1 + flops / V, bytes / B).

    Processing without overlap: t = t0 + t1 + flops / V + bytes / B.

    Parameters
    ----------
    moved_bytes
        Bytes read and written [byte]; where zero, the kernel does not run; shape (n,).
    memory_rate
        B, bandwidth times the share of it that such kernels reach [byte/s]; shape (n,).
    vector_rate
        V, peak of the vector units times the share that these FLOPs reach [FLOP/s]; shape (n,).
    launch_s
        t0, time of a kernel without work [s].
    compute_latency_s
        t1, its compute time [s].
    processing
        How compute and memory time join: their maximum, or their sum without overlap.
    """
    compute = flops / vector_rate + compute_latency_s * (moved_bytes > 0)
    memory = moved_bytes / memory_rate
    joined = joined_times(compute, memory, processing, _JOIN_EXPONENT)
    return compute, memory, np.where(moved_bytes > 0, launch_s + joined, 0.0)


_OWN_KERNELS = (AttentionKernel.BEST.code, AttentionKernel.CUDNN.code)
"""Kernels that the figures of Hopper are of, which Transformer Engine and PyTorch choose there."""
_MATRIX_TYPES = (*Dtype, "fp8", "fp4")


def by_dtype(figures: Mapping[Any, float], table: Table) -> Floats:
    """A figure listed by type of input, for each row's type; NaN where there is none."""
    return by_code([figures.get(name, np.nan) for name in Dtype], table.dtype)


def product_peak(chip: Accelerator, table: Table) -> Floats:
    """Dense peak of the matrix units for the products of layers with their weights [FLOP/s].

    That of each row's recipe, or of its type where it has none; NaN where the chip has no rate.

    Parameters
    ----------
    chip
        Accelerator with peaks of its matrix units [FLOP/s].
    """
    figures: dict[str, float] = {str(name): peak for name, peak in chip.matrix.items()}
    peaks = [figures.get(name, np.nan) for name in _MATRIX_TYPES]
    return by_code(peaks, _product_types(table))


def _product_types(table: Table) -> Ints:
    """Type that these products run in: its position in `_MATRIX_TYPES`."""
    ran = [RECIPES[name].matrix if name in RECIPES else Dtype.from_code(0) for name in Quantization]
    types = np.array([_MATRIX_TYPES.index(name) for name in ran])[table.quantization]
    return np.where(table.quantization > 0, types, table.dtype)


@dataclass(frozen=True, slots=True)
class _LookedUp:
    """Shares of a kernel in tables of measured shapes, by row."""

    present: Bools
    """Whether there is a table for it."""
    shares: Floats
    missed: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProductRates:
    """Rates of products whose operands have one type in each row."""

    rates: MatmulRates
    slower: Floats
    """Time of each row's library over that of the accelerator's figures."""
    curves: RowCurves
    tables: RowTables
    grouped_tables: RowTables

    @classmethod
    def of(cls, chip: Accelerator, codes: Ints, slower: Floats) -> "_ProductRates":
        """Gather the rates of each row, by the position of its type in `_MATRIX_TYPES`."""

        def figure(figures: Mapping[Any, float]) -> Floats:
            return by_code([figures.get(name, np.nan) for name in _MATRIX_TYPES], codes)

        def rate(field: str, *, unshaped: float) -> Floats:
            figures: dict[str, float] = dict.fromkeys(chip.matrix, unshaped)
            figures |= {name: getattr(kernel, field) for name, kernel in chip.matmul.items()}
            return figure(figures)

        def tables(figures: Mapping[Any, ShapeTable]) -> RowTables:
            return RowTables.of(tuple(map(figures.get, _MATRIX_TYPES)), codes)

        def curves(figures: Mapping[Any, EfficiencyCurve]) -> RowCurves:
            return RowCurves(curves=tuple(map(figures.get, _MATRIX_TYPES)), codes=codes)

        def usual(field: str) -> Floats | float:
            """A number of the formula, as a column only where some type has its own."""
            default = MatmulKernel.model_fields[field].default
            if all(getattr(kernel, field) == default for kernel in chip.matmul.values()):
                return default
            return rate(field, unshaped=default)

        kernels = {str(name): kernel for name, kernel in chip.matmul.items()}
        shaped = np.array([name in kernels for name in _MATRIX_TYPES])[codes]
        bandwidth = chip.memory[0].bandwidth
        return cls(
            rates=MatmulRates(
                peak=figure(chip.matrix) * chip.speed,
                efficiency=rate("efficiency", unshaped=1.0) / slower,
                fill_depth=rate("fill_depth", unshaped=0.0),
                fill_tiles=rate("fill_tiles", unshaped=0.0),
                memory_rate=rate("memory_efficiency", unshaped=1.0) * bandwidth,
                launch_s=rate("launch", unshaped=0.0),
                bandwidth=bandwidth,
                fill_exponent=usual("fill_exponent"),
                weight_grad_share=usual("weight_grad_share"),
                reduction_step=usual("reduction_step"),
                tilings=tuple(
                    (codes == place, kernel.tiling)
                    for place, name in enumerate(_MATRIX_TYPES)
                    if (kernel := kernels.get(name)) is not None and kernel.tiling is not None
                ),
                compute_latency_s=chip.compute_latency,
                multiprocessors=_multiprocessors(chip),
                shaped=shaped if chip.matmul_curve else True,
                processing=chip.processing,
            ),
            slower=slower,
            curves=curves(chip.matmul_curve),
            tables=tables(chip.matmul_table),
            grouped_tables=tables(chip.grouped_table),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """Rates that kernels run at, before the shares of curves, which depend on sizes."""

    chip: Accelerator
    plain: _ProductRates
    """Of products in the rows' types."""
    quantized: _ProductRates
    """Of products in the types of the rows' recipes."""
    one_by_one: Bools
    """Whether the products of experts run in a kernel each."""
    attention: AttentionRates | None
    """None: attention without a table is timed as a product."""
    attention_tables: RowTables
    attention_time_factor: Floats
    """Time of fused attention in the stack over that of the same kernel in other software."""
    attention_released: Floats
    """Month of the release of the kernel that `release_times` of the accelerator are of; NaN in
    rows without one."""
    attention_kernels: Ints
    """Codes of the attention kernels in effect."""
    attention_recipes: Ints
    """Codes of the recipe of attention on operands of 8 bits; 0: on those of the row's type."""
    grouped_time_factor: Floats
    """Time of products of experts over that of plain ones."""
    grouped_half_flops: Floats
    """FLOPs of one expert's product at which half of the additional time is left; may be inf."""
    permute_rate_factor: Floats
    """Rate of kernels that sort tokens by expert over that of other element-wise ones."""
    vector_rate: Floats
    """Peak of the vector units [FLOP/s]."""
    vector_curves: RowCurves
    element_rate: Floats
    """Rate at which element-wise kernels get through their least bytes [byte/s]."""
    traffic_factor: Floats
    """Bytes that element-wise kernels move over these; a sweep over weights moves no others."""
    crowding: Floats | float = 1.0
    """Rate of the memory beyond caches while all ranks of a node use it, over that of one alone."""

    @classmethod
    def of(cls, system: System, table: Table) -> "KernelRates":
        """Gather the rates of each row."""
        chip = table.on(system).accelerator
        bandwidth = chip.memory[0].bandwidth

        def curves(figures: Mapping[Any, EfficiencyCurve]) -> RowCurves:
            return RowCurves(curves=tuple(map(figures.get, Dtype)), codes=table.dtype)

        def tables(figures: Mapping[Any, ShapeTable]) -> RowTables:
            return RowTables.of(tuple(map(figures.get, Dtype)), table.dtype)

        release = table.by_stack(lambda stack: stack.kernel_time_factor(chip.tuned_until))
        slower = release * table.by_stack(lambda stack: stack.matmul_time_factor)
        recipe_time: Floats | float = 1.0
        if chip.generation.family == "nvidia":
            recipe_time = by_recipe(table.quantization, lambda one: one.product_time, none=1.0)
        plain = _ProductRates.of(chip, table.dtype, slower)
        peak = plain.rates.peak
        attention_time_factor = table.by_stack(lambda stack: stack.attention_time_factor)
        released = table.by_stack(lambda stack: months_of(stack.released))
        if chip.attention is None or not chip.attention.release_times:
            released = np.full_like(released, np.nan)
        own_kernel = among(table.in_effect("attention_kernel"), _OWN_KERNELS)
        released = np.where(own_kernel, released, np.nan)
        attention_time_factor = release * attention_time_factor
        attention = None
        if chip.attention is not None:
            attention = AttentionRates(
                peak=peak,
                memory_rate=np.full_like(peak, chip.attention.memory_efficiency * bandwidth),
                time_factor=attention_time_factor,
                kernel=chip.attention,
                multiprocessors=_multiprocessors(chip),
                processing=chip.processing,
                compute_latency_s=chip.compute_latency,
            )
        first = chip.memory[0]
        crowding: Floats | float = 1.0
        if first.shared_bandwidth is not None:
            ranks = np.minimum(table.gpus, system.node.accelerators)
            alone = bandwidth * share_at(first.efficiency, np.array([np.inf]))
            crowding = np.minimum(1.0, first.shared_bandwidth / (ranks * alone))
        fused = table.fuses_experts
        traffic_factor = release * table.by_compile("memory_traffic_factor")
        return cls(
            chip=chip,
            plain=plain,
            quantized=(
                _ProductRates.of(chip, _product_types(table), slower * recipe_time)
                if np.any(table.quantization > 0)
                else plain
            ),
            one_by_one=table.runs_experts_apart,
            attention=attention,
            attention_tables=tables(chip.attention_table),
            attention_kernels=table.in_effect("attention_kernel"),
            attention_recipes=table.quantization
            * table.in_recipes(lambda stack: stack.quantized_attention),
            attention_time_factor=attention_time_factor,
            attention_released=released,
            grouped_half_flops=np.where(
                fused,
                np.inf,
                table.by_expert_kernel(lambda stack: stack.grouped_half_flops or np.inf),
            ),
            grouped_time_factor=np.where(
                fused,
                table.by_expert_kernel(lambda stack: stack.fused_grouped_time_factor),
                table.by_expert_kernel(lambda stack: stack.grouped_time_factor),
            ),
            permute_rate_factor=1
            / np.select(
                [fused, table.sends_once],
                [
                    table.by_expert_kernel(lambda stack: stack.fused_permute_traffic_factor),
                    table.by_stack(lambda stack: stack.flex_permute_traffic_factor),
                ],
                table.by_stack(lambda stack: stack.permute_traffic_factor),
            ),
            vector_rate=by_dtype(_by_type_or_fp32(chip.vector, chip.vector), table),
            vector_curves=curves(_by_type_or_fp32(chip.vector_curve, chip.vector)),
            element_rate=chip.memory_bound.efficiency * bandwidth / traffic_factor,
            traffic_factor=traffic_factor,
            crowding=crowding,
        )

    @property
    def memory_rate(self) -> Floats:
        """Rate at which updates of weights get through many bytes [byte/s]."""
        own, rate = self.chip.update_efficiency, self.element_rate
        if own is not None:
            rate = rate * self.traffic_factor * (own / self.chip.memory_bound.efficiency)
        return rate * self.memory_share(np.full_like(self.element_rate, np.inf))

    def times(self, kernel: Kernel) -> tuple[Floats, Floats, Floats]:
        """Return compute, memory and total time of a kernel [s].

        Shares of curves are those at the FLOPs and least bytes of the full kernel, of all its
        products or heads; the kernel's own share of the bandwidth multiplies that of the bytes.
        Panels of a 2D product, and chunks of tokens, run one after the other.
        """
        if isinstance(kernel, Matmul) and kernel.panels is not None:
            one = self.times(kernel.panel(kernel.panels))
            compute, memory, total = (kernel.panels.kernels * time for time in one)
            return compute, memory, total
        moved_bytes = kernel.bytes
        share = self.memory_share(moved_bytes)
        if isinstance(kernel, MemoryBound):
            usual = self.chip.memory_bound
            own = {str(name): rates for name, rates in self.chip.memory_bound_class.items()}
            moving = own.get(kernel.kind, usual)
            return memory_bound_times(
                moved_bytes,
                kernel.flops,
                memory_rate=self.element_rate
                * (moving.efficiency / usual.efficiency)
                * self._kind_rate_factor(kernel.kind)
                * share,
                vector_rate=self.vector_rate * self.vector_curves.shares(kernel.flops),
                launch_s=moving.launch,
                compute_latency_s=self.chip.compute_latency,
                processing=self.chip.processing,
            )
        if isinstance(kernel, Scan):
            return scan_times(
                kernel,
                scan_rates(kernel.kind, self.chip.generation),
                peak=self.plain.rates.peak,
                bandwidth=self.chip.memory[0].bandwidth * share,
            )
        described = self._described_times(kernel, moved_bytes, share)
        if not self._tables_of(kernel):
            return described
        looked_up = self._looked_up(kernel)
        measured = self._measured_times(kernel, looked_up.shares, moved_bytes, share)
        compute, memory, total = (
            np.where(looked_up.present, known, formed)
            for known, formed in zip(measured, described, strict=True)
        )
        return compute, memory, total

    def _kind_rate_factor(self, kind: str) -> Floats | float:
        """Rate of element-wise kernels of a kind over that of the others, on any accelerator."""
        if kind.startswith("permute"):
            return self.permute_rate_factor
        return self.traffic_factor if kind == "dense_gradient" else 1.0

    def launches(self, kernel: Kernel) -> Floats | float:
        """Launches of one kernel: one for each expert that runs separately, and for each panel."""
        if isinstance(kernel, Matmul) and kernel.panels is not None:
            return kernel.panels.kernels
        if not isinstance(kernel, Matmul) or not kernel.grouped:
            return 1.0
        return np.where(self.one_by_one, np.maximum(kernel.batch, 1.0), 1.0)

    def missed(self, kernel: Kernel) -> Bools:
        """Rows whose type has a table for such kernels, but none measured close to this shape."""
        if isinstance(kernel, Matmul) and kernel.panels is not None:
            return self.missed(kernel.panel(kernel.panels))
        if isinstance(kernel, (MemoryBound, Scan)) or not self._tables_of(kernel):
            return np.zeros(self.element_rate.shape, dtype=np.bool_)
        return self._looked_up(kernel).missed

    def _tables_of(self, kernel: Matmul | FlashAttention) -> bool:
        """Whether any row may have a table for a kernel."""
        if isinstance(kernel, SelectedAttention):
            return False
        if isinstance(kernel, FlashAttention):
            return bool(self.chip.attention_table)
        return bool(self.chip.matmul_table or self.chip.grouped_table)

    def _looked_up(self, kernel: Matmul | FlashAttention) -> "_LookedUp":
        """Measured shares by shape; products of experts in tables of grouped ones first."""
        if isinstance(kernel, FlashAttention):
            attention: dict[str, Floats | float] = {
                "sequences": kernel.sequences,
                "seq_len": kernel.seq_len,
                "heads": kernel.heads,
                "kv_heads": kernel.kv_heads,
                "head_dim": kernel.head_dim,
                "v_head_dim": kernel.v_head_dim,
            }
            shares, missed = self.attention_tables.shares(attention, kernel.phase)
            shares = shares / self._attention_factor(kernel)
            return _LookedUp(self.attention_tables.present, shares, missed)
        product: dict[str, Floats | float] = {
            "batch": kernel.batch,
            "groups": kernel.batch,
            "m": kernel.m,
            "n": kernel.n,
            "k": kernel.k,
            "output_bytes": kernel.output_bytes,
        }
        products = self._products(kernel)
        shares, missed = products.tables.shares(product, kernel.phase)
        one = shares / products.slower, missed
        if kernel.grouped:
            one = one[0] / self._grouped_factor(kernel), missed
        grouped = products.grouped_tables.present & kernel.grouped
        if not grouped.any():
            return _LookedUp(products.tables.present, *one)
        several, missed_several = products.grouped_tables.shares(product, kernel.phase)
        shares = np.where(grouped, several / products.slower, one[0])
        missed = np.where(grouped, missed_several, missed)
        return _LookedUp(products.tables.present | grouped, shares, missed)

    def _grouped_factor(self, kernel: Matmul) -> Floats:
        """Time of products of experts over that of plain ones: 1 + (f - 1) / (1 + w / w_h).

        w is the FLOPs of one expert's product, w_h those at which half of f - 1 is left. A large
        product fills the chip alone: one layer of Mixtral's or DeepSeek-V3's experts on 8 H100
        (240 to 960 GFLOP a product) takes no longer than plain products (Megatron-LM, commit
        d98e8a6, tests/functional_tests, moe_perf); products of 5 to 400 GFLOP on B200 reach 0.6 to
        0.93 of their rate (MooreThreads/SimuMax, commit 4dcaae5).
        """
        each = kernel.flops / np.maximum(kernel.batch, 1.0)
        return 1 + (self.grouped_time_factor - 1) / (1 + each / self.grouped_half_flops)

    def _attention_factor(self, kernel: FlashAttention) -> Floats:
        """Time of the attention of each row over that of the best kernel of the accelerator."""
        others = {} if self.chip.attention is None else self.chip.attention.other_kernels
        factor = self.attention_time_factor
        if not np.all(np.isnan(self.attention_released)):
            assert self.chip.attention is not None  # noqa: S101 - else there are no months
            factor = factor * release_time_factor(
                self.chip.attention.release_times,
                self.attention_released,
                kernel.keys,
                backward=kernel.phase is not Phase.FORWARD,
            )
        for name, time in others.items():
            with_it = self.attention_kernels == name.code
            if np.any(with_it):
                backward = kernel.phase is not Phase.FORWARD
                own = kernel_time_factor(time, kernel.keys, backward=backward)
                factor = np.where(with_it, factor * own, factor)
        for recipe, low in self._low_precision(kernel).items():
            with_it = self.attention_recipes == recipe.code
            if np.any(with_it):
                own = kernel_time_factor(
                    low, kernel.keys, backward=kernel.phase is not Phase.FORWARD
                )
                factor = np.where(with_it, factor * own, factor)
        return factor

    def _low_precision(self, kernel: FlashAttention) -> Mapping[Quantization, KernelTime]:
        """Time of attention on operands of 8 bits over that on 16, for heads of these widths."""
        known = self.chip.attention
        if known is None:
            return {}
        narrower = kernel.v_head_dim < kernel.head_dim
        return (narrower and known.quantized_latent) or known.quantized

    def _products(self, kernel: Matmul | FlashAttention) -> _ProductRates:
        quantized = isinstance(kernel, Matmul) and kernel.quantized
        return self.quantized if quantized else self.plain

    def _measured_times(
        self,
        kernel: Matmul | FlashAttention,
        shares: Floats,
        moved_bytes: Floats,
        memory_share: Floats | float,
    ) -> tuple[Floats, Floats, Floats]:
        """Times on a table: t_c = FLOPs / (P e), t_m = bytes / B + t0, joined as the chip says.

        P e is the peak's measured share; B and t0 are those of element-wise kernels: the time of a
        kernel without work is a floor under every kernel. By `roofline` this is the form of
        SimuMax 1.2 (commit 4dcaae5), max(t_c, t_m).
        """
        moving = self.chip.memory_bound
        bandwidth = self.chip.memory[0].bandwidth * moving.efficiency
        described = self._products(kernel).rates
        rates = replace(
            described,
            efficiency=shares,
            memory_rate=np.full_like(described.peak, bandwidth) * memory_share,
            launch_s=np.zeros_like(described.peak),
            memory_latency_s=moving.launch,
        )
        return product_times(kernel.flops, moved_bytes, rates)

    def _described_times(
        self,
        kernel: Matmul | FlashAttention,
        moved_bytes: Floats,
        memory_share: Floats | float,
    ) -> tuple[Floats, Floats, Floats]:
        """Times by closed form or curve."""
        if isinstance(kernel, SelectedAttention):
            rates = self.plain.rates
            share = np.full_like(rates.peak, self._sparse_share(kernel))
            processing = rates.processing
            if processing == Processing.MEASURED:  # the measured shares hold some gathering
                processing = Processing.ROOFLINE
            rates = replace(
                rates,
                efficiency=share,
                memory_rate=rates.memory_rate * memory_share,
                processing=processing,
            )
            return product_times(kernel.flops, moved_bytes, rates)
        if isinstance(kernel, FlashAttention) and self.attention is not None:
            return attention_times(
                sequences=kernel.sequences,
                seq_len=kernel.seq_len,
                keys=kernel.keys,
                heads=kernel.heads,
                head_dim=kernel.head_dim,
                v_head_dim=kernel.v_head_dim,
                causal=kernel.causal,
                moved_bytes=moved_bytes,
                rates=replace(
                    self.attention,
                    memory_rate=self.attention.memory_rate * memory_share,
                    time_factor=self._attention_factor(kernel),
                ),
                backward=kernel.phase is not Phase.FORWARD,
            )
        products = self._products(kernel)
        grouped = isinstance(kernel, Matmul) and kernel.grouped
        slower = self._grouped_factor(kernel) if isinstance(kernel, Matmul) and grouped else 1.0
        rates, curves = products.rates, products.curves
        shares = curves.shares(kernel.flops) if any(curves.curves) else 1.0
        if any(isinstance(one, np.ndarray) for one in (shares, slower, memory_share)):
            rates = replace(
                rates,
                efficiency=rates.efficiency * shares / slower,
                memory_rate=rates.memory_rate * memory_share,
            )
        if not isinstance(kernel, Matmul):
            return product_times(kernel.flops, moved_bytes, rates)
        shape, last = (
            (kernel.m, kernel.n, kernel.k, kernel.batch),
            kernel.phase is Phase.WEIGHT_GRAD,
        )
        if not grouped:
            return matmul_times(*shape, moved_bytes, rates, weight_grad=last)
        each = np.ones_like(kernel.batch) * self.launches(kernel)
        return separate_matmul_times(*shape, moved_bytes, rates, kernels=each, weight_grad=last)

    def _sparse_share(self, kernel: SelectedAttention) -> float:
        """Share of the matrix peak of attention to keys that each query selects.

        Figures of indexers alone are not published: they are dense products whose result is read
        once, and are assumed to reach the same share in both directions.
        """
        known = self.chip.sparse_attention
        forward = _SPARSE_SHARES[0] if known is None else known.forward
        if kernel.phase is Phase.FORWARD or kernel.index:
            return forward
        return _SPARSE_SHARES[1] if known is None else known.backward

    def memory_share(self, moved_bytes: Floats) -> Floats | float:
        """Share of the bandwidth at the bytes of an operation; ranks share it beyond caches."""
        curve = self.chip.memory[0].efficiency
        if curve is None:
            return self.crowding
        beyond_caches = moved_bytes >= curve.points[-1][0]
        return share_at(curve, moved_bytes) * np.where(beyond_caches, self.crowding, 1.0)


def _multiprocessors(chip: Accelerator) -> int:
    """Of the chip; 1 where no closed form needs them."""
    return 1 if chip.multiprocessors is None else chip.multiprocessors


def _by_type_or_fp32(figures: Mapping[Any, Any], known: Mapping[Any, float]) -> dict[str, Any]:
    """The figure of each type, fp32's for a type that is not known; none where there is none."""
    names = {name: name if name in known else "fp32" for name in Dtype}
    return {name: figures[source] for name, source in names.items() if source in figures}
