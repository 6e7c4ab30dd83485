"""Explicit extents: their text, the placement they make, every way to fill a domain."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import InputError, estimate, search
from shardwise.arrays import divisors
from shardwise.config.enums import EXTENT_AXES, PLACEMENTS
from shardwise.config.extents import canonical_extents, members_per_tier
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.constraints import first_violation
from shardwise.parallel.placement import place
from shardwise.planning.search.layouts import all_extents

pytestmark = pytest.mark.any_software

MODEL = samples.model()


def cluster(*domains: int | None, node: int = 8, **fields: Any) -> System:
    tiers = [samples.tier(f"t{n}", domain=domain) | fields for n, domain in enumerate(domains)]
    return samples.system(network=tiers, node=node)


def placed(machine: System, model: Any = MODEL, **columns: Any) -> dict[str, list[int]]:
    extents = place(machine, Table.of(model, {"gbs": 64} | columns))
    return {axis: getattr(extents, axis)[:, 0].tolist() for axis in (*EXTENT_AXES, "ep", "edp")}


@each_row(
    ("given", "canonical"),
    [
        ("dp=2+tp=4", "tp=4+dp=2"),
        (" TP = 4 + dp:2 ", "tp=4+dp=2"),
        ("tp=1", "tp=1"),
        ("tp=4+cp=1/pp=9", "tp=4/pp=9"),
        ("dp=8+ep=1", "dp=8+ep=1"),
        ({"pp": 2, "tp2": 4}, "tp2=4+pp=2"),
        ([{"tp": 8}, {"dp": 9}], "tp=8/dp=9"),
    ],
)
def test_every_form_has_one_text(given: Any, canonical: str) -> None:
    """Axes in one order, those with one member left out; ep only where it was given."""
    assert canonical_extents(given) == canonical
    assert canonical_extents(canonical) == canonical
    assert Strategy.validated({"extents": given}).extents == canonical


def test_what_tiers_add_by_position() -> None:
    """Axes as in `EXTENT_AXES`, experts last: 0 where nobody said."""
    assert members_per_tier("tp=4+dp=2/pp=9+ep=1") == ((4, 1, 1, 2, 1, 0), (1, 1, 1, 1, 9, 1))


@each_row(
    ("given", "problem"),
    [
        ("tp4", "'tp4' is no axis with its members, as in tp=4+dp=2"),
        ("tp=4+tp=2", "names tp twice in a tier"),
        ("tq=4", "tq: no axis; allowed: tp, tp2, cp, dp, pp, ep"),
        ("tp=0", "tp: 0 must be a whole number of at least 1"),
        ({"tp": 1.5}, "tp: 1.5 must be a whole number of at least 1"),
        ({"tp": True}, "tp: true must be a whole number of at least 1"),
        (4, "must be a text such as tp=4+dp=2, or a mapping of axes for each tier"),
        ([], "must be a text such as tp=4+dp=2, or a mapping of axes for each tier"),
    ],
)
def test_what_is_none_is_refused(given: Any, problem: str) -> None:
    """With what is allowed."""
    with pytest.raises(InputError) as error:
        Strategy.validated({"extents": given})
    assert [(f.field, f.problem) for f in error.value.faults] == [("extents", problem)]


def test_explicit_extents_place_the_members() -> None:
    """Whatever the order of the axes; the outermost tier has what is left."""
    for order in PLACEMENTS:
        found = placed(cluster(8, None), tp=4, dp=8, pp=4, extents="tp=2+pp=4", placement=order)
        assert (found["tp"], found["dp"], found["pp"]) == ([2, 4], [1, 8], [4, 4])


def test_a_tier_that_is_not_named_is_filled_by_placement() -> None:
    """Two nodes of a rack of 16: dp first."""
    machine = cluster(8, 16, None)
    found = placed(machine, tp=4, dp=8, pp=4, extents="tp=4+pp=2", placement="dp-tp-cp-pp")
    assert (found["tp"], found["dp"], found["pp"]) == ([4, 4, 4], [1, 2, 8], [2, 2, 4])
    named = placed(machine, tp=4, dp=8, pp=4, extents="tp=4+pp=2/pp=2")
    assert (named["tp"], named["dp"], named["pp"]) == ([4, 4, 4], [1, 1, 8], [2, 4, 4])


def test_groups_of_experts_sit_as_they_were_given() -> None:
    """8 accelerators hold all 8 groups of experts, or 2 groups with 4 replicas of each."""
    model, machine = samples.deepseek(), cluster(8, None)
    usual = placed(machine, model, dp=32, ep=8, extents="dp=8")
    assert (usual["ep"], usual["edp"]) == ([8, 8], [1, 4])
    apart = placed(machine, model, dp=32, ep=8, extents="dp=8+ep=2")
    assert (apart["ep"], apart["edp"]) == ([2, 8], [4, 4])


@given(
    st.tuples(*(st.sampled_from([1, 2, 3, 4, 6, 8]) for _ in range(4))),
    st.sampled_from(PLACEMENTS),
    st.lists(st.sampled_from([None, 0, 1]), min_size=4, max_size=4),
    st.sampled_from([(4, None), (8, None), (8, 32, None), (4, 72, None)]),
)
@examples(60)
def test_orders_and_tiers_are_cases_of_extents(
    degrees: tuple[int, ...],
    order: str,
    tiers: list[int | None],
    domains: tuple[int | None, ...],
) -> None:
    """What either makes of the degrees, written as extents, places all ranks alike."""
    machine = cluster(*domains, node=4)
    columns: dict[str, Any] = dict(zip(("tp", "cp", "dp", "pp"), degrees, strict=True))
    names = ("tp_tier", "cp_tier", "dp_tier", "pp_tier")
    for fixed_tiers in ({}, dict(zip(names, tiers, strict=True))):
        found = placed(machine, **columns, placement=order, **fixed_tiers)
        adds = [
            {a: found[a][t] // (found[a][t - 1] if t else 1) for a in EXTENT_AXES}
            for t in range(len(domains) - 1)
        ]
        assert placed(machine, **columns, extents=canonical_extents(adds)) == found


def filled(room: int, degrees: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Every way to take parts of the degrees that leave least of a room, one by one."""
    if prod(degrees) <= room:
        return {degrees}
    every = [w for w in product(*map(divisors, degrees)) if prod(w) <= room and room % prod(w) == 0]
    return {way for way in every if prod(way) == max(map(prod, every))}


