"""What the FSDP planner of scyther tells of its answers and of its solvers, and what it refuses."""

import json
from importlib import import_module

import numpy as np
import pytest

from fsdp_ilp_samples import SOLVER, parts, row_of
from rows import each_row
from shardwise import InputError
from shardwise.errors import ShardwiseError
from shardwise.predecessors.fsdp_ilp.reference import columns, exposed_ms, milp, solve
from shardwise.predecessors.fsdp_ilp.reference.milp import Answer


def test_an_answer_is_plain_values_with_all_figures_of_each_module():
    """Ready for JSON, in seconds and bytes as well."""
    info, comm, gpus, _ = parts("tiny12_bruteforce")
    found = solve(info, comm, gpus, 6.137, solver=SOLVER)
    answer = json.loads(json.dumps(found.to_dict(modules=True)))
    assert answer["exposed_s"] == pytest.approx(0.05063598222193532)
    assert answer["peak_memory_bytes"] == answer["peak_gib"] * 2**30
    assert answer["root_param_gib"] == pytest.approx(0.7734375)
    assert (answer["n_units"], answer["units"]) == (3, ["R.m5", "R.m7.m8", "R.m7.m11"])
    assert (answer["solver"], answer["formulation"]) == (SOLVER, "flow")
    assert (answer["optimal"], answer["feasible"], answer["reason"]) == (True, True, "")
    assert answer["elapsed_s"] > 0
    rows = {row["name"]: row for row in answer["modules"]}
    assert rows["R"]["unit"]
    assert [name for name, row in rows.items() if row["unit"]][1:] == answer["units"]
    exposed = sum(row["fw_e"] + row["bw_e"] for row in rows.values())
    exposed += sum(rows["R"][field] for field in ("ag", "rs", "fw_ag", "bw_rs"))
    assert exposed == pytest.approx(answer["objective_ms"])
    assert "modules" not in found.to_dict()


def test_no_plan_is_told_with_a_reason():
    """And without figures."""
    info, comm, gpus, _ = parts("tiny12_bruteforce")
    answer = solve(info, comm, gpus, 1, solver=SOLVER).to_dict(modules=True)
    assert (answer["feasible"], answer["optimal"], answer["units"]) == (False, False, [])
    assert answer["objective_ms"] is answer["peak_memory_bytes"] is answer["exposed_s"] is None
    assert answer["reason"] == "no choice of units fits the budget"


def test_given_units_that_are_no_solution_are_told_why():
    """Over the budget; nested, so that the model would have less than nothing left."""
    info, comm, gpus, _ = parts("tiny12_bruteforce")
    found = solve(info, comm, gpus, 4, units=["R.m5", "R"])
    assert (found.units, found.feasible) == (("R.m5",), False)
    assert found.objective_ms > 0
    assert found.reason == "its peak of 7.93541 GiB is over the budget of 4 GiB"
    found = solve(info, comm, gpus, 400, units=["R.m1", "R.m7", "R.m7.m8", "R.m5"])
    assert found.reason.startswith("the units have 0.28125 GiB more parameters than the model")
    assert not found.feasible


def test_a_time_limit_leaves_the_answer_unproven():
    """The programme as written takes seconds on the slow network."""
    info, comm, gpus, _ = parts("seed_literal_4nodes")
    words = {"formulation": "original", "time_limit_s": 0.2}
    found = solve(info, comm, gpus, 16, solver=SOLVER, **words)
    assert not found.optimal
    assert found.status in {"feasible", "unknown"}
    assert found.reason.startswith("the time limit was reached before")
    if found.feasible:
        assert found.objective_ms >= 22.041432 > found.bound_ms


def test_a_solver_that_contradicts_its_own_units_is_not_believed(monkeypatch):
    """By its time, or by the budget."""
    info, comm, gpus, _ = parts("tiny12_bruteforce")

    def answer(problem, *_, **__):
        return Answer(status="optimal", values=np.zeros(problem.cost.size), objective=objective)

    module = import_module("shardwise.predecessors.fsdp_ilp.reference.solve")
    monkeypatch.setattr(module, "run_solver", answer)
    objective = 1.0
    with pytest.raises(ShardwiseError, match="highs: its answer is not exact: 1 ms for units"):
        solve(info, comm, gpus, 100)
    objective = exposed_ms(columns(info, comm, gpus, row_of(info, [])))[0]
    assert solve(info, comm, gpus, 100).units == ()
    with pytest.raises(ShardwiseError, match="highs: its answer breaks the budget"):
        solve(info, comm, gpus, 5)


@pytest.mark.parametrize("solver", sorted({SOLVER, "scipy"}))
def test_solvers_write_to_standard_error_and_only_if_asked(solver, capfd):
    """Standard output is for answers."""
    info, comm, gpus, _ = parts("tiny12_bruteforce")
    for log in (False, True):
        solve(info, comm, gpus, 6.137, solver=solver, log=log)
        out, err = capfd.readouterr()
        assert (out, "HiGHS" in err) == ("", log)


@pytest.mark.parametrize(
    ("solver", "told"),
    [
        ("highs", "highspy: pip install 'shardwise[fsdp]'"),
        ("scipy", "scipy: pip install 'scipy>=1.11'"),
        ("cbc", "pulp: pip install 'shardwise[cbc]'"),
    ],
)
def test_a_missing_package_is_named(solver, told, monkeypatch):
    """With what to install."""
    info, comm, gpus, _ = parts("tiny12_bruteforce")

    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(milp, "import_module", missing)
    with pytest.raises(InputError) as caught:
        solve(info, comm, gpus, 6, solver=solver)
    assert str(caught.value).startswith(f"solver: '{solver}': needs the package {told}")


@each_row(
    ("words", "told"),
    [
        ({"world_size": 1}, "world_size: 1: must be a whole number from 2"),
        ({"budget_gib": 0}, "budget_gib: 0: must be a number above 0"),
        ({"budget_gib": float("nan")}, "budget_gib: nan: must be a number above 0"),
        ({"time_limit_s": -1}, "time_limit_s: -1: must be a number above 0"),
        ({"formulation": "flows"}, "formulation: 'flows': allowed: flow, original; did you mean"),
        ({"solver": "gurobi"}, "solver: 'gurobi': allowed: highs, scipy, cbc"),
        (
            {"units": ["R.m55"]},
            "units: 'R.m55': no such module in module info; did you mean 'R.m5'",
        ),
        ({"units": ["R.m5", "R.m5"]}, "units: 'R.m5': is listed twice"),
        ({"forbidden": ["R"]}, "forbidden: 'R': the root always is a unit"),
        ({"units": ["R.m5"], "forbidden": ["R.m5"]}, "forbidden: 'R.m5': is also among the units"),
        ({"solver": "scipy", "solver_path": "/x"}, "solver_path: '/x': scipy has its own HiGHS"),
    ],
)
def test_options_that_are_not_allowed_are_one_clear_line(words, told):
    """Before anything is solved."""
    info, comm, _, _ = parts("tiny12_bruteforce")
    with pytest.raises(InputError) as caught:
        solve(info, comm, **({"world_size": 8, "budget_gib": 6} | words))
    (line,) = str(caught.value).splitlines()
    assert line.startswith(told)
