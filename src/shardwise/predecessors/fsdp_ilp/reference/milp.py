"""Mixed-integer linear programs and their solvers: HiGHS, HiGHS inside scipy, and those of PuLP.

No solver comes with shardwise itself, so each is imported where it is used.
"""

import ctypes
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.arrays import Bools, Floats, Ints
from shardwise.errors import Fault, InputError, ShardwiseError


@dataclass(frozen=True, slots=True, kw_only=True)
class Milp:
    """Minimize cost x; lower <= x <= upper; row_lower <= A x <= row_upper; some x integers."""

    cost: Floats
    lower: Floats
    upper: Floats
    integer: Bools
    """Which columns must be integers."""
    row_lower: Floats
    row_upper: Floats
    starts: Ints
    """Where each row of A begins in `places` and `values`, and where the last one ends."""
    places: Ints
    """Columns of the entries of A, row by row."""
    values: Floats


@dataclass(slots=True)
class Builder:
    """Collects columns and rows."""

    _columns: list[tuple[Floats, Floats, Floats, Bools]] = field(default_factory=list)
    _rows: list[tuple[Ints, Floats, Floats, Floats]] = field(default_factory=list)
    _costs: list[tuple[Ints, Floats]] = field(default_factory=list)
    _count: int = 0

    def columns(
        self,
        shape: int | tuple[int, ...],
        *,
        cost: ArrayLike = 0.0,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        integer: bool = False,
    ) -> Ints:
        """Add columns; return their numbers in the requested shape."""
        size = int(np.prod(shape))
        self._columns.append(
            (
                _spread(cost, shape).ravel(),
                _spread(lower, shape).ravel(),
                _spread(upper, shape).ravel(),
                np.full(size, integer),
            )
        )
        self._count += size
        return np.arange(self._count - size, self._count).reshape(shape)

    def column(self, *, cost: float = 0.0) -> int:
        """Add one non-negative column; return its number."""
        return int(self.columns(1, cost=cost)[0])

    def pay(self, places: Ints, cost: Floats) -> None:
        """Add to the cost of columns that are there."""
        self._costs.append((places.ravel(), cost.ravel()))

    def rows(
        self,
        places: ArrayLike,
        values: ArrayLike,
        *,
        lower: ArrayLike = -np.inf,
        upper: ArrayLike = np.inf,
    ) -> None:
        """Add rows: columns and their factors as (rows, entries); factors of 0 are dropped."""
        which = np.atleast_2d(np.asarray(places, dtype=np.int64))
        count = which.shape[0]
        factors = _spread(values, which.shape)
        self._rows.append((which, factors, _spread(lower, count), _spread(upper, count)))

    def build(self) -> Milp:
        """Return the program."""
        cost, lower, upper, integer = (
            np.concatenate(parts) for parts in zip(*self._columns, strict=True)
        )
        for places, more in self._costs:
            np.add.at(cost, places, more)
        used = [values != 0 for _, values, _, _ in self._rows]
        lengths = [mask.sum(axis=1) for mask in used]
        pairs = list(zip(self._rows, used, strict=True))
        return Milp(
            cost=cost,
            lower=lower,
            upper=upper,
            integer=integer,
            row_lower=np.concatenate([row[2] for row in self._rows]),
            row_upper=np.concatenate([row[3] for row in self._rows]),
            starts=np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
            places=np.concatenate([row[0][mask] for row, mask in pairs]),
            values=np.concatenate([row[1][mask] for row, mask in pairs]),
        )


def _spread(value: ArrayLike, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), shape)


Solver = Literal["highs", "scipy", "cbc"]
SOLVERS: tuple[Solver, ...] = ("highs", "scipy", "cbc")
Status = Literal["optimal", "feasible", "infeasible", "unknown"]

