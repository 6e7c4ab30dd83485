"""The closed form of interleaved pipelines, and of unlike chunks, against the event simulation."""

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

pytestmark = pytest.mark.any_software


@fast
@given(cases(("interleaved",), runs=4, ends=False, hops=False))
def test_interleaved_groups_without_ends_or_messages_are_nearly_exact(case):
    """Any stages that spread evenly over their chunks; rare pipelines of two groups are short."""
    assert error(case) == pytest.approx(0, abs=1e-9 if case.m == case.p else 5e-3)


def test_a_last_chunk_apart_by_hand():
    """Two ranks, two chunks, two micro-batches, F = B = 1 s; rank 1's last chunk takes 0 or 2 s.

    Empty, it lets rank 0 work without a gap: 8 s. With 2 s, rank 1 has done its last chunk at 11 s:
    F 1, 1, then twice 4 s, a second after rank 0 began; the rest takes 1 s more on each in turn.
    """
    one = (1.0, 1.0, 0.0)
    short, long = (
        Case(
            schedule="interleaved",
            runs=((1, (2.0, 2.0, 0.0)), (1, (1.0 + last, 1.0 + last, 0.0))),
            apart=(one, (last, last, 0.0)),
            m=2,
            v=2,
        )
        for last in (0.0, 2.0)
    )
    assert [simulated(short).step_s, simulated(long).step_s] == [8, 14]
    assert closed([short, long]).step_s == pytest.approx([8, 14])


@examples(80)
@given(with_short_last_chunks())
def test_shorter_last_chunks_on_trailing_ranks(case):
    """Never long; short by 2 % at most, where the first rank alone has a full last chunk."""
    assert -3e-2 <= error(case) <= 1e-9


@pytest.mark.nightly
def test_typical_shorter_last_chunks_are_nearly_exact():
    """Of 150 random pipelines: 0.01 % on average, none by more than 0.4 %."""
    rng = np.random.default_rng(5)
    errors = []
    for _ in range(150):
        p, v, layers = (int(rng.integers(*ends)) for ends in ((3, 13), (2, 6), (1, 5)))
        layer, full = rng.uniform(0.5, 1.5, 3), int(rng.integers(2, p))
        case = Case(
            schedule="interleaved",
            runs=((full, tuple(layer * v * layers)), (p - full, tuple(layer * (v * layers - 1)))),
            apart=(tuple(layer * layers), tuple(layer * (layers - 1))),
            m=p * int(rng.integers(1, 9)),
            v=v,
            embedding=tuple(layer * rng.uniform(0, 0.02)),
            head=tuple(layer * rng.uniform(0, 2)),
            hop=rng.uniform(0, 0.05),
            hidden=bool(rng.integers(2)),
        )
        errors.append(error(case))
    assert np.abs(errors).mean() < 1e-4
    assert min(errors) > -4e-3


@each_row("like", [True, False])
def test_last_chunks_of_any_length(like):
    """Of 150 random pipelines: each rank's chunks within half of its others, or up to five times.

    The first are within 0.5 % but for one in a hundred.
    """
    rng = np.random.default_rng(3)
    drawn = [_with_last_chunks(rng, 0.8 if like else 0.3) for _ in range(150)]
    errors = closed(drawn).step_s / [simulated(case).step_s for case in drawn] - 1
    assert np.abs(errors).mean() < (5e-4 if like else 3e-3)
    assert np.mean(np.abs(errors) < 0.005) >= (0.97 if like else 0.85)
    assert errors.min() > (-0.02 if like else -0.05)
    assert errors.max() < 0.005


def _with_last_chunks(rng, least):
    p, v = int(rng.integers(2, 11)), int(rng.integers(2, 6))
    cuts = np.sort(rng.integers(0, p + 1, 2))
    others = rng.uniform(least, 2 - least, (3, 3))
    last = rng.uniform(least, 2 - least, (3, 3))
    return Case(
        schedule="interleaved",
        runs=tuple(
            (int(length), tuple(one))
            for length, one in zip(np.diff([0, *cuts, p]), others * (v - 1) + last, strict=True)
        ),
        apart=tuple(map(tuple, last)),
        m=p * int(rng.integers(1, 7)),
        v=v,
        embedding=tuple(rng.uniform(0, 0.3, 3)),
        head=tuple(rng.uniform(0, 1, 3)),
        hop=rng.uniform(0, 0.05),
        hidden=bool(rng.integers(2)),
    )


