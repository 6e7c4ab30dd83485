"""Prediction intervals of the peak memory, from the errors of measured peaks.

Sources measure what tensors allocate (torch.cuda.max_memory_allocated), or what the accelerator
must have: what the allocator reserves, or all that nvidia-smi shows. No figure of the memory model
is fitted, but the rows were known when it was written, and what a framework keeps was chosen in
view of its runs. So the peaks of a source are predicted without a stack that rests on it alone, as
times are (tools/catalog_fit/unseen.py). The error of log memory has the variance

    V = source + reserved + eager + adapters + stack / (1 + n) + software

with n sources that measured the memory of the same software; `reserved`, `eager` and `adapters`
count where they apply, `software` where no memory of the framework was measured. All is estimated
as for times (`analysis.variation`), with one vote for each source.
"""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise import catalog
from shardwise.analysis.results import Memory, MemoryInterval
from shardwise.analysis.validated_runs import framework_of, is_eager, software_of
from shardwise.analysis.variation import (
    LEVEL,
    NORMAL_QUANTILE,
    components_with_priors,
    counts,
    side_quantiles,
)
from shardwise.arrays import Bools, Floats
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.records import dataclass

_FILE = "memory.json"
# Levels, each with its standard deviation before any run was looked at. Releases of one framework
# keep other copies, and allocators have other slack: about 10 %. States in 16 or 32 bits and whole
# or chunked logits, which frameworks choose, are 10 to 40 %.
_LEVELS = {
    "source": 0.05,
    "reserved": 0.08,
    "eager": 0.05,
    "adapters": 0.05,
    "stack": 0.1,
    "software": 0.25,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFeatures:
    """What the spread of a predicted peak depends on."""

    reserved: bool
    """Whether it is of all that the accelerator must have, or of tensors alone."""
    framework: str
    software: str
    eager: bool
    """Whether the software runs some element-wise operations as separate kernels."""
    adapters: bool
    """Whether adapters alone are trained."""

    @classmethod
    def of(cls, stack: Stack, strategy: Strategy, *, reserved: bool) -> "MemoryFeatures":
        """Features of the peak of a strategy."""
        return cls(
            reserved=reserved,
            framework=framework_of(stack.name),
            software=software_of(stack.name),
            eager=is_eager(stack),
            adapters=strategy.lora_rank is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryRuns:
    """Measured peaks as columns."""

    sources: NDArray[np.str_]
    errors: Floats
    """log predicted - log measured."""
    features: Mapping[str, NDArray[Any]]
    """By the fields of `MemoryFeatures`."""

    def take(self, rows: Bools) -> "MemoryRuns":
        """Some of the peaks."""
        some = {name: column[rows] for name, column in self.features.items()}
        return MemoryRuns(sources=self.sources[rows], errors=self.errors[rows], features=some)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpread:
    """Variances of errors of log memory by level, and deviations that a tenth exceed by side."""

    levels: dict[str, float]
    more: float
    """On the side of peaks above the prediction."""
    less: float
    """On the side of peaks below the prediction."""

    def sizes(self, parts: Floats) -> tuple[Floats, Floats]:
        """Errors of log memory that a tenth of peaks exceed: above and below the prediction."""
        deviation = np.sqrt(parts @ np.array(list(self.levels.values())))
        return self.more * deviation, self.less * deviation


@cache
def memory_runs() -> MemoryRuns:
    """Return the measured peaks that come with shardwise; `tools/fit_runs.py` writes them."""
    path = Path(catalog.__file__).parent / "fit" / _FILE
    names, *rows = json.loads(path.read_text(encoding="utf-8"))
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return MemoryRuns(
        sources=np.array(columns.pop("source"), dtype=np.str_),
        errors=np.array(columns.pop("error"), dtype=np.float64),
        features={name: np.array(columns[name]) for name in MemoryFeatures.__dataclass_fields__},
    )


def levels_of(features: Mapping[str, NDArray[Any]], known: MemoryRuns, own: Any = "") -> Floats:
    """How much of each level is in predictions; shape (n, levels).

    Parameters
    ----------
    features
        Columns by the fields of `MemoryFeatures`.
    own
        Source of each prediction, which is no evidence for it.
    """
    names = features["software"]

    def sources(name: str) -> NDArray[np.int64]:
        same = features[name][:, np.newaxis] == known.features[name]
        other = np.broadcast_to(own, len(names))[:, np.newaxis] != known.sources
        return np.array([len(set(known.sources[row])) for row in same & other])

    columns = [
        np.ones(len(names)),
        *(features[name] for name in ("reserved", "eager", "adapters")),
        1 / (1 + sources("software")),
        sources("framework") == 0,
    ]
    return np.stack(columns, axis=-1).astype(np.float64)


@cache
def memory_spread(known: MemoryRuns) -> MemorySpread:
    """Estimate the levels of the errors of measured peaks."""
    parts = levels_of(known.features, known, known.sources)
    votes = 1 / counts(known.sources)
    variances = components_with_priors(known.errors**2, parts, votes, _LEVELS)
    more, less = side_quantiles(known.errors / np.sqrt(parts @ variances), known.sources)
    scale = ((more + less) / 2 / NORMAL_QUANTILE) ** 2
    levels = dict(zip(_LEVELS, (scale * variances).tolist(), strict=True))
    return MemorySpread(levels=levels, more=more / scale**0.5, less=less / scale**0.5)


def left_out_memory_sizes(known: MemoryRuns) -> tuple[Floats, Floats]:
    """Sizes of the interval of each measured peak with its own source left out."""
    more, less = np.empty(len(known.errors)), np.empty(len(known.errors))
    for source in np.unique(known.sources):
        rows = known.sources == source
        others = known.take(~rows)
        parts = levels_of(known.take(rows).features, others)
        more[rows], less[rows] = memory_spread(others).sizes(parts)
    return more, less


def memory_interval_of(memory: Memory, system: System, strategy: Strategy) -> MemoryInterval:
    """Range of the measured peak of a stage's memory."""
    stack, known = strategy.loaded_stack(system), memory_runs()
    both = [MemoryFeatures.of(stack, strategy, reserved=one) for one in (False, True)]
    names = MemoryFeatures.__dataclass_fields__
    parts = levels_of({name: np.array([getattr(o, name) for o in both]) for name in names}, known)
    more, less = memory_spread(known).sizes(parts)
    same = known.sources[known.features["software"] == both[0].software]
    return MemoryInterval(
        total_low=memory.total / math.exp(less[0]),
        total_high=memory.total * math.exp(more[0]),
        reserved_low=memory.reserved / math.exp(less[1]),
        reserved_high=memory.reserved * math.exp(more[1]),
        level=LEVEL,
        runs=len(known.errors),
        stack_sources=len(set(same)),
    )
