"""Evaluating once per key is evaluating each row, and records are gathered whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from shardwise import distinct
from shardwise.arrays import columns_in, equal, gather, joined
from shardwise.config.strategy_table import Table
from shardwise.distinct import distinct_rows

MODEL = samples.model()
fast = examples(25)


@fast
@given(st.integers(1, 7), st.data())
def test_distinct_rows_are_found_whatever_the_range_of_the_columns(
    width: int, data: st.DataObject
) -> None:
    """Small, negative, sparse, or too many to multiply."""
    highs = data.draw(
        st.lists(st.sampled_from([1, 3, 4000, 10**6]), min_size=width, max_size=width)
    )
    length = data.draw(st.integers(0, 12))
    keys = [
        np.array(
            data.draw(st.lists(st.integers(-2, high), min_size=length, max_size=length)), np.int64
        )
        for high in highs
    ]
    firsts, position = distinct_rows([*keys, keys[0] > 0])
    combinations = np.stack(keys)
    np.testing.assert_array_equal(combinations[:, firsts[position]], combinations)
    assert len(firsts) == len({tuple(row) for row in combinations.T.tolist()})
    for number, first in enumerate(firsts):
        assert first == np.argmax(position == number)


def test_distinct_rows_number_columns_whose_product_overflows() -> None:
    """Seven columns over 4000 values each have 10^25 combinations, of which three occur."""
    keys = [np.array([0, 4000, 7, 4000]) + i % 2 for i in range(7)]
    firsts, position = distinct_rows(keys)
    assert sorted(keys[0][firsts].tolist()) == [0, 7, 4000]
    assert keys[0][firsts[position]].tolist() == keys[0].tolist()


def test_distinct_rows_compare_floats_bit_by_bit() -> None:
    """Of several columns at once, whether their hashes differ or, with a poor one, agree."""
    draw = np.random.default_rng(0)
    keys = [draw.choice([0.1, 0.2, 0.1 + 1e-17, -0.0, 0.0], 60) for _ in range(3)]
    expected = len({tuple(row) for row in np.stack(keys).view(np.int64).T.tolist()})
    usual = distinct_rows(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct, "_HASH_FACTOR", np.uint64(0))
        alike = distinct_rows(keys)
    for firsts, position in (usual, alike):
        assert len(firsts) == expected > 27
        for key in keys:
            assert key[firsts[position]].tobytes() == key.tobytes()


def test_columns_in_a_record_are_found_in_nested_ones() -> None:
    """Arrays of several rows count as several columns; what is no array as none."""
    column = np.arange(3)
    pairs = np.stack([column, column + 3])
    found = [one.tolist() for one in columns_in((column, ("word", pairs), None))]
    assert found == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]


def test_gather_follows_records_and_tuples() -> None:
    """Arrays are indexed wherever they are; everything else stays."""
    table = Table.of(MODEL, {"tp": [1, 2, 4], "dp": 1, "gbs": 1})
    taken, arrays, word = gather((table, (table.tp, table.pp), "word"), np.array([2, 0]))
    assert taken.tp.tolist() == arrays[0].tolist() == [4, 1]
    assert taken.stacks == table.stacks
    assert word == "word"


def test_records_of_one_form_are_joined() -> None:
    """Rows of nested records and tuples follow each other; what is not an array must agree."""
    table = Table.of(MODEL, {"tp": [1, 2, 4], "dp": 1, "gbs": 1})
    first, others = table.take(slice(0, 1)), table.take(slice(1, 3))
    both = joined([(first, (first.tp,), "word"), (others, (others.tp,), "word")])
    assert both is not None
    assert both[0].tp.tolist() == both[1][0].tolist() == [1, 2, 4]
    assert both[0].stacks == table.stacks
    assert both[2] == "word"
    assert joined([(first.tp, "word"), (others.tp, "other")]) is None
    assert joined([(first.tp, None), (others.tp, others.tp)]) is None
    assert joined([(first.tp,), ()]) is None


def test_records_are_equal_in_every_array() -> None:
    """Nested records and tuples, of one form."""
    table = Table.of(MODEL, {"tp": [1, 2], "dp": 1, "gbs": 1})
    again = Table.of(MODEL, {"tp": [1, 2], "dp": 1, "gbs": 1})
    other = Table.of(MODEL, {"tp": [1, 4], "dp": 1, "gbs": 1})
    assert equal((table, (table.tp, "word")), (again, (again.tp, "word")))
    assert not equal(table, other)
    assert not equal((table.tp, "word"), (table.tp, "other"))
    assert not equal((table.tp,), (table.tp, table.tp))
    assert not equal(table.tp, (table.tp,))
