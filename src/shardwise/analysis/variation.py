"""Levels of variation of errors of log time, and the interval that follows from what is known.

The error of a prediction is the sum of independent deviations, one for each level that measured
runs have not fixed for it:

    V = run + source + release / (1 + r) + stack / (1 + n) + pair / (1 + p)
        + accelerator / (1 + m) + generation / (1 + g) + software

The runs of one source scatter about its level: kernels, layouts, settings (`run`). Its level is
that of its servers, images and settings (`source`). With r sources that measured the same release
of a software, n any release of it, p this software on the same generation of accelerators, m the
same accelerator and g the same generation, the mean of so many fixes that level. `software` counts
only where no run of the framework was measured. Mixtures of experts, runs of which a setting is
assumed, software that runs element-wise operations as separate kernels, and adapters have both more
scatter and more different levels.

The levels of software that was tuned by hand, and that no source has measured, lie on one side: it
is faster than stock trainers, never slower. Hobby code is slower.

The variances are those of the highest likelihood, each at least 0, with Student's distribution in
place of the normal one, as some sources are far off. Last they are scaled so that `LEVEL` of the
runs of a new source lie inside their intervals (conformal prediction, reference 3), each side by
its own quantile: actual runs are slower than predicted more often than faster. In all steps every
source has one vote, however many runs it has.

References
----------
.. [1] H. Zhou et al., MM algorithms for variance components models, J. Comput. Graph. Stat. 28
   (2019), section 2: the update with a root.
.. [2] K. Lange, R. Little, J. Taylor, Robust statistical modeling using the t distribution, JASA 84
   (1989): the weights of errors.
.. [3] V. Vovk, A. Gammerman, G. Shafer, Algorithmic learning in a random world (2005), chapter 2.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shardwise.arrays import Bools, Floats, Ints
from shardwise.records import dataclass, fields

LEVEL = 0.8
"""Share of runs expected inside an interval."""
NORMAL_QUANTILE = 1.2816
"""`LEVEL` of a normal distribution lies within so many standard deviations."""

# What adds to the scatter of runs and to the levels of sources.
_KINDS = ("experts", "assumed", "eager", "adapters")
# Levels of software, which lie on one side where it was tuned by hand or is hobby code.
_OF_SOFTWARE = ("release", "stack", "software")
# Levels, each with its standard deviation before any run was looked at, which counts as much as one
# source. Published releases of one configuration differ by 3 % without experts and by 6 to 8 % with
# them; servers of one type differ by 10 %. The shares of their peak that accelerators sustain in
# matrix products are 0.45 to 0.8, a standard deviation of 0.15.
_RUN_LEVELS = {"run": 0.05, "experts": 0.1, "assumed": 0.05, "eager": 0.05, "adapters": 0.05}
_SOURCE_LEVELS = {
    "source": 0.08,
    "experts": 0.08,
    "assumed": 0.08,
    "eager": 0.08,
    "adapters": 0.08,
    "release": 0.1,
    "stack": 0.1,
    "software": 0.25,
    "pair": 0.1,
    "accelerator": 0.1,
    "generation": 0.15,
}
_PRIOR_WEIGHT = 1.0
# Before any run was looked at, both sides are alike; that counts half as much as all sources.
_SYMMETRY = 0.5
# Degrees of freedom of Student's distribution: reference 2 recommends 4 where data are too few to
# estimate them.
_FREEDOM = 4.0
_ROUNDS = 100
# Sums of weights are exact to this.
_ROUNDING = 1e-9
# Runs that show the scatter of a study.
_LEAST_RUNS = 3


class Sides(NamedTuple):
    """Errors of log time that `LEVEL` of predictions do not exceed, a tenth on each side."""

    slower: Floats
    """log measured - log predicted of runs that are slower than predicted."""
    faster: Floats
    """log predicted - log measured of runs that are faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of predictions, besides what they predict; columns of n rows."""

    experts: Bools
    """Whether they are of mixtures of experts."""
    assumed: Bools
    """Whether something that matters is unknown."""
    eager: Bools
    """Whether the software runs some element-wise operations as separate kernels."""
    adapters: Bools
    """Whether adapters alone are trained."""
    tuned: Ints
    """1: by hand, -1: hobby code, 0: a stock trainer."""
    framework_measured: Bools
    """Whether runs of the framework were measured."""
    release_sources: Ints
    """Sources with runs of the same stack: the same release of its software."""
    stack_sources: Ints
    """Sources with runs of the same software, in any release."""
    pair_sources: Ints
    """Sources with runs of the same software on any system of the generation."""
    accelerator_sources: Ints
    """Sources with runs on the same system."""
    generation_sources: Ints
    """Sources with runs on any system of the generation."""

    def of_runs(self) -> Floats:
        """Return how much of each level of `Variation.runs` is in a row; shape (n, levels)."""
        columns = [np.ones(len(self.experts)), *(getattr(self, kind) for kind in _KINDS)]
        return np.stack(columns, axis=-1).astype(np.float64)

    def of_sources(self, faster: Bools | None = None) -> Floats:
        """Return how much of each level of `Variation.sources` is in a row; shape (n, levels).

        Parameters
        ----------
        faster
            Whether the measured time of a row is below the prediction: levels of software on one
            side alone are not in rows of the other. None: they are in all rows.
        """
        columns = [
            np.ones(len(self.experts)),
            *(getattr(self, kind) for kind in _KINDS),
            1 / (1 + self.release_sources),
            1 / (1 + self.stack_sources),
            ~self.framework_measured,
            1 / (1 + self.pair_sources),
            1 / (1 + self.accelerator_sources),
            1 / (1 + self.generation_sources),
        ]
        found = np.stack(columns, axis=-1).astype(np.float64)
        if faster is not None:
            side = np.where(faster, 1, -1)
            absent = (self.tuned == -side) & (self.stack_sources == 0)
            of_software = [name in _OF_SOFTWARE for name in _SOURCE_LEVELS]
            found[np.ix_(absent, of_software)] = 0.0
        return found

    def take(self, rows: Bools | Ints) -> Self:
        """Some of the rows."""
        return type(self)(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Variances of errors of log time by level.

    Their normal distribution has intervals that hold `LEVEL` of the runs, but for their sides.
    """

    runs: dict[str, float]
    """Of the runs of a source about its level: `run`, more for `experts`, more if `assumed` ..."""
    sources: dict[str, float]
    """Of the levels of sources: `source`, more for `experts` ..., `release`, `stack`, `software`,
    `pair`, `accelerator`, `generation`."""
    slower: float = NORMAL_QUANTILE
    """Standard deviations on the side of slower runs that a tenth of the runs exceed."""
    faster: float = NORMAL_QUANTILE
    """The same on the side of faster runs."""

    def of_runs(self, evidence: Evidence) -> Floats:
        """Variance of the runs of a source about its level, for each prediction."""
        return _total(evidence.of_runs(), self.runs)

    def of_sources(self, evidence: Evidence, faster: Bools | None = None) -> Floats:
        """Variance of the level of a source, for each prediction."""
        return _total(evidence.of_sources(faster), self.sources)

    def sizes(self, evidence: Evidence) -> Sides:
        """Errors of log time that a tenth of such predictions exceed on each side."""
        runs = self.of_runs(evidence)
        up, down = np.zeros(len(runs), dtype=np.bool_), np.ones(len(runs), dtype=np.bool_)
        return Sides(
            slower=self.slower * np.sqrt(runs + self.of_sources(evidence, up)),
            faster=self.faster * np.sqrt(runs + self.of_sources(evidence, down)),
        )


