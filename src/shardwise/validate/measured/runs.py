"""Measured training runs: what ran, as a model, a system and a strategy, and what was measured.

A run file, in YAML, TOML, CSV or JSON:

    common: {system: h100-sxm, stack: megatron-core-2025}
    runs:
    - id: first
      model: llama3-8b
      strategy: {gpus: 64, tp: 2, global_batch_size: 128}
      measured: {step_time_s: 4.1, memory: 61 GiB, memory_metric: allocated}

`common` has the values of all runs; `models`, `systems` and `stacks` define what runs name. Fields
of the strategy and measured values may also stand in the run itself, as in the columns of a CSV
file. The runs of the catalog are files of the same form (docs/accuracy/measured-runs.md).
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, SkipValidation

from shardwise import catalog
from shardwise.analysis.saved import kind_of_saved
from shardwise.config import files
from shardwise.config.base import MOST, ConfigBase
from shardwise.config.model import Model
from shardwise.config.software.record import Software
from shardwise.config.software.resolve import DECIDING_FIELDS, match_of
from shardwise.config.software.words import software_of
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.ops.param_count import FlopsConvention
from shardwise.units import Bytes, Duration, read_number

Grade = Literal["A", "B", "C"]
PrecisionClass = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32", "unknown"]
Scale = Literal["1-8", "9-63", "64-255", "256-1023", "1024+", "unknown"]
Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Amount = Annotated[float, Field(strict=True, gt=0)]

ENDINGS = (".yaml", ".yml", ".toml", ".csv", ".json", ".jsonl")
"""Of run files, each also .gz."""

# Thousands of runs with all their fields are some MB.
_MOST_BYTES = 2**28
# Of packed files of published rows.
_PACKED = "shardwise-measured-runs-1"
_PRECISIONS: Mapping[str, PrecisionClass] = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "fp8_tensor": "fp8",
    "fp8_row": "fp8",
    "fp8_block": "fp8",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}


NO_EFFECT, NOT_USED = "no effect", "not used"
"""What phrases of `ignored` have in them that make no run uncertain: those of settings that change
nothing, and of remarks that nothing reads."""


class NotModeledError(Exception):
    """A run that cannot be predicted; the text is the reason."""


class Figures(ConfigBase):
    """What was measured."""

    step_time_s: Duration | None = None
    """Time of a step, as a number of seconds or with a unit."""
    tokens_per_s_per_gpu: Amount | None = None
    memory: Bytes | None = None
    """Peak memory of the accelerator that uses the most."""
    tflops_per_gpu: Amount | None = None
    """Gives the time of a step where neither the time nor tokens per second were printed."""
    mfu: Amount | None = None
    """Where no FLOP/s were printed; not scored."""
    memory_metric: Literal["allocated", "reserved", "device"] = "allocated"
    """By tensors, by the allocator, or on the device (nvidia-smi)."""
    memory_unit: Literal["GiB", "GB"] = "GiB"
    """In which errors are shown."""
    memory_rank: Literal["peak", "last"] = "peak"
    """The accelerator that uses the most, or the last stage, whose rank Megatron-LM logs."""
    flops_convention: FlopsConvention | Literal["hardware"] = "causal"
    """What `tflops_per_gpu` counts; with recompute (`hardware`), it gives no time."""

    VALUES: ClassVar = ("step_time_s", "tokens_per_s_per_gpu", "memory", "tflops_per_gpu", "mfu")

    @property
    def memory_unit_bytes(self) -> float:
        """Bytes of the unit of the memory."""
        return 2**30 if self.memory_unit == "GiB" else 1e9


class Case(NamedTuple):
    """What ran, as the arguments of an estimate."""

    model: Model
    system: System
    strategy: Strategy


def _described(value: object) -> object:
    return software_of(value) if isinstance(value, str) else value


class Run(ConfigBase):
    """One measured training run."""

    id: str = Field(min_length=1)
    source: str = "unknown"
    """The collection that it belongs to."""
    title: str | None = None
    ref: str | None = None
    """Repository and path, paper or page."""
    grade: Grade | None = None
    task: str | None = None
    """pretrain, sft, lora."""
    setup: str | None = None
    """Machine, software and precision as the source names them: runs of one source, model, batch
    and setup compare strategies."""
    accelerator: str = "unknown"
    """The family that runs are grouped by; default: the name of the system."""
    precision: PrecisionClass = "unknown"
    """Type of the matrix products; default: that of the strategy."""
    kind: Literal["dense", "moe"] = "dense"
    """Default: by the experts of the model."""
    gpus: Count | None = None
    seq_len: Count | None = None
    global_batch_size: Count | None = None
    measured: Figures = Figures()
    model: SkipValidation[Model | None] = None
    system: SkipValidation[System | None] = None
    strategy: SkipValidation[Strategy | None] = None
    software: Annotated[Software | None, BeforeValidator(_described)] = None
    """What the source says of its software, as its user would type it."""
    unstated: tuple[str, ...] = ()
    """Fields of the strategy that follow from the software and that the source does not state."""
    assumed: tuple[str, ...] = ()
    """What the source does not say, and the strategy assumes; a phrase each."""
    ignored: tuple[str, ...] = ()
    """What the source says and the strategy does not; a phrase each."""
    refused: str | None = None
    """Why it is not predicted."""

    SCALES: ClassVar[tuple[tuple[int, Scale], ...]] = (
        (8, "1-8"),
        (63, "9-63"),
        (255, "64-255"),
        (1023, "256-1023"),
        (MOST, "1024+"),
    )
    """Most accelerators of each class of sizes."""

    @property
    def uncertain(self) -> bool:
        """Whether something that matters is assumed or ignored."""
        harmless = (NO_EFFECT, NOT_USED)
        return bool(self.assumed) or any(
            not any(word in said for word in harmless) for said in self.ignored
        )

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens of a global batch."""
        if self.global_batch_size is None or self.seq_len is None:
            return None
        return self.global_batch_size * self.seq_len

    @property
    def measured_step_time_s(self) -> float | None:
        """Step time, as measured or from tokens per second and the batch [s]."""
        time, rate = self.measured.step_time_s, self.measured.tokens_per_s_per_gpu
        tokens = self.tokens_per_step
        if time is not None or tokens is None or rate is None or self.gpus is None:
            return time
        return tokens / (rate * self.gpus)

    @property
    def measured_memory_gib(self) -> float | None:
        """Peak memory of an accelerator in the unit of the run."""
        found = self.measured
        return None if found.memory is None else found.memory / found.memory_unit_bytes

    @property
    def scale(self) -> Scale:
        """Class of the number of its accelerators."""
        if self.gpus is None:
            return "unknown"
        return next(name for most, name in self.SCALES if self.gpus <= most)

    def case(self) -> Case:
        """Return what ran.

        Raises
        ------
        NotModeledError
            If it cannot be predicted.
        """
        if self.refused is not None:
            raise NotModeledError(self.refused)
        if self.model is None or self.system is None or self.strategy is None:
            raise NotModeledError("system is missing")
        return Case(self.model, self.system, self.strategy)

    def as_typed(self) -> tuple[tuple[float, "Run"], ...]:
        """Return the run with each software that the words of its source may mean, by probability.

        Its strategy has what the source states, and what that software does where it states
        nothing. A run that names no software is as it is.
        """
        if self.refused is not None or self.software is None or self.strategy is None:
            return ((1.0, self),)
        assert self.system is not None  # noqa: S101 - as it has a strategy
        own = self.strategy.model_fields_set - {*self.unstated, "stack"}
        stated = {name: getattr(self.strategy, name) for name in own}
        found = []
        deciding = {name: stated[name] for name in DECIDING_FIELDS if name in stated}
        for one in match_of(self.software, self.system, self.model, deciding).candidates:
            fields = stated | {"stack": one.stack, "any_software": True}
            strategy = Strategy.validated(fields, source=self.id)
            found.append((one.weight, self.model_copy(update={"strategy": strategy})))
        return tuple(found)


