"""The FSDP planner of scyther: stored optima, the closed form, and both formulations."""

import json
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest

from fsdp_ilp_samples import GOLDEN, golden_info
from shardwise import InputError
from shardwise.errors import ShardwiseError
from shardwise.formats.fsdp_ilp import module_info
from shardwise.reference.fsdp_ilp import (
    GIB,
    columns,
    engines,
    exposed_ms,
    parse_comm,
    peak_gib,
    plain,
    solve,
)
from shardwise.reference.fsdp_ilp.closed_form import static_bytes
from shardwise.reference.fsdp_ilp.engines import Answer, run_solver
from shardwise.reference.fsdp_ilp.original import original

SOLVER = "highs" if find_spec("highspy") else "scipy"
CASES = {case["name"]: case for case in GOLDEN["cases"]}
RESULTS = [(case["name"], result) for case in GOLDEN["cases"] for result in case["results"]]
IDS = [f"{name}-{result['budget_gib']}" for name, result in RESULTS]


def parts(name):
    """Module information, communication times, GPUs and forbidden units of a stored case."""
    case = CASES[name]
    info = golden_info(case["module_info"])
    forbidden = [info.names[place] for place in case["forbidden"]]
    return info, parse_comm(case["comm"]), case["world_size"], forbidden


def row_of(info, units):
    """One plan as a row of flags."""
    return np.isin(np.arange(len(info.names)), list(units))


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


@pytest.mark.parametrize(("name", "stored"), RESULTS, ids=IDS)
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


@pytest.mark.parametrize("name", ["seed_legal_1node", "tiny12_bruteforce"])
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
    assert problem.whole.nonzero()[0].tolist() == x.tolist()


def test_reference_points_of_the_gpt():
    """No unit, every block, and what activations alone take (section 5)."""
    info, comm, gpus, _ = parts("seed_literal_1node")
    assert static_bytes(info, gpus).max() / GIB == pytest.approx(14.907967, rel=1e-7)
    blocks = [place for place, name in enumerate(info.names) if name.split(".")[-2:-1] == ["h"]]
    found = columns(info, comm, gpus, [row_of(info, []), row_of(info, blocks)])
    assert exposed_ms(found) == pytest.approx([52.5587, 10.4525], abs=5e-5)
    assert peak_gib(found) == pytest.approx([25.4351, 16.6136], abs=5e-5)


# Models of a few modules


def model(tree, comm=None, **fields):
    """Module information of (name, figures, children), and times of collectives."""
    pre, post, stats = [], [], []

    def walk(name, figures, children):
        pre.append(name)
        row = {"fqn": name, "grad_total": 0, "act_total": 0, "act_grad_per_module": 0}
        stats.append(row | fields | figures | {"grad_per_module": figures.get("g", figures["p"])})
        stats[-1]["param_per_module"] = stats[-1].pop("p")
        stats[-1].pop("g", None)
        for child, *rest in children:
            walk(f"{name}.{child}", *rest)
        post.append(name)

    walk(*tree)
    data = {"fw_pre_order": pre, "fw_post_order": post, "modstats": stats}
    return module_info(data), parse_comm(comm or FAST)


def _line(latency, rate):
    return {"latency_ms": latency, "bandwidth_bytes_per_ms": rate * GIB}


FAST = {"all_gather": _line(0.1, 2.0), "reduce_scatter": _line(0.2, 1.0)}


def figures(p, forward=1.0, backward=2.0, **more):
    """Figures of a module of p GiB of parameters."""
    times = {"fw_runtime_per_module": forward, "bw_runtime_per_module": backward}
    return {"p": round(p * GIB), **times, **more}


