"""The link to the host as trainers find it: rates of pinned copies, sharing, both ways, reserves.

GPT sample as in `test_offload`: 4 layers of 12 h^2 + 13 h weights with h = 64, micro-batches of
2 x 32 tokens in bf16, behind a link of 1 GB/s that decides.
"""

from typing import Any

import numpy as np
import pytest

import samples
from rows import each_row
from samples import column, passes, run
from shardwise import Estimate, InputError, System, largest_model, search
from shardwise.catalog import names
from shardwise.config.system_columns import SystemColumns, with_figures
from shardwise.cost.overlap import (
    LinkRates,
    both_ways_time,
    d2h_time,
    h2d_time,
    link_rate,
    optimizer_transfer,
)
from shardwise.planning.sweep.axes import figure_names, figures_named, varied_axes
from shardwise.planning.sweep.changes import with_node
from shardwise.planning.sweep.sensitivity import harmful_factor, helpful_factor

LAYER = 12 * 64**2 + 13 * 64
WEIGHTS = 2 * LAYER
SBH = 64 * 64
SAVED = 34 * SBH + 4 * 64 * 8
RAW = 1e9
OFFLOADS = ("offload_weights", "offload_activations", "offload_optimizer")
OTHERS = [name for name in names("systems") if name.startswith(("calculon", "nersc", "simumax"))]
OWN = sorted({*names("systems")} - {*OTHERS, "cpu-server"})  # processors have no link to a host


def machine(*, capacity: float = 1e12, bandwidth: float = RAW, **host: Any) -> System:
    """The sample machine with nodes of 8 and a host; without figures of copies an ideal one."""
    first = {"name": "hbm", "capacity": 80e9, "bandwidth": 1e12}
    second = {"name": "host", "capacity": capacity, "bandwidth": bandwidth}
    return samples.system(memory=[first, second | {"host": host or None}])


def offloaded(*parts: str, link: System, **columns: Any) -> Estimate:
    """Run with some parts in the host."""
    flags = {f"offload_{part}": True for part in parts}
    return run(machine=link, **({"zero": 0} | flags | columns))


def test_the_rate_is_the_raw_one_times_the_share_over_those_that_share() -> None:
    """PCIe 4.0 x16 of two GPUs: 32 x 0.8 / 2 = 12.8 GB/s; PCIe 5.0 x16 of one: 64 x 0.7 = 44.8."""
    rates = link_rate(column(32e9, 64e9), column(0.8, 0.7), column(2, 1))
    np.testing.assert_allclose(rates, [12.8e9, 44.8e9])
    link = machine(bandwidth=32e9, h2d_efficiency=0.8, d2h_efficiency=0.5, shared_by=4)
    found = LinkRates.of(link.accelerator.memory[1])
    assert (float(found.h2d), float(found.d2h), float(found.duplex)) == (6.4e9, 4e9, 2)


def test_both_ways_take_the_longer_or_their_sum_over_the_duplex() -> None:
    """3 s in and 4 s out: 4 s at once, 7 s in turns, 5 s at 1.4; 1 s and 9 s are 9 s at 1.4."""
    once = both_ways_time(column(3, 3, 3, 1), column(4, 4, 4, 9), column(2, 1, 1.4, 1.4))
    np.testing.assert_allclose(once, [4, 7, 5, 9])


def test_each_direction_has_its_own_time() -> None:
    """10^9 bytes: 1 / (0.8 / 2) = 2.5 s in, 1 / (0.5 / 2) = 4 s out."""
    link = machine(h2d_efficiency=0.8, d2h_efficiency=0.5, shared_by=2)
    size = column(1e9)
    assert h2d_time(link, size)[0] == pytest.approx(2.5)
    assert d2h_time(link, size)[0] == pytest.approx(4)


@each_row(("duplex", "together"), [(2.0, max), (1.0, lambda i, o: i + o)])
def test_forward_weights_come_in_while_activations_go_out(duplex: float, together: Any) -> None:
    """Weights at 0.8 GB/s, activations at 0.5; backward both come in, one after the other."""
    link = machine(h2d_efficiency=0.8, d2h_efficiency=0.5, duplex=duplex)
    result = offloaded("weights", "activations", link=link)
    forward, backward = passes(result)
    out = together(WEIGHTS / 0.8e9, SAVED / 0.5e9) - forward
    back = (WEIGHTS + SAVED) / 0.8e9 - backward
    assert min(out, back) > 0
    # The updated weights go back behind the last backward pass, 4 layers of the way in, and the
    # update.
    last = result.stages[0].backward_s
    used = 4 * (WEIGHTS + SAVED) / 0.8e9
    _, late = optimizer_transfer(
        link,
        state_bytes=column(0),
        weight_bytes=column(4 * WEIGHTS),
        idle_in_s=column(last - used + result.time_s["optimizer"]),
        idle_out_s=column(last + result.time_s["optimizer"]),
    )
    assert bool(late[0] > 0) is (duplex < 2)
    assert result.time_s["offload"] == pytest.approx(4 * (out + back) + late[0])


