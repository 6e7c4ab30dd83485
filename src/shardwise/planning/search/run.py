"""`search`: the best strategies of a space, found with certainty."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack, overload

from shardwise import registry
from shardwise.analysis.fit_probability import SURE
from shardwise.analysis.reference_results import Reference, ReferenceSearch
from shardwise.config.capabilities import IN_DOMAIN, Reported, described
from shardwise.config.inputs import read_inputs
from shardwise.config.model import Model, ModelLike
from shardwise.config.software.resolve import is_description, match_of
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import OFFLOADS
from shardwise.config.system import System, SystemLike
from shardwise.errors import InputError, check_flags, check_function
from shardwise.planning.search.bounded import placed_pairs
from shardwise.planning.search.candidates import Candidates, refusals
from shardwise.planning.search.keywords import SpaceKeywords
from shardwise.planning.search.pieces import Scanned, Work
from shardwise.planning.search.plans import (
    LEVELS_AXES,
    Lines,
    best_by_cell,
    best_by_level,
    best_by_scale,
    levels_space,
    lines_of,
    nearest_of,
    plans_of,
    ranked_lines,
    ranked_plans,
    ties_of,
    with_training_runs,
)
from shardwise.planning.search.progress import Progress, Reporter
from shardwise.planning.search.query import Question, SearchQuery, load_space
from shardwise.planning.search.recommend import with_recommendation
from shardwise.planning.search.refine import POOL, is_open, merged_lines, refined_lines
from shardwise.planning.search.results import Avoided, SearchResult, SmallestGpus
from shardwise.planning.search.smallest_gpus import smallest_gpus
from shardwise.planning.search.space import Space
from shardwise.planning.search.store import check_file
from shardwise.planning.search.workers import Workers
from shardwise.planning.training_time import TrainingRun
from shardwise.records import dataclass, field, replace

_log = logging.getLogger("shardwise.search")

# Time without a line on the progress of the smallest number of GPUs.
_QUIET_S = 1.0


class ReferenceOptions(TypedDict, total=False):
    """Arguments of the search of another model."""

    gpus: int | str | Sequence[int]
    gbs: int | str | Sequence[int]
    dtype: str
    top: int
    layers: bool
    save: str | Path
    progress: Progress
    axes: Sequence[str]
    jobs: int
    tp_overlap: bool
    dp_overlap: bool
    fused_activation: bool | Literal["both"]
    mbs_break: bool
    method: str | Sequence[str]
    domain: int | str | Sequence[int]
    tokens: float | str


@overload
def search(
    model: ModelLike,
    system: SystemLike | None = None,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    *,
    objective: str | None = None,
    top: int = 10,
    all_variants: bool = False,
    pareto: str | None = None,
    axes: Sequence[str] = (),
    levels: bool = False,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    limit_on: str | None = None,
    fits: float | str | None = SURE,
    progress: Progress | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    save: str | Path | None = None,
    save_all: bool = False,
    run: TrainingRun | Mapping[str, Any] | None = None,
    counts: bool = False,
    bounds: bool = True,
    launcher: str | None = None,
    reference: None = None,
    **fixed: Unpack[SpaceKeywords],
) -> SearchResult: ...


@overload
def search(
    model: ModelLike,
    system: SystemLike | Sequence[SystemLike] | None = None,
    *,
    reference: Reference,
    **fixed: Unpack[ReferenceOptions],
) -> ReferenceSearch: ...


def search(
    model: ModelLike,
    system: SystemLike | Sequence[SystemLike] | None = None,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    *,
    objective: str | None = None,
    top: int | None = None,
    all_variants: bool = False,
    pareto: str | None = None,
    axes: Sequence[str] = (),
    levels: bool = False,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    limit_on: str | None = None,
    fits: float | str | None = SURE,
    progress: Progress | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    save: str | Path | None = None,
    save_all: bool = False,
    run: TrainingRun | Mapping[str, Any] | None = None,
    counts: bool = False,
    bounds: bool = True,
    launcher: str | None = None,
    reference: Reference | None = None,
    **fixed: Any,
) -> SearchResult | ReferenceSearch:
    """Find the best ways to run a model on a system.

    Parameters
    ----------
    model, system
        Config objects, catalog names or files. An AMPeD configuration as `model` also brings
        system, accelerators, batch and types.
    space
        A `Space`, its fields as a mapping, or a file; by default the practical space. Where nothing
        fits, the search tries offload, too.
    objective
        What to optimize on average: ``step_time`` (the default), ``tokens_per_s_per_gpu`` (the
        default where steps differ in tokens) or ``tokens_per_dollar``. By default `advised` has the
        best by the 80 % quantile of the time, too, and the first of these is recommended.
    top
        How many plans to return; 10 by default.
    all_variants
        Whether every strategy is a plan of its own. By default a plan stands for all strategies of
        its layout (tp, pp, cp, ep, dp, vpp, micro-batch and recompute) that are within 0.5 % of
        the best of them; it is the one with the fewest settings that are not defaults.
    pareto
        Also return the Pareto front of time against ``memory``, ``gpus`` or ``cost``.
    axes
        Also return the best strategy for each combination of values of these fields.
    levels
        Also return the best strategy of each split of every axis over the network tiers and each
        batch, at most `top` of them; every way to fill the domains is tried.
    max_memory, reserve
        Memory of an accelerator that may be used at most, and how much of that stays free
        (bytes, or text such as ``"70 GiB"``).
    limit_on
        What must fit into it: ``reserved`` memory, with the allocator's slack and the runtime, or
        ``allocated`` tensors alone; by default as the system says, which is ``reserved``.
    fits
        Probability with which every plan must fit, such as 0.9 or ``"90%"``
        (`Estimate.fits_probability`); None: its predicted memory must.
    progress
        Called with the candidates scanned, all candidates, and the best plan so far (a `BestSoFar`,
        or None).
    jobs, backend
        Number of processes, and what runs them: ``loky`` on this machine (one process by
        default); ``ray`` or ``dask`` on the connected cluster, the one that RAY_ADDRESS or Dask's
        settings name, or a local one (all its CPUs by default). The result is the same.
    save, save_all
        A file (.parquet, .csv, .csv.gz) for every feasible strategy, and whether to add the
        rejected ones. Until the search ends, parts are in the folder ``FILE.parts``: if it is
        interrupted or killed, the same search continues from there.
    run
        A training run, which ranks the plans by its days with failures: a mapping of ``tokens``
        and, if known, ``reliability`` and ``site``.
    counts
        Whether to count every strategy by outcome. By default the search leaves out strategies
        that cannot be among the results before it knows whether they fit.
    bounds
        Whether to leave out strategies that a lower bound of their step proves too slow, in spaces
        of more than 131,072. The results are the same without.
    launcher
        A launcher of `export`: the space has its stack unless it names one, and plans that the
        launcher cannot express are left out of the results.
    reference
        Search the space of another model by its own formulas: ``calculon``, ``nersc`` or ``amped``.
    **fixed
        Fields that override those of `space`: ``gpus=512, gbs=1024, tp=[4, 8]``. They are those of
        `Strategy`, and `scope` and `batch` of `Space`. With `reference`: `gpus`, `gbs`, `dtype` and
        `layers` (figures of each operation of the best); for Calculon `tp_overlap`, `dp_overlap`,
        `fused_activation` and `mbs_break`, for NERSC's model `method`, `domain` and `tokens`.

    Returns
    -------
    SearchResult
        The plan to run in `recommendation`, the best plans in `best`, counts and rejections;
        `help(shardwise.SearchResult)` lists its fields. With `reference` a `ReferenceSearch`.

    Raises
    ------
    InputError
        If an argument is wrong; one fault for each.

    Examples
    --------
    >>> from shardwise import search
    >>> found = search("llama3-8b", "h100-sxm", gpus=8, gbs=64, pp=1, zero=1)
    >>> found.best[0].fits, found.candidates == found.feasible + sum(found.rejected.values())
    (True, True)
    """
    started = time.perf_counter()
    check_flags(
        levels=levels, save_all=save_all, all_variants=all_variants, counts=counts, bounds=bounds
    )
    check_function("progress", progress)
    if reference is not None:
        registry.function("refuse_ours")(
            space=(space, None),
            objective=(objective, None),
            all_variants=(all_variants, False),
            pareto=(pareto, None),
            levels=(levels, False),
            max_memory=(max_memory, None),
            reserve=(reserve, 0.0),
            limit_on=(limit_on, None),
            fits=(fits, SURE),
            backend=(backend, "loky"),
            save_all=(save_all, False),
            run=(run, None),
            counts=(counts, False),
            bounds=(bounds, True),
            launcher=(launcher, None),
        )
        fields = None if isinstance(axes, tuple) and not axes else axes
        theirs = {"top": top, "axes": fields, "save": save, "progress": progress}
        return registry.function("reference_search")(
            reference, model, system, theirs | {"jobs": jobs} | fixed
        )
    inputs = read_inputs(model, system, None, {}, searched=True)
    the_model = Model.load(inputs.model)
    the_system = System.load(inputs.system).limited_on(limit_on)
    the_space = load_space(space, fixed, inputs.question())
    target = None
    if launcher is not None:
        target = registry.function("launcher_of")(launcher)
        the_space = registry.function("space_for")(target, the_space)
    the_run = None if run is None else TrainingRun.load(run)
    if levels:
        the_space, axes = levels_space(the_space, axes), LEVELS_AXES
    most = 10 if top is None else top
    query = Question(
        space=the_space,
        objective=objective,
        max_memory=max_memory,
        reserve=reserve,
        top=most,
        lines=not all_variants,
        front=pareto,
        axes=axes,
        fits=fits,
        advises=not levels,
    ).on(the_model, the_system)
    if query.lines and not levels and is_open(the_space):
        query = replace(query, top=max(most, POOL))  # the best of them may change
    workers = Workers(jobs=jobs, backend=backend)
    workers.check()
    if save is not None:
        check_file(save)
    elif save_all:
        problem = "needs a file: set save"
        raise InputError.of("save_all", True, problem)

    def scan(space: Space) -> _Scan:
        work = Work(
            query=query,
            candidates=Candidates.of(the_model, the_system, space),
            workers=workers,
            file=None if save is None else Path(save),
            save_rejected=save_all,
            bounds=bounds,
            counts=counts,
        )
        return _Scan.of(space, work, progress)

    found, widened = _with_offload(query, the_space, scan, saves=save is not None)
    result = _result(found, widened, most=most, levels=levels, started=started)
    if target is not None:
        result = registry.function("exportable_search")(result, target, the_model, the_system)
    if the_run is not None:
        result = with_training_runs(result, the_model, the_system, the_run)
    words = [
        str(own) if isinstance(own, (str, Path)) else one.name
        for own, one in ((model, the_model), (system, the_system))
    ]
    result = with_recommendation(result, the_model, the_system, names=words)
    return result.model_copy(update={"advised": result.advised[:most]})


def count(
    model: ModelLike,
    system: SystemLike,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    **fixed: Unpack[SpaceKeywords],
) -> tuple[int, dict[str, int]]:
    """Return the number of strategies of a space, and those that break a rule by reason."""
    the_model, the_system = Model.load(model), System.load(system)
    candidates = Candidates.of(the_model, the_system, load_space(space, fixed))
    rejected = refusals(candidates.illegal)
    for box in candidates.legal:
        rejected += placed_pairs(the_system, [box]).legality(the_model, the_system).counts()[1]
    return len(candidates), dict(rejected.most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFound:
    """What was found at one number of GPUs and batch: the best strategy, not its estimate."""

    candidates: int = 0
    feasible: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    counts_exact: bool = True
    best: Strategy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesFound:
    """The best strategy of each number of GPUs and batch, and no ranking."""

    sizes: Mapping[tuple[int, int], SizeFound]
    smallest: SmallestGpus | None
    complete: bool


def best_by_size(
    question: Question,
    model: Model,
    system: System,
    *,
    workers: Workers,
    progress: Progress | None = None,
) -> SizesFound:
    """Search each size of a space, as `search` does, without its rankings and advice."""
    query = question.on(model, system)
    workers.check()

    def scan(space: Space) -> _Scan:
        candidates = Candidates.of(model, system, space)
        work = Work(query=query, candidates=candidates, workers=workers)
        return _Scan.of(space, work, progress)

    found, _ = _with_offload(query, question.space, scan, saves=False)
    candidates, sizes = found.work.candidates, {}
    for scale, findings in found.scanned.by_scale.items():
        illegal = refusals([box for box in candidates.illegal if box.scale == scale])
        best = findings.best.number[:1]
        sizes[scale.gpus, scale.global_batch_size] = SizeFound(
            candidates=candidates.number_at(scale),
            feasible=findings.feasible,
            rejected=dict((findings.rejected + illegal).most_common()),
            counts_exact=found.complete and findings.checked == findings.evaluated,
            best=candidates.strategies(best).strategy(0) if len(best) else None,
        )
    return SizesFound(sizes=sizes, smallest=found.smallest, complete=found.complete)


@dataclass(frozen=True, kw_only=True)
class _Scan:
    """What was found in a space."""

    space: Space
    work: Work
    scanned: Scanned
    complete: bool

    @classmethod
    def of(cls, space: Space, work: Work, progress: Progress | None) -> Self:
        """Scan every candidate of a space."""
        scanned = Scanned.nothing(work.query, work.candidates.scales)
        report, total = Reporter(progress, work.candidates), sum(map(len, work.boxes))
        complete = True
        try:
            with closing(work.scan(scanned)) as steps:
                for _ in steps:
                    report(scanned.total.candidates, total, scanned.total.best)
        except KeyboardInterrupt:
            complete = False
        return cls(space=space, work=work, scanned=scanned, complete=complete)

    @cached_property
    def rejected(self) -> dict[str, int]:
        """Candidates that are not feasible, by reason; most frequent first."""
        illegal = refusals(self.work.candidates.illegal)
        return dict((self.scanned.total.rejected + illegal).most_common())

    @cached_property
    def smallest(self) -> SmallestGpus | None:
        """Where nothing is feasible, the smallest number of GPUs that is."""
        if not self.complete or self.scanned.total.feasible:
            return None
        return _smallest(self.work.query, self.space, self.rejected)

    @property
    def misfits(self) -> bool:
        """Whether strategies obey the rules, and none of them fits."""
        total = self.scanned.total
        return bool(self.complete and total.evaluated and not total.feasible)


def _with_offload(
    query: SearchQuery, space: Space, scan: Callable[[Space], _Scan], *, saves: bool
) -> tuple[_Scan, tuple[str, ...]]:
    """Scan a space; where nothing fits, with offload, and which fields are tried in full for it."""
    with_it, wider = None, space.with_offload(query.system)
    if wider is not None and not saves and query.is_too_large(max(map(int, space.gpus or (0,)))):
        with_it = scan(wider)
    if with_it is None or (with_it.complete and not with_it.misfits):
        without = scan(space)
        if wider is None or not without.misfits:
            return without, ()
        with_it = with_it or scan(wider)
    more = {name: getattr(with_it.space, name) for name in OFFLOADS}
    return with_it, tuple(name for name, tried in more.items() if tried != getattr(space, name))


def _result(
    scan: _Scan, widened: tuple[str, ...], *, most: int, levels: bool, started: float
) -> SearchResult:
    """What was found, and the best of it in full, at most so many."""
    query, space, complete = scan.work.query, scan.space, scan.complete
    candidates, total = scan.work.candidates, scan.scanned.total
    lines, counted = [Lines.of_rows(ranked) for ranked in (total.best, total.advised)], complete
    if query.lines and complete:
        try:
            lines = lines_of(scan.work, total)
        except KeyboardInterrupt:
            counted = False
    first, second = ranked_lines(query, candidates, lines)
    if query.lines and counted and not levels and is_open(space):
        if query.robust is None:
            first, _ = refined_lines(query, query.ranking, space, first)
        else:
            second, scores = refined_lines(query, query.robust, space, second)
            first = merged_lines(first, lines[0].score.tolist(), second, scores)
    advised, best = ranked_plans(query, [second, first[:most]])
    by_scale = scan.scanned.by_scale
    return SearchResult(
        model=query.model.name,
        system=query.system.name,
        space=space.model_dump(mode="json", exclude_unset=True),
        objective=query.objective,
        capacity_bytes=query.capacity_bytes,
        fits_required=query.fit.probability,
        fits_assumes=query.fit.assumes(query.model),
        candidates=len(candidates),
        evaluated=total.evaluated,
        feasible=total.feasible,
        timed=total.timed,
        counts_exact=complete and total.checked == total.evaluated,
        rejected=scan.rejected,
        looked_at=total.candidates + sum(map(len, candidates.illegal)),
        elapsed_s=time.perf_counter() - started,
        complete=complete and counted,
        widened=widened,
        software=tuple(
            line
            for one in space.stack or ()
            if is_description(one)
            for line in match_of(one, query.system, query.model).in_words
        ),
        best=best,
        advised=advised,
        all_variants=not query.lines,
        variants_counted=counted,
        alike=ties_of(best, query.objective),
        pareto=None if query.front is None else plans_of(query, candidates, total.front.number),
        pareto_against=query.front,
        scales=best_by_scale(query, candidates, by_scale) if len(by_scale) > 1 else (),
        cells=() if levels else best_by_cell(query, candidates, total),
        levels=best_by_level(query, candidates, total) if levels else None,
        nearest=nearest_of(query, candidates, total),
        not_tried=space.not_tried(query.model, query.system),
        avoided=tuple(
            Avoided(
                values=_in_words(one),
                because=one.because,
                source=one.source,
                date=one.date,
                fields=one.named,
            )
            for one in space.avoided(query.model, query.system)
        ),
        smallest=scan.smallest,
        nearest_batches=() if total.evaluated else candidates.nearest_batches,
    )


def _in_words(reported: Reported) -> str:
    """What was reported, as values of fields: `dispatcher deepep without ep in domain`."""
    when = {name: reported.when[name] for name in reported.named}
    then = {n: v for n, v in reported.then.items() if n not in when or IN_DOMAIN in v}
    texts = (" and ".join(f"{n} {described(v)}" for n, v in one.items()) for one in (when, then))
    return " without ".join(filter(None, texts))


def _smallest(query: SearchQuery, space: Space, rejected: Mapping[str, int]) -> SmallestGpus | None:
    """Return the smallest number of GPUs that is feasible; None if interrupted.

    The answer of the search, that there is none, comes first.
    """
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in rejected.items())
    _log.info("nothing is feasible (rejected: %s); checking the memory of more GPUs", reasons)
    said = time.perf_counter()

    def progress(_: int, gpus: int) -> None:
        nonlocal said
        if time.perf_counter() - said >= _QUIET_S:
            said = time.perf_counter()
            _log.info(
                "nothing fits on fewer than %s GPUs; checking the memory of more", f"{gpus:,}"
            )

    try:
        return smallest_gpus(
            *(query.model, query.system, space),
            capacity_bytes=query.capacity_bytes,
            progress=progress,
            fit=query.fit,
        )
    except KeyboardInterrupt:
        return None