def test_a_model_of_three_modules_worked_out_by_hand():
    """R = own 1 GiB + a 2 GiB + b 4 GiB on 4 GPUs; units a, b.

    Root: AG 0.1 + 1/2, RS 0.2 + 1. First unit a: AG 0.1 + 2/2, RS 0.2 + 2. Forward: a hides b's
    AG of 0.1 + 4/2 = 2.1 in 1 ms, b, the last, nothing. Backward: b hides a's AG of 1.1 in 2 ms;
    a, the first, b's RS of 4.2 in 2 ms. Peak: 7/4 + root 2 + b 8 + activations 3, + 2 x 4.
    """
    leaves = [
        ("a", figures(2, act_total=1 * 2**30), []),
        ("b", figures(4, act_total=3 * 2**30), []),
    ]
    info, comm = model(("R", figures(7), leaves))
    found = columns(info, comm, 4, [True, True, True])
    assert exposed_ms(found) == pytest.approx([0.6 + 1.2 + 1.1 + 2.2 + 1.1 + 2.2])
    assert peak_gib(found) == pytest.approx([7 / 4 + 2 + 8 + 3 + 8])
    assert found.fw_ag[0] == pytest.approx([1.1, 2.1, 0])
    assert found.bw_ag[0] == pytest.approx([0, 0, 1.1])
    assert found.bw_rs[0] == pytest.approx([2.2, 4.2, 0])
    assert found.fw_e[0] == pytest.approx([0, 1.1, 0])
    assert found.bw_e[0] == pytest.approx([0, 2.2, 0])
    assert found.m[0] == pytest.approx([3.75, 8.75, 14.75])
    assert plain(info).peak_gib == 7 + 3
    assert plain(info).compute_ms == 3


def test_no_unit_still_pays_two_latencies_and_a_root_alone_none():
    """Ghosts of the original: the last module of pre-order stands for a first unit."""
    info, comm = model(("R", figures(4), [("a", figures(2), [])]))
    root = 0.1 + 4 / 2 + 0.2 + 4
    assert exposed_ms(columns(info, comm, 2, [True, False])) == pytest.approx([root + 0.3])
    info, comm = model(("R", figures(4), []))
    assert exposed_ms(columns(info, comm, 2, [True])) == pytest.approx([root])
    for formulation in ("flow", "original"):
        found = solve(info, comm, 2, 50, solver=SOLVER, formulation=formulation)
        assert (found.units, found.objective_ms) == ((), pytest.approx(root))


def test_the_big_m_cuts_off_slow_plans_and_the_flow_does_not():
    """Blocks of 432 MiB at 0.1 GB/s take 4.5 s; the original finds nothing (fault 1.8.2)."""
    blocks = [(f"h{i}", figures(432 / 1024), []) for i in range(3)]
    slow = _line(0.1, 1e-4)
    tree = ("R", figures(3 * 432 / 1024), blocks)
    info, comm = model(tree, {"all_gather": slow, "reduce_scatter": slow})
    assert not solve(info, comm, 8, 2.0, solver=SOLVER, formulation="original").feasible
    found = solve(info, comm, 8, 2.0, solver=SOLVER)
    assert (found.optimal, len(found.units)) == (True, 3)
    assert found.objective_ms > 1e4


def random_model(seed):
    """A tree of up to nine modules; some without parameters, tied or partly frozen."""
    rng = np.random.default_rng(seed)
    budget = [int(rng.integers(2, 10))]

    def grow(name):
        budget[0] -= 1
        children = []
        while budget[0] > 0 and rng.random() < 0.7:
            children.append(grow(f"m{budget[0]}"))
        own = 0.0 if rng.random() < 0.3 else float(rng.choice([0.1, 0.4, rng.random()]))
        own += sum(child[1]["p"] for child in children) / GIB
        times = rng.random(2) * [1.0, 2.0]
        more = {key: int(rng.random() * 2e8) for key in ("act_total", "act_grad_per_module")}
        more["grad_total"] = int(rng.random() * 1e9)
        return name, figures(own, *times, **more), children

    name, own, children = grow("R")
    if rng.random() < 0.3:  # the leaves' shared tensors count once in the root
        own["p"] = int(own["p"] * 0.77)
    if rng.random() < 0.2:  # some parameters have no gradients
        own["g"] = own["p"] // 2
    lines = {
        "all_gather": _line(rng.random() / 10, 0.2 + rng.random()),
        "reduce_scatter": _line(rng.random() / 10, 0.2 + rng.random()),
    }
    return model((name, own, children), lines)


def antichains(info):
    """All choices of units none of which is inside another, by full enumeration."""

    def from_(place):
        if place == len(info.names):
            yield []
            return
        yield from from_(place + 1)
        yield from ([place, *rest] for rest in from_(int(info.end[place])))

    return [row_of(info, units) for units in from_(1)]


