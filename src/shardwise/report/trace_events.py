"""A step as events of the Trace Event Format, which Perfetto and chrome://tracing open.

Every pipeline rank is a process. Its lanes are threads: compute, one for each kind of communication
and of message, and one for idle time. Times are in microseconds, memory is in GiB.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from shardwise.analysis.timeline.actions import KINDS, WAITS
from shardwise.analysis.timeline.step import StepTimeline, kernels_of_pass
from shardwise.arrays import Bools, Floats
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD, WEIGHTS
from shardwise.report.console import GIB

Event = dict[str, Any]

_LETTERS = {"forward": "F", "recompute": "R", "backward": "B", "weight_gradients": "W"}
# Reserved names of chrome://tracing; Perfetto gives slices of one name one color of its own.
_COLORS = {
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
_WAIT_LANES = {name: 1 + place for place, name in enumerate(WAITS)}
_LANE_NAMES = {
    _COMPUTE: "compute",
    _WAIT_LANES["tp"]: "tensor parallel (tp)",
    _WAIT_LANES["cp"]: "context parallel (cp)",
    _WAIT_LANES["ep"]: "expert parallel (ep)",
    _WAIT_LANES["offload"]: "offload",
    _REPLICAS: "replicas (dp)",
    _IDLE: "idle",
}
_MESSAGES = {FORWARD: "activations", BACKWARD: "gradients"}


_WEIGHTS = "weight_gradients"
# Purposes of the slices of a pass; a backward without a later W computes both gradients at once.
_PURPOSES = {
    (FORWARD, False): (("forward",),),
    (BACKWARD, False): (("recompute",), ("backward",)),
    (BACKWARD, True): (("recompute",), ("backward", _WEIGHTS)),
    (WEIGHTS, False): ((_WEIGHTS,),),
}


def trace_events(
    timeline: StepTimeline, micro_batches: int | None, *, operations: bool
) -> Iterator[list[Event]]:
    """All events, process by process.

    Parameters
    ----------
    micro_batches
        Show only the first so many one by one, in DualPipe of both directions together; None: all.
    operations
        Whether slices of the first micro-batch of every chunk contain its kernels.
    """
    columns = _columns_of(timeline, micro_batches)
    for rank in range(timeline.pipeline.ranks):
        one = _Rank(timeline=timeline, columns=columns, rank=rank, nested=operations)
        yield one.events()


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Actions as plain lists in nanoseconds: one item per action, except for the last fields."""

    rank: list[int]
    kind: list[str]
    micro_batch: list[int]
    chunk: list[int]
    stage: list[int]
    has_weight_grads: list[bool]
    source: list[int]
    far: list[bool]
    shown: list[bool]
    start: list[int]
    end: list[int]
    waited: list[int]
    saved: list[float]
    """Saved activations while it runs [byte]."""
    after: list[float]
    live: list[float]
    groups: list[list[tuple[int, ...]]]
    """By rank: actions in order, the two of a pair together."""
    group_of: dict[int, tuple[int, ...]]
    """By action, its group."""
    kernels: dict[str, list[int]]
    """By purpose, of one micro-batch on every virtual stage."""
    exposed: dict[str, dict[str, list[int]]]
    """By kind of pass and of wait, likewise."""
    hidden: dict[str, dict[str, list[int]]]
    details: dict[tuple[str, int, bool], dict[str, Any]]
    """Details of a slice: by kind, virtual stage, and whether it has both gradients."""
    passes_end: int
    hop: int

    def purposes(self, at: int) -> tuple[tuple[str, ...], ...]:
        """Purposes of the slices of an action."""
        return _PURPOSES[self.kind[at], self.has_weight_grads[at]]

    def lasts(self, at: int, purposes: Iterable[str]) -> int:
        """Time of an action's kernels for these purposes."""
        return sum(self.kernels[name][self.stage[at]] for name in purposes)

    def kernels_end(self, group: Sequence[int]) -> int:
        """When the last kernel of an action or a pair ends."""
        lasts = sum(self.lasts(at, work) for at in group for work in self.purposes(at))
        return min(self.end[group[0]], self.start[group[0]] + lasts)

    def details_of(self, at: int) -> dict[str, object]:
        """Details of the slices of an action."""
        details = self.details[self.kind[at], self.stage[at], self.has_weight_grads[at]]
        return {"micro_batch": self.micro_batch[at], **details}

    def samples(self, rank: int) -> Iterator[tuple[int, float, float]]:
        """Time, saved activations and temporary tensors, where they change.

        Passes that are not shown one by one count with their peak.
        """
        left_out: list[tuple[int, float, float]] = []
        for place, group in enumerate(self.groups[rank]):
            last = group[-1]
            now = self.start[last], self.saved[last], self.live[last]
            if not self.shown[last]:
                left_out.append(now)
                continue
            if left_out:
                yield max(left_out, key=lambda one: one[1] + one[2])
                left_out = []
            yield now
            following = self.groups[rank][place + 1 : place + 2]
            if not following or self.start[following[0][0]] > self.end[last]:
                yield self.end[last], self.after[last], 0.0
        if left_out:
            yield max(left_out, key=lambda one: one[1] + one[2])
            yield self.end[self.groups[rank][-1][-1]], 0.0, 0.0


