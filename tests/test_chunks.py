"""Long tables are evaluated in chunks, which nobody can see."""

import numpy as np
import polars as pl
import pytest

from rows import each_row
from shardwise import InputError, Strategy, estimate_many, estimator

pytestmark = pytest.mark.any_software

ROWS = {
    "gpus": 64,
    "tp": [1, 2, 3, 4, 8, 8, 8],
    "pp": [1, 2, 2, 4, 2, 1, 8],
    "recompute": ["none", "full", "none", "selective", "none", "full", "none"],
    "gbs": 128,
}


def test_chunks_do_not_show(monkeypatch):
    """Chunks of two rows give every column that one chunk gives, illegal rows in their place."""
    whole = estimate_many("llama3-8b", "h100-sxm", ROWS)
    monkeypatch.setattr(estimator, "_CHUNK", 2)
    pieces = estimate_many("llama3-8b", "h100-sxm", ROWS)
    assert whole.to_frame().equals(pieces.to_frame(), null_equal=True)
    assert whole.reason(2) == "degrees"
    assert np.isnan(whole.step_time_s[2])
    assert np.isfinite(np.delete(whole.step_time_s, 2)).all()


def test_a_frame_tells_which_row_is_which():
    """All fields of the strategy, words as words, beside times, bytes and the reason."""
    frame = estimate_many("llama3-8b", "h100-sxm", ROWS).to_frame()
    assert set(Strategy.model_fields) <= set(frame.columns)
    assert frame["recompute"].to_list() == ROWS["recompute"]
    assert frame["stack"].to_list() == ["megatron-core-2025"] * 7
    again = estimate_many("llama3-8b", "h100-sxm", frame.select(list(Strategy.model_fields)))
    assert again.to_frame().equals(frame, null_equal=True)
    assert isinstance(frame, pl.DataFrame)


@each_row("given", [3, "tp=8", [3], ["llama3-8b"], pl.LazyFrame({"tp": [1]})])
def test_what_is_no_table_is_refused(given):
    """One message says what a table may be."""
    with pytest.raises(
        InputError, match="a table is a mapping of columns, a data frame, or a list"
    ):
        estimate_many("llama3-8b", "h100-sxm", given)
    with pytest.raises(InputError, match="strategy: is missing: set its fields"):
        estimate_many("llama3-8b", "h100-sxm", None)


def test_strategies_may_be_mappings_and_none_means_not_given():
    """A list of mappings is a list of strategies; None takes the default."""
    rows = [{"gpus": 8, "gbs": 8, "tp": 8}, {"gpus": 8, "gbs": 8, "pp": 2, "dtype": None}]
    with pytest.raises(InputError, match="dtype"):
        estimate_many("llama3-8b", "h100-sxm", rows)
    one = estimate_many("llama3-8b", "h100-sxm", rows[:1])
    two = estimate_many("llama3-8b", "h100-sxm", {**rows[0], "dtype": None, "stack": None})
    assert one.step_time_s.tolist() == two.step_time_s.tolist()
