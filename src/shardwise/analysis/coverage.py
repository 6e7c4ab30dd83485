"""What measured runs cover: model x accelerator x software x feature.

A cell is measured where a run of the model was measured on the accelerator with the software and
the feature; similar where runs of a relative of the model were, on accelerators of the same
generation with software of the same framework; else extrapolated. A relative has as many parameters
within a factor of 2, and experts if the model has. Runs are those that intervals rest on.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Literal

import numpy as np

from shardwise.analysis import Result
from shardwise.analysis.measured_plans import LAYOUT, MeasuredRow, measured_plans
from shardwise.analysis.results import Estimate
from shardwise.analysis.validated_runs import (
    framework_of,
    generation_of,
    precision_of,
    software_of,
    validated_runs,
)
from shardwise.config.enums import ZERO_WEIGHTS
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.ops.param_count import count_parameters
from shardwise.records import dataclass

Word = Literal["measured", "similar", "extrapolated"]
_SAME = 0.01
_RELATIVE = 2.0
_LONG = 8192


def _reaches(field: str, least: int) -> Callable[[MeasuredRow], bool]:
    place = LAYOUT.index(field)
    return lambda row: row.layout[place] >= least


FEATURES: Mapping[str, Callable[[MeasuredRow], bool]] = {
    "bf16": lambda row: row.precision in ("bf16", "fp16"),
    "fp8": lambda row: row.precision == "fp8",
    "mxfp8": lambda row: row.precision == "mxfp8",
    "nvfp4": lambda row: row.precision == "nvfp4",
    "tp": _reaches("tp", 2),
    "pp": _reaches("pp", 2),
    "cp": _reaches("cp", 2),
    "ep": _reaches("ep", 2),
    "ZeRO-3": _reaches("zero", ZERO_WEIGHTS),
    "adapters": lambda row: row.adapters,
    "long": lambda row: row.seq_len > _LONG,
}
"""Features of a run; bf16 or fp16; long: sequences of more than 8,192 tokens."""


class CoverageRow(Result):
    """Runs on one system with one software."""

    system: str
    software: str
    measured: Mapping[str, int]
    """Runs of the model by feature, and of all as `any`; of any model if none is named."""
    similar: Mapping[str, int]
    """Runs that are similar, without these."""

    def word(self, feature: str) -> Word:
        """How well a feature is covered."""
        if self.measured.get(feature):
            return "measured"
        return "similar" if self.similar.get(feature) else "extrapolated"


class CoverageMap(Result):
    """What measured runs cover."""

    model: str | None
    system: str | None
    runs: int
    """Runs in all."""
    rows: tuple[CoverageRow, ...]
    """Of a system or a model without a run, none."""


@dataclass(frozen=True, slots=True)
class _Run:
    row: MeasuredRow
    software: str
    framework: str
    generation: str
    features: tuple[str, ...]


@cache
def _runs() -> tuple[_Run, ...]:
    known = validated_runs()
    stacks = dict(zip(known.ids, map(str, known.features["stack"]), strict=True))
    return tuple(
        _Run(
            row=row,
            software=software_of(stacks[row.id]),
            framework=framework_of(stacks[row.id]),
            generation=generation_of(row.system),
            features=("any", *(name for name, has in FEATURES.items() if has(row))),
        )
        for row in measured_plans()
        if row.id in stacks
    )


def _related(model: Model) -> Iterator[tuple[_Run, bool]]:
    """Runs of a model, and of its relatives; whether they are of the model itself."""
    size = count_parameters(model).total
    for one in _runs():
        ratio = one.row.parameters / size
        same = abs(ratio - 1) < _SAME
        if same or (1 / _RELATIVE <= ratio <= _RELATIVE and one.row.experts == model.has_experts):
            yield one, same


def coverage(model: Model | None = None, system: System | None = None) -> CoverageMap:
    """Return what measured runs cover, of all models and systems or of one.

    Parameters
    ----------
    model
        None: runs of any model count as measured.
    system
        None: all systems with a measured or similar run.
    """
    pairs = {(one.row.system, one.software): one.framework for one in _runs()}
    if system is not None:
        pairs = {(system.name, one.software): one.framework for one in _runs()}
        pairs[system.name, software_of(system.stack)] = framework_of(system.stack)
    related = [(one, True) for one in _runs()] if model is None else list(_related(model))
    rows = []
    for (name, software), framework in pairs.items():
        measured: Counter[str] = Counter()
        similar: Counter[str] = Counter()
        for one, same in related:
            if same and (one.row.system, one.software) == (name, software):
                measured.update(one.features)
            elif (one.generation, one.framework) == (generation_of(name), framework):
                similar.update(one.features)
        if measured or similar:
            row = CoverageRow(system=name, software=software, measured=measured, similar=similar)
            rows.append(row)
    rows.sort(key=lambda row: (-row.measured.get("any", 0), -row.similar.get("any", 0)))
    return CoverageMap(
        model=None if model is None else model.name,
        system=None if system is None else system.name,
        runs=len(_runs()),
        rows=tuple(rows),
    )


def coverage_of(found: Estimate) -> tuple[Word, str]:
    """Return how well measured runs cover an estimate, and in what, as one line."""
    known, strategy = validated_runs(), found.strategy
    stack = strategy["stack"]
    stack = stack if isinstance(stack, str) else stack.get("name") or stack["base"]
    software = software_of(stack)
    precision = precision_of(strategy["dtype"], strategy["quantization"])
    columns = known.features
    adapters = strategy["lora_rank"] is not None
    parts = {
        f"of {found.model}": np.abs(columns["parameters"] / found.parameters - 1) < _SAME,
        f"on {found.system}": columns["accelerator"] == found.system,
        f"with {software}": columns["software"] == software,
        f"in {precision}": columns["precision"] == precision,
        **({"of adapters": columns["adapters"]} if adapters else {}),
    }
    parts[f"of {found.model}"] &= columns["adapters"] == adapters
    together = int(np.logical_and.reduce(list(parts.values())).sum())
    if together:
        plural = "" if together == 1 else "s"
        return "measured", f"coverage: {together} measured run{plural} {' '.join(parts)}"
    ratio = columns["parameters"] / found.parameters
    like = [
        (ratio >= 1 / _RELATIVE) & (ratio <= _RELATIVE),
        columns["experts"] == (found.active_parameters < found.parameters),
        columns["framework"] == framework_of(stack),
        columns["generation"] == generation_of(found.system),
    ]
    near = int(np.logical_and.reduce(like).sum())
    word: Word = "similar" if near else "extrapolated"
    each = ", ".join(f"{int(rows.sum()) or 'none'} {name}" for name, rows in parts.items())
    runs = f"{near or 'extrapolated, no'} similar measured run{'s' * (near > 1)}"
    return word, f"coverage: {runs}; {each}"
