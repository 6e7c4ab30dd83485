"""Find the best strategies of one space on many systems of one structure together.

Candidates and their memory are evaluated once for all systems. Times are columns: every candidate
that fits on some system is timed on every system whose rates differ. Systems that differ only in
memory capacity share the times; each retains the best candidates that fit into it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.config.system_columns import SystemColumns
from shardwise.engine.evaluate import OnSystems, PeakMemory
from shardwise.planning.search.candidates import Box, Candidates
from shardwise.planning.search.query import PREDICTED, FitTest
from shardwise.planning.search.ranking import OBJECTIVES, Ranked, Score, top
from shardwise.planning.search.scan import (
    Evaluated,
    Evaluator,
    MemoryEvaluator,
    broken_options,
    broken_reasons,
)

# Layouts x options, rows x systems, and layer costs x systems to evaluate at a time: their columns
# stay in the cache, and memory stays bounded.
_PIECE_ROWS = 1 << 16
_CHUNK = 1 << 13
_COSTS = 1 << 14
# Pairs of row and system whose lower bounds are compared with the best at a time.
_COMPARED = 1 << 15
# Lower bounds add up the same times in another order.
_ROUNDING = 1e-12

Progress = Callable[[int], None]
"""Called with the number of candidates just evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The usable memory of a system, and its position among the systems whose rates differ."""

    system: int
    first_bytes: float
    """Usable part of the first memory tier."""
    second_bytes: float
    """Usable part of the second tier; infinite where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOnSystem:
    """What was found for one capacity."""

    ranked: Ranked
    too_full: int
    """Strategies that obey the rules but do not fit as predicted."""
    may_not_fit: int
    """Those that fit as predicted, but not with the required probability."""


def best_on_each(
    model: Model,
    system: System,
    systems: SystemColumns,
    capacities: Sequence[Capacity],
    candidates: Candidates,
    *,
    objective: str,
    count: int,
    progress: Progress,
    fit: FitTest = PREDICTED,
) -> tuple[list[BestOnSystem], Counter[str]]:
    """Find the best `count` candidates for every capacity; and how many break a rule, by reason."""
    best = _Rankings(system, capacities, systems=len(systems), count=count)
    rejected: Counter[str] = Counter()
    for box in candidates.legal:
        for piece in box.cut(_PIECE_ROWS):
            table = piece.table()
            broken = broken_options(model, system, piece, table)
            rejected += broken_reasons(broken)
            evaluator = MemoryEvaluator.of(model, system, table, broken, np.inf, fit=fit)
            if chunks := list(evaluator.memory()):
                placed = evaluator.placed(Evaluated.joined(chunks))
                fits = best.count_fitting(chunks)
                rows = np.concatenate([chunk.rows for chunk in chunks])
                for some, on_each in _batches_of_systems(placed, systems):
                    rows_on = _RowsOn(
                        piece, system, OBJECTIVES[objective], rows, fits, some, on_each
                    )
                    rows_on.add_to(best)
            progress(len(piece))
    return best.found(), rejected


