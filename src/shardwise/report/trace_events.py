"""A step as events of the Trace Event Format, which Perfetto and chrome://tracing open.

Every pipeline rank is a process. Its lanes are threads: compute, one for each kind of exchange and
of message, and one for the time in which it waits. Times are in microseconds, memory is in GiB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardwise.analysis.timeline.passes import WAITS
from shardwise.analysis.timeline.step import StepTimeline, kernels_of_pass
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD
from shardwise.report.console import GIB
from shardwise.report.trace_columns import Columns, rank_label

__all__ = ["Event", "trace_events"]

Event = dict[str, Any]

_LETTERS = {"forward": "F", "recompute": "R", "backward": "B", "weight_gradients": "W"}
# Reserved names of chrome://tracing; Perfetto gives slices of one name one colour of its own.
_COLOURS = {
    "forward": "thread_state_running",
    "recompute": "olive",
    "backward": "thread_state_runnable",
    "weight_gradients": "rail_animation",
    "pair": "rail_response",
    "optimizer": "startup",
    "exposed": "terrible",
    "hidden": "good",
    "transfer": "bad",
    "idle": "grey",
    "overhead": "grey",
    "left out": "white",
    "operation": "generic_work",
}
_NS = 1e9
_COMPUTE, _TRANSFERS, _REPLICAS, _IDLE = 0, 10, 20, 30
_EXCHANGE_LANES = {name: 1 + place for place, name in enumerate(WAITS)}
_LANE_NAMES = {
    _COMPUTE: "compute",
    _EXCHANGE_LANES["tp"]: "tensor parallel (tp)",
    _EXCHANGE_LANES["cp"]: "context parallel (cp)",
    _EXCHANGE_LANES["ep"]: "expert parallel (ep)",
    _EXCHANGE_LANES["offload"]: "offload",
    _REPLICAS: "replicas (dp)",
    _IDLE: "idle",
}
_MESSAGES = {FORWARD: "activations", BACKWARD: "gradients"}


def trace_events(
    timeline: StepTimeline, columns: Columns, *, operations: bool
) -> Iterator[list[Event]]:
    """Every event, process by process.

    Parameters
    ----------
    operations
        Whether the kernels of the first micro-batch of every chunk stand inside its slices.
    """
    for rank in range(timeline.pipeline.ranks):
        one = _Rank(timeline=timeline, columns=columns, rank=rank, nested=operations)
        yield one.events()


@dataclass(kw_only=True)
class _Rank:
    """Events of one pipeline rank."""

    timeline: StepTimeline
    columns: Columns
    rank: int
    nested: bool
    found: list[Event] = field(default_factory=list)
    used: set[int] = field(default_factory=lambda: {_COMPUTE, _IDLE})
    """Lanes that hold something."""
    ends: dict[int, int] = field(default_factory=dict)
    """By lane of messages, when the last one ended [ns]."""
    opened: set[tuple[str, int]] = field(default_factory=set)
    """Kinds of pass and virtual stages whose kernels have been shown."""

    def events(self) -> list[Event]:
        """Slices, arrows and counters, then the names of the lanes."""
        self._passes()
        self._after()
        self._counters()
        label = f"rank {self.rank}: {rank_label(self.timeline, self.rank)}"
        self._meta("process_name", name=label)
        self._meta("process_sort_index", sort_index=self.rank)
        names = _LANE_NAMES | {
            lane: f"{_MESSAGES[kind]} from rank {source}"
            for (kind, source), lane in self._message_lanes.items()
        }
        for lane in sorted(self.used):
            self._meta("thread_name", lane, name=names[lane])
            self._meta("thread_sort_index", lane, sort_index=lane)
        return self.found

    @cached_property
    def _message_lanes(self) -> dict[tuple[str, int], int]:
        """Lanes of messages by the kind of pass that waits for them and the rank that sends."""
        c = self.columns
        far = (at for group in c.groups[self.rank] for at in group if c.far[at])
        senders = sorted({(c.kind[at], c.rank[c.source[at]]) for at in far}, reverse=True)
        return {sender: _TRANSFERS + place for place, sender in enumerate(senders)}

    def _slice(
        self, name: str, category: str, lane: int, span: tuple[int, int], **args: Any
    ) -> None:
        """Add a complete event; its span is in nanoseconds."""
        self.used.add(lane)
        event = {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": span[0] / 1000,
            "dur": (span[1] - span[0]) / 1000,
            "pid": self.rank,
            "tid": lane,
            "cname": _COLOURS[category],
        }
        if args:
            event["args"] = args
        self.found.append(event)

    def _meta(self, what: str, lane: int = 0, **args: Any) -> None:
        event = {"name": what, "ph": "M", "pid": self.rank, "tid": lane, "args": args}
        self.found.append(event)

    def _passes(self) -> None:
        """Passes with what they wait for, idle times, and what is not shown one by one."""
        c, ended = self.columns, 0
        left_out: list[int] = []
        for group in c.groups[self.rank]:
            start, end = c.start[group[0]], c.end[group[0]]
            arrived = start - sum(c.waited[at] for at in group)
            if not c.shown[group[0]]:
                left_out.extend(group)
            else:
                self._left_out(left_out)
                left_out = []
                if arrived > ended:
                    self._slice("idle", "idle", _IDLE, (ended, arrived))
                self._incoming(group, arrived)
                self._pass(group, start, end)
            ended = end
        self._left_out(left_out)
        if c.passes_end > ended:
            self._slice("idle", "idle", _IDLE, (ended, c.passes_end))

    def _left_out(self, actions: Sequence[int]) -> None:
        if actions:
            span = self.columns.start[actions[0]], self.columns.end[actions[-1]]
            count = f"{len(actions)} {'pass' if len(actions) == 1 else 'passes'}"
            self._slice(f"{count} left out", "left out", _COMPUTE, span)

    def _incoming(self, group: Sequence[int], arrived: int) -> None:
        """What of a message travels beside compute, then what of it occupies the rank."""
        c = self.columns
        for at in group:
            if not c.far[at] or not c.hop:
                continue
            source, kind = c.source[at], c.kind[at]
            lane = self._message_lanes[kind, c.rank[source]]
            name = f"{kind} {c.micro_batch[at]}"
            # Drawn one after the other, though a slow link may carry several at once.
            sent = max(c.end[source], self.ends.get(lane, 0))
            there = min(c.end[source] + c.hop - c.waited[at], arrived)
            if there > sent:
                self._slice(name, "hidden", lane, (sent, there))
            if c.waited[at]:
                self._slice(name, "transfer", lane, (arrived, arrived + c.waited[at]))
            arrived += c.waited[at]
            self.ends[lane] = max(there, arrived)

    def _pass(self, group: Sequence[int], start: int, end: int) -> None:
        """Kernels one after the other, then what of each exchange is exposed; arrows to it."""
        ended = start
        for name, category, works, lasts, args in self._kernels(group):
            span = ended, min(end, ended + lasts)
            if span[1] > span[0]:
                self._slice(name, category, _COMPUTE, span, **args)
                self._operations(group, works, span)
            ended = span[1]
        c = self.columns
        for at in group:
            if c.far[at] and c.shown[c.source[at]] and ended > start:
                self._arrow(at, start)
        self._exchanges(group, (start, ended, end))

    def _exchanges(self, group: Sequence[int], span: tuple[int, int, int]) -> None:
        """What of each runs beside the kernels; then, one after the other, what is exposed.

        Parameters
        ----------
        span
            Start of the pass, end of its kernels, end of the pass [ns].
        """
        c, (start, ended, end) = self.columns, span
        label = " + ".join(self._name(at, c.kind[at]) for at in group)
        for name, lane in _EXCHANGE_LANES.items():
            hidden, exposed = (
                sum(of[c.kind[at]][name][c.stage[at]] for at in group)
                for of in (c.hidden, c.exposed)
            )
            beside = start, min(start + hidden, span[1])
            alone = ended, min(ended + exposed, end)
            for category, (begun, over) in (("hidden", beside), ("exposed", alone)):
                if over > begun:
                    self._slice(f"{name} {label}", category, lane, (begun, over))
            ended = max(ended, alone[1])

    def _name(self, at: int, letter: str) -> str:
        c = self.columns
        chunk = f" c{c.chunk[at]}" if self.timeline.pipeline.chunks_on_rank > 1 else ""
        return f"{letter} {c.micro_batch[at]}{chunk}"

    def _kernels(
        self, group: Sequence[int]
    ) -> Iterator[tuple[str, str, tuple[str, ...], int, dict[str, Any]]]:
        """Name, category, what for, duration and details of an action's slices, or of a pair's."""
        c = self.columns
        if len(group) > 1:
            names = [self._name(at, c.kind[at]) for at in group]
            lasts = c.kernels_end(group) - c.start[group[0]]
            details = {name: c.details_of(at) for name, at in zip(names, group, strict=True)}
            yield " + ".join(names), "pair", (), lasts, details
            return
        at = group[0]
        for works in c.works(at):
            name = self._name(at, _LETTERS[works[0]])
            yield name, works[0], works, c.lasts(at, works), c.details_of(at)

    def _operations(
        self, group: Sequence[int], works: tuple[str, ...], span: tuple[int, int]
    ) -> None:
        """Kernels of a slice inside it, the first time that it is one of its kind.

        Stretched to fill it: the host's share of a pass is no kernel's own.
        """
        c = self.columns
        place = "".join(works), c.stage[group[0]]
        if not self.nested or len(group) > 1 or place in self.opened:
            return
        self.opened.add(place)
        parts = kernels_of_pass(self.timeline, c.stage[group[0]], *works)
        whole = sum(time for part in parts for _, time in part.kernels)
        done = 0.0

        def at(time: float) -> int:
            return span[0] + round((span[1] - span[0]) * min(1.0, time / whole))

        for part in parts:
            begun, inside = done, []
            for name, time in part.kernels:
                inside.append((name, (at(done), at(done + time))))
                done += time
            self._slice(part.name, "operation", _COMPUTE, (at(begun), at(done)))
            for name, where in inside:
                if where[1] > where[0]:
                    self._slice(name, "operation", _COMPUTE, where)

    def _arrow(self, at: int, start: int) -> None:
        """From the slice whose result a message brings to the one that waits for it."""
        c = self.columns
        source = c.source[at]
        sent = c.kernels_end(c.group_of[source]) - 1
        if sent < c.start[source]:  # a stage without layers has no slice
            return
        common = {"name": "message", "cat": "message", "id": at, "tid": _COMPUTE}
        self.found.append(common | {"ph": "s", "ts": sent / 1000, "pid": c.rank[source]})
        self.found.append(common | {"ph": "f", "bp": "e", "ts": start / 1000, "pid": self.rank})

    def _after(self) -> None:
        """What follows the last pass on all ranks, and what of it ran before beside compute."""
        at = end = self.columns.passes_end
        hidden = min(round(self.timeline.dp_hidden_s * _NS), at)
        if hidden:
            self._slice("replicas", "hidden", _REPLICAS, (at - hidden, at))
        lanes = {
            "replicas": ("exposed", _REPLICAS),
            "offload": ("exposed", _EXCHANGE_LANES["offload"]),
            "optimizer": ("optimizer", _COMPUTE),
            "overhead": ("overhead", _IDLE),
        }
        for name, time in self.timeline.after_s.items():
            end = at + round(time * _NS)
            category, lane = lanes[name]
            if end > at:
                self._slice(name, category, lane, (at, end))
            at = end

    def _counters(self) -> None:
        """Memory over time, copies that the update makes where the rank is fullest then."""
        line, memory, at = self.timeline, self.timeline.memory, self.columns.passes_end
        samples = [(0, 0.0, 0.0), *self.columns.samples(self.rank), (at, 0.0, 0.0)]
        if memory.in_update[self.rank]:
            begun = at + round((line.after_s["replicas"] + line.after_s["offload"]) * _NS)
            ended = begun + round(line.after_s["optimizer"] * _NS)
            copies = float(memory.buffers[self.rank])
            samples += [(begun, 0.0, copies), (ended, 0.0, 0.0)]
        static = {
            name: round(float(getattr(memory, name)[self.rank]) / GIB, 4)
            for name in ("weights", "gradients", "optimizer")
        }
        last: tuple[float, float] | None = None
        for time, kept, live in samples:
            values = round(kept / GIB, 4) + 0.0, round(live / GIB, 4)
            if values != last:
                held = static | {"activations": values[0], "transient": values[1]}
                event = {"name": "memory [GiB]", "ph": "C", "ts": time / 1000, "pid": self.rank}
                self.found.append(event | {"args": held})
            last = values
