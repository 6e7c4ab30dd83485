"""The planner's rules equal working a wrapping out, and its best is that of trying everything."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise.fsdp.plan import Setting
from shardwise.fsdp.planner.collectives import LinearTime, LinearTimes
from shardwise.fsdp.planner.planner import Planner, front
from shardwise.fsdp.planner.search import Path, least_peak, nondominated, shortest_path
from shardwise.fsdp.profile import Parameter, Profile, ProfiledModule, check

MIB = 2.0**20


def random_profile(seed, most=9):
    """A random tree of modules; each computes before, between and after those it calls."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(2, most + 1))
    parents = [-1, *(int(draw.integers(max(0, i - 3), i)) for i in range(1, n))]
    # In pre-order: a parent is on the path of the module before.
    for i in range(1, n):
        path, at = [], i - 1
        while at >= 0:
            path.append(at)
            at = parents[at]
        if parents[i] not in path:
            parents[i] = path[0]
    return tree_profile(parents, draw)


def tree_profile(parents, draw):
    n = len(parents)
    ends = [1 + max([i, *(j for j in range(n) if i in _ancestors(parents, j))]) for i in range(n)]
    names = [""]
    for i in range(1, n):
        names.append(f"{names[parents[i]]}.m{i}".lstrip("."))
    forward, backward = _visits(parents, ends)
    loss = len(forward["order"])
    modules, parameters = [], []
    for i in range(n):
        begin, after = forward["span"][i]
        back = tuple(loss + 1 + at for at in backward["span"][i])
        reduced_last = i == 0 or (i == 1 and bool(draw.integers(2)))
        segments = loss + 1 + len(backward["order"])
        modules.append(
            ProfiledModule(
                name=names[i],
                kind="M",
                parent=parents[i],
                end=ends[i],
                forward=(begin, after),
                backward=(back[0], segments if reduced_last else back[1]),
                output_bytes=float(draw.integers(0, 4)) * MIB,
                reduced_last=reduced_last,
            )
        )
        if i == 0 or draw.random() < 0.8:
            last = max(at for at, who in enumerate(backward["order"]) if who == i)
            parameters.append(
                Parameter(
                    name=f"{names[i]}.weight".lstrip("."),
                    shape=(int(draw.integers(1, 40)), 2**16),
                    holders=(i,),
                    element_bytes=2.0,
                    gradient_segment=loss + 1 + last,
                )
            )
    count = loss + 1 + len(backward["order"])
    grown = np.cumsum(draw.integers(0, 30, loss + 1)) * MIB
    shrunk = np.sort(draw.integers(0, max(int(grown[-1] / MIB), 1), count - loss - 1))[::-1] * MIB
    profile = Profile(
        name="tree",
        source="test",
        modules=tuple(modules),
        parameters=tuple(parameters),
        forward_segments=loss + 1,
        seconds=draw.integers(0, 20, count) * 1e-5,
        resident_bytes=np.zeros(count),
        end_bytes=np.zeros(count),
    )
    left = np.concatenate([grown, shrunk]) + profile.gradient_bytes
    before = np.concatenate([[0.0], left[:-1]])
    held = np.maximum(left, before) + draw.integers(0, 40, count) * MIB
    return Profile(
        **{
            **{
                name: getattr(profile, name)
                for name in (
                    "name",
                    "source",
                    "modules",
                    "parameters",
                    "forward_segments",
                    "seconds",
                )
            },
            "resident_bytes": held,
            "end_bytes": left,
        }
    )


def _ancestors(parents, j):
    found = []
    while parents[j] >= 0:
        j = parents[j]
        found.append(j)
    return found


def _visits(parents, ends):
    """Order of segments, one before and one after each module's calls, and each module's span."""
    n = len(parents)
    order, span = [], [None] * n

    def visit(i):
        begin = len(order)
        order.append(i)
        at = i + 1
        while at < ends[i]:
            visit(at)
            order.append(i)
            at = ends[at]
        span[i] = (begin, len(order))

    visit(0)
    total = len(order)
    mirrored = [(total - after, total - begin) for begin, after in span]
    return {"order": order, "span": span}, {"order": order[::-1], "span": mirrored}


