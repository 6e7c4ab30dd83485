"""Input and output of the closed forms: many pipelines as columns."""

from functools import cached_property

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.parallel.schedule.longest_path import TOLERANCE, Passes, Ranks
from shardwise.records import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of one kind of pass (F, B or W) of one micro-batch."""

    stage_s: Floats
    """On a stage of each group of equal stages, all its chunks together, (groups, rows)."""
    first_extra_s: Floats
    """More, on the first virtual stage only: the embedding, (rows,)."""
    last_extra_s: Floats
    """More, on the last virtual stage only: the head, (rows,)."""
    first_chunk_s: Floats | None = None
    """ZB-V: share of `stage_s` in the earlier of the two chunks, (groups, rows); None: half."""
    last_chunk_s: Floats | None = None
    """Interleaved: share of `stage_s` in the last chunk, (groups, rows); None: an equal share."""

    @property
    def chunks_of_v(self) -> tuple[Floats, Floats]:
        """Times of the earlier and the later chunk of a stage."""
        early = 0.5 * self.stage_s if self.first_chunk_s is None else self.first_chunk_s
        return early, self.stage_s - early

    def other_and_last_chunk(self, chunks: Ints) -> tuple[Floats, Floats]:
        """Mean time of all chunks of a stage but the last, and that of the last."""
        if self.last_chunk_s is None:
            equal = self.stage_s / chunks
            return equal, equal
        return (self.stage_s - self.last_chunk_s) / (chunks - 1), self.last_chunk_s

    def take(self, rows: Ints) -> "Times":
        """Times of some rows."""
        return Times(
            stage_s=self.stage_s[:, rows],
            first_extra_s=self.first_extra_s[rows],
            last_extra_s=self.last_extra_s[rows],
            first_chunk_s=None if self.first_chunk_s is None else self.first_chunk_s[:, rows],
            last_chunk_s=None if self.last_chunk_s is None else self.last_chunk_s[:, rows],
        )

    def __add__(self, other: "Times") -> "Times":
        """Passes one right after the other."""
        last = self.last_chunk_s
        if last is not None and other.last_chunk_s is not None:
            last = last + other.last_chunk_s
        return Times(
            stage_s=self.stage_s + other.stage_s,
            first_extra_s=self.first_extra_s + other.first_extra_s,
            last_extra_s=self.last_extra_s + other.last_extra_s,
            last_chunk_s=last,
        )


@dataclass(frozen=True, kw_only=True)
class Pipelines:
    """Pipelines of one schedule, one per row."""

    group_sizes: Ints
    """Stages in each group of equal stages, (groups, rows)."""
    forward: Times
    input_grad: Times
    weight_grad: Times
    micro_batches: Ints
    chunks: Ints
    hop_s: Floats
    """Time of one message from rank to rank [s]."""
    few_batches: bool
    """Whether any row has so few micro-batches that the end of a step meets its start."""
    blocking: bool
    """Whether messages occupy the rank that receives them; else they overlap compute."""
    pair_share: Floats
    """Time of an overlapped forward and backward over the sum of both."""

    @property
    def stages(self) -> Ints:
        """Stages p of each pipeline."""
        count: Ints = self.group_sizes.sum(axis=0)
        return count

    @cached_property
    def uneven_chunks(self) -> Bools:
        """Rows where the last chunk of a rank takes another time; one rank alone never waits."""
        uneven = np.zeros(self.chunks.shape, dtype=np.bool_)
        for times in (self.forward, self.input_grad, self.weight_grad):
            if times.last_chunk_s is not None:
                more = np.abs(self.chunks * times.last_chunk_s - times.stage_s)
                differs = (self.group_sizes > 0) & (more > TOLERANCE * times.stage_s)
                uneven |= np.any(differs, axis=0)
        return uneven & (self.stages > 1)

    def with_equal_chunks(self) -> "Pipelines":
        """The same pipelines, where every chunk takes an equal share."""
        return replace(
            self,
            forward=replace(self.forward, last_chunk_s=None),
            input_grad=replace(self.input_grad, last_chunk_s=None),
            weight_grad=replace(self.weight_grad, last_chunk_s=None),
        )

    @property
    def backward(self) -> Times:
        """B with the gradient of the weights."""
        return self.input_grad + self.weight_grad

    @property
    def blocking_hop_s(self) -> Floats:
        """Time that a message occupies the rank that receives it [s]."""
        return self.hop_s if self.blocking else np.zeros(self.hop_s.shape)

    @property
    def overlapped_hop_s(self) -> Floats:
        """Time that a message takes while ranks may compute [s]."""
        return self.hop_s - self.blocking_hop_s

    def with_messages(self, ranks: Ranks, stage_s: Floats) -> Passes:
        """Passes of the stages alone, each with the message it waits for."""
        passes = ranks.passes(stage_s + self.blocking_hop_s, self.group_sizes)
        return passes if self.blocking else ranks.with_messages(passes, self.hop_s)

    def forwards(self, ranks: Ranks) -> Passes:
        """F and its message where every rank has one stage; the first waits for no message."""
        times = self.forward
        passes = self.with_messages(ranks, times.stage_s)
        return ranks.with_ends(
            passes, times.first_extra_s - self.blocking_hop_s, times.last_extra_s
        )

    def backwards(self, ranks: Ranks, times: Times) -> Passes:
        """B and its message, likewise; the last rank waits for no message."""
        passes = self.with_messages(ranks, times.stage_s)
        return ranks.with_ends(
            passes, times.first_extra_s, times.last_extra_s - self.blocking_hop_s
        )

    def without_messages(self, ranks: Ranks, times: Times) -> Passes:
        """Passes that wait for no message."""
        passes = ranks.passes(times.stage_s, self.group_sizes)
        return ranks.with_ends(passes, times.first_extra_s, times.last_extra_s)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Closed form of one schedule."""

    step_s: Floats
    """Time of the step [s], (rows,)."""
    occupied_s: Floats
    """Time in passes and, if they block, messages [s], (sampled ranks, rows)."""
    messages: Floats
    """Number of messages received, (sampled ranks, rows)."""
