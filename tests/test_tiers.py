"""Axes on tiers of their own: extents beside those that are placed, and the times that follow."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import run
from shardwise import System
from shardwise.config.enums import PLACEMENTS
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.placement import place

pytestmark = pytest.mark.any_software

AXES = ("tp", "dp", "pp")
SIZE = 8192


def cluster(*domains: int | None, node: int = 8) -> System:
    """A network of tiers with these domains, the inner ones faster."""
    rates = [100e9 / 10**tier for tier in range(len(domains))]
    network = [
        samples.tier(f"tier {tier}", domain=domain, bandwidth=rate)
        for tier, (domain, rate) in enumerate(zip(domains, rates, strict=True))
    ]
    return samples.system(network=network, node=node)


def extents(machine: System, **columns: object) -> dict[str, list[int]]:
    """Extents of each axis by tier."""
    table = Table.of(samples.model(samples.layer(count=64)), {"gbs": 1} | columns)
    placed = place(machine, table)
    return {axis: getattr(placed, axis)[:, 0].tolist() for axis in AXES}


BY_HAND: list[tuple[dict[str, Any], dict[str, list[int]]]] = [
    # Placed, tp fills the node; laid between nodes, it leaves it to dp.
    ({}, {"tp": [8, 8, 8], "dp": [1, 4, 4], "pp": [1, 1, 2]}),
    ({"tp_tier": 0}, {"tp": [8, 8, 8], "dp": [1, 4, 4], "pp": [1, 1, 2]}),
    ({"dp_tier": 1}, {"tp": [8, 8, 8], "dp": [1, 4, 4], "pp": [1, 1, 2]}),
    ({"dp_tier": 2}, {"tp": [8, 8, 8], "dp": [1, 1, 4], "pp": [1, 2, 2]}),
    ({"dp_tier": 0}, {"tp": [2, 8, 8], "dp": [4, 4, 4], "pp": [1, 1, 2]}),
    ({"pp_tier": 0}, {"tp": [4, 8, 8], "dp": [1, 2, 4], "pp": [2, 2, 2]}),
    ({"pp_tier": 0, "dp_tier": 2}, {"tp": [4, 8, 8], "dp": [1, 1, 4], "pp": [2, 2, 2]}),
    ({"tp_tier": 2}, {"tp": [1, 1, 8], "dp": [4, 4, 4], "pp": [2, 2, 2]}),
    (
        {"tp_tier": 0, "dp_tier": 1, "pp_tier": 2},
        {"tp": [8, 8, 8], "dp": [1, 4, 4], "pp": [1, 1, 2]},
    ),
]


@each_row(("tiers", "expected"), BY_HAND)
def test_what_is_laid_on_a_tier_takes_its_room_there(
    tiers: dict[str, int], expected: dict[str, list[int]]
) -> None:
    """64 accelerators, tp 8, dp 4 and pp 2, in domains of 8 and 32; others fill what is left."""
    assert extents(cluster(8, 32, None), tp=8, dp=4, pp=2, **tiers) == expected


def test_one_tier_carries_all_collectives_of_its_axis() -> None:
    """2 ranks beside each other in a node that meet over 10 or 1 GB/s instead of 100."""
    machine = cluster(8, 32, None)
    near = run(machine=machine, tp=2, pp=2, dp=2, gbs=4, zero=0, dp_overlap=False)
    for tier, slower in ((0, 1), (1, 10), (2, 100)):
        columns = {"tp_tier": tier, "dp_tier": tier, "pp_tier": tier}
        far = run(machine=machine, tp=2, pp=2, dp=2, gbs=4, zero=0, dp_overlap=False, **columns)
        for axis in AXES:
            expected = slower * near.comm_s[axis].total
            assert far.comm_s[axis].total == pytest.approx(expected)


def test_stages_on_a_tier_hand_over_there() -> None:
    """1/8 of an activation between nodes that tp fills, or inside where the stages are told to.

    One message of one micro-batch comes in to either of two stages.
    """
    machine = cluster(8, None)
    for tier, rate in ((None, 10e9), (1, 10e9)):
        result = run(machine=machine, tp=8, pp=2, pp_tier=tier)
        assert result.time_s["pp_comm"] == pytest.approx(SIZE / 8 / rate)
    inside = run(machine=machine, tp=8, pp=2, pp_tier=0, placement="pp-dp-tp")
    assert inside.time_s["pp_comm"] == pytest.approx(SIZE / 8 / 100e9)


def test_copies_of_tied_words_meet_where_the_stages_do() -> None:
    """64,000 gradients of 4 bytes, all-reduced by a pair on the tier of the stages."""
    for tier, rate in ((0, 100e9), (1, 10e9)):
        result = run(machine=cluster(8, None), pp=2, pp_tier=tier)
        assert result.comm_s["dp"].total == pytest.approx(64_000 * 4 / rate)


degree = st.sampled_from([1, 2, 3, 4, 8, 16])
networks = st.sampled_from([(8, None), (8, 32, None), (72, None), (None,), (8, 64)])
tier = st.sampled_from([None, 0, 1, 2])


@examples(100)
@given(networks, degree, degree, degree, st.tuples(tier, tier, tier), st.sampled_from(PLACEMENTS))
def test_extents_with_some_axes_on_tiers(
    domains: tuple[int | None, ...],
    tp: int,
    dp: int,
    pp: int,
    tiers: tuple[int | None, ...],
    placement: str,
) -> None:
    """An axis with a tier jumps to its degree there, the others grow to theirs."""
    machine = cluster(*domains)
    given = dict(zip(("tp_tier", "dp_tier", "pp_tier"), tiers, strict=True))
    degrees = {"tp": tp, "dp": dp, "pp": pp}
    layer = samples.layer(count=16, attention={"heads": 48, "kv_heads": 48}, mlp={"ffn": 192})
    model = samples.model(layer)
    columns = degrees | given | {"gbs": dp, "placement": placement, "sequence_parallel": False}
    table = Table.of(model, columns)
    assume(first_violation(model, machine, table)[0] < 0)
    placed = place(machine, table)
    found = {axis: getattr(placed, axis)[:, 0] for axis in AXES}
    for axis, own in zip(AXES, tiers, strict=True):
        assert found[axis][-1] == degrees[axis]
        if own is not None:
            jump = [degrees[axis] if position >= own else 1 for position in range(len(domains))]
            assert found[axis].tolist() == jump
        assert (found[axis][1:] % found[axis][:-1] == 0).all()


def test_a_tier_of_its_own_takes_room_once_beyond_nodes_of_several_domains() -> None:
    """Nodes of 8 hold 2 domains of 4: tp fills one, dp joins both, pp 4 nodes of a rack of 32."""
    machine = cluster(4, 32, None, node=8)
    placed = extents(machine, tp=4, dp=2, pp=8)
    assert placed == {"tp": [4, 4, 4], "dp": [1, 2, 2], "pp": [1, 4, 8]}
    assert extents(machine, tp=4, dp=2, pp=8, dp_tier=1) == placed


def test_placed_and_given_axes_share_a_domain() -> None:
    """tp between domains of 8 which dp and pp fill needs 8 of them; a rack has 4."""
    machine = cluster(8, 32, None)
    model = samples.model(samples.layer(count=64))
    table = Table.of(model, {"gbs": 4, "tp": 8, "dp": 4, "pp": 2, "tp_tier": 1})
    reason = CONSTRAINTS[first_violation(model, machine, table)[0]].reason
    assert reason == "tier_size"
    half = Table.of(model, {"gbs": 4, "tp": 4, "dp": 4, "pp": 2, "tp_tier": 1})
    assert first_violation(model, machine, half).tolist() == [-1]


def test_the_largest_divisor_is_found_without_counting_down() -> None:
    """Of a prime near 2^31, of a square, of a small limit: in no time."""
    machine = cluster(8, 2**30, None)
    prime = 2**31 - 1
    assert extents(machine, dp=prime, gbs=prime)["dp"] == [1, 1, prime]
    assert extents(machine, dp=46337**2, gbs=46337**2)["dp"] == [1, 46337, 46337**2]
