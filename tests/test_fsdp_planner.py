"""The planner: its rules against working a wrapping out, its search against trying everything."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.errors import InputError
from shardwise.fsdp.check import check
from shardwise.fsdp.front import front, largest_batch, smallest_gpus, usual
from shardwise.fsdp.links import Line, Lines, SystemLinks
from shardwise.fsdp.plan import Setting, Unit, Wrapping
from shardwise.fsdp.planner import Planner
from shardwise.fsdp.profile import Parameter, Profile, ProfiledModule
from shardwise.fsdp.search import Path, nondominated
from shardwise.system import System

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
        late = i == 0 or (i == 1 and bool(draw.integers(2)))
        segments = loss + 1 + len(backward["order"])
        modules.append(
            ProfiledModule(
                name=names[i],
                kind="M",
                parent=parents[i],
                end=ends[i],
                forward=(begin, after),
                backward=(back[0], segments if late else back[1]),
                output_bytes=float(draw.integers(0, 4)) * MIB,
                late=late,
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
        held_bytes=np.zeros(count),
        left_bytes=np.zeros(count),
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
            "held_bytes": held,
            "left_bytes": left,
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
LINKS = Lines(
    all_gather=Line(latency_s=20e-6, bytes_per_s=60e9),
    reduce_scatter=Line(latency_s=30e-6, bytes_per_s=50e9),
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
    return Planner(profile=profile, setting=setting, links=LINKS, **given)


@pytest.mark.parametrize("seed", range(18))
def test_rules_equal_working_a_wrapping_out(seed):
    """Each path's cost and peak are those of its wrapping, from the order of events."""
    planner = planner_of(seed)
    rules = planner.rules()
    paths = every_path(rules)
    for i in np.random.default_rng(seed).permutation(len(paths))[:25]:
        cost, peak = walked(rules, paths[i])
        path = Path(edges=paths[i], cost=cost, peak=peak, bound=cost, labels=0)
        plan = planner.evaluated(planner.wrapping_of(path))
        assert cost == pytest.approx(plan.exposed_s, rel=1e-9, abs=1e-12)
        assert peak == pytest.approx(plan.peak.total_bytes, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def test_more_memory_is_never_slower():
    """The front falls: each step to less memory costs time."""
    planner = planner_of(7)
    plans = front(planner, points=6)
    for faster, leaner in pairwise(plans):
        assert faster.plan.exposed_s <= leaner.plan.exposed_s
        assert faster.plan.peak.total_bytes > leaner.plan.peak.total_bytes
    assert all(plan.optimal for plan in plans)


def hand_made(*, frozen=False):
    """Root with a block of two linears, each segment one millisecond."""
    modules = (
        ProfiledModule(
            name="", kind="Net", parent=-1, end=4, forward=(0, 5), backward=(6, 11), late=True
        ),
        ProfiledModule(name="a", kind="Linear", parent=0, end=2, forward=(1, 2), backward=(9, 10)),
        ProfiledModule(name="b", kind="Linear", parent=0, end=3, forward=(2, 3), backward=(8, 9)),
        ProfiledModule(name="c", kind="Linear", parent=0, end=4, forward=(3, 4), backward=(7, 8)),
    )
    parameters = tuple(
        Parameter(
            name=f"{name}.weight",
            shape=(1024, 1024),
            holders=(place,),
            element_bytes=2.0,
            gradient_segment=-1 if frozen and name == "b" else segment,
            trainable=not (frozen and name == "b"),
        )
        for name, place, segment in (("a", 1, 9), ("b", 2, 8), ("c", 3, 7))
    )
    kept = np.array([0, 1, 2, 3, 3, 3, 3, 2, 1, 0, 0], dtype=float) * MIB
    bare = Profile(
        name="net",
        source="test",
        modules=modules,
        parameters=parameters,
        forward_segments=6,
        seconds=np.full(11, 1e-3),
        held_bytes=kept,
        left_bytes=kept,
    )
    with_gradients = kept + bare.gradient_bytes
    return Profile(
        name="net",
        source="test",
        modules=modules,
        parameters=parameters,
        forward_segments=6,
        seconds=np.full(11, 1e-3),
        held_bytes=with_gradients,
        left_bytes=with_gradients,
    )


SLOW = Lines(
    all_gather=Line(latency_s=0.5e-3, bytes_per_s=2 * MIB / 2.5e-3),
    reduce_scatter=Line(latency_s=0.25e-3, bytes_per_s=4 * MIB / 0.5e-3),
)


def test_exposed_time_by_hand():
    """Gathers of 3 ms, reduce-scatters of 0.75 ms, 1 ms of compute anywhere.

    Forward: the root owns nothing; a waits 3 - 1 (the root's own segment), b and c 3 - 1 each: 6.
    Backward: nobody gathers c ahead: 3. Before b: its gather against c's 1 ms: 2. Before a: its
    gather and c's reduce-scatter against b's 1 ms: 2.75. At the end: b's reduce-scatter behind a
    (0.75 - 1 < 0: nothing), a's behind the root's last segment: nothing.
    """
    planner = Planner(profile=hand_made(), setting=Setting(shards=2), links=SLOW)
    plan = planner.evaluated(
        Wrapping(units=(Unit(modules=("a",)), Unit(modules=("b",)), Unit(modules=("c",))))
    )
    assert plan.exposed_s == pytest.approx((6 + 3 + 2 + 2.75) * 1e-3)
    assert plan.compute_s == pytest.approx(11e-3)


def test_memory_by_hand():
    """Two ranks, fp32 stored, Adam: 3 MiB of weights in numbers, so 6 sharded and 12 of state.

    Root only, at the last reduce-scatter: 6 of unsharded gradients (bf16) beside 12 of its input
    in fp32, weights freed: 36. Forward: 6 of weights, 6 of buffer, 3 of activations: 33.
    """
    planner = Planner(profile=hand_made(), setting=Setting(shards=2), links=SLOW)
    plan = planner.evaluated(Wrapping(units=()))
    assert plan.peak.total_bytes == pytest.approx(38 * MIB)
    assert sum(plan.peak.bytes.values()) == pytest.approx(plan.peak.total_bytes)


def test_usual_wrappings_and_counts():
    """Blocks are found by their numbers; budgets give the fewest GPUs and the largest batch."""
    from shardwise.fsdp.from_catalog import profile_of  # noqa: PLC0415 - only here
    from shardwise.model import Model  # noqa: PLC0415

    system, model = System.load("h100-sxm"), Model.load("llama3.2-1b")

    def planner(gpus, batch=1):
        setting = Setting(shards=gpus)
        profile = profile_of(model, system, batch=batch, seq_len=2048)
        return Planner(
            profile=profile, setting=setting, links=SystemLinks(system=system, setting=setting)
        )

    eight = planner(8)
    names = {named.name: named.plan for named in usual(eight)}
    assert [len(plan.wrapping.units) for plan in names.values()] == [0, 16, 17]
    best = eight.best()
    assert best is not None
    assert best.plan.exposed_s <= min(plan.exposed_s for plan in names.values())
    budget = planner(16).least_peak_bytes
    assert smallest_gpus(planner, budget, [2, 4, 8, 16, 32]) == 16
    three = planner(8, 3).least_peak_bytes
    assert largest_batch(lambda batch: planner(8, batch), three, most=8) == 3


def test_checkpointing_all_and_as_many_as_needed():
    """A budget below what fits without is met by checkpointing the first blocks, no more of them
    than it takes, and the proof counts recomputation."""
    from shardwise.fsdp.from_catalog import profile_of  # noqa: PLC0415
    from shardwise.model import Model  # noqa: PLC0415

    system = System.load("h100-sxm")
    setting = Setting(shards=8)
    links = SystemLinks(system=system, setting=setting)
    profile = profile_of(Model.load("llama3-8b"), system, batch=1)
    none = Planner(profile=profile, setting=setting, links=links)
    some = Planner(profile=profile, setting=setting, links=links, checkpoint="choose")
    every = Planner(profile=profile, setting=setting, links=links, checkpoint="all")
    assert every.least_peak_bytes < none.least_peak_bytes
    budget = 0.5 * (every.least_peak_bytes + none.least_peak_bytes)
    assert none.best(budget) is None
    found, full = some.best(budget), every.best(budget)
    assert found is not None
    assert full is not None
    assert found.optimal
    assert 0 < len(found.plan.wrapping.checkpointed) < 32
    assert found.cost_s < full.cost_s
    assert found.plan.wrapping.checkpointed[0] == "layers.0"


@pytest.mark.parametrize(
    ("wrapping", "words"),
    [
        (Wrapping(units=(Unit(modules=("nope",)),)), "no such module"),
        (Wrapping(units=(Unit(modules=("",)),)), "the root is a unit"),
        (Wrapping(units=(Unit(modules=("a",)), Unit(modules=("a",)))), "more than one unit"),
        (Wrapping(units=(), checkpointed=("x",)), "no such module"),
    ],
)
def test_wrong_wrappings_are_refused(wrapping, words):
    """With the module and the reason."""
    planner = Planner(profile=hand_made(), setting=Setting(shards=2), links=SLOW)
    with pytest.raises(InputError, match=words):
        planner.evaluated(wrapping)


def test_frozen_weights_are_not_mixed():
    """Not by the planner, and not for a user: b is frozen between a and c."""
    planner = Planner(profile=hand_made(frozen=True), setting=Setting(shards=2), links=SLOW)
    with pytest.raises(InputError, match="mixes frozen and trainable"):
        planner.evaluated(Wrapping(units=(Unit(modules=("a", "b")),)))
    edges = [edge.unit.modules for edges in planner.rules().step.edges for edge in edges]
    assert ("b",) in edges
    assert ("a", "b") not in edges


def test_one_rank_is_refused():
    """There is nothing to shard."""
    with pytest.raises(InputError, match="two ranks or more"):
        Planner(profile=hand_made(), setting=Setting(shards=1), links=SLOW)


def test_compute_dtype_must_be_the_profiles():
    """A profile in 16 bits says nothing of 32."""
    setting = Setting(shards=2, compute_dtype="fp32")
    with pytest.raises(InputError, match="2 bytes"):
        Planner(profile=hand_made(), setting=setting, links=SLOW)
