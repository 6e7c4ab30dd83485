"""`shardwise search --reference calculon`: Calculon's own space by its own rules."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shardwise.cli.options import refuse_options
from shardwise.cli.progress import progress_bar
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError, nearest
from shardwise.interop.calculon import reference as calculon
from shardwise.interop.calculon.files import CalculonModel, CalculonSystem
from shardwise.interop.calculon.reader import DTYPES
from shardwise.interop.calculon.translation import model_for_calculon, system_for_calculon

__all__ = ["print_reference", "search_reference"]

_COMMAND_LINE = "command line"
_FLAG_OF = {"num_procs": "gpus", "max_batch_size": "gbs", "datatype": "dtype"}
_NEEDS_SEARCH = "needs a search; --count only counts the whole space"


def search_reference(
    model: str,
    system: str,
    *,
    gpus: str | None,
    gbs: str | None,
    dtype: str | None,
    top: int | None,
    count: bool,
    layers: bool,
    tp_overlap: bool | None,
    dp_overlap: bool | None,
    fused_activation: str | None,
    mbs_break: bool,
) -> dict[str, Any]:
    """Search Calculon's own space, or count it; the record to show."""
    if count:
        refuse_options(_NEEDS_SEARCH, layers=layers, mbs_break=mbs_break)
    word = "fp16" if dtype is None else dtype
    space: dict[str, Any] = {
        "num_procs": _whole("gpus", gpus),
        "max_batch_size": _whole("gbs", gbs),
        "datatype": _datatype(word),
        "fused_activation": "true" if fused_activation is None else fused_activation,
        "tp_overlap": tp_overlap is not False,
        "dp_overlap": dp_overlap is not False,
    }
    run = model_for_calculon(model), system_for_calculon(system)
    started = time.perf_counter()
    with _faults_name_flags(word):
        if count:
            record = _counted(*run, space)
        else:
            record = _searched(*run, space, top=top or 1, mbs_break=mbs_break, layers=layers)
    return record | {"reference": "calculon", "elapsed_s": time.perf_counter() - started}


def _counted(
    model: CalculonModel, system: CalculonSystem, space: Mapping[str, Any]
) -> dict[str, Any]:
    """Size of the space."""
    size = calculon.count(model, system, **space)
    return {"candidates": size.candidates, "network_feasible": size.network_feasible}


def _searched(
    model: CalculonModel,
    system: CalculonSystem,
    space: Mapping[str, Any],
    *,
    top: int,
    mbs_break: bool,
    layers: bool,
) -> dict[str, Any]:
    """Counts of a search, and the best executions with their statistics."""
    with progress_bar("candidates") as bar:
        progress = None if bar is None else lambda done, whole: bar(done, whole, "")
        result = calculon.search(
            model, system, **space, mbs_break=mbs_break, top_n=top, progress=progress
        )
    best = []
    for execution, statistics in result.best:
        entry: dict[str, Any] = {"execution": execution.to_dict(), "stats": statistics}
        if layers:
            entry["layers"] = calculon.layer_statistics(model, system, execution)
        best.append(entry)
    return {
        "candidates": result.candidates,
        "network_feasible": result.network_feasible,
        "good": result.good,
        "bad": result.bad,
        "rejected": result.rejected,
        "best": best,
    }


def _whole(flag: str, value: str | None) -> int:
    """One number, as Calculon's searches take it."""
    if value is None:
        raise InputError(Fault(source=_COMMAND_LINE, field=flag, problem="is missing: give it"))
    if not value.strip().isascii() or not value.strip().isdigit() or int(value) < 1:
        problem = "Calculon searches one number, of at least 1"
        raise InputError(
            Fault(source=_COMMAND_LINE, field=flag, value=value, has_value=True, problem=problem)
        )
    return int(value)


def _datatype(name: str) -> str:
    """Calculon's name of a type, by its own or ours."""
    word = name.strip().lower()
    if word in DTYPES:
        return word
    names = {ours: theirs for theirs, ours in DTYPES.items()}
    try:
        dtype = word if word in names else Strategy.validated({"dtype": name}).dtype
    except InputError:
        problem = f"allowed: {', '.join(names)}{nearest(word, names)}"
        fault = Fault(
            source=_COMMAND_LINE, field="dtype", value=name, has_value=True, problem=problem
        )
        raise InputError(fault) from None
    return names[dtype]


@contextmanager
def _faults_name_flags(dtype: str) -> Iterator[None]:
    """Say what is wrong with a space by the flags that it was given by."""
    try:
        yield
    except InputError as error:
        faults = [
            replace(
                fault,
                source=_COMMAND_LINE,
                field=_FLAG_OF.get(fault.field, fault.field),
                value=dtype if fault.field == "datatype" else fault.value,
            )
            for fault in error.faults
        ]
        raise InputError(faults) from None


def print_reference(record: Mapping[str, Any]) -> None:
    """Print the counts and the best executions."""
    from shardwise.report.tables.calculon import print_executions, print_layers  # noqa: PLC0415 - slow to import

    seconds = f"{record['elapsed_s']:.2f} s"
    summary = f"Calculon's space: {record['candidates']:,} candidates, "
    summary += f"{record['network_feasible']:,} of them fit the networks"
    if "good" in record:
        rejected = ", ".join(f"{name} {n:,}" for name, n in record["rejected"].items() if n)
        summary += f"; {record['good']:,} are feasible, found in {seconds}"
        summary += f"\nrejected: {rejected}" if rejected else ""
    best = record.get("best", [])
    print_executions([(entry["execution"], entry["stats"]) for entry in best], summary)
    for entry in best:
        if "layers" in entry:
            print_layers(entry["layers"])
