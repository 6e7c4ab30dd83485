"""Which strategies a search tries: layouts, options and choices, each once."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import samples
from naive_search import FIELDS, OFFLOADS, USUAL
from rows import each_row
from shardwise import InputError, estimate_many
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import CHOICE_FIELDS, LAYOUT_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.planning.search.candidates import OPTION_FIELDS, Candidates
from shardwise.planning.search.run import count, search
from shardwise.planning.search.space import SPACE_FIELDS, Space
from tried_candidates import MODEL, SYSTEM, candidates, keys, rows_of, table_of

pytestmark = pytest.mark.any_software


def test_every_field_is_of_a_layout_an_option_or_a_choice():
    """Three groups without overlap make up all fields of a space, and of a strategy but one."""
    groups = (*LAYOUT_FIELDS, *OPTION_FIELDS, *CHOICE_FIELDS)
    assert len(set(groups)) == len(groups)
    assert set(groups) == set(SPACE_FIELDS) == set(Strategy.model_fields) - {"sequence_parallel"}


def test_numbers_name_the_strategies_that_are_evaluated():
    """Candidate n of a box is row n // choices with choice n mod choices; there and back."""
    found = candidates(tp=[1, 2], training=[True, False], stack=["calculon", "nemo-2025"], mbs=1)
    assert keys(table_of(found)) == keys(rows_of(found.legal + found.illegal))
    for box in found.legal:
        row, choice = (i.ravel() for i in np.indices((len(box.table()), len(box.choices))))
        numbers = box.numbers(row, choice)
        assert numbers.tolist() == list(range(box.start, box.start + len(box)))


def test_strategies_come_in_the_order_of_their_numbers():
    """Whatever the order, and across boxes; the same number twice is the same strategy twice."""
    found = candidates(mbs=[1, 2], dtype=["bf16", "fp16"], tp_overlap="none", recompute="none")
    every = keys(table_of(found))
    wanted = np.random.default_rng(0).integers(0, len(found), 300)  # out of order, some twice
    assert keys(found.strategies(wanted)) == [every[number] for number in wanted]


@each_row("size", [1, 7, 100, 10_000])
def test_pieces_of_a_box_are_the_box(size):
    """Numbers and strategies go on from piece to piece."""
    box = candidates(training=[True, False], recompute="all").legal[-1]
    pieces = list(box.cut(size))
    assert sum(map(len, pieces)) == len(box)
    assert all(len(p.layouts) == 1 or len(p.layouts) * len(p.options) <= size for p in pieces)
    ends = [piece.start + len(piece) for piece in pieces]
    assert [piece.start for piece in pieces] == [box.start, *ends[:-1]]
    numbers = [np.arange(piece.start, piece.start + len(piece)) for piece in pieces]
    found = [piece.strategies(some) for piece, some in zip(pieces, numbers, strict=True)]
    assert keys(Table.joined(found)) == keys(box.strategies(np.concatenate(numbers)))


def test_no_strategy_is_tried_twice_on_one_scale():
    """All fields together tell candidates apart."""
    found = candidates(training=[True, False], dtype="bf16,fp32", tp_tier=[None, 0, 1], mbs=[1, 2])
    assert len(set(keys(table_of(found)))) == len(found) > 1000


def test_largest_batches_of_different_limits_may_meet():
    """4 replicas run 8 sequences under limits of 8 and of 9: once for each limit."""
    found = candidates(gbs=[8, 9], batch="largest", dp=4, mbs=1, zero=0)
    assert [scale.global_batch_size for scale in found.scales] == [8, 9]
    first, second = np.split(np.array(keys(table_of(found)), dtype=object), 2)
    assert first.tolist() == second.tolist()
    assert set(map(tuple, first)) == set(keys(table_of(candidates(dp=4, mbs=1, zero=0))))


def test_every_candidate_has_values_of_the_space():
    """Of rejected ones, too: no field falls back to a usual value."""
    space: dict[str, Any] = {
        "placement": ["dp-tp-cp-pp", "pp-dp-tp-cp"],
        "tp": [1, 2, 3],
        "pp": [1, 2, 5],
        "vpp": [1, 3],
        "mbs": [2, 3],
        "schedule": ["interleaved", "1f1b"],
        "pp_tier": [1, 0],
        "zero": 0,
        "tp_overlap": "ring",
        "dtype": "fp16",
    }
    found = candidates(**space)
    assert found.illegal
    table = table_of(found)
    strategies = [table.strategy(i) for i in range(0, len(table), 7)]
    for name, values in space.items():
        field = {"mbs": "micro_batch_size"}.get(name, name)
        allowed = values if isinstance(values, list) else [values]
        assert {getattr(one, field) for one in strategies} <= {*allowed}


def test_other_rules_say_the_same_of_choices_and_of_rows():
    """Options and choices are checked apart from layouts; together they are the whole verdict."""
    layout = {"tp": [1, 2], "pp": [1, 2], "mbs": [1, 2]}
    found = candidates(samples.system(), zero=[0, 4], seq_len=[30, 64], dtype="bf16,fp16", **layout)
    table = table_of(found)
    refused = estimate_many(MODEL, samples.system(), table).refused >= 0
    legal = len(rows_of(found.legal))
    assert np.all(refused[legal:])
    assert 0 < np.count_nonzero(refused[:legal]) < legal


