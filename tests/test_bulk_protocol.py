"""Gathers and scatters of two protocols: the faster counts, by hand and on any machine."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import GB, column, exchange
from shardwise import InputError, System
from shardwise.cost.collective import collective_time
from shardwise.ops.operation import CollectiveKind

pytestmark = pytest.mark.any_software

AG, AR, RS = (CollectiveKind(kind) for kind in ("all_gather", "all_reduce", "reduce_scatter"))
BULK = {"small_rate": 2 * GB, "latency": 1e-3, "latency_per_member": 1e-4, "join_exponent": 2}
fast = examples(60)


def tier(*, bulk: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """10 GB/s, 10 us and 1 us for each further member or domain; two protocols unless told not."""
    plain = samples.tier(
        "between", bandwidth=10 * GB, latency=1e-5, latency_per_member=1e-6, **fields
    )
    for kind in ("all_gather", "reduce_scatter"):
        plain["collectives"][kind] = plain["collectives"][kind] | {"bulk": bulk or BULK}
    return plain


def test_the_faster_protocol_counts() -> None:
    """8 members: 16 us + c S / 2 GB/s, or 1.6 ms and c S / 10 GB/s joined by squares."""
    for kind in (AG, RS):
        assert exchange(kind, 8e5, [8], tier()) == pytest.approx(16e-6 + 7e5 / 2e9)
        assert exchange(kind, 8e7, [8], tier()) == pytest.approx((1.6e-3**2 + 7e-3**2) ** 0.5)
    assert exchange(AG, 0, [8], tier()) == 0
    assert exchange(AG, 8e7, [1], tier()) == 0


def test_members_wait_and_links_add_up() -> None:
    """2 domains of 4: 10 us beside those inside; 8 members wait; 4 links for large buffers."""
    inside = samples.tier("inside", domain=4, latency=2e-6)
    small, large = 8e5, 8e8
    told = exchange(AG, small, [4, 8], inside, tier())
    assert told == pytest.approx(2e-6 + 1e-5 + 7 / 8 * small / 2e9)
    told = exchange(AG, large, [4, 8], inside, tier())
    assert told == pytest.approx((1.6e-3**2 + (7 / 8 * large / 40e9) ** 2) ** 0.5)
    within = exchange(AG, large, [4, 4], inside, tier())
    assert within == exchange(AG, large, [4, 4], inside, samples.tier("between"))


def test_a_share_of_the_bandwidth_slows_both() -> None:
    """Half of it doubles what passes, not what waits."""
    machine = samples.system(network=[tier()])
    extents = np.array([[8]])
    small, large = (
        float(collective_time(machine, AG, column(size), extents, 0.5)[0]) for size in (8e5, 8e7)
    )
    assert small == pytest.approx(16e-6 + 2 * 7e5 / 2e9)
    assert large == pytest.approx((1.6e-3**2 + 14e-3**2) ** 0.5)


@fast
@given(
    size=st.floats(1, 1e10),
    members=st.integers(2, 512),
    rate=st.floats(1e8, 1e11),
    wait=st.floats(0, 1e-2),
    exponent=st.floats(0.3, 4),
)
def test_more_is_never_faster(
    size: float, members: int, rate: float, wait: float, exponent: float
) -> None:
    """More bytes, members and waiting never are; a second protocol is no slower than one."""

    def told(size: float, members: int, **changes: Any) -> float:
        bulk = BULK | {"small_rate": rate, "latency": wait, "join_exponent": exponent} | changes
        return exchange(AG, size, [members], tier(bulk=bulk))

    once = told(size, members) * (1 - 1e-9)
    assert told(2 * size, members) >= once
    assert told(size, members + 1) >= once
    assert told(size, members, latency=2 * wait) >= once
    assert told(size, members, small_rate=rate / 2) >= once
    slow = told(size, members, latency=60.0)
    latency = 1e-5 + 1e-6 * (members - 2)
    assert slow == pytest.approx(latency + (members - 1) / members * size / rate)


@each_row(
    ("kind", "changes", "told"),
    [
        ("all_reduce", {}, "only of all_gather and reduce_scatter, without scale and offset"),
        ("p2p", {}, "only of all_gather and reduce_scatter, without scale and offset"),
        ("all_gather", {"scale": 1, "offset": 0}, "only of all_gather and reduce_scatter, without"),
    ],
)
def test_other_collectives_have_one(kind: str, changes: dict[str, Any], told: str) -> None:
    """As do those whose bytes are given."""
    fields = System.load("a100-40gb-sxm").to_dict()
    rates = fields["network"][1]["collectives"][kind]
    fields["network"][1]["collectives"][kind] = rates | {"bulk": BULK} | changes
    with pytest.raises(InputError) as error:
        System.load(fields)
    assert f"collectives.{kind}.bulk: {told}" in str(error.value)


def test_a_protocol_needs_all_its_figures() -> None:
    """Each figure is needed, and in its range."""
    fields = System.load("a100-40gb-sxm").to_dict()
    rates = fields["network"][1]["collectives"]["all_gather"]
    rates["bulk"] = {"small_rate": 0, "latency": -1, "join_exponent": 9}
    with pytest.raises(InputError) as error:
        System.load(fields)
    place = "system: network[1].collectives.all_gather.bulk"
    assert sorted(map(str, error.value.faults)) == [
        f"{place}.join_exponent: 9: must be at most 8",
        f"{place}.latency: -1: must be at least 0 seconds",
        f"{place}.latency_per_member: is missing and has no default",
        f"{place}.small_rate: 0: must be at least 1 byte/s",
    ]
