"""Fit figures of systems and stacks to measured runs: robust least squares with a prior.

A parameter's offset x is added to the logarithm of its figures. log t(x) of all runs is evaluated
with its derivatives. The fit minimizes

    sum w rho(log t - log t_measured) + sum (x / spread)^2

where rho is quadratic for small and linear for large errors. Dense runs decide the figures that
both kinds share; runs with experts decide only those of experts.

Figures of a stack that one source alone has measured cannot be separated from its level:
its servers, images and settings. Such a source has a level of its own, added to the errors of all
its runs with the prior (level / `SOURCE_LEVEL`)^2, so that the stack keeps only its share of them
and stays closer to the figures of its framework.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from shardwise import catalog
from shardwise.arrays import Bools, Floats
from shardwise.config import files
from shardwise.config.base import ConfigBase, Number
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.estimator import estimate_many
from shardwise.validate.measured.predict import tables_of
from shardwise.validate.measured.runs import Case, Run

_FILE = "steps.yaml"


class Parameter(ConfigBase):
    """One number that runs decide, and the figures that it moves together."""

    name: str = Field(min_length=1)
    of: Literal["systems", "stacks"]
    names: tuple[str, ...] = Field(min_length=1)
    """Entries of the catalog that it moves."""
    fields: tuple[str, ...] = Field(min_length=1)
    """Dotted; `*` stands for all of a mapping."""
    scale: Literal["log", "logit"] = "log"
    """What is added to: the logarithm of a figure, or of a share over what it leaves."""
    spread: Number = Field(gt=0)
    """Standard deviation before runs were looked at."""
    moved: Number = 0.0
    """How far the runs that come with shardwise moved it from there, as the catalog has it."""
    experts: bool = False
    """Whether runs of mixtures of experts decide it; those of dense models decide the others."""
    source: str = Field(min_length=1)
    """Why it is so before, and why so far."""

    def moves(self, name: str) -> bool:
        """Whether it moves an entry of the catalog."""
        return name in self.names

    def apply(self, record: object, offset: float) -> Any:
        """Move its figures of a system or stack."""
        for name in self.fields:
            record = _replaced(record, name, lambda value: self._moved(value, offset))
        return record

    def _moved(self, value: Any, offset: float) -> Any:
        if isinstance(value, Mapping):
            return {key: self._moved(one, offset) for key, one in value.items()}
        if self.scale == "log":
            return float(value * np.exp(offset))
        if not 0 < value < 1:  # a stack that has or hides none of it
            return value
        return float(1 / (1 + (1 / value - 1) * np.exp(-offset)))


def _replaced(record: Any, name: str, change: Callable[[Any], Any]) -> Any:
    """The config with another value of a dotted field; as it is where it has no such field."""
    head, _, rest = name.partition(".")
    if isinstance(record, BaseModel):
        value = getattr(record, head)
        if value is None:
            return record
        return record.model_copy(update={head: _inside(value, rest, change)})
    if isinstance(record, tuple):
        items = dict(enumerate(record))
        return tuple(_changed(items, head, rest, change).values())
    return _changed(record, head, rest, change)


def _changed(
    items: Mapping[Any, Any], head: str, rest: str, change: Callable[[Any], Any]
) -> dict[Any, Any]:
    """A mapping with another value of one key, or of all."""
    return {
        key: _inside(value, rest, change) if head in ("*", str(key)) else value
        for key, value in items.items()
    }


def _inside(value: object, rest: str, change: Callable[[object], object]) -> object:
    return _replaced(value, rest, change) if rest else change(value)


@cache
def load_parameters() -> tuple[Parameter, ...]:
    """Return those that the figures of the catalog were fitted with."""
    groups = load_groups()
    return tuple(
        Parameter.validated(
            one | {"names": groups.get(str(one["names"]), one["names"])}, source=_FILE
        )
        for one in _steps()["parameters"]
    )


def load_groups() -> dict[str, list[str]]:
    """Return names of the catalog that parameters use together, by the name of the group."""
    return dict(_steps()["groups"])


def _steps() -> dict[str, Any]:
    return files.read_mapping(Path(catalog.__file__).parent / "fit" / _FILE)


@dataclass(frozen=True)
class MovedFigures:
    """Cases with figures moved from those of the catalog; each config is made once."""

    parameters: Sequence[Parameter]
    cache: dict[tuple[int, tuple[tuple[int, float], ...]], Any] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    """Config types whose identity is part of a key, so that none is reused."""

    def applying(self, case: Case) -> list[int]:
        """Positions of the parameters that concern a run."""
        names = {"systems": case.system.name, "stacks": _stack(case.strategy).name}
        return [i for i, p in enumerate(self.parameters) if p.moves(names[p.of])]

    def apply(self, case: Case, offsets: Floats) -> tuple[System, Strategy]:
        """System and strategy of a run with each parameter moved by its offset."""
        positions = self.applying(case)
        stack = self._moved(_stack(case.strategy), "stacks", positions, offsets)
        strategy = case.strategy.model_copy(update={"stack": stack})
        return self._moved(case.system, "systems", positions, offsets), strategy

    def _moved(self, record: object, of: str, positions: Sequence[int], offsets: Floats) -> Any:
        chosen = tuple(
            (i, float(offsets[i])) for i in positions if self.parameters[i].of == of and offsets[i]
        )
        if not chosen:
            return record
        key = id(record), chosen
        if key not in self.cache:
            changed = record
            for i, offset in chosen:
                changed = self.parameters[i].apply(changed, offset)
            self.cache[key] = changed
            self.alive.append(record)
        return self.cache[key]


def _stack(strategy: Strategy) -> Stack:
    return strategy.loaded_stack()


# Errors of log time above this weigh like lines, not squares: rows with faults of their own.
_SOFT = 0.12
# Scatter of log time between published releases of one configuration, dense 3 %, experts 6 to 8 %
# (the runs that come with shardwise).
_NOISE = 0.06
# Rows of one source share its faults: n of them weigh like n to the power of 0.6.
_SOURCE_POWER = -0.4
# Weights of dense runs and of those with experts, whose sources left out have the smallest errors
# with them: rows of dense sources say less than as many independent ones.
_DENSE_WEIGHT, _EXPERTS_WEIGHT = 0.25, 1.0
# Standard deviation of the levels of sources of one software on one accelerator
# (`analysis.variation`: the level `source`).
SOURCE_LEVEL = 0.05
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
    cases: Mapping[int, Case],
    runs: Sequence[Run],
    parameters: Sequence[Parameter],
    offsets: Floats,
    *,
    derivatives: bool = True,
) -> Linear:
    """Evaluate runs, and each with one parameter after another moved a little.

    Parameters
    ----------
    cases
        By position in `runs`; each with a measured time.
    derivatives
        Whether they are wanted; else all are 0.
    """
    places = sorted(cases)
    row_of = {place: row for row, place in enumerate(places)}
    errors = np.full(len(places), np.nan)
    slopes = np.zeros((len(places), len(parameters)))
    moved = MovedFigures(parameters)
    for group in tables_of(cases):
        systems, strategies, what = [], [], []
        for place, case in group:
            for parameter in (None, *(moved.applying(case) if derivatives else ())):
                at = offsets.copy()
                if parameter is not None:
                    at[parameter] += _DIFFERENCE
                system, strategy = moved.apply(case, at)
                systems.append(system)
                strategies.append(strategy)
                what.append((row_of[place], parameter))
        log_s = np.log(estimate_many(group[0][1].model, systems, strategies).step_time_s)
        for value, (row, parameter) in zip(log_s, what, strict=True):
            if parameter is None:
                measured = runs[places[row]].measured_step_time_s
                assert measured is not None  # noqa: S101 - requested
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
    runs = [run for run, is_in in zip(at.runs, chosen, strict=True) if is_in]
    slopes = at.derivatives[chosen]
    alone = single_sources(runs, slopes, parameters)
    of_source = np.array([[run.source == one for one in alone] for run in runs], dtype=np.float64)
    deciding = np.hstack([_decided_by(runs, slopes, parameters), of_source])
    slopes = np.hstack([slopes, of_source])
    errors = at.errors[chosen]
    weights = _weights(runs)
    spreads = [*(p.spread for p in parameters), *(SOURCE_LEVEL for _ in alone)]
    prior = np.diag(1 / np.array(spreads) ** 2)
    start = np.concatenate([at.offsets, np.zeros(len(alone))])
    offsets = start
    for _ in range(_ROUNDS):
        left = errors + slopes @ (offsets - start)
        weight = weights / np.sqrt(1 + (left / _SOFT) ** 2) / _NOISE**2
        matrix = deciding.T @ (weight[:, np.newaxis] * slopes) + prior
        pull = deciding.T @ (weight * (errors - slopes @ start))
        offsets = np.linalg.solve(matrix, -pull).astype(np.float64)
        step: Floats = np.clip(offsets - start, -_LONGEST_STEP, _LONGEST_STEP)
        offsets = start + step
    return offsets[: len(parameters)]


def single_sources(
    runs: Sequence[Run], slopes: Floats, parameters: Sequence[Parameter]
) -> tuple[str, ...]:
    """Return the sources that alone decide some parameter of stacks.

    Parameters
    ----------
    slopes
        Derivatives of log time of the runs by the parameters.
    """
    sources = np.array([run.source for run in runs])
    deciding = [
        np.unique(sources[slopes[:, place] != 0])
        for place, parameter in enumerate(parameters)
        if parameter.of == "stacks"
    ]
    return tuple(sorted({str(some[0]) for some in deciding if len(some) == 1}))


def left_out(
    at: Linear,
    parameters: Sequence[Parameter],
    others: Linear | None = None,
    by: Callable[[Run], str] = lambda run: run.source,
) -> Floats:
    """Errors of runs with the runs of their source left out of the fit.

    Parameters
    ----------
    at
        Runs of the fit.
    parameters
        Those that the fit moves.
    others
        Runs in no fit, at the same offsets, whose errors are wanted; None: those of the fit.
    by
        Another key of the runs that are left out together, such as their accelerator.
    """
    wanted = at if others is None else others
    studies = np.array([by(run) for run in wanted.runs])
    fitted_studies = np.array([by(run) for run in at.runs])
    errors = np.empty_like(wanted.errors)
    for study in np.unique(studies):
        rows: NDArray[np.bool_] = studies == study
        offsets = fitted(at, parameters, fitted_studies != study)
        errors[rows] = wanted.errors_at(offsets)[rows]
    return errors


def _weights(runs: Sequence[Run]) -> Floats:
    count = Counter(run.source for run in runs)
    weights = np.array([count[run.source] ** _SOURCE_POWER for run in runs])
    kinds = np.array([_EXPERTS_WEIGHT if run.kind == "moe" else _DENSE_WEIGHT for run in runs])
    return kinds * weights * len(weights) / weights.sum()


def _decided_by(runs: Sequence[Run], slopes: Floats, parameters: Sequence[Parameter]) -> Floats:
    """Derivatives, without those by parameters that a run's kind does not decide."""
    of_experts = np.array([p.experts for p in parameters])
    moe = np.array([run.kind == "moe" for run in runs])
    return np.where(moe[:, np.newaxis] & ~of_experts, 0.0, slopes)
