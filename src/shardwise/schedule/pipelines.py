"""What closed forms take in and give back: many pipelines as columns."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.schedule.ranks import Passes, Ranks

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

    def take(self, rows: Ints) -> "Times":
        """Those of some rows."""
        return Times(
            on_stage=self.on_stage[:, rows],
            on_first=self.on_first[rows],
            on_last=self.on_last[rows],
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

    def arriving(self, ranks: Ranks) -> Passes:
        """What a message adds to the pass that waits for it."""
        if self.blocking:
            return ranks.on_all(self.hop_s)
        return ranks.between(self.hop_s)

    def not_arriving(self, ranks: Ranks, *, last: bool = False) -> Passes:
        """What the first (or last) rank saves of it, whose pass waits for no message."""
        saved = self.hop_s if self.blocking else np.zeros(self.hop_s.shape)
        return ranks.on_last(saved) if last else ranks.on_first(saved)

    def without_hops(self, ranks: Ranks) -> tuple[Passes, Passes, Passes]:
        """F, B and W where every rank holds one stage and the last one the head."""
        forward, backward, weights = (
            ranks.passes(times.on_stage, self.lengths)
            + ranks.on_first(times.on_first)
            + ranks.on_last(times.on_last)
            for times in (self.forward, self.input_grad, self.weight_grad)
        )
        return forward, backward, weights

    def linear(self, ranks: Ranks) -> tuple[Passes, Passes, Passes]:
        """Add to these the messages that come in."""
        forward, backward, weights = self.without_hops(ranks)
        hop = self.arriving(ranks)
        return (
            forward + hop - self.not_arriving(ranks),
            backward + hop - self.not_arriving(ranks, last=True),
            weights,
        )


@dataclass(frozen=True, kw_only=True)
class Solved:
    """Closed form of one schedule."""

    step_s: Floats
    """By row."""
    occupied_s: Floats
    """In passes and, if they block, messages: (known ranks, rows)."""
    messages: Floats
    """Messages that come in, (known ranks, rows)."""
