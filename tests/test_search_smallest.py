"""The smallest number of accelerators that would do, against one search after the other."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row, first_of
from samples import GB, TB, layer, model, system, tier
from shardwise import estimate
from shardwise.config.strategy_table import Table
from shardwise.engine.evaluate import evaluate
from shardwise.errors import InputError
from shardwise.planning.search import smallest_gpus as smallest
from shardwise.planning.search.run import search
from shardwise.planning.search.smallest_gpus import (
    least_memory_space,
    replica_bounds,
    smallest_gpus,
)
from shardwise.planning.search.space import Space

pytestmark = pytest.mark.any_software

MODEL = model(layer(count=6))
# The runtime of the stack holds 2 GiB; weights, gradients and states of the model are 6 MB.
RUNTIME = 2 * 2**30


def machine(capacity, *, second=None, filled=False, reach=None):
    """Nodes of 4, with so much memory beside the runtime's, and a second tier if it is given."""
    tiers = [{"name": "hbm", "capacity": RUNTIME + capacity, "bandwidth": 1 * TB}]
    if second is not None:
        tiers.append({"name": "host", "capacity": second, "bandwidth": 0.1 * TB})
    network = [tier("in", domain=4), tier("out", bandwidth=10 * GB, domain=reach)]
    network[0]["must_be_filled"] = filled
    return system(network=network, node=4, memory=tiers)


def space(**fields):
    """Few options, so that naive searches are fast."""
    few = {
        "scope": "full",
        "cp": 1,
        "gpus": 1,
        "global_batch_size": 8,
        "recompute": ["none", "full"],
        "tp_exchange": "rs_ag",
        "tp_overlap": "none",
        "tp_regather": True,
        "zero": 1,
        "dp_overlap": True,
        "fused_activation": False,
        "placement": "tp-cp-dp-pp",
    }
    return Space.validated(few | fields)


def naive(the_system, the_space, above, most):
    """The first of all whole nodes, and parts of one, on which a search finds something."""
    node = the_system.node.accelerators
    numbers = [n for n in range(above + 1, most + 1) if n % node == 0 or node % n == 0]
    at_scales = the_space.fixed({"gpus": numbers}, source="test")
    found = search(MODEL, the_system, at_scales, top=1, fits=None)
    feasible = {scale.gpus for scale in found.scales if scale.feasible}
    # Of a single scale there is no table.
    return min(feasible | {one.strategy["gpus"] for one in found.best}, default=None)


def check(the_system, the_space, most=32):
    """Search up to the number that is found, or everywhere if none is."""
    found = smallest_gpus(MODEL, the_system, the_space, most=most)
    assert found.gpus == naive(the_system, the_space, found.above, found.gpus or most)
    assert (found.reason is None) == (found.gpus is not None)
    if found.gpus is not None:
        assert estimate(MODEL, the_system, found.strategy).fits
        assert found.strategy["gpus"] == found.none_below == found.gpus
    return found


CASES = {
    "all free": (1e6, {}, {"placement": "all", "zero": "all", "tp_exchange": "all"}),
    "more memory": (3e6, {}, {}),
    "part of a node": (5e6, {}, {}),
    "fixed degrees": (1e6, {}, {"tp": 2}),
    "forced chunks": (7e5, {}, {"pp": 3, "vpp": 2}),
    "interleaved": (1.2e6, {}, {"schedule": "interleaved"}),
    "largest batch": (1e6, {}, {"batch": "largest", "global_batch_size": 7}),
    "listed replicas": (8e5, {}, {"dp": [3, 5], "batch": "largest"}),
    "listed micro-batches": (1e6, {}, {"micro_batch_size": [2, 3], "global_batch_size": 12}),
    "several batches": (1e6, {}, {"global_batch_size": [2, 3]}),
    "no sharding": (1e6, {}, {"zero": 0}),
    "second tier": (1.2e6, {"second": 3e6}, {}),
    "small second tier": (1.2e6, {"second": 1e5}, {}),
    "filled domains": (1e6, {"filled": True}, {"placement": "all"}),
    "own tiers": (1.2e6, {}, {"tp_tier": 0, "pp_tier": [0, 1]}),
    "forward only": (2e5, {}, {"training": False}),
    "uneven edges": (1.2e6, {}, {"seq_len": 30, "tp_exchange": "p2p_rs_ag", "pp": 2}),
}


@pytest.mark.parametrize("name", first_of(5, CASES))
def test_it_is_the_first_on_which_a_search_finds_something(name):
    """Every smaller number of accelerators has been searched in full, and nothing found."""
    capacity, built, fields = CASES[name]
    assert check(machine(capacity, **built), space(**fields)).gpus is not None


