"""Where the steps of a trace went: matrix products, attention, communication by axis, idle."""

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.enums import Word
from shardwise.errors import Fault, InputError
from shardwise.launchers.kineto.events import trace_events
from shardwise.launchers.kineto.kernels import (
    CommAxis,
    KernelClass,
    ProcessGroup,
    axis_of,
    class_of,
)
from shardwise.units import read_whole

_STEP = re.compile(r"ProfilerStep#(\d+)")
_DATA = "enumerate(DataLoader)"
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_ANNOTATIONS = frozenset({"user_annotation", "gpu_user_annotation"})
_MICRO = 1e-6
_TRANSFER = 0.2
"""Quantile of the times of equal collectives that counts as transfer: what is longer waits for
other ranks."""
_HALF = 0.5
_LEAST_EQUAL = 3
"""Fewer equal collectives say nothing about waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCommunication:
    """Communication along one axis in a step."""

    total_s: float
    """Time in which any of it runs [s]."""
    exposed_s: float
    """Time in which nothing else runs [s]."""
    waiting_s: float
    """Time beyond that of the fast ones among equal collectives: others are not there yet [s]."""
    kernels: float
    """Number in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSteps:
    """Means of the steps of a trace, of one rank; the times of a step are disjoint [s]."""

    source: str
    rank: int | None
    world_size: int | None
    device: str = ""
    """Accelerator that the trace names; empty: none."""
    steps: int
    step_s: float
    products_s: float
    attention_s: float
    other_kernels_s: float
    """Kernels that are neither products, attention nor communication."""
    communication: Mapping[CommAxis, TracedCommunication]
    memcpy_s: float
    """Copies that nothing else hides."""
    idle_s: float
    """Nothing runs on the device."""
    between_s: float
    """Idle between the last kernel of a step and the first of the next; a component of `idle_s`."""
    loading_s: float
    """Idle while the host waits for the data loader; a component of `idle_s`."""


