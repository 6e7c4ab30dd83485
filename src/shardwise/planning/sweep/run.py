"""`sweep`: the best strategies while figures of the system, the model or the run are varied."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.config.strategy_given import explicit_fields
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.planning.search.query import load_space
from shardwise.planning.search.space import Space
from shardwise.planning.sweep.axes import Varied, check_values, varied_axes
from shardwise.planning.sweep.points import Grid
from shardwise.planning.sweep.results import SweepPoint, SweepResult
from shardwise.planning.sweep.searching import Wanted
from shardwise.planning.sweep.work import FixedWork, Outcome, SearchWork, Work

__all__ = ["sweep"]

Progress = Callable[[float, int], None]
"""Called with the points that are done, as far as they are, and how many there are."""

_MOST_POINTS = 100_000
# Each has a system and a capacity of its own: what is best is kept for every pair of these.
_MOST_TOGETHER = 2_000


def sweep(
    model: Model | str | Path,
    system: System | str | Path | Sequence[System | str | Path],
    space: Space | Mapping[str, Any] | str | Path | None = None,
    *,
    vary: Mapping[str, Any] | None = None,
    together: bool = False,
    strategy: Strategy | Mapping[str, Any] | str | Path | None = None,
    objective: str | None = None,
    top: int = 1,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    sensitivity: bool = False,
    reoptimise: bool = False,
    progress: Progress | None = None,
    **fixed: Any,
) -> SweepResult:
    """Find the best strategies for every combination of values of what is varied.

    Parameters
    ----------
    system
        One, or several to be swept one after the other.
    space
        What is searched at every point: a `Space`, its fields, or a file.
    vary
        Values by name: figures of the system (``"nvlink.bandwidth": "0.5x,1x,2x"``, ``"domain":
        [8, 64]``), of the model (``seq_len``, ``depth``, ``hidden``), or fields of the strategy.
        Text, numbers in the unit used inside, or a list.
    together
        Whether the axes advance together instead of in every combination.
    strategy
        Held fixed at every point in place of a search.
    objective, top, max_memory, reserve
        As of `search`; `top` are kept at every point.
    sensitivity
        Whether to say how the step time answers to every figure of the system at the best strategy.
    reoptimise
        Whether to search again with every figure that matters changed.
    progress
        Called now and then.
    **fixed
        Fields of the space, or of the strategy that is held fixed: ``gpus=512, gbs=1024``.

    Raises
    ------
    InputError
        If anything given is wrong; one fault for each thing.

    Examples
    --------
    >>> from shardwise import sweep
    >>> found = sweep(
    ...     "llama3-8b", "h100-sxm", gpus=16, gbs=64, pp=1, zero=1, recompute="none",
    ...     vary={"fabric.bandwidth": "0.5x,1x,2x"},
    ... )
    >>> slow, now, fast = (point.best[0].step_time_s for point in found.points)
    >>> slow > now >= fast
    True
    """
    started = time.perf_counter()
    the_model = Model.load(model)
    given = [system] if isinstance(system, (System, str, Path)) else list(system)
    systems = [System.load(one) for one in given]
    if not systems:
        raise InputError(Fault(source="system", problem="is missing: give one or more"))
    axes = varied_axes({} if vary is None else vary, systems)
    _check(axes, systems, {SHORT_NAMES.get(name, name) for name in fixed}, together=together)
    check_values(axes, the_model, systems)
    fields: dict[str, Any] | None = None
    declared: Space | None = None
    work: Work
    if strategy is None:
        declared = load_space(space, fixed)
        wanted = Wanted(
            space=declared, objective=objective, top=top, max_memory=max_memory, reserve=reserve
        )
        work = SearchWork(wanted, sensitivity=sensitivity, reoptimise=reoptimise)
    else:
        _only_of_searches(space=space, objective=objective, reoptimise=reoptimise or None)
        fields = {
            **explicit_fields(strategy),
            **{SHORT_NAMES.get(name, name): v for name, v in fixed.items()},
        }
        varied = [axis.name for axis in axes]
        work = FixedWork(fields, varied, sensitivity=sensitivity)
    grid = Grid.of(the_model, systems, axes, together=together)
    outcomes, complete = _outcomes(grid, work, progress)
    return SweepResult(
        model=the_model.name,
        systems=tuple(one.name for one in systems),
        axes=tuple(axis.described(systems) for axis in axes),
        searched=strategy is None,
        strategy=fields,
        space=None if declared is None else declared.model_dump(mode="json", exclude_unset=True),
        objective=work.objective,
        points=tuple(
            SweepPoint(
                system=point.name,
                at=point.at,
                values=dict(point.values),
                best=outcome.best,
                rejected=dict(outcome.rejected),
                problem=outcome.problem,
                sensitivity=outcome.sensitivity,
            )
            for point, outcome in zip(grid.points, outcomes, strict=True)
            if outcome is not None
        ),
        assumed=grid.assumed,
        candidates=work.candidates,
        elapsed_s=time.perf_counter() - started,
        complete=complete,
    )


def _outcomes(
    grid: Grid, work: Work, progress: Progress | None
) -> tuple[list[Outcome | None], bool]:
    """What comes of every point; of some only, if that is interrupted."""
    found: list[Outcome | None] = [None] * len(grid.points)
    groups = list(grid.groups())
    done = 0

    def seen(looked_at: int, of: int) -> None:
        if progress is not None:
            progress(done + looked_at / max(of, 1) * len(group.places), len(found))

    try:
        for group in groups:
            for place, outcome in zip(group.places.tolist(), work.on(group, seen), strict=True):
                found[place] = outcome
            done += len(group.places)
            seen(0, 1)
    except KeyboardInterrupt:
        return found, False
    return found, True


def _check(
    axes: Sequence[Varied], systems: Sequence[System], fixed: set[str], *, together: bool
) -> None:
    """Refuse what contradicts itself, or is too much."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1 or name in fixed:
            raise InputError(Fault(source="vary", field=name, problem="is given twice"))
    sizes = [len(axis.values) for axis in axes]
    if together and len(set(sizes)) > 1:
        told = ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
        problem = f"axes that advance together need as many values each, not {told}"
        raise InputError(Fault(source="vary", problem=problem))
    points = len(systems) * (max(sizes, default=1) if together else math.prod(sizes))
    most = _MOST_TOGETHER if together else _MOST_POINTS
    if points > most:
        problem = f"makes {points:,} points; at most {most:,}"
        raise InputError(Fault(source="vary", problem=problem))
    if len({system.name for system in systems}) < len(systems):
        raise InputError(Fault(source="system", problem="one is given twice"))


def _only_of_searches(**given: object) -> None:
    """Refuse what a strategy that is held fixed has no use for."""
    faults = [
        Fault(source="sweep", field=name, problem="has no effect on a strategy that is held fixed")
        for name, value in given.items()
        if value is not None
    ]
    if faults:
        raise InputError(faults)
