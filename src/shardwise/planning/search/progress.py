"""Progress of a search: how far it is, and the best plan so far."""

from collections.abc import Callable

import numpy as np

from shardwise.config.strategy import Strategy
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.search.ranking import Ranked
from shardwise.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSoFar:
    """The best plan that a running search has found."""

    strategy: Strategy
    """All fields, defaults filled in."""
    step_time_s: float
    tokens_per_s_per_gpu: float


Progress = Callable[[int, int, BestSoFar | None], None]
"""Called with candidates scanned, all candidates, and the best plan so far."""


class Reporter:
    """Calls a progress function, if any, and looks up the best plan where it is another one."""

    def __init__(self, progress: Progress | None, candidates: Candidates) -> None:
        self._progress = progress
        self._candidates = candidates
        self._number: int | None = None
        self._best: BestSoFar | None = None

    def __call__(self, done: int, total: int, best: Ranked) -> None:
        """Report candidates scanned, all candidates, and the best ones so far."""
        if self._progress is None:
            return
        if len(best) and best.number[0] != self._number:
            self._number = int(best.number[0])
            self._best = self._look_up(float(best.step_time_s[0]))
        self._progress(done, total, self._best)

    def _look_up(self, step_time_s: float) -> BestSoFar:
        row = self._candidates.strategies(np.array([self._number]))
        tokens = float((row.global_batch_size * row.trained_len)[0])
        return BestSoFar(
            strategy=row.strategy(0),
            step_time_s=step_time_s,
            tokens_per_s_per_gpu=tokens / step_time_s / int(row.gpus[0]),
        )