def read_trace(path: str | Path, degrees: Mapping[str, int]) -> TracedSteps:
    """Read a trace of PyTorch's profiler (.json, .json.gz).

    Parameters
    ----------
    degrees
        Of the strategy by axis (tp, cp, ep, pp, dp), to tell process groups without a description
        apart.

    Raises
    ------
    InputError
        If it is no trace, has no steps (`ProfilerStep#N`) or no kernels.
    """
    collected = _Collected(degrees=degrees)
    about: dict[str, Any] = {}
    for event in trace_events(path, about):
        collected.add(event)
    info = about.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    windows = collected.windows(str(path))
    if not collected.start:
        problem = "holds no kernels of an accelerator; record ProfilerActivity.CUDA"
        raise InputError(Fault(source=str(path), problem=problem))
    # The name of the first device of a trace.
    properties = about.get("deviceProperties")
    first = properties[0] if isinstance(properties, list) and properties else None
    name = first.get("name") if isinstance(first, dict) else None
    return collected.means(
        str(path),
        windows,
        rank=_whole(info.get("rank")),
        world=_whole(info.get("world_size")),
        device=name if isinstance(name, str) else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A step on the device [s]."""

    start: float
    work_end: float
    """End of its last kernel; `end` where it is not known."""
    end: float


@dataclass(slots=True, kw_only=True)
class _Collected:
    """What is needed of each event: five numbers of those on the device."""

    degrees: Mapping[str, int]
    origin: float | None = None
    """Time of the first event [us]; others count from it."""
    start: "array[float]" = field(default_factory=lambda: array("d"))
    duration: "array[float]" = field(default_factory=lambda: array("d"))
    device: "array[int]" = field(default_factory=lambda: array("i"))
    kind: "array[int]" = field(default_factory=lambda: array("i"))
    """Position in `_ORDER`."""
    equal: "array[int]" = field(default_factory=lambda: array("i"))
    """Number of the collective among unlike ones; -1 for other events."""
    keys: dict[tuple[object, ...], int] = field(default_factory=dict)
    axes: dict[tuple[object, ...], CommAxis] = field(default_factory=dict)
    steps: dict[bool, dict[int, tuple[float, float]]] = field(
        default_factory=lambda: {True: {}, False: {}}
    )
    """Start and end of each step, on the device (True) and on the host."""
    loads: list[tuple[float, float]] = field(default_factory=list)

    def add(self, event: Mapping[str, Any]) -> None:
        """Read one event."""
        category, name = event.get("cat"), event.get("name")
        start, duration = event.get("ts"), event.get("dur")
        if event.get("ph") != "X" or not (isinstance(name, str) and isinstance(category, str)):
            return
        if not (_is_time(start) and _is_time(duration)):
            return
        if self.origin is None:
            self.origin = float(start)  # type: ignore[arg-type]
        # Microseconds since 1970 take all digits: those of a kernel would be rounded in seconds.
        begin = _MICRO * (float(start) - self.origin)  # type: ignore[arg-type]
        length = _MICRO * float(duration)  # type: ignore[arg-type]
        if category in _ANNOTATIONS:
            self._annotate(name, category == "gpu_user_annotation", begin, begin + length)
        elif category in _DEVICE_CATEGORIES:
            self._add_device(event, category, name, begin, length)

    def _annotate(self, name: str, on_device: bool, start: float, end: float) -> None:
        match = _STEP.match(name)
        number = read_whole(match[1]) if match else None
        if number is not None:
            steps = self.steps[on_device]
            first, last = steps.get(number, (start, end))
            steps[number] = min(first, start), max(last, end)
        elif name.startswith(_DATA) and not on_device:
            self.loads.append((start, end))

    def _add_device(
        self, event: Mapping[str, Any], category: str, name: str, start: float, length: float
    ) -> None:
        values = event.get("args")
        args: Mapping[str, Any] = values if isinstance(values, dict) else {}
        kind = class_of(name) if category == "kernel" else KernelClass.MEMCPY
        place: Word = kind
        equal = -1
        if kind is KernelClass.COMMUNICATION:
            group = (
                str(args.get("Process Group Description", "")),
                _whole(args.get("Group size")) or 0,
                str(args.get("Process Group Ranks", "")),
            )
            collective = str(args.get("Collective name", ""))
            place = self._axis(group, collective, name)
            key = (place, collective or name, args.get("In msg nelems"), args.get("dtype"))
            equal = self.keys.setdefault(tuple(map(str, key)), len(self.keys))
        device = _whole(args.get("device", event.get("pid")))
        self.start.append(start)
        self.duration.append(length)
        self.device.append(-1 if device is None or device >= 1 << 31 else device)
        self.kind.append(_POSITION[place])
        self.equal.append(equal)

    def _axis(self, group: tuple[str, int, str], collective: str, kernel: str) -> CommAxis:
        key = (*group, collective, kernel)
        if key not in self.axes:
            ranks = tuple(map(int, re.findall(r"\d{1,9}", group[2][:64])))[:2]
            known = ProcessGroup(description=group[0], size=group[1], ranks=ranks)
            self.axes[key] = axis_of(known, collective, kernel, self.degrees)
        return self.axes[key]

    def windows(self, source: str) -> list[_Window]:
        """Steps from the start of each to that of the next; the last only if it is the only one."""
        steps = self.steps[True] or self.steps[False]
        if not steps:
            problem = (
                "holds no steps (ProfilerStep#N): call step() of the profiler in the training loop"
            )
            raise InputError(Fault(source=source, problem=problem))
        on_device = bool(self.steps[True])
        ordered = sorted(steps.values())
        found = [
            _Window(start=start, work_end=min(end, after) if on_device else after, end=after)
            for (start, end), (after, _) in pairwise(ordered)
            if after > start
        ]
        return found or [_Window(start=a, work_end=b, end=b) for a, b in ordered[:1]]

    def means(
        self,
        source: str,
        windows: list[_Window],
        *,
        rank: int | None,
        world: int | None,
        device: str,
    ) -> TracedSteps:
        """Return the means of the steps."""
        events = _Events.of(self)
        parts = [_step_times(events, window) for window in windows]
        mean = {name: float(np.mean([one[name] for one in parts])) for name in parts[0]}
        inside = np.zeros(len(events.start), dtype=np.bool_)
        for window in windows:
            inside |= (events.start >= window.start) & (events.start < window.end)
        communication = {}
        for axis in CommAxis:
            rows = inside & (events.kind == _POSITION[axis])
            if rows.any():
                communication[axis] = TracedCommunication(
                    total_s=mean[f"{axis} total"],
                    exposed_s=mean[axis],
                    waiting_s=_waiting(events, rows) / len(windows),
                    kernels=float(rows.sum()) / len(windows),
                )
        names = ("step", *map(str, _COMPUTE), "memcpy", "idle", "between", "loading")
        return TracedSteps(
            source=source,
            rank=rank,
            world_size=world,
            device=device,
            steps=len(windows),
            communication=communication,
            **{f"{name}_s": mean[name] for name in names},
        )


_COMPUTE = (KernelClass.PRODUCTS, KernelClass.ATTENTION, KernelClass.OTHER)
_ORDER: tuple[Word, ...] = (*_COMPUTE, *CommAxis, KernelClass.MEMCPY)
_POSITION = {one: position for position, one in enumerate(_ORDER)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """Events of the device with the most of them, as columns."""

    start: Floats
    end: Floats
    kind: Ints
    equal: Ints
    loads: tuple[Floats, Floats]

    @classmethod
    def of(cls, collected: _Collected) -> "_Events":
        device = np.array(collected.device)
        devices, counts = np.unique(device, return_counts=True)
        rows = device == devices[np.argmax(counts)]
        start, length = np.array(collected.start)[rows], np.array(collected.duration)[rows]
        loads = np.array(collected.loads, dtype=np.float64).reshape(-1, 2)
        return cls(
            start=start,
            end=start + length,
            kind=np.array(collected.kind, dtype=np.int64)[rows],
            equal=np.array(collected.equal, dtype=np.int64)[rows],
            loads=(loads[:, 0], loads[:, 1]),
        )


def _step_times(events: _Events, window: _Window) -> dict[str, float]:
    """Disjoint times of a step, and the total of each axis [s].

    Where several run at once, the time counts for the first in `_ORDER`: the time of a class is
    what its intervals add to the union of those before it.
    """
    first, last = np.maximum(events.start, window.start), np.minimum(events.end, window.end)
    inside = last > first
    first, last, kind = first[inside], last[inside], events.kind[inside]
    busy, covered = (np.empty(0), np.empty(0)), 0.0
    found = {"step": window.end - window.start}
    for position, name in enumerate(_ORDER):
        rows = kind == position
        own = united(first[rows], last[rows])
        busy = united(np.concatenate([busy[0], own[0]]), np.concatenate([busy[1], own[1]]))
        found[f"{name} total"] = length(own)
        found[str(name)] = length(busy) - covered
        covered += found[str(name)]
    found["idle"] = found["step"] - covered

    def idle_in(start: Floats, end: Floats) -> float:
        """Idle time within some intervals."""
        first, last = np.maximum(start, window.start), np.minimum(end, window.end)
        some = last > first
        every = [np.concatenate(both) for both in zip(busy, (first[some], last[some]), strict=True)]
        return length(united(*every)) - covered

    found["between"] = idle_in(np.array([window.work_end]), np.array([window.end]))
    found["loading"] = idle_in(*events.loads)
    return found


def united(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Return the union of intervals as intervals that do not touch, in order.

    Parameters
    ----------
    start, end
        Of each interval; shape (n,).
    """
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > end[:-1]])
    return start[first], end[np.concatenate([first[1:], [True]])]


