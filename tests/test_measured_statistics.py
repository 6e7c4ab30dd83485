"""Errors, the baseline, order and choices, worked out by hand; what must hold of any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from shardwise.validate.measured.statistics import (
    Summary,
    constant_mfu,
    coverage,
    kendall_tau,
    pairs_in_order,
    regrets,
    signed_errors,
    skill,
    studies_tau,
    summary,
)

fast = examples(60)
# Powers of two: products with a constant factor keep what is equal equal.
times = st.sampled_from([2.0**n for n in range(-3, 6)])
runs = st.lists(st.tuples(times, times, st.integers(0, 2)), min_size=1, max_size=14)


def _columns(some):
    measured, predicted, study = map(np.array, zip(*some, strict=True))
    return measured, predicted, study


def test_errors_are_signed():
    """Too slow is positive."""
    errors = signed_errors(np.array([11.0, 3.0]), np.array([10.0, 4.0]))
    assert errors == pytest.approx([0.1, -0.25])


def test_a_summary_by_hand():
    """Of eleven errors -5, ..., 5 %: nine of ten sizes below 5 %."""
    found = summary(np.arange(-5, 6) / 100)
    assert found == Summary(
        n=11,
        mape=pytest.approx(0.30 / 11),
        median_ape=pytest.approx(0.03),
        bias=pytest.approx(0),
        p90=pytest.approx(0.05),
    )
    assert summary(np.array([0.1, 0.2, -0.6])).bias == pytest.approx(-0.1)
    assert summary(np.array([0.1, 0.2, -0.6])).p90 == pytest.approx(0.52)


def test_a_summary_of_nothing():
    """No error, no number."""
    none = summary(np.array([]))
    assert none.n == 0
    assert np.isnan([none.mape, none.median_ape, none.bias, none.p90]).all()


def test_the_baseline_takes_what_other_sources_have():
    """Same family and precision first, then the family, then all; never the own source."""
    table = [  # MFU, family, precision, source
        (0.40, "A100", "bf16", "x"),
        (0.20, "A100", "bf16", "y"),
        (0.80, "A100", "bf16", "z"),
        (0.10, "A100", "fp32", "y"),
        (0.50, "H100", "fp8", "x"),
    ]
    mfu, *labels = (np.array(column) for column in zip(*table, strict=True))
    guess = constant_mfu(mfu, *labels)
    assert guess == pytest.approx(
        [
            0.40,  # sqrt(0.2 x 0.8): the median of two logarithms
            0.40 * np.sqrt(2),  # sqrt(0.4 x 0.8)
            np.sqrt(0.08),
            0.40 * np.sqrt(2),  # no other source has fp32: the family, without y
            0.20,  # no other source has an H100: all but x: 0.1, 0.2, 0.8
        ]
    )
    alone = constant_mfu(mfu, *labels[:2], np.full(5, "x"))
    assert np.isnan(alone).all()


def test_skill_by_hand():
    """10 % where the baseline has 40 %, of the runs that it knows."""
    errors, baseline = np.array([0.1, -0.1, 9.0]), np.array([-0.5, 0.3, np.nan])
    assert skill(errors, baseline) == pytest.approx(0.75)
    assert np.isnan(skill(errors, np.full(3, np.nan)))
    assert np.isnan(skill(errors, np.zeros(3)))


def test_coverage_counts_edges_and_leaves_out_runs_without_an_interval():
    """Three of four."""
    measured, nan = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.nan
    low, high = np.array([1.0, 1.0, 4.0, 3.0, nan]), np.array([2.0, 2.0, 5.0, 5.0, nan])
    assert coverage(measured, low, high) == 0.75
    assert np.isnan(coverage(measured[:1], np.array([nan]), np.array([nan])))


def test_pairs_by_hand():
    """Pairs within 10 % do not count, nor those of two studies; predicted equal is not right."""
    measured = np.array([100.0, 109.0, 150.0, 10.0, 20.0, 1.0])
    predicted = np.array([100.0, 90.0, 95.0, 7.0, 7.0, 5.0])
    study = np.array([0, 0, 0, 1, 1, 2])
    # 100-150: told 100 > 95, wrong; 109-150: right; 10-20: told equal.
    assert pairs_in_order(measured, predicted, study) == (3, 1)
    assert pairs_in_order(np.array([100.0, 110.1]), np.array([1.0, 2.0]), study[:2]) == (1, 1)
    assert pairs_in_order(np.array([100.0, 109.9]), np.array([1.0, 2.0]), study[:2]) == (0, 0)


def test_tau_by_hand():
    """Five of six pairs agree: (5 - 1) / 6; with a tie (2 - 0) / sqrt(3 x 2)."""
    order = np.array([1.0, 2.0, 3.0, 4.0])
    assert kendall_tau(order, np.array([1.0, 2.0, 4.0, 3.0])) == pytest.approx(4 / 6)
    assert kendall_tau(order[:3], np.array([1.0, 1.0, 2.0])) == pytest.approx(2 / 6**0.5)
    assert kendall_tau(order, -order) == -1
    assert np.isnan(kendall_tau(order, np.ones(4)))


def test_tau_is_of_studies_of_three_runs():
    """A study of two says nothing, one of equal predictions has none."""
    measured = np.array([1.0, 2.0, 3.0, 1.0, 2.0, 1.0, 2.0, 3.0])
    predicted = np.array([3.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0])
    study = np.array(["a", "a", "a", "b", "b", "c", "c", "c"])
    assert studies_tau(measured, predicted, study).tolist() == [-1]


def test_regret_by_hand():
    """Predicted best is the second of a, 12 s where 10 s can be had; of b the best."""
    measured = np.array([10.0, 12.0, 15.0, 3.0, 2.0, 4.0, 1.0, 9.0])
    predicted = np.array([8.0, 7.0, 9.0, 3.0, 1.0, 4.0, 9.0, 1.0])
    choice = np.array(["a", "a", "a", "b", "b", "b", "c", "c"])
    assert regrets(measured, predicted, choice) == pytest.approx([0.2, 0.0])


@fast
@given(runs)
def test_perfect_predictions(some):
    """Skill 1, tau 1, no regret, every pair in order."""
    measured, _, study = _columns(some)
    errors = signed_errors(measured, measured)
    assert summary(errors).mape == summary(errors).p90 == 0
    assert skill(errors, np.full(len(some), 0.2)) == 1
    assert (studies_tau(measured, measured, study) == pytest.approx(1)) or not len(
        studies_tau(measured, measured, study)
    )
    assert not regrets(measured, measured, study).any()
    pairs, right = pairs_in_order(measured, measured, study)
    assert pairs == right


@fast
@given(runs, times)
def test_a_constant_factor_changes_no_order(some, factor):
    """Tau, pairs and regret are of the order alone."""
    measured, predicted, study = _columns(some)
    scaled = factor * predicted
    for of in (studies_tau, regrets):
        assert of(measured, scaled, study).tolist() == of(measured, predicted, study).tolist()
    assert pairs_in_order(measured, scaled, study) == pairs_in_order(measured, predicted, study)


@fast
@given(runs)
def test_bounds(some):
    """Tau is within -1 and 1, regret never negative, order of rows of no account."""
    measured, predicted, study = _columns(some)
    tau = studies_tau(measured, predicted, study)
    assert (np.abs(tau) <= 1 + 1e-12).all()
    assert (regrets(measured, predicted, study) >= 0).all()
    back = slice(None, None, -1)
    turned = studies_tau(measured[back], predicted[back], study[back])
    assert turned == pytest.approx(tau)


@fast
@given(runs, times)
def test_the_baseline_scales_with_what_it_is_taken_from(some, factor):
    """It is a median of logarithms."""
    mfu, _, source = _columns(some)
    family = source // 2
    precision = np.zeros_like(source)
    guess = constant_mfu(mfu, family, precision, source)
    assert constant_mfu(factor * mfu, family, precision, source) == pytest.approx(
        factor * guess, nan_ok=True
    )
