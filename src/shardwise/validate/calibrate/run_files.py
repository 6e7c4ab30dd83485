"""Measured runs of one system from a file: rows of the measured-runs schema, or a short table.

A short table (.yaml, .toml, .csv; also .gz) has for each run the model, the fields of its strategy
and `step_time_s` or `tokens_per_s_per_gpu`; in YAML and TOML under `runs`, with what all share
under `common`. JSON files hold rows of the schema (`measured.store`).
"""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from shardwise import catalog
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.validate.measured.predict import translate
from shardwise.validate.measured.refused import NotModelledError
from shardwise.validate.measured.run import Amount, Run
from shardwise.validate.measured.store import read_runs

__all__ = ["RunTime", "Unusable", "given_runs"]

_SHORT = (".yaml", ".yml", ".toml", ".csv")
_ROWS = (".json", ".jsonl")
_MEASURED = ("step_time_s", "tokens_per_s_per_gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """A run with a measured time of a step."""

    name: str
    model: Model
    strategy: Strategy
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """A run that says nothing of the system, and why."""

    name: str
    reason: str


class _Time(ConfigBase):
    """What was measured of a run: one of the two."""

    step_time_s: Amount | None = None
    tokens_per_s_per_gpu: Amount | None = None


class _Short(ConfigBase):
    """A short table."""

    common: dict[str, Any] = Field(default_factory=dict)
    runs: tuple[dict[str, Any], ...]


def given_runs(path: str | Path, system: System) -> tuple[list[RunTime], list[Unusable]]:
    """Read the runs of a file: those on a system with a time, and the others.

    Raises
    ------
    InputError
        With one fault for each thing that is wrong, which names file, run and field.
    """
    ending = Path(str(path).removesuffix(".gz")).suffix.lower()
    if ending in _ROWS:
        found = [_of_row(run, system) for run in read_runs(path)]
    elif ending in _SHORT:
        found = list(_of_short(_short_rows(path, ending), path))
    else:
        allowed = ", ".join((*_SHORT, *_ROWS))
        problem = f"cannot tell the format; allowed endings: {allowed}, each also .gz"
        raise InputError(Fault(source=str(path), problem=problem))
    usable = [one for one in found if isinstance(one, RunTime)]
    return usable, [one for one in found if isinstance(one, Unusable)]


def _of_row(run: Run, system: System) -> RunTime | Unusable:
    """A row of the schema in our words, if it ran on the system."""
    time = run.measured_step_time_s
    if time is None:
        return Unusable(name=run.id, reason="has no time of a step")
    try:
        said = translate(run)
    except NotModelledError as reason:
        return Unusable(name=run.id, reason=str(reason))
    if not _is(said.system, system):
        return Unusable(name=run.id, reason=f"ran on {said.system.name}")
    return RunTime(name=run.id, model=said.model, strategy=said.strategy, measured_s=time)


def _is(found: System, system: System) -> bool:
    """Whether a row's system is the given one: of that name, or that accelerator in one's own."""
    if system.name in catalog.names("systems"):
        return found.name == system.name
    return found.accelerator.name == system.accelerator.name


def _short_rows(path: str | Path, ending: str) -> list[dict[str, Any]]:
    """Rows of a short table, each with what all share."""
    if ending == ".csv":
        rows = csv.DictReader(io.StringIO(files.read_text(path)), restkey="", skipinitialspace=True)
        return [{key: value for key, value in row.items() if value} for row in rows]
    table = _Short.validated(files.read_mapping(path), source=str(path))
    return [{**table.common, **row} for row in table.runs]


def _of_short(rows: list[dict[str, Any]], path: str | Path) -> Iterator[RunTime | Unusable]:
    """Rows of a short table as nouns; raises with the faults of all."""
    faults: list[Fault] = []
    for number, row in enumerate(rows, start=1):
        name = str(row.get("name", f"run {number}"))
        source = f"{path}: {name}"
        try:
            yield _given({k: v for k, v in row.items() if k != "name"}, name, source)
        except InputError as error:
            faults.extend(error.faults)
    if faults:
        raise InputError(faults)


def _given(row: Mapping[str, Any], name: str, source: str) -> RunTime | Unusable:
    """One row of a short table."""
    if "model" not in row:
        raise InputError(Fault(source=source, field="model", problem="is missing"))
    times = {key: _number(row[key]) for key in _MEASURED if key in row}
    if len(times) != 1:
        problem = f"give one of {' and '.join(_MEASURED)}"
        raise InputError(Fault(source=source, field=_MEASURED[0], problem=problem))
    time = _Time.validated(times, source=source)
    fields = {key: value for key, value in row.items() if key not in ("model", *_MEASURED)}
    model = Model.load(row["model"])
    strategy = Strategy.validated(fields, source=source)
    try:
        full = strategy.resolved(model)
    except InputError as error:
        return Unusable(name=name, reason="; ".join(str(fault) for fault in error.faults))
    measured = time.step_time_s
    if measured is None:
        tokens = (full.global_batch_size or 1) * (full.seq_len or 1)
        measured = tokens / ((time.tokens_per_s_per_gpu or 1) * (full.gpus or 1))
    return RunTime(name=name, model=model, strategy=strategy, measured_s=measured)


def _number(value: object) -> object:
    """Text of a table as a number, where it is one."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
