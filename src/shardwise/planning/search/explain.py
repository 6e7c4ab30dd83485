"""`explain`: why not this strategy, and which changes of a few fields improve it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from shardwise.analysis.results import Estimate
from shardwise.arrays import Ints
from shardwise.config.model import Model, ModelLike
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import OFFLOADS
from shardwise.config.strategy_input import StrategyLike
from shardwise.config.system import System, SystemLike
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import check_function
from shardwise.estimator import estimate
from shardwise.planning.search.candidates import Box, Candidates
from shardwise.planning.search.evaluate import Evaluated
from shardwise.planning.search.keywords import SpaceKeywords
from shardwise.planning.search.pieces import PIECE_ROWS
from shardwise.planning.search.plans import plans_of
from shardwise.planning.search.progress import Progress, Reporter
from shardwise.planning.search.query import SearchQuery, load_space
from shardwise.planning.search.ranking import OBJECTIVES, Ranked, best_of_each
from shardwise.planning.search.results import (
    BrokenRule,
    Change,
    Explanation,
    FieldChange,
    Loss,
    OutsideSpace,
    Shortage,
)
from shardwise.planning.search.scan import Findings, merged, scan
from shardwise.planning.search.space import SPACE_FIELDS, Space
from shardwise.planning.search.user_strategy import UserStrategy

# A smaller share of a step is no reason to change anything.
_WORTH = 1e-6
# Scores that differ by a smaller share are equal: the last digits depend on the other rows.
_ROUNDING = 1e-12


def explain(
    model: ModelLike,
    system: SystemLike,
    space: Space | Mapping[str, Any] | str | Path | None,
    strategy: StrategyLike,
    *,
    objective: str | None = None,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    limit_on: str | None = None,
    progress: Progress | None = None,
    **fixed: Unpack[SpaceKeywords],
) -> Explanation:
    """Explain why a strategy is illegal, too big, or slower than the best, and how to improve it.

    Parameters
    ----------
    space
        The strategies to compare with, as for `search`; GPUs and batch are by default those of
        the strategy.
    strategy
        A `Strategy`, its fields as a mapping, or a file. An unset field has the value of the
        space if that has only one, else its default.
    objective, max_memory, reserve, limit_on, progress, **fixed
        As for `search`.

    Returns
    -------
    Explanation
        What is wrong with the strategy, or what is better; `help(shardwise.Explanation)` lists its
        fields.

    Raises
    ------
    InputError
        If an argument is wrong; one fault for each. A broken rule is no fault.

    Examples
    --------
    >>> from shardwise import explain
    >>> mine = explain("llama3-8b", "h100-sxm", {"pp": 1}, {"tp": 8, "zero": 0}, gpus=8, gbs=64)
    >>> mine.legal, mine.fits, mine.rank == 1
    (True, True, False)
    """
    started = time.perf_counter()
    check_function("progress", progress)
    the_model, the_system = Model.load(model), System.load(system).limited_on(limit_on)
    declared = load_space(space, fixed)
    query = SearchQuery.of(
        the_model,
        the_system,
        declared,
        objective=objective,
        max_memory=max_memory,
        reserve=reserve,
        top=1,
    )
    user = UserStrategy.of(the_model, the_system, declared, strategy)
    searched = _with_scale_of(user, declared)
    candidates = Candidates.of(the_model, the_system, searched)
    mine = None if user.broken else estimate(the_model, the_system, user.row.strategy(0))
    shortages = () if mine is None else _shortages(query, mine)
    score = None
    if mine is not None and not shortages:
        step_s = np.array([mine.step_time_s])
        score = float(OBJECTIVES[query.objective](step_s, user.row, the_system)[0])
    report = Reporter(progress, candidates)
    findings, neighbors, complete = _scan_all(query, candidates, user, score, report)
    best: Estimate | None = None
    differs: tuple[FieldChange, ...] = ()
    if len(findings.best):
        row = candidates.strategies(findings.best.number)
        best = estimate(the_model, the_system, row.strategy(0))
        differs = _field_changes(user, user.changed(row), row.strategy(0))
    outside = user.outside(searched)
    fields = user.row.strategy(0).to_dict()
    feasible = score is not None
    return Explanation(
        model=the_model.name,
        system=the_system.name,
        space=declared.model_dump(mode="json", exclude_unset=True),
        objective=query.objective,
        capacity_bytes=query.capacity_bytes,
        strategy=fields,
        legal=mine is not None,
        broken=tuple(
            BrokenRule(
                reason=reason, field=fault.field, value=_name(fault.value), problem=fault.problem
            )
            for reason, fault in user.broken.items()
        ),
        fits=None if mine is None else not shortages,
        shortages=shortages,
        in_space=not outside,
        outside=tuple(
            OutsideSpace(field=name, value=_name(fields[name]), tried=tuple(map(_name, tried)))
            for name, tried in outside.items()
        ),
        estimate=mine,
        candidates=len(candidates),
        feasible=findings.feasible,
        better=neighbors.better if feasible else None,
        rank=neighbors.better + 1 if feasible and not outside else None,
        best=best,
        loss=_loss(mine, best) if feasible else None,
        differs=differs,
        changes=_changes(query, candidates, user, neighbors, score),
        elapsed_s=time.perf_counter() - started,
        complete=complete,
    )


def _with_scale_of(user: UserStrategy, space: Space) -> Space:
    """The space with the GPUs and the batch of the strategy, where it sets none."""
    own = {n: int(getattr(user.row, n)[0]) for n in ("gpus", "global_batch_size")}
    missing = {name: value for name, value in own.items() if not getattr(space, name)}
    return space.fixed(missing, source="strategy") if missing else space


@dataclass(frozen=True, slots=True, kw_only=True)
class _Neighbors:
    """Feasible candidates by their distance from the user's strategy."""

    better: int
    """Number of candidates with a better score."""
    changes: Ints
    """Distances at which there are candidates: numbers of changed fields."""
    best: Ranked
    """The best candidate at each distance."""

    @classmethod
    def empty(cls) -> "_Neighbors":
        return cls(better=0, changes=np.empty(0, np.int64), best=Ranked.empty())

    @staticmethod
    def joined(parts: "Sequence[_Neighbors]") -> "_Neighbors":
        changes, best = best_of_each(
            np.concatenate([part.changes for part in parts])[:, np.newaxis],
            Ranked.joined([part.best for part in parts]),
        )
        better = sum(part.better for part in parts)
        return _Neighbors(better=better, changes=changes[:, 0], best=best)


