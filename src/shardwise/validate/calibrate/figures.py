"""Figures of a system that a table of measurements determines, with the bounds of each."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from shardwise.config.accelerator import (
    AttentionName,
    ExpertsName,
    MatmulBlocks,
    MatmulName,
    MatmulTiles,
    ProductFigures,
)
from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath
from shardwise.cost.benchmark import MATRIX_TYPES
from shardwise.validate.calibrate.predictions import Texts, attention_names, experts_names
from shardwise.validate.calibrate.tables import KernelTable

_BENCHMARK = ("accelerator", "benchmark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """A figure to be fitted."""

    path: FigurePath
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fittable:
    """Rows of a table that determine some figures of a system."""

    prefix: str
    """Dotted path of these figures, for their source."""
    table: KernelTable
    free: tuple[Free, ...]
    measured: int = 0
    """Which of the table's times they determine."""


# Bounds of fits: wide enough for any chip of the last ten years, narrow enough that figures that
# the rows do not determine stay close to their start.
_BOUNDS: dict[str, tuple[float, float]] = {
    "efficiency": (0.05, 1.0),
    "fill_depth": (1.0, 4000.0),
    "fill_tiles": (0.01, 5.0),
    "fill_exponent": (0.4, 4.0),
    "memory_efficiency": (0.1, 2.0),
    "launch": (1e-8, 1e-3),
    "backward_ratio": (0.5, 10.0),
    "vector": (1e8, 1e15),
    "weight_grad_share": (0.1, 1.2),
    "slowdown": (1e-3, 1.5),
    "after": (1e-5, 3e-2),
    "sustained": (1e-3, 1.0),
    "cast_bytes": (0.05, 50.0),
    "cast_grouping": (1e-2, 5.0),
    "copy_bytes": (0.05, 20.0),
    "wave_share": (1e-3, 1.5),
    "edge_weight": (0.1, 300.0),
    "split_latency": (1e-7, 1e-4),
    "split_memory_efficiency": (0.01, 10.0),
    "narrow_share": (0.3, 1.2),
    "alone_share": (0.05, 1.2),
    "longest_weight": (0.2, 2.0),
    "fill_keys": (0.1, 1000.0),
    "pair_bytes": (0.05, 200.0),
    "token_bytes": (0.05, 200.0),
    "inner_bytes": (0.05, 200.0),
    "choice_bytes": (0.05, 500.0),
    "rate": (1e9, 2e11),
    "row_bytes": (1.0, 3e4),
    "token_share": (1e-3, 6.0),
    "relay_factor": (0.5, 10.0),
    "link_efficiency": (0.3, 1.0),
    "fabric_efficiency": (0.3, 1.0),
    "latency_per_doubling": (1e-7, 2e-4),
    "latency": (1e-6, 1e-2),
    "latency_per_member": (1e-8, 1e-3),
    "small_rate": (1e8, 1e12),
    "join_exponent": (0.8, 4.0),
}
_SEND_BOUNDS = {"token_bytes": (1.0, 4e4)}
_FULL_LINKS = 5e11
"""Bandwidth that 24 multiprocessors of DeepEP fill [byte/s]."""
_THROTTLE = {"slowdown": 0.1, "after": 2e-3}
_CLOSED = ("efficiency", "fill_depth", "fill_tiles", "fill_exponent", "memory_efficiency", "launch")
_OF_TILING: dict[type, tuple[str, ...]] = {
    MatmulTiles: ("wave_share", "edge_weight", "split_latency", "split_memory_efficiency"),
    MatmulBlocks: ("wave_share", "edge_weight", "narrow_share", "alone_share"),
}


