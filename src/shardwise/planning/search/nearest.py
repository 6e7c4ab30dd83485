"""Look through a box for what is near a given strategy, and for how many are better."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Ints
from shardwise.planning.search.best import Ranked, best_of_each
from shardwise.planning.search.candidates import Box
from shardwise.planning.search.evaluate import Evaluated
from shardwise.planning.search.given_strategy import Given
from shardwise.planning.search.objective import OBJECTIVES
from shardwise.planning.search.scan import Found, Question, look
from shardwise.planning.search.space import SPACE_FIELDS

__all__ = ["Near", "look_near", "merged_near"]

# Scores that differ by a smaller share are equal: the last digits depend on the rows beside.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Feasible candidates, seen from a given strategy."""

    better: int
    """Those that have a better score."""
    changes: Ints
    """Distances at which there are some: how many fields of the given strategy change."""
    best: Ranked
    """The best candidate at each of them."""

    @classmethod
    def nothing(cls) -> "Near":
        """None at all."""
        return cls(better=0, changes=np.empty(0, np.int64), best=Ranked.none())


def merged_near(parts: Sequence[Near]) -> Near:
    """What was found in all parts together."""
    changes, best = best_of_each(
        np.concatenate([part.changes for part in parts])[:, np.newaxis],
        Ranked.joined([part.best for part in parts]),
    )
    return Near(better=sum(part.better for part in parts), changes=changes[:, 0], best=best)


def look_near(
    question: Question, given: Given, score: float | None, box: Box
) -> tuple[Found, Near]:
    """Judge every candidate of a box of legal layouts.

    Parameters
    ----------
    score
        Of the given strategy, as the objective has it; None if it is not feasible.
    """
    watch = _Watch(question, given, score, box)
    found = look(question, box, watch)
    return found, watch.near


class _Watch:
    """Measures how far every feasible candidate of a box is from the given strategy."""

    def __init__(self, question: Question, given: Given, score: float | None, box: Box) -> None:
        self._question, self._box = question, box
        self._limit = -np.inf if score is None else score * (1 - _ROUNDING)
        self._of_rows, self._of_choices = given.distances(box)
        self.near = Near.nothing()

    def options(self, broken: Ints) -> None:
        """Pass over what breaks a rule."""

    def judged(self, judged: Evaluated) -> None:
        """Keep the best of a chunk at each distance where it is not behind what came before."""
        fitting = judged.fitting
        if fitting is None:
            return
        step_s = fitting.timing.step_time_s
        score = OBJECTIVES[self._question.objective](step_s, fitting.table, self._question.system)
        score = np.where(fitting.feasible, score, np.inf)
        rows = judged.rows[fitting.rows]
        distance = self._of_choices[:, np.newaxis] + self._of_rows[rows]
        least = np.full(len(SPACE_FIELDS) + 1, np.finfo(np.float64).max)
        least[self.near.changes] = self.near.best.score
        choice, row = np.nonzero(score <= least[distance])
        ranked = Ranked(
            number=self._box.numbers(rows[row], choice),
            score=score[choice, row],
            beside=np.zeros(row.size),
            step_time_s=step_s[choice, row],
        )
        changes, best = best_of_each(distance[choice, row][:, np.newaxis], ranked)
        better = int(np.count_nonzero(score < self._limit))
        here = Near(better=better, changes=changes[:, 0], best=best)
        self.near = merged_near([self.near, here])
