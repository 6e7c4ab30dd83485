"""Find the strategies of a group of points: by a search, or by estimating a fixed strategy."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from shardwise.analysis.fit_probability import states_load
from shardwise.arrays import Floats, Ints
from shardwise.config.enums import MemoryLimit
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import REPLICA_DEGREES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, SystemColumns, with_figures
from shardwise.errors import InputError
from shardwise.parallel.constraints import illegal_faults
from shardwise.planning.search.candidates import Candidates, refusals
from shardwise.planning.search.pieces import PIECE_ROWS
from shardwise.planning.search.query import Question, SearchQuery
from shardwise.planning.search.ranking import Ranked
from shardwise.planning.search.scan import MAY_NOT_FIT, MEMORY, Findings, merged, scan
from shardwise.planning.sweep.axes import Figure, influencing_figures
from shardwise.planning.sweep.joint import Capacity, best_on_each
from shardwise.planning.sweep.points import Group
from shardwise.planning.sweep.results import Influence, PointPlan, SweepPoint
from shardwise.planning.sweep.sensitivity import changed_systems, influences, plans_on

Progress = Callable[[int, int], None]
"""Called with the candidates evaluated, and all candidates of the group."""

_REASONS_SHOWN = 3
_TIMELESS = ("capacity", "reserved", "usd_per_accelerator_hour", "board_power", "power")
"""Figures that no time depends on, by the last word of their path."""


class Work(Protocol):
    """Finds the strategies of groups of points."""

    candidates: int
    objective: str

    def on(self, group: Group, progress: Progress) -> list[SweepPoint]:
        """Return what is found at every point of a group, in order."""


class SearchWork:
    """Searches the space at every point, for all points of a group together."""

    def __init__(self, query: Question, *, sensitivity: bool, reoptimize: bool) -> None:
        self._query, self._sensitivity, self._reoptimize = query, sensitivity, reoptimize
        self.candidates, self.objective = 0, "step_time"

    def on(self, group: Group, progress: Progress) -> list[SweepPoint]:
        """Return what is found at every point of a group, in order."""
        query = self._query.at(group.fields)
        found = _search_on_each(group.model, group.base, group.systems, query, progress)
        self.candidates += found.candidates
        self.objective = found.objective
        counts = [len(ranked) for ranked in found.best]
        ends = np.cumsum([0, *counts])
        plans: list[PointPlan] = []
        sensitivity: dict[int, tuple[Influence, ...]] = {}
        if found.table is not None:
            plans = plans_on(
                *(group.model, group.base, group.systems, found.table, found.on),
                stated=found.states_load,
            )
            if self._sensitivity:
                firsts = ends[:-1][np.array(counts) > 0]
                table, on = found.table.take(firsts), found.on[firsts]
                answers = influences(group.model, group.base, group.systems, table, on)
                limit = group.base.accelerator.memory[0].limit_on
                amount = "reserved" if limit == MemoryLimit.RESERVED else "total"
                needed = [plans[end].memory_bytes[amount] for end in firsts.tolist()]
                answers = _within_limits(group, query, on, answers, needed)
                if self._reoptimize:
                    now = np.array([found.best[position].score[0] for position in on.tolist()])
                    answers = _reoptimized(group, query, on, answers, now, progress)
                sensitivity = dict(zip(on.tolist(), answers, strict=True))
        return [
            point.found(
                best=tuple(plans[ends[position] : ends[position + 1]]),
                rejected=dict(reasons.most_common()),
                problem=None if counts[position] else _why_none(reasons),
                sensitivity=sensitivity.get(position, ()),
            )
            for position, (point, reasons) in enumerate(
                zip(group.points, found.rejected, strict=True)
            )
        ]


def _why_none(reasons: Counter[str]) -> str:
    """Why no strategy is feasible: the most frequent reasons."""
    if not reasons:
        return "no degrees and chunks of the space use exactly these GPUs"
    shown = ", ".join(f"{reason} {n:,}" for reason, n in reasons.most_common(_REASONS_SHOWN))
    return f"none of {sum(reasons.values()):,} strategies is feasible: {shown}"


def _within_limits(
    group: Group,
    query: Question,
    on: Ints,
    answers: Sequence[tuple[Influence, ...]],
    needed_bytes: Sequence[float],
) -> list[tuple[Influence, ...]]:
    """Whether strategies still fit where less memory is usable than the accelerator has."""
    first = ("accelerator", "memory", 0, "capacity")
    figure = next(one for one in influencing_figures(group.base) if first in one.paths)

    def limited(row: int, one: Influence) -> Influence:
        if one.figure != figure.name:
            return one
        changed = changed_systems(group.systems, on[[row]], [(figure, one.worse_factor)])
        usable = _usable_bytes(group.model, query, changed, 0)
        fits = one.worse_fits and needed_bytes[row] <= usable
        return one.model_copy(update={"worse_fits": fits})

    return [
        tuple(limited(row, influence) for influence in several)
        for row, several in enumerate(answers)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changed:
    """A figure of the hardware of one row, better or worse."""

    row: int
    figure: str
    better: bool
    factor: float


def _reoptimized(
    group: Group,
    query: Question,
    on: Ints,
    answers: Sequence[tuple[Influence, ...]],
    now: Floats,
    progress: Progress,
) -> list[tuple[Influence, ...]]:
    """Search again with every changed figure of the hardware that the answer may depend on.

    Parameters
    ----------
    on
        Position of the system of each row.
    now
        Score of the best strategy of each row [s, or the unit of the objective].
    """
    figures = {figure.name: figure for figure in influencing_figures(group.base)}
    searched = list(_changes(answers, figures, _has_several_types(query, group.base)))
    changed = changed_systems(
        group.systems,
        on[[one.row for one in searched]],
        [(figures[one.figure], one.factor) for one in searched],
    )
    query = replace(query, top=1)
    memory = [_usable_bytes(group.model, query, changed, n) for n in range(len(changed))]
    usable = np.array(memory) > 0
    best: dict[tuple[int, str, bool], tuple[float, float]] = {}
    if usable.any():
        systems = changed.take(np.flatnonzero(usable))
        found = _search_on_each(group.model, group.base, systems, query, progress)
        asked = [one for one, is_usable in zip(searched, usable, strict=True) if is_usable]
        for one, ranked in zip(asked, found.best, strict=True):
            if len(ranked):
                ratio = float(ranked.score[0] / now[one.row])
                best[one.row, one.figure, one.better] = float(ranked.step_time_s[0]), ratio
    known = {(one.row, one.figure, one.better) for one in searched}

    def with_best(row: int, one: Influence) -> Influence:
        if one.kind != "hardware":
            return one
        update: dict[str, float | None] = {
            "best_step_time_s": one.step_time_s,
            "best_saved": one.saved,
            "best_worse_step_time_s": one.worse_step_time_s,
            "best_lost": one.lost,
        }
        if better := best.get((row, one.figure, True)):
            update |= {"best_step_time_s": better[0], "best_saved": 1 - better[1]}
        if worse := best.get((row, one.figure, False)):
            update |= {"best_worse_step_time_s": worse[0], "best_lost": worse[1] - 1}
        elif (row, one.figure, False) in known:
            update |= {"best_worse_step_time_s": None, "best_lost": None}
        return one.model_copy(update=update)

    return [
        tuple(with_best(row, influence) for influence in several)
        for row, several in enumerate(answers)
    ]


def _changes(
    answers: Sequence[tuple[Influence, ...]], figures: Mapping[str, Figure], several_types: bool
) -> Iterator[_Changed]:
    """Yield the changes of the hardware that may change the best strategy or its time.

    A better figure may make another strategy the best even if this one does not use it: more
    bandwidth of the host, where nothing is offloaded. A worse one that this strategy does not use
    leaves it the best. Rates of types that no strategy of the space has change nothing.
    """
    for row, several in enumerate(answers):
        for one in several:
            if one.kind != "hardware":
                continue
            used = bool(one.elasticity)
            if used or several_types or not figures[one.figure].is_rate:
                yield _Changed(row=row, figure=one.figure, better=True, factor=one.factor)
            if used or one.lost or one.figure.endswith(".capacity"):
                yield _Changed(row=row, figure=one.figure, better=False, factor=one.worse_factor)


def _has_several_types(query: Question, system: System) -> bool:
    """Whether the space has several types of numbers."""
    return any(
        len(query.space.values(field, system) or ()) > 1 for field in ("dtype", "quantization")
    )


def _usable_bytes(model: Model, query: Question, systems: SystemColumns, position: int) -> float:
    """Usable memory of a system [byte]; 0 where it has less than is to stay free."""
    try:
        return query.on(model, _system_at(systems, position)).capacity_bytes
    except InputError:
        return 0.0


def _system_at(systems: SystemColumns, position: int) -> System:
    figures = {path: column[position].item() for path, column in systems.figures.items()}
    return with_figures(systems.base, figures)


class FixedWork:
    """Estimates one strategy at every point."""

    def __init__(
        self, fields: Mapping[str, object], varied: Sequence[str], *, sensitivity: bool
    ) -> None:
        self._fields, self._sensitivity = dict(fields), sensitivity
        dp_follows = "gpus" in {*fields, *varied} and set(varied) & {"gpus", *REPLICA_DEGREES}
        by_level = isinstance(self._fields.get("dp"), str)
        if dp_follows and not by_level and "dp" not in varied:
            self._fields.pop("dp", None)
        self.candidates, self.objective = 0, "step_time"

    def on(self, group: Group, progress: Progress) -> list[SweepPoint]:
        """Return what is found at every point of a group, in order."""
        count = len(group.systems)
        progress(0, count)
        self.candidates += count
        try:
            strategy = Strategy.validated({**self._fields, **group.fields}, source="strategy")
            table = Table.of(group.model, [strategy.resolved(group.model, group.base)])
            faults = list(illegal_faults(group.model, group.base, table).values())
        except InputError as error:
            faults = list(error.faults)
        if faults:
            problem = "; ".join(str(fault).removeprefix("strategy: ") for fault in faults)
            return [point.found(best=(), rejected={}, problem=problem) for point in group.points]
        each = np.arange(count)
        table = table.take(np.zeros(count, dtype=np.int64))
        stated = states_load(strategy)
        plans = plans_on(group.model, group.base, group.systems, table, each, stated=stated)
        answers: list[tuple[Influence, ...]] = [()] * count
        if self._sensitivity:
            answers = influences(group.model, group.base, group.systems, table, each)
        return [
            point.found(best=(plan,), rejected={}, problem=None, sensitivity=answer)
            for point, plan, answer in zip(group.points, plans, answers, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchedSystems:
    """What was found on each of several systems."""

    best: tuple[Ranked, ...]
    table: Table | None
    """The strategies of `best`, one system after the other; None where there are none."""
    on: Ints
    """Position of the system of each row of the table."""
    rejected: tuple[Counter[str], ...]
    candidates: int
    objective: str
    states_load: bool
    """Whether the user states the load of experts."""


def _search_on_each(
    model: Model, base: System, systems: SystemColumns, query: Question, progress: Progress
) -> _SearchedSystems:
    """Find the best strategies of a space on each of several systems of the structure of `base`."""
    queries = [query.on(model, _system_at(systems, n)) for n in range(len(systems))]
    candidates = Candidates.of(model, base, query.space)
    if query.space.selected:
        best, rejected = _one_by_one(queries, candidates, progress)
    else:
        best, rejected = _together(systems, queries, candidates, progress)
    illegal = refusals(candidates.illegal)
    numbers = np.concatenate([ranked.number for ranked in best])
    return _SearchedSystems(
        best=tuple(best),
        table=candidates.strategies(numbers) if numbers.size else None,
        on=np.repeat(np.arange(len(best)), [len(ranked) for ranked in best]),
        rejected=tuple(+(reasons + illegal) for reasons in rejected),
        candidates=len(candidates) * len(best),
        objective=queries[0].objective,
        states_load=queries[0].fit.states_load,
    )


def _together(
    systems: SystemColumns,
    queries: Sequence[SearchQuery],
    candidates: Candidates,
    progress: Progress,
) -> tuple[list[Ranked], list[Counter[str]]]:
    """Evaluate the memory of each candidate once, and its time on all systems together."""
    distinct, number = _distinct_rates(systems)
    capacities = []
    for position, query in enumerate(queries):
        outer = query.system.accelerator.memory[1:]
        capacities.append(
            Capacity(
                system=int(number[position]),
                first_bytes=query.capacity_bytes,
                second_bytes=float(outer[0].usable_bytes) if outer else float("inf"),
            )
        )
    total, done = sum(map(len, candidates.legal)), 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        progress(done * len(queries), total * len(queries))

    first = queries[0]
    found, broken = best_on_each(
        first.model,
        first.system,
        distinct,
        capacities,
        candidates,
        # On one system the price is the same for all.
        objective=(
            "tokens_per_s_per_gpu" if first.objective == "tokens_per_dollar" else first.objective
        ),
        count=first.top,
        progress=add,
        fit=first.fit,
    )
    rejected = [
        broken + Counter({MEMORY: one.too_full, MAY_NOT_FIT: one.may_not_fit}) for one in found
    ]
    return [one.ranked for one in found], rejected


def _distinct_rates(systems: SystemColumns) -> tuple[SystemColumns, Ints]:
    """Systems whose times differ, and the position of each system among them."""
    rates: dict[FigurePath, Floats] = {
        path: column for path, column in systems.figures.items() if path[-1] not in _TIMELESS
    }
    if not rates:
        none: dict[FigurePath, Any] = {}
        one = SystemColumns(base=systems.base, figures=none, count=1)
        return one, np.zeros(len(systems), np.int64)
    _, first, number = np.unique(
        np.stack(list(rates.values())), axis=1, return_index=True, return_inverse=True
    )
    distinct = SystemColumns(base=systems.base, figures=rates, count=len(systems)).take(first)
    return distinct, number.reshape(-1)


def _one_by_one(
    queries: Sequence[SearchQuery], candidates: Candidates, progress: Progress
) -> tuple[list[Ranked], list[Counter[str]]]:
    """Search one system after the other: the selected values of fields depend on what fits."""
    best, rejected = [], []
    each = sum(map(len, candidates.legal))
    for done, query in enumerate(queries, 1):
        findings = Findings.empty()
        for piece in (piece for box in candidates.legal for piece in box.cut(PIECE_ROWS)):
            findings = merged([findings, scan(query, piece)], query)
        best.append(findings.best)
        rejected.append(findings.rejected)
        progress(done * each, len(queries) * each)
    return best, rejected
