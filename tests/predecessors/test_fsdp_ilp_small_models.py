"""The FSDP planner of scyther on models of a few modules: by hand, and against every choice."""

from itertools import pairwise

import numpy as np
import pytest

from fsdp_ilp_samples import SOLVER, row_of
from rows import each_row
from shardwise.predecessors.fsdp_ilp.files import module_info
from shardwise.predecessors.fsdp_ilp.reference import (
    GIB,
    columns,
    exposed_ms,
    parse_comm,
    peak_gib,
    plain,
    solve,
)
from shardwise.predecessors.fsdp_ilp.reference.milp import run_solver
from shardwise.predecessors.fsdp_ilp.reference.original import original


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
    assert (found.fcp.tolist(), found.bcp.tolist()) == ([[1, 1, 1]], [[2, 2, 2]])
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


@each_row("seed", range(20))
def test_the_closed_form_is_the_plain_sum(seed):
    """Of every choice of units in trees of up to nine modules."""
    info, comm = random_model(seed)
    plans = antichains(info)
    found = columns(info, comm, 4, plans)
    expected = [by_recursion(info, comm, 4, plan.nonzero()[0].tolist()) for plan in plans]
    both = np.column_stack([exposed_ms(found), peak_gib(found)])
    assert both == pytest.approx(np.array(expected), rel=1e-12)


@each_row("seed", range(60))
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


@each_row("seed", range(12))
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
