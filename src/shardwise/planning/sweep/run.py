"""`sweep`: the best strategies while figures of system, model or strategy vary."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from shardwise import registry
from shardwise.analysis.fit_probability import SURE
from shardwise.analysis.reference_results import ReferenceSearch
from shardwise.config.inputs import read_inputs
from shardwise.config.model import Model, ModelLike
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.config.strategy_input import explicit_fields
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, check_flags, check_function
from shardwise.planning.search.keywords import SpaceKeywords
from shardwise.planning.search.query import Question, load_space
from shardwise.planning.search.run import ReferenceOptions
from shardwise.planning.search.space import Space
from shardwise.planning.sweep.axes import VariedAxis, check_values, varied_axes
from shardwise.planning.sweep.points import Grid
from shardwise.planning.sweep.results import SweepPoint, SweepResult
from shardwise.planning.sweep.work import FixedWork, SearchWork, Work

Progress = Callable[[float, int], None]
"""Called with the finished points, partial ones included, and the number of points."""

_MOST_POINTS = 100_000
# Each point has its own system and capacity, and a ranking is stored for every pair of these.
_MOST_TOGETHER = 2_000


@overload
def sweep(
    model: ModelLike,
    system: SystemLike | Sequence[SystemLike] | None = None,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    *,
    vary: Mapping[str, Any] | None = None,
    together: bool = False,
    strategy: Strategy | Mapping[str, Any] | str | Path | None = None,
    objective: str | None = None,
    top: int | None = None,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    fits: float | str | None = SURE,
    sensitivity: bool = False,
    reoptimize: bool | None = None,
    progress: Progress | None = None,
    launcher: str | None = None,
    reference: None = None,
    **fixed: Unpack[SpaceKeywords],
) -> SweepResult: ...


@overload
def sweep(
    model: ModelLike,
    system: SystemLike | Sequence[SystemLike] | None = None,
    *,
    vary: Mapping[str, Any] | None = None,
    together: bool = False,
    reference: Literal["nersc"],
    **fixed: Unpack[ReferenceOptions],
) -> ReferenceSearch: ...


def sweep(
    model: ModelLike,
    system: SystemLike | Sequence[SystemLike] | None = None,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    *,
    vary: Mapping[str, Any] | None = None,
    together: bool = False,
    strategy: Strategy | Mapping[str, Any] | str | Path | None = None,
    objective: str | None = None,
    top: int | None = None,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    fits: float | str | None = SURE,
    sensitivity: bool = False,
    reoptimize: bool | None = None,
    progress: Any = None,
    launcher: str | None = None,
    reference: Literal["nersc"] | None = None,
    **fixed: Any,
) -> SweepResult | ReferenceSearch:
    """Find the best strategies for every combination of varied values.

    Parameters
    ----------
    system
        One system, or several to sweep one after the other. An AMPeD configuration as `model` also
        brings system, accelerators, batch and types.
    space
        The space to search at every point: a `Space`, its fields, or a file.
    vary
        Values by name: figures of the system (``"nvlink.bandwidth": "0.5x,1x,2x"``, ``"domain":
        [8, 64]``), of the model (``seq_len``, ``depth``, ``hidden``), or fields of the strategy.
        Text, numbers in the internal unit, or a list.
    together
        Whether the axes advance together, instead of in every combination.
    strategy
        A strategy to estimate at every point, instead of a search.
    objective, top, max_memory, reserve, fits
        As for `search`; `top` is per point, by default 1.
    sensitivity
        Whether to compute how the step time of the best strategy depends on every figure of the
        system.
    reoptimize
        With `sensitivity`: whether to search the best strategy again for every change of the
        hardware; by default wherever there is a search. If not, the plan is fixed.
    progress
        See `Progress`.
    launcher
        As for `search`; not with a fixed strategy.
    reference
        Another model, NERSC's, whose own space is searched at every point. `vary` names figures of
        its systems (``"hbm_capacity": [80, 160]``), `fixed` are the options of such a `search`.
    **fixed
        Fields of the space, or of the fixed strategy: ``gpus=512, gbs=1024``, as for `search`.

    Returns
    -------
    SweepResult
        The best plans of every point in `points`; `help(shardwise.SweepResult)` lists its fields.
        With `reference` a `ReferenceSearch`.

    Raises
    ------
    InputError
        If an argument is wrong; one fault for each.

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
    check_flags(together=together, sensitivity=sensitivity)
    # The value of `reoptimize`, also under its old name, which is removed from the fields.
    old: bool | None = fixed.pop("reoptimise", None)
    if old is not None and reoptimize is not None:
        raise InputError.at("sweep", "is set twice", "reoptimise")
    reoptimize = reoptimize if old is None else old
    if reoptimize is not None:
        check_flags(reoptimize=reoptimize)
        if not sensitivity:
            raise InputError.at("sweep", "needs sensitivity", "reoptimize")
    again = bool(sensitivity and strategy is None and (reoptimize is None or reoptimize))
    check_function("progress", progress)
    if reference is not None:
        registry.function("refuse_ours")(
            space=(space, None),
            strategy=(strategy, None),
            objective=(objective, None),
            max_memory=(max_memory, None),
            reserve=(reserve, 0.0),
            fits=(fits, SURE),
            sensitivity=(sensitivity, False),
            launcher=(launcher, None),
        )
        theirs = {"top": top, "progress": progress, **fixed}
        return registry.function("reference_sweep")(
            reference, model, system, theirs, vary=vary, together=together
        )
    top = 1 if top is None else top
    inputs = read_inputs(model, system, strategy, {}, searched=True)
    the_model = Model.load(inputs.model)
    named = inputs.system
    several: Any = named if isinstance(named, (list, tuple)) else [named]
    systems = [System.load(one) for one in several]
    if not systems:
        raise InputError.at("system", "is missing: name one or more")
    axes = varied_axes({} if vary is None else vary, systems)
    _check(axes, systems, {SHORT_NAMES.get(name, name) for name in fixed}, together=together)
    check_values(axes, the_model, systems)
    fields: dict[str, object] | None = None
    declared: Space | None = None
    work: Work
    target = None if launcher is None else registry.function("launcher_of")(launcher)
    if strategy is None:
        varied = {axis.name for axis in axes}
        own = {n: v for n, v in inputs.question().items() if n not in varied}
        declared = load_space(space, fixed, own)
        declared = declared if target is None else registry.function("space_for")(target, declared)
        question = Question(
            space=declared,
            objective=objective,
            top=top,
            max_memory=max_memory,
            reserve=reserve,
            fits=fits,
        )
        work = SearchWork(question, sensitivity=sensitivity, reoptimize=again)
    else:
        options = {"space": space, "objective": objective, "launcher": launcher}
        _refuse_search_options(**options, reoptimize=reoptimize or None)
        fields = {
            **explicit_fields(strategy),
            **{SHORT_NAMES.get(name, name): v for name, v in fixed.items()},
        }
        work = FixedWork(fields, [axis.name for axis in axes], sensitivity=sensitivity)
    grid = Grid.of(the_model, systems, axes, together=together)
    points, complete = _found(grid, work, progress)
    result = SweepResult(
        model=the_model.name,
        systems=tuple(one.name for one in systems),
        axes=tuple(axis.described(systems) for axis in axes),
        searched=strategy is None,
        strategy=fields,
        space=None if declared is None else declared.model_dump(mode="json", exclude_unset=True),
        objective=work.objective,
        reoptimised=again,
        points=points,
        assumed=grid.assumed,
        candidates=work.candidates,
        elapsed_s=time.perf_counter() - started,
        complete=complete,
    )
    if target is None:
        return result
    return registry.function("exportable_sweep")(result, target, the_model, systems)