@given(st.tuples(*(st.sampled_from([1, 2, 3, 4, 6, 8]) for _ in range(5))))
@examples(60)
def test_every_way_to_fill_a_node_is_found_once(degrees: tuple[int, ...]) -> None:
    """Against all parts of the degrees."""
    found = [members_per_tier(text) for text in all_extents(cluster(8, None), degrees)]
    assert len({*found}) == len(found)
    assert {tiers[0][:-1] for tiers in found} == filled(8, degrees)


def test_a_rack_is_filled_with_full_nodes() -> None:
    """64 of 72 accelerators where degrees are powers of two; 72 where they are not."""
    rack = cluster(72, None, node=4)
    sizes = {prod(members_per_tier(text)[0][:-1]) for text in all_extents(rack, (8, 1, 1, 64, 2))}
    assert sizes == {64}
    sizes = {prod(members_per_tier(text)[0][:-1]) for text in all_extents(rack, (8, 1, 1, 9, 4))}
    assert sizes == {72}


def test_two_tiers_are_filled_one_after_the_other() -> None:
    """By hand: 4 of 16 in a node, 2 nodes in a rack; each split over two axes."""
    found = all_extents(cluster(2, 4, None, node=2), (2, 1, 1, 1, 4))
    assert found == ["pp=2/pp=2", "pp=2/tp=2", "tp=2/pp=2"]