@dataclass(frozen=True, slots=True)
class _RowsOn:
    """Rows of a box that obey the rules, on some systems."""

    box: Box
    system: System
    score: Score
    rows: Ints
    """Positions in `Box.table`."""
    fits: Sequence[Ints]
    """Result of `_Rankings.count_fitting`."""
    systems: Ints
    on_each: OnSystems

    def add_to(self, best: "_Rankings") -> None:
        """Time the rows that fit somewhere, and add them to the rankings.

        On each system the rows with the shortest passes come first. A row that could not be among
        the best even if its stages never waited for one another is not timed in full.
        """
        within = np.flatnonzero(best.fitting(self.fits))
        if not within.size:
            return
        count = self.systems.size
        row, on = np.repeat(within, count), np.tile(np.arange(count), within.size)
        every = np.arange(row.size)
        cuts = _cut(every, _CHUNK)
        least = np.concatenate(
            [self._scored(self.on_each.pass_times(row[c], on[c]), row[c]) for c in cuts], axis=1
        )[0]
        order = np.argsort(least.reshape(-1, count), axis=0) * count + np.arange(count)
        for cut in _cut(order.ravel(), _COMPARED, first=_CHUNK // 4):
            pairs = cut[self._may_enter(best, row[cut], on[cut], least[cut])]
            for some in _cut(pairs, _CHUNK):
                self._add(best, row[some], on[some])

    def _add(self, best: "_Rankings", row: Ints, on: Ints) -> None:
        if best.limited(self.systems[on]):
            bound = self._scored(self.on_each.step_times(row, on, waits=False), row)
            possible = self._may_enter(best, row, on, bound)
            row, on = row[possible], on[possible]
        if row.size:
            step_s = self.on_each.step_times(row, on)
            scores = self._scored(step_s, row)
            fits = [fits[:, row] for fits in self.fits]
            best.add(self.box, self.rows[row], fits, self.systems[on], scores, step_s)

    def _may_enter(self, best: "_Rankings", row: Ints, on: Ints, bound: Floats) -> Bools:
        """Rows of which some choice may be among the best of some capacity."""
        fits = [fits[:, row] for fits in self.fits]
        least = (1 - _ROUNDING) * bound
        possible: Bools = np.any(best.may_enter(fits, self.systems[on], least), axis=0)
        return possible

    def _scored(self, step_s: Floats, row: Ints) -> Floats:
        return self.score(np.atleast_2d(step_s), self.on_each.table.take(row), self.system)


def _batches_of_systems(
    placed: Evaluator, systems: SystemColumns
) -> Iterator[tuple[Ints, OnSystems]]:
    """Yield as many systems at a time as the cache holds layer costs for."""
    at_once = max(1, min(len(systems), _COSTS // placed.distinct_costs, _CHUNK))
    for start in range(0, len(systems), at_once):
        some = np.arange(start, min(start + at_once, len(systems)))
        yield some, placed.on_systems(systems.take(some))


def _cut(rows: Ints, most: int, *, first: int | None = None) -> Iterator[Ints]:
    """Yield rows, `most` at a time."""
    start, end = 0, most if first is None else first
    while start < rows.size:
        yield rows[start:end]
        start, end = end, end + most


class _CapacityLadder:
    """Capacities with equal second memory, by rising first memory: what fits one fits the next."""

    def __init__(
        self, system: System, second_bytes: float, capacities: Sequence[Capacity], systems: int
    ) -> None:
        self.second_bytes, self._system = second_bytes, system
        self.sizes = np.unique([capacity.first_bytes for capacity in capacities])
        self.fitting = np.zeros(self.sizes.size, dtype=np.int64)
        self.predicted = np.zeros(self.sizes.size, dtype=np.int64)
        self._ranked: dict[tuple[int, int], Ranked] = {}
        self._limits = np.full((systems, self.sizes.size), -np.inf)
        for capacity in capacities:
            self._ranked[self.position(capacity)] = Ranked.empty()
            self._limits[self.position(capacity)] = np.inf

    def position(self, capacity: Capacity) -> tuple[int, int]:
        """Positions of the system and the size of a capacity."""
        return capacity.system, int(np.searchsorted(self.sizes, capacity.first_bytes))

    def ranked(self, capacity: Capacity) -> Ranked:
        """The best candidates of a capacity."""
        return self._ranked[self.position(capacity)]

    def count_fitting(self, chunk: Evaluated) -> Ints:
        """Count what fits; return the smallest size that each candidate fits into.

        Beyond the last size where none does.
        """
        needed, holding = chunk.needed_bytes, chunk.holding
        fitting, smallest = self._counted(chunk, chunk.tested, needed)
        self.fitting += fitting
        self.predicted += self._counted(chunk, holding, holding.needed_bytes(self._system))[0]
        return smallest

    def _counted(
        self, chunk: Evaluated, holding: PeakMemory, needed_bytes: Floats
    ) -> tuple[Ints, Ints]:
        """How many candidates fit into each size, and the smallest size for each."""
        found = np.searchsorted(self.sizes, needed_bytes)
        found = np.where(holding.memory.offloaded <= self.second_bytes, found, self.sizes.size)
        smallest = np.where(chunk.legal, found[chunk.holding_of], self.sizes.size)
        counts = np.bincount(smallest.ravel(), minlength=self.sizes.size + 1)
        return np.cumsum(counts[: self.sizes.size]), smallest

    @property
    def loosest(self) -> Floats:
        """The worst score that may still be among the best, by system and smallest size.

        -inf where nothing fits; shape (systems, sizes + 1).
        """
        limits = np.maximum.accumulate(self._limits[:, ::-1], axis=1)[:, ::-1]
        return np.column_stack([limits, np.full(len(limits), -np.inf)])

    def add(self, system: int, smallest: Ints, found: Ranked, count: int) -> None:
        """Add candidates to the best `count` of each size."""
        for size in range(int(smallest.min()), self.sizes.size):
            limit = self._limits[system, size]
            better = found.take((smallest <= size) & (found.score <= limit))
            if not len(better):
                continue
            best = top(Ranked.joined([self._ranked[system, size], better]), count)
            self._ranked[system, size] = best
            self._limits[system, size] = best.score[-1] if len(best) == count else np.inf


class _Rankings:
    """The best candidates so far of every capacity."""

    def __init__(
        self, system: System, capacities: Sequence[Capacity], *, systems: int, count: int
    ) -> None:
        self._capacities, self._count, self._legal = capacities, count, 0
        seconds = dict.fromkeys(capacity.second_bytes for capacity in capacities)
        self._ladders = {
            size: _CapacityLadder(
                system, size, [c for c in capacities if c.second_bytes == size], systems
            )
            for size in seconds
        }

    def count_fitting(self, chunks: Sequence[Evaluated]) -> list[Ints]:
        """Count what fits each capacity; return the smallest size that each candidate fits into.

        One array of shape (choices, rows) for each ladder.
        """
        self._legal += sum(int(np.count_nonzero(chunk.legal)) for chunk in chunks)
        return [
            np.concatenate([ladder.count_fitting(chunk) for chunk in chunks], axis=1)
            for ladder in self._ladders.values()
        ]

    def fitting(self, fits: Sequence[Ints]) -> Bools:
        """Rows of which some choice fits some capacity."""
        ladders = self._ladders.values()
        found = [smallest < one.sizes.size for smallest, one in zip(fits, ladders, strict=True)]
        rows: Bools = np.any(found, axis=(0, 1))
        return rows

    def limited(self, systems: Ints) -> bool:
        """Whether some ranking of these systems is full, so that not every candidate can enter."""
        return any(np.isfinite(one.loosest[systems]).any() for one in self._ladders.values())

    def may_enter(self, fits: Sequence[Ints], system: Ints, scores: Floats) -> Bools:
        """Candidates that may be among the best of some capacity; shape (choices, rows)."""
        found = [
            scores <= ladder.loosest[system, smallest]
            for smallest, ladder in zip(fits, self._ladders.values(), strict=True)
        ]
        possible: Bools = np.any(found, axis=0)
        return possible

    def add(
        self,
        box: Box,
        rows: Ints,
        fits: Sequence[Ints],
        system: Ints,
        scores: Floats,
        step_s: Floats,
    ) -> None:
        """Add rows of the table of a box; arguments as of `may_enter`."""
        for smallest, ladder in zip(fits, self._ladders.values(), strict=True):
            choice, row = np.nonzero(scores <= ladder.loosest[system, smallest])
            for one in np.unique(system[row]):
                here = system[row] == one
                c, n = choice[here], row[here]
                found = Ranked(
                    number=box.numbers(rows[n], c),
                    score=scores[c, n],
                    second=np.zeros(n.size),
                    step_time_s=step_s[c, n],
                )
                ladder.add(int(one), smallest[c, n], found, self._count)

    def found(self) -> list[BestOnSystem]:
        """The best candidates of each capacity, in order."""
        found = []
        for capacity in self._capacities:
            ladder = self._ladders[capacity.second_bytes]
            size = ladder.position(capacity)[1]
            fitting, predicted = int(ladder.fitting[size]), int(ladder.predicted[size])
            found.append(
                BestOnSystem(
                    ranked=ladder.ranked(capacity),
                    too_full=self._legal - max(fitting, predicted),
                    may_not_fit=max(predicted - fitting, 0),
                )
            )
        return found