class _NeighborObserver:
    """Measures how far every feasible candidate of a box is from the user's strategy."""

    def __init__(
        self, query: SearchQuery, user: UserStrategy, score: float | None, box: Box
    ) -> None:
        self._query, self._box = query, box
        self._limit = -np.inf if score is None else score * (1 - _ROUNDING)
        self._row_distances, self._choice_distances = user.distances(box)
        self.neighbors = _Neighbors.empty()

    def options(self, broken: Ints) -> None:
        """Ignore candidates that break a rule."""

    def evaluated(self, chunk: Evaluated) -> None:
        """Add the best candidates of a chunk at each distance."""
        timed = chunk.timed
        if timed is None:
            return
        step_s = timed.timing.step_time_s
        score = OBJECTIVES[self._query.objective](step_s, timed.table, self._query.system)
        score = np.where(timed.feasible, score, np.inf)
        rows = chunk.rows[timed.rows]
        distance = self._choice_distances[:, np.newaxis] + self._row_distances[rows]
        least = np.full(len(SPACE_FIELDS) + 1, np.finfo(np.float64).max)
        least[self.neighbors.changes] = self.neighbors.best.score
        choice, row = np.nonzero(score <= least[distance])
        ranked = Ranked(
            number=self._box.numbers(rows[row], choice),
            score=score[choice, row],
            second=np.zeros(row.size),
            step_time_s=step_s[choice, row],
        )
        changes, best = best_of_each(distance[choice, row][:, np.newaxis], ranked)
        better = int(np.count_nonzero(score < self._limit))
        here = _Neighbors(better=better, changes=changes[:, 0], best=best)
        self.neighbors = _Neighbors.joined([self.neighbors, here])


def _scan_all(
    query: SearchQuery,
    candidates: Candidates,
    user: UserStrategy,
    score: float | None,
    report: Reporter,
) -> tuple[Findings, _Neighbors, bool]:
    """Scan every candidate; return what was found, and whether it is complete."""
    findings, neighbors = Findings.empty(), _Neighbors.empty()
    legal = sum(map(len, candidates.legal))
    try:
        for piece in (piece for box in candidates.legal for piece in box.cut(PIECE_ROWS)):
            observer = _NeighborObserver(query, user, score, piece)
            findings = merged([findings, scan(query, piece, observer)], query)
            neighbors = _Neighbors.joined([neighbors, observer.neighbors])
            report(findings.candidates, legal, findings.best)
    except KeyboardInterrupt:
        return findings, neighbors, False
    return findings, neighbors, True


