"""Extents: how many members of each axis share a domain, by hand and for any degrees."""

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise.config.enums import PLACEMENTS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.placement import place

pytestmark = pytest.mark.any_software

AXES = ("tp", "cp", "dp", "pp")


def cluster(*domains: int | None, node: int = 8) -> System:
    """A network of tiers with these domains."""
    return samples.system(network=[samples.tier(domain=domain) for domain in domains], node=node)


def extents(machine: System, **columns: object) -> list[dict[str, int]]:
    """For each tier, the extents of the axes that are not 1."""
    table = Table.of(samples.model(), {"gbs": 1} | columns)
    placed = place(machine, table)
    tiers = range(len(machine.network))
    found = [{axis: int(getattr(placed, axis)[tier, 0]) for axis in AXES} for tier in tiers]
    return [{axis: extent for axis, extent in tier.items() if extent > 1} for tier in found]


BY_HAND = [
    # Inner axes first: tp fills a node of 8; then dp, then pp get what is left.
    ({"tp": 8, "dp": 4, "pp": 2}, "tp-cp-dp-pp", {"tp": 8}),
    ({"tp": 2, "dp": 16, "pp": 2}, "tp-cp-dp-pp", {"tp": 2, "dp": 4}),
    ({"tp": 2, "dp": 2, "pp": 8}, "tp-cp-dp-pp", {"tp": 2, "dp": 2, "pp": 2}),
    ({"tp": 2, "dp": 16, "pp": 2}, "tp-cp-pp-dp", {"tp": 2, "dp": 2, "pp": 2}),
    ({"tp": 8, "dp": 4}, "dp-tp-cp-pp", {"dp": 4, "tp": 2}),
    ({"tp": 4, "dp": 4, "pp": 4}, "pp-dp-tp-cp", {"pp": 4, "dp": 2}),
    ({"tp": 2, "cp": 2, "dp": 8}, "tp-cp-dp-pp", {"tp": 2, "cp": 2, "dp": 2}),
    ({"tp": 2, "cp": 2, "dp": 8}, "dp-tp-cp-pp", {"dp": 8}),
    # A part of an axis: 16 do not fit, 8 do; 12 share 4 with 8; 3 share nothing but 1.
    ({"tp": 16, "dp": 2}, "tp-cp-dp-pp", {"tp": 8}),
    ({"tp": 12, "dp": 2}, "tp-cp-dp-pp", {"tp": 4, "dp": 2}),
    ({"tp": 6, "dp": 6}, "tp-cp-dp-pp", {"tp": 2, "dp": 2}),
]


@each_row(("degrees", "placement", "inside"), BY_HAND)
def test_extents_in_nodes_of_eight(
    degrees: dict[str, int], placement: str, inside: dict[str, int]
) -> None:
    """The order of the axes decides which of them stay within a node."""
    whole = {axis: degree for axis, degree in degrees.items() if degree > 1}
    found = extents(cluster(8, None), placement=placement, **degrees)
    assert found == [inside, whole]


def test_three_tiers() -> None:
    """Domains of 4, 16 and all: tp 8 spans two of the first; dp takes what is left of 16."""
    found = extents(cluster(4, 16, None), tp=8, dp=8)
    assert found == [{"tp": 4}, {"tp": 8, "dp": 2}, {"tp": 8, "dp": 8}]
    by_data = extents(cluster(4, 16, None), tp=8, dp=8, placement="dp-tp-pp")
    assert by_data == [{"dp": 4}, {"dp": 8, "tp": 2}, {"dp": 8, "tp": 8}]


def test_one_flat_tier_holds_everything() -> None:
    """A single network without domains: every axis is whole on it."""
    assert extents(cluster(None), tp=8, dp=3, pp=5) == [{"tp": 8, "dp": 3, "pp": 5}]


def test_job_that_fits_a_domain_lies_in_it() -> None:
    """Up to the domain's size nothing leaves it, whether or not the degrees divide it."""
    assert extents(cluster(8, None), tp=3, dp=2) == [{"tp": 3, "dp": 2}] * 2
    assert extents(cluster(72, None), tp=16, dp=4) == [{"tp": 16, "dp": 4}] * 2
    assert extents(cluster(4, 16, None), tp=2, dp=5)[1] == {"tp": 2, "dp": 5}


