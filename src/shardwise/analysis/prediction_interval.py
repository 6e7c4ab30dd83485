"""Prediction intervals of times, from the errors of measured runs.

Each validated run comes with its features and its error of log time, predicted as if its own source
were unknown: left out of every fit, and without a stack that rests on it alone. The interval of an
estimate follows from how much such errors vary, and from what of that the measured runs have fixed
for it (`analysis.variation`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.analysis.features import measured_features
from shardwise.analysis.mixer_kernels import spread_of
from shardwise.analysis.results import AssumedHost, AssumedNetwork, Interval, MixerKernels
from shardwise.analysis.validated_runs import (
    RunFeatures,
    ValidatedRuns,
    run_features,
    validated_runs,
)
from shardwise.analysis.variation import LEVEL, Evidence, Sides, Variation, quantile, variation_of
from shardwise.arrays import Ints
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.ops.param_count import Parameters
from shardwise.ops.quantization import RECIPES
from shardwise.records import dataclass, fields, replace

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
# Kinds of what is measured on a machine that say how fast its accelerators compute.
_FIXING = ("products", "attention", "memory")
_DOUBLINGS = {"gpus": 0.12, "parameters": 0.12, "seq_len": 0.12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Error range of an estimate."""

    slower: float
    """A tenth of measured times is above predicted x slower."""
    faster: float
    """A tenth of measured times is below predicted / faster."""
    runs: int
    """Validated runs that it rests on."""
    nearest: str
    """Id of the most similar run."""
    distance: float
    """Distance of that run: 0 equal in everything that counts, below 1 the same kind of run."""
    stack_measured: bool
    """Whether the framework has measured runs; if not, the range has the spread of frameworks."""
    release_sources: int
    """Sources with validated runs of the same stack."""
    stack_sources: int
    """Sources with validated runs of the same software, in any release of the stack."""
    pair_sources: int
    """Sources with validated runs of the same software on the same generation of accelerators."""
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


@lru_cache(maxsize=1 << 8)
def uncertainty_of(
    one: RunFeatures, known: ValidatedRuns, *, without: str | None = None, kernels: int = 0
) -> Uncertainty:
    """Error range of an estimate, from what validated runs have fixed for it.

    Parameters
    ----------
    kernels
        Kinds of kernels that were measured on the machine itself (`_FIXING`): each fixes the levels
        of the accelerator and its generation as another source of runs would.
    """
    distance = np.zeros(len(known.ids))
    for name, weight in _DISTANCES.items():
        distance += weight * (known.features[name] != getattr(one, name))
    for name, weight in _DOUBLINGS.items():
        distance += weight * np.abs(np.log2(known.features[name] / getattr(one, name)))
    others = known.sources != without
    nearest = int(np.argmin(np.where(others, distance, np.inf)))
    evidence = evidence_of(one, known, without=without)
    fixed = replace(
        evidence,
        accelerator_sources=evidence.accelerator_sources + kernels,
        generation_sources=evidence.generation_sources + kernels,
    )
    sizes = variation(known, without).sizes(fixed)
    return Uncertainty(
        slower=float(np.exp(sizes.slower[0])),
        faster=float(np.exp(sizes.faster[0])),
        runs=int(others.sum()),
        nearest=known.ids[nearest],
        distance=float(distance[nearest]),
        stack_measured=bool(evidence.framework_measured[0]),
        release_sources=int(evidence.release_sources[0]),
        stack_sources=int(evidence.stack_sources[0]),
        pair_sources=int(evidence.pair_sources[0]),
        accelerator_sources=int(evidence.accelerator_sources[0]),
    )


def evidence_of(one: RunFeatures, known: ValidatedRuns, *, without: str | None = None) -> Evidence:
    """Return what validated runs have fixed for an estimate; one row."""
    columns = {column.name: np.array([getattr(one, column.name)]) for column in fields(RunFeatures)}
    return _evidence(columns, known, np.array([without or ""]))


@cache
def variation(known: ValidatedRuns, without: str | None = None) -> Variation:
    """Estimate the levels of variation of the errors of validated runs.

    Parameters
    ----------
    without
        Source that is left out, also as evidence for the runs of others.
    """
    evidence, studies = evidence_of_runs(known, without)
    rows = known.sources != without
    _, numbers = np.unique(studies[rows], return_inverse=True)
    return variation_of(known.unseen[rows], known.sources[rows], numbers, evidence.take(rows))


