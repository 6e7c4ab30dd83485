"""Look through a box of candidates: what a search asks of it, and what is found there."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.planning.search.best import Ranked, best_of_each, front, top
from shardwise.planning.search.candidates import Box
from shardwise.planning.search.evaluate import (
    Evaluated,
    Judge,
    broken_options,
    broken_reasons,
    excess_bytes,
)
from shardwise.planning.search.objective import OBJECTIVES, against, seconds_per_token
from shardwise.planning.search.selection import PASSED, passed_over

__all__ = ["MEMORY", "SECOND_MEMORY", "Found", "Question", "Witness", "look", "merged"]

MEMORY, SECOND_MEMORY = "memory", "second_memory"
"""Reasons why a legal strategy is not feasible: which tier is too small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a search asks of every candidate."""

    model: Model
    system: System
    capacity_bytes: float
    """What of the first memory tier may be used."""
    objective: str = "step_time"
    top: int = 10
    front: str | None = None
    """What stands against time on the Pareto front."""
    axes: tuple[str, ...] = ()
    """Fields whose every combination of values is to have its best candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found in some candidates."""

    candidates: int
    evaluated: int
    """Those that obey the rules."""
    feasible: int
    """Those of them that fit."""
    rejected: Counter[str]
    """The others, by reason."""
    best: Ranked
    front: Ranked
    cells: Ranked
    """The best of each combination of values of the axes."""
    cell_values: Ints
    """Their values, as columns of `Table` hold them; shape (cells, axes)."""
    nearest: Ranked
    """Of those that memory rejects, the one with the least excess: its score [byte]; `beside` is
    the tier that lacks it."""

    @classmethod
    def nothing(cls, axes: int = 0) -> "Found":
        """Nothing."""
        none = Ranked.none()
        return cls(
            candidates=0,
            evaluated=0,
            feasible=0,
            rejected=Counter(),
            best=none,
            front=none,
            cells=none,
            cell_values=np.empty((0, axes), np.int64),
            nearest=none,
        )


def merged(parts: Sequence[Found], question: Question) -> Found:
    """What was found in all parts together."""
    parts = [Found.nothing(len(question.axes)), *parts]
    values, cells = best_of_each(
        np.concatenate([part.cell_values for part in parts]),
        Ranked.joined([part.cells for part in parts]),
    )
    return Found(
        candidates=sum(part.candidates for part in parts),
        evaluated=sum(part.evaluated for part in parts),
        feasible=sum(part.feasible for part in parts),
        rejected=sum((part.rejected for part in parts), Counter()),
        best=top(Ranked.joined([part.best for part in parts]), question.top),
        front=front(Ranked.joined([part.front for part in parts])),
        cells=cells,
        cell_values=values,
        nearest=top(Ranked.joined([part.nearest for part in parts]), 1),
    )


class Witness(Protocol):
    """Whoever wants to see every candidate as it is judged."""

    def options(self, broken: Ints) -> None:
        """See the rule that each option and choice breaks, or -1; shape (choices, rows)."""

    def judged(self, judged: Evaluated) -> None:
        """See the next chunk."""


def look(question: Question, box: Box, witness: Witness | None = None) -> Found:
    """Judge every candidate of a box of legal layouts."""
    table = box.table()
    broken = broken_options(question.model, question.system, box, table)
    if witness is not None:
        witness.options(broken)
    found = replace(
        Found.nothing(len(question.axes)),
        candidates=len(box),
        rejected=broken_reasons(broken),
    )
    judge = Judge.of(question.model, question.system, table, broken, question.capacity_bytes)
    weighed: Iterable[Evaluated] = judge.weighed()
    passed = None
    if box.kept:
        weighed = list(weighed)
        passed = passed_over(question.model, box, table, judge, weighed)
    for one in weighed:
        judged = judge.timed(one, passed)
        found = merged([found, _of_chunk(question, box, judged, found)], question)
        if witness is not None:
            witness.judged(judged)
    return found


def _of_chunk(question: Question, box: Box, judged: Evaluated, before: Found) -> Found:
    """What is found in a chunk; of the best ones, those that may join what was found before."""
    here = replace(Found.nothing(len(question.axes)), **_counts(question, judged))
    if judged.fitting is None:
        return replace(here, nearest=_nearest(question, box, judged))
    fitting = judged.fitting
    step_s, table, system = fitting.timing.step_time_s, fitting.table, question.system
    reserved = judged.holding.reserved_bytes[:, fitting.rows]

    def ranked(candidates: Bools, score: Floats, beside: Floats) -> Ranked:
        choice, row = np.nonzero(candidates)
        return Ranked(
            number=box.numbers(judged.rows[fitting.rows[row]], choice),
            score=score[choice, row],
            beside=beside[choice, row],
            step_time_s=step_s[choice, row],
        )

    score = OBJECTIVES[question.objective](step_s, table, system)
    full = len(before.best) == question.top
    near = fitting.feasible & (score <= before.best.score[-1]) if full else fitting.feasible
    held = reserved[judged.held_as]
    here = replace(here, best=top(ranked(near, score, held), question.top))
    if question.front is not None:
        beside = against(question.front, step_s, held, table, system)
        time_s = seconds_per_token(step_s, table, system)
        here = replace(here, front=front(ranked(fitting.feasible, time_s, beside)))
    if question.axes:
        columns = [np.broadcast_to(_as_integers(table, a), step_s.shape) for a in question.axes]
        keys = np.stack([column[fitting.feasible] for column in columns], axis=1)
        values, cells = best_of_each(keys, ranked(fitting.feasible, score, held))
        here = replace(here, cells=cells, cell_values=values)
    return here


def _as_integers(table: Table, name: str) -> Ints:
    """A column whose values tell candidates apart; of numbers with a fraction, their bits."""
    column: Any = getattr(table, name)
    if (
        name == "extents"
    ):  # positions in lists that differ from one number of accelerators to another
        return np.array([*map(_as_integer, table.extent_lists), 0], dtype=np.int64)[column]
    return column.view(np.int64) if column.dtype == np.float64 else column.astype(np.int64)


def _as_integer(text: str) -> int:
    """A number that stands for a text wherever it is seen."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)


def _counts(question: Question, judged: Evaluated) -> dict[str, Any]:
    """How many candidates obey the rules, how many fit, and which memory tier has no room."""
    legal, feasible = (int(np.count_nonzero(m)) for m in (judged.legal, judged.feasible))
    memory = int(np.count_nonzero(judged.legal & judged.too_full(question.capacity_bytes)))
    passed = np.bincount(judged.passed[judged.passed >= 0], minlength=len(PASSED)).tolist()
    second = legal - feasible - memory - sum(passed)
    rejected = Counter(
        {MEMORY: memory, SECOND_MEMORY: second, **dict(zip(PASSED, passed, strict=True))}
    )
    return {"evaluated": legal, "feasible": feasible, "rejected": +rejected}


def _nearest(question: Question, box: Box, judged: Evaluated) -> Ranked:
    """The candidate that memory rejects by least, on the tier that lacks most."""
    excess = excess_bytes(question.system, judged.holding, question.capacity_bytes)
    by_tier = excess[:, judged.held_as]
    worst = np.where(judged.legal, by_tier.max(axis=0), np.inf)
    choice, row = np.nonzero((worst == worst.min()) & np.isfinite(worst))
    return top(
        Ranked(
            number=box.numbers(judged.rows[row], choice),
            score=worst[choice, row],
            beside=by_tier.argmax(axis=0)[choice, row].astype(np.float64),
            step_time_s=np.zeros(row.size),
        ),
        1,
    )