def with_starting_figures(system: System, tables: list[KernelTable]) -> System:
    """The system with figures of every kind in the tables; missing ones start as for training."""
    fields = system.to_dict()
    chip = fields["accelerator"]
    known = chip["benchmark"] or {}
    for table in tables:
        if table.kind == "gemm":
            names = _known(table.columns["dtype"], MatmulName)
            known["matmul"] = {n: _matmul(chip, n) for n in names} | known.get("matmul", {})
        elif table.kind == "attention" and chip["attention"] is not None:
            names = _known(attention_names(table), AttentionName)
            known["attention"] = {n: _attention(chip, table, n) for n in names} | known.get(
                "attention", {}
            )
        elif table.kind == "moe":
            names = _known(experts_names(table), ExpertsName)
            known["experts"] = {n: _experts(chip, n) for n in names} | known.get("experts", {})
    for kind in ("matmul", "attention", "experts"):
        if kind in known:
            known[kind] = {name: some for name, some in known[kind].items() if some is not None}
    chip["benchmark"] = known or None
    return System.validated(fields, source=system.name)


def _known(names: Any, kinds: Any) -> list[str]:
    """Kinds of the rows that have figures."""
    return [name for name in np.unique(names).tolist() if name in get_args(kinds)]


def _matmul(chip: Mapping[str, Any], name: str) -> dict[str, object] | None:
    trained = chip["matmul"].get(MATRIX_TYPES[name])
    if trained is None:
        return None
    of_training = ("burst_efficiency", "weight_grad_share")
    figures = {key: trained[key] for key in trained if key not in of_training}
    figures["efficiency"] = trained["burst_efficiency"] or trained["efficiency"]
    cast = {} if name == "bf16" else {"cast_bytes": 4.0, "launch": 6e-6}
    return figures | cast | {"throttle": _THROTTLE}


def _attention(chip: Mapping[str, Any], table: KernelTable, name: str) -> dict[str, Any]:
    """The figures of training, at the head widths of the rows."""
    widths = np.unique(table.columns["head_dim"][attention_names(table) == name]).astype(int)
    trained = chip["attention"]
    known = {int(width): share for width, share in trained["efficiency"].items()}
    places, shares = zip(*sorted(known.items()), strict=True)
    half = 0.5 if name.startswith("fp8") else 1.0  # the fp8 kernels gain little
    found = half * np.interp(np.log(widths), np.log(places), shares)
    at = {str(width): float(share) for width, share in zip(widths, found, strict=True)}
    extra = {"copy_bytes": 2.0} if name.endswith("causal") else {}
    extra |= {"cast_bytes": 4.0} if name.startswith("fp8") else {}
    extra |= {} if name.endswith("causal") else {"fill_keys": 50.0}
    return trained | {"efficiency": at, "backward_ratio": 1, "throttle": _THROTTLE} | extra


def _experts(chip: Mapping[str, Any], name: str) -> dict[str, object] | None:
    kind = next(n for n in sorted(MATRIX_TYPES, key=len, reverse=True) if name.startswith(n))
    trained = chip["matmul"].get(MATRIX_TYPES[kind])
    if trained is None:
        return None
    return {
        "efficiency": 0.8,
        "fill_depth": 300.0,
        "fill_tiles": 0.5,
        "fill_exponent": 1.0,
        "memory_efficiency": 0.9,
        "launch": 25e-6,
        "row_step": 128,
        "pair_bytes": 10.0,
        "token_bytes": 3.0,
        "inner_bytes": 4.0,
        "choice_bytes": 30.0,
        "throttle": _THROTTLE,
    }


def _frees(figures: object, at: FigurePath, names: tuple[str, ...]) -> Iterator[Free]:
    """The figures of some names; of mappings by size, each entry."""
    for name in names:
        value = getattr(figures, name)
        low, high = _BOUNDS[name]
        keys = [(name, key) for key in value] if isinstance(value, Mapping) else [(name,)]
        for key in keys:
            yield Free(path=(*at, *key), low=low, high=high)


def fittable(system: System, table: KernelTable) -> list[Fittable]:
    """Row groups of a table that determine figures of a system, with these figures."""
    kinds = {"gemm": _matmuls, "attention": _attentions, "moe": _expert_blocks}
    kinds |= {"collective": _collectives, "moe_alltoall": _sends, "elementwise": _elementwise}
    kinds |= {"train_gemm": _training_matmuls, "train_attention": _training_attention}
    return list(kinds[table.kind](system, table)) if table.kind in kinds else []


