"""The best strategies of one space on each of many systems of one structure, found together.

Candidates are enumerated, and their memory is judged, once for all systems. Times are columns:
every candidate that fits anywhere is timed on every system whose rates differ. Systems that differ
in what memory holds alone share their times; each keeps the best of what fits into it, as a stream.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.config.system_columns import SystemColumns
from shardwise.engine.on_systems import OnSystems
from shardwise.planning.search.best import Ranked, top
from shardwise.planning.search.candidates import Box, Candidates
from shardwise.planning.search.evaluate import Evaluated, Judge, broken_options, broken_reasons
from shardwise.planning.search.objective import OBJECTIVES, Score

__all__ = ["Best", "Room", "best_on_each"]

# Layouts x options that are judged at a time, and rows x systems, or blocks x systems, that are
# evaluated at a time: their columns stay in the cache, and memory in bounds.
_PIECE_ROWS = 1 << 16
_CHUNK = 1 << 13
_BLOCKS = 1 << 14
# Pairs whose bounds are compared at a time with the best so far.
_LOOKED_AT = 1 << 15
# Bounds add up the same times in another order.
_ROUNDING = 1e-12

Seen = Callable[[int], None]
"""Called with how many candidates were looked at just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a system may hold, and which of the systems that differ in their rates it is."""

    system: int
    first_bytes: float
    """Of the first memory tier that may be used."""
    second_bytes: float
    """Of the second; infinite where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """What was found for one room."""

    ranked: Ranked
    feasible: int
    too_full: int
    """Strategies that obey the rules, but have no room."""


def best_on_each(
    model: Model,
    system: System,
    systems: SystemColumns,
    rooms: Sequence[Room],
    candidates: Candidates,
    *,
    objective: str,
    count: int,
    seen: Seen,
) -> tuple[list[Best], Counter[str]]:
    """Find the best `count` candidates for every room; and how many break a rule, by reason.

    Parameters
    ----------
    system
        Of the structure of all.
    systems
        Those whose rates differ.
    """
    best = _BestOfRooms(rooms, systems=len(systems), count=count)
    rejected: Counter[str] = Counter()
    for box in candidates.legal:
        for piece in box.cut(_PIECE_ROWS):
            table = piece.table()
            broken = broken_options(model, system, piece, table)
            rejected += broken_reasons(broken)
            judge = Judge.of(model, system, table, broken, np.inf)
            if weighed := list(judge.weighed()):
                fits = best.weigh(weighed)
                rows = np.concatenate([judged.rows for judged in weighed])
                for some, on_each in _by_cacheful(judge, systems):
                    timed = _Timed(piece, system, OBJECTIVES[objective], rows, fits, some, on_each)
                    timed.keep_best(best)
            seen(len(piece))
    return best.found(), rejected


