"""Prediction interval of an estimate, from the errors of the most similar measured runs.

Each validated run comes with its features and its error of log time, predicted with its own source
left out of every fit. The interval of an estimate is that of the runs nearest to it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise import catalog
from shardwise.analysis.features import measured_features
from shardwise.analysis.results import Interval
from shardwise.arrays import Floats
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.ops.param_count import Parameters, count_parameters
from shardwise.ops.quantization import RECIPES

LEVEL = 0.8
"""Share of runs expected inside an interval."""

# Distances between runs, which add up: a mixture of experts is very different from a dense model,
# another accelerator generation or framework less so; sizes count per doubling. Chosen, not fitted.
_DISTANCES = {
    "experts": 4.0,
    "accelerator": 0.6,
    "generation": 0.6,
    "framework": 1.0,
    "precision": 0.4,
    "assumed": 2.0,
}
_DOUBLINGS = {"gpus": 0.12, "parameters": 0.12, "seq_len": 0.12}
_NEIGHBOURS = 60
_REACH = 1.0
# Predicting a source that was left out of the fit is harder than predicting a run of a known kind:
# intervals that contain 80 % of the left-out errors of grade A contain 90 % of the errors of runs
# in the fit. With this factor they contain 75 and 86 %.
_NARROWER = 0.8
_FILE = "left_out.json"
# Runs needed to tell the level of a study; half of a normal distribution lies within this many
# standard deviations.
_LEAST_RUNS = 3
_HALF_OF_NORMAL = 0.6745

_FRAMEWORKS = {"nemo": "megatron", "deepseek": "megatron", "automodel": "torchtitan"}
_STACKS_FILE = "stacks.json"
_PRECISIONS = {"fp8_tensor": "fp8", "fp8_block": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
_GENERATIONS = {
    "a100": "ampere",
    "a800": "ampere",
    "h100": "hopper",
    "h200": "hopper",
    "h800": "hopper",
    "b200": "blackwell",
    "b300": "blackwell",
    "mi3": "cdna",
    "tpu": "tpu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFeatures:
    """What determines how similar two runs are."""

    experts: bool
    accelerator: str
    """Name of the system."""
    generation: str
    framework: str
    precision: str
    assumed: bool
    """Whether something that matters is unknown."""
    gpus: int
    parameters: float
    seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedRuns:
    """Runs that were measured and predicted, as columns."""

    ids: tuple[str, ...]
    sources: NDArray[np.str_]
    features: Mapping[str, NDArray[Any]]
    """By the fields of `RunFeatures`."""
    errors: Floats
    """log predicted - log measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Error range of an estimate."""

    factor: float
    """The measured time is expected between predicted / factor and predicted x factor."""
    runs: int
    """Validated runs that it rests on."""
    nearest: str
    """Id of the most similar run."""
    distance: float
    """Distance of that run: 0 equal in everything that counts, below 1 the same kind of run."""
    stack_measured: bool = True
    """Whether the framework has measured runs; if not, the range has the spread of frameworks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRuns:
    """Measured runs by software (benchmarks/stack_runs.py)."""

    stacks: Mapping[str, int]
    """Runs of grades A and B that are predicted with each stack."""
    levels: Mapping[str, float]
    """Median error of log time of each framework's runs with the figures of the stack `unknown`."""

    @property
    def frameworks(self) -> frozenset[str]:
        """Frameworks with measured runs."""
        return frozenset(map(framework_of, self.stacks))

    @property
    def spread(self) -> float:
        """Error of log time that `LEVEL` of the frameworks do not exceed, all alike."""
        sizes = np.abs(np.array(list(self.levels.values()), dtype=np.float64))
        return quantile(sizes, np.ones(len(sizes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLevels:
    """Standard deviations of errors of log time, between and within studies."""

    between: float
    """Of the levels of studies, each on one accelerator: servers, software releases and
    whatever else all its runs share."""
    within: float
    """Of the runs of a study around its level."""
    studies: int


def run_features(
    model: Model,
    system: System,
    strategy: Strategy,
    *,
    assumed: bool = False,
    counted: Parameters | None = None,
) -> RunFeatures:
    """Features of an estimate, by which similar runs are found.

    Parameters
    ----------
    model, system
        Of the estimate.
    strategy
        With defaults filled in.
    assumed
        Whether something that matters is unknown.
    counted
        Parameters of the model, if already counted.
    """
    return RunFeatures(
        experts=model.has_experts,
        accelerator=system.name,
        generation=next((g for name, g in _GENERATIONS.items() if name in system.name), "other"),
        framework=framework_of(strategy.loaded_stack(system.stack).name),
        precision=_PRECISIONS.get(strategy.quantization, strategy.dtype),
        assumed=assumed,
        gpus=strategy.gpus or 1,
        parameters=float((counted or count_parameters(model)).total),
        seq_len=strategy.seq_len or model.seq_len or 1,
    )


def framework_of(stack: str) -> str:
    """Return the framework of a stack: the first word of its name, or what that is built on."""
    word = stack.split("-", maxsplit=1)[0]
    return _FRAMEWORKS.get(word, word)


@cache
def stack_runs() -> StackRuns:
    """Return the number of measured runs of each stack, and the levels of frameworks."""
    path = Path(catalog.__file__).parent / "fit" / _STACKS_FILE
    table = json.loads(path.read_text(encoding="utf-8"))
    return StackRuns(stacks=table["stacks"], levels=table["frameworks"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DataBasis:
    """What a stack of the catalog rests on, and where it is the default."""

    measured_runs: int
    """Runs of grades A and B that are predicted with it."""
    framework_measured: bool
    """Whether runs of any stack of its framework were measured; if not, its figures are a prior."""
    default_of: tuple[str, ...]
    """Systems of the catalog that name it."""


def data_basis(stack: Stack) -> DataBasis:
    """Return the measured runs of a stack of the catalog, and the systems that name it."""
    return DataBasis(
        measured_runs=stack_runs().stacks.get(stack.name, 0),
        framework_measured=framework_of(stack.name) in stack_runs().frameworks,
        default_of=_defaults().get(stack.name, ()),
    )


@cache
def _defaults() -> Mapping[str, tuple[str, ...]]:
    """Systems of the catalog by the stack that they name."""
    found: dict[str, tuple[str, ...]] = {}
    for name in catalog.names("systems"):
        stack = System.load(name).stack
        found[stack] = (*found.get(stack, ()), name)
    return found


@cache
def validated_runs() -> ValidatedRuns:
    """Return the validated runs that come with shardwise."""
    path = Path(catalog.__file__).parent / "fit" / _FILE
    names, *rows = json.loads(path.read_text(encoding="utf-8"))
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return ValidatedRuns(
        ids=columns["id"],
        sources=np.array(columns["source"], dtype=np.str_),
        features={column.name: np.array(columns[column.name]) for column in fields(RunFeatures)},
        errors=np.array(columns["error"], dtype=np.float64),
    )


def uncertainty_of(
    one: RunFeatures, known: ValidatedRuns, *, without: str | None = None
) -> Uncertainty:
    """Error range of an estimate, from the most similar validated runs.

    The weighted quantile of their absolute errors of log time; weights fall with the distance d as
    exp(-d / reach). Where no run of the framework was measured, the spread of frameworks around the
    figures of the stack `unknown` is added, as an independent error: log(factor) is the root of the
    sum of both squares.

    Parameters
    ----------
    one
        Features of the estimate.
    known
        Validated runs.
    without
        Source whose runs are left out.
    """
    distance = np.zeros(len(known.ids))
    for name, weight in _DISTANCES.items():
        distance += weight * (known.features[name] != getattr(one, name))
    for name, weight in _DOUBLINGS.items():
        distance += weight * np.abs(np.log2(known.features[name] / getattr(one, name)))
    allowed = known.sources != without
    order = np.argsort(np.where(allowed, distance, np.inf), kind="stable")
    nearest = order[: min(_NEIGHBOURS, int(allowed.sum()))]
    size = quantile(np.abs(known.errors[nearest]), np.exp(-distance[nearest] / _REACH))
    measured = one.framework in stack_runs().frameworks
    spread = 0.0 if measured else stack_runs().spread
    return Uncertainty(
        factor=float(np.exp(np.hypot(_NARROWER * size, spread))),
        runs=len(nearest),
        nearest=known.ids[nearest[0]],
        distance=float(distance[nearest[0]]),
        stack_measured=measured,
    )


@cache
def error_levels() -> ErrorLevels:
    """Scatter of the levels of studies, and of the runs of a study around its level.

    From studies of three or more runs of one kind on one accelerator, without assumptions. Medians
    over the studies, so that outliers do not dominate; the first is the median absolute level over
    0.67, as for a normal distribution.
    """
    known = validated_runs()
    groups = _groups(known, "accelerator", "experts")
    studies = [known.errors[rows] for rows in groups if len(rows) >= _LEAST_RUNS]
    return ErrorLevels(
        between=float(np.median([abs(np.median(errors)) for errors in studies]) / _HALF_OF_NORMAL),
        within=float(np.median([errors.std(ddof=1) for errors in studies])),
        studies=len(studies),
    )


@cache
def distinguishable_ratio() -> float:
    """Smallest ratio of two predicted times, of one model on one machine, that is significant.

    From pairs of validated runs of one source, model, machine and precision without assumptions,
    whose common errors cancel: the ratio of `LEVEL` of the pairs is predicted this well.
    """
    known = validated_runs()
    gaps = []
    for rows in comparable_runs(known):
        errors = known.errors[rows]
        differences = np.abs(errors[:, np.newaxis] - errors)
        gaps.append(differences[np.triu_indices(len(errors), 1)])
    each = np.concatenate(gaps)
    # A large study has most of the pairs, but is one study.
    weights = np.concatenate([np.full(len(gap), 1 / max(len(gap), 1) ** 0.5) for gap in gaps])
    return float(np.exp(quantile(each, weights)))


def separable(figures: Sequence[float]) -> int:
    """Return how many of the first predictions measurements cannot separate from the first.

    Parameters
    ----------
    figures
        Times or rates, of one model on one machine.
    """
    ratio = distinguishable_ratio()
    tied = [1 / ratio < one / figures[0] < ratio for one in figures]
    return tied.index(False) if False in tied else len(tied)


def comparable_runs(known: ValidatedRuns) -> list[list[int]]:
    """Rows of one source, model, machine and precision without assumptions."""
    return _groups(known, "accelerator", "framework", "precision", "parameters", "seq_len")


def _groups(known: ValidatedRuns, *names: str) -> list[list[int]]:
    """Rows without assumptions, grouped by source and some features."""
    groups: dict[tuple[object, ...], list[int]] = {}
    keys = zip(known.sources, *(known.features[name] for name in names), strict=True)
    for row, key in enumerate(keys):
        if not known.features["assumed"][row]:
            groups.setdefault(key, []).append(row)
    return list(groups.values())


def interval_of(
    model: Model,
    system: System,
    strategy: Strategy,
    step_s: float,
    counted: Parameters | None = None,
    *,
    unmeasured: int = 0,
) -> Interval | None:
    """Range of the measured time of a step; None forward only.

    Parameters
    ----------
    model, system
        Of the estimate.
    strategy
        With defaults filled in.
    step_s
        Predicted time of the step [s].
    counted
        Parameters of the model, if already counted.
    unmeasured
        Number of its features that no measured run used (`features.unmeasured_features`).
    """
    if not strategy.training:
        return None
    found = uncertainty_of(run_features(model, system, strategy, counted=counted), validated_runs())
    factor = widened(found.factor, unmeasured)
    return Interval(
        low_s=step_s / factor,
        high_s=step_s * factor,
        level=LEVEL,
        runs=found.runs,
        nearest=found.nearest,
        distance=found.distance,
        stack_measured=found.stack_measured,
    )


def widened(factor: float, unmeasured: int) -> float:
    """Return the error range of an estimate with features that no measured run used.

    log(factor)^2 + unmeasured x added^2 = log(widened)^2, with the error that a measured feature
    adds (`MeasuredFeatures.added_error`): errors of features are independent.

    Parameters
    ----------
    factor
        Error range by similar runs.
    unmeasured
        Number of features that no measured run used.
    """
    if not unmeasured:
        return factor
    added = measured_features().added_error
    return math.exp(math.hypot(math.log(factor), added * unmeasured**0.5))


def rests_on(system: System, strategy: Strategy, tiers: Mapping[str, int]) -> dict[str, str]:
    """Origin of the rates of each kind of operation, and of the communication of each axis.

    Parameters
    ----------
    system, strategy
        Of the estimate.
    tiers
        Outermost network tier of each axis that communicates.
    """
    recipe = RECIPES.get(strategy.quantization)
    kind = strategy.dtype if recipe is None else recipe.matrix
    forms = ("matmul", "matmul_curve", "matmul_table")
    form = next(name for name in forms if kind in map(str, getattr(system.accelerator, name)))
    places = {
        "products": f"accelerator.{form}.{kind}",
        "attention": "accelerator.attention",
        "element-wise": "accelerator.memory_bound",
    }
    places |= {f"{axis} exchanges": f"network.{tier}.collectives" for axis, tier in tiers.items()}
    sources = {name: system.source_of(place) for name, place in places.items()}
    return {name: "assumed" if one is None else one.kind for name, one in sources.items()}


def quantile(sizes: Floats, weights: Floats) -> float:
    """Return the smallest size with at least `LEVEL` of the weight at or below it."""
    order = np.argsort(sizes)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(sizes[order][np.searchsorted(reached, LEVEL)])
