"""The event simulation of a step against pipelines worked out by hand, and published figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline_simulation
from profiles import examples
from rows import each_row
from shardwise.parallel.schedule.simulate import simulate

pytestmark = pytest.mark.any_software

fast = examples(40)
seconds = st.floats(0.1, 4)


def equal(schedule, p, m, *, v=1, forward=1.0, backward=1.0, weights=1.0, **given):
    """Virtual stages that all take the same."""
    stages = {"interleaved": v * p, "zb-v": 2 * p}.get(schedule, p)
    return simulate(
        schedule,
        ranks=p,
        micro_batches=m,
        chunks=v,
        forward_s=[forward] * stages,
        input_grad_s=[backward] * stages,
        weight_grad_s=[weights] * stages,
        **given,
    )


def drawn(step):
    """Ranks as lines, a letter per second: F and f forwards by micro-batch 0 or 1, B and b, W."""
    lines = [["."] * round(step.step_s) for _ in range(int(step.rank[-1]) + 1)]
    for rank, kind, k, start, end in zip(
        step.rank, step.kind, step.micro_batch, step.start_s, step.end_s, strict=True
    ):
        for at in range(round(start), round(end)):
            lines[rank][at] = kind if k == 0 else kind.lower()
    return ["".join(line) for line in lines]


def test_two_ranks_and_two_micro_batches():
    """Forward 1 s, backward 2 s with the weights' gradient: 3 s of each rank are idle."""
    step = equal("1f1b", 2, 2)
    assert drawn(step) == ["Ff..BB.bb", ".FBBfbb.."]
    assert step.step_s == 9
    assert step.busy_s.tolist() == [6, 6]
    assert step.idle_s.tolist() == [3, 3]
    assert step.peak_chunks.tolist() == [2, 1]
    assert step.peak_at_s.tolist() == [1, 1]


def test_gpipe_and_zb_h1_of_two_ranks():
    """GPipe does both forwards first; ZB-H1 fills a gap with W: 1 s idle instead of 3 s."""
    assert drawn(equal("gpipe", 2, 2)) == ["Ff...BBbb", ".FfBBbb.."]
    step = equal("zb-h1", 2, 2)
    assert drawn(step) == ["Ff.BWbw", ".FBfbWw"]
    assert step.peak_chunks.tolist() == [2, 2]


def test_hops_that_overlap_compute_or_block_it():
    """A second per message: both delay the first backward by two, one lengthens ranks' work."""
    beside = equal("1f1b", 2, 2, hop_s=1.0)
    assert drawn(beside) == ["Ff....BB.bb", "..FBBfbb..."]
    assert beside.transfer_s.tolist() == [0, 0]
    blocking = equal("1f1b", 2, 2, hop_s=1.0, blocking=True)
    assert drawn(blocking) == ["Ff....BB..bb", "..FBB.fbb..."]
    assert blocking.transfer_s.tolist() == [2, 2]
    assert blocking.idle_s.tolist() == [4, 4]


def test_v_turns_without_a_hop():
    """Rank 1 of two holds the middle of the model; rank 0 its ends: two hops there and two back."""
    at_once = equal("zb-v", 2, 1).step_s
    assert at_once == 10  # F F f f b . w B B W, of either rank in turn
    assert equal("zb-v", 2, 1, hop_s=0.25).step_s == at_once + 4 * 0.25


def test_pairs_start_and_end_together():
    """DualPipe: a pair waits for both inputs and takes the time given for it."""
    step = equal("dualpipe", 2, 4, pair_s=[2.5, 2.5])
    rows = list(zip(step.rank, step.kind, step.micro_batch, step.start_s, step.end_s, strict=True))
    pair = [row for row in rows if row[:3] in {(0, "F", 3), (0, "B", 0)}]
    assert [row[3:] for row in pair] == [(5, 7.5), (5, 7.5)]
    assert equal("dualpipe", 2, 4).step_s == 12
    assert step.step_s == 11.5
    assert step.busy_s.tolist() == [11.5, 11.5]
    assert step.idle_s.tolist() == [0, 0]


