"""From module information to units: the program is solved and its answer checked.

Objective and peak of an answer are those of the closed form; a solver whose own figures differ from
them is not believed.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.base import MOST
from shardwise.errors import Fault, ShardwiseError, allowed_words, nearest, refuse
from shardwise.predecessors.fsdp_ilp.comm import CommTimes
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo
from shardwise.predecessors.fsdp_ilp.reference.closed_form import (
    GIB,
    Columns,
    columns,
    exposed_ms,
    peak_gib,
)
from shardwise.predecessors.fsdp_ilp.reference.milp import SOLVERS, Solver, Status, run_solver
from shardwise.predecessors.fsdp_ilp.reference.original import flow, original

Formulation = Literal["flow", "original"]
FORMULATIONS: tuple[Formulation, ...] = ("flow", "original")

# How far a solver may be from the closed form, relative or in ms or GiB; and what of a budget is
# rounding where units are set.
_AGREED, _ROUNDING_GIB = 1e-6, 1e-9
_MS_PER_S = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpIlpResult:
    """Units, and their cost by the original."""

    names: tuple[str, ...]
    """All modules in forward pre-order, as the columns have them."""
    units: tuple[str, ...]
    """Units in forward pre-order, without the root, which always is one."""
    objective_ms: float | None
    """Exposed communication; None where no plan was found."""
    peak_gib: float | None
    root_parameter_gib: float | None
    """Parameters that stay with the root."""
    columns: Columns | None
    """All figures of each module, with one row."""
    status: Status | Literal["given"]
    """`given`: the units were not searched for."""
    feasible: bool
    """Whether the plan, or any, is known to fit the budget."""
    optimal: bool
    """Whether it is proven that no plan is better."""
    bound_ms: float | None
    """No plan within the budget is proven to be below it."""
    reason: str
    """Why it is not feasible or not known to be optimal, if so."""
    elapsed_s: float
    budget_gib: float
    world_size: int
    solver: str
    formulation: str

    def to_dict(self, *, modules: bool = False) -> dict[str, Any]:
        """Return plain values, ready for JSON; with `modules`, also all figures of each module."""
        peak, objective = self.peak_gib, self.objective_ms
        answer: dict[str, object] = {
            "units": list(self.units),
            "n_units": len(self.units),
            "objective_ms": objective,
            "exposed_s": None if objective is None else objective / _MS_PER_S,
            "peak_gib": peak,
            "peak_memory_bytes": None if peak is None else peak * GIB,
            "root_param_gib": self.root_parameter_gib,
            "status": self.status,
            "feasible": self.feasible,
            "optimal": self.optimal,
            "bound_ms": self.bound_ms,
            "reason": self.reason,
            "elapsed_s": self.elapsed_s,
            "budget_gib": self.budget_gib,
            "world_size": self.world_size,
            "solver": self.solver,
            "formulation": self.formulation,
        }
        if modules and self.columns is not None:
            answer["modules"] = [dict(row) for row in self.rows()]
        return answer

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the figures of each module: GiB for p, g, a and m, ms for the others."""
        if self.columns is None:
            return
        for place, name in enumerate(self.names):
            fields = Columns.__dataclass_fields__
            yield {"name": name} | {
                field: getattr(self.columns, field)[0, place].item() for field in fields
            }


def solve(
    info: ModuleInfo,
    comm: CommTimes,
    world_size: int,
    budget_gib: float,
    *,
    formulation: Formulation = "flow",
    solver: Solver = "highs",
    solver_path: str | None = None,
    log: bool = False,
    time_limit_s: float | None = None,
    units: Sequence[str] | None = None,
    forbidden: Sequence[str] = (),
) -> FsdpIlpResult:
    """Choose the units with the least exposed communication within a memory budget.

    Parameters
    ----------
    formulation
        `flow` or `original`: two ways to write down the same choice. The original's big M cuts off
        plans with a collective of more than a second (fault 1.8.2).
    solver_path
        An executable of HiGHS or CBC, which PuLP starts.
    log
        Whether the solver may write, to standard error.
    units
        Units to evaluate instead; they may be nested, and are counted twice then (fault 1.8.11).
    forbidden
        Modules that may not be units.

    Raises
    ------
    InputError
        If an option is not allowed, or the solver is missing.
    ShardwiseError
        If a solver's answer is not what its units cost.
    """
    _check(info, world_size, budget_gib, formulation, solver, time_limit_s, units, forbidden)
    start = time.perf_counter()
    settings: dict[str, Any] = {"budget_gib": float(budget_gib), "world_size": world_size}
    if units is not None:
        chosen = np.isin(np.array(info.names), list(units))
        planned = _of_plan(info, comm, world_size, chosen)
        reason = _why_not(planned, budget_gib)
        settings |= {"feasible": not reason, "optimal": False, "reason": reason}
        settings |= {"status": "given", "bound_ms": None, "solver": "", "formulation": ""}
        return FsdpIlpResult(**planned, **settings, elapsed_s=time.perf_counter() - start)
    allowed = ~np.isin(np.array(info.names), list(forbidden))
    write = flow if formulation == "flow" else original
    problem, x = write(info, comm, world_size, budget_gib, allowed=allowed)
    answer = run_solver(problem, solver, path=solver_path, log=log, time_limit_s=time_limit_s)
    result: dict[str, Any] = {"names": info.names, "units": ()}
    result |= dict.fromkeys(("objective_ms", "peak_gib", "root_parameter_gib", "columns"))
    if answer.values is not None and answer.objective is not None:
        result = _of_plan(info, comm, world_size, answer.values[x] > 0.5)  # noqa: PLR2004 - 0 or 1
        _believe(solver, answer.objective, result, budget_gib)
    return FsdpIlpResult(
        **result,
        **settings,
        status=answer.status,
        feasible=answer.values is not None,
        optimal=answer.status == "optimal",
        # Of the same plan by the closed form: CBC writes its own figures to nine digits.
        bound_ms=result["objective_ms"] if answer.status == "optimal" else answer.bound,
        reason=_REASONS[answer.status],
        elapsed_s=time.perf_counter() - start,
        solver=solver,
        formulation=formulation,
    )


