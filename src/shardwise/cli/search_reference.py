"""`shardwise search --reference`: the search spaces of Calculon, NERSC's model and AMPeD."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from shardwise.arrays import Floats
from shardwise.cli.amped import configuration_of
from shardwise.cli.nersc import NerscQuery, print_nersc, search_nersc
from shardwise.cli.options import (
    COMMAND_LINE,
    flag_fault,
    missing_flag,
    refuse_options,
    whole_number,
)
from shardwise.cli.output import check_different_files, log, note, progress_bar, show
from shardwise.cli.space import ReferenceOptions
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.errors import InputError, allowed_words
from shardwise.interop.amped import reference as amped
from shardwise.interop.amped.translation import amped_case_of_parameters, free_parameters
from shardwise.interop.amped.writer import BITS, model_for_amped, system_for_amped
from shardwise.interop.calculon import reference as calculon
from shardwise.interop.calculon.files import CalculonExecution
from shardwise.interop.calculon.reader import DTYPES
from shardwise.interop.calculon.reference import Columns
from shardwise.interop.calculon.translation import model_for_calculon, system_for_calculon
from shardwise.interop.translation import known_reference
from shardwise.planning.search.store import check_file, streamed
from shardwise.units import read_whole, readable

_NAMES = {"calculon": "Calculon", "nersc": "NERSC's model", "amped": "AMPeD"}
_NEEDS_SEARCH = "needs a search; --count only counts"
_NO_LAYERS = "AMPeD's search lists no layers; use estimate --reference amped --ops"
# Flags by Calculon's names.
_FLAG_OF = {"num_procs": "gpus", "max_batch_size": "gbs", "datatype": "dtype"}
# Calculon's names by ours.
_AXIS_OF = {
    "tp": "tensor_par",
    "pp": "pipeline_par",
    "dp": "data_par",
    "vpp": "pipeline_interleaving",
    "micro_batch_size": "microbatch_size",
    "global_batch_size": "batch_size",
    "recompute": "activation_recompute",
    "zero": "optimizer_sharding",
}
_AXES_OF_A_MAP = 2
_TOP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """A search of another model, as entered."""

    model: str
    system: str
    gpus: str | None
    gbs: str | None
    dtype: str | None
    top: int | None
    save: str | None
    axes: str | None
    plot: str | None
    count: bool
    options: ReferenceOptions


def search_reference(
    reference: str,
    case: tuple[str, str],
    options: ReferenceOptions,
    *,
    gpus: str | None,
    gbs: str | None,
    dtype: str | None,
    top: int | None,
    save: str | None,
    axes: str | None,
    plot: str | None,
    count: bool,
    json: bool,
    output: str | None,
) -> Mapping[str, object]:
    """Search or count the space of another model; print and return its record.

    Parameters
    ----------
    case
        Model and system.
    """
    name = known_reference(reference, "reference")
    everything: dict[str, Any] = {"save": save, "axes": axes, "plot": plot}
    if name == "nersc":
        refuse_options("NERSC's model has no such option; Calculon has", axes=axes)
    elif name != "calculon":
        refuse_options(f"{_NAMES[name]} has no such option; Calculon has", **everything)
    check_different_files(output=output, plot=plot, save=save)
    for other, entered in options.entered().items():
        if other != name:
            refuse_options(f"{_NAMES[name]} has no such option", **entered)
    query = _Query(
        model=case[0],
        system=case[1],
        gpus=gpus,
        gbs=gbs,
        dtype=dtype,
        top=top,
        **everything,
        count=count,
        options=options,
    )
    search, print_tables = {
        "calculon": (_search_calculon, _print_calculon),
        "nersc": (_search_nersc, print_nersc),
        "amped": (_search_amped, _print_amped),
    }[name]
    started = time.perf_counter()
    record = search(query)
    record |= {"reference": name, "elapsed_s": time.perf_counter() - started}
    lacks = "nothing is feasible" if record.get("best") == [] else ""
    show(lambda: record, lambda: print_tables(record), json=json, output=output, lacks=lacks)
    if name == "nersc":
        return record
    if plot is not None and not record["best"]:
        note(f"not written: {plot}: nothing is feasible")
    elif plot is not None:
        from shardwise.report.charts.calculon import write_charts  # noqa: PLC0415 - slow to import

        write_charts(record, plot)
        log.info("wrote %s", plot)
    return record


def _required(flag: str, value: str | None) -> str:
    if value is None:
        raise missing_flag(flag)
    return value


def _search_calculon(query: _Query) -> dict[str, Any]:
    options = query.options
    if query.count:
        refuse_options(_NEEDS_SEARCH, layers=options.layers, mbs_break=options.mbs_break)
        refuse_options(_NEEDS_SEARCH, save=query.save, axes=query.axes, plot=query.plot)
    if query.save is not None:
        check_file(query.save)
    axes = _calculon_axes(query.axes, query.plot)
    dtype = query.dtype or "fp16"
    space: dict[str, Any] = {
        "num_procs": _calculon_number("gpus", query.gpus),
        "max_batch_size": _calculon_number("gbs", query.gbs),
        "datatype": _calculon_dtype(dtype),
        "fused_activation": options.fused or "true",
        "tp_overlap": options.tries_tp_overlap,
        "dp_overlap": options.dp_overlap is not False,
    }
    model, system = model_for_calculon(query.model), system_for_calculon(query.system)
    with _faults_by_flag(dtype):
        if query.count:
            size = calculon.count(model, system, **space)
            return {"candidates": size.candidates, "network_feasible": size.network_feasible}
        space |= {"mbs_break": options.mbs_break, "top_n": query.top or 1, "axes": axes}
        with _saved(query.save) as every, progress_bar("candidates") as bar:
            progress = None if bar is None else lambda done, total: bar(done, total, "")
            result = calculon.search(model, system, **space, every=every, progress=progress)
    best = [_calculon_entry(found) for found in result.best]
    if options.layers:
        for entry, (execution, _) in zip(best, result.best, strict=True):
            entry["layers"] = calculon.layer_statistics(model, system, execution)
    cells = {"axes": axes, "cells": [_calculon_entry(found) for found in result.cells]}
    return {
        "candidates": result.candidates,
        "network_feasible": result.network_feasible,
        "good": result.good,
        "bad": result.bad,
        "rejected": result.rejected,
        "best": best,
        **(cells if axes else {}),
    }


@contextmanager
def _saved(file: str | None) -> Iterator[Callable[[Columns, Mapping[str, Floats]], None] | None]:
    """What writes executions with their statistics into a file; None without a file."""
    if file is None:
        yield None
        return
    with streamed(file, (*CalculonExecution.model_fields, *calculon.STAT_FIELDS)) as add:
        yield lambda executions, statistics: add(executions.words() | dict(statistics))
    log.info("wrote %s", file)


def _calculon_entry(found: calculon.Found) -> dict[str, Any]:
    execution, statistics = found
    return {"execution": execution.to_dict(), "stats": statistics}


def _calculon_axes(text: str | None, plot: str | None) -> list[str]:
    """Fields of executions to list the best by, from Calculon's names or ours."""
    if plot is not None:
        text = text or "tp,pp"
    words = [] if text is None else [word.strip() for word in text.split(",")]
    axes = [_AXIS_OF.get(SHORT_NAMES.get(word, word), word) for word in words]
    known = (*_AXIS_OF, *calculon.AXES)
    for position, (word, axis) in enumerate(zip(words, axes, strict=True)):
        if axis not in calculon.AXES:
            raise flag_fault("axes", word, allowed_words(word, known))
        if axis in axes[:position]:
            raise flag_fault("axes", word, "is listed twice")
    if plot is not None:
        if len(axes) < _AXES_OF_A_MAP:
            raise flag_fault("axes", text, "a heat map needs two fields, as in tp,pp")
        from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow

        check_chart_file(plot)
    return axes