def length(intervals: tuple[Floats, Floats]) -> float:
    """Total length of intervals that do not overlap."""
    return float((intervals[1] - intervals[0]).sum())


def _waiting(events: _Events, rows: Bools) -> float:
    """Time of collectives beyond that of the fast ones among equal ones [s].

    Those behind compute are slower than those that run alone: they are no equals.
    """
    compute = events.kind < len(_COMPUTE)
    busy = united(events.start[compute], events.end[compute])
    times = events.end - events.start
    hidden = _covered(busy, events.end) - _covered(busy, events.start) > _HALF * times
    equals = 2 * events.equal + hidden
    waiting = 0.0
    for equal in np.unique(equals[rows]):
        same = times[rows & (equals == equal)]
        if len(same) >= _LEAST_EQUAL:
            fast = float(np.quantile(same, _TRANSFER, method="lower"))
            waiting += float(np.maximum(same - fast, 0.0).sum())
    return waiting


def _covered(intervals: tuple[Floats, Floats], until: Floats) -> Floats:
    """Length of intervals, which do not overlap and are in order, before some times."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(until))
    before = np.concatenate([[0.0], np.cumsum(end - start)])
    position = np.searchsorted(start, until, side="right")
    last = np.maximum(position - 1, 0)
    beyond = np.where(position > 0, np.maximum(end[last] - until, 0.0), 0.0)
    return before[position] - beyond


def _is_time(value: object) -> bool:
    """Whether a value is a finite number; traces may have text in its place."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) < _LATEST  # type: ignore[arg-type]


_LATEST = 1e18


def _whole(value: object) -> int | None:
    """A whole number of at least 0; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62:
        return value
    return None
