"""How far off an estimate may be: errors of the measured runs that are most like it.

Each validated run is kept with what describes it and with its error of log time, predicted with
its own source left out of every fit. The interval of an estimate is that of the runs near it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise import catalog
from shardwise.analysis.results import Interval
from shardwise.arrays import Floats
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.ops.param_count import Parameters, count_parameters
from shardwise.ops.quantization import RECIPES

__all__ = [
    "LEVEL",
    "Described",
    "Levels",
    "Spread",
    "Validated",
    "describe",
    "interval_of",
    "levels",
    "rests_on",
    "spread_of",
    "told_apart",
    "validated_runs",
]

LEVEL = 0.8
"""Part of runs that an interval is to hold."""

# What tells runs apart, as distances that add up: a mixture of experts is another thing than a
# dense model; another generation of accelerators or another framework nearly so; sizes count by
# their doublings. Declared, not fitted.
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
# Leaving a whole source out is harder on a model than a run of a known kind is: intervals that hold
# 80 % of the left-out errors of grade A hold 90 % of those of runs that took part in the fit. These
# hold 75 and 86 %.
_NARROWER = 0.8
_FILE = "left_out.json"
# Runs that say what a study's level is; half of a normal distribution is nearer than this many
# standard deviations.
_LEAST_RUNS = 3
_HALF_OF_NORMAL = 0.6745

_FRAMEWORKS = {"nemo": "megatron", "deepseek": "megatron", "automodel": "torchtitan"}
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
class Described:
    """What says how like two runs are."""

    experts: bool
    accelerator: str
    """Name of the system."""
    generation: str
    framework: str
    precision: str
    assumed: bool
    """Whether something that matters was not told."""
    gpus: int
    parameters: float
    seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """Runs that were predicted and measured, as columns."""

    ids: tuple[str, ...]
    sources: NDArray[np.str_]
    described: Mapping[str, NDArray[Any]]
    """By the fields of `Described`."""
    errors: Floats
    """log predicted - log measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far an estimate may be off."""

    factor: float
    """The measured time is expected between the predicted one over this and times this."""
    runs: int
    """Validated runs that say so."""
    nearest: str
    """The one most like it."""
    distance: float
    """How unlike that is: 0 equal in all that counts, below 1 the same kind of run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Standard deviations of errors of log time, of runs that were measured alike."""

    between: float
    """Of the levels of studies, each on one accelerator: servers, releases, what all its runs
    share."""
    within: float
    """Of the runs of a study about its level."""
    studies: int


def describe(
    model: Model,
    system: System,
    strategy: Strategy,
    *,
    assumed: bool = False,
    counted: Parameters | None = None,
) -> Described:
    """What says how like others an estimate is; of a strategy with its defaults filled in.

    Parameters
    ----------
    assumed
        Whether something that matters was not told.
    counted
        The model's parameters, if they are counted already.
    """
    stack = strategy.stack.name if isinstance(strategy.stack, Stack) else strategy.stack
    framework = stack.split("-")[0]
    return Described(
        experts=model.has_experts,
        accelerator=system.name,
        generation=next((g for name, g in _GENERATIONS.items() if name in system.name), "other"),
        framework=_FRAMEWORKS.get(framework, framework),
        precision=_PRECISIONS.get(strategy.quantization, strategy.dtype),
        assumed=assumed,
        gpus=strategy.gpus or 1,
        parameters=float((counted or count_parameters(model)).total),
        seq_len=strategy.seq_len or model.seq_len or 1,
    )


@cache
def validated_runs() -> Validated:
    """Return the runs that come with shardwise, with their errors."""
    path = Path(catalog.__file__).parent / "fit" / _FILE
    heads, *rows = json.loads(path.read_text(encoding="utf-8"))
    columns = dict(zip(heads, zip(*rows, strict=True), strict=True))
    return Validated(
        ids=columns["id"],
        sources=np.array(columns["source"], dtype=np.str_),
        described={column.name: np.array(columns[column.name]) for column in fields(Described)},
        errors=np.array(columns["error"], dtype=np.float64),
    )


def spread_of(one: Described, known: Validated, *, without: str | None = None) -> Spread:
    """How far an estimate may be off, from the validated runs most like it.

    The weighted quantile of the sizes of their errors, weights falling with the distance d as
    exp(-d / reach).

    Parameters
    ----------
    without
        Source whose runs do not count.
    """
    distance = np.zeros(len(known.ids))
    for name, weight in _DISTANCES.items():
        distance += weight * (known.described[name] != getattr(one, name))
    for name, weight in _DOUBLINGS.items():
        distance += weight * np.abs(np.log2(known.described[name] / getattr(one, name)))
    allowed = known.sources != without
    order = np.argsort(np.where(allowed, distance, np.inf), kind="stable")
    nearest = order[: min(_NEIGHBOURS, int(allowed.sum()))]
    size = _quantile(np.abs(known.errors[nearest]), np.exp(-distance[nearest] / _REACH))
    return Spread(
        factor=float(np.exp(_NARROWER * size)),
        runs=len(nearest),
        nearest=known.ids[nearest[0]],
        distance=float(distance[nearest[0]]),
    )


@cache
def levels() -> Levels:
    """How far the levels of validated runs spread, and the runs of a study about its level.

    Of studies with three runs or more on one accelerator, of one kind, of which nothing was
    assumed. Medians over the studies, so that one which is far off says no more than others: for
    the first, of the sizes of the levels over 0.67, as of a normal distribution.
    """
    known = validated_runs()
    described = known.described
    kinds = zip(known.sources, described["accelerator"], described["experts"], strict=True)
    groups: dict[Any, list[float]] = {}
    for place, key in enumerate(kinds):
        if not described["assumed"][place]:
            groups.setdefault(key, []).append(known.errors[place])
    studies = [np.array(errors) for errors in groups.values() if len(errors) >= _LEAST_RUNS]
    return Levels(
        between=float(np.median([abs(np.median(errors)) for errors in studies]) / _HALF_OF_NORMAL),
        within=float(np.median([errors.std(ddof=1) for errors in studies])),
        studies=len(studies),
    )


@cache
def told_apart() -> float:
    """Least ratio of two times of one model on one machine that measurements can tell apart.

    Of pairs of validated runs of one source, model, machine and precision of which nothing was
    assumed, and whose common errors cancel: `LEVEL` of their ratios are predicted this well.
    """
    known = validated_runs()
    alike = ("accelerator", "framework", "precision", "parameters", "seq_len")
    keys = zip(known.sources, *(known.described[name] for name in alike), strict=True)
    groups: dict[Any, list[int]] = {}
    for place, key in enumerate(keys):
        if not known.described["assumed"][place]:
            groups.setdefault(key, []).append(place)
    gaps = []
    for places in groups.values():
        errors = known.errors[places]
        apart = np.abs(errors[:, np.newaxis] - errors)
        gaps.append(apart[np.triu_indices(len(errors), 1)])
    each = np.concatenate(gaps)
    # A study of many runs has most pairs, but is one study.
    weights = np.concatenate([np.full(len(gap), 1 / max(len(gap), 1) ** 0.5) for gap in gaps])
    return float(np.exp(_quantile(each, weights)))


def interval_of(
    model: Model,
    system: System,
    strategy: Strategy,
    step_s: float,
    counted: Parameters | None = None,
) -> Interval | None:
    """What the measured time of a step may be; None forward only.

    Parameters
    ----------
    counted
        The model's parameters, if they are counted already.
    """
    if not strategy.training:
        return None
    spread = spread_of(describe(model, system, strategy, counted=counted), validated_runs())
    return Interval(
        low_s=step_s / spread.factor,
        high_s=step_s * spread.factor,
        level=LEVEL,
        runs=spread.runs,
        nearest=spread.nearest,
        distance=spread.distance,
    )


def rests_on(system: System, strategy: Strategy, tiers: Mapping[str, int]) -> dict[str, str]:
    """Origin of the rates of each kind of operation, and of the exchanges of each axis.

    Parameters
    ----------
    tiers
        Outermost network tier of each axis that exchanges.
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
    found = {name: system.source_of(place) for name, place in places.items()}
    return {name: "assumed" if one is None else one.kind for name, one in found.items()}


def _quantile(sizes: Floats, weights: Floats) -> float:
    """Smallest size that `LEVEL` of the weight is not above."""
    order = np.argsort(sizes)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(sizes[order][np.searchsorted(reached, LEVEL)])