# Big-M rows multiply what a solver rounds by a thousand, so less than its usual 1e-6. Much less
# makes HiGHS 1.15 drop good plans as not quite feasible and call a worse one optimal: with 1e-9 it
# is 3 and 31 % above the optimum of a model of 78 modules.
_TOLERANCE = 1e-7
_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a solver found."""

    status: Status
    """`optimal` and `infeasible` are proven; `feasible` and `unknown` ran into the time limit."""
    values: Floats | None = None
    objective: float | None = None
    bound: float | None = None
    """No solution is below it; None if the solver gives none."""


def run_solver(
    problem: Milp,
    solver: Solver,
    *,
    path: str | None = None,
    log: bool = False,
    time_limit_s: float | None = None,
) -> Answer:
    """Minimize a mixed-integer linear program."""
    if solver not in SOLVERS:
        problem_ = f"allowed: {', '.join(SOLVERS)}"
        raise InputError(Fault.of("solver", solver, problem_))
    if path is not None and solver == "scipy":
        reason = "scipy has its own HiGHS; give an executable to highs or cbc"
        raise InputError(Fault.of("solver_path", path, reason))
    with _output_aside(log):
        if solver == "cbc" or path is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of its own next version
                return _with_pulp(problem, solver, path, log, time_limit_s)
        run: Callable[..., Answer] = _with_highs if solver == "highs" else _with_scipy
        return run(problem, log, time_limit_s)


@contextmanager
def _output_aside(log: bool) -> Iterator[None]:
    """Redirect what solvers write to standard output: to standard error, or away.

    HiGHS 1.12, which is that of scipy 1.17, now and then writes a line though set to be silent
    (ERGO-Code/HiGHS issue 2783).
    """
    try:
        sys.stdout.flush()
        saved = os.dup(_STDOUT)
    except (OSError, ValueError, AttributeError):  # there is none, or it is closed
        yield
        return
    aside = os.dup(_STDERR) if log else os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(aside, _STDOUT)
        yield
    finally:
        with suppress(OSError, TypeError, AttributeError):  # where there is no such library
            ctypes.CDLL(None).fflush(None)  # buffers of C, which Python cannot see
        os.dup2(saved, _STDOUT)
        os.close(saved)
        os.close(aside)


def _needed(module: str, solver: str, remedy: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        problem = f"needs the package {module.partition('.')[0]}: {remedy}"
        fault = Fault.of("solver", solver, problem)
        raise InputError(fault) from None


def _with_highs(problem: Milp, log: bool, time_limit_s: float | None) -> Answer:
    remedy = "pip install 'shardwise[fsdp]'"
    highs = _needed("highspy", "highs", remedy)
    model = highs.HighsLp()
    model.num_col_, model.num_row_ = problem.cost.size, problem.row_lower.size
    model.col_cost_, model.col_lower_, model.col_upper_ = problem.cost, problem.lower, problem.upper
    model.row_lower_, model.row_upper_ = problem.row_lower, problem.row_upper
    model.a_matrix_.format_ = highs.MatrixFormat.kRowwise
    model.a_matrix_.start_ = problem.starts
    model.a_matrix_.index_, model.a_matrix_.value_ = problem.places, problem.values
    kinds = (highs.HighsVarType.kContinuous, highs.HighsVarType.kInteger)
    model.integrality_ = [kinds[one] for one in problem.integer.tolist()]
    solver = highs.Highs()
    limit = {} if time_limit_s is None else {"time_limit": float(time_limit_s)}
    options = limit | {
        "output_flag": log,
        "mip_rel_gap": 0.0,
        "mip_feasibility_tolerance": _TOLERANCE,
        "mip_abs_gap": 1e-9,
    }
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    solver.run()
    status, found = solver.getModelStatus(), solver.getInfo()
    has_one = found.primal_solution_status == highs.SolutionStatus.kSolutionStatusFeasible
    nothing = (highs.HighsModelStatus.kInfeasible, highs.HighsModelStatus.kUnboundedOrInfeasible)
    return _answer(
        optimal=status == highs.HighsModelStatus.kOptimal,
        infeasible=status in nothing,  # no cost is below 0, so never unbounded
        values=solver.getSolution().col_value if has_one else None,
        objective=found.objective_function_value,
        bound=found.mip_dual_bound,
    )


def _with_scipy(problem: Milp, log: bool, time_limit_s: float | None) -> Answer:
    remedy = "pip install 'scipy>=1.11', or use solver highs"
    optimize = _needed("scipy.optimize", "scipy", remedy)
    sparse = _needed("scipy.sparse", "scipy", remedy)
    shape = (problem.row_lower.size, problem.cost.size)
    matrix = sparse.csr_array((problem.values, problem.places, problem.starts), shape=shape)
    limit = {} if time_limit_s is None else {"time_limit": float(time_limit_s)}
    found = optimize.milp(
        problem.cost,
        integrality=problem.integer.astype(int),
        bounds=optimize.Bounds(problem.lower, problem.upper),
        constraints=optimize.LinearConstraint(matrix, problem.row_lower, problem.row_upper),
        options={"disp": log, "mip_rel_gap": 0.0} | limit,
    )
    optimal, infeasible = 0, (2, 4)  # 4: infeasible or unbounded, which costs of >= 0 are not
    return _answer(
        optimal=found.status == optimal,
        infeasible=found.status in infeasible and found.x is None,
        values=found.x,
        objective=found.fun,
        bound=found.mip_dual_bound,
    )


def _with_pulp(
    problem: Milp, solver: Solver, path: str | None, log: bool, time_limit_s: float | None
) -> Answer:
    """Let PuLP start an executable.

    Of CBC at its time limit PuLP says that its answer is optimal (fault 1.8.12); whether it is
    proven to be stands in another field.
    """
    pulp = _needed("pulp", solver, "pip install 'shardwise[cbc]', or use highs without a path")
    model, columns = _pulp_model(pulp, problem)
    program = _pulp_program(pulp, solver, path, msg=log, timeLimit=time_limit_s, gapRel=0.0)
    if not program.available():
        reason = f"no executable of {solver} is there"
        raise InputError(Fault.of("solver_path", path, reason))
    try:
        model.solve(program)
    except (pulp.PulpError, OSError, ValueError) as error:
        raise ShardwiseError(f"{solver} could not be run: {error}") from error
    has_one = model.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    return _answer(
        optimal=model.sol_status == pulp.LpSolutionOptimal,
        infeasible=model.sol_status == pulp.LpSolutionInfeasible,
        values=[column.varValue or 0.0 for column in columns] if has_one else None,
        objective=pulp.value(model.objective) if has_one else None,
        bound=None,
    )


def _pulp_program(pulp: Any, solver: Solver, path: str | None, **options: Any) -> Any:
    if solver == "highs":
        return pulp.HiGHS_CMD(path=path, **options)
    bundled = getattr(pulp, "PULP_CBC_CMD", None)  # gone in PuLP 4, which warns of it before
    if path is None and bundled is not None:
        return bundled(**options)
    return pulp.COIN_CMD(path=path, **options)


def _pulp_model(pulp: Any, problem: Milp) -> tuple[Any, list[Any]]:
    """The program as PuLP's objects."""
    model = pulp.LpProblem("FSDP", pulp.LpMinimize)
    add = getattr(model, "add_variable", pulp.LpVariable)  # the one way in PuLP 4
    bounds = zip(problem.lower.tolist(), problem.upper.tolist(), problem.integer, strict=True)
    columns = [
        add(
            f"v{place}",
            low,
            None if math.isinf(high) else high,
            pulp.LpInteger if integer else pulp.LpContinuous,
        )
        for place, (low, high, integer) in enumerate(bounds)
    ]
    used = np.flatnonzero(problem.cost)
    model += pulp.lpSum(problem.cost[place] * columns[place] for place in used)
    places, values = problem.places.tolist(), problem.values.tolist()
    starts = problem.starts.tolist()
    limits = zip(problem.row_lower.tolist(), problem.row_upper.tolist(), strict=True)
    for row, (low, high) in enumerate(limits):
        entries = range(starts[row], starts[row + 1])
        left = pulp.LpAffineExpression([(columns[places[e]], values[e]) for e in entries])
        if low == high:
            model += left == low
            continue
        if not math.isinf(low):
            model += left >= low
        if not math.isinf(high):
            model += left <= high
    return model, columns


def _answer(
    *, optimal: bool, infeasible: bool, values: object, objective: float | None, bound: float | None
) -> Answer:
    least = bound if bound is not None and math.isfinite(bound) else None
    if infeasible:
        return Answer(status="infeasible")
    if values is None or objective is None:
        return Answer(status="unknown", bound=least)
    status: Status = "optimal" if optimal else "feasible"
    found = np.array(values, dtype=np.float64)
    return Answer(status=status, values=found, objective=float(objective), bound=least)
