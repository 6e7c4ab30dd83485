"""What failures and checkpoints leave of a run: by hand, by simulation, and what is refused."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise import InputError, Reliability
from shardwise.analysis.training_run.goodput import (
    best_interval,
    covered_by_spares,
    job_mtbf,
    run_time,
    waiting_share,
)

PLAIN = {"accelerator_mtbf": "50000 h", "checkpoint_time": "60 s", "restart_time": "10 min"}


def test_the_job_fails_as_often_as_all_its_units():
    """Llama 3 405B: 419 interruptions in 54 days on 16,384 GPUs (arXiv 2407.21783, table 5)."""
    hours = 16384 * 54 * 24 / 419
    mtbf_s = job_mtbf(hours * 3600, 16384)
    assert 54 * 86400 / mtbf_s == pytest.approx(419)
    assert hours == pytest.approx(50677, abs=1)


def test_the_best_interval_is_dalys_and_youngs():
    """2038.6 s by hand for 60 s each and a failure each 10 h; Young's formula for short ones."""
    assert best_interval(60.0, 36000.0) == pytest.approx(2038.65, abs=0.01)
    assert best_interval(1e-3, 36000.0) == pytest.approx(np.sqrt(2e-3 * 36000), rel=1e-3)
    assert best_interval(100.0, 40.0) == 40.0


