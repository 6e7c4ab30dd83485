"""The closed forms of the pipeline schedules against an exact event simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_simulation import DeadlockError, Run, simulate
from shardwise.schedule.closed_form import bubble_time, first_chunk_in_flight, in_flight

fast = settings(deadline=None, max_examples=60)
stages_and_chunks = st.tuples(st.integers(2, 8), st.integers(1, 4))
seconds = st.floats(0.1, 4)


def bubble(
    times: list[float],
    chunks: int,
    hop: float = 0.0,
    hidden: float = 0.0,
    *,
    micro_batches: int | None = None,
    forward: float = 0.0,
) -> float:
    """Closed form for stages of these times of a micro-batch, forward and backward."""
    waiting = bubble_time(
        stages=np.array([len(times)]),
        chunks=np.array([chunks]),
        micro_batches=np.array([len(times) if micro_batches is None else micro_batches]),
        others_s=np.array([sum(times) - max(times)]),
        forward_s=np.array([forward]),
        backward_s=np.array([max(times) - forward]),
        hop_s=np.array([2 * hop]),
        hop_hidden=np.array([hidden]),
    )
    return float(waiting[0])


def flying(micro_batches: int, stages: int, chunks: int) -> list[float]:
    """Closed form of the micro-batches that each stage holds."""
    m, p, v = (np.full(stages, value) for value in (micro_batches, stages, chunks))
    held = in_flight(micro_batches=m, stages=p, chunks=v, stage=np.arange(stages))
    return held.tolist()


def run(
    forward: list[float], backward: list[float], chunks: int, micro_batches: int, **given: float
) -> Run:
    """Simulate stages whose time is spread evenly over their chunks."""
    spread = [[[time / chunks] * chunks for time in times] for times in (forward, backward)]
    return simulate(*spread, micro_batches, **given)


@fast
@given(st.integers(1, 8), st.integers(1, 24), seconds, seconds)
def test_1f1b_of_equal_stages_is_exact(p: int, m: int, forward: float, backward: float) -> None:
    """Any number of micro-batches, fewer than stages too: m + p - 1 passes of both."""
    step = run([forward] * p, [backward] * p, 1, m)
    waiting = bubble([forward + backward] * p, 1)
    assert waiting == pytest.approx((p - 1) * (forward + backward))
    assert step.time == pytest.approx(step.busy[0] + waiting)


@fast
@given(stages_and_chunks, st.integers(1, 24), seconds, seconds)
def test_an_incomplete_group_waits_for_the_rest_of_the_pipeline(
    pipeline: tuple[int, int], m: int, forward: float, backward: float
) -> None:
    """Micro-batches that are missing from the last group leave its stages idle chunk by chunk."""
    p, v = pipeline
    spread = [[[time / v] * v for _ in range(p)] for time in (forward, backward)]
    step = simulate(*spread, m, padded=True)
    times = [forward + backward] * p
    waiting = bubble(times, v, micro_batches=m, forward=forward)
    short = step.time - step.busy[0] - waiting
    if m < p or m % p == 0:
        assert short == pytest.approx(0, abs=1e-9)
    else:
        assert abs(short) <= p * (forward + backward) / v


@fast
@given(
    st.tuples(st.integers(2, 8), st.integers(2, 4)),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 7),
    st.floats(0, 2),
)
def test_interleaved_uneven_stages_are_within_passes_of_a_chunk(
    pipeline: tuple[int, int], layers: int, groups: int, short: int, head: float
) -> None:
    """Layers of 1 s + 2 s; the last stages lack one in their last chunk, the last has a head."""
    p, v = pipeline
    short = min(short, p - 1)
    counts = [[layers] * (v - 1) + [layers - (stage >= p - short)] for stage in range(p)]
    forward = [[float(n) for n in chunks] for chunks in counts]
    forward[-1][-1] += head
    step = simulate(forward, [[2 * t for t in chunks] for chunks in forward], groups * p)
    times = [3 * sum(chunks) for chunks in forward]
    slowest = max(times[0], times[-1])
    waiting = bubble_time(
        stages=np.array([p]),
        chunks=np.array([v]),
        micro_batches=np.array([groups * p]),
        others_s=np.array([sum(times) - slowest]),
        forward_s=np.array([slowest / 3]),
        backward_s=np.array([slowest * 2 / 3]),
        hop_s=np.array([0.0]),
        hop_hidden=np.array([0.0]),
    )
    short_by = step.time - groups * p * slowest - float(waiting[0])
    assert abs(short_by) <= p * 3 * (layers + head)


@fast
@given(stages_and_chunks, st.integers(1, 4), seconds, seconds)
def test_interleaved_equal_stages_are_exact(
    pipeline: tuple[int, int], groups: int, forward: float, backward: float
) -> None:
    """Whole groups of p micro-batches: the wait of 1F1B divided by the chunks."""
    p, v = pipeline
    step = run([forward] * p, [backward] * p, v, groups * p)
    waiting = bubble([forward + backward] * p, v)
    assert waiting == pytest.approx((p - 1) * (forward + backward) / v)
    assert step.time == pytest.approx(step.busy[0] + waiting)


def test_megatron_cannot_run_every_ragged_group() -> None:
    """4 stages, 3 chunks and 5 micro-batches deadlock in its order; empty ones must fill it up."""
    with pytest.raises(DeadlockError):
        run([1.0] * 4, [2.0] * 4, 3, 5)


@fast
@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=8), st.integers(1, 24))
def test_1f1b_is_exact_where_the_last_stage_is_slowest(
    times: list[tuple[float, float]], m: int
) -> None:
    """Whatever the other stages take, as with the head on the last one."""
    times.sort(key=sum)
    forward, backward = (list(column) for column in zip(*times, strict=True))
    step = run(forward, backward, 1, m)
    waiting = bubble([sum(time) for time in times], 1)
    assert step.time == pytest.approx(step.busy[-1] + waiting)


@fast
@given(st.lists(seconds, min_size=1, max_size=8), st.integers(1, 24), st.floats(0.1, 4))
def test_1f1b_of_unequal_stages_is_at_most_half_a_filling_too_long(
    forward: list[float], m: int, ratio: float
) -> None:
    """Where backward takes the same multiple of forward: too long by at most (p - 1) / (2 m).

    A slow early stage fills the wait for its first backward with the forwards of its warm-up.
    """
    backward = [ratio * time for time in forward]
    both = [sum(times) for times in zip(forward, backward, strict=True)]
    step = run(forward, backward, 1, m)
    closed = m * max(both) + bubble(both, 1)
    slack = 1e-9 * closed
    assert step.time - slack <= closed <= step.time + (len(both) - 1) / 2 * max(both) + slack


def test_1f1b_with_a_slow_first_stage() -> None:
    """1 + 1 s before two stages of half of that: 3 micro-batches take 6 s; 8 s by the formula."""
    assert run([1, 0.5, 0.5], [1, 0.5, 0.5], 1, 3).time == 6
    assert 3 * 2 + bubble([2, 1, 1], 1) == 8


@fast
@given(stages_and_chunks, st.integers(1, 4), st.floats(0, 3), st.floats(0.2, 3))
def test_interleaved_is_exact_with_the_head_in_the_last_chunk(
    pipeline: tuple[int, int], groups: int, head: float, ratio: float
) -> None:
    """Equal layers and a head that only the last chunk of the last stage holds."""
    p, v = pipeline
    forward, backward = ([[1 / v] * v for _ in range(p)] for _ in range(2))
    backward = [[ratio * time for time in chunks] for chunks in backward]
    forward[-1][-1] += head
    backward[-1][-1] += ratio * head
    layer, last = 1 + ratio, (1 + ratio) * (1 + head)
    step = simulate(forward, backward, groups * p)
    closed = groups * p * last + bubble([layer] * (p - 1) + [last], v)
    assert step.time == pytest.approx(closed)


@fast
@given(stages_and_chunks, st.integers(1, 4), st.floats(0, 0.1), st.floats(0.1, 3))
def test_interleaved_falls_short_by_the_embedding_of_a_group(
    pipeline: tuple[int, int], groups: int, embedding: float, head: float
) -> None:
    """Only the first chunk embeds: the closed form misses at most p embeddings of a micro-batch.

    It spreads the embedding over the chunks; the first group of p waits for it whole.
    """
    p, v = pipeline
    share = min(embedding, head)
    forward, backward = ([[time / v] * v for _ in range(p)] for time in (1.0, 2.0))
    for stage, chunk, extra in ((0, 0, share), (-1, -1, head)):
        forward[stage][chunk] += extra
        backward[stage][chunk] += 2 * extra
    times = [3.0] * p
    times[0] += 3 * share
    times[-1] += 3 * head
    step = simulate(forward, backward, groups * p)
    closed = groups * p * max(times) + bubble(times, v)
    assert closed <= step.time * (1 + 1e-9)
    assert step.time <= closed + p * 3 * share + 1e-9


@fast
@given(stages_and_chunks, st.integers(1, 4), seconds, seconds, st.floats(0, 1))
def test_hops_that_occupy_stages_are_exact(
    pipeline: tuple[int, int], groups: int, forward: float, backward: float, hop: float
) -> None:
    """A message before each pass: 2 m v of them beside the passes, and 2 (p - 1) in the bubble."""
    p, v = pipeline
    m = groups * p
    step = run([forward] * p, [backward] * p, v, m, hop=hop, blocking=True)
    waiting = bubble([forward + backward] * p, v, hop)
    assert step.time == pytest.approx(step.busy[0] + 2 * m * v * hop + waiting)


@fast
@given(stages_and_chunks, st.integers(1, 4), seconds, seconds, st.floats(0, 0.1))
def test_hops_that_travel_alone_cost_no_more(
    pipeline: tuple[int, int], groups: int, forward: float, backward: float, share: float
) -> None:
    """Short messages beside the compute lie between the two: the bubble alone, and all of them.

    Interleaved, 2 (p v - 1) of them are exposed: those of one micro-batch through all chunks.
    """
    p, v = pipeline
    m, hop = groups * p, share * min(forward, backward) / (2 * p * v)
    alone = run([forward] * p, [backward] * p, v, m, hop=hop).time
    at_once = run([forward] * p, [backward] * p, v, m).time
    waiting = at_once + 2 * (p - 1) * hop
    assert waiting <= alone * (1 + 1e-9)
    assert alone <= (waiting + 2 * m * v * hop) * (1 + 1e-9)
    if v > 1:
        assert alone == pytest.approx(at_once + 2 * (p * v - 1) * hop)
        closed = m * (forward + backward) + bubble([forward + backward] * p, v, hop, hidden=1)
        assert alone == pytest.approx(closed)


@fast
@given(stages_and_chunks, st.integers(1, 4), st.lists(seconds, min_size=16, max_size=16))
def test_in_flight_is_what_every_stage_holds(
    pipeline: tuple[int, int], groups: int, times: list[float]
) -> None:
    """Most chunks alive over v, whatever the passes take; 1F1B with any number of micro-batches."""
    p, v = pipeline
    m = groups * p if v > 1 else groups
    step = run(times[:p], times[8 : 8 + p], v, m)
    assert [alive / v for alive in step.live] == pytest.approx(flying(m, p, v))
    counts = {"micro_batches": np.array([m]), "stages": np.array([p]), "chunks": np.array([v])}
    assert step.first == first_chunk_in_flight(**counts)[0]


def test_in_flight_by_hand() -> None:
    """1F1B: p - i or m; 4 stages of 2 chunks: 2 (3 - i) + 4 + 1 chunks; one stage: one."""
    assert flying(8, 4, 1) == [4, 3, 2, 1]
    assert flying(2, 4, 1) == [2, 2, 2, 1]
    assert flying(8, 4, 2) == [11 / 2, 9 / 2, 7 / 2, 5 / 2]
    assert flying(4, 4, 2) == [4, 4, 7 / 2, 5 / 2]
    assert flying(7, 1, 1) == [1]


def test_bubble_by_hand() -> None:
    """Stages of 3, 3, 3 and 5 s: 9 s of filling; with 2 chunks half; 3 hops there and back."""
    assert bubble([3, 3, 3, 5], 1) == 9
    assert bubble([3, 3, 3, 5], 2) == 4.5
    assert bubble([3, 3, 3, 5], 2, hop=0.25) == 4.5 + 6 * 0.25
    assert bubble([3], 1, hop=1) == 0
    # Half of them beside the compute: half of 4 more there and back.
    assert bubble([3, 3, 3, 5], 2, hop=0.25, hidden=0.5) == 4.5 + 6 * 0.25 + 4 * 0.25