SETTINGS = [
    Setting(shards=2),
    Setting(shards=8, stored_dtype="bf16", reduce_dtype="bf16", optimizer="sgd"),
    Setting(shards=4, replicas=2),
]
LINKS = LinearTimes(
    all_gather=LinearTime(latency_s=20e-6, bytes_per_s=60e9),
    reduce_scatter=LinearTime(latency_s=30e-6, bytes_per_s=50e9),
)


def every_path(rules):
    """All ways through the positions, each a list of edges."""
    paths = {0: [()]}
    for position, targets in enumerate(rules.targets):
        for path in paths.pop(position, ()):
            for number, target in enumerate(targets):
                paths.setdefault(int(target), []).append((*path, (position, number)))
    return paths[len(rules.targets)]


def walked(rules, path):
    labels = rules.start()
    for position, number in path:
        labels = rules.extend(position, labels)[:, number]
    end = len(rules.targets)
    return float(rules.finish(labels)[0]), float(rules.peak(end, labels)[0])


def planner_of(seed, **given):
    setting = SETTINGS[seed % len(SETTINGS)]
    profile = random_profile(seed)
    check(profile)
    return Planner(profile=profile, setting=setting, collectives=LINKS, **given)


@each_row("seed", range(18))
def test_rules_equal_working_a_wrapping_out(seed):
    """Each path's cost and peak are those of its wrapping, from the order of events."""
    planner = planner_of(seed)
    rules = planner.rules()
    paths = every_path(rules)
    for i in np.random.default_rng(seed).permutation(len(paths))[:25]:
        cost, peak = walked(rules, paths[i])
        path = Path(edges=paths[i], cost=cost, peak=peak, bound=cost, labels=0)
        plan = planner.evaluate(planner.wrapping_from_path(path))
        assert cost == pytest.approx(plan.exposed_s, rel=1e-9, abs=1e-12)
        assert peak == pytest.approx(plan.peak.total_bytes, rel=1e-9)


@each_row("seed", range(20))
def test_best_equals_trying_everything(seed):
    """For budgets all along the front the planner finds what enumeration finds, and proves it."""
    planner = planner_of(seed, most_grouped=1 + seed % 2)
    rules = planner.rules()
    results = np.array([walked(rules, path) for path in every_path(rules)])
    assert planner.least_peak_bytes == pytest.approx(results[:, 1].min(), rel=1e-9)
    for share in (0.0, 0.3, 0.7, 1.0):
        low, high = results[:, 1].min(), results[:, 1].max()
        budget = low + share * (high - low)
        best = planner.best(budget)
        assert best is not None
        least = results[results[:, 1] <= budget + 1, 0].min()
        assert best.plan.exposed_s == pytest.approx(least, rel=1e-9, abs=1e-12)
        assert best.plan.peak.total_bytes <= budget + 1
        assert best.optimal
    assert planner.best(results[:, 1].min() - 10) is None


@examples(40)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 5))
def test_nondominated_keeps_what_nothing_is_at_most_equal_to(seed, labels, quantities):
    """Against the definition, with many ties."""
    values = np.random.default_rng(seed).integers(0, 4, (quantities, labels)).astype(float)
    keep = nondominated(values)
    for i in range(labels):
        smaller = [
            j
            for j in range(labels)
            if (values[:, j] <= values[:, i]).all()
            and ((values[:, j] < values[:, i]).any() or j < i)
        ]
        assert keep[i] == (not smaller)