@fast
@given(cases(("interleaved",), whole=False))
def test_equal_last_chunks_change_nothing(case):
    """Given as a time of their own, as for a neighbour whose chunks differ, to the last digit."""
    shares = tuple(tuple(part / case.v for part in times) for _, times in case.runs)
    apart = Case(**{**vars(case), "apart": shares})
    assert closed([apart]).step_s[0] == closed([case]).step_s[0]


@fast
@given(cases(("zb-v",)), st.lists(st.floats(0.3, 0.7), min_size=9, max_size=9))
def test_zb_v_of_unlike_chunks(case, shares):
    """The earlier chunk takes 30 to 70 % of its rank's time, of each kind another share."""
    parts = np.array([times for _, times in case.runs]) * np.reshape(shares, (3, 3))
    unlike = Case(**{**vars(case), "apart": tuple(map(tuple, parts.tolist()))})
    assert abs(error(unlike)) <= 0.025
    if not case.hop:
        assert error(unlike) <= 1e-9


@fast
@given(st.integers(2, 8), st.integers(2, 4), st.integers(1, 4), three, st.floats(0, 0.1))
def test_interleaved_messages_that_overlap_compute(p, v, groups, times, hop):
    """Equal stages: 2 (p v - 1) hops, those of one micro-batch through all chunks and back."""
    case = Case(
        schedule="interleaved", runs=((p, times),), m=groups * p, v=v, hop=hop / v, hidden=True
    )
    exact = (case.m + (p - 1) / v) * sum(times) + 2 * (p * v - 1) * hop / v
    assert simulated(case).step_s == pytest.approx(exact)
    assert closed([case]).step_s[0] == pytest.approx(exact)


def test_one_group_of_interleaved_micro_batches():
    """The rank behind the middle, within a run, is the first that turns to its backwards early."""
    case = Case(
        schedule="interleaved",
        runs=((1, (1.28, 0.71, 1.08)), (1, (0.5, 1.5, 0.75)), (4, (0.75, 1.0, 0.5))),
        m=6,
        v=3,
    )
    assert closed([case]).step_s[0] == pytest.approx(simulated(case).step_s, rel=1e-12)


def test_interleaved_paths_to_the_head_and_the_embedding():
    """They go there and back, or round, in every group, or once; exact for a short embedding.

    With a long one the path visits the first rank in most groups: 2 % short at most.
    """
    rng = np.random.default_rng(3)
    drawn = []
    for long in [0] * 150 + [1] * 100:
        p = int(rng.integers(2, 9))
        cuts = np.sort(rng.integers(0, p + 1, 2))
        drawn.append(
            Case(
                schedule="interleaved",
                runs=tuple(
                    (int(n), tuple(rng.uniform(0.5, 1.5, 3))) for n in np.diff([0, *cuts, p])
                ),
                m=p * int(rng.integers(1, 6)),
                v=int(rng.integers(2, 5)),
                embedding=tuple(rng.uniform(0, 1.0 if long else 0.1, 3)),
                head=tuple(rng.uniform(0, 1, 3) * (1 - long)),
            )
        )
    errors = 1 - closed(drawn).step_s / [simulated(case).step_s for case in drawn]
    assert errors.min() >= -1e-9
    assert errors[:150].max() <= 1e-9
    assert errors[150:].max() <= 0.02
    assert errors[150:].mean() <= 0.0006


@fast
@given(cases(("interleaved",), whole=False, hops=False))
def test_incomplete_groups_are_close(case):
    """A last group of fewer micro-batches than ranks: within 12 %, on average 0.5 %."""
    assert abs(error(case)) <= 0.12


@fast
@given(st.integers(2, 8), st.integers(1, 7), st.integers(0, 3), three)
def test_incomplete_groups_of_two_chunks_are_nearly_exact(p, short, groups, times):
    """Equal stages: the longest of three waits counts, within 2 %."""
    m = max(groups * p + p - min(short, p - 1), 1)
    case = Case(schedule="interleaved", runs=((p, times),), m=m, v=2)
    assert error(case) == pytest.approx(0, abs=2e-2)