@dataclass(frozen=True, slots=True)
class _Timed:
    """Rows of a box that obey the rules, timed on some systems."""

    box: Box
    system: System
    score: Score
    rows: Ints
    """Positions in `Box.table`."""
    fits: Sequence[Ints]
    """What `_BestOfRooms.weigh` says of them."""
    systems: Ints
    on_each: OnSystems

    def keep_best(self, best: "_BestOfRooms") -> None:
        """Time what fits into some room, and keep the best of each.

        Those come first whose passes are shortest on each system. What could not be among the best
        even if its stages never waited for one another is not timed in full.
        """
        within = np.flatnonzero(best.somewhere(self.fits))
        if not within.size:
            return
        several = self.systems.size
        row, on = np.repeat(within, several), np.tile(np.arange(several), within.size)
        every = np.arange(row.size)
        cuts = _cut(every, _CHUNK)
        least = np.concatenate(
            [self._scored(self.on_each.pass_times(row[c], on[c]), row[c]) for c in cuts], axis=1
        )[0]
        order = np.argsort(least.reshape(-1, several), axis=0) * several + np.arange(several)
        for cut in _cut(order.ravel(), _LOOKED_AT, first=_CHUNK // 4):
            pairs = cut[self._near(best, row[cut], on[cut], least[cut])]
            for some in _cut(pairs, _CHUNK):
                self._keep(best, row[some], on[some])

    def _keep(self, best: "_BestOfRooms", row: Ints, on: Ints) -> None:
        if best.limited(self.systems[on]):
            bound = self._scored(self.on_each.step_times(row, on, waits=False), row)
            near = self._near(best, row, on, bound)
            row, on = row[near], on[near]
        if row.size:
            step_s = self.on_each.step_times(row, on)
            scores = self._scored(step_s, row)
            fits = [fits[:, row] for fits in self.fits]
            best.keep(self.box, self.rows[row], fits, self.systems[on], scores, step_s)

    def _near(self, best: "_BestOfRooms", row: Ints, on: Ints, bound: Floats) -> Bools:
        """Rows some choice of which may be among the best of some room."""
        fits = [fits[:, row] for fits in self.fits]
        least = (1 - _ROUNDING) * bound
        near: Bools = np.any(best.near(fits, self.systems[on], least), axis=0)
        return near

    def _scored(self, step_s: Floats, row: Ints) -> Floats:
        return self.score(np.atleast_2d(step_s), self.on_each.table.take(row), self.system)


def _by_cacheful(judge: Judge, systems: SystemColumns) -> Iterator[tuple[Ints, OnSystems]]:
    """As many systems at a time as there is room in the cache for their blocks."""
    at_once = max(1, min(len(systems), _BLOCKS // judge.distinct_blocks, _CHUNK))
    for start in range(0, len(systems), at_once):
        some = np.arange(start, min(start + at_once, len(systems)))
        yield some, judge.on_systems(systems.take(some))


def _cut(rows: Ints, most: int, *, first: int | None = None) -> Iterator[Ints]:
    """Rows, so many at a time."""
    start, end = 0, most if first is None else first
    while start < rows.size:
        yield rows[start:end]
        start, end = end, end + most


class _Shelf:
    """Rooms with as much second memory, by rising first memory: what fits into one fits beyond."""

    def __init__(self, second_bytes: float, rooms: Sequence[Room], systems: int) -> None:
        self.second_bytes = second_bytes
        self.sizes = np.unique([room.first_bytes for room in rooms])
        self.fitting = np.zeros(self.sizes.size, dtype=np.int64)
        self._ranked: dict[tuple[int, int], Ranked] = {}
        self._limits = np.full((systems, self.sizes.size), -np.inf)
        for room in rooms:
            self._ranked[self.place(room)] = Ranked.none()
            self._limits[self.place(room)] = np.inf

    def place(self, room: Room) -> tuple[int, int]:
        """System and size of a room."""
        return room.system, int(np.searchsorted(self.sizes, room.first_bytes))

    def ranked(self, room: Room) -> Ranked:
        """The best of a room."""
        return self._ranked[self.place(room)]

    def smallest(self, judged: Evaluated) -> Ints:
        """The smallest size that each candidate fits into; beyond the last where none does."""
        held = judged.holding
        found = np.searchsorted(self.sizes, held.reserved_bytes)
        found = np.where(held.memory.offloaded <= self.second_bytes, found, self.sizes.size)
        return np.where(judged.legal, found[judged.held_as], self.sizes.size)

    @property
    def loosest(self) -> Floats:
        """The worst score that may still be among the best of a room, by system and smallest size.

        None where there is no room; shape (systems, sizes and one beyond).
        """
        limits = np.maximum.accumulate(self._limits[:, ::-1], axis=1)[:, ::-1]
        return np.column_stack([limits, np.full(len(limits), -np.inf)])

    def add(self, system: int, smallest: Ints, found: Ranked, count: int) -> None:
        """Keep the best `count` of each room."""
        for size in range(int(smallest.min()), self.sizes.size):
            limit = self._limits[system, size]
            better = found.take((smallest <= size) & (found.score <= limit))
            if not len(better):
                continue
            kept = top(Ranked.joined([self._ranked[system, size], better]), count)
            self._ranked[system, size] = kept
            self._limits[system, size] = kept.score[-1] if len(kept) == count else np.inf


class _BestOfRooms:
    """The best of every room so far."""

    def __init__(self, rooms: Sequence[Room], *, systems: int, count: int) -> None:
        self._rooms, self._count, self._legal = rooms, count, 0
        seconds = dict.fromkeys(room.second_bytes for room in rooms)
        self._shelves = {
            size: _Shelf(size, [room for room in rooms if room.second_bytes == size], systems)
            for size in seconds
        }

    def weigh(self, weighed: Sequence[Evaluated]) -> list[Ints]:
        """Count what fits into each room; the smallest size of each shelf that candidates fit into.

        Shape (choices, rows) for each shelf.
        """
        self._legal += sum(int(np.count_nonzero(judged.legal)) for judged in weighed)
        fits = []
        for shelf in self._shelves.values():
            smallest = np.concatenate([shelf.smallest(judged) for judged in weighed], axis=1)
            found = np.bincount(smallest.ravel(), minlength=shelf.sizes.size + 1)
            shelf.fitting += np.cumsum(found[: shelf.sizes.size])
            fits.append(smallest)
        return fits

    def somewhere(self, fits: Sequence[Ints]) -> Bools:
        """Rows some choice of which fits into some room."""
        shelves = self._shelves.values()
        found = [smallest < s.sizes.size for smallest, s in zip(fits, shelves, strict=True)]
        rows: Bools = np.any(found, axis=(0, 1))
        return rows

    def limited(self, systems: Ints) -> bool:
        """Whether some room of these systems is full, so that not everything may join it."""
        return any(np.isfinite(s.loosest[systems]).any() for s in self._shelves.values())

    def near(self, fits: Sequence[Ints], system: Ints, scores: Floats) -> Bools:
        """Candidates that may be among the best of some room; shape (choices, rows).

        Parameters
        ----------
        fits
            What `weigh` says of these rows.
        system
            Of each row of the scores.
        """
        found = [
            scores <= shelf.loosest[system, smallest]
            for smallest, shelf in zip(fits, self._shelves.values(), strict=True)
        ]
        near: Bools = np.any(found, axis=0)
        return near

    def keep(
        self,
        box: Box,
        rows: Ints,
        fits: Sequence[Ints],
        system: Ints,
        scores: Floats,
        step_s: Floats,
    ) -> None:
        """Keep the best of some rows of the table of a box; arguments as of `near`."""
        for smallest, shelf in zip(fits, self._shelves.values(), strict=True):
            choice, row = np.nonzero(scores <= shelf.loosest[system, smallest])
            for one in np.unique(system[row]):
                here = system[row] == one
                c, n = choice[here], row[here]
                found = Ranked(
                    number=box.numbers(rows[n], c),
                    score=scores[c, n],
                    beside=np.zeros(n.size),
                    step_time_s=step_s[c, n],
                )
                shelf.add(int(one), smallest[c, n], found, self._count)

    def found(self) -> list[Best]:
        """The best of each room, in order."""
        whole = []
        for room in self._rooms:
            shelf = self._shelves[room.second_bytes]
            feasible = int(shelf.fitting[shelf.place(room)[1]])
            whole.append(
                Best(
                    ranked=shelf.ranked(room),
                    feasible=feasible,
                    too_full=self._legal - feasible,
                )
            )
        return whole
