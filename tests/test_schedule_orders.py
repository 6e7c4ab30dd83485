"""The orders in which pipeline ranks work are legal, and are the published ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise.config.enums import Schedule
from shardwise.errors import InputError
from shardwise.parallel.schedule.orders import (
    Action,
    chunks_of,
    orders,
    rank_of,
    stage_of,
    virtual_stages,
)

pytestmark = pytest.mark.any_software

fast = examples(60)


@st.composite
def pipelines(draw):
    """Any pipeline that some schedule can run: schedule, p, m, v."""
    schedule = draw(st.sampled_from(Schedule))
    p = draw(st.integers(1, 8))
    if schedule == "dualpipe":
        p = 2 * draw(st.integers(1, 4))
        return schedule, p, 2 * p + 2 * draw(st.integers(0, 10)), 1
    v = draw(st.integers(1, 4)) if schedule == "interleaved" else 1
    return schedule, p, draw(st.integers(1, 30)), v


def words(order):
    """Short names: F0, B0; of the second chunk f0, b0; a dash if split, + if paired."""
    return " ".join(
        (one.kind if one.chunk == 0 else one.kind.lower())
        + str(one.micro_batch)
        + "-" * one.split
        + "+" * one.paired
        for one in order
    )


@fast
@given(pipelines())
def test_every_pass_is_done_once_and_in_turn(pipeline):
    """On its chunk: F before B before W, which follows just the B's that leave it out."""
    schedule, p, m, v = pipeline
    both = schedule == "dualpipe"
    for order in orders(schedule, ranks=p, micro_batches=m, chunks=v):
        assert len(set(order)) == len(order)
        place = {(one.kind, one.micro_batch, one.chunk): at for at, one in enumerate(order)}
        assert len(place) == len(order)
        due = {
            (k, c)
            for c in range(chunks_of(schedule, v))
            for k in range(m)
            if not both or (k >= m // 2) == (c == 1)
        }
        for kind in "FB":
            assert {(k, c) for done, k, c in place if done == kind} == due
        split = {(one.micro_batch, one.chunk) for one in order if one.split}
        assert {(k, c) for kind, k, c in place if kind == "W"} == split
        for k, c in due:
            assert place["F", k, c] < place["B", k, c]
        for k, c in split:
            assert place["B", k, c] < place["W", k, c]


@fast
@given(pipelines())
def test_no_rank_waits_for_ever(pipeline):
    """Ranks that work as far as their inputs allow come to the end, pairs at once."""
    schedule, p, m, v = pipeline
    left = [list(order) for order in orders(schedule, ranks=p, micro_batches=m, chunks=v)]
    last = virtual_stages(schedule, ranks=p, chunks=v) - 1
    done = set()

    def ready(rank, one):
        stage = stage_of(schedule, rank=rank, chunk=one.chunk, ranks=p)
        if one.kind == "F":
            return stage == 0 or ("F", stage - 1, one.micro_batch) in done
        if one.kind == "B" and stage < last:
            return ("B", stage + 1, one.micro_batch) in done
        return ("F" if one.kind == "B" else "B", stage, one.micro_batch) in done

    while any(left):
        before = len(done)
        for rank, order in enumerate(left):
            while order:
                block = order[: 1 + order[0].paired]
                if not all(ready(rank, one) for one in block):
                    break
                for one in block:
                    stage = stage_of(schedule, rank=rank, chunk=one.chunk, ranks=p)
                    done.add((one.kind, stage, one.micro_batch))
                del order[: len(block)]
        assert len(done) > before


@fast
@given(pipelines())
def test_ranks_and_chunks_hold_every_virtual_stage(pipeline):
    """`rank_of` undoes `stage_of`; both directions of DualPipe have all stages."""
    schedule, p, _, v = pipeline
    held = [(rank, chunk) for rank in range(p) for chunk in range(chunks_of(schedule, v))]
    stages = [stage_of(schedule, rank=rank, chunk=chunk, ranks=p) for rank, chunk in held]
    copies = 2 if schedule == "dualpipe" else 1
    assert sorted(stages) == sorted(
        list(range(virtual_stages(schedule, ranks=p, chunks=v))) * copies
    )
    for (rank, chunk), stage in zip(held, stages, strict=True):
        direction = chunk if copies == 2 else 0
        assert rank_of(schedule, stage=stage, ranks=p, direction=direction) == (rank, chunk)


def test_where_embedding_and_head_stand():
    """The ends of the model: on the first and the last rank, but of a V both on the first one."""
    assert rank_of("1f1b", stage=0, ranks=4) == (0, 0)
    assert rank_of("1f1b", stage=3, ranks=4) == (3, 0)
    assert rank_of("interleaved", stage=11, ranks=4) == (3, 2)
    assert rank_of("zb-v", stage=0, ranks=4) == (0, 0)
    assert rank_of("zb-v", stage=7, ranks=4) == (0, 1)
    assert rank_of("zb-v", stage=4, ranks=4) == (3, 1)
    assert rank_of("dualpipe", stage=3, ranks=4) == (3, 0)
    assert rank_of("dualpipe", stage=3, ranks=4, direction=1) == (0, 1)


def test_plain_orders_by_hand():
    """Two ranks: 1F1B's first one is a forward ahead; GPipe does all forwards first."""
    ahead, level = orders("1f1b", ranks=2, micro_batches=3)
    assert words(ahead) == "F0 F1 B0 F2 B1 B2"
    assert words(level) == "F0 B0 F1 B1 F2 B2"
    assert [words(one) for one in orders("gpipe", ranks=2, micro_batches=2)] == ["F0 F1 B0 B1"] * 2
    assert orders("1f1b", ranks=2, micro_batches=3)[1][0] == Action("F", 0, 0)


def test_interleaved_order_by_hand():
    """Two ranks of two chunks, groups of two; one left over takes the first place of a group."""
    first, second = orders("interleaved", ranks=2, micro_batches=3, chunks=2)
    assert words(first) == "F0 F1 f0 f1 F2 b0 b1 f2 B0 B1 b2 B2"
    assert words(second) == "F0 F1 f0 b0 f1 b1 F2 B0 B1 f2 b2 B2"


def test_zb_h1_lags_by_the_rank():
    """Rank i has done i more backwards than weights' gradients (figure 3 of the paper)."""
    first, second = orders("zb-h1", ranks=2, micro_batches=3)
    assert words(first) == "F0 F1 B0- W0 F2 B1- W1 B2- W2"
    assert words(second) == "F0 B0- F1 B1- W0 F2 B2- W1 W2"


def test_zb_v_by_hand():
    """Two ranks: down on the first chunk, up on the second; weights' gradients fill the end."""
    first, second = orders("zb-v", ranks=2, micro_batches=3)
    assert words(first) == "F0 F1 F2 f0 b0- w0 f1 b1- w1 B0- W0 f2 b2- w2 B1- W1 B2- W2"
    assert words(second) == "F0 f0 F1 f1 b0- w0 F2 B0- W0 f2 b1- w1 B1- b2- B2- W1 w2 W2"


def test_dualpipe_by_hand():
    """Two ranks, two micro-batches each way: pairs in the middle, but for the first one."""
    first, second = orders("dualpipe", ranks=2, micro_batches=4)
    assert words(first) == "F0 f2 F1 b2 f3+ B0 b3 B1- W1"
    assert words(second) == "f2 F0 f3 B0 F1+ b2 B1 b3- w3"


@each_row(
    ("given", "message"),
    [
        (
            {"schedule": "1f1d"},
            (
                "schedule: '1f1d': must be one of 1f1b, interleaved, gpipe, zb-h1, zb-v, dualpipe; "
                "did you mean '1f1b'?"
            ),
        ),
        ({"ranks": 0}, "ranks: 0: must be at least 1"),
        ({"micro_batches": 0}, "micro_batches: 0: must be at least 1"),
        ({"chunks": 2}, "chunks: 2: must be 1 for 1f1b, which fixes the chunks itself"),
        (
            {"schedule": "dualpipe", "ranks": 3, "micro_batches": 6},
            "ranks: 3: must be even for dualpipe, whose ranks have two stages of opposite depth",
        ),
        (
            {"schedule": "dualpipe", "micro_batches": 6},
            "micro_batches: 6: must be even and at least 2 x 4 ranks for dualpipe",
        ),
        (
            {"schedule": "dualpipe", "micro_batches": 9},
            "micro_batches: 9: must be even and at least 2 x 4 ranks for dualpipe",
        ),
    ],
)
def test_what_cannot_run_is_refused(given, message):
    """Each fault names what was given and what is allowed."""
    whole = {"schedule": "1f1b", "ranks": 4, "micro_batches": 8} | given
    with pytest.raises(InputError) as refused:
        orders(whole.pop("schedule"), **whole)
    assert str(refused.value) == message
