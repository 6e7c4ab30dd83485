"""Prediction intervals of time and memory, from the errors of measured runs.

Each validated run comes with its features and its error of log time, predicted with its own source
left out of every fit. The interval of an estimate follows from how much such errors vary, and from
what of that the measured runs have fixed for it (`analysis.variation`).

The interval of the peak memory follows from the errors of measured peaks. Sources measure what
tensors allocate (torch.cuda.max_memory_allocated), or what the accelerator must have: what the
allocator reserves, or all that nvidia-smi shows. No figure of the memory model is fitted, but the
rows were known when it was written.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np

from shardwise import catalog
from shardwise.analysis.features import measured_features
from shardwise.analysis.results import AssumedNetwork, Interval, Memory, MemoryInterval
from shardwise.analysis.validated_runs import (
    RunFeatures,
    ValidatedRuns,
    run_features,
    stack_runs,
    validated_runs,
)
from shardwise.analysis.variation import LEVEL, Evidence, Variation, quantile, variation_of
from shardwise.arrays import Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.ops.param_count import Parameters
from shardwise.ops.quantization import RECIPES

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
    stack_measured: bool
    """Whether the framework has measured runs; if not, the range has the spread of frameworks."""
    stack_sources: int
    """Sources with validated runs of the same software, in any release of the stack."""
    accelerator_sources: int
    """Sources with validated runs on the same system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLevels:
    """Standard deviations of errors of log time, between and within studies."""

    between: float
    """Of the levels of sources: servers, software releases and whatever else all runs of a source
    share."""
    within: float
    """Of the runs of a source around its level."""
    sources: int


def uncertainty_of(
    one: RunFeatures, known: ValidatedRuns, *, without: str | None = None
) -> Uncertainty:
    """Error range of an estimate, from what validated runs have fixed for it."""
    distance = np.zeros(len(known.ids))
    for name, weight in _DISTANCES.items():
        distance += weight * (known.features[name] != getattr(one, name))
    for name, weight in _DOUBLINGS.items():
        distance += weight * np.abs(np.log2(known.features[name] / getattr(one, name)))
    others = known.sources != without
    nearest = int(np.argmin(np.where(others, distance, np.inf)))
    evidence = evidence_of(one, known, without=without)
    return Uncertainty(
        factor=float(np.exp(variation(known, without).sizes(evidence)[0])),
        runs=int(others.sum()),
        nearest=known.ids[nearest],
        distance=float(distance[nearest]),
        stack_measured=bool(evidence.framework_measured[0]),
        stack_sources=int(evidence.stack_sources[0]),
        accelerator_sources=int(evidence.accelerator_sources[0]),
    )


def evidence_of(one: RunFeatures, known: ValidatedRuns, *, without: str | None = None) -> Evidence:
    """Return what validated runs have fixed for an estimate; one row."""

    def count(name: str) -> Ints:
        found = _sources_by(known, name).get(getattr(one, name), frozenset())
        return np.array([len(found - {without})])

    measured = np.array([one.framework in stack_runs().frameworks])
    return Evidence(
        experts=np.array([one.experts]),
        assumed=np.array([one.assumed]),
        framework_measured=measured,
        stack_sources=count("software") * measured,
        accelerator_sources=count("accelerator"),
        generation_sources=count("generation"),
    )


@cache
def variation(known: ValidatedRuns, without: str | None = None) -> Variation:
    """Estimate the levels of variation of the errors of validated runs.

    Parameters
    ----------
    without
        Source that is left out, also where it is the only one of a framework.
    """
    evidence, studies = evidence_of_runs(known)
    rows = known.sources != without
    _, numbers = np.unique(studies[rows], return_inverse=True)
    frameworks = set(known.features["framework"][rows])
    levels = [level for name, level in stack_runs().levels.items() if name in frameworks]
    return variation_of(
        known.errors[rows],
        known.sources[rows],
        numbers,
        Evidence(
            **{column.name: getattr(evidence, column.name)[rows] for column in fields(Evidence)}
        ),
        np.array(levels, dtype=np.float64),
    )


def left_out_sizes(known: ValidatedRuns) -> Floats:
    """Size of the interval of each validated run with its own source left out.

    Errors of log time that `LEVEL` of such runs do not exceed.
    """
    evidence, _ = evidence_of_runs(known)
    sizes = np.empty(len(known.ids))
    for source in np.unique(known.sources):
        rows = known.sources == source
        sizes[rows] = variation(known, str(source)).sizes(evidence)[rows]
    return sizes


@cache
def evidence_of_runs(known: ValidatedRuns) -> tuple[Evidence, Ints]:
    """What each prediction rested on with its own source left out, and the numbers of studies.

    Runs of a study have one source and the same evidence.
    """
    names = ("software", "accelerator", "experts", "assumed")
    keys = list(zip(known.sources, *(known.features[name] for name in names), strict=True))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}

    def counts(name: str) -> Ints:
        found = _sources_by(known, name)
        return np.array([len(found[value]) - 1 for value in known.features[name].tolist()])

    frameworks = known.features["framework"].tolist()
    measured = np.array([name in stack_runs().frameworks for name in frameworks], dtype=np.bool_)
    evidence = Evidence(
        experts=known.features["experts"],
        assumed=known.features["assumed"],
        framework_measured=measured,
        stack_sources=counts("software") * measured,
        accelerator_sources=counts("accelerator"),
        generation_sources=counts("generation"),
    )
    return evidence, np.array([numbers[key] for key in keys])


