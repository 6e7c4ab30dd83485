"""NERSC's search space, one search for each point."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from shardwise.config import files
from shardwise.config.arguments import count_of, one_of, whole_numbers
from shardwise.config.strategy import Strategy
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.planning.sweep.axes import AxisValue, parse_values
from shardwise.predecessors.nersc import reference as nersc
from shardwise.predecessors.nersc.reference import METHODS, NerscModel, NerscSystem, SearchResult
from shardwise.predecessors.nersc.results import is_results_file, write_results
from shardwise.predecessors.nersc.translation import model_for_nersc, system_for_nersc
from shardwise.predecessors.search import (
    TOP,
    Progress,
    ReferenceQuery,
    log,
    required,
)

_DTYPES = ("fp16", "bf16")
_METHOD = "1d"
"""As in NERSC's scripts."""
_S_PER_DAY = 86_400.0
_RATES = ("matrix_flops_fp16", "vector_flops_fp16", "hbm_bandwidth", "hbm_capacity")
FIGURES = (
    *_RATES,
    *("nvlink_bandwidth", "nvlink_eff", "nvlink_latency"),
    *("ib_bandwidth", "ib_eff", "ib_latency", "nic_factor"),
)
"""Figures of its systems that a sweep may vary, in the units of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """One search."""

    name: str
    system: NerscSystem
    method: str
    gpus: int
    global_batch: int
    values: Mapping[str, float]
    """Of the varied figures, in the units of its files."""

    @property
    def place(self) -> dict[str, Any]:
        """Fields that identify the search."""
        domain = self.system.nvlink_size
        place = {"system": self.name, "method": self.method, "domain": domain, "gpus": self.gpus}
        return place | dict(self.values)

    @property
    def limits(self) -> dict[str, Any]:
        """Arguments of a search."""
        batch, domain = self.global_batch, self.system.nvlink_size
        return {"method": self.method, "gpus": self.gpus, "global_batch": batch, "domain": domain}


def search_nersc(query: ReferenceQuery) -> dict[str, Any]:
    """Search or count every point; write files of results; return the record.

    One search has its own figures at the top of the record; of several, `searches` has them, and
    `best` the best of each.
    """
    if query.dtype is not None and Strategy.validated({"dtype": query.dtype}).dtype not in _DTYPES:
        problem = f"NERSC's model has 2 bytes per element; allowed: {', '.join(_DTYPES)}"
        raise InputError(Fault.of("dtype", query.dtype, problem))
    model, points = model_for_nersc(query.model), points_of(query)
    saved = _files(query.save, points)
    if query.count:
        counts = [nersc.count(model, **point.limits) for point in points]
        searches = [p.place | {"candidates": n} for p, n in zip(points, counts, strict=True)]
    else:
        searches = list(_searched(model, points, query))
    for path, group in saved.items():
        write_results(path, [searches[position] for position in group])
        log.info("wrote %s", path)
    if len(points) == 1 and query.vary is None:
        return searches[0]
    record = {"searches": searches, "candidates": sum(one["candidates"] for one in searches)}
    if query.count:
        return record
    best = [one["best"][0] | _place(one) for one in searches if one["best"]]
    axes = {} if query.vary is None else {"axes": list(query.vary)}
    feasible = sum(one["feasible"] for one in searches)
    return record | {"feasible": feasible, **axes, "best": best}


def _place(search: Mapping[str, object]) -> dict[str, Any]:
    results = ("candidates", "feasible", "best", "reason")
    return {name: value for name, value in search.items() if name not in results}


def _searched(
    model: NerscModel, points: Sequence[_Point], query: ReferenceQuery
) -> Iterator[dict[str, Any]]:
    report = query.progress
    for done, point in enumerate(points, 1):
        inside = None
        if report is not None and len(points) == 1:
            inside = partial(_advance, report)
        top = query.top or TOP
        result = nersc.search(model, point.system, **point.limits, top_n=top, progress=inside)
        yield point.place | _record(model, point, result, query)
        if report is not None and len(points) > 1:
            report(done, len(points), None)


def _advance(report: Progress, done: int, total: int) -> None:
    report(done, total, None)


def _record(
    model: NerscModel, point: _Point, result: SearchResult, query: ReferenceQuery
) -> dict[str, Any]:
    best = []
    for found in result.best:
        entry: dict[str, object] = {
            "throughput": found.throughput,
            "memory": found.statistics["mem"],
            "config": nersc.configuration_words(found.configuration),
            "stats": found.statistics,
        }
        if query.tokens is not None:
            entry["days"] = query.tokens / model.l / found.throughput / _S_PER_DAY
        if query.layers:
            entry["layers"] = nersc.layer_statistics(model, point.system, found.configuration)
        best.append(entry)
    record = {"candidates": result.candidates, "feasible": result.feasible, "best": best}
    return record if best else record | {"reason": _reason(result, point)}


def _reason(result: SearchResult, point: _Point) -> str:
    """Why nothing is feasible."""
    if result.least_memory is not None:
        least, capacity = f"{result.least_memory:.4g} GB", f"{point.system.hbm_capacity:.4g} GB"
        return f"every candidate needs at least {least} of memory; the GPU has {capacity}"
    if result.layouts:
        return (
            f"no layout of the groups fills a domain of {point.system.nvlink_size}: it must divide "
            f"{point.gpus} GPUs as the groups do"
        )
    total = f"{point.gpus} GPUs and {point.global_batch} sequences"
    return f"no degrees divide {total}, heads, embedding and depth with shards of 128 or more"


def points_of(query: ReferenceQuery) -> list[_Point]:
    """All combinations: systems first, then methods, domains, varied figures, GPUs last."""
    systems = {name: system_for_nersc(one) for name, one in _systems(query.system).items()}
    texts = (query.method or _METHOD).split(",")
    methods = dict.fromkeys(one_of("method", text, METHODS) for text in texts)
    counts = whole_numbers("gpus", required("gpus", query.gpus))
    batch = count_of("gbs", required("gbs", query.gbs))
    domains: tuple[int | None, ...] = (None,)
    if query.domain is not None:
        domains = whole_numbers("domain", query.domain)
    varied = _varied(query.vary or {}, together=query.together)
    return [
        _Point(
            name=name,
            system=_changed(system, domain, changes),
            method=method,
            gpus=gpus,
            global_batch=batch,
            values={
                names: value.number if "+" in names else value.of(getattr(system, names))
                for names, value in changes.items()
            },
        )
        for name, system in systems.items()
        for method, domain, changes, gpus in product(methods, domains, varied, counts)
    ]


def _systems(system: Any) -> dict[str, SystemLike]:
    """Systems by name, as entered where they are names or files."""
    found: dict[str, SystemLike] = {}
    for one in system if isinstance(system, (list, tuple)) else [system]:
        if isinstance(one, (str, Path)):
            names = [name.strip() for name in str(one).split(",")]
            found |= {name: name for name in names if name}
        else:
            found[System.load(one).name] = one
    return found


def _varied(vary: Mapping[str, str], *, together: bool) -> list[dict[str, AxisValue]]:
    """Values of the figures at each point."""
    axes = {}
    for names, text in vary.items():
        for name in names.split("+"):
            if name not in FIGURES:
                problem = f"no such figure; {allowed_words(name, FIGURES)}"
                raise InputError(Fault.of("vary", name, problem))
        axes[names] = parse_values(names, text, None)
        plain = next((value for value in axes[names] if not value.factor), None)
        if "+" in names and plain is not None:
            problem = f"{names}: several figures need factors, as in 2x"
            raise InputError(Fault.of("vary", plain.label, problem))
    if not together:
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    if len({len(values) for values in axes.values()}) > 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in axes.items())
        raise InputError(Fault.of("zip", counts, "all figures need as many values"))
    return [dict(zip(axes, values, strict=True)) for values in zip(*axes.values(), strict=True)]


def _changed(
    system: NerscSystem, domain: int | None, changes: Mapping[str, AxisValue]
) -> NerscSystem:
    fields = {
        name: value.of(getattr(system, name))
        for names, value in changes.items()
        for name in names.split("+")
    }
    changed = system.model_copy(update={} if domain is None else {"nvlink_size": domain})
    if not fields:
        return changed
    return NerscSystem.validated(changed.to_dict() | fields, source="vary")


def _files(save: str | Path | None, points: Sequence[_Point]) -> dict[str, list[int]]:
    """Files of results and the positions of their searches.

    A file of NERSC's has one system and one method; several have their names before the ending.
    """
    if save is None:
        return {}
    if not is_results_file(save):
        raise InputError(Fault.of("save", save, "NERSC's results are .npy files"))
    groups: dict[tuple[str, str], list[int]] = {}
    for position, point in enumerate(points):
        groups.setdefault((point.name, point.method), []).append(position)
    path = Path(save)
    named = {str(save): next(iter(groups.values()))}
    if len(groups) > 1:
        endings = [f"-{files.entry_name(name)}-{method}" for name, method in groups]
        names = [str(path.with_name(f"{path.stem}{end}{path.suffix}")) for end in endings]
        named = dict(zip(names, groups.values(), strict=True))
    if len(named) < len(groups):
        raise InputError(
            Fault.of("save", save, "two systems have the same name; search them apart")
        )
    for name in named:
        files.check_output_path(name)
    return named