def by_recursion(info, comm, gpus, units):
    """Sections 1.4's sums as they are written, unit by unit; children by plain recursion."""
    shard, gather, scatter = info.parameter_bytes, comm.all_gather, comm.reduce_scatter
    p0 = shard[0] - sum(shard[u] for u in units)
    g0 = info.gradient_bytes[0] - sum(info.gradient_bytes[u] for u in units)
    ag = [gather.time_ms(shard[u]) for u in units]
    rs = [scatter.time_ms(info.gradient_bytes[u]) for u in units]
    last, first = len(info.names) - 1, int(info.post_position.argmin())
    total = gather.time_ms(p0) + scatter.time_ms(g0)
    if last > 0:
        total += (ag[0] + rs[0]) if units else gather.latency_ms + scatter.latency_ms
    for k, u in enumerate(units):
        at_end, at_start = u == last, u == first
        next_ag = ag[k + 1] if k + 1 < len(units) else 0 if at_end else gather.latency_ms
        next_rs = rs[k + 1] if k + 1 < len(units) else 0 if at_end else scatter.latency_ms
        previous = ag[k - 1] if k > 0 else 0 if at_start else gather.latency_ms
        total += max(0, next_ag - info.forward_ms[u])
        total += max(0, previous + next_rs - info.backward_ms[u])

    def most(place, held):
        held += shard[place] + info.gradient_bytes[place] if place in units else 0
        sharded = (shard[0] + info.gradient_total_bytes[place]) / gpus
        kept = info.activation_total_bytes[place] + info.activation_gradient_bytes[place]
        children, child = [], place + 1
        while child < info.end[place]:
            children.append(most(child, held))
            child = int(info.end[child])
        return max([sharded + kept + held, *children])

    peak = most(0, p0 + g0) + 2 * max([p0, *(shard[u] for u in units)])
    return total, peak / GIB


@pytest.mark.parametrize("seed", range(20))
def test_the_closed_form_is_the_plain_sum(seed):
    """Of every choice of units in trees of up to nine modules."""
    info, comm = random_model(seed)
    plans = antichains(info)
    found = columns(info, comm, 4, plans)
    expected = [by_recursion(info, comm, 4, plan.nonzero()[0].tolist()) for plan in plans]
    both = np.column_stack([exposed_ms(found), peak_gib(found)])
    assert both == pytest.approx(np.array(expected), rel=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_both_formulations_find_the_best_of_all_choices(seed):
    """Trees of up to nine modules, at a budget that some, all or no plans keep."""
    info, comm = random_model(seed)
    found = columns(info, comm, 4, antichains(info))
    time, peak = exposed_ms(found), peak_gib(found)
    allowed = (found.p[:, 0] >= 0) & (found.g[:, 0] >= 0)
    levels = np.unique(peak[allowed].round(6))
    gaps = [(low + high) / 2 for low, high in pairwise(levels)]
    budgets = [levels[0] * 0.99, *gaps, levels[-1] * 1.01]
    budget = float(np.random.default_rng(seed).choice(budgets))
    keeps = allowed & (peak <= budget)
    for formulation in ("flow", "original"):
        answer = solve(info, comm, 4, budget, solver=SOLVER, formulation=formulation)
        assert answer.feasible == keeps.any()
        if keeps.any():
            assert answer.optimal
            assert answer.objective_ms == pytest.approx(time[keeps].min(), rel=1e-6)
            assert answer.peak_gib <= budget * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_any_given_units_cost_what_the_programme_as_written_says(seed):
    """Nested ones are counted twice by both (fault 1.8.11); the original's x is fixed."""
    info, comm = random_model(seed)
    rng = np.random.default_rng(seed)
    chosen = rng.random(len(info.names)) < 0.5
    chosen[0] = True
    found = columns(info, comm, 4, chosen)
    problem, _ = original(info, comm, 4, 100, allowed=chosen, fixed=chosen)
    answer = run_solver(problem, SOLVER)
    assert (answer.status == "optimal") == bool(found.p[0, 0] >= 0 and found.g[0, 0] >= 0)
    if answer.objective is not None:
        assert answer.objective == pytest.approx(exposed_ms(found)[0], rel=1e-6)


# What is told, and refused


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
    assert answer["reason"] == "no choice of units keeps the budget"


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

    module = import_module("shardwise.reference.fsdp_ilp.solve")
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
        ("cbc", "pulp: pip install pulp"),
    ],
)
def test_a_missing_package_is_named(solver, told, monkeypatch):
    """With what to install."""
    info, comm, gpus, _ = parts("tiny12_bruteforce")

    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(engines, "import_module", missing)
    with pytest.raises(InputError) as caught:
        solve(info, comm, gpus, 6, solver=solver)
    assert str(caught.value).startswith(f"solver: '{solver}': needs the package {told}")


@pytest.mark.parametrize(
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
        ({"units": ["R.m5", "R.m5"]}, "units: 'R.m5': is given twice"),
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