def _found(
    grid: Grid, work: Work, progress: Progress | None
) -> tuple[tuple[SweepPoint, ...], bool]:
    """What is found at the points, in their order, and whether it is complete."""
    found: dict[int, SweepPoint] = {}
    done, complete = 0, True

    def report(evaluated: int, total: int) -> None:
        if progress is not None:
            share = evaluated / max(total, 1)
            progress(done + share * len(group.positions), len(grid.points))

    try:
        for group in list(grid.groups()):
            found |= zip(group.positions.tolist(), work.on(group, report), strict=True)
            done += len(group.positions)
            report(0, 1)
    except KeyboardInterrupt:
        complete = False
    return tuple(found[position] for position in sorted(found)), complete


def _check(
    axes: Sequence[VariedAxis], systems: Sequence[System], fixed: set[str], *, together: bool
) -> None:
    """Refuse axes that contradict each other, and too many points."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1 or name in fixed:
            raise InputError.at("vary", "is set twice", name)
    sizes = [len(axis.values) for axis in axes]
    if together and len(set(sizes)) > 1:
        counts = ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
        problem = f"axes that advance together need equally many values, not {counts}"
        raise InputError.at("vary", problem)
    points = len(systems) * (max(sizes, default=1) if together else math.prod(sizes))
    most = _MOST_TOGETHER if together else _MOST_POINTS
    if points > most:
        problem = f"makes {points:,} points; at most {most:,}"
        raise InputError.at("vary", problem)
    if len({system.name for system in systems}) < len(systems):
        raise InputError.at("system", "one is listed twice")


def _refuse_search_options(**options: object) -> None:
    """Refuse options of a search where the strategy is fixed."""
    faults = [
        Fault(source="sweep", field=name, problem="has no effect on a fixed strategy")
        for name, value in options.items()
        if value is not None
    ]
    if faults:
        raise InputError(faults)