FIXED = {
    "tp": 2,
    "pp": 2,
    "dp": 4,
    "vpp": 1,
    "micro_batch_size": 2,
    "gpus": 8,
    "global_batch_size": 16,
    "schedule": "1f1b",
    "seq_len": 16,
    "dtype": "fp16",
    "training": False,
    "attention": "multiquery",
    "stack": "calculon",
    "offload_weights": True,
    "tp_tier": 1,
}


@each_row("name", FIXED)
def test_fixing_a_field_is_filtering(name):
    """The candidates with that value, and no others."""
    space: dict[str, Any] = {
        "gpus": [8, 16] if name == "gpus" else 8,
        "global_batch_size": [8, 16],
        "seq_len": [32, 16],
        "dtype": ["bf16", "fp16"],
        "training": [True, False],
        "attention": ["model", "multiquery"],
        "stack": ["megatron-core-2025", "calculon"],
        "offload_weights": [False, True],
        "tp_tier": [None, 1],
        **{n: USUAL[n][0] for n in ("recompute", "tp_overlap", "zero", "placement")},
        **dict.fromkeys(("tp_regather", "dp_overlap"), True),
        **dict.fromkeys(("fused_activation", *OFFLOADS[1:]), False),
        "tp_exchange": "rs_ag",
    }
    if name not in ("stack", "dtype", "attention"):
        space |= {field: space[field][:1] for field in ("stack", "dtype", "attention")}
    whole = rows_of_space(json.dumps(space))
    alone = rows_by_name(candidates(**space | {name: FIXED[name]}))
    place_of = FIELDS.index(name)
    if name == "tp_tier":  # where tp is 1 it does nothing, and the first value stays
        whole = {row for row in whole if row[FIELDS.index("tp")] > 1}
        alone = {row for row in alone if row[FIELDS.index("tp")] > 1}
    expected = {row for row in whole if row[place_of] == FIXED[name]}
    assert alone == expected
    assert 0 < len(expected) <= len(whole)


@cache
def rows_of_space(text: str) -> set[tuple[Any, ...]]:
    """Those of a space, as JSON, that several fields are fixed in."""
    return rows_by_name(candidates(**json.loads(text)))


def rows_by_name(found: Candidates) -> set[tuple[Any, ...]]:
    """Legal candidates with words as words."""
    legal = sum(map(len, found.legal))
    table = found.strategies(np.arange(legal))
    columns = table.to_columns()
    plain = [
        np.nan_to_num(columns[n], nan=-1) if columns[n].dtype == float else columns[n]
        for n in FIELDS
    ]
    return set(zip(*(column.tolist() for column in plain), strict=True))


def test_a_schedule_that_chunks_contradict_is_refused_where_both_are_given():
    """Two chunks without interleaving: candidates, all refused by the rule for it."""
    assert count(MODEL, SYSTEM, gpus=8, gbs=8, pp=2, vpp=2, schedule="1f1b")[1].keys() == {
        "schedule"
    }
    implied, refused = count(MODEL, SYSTEM, gpus=8, gbs=8, pp=2, schedule="1f1b")
    assert implied > 0
    assert "schedule" not in refused


def test_the_rules_are_counted_as_a_search_counts_them():
    """Of layouts and of options, without the memory of any."""
    fields = {"scope": "full", "gpus": 8, "gbs": 16, "pp": [1, 2], "dp_overlap": True}
    fields |= {"tp_exchange": ["all_reduce", "summa"], "offload_weights": False, "mbs": 1}
    size, refused = count("mixtral-8x7b", "h100-sxm", fields)
    found = search("mixtral-8x7b", "h100-sxm", fields, bounds=False, fits=None)
    assert size == found.candidates
    assert refused == {k: v for k, v in found.rejected.items() if "memory" not in k}
    assert size - sum(refused.values()) == found.evaluated > 0
    assert len(refused) > 1


def test_more_replicas_than_sequences_are_counted_once():
    """8 replicas cannot share 4 sequences: refused, with one micro-batch and one placement."""
    found = candidates(gbs=4, dp=8, placement="all")
    assert (found.legal, [len(box.layouts) for box in found.illegal]) == ((), [1])
    _, refused = count(MODEL, SYSTEM, {"scope": "full", "zero": [1, 0]}, gpus=8, gbs=4, dp=8)
    assert refused == {"batch": len(found)}


@each_row(
    ("missing", "told"),
    [("gpus", "gpus: is missing: number .*"), ("global_batch_size", ".*, such as gbs=128")],
)
def test_what_nothing_implies_must_be_given(missing, told):
    """One fault that names the field and what wants it."""
    given = {"gpus": 8, "global_batch_size": 8}
    del given[missing]
    with pytest.raises(InputError, match=f"^search: {told}$"):
        Candidates.of(MODEL, SYSTEM, Space.validated(given))


def test_the_length_of_a_sequence_may_come_from_the_model_or_the_space():
    """A model that names none needs one."""
    with pytest.raises(InputError, match="seq_len: is missing"):
        candidates(model=samples.llama(seq_len=None))
    given = candidates(model=samples.llama(seq_len=None), seq_len=[16, 64])
    assert {*table_of(given).seq_len.tolist()} == {16, 64}
    assert {*table_of(candidates(model=samples.llama(), mbs=1)).seq_len.tolist()} == {32}
