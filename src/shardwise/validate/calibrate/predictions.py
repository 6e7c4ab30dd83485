"""Predictions by the formulas of `cost` for the rows of a table of measured kernels.

Single kernels are predicted from `Accelerator.benchmark`; those of training layouts, casts and
collectives from the figures that estimates use. Rows without figures of the system have a reason
instead of a prediction.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.system import Accelerator, System
from shardwise.cost.attention import kernel_time_factor
from shardwise.cost.benchmark import (
    attention_benchmark,
    experts_benchmark,
    matmul_benchmark,
    training_attention,
    training_matmul,
)
from shardwise.cost.collective import collective_time
from shardwise.cost.curve import share_at
from shardwise.cost.kernels import memory_bound_times
from shardwise.cost.links import send_time
from shardwise.distinct import distinct_rows
from shardwise.errors import shorten
from shardwise.ops.operation import CollectiveKind, Routing
from shardwise.validate.calibrate.tables import KernelTable

Texts = NDArray[np.str_]

_MICRO = 1e-6
_CAST_BYTES = 3.0
"""Read in 16 bits, written in 8."""
# DeepEP's own benchmark: fp8 with an fp32 scale for each 128 elements on the way out, 16 bits back.
_TOKEN_BYTES = {"dispatch_us": 1 + 4 / 128, "combine_us": 2.0}
_MOST_NODES = 4
"""Nodes that the experts of a token are on in that benchmark, as in DeepSeek-V3's routing."""
_WEIGHT_GRADS = ("NT", "grouped_bwd_grad_w")
_MLA = "trtllm_mla_context"
_MIN_LATENCY = "moe_torch_flow_min_latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """One value per row of a table."""

    dtype: Texts
    """Type of the rows' kernels."""
    kind: Texts
    """Group of each row within GPU and type."""
    predicted_us: Floats
    """NaN where there is a reason."""
    measured_us: Floats
    reason: Texts
    """Empty where there is a prediction."""


def attention_names(table: KernelTable) -> Texts:
    """Kind of each row of attention in `kernels.Benchmarked`."""
    return np.char.add(np.char.add(table.columns["dtype"], "_"), _masks(table))


def _masks(table: KernelTable) -> Texts:
    of = table.columns
    masked = np.where(of["causal"] > 0, "causal", "dense")
    # A plain kernel may have unequal widths too: FlashAttention 3 of Hopper.
    unnamed = (of["kernel"] == "") & (of["head_dim"] != of["head_dim_v"])
    return np.where((of["kernel"] == _MLA) | unnamed, "mla", masked)


def experts_names(table: KernelTable) -> Texts:
    """Kind of each block of experts in `kernels.Benchmarked`."""
    of = table.columns
    plain = np.where(of["gated"] > 0, "", "_ungated")
    return np.char.add(of["dtype"], np.where(of["kernel"] == _MIN_LATENCY, "_min_latency", plain))


def predictions(table: KernelTable, systems: Mapping[str, System | str]) -> list[Predictions]:
    """Predict every row, once for each measured column.

    Parameters
    ----------
    table
        Measured rows.
    systems
        By the table's names of GPUs: a system, or the reason why there is none.
    """
    return [_predicted(table, systems, measured) for measured in table.times]


def _predicted(
    table: KernelTable, systems: Mapping[str, System | str], measured: str
) -> Predictions:
    size = len(table)
    predicted = np.full(size, np.nan)
    reason = np.full(size, "", dtype=object)
    for gpu in np.unique(table.columns["gpu"]):
        rows = table.columns["gpu"] == gpu
        system = systems.get(str(gpu), f"no system is known for gpu {shorten(gpu)}")
        if isinstance(system, str):
            reason[rows] = system
            continue
        for some, found in _of_system(table.take(rows), system, measured):
            places = np.flatnonzero(rows)[some]
            if isinstance(found, str):
                reason[places] = found
            else:
                predicted[places] = found / _MICRO
    return Predictions(
        dtype=_dtypes(table),
        kind=_kinds(table, measured),
        predicted_us=predicted,
        measured_us=table.columns[measured],
        reason=reason,
    )


def _dtypes(table: KernelTable) -> Texts:
    if "dtype" in table.columns:
        return table.columns["dtype"]
    name = {"cast_fp8": "fp8", "collective": "-", "moe_alltoall": "-"}.get(table.kind, "bf16")
    return np.full(len(table), name)


