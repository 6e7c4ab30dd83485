"""`shardwise search --reference nersc`: the space of NERSC's model by its own rules."""

import time
from collections.abc import Mapping
from typing import Any

from shardwise.cli.options import refuse_options, whole_number
from shardwise.cli.progress import progress_bar
from shardwise.config.base import MOST
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError, nearest
from shardwise.interop.nersc import reference as nersc
from shardwise.interop.nersc.reference import NerscModel, NerscSystem, SearchResult
from shardwise.interop.nersc.translation import model_for_nersc, system_for_nersc

__all__ = ["print_nersc", "search_nersc"]

_COMMAND_LINE = "command line"
_TOP = 10
_TYPES = ("fp16", "bf16")
_NEEDS_SEARCH = "needs a search; --count only counts the whole space"


def search_nersc(
    model: str,
    system: str,
    *,
    gpus: str | None,
    gbs: str | None,
    dtype: str | None,
    method: str | None,
    domain: str | None,
    top: int | None,
    count: bool,
    layers: bool,
) -> dict[str, Any]:
    """Search the space of one method, or count it; the record to show."""
    if count:
        refuse_options(_NEEDS_SEARCH, layers=layers)
    _check_dtype(dtype)
    the_model, the_system = model_for_nersc(model), system_for_nersc(system)
    limits: dict[str, Any] = {
        "method": _known_method(method),
        "gpus": _number("gpus", _given("gpus", gpus)),
        "global_batch": _number("gbs", _given("gbs", gbs)),
        "domain": _number("domain", domain) or the_system.nvlink_size,
    }
    started = time.perf_counter()
    if count:
        record: dict[str, Any] = {"candidates": nersc.count(the_model, **limits)}
    else:
        record = _searched(the_model, the_system, limits, top or _TOP, layers=layers)
    record |= {"reference": "nersc", "method": limits["method"], "domain": limits["domain"]}
    return record | {"elapsed_s": time.perf_counter() - started}


def _searched(
    model: NerscModel, system: NerscSystem, limits: Mapping[str, Any], top: int, *, layers: bool
) -> dict[str, Any]:
    """Counts of a search, and the best configurations with their statistics."""
    with progress_bar("candidates") as bar:
        progress = None if bar is None else lambda done, whole: bar(done, whole, "")
        result = nersc.search(model, system, **limits, top_n=top, progress=progress)
    best = []
    for found in result.best:
        entry: dict[str, Any] = {
            "throughput": found.throughput,
            "memory": found.statistics["mem"],
            "config": nersc.configuration_words(found.configuration),
            "stats": found.statistics,
        }
        if layers:
            placed = system.model_copy(update={"nvlink_size": limits["domain"]})
            entry["layers"] = nersc.layer_statistics(model, placed, found.configuration)
        best.append(entry)
    record = {"candidates": result.candidates, "feasible": result.feasible, "best": best}
    return record if best else record | {"reason": _reason(result, system, limits)}


def _reason(result: SearchResult, system: NerscSystem, limits: Mapping[str, Any]) -> str:
    """Why nothing is feasible."""
    if result.least_memory is not None:
        least, capacity = f"{result.least_memory:.4g} GB", f"{system.hbm_capacity:.4g} GB"
        return f"every candidate needs at least {least} of memory; there are {capacity}"
    if result.layouts:
        filled = f"no parts of the groups fill a domain of {limits['domain']}"
        return f"{filled}: it must divide {limits['gpus']} GPUs as the groups do"
    whole = f"{limits['gpus']} GPUs and {limits['global_batch']} sequences"
    return f"no degrees divide {whole}, heads, embedding and depth with parts of 128 or more"


def _known_method(method: str | None) -> str:
    word = _given("method", method).strip().lower()
    if word not in nersc.METHODS:
        problem = f"allowed: {', '.join(nersc.METHODS)}{nearest(word, nersc.METHODS)}"
        raise _fault("method", method, problem)
    return word


def _number(flag: str, value: str | None) -> int | None:
    number = whole_number(flag, value)
    if number is not None and number > MOST:
        raise _fault(flag, value, f"must be at most {MOST}")
    return number


def _given(flag: str, value: str | None) -> str:
    if value is None:
        raise InputError(Fault(source=_COMMAND_LINE, field=flag, problem="is missing: give it"))
    return value


def _check_dtype(dtype: str | None) -> None:
    """Its elements have 2 bytes, whichever type that is."""
    if dtype is not None and Strategy.validated({"dtype": dtype}).dtype not in _TYPES:
        problem = f"NERSC's model has 2 bytes per element; allowed: {', '.join(_TYPES)}"
        raise _fault("dtype", dtype, problem)


def _fault(flag: str, value: object, problem: str) -> InputError:
    return InputError(
        Fault(source=_COMMAND_LINE, field=flag, value=value, has_value=True, problem=problem)
    )


def print_nersc(record: Mapping[str, Any]) -> None:
    """Print the counts and the best configurations."""
    from shardwise.report.tables.nersc import print_configurations, print_layers  # noqa: PLC0415 - slow to import

    summary = f"NERSC's space of {record['method']}, domains of {record['domain']}: "
    summary += f"{record['candidates']:,} candidates"
    if "feasible" in record:
        seconds = f"{record['elapsed_s']:.2f} s"
        summary += f"; {record['feasible']:,} are feasible, found in {seconds}"
    if "reason" in record:
        summary += f"\n{record['reason']}"
    best = record.get("best", [])
    print_configurations(best, summary)
    for entry in best:
        if "layers" in entry:
            print_layers(entry["layers"])
