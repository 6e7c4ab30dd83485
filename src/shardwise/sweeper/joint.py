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
from shardwise.model import Model
from shardwise.on_systems import OnSystems
from shardwise.searcher.best import Ranked, top
from shardwise.searcher.candidates import Box, Candidates
from shardwise.searcher.judge import Judge, Judged, broken_options, broken_reasons
from shardwise.searcher.objective import OBJECTIVES, Score
from shardwise.system import System
from shardwise.system_columns import SystemColumns
from shardwise.table import Table

__all__ = ["Best", "Room", "best_on_each"]

# Layouts x options that are judged at a time, and rows x systems, or blocks x systems, that are
# evaluated at a time: their columns stay in the cache, and memory in bounds.
_PIECE_ROWS = 1 << 16
_CHUNK = 1 << 13
_BLOCKS = 1 << 14

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
            weighed = list(judge.weighed())
            for judged in weighed:
                best.weigh(judged)
            for some, on_each in _by_cacheful(judge, systems):
                for judged in weighed:
                    chunk = _Chunk(piece, table, judged, some, on_each, OBJECTIVES[objective])
                    chunk.keep_best(best, system)
            seen(len(piece))
    return best.found(), rejected


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows that were weighed, and the systems that they are timed on."""

    box: Box
    table: Table
    judged: Judged
    systems: Ints
    on_each: OnSystems
    score: Score

    def keep_best(self, best: "_BestOfRooms", system: System) -> None:
        """Time what fits into some room, and keep the best of each.

        What could not be among them even if no stage waited for another is not timed in full.
        """
        rooms = best.smallest(self.judged)
        within = np.flatnonzero(best.somewhere(rooms).any(axis=0))
        for rows in _cut(within, max(1, _CHUNK // self.systems.size)):
            row = np.repeat(rows, self.systems.size)
            on = np.tile(np.arange(self.systems.size), rows.size)
            if best.limited(self.systems):
                least = self._scores(row, on, system, waits=False)[0]
                near = best.near(rooms, row, self.systems[on], least).any(axis=0)
                row, on = row[near], on[near]
            if row.size:
                scores, step_s = self._scores(row, on, system, waits=True)
                best.keep(self.judged, self.box, rooms, row, self.systems[on], scores, step_s)

    def _scores(self, row: Ints, on: Ints, system: System, *, waits: bool) -> tuple[Floats, Floats]:
        step_s = self.on_each.step_times(self.judged.first + row, on, waits=waits)
        return self.score(step_s, self.table.take(self.judged.rows[row]), system), step_s


def _by_cacheful(judge: Judge, systems: SystemColumns) -> Iterator[tuple[Ints, OnSystems]]:
    """As many systems at a time as there is room in the cache for their blocks."""
    at_once = max(1, min(len(systems), _BLOCKS // judge.distinct_blocks, _CHUNK))
    for start in range(0, len(systems), at_once):
        some = np.arange(start, min(start + at_once, len(systems)))
        yield some, judge.on_systems(systems.take(some))


def _cut(rows: Ints, most: int) -> Iterator[Ints]:
    return (rows[start : start + most] for start in range(0, rows.size, most))


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

    def smallest(self, judged: Judged) -> Ints:
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

    def weigh(self, judged: Judged) -> None:
        """Count what fits into each room."""
        self._legal += int(np.count_nonzero(judged.legal))
        for shelf in self._shelves.values():
            found = np.bincount(shelf.smallest(judged).ravel(), minlength=shelf.sizes.size + 1)
            shelf.fitting += np.cumsum(found[: shelf.sizes.size])

    def smallest(self, judged: Judged) -> list[Ints]:
        """The smallest size of each shelf that each candidate fits into."""
        return [shelf.smallest(judged) for shelf in self._shelves.values()]

    def somewhere(self, rooms: Sequence[Ints]) -> Bools:
        """Candidates that fit into some room; shape (choices, rows)."""
        shelves = self._shelves.values()
        found = [smallest < s.sizes.size for smallest, s in zip(rooms, shelves, strict=True)]
        return np.any(found, axis=0)

    def limited(self, systems: Ints) -> bool:
        """Whether some room of these systems is full, so that not everything may join it."""
        return any(np.isfinite(s.loosest[systems]).any() for s in self._shelves.values())

    def near(self, rooms: Sequence[Ints], row: Ints, system: Ints, scores: Floats) -> Bools:
        """Candidates that may be among the best of some room; shape (choices, rows).

        Parameters
        ----------
        rooms
            `smallest` of what was judged.
        row, system
            Of each column of the scores.
        """
        found = [
            scores <= shelf.loosest[system, smallest[:, row]]
            for smallest, shelf in zip(rooms, self._shelves.values(), strict=True)
        ]
        return np.any(found, axis=0)

    def keep(
        self,
        judged: Judged,
        box: Box,
        rooms: Sequence[Ints],
        row: Ints,
        system: Ints,
        scores: Floats,
        step_s: Floats,
    ) -> None:
        """Keep the best of some rows; arguments as of `near`."""
        reserved = judged.holding.reserved_bytes[:, row][judged.held_as]
        for smallest, shelf in zip(rooms, self._shelves.values(), strict=True):
            fits = smallest[:, row]
            choice, column = np.nonzero(scores <= shelf.loosest[system, fits])
            for one in np.unique(system[column]):
                c, n = choice[system[column] == one], column[system[column] == one]
                found = Ranked(
                    number=box.numbers(judged.rows[row[n]], c),
                    score=scores[c, n],
                    beside=reserved[c, n],
                    step_time_s=step_s[c, n],
                )
                shelf.add(int(one), fits[c, n], found, self._count)

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