def _kinds(table: KernelTable, measured: str) -> Texts:
    """Groups of the rows in addition to GPU and type."""
    of = table.columns
    if table.kind == "attention":
        return _masks(table)
    if table.kind == "moe":
        least = np.where(of["kernel"] == _MIN_LATENCY, " min_latency", "")
        return np.char.add(of["distribution"], least)
    if table.kind == "collective":
        op = np.where(of["op"] == "alltoall", "all_to_all", of["op"])
        return np.char.add(op, np.where(of["nodes"] > 1, " between nodes", ""))
    if table.kind == "moe_alltoall":
        name = np.char.add(np.char.add(of["kernel"], " "), measured.removesuffix("_us"))
        return np.char.add(name, np.where(of["nodes"] > 1, " between nodes", ""))
    columns = {"gemm": "mode", "train_gemm": "layout", "train_attention": "direction"}
    columns |= {"elementwise": "kernel"}
    if table.kind in columns:
        return of[columns[table.kind]]
    return np.full(len(table), measured.removesuffix("_us"))


def _of_system(
    table: KernelTable, system: System, measured: str
) -> Iterator[tuple[Bools, Floats | str]]:
    """Times [s] of groups of rows that one call predicts, or the reason why there are none."""
    if table.kind == "moe_alltoall":
        return _dispatches(table, system, measured)
    predict = {
        "gemm": _matmuls,
        "attention": _attention,
        "moe": _experts,
        "collective": _collectives,
        "cast_fp8": _casts,
        "train_gemm": _training_matmuls,
        "train_attention": _training_attention,
        "elementwise": _elementwise,
    }[table.kind]
    return predict(table, system)


Rows = Mapping[str, Any]
"""Columns of a table by name."""


def _benchmarks(
    table: KernelTable,
    system: System,
    kind: str,
    names: Texts,
    time: Callable[[Accelerator, str, Any, Rows], Floats],
) -> Iterator[tuple[Bools, Floats | str]]:
    """Times of groups of rows by the figures of the same name in a part of the benchmark."""
    figures = getattr(system.accelerator.benchmark, kind, {})
    known = {str(name): one for name, one in figures.items()}
    for name in np.unique(names).tolist():
        rows = names == name
        if name in known:
            yield rows, time(system.accelerator, name, known[name], table.take(rows).columns)
        else:
            yield rows, f"{system.name} has no accelerator.benchmark.{kind}.{name}"


def _matmuls(table: KernelTable, system: System) -> Iterator[tuple[Bools, Floats | str]]:
    def time(chip: Accelerator, name: str, figures: Any, of: Rows) -> Floats:
        repeated = of["mode"] == "sustained"
        return matmul_benchmark(
            chip, name, figures, m=of["m"], n=of["n"], k=of["k"], sustained=repeated
        )

    return _benchmarks(table, system, "matmul", table.columns["dtype"], time)


def _attention(table: KernelTable, system: System) -> Iterator[tuple[Bools, Floats | str]]:
    sizes = ("batch", "seq", "heads", "kv_heads", "head_dim", "head_dim_v")

    def time(chip: Accelerator, name: str, figures: Any, of: Rows) -> Floats:
        causal, some = bool(of["causal"][0] > 0), {size: of[size] for size in sizes}
        return attention_benchmark(chip, name.partition("_")[0], figures, causal=causal, **some)

    return _benchmarks(table, system, "attention", attention_names(table), time)


def _experts(table: KernelTable, system: System) -> Iterator[tuple[Bools, Floats | str]]:
    sizes = ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep")

    def time(chip: Accelerator, name: str, figures: Any, of: Rows) -> Floats:
        some = {size: of[size] for size in sizes}
        return experts_benchmark(chip, name, figures, gated=of["gated"] > 0, **some)

    return _benchmarks(table, system, "experts", experts_names(table), time)


def _extents(system: System, inside: Floats, members: Floats) -> Ints:
    """Members within one domain of each tier: those of a node inside it, all beyond."""
    reach = system.fast_domain or np.inf
    domains = [np.inf if tier.domain is None else tier.domain for tier in system.network]
    rows = [np.minimum(inside if domain <= reach else members, domain) for domain in domains]
    return np.stack([*rows[:-1], members]).astype(np.int64)


def _collectives(table: KernelTable, system: System) -> Iterator[tuple[Bools, Floats | str]]:
    of = table.columns
    inside, members = of["gpus_per_node"], of["gpus_per_node"] * of["nodes"]
    inner, outer = system.fast_domain, system.network[-1].domain
    larger = (inside > (inner or np.inf)) | (members > (outer or np.inf))
    if larger.any():
        yield larger, f"{system.name} has no {system.network[0].name} of so many accelerators"
    for op in np.unique(of["op"]).tolist():
        rows = (of["op"] == op) & ~larger
        if rows.any():
            kind = CollectiveKind("all_to_all" if op == "alltoall" else op)
            extents = _extents(system, inside[rows], members[rows])
            yield rows, collective_time(system, kind, of["size_bytes"][rows], extents)