@cache
def load_runs() -> tuple[Run, ...]:
    """Return all runs that come with shardwise, by the names of their files, then in order."""
    folder = Path(catalog.__file__).parent / "measured"
    return tuple(run for path in sorted(folder.glob("*.json")) for run in read_runs(path))


def read_runs(path: str | Path, *, system: System | None = None) -> tuple[Run, ...]:
    """Read a run file, also gzipped; a run that is not valid is refused with all its faults.

    Parameters
    ----------
    path
        The file.
    system
        System of the runs that name none.

    Raises
    ------
    InputError
        If the file is no run file, or none of its runs is valid, with one fault for each thing that
        is wrong, which names the file, the run and the field.
    """
    rows, defined = _rows(path)
    if len(rows) > 1 and not any({"model", "refused"} & row.keys() for row in rows):
        problem = "is missing in every run"
        raise InputError(Fault(source=str(path), field="model", problem=problem))
    runs: list[Run] = []
    faults: list[Fault] = []
    names: set[str] = set()
    wrong = 0
    for number, row in enumerate(rows, start=1):
        name = str(row.get("id", row.get("name", f"run {number}")))
        source = f"{path}: {name}"
        try:
            if "refused" not in row:
                _check_new(name, names, source)
            runs.append(_run(row, name, source, defined, system))
        except InputError as error:
            wrong += 1
            faults.extend(_placed(fault, source) for fault in error.faults)
            reason = "; ".join(str(replace(fault, source="")) for fault in error.faults)
            runs.append(Run.validated({"id": name, "refused": reason}, source=source))
    if not runs:
        raise InputError(Fault(source=str(path), problem="holds no runs"))
    if wrong == len(runs):
        raise InputError(faults)
    return tuple(runs)