@examples(4)
@given(
    capacity=st.floats(4e5, 3e6),
    second=st.sampled_from([None, 1e5, 1e6]),
    fields=st.fixed_dictionaries(
        {"global_batch_size": st.sampled_from([4, 6, 8])},
        optional={
            "tp": st.sampled_from([1, 2, [2, 8]]),
            "pp": st.sampled_from([1, 3, [2, 6]]),
            "micro_batch_size": st.sampled_from([1, 2]),
            "batch": st.just("largest"),
        },
    ),
)
def test_it_is_the_first_for_any_memory_and_degrees(capacity, second, fields):
    """The same, or nothing up to 16, for spaces at random."""
    check(machine(capacity, second=second), space(**fields), most=16)


def test_numbers_that_cannot_do_are_not_judged():
    """Only 12 n accelerators are 6 stages; 12 to 36 split the optimizer state over too few."""
    fixed = {"tp": 1, "pp": 6, "global_batch_size": 512}
    found = smallest_gpus(MODEL, machine(1.4e6), space(**fixed))
    assert (found.gpus, found.judged, found.strategy["dp"]) == (48, 1, 8)
    assert not search(MODEL, machine(1.4e6), space(**fixed, gpus=[12, 24, 36]), fits=None).feasible


@pytest.mark.nightly
@each_row("capacity", [2.4e6, 2.8e6, 3.6e6, 5e6])
def test_the_least_number_of_replicas_is_exact(capacity):
    """6 stages, 16 // dp micro-batches: up to dp 2 the first stage holds 6 of them, then fewer."""
    batch = {"batch": "largest", "global_batch_size": 64, "micro_batch_size": 4}
    fixed = space(tp=1, pp=6, recompute="none", **batch)
    (spread,) = replica_bounds(MODEL, machine(capacity), fixed, RUNTIME + capacity, most=96).shapes
    gpus = [6 * dp for dp in (1, 2, 4, 5, 8, 16)]  # with 3, 64 // 3 are no micro-batches of 4
    scales = search(MODEL, machine(capacity), fixed, gpus=gpus, fits=None).scales
    least = min(scale.gpus for scale in scales if scale.feasible)
    assert (spread.ranks * spread.least, spread.most) == (least, 16)


@each_row(
    ("capacity", "fields", "gpus"),
    [
        (1.6e6, {"dp": [1, 7, 16], "global_batch_size": 16}, 96),  # 7 x 6 are no whole nodes of 4
        (2.6e6, {"micro_batch_size": 5, "global_batch_size": 95}, 36),  # 95 // 4 is not 5 n
    ],
)
def test_numbers_whose_replicas_do_not_come_out_even_are_not_judged(capacity, fields, gpus):
    """With listed replicas, and where the largest batch is no multiple of the micro-batches."""
    found = smallest_gpus(MODEL, machine(capacity), space(tp=1, pp=6, batch="largest", **fields))
    assert (found.gpus, found.judged) == (gpus, 1)


def test_only_larger_numbers_than_were_tried_are_looked_for():
    """More than the most of the space, unless another bound is given; and no more than `most`."""
    tried = space(gpus=[4, 20])
    assert smallest_gpus(MODEL, machine(3e6), tried).gpus == 24
    assert smallest_gpus(MODEL, machine(3e6), tried, above=4).gpus == 8
    assert smallest_gpus(MODEL, machine(3e6), tried, above=0).gpus == 4
    none = smallest_gpus(MODEL, machine(9e5), space(), most=8)
    assert (none.gpus, none.reason, none.most) == (None, "memory", 8)


def test_less_memory_may_be_used_than_there_is():
    """What is usable decides, as in a search."""
    whole = smallest_gpus(MODEL, machine(3e6), space())
    part = smallest_gpus(MODEL, machine(3e6), space(), capacity_bytes=RUNTIME + 1e6)
    assert part.gpus == smallest_gpus(MODEL, machine(1e6), space()).gpus > whole.gpus


