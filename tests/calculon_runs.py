"""Our own runs of Calculon 0.1.0, and the same runs in our model (see data/calculon/README.md)."""

import copy
import gzip
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from shardwise import Estimate, InputError, Model, estimate
from shardwise.predecessors.calculon.files import CalculonModel, CalculonSystem

DATA = Path(__file__).parent / "data/calculon"
RUNS: dict[str, Any] = json.loads(gzip.decompress((DATA / "runs.json.gz").read_bytes()))
README: dict[str, Any] = next(case for case in RUNS["cases"] if case["id"] == "readme_example")
FEASIBLE: list[dict[str, Any]] = [case for case in RUNS["cases"] if "stats" in case]


def system_of(case: dict[str, Any]) -> dict[str, Any]:
    """Calculon's system file of a run, with what the run changes in it."""
    data: dict[str, Any] = json.loads(json.dumps(RUNS["systems"][case["system"]]))
    for path, value in case.get("overrides", {}).items():
        *parents, last = path.split(".")
        target = data
        for key in parents:
            target = target[key]
        target[last] = value
    return data


def write_files(folder: Path, **changed: Callable[[Any], object]) -> dict[str, Path]:
    """Write Calculon's model, system and execution of its README, changed as a test likes."""
    data = {
        "model": copy.deepcopy(RUNS["models"][README["model"]]),
        "system": system_of(README),
        "execution": copy.deepcopy(README["execution"]),
    }
    for kind, change in changed.items():
        change(data[kind])
    paths = {kind: folder / f"{kind}.json" for kind in data}
    for kind, path in paths.items():
        path.write_text(json.dumps(data[kind]))
    return paths


def model_of(case: dict[str, Any], bias: str = "all") -> Model:
    """Calculon's model file of a run as ours, with its biases or without."""
    model = Model.load(RUNS["models"][case["model"]])
    if bias == "all":
        return model
    layer = model.to_dict()["layers"][0]
    layer["attention"]["bias"], layer["mlp"]["bias"] = "none", False
    return Model.validated(model.to_dict() | {"layers": [layer]})


def ours(case: dict[str, Any], bias: str = "all") -> Estimate:
    """Estimate a run in our model."""
    return estimate(model_of(case, bias), system_of(case), case["execution"])


Pair = tuple[dict[str, Any], dict[str, float | None], Estimate]
"""A run: the case, Calculon's statistics, and ours."""


@cache
def float8() -> list[Pair]:
    """Every feasible run in float8."""
    return [
        (case, dict(zip(RUNS["stat_fields"], case["stats"], strict=True)), ours(case))
        for case in FEASIBLE
        if case["execution"]["datatype"] == "float8"
    ]


@cache
def pairs() -> list[Pair]:
    """Every feasible run that our model takes.

    Without float8, which has one byte for everything in Calculon and for products only here.
    """
    found = []
    for case in FEASIBLE:
        if case["execution"]["datatype"] == "float8":
            continue
        statistics = dict(zip(RUNS["stat_fields"], case["stats"], strict=True))
        try:
            found.append((case, statistics, ours(case)))
        except InputError:
            continue
    return found


def calculon_model(name: str) -> CalculonModel:
    """One of its models, typed."""
    return CalculonModel.parse(RUNS["models"][name])


@cache
def _calculon_system(name: str, overrides: str) -> CalculonSystem:
    changed = {"system": name, "overrides": json.loads(overrides)}
    return CalculonSystem.parse(system_of(changed))


def calculon_system(name: str, overrides: Mapping[str, Any] | None = None) -> CalculonSystem:
    """One of its systems, typed, with some of its fields changed."""
    return _calculon_system(name, json.dumps(overrides or {}))
