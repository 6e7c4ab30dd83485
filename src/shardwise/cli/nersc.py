"""`search` and `sweep --reference nersc`: searches by NERSC's model, one for each point."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from shardwise.cli.options import (
    count_of,
    flag_fault,
    missing_flag,
    one_of,
    refuse_options,
    whole_numbers,
)
from shardwise.cli.output import (
    Bar,
    check_different_files,
    check_size,
    log,
    note,
    progress_bar,
    show,
)
from shardwise.config import files
from shardwise.config.strategy import Strategy
from shardwise.errors import allowed_words
from shardwise.interop.nersc import reference as nersc
from shardwise.interop.nersc.reference import METHODS, NerscModel, NerscSystem, SearchResult
from shardwise.interop.nersc.results import is_results_file, rows_of, write_grid, write_results
from shardwise.interop.nersc.translation import model_for_nersc, system_for_nersc
from shardwise.planning.sweep.values import AxisValue, parse_values

_NEEDS_SEARCH = "needs a search; --count only counts"
_DTYPES = ("fp16", "bf16")
_TOP = 10
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
class NerscQuery:
    """Searches of NERSC's model, as entered: lists stand for one search per combination."""

    model: str
    system: str
    gpus: str | None
    gbs: str | None
    dtype: str | None
    method: str | None
    domain: str | None
    top: int | None = None
    save: str | None = None
    plot: str | None = None
    layers: bool = False
    count: bool = False
    vary: Mapping[str, str] | None = None
    """Values by figure, or by several figures joined by "+"."""
    together: bool = False
    """Advance all varied figures together."""
    tokens: float | None = None
    """Tokens to train on; each configuration gets the days that takes."""
    large: bool = False
    """Whether any number of points may be searched."""


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


def search_nersc(query: NerscQuery) -> dict[str, Any]:
    """Search or count every point; write the files that were requested; return the record.

    One search has its own figures at the top of the record; of several, `searches` has them, and
    `best` the best of each.
    """
    if query.count:
        refuse_options(_NEEDS_SEARCH, layers=query.layers, save=query.save, plot=query.plot)
    if query.dtype is not None and Strategy.validated({"dtype": query.dtype}).dtype not in _DTYPES:
        problem = f"NERSC's model has 2 bytes per element; allowed: {', '.join(_DTYPES)}"
        raise flag_fault("dtype", query.dtype, problem)
    model, points = model_for_nersc(query.model), _points(query)
    check_size(len(points), large=query.large or query.vary is None)
    saved = _files(query.save, points)
    if query.plot is not None:
        from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow

        check_chart_file(query.plot)
    if query.count:
        counts = [nersc.count(model, **point.limits) for point in points]
        searches = [p.place | {"candidates": n} for p, n in zip(points, counts, strict=True)]
    else:
        searches = list(_searched(model, points, query))
    for path, group in saved.items():
        write_results(path, [searches[position] for position in group])
        log.info("wrote %s", path)
    if query.plot is not None:
        from shardwise.report.charts.nersc import write_charts  # noqa: PLC0415 - slow

        if any(search["best"] for search in searches):
            axes = {name: [one[name] for one in searches] for name in query.vary or ()}
            write_charts(rows_of(searches), query.plot, axes=axes)
            log.info("wrote %s", query.plot)
        else:
            note(f"not written: {query.plot}: nothing is feasible")
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
    model: NerscModel, points: Sequence[_Point], query: NerscQuery
) -> Iterator[dict[str, Any]]:
    with progress_bar("searches" if len(points) > 1 else "candidates") as bar:
        for number, point in enumerate(points):
            progress = partial(_advance, bar) if bar is not None and len(points) == 1 else None
            top = query.top or _TOP
            result = nersc.search(model, point.system, **point.limits, top_n=top, progress=progress)
            yield point.place | _record(model, point, result, query)
            if bar is not None and len(points) > 1:
                bar(number + 1, len(points), "")


def _advance(bar: Bar, done: int, total: int) -> None:
    bar(done, total, "")


