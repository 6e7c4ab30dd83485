"""Search the space of another model: of Calculon, NERSC's model or AMPeD."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from shardwise.analysis.reference_results import Reference, ReferenceSearch, known_reference
from shardwise.config.arguments import text_of, whole_number
from shardwise.config.base import MISSING
from shardwise.config.inputs import system_of
from shardwise.errors import (
    Fault,
    InputError,
    allowed_words,
    check_flags,
    check_function,
    check_path,
    refuse,
)
from shardwise.planning.training_time import TrainingRun
from shardwise.registry import load

log = logging.getLogger("shardwise")

Progress = Callable[[int, int, None], None]
"""Called with the candidates or searches that are done, and all of them."""

TOP = 10
"""How many of the best to list by default; of Calculon, one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceQuery:
    """A search of another model, its numbers, lists and ranges as text."""

    model: Any
    system: Any
    """Of NERSC's model also several: a list, or names joined by commas."""
    gpus: str | None = None
    gbs: str | None = None
    dtype: str | None = None
    top: int | None = None
    count: bool = False
    """Whether to count the candidates only."""
    layers: bool = False
    """Whether to list the figures of each operation of the best."""
    save: str | Path | None = None
    progress: Progress | None = None
    axes: str | None = None
    """Calculon: fields to list the best by."""
    jobs: int | None = None
    """Calculon: processes for several numbers of GPUs."""
    tp_overlap: bool | None = None
    """Calculon: whether to try overlap of tensor-parallel communication."""
    dp_overlap: bool | None = None
    """Calculon: whether to try overlap of data-parallel communication."""
    fused_activation: str | None = None
    """Calculon: true, false or both."""
    mbs_break: bool = False
    """Calculon: whether to stop growing the micro-batch after the first infeasible one."""
    method: str | None = None
    """NERSC's model: its ways of tensor parallelism."""
    domain: str | None = None
    """NERSC's model: accelerators in a domain of the fast network."""
    tokens: float | None = None
    """NERSC's model: tokens to train on; each configuration gets the days that takes."""
    vary: Mapping[str, str] | None = None
    """NERSC's model: values by figure, or by several figures joined by "+"."""
    together: bool = False
    """NERSC's model: whether to advance all varied figures together."""


_TEXTS = ("gpus", "gbs", "dtype", "axes", "method", "domain")
_SWITCHES = ("layers", "tp_overlap", "dp_overlap", "mbs_break")
_OTHERS = ("top", "save", "progress", "jobs", "fused_activation", "tokens")


def query_of(model: Any, system: Any, options: Mapping[str, Any]) -> ReferenceQuery:
    """Read the arguments of a search of another model; those that are None are left out."""
    used = {
        "gbs" if name == "global_batch_size" else name: value
        for name, value in options.items()
        if value is not None
    }
    known = (*_TEXTS, *_SWITCHES, *_OTHERS)
    refuse(
        Fault.of(name, value, f"is no option of another model; {allowed_words(name, known)}")
        for name, value in used.items()
        if name not in known
    )
    check_flags(**{name: used[name] for name in _SWITCHES if name in used})
    if "save" in used:
        check_path("save", used["save"])
    check_function("progress", used.get("progress"))
    used |= {name: bool(used[name]) for name in _SWITCHES if name in used}
    used |= {name: text_of(used[name]) for name in _TEXTS if name in used}
    used |= {n: whole_number(n, text_of(used[n])) for n in ("top", "jobs") if n in used}
    if "fused_activation" in used:
        used["fused_activation"] = str(used["fused_activation"]).lower()
    if "tokens" in used:
        used["tokens"] = TrainingRun.load({"tokens": used["tokens"]}).tokens
    return ReferenceQuery(model=model, system=system, **used)


def required(field: str, value: str | None) -> str:
    """Return an argument, or raise an `InputError` without it."""
    if value is None:
        name = "global_batch_size" if field == "gbs" else field
        raise InputError(Fault(field=field, problem=MISSING[name]))
    return value


def number(field: str, value: str | None) -> int:
    """Return a whole number that is required."""
    found = whole_number(field, required(field, value))
    assert found is not None  # noqa: S101 - there is a value
    return found


NAMES = {"calculon": "Calculon", "nersc": "NERSC's model", "amped": "AMPeD"}
OWNERS = {
    **dict.fromkeys(("save", "plot"), ("calculon", "nersc")),
    **dict.fromkeys(("axes", "jobs", "mbs_break"), ("calculon",)),
    **dict.fromkeys(("tp_overlap", "dp_overlap", "fused_activation"), ("calculon",)),
    **dict.fromkeys(("method", "domain", "tokens"), ("nersc",)),
}
"""Models that have an option, of those that not all have."""


def refuse_ours(**options: tuple[object, object]) -> None:
    """Refuse options that differ from their default and that no other model has."""
    problem = "has no effect with reference, which searches the space of another model"
    refuse(
        Fault(field=name, problem=problem)
        for name, (value, default) in options.items()
        if type(value) is not type(default) or value != default
    )


def refuse_others(reference: str, options: Mapping[str, object]) -> None:
    """Refuse options of other models that were used (neither None nor False)."""
    refuse(
        Fault(
            field=name,
            value=value,
            has_value=value is not True,
            problem=f"{NAMES[reference]} has no such option; {NAMES[owners[0]]} has",
        )
        for name, value in options.items()
        if value is not None and value is not False
        if reference not in (owners := OWNERS[name.removeprefix("no_")])
    )


def reference_record(reference: object, query: ReferenceQuery) -> dict[str, Any]:
    """Search or count the space of another model; return all that it says."""
    name = known_reference(reference, "reference")
    started = time.perf_counter()
    search = load(f"predecessors.{name}.search:search_{name}")
    record = search(replace(query, system=system_of(query.model, query.system)))
    return record | {"reference": name, "elapsed_s": time.perf_counter() - started}


def reference_search(
    reference: object, model: Any, system: Any, options: Mapping[str, Any]
) -> ReferenceSearch:
    """Search the space of another model."""
    name = known_reference(reference, "reference")
    query = query_of(model, system, options)
    refuse_others(name, {option: options.get(option) for option in OWNERS})
    return _result(reference_record(name, query))


def reference_sweep(
    reference: object,
    model: Any,
    system: Any,
    options: Mapping[str, Any],
    *,
    vary: Mapping[str, Any] | None,
    together: bool,
) -> ReferenceSearch:
    """Search the space of NERSC's model at every value of figures of its systems."""
    name = known_reference(reference, "reference", ("nersc",))
    query = query_of(model, system, options)
    refuse_others(name, {option: options.get(option) for option in OWNERS})
    values = None if vary is None else {figure: text_of(vary[figure]) or "" for figure in vary}
    return _result(reference_record(name, replace(query, vary=values, together=together)))


def _result(record: Mapping[str, Any]) -> ReferenceSearch:
    return ReferenceSearch(
        reference=cast("Reference", record["reference"]),
        candidates=record["candidates"],
        feasible=record["good"] if "good" in record else record["feasible"],
        best=record["best"],
        searches=record.get("searches", ()),
        elapsed_s=record["elapsed_s"],
        record=record,
    )