def _columns_of(timeline: StepTimeline, micro_batches: int | None) -> _Columns:
    """Turn the actions into lists."""
    actions, memory = timeline.actions, timeline.memory_at_actions
    rank, paired = actions.rank.tolist(), actions.paired.tolist()
    groups: list[list[tuple[int, ...]]] = [[] for _ in range(timeline.pipeline.ranks)]
    for at, one in enumerate(rank):
        if paired[at]:
            groups[one].append((at, at + 1))
        elif not (at and paired[at - 1]):
            groups[one].append((at,))
    passes = timeline.passes.of
    return _Columns(
        rank=rank,
        kind=[KINDS[code] for code in actions.kind.tolist()],
        micro_batch=actions.micro_batch.tolist(),
        chunk=actions.chunk.tolist(),
        stage=actions.stage.tolist(),
        has_weight_grads=actions.has_weight_grads.tolist(),
        source=actions.source.tolist(),
        far=actions.far.tolist(),
        shown=_shown(timeline, micro_batches).tolist(),
        start=_ns(actions.start_s),
        end=_ns(actions.end_s),
        waited=_ns(actions.waited_s),
        saved=memory.activations.tolist(),
        after=memory.after.tolist(),
        live=memory.live.tolist(),
        groups=groups,
        group_of={at: group for row in groups for group in row for at in group},
        kernels={n: _ns(time) for one in passes.values() for n, time in one.kernels_s.items()},
        exposed={kind: _all_ns(one.exposed_s) for kind, one in passes.items()},
        hidden={kind: _all_ns(one.hidden_s) for kind, one in passes.items()},
        details=_details(timeline),
        passes_end=round(timeline.passes_s * _NS),
        hop=round(timeline.pipeline.hop_s * _NS),
    )


def _ns(seconds: Floats) -> list[int]:
    rounded: list[int] = np.rint(seconds * _NS).astype(np.int64).tolist()
    return rounded


def _all_ns(times: Mapping[str, Floats]) -> dict[str, list[int]]:
    return {name: _ns(time) for name, time in times.items()}


def _shown(timeline: StepTimeline, micro_batches: int | None) -> Bools:
    actions, pipeline = timeline.actions, timeline.pipeline
    if micro_batches is None:
        return np.ones(len(actions), dtype=np.bool_)
    number = actions.micro_batch
    if pipeline.schedule == "dualpipe":
        half = pipeline.micro_batches // 2
        number = 2 * (number % half) + number // half
    shown: Bools = number < micro_batches
    # The two of a pair share their slice.
    first = np.flatnonzero(actions.paired)
    shown[first] = shown[first + 1] = shown[first] | shown[first + 1]
    return shown


def _details(timeline: StepTimeline) -> dict[tuple[str, int, bool], dict[str, object]]:
    """Stage, its components, times and memory of a micro-batch there."""
    found = {}
    for kind, both in _PURPOSES:
        one = timeline.passes.of[kind]
        also = timeline.passes.of[WEIGHTS].kernels_s if both else {}
        times = {**one.kernels_s, **also, **one.exposed_s}
        for stage in range(timeline.pipeline.stages):
            seconds = {name: float(time[stage]) for name, time in times.items()}
            saved = timeline.passes.saved_bytes + timeline.passes.embedding_bytes
            found[kind, stage, both] = {
                "stage": stage,
                "holds": timeline.stage_label(stage),
                "ms": {name: round(1e3 * time, 4) for name, time in seconds.items() if time > 0},
                "kept_mib": round(float(saved[stage]) / 2**20, 1),
                "transient_mib": round(float(one.transient_bytes[stage]) / 2**20, 1),
            }
    return found


