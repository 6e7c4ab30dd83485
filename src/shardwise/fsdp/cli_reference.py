"""`shardwise fsdp --reference fsdp-ilp`: units by the integer program and rules of fsdp_ilp."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from shardwise.cli.options import COMMAND_LINE, flag_fault
from shardwise.cli.output import note, show
from shardwise.config import files
from shardwise.config.arguments import one_of
from shardwise.errors import Fault, InputError, nearest
from shardwise.fsdp.planner.search import Path as Route
from shardwise.fsdp.planner.search import least_peak, optimum
from shardwise.fsdp.sources import find_model
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo
from shardwise.predecessors.fsdp_ilp.reference import (
    GIB,
    SOLVERS,
    CommTimes,
    FsdpIlpResult,
    comm_times,
    plain,
    read_comm,
    solve,
)
from shardwise.predecessors.fsdp_ilp.reference.exact import IlpRules
from shardwise.units import parse_memory

REFERENCE = "fsdp-ilp"
EXACT = "exact"
_NAMES = (REFERENCE, "fsdp_ilp")
_NODE = 8
_INSTALLED = {"highs": "highspy", "scipy": "scipy"}


def plan_reference(
    reference: str,
    source: str,
    *,
    gpus: int | None,
    gpus_per_node: int | None,
    memory_budget: str | None,
    comm: str | None,
    units: str | list[str] | None,
    seconds: float | None,
    solver: str | None,
    formulation: str | None,
    solver_path: str | None,
    solver_log: bool,
    forbid: str | list[str] | None,
    modules: bool,
    json: bool,
    output: str | None,
) -> int:
    """Solve, or evaluate --units; print and write the result."""
    if reference not in _NAMES:
        problem = f"allowed: {REFERENCE}{nearest(reference, [REFERENCE])}"
        raise flag_fault("reference", reference, problem)
    found = find_model(source, traced=False)
    if found.kind != "statistics":
        problem = "is not module information, which fsdp_ilp needs"
        raise InputError(Fault(source=source, problem=problem))
    info: ModuleInfo = found.what
    needed = {"gpus": gpus, "memory_budget": memory_budget}
    missing = [
        Fault(source=COMMAND_LINE, field=name, problem="is missing: set it, fsdp_ilp needs it")
        for name, value in needed.items()
        if value is None
    ]
    if missing:
        raise InputError(missing)
    words: dict[str, Any] = {"units": _names("units", units, info)}
    words["forbidden"] = _names("forbid", forbid, info) or ()
    options = {
        "solver_path": solver_path,
        "solver_log": solver_log,
        "formulation": formulation,
    }
    times = _times(gpus or 0, gpus_per_node, comm)
    budget = _budget(memory_budget or "")
    result = _solved(info, times, gpus or 0, budget, words, options, solver, seconds)
    record = _record(result, info, times, budget, modules=modules)
    if result.status == "infeasible":
        limit = np.inf if seconds is None else seconds
        path = least_peak(_rules(info, times, gpus or 0, words["forbidden"]), seconds=limit)
        record |= {"least_memory_budget_bytes": path.peak} if path.edges else {}
    note(f"{len(info.names):,} modules in {result.elapsed_s:.2f} s")

    def tables() -> None:
        from shardwise.fsdp.tables import print_reference  # noqa: PLC0415 - slow

        print_reference(result, record)

    lacks = "" if result.feasible else f"no plan: {result.status}"
    show(lambda: record, tables, json=json, output=output, lacks=lacks)
    return 0 if result.feasible else 1


def _budget(text: str) -> float:
    """GiB of a size."""
    try:
        return parse_memory(text) / GIB
    except ValueError as error:
        raise flag_fault("memory_budget", text, str(error)) from None


def _times(gpus: int, gpus_per_node: int | None, comm: str | None) -> CommTimes:
    if comm is None:
        return comm_times(gpus, _NODE if gpus_per_node is None else gpus_per_node)
    if gpus_per_node is not None:
        raise flag_fault("gpus_per_node", gpus_per_node, "has no effect with --comm")
    return read_comm(comm)


def _names(field: str, given: str | list[str] | None, info: ModuleInfo) -> list[str] | None:
    """Names as in the file; the name of the root may be omitted."""
    if given is None:
        return None
    if isinstance(given, str):
        given = _of_file(field, given)
    root = info.names[0]
    known = set(info.names)
    return [
        f"{root}.{name}" if name not in known and f"{root}.{name}" in known else name
        for name in given
    ]


def _of_file(field: str, path: str) -> list[str]:
    """Names in a file: lines of text, or `units` of a result."""
    if Path(path.removesuffix(".gz")).suffix == ".txt":
        lines = files.read_text(path).splitlines()
        return [name for line in lines if (name := line.partition("#")[0].strip())]
    names = files.read_mapping(path).get("units")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        problem = "has no list of names `units`; fsdp_ilp has no groups"
        raise InputError(Fault(source=path, field=field, problem=problem))
    return names


def _solved(
    info: ModuleInfo,
    times: CommTimes,
    gpus: int,
    budget: float,
    words: dict[str, Any],
    options: dict[str, Any],
    solver: str | None,
    seconds: float | None,
) -> FsdpIlpResult:
    """Solve with the selected solver, or one that is installed."""
    if words["units"] is not None:
        for name, value in {"solver": solver, **options, "seconds": seconds}.items():
            if value:
                problem = "has no effect with --units, which are evaluated without a search"
                raise flag_fault(name, value, problem)
        return solve(info, times, gpus, budget, **words)
    solver = _known(solver)
    if solver == EXACT:
        for name, value in options.items():
            if value:
                raise flag_fault(name, value, "has no effect with the solver exact, which has none")
        return _exact(info, times, gpus, budget, words["forbidden"], seconds)
    return solve(
        info,
        times,
        gpus,
        budget,
        formulation=options["formulation"] or "flow",
        solver=solver,  # type: ignore[arg-type] # checked
        solver_path=options["solver_path"],
        log=options["solver_log"],
        time_limit_s=seconds,
        forbidden=words["forbidden"],
    )


def _known(solver: str | None) -> str:
    """The selected solver, or one that is installed."""
    known = (*SOLVERS, EXACT)
    if solver is not None:
        return one_of("solver", solver, known)
    for name, package in _INSTALLED.items():
        if find_spec(package):
            return name
    note("neither highspy nor scipy is installed: solver exact")
    return EXACT


def _rules(info: ModuleInfo, times: CommTimes, gpus: int, forbidden: Sequence[str]) -> IlpRules:
    allowed = ~np.isin(np.array(info.names), list(forbidden))
    return IlpRules(info=info, comm=times, world_size=gpus, allowed=allowed)


def _exact(
    info: ModuleInfo,
    times: CommTimes,
    gpus: int,
    budget: float,
    forbidden: Sequence[str],
    seconds: float | None,
) -> FsdpIlpResult:
    """Solve the published problem as a shortest path, without a solver."""
    # Checks the arguments, and costs a plan without units.
    checked = solve(info, times, gpus, budget, forbidden=forbidden, units=[])
    began = perf_counter()
    limit = np.inf if seconds is None else seconds
    rules = _rules(info, times, gpus, forbidden)
    path: Route = optimum(rules, budget * GIB, seconds=limit)
    proven: dict[str, Any] = {
        "solver": EXACT,
        "bound_ms": path.bound,
        "elapsed_s": perf_counter() - began,
    }
    if not path.edges:
        proven |= dict.fromkeys(("objective_ms", "peak_gib", "root_parameter_gib", "columns"))
        proven |= {"bound_ms": None, "feasible": False, "optimal": False}
        proven["status"] = "infeasible" if path.proven else "unknown"
        proven["reason"] = "no set of units meets the budget" if path.proven else "none found"
        return replace(checked, **proven)
    units = [info.names[place] for place, number in path.edges if number > 0]
    given = solve(info, times, gpus, budget, units=units)
    reason = "" if path.proven else "the label limit was reached before a better plan was ruled out"
    return replace(
        given,
        **proven,
        status="optimal" if path.proven else "feasible",
        optimal=path.proven,
        feasible=True,
        reason=reason,
    )


def _record(
    result: FsdpIlpResult, info: ModuleInfo, times: CommTimes, budget: float, *, modules: bool
) -> dict[str, Any]:
    """The result for JSON, with a step without sharding for comparison."""
    unsharded = plain(info)
    record = {"reference": REFERENCE, "model": info.names[0]} | result.to_dict(modules=modules)
    bound = record["bound_ms"]
    return record | {
        "bound_s": None if bound is None else bound / 1e3,
        "memory_budget_bytes": budget * GIB,
        "comm": times.to_dict(),
        "without_fsdp": {"peak_gib": unsharded.peak_gib, "compute_ms": unsharded.compute_ms},
    }