_REASONS: dict[Status, str] = {
    "optimal": "",
    "feasible": "the time limit was reached before a better plan was ruled out",
    "infeasible": "no choice of units fits the budget",
    "unknown": "the time limit was reached before a plan was found",
}


def _of_plan(info: ModuleInfo, comm: CommTimes, world_size: int, chosen: Bools) -> dict[str, Any]:
    """What units cost by the closed form."""
    found = columns(info, comm, world_size, chosen)
    places = np.flatnonzero(found.unit[0, 1:]) + 1
    return {
        "names": info.names,
        "units": tuple(info.names[place] for place in places),
        "objective_ms": float(exposed_ms(found)[0]),
        "peak_gib": float(peak_gib(found)[0]),
        "root_parameter_gib": float(found.p[0, 0]),
        "columns": found,
    }


def _why_not(result: dict[str, Any], budget: float) -> str:
    """Why requested units are no solution of the program; empty if they are one."""
    found: Columns = result["columns"]
    for what, own in (("parameters", found.p), ("gradients", found.g)):
        if own[0, 0] < -_ROUNDING_GIB:
            more = f"{-own[0, 0]:.6g} GiB more {what} than the model"
            return f"the units have {more}: nested or tied ones count twice"
    if result["peak_gib"] > budget + _ROUNDING_GIB:
        return f"its peak of {result['peak_gib']:.6g} GiB is over the budget of {budget:g} GiB"
    return ""


def _believe(solver: str, objective: float, result: dict[str, Any], budget: float) -> None:
    """Compare a solver's figures with those of its own units."""
    own = result["objective_ms"]
    if not math.isclose(objective, own, rel_tol=_AGREED, abs_tol=_AGREED):
        figures = f"{objective:.9g} ms for units whose cost is {own:.9g} ms"
        raise ShardwiseError(f"{solver}: its answer is not exact: {figures}")
    if result["peak_gib"] > budget + _AGREED * max(1.0, budget):
        figures = f"{result['peak_gib']:.9g} GiB for a budget of {budget:g} GiB"
        raise ShardwiseError(f"{solver}: its answer breaks the budget: {figures}")


def _check(
    info: ModuleInfo,
    world_size: int,
    budget_gib: float,
    formulation: str,
    solver: str,
    time_limit_s: float | None,
    units: Sequence[str] | None,
    forbidden: Sequence[str],
) -> None:
    faults = [
        *_number_faults(world_size, budget_gib, time_limit_s),
        *_name_faults("units", units or (), info),
        *_name_faults("forbidden", forbidden, info),
    ]
    for field, word, known in (
        ("formulation", formulation, FORMULATIONS),
        ("solver", solver, SOLVERS),
    ):
        if word not in known:
            problem = allowed_words(str(word), known)
            faults.append(Fault.of(field, word, problem))
    for name in sorted(set(units or ()) & set(forbidden)):
        problem = "is also among the units"
        faults.append(Fault.of("forbidden", name, problem))
    refuse(faults)


def _number_faults(world_size: int, budget: float, limit: float | None) -> Iterator[Fault]:
    if (
        isinstance(world_size, bool)
        or not isinstance(world_size, int)
        or not (
            2 <= world_size <= MOST  # noqa: PLR2004 - one GPU shards nothing
        )
    ):
        problem = f"must be a whole number from 2 to {MOST}; one GPU shards nothing"
        yield Fault.of("world_size", world_size, problem)
    for field, value in (("budget_gib", budget), ("time_limit_s", limit)):
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            problem = "must be a number above 0"
            yield Fault.of(field, value, problem)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _name_faults(field: str, names: Sequence[str], info: ModuleInfo) -> Iterator[Fault]:
    known = set(info.names)
    seen: set[str] = set()
    for name in names:
        problem = ""
        if name not in known:
            problem = f"no such module in {info.source}{nearest(str(name), known)}"
        elif name in seen:
            problem = "is listed twice"
        elif name == info.names[0] and field == "forbidden":
            problem = "the root always is a unit"
        if problem:
            yield Fault.of(field, name, problem)
        seen.add(name)