def _record(
    model: NerscModel, point: _Point, result: SearchResult, query: NerscQuery
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


def _points(query: NerscQuery) -> list[_Point]:
    """All combinations: systems first, then methods, domains, varied figures, GPUs last."""
    names = [name.strip() for name in query.system.split(",") if name.strip()]
    systems = {name: system_for_nersc(name) for name in dict.fromkeys(names)}
    texts = (query.method or _METHOD).split(",")
    methods = dict.fromkeys(one_of("method", text, METHODS) for text in texts)
    counts = whole_numbers("gpus", _required("gpus", query.gpus))
    batch = count_of("gbs", _required("gbs", query.gbs))
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
            values={names: _value(system, names, value) for names, value in changes.items()},
        )
        for name, system in systems.items()
        for method, domain, changes, gpus in product(methods, domains, varied, counts)
    ]


def _required(flag: str, value: str | None) -> str:
    if value is None:
        raise missing_flag(flag)
    return value


def _varied(vary: Mapping[str, str], *, together: bool) -> list[dict[str, AxisValue]]:
    """Values of the figures at each point."""
    axes = {}
    for names, text in vary.items():
        for name in names.split("+"):
            if name not in FIGURES:
                problem = f"no such figure; {allowed_words(name, FIGURES)}"
                raise flag_fault("vary", name, problem)
        axes[names] = parse_values(names, text, None)
        plain = next((value for value in axes[names] if not value.factor), None)
        if "+" in names and plain is not None:
            problem = f"{names}: several figures need factors, as in 2x"
            raise flag_fault("vary", plain.label, problem)
    if not together:
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    if len({len(values) for values in axes.values()}) > 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in axes.items())
        raise flag_fault("zip", counts, "all figures need as many values")
    return [dict(zip(axes, values, strict=True)) for values in zip(*axes.values(), strict=True)]


def _value(system: NerscSystem, names: str, value: AxisValue) -> float:
    """A varied figure, or the factor of several."""
    return value.number if "+" in names else value.of(getattr(system, names))


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


def _files(save: str | None, points: Sequence[_Point]) -> dict[str, list[int]]:
    """Files of results and the positions of their searches.

    A file of NERSC's has one system and one method; several have their names before the ending.
    """
    if save is None:
        return {}
    if not is_results_file(save):
        raise flag_fault("save", save, "NERSC's results are .npy files")
    groups: dict[tuple[str, str], list[int]] = {}
    for position, point in enumerate(points):
        groups.setdefault((point.name, point.method), []).append(position)
    path = Path(save)
    named = {save: next(iter(groups.values()))}
    if len(groups) > 1:
        endings = [f"-{files.entry_name(name)}-{method}" for name, method in groups]
        names = [str(path.with_name(f"{path.stem}{end}{path.suffix}")) for end in endings]
        named = dict(zip(names, groups.values(), strict=True))
    if len(named) < len(groups):
        raise flag_fault("save", save, "two systems have the same name; search them apart")
    for name in named:
        files.check_output_path(name)
    return named


def print_nersc(record: Mapping[str, Any]) -> None:
    """Print one search with its ten best, or several with the best of each."""
    from shardwise.report.tables.nersc import (  # noqa: PLC0415 - slow to import
        print_configurations,
        print_layers,
        print_searches,
    )

    if "searches" in record:
        print_searches(record["searches"], record["elapsed_s"])
        return
    summary = f"NERSC's space of {record['method']}, domains of {record['domain']}: "
    summary += f"{record['candidates']:,} candidates"
    if "feasible" in record:
        summary += f"; {record['feasible']:,} are feasible, found in {record['elapsed_s']:.2f} s"
    if "reason" in record:
        summary += f"\n{record['reason']}"
    best = record.get("best", [])
    print_configurations(best, summary)
    for entry in best:
        if "layers" in entry:
            print_layers(entry["layers"])


def sweep_nersc(query: NerscQuery, *, json: bool, output: str | None) -> Mapping[str, Any]:
    """Search at every value of the varied figures; print and return the record."""
    check_different_files(output=output, plot=query.plot)
    grid = output if output is not None and is_results_file(output) else None
    if grid is not None:
        files.check_output_path(grid)
        output = None
    started = time.perf_counter()
    record = search_nersc(query)
    record |= {"reference": "nersc", "elapsed_s": time.perf_counter() - started}
    if grid is not None:
        write_grid(grid, record.get("searches", [record]))
        log.info("wrote %s", grid)
    if grid is None or json:
        show(lambda: record, lambda: print_nersc(record), json=json, output=output)
    return record
