"""Logs of training runs: time, throughput and memory of each step; the lines name the trainer.

A new format is one row of `FORMATS`.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config import files
from shardwise.config.enums import Word
from shardwise.errors import Fault, InputError
from shardwise.units import read_number, read_whole

GIB, MIB = 2.0**30, 2.0**20
NUMBER = r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
"""A number in a pattern of a log line; what follows it must be named, so that one that was cut off
is not read."""
_MOST_FIGURE = 1e18
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class MemoryKind(Word):
    """What a log counts as memory of an accelerator."""

    ALLOCATED = "allocated"
    """Peak of tensors (torch.cuda.max_memory_allocated)."""
    RESERVED = "reserved"
    """Peak of the allocator (torch.cuda.max_memory_reserved)."""
    DEVICE = "device"
    """All that the device has in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One line of one step, or the mean of those since the line before; NaN: the line has none."""

    index: int | None
    """Number of the step; None: the line names none."""
    seconds: float = np.nan
    tokens_per_s_per_gpu: float = np.nan
    samples_per_s: float = np.nan
    """Of all ranks."""
    tflops_per_gpu: float = np.nan
    global_batch: float = np.nan
    of: int | None = None
    """Steps of the progress bar, which distinguishes bars of training and evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMemory:
    """Memory of one rank [byte]."""

    kind: MemoryKind
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedField:
    """A field of `Strategy` that the run printed."""

    name: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTotal:
    """A figure of all steps, printed at the end: steps, runtime_s, samples_per_s, steps_per_s."""

    name: str
    value: float


Logged = LoggedStep | LoggedMemory | LoggedField | LoggedTotal


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How one trainer writes its log."""

    name: str
    title: str
    """As its makers write it."""
    shows: str
    """What a line with a step has, for people."""
    markers: tuple[str, ...]
    """Texts of which every log of this format has one, and no log of formats that come later."""
    read: Callable[[str], Iterable[Logged]]
    """What a line holds, without colors; nothing of most lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """The steps of a log in order, each once; the median where several ranks print a step."""

    format: str
    source: str
    index: Ints
    """Numbers of the steps; shape (n,), as all columns."""
    seconds: Floats
    """Time of a step [s]; NaN where the log has a throughput only."""
    tokens_per_s_per_gpu: Floats
    samples_per_s: Floats
    tflops_per_gpu: Floats
    global_batch: Floats
    memory: Mapping[MemoryKind, float]
    """The most of any rank [byte]."""
    fields: Mapping[str, int]
    """Fields of `Strategy` that the run printed; the last value."""
    totals: Mapping[str, float]
    """Figures of all steps."""
    releases: Mapping[str, str]
    """Releases that trainers printed, by the name of their launcher."""

    def __len__(self) -> int:
        return len(self.index)

    def step_times(self, *, tokens_per_step: float, samples_per_step: float, gpus: int) -> Floats:
        """Time of each step [s]: as logged, else from the throughput; NaN without either."""
        samples = np.where(np.isnan(self.global_batch), samples_per_step, self.global_batch)
        tokens = tokens_per_step * samples / samples_per_step
        with np.errstate(divide="ignore"):
            by_tokens = tokens / (gpus * self.tokens_per_s_per_gpu)
            by_samples = samples / self.samples_per_s
        times = np.where(np.isnan(self.seconds), by_tokens, self.seconds)
        times = np.where(np.isnan(times), by_samples, times)
        return np.where((times > 0) & np.isfinite(times), times, np.nan)

    def mean_step_time(self, *, samples_per_step: float) -> float:
        """Mean time of a step from the figures of all steps [s]; NaN without any.

        Runtime over steps has the most digits, then samples per second, then steps per second.
        """
        totals = self.totals
        if totals.get("steps") and totals.get("runtime_s"):
            return totals["runtime_s"] / totals["steps"]
        if totals.get("samples_per_s"):
            return samples_per_step / totals["samples_per_s"]
        return 1 / totals["steps_per_s"] if totals.get("steps_per_s") else float("nan")