@examples(40)
@given(st.integers(0, 10**6), st.integers(1, 60))
def test_a_label_is_dropped_only_for_one_that_is_cheaper_by_its_excess(seed, labels):
    """Excess in paid rows is paid by the cost, other rows are nowhere above; none is left over."""
    draw = np.random.default_rng(seed)
    values = draw.integers(0, 5, (4, labels)).astype(float)
    raised = values + draw.integers(0, 2, (4, labels)) * (np.arange(4) == 3)[:, None]
    keep = nondominated(values, raised, paid=(1, 2))
    excess = np.maximum(values[1:3, :, None] - values[1:3, None], 0).sum(axis=0)
    dominates = values[0][:, None] + excess <= values[0]
    dominates &= values[3][:, None] <= raised[3]
    np.fill_diagonal(dominates, val=False)
    assert dominates[:, ~keep].any(axis=0).all()
    same = (values[3] == raised[3]).all()
    assert not (same and dominates[np.ix_(keep, keep)].any())


@each_row("seed", range(8))
def test_no_completion_within_a_budget_costs_less_than_its_bound(seed):
    """Along each path that fits, cost so far and bound on the rest are at most its cost.

    Compute is short, so that little is hidden and what is gathered again counts.
    """
    profile = random_profile(seed)
    profile = replace(profile, seconds=profile.seconds / 100)
    setting = SETTINGS[seed % len(SETTINGS)]
    rules = Planner(profile=profile, setting=setting, collectives=LINKS).rules()
    paths = every_path(rules)
    draw = np.random.default_rng(seed)
    for i in draw.permutation(len(paths))[:40]:
        cost, peak = walked(rules, paths[i])
        labels = rules.start()
        for position, number in paths[i]:
            rest = float(rules.remaining_cost(position, labels, peak)[0])
            assert labels[0, 0] + rest <= cost * (1 + 1e-9) + 1e-15
            labels = rules.extend(position, labels)[:, number]


@each_row("seed", range(8))
def test_a_sketched_search_finds_a_path_within_the_budget_and_proves_nothing(seed):
    """Its cost and peak are those of the path, and no better than the optimum."""
    planner = planner_of(seed)
    rules = planner.rules()
    budget = 1.2 * planner.least_peak_bytes
    found = shortest_path(rules, budget, most_labels=24, sketched=True)
    if found.edges:
        assert walked(rules, found.edges) == pytest.approx((found.cost, found.peak), rel=1e-9)
        assert found.peak <= budget
    assert found.bound == -np.inf
    assert found.cost >= planner.best(budget).cost_s * (1 - 1e-9)


@each_row("seed", range(8))
def test_a_search_out_of_time_still_finds_plans(seed):
    """No position extends more than a few labels, in either search, and nothing is overclaimed."""
    hurried, proven = planner_of(seed, seconds=1e-9), planner_of(seed)
    most = 1 + 32 * sum(map(len, hurried.rules().targets))
    assert least_peak(hurried.rules(), seconds=1e-9).labels <= most
    assert hurried.least_peak_bytes >= proven.least_peak_bytes * (1 - 1e-12)
    assert proven.least_peak_proven
    plan = hurried.best(hurried.least_peak_bytes)
    assert plan is not None
    assert plan.labels <= most
    assert plan.plan.peak.total_bytes <= hurried.least_peak_bytes + 1
    assert plan.bound_s <= proven.best(hurried.least_peak_bytes).cost_s * (1 + 1e-12)


@each_row("seed", range(8))
def test_larger_units_fit_and_are_no_slower(seed):
    """From the plan of least memory, at its peak and with room."""
    planner = planner_of(seed)
    least = planner.evaluate(planner.wrapping_from_path(least_peak(planner.rules())))
    for budget in (least.peak.total_bytes, np.inf):
        larger = planner.with_larger_units(least, budget)
        assert larger.step_s <= least.step_s
        assert larger.peak.total_bytes <= budget + 1
        assert planner.evaluate(larger.wrapping).step_s == larger.step_s


def test_more_memory_is_never_slower():
    """The front falls: each step to less memory costs time."""
    planner = planner_of(7)
    plans = front(planner, points=6)
    for faster, leaner in pairwise(plans):
        assert faster.plan.exposed_s <= leaner.plan.exposed_s
        assert faster.plan.peak.total_bytes > leaner.plan.peak.total_bytes
    assert all(plan.optimal for plan in plans)
