"""What is done at the points of a group: a search, or one strategy held fixed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shardwise.arrays import Ints
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.errors import InputError
from shardwise.parallel.constraints import illegal_faults
from shardwise.planning.sweep.figures import influencing_figures
from shardwise.planning.sweep.plans import plans_on
from shardwise.planning.sweep.points import Group
from shardwise.planning.sweep.results import Influence, PointPlan
from shardwise.planning.sweep.searching import Wanted, search_on_each
from shardwise.planning.sweep.sensitivity import changed_systems, influences

__all__ = ["FixedWork", "Outcome", "SearchWork", "Seen", "Work"]

Seen = Callable[[int, int], None]
"""Called with what was looked at and all there is."""

_SPREAD = ("gpus", "tp", "pp", "cp")
_REASONS_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one point."""

    best: tuple[PointPlan, ...]
    rejected: Mapping[str, int]
    problem: str | None
    sensitivity: tuple[Influence, ...] = ()


class Work(Protocol):
    """Whoever finds the strategies of a group."""

    candidates: int
    objective: str

    def on(self, group: Group, seen: Seen) -> list[Outcome]:
        """What comes of every point of a group, in order."""


class SearchWork:
    """Search the space at every point, all points of a group together."""

    def __init__(self, wanted: Wanted, *, sensitivity: bool, reoptimise: bool) -> None:
        self._wanted, self._sensitivity, self._reoptimise = wanted, sensitivity, reoptimise
        self.candidates, self.objective = 0, "step_time"

    def on(self, group: Group, seen: Seen) -> list[Outcome]:
        """What comes of every point of a group, in order."""
        wanted = self._wanted.at(group.fields)
        found = search_on_each(group.model, group.base, group.systems, wanted, seen)
        self.candidates += found.candidates
        self.objective = found.objective
        counts = [len(ranked) for ranked in found.best]
        ends = np.cumsum([0, *counts])
        plans: list[PointPlan] = []
        firsts = ends[:-1][np.array(counts) > 0]
        answers: dict[int, tuple[Influence, ...]] = {}
        if found.table is not None:
            plans = plans_on(group.model, group.base, group.systems, found.table, found.on)
            if self._sensitivity:
                table, on = found.table.take(firsts), found.on[firsts]
                told = influences(group.model, group.base, group.systems, table, on)
                if self._reoptimise:
                    told = self._searched_again(group, wanted, on, told, seen)
                answers = dict(zip(on.tolist(), told, strict=True))
        return [
            Outcome(
                best=tuple(plans[ends[place] : ends[place + 1]]),
                rejected=dict(reasons.most_common()),
                problem=None if counts[place] else _none_of(reasons),
                sensitivity=answers.get(place, ()),
            )
            for place, reasons in enumerate(found.rejected)
        ]

    def _searched_again(
        self,
        group: Group,
        wanted: Wanted,
        on: Ints,
        told: Sequence[tuple[Influence, ...]],
        seen: Seen,
    ) -> list[tuple[Influence, ...]]:
        """Search again with every figure changed that times or room depend on."""
        figures = {figure.name: figure for figure in influencing_figures(group.base)}
        wants = [
            (row, influence)
            for row, several in enumerate(told)
            for influence in several
            if influence.elasticity or influence.figure.endswith(".capacity")
        ]
        changed = changed_systems(
            group.systems,
            on[[row for row, _ in wants]],
            [(figures[influence.figure], influence.factor) for _, influence in wants],
        )
        found = search_on_each(group.model, group.base, changed, wanted.one(), seen)
        again = {
            (row, influence.figure): ranked.step_time_s[0]
            for (row, influence), ranked in zip(wants, found.best, strict=True)
            if len(ranked)
        }
        return [
            tuple(
                _with_best(influence, again.get((row, influence.figure))) for influence in several
            )
            for row, several in enumerate(told)
        ]


def _with_best(influence: Influence, best_s: float | None) -> Influence:
    if best_s is None:
        return influence
    now_s = influence.step_time_s / (1 - influence.saved)
    found = {"best_step_time_s": float(best_s), "best_saved": float(1 - best_s / now_s)}
    return influence.model_copy(update=found)


def _none_of(reasons: Counter[str]) -> str:
    """Why no strategy is feasible: what most of them break."""
    told = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common(_REASONS_TOLD))
    return f"none of {sum(reasons.values()):,} strategies is feasible: {told}"


class FixedWork:
    """Evaluate one strategy at every point."""

    def __init__(
        self, fields: Mapping[str, Any], varied: Sequence[str], *, sensitivity: bool
    ) -> None:
        self._fields, self._sensitivity = dict(fields), sensitivity
        by_level = isinstance(self._fields.get("dp"), str)
        if (
            not by_level
            and "dp" not in varied
            and "gpus" in {*fields, *varied}
            and set(varied) & set(_SPREAD)
        ):
            self._fields.pop("dp", None)
        self.candidates, self.objective = 0, "step_time"

    def on(self, group: Group, seen: Seen) -> list[Outcome]:
        """What comes of every point of a group, in order."""
        count = len(group.systems)
        seen(0, count)
        self.candidates += count
        try:
            given = Strategy.validated({**self._fields, **group.fields}, source="strategy")
            table = Table.of(group.model, [given.resolved(group.model)])
            faults = list(illegal_faults(group.model, group.base, table).values())
        except InputError as error:
            faults = list(error.faults)
        if faults:
            problem = "; ".join(str(fault).removeprefix("strategy: ") for fault in faults)
            return [Outcome(best=(), rejected={}, problem=problem)] * count
        each = np.arange(count)
        table = table.take(np.zeros(count, dtype=np.int64))
        plans = plans_on(group.model, group.base, group.systems, table, each)
        told: list[tuple[Influence, ...]] = [()] * count
        if self._sensitivity:
            told = influences(group.model, group.base, group.systems, table, each)
        return [
            Outcome(best=(plan,), rejected={}, problem=None, sensitivity=answer)
            for plan, answer in zip(plans, told, strict=True)
        ]
