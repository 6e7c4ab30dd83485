"""Scores of predictions against measured runs: errors, skill over a guess, and ranking.

Arrays have one value per run. Groups are arrays of labels, equal for runs of one group. Runs are
also scored against predecessors' predictions, and with their own source left out of the fit of the
catalog's figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.analysis.validated_runs import validated_runs
from shardwise.config.plain import plain
from shardwise.validate.measured.predict import Prediction

Floats = NDArray[np.float64]
Labels = NDArray[np.generic]

# Runs closer to each other than this are not ordered: releases of one software differ by 3 % in the
# mean when nothing else does.
_LEAST_DIFFERENCE = 0.10
# The order of two runs says little about a study, and nothing about a choice.
_LEAST_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of several runs as shares; NaN where there are none."""

    n: int
    mape: float
    """Mean of the sizes."""
    median_ape: float
    """Median of the sizes."""
    bias: float
    """Mean with signs."""
    p90: float
    """90th percentile of the sizes."""


def signed_errors(predicted: Floats, measured: Floats) -> Floats:
    """Errors as shares: predicted / measured - 1."""
    return predicted / measured - 1


def summary(errors: Floats) -> Summary:
    """Summarize signed errors.

    Examples
    --------
    >>> import numpy as np
    >>> summary(np.array([0.1, -0.3])).mape
    0.2
    """
    if not errors.size:
        return Summary(n=0, mape=np.nan, median_ape=np.nan, bias=np.nan, p90=np.nan)
    sizes = np.abs(errors)
    return Summary(
        n=errors.size,
        mape=float(sizes.mean()),
        median_ape=float(np.median(sizes)),
        bias=float(errors.mean()),
        p90=float(np.quantile(sizes, 0.9)),
    )


def constant_mfu(mfu: Floats, family: Labels, precision: Labels, source: Labels) -> Floats:
    """Guess the MFU of each run from the runs of other sources.

    exp(median(log MFU)) of the runs with the same accelerator family and precision; where other
    sources have none, of the same family; else of all. NaN where there is one source only. A guess
    g predicts a step of model FLOPs / (peak x g), so its error is measured MFU / g - 1.
    """
    logs = np.log(mfu)
    guess = np.full(mfu.shape, np.nan)
    kinds = np.unique(np.stack([family, precision, source], axis=-1).astype(str), axis=0)
    for of_family, of_precision, of_source in kinds:
        others = source.astype(str) != of_source
        same = others & (family.astype(str) == of_family)
        like = same & (precision.astype(str) == of_precision)
        found = next((some for some in (like, same, others) if some.any()), None)
        if found is None:
            continue
        rows = (family.astype(str) == of_family) & (precision.astype(str) == of_precision)
        guess[rows & ~others] = np.exp(np.median(logs[found]))
    return guess


def skill(errors: Floats, baseline_errors: Floats) -> float:
    """Skill over a baseline: 1 - MAPE / MAPE of the baseline.

    Over the runs that the baseline predicts; NaN if it predicts none or has no error.
    """
    both = np.isfinite(baseline_errors)
    if not both.any() or not baseline_errors[both].any():
        return np.nan
    return float(1 - np.abs(errors[both]).mean() / np.abs(baseline_errors[both]).mean())


def coverage(measured: Floats, low: Floats, high: Floats) -> float:
    """Share of the runs inside their intervals, of those that have one; NaN without any."""
    known = np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return np.nan
    return float(((low <= measured) & (measured <= high))[known].mean())


def pairs_in_order(measured: Floats, predicted: Floats, study: Labels) -> tuple[int, int]:
    """Pairs of runs of one study that differ by more than 10 %, and those ordered right.

    A pair that is predicted equal is not ordered right.
    """
    pairs = right = 0
    for of_study in _members(study, least=2):
        one, other = np.triu_indices(of_study.size, k=1)
        apart = np.log(measured[of_study])[one] - np.log(measured[of_study])[other]
        foretold = np.log(predicted[of_study])[one] - np.log(predicted[of_study])[other]
        far = np.abs(apart) > np.log1p(_LEAST_DIFFERENCE)
        pairs += int(far.sum())
        right += int((far & (np.sign(apart) == np.sign(foretold))).sum())
    return pairs, right


def kendall_tau(measured: Floats, predicted: Floats) -> float:
    """Kendall's tau-b of two orders: 1 if they agree, -1 if one is the other reversed.

    (C - D) / sqrt((n - ties in one) (n - ties in the other)) over all n pairs, of which C are in
    the same and D in opposite order (Kendall, Biometrika 33, 1945). NaN if one ties them all.
    """
    one, other = np.triu_indices(measured.size, k=1)
    apart = np.sign(measured[one] - measured[other])
    foretold = np.sign(predicted[one] - predicted[other])
    untied = np.sqrt(np.count_nonzero(apart) * np.count_nonzero(foretold))
    return float((apart * foretold).sum() / untied) if untied else np.nan


def studies_tau(measured: Floats, predicted: Floats, study: Labels) -> Floats:
    """Kendall's tau of each study of three runs or more that has one."""
    taus = [kendall_tau(measured[some], predicted[some]) for some in _members(study)]
    return np.array([tau for tau in taus if np.isfinite(tau)])


