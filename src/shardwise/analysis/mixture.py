"""Interval of a mixture of predictions: one measured time, of one of several candidates.

Where it is not known which software runs, each candidate has a weight, a prediction and an
interval. The measured time x has the distribution

    F(x) = sum w_i F_i(x) / sum w_i

where log x of candidate i has the median log predicted_i and half of a normal distribution on each
side of it, of which a tenth of all lies below log low_i and a tenth above log high_i.
"""

from collections.abc import Sequence
from math import inf, log, sqrt
from statistics import NormalDist

from shardwise.analysis.variation import LEVEL, NORMAL_QUANTILE

Part = tuple[float, float, float, float]
"""Weight of a candidate, and the lower bound, the prediction and the upper bound of its time."""

_TAIL = (1 - LEVEL) / 2
# Halvings of the range of a bound: to the last digit of a number.
_HALVINGS = 60


def mixture_interval(parts: Sequence[Part]) -> tuple[float, float]:
    """Return the interval that holds `LEVEL` of a mixture, with equal tails.

    Parameters
    ----------
    parts
        Each with its weight, not negative and in sum positive, and 0 < low <= predicted <= high.

    Examples
    --------
    A weight of 1 for all parts is that part's own interval:

    >>> mixture_interval([(1.0, 8.0, 10.0, 13.0)])
    (8.0, 13.0)

    Of two far from each other with equal weights, each bound leaves a fifth of one of them:

    >>> low, high = mixture_interval([(0.5, 0.9, 1.0, 1.1), (0.5, 9.0, 10.0, 11.0)])
    >>> round(low, 3), round(high, 2)
    (0.933, 10.65)
    """
    some = [part for part in parts if part[0] > 0]
    lows, highs = ([part[place] for part in some] for place in (1, 3))
    return _where(some, _TAIL, lows), _where(some, 1 - _TAIL, highs)


def _where(parts: Sequence[Part], share: float, bounds: Sequence[float]) -> float:
    """Time below which a share of the mixture lies; it is between the bounds of its parts."""
    low, high = min(bounds), max(bounds)
    if low == high:
        return low
    for _ in range(_HALVINGS):
        middle = sqrt(low * high)
        below = sum(weight * _below(middle, *part) for weight, *part in parts)
        if below < share * sum(weight for weight, *_ in parts):
            low = middle
        else:
            high = middle
    return sqrt(low * high)


def _below(time: float, low: float, predicted: float, high: float) -> float:
    """Share of one part that is below a time."""
    distance = log(time / predicted)
    width = log(predicted / low) if distance < 0 else log(high / predicted)
    deviations = distance * NORMAL_QUANTILE / width if width else inf * (distance or 1)
    return NormalDist().cdf(deviations)