def _shortages(query: SearchQuery, mine: Estimate) -> tuple[Shortage, ...]:
    """Memory tiers that are too small, each with the stage that needs most of it."""
    tiers = query.system.accelerator.memory
    found = []
    peak = max(mine.stages, key=lambda stage: stage.needed)
    if peak.needed > query.capacity_bytes:
        parts = {part: getattr(peak, part) for part in MEMORY_PARTS}
        parts["runtime"] = peak.needed - peak.total
        found.append(_shortage(tiers[0].name, peak.stage, query.capacity_bytes, parts))
    most = max(mine.stages, key=lambda stage: stage.offloaded)
    if len(tiers) > 1 and most.offloaded > tiers[1].usable_bytes:
        parts = _offloaded(query, mine, most.stage)
        found.append(_shortage(tiers[1].name, most.stage, float(tiers[1].usable_bytes), parts))
    return tuple(found)


def _shortage(tier: str, stage: int, usable_bytes: float, parts: Mapping[str, float]) -> Shortage:
    needed = sum(parts.values())
    return Shortage(
        tier=tier,
        stage=stage,
        needed_bytes=needed,
        usable_bytes=usable_bytes,
        excess_bytes=needed - usable_bytes,
        parts={n: parts[n] for n in sorted(parts, key=lambda n: -parts[n]) if parts[n]},
    )


def _offloaded(query: SearchQuery, mine: Estimate, stage: int) -> dict[str, float]:
    """Bytes that a stage offloads of weights, optimizer state and activations."""
    off: dict[str, object] = dict.fromkeys(OFFLOADS, False)
    found = {}
    for flag in OFFLOADS:
        part = flag.removeprefix("offload_")
        if mine.strategy[flag]:
            named = mine.strategy["offload_parts"] if part == "activations" else None
            fields = {**mine.strategy, **off, flag: True, "offload_parts": named}
            only = estimate(query.model, query.system, Strategy.validated(fields))
            found[part] = only.stages[stage].offloaded
    return found


def _field_changes(
    user: UserStrategy, names: Sequence[str], other: Strategy
) -> tuple[FieldChange, ...]:
    mine, theirs = user.row.strategy(0).to_dict(), other.to_dict()
    return tuple(FieldChange(field=n, given=mine[n], value=theirs[n]) for n in names)


def _changes(
    query: SearchQuery,
    candidates: Candidates,
    user: UserStrategy,
    neighbors: _Neighbors,
    score: float | None,
) -> tuple[Change, ...]:
    """The best candidate at every distance, up to the first that is as good as any."""
    ranked, distances = neighbors.best, neighbors.changes
    if not len(ranked):
        return ()
    last = int(np.argmax(ranked.score <= ranked.score.min() * (1 + _WORTH)))
    first = 1 if score is not None and distances[0] == 0 else 0
    plans = plans_of(query, candidates, ranked.number[first : last + 1])
    found, least = [], np.inf if score is None else score
    for position, plan in enumerate(plans, first):
        row = candidates.strategies(ranked.number[position : position + 1])
        found.append(
            Change(
                changes=int(distances[position]),
                fields=_field_changes(user, user.changed(row), row.strategy(0)),
                plan=plan,
                improves=bool(ranked.score[position] < least * (1 - _WORTH)),
            )
        )
        least = min(least, ranked.score[position])
    return tuple(found)


def _loss(mine: Estimate | None, best: Estimate | None) -> Loss | None:
    """Step time minus that of the best, by part, if the two do the same work."""
    if mine is None or best is None:
        return None
    work = ("gpus", "global_batch_size", "seq_len", "training")
    if any(mine.strategy[name] != best.strategy[name] for name in work):
        return None
    parts = {part: mine.time_s[part] - best.time_s[part] for part in TIME_PARTS}
    return Loss(
        step_time_s=mine.step_time_s,
        best_step_time_s=best.step_time_s,
        difference_s=mine.step_time_s - best.step_time_s,
        parts_s={part: parts[part] for part in sorted(parts, key=lambda part: -parts[part])},
    )


def _name(value: object) -> object:
    """A value as users write it: a stack by its name."""
    return value.name if isinstance(value, Stack) else value
