"""Closed forms of the schedules against the event simulation, row by row and all rows at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines_drawn import (
    Case,
    cases,
    closed,
    error,
    fast,
    simulated,
    three,
    with_short_last_chunks,
)
from profiles import examples
from rows import each_row
from shardwise.config.enums import Schedule
from shardwise.parallel.schedule.in_flight import in_flight
from shardwise.parallel.schedule.longest_path import Ranks, ranks_sampled
from shardwise.parallel.schedule.pipelines import Times
from shardwise.parallel.schedule.step_time import step_time

pytestmark = pytest.mark.any_software


@fast
@given(cases(runs=1, ends=False, hops=False))
def test_equal_stages_are_exact(case):
    """Every schedule, any ratio of F, B and W, fewer micro-batches than stages too."""
    assert error(case) == pytest.approx(0, abs=1e-9)


@fast
@given(cases(("1f1b", "gpipe", "zb-h1"), runs=4))
def test_one_stage_per_rank_with_blocking_messages_or_none_is_exact(case):
    """Any stages, with embedding and head; messages beside compute are another test.

    One in a thousand pipelines of ZB-H1 with fewer micro-batches than ranks is not.
    """
    exact = case.schedule != "zb-h1" or case.m >= case.p
    blocked = Case(**{**vars(case), "hidden": False})
    assert error(blocked) == pytest.approx(0, abs=1e-9 if exact else 0.02)


@each_row("schedule", ["1f1b", "zb-h1"])
@each_row("m", range(1, 17))
def test_few_micro_batches_on_runs_of_sixteen_ranks(schedule, m):
    """Within a run, one rank is the last that does all forwards before its first backward."""
    rng = np.random.default_rng(m)
    drawn = [
        Case(
            schedule=schedule,
            runs=tuple((n, tuple(rng.choice([0.5, 1.0, 1.5], 3))) for n in (1, 5, 10)),
            m=m,
            embedding=tuple(rng.uniform(0, 0.5, 3)),
        )
        for _ in range(60 if m < 12 else 5)
    ]
    exact = [simulated(case).step_s for case in drawn]
    assert closed(drawn).step_s == pytest.approx(exact, rel=1e-9 if schedule == "1f1b" else 0.02)


@fast
@given(cases(("zb-v",), runs=2, ends=False, hops=False))
def test_zb_v_of_two_runs_is_nearly_exact(case):
    """Also with fewer micro-batches than ranks."""
    assert error(case) == pytest.approx(0, abs=1e-2)


@fast
@given(cases(("1f1b", "gpipe"), runs=1, ends=False))
def test_1f1b_and_gpipe_of_equal_stages_are_exact_with_any_messages(case):
    """Beside compute they delay 1F1B's steady state by 2 (p - 1) hops for p micro-batches."""
    assert error(case) == pytest.approx(0, abs=1e-9)


@each_row("p", [2, 5])
@each_row("more", [-4, -3, -1, 0, 1, 4, 5, 6])
def test_1f1b_with_about_as_many_micro_batches_as_stages(p, more):
    """Where the rounds of messages beside compute begin: one is met for every rank on the way."""
    case = Case(
        schedule="1f1b", runs=((p, (1.0, 1.0, 1.0)),), m=max(p + more, 1), hop=0.2, hidden=True
    )
    assert error(case) == pytest.approx(0, abs=1e-9)


@fast
@given(st.integers(1, 6), st.integers(0, 12), three, st.floats(0, 0.2))
def test_dualpipe_messages_that_overlap_compute(half, more, times, hop):
    """Equal stages: within p / 2 hops; two ranks with four micro-batches meet three."""
    p = 2 * half
    case = Case(schedule="dualpipe", runs=((p, times),), m=2 * p + 2 * more, hop=hop, hidden=True)
    step = simulated(case).step_s
    assert closed([case]).step_s[0] == pytest.approx(step, abs=half * hop + 1e-9)
    least = Case(schedule="dualpipe", runs=((2, times),), m=4, hop=hop, hidden=True)
    assert closed([least]).step_s[0] == pytest.approx(4 * sum(times) + 3 * hop)
    assert simulated(least).step_s == pytest.approx(4 * sum(times) + 3 * hop)


def test_1f1b_by_hand():
    """Three stages of which the first is slow: 3 micro-batches of 2 s, no more."""
    slow, fast_ = (1.0, 0.5, 0.5), (0.5, 0.25, 0.25)
    case = Case(schedule="1f1b", runs=((1, slow), (2, fast_)), m=3)
    assert closed([case]).step_s[0] == pytest.approx(6)
    # Four stages of 3 s and 2 s of hops there and back for every one but the last, in two rounds.
    case = Case(schedule="1f1b", runs=((4, (1.0, 1.0, 1.0)),), m=8, hop=0.1, hidden=True)
    assert closed([case]).step_s[0] == pytest.approx((8 + 3) * 3 + 0.2 * (3 + 3 + 2))


