"""The planner's algorithm with the rules of fsdp_ilp: as its MILP, as trying everything."""

import numpy as np
import pytest

from rows import first_of
from shardwise.fsdp.planner.search import least_peak, optimum
from shardwise.predecessors.fsdp_ilp.comm import CommTimes, Line
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo
from shardwise.predecessors.fsdp_ilp.reference.closed_form import columns, exposed_ms, peak_gib
from shardwise.predecessors.fsdp_ilp.reference.exact import IlpRules
from shardwise.predecessors.fsdp_ilp.reference.solve import solve

GIB = 2.0**30
TREES, CHUNKS = 1000, 10


def random_tree(draw, most=7):
    """A random tree of modules with sizes and times of the same order as their collectives."""
    n = int(draw.integers(1, most + 1))
    path, parents = [0], [-1]
    for i in range(1, n):
        path = path[: int(draw.integers(1, len(path) + 1))]
        parents.append(path[-1])
        path.append(i)
    end = np.arange(1, n + 1)
    for i in range(n - 1, 0, -1):
        end[parents[i]] = max(end[parents[i]], end[i])
    own = draw.integers(0, 400, n) * draw.integers(0, 2, n) * 2.0**20
    own[0] += 2.0**20
    subtree = np.array([own[i:e].sum() for i, e in enumerate(end)])
    forward = draw.integers(1, 8, n) * 1.0
    forward = np.array([forward[i:e].sum() for i, e in enumerate(end)])
    post = sorted(range(n), key=lambda i: (end[i], -i))
    position = np.empty(n, dtype=np.int64)
    position[post] = np.arange(n)
    zeros = np.zeros(n)
    return ModuleInfo(
        source="test",
        names=tuple(f"m{i}" for i in range(n)),
        post_position=position,
        end=end,
        is_leaf=end == np.arange(1, n + 1),
        parameter_bytes=subtree,
        gradient_bytes=subtree,
        gradient_total_bytes=draw.integers(0, 800, n) * 2.0**20,
        activation_total_bytes=draw.integers(0, 800, n) * 2.0**20,
        activation_gradient_bytes=draw.integers(0, 200, n) * 2.0**20,
        activation_forward_bytes=zeros,
        input_bytes=zeros,
        output_bytes=zeros,
        forward_ms=forward,
        backward_ms=2 * forward,
        recompute_ms=zeros,
        recomputable_bytes=zeros,
    )


def antichains(end):
    """All sets of modules but the root of which none is inside another; shape (sets, n)."""
    n = len(end)
    found = {n: [np.zeros(n, dtype=bool)]}
    for place in range(n - 1, 0, -1):
        taken = [units.copy() for units in found[int(end[place])]]
        for units in taken:
            units[place] = True
        found[place] = found[place + 1] + taken
    return np.array(found[1] if n > 1 else found[n])


COMM = CommTimes(
    all_gather=Line(latency_ms=0.3, bytes_per_ms=60e6),
    reduce_scatter=Line(latency_ms=0.2, bytes_per_ms=45e6),
)


@pytest.mark.parametrize("chunk", first_of(4, range(CHUNKS)))
def test_optimum_is_that_of_the_milp_and_of_trying_everything(chunk):
    """A thousand random trees, a random budget each; those that nothing fits too."""
    draw = np.random.default_rng(chunk)
    infeasible = 0
    for _ in range(TREES // CHUNKS):
        info = random_tree(draw)
        every = columns(info, COMM, 8, antichains(info.end))
        costs, peaks = exposed_ms(every), peak_gib(every)
        budget = float(draw.uniform(0.97 * peaks.min(), 1.02 * peaks.max()))
        rules = IlpRules(
            info=info, comm=COMM, world_size=8, allowed=np.ones(len(info.end), dtype=bool)
        )
        path = optimum(rules, budget * GIB)
        milp = solve(info, COMM, 8, budget)
        fits = peaks <= budget
        assert path.proven
        assert bool(path.edges) == milp.feasible == fits.any()
        assert least_peak(rules).peak / GIB == pytest.approx(peaks.min(), rel=1e-12)
        if not fits.any():
            infeasible += 1
            continue
        assert path.cost == pytest.approx(costs[fits].min(), rel=1e-9)
        assert milp.objective_ms == pytest.approx(costs[fits].min(), rel=1e-6)
        assert path.peak / GIB <= budget * (1 + 1e-12)
    assert infeasible < TREES // CHUNKS