def _throttle(figures: Any, at: FigurePath, *, repeated: bool = False) -> Iterator[Free]:
    names = ("slowdown", "after", *(("sustained",) if repeated else ()))
    return _frees(figures.throttle, (*at, "throttle"), names)


def _groups(
    system: System, table: KernelTable, kind: str, names: Texts
) -> Iterator[tuple[Any, FigurePath, KernelTable]]:
    """Figures of a part of the benchmark, their place, and the rows of the same name."""
    for name, figures in getattr(system.accelerator.benchmark, kind, {}).items():
        rows = names == name
        if rows.any():
            yield figures, (*_BENCHMARK, kind, str(name)), table.take(rows)


def _fittable(at: FigurePath, table: KernelTable, free: Iterable[Free]) -> Fittable:
    return Fittable(prefix=".".join(map(str, at)), table=table, free=tuple(free))


def _matmuls(system: System, table: KernelTable) -> Iterator[Fittable]:
    for figures, at, some in _groups(system, table, "matmul", table.columns["dtype"]):
        casts = tuple(n for n in ("cast_bytes", "cast_grouping") if getattr(figures, n))
        free = [*_of_products(figures, at, _CLOSED), *_frees(figures, at, casts)]
        repeated = bool((some.columns["mode"] == "sustained").any())
        yield _fittable(at, some, [*free, *_throttle(figures, at, repeated=repeated)])


def _of_products(figures: ProductFigures, at: FigurePath, closed: tuple[str, ...]) -> list[Free]:
    """Figures of the closed form, or of the waves of tiles in its place."""
    tiling = figures.tiling
    if tiling is None:
        return list(_frees(figures, at, closed))
    names = tuple(name for name in closed if name not in ("fill_tiles", "fill_exponent"))
    tiles = _frees(tiling, (*at, "tiling"), _OF_TILING[type(tiling)])
    return [*_frees(figures, at, names), *tiles]


def _training_matmuls(system: System, table: KernelTable) -> Iterator[Fittable]:
    """Plain products; those of experts (groups) run in kernels of their own."""
    for name, figures in system.accelerator.matmul.items():
        rows = (table.columns["dtype"] == name) & (table.columns["groups"] == 1)
        if rows.any():
            at: FigurePath = ("accelerator", "matmul", str(name))
            closed = tuple(one for one in _CLOSED if one != "fill_exponent")
            layouts = set(table.columns["layout"][rows].tolist())
            both = "NT" in layouts and len(layouts) > 1
            free = _of_products(figures, at, closed)
            free += _frees(figures, at, ("weight_grad_share",) if both else ())
            yield _fittable(at, table.take(rows), free)


def _training_attention(system: System, table: KernelTable) -> Iterator[Fittable]:
    """The fastest kernel; types with a table of shapes do not have these figures."""
    figures, columns = system.accelerator.attention, table.columns
    tables = [str(dtype) for dtype in system.accelerator.attention_table]
    rows = (columns["kernel"] == "best") & ~np.isin(columns["dtype"], tables)
    if figures is None or not rows.any():
        return
    at: FigurePath = ("accelerator", "attention")
    widths = sorted(figures.efficiency)
    met = {min(widths, key=lambda w: abs(np.log(w / d))) for d in np.unique(columns["head_dim"])}
    free = [*_frees(figures, at, ("longest_weight", "launch"))]
    free += [Free(path=(*at, "efficiency", width), low=1e-3, high=1.0) for width in sorted(met)]
    if {"fwd", "bwd"} <= set(columns["direction"][rows].tolist()):
        free += _frees(figures, at, ("backward_ratio",))
    yield _fittable(at, table.take(rows), free)


def _elementwise(system: System, table: KernelTable) -> Iterator[Fittable]:
    """Share of the bandwidth and launch; of a processor also the rate of element-wise FLOPs."""
    at: FigurePath = ("accelerator", "memory_bound")
    free = [*_frees(system.accelerator.memory_bound, at, ("efficiency", "launch"))]
    if (table.columns["flops"] > 0).any() and not system.accelerator.asynchronous:
        low, high = _BOUNDS["vector"]
        free.append(Free(path=("accelerator", "vector", "fp32"), low=low, high=high))
    yield _fittable(at, table, free)


