"""`trace`: the timeline of one strategy as a summary, and as a file for Perfetto or PyTorch."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from shardwise.analysis.timeline.actions import KINDS, WAITS
from shardwise.analysis.timeline.step import (
    StepTimeline,
    kernels_of_pass,
    passes_in_step,
    rank_totals,
    step_timeline,
)
from shardwise.arrays import Bools, Floats
from shardwise.config import files
from shardwise.config.keywords import StrategyKeywords
from shardwise.config.model import Model, ModelLike
from shardwise.config.plain import plain
from shardwise.config.strategy_input import StrategyLike, strategy_of
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, check_flags
from shardwise.frozen import FrozenRecord
from shardwise.parallel.constraints import refuse_illegal
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD, WEIGHTS
from shardwise.report.console import GIB
from shardwise.report.memory_snapshot import as_pickle, memory_snapshot
from shardwise.shown import Charted

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


# About 1 kB of JSON each: files that Perfetto opens in a few seconds.
_MOST_WRITTEN = 100_000
# Simulated in about ten seconds and a gigabyte.
_MOST_SIMULATED = 1_000_000
_SNAPSHOT = ".pickle"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Trace(FrozenRecord, Charted):
    """The timeline of one step of one strategy.

    Examples
    --------
    >>> from shardwise import trace
    >>> step = trace("llama3-70b", "h100-sxm", gpus=64, tp=8, pp=2, gbs=128)
    >>> step.timeline.fits, len(step.to_dict()["ranks"])
    (True, 2)
    """

    model: str
    system: str
    strategy: Mapping[str, Any]
    """All fields, defaults filled in."""
    timeline: StepTimeline
    micro_batches: int | None
    """Write the first so many one by one; None: all."""
    operations: bool
    """Whether to write the kernels of one micro-batch."""

    def to_dict(self) -> dict[str, Any]:
        """Return the summary: times and peak memory of every rank."""
        line = self.timeline
        return {
            "model": self.model,
            "system": self.system,
            "strategy": plain(self.strategy),
            "micro_batches": line.pipeline.micro_batches,
            "passes": len(line.actions),
            "step_time_s": line.step_s,
            "estimated_step_time_s": line.estimated_s,
            "fits": line.fits,
            "passes_s": line.passes_s,
            "after_s": dict(line.after_s),
            "ranks": self._ranks(),
        }

    def _ranks(self) -> list[dict[str, Any]]:
        line, totals = self.timeline, rank_totals(self.timeline)

        def named(columns: Mapping[str, Any], rank: int) -> dict[str, float]:
            return {name: float(column[rank]) for name, column in columns.items()}

        return [
            {
                "rank": rank,
                "holds": line.rank_label(rank),
                "compute_s": named(totals.kernels_s, rank),
                "exchanges_s": named(totals.exposed_s, rank),
                "transfers_s": float(totals.transfers_s[rank]),
                "idle_s": float(totals.idle_s[rank]),
                "static_bytes": float(line.static_bytes[rank]),
                "peak_bytes": float(totals.peak_bytes[rank]),
                "peak_s": float(totals.peak_s[rank]),
                "peak_in": _action(line, totals.peak_action[rank]),
            }
            for rank in range(line.pipeline.ranks)
        ]

    def to_chrome(self) -> dict[str, Any]:
        """Return the step in the Trace Event Format.

        Raises
        ------
        InputError
            If it has too many passes for a file that can be opened.
        """
        return self._around() | {"traceEvents": list(chain.from_iterable(self._events()))}

    def to_snapshot(self) -> dict[str, object]:
        """Return the memory of every rank as a snapshot of PyTorch's allocator."""
        if (passes := len(self.timeline.actions)) > _MOST_WRITTEN:
            problem = (
                f"{passes:,} passes are more than the {_MOST_WRITTEN:,} that a memory snapshot may "
                "hold; a smaller batch shows the same pattern"
            )
            batch = self.strategy["global_batch_size"]
            raise InputError.of("global_batch_size", batch, problem)
        return memory_snapshot(self.timeline, offloaded=self.strategy["offload_activations"])

    def to_file(self, path: str | Path) -> None:
        """Write `to_chrome` (`.json`, `.json.gz`) or `to_snapshot` (`.pickle`), or nothing."""
        check_trace_file(path)
        if is_snapshot_file(path):
            files.write_bytes(path, as_pickle(self.to_snapshot()))
            return
        # Rank by rank: all events as objects take ten times the memory.
        listed = ",\n".join(_json(events)[1:-1] for events in self._events())
        around = _json(self._around())[:-1]
        files.write_text(path, f'{around},"traceEvents":[\n{listed}\n]}}\n')

    def _around(self) -> dict[str, object]:
        """The contents of the file besides events."""
        config = {"model": self.model, "system": self.system, "strategy": self.strategy}
        time = {"step_time_s": self.timeline.step_s}
        return {"displayTimeUnit": "ms", "otherData": plain(config | time)}

    def _events(self) -> Iterator[list[Event]]:
        self._check_size()
        return trace_events(self.timeline, self.micro_batches, operations=self.operations)

    def _check_size(self) -> None:
        every = self.timeline.pipeline.micro_batches
        written = every if self.micro_batches is None else min(self.micro_batches, every)
        passes = len(self.timeline.actions) * written // every
        if passes > _MOST_WRITTEN:
            fewer = max(1, _MOST_WRITTEN * every // len(self.timeline.actions))
            problem = (
                f"{passes:,} passes on {self.timeline.pipeline.ranks} ranks are more than the "
                f"{_MOST_WRITTEN:,} that a file may hold; write at most {fewer}"
            )
            raise InputError.of("micro_batches", written, problem)


def trace(
    model: ModelLike,
    system: SystemLike,
    strategy: StrategyLike | None = None,
    *,
    micro_batches: int | None = None,
    operations: bool = False,
    **fields: Unpack[StrategyKeywords],
) -> Trace:
    """Simulate one step of one strategy, pass by pass.

    Parameters
    ----------
    model, system, strategy, **fields
        As for `estimate`.
    micro_batches
        Write only the first so many one by one; all are simulated.
    operations
        Whether to write every kernel of one micro-batch too.

    Returns
    -------
    Trace
        The timeline of the step; `help(shardwise.Trace)` lists its fields.

    Raises
    ------
    InputError
        If any argument is wrong; one fault for each problem.

    Examples
    --------
    >>> from shardwise import trace
    >>> step = trace("llama3-70b", "h100-sxm", gpus=64, tp=8, pp=2, gbs=128)
    >>> len(step.to_dict()["ranks"])
    2
    """
    check_flags(operations=operations)
    is_integer = isinstance(micro_batches, int) and not isinstance(micro_batches, bool)
    if micro_batches is not None and not (is_integer and micro_batches >= 1):
        problem = "must be a whole number of at least 1"
        place = {"field": "micro_batches", "problem": problem}
        raise InputError(Fault(**place, value=micro_batches, has_value=True))
    the_model, the_system = Model.load(model), System.load(system)
    resolved = strategy_of(strategy, fields).resolved(the_model, the_system)
    table = Table.of(the_model, [resolved])
    refuse_illegal(the_model, the_system, table)
    passes = passes_in_step(table)
    if passes > _MOST_SIMULATED:
        problem = (
            f"{passes:,} passes are more than the {_MOST_SIMULATED:,} that are simulated; "
            "a smaller batch shows the same pattern"
        )
        batch = int(table.global_batch_size[0])
        raise InputError.of("global_batch_size", batch, problem)
    return Trace(
        model=the_model.name,
        system=the_system.name,
        strategy=resolved.to_dict(),
        timeline=step_timeline(the_model, the_system, table),
        micro_batches=micro_batches,
        operations=operations,
    )


def check_trace_file(path: str | Path) -> None:
    """Raise an `InputError` if a trace cannot be written to a file, before it is made."""
    if not str(path).lower().endswith((".json", ".json.gz", _SNAPSHOT)):
        problem = f"cannot be written; allowed endings: .json, .json.gz, {_SNAPSHOT}"
        raise InputError.at(path, problem)
    files.check_output_path(path)


def is_snapshot_file(path: str | Path) -> bool:
    """Tell by its ending whether a file is for PyTorch's memory viewer."""
    return str(path).lower().endswith(_SNAPSHOT)


def _json(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _action(line: StepTimeline, at: int | None) -> str:
    """An action by its kind, micro-batch and chunk: `B 3 c1`; or the weight update."""
    if at is None:
        return "update"
    actions = line.actions
    chunk = f" c{actions.chunk[at]}" if line.pipeline.chunks_on_rank > 1 else ""
    return f"{KINDS[int(actions.kind[at])]} {actions.micro_batch[at]}{chunk}"