def test_published_bubbles():
    """Idle seconds of a rank for F = B = W = 1 s, B the gradient of the input alone.

    1F1B and GPipe (p - 1) (F + B + W); interleaved the v-th part; ZB-H1 (p - 1) (F + B - W),
    arXiv 2401.10241, table 2, which is (p - 1) (F + B - 2 W) with B of both gradients; DualPipe
    (p / 2 - 1) (F&B + B - 3 W) with that B, arXiv 2412.19437, table 2.
    """
    for p in (2, 4, 8):
        for m in (2 * p, 4 * p + 2):
            assert equal("1f1b", p, m).idle_s.tolist() == [3 * (p - 1)] * p
            assert equal("gpipe", p, m).idle_s.tolist() == [3 * (p - 1)] * p
            assert equal("zb-h1", p, m).idle_s.tolist() == [p - 1] * p
            assert equal("dualpipe", p, m).idle_s.tolist() == [(p // 2 - 1) * 2] * p
        chunks = equal("interleaved", p, 4 * p, v=3)
        assert chunks.idle_s.tolist() == [3 * (p - 1)] * p
        assert chunks.busy_s.tolist() == [3 * 3 * 4 * p] * p


@each_row(("p", "m"), [(2, 4), (4, 8), (8, 15), (8, 40)])
def test_zb_v_has_no_bubble_of_its_own(p, m):
    """Each rank works without a gap from its first pass to its last; rank i starts i s later."""
    step = equal("zb-v", p, m)
    assert step.span_s.tolist() == [6 * m] * p
    assert step.step_s == 6 * m + p - 1


def test_published_peaks():
    """Chunk activations in flight: arXiv 2401.10241, table 2; 2412.19437, table 2."""
    assert equal("1f1b", 4, 12).peak_chunks.tolist() == [4, 3, 2, 1]
    assert equal("zb-h1", 4, 12).peak_chunks.tolist() == [4, 4, 4, 4]
    assert equal("zb-v", 4, 12).peak_chunks.tolist() == [8, 8, 8, 8]
    assert equal("dualpipe", 4, 12).peak_chunks.tolist() == [5, 5, 5, 5]
    assert equal("gpipe", 4, 12).peak_chunks.tolist() == [12, 12, 12, 12]
    assert equal("interleaved", 4, 12, v=2).peak_chunks.tolist() == [11, 9, 7, 5]


@fast
@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.floats(0, 0.5),
    st.lists(st.tuples(seconds, seconds, seconds), min_size=18, max_size=18),
)
def test_agrees_with_the_plain_simulation(p, v, groups, hop, times):
    """Every start, end and wait of 1F1B and interleaved stages follow from their orders alone."""
    m = groups * p if v > 1 else groups
    forward, backward, weights = zip(*times[: p * v], strict=True)
    step = simulate(
        "interleaved" if v > 1 else "1f1b",
        ranks=p,
        micro_batches=m,
        chunks=v,
        forward_s=forward,
        input_grad_s=backward,
        weight_grad_s=weights,
        hop_s=hop if p > 1 else 0.0,
    )
    other = pipeline_simulation.simulate(
        [[forward[c * p + i] for c in range(v)] for i in range(p)],
        [[backward[c * p + i] + weights[c * p + i] for c in range(v)] for i in range(p)],
        m,
        hop=hop if p > 1 else 0.0,
    )
    assert step.step_s == pytest.approx(other.time)
    assert step.busy_s == pytest.approx(other.busy)
    assert step.peak_chunks.tolist() == other.live


@fast
@given(
    st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-v", "interleaved", "dualpipe"]),
    st.floats(0, 1),
    st.booleans(),
    st.lists(seconds, min_size=36, max_size=36),
)
def test_ranks_do_one_thing_at_a_time(schedule, hop, blocking, times):
    """Actions of a rank follow each other; its parts sum to the step."""
    p, m, v = 4, 10, 3 if schedule == "interleaved" else 1
    stages = {"interleaved": 12, "zb-v": 8}.get(schedule, 4)
    step = simulate(
        schedule,
        ranks=p,
        micro_batches=m,
        chunks=v,
        forward_s=times[:stages],
        input_grad_s=times[12 : 12 + stages],
        weight_grad_s=times[24 : 24 + stages],
        hop_s=hop,
        blocking=blocking,
    )
    parts = step.busy_s + step.transfer_s + step.idle_s
    assert parts == pytest.approx(np.full(p, step.step_s))
    assert (step.idle_s >= -1e-9 * step.step_s).all()
    for rank in range(p):
        start, end = step.start_s[step.rank == rank], step.end_s[step.rank == rank]
        together = (start[1:] == start[:-1]) & (end[1:] == end[:-1])
        assert (together | (start[1:] >= end[:-1] - 1e-9)).all()
    assert step.start_s.min() == 0
    assert step.end_s.max() == step.step_s