WITHIN = {
    # Above the largest errors seen on thousands of pipelines as drawn here, in parts of the step.
    "1f1b": 0.02,
    "gpipe": 1e-9,
    "zb-h1": 0.04,
    "zb-v": 0.025,
    "interleaved": 0.03,
    "dualpipe": 0.025,
}


@examples(80)
@given(cases())
def test_uneven_stages_are_close(case):
    """Runs, ends and messages of any kind: within what the docstrings say."""
    assert abs(error(case)) <= WITHIN[case.schedule]


def test_waits_where_ranks_change_their_course():
    """ZB-H1: the last rank does other passes as fast, so no gap adds up beside the first wait.

    ZB-V of nine ranks and fifteen micro-batches: the places that stay empty begin on a rank within.
    """
    even, uneven = (0.5, 1.0, 0.5), (0.5, 0.5, 1.0)
    rows = [
        Case(schedule="zb-h1", runs=((2, even), (1, uneven)), m=6),
        Case(schedule="zb-v", runs=((9, (1.0, 0.75, 0.5)),), m=15),
    ]
    assert simulated(rows[0]).step_s == 13.5
    assert closed(rows).step_s == pytest.approx([13.5, simulated(rows[1]).step_s], rel=1e-12)


@examples(80)
@given(cases(hops=False))
def test_closed_forms_are_short_rather_than_long(case):
    """They are the longest of some paths of the step: without messages never longer than it."""
    assert error(case) <= 1e-9


@each_row("schedule", ["zb-h1", "zb-v", "interleaved", "dualpipe"])
def test_paths_from_many_pipelines_are_never_long(schedule):
    """The same, of forty random uneven pipelines at once."""
    rng = np.random.default_rng(11)
    drawn = [Case(**{**vars(_drawn(rng, schedule)), "hop": 0.0}) for _ in range(40)]
    errors = closed(drawn).step_s / [simulated(case).step_s for case in drawn] - 1
    assert errors.max() <= 1e-9


@each_row("schedule", ["zb-h1", "zb-v", "interleaved", "dualpipe"])
def test_typical_errors_are_far_below_half_a_percent(schedule):
    """Of forty random uneven pipelines two at most are 0.5 % off; 0.05 % on average."""
    rng = np.random.default_rng(7)
    drawn = [_drawn(rng, schedule) for _ in range(40)]
    errors = np.abs(closed(drawn).step_s / [simulated(case).step_s for case in drawn] - 1)
    assert np.mean(errors < 0.005) >= 0.95
    assert errors.max() < 0.01
    assert errors.mean() < 0.0005


@pytest.mark.nightly
@each_row(
    ("schedule", "mean"),
    [("zb-h1", 1e-9), ("interleaved", 1e-9), ("zb-v", 2e-4), ("dualpipe", 2e-4)],
)
def test_pipelines_whose_every_rank_differs(schedule, mean):
    """A path changes ranks wherever one goes over to other passes sooner than the next."""
    rng = np.random.default_rng(5)
    drawn = []
    for _ in range(120):
        p = 2 * int(rng.integers(1, 7))
        groups = int(rng.integers(2 if schedule == "dualpipe" else 1, 4))
        drawn.append(
            Case(
                schedule=schedule,
                runs=tuple((1, tuple(rng.uniform(0.5, 1.5, 3))) for _ in range(p)),
                m=p * groups,
                v=int(rng.integers(2, 5)) if schedule == "interleaved" else 1,
            )
        )
    errors = 1 - closed(drawn).step_s / [simulated(case).step_s for case in drawn]
    assert errors.min() >= -1e-9
    assert errors.mean() <= mean
    assert errors.max() <= (1e-9 if mean == 1e-9 else 0.01)


def _drawn(rng, schedule):
    p = 2 * int(rng.integers(1, 9))
    v = int(rng.integers(2, 5)) if schedule == "interleaved" else 1
    cuts = np.sort(rng.integers(0, p + 1, 2))
    return Case(
        schedule=schedule,
        runs=tuple(
            (int(length), tuple(rng.uniform(0.5, 1.5, 3))) for length in np.diff([0, *cuts, p])
        ),
        m=p * int(rng.integers(2, 9)),
        v=v,
        embedding=tuple(rng.uniform(0, 0.3, 3)),
        head=tuple(rng.uniform(0, 1, 3)),
        hop=rng.uniform(0, 0.2) / 4,
        hidden=bool(rng.integers(2)),
    )


@examples(20)
@given(st.lists(st.one_of(cases(whole=False), with_short_last_chunks()), min_size=2, max_size=12))
def test_rows_are_independent(rows):
    """A row of a table equals the same pipeline alone, whatever stands beside it."""
    table = closed(rows)
    for at, case in enumerate(rows):
        alone = closed([case])
        for part in ("step_s", "busy_s", "transfer_s"):
            assert getattr(table, part)[at] == pytest.approx(getattr(alone, part)[0], rel=1e-9)


