"""Errors of shipped runs with their own source left out of the fit of the catalog's figures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardwise.analysis.prediction_interval import validated_runs
from shardwise.config.files import finite
from shardwise.validate.measured.prediction import Prediction
from shardwise.validate.measured.statistics import Summary, skill, summary

__all__ = ["LeftOut", "left_out_errors", "left_out_scores"]

_GRADE = "A"
"""Of the runs that take part in the fit; others have no error of their own with it left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Errors over a group of runs, each with its source left out."""

    errors: Summary
    skill: float
    """What part of the mean error of a constant-MFU guess is gone."""
    coverage: float
    """Share of measured times inside the interval about such a prediction."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, those of the step time at the top."""
        rest = {"skill": self.skill, "coverage": self.coverage}
        return dict(finite(asdict(self.errors) | rest))


def left_out_errors(predictions: Sequence[Prediction]) -> dict[str, float]:
    """Predicted over measured, minus one, of the runs of grade A that took part in the fit."""
    known = validated_runs()
    errors = dict(zip(known.ids, np.expm1(known.errors).tolist(), strict=True))
    return {
        one.run.id: errors[one.run.id]
        for one in predictions
        if one.run.grade == _GRADE and one.run.id in errors and one.step_time_s is not None
    }


def left_out_scores(
    predictions: Sequence[Prediction], baseline: Mapping[str, float]
) -> dict[str, LeftOut]:
    """Score them, all and by kind; a group without runs is left away.

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
    factors = np.array([_factor(one) for one in rows])
    known = np.isfinite(factors)
    inside = np.abs(np.log1p(errors)) <= np.log(factors)
    return LeftOut(
        errors=summary(errors),
        skill=skill(errors, guessed),
        coverage=float(inside[known].mean()) if known.any() else np.nan,
    )


def _factor(one: Prediction) -> float:
    """What the interval reaches from the prediction, up and down."""
    if one.interval is None or one.step_time_s is None:
        return np.nan
    return one.interval[1] / one.step_time_s