def regrets(measured_s: Floats, predicted_s: Floats, choice: Labels) -> Floats:
    """Regret of each choice of a strategy: time of the one predicted best over the best, minus 1.

    Choices are among three strategies or more. Of several predicted best the first counts.
    """
    of_choices = _members(choice)
    chosen = [measured_s[some][np.argmin(predicted_s[some])] for some in of_choices]
    best = [measured_s[some].min() for some in of_choices]
    return np.array(chosen) / np.array(best) - 1


def _members(group: Labels, *, least: int = _LEAST_RUNS) -> list[NDArray[np.intp]]:
    """Positions of the members of each group that has enough."""
    _, place, counts = np.unique(group, return_inverse=True, return_counts=True)
    inside = np.split(np.argsort(place, kind="stable"), np.cumsum(counts)[:-1])
    return [some for some in inside if some.size >= least]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePrediction:
    """One run with a predecessor's and our prediction of its step time [s]."""

    id: str
    measured_s: float | None
    ours_s: float
    theirs_s: float | None = None
    refused: str | None = None
    """Why the predecessor has no prediction."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the predecessor's prediction with its error, or why there is none.

        Examples
        --------
        >>> ReferencePrediction(id="x", measured_s=2.0, ours_s=2.0, theirs_s=3.0).to_dict()
        {'predicted_step_time_s': 3.0, 'error': 0.5}
        """
        if self.theirs_s is None:
            return {"refused": self.refused}
        error = None if self.measured_s is None else self.theirs_s / self.measured_s - 1
        return {"predicted_step_time_s": self.theirs_s, "error": error}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScore:
    """Errors of a predecessor over the runs that it can express, and ours over the same runs."""

    rows: int
    refused: int
    """Runs that the predecessor cannot express."""
    theirs: Summary
    ours: Summary

    @classmethod
    def of(cls, pairs: Sequence[ReferencePrediction]) -> "ReferenceScore":
        """Score pairs; those without a measured time count as rows alone."""
        known = [
            (pair.measured_s, pair.ours_s, pair.theirs_s)
            for pair in pairs
            if pair.measured_s is not None and pair.theirs_s is not None
        ]
        measured, ours, theirs = np.array(known, dtype=np.float64).reshape(-1, 3).T
        return cls(
            rows=len(pairs),
            refused=sum(pair.refused is not None for pair in pairs),
            theirs=summary(signed_errors(theirs, measured)),
            ours=summary(signed_errors(ours, measured)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the predecessor's errors at the top."""
        record = {"rows": self.rows, "refused": self.refused, **asdict(self.theirs)}
        return dict(plain(record | {"ours": asdict(self.ours)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Errors over a group of runs, each with its source left out."""

    errors: Summary
    skill: float
    """Over a constant-MFU guess."""
    coverage: float
    """Share of measured times inside the prediction interval."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, those of the step time at the top."""
        rest = {"skill": self.skill, "coverage": self.coverage}
        return dict(plain(asdict(self.errors) | rest))


_GRADE = "A"
"""Of the runs whose errors are stated with their source left out."""


def left_out_errors(predictions: Sequence[Prediction]) -> dict[str, float]:
    """Predicted over measured, minus one, of the runs of grade A in the fit."""
    known = validated_runs()
    values = np.expm1(known.errors).tolist()
    errors = {
        name: error
        for name, error, fitted in zip(known.ids, values, known.fitted, strict=True)
        if fitted
    }
    return {
        one.run.id: errors[one.run.id]
        for one in predictions
        if one.run.grade == _GRADE and one.run.id in errors and one.step_time_s is not None
    }


def left_out_scores(
    predictions: Sequence[Prediction], baseline: Mapping[str, float]
) -> dict[str, LeftOut]:
    """Score them, all and by kind, without empty groups.

    Parameters
    ----------
    baseline
        Errors of the constant-MFU guess, by run.
    """
    errors = left_out_errors(predictions)
    some = [one for one in predictions if one.run.id in errors]
    groups = {"all": some} | {
        kind: [one for one in some if one.run.kind == kind] for kind in ("dense", "moe")
    }
    return {name: _score(rows, errors, baseline) for name, rows in groups.items() if rows}


def _score(
    rows: Sequence[Prediction], by_run: Mapping[str, float], baseline: Mapping[str, float]
) -> LeftOut:
    errors = np.array([by_run[one.run.id] for one in rows])
    guessed = np.array([baseline.get(one.run.id, np.nan) for one in rows])
    low, high = np.array([_interval(one) for one in rows]).T
    known = np.isfinite(low)
    measured = 1 / (1 + errors)
    inside = (low <= measured) & (measured <= high)
    return LeftOut(
        errors=summary(errors),
        skill=skill(errors, guessed),
        coverage=float(inside[known].mean()) if known.any() else np.nan,
    )


def _interval(one: Prediction) -> tuple[float, float]:
    """Bounds of the interval over the prediction."""
    if one.interval is None or one.step_time_s is None:
        return np.nan, np.nan
    low, high = one.interval
    return low / one.step_time_s, high / one.step_time_s