def test_racks_of_72() -> None:
    """72 = 8 x 9: tp 8 leaves room for 9; a job that is a multiple of the rack fills it."""
    assert extents(cluster(72, None), tp=8, dp=18) == [{"tp": 8, "dp": 9}, {"tp": 8, "dp": 18}]
    assert extents(cluster(72, None), tp=72, dp=2) == [{"tp": 72}, {"tp": 72, "dp": 2}]
    assert extents(cluster(72, None), tp=4, pp=6, dp=6)[0] == {"tp": 4, "dp": 6, "pp": 3}
    assert extents(cluster(72, None), tp=4, pp=6, dp=6, placement="pp-tp-dp")[0] == {
        "pp": 6,
        "tp": 4,
        "dp": 3,
    }


@each_row(
    ("degrees", "inside"),
    [({"tp": 16, "dp": 32}, {"tp": 16, "dp": 4}), ({"tp": 8, "dp": 64}, {"tp": 8, "dp": 8})],
)
@each_row("node", [4, 8])
def test_powers_of_two_use_64_of_a_rack_of_72(
    node: int, degrees: dict[str, int], inside: dict[str, int]
) -> None:
    """512 accelerators take 64 of each rack: tp 16, or 8 replicas of tp 8, stay inside one."""
    assert extents(cluster(72, None, node=node), **degrees)[0] == inside


def test_racks_are_filled_with_full_nodes() -> None:
    """Nodes of 4 hold 2 x 2 of tp 6 and dp 24, a rack 18 nodes: 3 x 6 more, which is all of it."""
    assert extents(cluster(72, None, node=4), tp=6, dp=24)[0] == {"tp": 6, "dp": 12}
    # tp 5 shares nothing with a node of 4, which 4 replicas fill; a rack has 18 nodes for 5 x 2.
    assert extents(cluster(72, None, node=4), tp=5, dp=32)[0] == {"tp": 5, "dp": 8}


degree = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 18, 32, 72])
networks = st.sampled_from(
    [(8, None), (72, None), (4, 16, None), (2, 8, 24, None), (None,), (1, 4, None), (8, 1 << 30)]
)


@examples(60)
@given(
    networks,
    st.lists(st.tuples(degree, degree, degree, degree), min_size=1, max_size=5),
    st.sampled_from(PLACEMENTS),
)
def test_extents_of_any_degrees(
    domains: tuple[int | None, ...], rows: list[tuple[int, int, int, int]], placement: str
) -> None:
    """They divide the degrees and grow outwards, fit each domain, and end at the degrees."""
    columns = dict(zip(AXES, map(list, zip(*rows, strict=True)), strict=True))
    table = Table.of(samples.model(), columns | {"gbs": 1, "placement": placement})
    placed = place(cluster(*domains), table)
    found = np.stack([getattr(placed, axis) for axis in AXES])
    degrees = np.array(rows).T
    assert (found[:, -1] == degrees).all()
    assert (degrees[:, None] % found == 0).all()
    assert (found[:, 1:] % found[:, :-1] == 0).all()
    for tier, domain in enumerate(domains):
        together = found[:, tier].prod(axis=0)
        if domain is not None:
            assert (together <= domain).all()
            fitting = table.gpus <= domain
            assert (found[:, tier][:, fitting] == degrees[:, fitting]).all()


@examples(60)
@given(networks, st.tuples(degree, degree, degree, degree), st.permutations(AXES))
def test_inner_axes_are_placed_first(
    domains: tuple[int | None, ...], degrees: tuple[int, ...], order: list[str]
) -> None:
    """The innermost axis does not depend on the degrees of those around it, once all spill over."""
    columns = dict(zip(AXES, degrees, strict=True))
    first = order[0]
    machine, placement = cluster(*domains), "-".join(order)
    assume(prod(degrees) > (domains[0] or 0))
    outer = columns | {order[-1]: columns[order[-1]] * 64}
    one = place(machine, Table.of(samples.model(), columns | {"gbs": 1, "placement": placement}))
    two = place(machine, Table.of(samples.model(), outer | {"gbs": 1, "placement": placement}))
    assert getattr(one, first)[0] == getattr(two, first)[0]
