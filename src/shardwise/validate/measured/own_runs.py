"""Run files: runs as a model, a system and a strategy of shardwise, with what was measured.

A file in YAML, TOML, CSV or JSON:

    common: {system: h100-sxm, stack: megatron-core-2025}
    runs:
    - id: first
      model: llama3-8b
      strategy: {gpus: 64, tp: 2, global_batch_size: 128}
      measured: {step_time_s: 4.1, memory: 61 GiB, memory_metric: allocated}

`common` has the values of all runs. Fields of the strategy and measured values may also stand in
the row itself, as in the columns of a CSV file. Nothing is translated, and nothing is assumed.
"""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shardwise.analysis.saved import kind_of_saved
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.units import Bytes, Duration, read_number
from shardwise.validate.measured.run import (
    Amount,
    Architecture,
    Hardware,
    Measured,
    OwnRun,
    Run,
    RunFault,
)

ENDINGS = (".yaml", ".yml", ".toml", ".csv")
"""Of run files; a JSON file is one if it has the key `runs`."""

_METRICS = {
    "allocated": "torch max_memory_allocated",
    "reserved": "torch max_memory_reserved",
    "device": "nvidia-smi",
}
_GIB = 2**30


class Figures(ConfigBase):
    """What was measured."""

    step_time_s: Duration | None = None
    """Time of a step, as a number of seconds or with a unit."""
    tokens_per_s_per_gpu: Amount | None = None
    memory: Bytes | None = None
    """Peak memory of the accelerator that uses the most."""
    memory_metric: Literal["allocated", "reserved", "device"] = "allocated"
    """By tensors, by the allocator, or on the device (nvidia-smi)."""


class _RunFile(ConfigBase):
    """A run file."""

    common: Mapping[str, Any] = Field(default_factory=dict)
    runs: tuple[Mapping[str, Any], ...]


def is_run_file(path: str | Path) -> bool:
    """Whether the ending of a file is one of run files."""
    return Path(str(path).removesuffix(".gz")).suffix.lower() in ENDINGS


def read_run_file(
    path: str | Path, data: Mapping[str, Any] | None = None, *, system: System | None = None
) -> tuple[Run, ...]:
    """Read a run file; a run that is not valid is a `RunFault`.

    Parameters
    ----------
    path
        The file.
    data
        Its content, if it was read already.
    system
        System of the runs that name none.

    Raises
    ------
    InputError
        If the file is no run file, or none of its runs is valid.
    """
    rows = _rows(path) if data is None else _with_common(data, path)
    if len(rows) > 1 and not any("model" in row for row in rows):
        problem = "is missing in every run"
        raise InputError(Fault(source=str(path), field="model", problem=problem))
    runs: list[Run] = []
    faults: list[Fault] = []
    names: set[str] = set()
    for number, row in enumerate(rows, start=1):
        name = str(row.get("id", row.get("name", f"run {number}")))
        source = f"{path}: {name}"
        try:
            _check_new(name, names, source)
            runs.append(_run(row, name, source, system))
        except InputError as error:
            faults.extend(_placed(fault, source) for fault in error.faults)
            runs.append(RunFault.of(name, error))
        names.add(name)
    if not runs:
        raise InputError(Fault(source=str(path), problem="holds no runs"))
    if all(isinstance(run, RunFault) for run in runs):
        raise InputError(faults)
    return tuple(runs)


def _placed(fault: Fault, source: str) -> Fault:
    """A fault with the place of its run, if it names another."""
    placed = fault.source.startswith(source)
    return (
        fault if placed else replace(fault, source=": ".join(filter(None, (source, fault.source))))
    )


def _check_new(name: str, names: Collection[str], source: str) -> None:
    if name in names:
        raise InputError(Fault(source=source, field="id", problem="is set twice"))


def _rows(path: str | Path) -> Sequence[Mapping[str, Any]]:
    """Rows of a file, each with the common values."""
    if not str(path).removesuffix(".gz").lower().endswith(".csv"):
        return _with_common(files.read_mapping(path), path)
    text = io.StringIO(files.read_text(path))
    try:
        rows = list(csv.DictReader(text, restkey="", skipinitialspace=True))
    except csv.Error as error:  # such as a very long field
        raise InputError(Fault(source=str(path), problem=f"not CSV: {error}")) from None
    return [{key: _number(value) for key, value in row.items() if value} for row in rows]


