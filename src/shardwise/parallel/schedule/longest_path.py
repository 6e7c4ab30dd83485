"""Longest paths through a step of many pipelines at once: where ranks wait, and how waits add up.

A step takes as long as the longest chain of passes that wait for each other. Such a chain comes to
a rank, follows its work without a gap, and leaves it again. It comes and leaves at few points: the
first and the last pass of each kind, where the rank changes what it does. At such a wait point
counts the time that the rank has idled so far. From point to point waits only grow, and a wait
passes from rank to rank with the pass that starts late. Between two points the pace of a rank is
that of the passes it does in turn; ranks come to the next point one after the other, so a chain may
stay on a rank whose pace is slow there until another one moves on. So a step takes

    max over ranks of (wait before a point + work of the rank + wait after a later point),

in job-shop terms head + work + tail. That is exact where these points are all that matter (each
schedule says so), else a little short, since every such chain is part of the step.

The columns of a pipeline hold few of its ranks: the first and the last one of every group of equal
stages. What a longest path gains from rank to rank within a group is linear, so it turns at one of
them.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.records import dataclass

# Stands for a path that does not exist: shorter than any other one, and finite.
NEVER = -1e30
# Two times of a rank within this share of each other are the same: sums of different order.
TOLERANCE = 1e-9

Numbers = TypeVar("Numbers", Floats, Ints)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Passes of one kind through one chunk, on the sampled ranks: shapes (ranks, rows)."""

    time: Floats
    """Of a pass on the rank [s]."""
    before: Floats
    """Of those on all ranks before it, and of the messages from one to the next [s]."""

    @property
    def through(self) -> Floats:
        """Time on all ranks before it and on itself, messages included [s]."""
        return self.before + self.time

    @property
    def total(self) -> Floats:
        """Time on all ranks, messages included [s]."""
        return self.before[-1] + self.time[-1]

    def __add__(self, other: "Passes") -> "Passes":
        """Passes one right after the other."""
        return Passes(time=self.time + other.time, before=self.before + other.before)

    def __sub__(self, other: "Passes") -> "Passes":
        """Shorter passes."""
        return Passes(time=self.time - other.time, before=self.before - other.before)

    def __mul__(self, share: Floats | float) -> "Passes":
        """A share of each pass."""
        return Passes(time=self.time * share, before=self.before * share)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Sampled ranks of pipelines, in order; the last one is repeated where others have more."""

    index: Ints
    """Rank i, from 0, (ranks, rows)."""
    count: Ints
    """Ranks p of the pipeline, by row."""
    _place: Ints
    """Flat position of each rank's group in an array of shape (groups, rows)."""
    _offset: Floats
    """Ranks of the same group that come before it."""

    @classmethod
    def sample(
        cls, group_sizes: Ints, more: Sequence[Ints] = (), *, mirrored: bool = False
    ) -> "Ranks":
        """First and last rank of the pipeline, and of what each group has between them.

        Parameters
        ----------
        group_sizes
            Ranks in each group of equal stages, (groups, rows).
        more
            Further ranks to sample, where the order of work changes.
        mirrored
            Whether these are such that i comes as often as p - 1 - i, and repeats must stay.
        """
        starts = _sum_before(group_sizes)
        ends = starts + group_sizes
        count = ends[-1]
        index = _ends_of_groups(group_sizes, ends)
        if len(more):
            index = np.sort(np.clip(np.concatenate([index, more]), 0, count - 1), axis=0)
        if not mirrored:
            index = _without_repeats(index)
        group = sum((index >= end for end in ends[:-1]), np.zeros_like(index))
        place = group * count.size + np.arange(count.size)
        offset = (index - np.take(starts, place)).astype(np.float64)
        return cls(index=index, count=count, _place=place, _offset=offset)

    @cached_property
    def first(self) -> Floats:
        """1 for sampled ranks that are rank 0, else 0."""
        return (self.index == 0).astype(np.float64)

    @cached_property
    def last(self) -> Floats:
        """1 for sampled ranks that are rank p - 1, else 0."""
        return (self.index == self.count - 1).astype(np.float64)

    def passes(self, times: Floats, group_sizes: Ints) -> Passes:
        """Passes that take `times` [s] on a rank of each group, (groups, rows)."""
        time = np.take(times, self._place)
        before = np.take(_sum_before(group_sizes * times), self._place) + self._offset * time
        return Passes(time=time, before=before)

    def with_ends(self, passes: Passes, first_s: Floats, last_s: Floats) -> Passes:
        """Add what only rank 0 and only rank p - 1 do."""
        more = self.first * first_s
        return Passes(
            time=passes.time + more + self.last * last_s, before=passes.before + (first_s - more)
        )

    def with_messages(self, passes: Passes, hop_s: Floats) -> Passes:
        """Add a message from rank to rank that occupies neither."""
        return Passes(time=passes.time, before=passes.before + hop_s * self.index)


