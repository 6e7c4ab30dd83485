"""Joint classes of features of plans, and how far measured runs of a class are from predictions.

Features interact: overlap of expert communication with CUDA graphs was measured, without them it
was predicted far too fast. So evidence is counted by class: the combination of what the errors of
mixtures of experts depend on most (`PlanClass`). The error of log time of a configuration is

    error = class + configuration

with a deviation of its class of variance b (between classes), and one of its own of variance w
(within), each estimated from all classes of dense models, or of mixtures of experts. Of n measured
configurations of a class with mean error m, the posterior of its deviation has

    mean = m n b / (n b + w),    variance = b / (1 + n b / w)

A plan is expected to take longer than predicted by the factor exp(-mean), and in 8 of 10 cases no
longer than exp(-mean + z s) times the prediction, with z = `Z` and s the standard deviation of the
class. A class that was measured faster than predicted gets no credit: there -mean counts as 0. What
plans of one search have in common (model, machine, software) is not in it.

References
----------
.. [1] C. Morris, Parametric empirical Bayes inference, JASA 78 (1983), section 1: the posterior.
.. [2] W. Cochran, The combination of estimates from different experiments, Biometrics 10 (1954):
   the variance between classes, from that of their means.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import catalog
from shardwise.arrays import Floats, Ints
from shardwise.config.enums import ZERO_GRADIENTS, CudaGraphs, Dispatcher
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.records import astuple, dataclass, fields

LEVEL = 0.8
"""Share of plans that take no longer than the quantile."""
Z = 0.8416
"""`LEVEL` of a normal distribution lies below so many standard deviations."""
_FILE = "classes.json"
_KINDS = ("dense", "experts")
_DISPATCHERS = (None, *Dispatcher)
_FLAGS = 5
# Rounds of the weights of classes; they converge in a few.
_ROUNDS = 50
# Least variance between classes: a deviation of 0.1 %.
_LEAST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanClass:
    """A combination of features."""

    experts: bool
    """A mixture of experts."""
    dispatcher: str | None
    """None where no tokens are sent to experts of other ranks."""
    overlap: bool
    """Communication of experts behind the compute of another micro-batch."""
    graphs: bool
    """CUDA graphs of layers or of the step."""
    pipeline: bool
    sharded: bool
    """ZeRO-2 or ZeRO-3."""
    beyond: bool
    """A group of experts that is larger than the innermost domain of the network."""

    @classmethod
    def of_code(cls, code: int) -> "PlanClass":
        """Return the class of one of `class_codes`."""
        kind, flags = divmod(code, 1 << _FLAGS)
        experts, dispatcher = divmod(kind, len(_DISPATCHERS))
        word = _DISPATCHERS[dispatcher]
        values = (bool(flags >> shift & 1) for shift in reversed(range(_FLAGS)))
        names = ("overlap", "graphs", "pipeline", "sharded", "beyond")
        return cls(
            experts=bool(experts),
            dispatcher=None if word is None else str(word),
            **dict(zip(names, values, strict=True)),
        )

    @property
    def code(self) -> int:
        """Its number."""
        words = [None if one is None else str(one) for one in _DISPATCHERS]
        found = self.experts * len(words) + words.index(self.dispatcher)
        for flag in (self.overlap, self.graphs, self.pipeline, self.sharded, self.beyond):
            found = found * 2 + flag
        return found

    @property
    def in_words(self) -> str:
        """Its features: "hybridep, expert overlap, CUDA graphs, pipeline"."""
        named = {
            "expert overlap": self.overlap,
            "CUDA graphs": self.graphs,
            "pipeline": self.pipeline,
            "ZeRO 2 or 3": self.sharded,
            "experts beyond the innermost domain": self.beyond,
        }
        words = [self.dispatcher] if self.dispatcher else []
        words += [name for name, has in named.items() if has]
        return ", ".join(words) or "none of the features that make a class"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassEvidence:
    """What measured runs say of each class, by its code."""

    shift: Floats
    """Expected log of measured over predicted time, at least 0."""
    deviation: Floats
    """Standard deviation of that."""
    configurations: Ints
    """Measured configurations, each once."""

    def quantile_factor(self) -> Floats:
        """Return the quantile `LEVEL` of measured over predicted time, by class."""
        return np.exp(self.shift + Z * self.deviation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassErrors:
    """Measured runs of a class; `tools/fit_runs.py` writes them."""

    configurations: int
    sources: int
    error: float
    """Mean of log predicted - log measured of its sources."""


def class_codes(model: Model, system: System, table: Table) -> Ints:
    """Return the code of the class of each row."""
    experts = np.full(len(table), model.has_experts)
    sends = experts & (table.ep * table.etp > 1)
    domain = system.network[0].domain if system.network else None
    found = experts * len(_DISPATCHERS) + np.where(sends, 1 + table.dispatcher, 0)
    for flag in (
        sends & table.overlaps_experts,
        table.graphs != CudaGraphs.NONE.code,
        table.pp > 1,
        table.zero >= ZERO_GRADIENTS,
        sends & (table.ep * table.etp > (domain or np.inf)),
    ):
        found = found * 2 + flag
    codes: Ints = found
    return codes


def evidence_from(
    classes: Mapping[PlanClass, ClassErrors], variances: Mapping[str, tuple[float, float]]
) -> ClassEvidence:
    """Return the posterior of the deviation of each class.

    Parameters
    ----------
    variances
        Within and between classes, by `dense` and `experts`.
    """
    size = len(_KINDS) * len(_DISPATCHERS) << _FLAGS
    configurations, error = np.zeros(size, dtype=np.int64), np.zeros(size)
    for one, measured in classes.items():
        configurations[one.code] = measured.configurations
        error[one.code] = measured.error
    kind = np.arange(size) // (size // len(_KINDS))
    within, between = np.array([variances[name] for name in _KINDS]).T[:, kind]
    share = configurations * between / (configurations * between + within)
    return ClassEvidence(
        shift=np.maximum(-share * error, 0.0),
        deviation=np.sqrt(between / (1 + configurations * between / within)),
        configurations=configurations,
    )


@cache
def class_evidence() -> ClassEvidence:
    """Return what the measured runs that come with shardwise say of each class."""
    path = Path(catalog.__file__).parent / "fit" / _FILE
    table = json.loads(path.read_text(encoding="utf-8"))
    width = len(fields(PlanClass))
    names, *rows = table["classes"]
    classes = {
        PlanClass(**dict(zip(names[:width], row[:width], strict=True))): ClassErrors(
            **dict(zip(names[width:], row[width:], strict=True))
        )
        for row in rows
    }
    return evidence_from(
        classes, {kind: (each["within"], each["between"]) for kind, each in table["kinds"].items()}
    )


def class_table(
    runs: Sequence[tuple[PlanClass, str, object, float]],
) -> dict[str, Any]:
    """Return errors by class, and their variances within and between classes, as in the file.

    Parameters
    ----------
    runs
        Class, source, configuration and error of each run.
    """
    each: dict[tuple[PlanClass, str, object], list[float]] = {}
    for one, source, configuration, error in runs:
        each.setdefault((one, source, configuration), []).append(error)
    means = [(one, source, float(np.mean(errors))) for (one, source, _), errors in each.items()]
    means.sort(key=lambda row: (row[0].code, row[1]))
    by_class = {one: list(some) for one, some in groupby(means, key=lambda row: row[0])}
    names = [*(f.name for f in fields(PlanClass)), *(f.name for f in fields(ClassErrors))]
    rows: list[list[Any]] = [names]
    for one, some in by_class.items():
        by_source = [
            float(np.mean([error for _, _, error in group]))
            for _, group in groupby(some, key=lambda row: row[1])
        ]
        error = round(float(np.mean(by_source)), 4)
        rows.append([*astuple(one), len(some), len(by_source), error])
    kinds = {
        kind: _variances([[e for *_, e in some] for c, some in by_class.items() if c.experts == at])
        for at, kind in enumerate(_KINDS)
    }
    return {"kinds": kinds, "classes": rows}


def _variances(errors: Sequence[Sequence[float]]) -> dict[str, float]:
    """Variances within and between classes, from the errors of the configurations of each.

    Those between are what the squares of the means of classes have beyond within / n. A class
    weighs by the inverse of the variance of its mean; the weights and the variance follow from each
    other.
    """
    number = np.array([len(some) for some in errors])
    mean = np.array([np.mean(some) for some in errors])
    squares = sum(float(np.sum((np.array(some) - np.mean(some)) ** 2)) for some in errors)
    within = squares / max(int((number - 1).sum()), 1)
    between = within
    for _ in range(_ROUNDS):
        weight = 1 / (between + within / number)
        excess = float(np.sum(weight * (mean**2 - within / number)) / weight.sum())
        between = max(excess, _LEAST)
    return {"within": round(within, 6), "between": round(between, 6)}
