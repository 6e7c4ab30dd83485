"""What logs of training runs hold: time, throughput and memory of each step that was logged."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.enums import Word
from shardwise.units import read_number, read_whole

GIB = 2.0**30
MIB = 2.0**20
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
    read: Callable[[str], Iterator[Logged]]
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

    def __len__(self) -> int:
        return len(self.index)

    def step_times(self, *, tokens_per_step: float, samples_per_step: float, gpus: int) -> Floats:
        """Time of each step [s]: as logged, else from the throughput; NaN without either.

        Parameters
        ----------
        tokens_per_step, samples_per_step
            Of all ranks, where the line does not name its batch.
        gpus
            Accelerators.
        """
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

    @property
    def has_time(self) -> bool:
        """Whether some line has a time or a throughput."""
        return bool(self.steps) or bool(
            {"runtime_s", "samples_per_s", "steps_per_s"} & set(self.totals)
        )

    def add(self, line: str) -> None:
        """Read one line."""
        self.marked = self.marked or any(marker in line for marker in self.format.markers)
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


def without_colors(line: str) -> str:
    """Return a line without escape sequences of terminals."""
    return _ANSI.sub("", line) if "\x1b" in line else line


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


def found_number(pattern: re.Pattern[str], line: str) -> float:
    """Return the number that a pattern finds; NaN if it finds none."""
    match = pattern.search(line)
    return number(match[1]) if match else float("nan")