def ranks_sampled(group_sizes: Ints) -> Ints:
    """How many ranks `Ranks.sample` takes of each pipeline: blocks of equal ones are fastest.

    Parameters
    ----------
    group_sizes
        Ranks in each group of equal stages, (groups, rows).
    """
    index = _ends_of_groups(group_sizes, np.cumsum(group_sizes, axis=0))
    count: Ints = 1 + np.count_nonzero(index[1:] != index[:-1], axis=0)
    return count


def _ends_of_groups(group_sizes: Ints, ends: Ints) -> Ints:
    """First and last rank of a pipeline, and of what each group has between them, in order."""
    last = ends[-1] - 1
    sampled = [np.zeros_like(last)]
    for size, end in zip(group_sizes, ends, strict=True):
        low = np.minimum(np.maximum(end - size, 1), last)
        sampled += [low, np.maximum(np.minimum(end, last) - 1, low)]
    return np.stack([*sampled, last])


def _without_repeats(index: Ints) -> Ints:
    """Ranks in order, each once; the last one is repeated where another row has more."""
    places = np.cumsum(index[1:] != index[:-1], axis=0)
    most = 1 + int(places[-1].max(initial=0))
    if most == len(index):
        return index
    found = np.broadcast_to(index[-1], (most, index.shape[1])).copy()
    found[0] = index[0]
    rows = np.arange(index.shape[1])
    for place, rank in zip(places, index[1:], strict=True):
        found[place, rows] = rank
    return found


def _sum_before(values: Numbers) -> Numbers:
    """Sum of the values before each one: `np.cumsum`, faster for few of them."""
    sums = np.zeros_like(values)
    for at in range(1, values.shape[0]):
        np.add(sums[at - 1], values[at - 1], out=sums[at])
    return sums


def running_max(times: Floats) -> Floats:
    """Maximum over the sampled ranks up to each: `np.maximum.accumulate`, faster for few ranks.

    Parameters
    ----------
    times
        Times on the sampled ranks [s]; shape (ranks, n).
    """
    largest = times.copy()
    for rank in range(1, times.shape[0]):
        np.maximum(largest[rank], largest[rank - 1], out=largest[rank])
    return largest


def towards_last(times: Floats, passes: Passes) -> Floats:
    """Longest of the paths that come to a rank from itself or from one before it, pass by pass.

    `times` are the starts of the pass on each rank as far as its own work decides; the result is
    when it can start.

    Parameters
    ----------
    times
        Times on the sampled ranks [s]; shape (ranks, n).
    passes
        Passes of one direction on these ranks [s].
    """
    return passes.before + running_max(times - passes.before)


def towards_first(times: Floats, passes: Passes) -> Floats:
    """Longest of the paths that come to a rank from itself or from one after it, pass by pass.

    Parameters
    ----------
    times
        Times on the sampled ranks [s]; shape (ranks, n).
    passes
        Passes of one direction on these ranks [s].
    """
    through = passes.through
    return running_max((times + through)[::-1])[::-1] - through


def after_stay(
    times: Floats, passes: Passes, stay: Callable[[int, slice], Floats], *, towards_last: bool
) -> Floats:
    """Longest of the paths that stay on a rank for a while before they move on to another one.

    Parameters
    ----------
    times
        Starts of the stay on each rank [s], (ranks, rows).
    stay
        Time of a stay on a rank [s], by the ranks that the path moves on to, itself among them.
    towards_last
        Whether paths move towards the last rank, else towards the first.
    """
    start = np.full(times.shape, NEVER)
    along = passes.before if towards_last else -passes.through
    for rank in range(times.shape[0]):
        to = slice(rank, None) if towards_last else slice(0, rank + 1)
        coming = times[rank] + stay(rank, to) + along[to] - along[rank]
        np.maximum(start[to], coming, out=start[to])
    return start


