"""Measured collectives: how near they come, and how their scores are made."""

import json
from math import log2

import numpy as np
import pytest

from rows import each_row
from shardwise import InputError, System
from shardwise.predecessors.validate.nersc_collectives import MeasuredCollectives, Series
from shardwise.validate import Compared, Part, Row, Score, validate

MIB = 2**20


@pytest.fixture(scope="module")
def parts():
    return {part.name: part for part in validate("nersc-collectives").parts}


@pytest.fixture(scope="module")
def measured():
    return MeasuredCollectives.load("nersc-collectives")


# Median and mean size of our errors: what was found when they were frozen, and a bit more.
BOUNDS = {
    "all_gather_small": (0.115, 0.14),
    "all_gather_middle": (0.09, 0.105),
    "all_gather_large": (0.015, 0.03),
    "reduce_scatter_small": (0.14, 0.155),
    "reduce_scatter_middle": (0.08, 0.10),
    "reduce_scatter_large": (0.02, 0.035),
    "all_reduce_small": (0.18, 0.23),
    "all_reduce_middle": (0.13, 0.13),
    "all_reduce_large": (0.045, 0.055),
}


def test_every_time_is_in_one_part(parts, measured):
    """1,069 of them, in three bands of three operations."""
    assert {name: len(part.rows) for name, part in parts.items()} == {
        "all_gather_small": 101,
        "all_gather_middle": 106,
        "all_gather_large": 144,
        "reduce_scatter_small": 84,
        "reduce_scatter_middle": 109,
        "reduce_scatter_large": 151,
        "all_reduce_small": 98,
        "all_reduce_middle": 114,
        "all_reduce_large": 162,
    }
    listed = [row.reference for part in parts.values() for row in part.rows]
    assert sorted(listed) == sorted(
        time for series in measured.series for time in series.us.values()
    )
    assert len(listed) == 1069


@pytest.mark.parametrize("name", BOUNDS)
def test_errors_are_what_they_were(parts, name):
    """No change of formula or figures makes them worse unnoticed."""
    median, mean = BOUNDS[name]
    assert parts[name].ours.median_ape < median
    assert parts[name].ours.mape < mean
    assert abs(parts[name].ours.bias) < 0.04


def test_middle_sizes_are_within_twenty_percent(parts):
    """Median of each operation, and of each number of GPUs per node, from 1 to 32 MiB."""
    middle = [part for name, part in parts.items() if name.endswith("_middle")]
    assert all(part.ours.median_ape < 0.20 for part in middle)
    per_node = [part.groups[f"{gpus} per node"] for part in middle for gpus in (1, 2, 4)]
    assert all(score.median_ape < 0.20 for score in per_node)
    rows = [row for part in middle for row in part.rows]
    for kind, names in enumerate((("1 per node", "2 per node", "4 per node"), ("1 node",))):
        for name in names:
            errors = [row.ours_error for row in rows if row.groups[kind] == name]
            assert len(errors) > 20
            assert Score.of(errors).median_ape < 0.20


def test_the_machine_is_the_declared_one(measured):
    """Four to a node, a NIC each; two of them share one of three links, where a switch has all."""
    catalog, machine = System.load("a100-40gb-sxm"), measured.machine
    assert machine.node.accelerators == machine.network[0].domain == 4
    assert machine.tier_bandwidth(1) == catalog.tier_bandwidth(1) == 25e9
    apart = machine.network[1].collectives
    assert apart == catalog.network[1].collectives | measured.rates[1]
    for kind, rates in machine.network[0].collectives.items():
        before = (catalog.network[0].collectives | measured.rates[0])[kind].efficiency
        after = rates.efficiency
        assert after == (before if len(before) == 1 else before | {2: pytest.approx(before[2] / 3)})


def joined(latency, transfer, exponent=0.6):
    return (latency**exponent + transfer**exponent) ** (1 / exponent)


def test_predictions_by_hand(measured):
    """Latencies and shares of the catalog's A100; 8 MiB over 4 nodes, and within one."""
    rates = {
        kind: (measured.machine.network[0].collectives[kind], figures)
        for kind, figures in measured.machine.network[1].collectives.items()
    }

    def predicted(operation, gpus, nodes):
        fields = {"operation": operation, "gpus_per_node": gpus, "nodes": nodes}
        return measured.predicted_us(Series.validated(fields | {"us": {8 * MIB: 1}}))[0] * 1e-6

    _, between = rates["all_gather"]
    latency = between.latency + 2 * between.latency_per_member
    small = latency + 3 / 4 * 8 * MIB / between.bulk.small_rate
    transfer = 3 / 4 * 8 * MIB / (25e9 * between.efficiency[1])
    waiting = between.bulk.latency + 2 * between.bulk.latency_per_member
    bulk = joined(waiting, transfer, between.bulk.join_exponent)
    assert bulk < small
    assert predicted("all_gather", 1, 4) == pytest.approx(bulk)
    inside, between = rates["reduce_scatter"]
    latency = between.latency + 126 * between.latency_per_member
    latency += inside.latency + 2 * inside.latency_per_member
    small = latency + 511 / 512 * 8 * MIB / between.bulk.small_rate
    assert predicted("reduce_scatter", 4, 128) == pytest.approx(small)
    inside, between = rates["all_reduce"]
    transfer = 2 * 1 / 2 * 8 * MIB / (300e9 * inside.efficiency[2])
    assert predicted("all_reduce", 2, 1) == pytest.approx(joined(inside.latency, transfer))
    latency = between.latency + between.latency_per_member * (log2(4) - 1)
    transfer = 2 * 3 / 4 * 8 * MIB / (25e9 * between.efficiency[1])
    assert predicted("all_reduce", 1, 4) == pytest.approx(joined(latency, transfer))