@cache
def _sources_by(known: ValidatedRuns, name: str) -> Mapping[str, frozenset[str]]:
    """Sources with runs of each value of a feature."""
    found: dict[str, set[str]] = {}
    for value, source in zip(known.features[name].tolist(), known.sources.tolist(), strict=True):
        found.setdefault(value, set()).add(source)
    return {value: frozenset(sources) for value, sources in found.items()}


@cache
def error_levels() -> ErrorLevels:
    """Scatter of the levels of sources, and of the runs of a source around its level.

    Of the runs of dense models without assumptions, the median of each; see `variation`.
    """
    known = validated_runs()
    found, (evidence, _) = variation(known), evidence_of_runs(known)
    plain = ~(evidence.experts | evidence.assumed)
    return ErrorLevels(
        between=float(np.median(np.sqrt(found.of_sources(evidence)[plain]))),
        within=float(np.median(np.sqrt(found.of_runs(evidence)[plain]))),
        sources=len(np.unique(known.sources)),
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
    """Return how many of the first predictions measurements cannot separate from the first."""
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
    network: AssumedNetwork | None = None,
) -> Interval | None:
    """Range of the measured time of a step; None forward only.

    Parameters
    ----------
    counted
        Parameters of the model, if already counted.
    unmeasured
        Number of its features that no measured run used (`features.unmeasured_features`).
    network
        Network cards that are assumed (`assumed_network`), with times of this step.
    """
    if not strategy.training:
        return None
    found = uncertainty_of(run_features(model, system, strategy, counted=counted), validated_runs())
    factor = widened(found.factor, unmeasured)
    faster, slower = (
        (step_s, step_s) if network is None else (network.faster_step_s, network.slower_step_s)
    )
    return Interval(
        low_s=step_s / _joined(factor, step_s / faster),
        high_s=step_s * _joined(factor, slower / step_s),
        level=LEVEL,
        runs=found.runs,
        nearest=found.nearest,
        distance=found.distance,
        stack_measured=found.stack_measured,
        stack_sources=found.stack_sources,
        accelerator_sources=found.accelerator_sources,
    )


def _joined(factor: float, other: float) -> float:
    """Return the range of two independent errors of log time; the second is at least 1."""
    return math.exp(math.hypot(math.log(factor), math.log(max(other, 1.0))))


def widened(factor: float, unmeasured: int) -> float:
    """Return the error range of an estimate with features that no measured run used.

    log(factor)^2 + unmeasured x added^2 = log(widened)^2, with the error that a measured feature
    adds (`MeasuredFeatures.added_error`): errors of features are independent.

    Parameters
    ----------
    unmeasured
        Number of features that no measured run used.
    """
    if not unmeasured:
        return factor
    added = measured_features().added_error
    return math.exp(math.hypot(math.log(factor), added * unmeasured**0.5))


def rests_on(system: System, strategy: Strategy, tiers: Mapping[str, int]) -> dict[str, str]:
    """Origin of the rates of each kind of operation, and of the communication of each axis."""
    recipe = RECIPES.get(strategy.quantization)
    kind = strategy.dtype if recipe is None else recipe.matrix
    forms = ("matmul", "matmul_curve", "matmul_table")
    form = next(name for name in forms if kind in map(str, getattr(system.accelerator, name)))
    places = {
        "products": f"accelerator.{form}.{kind}",
        "attention": "accelerator.attention",
        "element-wise": "accelerator.memory_bound",
    }
    places |= {f"{axis} collectives": f"network.{tier}.collectives" for axis, tier in tiers.items()}
    sources = {name: system.source_of(place) for name, place in places.items()}
    return {name: "assumed" if one is None else one.kind for name, one in sources.items()}


_FILE = "memory.json"


@cache
def memory_errors() -> Mapping[str, Mapping[str, float]]:
    """Return error, runs and sources of `allocated` and `reserved` memory.

    `tools/fit_runs.py` writes them, by `memory_error`.
    """
    path = Path(catalog.__file__).parent / "fit" / _FILE
    return dict(json.loads(path.read_text(encoding="utf-8")))


def memory_error(errors: Mapping[str, Sequence[float]]) -> float:
    """Error that the peaks of a new source do not exceed with a probability of `LEVEL`.

    The quantile LEVEL (1 + 1 / n) of the sizes of the errors of n sources with one vote each: of
    exchangeable sources, that is where the next one lies (conformal prediction).

    Parameters
    ----------
    errors
        log predicted - log measured of the runs of each source.

    Examples
    --------
    >>> memory_error({"a": [0.1], "b": [-0.2], "c": [0.3], "d": [0.4], "e": [0.5]})
    0.5
    """
    sizes = np.abs(np.concatenate([np.array(some, dtype=np.float64) for some in errors.values()]))
    votes = np.concatenate([np.full(len(some), 1 / len(some)) for some in errors.values()])
    return quantile(sizes, votes, min(LEVEL * (1 + 1 / len(errors)), 1.0))


def memory_interval_of(memory: Memory) -> MemoryInterval:
    """Range of the measured peak of a stage's memory."""
    found = memory_errors()
    allocated, reserved = (math.exp(found[kind]["error"]) for kind in ("allocated", "reserved"))
    return MemoryInterval(
        total_low=memory.total / allocated,
        total_high=memory.total * allocated,
        reserved_low=memory.reserved / reserved,
        reserved_high=memory.reserved * reserved,
        level=LEVEL,
        runs=int(sum(kind["runs"] for kind in found.values())),
    )