def _check_new(name: str, names: set[str], source: str) -> None:
    if name in names:
        raise InputError(Fault(source=source, field="id", problem="is set twice"))
    names.add(name)


def _placed(fault: Fault, source: str) -> Fault:
    """A fault with the place of its run, if it names another."""
    placed = fault.source.startswith(source)
    return (
        fault if placed else replace(fault, source=": ".join(filter(None, (source, fault.source))))
    )


class _RunFile(ConfigBase):
    """A run file."""

    common: Mapping[str, Any] = Field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    systems: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    stacks: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    runs: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class _Defined:
    """What a file defines for its runs, each validated once."""

    file: _RunFile | None = None
    loaded: dict[tuple[str, str], Any] = field(default_factory=dict)

    def model(self, name: Any) -> Model:
        return self._found("models", name, lambda data: Model.load({"name": name, **data}), Model)

    def system(self, name: Any) -> System:
        return self._found(
            "systems", name, lambda data: System.load({"name": name, **data}), System
        )

    def stack(self, name: Any) -> Stack | Any:
        """A stack that the file defines; others are left to the strategy."""

        def read(data: Mapping[str, Any]) -> Any:
            return Strategy.validated({"stack": data}, source=name).stack

        return self._found("stacks", name, read, None)

    def _found(self, section: str, name: Any, read: Any, kind: Any) -> Any:
        known = {} if self.file is None else getattr(self.file, section)
        if not isinstance(name, str) or name not in known:
            return name if kind is None else kind.load(name)
        if (section, name) not in self.loaded:
            self.loaded[section, name] = read(known[name])
        return self.loaded[section, name]


def _rows(path: str | Path) -> tuple[Sequence[Mapping[str, Any]], _Defined]:
    """Runs of a file, each with the common values, and what the file defines."""
    ending = Path(str(path).removesuffix(".gz")).suffix.lower()
    if ending == ".csv":
        text = io.StringIO(files.read_text(path))
        try:
            rows = list(csv.DictReader(text, restkey="", skipinitialspace=True))
        except csv.Error as error:  # such as a very long field
            raise InputError(Fault(source=str(path), problem=f"not CSV: {error}")) from None
        cells = [{key: _number(value) for key, value in row.items() if value} for row in rows]
        return cells, _Defined()
    data = _read_json(path) if ending not in ENDINGS[:3] else files.read_mapping(path)
    if (saved := kind_of_saved(data)) is not None:
        raise InputError(Fault(source=str(path), problem=saved.problem))
    file = _RunFile.validated(data, source=str(path))
    return [_merged(file.common, row) for row in file.runs], _Defined(file)


