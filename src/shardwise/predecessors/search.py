"""Search the space of another model: of Calculon, NERSC's model or AMPeD."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from shardwise.analysis.reference_results import Reference, ReferenceSearch, known_reference
from shardwise.config.arguments import text_of
from shardwise.config.inputs import system_of
from shardwise.errors import Fault, refuse
from shardwise.predecessors.amped.search import search_amped
from shardwise.predecessors.calculon.search import search_calculon
from shardwise.predecessors.nersc.search import search_nersc
from shardwise.predecessors.search_query import ReferenceQuery, query_of

NAMES = {"calculon": "Calculon", "nersc": "NERSC's model", "amped": "AMPeD"}
_SEARCHES: Mapping[str, Callable[[ReferenceQuery], dict[str, Any]]] = {
    "calculon": search_calculon,
    "nersc": search_nersc,
    "amped": search_amped,
}
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
    record = _SEARCHES[name](replace(query, system=system_of(query.model, query.system)))
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
