"""Calculon's search space."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.arrays import Floats
from shardwise.config.arguments import whole_numbers
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.errors import Fault, InputError, allowed_words, refuse
from shardwise.planning.search.store import check_file, streamed
from shardwise.predecessors.calculon import reference as calculon
from shardwise.predecessors.calculon.files import CalculonExecution
from shardwise.predecessors.calculon.reader import DTYPES
from shardwise.predecessors.calculon.reference import Columns
from shardwise.predecessors.calculon.translation import model_for_calculon, system_for_calculon
from shardwise.predecessors.search import ReferenceQuery, log, number, required

# Arguments by Calculon's names.
_ARGUMENT_OF = {"num_procs": "gpus", "max_batch_size": "gbs", "datatype": "dtype"}
# Types of a search that names none, the usual one first.
_USUAL = ("float16", "bfloat16", "float32", "float8")
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


def search_calculon(query: ReferenceQuery) -> dict[str, Any]:
    """Search one number of GPUs, or several, each by itself and on `jobs` processes."""
    numbers = whole_numbers("gpus", required("gpus", query.gpus))
    if len(numbers) == 1:
        return _search_one(query, numbers[0])
    refuse(
        Fault.of(name, value, "needs one number of GPUs")
        for name, value in (("save", query.save), ("axes", query.axes))
        if value is not None
    )
    from joblib import Parallel, delayed  # noqa: PLC0415 - slow to import

    each = replace(query, progress=None)
    work = (delayed(_search_one)(each, gpus) for gpus in numbers)
    found = []
    for one in Parallel(n_jobs=query.jobs or 1, return_as="generator")(work):
        found.append(one)
        if query.progress is not None:
            query.progress(len(found), len(numbers), None)
    searches = [{"gpus": gpus, **record} for gpus, record in zip(numbers, found, strict=True)]
    totals = [
        name for name in ("candidates", "network_feasible", "good", "bad") if name in found[0]
    ]
    record = {name: sum(one[name] for one in searches) for name in totals}
    record["searches"] = searches
    if not query.count:
        record["rejected"] = dict(sum((Counter(one["rejected"]) for one in searches), Counter()))
        record["best"] = [one["best"][0] for one in searches if one["best"]]
    return record


def _search_one(query: ReferenceQuery, gpus: int) -> dict[str, Any]:
    if query.save is not None:
        check_file(query.save)
    axes = _axes(query.axes)
    model, system = model_for_calculon(query.model), system_for_calculon(query.system)
    dtype = query.dtype or next((one for one in _USUAL if one in system.matrix), _USUAL[0])
    space: dict[str, Any] = {
        "num_procs": gpus,
        "max_batch_size": number("gbs", query.gbs),
        "datatype": _dtype(dtype),
        "fused_activation": query.fused_activation or "true",
        "tp_overlap": query.tp_overlap is not False,
        "dp_overlap": query.dp_overlap is not False,
    }
    with _faults_by_argument(dtype):
        if query.count:
            size = calculon.count(model, system, **space)
            return {"candidates": size.candidates, "network_feasible": size.network_feasible}
        space |= {"mbs_break": query.mbs_break, "top_n": query.top or 1, "axes": axes}
        report = query.progress
        progress = None if report is None else lambda done, total: report(done, total, None)
        with _saved(query.save) as every:
            result = calculon.search(model, system, **space, every=every, progress=progress)
    best = [_entry(found) for found in result.best]
    if query.layers:
        for entry, (execution, _) in zip(best, result.best, strict=True):
            entry["layers"] = calculon.layer_statistics(model, system, execution)
    cells = {"axes": axes, "cells": [_entry(found) for found in result.cells]}
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
def _saved(
    file: str | Path | None,
) -> Iterator[Callable[[Columns, Mapping[str, Floats]], None] | None]:
    """What writes executions with their statistics into a file; None without a file."""
    if file is None:
        yield None
        return
    with streamed(file, (*CalculonExecution.model_fields, *calculon.STAT_FIELDS)) as add:
        yield lambda executions, statistics: add(executions.words() | dict(statistics))
    log.info("wrote %s", file)


def _entry(found: calculon.Found) -> dict[str, Any]:
    execution, statistics = found
    return {"execution": execution.to_dict(), "stats": statistics}


def _axes(text: str | None) -> list[str]:
    """Fields of executions to list the best by, from Calculon's names or ours."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    axes = [_AXIS_OF.get(SHORT_NAMES.get(word, word), word) for word in words]
    known = (*_AXIS_OF, *calculon.AXES)
    for position, (word, axis) in enumerate(zip(words, axes, strict=True)):
        if axis not in calculon.AXES:
            raise InputError(Fault.of("axes", word, allowed_words(word, known)))
        if axis in axes[:position]:
            raise InputError(Fault.of("axes", word, "is listed twice"))
    return axes


def _dtype(name: str) -> str:
    """Calculon's name of a dtype, from its own name or that of shardwise."""
    word = name.strip().lower()
    if word in DTYPES:
        return word
    names = {ours: theirs for theirs, ours in DTYPES.items()}
    try:
        dtype = word if word in names else Strategy.validated({"dtype": name}).dtype
    except InputError:
        problem = allowed_words(word, names)
        raise InputError(Fault.of("dtype", name, problem)) from None
    return names[dtype]


@contextmanager
def _faults_by_argument(dtype: str) -> Iterator[None]:
    """Name the arguments in the faults of a space of Calculon."""
    try:
        yield
    except InputError as error:
        faults = [
            replace(
                fault,
                source="",
                field=_ARGUMENT_OF.get(fault.field, fault.field),
                value=dtype if fault.field == "datatype" else fault.value,
            )
            for fault in error.faults
        ]
        raise InputError(faults) from None