def test_twice_as_many_on_the_link_take_twice_as_long() -> None:
    """Forward only, activations alone: 4 layers of S n / B less their passes."""
    for shared_by in (1, 2, 4):
        result = offloaded("weights", link=machine(shared_by=shared_by), training=False)
        forward, _ = passes(result)
        assert result.time_s["offload"] == pytest.approx(4 * (WEIGHTS * shared_by / RAW - forward))
        assert result.comm_s["offload"].total == pytest.approx(4 * WEIGHTS * shared_by / RAW)


def test_the_update_waits_for_both_ways() -> None:
    """12 bytes in and 16 out at 1 byte/s, in turns: 28 s, less what is idle.

    Nothing idle: 28 s late. 20 s each way: 8 s. 6 s in and 20 s out, so 14 s of the way in are
    used: 12 + 16 + 14 - 20 = 22 s. At a duplex of 1.4 alone 28 / 1.4 = 20 s, late by 20, by
    max(-8, -4, 0) = 0 and by max(6, -4, 42 / 1.4 - 20) = 10 s.
    """
    idle = {"idle_in_s": column(0, 20, 6), "idle_out_s": column(0, 20, 20)}
    moved = {"state_bytes": column(12, 12, 12), "weight_bytes": column(4, 4, 4)}
    for duplex, alone_s, late_s in ((1.0, 28, [28, 8, 22]), (1.4, 20, [20, 0, 10])):
        link = machine(bandwidth=1, duplex=duplex)
        alone, late = optimizer_transfer(link, **moved, **idle)
        np.testing.assert_allclose(alone, [alone_s] * 3)
        np.testing.assert_allclose(late, late_s, atol=1e-12)


def test_the_defaults_change_nothing() -> None:
    """A host with all figures at their defaults gives the numbers of a tier without, exactly."""
    explicit = machine(shared_by=1, reserved=0, duplex=2, h2d_efficiency=1, d2h_efficiency=1)
    for columns in ({}, {"pp": 2, "gbs": 8}, {"dp": 4, "gbs": 8, "zero": 1}, {"training": False}):
        flags = {"zero": 0, **dict.fromkeys(OFFLOADS, True), **columns}
        ideal, given = (run(machine=link, **flags) for link in (machine(), explicit))
        assert given.to_dict() == ideal.to_dict()


@each_row("duplex", [1.0, 1.13, 1.4])
def test_at_the_required_bandwidth_nothing_is_exposed(duplex: float) -> None:
    """A link of exactly that rate hides all that moves; one of 0.98 of it does not."""
    parts = ("weights", "activations", "optimizer")
    fast = offloaded(*parts, link=machine(bandwidth=1e15, duplex=duplex), gbs=8)
    needed = fast.required_bandwidth.offload
    assert needed is not None
    for share, hidden in ((1 + 1e-9, True), (0.98, False)):
        link = machine(bandwidth=needed * share, duplex=duplex)
        exposed = offloaded(*parts, link=link, gbs=8).time_s["offload"]
        assert (exposed < 1e-9 * fast.step_time_s) is hidden


@each_row("spare", [0, -1])
def test_reserved_bytes_are_not_for_tensors(spare: int) -> None:
    """All weights fit into what is left of the host to its last byte, which the estimate names."""
    link = machine(capacity=4 * WEIGHTS + 1000 + spare, reserved=1000)
    result = offloaded("weights", link=link)
    assert result.fits is (spare == 0)
    assert result.memory_bytes.offload_capacity == 4 * WEIGHTS + spare
    assert run(machine=link).fits


def test_all_of_the_host_may_be_reserved() -> None:
    """Nothing can be offloaded then, and what is not offloaded fits as before."""
    link = machine(capacity=1e9, reserved=1e9)
    assert link.accelerator.memory[1].usable_bytes == 0
    assert run(machine=link).fits
    assert not offloaded("weights", link=link).fits