@fast
@given(cases(whole=False))
def test_the_slowest_rank_is_the_busiest(case):
    """Its passes and messages are the simulation's, also where they occupy another rank longer.

    Of equally busy ranks the one with most messages counts. The rest is never negative.
    """
    found, step = closed([case]), simulated(case)
    slowest = step.busy_s >= step.busy_s.max() * (1 - 1e-9)
    assert found.busy_s[0] == pytest.approx(step.busy_s.max())
    assert found.transfer_s[0] == pytest.approx(step.transfer_s[slowest].max())
    assert found.bubble_s[0] >= -1e-9 * found.step_s[0]


def test_messages_half_hidden_lie_between():
    """Interpolated between all beside compute and all on it."""
    case = Case(schedule="1f1b", runs=((4, (1.0, 1.0, 1.0)),), m=8, hop=0.1)
    rows = [case, Case(**{**vars(case), "hidden": True})]
    blocking, beside = closed(rows).step_s
    none = np.zeros((1, 1))
    times = Times(stage_s=none + 1, first_extra_s=none[0], last_extra_s=none[0])
    half = step_time(
        schedule=np.array([0]),
        group_sizes=np.array([[4]]),
        forward=times,
        input_grad=times,
        weight_grad=times,
        micro_batches=np.array([8]),
        chunks=np.array([1]),
        hop_s=np.array([0.1]),
        hop_hidden=np.array([0.25]),
    )
    assert half.step_s[0] == pytest.approx(0.75 * blocking + 0.25 * beside)
    assert half.busy_s[0] == pytest.approx(24)
    assert half.transfer_s[0] == pytest.approx(0.75 * 16 * 0.1)


@fast
@given(st.integers(1, 6), st.integers(0, 20), three, st.floats(0.9, 1))
def test_overlapped_pairs_of_equal_stages(half, more, times, share):
    """DualPipe: (p / 2 - 1) (F&B + B - 3 W) idle with F&B as long as given."""
    p = 2 * half
    case = Case(schedule="dualpipe", runs=((p, times),), m=2 * p + 2 * more)
    step = simulated(case, pair_s=[share * sum(times)] * p)
    found = closed([case], pair_share=np.array([share]))
    assert found.busy_s[0] == pytest.approx(step.busy_s.max())
    assert found.step_s[0] == pytest.approx(step.step_s)


def test_published_bubbles():
    """Eight ranks, F = B = W = 1 s, B the gradient of the input: the table of each paper.

    1F1B, GPipe (p - 1) (F + B + W); interleaved the v-th part; ZB-H1 (p - 1) (F + B - W); DualPipe
    (p / 2 - 1) (F&B + B - 3 W), B of both gradients. ZB-V: only the later start of the last rank.
    """
    one = ((8, (1.0, 1.0, 1.0)),)
    rows = [
        Case(schedule=name, runs=one, m=32, v=4 if name == "interleaved" else 1)
        for name in Schedule
    ]
    bubbles = dict(zip(Schedule, closed(rows).bubble_s, strict=True))
    assert bubbles == pytest.approx(
        {
            "1f1b": 21,
            "interleaved": 21 / 4,
            "gpipe": 21,
            "zb-h1": 7,
            "zb-v": 7 / 2,
            "dualpipe": 6,
        }
    )


@each_row("schedule", Schedule)
def test_in_flight_is_what_ranks_hold(schedule):
    """Every rank of every small pipeline: the simulation's peaks."""
    for p in range(1, 7):
        for m in range(1, 4 * p + 2):
            if schedule == "dualpipe" and (p % 2 or m % 2 or m < 2 * p):
                continue
            for v in (1, 2, 3) if schedule == "interleaved" else (1,):
                case = Case(schedule=schedule, runs=((p, (1.0, 1.0, 1.0)),), m=m, v=v)
                step = simulated(case)
                rank = np.arange(p)
                found = in_flight(
                    schedule=np.array(Schedule(schedule).code),
                    micro_batches=np.array(m),
                    stages=np.array(p),
                    chunks=np.array(v),
                    stage=rank,
                )
                per_stage = 2 if schedule == "zb-v" else v
                assert (found * per_stage).tolist() == pytest.approx(step.peak_chunks.tolist())


def test_each_rank_is_sampled_once() -> None:
    """Both ends of every group; where another pipeline has more, the last rank is repeated."""
    sizes = np.array([[1, 1, 1], [6, 0, 0], [0, 2, 0], [1, 1, 0]])
    ranks = Ranks.sample(sizes)
    assert ranks.index.T.tolist() == [[0, 1, 6, 7], [0, 1, 2, 3], [0, 0, 0, 0]]
    assert ranks_sampled(sizes).tolist() == [4, 4, 1]
    apart = [Ranks.sample(sizes[:, [row]]).index[:, 0].tolist() for row in range(3)]
    assert apart == [[0, 1, 6, 7], [0, 1, 2, 3], [0]]