def _read_json(path: str | Path) -> Mapping[str, Any]:
    """The mapping of a JSON file."""
    text = files.read_text(path, most_bytes=_MOST_BYTES).strip()
    line, _, more = text.partition("\n")
    in_lines = line.startswith("{") and line.rstrip().endswith("}") and more
    data = files.parse_json(line if in_lines else text, path)
    if isinstance(data, Mapping) and "runs" in data:
        return data
    first = data[0] if isinstance(data, list) and data else data
    if isinstance(first, Mapping) and (
        first.get("format") == _PACKED or isinstance(first.get("hardware"), Mapping)
    ):
        problem = (
            "has rows of published runs; translate them first: "
            f"python tools/measured_rows.py {path} -o runs.json"
        )
    else:
        problem = f"holds no measured runs; allowed: a run file ({', '.join(ENDINGS)}) with `runs`"
    raise InputError(Fault(source=str(path), problem=problem))


def _merged(common: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The common values with those of a row; mappings are joined key by key."""
    joined = {
        key: {**common[key], **row[key]}
        for key in ("strategy", "measured")
        if isinstance(common.get(key), Mapping) and isinstance(row.get(key), Mapping)
    }
    return {**common, **row, **joined}


# Keys of a row that are no fields of its strategy.
_FACTS = (
    *("source", "title", "ref", "grade", "task", "setup", "accelerator", "precision", "kind"),
    *("software", "unstated", "assumed", "ignored", "refused"),
)
_OF_CASES = ("software", "unstated")
"""Keys of runs that are predicted."""
_KEYS = ("id", "name", "model", "system", "strategy", "stack", "measured", *_FACTS)


def _run(
    row: Mapping[str, Any], name: str, source: str, defined: _Defined, system: System | None
) -> Run:
    """One run."""
    facts = {"id": name} | {key: row[key] for key in _FACTS if row.get(key) is not None}
    if "refused" in row:
        facts = {key: value for key, value in facts.items() if key not in _OF_CASES}
        sizes = {key: row.get(key) for key in ("gpus", "seq_len", "global_batch_size")}
        return Run.validated({**facts, **sizes, "measured": _figures(row, source)}, source=source)
    for key in ("model", "system"):
        if key not in row and (key == "model" or system is None):
            raise InputError(Fault(source=source, field=key, problem="is missing"))
    measured = _figures(row, source)
    model = defined.model(row["model"])
    on = defined.system(row["system"]) if "system" in row else system
    strategy = _strategy(row, source, defined)
    full = strategy.resolved(model, on or "unknown")
    products = full.dtype if full.quantization == "none" else full.quantization
    fields = {
        "accelerator": on.name if on else "unknown",
        "precision": _PRECISIONS.get(products, "unknown"),
        "kind": "moe" if model.has_experts else "dense",
        **facts,
        "gpus": full.gpus,
        "seq_len": full.seq_len,
        "global_batch_size": full.global_batch_size,
        "measured": measured,
        "model": model,
        "system": on,
        "strategy": strategy,
    }
    return Run.validated(fields, source=source)


def _figures(row: Mapping[str, Any], source: str) -> Figures:
    """Measured values of a row, of its section or of the row itself."""
    inline = {key: row[key] for key in Figures.model_fields if key in row}
    section = row.get("measured") or {}
    if not isinstance(section, Mapping):
        raise InputError(Fault.of("measured", section, "must be a mapping", source))
    figures = Figures.validated({**section, **inline}, source=f"{source}: measured")
    if all(getattr(figures, name) is None for name in Figures.VALUES) and "measured" not in row:
        problem = f"has no measured value: {', '.join(Figures.VALUES)}"
        raise InputError(Fault(source=source, problem=problem))
    if figures.step_time_s is not None and figures.tokens_per_s_per_gpu is not None:
        problem = "give one of step_time_s and tokens_per_s_per_gpu"
        raise InputError(Fault(source=source, field="step_time_s", problem=problem))
    return figures


def _strategy(row: Mapping[str, Any], source: str, defined: _Defined) -> Strategy:
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
        inline["stack"] = defined.stack(row["stack"])
    # It ran, whatever its release is said to run.
    return Strategy.validated({"any_software": True, **fields, **inline}, source=source)


def _number(value: object) -> object:
    """Text of a table as a number, where it is one."""
    number = read_number(str(value))
    if number is None:
        return value
    return int(number) if number.is_integer() else number
