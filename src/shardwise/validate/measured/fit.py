"""Fit of the figures that measured runs decide: least squares with what was known before.

A parameter's offset x is added to the logarithm of its figures. log t(x) of all runs is
evaluated with its derivatives, and sum w rho(log t - log t_measured) + sum (x / spread)^2 is made
least, rho growing like a square for small and like a line for large errors. Dense runs decide the
figures that both kinds share; runs with experts only those of experts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.arrays import Bools, Floats
from shardwise.estimator import estimate_many
from shardwise.validate.measured.parameters import Moved, Parameter
from shardwise.validate.measured.predict import Translation, tables_of
from shardwise.validate.measured.run import Run

__all__ = ["Linear", "fitted", "left_out", "linear"]

# Errors of log time above this weigh like lines, not squares: rows with faults of their own.
_SOFT = 0.12
# Scatter of log time between published releases of one configuration, dense 3 %, experts 6 to 8 %
# (the runs that come with shardwise).
_NOISE = 0.06
# Rows of one source share its faults: n of them weigh like the root of n.
_SOURCE_POWER = -0.5
_DIFFERENCE = 0.02
_ROUNDS = 12
_LONGEST_STEP = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Errors of log time of runs and their derivatives by the offsets, at some offsets."""

    runs: Sequence[Run]
    offsets: Floats
    errors: Floats
    """log predicted - log measured."""
    derivatives: Floats
    """Shape (runs, parameters)."""

    def errors_at(self, offsets: Floats) -> Floats:
        """Errors at other offsets."""
        return self.errors + self.derivatives @ (offsets - self.offsets)


def linear(
    translated: Mapping[int, Translation],
    runs: Sequence[Run],
    parameters: Sequence[Parameter],
    offsets: Floats,
    *,
    derivatives: bool = True,
) -> Linear:
    """Evaluate runs, and each with one parameter after another moved a little.

    Parameters
    ----------
    translated
        By position in `runs`; each with a measured time.
    derivatives
        Whether they are wanted; else all are 0.
    """
    places = sorted(translated)
    row_of = {place: row for row, place in enumerate(places)}
    errors = np.full(len(places), np.nan)
    slopes = np.zeros((len(places), len(parameters)))
    moved = Moved(parameters)
    for group in tables_of(translated):
        systems, strategies, what = [], [], []
        for place, said in group:
            for parameter in (None, *(moved.applying(said) if derivatives else ())):
                at = offsets.copy()
                if parameter is not None:
                    at[parameter] += _DIFFERENCE
                system, strategy = moved.apply(said, at)
                systems.append(system)
                strategies.append(strategy)
                what.append((row_of[place], parameter))
        log_s = np.log(estimate_many(group[0][1].model, systems, strategies).step_time_s)
        for value, (row, parameter) in zip(log_s, what, strict=True):
            if parameter is None:
                measured = runs[places[row]].measured_step_time_s
                assert measured is not None  # noqa: S101 - asked for
                errors[row], base = value - np.log(measured), value
            else:
                slopes[row, parameter] = (value - base) / _DIFFERENCE
    known = np.isfinite(errors) & np.isfinite(slopes).all(axis=1)
    return Linear(
        runs=[runs[place] for place, is_known in zip(places, known, strict=True) if is_known],
        offsets=offsets,
        errors=errors[known],
        derivatives=slopes[known],
    )


def fitted(at: Linear, parameters: Sequence[Parameter], rows: Bools | None = None) -> Floats:
    """Offsets of the least sum, from errors that are linear in them; of some rows, or all."""
    chosen = np.ones(len(at.runs), dtype=np.bool_) if rows is None else rows
    some = [run for run, is_in in zip(at.runs, chosen, strict=True) if is_in]
    slopes = at.derivatives[chosen]
    deciding = _decided_by(some, slopes, parameters)
    errors = at.errors[chosen]
    weights = _weights(some)
    prior = np.diag([1 / p.spread**2 for p in parameters])
    offsets = at.offsets
    for _ in range(_ROUNDS):
        left = errors + slopes @ (offsets - at.offsets)
        weight = weights / np.sqrt(1 + (left / _SOFT) ** 2) / _NOISE**2
        matrix = deciding.T @ (weight[:, np.newaxis] * slopes) + prior
        pull = deciding.T @ (weight * (errors - slopes @ at.offsets))
        offsets = np.linalg.solve(matrix, -pull).astype(np.float64)
        step: Floats = np.clip(offsets - at.offsets, -_LONGEST_STEP, _LONGEST_STEP)
        offsets = at.offsets + step
    return offsets


def left_out(at: Linear, parameters: Sequence[Parameter]) -> Floats:
    """Errors of each run with the runs of its source left out of the fit."""
    studies = np.array([run.study for run in at.runs])
    errors = np.empty_like(at.errors)
    for study in np.unique(studies):
        rows: NDArray[np.bool_] = studies == study
        offsets = fitted(at, parameters, ~rows)
        errors[rows] = at.errors_at(offsets)[rows]
    return errors


def _weights(runs: Sequence[Run]) -> Floats:
    count = Counter(run.study for run in runs)
    weights = np.array([count[run.study] ** _SOURCE_POWER for run in runs])
    return weights * len(weights) / weights.sum()


def _decided_by(runs: Sequence[Run], slopes: Floats, parameters: Sequence[Parameter]) -> Floats:
    """Derivatives, without those by parameters that a run's kind does not decide."""
    of_experts = np.array([p.experts for p in parameters])
    moe = np.array([run.is_moe for run in runs])
    return np.where(moe[:, np.newaxis] & ~of_experts, 0.0, slopes)