def test_searches_know_what_is_reserved() -> None:
    """Weights of 4 layers need 4 WEIGHTS; with one byte less of the host they are rejected."""
    space = {"offload_weights": [True], "offload_activations": [False], "zero": [0]}
    space |= {"offload_optimizer": [False], "micro_batch_size": [2], "recompute": ["none"]}
    space |= {"any_software": [True]}
    for usable, rejected in ((4 * WEIGHTS, False), (4 * WEIGHTS - 1, True)):
        link = machine(capacity=usable + 5000, reserved=5000)
        found = search(samples.model(), link, gpus=1, gbs=2, space=space, seq_len=32)
        assert bool(found.rejected.get("second_memory")) is rejected
        assert bool(found.best) is not rejected


def test_the_largest_model_knows_what_is_reserved() -> None:
    """224 of 256 GiB of the host of each GPU."""
    few = {"tp": 8, "pp": 1, "mbs": 1, "recompute": "full", "tp_overlap": "stack"}
    found = largest_model("h100-sxm", gpus=8, count=1, space=few)
    assert found.second_capacity_bytes == 224 * 2**30


def test_the_message_names_the_host(shardwise: Any) -> None:
    """By how much it is exceeded, and how much of it is usable."""
    words = "estimate llama3-405b h100-sxm --gpus 8 --tp 8 --gbs 8 --offload-optimizer --zero 0"
    code, out, _ = shardwise(*words.split())
    assert code == 1
    assert "in host memory, of 224 GiB usable" in " ".join(out.split())


def test_systems_show_what_copies_get(shardwise: Any) -> None:
    """Rates, both ways and bytes in one line, whether or not every figure is explained."""
    line = (
        "host: 12.8 GB/s in and 12.8 GB/s out per accelerator while all copy pinned memory; both "
        "at once 1.4 times the progress of one; 224 GiB of 256 GiB usable"
    )
    for flags in ((), ("--explain",)):
        _, out, _ = shardwise("systems", "a100-80gb-sxm", *flags)
        assert line in " ".join(out.split())
    _, out, _ = shardwise("systems", "calculon-a100-80g")
    assert "while all copy" not in out


@each_row(
    ("host", "problem"),
    [
        ({"h2d_efficiency": 0}, "h2d_efficiency"),
        ({"h2d_efficiency": 1.01}, "h2d_efficiency"),
        ({"d2h_efficiency": -0.5}, "d2h_efficiency"),
        ({"d2h_efficiency": True}, "d2h_efficiency"),
        ({"duplex": 0.99}, "duplex"),
        ({"duplex": 2.01}, "duplex"),
        ({"shared_by": 0}, "shared_by"),
        ({"shared_by": 1.5}, "shared_by"),
        ({"shared_by": 9}, "accelerator.memory[1].host.shared_by: 9 must be at most node.acc"),
        ({"reserved": -1}, "reserved"),
        ({"reserved": "2 TB"}, "host.reserved: 2 TB must be at most the capacity, 1 TB"),
        ({"pinned": 1}, "pinned"),
    ],
)
def test_impossible_figures_are_refused(host: dict[str, Any], problem: str) -> None:
    """By the field."""
    with pytest.raises(InputError) as refused:
        machine(**host)
    assert problem in str(refused.value)


def test_the_accelerators_own_memory_has_no_host() -> None:
    """One line that says so."""
    first = {"name": "hbm", "capacity": 80e9, "bandwidth": 1e12, "host": {"shared_by": 2}}
    with pytest.raises(InputError, match=r"memory\[0\]\.host: must be null") as refused:
        samples.system(memory=[first])
    assert len(refused.value.faults) == 1


def test_columns_of_systems_have_the_figures_of_each() -> None:
    """Links that differ in every figure: each row moves its bytes at the rates of its own."""
    links = [
        machine(h2d_efficiency=e, d2h_efficiency=e / 2, shared_by=n, duplex=d, reserved=r)
        for e, n, d, r in ((0.8, 1, 1.0, 0), (0.5, 2, 1.5, 1e11), (1.0, 8, 2.0, 1e12))
    ]
    columns = SystemColumns.of(links)
    together = columns.at(np.arange(3))
    sizes = column(1e9, 2e9, 3e9)
    moved = {"state_bytes": sizes, "weight_bytes": sizes}
    moved |= {"idle_in_s": column(0, 1, 1), "idle_out_s": column(1, 1, 2)}
    late = optimizer_transfer(together, **moved)
    for row, link in enumerate(links):
        for time in (h2d_time, d2h_time):
            assert time(together, sizes)[row] == time(link, sizes)[row]
        assert [one[row] for one in late] == [one[row] for one in optimizer_transfer(link, **moved)]
    room = together.accelerator.memory[1].usable_bytes
    np.testing.assert_allclose(room, [1e12, 9e11, 0])
    # Figures of a column are not validated: a sweep may reserve more than there is.
    path = ("accelerator", "memory", 1, "host", "reserved")
    more = with_figures(links[0], {path: column(2e12)})
    assert more.accelerator.memory[1].usable_bytes == 0