def longest_round_trip(index: Floats | Ints, passes: Passes, turn_s: Floats) -> Floats:
    """Longest round trip between two ranks a and b, per micro-batch it advances: b - a + 1.

    It takes the passes and the messages from a to b, and `turn_s` on a, where it turns round.

    Parameters
    ----------
    index
        Rank i of the pipeline, from 0; shape (ranks, rows).
    passes
        Passes on each rank [s]; shape (ranks, rows).
    turn_s
        Time that a micro-batch takes on rank a where it turns round [s]; shape (ranks, rows).
    """
    best = np.zeros(index.shape[1])
    through = passes.through
    for high in range(index.shape[0]):
        for low in range(high + 1):
            path = through[high] - passes.before[low] + turn_s[low]
            best = np.maximum(best, path / (index[high] - index[low] + 1))
    return best


class WaitPoint(NamedTuple):
    """An action at which a rank waits for others."""

    wait_s: Floats
    """Idle time of the rank before it (in tails: after it)."""
    work_s: Floats
    """Time of the rank's own passes before it (in tails: after it)."""


class WaitPoints:
    """Wait points forward from the start of the step (heads) or backward from its end (tails).

    With many micro-batches all heads come before all tails. With `few_batches` every pair of
    points is compared for which comes first.
    """

    def __init__(self, wait_s: Floats, *, few_batches: bool) -> None:
        self.few_batches = few_batches
        self.points = [WaitPoint(wait_s=wait_s, work_s=np.zeros(wait_s.shape))]
        self.longest_wait_s = wait_s
        """Wait of the rank at the last point, whichever it has waited at."""

    def own_start(self, work_s: Floats) -> Floats:
        """When a pass can start as far as the rank itself decides, after so much own work [s]."""
        if not self.few_batches:
            return self.longest_wait_s + work_s
        wait = np.zeros(work_s.shape)
        limit = work_s * (1 + TOLERANCE)
        for point in self.points:
            np.maximum(wait, (point.work_s <= limit) * point.wait_s, out=wait)
        return wait + work_s

    def add_passed_on(
        self,
        work_s: Floats,
        direction: Callable[[Floats, Passes], Floats],
        passes: Passes,
        at_least_s: Floats | float = 0.0,
    ) -> None:
        """Add a point whose late starts pass on to other ranks, pass by pass.

        `direction` is `towards_first` or `towards_last`; `at_least_s` are starts that come from
        elsewhere.
        """
        self.add(work_s, direction(np.maximum(self.own_start(work_s), at_least_s), passes))

    def add(self, work_s: Floats, start_s: Floats, *, where: Bools | None = None) -> None:
        """Add a point whose start is known, in the rows that have it at all."""
        wait = start_s - work_s
        if where is not None:
            wait = np.minimum(wait, np.where(where, np.inf, NEVER))
        self.points.append(WaitPoint(wait_s=wait, work_s=work_s))
        self.longest_wait_s = np.maximum(self.longest_wait_s, wait)


def longest(heads: WaitPoints, busy_s: Floats, tails: WaitPoints) -> Floats:
    """Longest path over all ranks: idle up to a head, busy from there to a tail, then idle [s].

    Parameters
    ----------
    heads, tails
        Wait points from the start of the step, and from its end [s]; shape (ranks, rows).
    busy_s
        Time of the passes of each rank [s]; shape (ranks, rows).
    """
    if not heads.few_batches:
        return (heads.longest_wait_s + busy_s + tails.longest_wait_s).max(axis=0)
    best = np.zeros(busy_s.shape)
    for tail in tails.points:
        left = (busy_s - tail.work_s) * (1 - TOLERANCE)
        wait = np.zeros(busy_s.shape)
        for head in heads.points:
            np.maximum(wait, (head.work_s < left) * head.wait_s, out=wait)
        np.maximum(best, wait + tail.wait_s, out=best)
    longest_path: Floats = (busy_s + best).max(axis=0)
    return longest_path