def _calculon_number(flag: str, value: str | None) -> int:
    number = read_whole(_required(flag, value)) or 0
    if number < 1:
        raise flag_fault(flag, value, "Calculon searches one number, of at least 1")
    return number


def _calculon_dtype(name: str) -> str:
    """Calculon's name of a dtype, from its own name or that of shardwise."""
    word = name.strip().lower()
    if word in DTYPES:
        return word
    names = {ours: theirs for theirs, ours in DTYPES.items()}
    try:
        dtype = word if word in names else Strategy.validated({"dtype": name}).dtype
    except InputError:
        problem = allowed_words(word, names)
        raise flag_fault("dtype", name, problem) from None
    return names[dtype]


@contextmanager
def _faults_by_flag(dtype: str) -> Iterator[None]:
    """Name the flags in the faults of a space of Calculon."""
    try:
        yield
    except InputError as error:
        faults = [
            replace(
                fault,
                source=COMMAND_LINE,
                field=_FLAG_OF.get(fault.field, fault.field),
                value=dtype if fault.field == "datatype" else fault.value,
            )
            for fault in error.faults
        ]
        raise InputError(faults) from None


def _print_calculon(record: Mapping[str, Any]) -> None:
    from shardwise.report.tables.calculon import print_executions, print_layers  # noqa: PLC0415 - slow

    summary = f"Calculon's space: {record['candidates']:,} candidates, "
    summary += f"{record['network_feasible']:,} of them fit the networks"
    if "good" in record:
        rejected = ", ".join(f"{name} {n:,}" for name, n in record["rejected"].items() if n)
        summary += f"; {record['good']:,} are feasible, found in {record['elapsed_s']:.2f} s"
        summary += f"\nrejected: {rejected}" if rejected else ""
    best = record.get("best", [])
    print_executions([(entry["execution"], entry["stats"]) for entry in best], summary)
    if record.get("cells"):
        cells = [(cell["execution"], cell["stats"]) for cell in record["cells"]]
        print_executions(cells, f"The best by {' and '.join(record['axes'])}")
    for entry in best:
        if "layers" in entry:
            print_layers(entry["layers"])


