"""Intervals of mixtures of predictions, by hand and whatever the candidates are."""

from math import log
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from shardwise.analysis.mixture import mixture_interval
from shardwise.analysis.variation import LEVEL, NORMAL_QUANTILE

some = examples(60)
part = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(1, 100), st.floats(0.01, 1)).map(
    lambda p: (p[0], p[2] * (1 - 0.9 * p[1]), p[2], p[2] * (1 + 3 * p[3]))
)


def test_a_single_candidate_has_its_own_interval():
    """Also where it stands several times, or others have no weight."""
    one = (1.0, 8.0, 10.0, 13.0)
    assert mixture_interval([one]) == (8.0, 13.0)
    assert mixture_interval([one, (0.5, *one[1:])]) == (8.0, 13.0)
    assert mixture_interval([one, (0.0, 80.0, 100.0, 130.0)]) == (8.0, 13.0)


def test_candidates_far_apart_by_hand():
    """Weights 3 and 1: a tenth of all below is 2 / 15 of the first, a tenth above is 2 / 5 of the
    second; each has half of a normal distribution on a side."""
    low, high = mixture_interval([(3.0, 1.0, 2.0, 3.0), (1.0, 1000.0, 2000.0, 4000.0)])
    below = -NormalDist().inv_cdf(2 / 15) / NORMAL_QUANTILE
    above = NormalDist().inv_cdf(1 - 2 / 5) / NORMAL_QUANTILE
    assert low == pytest.approx(2 / 2**below)
    assert high == pytest.approx(2000 * 2**above)


def test_one_sided_candidates_by_hand():
    """A bound that is the prediction itself: half of its weight lies there or beyond."""
    assert mixture_interval([(1.0, 2.0, 2.0, 3.0)]) == (2.0, 3.0)
    both = [(1.0, 2.0, 2.0, 3.0), (1.0, 2.0, 2.0, 5.0)]
    assert mixture_interval(both)[0] == 2.0
    assert 3.0 < mixture_interval(both)[1] < 5.0


@some
@given(st.lists(part, min_size=1, max_size=5))
def test_a_mixture_holds_its_level(parts):
    """Each bound lies between those of the candidates, and leaves a tenth of the mixture."""
    low, high = mixture_interval(parts)
    assert min(p[1] for p in parts) * 0.999 <= low <= max(p[1] for p in parts) * 1.001
    assert min(p[3] for p in parts) * 0.999 <= high <= max(p[3] for p in parts) * 1.001
    weight = sum(p[0] for p in parts)
    tail = (1 - LEVEL) / 2
    assert sum(p[0] * below(low, *p[1:]) for p in parts) / weight == pytest.approx(tail, abs=1e-4)
    assert sum(p[0] * below(high, *p[1:]) for p in parts) / weight == pytest.approx(
        1 - tail, abs=1e-4
    )


def below(time, low, predicted, high):
    """Share of a candidate below a time."""
    ratio = predicted / low if time < predicted else high / predicted
    return NormalDist().cdf(log(time / predicted) / log(ratio) * NORMAL_QUANTILE)


@some
@given(st.lists(part, min_size=2, max_size=4), st.floats(1.01, 3))
def test_more_weight_draws_the_interval_closer(parts, more):
    """To that of the candidate that has it."""
    first, *rest = parts
    before, after = (
        mixture_interval(parts),
        mixture_interval([(first[0] * more, *first[1:]), *rest]),
    )
    for place, old, new in zip((1, 3), before, after, strict=True):
        assert abs(new - first[place]) <= abs(old - first[place]) + 1e-6 * first[place]