def test_experts_are_placed_in_every_way() -> None:
    """16 replicas with 8 groups on nodes of 8: all groups in a node, or fewer with copies."""
    found = all_extents(cluster(8, None), (1, 1, 1, 16, 1), (8, 1))
    assert found == ["dp=8", "dp=8+ep=4"]


def test_a_search_tries_every_placement() -> None:
    """Those of every layout, all legal; the best is at least as good as by any order of axes."""
    model, machine = MODEL, System.load("h100-sxm")
    fixed: dict[str, Any] = {"gpus": 32, "gbs": 32, "seq_len": 32, "mbs": 1, "vpp": 1}
    fixed |= {"recompute": "none", "tp_overlap": "none", "zero": 1, "schedule": "1f1b"}
    fixed |= {"fused_activation": False, "dp_overlap": True, "offload_weights": False}
    by_order = search(model, machine, fixed)
    seated = search(model, machine, fixed | {"extents": "all"})
    assert seated.best[0].step_time_s <= by_order.best[0].step_time_s * (1 + 1e-12)
    assert seated.candidates > by_order.candidates
    text = seated.best[0].strategy["extents"]
    one = estimate(model, machine, seated.best[0].strategy)
    assert one.step_time_s == pytest.approx(seated.best[0].step_time_s, rel=1e-12)
    adds = members_per_tier(text)[0]
    for axis, members in zip(EXTENT_AXES, adds, strict=False):
        assert one.extents[axis] == (members, one.strategy[axis])
    layouts = [
        dict(zip(EXTENT_AXES, d, strict=True)) for d in product([1, 2, 4, 8, 16, 32], repeat=5)
    ]
    counted = sum(
        len(all_extents(machine, tuple(layout.values())))
        for layout in layouts
        if prod(layout.values()) == 32
        and layout["tp2"] == layout["cp"] == 1
        and layout["tp"] <= 8
        and layout["pp"] <= 4
    )
    plain = {"tp_exchange": "all_reduce", "dp_overlap": False}
    plain |= {f"offload_{part}": False for part in ("weights", "activations", "optimizer")}
    alone = search(model, machine, fixed | plain | {"extents": "all", "zero": 0})
    assert alone.candidates == counted


def test_the_slow_bandwidth_of_a_group_grows_with_its_members_in_a_node() -> None:
    """Four of sixteen replicas in a node use four NICs: large gradients take a quarter."""
    machine = System.load("h100-sxm")
    base: dict[str, Any] = {"gpus": 64, "tp": 4, "gbs": 64, "dp_overlap": False, "zero": 0}
    times = {
        text: estimate("llama3-8b", machine, base | {"extents": text}).comm_s["dp"].total
        for text in ("tp=4+dp=2", "dp=8", "tp=2+dp=4")
    }
    assert times["tp=4+dp=2"] / times["dp=8"] == pytest.approx(4, rel=0.2)
    assert times["tp=4+dp=2"] / times["tp=2+dp=4"] == pytest.approx(2, rel=0.1)


def test_columns_take_extents_by_row() -> None:
    """Texts, one for each row; null and NaN leave it to the placement."""
    columns = {"tp": 4, "dp": 4, "gbs": 16}
    table = Table.of(MODEL, columns | {"extents": ["tp=4+dp=2", None, "dp=4+tp=2", "tp=2+dp=4"]})
    assert table.extent_lists == ("tp=4+dp=2", "tp=2+dp=4")
    assert table.extents.tolist() == [0, -1, 1, 1]
    assert [table.strategy(n).extents for n in range(3)] == ["tp=4+dp=2", None, "tp=2+dp=4"]
    joined = Table.joined([table.take(slice(2, 3)), Table.of(MODEL, columns)])
    assert [joined.strategy(n).extents for n in range(2)] == ["tp=2+dp=4", None]
    assert np.all(first_violation(MODEL, System.load("h100-sxm"), table) < 0)