def _dispatches(
    table: KernelTable, system: System, measured: str
) -> Iterator[tuple[Bools, Floats | str]]:
    """Tokens sent to experts, or back, by a library: at most on four nodes if there are several."""
    of = table.columns
    inside = np.where(of["gpus_per_node"] > 0, of["gpus_per_node"], system.node.accelerators)
    groups = np.where(of["nodes"] > 1, of["nodes"], 1.0)
    kinds = distinct_rows([of["topk"], of["experts"], groups, _codes(of["kernel"])])
    for kind, first in enumerate(kinds[0].tolist()):
        rows = kinds[1] == kind if len(table) > 1 else np.ones(1, dtype=np.bool_)
        name = str(of["kernel"][first])
        kernels = {str(n): k for n, k in system.expert_kernels.items()}.get(name)
        if kernels is None:
            yield rows, f"{system.name} has no expert_kernels.{name}"
            continue
        several = int(groups[first])
        routing = Routing(
            experts=int(of["experts"][first]),
            top_k=int(of["topk"][first]),
            groups=several,
            top_groups=min(several, _MOST_NODES),
        )
        extents = _extents(system, inside[rows], inside[rows] * of["nodes"][rows])
        yield (
            rows,
            send_time(
                system,
                kernels.dispatch if measured == "dispatch_us" else kernels.combine,
                tokens=of["tokens"][rows],
                row_bytes=of["hidden"][rows] * _TOKEN_BYTES[measured],
                routing=routing,
                multiprocessors=of["sms"][rows],
                extents=extents,
            ),
        )


def _codes(words: Texts) -> Ints:
    """A number for each distinct word."""
    return np.unique(words, return_inverse=True)[1].astype(np.int64)


def _casts(table: KernelTable, system: System) -> Iterator[tuple[Bools, Floats | str]]:
    chip = system.accelerator
    moved = _CAST_BYTES * table.columns["m"] * table.columns["k"]
    moving = chip.memory_bound
    rate = moving.efficiency * chip.memory[0].bandwidth
    _, _, time = memory_bound_times(
        moved, np.zeros_like(moved), memory_rate=rate, vector_rate=1.0, launch_s=moving.launch
    )
    yield np.ones(len(table), dtype=np.bool_), time


def _training_matmuls(table: KernelTable, system: System) -> Iterator[tuple[Bools, Floats | str]]:
    chip = system.accelerator
    known = {str(name): figures for name, figures in chip.matmul.items()}
    dtypes, weight_grads = table.columns["dtype"], np.isin(table.columns["layout"], _WEIGHT_GRADS)
    for dtype in np.unique(dtypes).tolist():
        if dtype not in known:
            yield dtypes == dtype, f"{system.name} has no accelerator.matmul.{dtype}"
            continue
        for weight_grad in (False, True):
            rows = (dtypes == dtype) & (weight_grads == weight_grad)
            of = table.take(rows).columns
            size = np.where(of["out_dtype"] == "fp32", 4.0, 2.0)
            size = size * np.where(of["accumulate"] > 0, 2, 1)
            sizes = {name: of[name] for name in ("m", "n", "k", "groups")}
            yield (
                rows,
                training_matmul(
                    chip, dtype, known[dtype], **sizes, result_bytes=size, weight_grad=weight_grad
                ),
            )


def _training_attention(table: KernelTable, system: System) -> Iterator[tuple[Bools, Floats | str]]:
    chip = system.accelerator
    if chip.attention is None:
        yield np.ones(len(table), dtype=np.bool_), f"{system.name} has no accelerator.attention"
        return
    kernels = {str(name): time for name, time in chip.attention.other_kernels.items()}
    columns = table.columns
    names = np.char.add(np.char.add(columns["dtype"], " "), columns["kernel"])
    for name in np.unique(names).tolist():
        dtype, kernel = name.split(" ", 1)
        if dtype not in map(str, chip.matrix):
            yield names == name, f"{system.name} has no accelerator.matrix.{dtype}"
            continue
        for backward in (False, True):
            rows = (names == name) & ((columns["direction"] == "bwd") == backward)
            of = table.take(rows).columns
            sizes = ("batch", "seq", "heads", "kv_heads", "head_dim", "head_dim_v")
            factor = kernel_time_factor(kernels.get(kernel, 1.0), of["seq"], backward=backward)
            times = training_attention(
                chip, dtype, chip.attention, backward=backward, **{size: of[size] for size in sizes}
            )
            yield rows, times * factor


def _elementwise(table: KernelTable, system: System) -> Iterator[tuple[Bools, Floats | str]]:
    chip, moved = system.accelerator, table.columns["bytes"]
    moving, memory = chip.memory_bound, chip.memory[0]
    vector = {str(name): peak for name, peak in chip.vector.items()}
    _, _, time = memory_bound_times(
        moved,
        table.columns["flops"],
        memory_rate=moving.efficiency * memory.bandwidth * share_at(memory.efficiency, moved),
        vector_rate=vector["fp32"],
        launch_s=moving.launch,
    )
    yield np.ones(len(table), dtype=np.bool_), time
