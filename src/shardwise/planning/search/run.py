"""`search`: the best strategies of a space, found with certainty."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.arrays import Ints
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.estimator import estimate, estimate_many
from shardwise.planning.search.best import top as best_of
from shardwise.planning.search.candidates import Candidates, Scale, refusals
from shardwise.planning.search.executors import Workers
from shardwise.planning.search.levels import LEVELS_AXES, by_levels, firsts_by_levels, levels_space
from shardwise.planning.search.objective import dollars_per_token
from shardwise.planning.search.pieces import Work
from shardwise.planning.search.query import asked, load_space
from shardwise.planning.search.results import (
    Cell,
    LevelsPlan,
    Nearest,
    Plan,
    ScaleResult,
    SearchResult,
)
from shardwise.planning.search.scan import Found, Question, merged
from shardwise.planning.search.smallest_gpus import SmallestGpus, smallest_gpus
from shardwise.planning.search.space import Space
from shardwise.planning.search.store import check_file
from shardwise.planning.search.ties import alike
from shardwise.planning.search.training_runs import with_training_runs
from shardwise.planning.training_time import Run

__all__ = ["count", "search"]

Progress = Callable[[int, int, Found], None]
"""Called with candidates looked at, candidates in all, and what was found so far."""


def search(
    model: Model | str | Path,
    system: System | str | Path,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    *,
    objective: str | None = None,
    top: int = 10,
    pareto: str | None = None,
    axes: Sequence[str] = (),
    levels: bool = False,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    progress: Progress | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    save: str | Path | None = None,
    save_all: bool = False,
    run: Run | Mapping[str, Any] | None = None,
    **fixed: Any,
) -> SearchResult:
    """Find the best ways to run a model on a system.

    Parameters
    ----------
    space
        A `Space`, its fields as a mapping, or a file; without it the whole space.
    objective
        What is best: ``step_time`` (the default), ``tokens_per_s_per_gpu`` (the default where steps
        differ in their tokens) or ``tokens_per_dollar``.
    top
        How many to return.
    pareto
        Also return the front of time against ``memory``, ``gpus`` or ``cost``.
    axes
        Also return the best strategy for each combination of values of these fields.
    levels
        Also return the best strategy of each split of every axis over the tiers of the network and
        each batch, so many of the best as `top`; every way to fill the domains is tried.
    max_memory, reserve
        What of an accelerator's memory may be used at most, and what of that is to stay free
        (bytes, or text such as ``"70 GiB"``).
    progress
        Called now and then with what was looked at and found so far.
    jobs, backend
        How many processes work, and what runs them: ``loky`` on this machine, where it is one
        unless more are asked for; ``ray`` or ``dask`` on the cluster that is connected or that
        RAY_ADDRESS or Dask's settings name, else on a local one: all it has. The answer is the
        same.
    save, save_all
        A file (.parquet, .csv, .csv.gz) for every feasible strategy, and whether for the rejected
        ones, too. Until it is done, parts are in the folder ``FILE.parts``: interrupted or killed,
        the same search goes on from there.
    run
        A whole run, which ranks what was found by its days with failures: a mapping of ``tokens``
        and, if known, ``reliability`` and ``site``.
    **fixed
        Fields of the space by name, over those of `space`: ``gpus=512, gbs=1024, tp=[4, 8]``.

    Raises
    ------
    InputError
        If anything given is wrong; one fault for each thing.

    Examples
    --------
    >>> from shardwise import search
    >>> found = search("llama3-8b", "h100-sxm", gpus=8, gbs=64, pp=1, zero=1)
    >>> found.best[0].fits, found.candidates == found.feasible + sum(found.rejected.values())
    (True, True)
    """
    started = time.perf_counter()
    the_model, the_system = Model.load(model), System.load(system)
    the_space = load_space(space, fixed)
    the_run = None if run is None else Run.load(run)
    if levels:
        the_space, axes = levels_space(the_space, axes), LEVELS_AXES
    more: dict[str, Any] = {"top": top, "front": pareto, "axes": tuple(axes)}
    question = asked(the_model, the_system, the_space, objective, max_memory, reserve, **more)
    workers = Workers(jobs=jobs, backend=backend)
    workers.check()
    file = _saving(save, save_all=save_all)
    candidates = Candidates.of(the_model, the_system, the_space)
    work = Work(
        question=question,
        candidates=candidates,
        workers=workers,
        file=file,
        saved="all" if save_all else "feasible",
    )
    by_scale, complete = _looked(work, progress)
    whole = merged(list(by_scale.values()), question)
    rejected = whole.rejected + refusals(candidates.illegal)
    best = _estimates(question, candidates, whole.best.number)
    found = SearchResult(
        model=the_model.name,
        system=the_system.name,
        space=the_space.model_dump(mode="json", exclude_unset=True),
        objective=question.objective,
        capacity_bytes=question.capacity_bytes,
        candidates=len(candidates),
        evaluated=whole.evaluated,
        feasible=whole.feasible,
        rejected=dict(rejected.most_common()),
        looked_at=whole.candidates + sum(map(len, candidates.illegal)),
        elapsed_s=time.perf_counter() - started,
        complete=complete,
        best=best,
        alike=alike(best, question.objective),
        pareto=None if pareto is None else plans(question, candidates, whole.front.number),
        pareto_against=pareto,
        scales=_scales(question, candidates, by_scale),
        cells=() if levels else _cells(question, candidates, whole),
        levels=_levels(question, candidates, whole) if levels else None,
        nearest=_nearest(question, candidates, whole),
        smallest=_smallest(question, the_space) if complete and not whole.feasible else None,
    )
    if the_run is None:
        return found
    return with_training_runs(found, the_model, the_system, the_run)


def count(
    model: Model | str | Path,
    system: System | str | Path,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    **fixed: Any,
) -> tuple[int, dict[str, int]]:
    """Count the strategies of a space, and those whose layout breaks a rule by reason."""
    candidates = Candidates.of(Model.load(model), System.load(system), load_space(space, fixed))
    return len(candidates), dict(refusals(candidates.illegal).most_common())


def _saving(save: str | Path | None, *, save_all: bool) -> Path | None:
    """Where rows are to be saved; checked before the work."""
    if save is None:
        if save_all:
            problem = "needs a file: give save"
            raise InputError(Fault(field="save_all", value=True, has_value=True, problem=problem))
        return None
    check_file(save)
    return Path(save)


def _looked(work: Work, progress: Progress | None) -> tuple[dict[Scale, Found], bool]:
    """Look at every candidate; what was found so far if that is interrupted."""
    question = work.question
    nothing = Found.nothing(len(question.axes))
    by_scale = dict.fromkeys(work.candidates.scales, nothing)
    whole, done, everything = nothing, 0, sum(map(len, work.boxes))
    try:
        with closing(work.seen()) as seen:
            for piece, found in seen:
                by_scale[piece.scale] = merged([by_scale[piece.scale], found], question)
                whole = merged([whole, found], question)
                done += len(piece)
                if progress is not None:
                    progress(done, everything, whole)
    except KeyboardInterrupt:
        return by_scale, False
    return by_scale, True


def plans(question: Question, candidates: Candidates, numbers: Ints) -> tuple[Plan, ...]:
    """Candidates by number, in brief."""
    if not len(numbers):
        return ()
    rows = candidates.strategies(numbers)
    table = estimate_many(question.model, question.system, rows)
    usd: list[float | None] = [None] * len(table)
    if question.system.price is not None:
        usd = (dollars_per_token(table.step_time_s, rows, question.system) * 1e9).tolist()
    return tuple(
        Plan(
            strategy=rows.strategy(i).to_dict(),
            step_time_s=float(table.step_time_s[i]),
            tokens_per_s=float(table.tokens_per_s[i]),
            tokens_per_s_per_gpu=float(table.tokens_per_s[i]) / int(rows.gpus[i]),
            mfu=float(table.mfu[i]),
            memory_reserved_bytes=float(table.memory_reserved_bytes[i]),
            usd_per_billion_tokens=usd[i],
        )
        for i in range(len(table))
    )


def _estimates(question: Question, candidates: Candidates, numbers: Ints) -> tuple[Estimate, ...]:
    if not len(numbers):
        return ()
    rows = candidates.strategies(numbers)
    found = []
    with suppress(KeyboardInterrupt):  # the best of all come first
        for i in range(len(rows)):
            found.append(estimate(question.model, question.system, rows.strategy(i)))  # noqa: PERF401
    return tuple(found)


def _scales(
    question: Question, candidates: Candidates, by_scale: Mapping[Scale, Found]
) -> tuple[ScaleResult, ...]:
    """The best of every scale, and how throughput grows over the first that has one."""
    if len(by_scale) == 1:
        return ()
    first: Plan | None = None
    found = []
    for scale, here in by_scale.items():
        best = next(iter(plans(question, candidates, here.best.number[:1])), None)
        first = first or best
        speedup = efficiency = None
        if first is not None and best is not None:
            speedup = best.tokens_per_s / first.tokens_per_s
            efficiency = best.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu
        found.append(
            ScaleResult(
                gpus=scale.gpus,
                global_batch_size=scale.global_batch_size,
                candidates=here.candidates,
                feasible=here.feasible,
                best=best,
                speedup=speedup,
                efficiency=efficiency,
            )
        )
    return tuple(found)


def _cells(question: Question, candidates: Candidates, whole: Found) -> tuple[Cell, ...]:
    return tuple(
        Cell(values={axis: plan.strategy[axis] for axis in question.axes}, plan=plan)
        for plan in plans(question, candidates, whole.cells.number)
    )


def _levels(question: Question, candidates: Candidates, whole: Found) -> tuple[LevelsPlan, ...]:
    """The best combinations of levels and batch, as many as the best."""
    numbers = best_of(whole.cells, len(whole.cells)).number
    if not len(numbers):
        return ()
    firsts = firsts_by_levels(question.system, candidates.strategies(numbers))
    numbers = numbers[firsts[: question.top]]
    rows = candidates.strategies(numbers)
    return by_levels(question.system, rows, plans(question, candidates, numbers))


def _smallest(question: Question, space: Space) -> SmallestGpus | None:
    """The smallest number of GPUs that would do; None if one does not wait for it."""
    try:
        return smallest_gpus(
            question.model, question.system, space, capacity_bytes=question.capacity_bytes
        )
    except KeyboardInterrupt:
        return None


def _nearest(question: Question, candidates: Candidates, whole: Found) -> Nearest | None:
    if whole.feasible or not len(whole.nearest):
        return None
    closest = candidates.strategies(whole.nearest.number).strategy(0)
    tier = question.system.accelerator.memory[int(whole.nearest.beside[0])]
    return Nearest(
        strategy=closest.to_dict(), tier=tier.name, excess_bytes=float(whole.nearest.score[0])
    )