@dataclass(kw_only=True)
class _Rank:
    """Events of one pipeline rank."""

    timeline: StepTimeline
    columns: _Columns
    rank: int
    nested: bool
    found: list[Event] = field(default_factory=list)
    used: set[int] = field(default_factory=lambda: {_COMPUTE, _IDLE})
    """Lanes that have slices."""
    ends: dict[int, int] = field(default_factory=dict)
    """By lane of messages, the end of the last one [ns]."""
    opened: set[tuple[str, int]] = field(default_factory=set)
    """Purposes and virtual stages whose kernels have been shown."""

    def events(self) -> list[Event]:
        """Slices, arrows and counters, then the names of the lanes."""
        self._passes()
        self._after()
        self._counters()
        label = f"rank {self.rank}: {self.timeline.rank_label(self.rank)}"
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
        self, name: str, category: str, lane: int, span: tuple[int, int], **args: object
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
            "cname": _COLORS[category],
        }
        if args:
            event["args"] = args
        self.found.append(event)

    def _meta(self, what: str, lane: int = 0, **args: object) -> None:
        event = {"name": what, "ph": "M", "pid": self.rank, "tid": lane, "args": args}
        self.found.append(event)

    def _passes(self) -> None:
        """Passes with their messages, idle times, and passes that are not shown one by one."""
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
        """The part of a message that overlaps with compute, then the part that blocks the rank."""
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
        """Kernels one after the other, then exposed waits; arrows from messages."""
        ended = start
        for name, category, purposes, lasts, args in self._kernels(group):
            span = ended, min(end, ended + lasts)
            if span[1] > span[0]:
                self._slice(name, category, _COMPUTE, span, **args)
                self._operations(group, purposes, span)
            ended = span[1]
        c = self.columns
        for at in group:
            if c.far[at] and c.shown[c.source[at]] and ended > start:
                self._arrow(at, start)
        self._waits(group, (start, ended, end))

    def _waits(self, group: Sequence[int], span: tuple[int, int, int]) -> None:
        """The hidden part of each wait alongside the kernels; then the exposed parts in turn.

        Parameters
        ----------
        span
            Start of the pass, end of its kernels, end of the pass [ns].
        """
        c, (start, ended, end) = self.columns, span
        label = " + ".join(self._name(at, c.kind[at]) for at in group)
        for name, lane in _WAIT_LANES.items():
            hidden, exposed = (
                sum(of[c.kind[at]][name][c.stage[at]] for at in group)
                for of in (c.hidden, c.exposed)
            )
            alongside = start, min(start + hidden, span[1])
            alone = ended, min(ended + exposed, end)
            for category, (begun, over) in (("hidden", alongside), ("exposed", alone)):
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
        """Name, category, purposes, duration and details of the slices of an action or a pair."""
        c = self.columns
        if len(group) > 1:
            names = [self._name(at, c.kind[at]) for at in group]
            lasts = c.kernels_end(group) - c.start[group[0]]
            details = {name: c.details_of(at) for name, at in zip(names, group, strict=True)}
            yield " + ".join(names), "pair", (), lasts, details
            return
        at = group[0]
        for purposes in c.purposes(at):
            name = self._name(at, _LETTERS[purposes[0]])
            yield name, purposes[0], purposes, c.lasts(at, purposes), c.details_of(at)

    def _operations(
        self, group: Sequence[int], purposes: tuple[str, ...], span: tuple[int, int]
    ) -> None:
        """Kernels inside a slice, for the first slice of its kind.

        They are stretched to fill it: the host's share of a pass belongs to no kernel.
        """
        c = self.columns
        place = "".join(purposes), c.stage[group[0]]
        if not self.nested or len(group) > 1 or place in self.opened:
            return
        self.opened.add(place)
        parts = kernels_of_pass(self.timeline, c.stage[group[0]], *purposes)
        total = sum(time for part in parts for _, time in part.kernels)
        done = 0.0

        def at(time: float) -> int:
            return span[0] + round((span[1] - span[0]) * min(1.0, time / total))

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
        """Arrow from the slice that sends a message to the one that waits for it."""
        c = self.columns
        source = c.source[at]
        sent = c.kernels_end(c.group_of[source]) - 1
        if sent < c.start[source]:  # a stage without layers has no slice
            return
        common = {"name": "message", "cat": "message", "id": at, "tid": _COMPUTE}
        self.found.append(common | {"ph": "s", "ts": sent / 1000, "pid": c.rank[source]})
        self.found.append(common | {"ph": "f", "bp": "e", "ts": start / 1000, "pid": self.rank})

    def _after(self) -> None:
        """What follows the last pass on all ranks, and what was hidden behind the passes."""
        at = end = self.columns.passes_end
        hidden = min(round(self.timeline.dp_hidden_s * _NS), at)
        if hidden:
            self._slice("replicas", "hidden", _REPLICAS, (at - hidden, at))
        lanes = {
            "replicas": ("exposed", _REPLICAS),
            "offload": ("exposed", _WAIT_LANES["offload"]),
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
        """Memory over time, with the copies of the weight update where they are the peak."""
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
        for time, saved, live in samples:
            values = round(saved / GIB, 4) + 0.0, round(live / GIB, 4)
            if values != last:
                sizes = static | {"activations": values[0], "transient": values[1]}
                event = {"name": "memory [GiB]", "ph": "C", "ts": time / 1000, "pid": self.rank}
                self.found.append(event | {"args": sizes})
            last = values