def left_out_sizes(known: ValidatedRuns) -> Sides:
    """Sizes of the interval of each validated run with its own source left out.

    Errors of log time that a tenth of such runs exceed on each side.
    """
    evidence, _ = evidence_of_runs(known)
    slower, faster = np.empty(len(known.ids)), np.empty(len(known.ids))
    for source in np.unique(known.sources):
        rows = known.sources == source
        found = variation(known, str(source)).sizes(evidence.take(rows))
        slower[rows], faster[rows] = found
    return Sides(slower=slower, faster=faster)


@cache
def evidence_of_runs(known: ValidatedRuns, without: str | None = None) -> tuple[Evidence, Ints]:
    """What each prediction rested on with its own source left out, and the numbers of studies.

    Runs of a study have one source and the same evidence.

    Parameters
    ----------
    without
        Another source that is left out.
    """
    names = ("stack", "accelerator", "experts", "assumed", "eager", "adapters")
    keys = list(zip(known.sources, *(known.features[name] for name in names), strict=True))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    evidence = _evidence(known.features, known, known.sources, without)
    return evidence, np.array([numbers[key] for key in keys])


def _evidence(
    features: Mapping[str, NDArray[Any]],
    known: ValidatedRuns,
    own: NDArray[np.str_],
    without: str | None = None,
) -> Evidence:
    """Evidence for runs by their features, each with its own source left out, and another."""

    def counts(name: str) -> Ints:
        found = _sources_by(known, name)
        pairs = zip(features[name].tolist(), own.tolist(), strict=True)
        return np.array([len(found.get(v, frozenset()) - {s, without}) for v, s in pairs])

    return Evidence(
        **{name: features[name] for name in ("experts", "assumed", "eager", "adapters", "tuned")},
        framework_measured=counts("framework") > 0,
        release_sources=counts("stack"),
        stack_sources=counts("software"),
        pair_sources=counts("pair"),
        accelerator_sources=counts("accelerator"),
        generation_sources=counts("generation"),
    )


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

    Of the runs of dense models without assumptions, in stock trainers with fused kernels, the
    median of each; see `variation`.
    """
    known = validated_runs()
    found, (evidence, _) = variation(known), evidence_of_runs(known)
    plain = ~(evidence.experts | evidence.assumed | evidence.eager | evidence.adapters)
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
    host: AssumedHost | None = None,
    kernels: Iterable[MixerKernels] = (),
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
    host
        Host that is assumed (`assumed_host`), with times of this step.
    kernels
        Kernels of mixers in this step (`mixer_kernels`).
    """
    if not strategy.training:
        return None
    measured = system.measured
    kinds = () if measured is None else tuple(map(str, measured.errors))
    found = uncertainty_of(
        run_features(model, system, strategy, counted=counted),
        validated_runs(),
        kernels=sum(kind in _FIXING for kind in kinds),
    )
    faster, slower = widened(found.faster, unmeasured), widened(found.slower, unmeasured)
    for one in (network, host):
        if one is not None:
            faster = joined(faster, step_s / one.faster_step_s)
            slower = joined(slower, one.slower_step_s / step_s)
    kernels_spread = spread_of(kernels)
    return Interval(
        low_s=step_s / joined(faster, kernels_spread),
        high_s=step_s * joined(slower, kernels_spread),
        level=LEVEL,
        runs=found.runs,
        nearest=found.nearest,
        distance=found.distance,
        stack_measured=found.stack_measured,
        release_sources=found.release_sources,
        stack_sources=found.stack_sources,
        pair_sources=found.pair_sources,
        accelerator_sources=found.accelerator_sources,
        measured=kinds,
        measured_on="" if measured is None else measured.on.isoformat(),
    )


def joined(factor: float, other: float) -> float:
    """Return the range of two independent errors of log time; the second is at least 1."""
    return math.exp(math.hypot(math.log(factor), math.log(max(other, 1.0))))


def widened(factor: float, unmeasured: int) -> float:
    """Return a side of the error range of an estimate with features that no measured run used.

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