def test_sweeps_vary_the_figures_of_the_host() -> None:
    """By the name of the tier; the first tier has none of them."""
    system = System.load("a100-80gb-sxm")
    known = figure_names(system)
    words = ("h2d_efficiency", "d2h_efficiency", "duplex", "shared_by", "reserved")
    assert {f"host.{word}" for word in words} <= set(known)
    assert not {f"hbm.{word}" for word in words} & set(known)
    (axis,) = varied_axes({"host.shared_by": ["1", "2"]}, [system])
    assert len(axis.values) == 2
    for name, factor in (
        ("host.shared_by", 0.5),
        ("host.h2d_efficiency", 1.25),
        ("host.reserved", 0.5),
    ):
        figure = figures_named(system, name)
        values = {figure.paths[0]: {"shared_by": 2, "h2d_efficiency": 0.8}.get(name[5:], 2.0**35)}
        assert helpful_factor(figure, values) == pytest.approx(factor)
    alone = figures_named(system, "host.shared_by")
    assert helpful_factor(alone, {alone.paths[0]: 1.0}) == 1
    duplex = figures_named(system, "host.duplex")
    assert helpful_factor(duplex, {duplex.paths[0]: 1.6}) == pytest.approx(1.25)
    assert harmful_factor(duplex, {duplex.paths[0]: 1.6}) == pytest.approx(0.625)


def test_smaller_nodes_share_among_themselves() -> None:
    """A node of one accelerator has the link to itself."""
    system = System.load("a100-80gb-sxm")
    for size, shared_by in ((4, 2), (1, 1)):
        changed, notes = with_node(system, size)
        host = changed.accelerator.memory[1].host
        assert host is not None
        assert host.shared_by == shared_by
        assert any("is shared by" in note for note in notes) is (shared_by < 2)


@each_row("name", OWN)
def test_the_catalog_has_real_links(name: str) -> None:
    """Slower than the raw rate in each direction, not all usable, with a source of their own."""
    system = System.load(name)
    tier = system.accelerator.memory[1]
    rates = LinkRates.of(tier)
    assert tier.host is not None
    assert 0.1 * tier.bandwidth < rates.d2h <= 0.9 * tier.bandwidth
    assert 0.1 * tier.bandwidth < rates.h2d <= 0.9 * tier.bandwidth
    if name != "gb10":  # one memory for both: nothing can be offloaded
        assert 0.6 * tier.capacity < tier.usable_bytes < 0.9 * tier.capacity
    for field in ("h2d_efficiency", "d2h_efficiency", "duplex", "shared_by", "reserved"):
        source = system.source_of(f"accelerator.memory.1.host.{field}")
        assert source is not None
        assert source != system.source_of("accelerator.memory.1")


@each_row(
    ("name", "h2d", "d2h", "both"),
    [
        # nvbandwidth, all at once [GB/s]: H800 both ways 32.8 in and 24.1 out; GB200 82.5 and 81.6.
        ("h800-sxm", 55.2, 44.8, (32.8, 24.1)),
        ("gb200-nvl72", 168.5, 182.1, (82.5, 81.6)),
        # A pair behind an uplink: half of one alone, 25.7 GB/s; both ways 12 in and 24.5 out.
        ("a100-80gb-sxm", 12.85, 12.9, (6.0, 12.25)),
    ],
)
def test_the_catalog_has_what_was_measured(
    name: str, h2d: float, d2h: float, both: tuple[float, float]
) -> None:
    """Within 1 % one way, within 7 % both ways: GB200 moves less at once than in turns."""
    rates = LinkRates.of(System.load(name).accelerator.memory[1])
    assert float(rates.h2d) / 1e9 == pytest.approx(h2d, rel=0.01)
    assert float(rates.d2h) / 1e9 == pytest.approx(d2h, rel=0.01)
    progress = both[0] * 1e9 / rates.h2d + both[1] * 1e9 / rates.d2h
    assert float(rates.duplex) == pytest.approx(float(progress), rel=0.07)


def test_predecessors_have_ideal_links() -> None:
    """Their published figures, nothing else."""
    assert OTHERS
    for name in OTHERS:
        assert all(tier.host is None for tier in System.load(name).accelerator.memory)
