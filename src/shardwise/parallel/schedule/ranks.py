"""Ranks of many pipelines as columns, and how waits spread from one to the next.

A pipeline is known by few ranks: the first and the last one of every run of equal ones. What a
longest path gains from rank to rank within a run is linear, so it turns at one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from shardwise.arrays import Floats, Ints

__all__ = [
    "NEVER",
    "Passes",
    "Ranks",
    "after_stay",
    "slowest_round",
    "so_far",
    "towards_first",
    "towards_last",
]

# Stands for a path that does not exist: shorter than any other one, and finite.
NEVER = -1e30

Numbers = TypeVar("Numbers", Floats, Ints)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Passes of one kind through one chunk, on the known ranks: shapes (ranks, rows)."""

    at: Floats
    """Time of a pass on the rank [s]."""
    before: Floats
    """Time of those on all ranks before it, and of the hops from one to the next [s]."""

    @property
    def through(self) -> Floats:
        """Time of those on all ranks before it and on itself, hops included [s]."""
        return self.before + self.at

    @property
    def total(self) -> Floats:
        """Time of those on all ranks, hops included [s]."""
        return self.before[-1] + self.at[-1]

    def __add__(self, other: "Passes") -> "Passes":
        """Passes one right after the other."""
        return Passes(at=self.at + other.at, before=self.before + other.before)

    def __sub__(self, other: "Passes") -> "Passes":
        """Passes that lack a part."""
        return Passes(at=self.at - other.at, before=self.before - other.before)

    def __mul__(self, share: Floats | float) -> "Passes":
        """Parts of these passes."""
        return Passes(at=self.at * share, before=self.before * share)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Known ranks of pipelines, in order and repeated where a run is short."""

    at: Ints
    """Positions from 0, (ranks, rows)."""
    count: Ints
    """p, by row."""
    _place: Ints
    """Where the run of every known rank stands in an array of shape (runs, rows)."""
    _behind: Floats
    """Ranks of its run that stand before it."""

    @classmethod
    def of(cls, lengths: Ints, breaks: Sequence[Ints] = ()) -> "Ranks":
        """First and last rank of the pipeline, and of what each run has between them.

        Parameters
        ----------
        lengths
            Ranks in each run, (runs, rows).
        breaks
            Further ranks that shall be known, where what ranks do changes its course.
        """
        starts = _before(lengths)
        ends = starts + lengths
        count = ends[-1]
        last = count - 1
        known = [np.zeros_like(count)]
        for length, end in zip(lengths, ends, strict=True):
            low = np.minimum(np.maximum(end - length, 1), last)
            known += [low, np.maximum(np.minimum(end, last) - 1, low)]
        known.append(last)
        at = np.stack(known)
        if len(breaks):
            at = np.sort(np.clip(np.stack([*known, *breaks]), 0, last), axis=0)
        run = sum((at >= end for end in ends[:-1]), np.zeros_like(at))
        place = run * count.size + np.arange(count.size)
        behind = (at - np.take(starts, place)).astype(np.float64)
        return cls(at=at, count=count, _place=place, _behind=behind)

    @cached_property
    def first(self) -> Floats:
        """1 for the known ranks that are rank 0, else 0."""
        return (self.at == 0).astype(np.float64)

    @cached_property
    def last(self) -> Floats:
        """1 for the known ranks that are rank p - 1, else 0."""
        return (self.at == self.count - 1).astype(np.float64)

    def passes(self, times: Floats, lengths: Ints) -> Passes:
        """Gather what one micro-batch takes on a rank, of shape (runs, rows)."""
        at = np.take(times, self._place)
        before = np.take(_before(lengths * times), self._place) + self._behind * at
        return Passes(at=at, before=before)

    def with_ends(self, passes: Passes, first_s: Floats, last_s: Floats) -> Passes:
        """Add what only rank 0 and only rank p - 1 do."""
        more = self.first * first_s
        return Passes(
            at=passes.at + more + self.last * last_s, before=passes.before + (first_s - more)
        )

    def apart(self, passes: Passes, hop_s: Floats) -> Passes:
        """Add what passes from rank to rank and occupies none of them."""
        return Passes(at=passes.at, before=passes.before + hop_s * self.at)


def _before(parts: Numbers) -> Numbers:
    """Sum of the parts before each one: `np.cumsum`, faster for few of them."""
    whole = np.zeros_like(parts)
    for part in range(1, parts.shape[0]):
        np.add(whole[part - 1], parts[part - 1], out=whole[part])
    return whole


def so_far(times: Floats) -> Floats:
    """Largest of the known ranks up to each one: `np.maximum.accumulate`, faster for few ranks."""
    largest = times.copy()
    for rank in range(1, times.shape[0]):
        np.maximum(largest[rank], largest[rank - 1], out=largest[rank])
    return largest


def towards_last(times: Floats, passes: Passes) -> Floats:
    """Longest of the paths that come to a rank from itself or from one before it, pass by pass.

    `times` are the starts of the pass on each rank as far as its own work decides; the result is
    when it can start.
    """
    return passes.before + so_far(times - passes.before)


def towards_first(times: Floats, passes: Passes) -> Floats:
    """Longest of the paths that come to a rank from itself or from one behind it, pass by pass."""
    whole = passes.through
    return so_far((times + whole)[::-1])[::-1] - whole


def after_stay(
    times: Floats, passes: Passes, stay: Callable[[int, slice], Floats], *, towards_last: bool
) -> Floats:
    """Longest of the paths that stay on a rank for a while before they come on to another one.

    `times` are the starts of the stay, which `stay` gives by the known rank it is on and by those
    where the path goes, itself among them.
    """
    start = np.full(times.shape, NEVER)
    along = passes.before if towards_last else -passes.through
    for rank in range(times.shape[0]):
        to = slice(rank, None) if towards_last else slice(0, rank + 1)
        coming = times[rank] + stay(rank, to) + along[to] - along[rank]
        np.maximum(start[to], coming, out=start[to])
    return start


def slowest_round(at: Floats | Ints, passes: Passes, turn_s: Floats) -> Floats:
    """Longest round trip between two ranks a and b, per micro-batch it advances: b - a + 1.

    It takes the passes and the hops from a to b, and what it turns round with on a.
    """
    best = np.zeros(at.shape[1])
    through = passes.through
    for high in range(at.shape[0]):
        for low in range(high + 1):
            whole = through[high] - passes.before[low] + turn_s[low]
            best = np.maximum(best, whole / (at[high] - at[low] + 1))
    return best
