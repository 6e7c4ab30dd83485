"""Speed of the accelerators of one machine, from a few measured runs on it.

Servers of one type differ by 10 to 20 % in power limit, clocks and cooling. The mean error of some
runs is due to the machine, but also to their scatter. So m, the robust mean of n errors, counts as
a measurement with variance s^2 / n of a level with prior 0 +- p; its posterior mean is
m p^2 / (p^2 + s^2 / n). Both s and p come from the validated runs
(`analysis.prediction_interval.error_levels`).

Runs come from a run file (`measured.runs`), in which the system may be left out.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardwise import catalog
from shardwise.analysis.prediction_interval import error_levels
from shardwise.arrays import Floats
from shardwise.config.base import Source
from shardwise.config.model import Model
from shardwise.config.plain import plain
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.estimator import estimate, estimate_many
from shardwise.validate.measured.runs import ENDINGS, NotModeledError, Run, read_runs
from shardwise.validate.measured.statistics import Summary, signed_errors, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """A run with a measured time of a step."""

    name: str
    model: Model
    strategy: Strategy
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """A run that cannot be used, and why."""

    name: str
    reason: str


def read_run_times(path: str | Path, system: System) -> tuple[list[RunTime], list[Unusable]]:
    """Read the runs of a file: those on a system with a time, and the others.

    Raises
    ------
    InputError
        With one fault for each thing that is wrong, which names file, run and field.
    """
    if not str(path).removesuffix(".gz").lower().endswith(ENDINGS):
        allowed = ", ".join(ENDINGS)
        problem = f"cannot tell the format; allowed endings: {allowed}, each also .gz"
        raise InputError(Fault(source=str(path), problem=problem))
    found = [_usable(run, system) for run in read_runs(path, system=system)]
    usable = [one for one in found if isinstance(one, RunTime)]
    return usable, [one for one in found if isinstance(one, Unusable)]


def _usable(run: Run, system: System) -> RunTime | Unusable:
    """What ran, if it has a time and ran on the system."""
    time = run.measured_step_time_s
    try:
        case = run.case()
    except NotModeledError as reason:
        return Unusable(name=run.id, reason=str(reason))
    if time is None:
        return Unusable(name=run.id, reason="has no time of a step")
    if not _is(case.system, system):
        return Unusable(name=run.id, reason=f"ran on {case.system.name}")
    return RunTime(name=run.id, model=case.model, strategy=case.strategy, measured_s=time)


def _is(found: System, system: System) -> bool:
    """Whether a row ran on the system: by name, or for user-defined systems by accelerator."""
    if system.name in catalog.names("systems"):
        return found.name == system.name
    return found.accelerator.name == system.accelerator.name


_LEAST_RUNS = 3
# Errors of log time that weigh like lines, not squares: as in the fit of the catalog's figures.
_SOFT = 0.2
_ROUNDS = 30
# Speeds that are tried over the present one, and how many at once.
_SLOWEST, _FASTEST, _TRIED = 0.25, 4.0, 9
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Mean error of the predictions for a machine, in logarithms of time."""

    mean: float
    """Robust mean of log predicted - log measured."""
    expected: float
    """The machine's share of it: the posterior mean."""
    deviation: float
    """Posterior standard deviation."""
    prior: float
    """Prior standard deviation of the levels of machines."""
    scatter: float
    """Standard deviation of runs about their level: of validated runs, or of these runs."""
    scatter_of: Literal["validated runs", "these runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedRun:
    """A run with its predicted times before and after calibration, and their errors."""

    name: str
    measured_s: float
    before_s: float
    after_s: float
    error_before: float
    error_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A system with the speed fitted to runs, and its errors."""

    system: System
    speed: float
    speed_range: tuple[float, float]
    """At one standard deviation of the level below and above."""
    level: Level
    runs: tuple[CalibratedRun, ...]
    unusable: tuple[Unusable, ...]

    @property
    def before(self) -> Summary:
        """Errors before calibration."""
        return summary(np.array([run.error_before for run in self.runs]))

    @property
    def after(self) -> Summary:
        """Errors with the fitted speed."""
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
        return dict(plain(record))


def calibrated_by_runs(system: System, path: str | Path) -> Calibrated:
    """Find the speed of a system from the measured runs of a file.

    Raises
    ------
    InputError
        If the file is invalid, has fewer than three runs on the system, or no speed explains them.
    """
    usable, unusable = read_run_times(path, system)
    tables = _tables(usable)
    predicted = _predicted(tables, [system])[:, 0]
    known = np.isfinite(predicted)
    refused = [_refused(run, system) for run, ok in zip(usable, known, strict=True) if not ok]
    runs = [run for run, ok in zip(usable, known, strict=True) if ok]
    unusable += refused
    if len(runs) < _LEAST_RUNS:
        raise InputError(_too_few(path, len(runs), unusable))
    measured = np.array([run.measured_s for run in runs])
    before = predicted[known]
    level = level_of(
        np.log(before / measured), prior=error_levels().between, scatter=error_levels().within
    )
    speed, low, high = _speeds(system, runs, measured, level, path)
    rounded_speed = float(f"{speed:.{_DIGITS}g}")
    after = _predicted(_tables(runs), [_at(system, rounded_speed)])[:, 0]
    errors = (signed_errors(before, measured), signed_errors(after, measured))
    found = Calibrated(
        system=_at(system, rounded_speed),
        speed=rounded_speed,
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
    """Robust mean of values: those far from it have linear weights.

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
    """Level of a machine from the errors of its runs.

    Parameters
    ----------
    errors
        log predicted - log measured.
    prior
        Standard deviation of the levels of machines.
    scatter
        The same of runs about their level; these runs' own if it is larger.
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
    """Group runs of one model, which are evaluated at once."""
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
    """Speeds at which the mean error is the level's unexplained rest, and a deviation either way.

    Some components of a step do not depend on the speed, so it is searched: on a coarse grid of all
    speeds, then on a fine one.
    """
    tables = _tables(runs)
    present = system.accelerator.speed

    def means(speeds: Floats) -> Floats:
        """Mean errors, which fall with the speed."""
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
    """Why a run cannot be predicted on the system."""
    try:
        estimate(run.model, system, run.strategy)
    except InputError as error:
        return Unusable(name=run.name, reason="; ".join(str(fault) for fault in error.faults))
    raise AssertionError("a table refused what an estimate takes")


def _too_few(path: str | Path, count: int, unusable: Sequence[Unusable]) -> list[Fault]:
    counted = f"{count or 'no'} usable run{'' if count == 1 else 's'}"
    why = "a level of one or two is mostly their own scatter and would make others worse"
    problem = f"has {counted}; at least {_LEAST_RUNS} are needed: {why}"
    others = [Fault(source=f"{path}: {one.name}", problem=one.reason) for one in unusable]
    return [Fault(source=str(path), problem=problem), *others[:_LEAST_RUNS]]


def _with_source(found: Calibrated, path: str | Path) -> System:
    """The system with the source of its speed."""
    before, after = (f"{100 * one.mape:.1f} %" for one in (found.before, found.after))
    text = (
        f"by shardwise calibrate on {len(found.runs)} runs of {Path(path).name}; mean error of "
        f"these {before} before, {after} after"
    )
    sources = {**found.system.sources, "accelerator.speed": Source(kind="fitted", text=text)}
    return found.system.model_copy(update={"sources": sources})