@each_row(("mtbf", "best"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_best_interval_is_the_one_that_daly_prints(mtbf, best):
    """Checkpoints of 5 min; in minutes, by figures 3 to 5 of his paper."""
    assert best_interval(5.0, mtbf) == pytest.approx(best, abs=0.5 if best > 10 else 0.05)


@given(st.floats(1.0, 300.0), st.floats(3600.0, 1e6))
@examples(30)
def test_no_interval_makes_the_run_shorter_than_the_best(stall_s, mtbf_s):
    """The exact time at Daly's interval is within 0.2 % of the least on a fine grid."""
    best = float(best_interval(stall_s, mtbf_s))
    tried = best * np.geomspace(0.2, 5, 2001)
    words = {"stall_s": stall_s, "write_s": 0.0, "restart_s": 0.0, "mtbf_s": mtbf_s}
    times = run_time(1e6, interval_s=tried, **words).total_s
    assert float(run_time(1e6, interval_s=best, **words).total_s) <= 1.002 * times.min()


def test_the_parts_of_a_run_by_hand():
    """T 900, tau 90, delta 10, M 1000, R 100: ten segments of x = 0.1."""
    found = run_time(900, interval_s=90, stall_s=10, write_s=0, restart_s=100, mtbf_s=1000)
    fails = np.exp(0.1) - 1
    assert found.checkpoint_s == pytest.approx(100)
    assert found.lost_s == pytest.approx(10 * (1000 * fails - 100))
    assert found.restart_s == pytest.approx(10 * fails * 1000 * fails)
    assert found.total_s == pytest.approx(10 * 1000 * np.exp(0.1) * fails)
    assert found.failures == pytest.approx(found.total_s / 1000)


def test_without_failures_only_checkpoints_are_left():
    """A mean of 10^15 s: nothing is lost."""
    found = run_time(1e6, interval_s=1e3, stall_s=1, write_s=0, restart_s=60, mtbf_s=1e15)
    assert found.total_s == pytest.approx(1e6 + 1e3, rel=1e-9)


def test_a_column_equals_single_runs():
    """Arrays of cases go through the same formula."""
    mtbf = np.array([1e3, 1e4, 1e5])
    words = {"interval_s": 500.0, "stall_s": 20.0, "write_s": 100.0, "restart_s": 300.0}
    column = run_time(1e6, mtbf_s=mtbf, **words).total_s
    assert column.tolist() == [float(run_time(1e6, mtbf_s=m, **words).total_s) for m in mtbf]


def test_a_run_shorter_than_an_interval_is_one_segment():
    """Nothing is undone beyond its own beginning: M (e^(T / M) - 1)."""
    run = {"stall_s": 0.0, "write_s": 0.0, "restart_s": 0.0, "mtbf_s": 20.0}
    found = run_time(10.0, interval_s=1e5, **run)
    assert found.total_s == pytest.approx(20 * np.expm1(0.5))


def test_a_run_that_never_ends_takes_for_ever():
    """Restarts of a day beside a failure each minute."""
    found = run_time(1e6, interval_s=1e3, stall_s=60, write_s=0, restart_s=86400, mtbf_s=60)
    assert np.isinf(found.total_s)


def test_waiting_for_repairs_is_erlangs_formula():
    """B(1, a) = a / (1 + a), so without spares one waits rho after each M; B(2, 1) = 1/5."""
    assert waiting_share(0, 100.0, 300.0) == pytest.approx(100 / 400)
    assert waiting_share(1, 1.0, 1.0) == pytest.approx(0.2)
    column = waiting_share(np.array([0, 1, 5]), 10.0, 10.0)
    assert column.tolist() == [float(waiting_share(s, 10.0, 10.0)) for s in (0, 1, 5)]


def test_spares_without_repair_cover_a_poisson_number():
    """P(N <= 1) of mean 2 is 3 e^-2."""
    assert covered_by_spares(1, 2.0) == pytest.approx(3 * np.exp(-2))
    assert covered_by_spares(3, 0.0) == 1.0


def _simulated(rng, *, segments, tau, stall, write, restart, mtbf, spares, repair):
    """Total time and time of waiting of one run, failure by failure."""
    clock = waited = 0.0
    done, broken = 0, []
    while True:
        until = rng.exponential(mtbf)
        needed = (segments - done) * (tau + stall)
        if until >= needed:
            return clock + needed, waited
        clock += until
        done += int(max(until - write, 0.0) // (tau + stall))
        while True:  # swap a unit and restart, until no failure meets the restart
            heapq.heappush(broken, clock + repair)
            while broken and broken[0] <= clock:
                heapq.heappop(broken)
            if len(broken) > spares:
                free = heapq.heappop(broken)
                waited += free - clock
                clock = free
            next_failure = rng.exponential(mtbf)
            if next_failure >= restart:
                clock += restart
                break
            clock += next_failure


@each_row(("stall", "write", "spares"), [(60.0, 0.0, 2), (60.0, 0.0, 40), (5.0, 400.0, 2)])
def test_a_simulation_agrees(stall, write, spares):
    """Thousands of failures with repairs of fixed length: total within 2 %, waiting within 5 %."""
    rng = np.random.default_rng(1)
    mtbf, tau, restart, repair = 4000.0, 900.0, 300.0, 8000.0
    total, waited = _simulated(
        rng,
        segments=30_000,
        tau=tau,
        stall=stall,
        write=write,
        restart=restart,
        mtbf=mtbf,
        spares=spares,
        repair=repair,
    )
    words = {"interval_s": tau, "stall_s": stall, "write_s": write, "restart_s": restart}
    share = float(waiting_share(spares, repair, mtbf))
    expected = float(run_time(30_000 * tau, mtbf_s=mtbf, **words).total_s) / (1 - share)
    assert total == pytest.approx(expected, rel=0.02)
    assert waited / total == pytest.approx(share, rel=0.05, abs=1e-4)


def test_units_are_accelerators_or_nodes():
    """A node that is not full is a node."""
    assert Reliability(**PLAIN).units(12, 8) == 12
    nodes = {"node_mtbf": "5000 h", "checkpoint_time": 60, "restart_time": 600}
    known = Reliability(**nodes)
    assert (known.units(12, 8), known.unit_mtbf_s) == (2, 5000 * 3600)


@each_row(
    ("change", "told"),
    [
        ({"accelerator_mtbf": None}, "accelerator_mtbf or node_mtbf must be set"),
        ({"node_mtbf": "1 h"}, "only one: both are set"),
        ({"checkpoint_time": None}, "checkpoint_time or storage_bandwidth must be set"),
        ({"asynchronous": True}, "checkpoint_stall: must be set"),
        ({"checkpoint_stall": "1 s"}, "has no effect unless asynchronous"),
        ({"spares": -1}, "spares"),
        ({"accelerator_mtbf": "0.1 s"}, "must be from 1 s to 1e"),
        ({"mean": 3}, "mean"),
    ],
)
def test_what_makes_no_sense_is_refused(change, told):
    """One line per fault."""
    fields = {n: v for n, v in (PLAIN | change).items() if v is not None}
    with pytest.raises(InputError, match=told):
        Reliability.load(fields)


def test_a_file_is_read(tmp_path):
    """Quantities as people write them, and back."""
    path = tmp_path / "cluster.yaml"
    Reliability.load(PLAIN | {"spares": 16, "repair_time": "3 d"}).to_file(path)
    assert "repair_time: 3 d" in path.read_text()
    assert Reliability.load(path).repair_time == 3 * 86400