def _attentions(system: System, table: KernelTable) -> Iterator[Fittable]:
    for figures, at, some in _groups(system, table, "attention", attention_names(table)):
        fitted: tuple[str, ...] = ("efficiency", "longest_weight", "memory_efficiency", "launch")
        fitted += tuple(n for n in ("fill_keys", "copy_bytes", "cast_bytes") if getattr(figures, n))
        yield _fittable(at, some, [*_frees(figures, at, fitted), *_throttle(figures, at)])


def _expert_blocks(system: System, table: KernelTable) -> Iterator[Fittable]:
    balanced = table.take(table.columns["distribution"] == "balanced")
    for figures, at, some in _groups(system, balanced, "experts", experts_names(balanced)):
        moved = ("pair_bytes", "token_bytes", "inner_bytes", "choice_bytes")
        free = [*_frees(figures, at, (*_CLOSED, *moved)), *_throttle(figures, at)]
        yield _fittable(at, some, free)


def _collectives(system: System, table: KernelTable) -> Iterator[Fittable]:
    """Figures of tiers inside a node from groups that they join, of the next from those on several.

    A group on one node is joined by the smallest tier that all of it is in.
    """
    of = table.columns
    node, inner = system.fast_domain or np.inf, 1.0
    for tier, described in enumerate(system.network):
        beyond = tier > 0 and (described.domain is None or described.domain > node)
        size = np.inf if described.domain is None else described.domain
        joined = (of["gpus_per_node"] > inner) & (of["gpus_per_node"] <= size)
        joined = of["nodes"] > 1 if beyond else (of["nodes"] <= 1) & joined
        for name, rates in described.collectives.items():
            rows = (of["op"] == name) | ((of["op"] == "alltoall") & (name == "all_to_all"))
            rows &= joined
            if not rows.any():
                continue
            at = ("network", tier, "collectives", str(name))
            known = ("latency", "latency_per_member")
            free = list(_frees(rates, at, known))
            inside = of["gpus_per_node"][rows]
            met = np.unique(inside if beyond or not tier else np.minimum(inside, inner)).tolist()
            shares = [
                Free(path=(*at, "efficiency", n), low=0.05, high=1.5) for n in rates.efficiency
            ]
            free += [share for share in shares if share.path[-1] in met]
            if rates.bulk is not None:
                bulk = ("small_rate", "latency", "latency_per_member", "join_exponent")
                free += _frees(rates.bulk, (*at, "bulk"), bulk)
            yield _fittable(at, table.take(rows), free)
        if beyond:
            return
        inner = size


def _sends(system: System, table: KernelTable) -> Iterator[Fittable]:
    """Figures of the kernels of experts: of multiprocessors and links from one node alone.

    Those of several nodes, from rows that have some, are fitted with the former in place. Where the
    links are not full, as on Blackwell with 24 multiprocessors, their share stays as it is: what a
    token costs in addition to its rows depends on the kernel.
    """
    for name, kernels in system.expert_kernels.items():
        for place, measured in enumerate(table.times):
            side = measured.removesuffix("_us")
            figures = getattr(kernels, side)
            at = ("expert_kernels", str(name), side)
            own, one_node = table.columns["kernel"] == name, table.columns["nodes"] == 1
            extra = tuple(n for n in ("token_bytes", "token_share") if getattr(figures, n))
            full = system.tier_bandwidth(0) <= _FULL_LINKS
            links = ("link_efficiency",) if full else ()
            near = ("latency", "rate", "row_bytes", *extra, *links)
            far = ("latency_per_doubling", "relay_factor", "fabric_efficiency")
            for some, names in ((own & one_node, near), (own & ~one_node, far)):
                if some.any():
                    free = []
                    for one in names:
                        low, high = _SEND_BOUNDS.get(one, _BOUNDS.get(one, (0.0, 0.0)))
                        free.append(Free(path=(*at, one), low=low, high=high))
                    yield Fittable(
                        prefix=".".join(at),
                        table=table.take(some),
                        free=tuple(free),
                        measured=place,
                    )
