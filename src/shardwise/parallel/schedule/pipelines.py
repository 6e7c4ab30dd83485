"""What closed forms take in and give back: many pipelines as columns."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.parallel.schedule.paths import SAME
from shardwise.parallel.schedule.ranks import Passes, Ranks

__all__ = ["Pipelines", "Solved", "Times"]


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of one kind of pass of one micro-batch."""

    on_stage: Floats
    """On a stage of each run, all its chunks together, (runs, rows)."""
    on_first: Floats
    """More, on the first virtual stage only: the embedding."""
    on_last: Floats
    """More, on the last virtual stage only: the head."""
    on_early: Floats | None = None
    """In ZB-V, of `on_stage` what the earlier of its two chunks takes; None: half."""
    on_late: Floats | None = None
    """Interleaved, of `on_stage` what the last of its chunks takes; None: an equal share."""

    @property
    def chunks_of_v(self) -> tuple[Floats, Floats]:
        """What the earlier and the later chunk of a stage take."""
        early = 0.5 * self.on_stage if self.on_early is None else self.on_early
        return early, self.on_stage - early

    def chunks_apart(self, chunks: Ints) -> tuple[Floats, Floats]:
        """What every chunk of a stage but the last takes, on average, and the last."""
        if self.on_late is None:
            equal = self.on_stage / chunks
            return equal, equal
        return (self.on_stage - self.on_late) / (chunks - 1), self.on_late

    def take(self, rows: Ints) -> "Times":
        """Those of some rows."""
        return Times(
            on_stage=self.on_stage[:, rows],
            on_first=self.on_first[rows],
            on_last=self.on_last[rows],
            on_early=None if self.on_early is None else self.on_early[:, rows],
            on_late=None if self.on_late is None else self.on_late[:, rows],
        )

    def __add__(self, other: "Times") -> "Times":
        """Passes one right after the other."""
        late = self.on_late
        if late is not None and other.on_late is not None:
            late = late + other.on_late
        return Times(
            on_stage=self.on_stage + other.on_stage,
            on_first=self.on_first + other.on_first,
            on_last=self.on_last + other.on_last,
            on_late=late,
        )


@dataclass(frozen=True, kw_only=True)
class Pipelines:
    """Pipelines of one schedule, one per row."""

    lengths: Ints
    """Stages in each run of equal ones, (runs, rows)."""
    forward: Times
    input_grad: Times
    weight_grad: Times
    micro_batches: Ints
    chunks: Ints
    hop_s: Floats
    """Time of one message."""
    few: bool
    """Whether any row has so few micro-batches that the end of a step meets its start."""
    blocking: bool
    """Whether messages occupy the rank that receives them; else they travel beside compute."""
    pair_share: Floats
    """Time of an overlapped forward and backward over the sum of both."""

    @property
    def stages(self) -> Ints:
        """Stages of each pipeline, p."""
        count: Ints = self.lengths.sum(axis=0)
        return count

    @cached_property
    def unlike_chunks(self) -> Bools:
        """Rows where the last chunk of a rank takes another time; one rank alone never waits."""
        unlike = np.zeros(self.chunks.shape, dtype=np.bool_)
        for times in (self.forward, self.input_grad, self.weight_grad):
            if times.on_late is not None:
                more = np.abs(self.chunks * times.on_late - times.on_stage)
                unlike |= np.any((self.lengths > 0) & (more > SAME * times.on_stage), axis=0)
        return unlike & (self.stages > 1)

    def with_like_chunks(self) -> "Pipelines":
        """The same where every chunk takes an equal share."""
        kinds = ("forward", "input_grad", "weight_grad")
        return replace(self, **{k: replace(getattr(self, k), on_late=None) for k in kinds})

    @property
    def backward(self) -> Times:
        """B with the weights' gradient."""
        return self.input_grad + self.weight_grad

    @property
    def blocking_s(self) -> Floats:
        """What a message takes of the rank that receives it."""
        return self.hop_s if self.blocking else np.zeros(self.hop_s.shape)

    @property
    def beside_s(self) -> Floats:
        """What it takes beside the ranks."""
        return self.hop_s - self.blocking_s

    def arriving(self, ranks: Ranks, on_stage: Floats) -> Passes:
        """Passes of the stages alone, each with the message it waits for."""
        passes = ranks.passes(on_stage + self.blocking_s, self.lengths)
        return passes if self.blocking else ranks.apart(passes, self.hop_s)

    def forwards(self, ranks: Ranks) -> Passes:
        """F and its message where every rank holds one stage; the first waits for none."""
        times = self.forward
        passes = self.arriving(ranks, times.on_stage)
        return ranks.with_ends(passes, times.on_first - self.blocking_s, times.on_last)

    def backwards(self, ranks: Ranks, times: Times) -> Passes:
        """B and its message, likewise; the last rank waits for none."""
        passes = self.arriving(ranks, times.on_stage)
        return ranks.with_ends(passes, times.on_first, times.on_last - self.blocking_s)

    def alone(self, ranks: Ranks, times: Times) -> Passes:
        """Passes that wait for no message."""
        passes = ranks.passes(times.on_stage, self.lengths)
        return ranks.with_ends(passes, times.on_first, times.on_last)


@dataclass(frozen=True, kw_only=True)
class Solved:
    """Closed form of one schedule."""

    step_s: Floats
    """By row."""
    occupied_s: Floats
    """In passes and, if they block, messages: (known ranks, rows)."""
    messages: Floats
    """Messages that come in, (known ranks, rows)."""
