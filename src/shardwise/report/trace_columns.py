"""Actions of a timeline as plain lists in whole nanoseconds, for events to be written from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.analysis.timeline.actions import KINDS
from shardwise.analysis.timeline.step import StepTimeline
from shardwise.arrays import Bools, Floats
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD, WEIGHTS

__all__ = ["Columns", "columns_of", "rank_label", "stage_label"]


def stage_label(timeline: StepTimeline, stage: int) -> str:
    """What stands on a virtual stage: `layers 0-9, head`."""
    first = sum(len(kinds) for kinds in timeline.layer_kinds[:stage])
    count = len(timeline.layer_kinds[stage])
    layers = f"layers {first}-{first + count - 1}" if count > 1 else f"layer {first}"
    mtp, embedding, head = (float(held[stage]) for held in timeline.stages.resident[-3:])
    named = {layers: count, "embedding": embedding, "mtp": mtp, "head": head}
    return ", ".join(name for name, there in named.items() if there) or "no layers"


def rank_label(timeline: StepTimeline, rank: int) -> str:
    """What stands on a rank, chunk by chunk."""
    stages = timeline.pipeline.stage_of_chunk[rank].tolist()
    return "; ".join(stage_label(timeline, stage) for stage in stages)


_NS = 1e9
_WEIGHTS = "weight_gradients"
# What the slices of a pass are for; a whole backward gives both kinds of gradients at once.
_WORKS = {
    (FORWARD, False): (("forward",),),
    (BACKWARD, False): (("recompute",), ("backward",)),
    (BACKWARD, True): (("recompute",), ("backward", _WEIGHTS)),
    (WEIGHTS, False): ((_WEIGHTS,),),
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """One item per action (see `timeline.actions.Actions`), but for the last ones."""

    rank: list[int]
    kind: list[str]
    micro_batch: list[int]
    chunk: list[int]
    stage: list[int]
    whole: list[bool]
    source: list[int]
    far: list[bool]
    shown: list[bool]
    start: list[int]
    end: list[int]
    waited: list[int]
    kept: list[float]
    """Activations while it runs [byte]."""
    after: list[float]
    live: list[float]
    groups: list[list[tuple[int, ...]]]
    """By rank: actions in order, the two of a pair together."""
    group_of: dict[int, tuple[int, ...]]
    """By action, its group."""
    kernels: dict[str, list[int]]
    """By what they are for, of one micro-batch on every virtual stage."""
    exposed: dict[str, dict[str, list[int]]]
    """By kind of pass and exchange, likewise."""
    hidden: dict[str, dict[str, list[int]]]
    details: dict[tuple[str, int, bool], dict[str, Any]]
    """What a slice tells of its action: by kind, virtual stage, and whether it is whole."""
    passes_end: int
    hop: int

    def works(self, at: int) -> tuple[tuple[str, ...], ...]:
        """What the slices of an action are for."""
        return _WORKS[self.kind[at], self.whole[at]]

    def lasts(self, at: int, works: Iterable[str]) -> int:
        """Time of an action's kernels that are for this."""
        return sum(self.kernels[name][self.stage[at]] for name in works)

    def kernels_end(self, group: Sequence[int]) -> int:
        """When the last kernel of an action or a pair ends."""
        lasts = sum(self.lasts(at, work) for at in group for work in self.works(at))
        return min(self.end[group[0]], self.start[group[0]] + lasts)

    def details_of(self, at: int) -> dict[str, Any]:
        """What the slices of an action tell."""
        told = self.details[self.kind[at], self.stage[at], self.whole[at]]
        return {"micro_batch": self.micro_batch[at], **told}

    def samples(self, rank: int) -> Iterator[tuple[int, float, float]]:
        """Time, kept activations and what lives for a moment, where they change.

        Of passes that are not shown one by one, the fullest.
        """
        left_out: list[tuple[int, float, float]] = []
        for place, group in enumerate(self.groups[rank]):
            last = group[-1]
            now = self.start[last], self.kept[last], self.live[last]
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


def columns_of(timeline: StepTimeline, micro_batches: int | None) -> Columns:
    """Turn the actions into lists.

    Parameters
    ----------
    micro_batches
        Only the first so many are shown one by one, in DualPipe of both directions together; None:
        all of them.
    """
    actions, held = timeline.actions, timeline.held
    rank, paired = actions.rank.tolist(), actions.paired.tolist()
    groups: list[list[tuple[int, ...]]] = [[] for _ in range(timeline.pipeline.ranks)]
    for at, one in enumerate(rank):
        if paired[at]:
            groups[one].append((at, at + 1))
        elif not (at and paired[at - 1]):
            groups[one].append((at,))
    passes = timeline.passes.of
    return Columns(
        rank=rank,
        kind=[KINDS[code] for code in actions.kind.tolist()],
        micro_batch=actions.micro_batch.tolist(),
        chunk=actions.chunk.tolist(),
        stage=actions.stage.tolist(),
        whole=actions.whole.tolist(),
        source=actions.source.tolist(),
        far=actions.far.tolist(),
        shown=_shown(timeline, micro_batches).tolist(),
        start=_ns(actions.start_s),
        end=_ns(actions.end_s),
        waited=_ns(actions.waited_s),
        kept=held.activations.tolist(),
        after=held.after.tolist(),
        live=held.live.tolist(),
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
    whole: list[int] = np.rint(seconds * _NS).astype(np.int64).tolist()
    return whole


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


def _details(timeline: StepTimeline) -> dict[tuple[str, int, bool], dict[str, Any]]:
    """Stage, what stands there, seconds by part, and bytes of a micro-batch there."""
    found = {}
    for kind, whole in _WORKS:
        one = timeline.passes.of[kind]
        also = timeline.passes.of[WEIGHTS].kernels_s if whole else {}
        times = {**one.kernels_s, **also, **one.exposed_s}
        for stage in range(timeline.pipeline.stages):
            told = {name: float(time[stage]) for name, time in times.items()}
            kept = timeline.passes.kept_bytes + timeline.passes.embedding_bytes
            found[kind, stage, whole] = {
                "stage": stage,
                "holds": stage_label(timeline, stage),
                "ms": {name: round(1e3 * time, 4) for name, time in told.items() if time > 0},
                "kept_mib": round(float(kept[stage]) / 2**20, 1),
                "transient_mib": round(float(one.transient_bytes[stage]) / 2**20, 1),
            }
    return found
