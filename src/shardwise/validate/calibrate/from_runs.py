"""How fast the machine at hand is: `speed` of its accelerators from a few measured runs.

Servers of one type differ by 10 to 20 % in power limit, clocks and cooling. The level of the
errors of some runs is that of the machine, but also their scatter: m, their robust mean, counts as
a measurement with the variance s^2 / n of a level that is 0 +- p before, so that its posterior mean
is m p^2 / (p^2 + s^2 / n). Both spreads are those of the validated runs (`uncertainty.levels`).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardwise.analysis.prediction_interval import levels
from shardwise.arrays import Floats
from shardwise.config.base import Source
from shardwise.config.files import finite
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.estimator import estimate, estimate_many
from shardwise.validate.calibrate.run_files import RunTime, Unusable, given_runs
from shardwise.validate.measured.statistics import Summary, signed_errors, summary

__all__ = ["Calibrated", "CalibratedRun", "Level", "calibrated_by_runs", "level_of", "robust_mean"]

_LEAST_RUNS = 3
# Errors of log time that weigh like lines, not squares: as in the fit of the catalog's figures.
_SOFT = 0.2
_ROUNDS = 30
# Speeds that are tried over the present one, and how many at once.
_SLOWEST, _FASTEST, _TRIED = 0.25, 4.0, 9
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How far off the predictions for a machine are, in logarithms of time."""

    mean: float
    """Robust mean of log predicted - log measured."""
    expected: float
    """What of it counts as the machine's: the posterior mean."""
    deviation: float
    """Standard deviation of that."""
    prior: float
    """Standard deviation of the levels of machines before."""
    scatter: float
    """Standard deviation of runs about their level: as validated runs have, or as these do."""
    scatter_of: Literal["validated runs", "these runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedRun:
    """A run with its time predicted before and after, and the errors of these."""

    name: str
    measured_s: float
    before_s: float
    after_s: float
    error_before: float
    error_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A system with the speed that runs tell, and how well it fits them."""

    system: System
    speed: float
    speed_range: tuple[float, float]
    """At one standard deviation of the level below and above."""
    level: Level
    runs: tuple[CalibratedRun, ...]
    unusable: tuple[Unusable, ...]

    @property
    def before(self) -> Summary:
        """Errors as the system was."""
        return summary(np.array([run.error_before for run in self.runs]))

    @property
    def after(self) -> Summary:
        """Errors with the speed."""
        return summary(np.array([run.error_after for run in self.runs]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        record = {
            "system": self.system.to_dict(units=True),
            "speed": self.speed,
            "speed_range": self.speed_range,
            "level": asdict(self.level),
            "before": asdict(self.before),
            "after": asdict(self.after),
            "runs": [asdict(run) for run in self.runs],
            "unusable": [asdict(one) for one in self.unusable],
        }
        return dict(finite(record))


def calibrated_by_runs(system: System, path: str | Path) -> Calibrated:
    """Find the speed of a system from the measured runs of a file.

    Raises
    ------
    InputError
        If the file is wrong, tells of fewer than three runs on the system, or no speed explains
        them.
    """
    usable, unusable = given_runs(path, system)
    tables = _tables(usable)
    told = _predicted(tables, [system])[:, 0]
    known = np.isfinite(told)
    refused = [_refused(run, system) for run, ok in zip(usable, known, strict=True) if not ok]
    runs = [run for run, ok in zip(usable, known, strict=True) if ok]
    unusable += refused
    if len(runs) < _LEAST_RUNS:
        raise InputError(_too_few(path, len(runs), unusable))
    measured = np.array([run.measured_s for run in runs])
    before = told[known]
    level = level_of(np.log(before / measured), prior=levels().between, scatter=levels().within)
    speed, low, high = _speeds(system, runs, measured, level, path)
    told_speed = float(f"{speed:.{_DIGITS}g}")
    after = _predicted(_tables(runs), [_at(system, told_speed)])[:, 0]
    errors = (signed_errors(before, measured), signed_errors(after, measured))
    found = Calibrated(
        system=_at(system, told_speed),
        speed=told_speed,
        speed_range=(low, high),
        level=level,
        runs=tuple(
            CalibratedRun(
                name=run.name,
                measured_s=run.measured_s,
                before_s=float(one),
                after_s=float(other),
                error_before=float(error_before),
                error_after=float(error_after),
            )
            for run, one, other, error_before, error_after in zip(
                runs, before, after, *errors, strict=True
            )
        ),
        unusable=tuple(unusable),
    )
    return replace(found, system=_with_source(found, path))


def robust_mean(values: Floats) -> float:
    """Mean of values, those far from it weighing like lines.

    Examples
    --------
    >>> import numpy as np
    >>> round(robust_mean(np.array([0.1, 0.1, 0.1, 3.0])), 2)
    0.17
    """
    mean = float(np.median(values))
    for _ in range(_ROUNDS):
        weights = 1 / np.sqrt(1 + ((values - mean) / _SOFT) ** 2)
        mean = float((weights * values).sum() / weights.sum())
    return mean


def level_of(errors: Floats, *, prior: float, scatter: float) -> Level:
    """What of the errors of some runs is their machine's.

    Parameters
    ----------
    errors
        log predicted - log measured.
    prior
        Standard deviation of the levels of machines.
    scatter
        The same of runs about their level; the runs' own where they scatter more.
    """
    mean = robust_mean(errors)
    weights = 1 / np.sqrt(1 + ((errors - mean) / _SOFT) ** 2)
    own = float(np.sqrt((weights * (errors - mean) ** 2).sum() / (errors.size - 1)))
    spread = max(scatter, own)
    share = prior**2 / (prior**2 + spread**2 / errors.size)
    return Level(
        mean=mean,
        expected=share * mean,
        deviation=float(prior * np.sqrt(1 - share)),
        prior=prior,
        scatter=spread,
        scatter_of="these runs" if own > scatter else "validated runs",
    )


def _tables(runs: Sequence[RunTime]) -> list[list[tuple[int, RunTime]]]:
    """Runs of one model, which are evaluated at once."""
    tables: dict[str, list[tuple[int, RunTime]]] = defaultdict(list)
    for place, run in enumerate(runs):
        tables[run.model.model_dump_json(exclude={"name"})].append((place, run))
    return list(tables.values())


def _predicted(tables: Sequence[Sequence[tuple[int, RunTime]]], systems: list[System]) -> Floats:
    """Times of a step [s], a row for each run and a column for each system; NaN where refused."""
    found = np.empty((sum(map(len, tables)), len(systems)))
    for table in tables:
        places = [place for place, _ in table]
        strategies = [run.strategy for _, run in table for _ in systems]
        times = estimate_many(table[0][1].model, systems * len(table), strategies).step_time_s
        found[places] = times.reshape(len(table), len(systems))
    return found


def _speeds(
    system: System, runs: Sequence[RunTime], measured: Floats, level: Level, path: str | Path
) -> tuple[float, float, float]:
    """Speeds at which the errors' mean is what the level leaves, and a deviation to each side.

    Parts of a step do not depend on it, so that it is sought: on a coarse grid of all speeds, then
    on a fine one about the place.
    """
    tables = _tables(runs)
    present = system.accelerator.speed

    def means(speeds: Floats) -> Floats:
        """Falls with the speed."""
        times = _predicted(tables, [_at(system, float(speed)) for speed in speeds])
        errors = np.log(times / measured[:, np.newaxis])
        return np.array([robust_mean(column) for column in errors.T])

    left = level.mean - level.expected
    wanted = left + level.deviation * np.array([0.0, 1.0, -1.0])
    grid = present * np.geomspace(_SLOWEST, _FASTEST, _TRIED)
    coarse = means(grid)
    if not coarse[-1] <= left <= coarse[0]:
        kind = "faster" if left < coarse[-1] else "slower"
        problem = (
            f"these runs are {kind} than at any speed from {_SLOWEST:g} to {_FASTEST:g}: look at "
            "their strategies and the stack, or at the model"
        )
        raise InputError(Fault(source=str(path), problem=problem))
    first = _inverse(wanted, grid, coarse)
    fine = np.geomspace(0.97 * first.min(), 1.03 * first.max(), _TRIED)
    found, low, high = _inverse(wanted, fine, means(fine))
    return float(found), float(low), float(high)


def _inverse(wanted: Floats, speeds: Floats, means: Floats) -> Floats:
    """Speeds with some means, from those of a grid."""
    found: Floats = np.exp(np.interp(wanted, means[::-1], np.log(speeds)[::-1]))
    return found


def _at(system: System, speed: float) -> System:
    chip = system.accelerator.model_copy(update={"speed": speed})
    return system.model_copy(update={"accelerator": chip})


def _refused(run: RunTime, system: System) -> Unusable:
    """Say why a run is not predicted on the system."""
    try:
        estimate(run.model, system, run.strategy)
    except InputError as error:
        return Unusable(name=run.name, reason="; ".join(str(fault) for fault in error.faults))
    raise AssertionError("a table refused what an estimate takes")


def _too_few(path: str | Path, count: int, unusable: Sequence[Unusable]) -> list[Fault]:
    told = f"{count or 'no'} usable run{'' if count == 1 else 's'}"
    why = "a level of one or two is mostly their own scatter and would make others worse"
    problem = f"has {told}; at least {_LEAST_RUNS} are needed: {why}"
    others = [Fault(source=f"{path}: {one.name}", problem=one.reason) for one in unusable]
    return [Fault(source=str(path), problem=problem), *others[:_LEAST_RUNS]]


def _with_source(found: Calibrated, path: str | Path) -> System:
    """The system, telling where its speed is from."""
    before, after = (f"{100 * one.mape:.1f} %" for one in (found.before, found.after))
    text = (
        f"by shardwise calibrate on {len(found.runs)} runs of {Path(path).name}; mean error of "
        f"these {before} before, {after} after"
    )
    sources = {**found.system.sources, "accelerator.speed": Source(kind="fitted", text=text)}
    return found.system.model_copy(update={"sources": sources})