def _with_common(data: Mapping[str, Any], path: str | Path) -> Sequence[Mapping[str, Any]]:
    if (saved := kind_of_saved(data)) is not None:
        raise InputError(Fault(source=str(path), problem=saved.problem))
    file = _RunFile.validated(data, source=str(path))
    return [_merged(file.common, row) for row in file.runs]


def _merged(common: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The common values with those of a row; mappings are joined key by key."""
    joined = {
        key: {**common[key], **row[key]}
        for key in ("strategy", "measured")
        if isinstance(common.get(key), Mapping) and isinstance(row.get(key), Mapping)
    }
    return {**common, **row, **joined}


def _run(row: Mapping[str, Any], name: str, source: str, system: System | None) -> OwnRun:
    """One run."""
    for field in ("model", "system"):
        if field not in row and (field == "model" or system is None):
            raise InputError(Fault(source=source, field=field, problem="is missing"))
    measured = _figures(row, source)
    model = Model.load(row["model"])
    on = System.load(row["system"]) if "system" in row else system
    strategy = _strategy(row, source)
    full = strategy.resolved(model, on.stack if on else "unknown")
    fields = {
        "id": name,
        "group": row.get("source"),
        "grade": row.get("grade"),
        "model": Architecture(name=model.name, seq_len=full.seq_len),
        "hardware": Hardware(accelerator=on.name if on else "unknown", count=full.gpus),
        "precision": full.dtype if full.quantization == "none" else _precision(full.quantization),
        "global_batch": full.global_batch_size,
        "measured": measured,
        "own_model": model,
        "own_system": on,
        "own_strategy": strategy,
    }
    return OwnRun.validated(fields, source=source)


def _precision(quantization: str) -> str:
    return "fp8" if quantization.startswith("fp8") else quantization


def _figures(row: Mapping[str, Any], source: str) -> Measured:
    """Measured values of a row, of its section or of the row itself."""
    inline = {key: row[key] for key in Figures.model_fields if key in row}
    section = row.get("measured") or {}
    if not isinstance(section, Mapping):
        raise InputError(Fault.of("measured", section, "must be a mapping", source))
    figures = Figures.validated({**section, **inline}, source=f"{source}: measured")
    if figures.step_time_s is None and figures.tokens_per_s_per_gpu is None:
        if figures.memory is None:
            allowed = ", ".join(name for name in Figures.model_fields if name != "memory_metric")
            raise InputError(Fault(source=source, problem=f"has no measured value: {allowed}"))
    elif figures.step_time_s is not None and figures.tokens_per_s_per_gpu is not None:
        problem = "give one of step_time_s and tokens_per_s_per_gpu"
        raise InputError(Fault(source=source, field="step_time_s", problem=problem))
    reserved = figures.memory_metric == "reserved"
    gib = None if figures.memory is None else figures.memory / _GIB
    return Measured(
        step_time_s=figures.step_time_s,
        tokens_per_s_per_gpu=figures.tokens_per_s_per_gpu,
        peak_mem_gib=None if reserved else gib,
        peak_mem_reserved_gib=gib if reserved else None,
        mem_metric=_METRICS[figures.memory_metric],
    )


_KEYS = ("id", "name", "source", "grade", "model", "system", "strategy", "stack", "measured")


def _strategy(row: Mapping[str, Any], source: str) -> Strategy:
    """The strategy of a row: of its section or file, with fields of the row itself."""
    section = row.get("strategy") or {}
    fields: dict[str, Any] = (
        dict(section)
        if isinstance(section, Mapping)
        else Strategy.load(section).model_dump(exclude_unset=True)
    )
    inline = {k: v for k, v in row.items() if k not in (*_KEYS, *Figures.model_fields)}
    for twice in sorted(fields.keys() & {*inline, *row.keys() & {"stack"}}):
        raise InputError(Fault(source=source, field=twice, problem="is set twice"))
    if "stack" in row:
        inline["stack"] = row["stack"]
    # It ran, whatever its release is said to run.
    return Strategy.validated({"any_software": True, **fields, **inline}, source=source)


def _number(value: object) -> object:
    """Text of a table as a number, where it is one."""
    number = read_number(str(value))
    if number is None:
        return value
    return int(number) if number.is_integer() else number