def variation_of(
    errors: Floats, sources: NDArray[np.str_], studies: Ints, evidence: Evidence
) -> Variation:
    """Estimate the variances of all levels, and the quantiles of both sides.

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
    """
    _, first, count = np.unique(studies, return_index=True, return_counts=True)
    levels = _medians(errors, studies)
    alone = 1 / counts(sources)
    several = count[studies] >= _LEAST_RUNS
    unbiased = count[studies] / np.maximum(count[studies] - 1, 1)
    of_runs = components_with_priors(
        (unbiased * (errors - levels[studies]) ** 2)[several],
        evidence.of_runs()[several],
        alone[several],
        _RUN_LEVELS,
    )
    of_sources = components_with_priors(
        levels**2,
        evidence.take(first).of_sources(levels > 0),
        1 / counts(sources[first]),
        _SOURCE_LEVELS,
        known=(evidence.of_runs() @ of_runs)[first] / count,
    )
    total = evidence.of_runs() @ of_runs + evidence.of_sources(errors > 0) @ of_sources
    slower, faster = side_quantiles(errors / np.sqrt(total), sources)
    scale = ((slower + faster) / 2 / NORMAL_QUANTILE) ** 2
    return Variation(
        runs=dict(zip(_RUN_LEVELS, (scale * of_runs).tolist(), strict=True)),
        sources=dict(zip(_SOURCE_LEVELS, (scale * of_sources).tolist(), strict=True)),
        slower=slower / scale**0.5,
        faster=faster / scale**0.5,
    )


def side_quantiles(deviations: Floats, sources: NDArray[np.str_]) -> tuple[float, float]:
    """Return what a tenth of the runs of a new source exceed on each side.

    The quantile (1 + LEVEL (1 + 1 / n)) / 2 of the deviations of n sources with one vote each: of
    exchangeable sources, that is where the next one lies (reference 3). Deviations with the other
    sign count too, by `_SYMMETRY`.

    Parameters
    ----------
    deviations
        Errors of log time over their standard deviation, positive where a run is faster.

    Returns
    -------
    slower, faster
        Both positive where some runs are slower, and some are faster.
    """
    votes = 1 / counts(sources)
    weights = np.concatenate([votes, _SYMMETRY * votes])
    level = (1 + min(LEVEL * (1 + 1 / len(set(sources.tolist()))), 1.0)) / 2
    both = np.concatenate([deviations, -deviations])
    return quantile(-both, weights, level), quantile(both, weights, level)


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


def components_with_priors(
    squares: Floats,
    parts: Floats,
    weights: Floats,
    priors: dict[str, float],
    known: Floats | None = None,
) -> Floats:
    """Return variance components, with an error of each component alone that is its prior."""
    added = np.array(list(priors.values())) ** 2
    fixed = np.zeros(len(squares)) if known is None else known
    return variance_components(
        np.concatenate([squares, added]),
        np.concatenate([parts, np.eye(len(added))]),
        np.concatenate([weights, np.full(len(added), _PRIOR_WEIGHT)]),
        np.concatenate([fixed, np.zeros(len(added))]),
    )


def _medians(values: Floats, groups: Ints) -> Floats:
    """Median of each group, numbered from 0."""
    ordered = values[np.lexsort((values, groups))]
    count = np.bincount(groups)
    starts = np.cumsum(count) - count
    return (ordered[starts + (count - 1) // 2] + ordered[starts + count // 2]) / 2


def counts(labels: NDArray[np.str_]) -> Floats:
    """Return how often each label occurs."""
    _, place, count = np.unique(labels, return_inverse=True, return_counts=True)
    return count[place].astype(np.float64)
