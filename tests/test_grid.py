"""`estimate_many` of all combinations of values, with ranges, and rows that break a rule apart."""

import numpy as np
import pytest

from rows import each_row
from shardwise import InputError, estimate, estimate_many

CASE = ("megatron-126m", "h100-sxm")
GRID = {"tp": [1, 2, 5], "micro_batch_size": [1, 2]}


def test_a_grid_has_all_combinations():
    """In the order of nested loops; short names and single values are taken, too."""
    table = estimate_many(*CASE, gpus=4, gbs=8, grid=GRID)
    wanted = [(tp, mbs) for tp in GRID["tp"] for mbs in GRID["micro_batch_size"]]
    assert list(zip(table.table.tp, table.table.micro_batch_size, strict=True)) == wanted
    other = estimate_many(*CASE, gpus=4, grid={"tp": [1, 2, 5], "mbs": (1, 2), "gbs": 8})
    assert np.array_equal(other.step_time_s, table.step_time_s, equal_nan=True)


def test_ranges_of_rows_are_those_of_estimates():
    """Bit for bit; NaN where they were not requested, and where a rule is broken."""
    table = estimate_many(*CASE, gpus=4, gbs=8, grid=GRID, intervals=True)
    frame = table.to_frame()
    for row, (tp, mbs) in enumerate(frame.select("tp", "micro_batch_size").rows()):
        if table.reason(row) is None:
            own = estimate(*CASE, gpus=4, gbs=8, tp=tp, mbs=mbs).interval
            ends = (table.interval_low_s[row], table.interval_high_s[row])
            assert ends == pytest.approx((own.low_s, own.high_s), rel=1e-12)
    assert np.isnan(table.interval_low_s[4:]).all()
    assert np.isnan(estimate_many(*CASE, gpus=4, gbs=8, tp=[1, 2]).interval_high_s).all()


def test_rows_that_break_a_rule_are_apart():
    """Both parts together are the table."""
    table = estimate_many(*CASE, gpus=4, gbs=8, grid=GRID)
    good, bad = table.accepted(), table.refusals()
    assert bad.select("row", "tp", "refused").rows() == [(4, 5, "degrees"), (5, 5, "degrees")]
    assert good.to_frame().equals(table.to_frame()[:4])
    assert good.accepted().to_frame().equals(good.to_frame())
    assert good.refusals().is_empty()


@each_row(
    ("grid", "message"),
    [
        ({}, "grid: {}: must be lists by field"),
        ([1], "grid: [1]: must be lists by field"),
        ({"tp": []}, "grid.tp: an empty list"),
        ({"gbs": [8]}, "grid.gbs: is also set as an argument"),
        ({"tpp": [8]}, "tpp"),
    ],
)
def test_bad_grids_are_refused(grid, message):
    """With the field."""
    with pytest.raises(InputError) as caught:
        estimate_many(*CASE, gpus=4, gbs=8, grid=grid)
    assert message in str(caught.value)