_COLUMNS = (
    "seconds",
    "tokens_per_s_per_gpu",
    "samples_per_s",
    "tflops_per_gpu",
    "global_batch",
)
_STEP_FIGURES = _COLUMNS[:3]
# deepspeed/runtime/engine.py; torchtitan/train.py, which prints 0.0.0 where it is not installed.
_RELEASES = {
    "deepspeed": re.compile(r"DeepSpeed info: version=(\d+(?:\.\d+)+)"),
    "torchtitan": re.compile(r"torchtitan version: (\d+(?:\.\d+)+)"),
}
_NO_RELEASE = "0.0.0"


@dataclass(slots=True, kw_only=True)
class LogBuilder:
    """Collects what lines of one format hold."""

    format: LogFormat
    marked: bool = False
    """Whether the marker was there."""
    steps: list[LoggedStep] = field(default_factory=list)
    memory: dict[MemoryKind, float] = field(default_factory=dict)
    fields: dict[str, int] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)

    @property
    def has_time(self) -> bool:
        """Whether some line has a time or a throughput."""
        return bool(self.steps) or bool(
            {"runtime_s", "samples_per_s", "steps_per_s"} & set(self.totals)
        )

    def add(self, line: str) -> None:
        """Read one line."""
        self.marked = self.marked or any(marker in line for marker in self.format.markers)
        for launcher, pattern in _RELEASES.items():
            if (printed := pattern.search(line)) and printed[1] != _NO_RELEASE:
                self.releases[launcher] = printed[1]
        try:
            found = list(self.format.read(line))
        except UnreadableError:  # damaged, as by two processes that write at the same time
            return
        for one in found:
            if isinstance(one, LoggedStep):
                if not all(np.isnan(getattr(one, name)) for name in _STEP_FIGURES):
                    self.steps.append(one)
            elif isinstance(one, LoggedMemory):
                self.memory[one.kind] = max(one.bytes, self.memory.get(one.kind, 0.0))
            elif isinstance(one, LoggedField):
                self.fields[one.name] = one.value
            else:
                self.totals[one.name] = one.value

    def built(self, source: str) -> RunLog:
        """Return the steps in order, each once."""
        numbered = _of_one_bar([step for step in self.steps if step.index is not None])
        steps = numbered or self.steps
        index = np.array(
            [n if step.index is None else step.index for n, step in enumerate(steps)],
            dtype=np.int64,
        )
        order = np.argsort(index, kind="stable")
        firsts = np.flatnonzero(np.diff(index[order], prepend=-1))
        columns = {
            name: _medians(np.array([getattr(step, name) for step in steps])[order], firsts)
            for name in _COLUMNS
        }
        return RunLog(
            format=self.format.name,
            source=source,
            index=index[order][firsts],
            memory=dict(self.memory),
            fields=dict(self.fields),
            totals=dict(self.totals),
            releases=dict(self.releases),
            **columns,
        )


