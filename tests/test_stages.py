"""Which layers stand on which pipeline rank, by hand and against dealing them out one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import Model
from shardwise.arrays import gather
from shardwise.config.enums import Schedule
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import first_violation
from shardwise.parallel.pipeline_layout import (
    StageGroup,
    by_stage,
    chunks_of,
    layers_on_ranks,
    stage_groups,
)

pytestmark = pytest.mark.any_software

fast = examples(100)
A, B, C = (samples.layer(mlp={"ffn": width}) for width in (64, 128, 256))


def model(*counts: int, **fields: Any) -> Model:
    """So many layers of kind A, B and C."""
    kinds = [kind | {"count": n} for kind, n in zip((A, B, C), counts, strict=False)]
    return samples.model(*kinds, **fields)


def table_of(architecture: Model, **columns: Any) -> Table:
    plain: dict[str, Any] = {"dp": 1, "gbs": 96, "stack": samples.stack()}
    return Table.of(architecture, plain | columns)


def sizes(depth: int, **columns: Any) -> list[int]:
    """Layers on every virtual stage."""
    return layers_on_ranks(depth, table_of(model(depth), **columns), 0)


def stages(architecture: Model, **columns: Any) -> StageGroup:
    """Every stage of one row."""
    return by_stage(stage_groups(architecture, table_of(architecture, **columns)))


def listed(parts: tuple[np.ndarray, ...]) -> list[list[float]]:
    """Counts of each stage instead of stages of each count."""
    return np.stack(parts, axis=1).tolist()


@each_row(
    ("columns", "expected"),
    [
        ({}, [3, 3, 2, 2]),
        ({"first_stage_layers": 1}, [1, 3, 3, 3]),
        ({"last_stage_layers": 2}, [3, 3, 2, 2]),
        ({"last_stage_layers": 1}, [3, 3, 3, 1]),
        ({"first_stage_layers": 1, "last_stage_layers": 1}, [1, 4, 4, 1]),
        ({"first_stage_layers": 2, "last_stage_layers": 3}, [2, 3, 2, 3]),
        ({"first_stage_layers": 10}, [10, 0, 0, 0]),
        ({"embedding_as_layer": True}, [2, 3, 3, 2]),
        ({"loss_as_layer": True}, [3, 3, 3, 1]),
        ({"embedding_as_layer": True, "loss_as_layer": True}, [2, 3, 3, 2]),
        # What stands beside a count that was given is none of its layers.
        ({"first_stage_layers": 3, "embedding_as_layer": True}, [3, 3, 2, 2]),
        ({"first_stage_layers": 3, "loss_as_layer": True}, [3, 3, 3, 1]),
        ({"last_stage_layers": 1, "embedding_as_layer": True}, [3, 3, 3, 1]),
        ({"stage_layers": (0, 5, 4, 1)}, [0, 5, 4, 1]),
    ],
)
def test_ten_layers_on_four_stages(columns: dict[str, Any], expected: list[int]) -> None:
    """Given counts stand; the rest is even, longer stages first."""
    assert sizes(10, pp=4, **columns) == expected


def test_one_stage_holds_all_layers() -> None:
    """Whatever counts as a layer."""
    assert sizes(10, embedding_as_layer=True, loss_as_layer=True) == [10]


def test_counts_that_leave_too_few_are_distinguished() -> None:
    """-1 on every rank: first and last have more than all, or less and there is no other."""
    for given_counts in ((6, 5), (4, 5), (11, None)):
        first, last = given_counts
        columns = {"first_stage_layers": first, "last_stage_layers": last}
        assert sizes(10, pp=2, **columns) == [-1, -1]


def test_chunks_share_the_layers_of_their_rank() -> None:
    """6 and 5 layers in 3 chunks: 2, 2, 2 and 2, 2, 1, in the order of the model."""
    assert sizes(11, pp=2, vpp=3) == [2, 2, 2, 2, 2, 1]
    assert sizes(8, pp=2, vpp=2, first_stage_layers=5) == [3, 2, 2, 1]
    assert sizes(8, pp=2, vpp=2, stage_layers=(1, 2, 3, 2)) == [1, 2, 3, 2]


def test_a_rank_holds_chunks_of_every_round() -> None:
    """A A | B B | B C | C C on 2 ranks of 2 chunks: A A B C and B B C C."""
    found = stages(model(2, 3, 3), pp=2, vpp=2)
    assert listed(found.resident) == listed(found.work)
    first, second = listed(found.resident)
    assert first == [2, 1, 1, 0, 0, 0, 0, 1, 0]
    assert second == [0, 2, 2, 0, 0, 0, 0, 0, 1]
    assert found.layers.tolist() == [4, 4]


def test_the_v_of_zb_v_ends_where_it_began() -> None:
    """A A | B B | B C | C C on 2 ranks: the first holds the first and the last stage."""
    found = stages(model(2, 3, 3), pp=2, schedule="zb-v")
    assert listed(found.resident) == listed(found.work)
    first, second = listed(found.resident)
    assert first == [2, 0, 2, 0, 0, 0, 0, 1, 1]
    assert second == [0, 3, 1, 0, 0, 0, 0, 0, 0]
    assert sizes(9, pp=2, schedule="zb-v") == [3, 2, 2, 2]
    assert sizes(8, pp=2, schedule="zb-v", first_stage_layers=1) == [1, 3, 2, 2]


def test_dualpipe_holds_stages_of_both_directions() -> None:
    """A A | B B | B C | C C on 4 ranks: each holds its own and the opposite, and works on half."""
    found = stages(model(2, 3, 3), pp=4, schedule="dualpipe")
    ends, middle = [2, 0, 2, 0, 0, 0, 0, 1, 1], [0, 3, 1, 0, 0, 0, 0, 0, 0]
    assert listed(found.resident) == [ends, middle, middle, ends]
    half = [[count / 2 for count in rank] for rank in (ends, middle, middle, ends)]
    assert listed(found.work) == half
    assert found.layers.tolist() == [4, 4, 4, 4]


def test_kinds_that_alternate_stand_where_their_turn_is() -> None:
    """A B B A B B on 3 stages: A B, B A, B B."""
    architecture = model(2, 4, interleave=(1, 2))
    assert architecture.order == (0, 1, 1, 0, 1, 1)
    found = listed(stages(architecture, pp=3).resident)
    assert [rank[:2] for rank in found] == [[1, 1], [1, 1], [0, 2]]


def test_the_first_layers_of_each_stage_recompute() -> None:
    """2 of A A B | B B C: 2 A, and 2 B; the rest stands among those that do not."""
    found = stages(model(2, 3, 1), pp=2, recompute="full", recompute_layers=2)
    assert listed(found.resident) == [[2, 0, 0, 0, 1, 0, 0, 1, 0], [0, 2, 0, 0, 0, 1, 0, 0, 1]]
    every = stages(model(2, 3, 1), pp=2, recompute="full", recompute_layers=9)
    assert listed(every.resident) == [[2, 1, 0, 0, 0, 0, 0, 1, 0], [0, 2, 1, 0, 0, 0, 0, 0, 1]]
    # Of both chunks of a rank together: A | A | B | B | B | C, ranks A B B and A B C.
    rounds = stages(model(2, 3, 1), pp=2, vpp=3, recompute="full", recompute_layers=2)
    assert listed(rounds.resident) == [[1, 1, 0, 0, 1, 0, 0, 1, 0], [1, 1, 0, 0, 0, 1, 0, 0, 1]]


def test_modules_of_multi_token_prediction_stand_with_the_head() -> None:
    """Two of them, on the last stage; on the first of zb-v, and on both ends of dualpipe."""
    architecture = model(4, mtp=2)
    modules = 2  # their place: after one kind, recomputing and not
    for schedule, expected in (
        ("1f1b", [0, 0, 0, 2]),
        ("dualpipe", [2, 0, 0, 2]),
    ):
        found = stages(architecture, pp=4, schedule=schedule)
        assert found.resident[modules].tolist() == expected
    assert stages(architecture, pp=2, schedule="zb-v").resident[modules].tolist() == [2, 0]


def after_last(found: StageGroup) -> list[list[int]]:
    """For each component, how many of each come after its last one."""
    contents = found.contents
    components = range(contents.chunks.shape[-1])
    columns = [contents.following(component)[0].tolist() for component in components]
    return [list(counts) for counts in zip(*columns, strict=True)]


def test_what_stands_after_the_last_of_a_kind() -> None:
    """A B B A B B: two B after the last A, nothing after the last B."""
    architecture = model(2, 4, interleave=(1, 2))
    found = stages(architecture)
    assert after_last(found) == [[0, 2, 0, 0, 0], *[[0] * 5] * 4]
    # The first A and B recompute: A' B' B A B B, then a module of multi-token prediction.
    found = stages(model(2, 4, interleave=(1, 2), mtp=1), recompute="full", recompute_layers=2)
    assert after_last(found) == [
        [0, 1, 1, 3, 1],
        [0, 0, 1, 3, 1],
        [0, 0, 0, 2, 1],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0],
    ]


def test_equal_stages_are_one_run() -> None:
    """8 on 8: the first, 6 alike, the last; rows with fewer runs have empty ones, of length 0."""
    architecture = model(8)
    runs = stage_groups(architecture, table_of(architecture, pp=[8, 1, 4]))
    assert [run.length.tolist() for run in runs] == [[1, 1, 1], [6, 0, 2], [1, 0, 1]]
    assert [run.first.tolist() for run in runs] == [[0, 0, 0], [1, 0, 1], [7, 0, 3]]
    assert [run.last.tolist() for run in runs] == [[0, 0, 0], [6, 0, 2], [7, 0, 3]]
    assert chunks_of(table_of(architecture, pp=2, vpp=2)).tolist() == [2]
    assert chunks_of(table_of(architecture, pp=2, schedule="zb-v")).tolist() == [2]


def dealt_counts(row: dict[str, Any], depth: int, places: int) -> list[int]:
    """Layers of every place, dealt out one by one; what was given stands."""
    fixed = {0: row["first_stage_layers"], places - 1: row["last_stage_layers"]}
    fixed = {place: n for place, n in fixed.items() if n is not None}
    beside = [0] * places
    for place, flag in ((0, "embedding_as_layer"), (places - 1, "loss_as_layer")):
        beside[place] += row[flag] and place not in fixed
    counts = [fixed.get(place, 0) for place in range(places)]
    open_places = [place for place in range(places) if place not in fixed]
    for card in range(depth + sum(beside) - sum(counts)):
        counts[open_places[card % len(open_places)]] += 1
    return [n - extra for n, extra in zip(counts, beside, strict=True)]


def dealt(row: dict[str, Any], order: tuple[int, ...]) -> list[list[list[int]]]:
    """Kinds of the layers of every chunk of every rank; the embedding stands in the first one."""
    pp, vpp = row["pp"], row["vpp"]
    places = 2 * pp if row["schedule"] == "zb-v" else pp
    counts = dealt_counts(row, len(order), places) if places > 1 else [len(order)]
    chunk_counts = [[0] * vpp for _ in range(places)]
    for place, n in enumerate(counts):
        looked_up = row["embedding_as_layer"] and not row["first_stage_layers"]
        looked_up = looked_up and place == 0 and places > 1
        for card in range(looked_up, n + looked_up):
            chunk_counts[place][card % vpp] += 1
    deck = iter(order)
    virtual = [
        [next(deck) for _ in range(chunk_counts[place][chunk])]
        for chunk in range(vpp)
        for place in range(places)
    ]
    assert next(deck, None) is None
    if row["schedule"] == "zb-v":
        return [[virtual[rank], virtual[-1 - rank]] for rank in range(pp)]
    if row["schedule"] == "dualpipe":
        return [[virtual[rank], virtual[pp - 1 - rank]] for rank in range(pp)]
    return [virtual[rank::pp] for rank in range(pp)]


def again_and_plain(row: dict[str, Any], chunks: list[list[int]]) -> tuple[list[int], list[int]]:
    """Layers that recompute and others: the first of the rank; in dualpipe of each stage."""
    first = row["recompute_layers"] or 99
    if row["schedule"] != "dualpipe":
        chunks = [[kind for chunk in chunks for kind in chunk]]
    again = [kind for chunk in chunks for kind in chunk[:first]]
    return again, [kind for chunk in chunks for kind in chunk[first:]]


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    vpp = draw(st.sampled_from([1, 1, 1, 2, 3]))
    count = st.sampled_from([None, None, 1, 2, 3])
    return {
        "pp": draw(st.integers(1, 7)),
        "vpp": vpp,
        "schedule": "interleaved"
        if vpp > 1
        else draw(st.sampled_from([name for name in Schedule if name != "interleaved"])),
        "first_stage_layers": draw(count),
        "last_stage_layers": draw(count),
        "embedding_as_layer": draw(st.booleans()),
        "loss_as_layer": draw(st.booleans()),
        "recompute": "full",
        "recompute_layers": draw(st.sampled_from([None, 1, 2, 5])),
    }


@fast
@given(
    st.lists(layouts(), min_size=1, max_size=8),
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)),
    st.booleans(),
)
def test_layers_are_dealt_out(
    rows: list[dict[str, Any]], counts: tuple[int, int, int], alternate: bool
) -> None:
    """Every legal row of a table; in all ranks together each layer once, in dualpipe twice."""
    architecture = model(*counts, mtp=1, interleave=(1, 2, 1) if alternate else None)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    table = table_of(architecture, **columns)
    legal = np.flatnonzero(first_violation(architecture, samples.system(), table) < 0)
    assume(len(legal) > 0)
    table = table.take(legal)
    runs = stage_groups(architecture, table)
    for at, row in enumerate([rows[i] for i in legal]):
        found = by_stage(gather(runs, np.array([at])))
        ranks = dealt(row, architecture.order)
        held = np.array(listed(found.resident))
        for rank, chunks in enumerate(ranks):
            parted = again_and_plain(row, chunks)
            expected = [float(part.count(kind)) for part in parted for kind in range(3)]
            assert held[rank][:6].tolist() == expected
            assert found.layers[rank] == sum(map(len, chunks))
            here = found.contents.chunks[found.key[rank]]
            by_kind = here[: len(chunks), :3] + here[: len(chunks), 3:6]
            assert by_kind.tolist() == [
                [chunk.count(kind) for kind in range(3)] for chunk in chunks
            ]
            assert here.sum(axis=0).tolist() == held[rank][:7].tolist()
            uneven = any((one != here[0]).any() for one in here[: len(chunks)])
            assert found.uneven_chunks[rank] == uneven
        times = 2 if row["schedule"] == "dualpipe" else 1
        whole = held.sum(axis=0) / times
        assert (whole[:3] + whole[3:6]).tolist() == list(counts)
        assert whole[6:].tolist() == [1, 1, 1]
        np.testing.assert_allclose(np.array(listed(found.work)), held / times)