def test_scores_by_hand():
    """Errors of -30, 10, 20 and 40 %: medians by halves, nine of ten below 37 %."""
    score = Score.of([-0.3, 0.1, 0.2, 0.4])
    assert (score.n, score.max) == (4, 0.4)
    assert (score.mape, score.bias) == pytest.approx((0.25, 0.1))
    assert (score.median, score.median_ape) == pytest.approx((0.15, 0.25))
    assert score.p90 == pytest.approx(0.37)


def test_groups_are_scored_apart():
    """Each kind of group holds every row once, in the order of their numbers."""
    rows = tuple(
        Row(case="", reference=1.0, ours=1 + error, theirs=None, groups=groups)
        for error, groups in (
            (0.3, ("2 per node", "16 nodes")),
            (0.1, ("1 per node", "2 nodes")),
            (-0.1, ("1 per node", "16 nodes")),
        )
    )
    told = Compared(reference="", ours="", theirs=None)
    text = {"name": "", "title": "", "unit": "us", "source": ""}
    part = Part(**text, kind="measured", compared=told, rows=rows)
    assert list(part.groups) == ["1 per node", "2 per node", "2 nodes", "16 nodes"]
    assert [score.n for score in part.groups.values()] == [2, 1, 1, 2]
    assert part.groups["1 per node"].bias == pytest.approx(0)
    assert part.groups["16 nodes"].bias == pytest.approx(0.1)


def test_people_see_groups_and_machines_every_row(shardwise):
    """Tables of a page; JSON with all times in microseconds and the scores of groups."""
    code, out, _ = shardwise("validate", "nersc-collectives")
    assert code == 0
    assert "all-gather, 1 to 32 MiB [us]" in out
    assert "NERSC" in out.splitlines()[-12]
    assert len(out.splitlines()) < 200
    code, every, _ = shardwise("validate", "nersc-collectives", "--rows")
    assert code == 0
    assert len(every.splitlines()) > 1069
    code, out, _ = shardwise("validate", "nersc-collectives", "--json")
    record = json.loads(out)
    assert code == 0
    assert len({row["id"] for row in record["rows"]}) == 1069
    first = record["rows"][0]
    assert (first["part"], first["unit"]) == ("all_gather_small", "us")
    assert (first["case"], first["reference"]) == ("2 nodes x 1, 32 KiB", 37.7)
    assert "measured_step_time_s" not in first
    assert first["nersc"] == pytest.approx(1e6 * (5e-6 + 2**15 / 2 / 17.5e9))
    for name, part in record["summary"].items():
        errors = np.array([row["error"] for row in record["rows"] if row["part"] == name])
        assert part["ours"]["median_ape"] == pytest.approx(np.median(abs(errors)))
        counts = {name: group["n"] for name, group in part["groups"].items()}
        per_node = sum(n for name, n in counts.items() if name.endswith("per node"))
        assert per_node == len(errors) == sum(counts.values()) - per_node


@each_row(
    ("changes", "told"),
    [
        ({"operation": "allgather"}, "operation: 'allgather': allowed: all_reduce, all_gather"),
        ({"us": {1024: 0}}, "us[1024]: 0: must be greater than 0"),
        ({"us": {0: 1.0}}, "us[0].[key]: 0: must be at least 1"),
        ({"nodes": 0}, "nodes: 0: must be at least 1"),
    ],
)
def test_bad_series_are_refused(changes, told):
    """One line each."""
    fields = {"operation": "all_gather", "gpus_per_node": 1, "nodes": 2, "us": {1024: 5.0}}
    with pytest.raises(InputError) as error:
        Series.validated(fields | changes)
    assert str(error.value).startswith(told)


def test_the_predecessors_formula_stands_beside(parts, measured):
    """By hand: a large gather over 2 nodes of 4 with 4 NICs each; and its errors by group."""
    series = next(
        s
        for s in measured.series
        if (s.operation, s.gpus_per_node, s.nodes) == ("all_gather", 4, 2)
    )
    size = max(series.us)
    passing = 7 / 8 * size
    by_hand = passing / (4 * 0.7 * 25e9) + 5e-6 * 1 + 2.5e-6 * (8 - 2)
    position = list(series.us).index(size)
    assert measured.their_us(series)[position] == pytest.approx(1e6 * by_hand, rel=1e-12)
    middle = parts["all_gather_middle"]
    assert -0.55 < middle.theirs.median < -0.43
    assert set(middle.their_groups) == set(middle.groups)
    assert middle.ours.median_ape < middle.theirs.median_ape / 3
