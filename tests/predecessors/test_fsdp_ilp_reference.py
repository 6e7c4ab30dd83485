"""The FSDP planner of scyther finds its stored optima, and its units cost what is stored."""

import numpy as np
import pytest

from fsdp_ilp_samples import CASES, GOLDEN, SOLVER, parts, row_of
from rows import each_row
from shardwise import InputError
from shardwise.predecessors.fsdp_ilp.reference import GIB, columns, exposed_ms, peak_gib, solve
from shardwise.predecessors.fsdp_ilp.reference.closed_form import static_bytes
from shardwise.predecessors.fsdp_ilp.reference.original import original

RESULTS = [(case["name"], result) for case in GOLDEN["cases"] for result in case["results"]]
IDS = [f"{name}-{result['budget_gib']}" for name, result in RESULTS]


@pytest.mark.parametrize(("name", "stored"), RESULTS, ids=IDS)
def test_stored_optima_are_found(name, stored):
    """The least exposed time of each budget; units may be others with the same time."""
    info, comm, gpus, forbidden = parts(name)
    budget = stored["budget_gib"]
    found = solve(info, comm, gpus, budget, solver=SOLVER, forbidden=forbidden)
    assert found.feasible == stored["feasible"]
    assert found.status == ("optimal" if stored["feasible"] else "infeasible")
    if stored["feasible"]:
        assert found.optimal
        assert found.objective_ms == pytest.approx(stored["objective_ms"], rel=1e-6)
        assert found.bound_ms == pytest.approx(stored["objective_ms"], rel=1e-6)
        assert found.peak_gib <= budget * (1 + 1e-6)
        assert set(found.units) & set(forbidden) == set()


@each_row(("name", "stored"), RESULTS)
def test_stored_units_cost_what_is_stored(name, stored):
    """Objective, peak and root parameters of the units that the original's own programme chose."""
    if not stored["feasible"]:
        return
    info, comm, gpus, _ = parts(name)
    units = [info.names[place] for place in stored["units"]]
    found = solve(info, comm, gpus, stored["budget_gib"], units=units)
    assert (found.feasible, found.optimal, found.status) == (True, False, "given")
    assert found.units == tuple(units)
    assert found.objective_ms == pytest.approx(stored["objective_ms"], rel=1e-12)
    assert found.peak_gib == pytest.approx(stored["peak_gib"], rel=1e-12)
    assert found.root_parameter_gib == pytest.approx(stored["root_param_gib"], rel=1e-12)


@each_row("name", ["seed_legal_1node", "tiny12_bruteforce"])
def test_the_programme_as_written_has_the_same_optima(name):
    """17 n + 2 columns and a big M, at the tightest stored budget; also by scipy's HiGHS."""
    info, comm, gpus, forbidden = parts(name)
    stored = CASES[name]["results"][-1]
    words = {"formulation": "original", "forbidden": forbidden}
    for solver in (SOLVER, "scipy"):
        found = solve(info, comm, gpus, stored["budget_gib"], solver=solver, **words)
        assert found.optimal
        assert found.objective_ms == pytest.approx(stored["objective_ms"], rel=1e-6)
    size = len(info.names)
    problem, x = original(info, comm, gpus, 5, allowed=np.ones(size, dtype=bool))
    assert problem.cost.size == 17 * size + 2
    assert problem.integer.nonzero()[0].tolist() == x.tolist()


def test_reference_points_of_the_gpt():
    """No unit, every block, and what activations alone take (section 5)."""
    info, comm, gpus, _ = parts("seed_literal_1node")
    assert static_bytes(info, gpus).max() / GIB == pytest.approx(14.907967, rel=1e-7)
    blocks = [place for place, name in enumerate(info.names) if name.split(".")[-2:-1] == ["h"]]
    found = columns(info, comm, gpus, [row_of(info, []), row_of(info, blocks)])
    assert exposed_ms(found) == pytest.approx([52.5587, 10.4525], abs=5e-5)
    assert peak_gib(found) == pytest.approx([25.4351, 16.6136], abs=5e-5)


def test_pulp_solves_the_programme_as_written_with_cbc():
    """Both cases, where PuLP is installed; an executable that is not there is named."""
    pytest.importorskip("pulp")
    info, comm, gpus, _ = parts("tiny12_bruteforce")
    stored = CASES["tiny12_bruteforce"]["results"][0]
    words = {"solver": "cbc", "formulation": "original"}
    found = solve(info, comm, gpus, stored["budget_gib"], **words)
    assert found.optimal
    assert found.objective_ms == pytest.approx(stored["objective_ms"], rel=1e-6)
    assert solve(info, comm, gpus, 1, **words).status == "infeasible"
    with pytest.raises(InputError, match="solver_path: '/no/cbc': no executable of cbc is there"):
        solve(info, comm, gpus, 6, **words, solver_path="/no/cbc")
