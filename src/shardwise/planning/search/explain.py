"""`explain`: why not this strategy, and what would be better near it."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.analysis.results import Estimate
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.estimator import estimate
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.search.explanation import (
    BrokenRule,
    Change,
    Explanation,
    FieldChange,
    Loss,
    OutsideSpace,
    Shortage,
)
from shardwise.planning.search.given_strategy import Given, StrategyLike
from shardwise.planning.search.nearest import Near, look_near, merged_near
from shardwise.planning.search.objective import OBJECTIVES
from shardwise.planning.search.pieces import PIECE_ROWS
from shardwise.planning.search.query import asked, load_space
from shardwise.planning.search.run import Progress, plans
from shardwise.planning.search.scan import Found, Question, merged
from shardwise.planning.search.space import Space

__all__ = ["explain"]

# A smaller share of a step is no reason to change anything.
_WORTH = 1e-6
_OFFLOADS = {
    "weights": "offload_weights",
    "optimizer": "offload_optimizer",
    "activations": "offload_activations",
}


def explain(
    model: Model | str | Path,
    system: System | str | Path,
    space: Space | Mapping[str, Any] | str | Path | None,
    strategy: StrategyLike,
    *,
    objective: str | None = None,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    progress: Progress | None = None,
    **fixed: Any,
) -> Explanation:
    """Say why a strategy is illegal, too big, or slower than the best, and what is near it.

    Parameters
    ----------
    space
        What to hold it against, as for `search`; GPUs and batch that it does not name are those
        of the strategy.
    strategy
        A `Strategy`, its fields as a mapping, or a file. A field that it does not name has the
        value of the space if that has only one, else its default.
    objective, max_memory, reserve, progress, **fixed
        As for `search`.

    Raises
    ------
    InputError
        If anything given is wrong; one fault for each thing. What breaks a rule is no such fault.

    Examples
    --------
    >>> from shardwise import explain
    >>> mine = explain("llama3-8b", "h100-sxm", {"pp": 1}, {"tp": 8, "zero": 0}, gpus=8, gbs=64)
    >>> mine.legal, mine.fits, mine.rank > 1
    (True, True, True)
    """
    started = time.perf_counter()
    the_model, the_system = Model.load(model), System.load(system)
    declared = load_space(space, fixed)
    question = asked(the_model, the_system, declared, objective, max_memory, reserve, top=1)
    given = Given.of(the_model, the_system, declared, strategy)
    whole = _at_least_its_scale(declared, given)
    candidates = Candidates.of(the_model, the_system, whole)
    mine = None if given.broken else estimate(the_model, the_system, given.row.strategy(0))
    shortages = () if mine is None else _shortages(question, mine)
    feasible = mine is not None and not shortages
    score = _score(question, given, mine) if mine is not None and feasible else None
    found, near, complete = _looked(question, candidates, given, score, progress)
    best, differs = _best(question, candidates, given, found)
    outside = given.outside(whole)
    ours = given.row.strategy(0).to_dict()
    return Explanation(
        model=the_model.name,
        system=the_system.name,
        space=declared.model_dump(mode="json", exclude_unset=True),
        objective=question.objective,
        capacity_bytes=question.capacity_bytes,
        strategy=ours,
        legal=mine is not None,
        broken=_broken(given),
        fits=None if mine is None else not shortages,
        shortages=shortages,
        in_space=not outside,
        outside=tuple(
            OutsideSpace(field=name, value=_plain(ours[name]), tried=tuple(map(_plain, tried)))
            for name, tried in outside.items()
        ),
        estimate=mine,
        candidates=len(candidates),
        feasible=found.feasible,
        better=near.better if feasible else None,
        rank=near.better + 1 if feasible and not outside else None,
        best=best,
        loss=_loss(mine, best) if feasible else None,
        differs=differs,
        changes=_changes(question, candidates, given, near, score),
        elapsed_s=time.perf_counter() - started,
        complete=complete,
    )


def _at_least_its_scale(space: Space, given: Given) -> Space:
    """The space, at the GPUs and the batch of the strategy if it names none."""
    own = {n: int(getattr(given.row, n)[0]) for n in ("gpus", "global_batch_size")}
    missing = {name: value for name, value in own.items() if not getattr(space, name)}
    return space.fixed(missing, source="strategy") if missing else space


def _score(question: Question, given: Given, mine: Estimate) -> float:
    step_s = np.array([mine.step_time_s])
    return float(OBJECTIVES[question.objective](step_s, given.row, question.system)[0])


def _looked(
    question: Question,
    candidates: Candidates,
    given: Given,
    score: float | None,
    progress: Progress | None,
) -> tuple[Found, Near, bool]:
    """Look at every candidate; what was found so far if that is interrupted."""
    whole, near = Found.nothing(), Near.nothing()
    everything = sum(map(len, candidates.legal))
    try:
        for box in candidates.legal:
            for piece in box.cut(PIECE_ROWS):
                found, beside = look_near(question, given, score, piece)
                whole, near = merged([whole, found], question), merged_near([near, beside])
                if progress is not None:
                    progress(whole.candidates, everything, whole)
    except KeyboardInterrupt:
        return whole, near, False
    return whole, near, True


def _broken(given: Given) -> tuple[BrokenRule, ...]:
    return tuple(
        BrokenRule(
            reason=reason,
            field=fault.field,
            value=_plain(fault.value),
            problem=fault.problem,
        )
        for reason, fault in given.broken.items()
    )


def _shortages(question: Question, mine: Estimate) -> tuple[Shortage, ...]:
    """Memory tiers that are too small, each with the stage that needs most of it."""
    tiers = question.system.accelerator.memory
    found = []
    fullest = max(mine.stages, key=lambda stage: stage.reserved)
    if fullest.reserved > question.capacity_bytes:
        parts = {part: getattr(fullest, part) for part in MEMORY_PARTS}
        parts["runtime"] = fullest.reserved - fullest.total
        found.append(_shortage(tiers[0].name, fullest.stage, question.capacity_bytes, parts))
    away = max(mine.stages, key=lambda stage: stage.offloaded)
    if len(tiers) > 1 and away.offloaded > tiers[1].capacity:
        parts = _offloaded(question, mine, away.stage)
        found.append(_shortage(tiers[1].name, away.stage, tiers[1].capacity, parts))
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


def _offloaded(question: Question, mine: Estimate, stage: int) -> dict[str, float]:
    """Bytes that each offloaded part has in the second tier on a stage."""
    alone: dict[str, Any] = dict.fromkeys(_OFFLOADS.values(), False)
    found = {}
    for part, flag in _OFFLOADS.items():
        if mine.strategy[flag]:
            named = mine.strategy["offload_parts"] if part == "activations" else None
            one = alone | {flag: True, "offload_parts": named}
            only = Strategy.validated(mine.strategy | one)
            record = estimate(question.model, question.system, only)
            found[part] = record.stages[stage].offloaded
    return found


def _best(
    question: Question, candidates: Candidates, given: Given, found: Found
) -> tuple[Estimate | None, tuple[FieldChange, ...]]:
    """The best of the space, and where the strategy differs from it."""
    if not len(found.best):
        return None, ()
    rows = candidates.strategies(found.best.number)
    best = rows.strategy(0)
    return estimate(question.model, question.system, best), _field_changes(
        given, given.changed(rows), best
    )


def _field_changes(given: Given, names: Sequence[str], other: Strategy) -> tuple[FieldChange, ...]:
    ours, theirs = given.row.strategy(0).to_dict(), other.to_dict()
    return tuple(FieldChange(field=n, given=ours[n], value=theirs[n]) for n in names)


def _changes(
    question: Question, candidates: Candidates, given: Given, near: Near, score: float | None
) -> tuple[Change, ...]:
    """The best at every distance, up to the first that is as good as any."""
    if not len(near.best):
        return ()
    reached = int(np.argmax(near.best.score <= near.best.score.min() * (1 + _WORTH)))
    first = 1 if score is not None and near.changes[0] == 0 else 0
    levels = range(first, reached + 1)
    numbers = near.best.number[first : reached + 1]
    found, so_far = [], np.inf if score is None else score
    for level, plan in zip(levels, plans(question, candidates, numbers), strict=True):
        row = candidates.strategies(near.best.number[level : level + 1])
        found.append(
            Change(
                changes=int(near.changes[level]),
                fields=_field_changes(given, given.changed(row), row.strategy(0)),
                plan=plan,
                improves=bool(near.best.score[level] < so_far * (1 - _WORTH)),
            )
        )
        so_far = min(so_far, near.best.score[level])
    return tuple(found)


def _loss(mine: Estimate | None, best: Estimate | None) -> Loss | None:
    """Part by part, what a step takes longer than that of the best, if it does the same work."""
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


def _plain(value: Any) -> Any:
    """A value as people write it."""
    return value.name if isinstance(value, Stack) else value