def _search_nersc(query: _Query) -> dict[str, object]:
    options = query.options
    return search_nersc(
        NerscQuery(
            model=query.model,
            system=query.system,
            gpus=query.gpus,
            gbs=query.gbs,
            dtype=query.dtype,
            method=options.method,
            domain=options.domain,
            top=query.top,
            save=query.save,
            plot=query.plot,
            layers=options.layers,
            count=query.count,
        )
    )


def _search_amped(query: _Query) -> dict[str, Any]:
    """Every batch size and the six degrees of AMPeD.

    Batch sizes are compared by the time of the same tokens: one batch of the largest.
    """
    refuse_options(_NO_LAYERS, layers=query.options.layers)
    parameters = _amped_parameters(query)
    scale = _amped_scale(query.model)
    gpus = _amped_number("gpus", query.gpus or scale.get("gpus"))
    if gpus > amped.MOST_ACCELERATORS:
        problem = f"must be at most {amped.MOST_ACCELERATORS:,}: more have too many permutations"
        raise flag_fault("gpus", query.gpus, problem)
    batch_sizes = _required("gbs", query.gbs or scale.get("gbs"))
    batches = [_amped_number("gbs", text) for text in batch_sizes.split(",")]
    tokens = max(batches) * parameters["context"]
    limits: dict[str, Any] = {
        "accelerators": gpus,
        "per_node": int(parameters.pop("number_of_accelerators_per_node")),
        "batch_sizes": list(dict.fromkeys(batches)),
    }
    record: dict[str, Any] = {"gpus": gpus, "tokens_to_train": int(tokens)}
    if query.count:
        record["candidates"], record["good"] = amped.count(**limits)
        return record
    parameters |= {"tokens_to_train": tokens}
    found = amped.search(parameters, **limits, top_n=query.top or _TOP)
    record |= {"candidates": found.candidates, "good": found.good}
    record["best"] = [
        {
            "time_s": one.time_s,
            "step_time_s": one.time_s * one.batch_size / max(batches),
            "batch_size": one.batch_size,
            "degrees": one.degrees,
        }
        for one in found.best
    ]
    return record


def _amped_scale(model: str) -> dict[str, str]:
    """Accelerators and batch of a configuration, by the flag that would set them."""
    config = configuration_of(model)
    if config is None:
        return {}
    parameters = config.read_values()
    degrees = [parameters[name] for name in amped.DEGREES if name in parameters]
    found = {"gpus": math.prod(degrees)} if degrees else {}
    found |= {"gbs": parameters["batch_size"]} if "batch_size" in parameters else {}
    return {flag: str(number).removesuffix(".0") for flag, number in found.items()}


def _amped_parameters(query: _Query) -> dict[str, float]:
    """Parameters of model and system that the search does not vary."""
    model, system, dtype = query.model, query.system, query.dtype
    kind = Strategy.validated({} if dtype is None else {"dtype": dtype}).dtype
    config = configuration_of(model) if model.strip() == system.strip() else None
    if config is None:
        return model_for_amped(model, dtype=kind) | system_for_amped(system, dtype=kind)
    case = amped_case_of_parameters(config.read_values(), fill=True, source=config.source)
    types = ("weight_precision", "activation_precision") if dtype is not None else ()
    varied = {*amped.DEGREES, "batch_size", "number_of_microbatches_per_minibatch"}
    varied |= {"samples", "number_of_batches"}
    free = free_parameters(case.parameters) | dict.fromkeys(types, float(BITS[kind]))
    return {name: value for name, value in free.items() if name not in varied}


def _amped_number(flag: str, value: str | None) -> int:
    number = whole_number(flag, _required(flag, value))
    assert number is not None  # noqa: S101 - required
    return number


def _print_amped(record: Mapping[str, Any]) -> None:
    from shardwise.report.tables.amped import print_permutations  # noqa: PLC0415 - slow

    summary = f"AMPeD's permutations of {record['gpus']:,} accelerators: "
    summary += f"{record['candidates']:,}, of which {record['good']:,} fit "
    summary += "nodes"
    if "best" in record:
        summary += f"; all timed in {readable(record['elapsed_s'], 'seconds')}"
        summary += f"\ntime: of {record['tokens_to_train']:,} tokens"
    print_permutations(record.get("best", []), summary)
