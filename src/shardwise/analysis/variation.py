"""Levels of variation of errors of log time, and the interval that follows from what is known.

The error of a prediction is the sum of independent deviations, one for each level that measured
runs have not fixed for it:

    V = run + source + stack / (1 + n) + accelerator / (1 + m) + generation / (1 + g) + software

The runs of one source scatter about its level: kernels, releases, layouts (`run`). Its level is
that of its servers, images and settings (`source`). With n sources that measured the same stack,
m the same accelerator and g the same generation of accelerators, the mean of so many fixes that
level. `software` counts only where no run of the framework was measured. Mixtures of experts, and
runs of which a setting is assumed, have both more scatter and more different levels.

The variances are those of the highest likelihood, each at least 0, with Student's distribution in
place of the normal one, as some sources are far off. Last they are scaled so that `LEVEL` of the
runs lie inside their intervals (conformal prediction, reference 3). There every run has one vote;
in the steps before every source has one, however many runs it has.

References
----------
.. [1] H. Zhou et al., MM algorithms for variance components models, J. Comput. Graph. Stat. 28
   (2019), section 2: the update with a root.
.. [2] K. Lange, R. Little, J. Taylor, Robust statistical modeling using the t distribution, JASA 84
   (1989): the weights of errors.
.. [3] V. Vovk, A. Gammerman, G. Shafer, Algorithmic learning in a random world (2005), chapter 2.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.arrays import Bools, Floats, Ints

LEVEL = 0.8
"""Share of runs expected inside an interval."""
NORMAL_QUANTILE = 1.2816
"""`LEVEL` of a normal distribution lies within so many standard deviations."""

# Levels, each with its standard deviation before any run was looked at, which counts as much as one
# source. Published releases of one configuration differ by 3 % without experts and by 6 to 8 % with
# them; servers of one type differ by 10 %. The shares of their peak that accelerators sustain in
# matrix products are 0.45 to 0.8, a standard deviation of 0.15.
_RUN_LEVELS = {"run": 0.05, "experts": 0.1, "assumed": 0.05}
_SOURCE_LEVELS = {
    "source": 0.08,
    "experts": 0.08,
    "assumed": 0.08,
    "stack": 0.1,
    "software": 0.25,
    "accelerator": 0.1,
    "generation": 0.15,
}
_PRIOR_WEIGHT = 1.0
# Degrees of freedom of Student's distribution: reference 2 recommends 4 where data are too few to
# estimate them.
_FREEDOM = 4.0
_ROUNDS = 100
# Sums of weights are exact to this.
_ROUNDING = 1e-9
# Runs that show the scatter of a study.
_LEAST_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of predictions, besides what they predict; columns of n rows."""

    experts: Bools
    """Whether they are of mixtures of experts."""
    assumed: Bools
    """Whether something that matters is unknown."""
    framework_measured: Bools
    """Whether runs of the framework were measured."""
    stack_sources: Ints
    """Sources with runs of the same stack, in any release."""
    accelerator_sources: Ints
    """Sources with runs on the same system."""
    generation_sources: Ints
    """Sources with runs on any system of the generation."""

    def of_runs(self) -> Floats:
        """Return how much of each level of `Variation.runs` is in a row; shape (n, levels)."""
        one = np.ones(len(self.experts))
        return np.stack([one, self.experts, self.assumed], axis=-1).astype(np.float64)

    def of_sources(self) -> Floats:
        """Return how much of each level of `Variation.sources` is in a row; shape (n, levels)."""
        columns = [
            np.ones(len(self.experts)),
            self.experts,
            self.assumed,
            1 / (1 + self.stack_sources),
            ~self.framework_measured,
            1 / (1 + self.accelerator_sources),
            1 / (1 + self.generation_sources),
        ]
        return np.stack(columns, axis=-1).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Variances of errors of log time by level.

    Their normal distribution has the intervals that hold `LEVEL` of the runs.
    """

    runs: dict[str, float]
    """Of the runs of a source about its level: `run`, more for `experts`, more if `assumed`."""
    sources: dict[str, float]
    """Of the levels of sources: `source`, more for `experts` ..., `stack`, `software`,
    `accelerator`, `generation`."""

    def of_runs(self, evidence: Evidence) -> Floats:
        """Variance of the runs of a source about its level, for each prediction."""
        return _total(evidence.of_runs(), self.runs)

    def of_sources(self, evidence: Evidence) -> Floats:
        """Variance of the level of a source, for each prediction."""
        return _total(evidence.of_sources(), self.sources)

    def sizes(self, evidence: Evidence) -> Floats:
        """Error of log time that `LEVEL` of such predictions do not exceed."""
        return NORMAL_QUANTILE * np.sqrt(self.of_runs(evidence) + self.of_sources(evidence))


def variation_of(
    errors: Floats,
    sources: NDArray[np.str_],
    studies: Ints,
    evidence: Evidence,
    software_levels: Floats,
) -> Variation:
    """Estimate the variances of all levels.

    First those of runs, from deviations from the median of their study; then those of sources, from
    these medians, each of which has an error of its own: the variance of its runs over their
    number. All runs of a source together have a weight of one, as have all its medians.

    Parameters
    ----------
    errors
        log predicted - log measured; shape (n,).
    studies
        Number of the study of each run, from 0: runs whose evidence is the same.
    evidence
        What the prediction of each run rested on, its own source left out.
    software_levels
        Levels of frameworks that are predicted with the figures of unknown software.
    """
    _, first, count = np.unique(studies, return_index=True, return_counts=True)
    levels = _medians(errors, studies)
    alone = 1 / _count(sources)
    several = count[studies] >= _LEAST_RUNS
    unbiased = count[studies] / np.maximum(count[studies] - 1, 1)
    of_runs = _with_priors(
        (unbiased * (errors - levels[studies]) ** 2)[several],
        evidence.of_runs()[several],
        alone[several],
        _RUN_LEVELS,
    )
    within = (evidence.of_runs() @ of_runs)[first] / count
    new = _unknown_software(len(software_levels)).of_sources()
    of_sources = _with_priors(
        np.concatenate([levels**2, software_levels**2]),
        np.concatenate([evidence.of_sources()[first], new]),
        np.concatenate([1 / _count(sources[first]), np.ones(len(new))]),
        _SOURCE_LEVELS,
        known=np.concatenate([within, np.zeros(len(new))]),
    )
    total = evidence.of_runs() @ of_runs + evidence.of_sources() @ of_sources
    scale = (quantile(np.abs(errors) / np.sqrt(total), np.ones(len(errors))) / NORMAL_QUANTILE) ** 2
    return Variation(
        runs=dict(zip(_RUN_LEVELS, (scale * of_runs).tolist(), strict=True)),
        sources=dict(zip(_SOURCE_LEVELS, (scale * of_sources).tolist(), strict=True)),
    )


def variance_components(
    squares: Floats, parts: Floats, weights: Floats, known: Floats | None = None
) -> Floats:
    """Variances x >= 0 of the highest likelihood of errors with the variances V = known + parts x.

    Each round multiplies x by the root of

        sum(w u e^2 parts / V^2) / sum(w parts / V),    u = (f + 1) / (f + e^2 / V)

    with f degrees of freedom of Student's distribution, which never lowers the likelihood
    (references 1 and 2).

    Parameters
    ----------
    squares
        Errors squared, e^2; shape (n,).
    parts
        How much of each component is in an error; shape (n, components), not negative.
    weights
        Weight w of each error.
    known
        Variance of each error that is not among the components; None: 0.

    Examples
    --------
    >>> import numpy as np
    >>> parts = np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> variance_components(np.array([4.0, 9.0]), parts, np.ones(2)).round(3).tolist()
    [4.0, 5.0]
    """
    fixed = np.zeros(len(squares)) if known is None else known
    found = np.full(parts.shape[1], np.average(squares, weights=weights) / parts.shape[1])
    for _ in range(_ROUNDS):
        variance = np.maximum(fixed + parts @ found, np.finfo(np.float64).tiny)
        robust = (_FREEDOM + 1) / (_FREEDOM + squares / variance)
        up = (weights * robust * squares / variance**2) @ parts
        down = (weights / variance) @ parts
        found = found * np.sqrt(up / down)
    return found


def quantile(sizes: Floats, weights: Floats, level: float = LEVEL) -> float:
    """Return the smallest size with at least a share `level` of the weight at or below it."""
    order = np.argsort(sizes)
    reached = np.cumsum(weights[order]) / weights.sum()
    place = int(np.searchsorted(reached, level - _ROUNDING))
    return float(sizes[order][min(place, len(sizes) - 1)])


def _total(parts: Floats, variances: dict[str, float]) -> Floats:
    """Sum over the levels."""
    return np.asarray(parts @ np.array(list(variances.values())), dtype=np.float64)


def _with_priors(
    squares: Floats,
    parts: Floats,
    weights: Floats,
    priors: dict[str, float],
    known: Floats | None = None,
) -> Floats:
    """Variance components, with an error of each component alone that is its prior."""
    added = np.array(list(priors.values())) ** 2
    fixed = np.zeros(len(squares)) if known is None else known
    return variance_components(
        np.concatenate([squares, added]),
        np.concatenate([parts, np.eye(len(added))]),
        np.concatenate([weights, np.full(len(added), _PRIOR_WEIGHT)]),
        np.concatenate([fixed, np.zeros(len(added))]),
    )


def _unknown_software(count: int) -> Evidence:
    """So many predictions with the figures of unknown software, on accelerators with many runs."""
    no, many = np.zeros(count, dtype=np.bool_), np.full(count, np.iinfo(np.int64).max // 2)
    return Evidence(
        experts=no,
        assumed=no,
        framework_measured=no,
        stack_sources=np.zeros(count, dtype=np.int64),
        accelerator_sources=many,
        generation_sources=many,
    )


def _medians(values: Floats, groups: Ints) -> Floats:
    """Median of each group, numbered from 0."""
    ordered = values[np.lexsort((values, groups))]
    count = np.bincount(groups)
    starts = np.cumsum(count) - count
    return (ordered[starts + (count - 1) // 2] + ordered[starts + count // 2]) / 2


def _count(labels: NDArray[np.str_]) -> Floats:
    """How often each label occurs."""
    _, place, count = np.unique(labels, return_inverse=True, return_counts=True)
    return count[place].astype(np.float64)
