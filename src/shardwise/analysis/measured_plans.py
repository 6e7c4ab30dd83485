"""Measured training runs as plans: the nearest to a plan, and the best of a model and machine."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise import catalog
from shardwise.analysis import Result
from shardwise.analysis.validated_runs import RunFeatures, run_features
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import DEGREES
from shardwise.config.system import System
from shardwise.ops.param_count import count_parameters
from shardwise.records import dataclass

_FILE = "plans.json"
LAYOUT = (*(name for name in DEGREES if name not in ("tp2", "etp")), "micro_batch_size", "zero")
"""Fields of the strategy of a measured plan."""
# Distances between plans, which add up: a relative of the model is further away than another
# machine. Chosen, not fitted.
_DIFFERENT = {"experts": 8.0, "adapters": 4.0, "generation": 1.0, "system": 0.4, "precision": 0.8}
_DOUBLINGS = {"active": 2.0, "parameters": 1.0, "seq_len": 0.2, "gpus": 0.1}
_LAYOUT_DOUBLING = 0.05
# Largest ratio of active parameters, and of all, of a relative of a model.
_RELATIVE = 2.0
_SAME = 0.01
"""Models of one depth and width whose parameters differ by less are the same."""


class MeasuredPlan(Result):
    """A plan that was measured."""

    id: str
    """Of the run in `shardwise validate runs`."""
    source: str
    model: str
    system: str
    generation: str
    precision: str
    gpus: int
    global_batch_size: int
    seq_len: int
    step_time_s: float
    """As measured [s]."""
    tokens_per_s_per_gpu: float
    mfu: float
    layout: Mapping[str, int]
    """Degrees, chunks, micro-batch and ZeRO stage."""
    same_model: bool
    """Whether it is the model of the plan, and not the nearest relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """A measured run; `tools/fit_runs.py` writes them."""

    id: str
    source: str
    model: str
    system: str
    generation: str
    precision: str
    experts: bool
    adapters: bool
    """Whether adapters alone are trained."""
    parameters: float
    active: float
    """Parameters that a token uses."""
    hidden: int
    layers: int
    gpus: int
    global_batch_size: int
    seq_len: int
    step_time_s: float
    mfu: float
    layout: tuple[int, ...]
    """Values of `LAYOUT`."""

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        strategy: Strategy,
        *,
        name: str = "",
        source: str = "",
        step_time_s: float = 1.0,
        mfu: float = 1.0,
    ) -> "MeasuredRow":
        """Return a plan as such a row; its strategy has all fields filled in."""
        features: RunFeatures = run_features(model, system, strategy)
        return cls(
            id=name,
            source=source,
            model=model.name,
            system=system.name,
            generation=features.generation,
            precision=features.precision,
            experts=model.has_experts,
            adapters=features.adapters,
            parameters=features.parameters,
            active=float(count_parameters(model).active),
            hidden=model.hidden,
            layers=model.depth,
            gpus=features.gpus,
            global_batch_size=int(strategy.global_batch_size or 1),
            seq_len=features.seq_len,
            step_time_s=step_time_s,
            mfu=mfu,
            layout=tuple(int(getattr(strategy, field) or 1) for field in LAYOUT),
        )

    def is_model_of(self, other: "MeasuredRow") -> bool:
        """Whether two plans are of the same model."""
        shapes = (self.hidden, self.layers) == (other.hidden, other.layers)
        return shapes and abs(self.parameters / other.parameters - 1) < _SAME

    def plan(self, other: "MeasuredRow") -> MeasuredPlan:
        """Return it as a plan, next to another one."""
        tokens = self.global_batch_size * self.seq_len
        names = {*MeasuredRow.__slots__} & MeasuredPlan.model_fields.keys() - {"layout"}
        return MeasuredPlan(
            **{name: getattr(self, name) for name in names},
            tokens_per_s_per_gpu=tokens / self.step_time_s / self.gpus,
            layout=dict(zip(LAYOUT, self.layout, strict=True)),
            same_model=self.is_model_of(other),
        )


@cache
def measured_plans() -> tuple[MeasuredRow, ...]:
    """Return the measured runs of grades A and B that come with shardwise."""
    path = Path(catalog.__file__).parent / "fit" / _FILE
    names, *rows = json.loads(path.read_text(encoding="utf-8"))
    return tuple(_row(dict(zip(names, row, strict=True))) for row in rows)


def _row(values: dict[str, Any]) -> MeasuredRow:
    return MeasuredRow(**(values | {"layout": tuple(values["layout"])}))


def nearest_measured(plan: MeasuredRow) -> MeasuredPlan:
    """Return the measured plan that is most similar; of equal ones that with the highest MFU."""
    columns = _columns()
    distance = np.zeros(len(measured_plans()))
    for name, weight in _DIFFERENT.items():
        distance += weight * (columns[name] != getattr(plan, name))
    for name, weight in _DOUBLINGS.items():
        distance += weight * np.abs(np.log2(getattr(plan, name) / columns[name]))
    own = np.maximum(np.array(plan.layout), 1) / np.maximum(columns["layout"], 1)
    distance += np.sum(_LAYOUT_DOUBLING * np.abs(np.log2(own)), axis=1)
    least = np.lexsort((-columns["mfu"], distance))[0]
    return measured_plans()[int(least)].plan(plan)


@cache
def _columns() -> dict[str, NDArray[Any]]:
    """What distances read of the measured runs."""
    names = (*_DIFFERENT, *_DOUBLINGS, "mfu", "layout")
    return {n: np.array([getattr(row, n) for row in measured_plans()]) for n in names}


def best_measured(
    plan: MeasuredRow, known: Sequence[MeasuredRow] | None = None
) -> MeasuredPlan | None:
    """Return the run with the highest MFU of the model, precision and accelerator generation.

    If the model has none, of its nearest relative: of the same kind, with parameters and active
    parameters of at most twice or at least half. None if there is none.
    """
    rows = [
        row
        for row in (measured_plans() if known is None else known)
        if (row.experts, row.adapters) == (plan.experts, plan.adapters)
        and (row.generation, row.precision) == (plan.generation, plan.precision)
    ]
    own = [row for row in rows if row.is_model_of(plan)]
    if not own:
        sizes = {
            row.id: max(
                abs(log2(row.active / plan.active)), abs(log2(row.parameters / plan.parameters))
            )
            for row in rows
        }
        least = min(sizes.values(), default=_RELATIVE)
        relative = next((row for row in rows if sizes[row.id] == least), None)
        if relative is None or least > log2(_RELATIVE):
            return None
        own = [row for row in rows if row.is_model_of(relative)]
    return max(own, key=lambda row: row.mfu).plan(plan)