def _of_one_bar(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Steps of the progress bar with the most lines; all where there are no bars."""
    counts: dict[int | None, int] = {}
    for step in steps:
        counts[step.of] = counts.get(step.of, 0) + 1
    if not counts:
        return []
    most = max(counts, key=lambda of: (counts[of], of or 0))
    return [step for step in steps if step.of == most]


def _medians(values: Floats, firsts: Ints) -> Floats:
    """The median of each group of values that are numbers; NaN where none is."""
    found = np.full(len(firsts), np.nan)
    for position, some in enumerate(np.split(values, firsts[1:]) if len(firsts) else []):
        numbers = some[~np.isnan(some)]
        if numbers.size:
            found[position] = numbers[0] if numbers.size == 1 else np.median(numbers)
    return found


class UnreadableError(ValueError):
    """A number of a line is none, or larger than any that a run prints."""


def number(text: str) -> float:
    """Return a number that may have separators of thousands."""
    found = read_number(text.replace(",", ""))
    if found is None or abs(found) > _MOST_FIGURE:
        raise UnreadableError
    return found


def count(text: str) -> int:
    """Return a whole number, such as that of a step."""
    found = read_whole(text)
    if found is None:
        raise UnreadableError
    return found


# --- What lines hold ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Lines with a marker that hold figures of a step."""

    marker: str
    step: str = ""
    """Pattern of the number of the step, which every line has; empty: no line has one."""
    figures: Mapping[str, str]
    """Patterns of fields of `LoggedStep`; NaN where a line has none."""
    per_second: float = 1
    """What a figure of `seconds` is divided by."""
    memory: tuple[MemoryKind, str, float] | None = None
    """What is counted, its pattern, and its unit [byte]."""

    def read(self, line: str) -> Iterator[Logged]:
        """Yield what a line holds."""
        match = re.search(self.step, line) if self.marker in line else None
        if match is None:
            return
        found: dict[str, Any] = {
            name: found_number(pattern, line) for name, pattern in self.figures.items()
        }
        found["seconds"] = found.get("seconds", np.nan) / self.per_second
        yield LoggedStep(index=count(match[1]) if self.step else None, **found)
        if self.memory is not None:
            kind, pattern, unit = self.memory
            if match := re.search(pattern, line):
                yield LoggedMemory(kind=kind, bytes=number(match[1]) * unit)


def found_number(pattern: str, line: str) -> float:
    """Return the number that a pattern finds; NaN if it finds none."""
    match = re.search(pattern, line)
    return number(match[1]) if match else float("nan")


# Megatron-LM, and Primus, which writes the same lines: `training_log`
# (megatron/training/training.py:3567-3653), `report_memory`
# (megatron/training/utils/common_utils.py:313-334), the arguments (arguments.py:567, 1990).
_END = r"\s*(?:/\s*[\d.]+\s*)?\|"
_ITERATION = "elapsed time per iteration ("
_MEGATRON = StepLine(
    marker=f"{_ITERATION}ms):",
    step=r"iteration\s+(\d+)\s*/\s*\d+\s*\|",
    figures={
        "seconds": rf"elapsed time per iteration \(ms\):\s*{NUMBER}{_END}",
        "tokens_per_s_per_gpu": rf"tokens per GPU \(tokens/s/GPU\):\s*{NUMBER}{_END}",
        "tflops_per_gpu": rf"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs):\s*{NUMBER}{_END}",
        "global_batch": r"global batch size:\s*(\d+)\s*\|",
    },
    per_second=1000,
    # Primus counts in units of 2^30 bytes: "hip mem usage/free/total/usage_ratio: aGB/bGB/cGB/d%".
    memory=(
        MemoryKind.DEVICE,
        rf"(?:hip |rocm )?mem(?:ory)? usage/free/total[^:|]*:\s*{NUMBER}\s*GB\s*/",
        GIB,
    ),
)
# BigScience's Megatron-DeepSpeed and its forks (megatron/training.py, training_log).
_IN_SECONDS = replace(
    _MEGATRON,
    marker=f"{_ITERATION}s):",
    figures={
        **_MEGATRON.figures,
        "seconds": rf"elapsed time per iteration \(s\):\s*{NUMBER}{_END}",
        "samples_per_s": rf"samples per second:\s*{NUMBER}{_END}",
    },
    per_second=1,
)
_MEMORY = rf"\|\s*max (allocated|reserved):\s*{NUMBER}\s*(?=\||$)"
_PEAK = rf"MaxMemAllocated={NUMBER}\s*GB"
_USED = rf"total device memory used:\s*{NUMBER}"
_DEGREES = {
    "using world size": "gpus",
    "data-parallel size": "dp",
    "data-parallel-size": "dp",
    "context-parallel size": "cp",
    "tensor-model-parallel size": "tp",
    "pipeline-model-parallel size": "pp",
}
_DEGREE = rf"(?<![\w-])({'|'.join(_DEGREES)}):\s*(\d+)(?=[,\s])"
_ARGUMENTS = {
    "world_size": "gpus",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "micro_batch_size": "micro_batch_size",
    "seq_length": "seq_len",
}
_ARGUMENT = rf"(?:^|[\s:\]])({'|'.join(_ARGUMENTS)}) \.+ (\d+)\s*$"


_OF_DEEPSPEED = re.compile(r"\[config\.py:\d+:print")
"""Lines of DeepSpeed's own configuration, whose world_size is that of data parallelism."""


def _megatron(line: str) -> Iterator[Logged]:
    if _ITERATION in line:
        yield from (_MEGATRON if _MEGATRON.marker in line else _IN_SECONDS).read(line)
    elif "MaxMemAllocated=" in line and (match := re.search(_PEAK, line)):
        yield LoggedMemory(kind=MemoryKind.ALLOCATED, bytes=number(match[1]) * GIB)
    elif "| max allocated:" in line:
        for kind, mib in re.findall(_MEMORY, line):
            yield LoggedMemory(kind=MemoryKind(kind), bytes=number(mib) * MIB)
        if match := re.search(_USED, line):
            yield LoggedMemory(kind=MemoryKind.DEVICE, bytes=number(match[1]) * MIB)
    elif "using world size:" in line:
        for name, value in re.findall(_DEGREE, f"{line} "):
            yield LoggedField(name=_DEGREES[name], value=count(value))
    elif " ..." in line and not _OF_DEEPSPEED.search(line):
        yield from _printed(line)


def _printed(line: str) -> Iterator[Logged]:
    """Yield an argument that a run prints."""
    if match := re.search(_ARGUMENT, line):
        yield LoggedField(name=_ARGUMENTS[match[1]], value=count(match[2]))


# Megatron-Bridge, whose times have fewer digits than those of Megatron-LM's line that follows:
# `training_log` (src/megatron/bridge/training/utils/train_utils.py:1049, 1088-1140).
_BRIDGE = StepLine(
    marker="Step Time :",
    figures={
        "seconds": rf"Step Time\s*:\s*{NUMBER}s",
        "tflops_per_gpu": rf"GPU utilization:\s*{NUMBER}\s*(?:MODEL_)?TFLOP",
    },
)
# torchtitan (components/metrics.py:527-536).
_TORCHTITAN = StepLine(
    marker="tps: ",
    step=r"step:\s*(\d+)\s+loss:",
    figures={
        "tokens_per_s_per_gpu": r"tps:\s*(\d[\d,]*)\s",
        "tflops_per_gpu": r"tflops:\s*(\d[\d,]*\.\d+)\s",
    },
    memory=(MemoryKind.RESERVED, rf"memory:\s*{NUMBER}GiB\(", GIB),
)
# MaxText (src/maxtext/common/metric_logger.py:181-230).
_MAXTEXT = StepLine(
    marker="completed step: ",
    step=r"completed step: (\d+),",
    figures={
        "seconds": rf"seconds: {NUMBER},",
        "tokens_per_s_per_gpu": rf"Tokens/s/device: {NUMBER},",
        "tflops_per_gpu": rf"TFLOP/s(?:/device)?: {NUMBER},",
    },
)
# DeepSpeed: its throughput timer (utils/timer.py:265), which divides memory by 2^30, or steps of
# its pipeline (runtime/pipe/engine.py:404-408).
# Until 2023 it printed 0/STEP, until 2022 the mean alone, `SamplesPerSec`.
_TIMER = StepLine(
    marker="SamplesPerSec=",
    step=r"(?:global_step=|\b\d+/)(\d+),",
    figures={"samples_per_s": rf"(?:Curr|(?<![A-Za-z]))SamplesPerSec={NUMBER},"},
    memory=(MemoryKind.ALLOCATED, _PEAK, GIB),
)
_PIPELINE = StepLine(
    marker="iter time (s):",
    step=rf"steps:\s*(\d+)\s+loss:\s*\S+\s+iter time \(s\):\s*{NUMBER}\s",
    figures={"seconds": rf"steps:\s*\d+\s+loss:\s*\S+\s+iter time \(s\):\s*{NUMBER}\s"},
)
# NeMo: lines of its progress printer (NeMo 2), or the bar of Lightning (NeMo 1).
_TIMING = rf"train_step_timing in s[:=]\s*{NUMBER}\s*(?=[|,\]]|$)"
_NEMO = StepLine(
    marker="reduced_train_loss",
    step=r"Training epoch \d+, iteration (\d+)/",
    figures={
        "seconds": _TIMING,
        "tflops_per_gpu": rf"TFLOPS_per_GPU:\s*{NUMBER}\s*(?=\||$)",
        "global_batch": r"global_batch_size: (\d+)",
    },
)
_BAR = r"Epoch (\d+):[^|]*\|[^|]*\| (\d+)/(\d+) \["
_RATE = r"\[[\d:]+<[^,\]]*,\s*([\d.]+)(s/it|it/s)"


def _bar(line: str) -> Iterator[Logged]:
    """Yield the step of a bar with its time, else with the running mean of the bar."""
    match = re.search(_BAR, line) if _NEMO.marker in line else None
    if match is None:
        return
    epoch, done, of = (count(match[position]) for position in (1, 2, 3))
    # tqdm shortens numbers from 1,000 on, such as 1.23e+5: then the bar counts.
    overall = re.search(r"global_step=(\d+)(?:\.0*)?(?=[,\s\]]|$)", line)
    index = count(overall[1]) if overall else epoch * of + done
    timing, rate = found_number(_TIMING, line), re.search(_RATE, line)
    if not timing > 0:
        timing = _bar_seconds(rate[1], rate[2]) if rate else float("nan")
    yield LoggedStep(index=index, seconds=timing, of=of)


def _bar_seconds(figure: str, unit: str) -> float:
    """Time of a step by the rate of a progress bar: seconds per step, or steps per second."""
    rate = number(figure)
    if unit == "s/it":
        return rate
    return 1 / rate if rate > 0 else float("nan")


# The Hugging Face Trainer: its progress bar, its last line, or trainer_state.json. `speed_metrics`
# (transformers/trainer_utils.py) prints figures of all steps at the end; lines of single steps have
# no time. A bar of training or evaluation has no label; those of downloads and data sets have one.
_TRAINER = r"(?:^|\]:?|\d:)\s*\d+%\|[^|]*\| (\d+)/(\d+) " + _RATE
_TOTALS = {
    "train_runtime": "runtime_s",
    "train_samples_per_second": "samples_per_s",
    "train_steps_per_second": "steps_per_s",
    "global_step": "steps",
}
_TOTAL = rf"['\"]({'|'.join(_TOTALS)})['\"]:\s*['\"]?{NUMBER}['\"]?\s*(?=[,}}]|$)"


def _trainer(line: str) -> Iterator[Logged]:
    if "/it" in line or "it/s" in line:
        for done, of, figure, unit in re.findall(_TRAINER, line):
            seconds = _bar_seconds(figure, unit)
            yield LoggedStep(index=count(done), seconds=seconds, of=count(of))
    if "train_" in line or "global_step" in line:
        for name, value in re.findall(_TOTAL, line):
            yield LoggedTotal(name=_TOTALS[name], value=number(value))


# MLPerf's result files: mlperf_logging (mllog), with the statistics that submitters log.
_MLLOG = ":::MLLOG"
_STATISTICS = {
    "train_step_time": "seconds",
    "train_step_timing in s": "seconds",
    "step_time": "seconds",
    "throughput": "samples_per_s",
}
_MLPERF_FIELDS = {"global_batch_size": "global_batch_size", "max_sequence_length": "seq_len"}


def _mlperf(line: str) -> Iterator[Logged]:
    """Yield the statistics of a step, or a setting."""
    if _MLLOG not in line:
        return
    try:
        event = json.loads(line.partition(_MLLOG)[2])
    except (ValueError, RecursionError):
        return
    event = event if isinstance(event, dict) else {}
    key, value, about = (event.get(name) for name in ("key", "value", "metadata"))
    if key in _MLPERF_FIELDS and isinstance(value, int):
        yield LoggedField(name=_MLPERF_FIELDS[key], value=value)
    if key != "tracked_stats" or not isinstance(value, dict):
        return
    figures = {
        field: float(value[name])
        for name, field in _STATISTICS.items()
        if isinstance(value.get(name), (int, float))
    }
    index = about.get("step", about.get("samples_count")) if isinstance(about, dict) else None
    if figures:
        yield LoggedStep(
            index=index if isinstance(index, int) else None,
            seconds=figures.get("seconds", np.nan),
            samples_per_s=figures.get("samples_per_s", np.nan),
        )


def _format(
    name: str, title: str, shows: str, *markers: str, read: Callable[[str], Iterable[Logged]]
) -> LogFormat:
    return LogFormat(name=name, title=title, shows=shows, markers=markers, read=read)


FORMATS = (
    _format(
        "megatron-bridge",
        "Megatron-Bridge",
        f"'{_BRIDGE.marker} Ts GPU utilization: ...'",
        _BRIDGE.marker,
        read=lambda line: chain(_BRIDGE.read(line), _megatron(line)),
    ),
    _format(
        "megatron",
        "Megatron-LM",
        f"'iteration N/M | ... | {_MEGATRON.marker} T |', or in s",
        _MEGATRON.marker,
        _IN_SECONDS.marker,
        read=_megatron,
    ),
    _format(
        "torchtitan",
        "torchtitan",
        "'step: N  loss: L  ...  memory: M  tps: R  tflops: F'",
        _TORCHTITAN.marker,
        read=_TORCHTITAN.read,
    ),
    _format(
        "maxtext",
        "MaxText",
        f"'{_MAXTEXT.marker}N, seconds: T, TFLOP/s/device: F, Tokens/s/device: R, ...'",
        _MAXTEXT.marker,
        read=_MAXTEXT.read,
    ),
    _format(
        "nemo",
        "NeMo",
        "'Training epoch E, iteration N/M | ... reduced_train_loss: L | train_step_timing in s: "
        "T', or its progress bar",
        _NEMO.marker,
        read=lambda line: [*_NEMO.read(line)] or _bar(line),
    ),
    _format(
        "mlperf",
        "MLPerf",
        f'\'{_MLLOG} {{... "key": "tracked_stats", "value": {{"train_step_time": T}}}}\'',
        "tracked_stats",
        read=_mlperf,
    ),
    _format(
        "deepspeed",
        "DeepSpeed",
        f"'epoch=E/micro_step=M/global_step=N, ..., Curr{_TIMER.marker}R', or 'steps: N loss: L "
        f"{_PIPELINE.marker} T'",
        _TIMER.marker,
        _PIPELINE.marker,
        read=lambda line: [*_TIMER.read(line)] or _PIPELINE.read(line),
    ),
    _format(
        "huggingface",
        "Hugging Face Trainer",
        "its progress bar '| N/M [..., T s/it]', or 'train_runtime' and "
        "'train_steps_per_second' at the end",
        *("s/it", "it/s", "train_steps_per_second", "train_runtime"),
        read=_trainer,
    ),
)
"""The first format whose marker and steps are in a log reads it."""


# --- Reading --------------------------------------------------------------------------------------

_CHUNK = 1 << 20
_MOST_LINE = 1 << 16
"""Characters of a line that are read; what is longer is cut."""


def read_log(path: str | Path) -> RunLog:
    """Read the log of a training run, gzipped or not, line by line.

    Raises
    ------
    InputError
        If it cannot be read, or holds no step of a format that is known.
    """
    return _log_of(_lines(path), path)


def log_of_text(text: str, source: str) -> RunLog:
    """Read the text of a log, as `read_log` reads a file."""
    *whole, rest = text.replace("\r", "\n").split("\n")
    lines = [*((line[:_MOST_LINE], True) for line in whole), (rest[:_MOST_LINE], False)]
    return _log_of(lines, source)


def _log_of(lines: Iterable[tuple[str, bool]], path: str | Path) -> RunLog:
    """Read lines, each with whether it ends."""
    builders = [LogBuilder(format=one) for one in FORMATS]
    last = ""
    for line, ended in lines:
        if ended:
            _add(builders, line)
        else:
            last = line
    chosen = _chosen(builders)
    if chosen is None and last:  # the end of a log may be cut off in the middle of a number
        _add(builders, last)
        chosen = _chosen(builders)
    if chosen is None:
        known = "; ".join(f"{one.title}: {one.shows}" for one in FORMATS)
        problem = f"holds no step of a training run; looked for {known}"
        raise InputError(Fault(source=str(path), problem=problem))
    return chosen.built(str(path))


def _add(builders: list[LogBuilder], line: str) -> None:
    plain = _ANSI.sub("", line) if "\x1b" in line else line  # without colors
    for builder in builders:
        builder.add(plain)


def _chosen(builders: list[LogBuilder]) -> LogBuilder | None:
    return next((one for one in builders if one.marked and one.has_time), None)


def _lines(path: str | Path) -> Iterator[tuple[str, bool]]:
    """Yield each line and whether it is complete; progress bars end lines with a return."""
    files.check_input_path(path)
    rest = ""
    try:
        with Path(path).open("rb") as stream:
            raw: io.BufferedReader | gzip.GzipFile = stream
            if str(path).endswith(".gz"):
                raw = gzip.GzipFile(fileobj=stream)
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline=None)
            while chunk := text.read(_CHUNK):
                *whole, rest = (rest + chunk).split("\n")
                yield from ((line[:_MOST_LINE], True) for line in whole)
                rest = rest[-_CHUNK:]
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Fault(source=str(path), problem=f"cannot be read: {reason}")) from None
    if rest:
        yield rest[:_MOST_LINE], False
