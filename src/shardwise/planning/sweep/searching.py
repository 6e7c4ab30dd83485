"""The best strategies at the points of a group."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, SystemColumns, with_figures
from shardwise.planning.search.best import Ranked
from shardwise.planning.search.candidates import Candidates, refusals
from shardwise.planning.search.pieces import PIECE_ROWS
from shardwise.planning.search.query import asked
from shardwise.planning.search.scan import MEMORY, Found, Question, look, merged
from shardwise.planning.search.space import Space
from shardwise.planning.sweep.joint import Best, Room, best_on_each

__all__ = ["Searched", "Wanted", "search_on_each", "system_at"]

_TIMELESS = ("capacity", "usd_per_accelerator_hour", "board_power", "power")
"""Figures that no time depends on, by the last word of where they stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked at every point."""

    space: Space
    objective: str | None
    top: int
    max_memory: float | str | None
    reserve: float | str

    def at(self, fields: Mapping[str, Any]) -> "Wanted":
        """The same with some fields of the space fixed."""
        return replace(self, space=self.space.fixed(fields, source="vary")) if fields else self

    def one(self) -> "Wanted":
        """The same, but for the best strategy alone."""
        return replace(self, top=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What was found on each system."""

    best: tuple[Ranked, ...]
    table: Table | None
    """The strategies of `best`, one system after the other; None where there are none."""
    on: Ints
    """The system of each row of the table."""
    rejected: tuple[Counter[str], ...]
    candidates: int
    objective: str


def search_on_each(
    model: Model,
    base: System,
    systems: SystemColumns,
    wanted: Wanted,
    seen: Callable[[int, int], None],
) -> Searched:
    """Find the best strategies of a space on each of several systems of one structure.

    Parameters
    ----------
    base
        Of that structure.
    seen
        Called with candidates looked at and candidates in all, over all systems.
    """
    several = [system_at(systems, place) for place in range(len(systems))]
    questions = [
        asked(
            model,
            system,
            wanted.space,
            wanted.objective,
            wanted.max_memory,
            wanted.reserve,
            top=wanted.top,
        )
        for system in several
    ]
    candidates = Candidates.of(model, base, wanted.space)
    if wanted.space.kept:
        best, rejected = _one_by_one(questions, candidates, seen)
    else:
        best, rejected = _together(systems, several, questions, candidates, seen)
    illegal = refusals(candidates.illegal)
    numbers = np.concatenate([ranked.number for ranked in best])
    return Searched(
        best=tuple(best),
        table=candidates.strategies(numbers) if numbers.size else None,
        on=np.repeat(np.arange(len(best)), [len(ranked) for ranked in best]),
        rejected=tuple(+(reasons + illegal) for reasons in rejected),
        candidates=len(candidates) * len(best),
        objective=questions[0].objective,
    )


def system_at(systems: SystemColumns, place: int) -> System:
    """One of several systems."""
    figures = {path: column[place].item() for path, column in systems.figures.items()}
    return with_figures(systems.base, figures)


def _together(
    systems: SystemColumns,
    several: Sequence[System],
    questions: Sequence[Question],
    candidates: Candidates,
    seen: Callable[[int, int], None],
) -> tuple[list[Ranked], list[Counter[str]]]:
    """Judge each candidate once, and time it on all systems at once."""
    timed, number = _of_unlike_rates(systems)
    rooms = [
        Room(
            system=int(number[place]),
            first_bytes=question.capacity_bytes,
            second_bytes=next(
                (tier.capacity for tier in system.accelerator.memory[1:]), float("inf")
            ),
        )
        for place, (system, question) in enumerate(zip(several, questions, strict=True))
    ]
    whole, done = sum(map(len, candidates.legal)), 0

    def looked(some: int) -> None:
        nonlocal done
        done += some
        seen(done * len(several), whole * len(several))

    objective = questions[0].objective
    found, broken = best_on_each(
        questions[0].model,
        questions[0].system,
        timed,
        rooms,
        candidates,
        # In a room the price is the same for all.
        objective="tokens_per_s_per_gpu" if objective == "tokens_per_dollar" else objective,
        count=questions[0].top,
        seen=looked,
    )
    return [one.ranked for one in found], [_too_full(one, broken) for one in found]


def _too_full(best: Best, broken: Counter[str]) -> Counter[str]:
    return broken + Counter({MEMORY: best.too_full})


def _of_unlike_rates(systems: SystemColumns) -> tuple[SystemColumns, Ints]:
    """Systems whose times differ, and which of them each one is."""
    rates: dict[FigurePath, Floats] = {
        path: column for path, column in systems.figures.items() if path[-1] not in _TIMELESS
    }
    if not rates:
        none: dict[FigurePath, Any] = {}
        return (
            SystemColumns(base=systems.base, figures=none, count=1),
            np.zeros(len(systems), np.int64),
        )
    _, first, number = np.unique(
        np.stack(list(rates.values())), axis=1, return_index=True, return_inverse=True
    )
    distinct = SystemColumns(base=systems.base, figures=rates, count=len(systems)).take(first)
    return distinct, number.reshape(-1)


def _one_by_one(
    questions: Sequence[Question], candidates: Candidates, seen: Callable[[int, int], None]
) -> tuple[list[Ranked], list[Counter[str]]]:
    """Search on one system after the other: of some fields the value that fits is kept."""
    best, rejected = [], []
    each = sum(map(len, candidates.legal))
    for place, question in enumerate(questions):
        found = Found.nothing()
        for box in candidates.legal:
            for piece in box.cut(PIECE_ROWS):
                found = merged([found, look(question, piece)], question)
        best.append(found.best)
        rejected.append(found.rejected)
        seen((place + 1) * each, len(questions) * each)
    return best, rejected