@each_row(
    ("built", "fields", "reason", "told"),
    [
        ({"capacity": 1e5}, {}, "memory", "of GPU memory"),
        ({"capacity": 1e6}, {"tp": 1, "pp": 6}, "memory", "even on 48 GPUs .tp 1 x cp 1 x pp 6"),
        (
            {"capacity": 1e6, "second": 1e3},
            {"tp": 2, "offload_weights": True, "offload_optimizer": True},
            "second_memory",
            "of host",
        ),
        ({"capacity": 9e6}, {"micro_batch_size": 3}, "batch", "on any number"),
        ({"capacity": 9e6}, {"tp": 3}, "heads", "on any number"),
        ({"capacity": 9e6}, {"dtype": "fp16", "zero": 4}, "zero", "on any number"),
        ({"capacity": 9e6, "reach": 16}, {"gpus": 16}, "accelerators", "no more than 16"),
        ({"capacity": 9e6}, {"tp": 1, "pp": 1, "gpus": 8}, "batch", "no more than 8 GPUs"),
        ({"capacity": 9e6}, {"tp": 1, "pp": 3, "global_batch_size": 1}, "node", "nodes of 4"),
        ({"capacity": 9e6}, {"tp": 8, "pp": 1, "tp_tier": 0}, "tier_size", "tier_size"),
    ],
)
def test_where_none_will_do_the_reason_is_told(built, fields, reason, told):
    """The rule or the memory tier that stands against every number of accelerators."""
    found = smallest_gpus(MODEL, machine(**built), space(**fields))
    assert (found.gpus, found.strategy, found.none_below) == (None, None, None)
    assert found.reason == reason
    assert told.replace(".tp", "(tp") in found.problem


def test_it_is_given_up_in_the_end(monkeypatch):
    """So many numbers are judged, and what is certain of them is told."""
    monkeypatch.setattr(smallest, "_MOST_EVALUATED", 2)
    seen = []
    found = smallest_gpus(
        MODEL,
        machine(9e6),
        space(tp=8, pp=1, tp_tier=0),
        progress=lambda judged, gpus: seen.append((judged, gpus)),
    )
    assert seen == [(0, 8), (1, 16)]
    assert (found.gpus, found.judged, found.none_below, found.reason) == (None, 2, 32, "given_up")


def test_what_is_missing_is_refused():
    """A search would refuse it, too."""
    with pytest.raises(InputError, match="global_batch_size"):
        smallest_gpus(MODEL, machine(9e6), Space())


def rows(**columns):
    """Every combination of degrees, batches and options, with some columns fixed."""
    tried = {
        "tp": [1, 2, 8],
        "pp": [2, 3, 6],
        "dp": [1, 2, 4],
        "vpp": [1],
        "mbs": [1],
        "recompute": ["none", "selective", "full"],
        "zero": [0, 1],
        "training": [True, False],
        "offload_weights": [False, True],
        "offload_activations": [False, True],
        "offload_optimizer": [False, True],
        "tp_exchange": ["rs_ag", "all_reduce"],
    }
    values = [np.array(v) for v in (tried | {n: [v] for n, v in columns.items()}).values()]
    grids = [grid.ravel() for grid in np.meshgrid(*values, indexing="ij")]
    return Table.of(MODEL, {**dict(zip(tried, grids, strict=True)), "gbs": 24})


@each_row(
    ("column", "less", "more"),
    [
        *[("dp", less, more) for less, more in pairwise((24, 7, 5, 2, 1))],
        *[("mbs", less, more) for less, more in pairwise((1, 2, 3))],
        *[("vpp", 1, chunks) for chunks in (2, 3, 6)],
    ],
)
def test_what_is_held_grows_as_the_proof_says(column, less, more):
    """Fewer replicas, larger micro-batches, several chunks: no rank holds less, in any tier."""
    described = machine(1e6, second=1e6)
    other = {"dp": 4} if column == "mbs" else {}
    one, another = (evaluate(MODEL, described, rows(**other, **{column: v})) for v in (less, more))
    assert np.all(one.reserved_bytes <= another.reserved_bytes)
    assert np.all(one.memory.offloaded <= another.memory.offloaded)
    assert np.any(one.reserved_bytes < another.reserved_bytes)


def test_what_the_space_insists_on_is_left_in_it():
    """One chunk and one sequence only where the space leaves them open."""
    described = machine(1e6)
    left = least_memory_space(MODEL, described, Space.validated({"gpus": 4, "gbs": 8}))
    assert (left.vpp, left.micro_batch_size, left.placement) == ((1,), (1,), ("tp-cp-dp-pp",))
    insisting = {"gpus": 4, "gbs": 8, "schedule": "interleaved", "mbs": [2, 4], "tp_tier": 0}
    left = least_memory_space(MODEL, described, Space.validated(insisting))
    assert (left.vpp, left.micro_batch_size, left.placement) == (None, (2, 4), None)
    chunked = {"gpus": 4, "gbs": 8, "vpp": [2, 4]}
    assert least_memory_space(MODEL, described, Space.validated(chunked)).vpp == (2, 4)
    filled = least_memory_space(
        MODEL, machine(1e6, filled=True), Space.validated({"gpus": 4, "gbs": 8})
    )
    assert filled.placement is None
    uneven = {"gpus": 4, "gbs": 8, "seq_len": 30, "tp_exchange": "p2p_rs_ag"}
    assert least_memory_space(MODEL, described, Space.validated(uneven)).micro_batch_size is None
