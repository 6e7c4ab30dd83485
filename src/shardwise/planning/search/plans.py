"""Turn the findings of a search into the plans of its result.

Plans by rank, scale, chart cell and level; which of the best are tied; and training runs.

A search streams the best strategy of each layout (`SearchQuery.lines`). Its variants are counted
once the best layouts are known: all strategies of that layout whose score is within
`VARIANT_SHARE` of its best. The simplest of them represents the layout.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, starmap, takewhile
from math import isnan
from typing import Any

import numpy as np

from shardwise.analysis.fit_probability import plan_probability, verdict_of
from shardwise.analysis.plan_classes import class_codes, class_evidence
from shardwise.analysis.prediction_interval import distinguishable_ratio, separable
from shardwise.analysis.results import Estimate
from shardwise.analysis.row_intervals import interval_factors
from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.degrees import LEVELLED_AXES, levels_text
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import (
    COLUMNS,
    EXPERT_DEGREES,
    LINE_FIELDS,
    REPLICA_DEGREES,
    Kind,
)
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import FEW_ROWS, distinct_rows
from shardwise.errors import InputError
from shardwise.estimator import estimate, estimate_each, estimate_many
from shardwise.parallel.effects import idle_rows, kinds_of
from shardwise.parallel.placement import place
from shardwise.planning.search.bounded import Limits, matching, timed_within
from shardwise.planning.search.candidates import Box, Boxes, Candidates, Scale, refusals
from shardwise.planning.search.layouts import groups_without
from shardwise.planning.search.pieces import PIECE_ROWS, Work
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import (
    LAYOUT_PART,
    OPTION_PART,
    Ranked,
    Ranking,
    dollars_per_token,
    top,
)
from shardwise.planning.search.results import (
    Cell,
    LevelsPlan,
    Nearest,
    Plan,
    PlanRun,
    RankedPlan,
    ScaleResult,
    SearchResult,
    Ties,
    TrainingRuns,
)
from shardwise.planning.search.scan import Evaluated, Findings, Timed, scan
from shardwise.planning.search.space import Space
from shardwise.planning.search.workers import Workers
from shardwise.planning.training_time import TrainingRun, with_training
from shardwise.records import dataclass, fields, replace

VARIANT_SHARE = 0.005
"""Strategies of one layout whose scores differ by less are variants. It is a twelfth of what
measured runs resolve (`analysis.prediction_interval.distinguishable_ratio`)."""
# Plans that are estimated at a time.
_TOGETHER = 32
# More rows than this are counted by the workers of the search, fewer by this process.
_MOST_ROWS_HERE = 4 * PIECE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Layouts, each represented by one strategy, best first by its score."""

    number: Ints
    """Number of the strategy."""
    score: Floats
    """Its score in the order of the lines."""
    variants: Ints
    """Other strategies of the layout that are nearly as good."""
    best_step_time_s: tuple[float | None, ...]
    """Step time of the best strategy of the layout; None where that one represents it [s]."""

    @classmethod
    def of_rows(cls, best: Ranked) -> "Lines":
        """A line for each strategy, without variants."""
        none = np.zeros(len(best), dtype=np.int64)
        return cls(
            number=best.number,
            score=best.score,
            variants=none,
            best_step_time_s=(None,) * len(best),
        )


def lines_of(work: Work, findings: Findings) -> list[Lines]:
    """Count the variants of the best layouts and find the simplest of each.

    Returns the best by the objective and those by `SearchQuery.robust`, counted in one pass.
    """
    query, orders = work.query, [(findings.best, findings.best_keys)]
    if work.query.robust is not None:
        orders.append((findings.advised, findings.advised_keys))
    every = np.concatenate([keys for _, keys in orders])
    if not len(every):
        return [Lines.of_rows(ranked) for ranked in (findings.best, findings.advised)]
    firsts, position = distinct_rows(list(every.T))
    number = np.concatenate([ranked.number for ranked, _ in orders])[firsts]
    ends = np.cumsum([0, *(len(ranked) for ranked, _ in orders)]).tolist()
    groups = [position[start:end] for start, end in pairwise(ends)]
    limits = np.full((len(orders), firsts.size), -np.inf)
    for limit, group, (ranked, _) in zip(limits, groups, orders, strict=True):
        limit[group] = ranked.score * (1 + VARIANT_SHARE)
    task = CountVariants(
        query=replace(query, front=None, axes=()),
        keys=every[firsts],
        limits=limits,
        defaults=_defaults(query.model, work.candidates.strategies(number)),
        bounds=work.bounds,
    )
    totals = [_Counted.none(firsts.size) for _ in orders]
    parts = [] if work.scanned else list(_boxes_of_layouts(work.candidates.legal, task.keys))
    boxes = [part.box for part in parts]
    rows = sum(len(box.layouts) * len(box.options) for box in boxes)
    workers = work.workers if rows > _MOST_ROWS_HERE else Workers()
    counted = workers.each(task, work.pieces(boxes))
    for found in starmap(task, work.scanned) if work.scanned else counted:
        totals = [total.joined(own) for total, own in zip(totals, found, strict=True)]
    for total in totals:
        total.number[:] = _numbers(parts, total.number) if parts else total.number
    lines = [
        _lines(total.take(group), ranked)
        for total, group, (ranked, _) in zip(totals, groups, orders, strict=True)
    ]
    return lines if query.robust is not None else [*lines, Lines.of_rows(findings.advised)]


def _lines(counted: "_Counted", best: Ranked) -> Lines:
    """The lines of some layouts, best first, from the best strategy of each."""
    order = np.lexsort((counted.number, counted.score))
    times = np.where(counted.number == best.number, np.nan, best.step_time_s)[order].tolist()
    return Lines(
        number=counted.number[order],
        score=counted.score[order],
        variants=counted.count[order] - 1,
        best_step_time_s=tuple(None if np.isnan(one) else one for one in times),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Some layouts and options of a box."""

    box: Box
    """Its candidates are numbered after those of the part before."""
    whole: Box
    layouts: Ints
    """Positions of its layouts in the full box."""
    options: Ints
    """Positions of its options in the full box."""

    def numbers(self, numbers: Ints) -> Ints:
        """Numbers in the full box."""
        layouts, options, choices = self.box.positions(numbers)
        rows = self.layouts[layouts] * len(self.whole.options) + self.options[options]
        return self.whole.numbers(rows, choices)


def _numbers(parts: Sequence[_Part], numbers: Ints) -> Ints:
    """Numbers of the candidates of parts in the space; -1 remains."""
    of = np.searchsorted([part.box.start for part in parts], numbers, side="right") - 1
    found = np.full_like(numbers, -1)
    for at, part in enumerate(parts):
        found[of == at] = part.numbers(numbers[of == at])
    return found


def _boxes_of_layouts(boxes: Sequence[Box], keys: Ints) -> Iterator[_Part]:
    """Parts of boxes that have the layouts with some keys.

    With each layout come the others that compete with it to be selected (`Space.selected`).
    """
    start = 0
    for box in boxes:
        layouts = matching(box.layouts, LAYOUT_PART, keys) >= 0
        options = np.flatnonzero(matching(box.options, OPTION_PART, keys) >= 0)
        if box.selected and layouts.any():
            group = groups_without(box.layouts, box.selected)
            layouts = np.isin(group, group[layouts])
        if not layouts.any() or not options.size:
            continue
        rows = np.flatnonzero(layouts)
        some = replace(
            box,
            start=start,
            layouts=box.layouts.take(rows),
            broken=box.broken[rows],
            options=box.options.take(options),
        )
        start += len(some)
        yield _Part(box=some, whole=box, layouts=rows, options=options)


def _defaults(model: Model, table: Table) -> Table:
    """The layouts of some strategies with every other field at its default."""
    names = [name for name in LINE_FIELDS if name != "gpus"]  # they follow from the degrees
    return Table.of(model, {name: table.column(name) for name in (*names, "tp2")})


def settings_of(model: Model, table: Table) -> list[tuple[str, ...]]:
    """Return the fields of each strategy that are not defaults: what a user has to set.

    Without the work itself (model, GPUs, batch, types, software), what follows from others, and
    what has no effect.
    """
    usual = Table.of(model, Strategy(dp=1, global_batch_size=1, seq_len=1))
    off = {
        name: getattr(table, name) != getattr(usual, name)
        for name in (*LINE_FIELDS, "tp2")
        if not (COLUMNS[name].role.work or COLUMNS[name].role.implied)
    }
    off |= settings_off(table, _defaults(model, table))
    for kind, rows in kinds_of(model, table):
        some = table.take(rows)
        for name, differs in off.items():  # a field without effect need not be set
            differs[rows] &= ~idle_rows(kind, some, name)
    return [
        tuple(name for name in COLUMNS if name in off and off[name][row])
        for row in range(len(table))
    ]


def settings_off(table: Table, defaults: Table) -> dict[str, Bools]:
    """Return whether each field but those of the key differs from its default, by field."""
    found = {}
    for name, column in COLUMNS.items():
        if name in LINE_FIELDS or name == "tp2":
            continue
        value, usual = getattr(table, name), getattr(defaults, name)
        found[name] = value >= 0 if column.kind is Kind.LIST else value != usual
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """Variants of some layouts, and the simplest strategy of each; one row for each layout."""

    count: Ints
    settings: Ints
    """Settings of the simplest that are not defaults."""
    score: Floats
    number: Ints
    """Of the simplest; -1 if there is none yet."""

    @classmethod
    def none(cls, layouts: int) -> "_Counted":
        return cls(
            count=np.zeros(layouts, dtype=np.int64),
            settings=np.full(layouts, len(COLUMNS) + 1),
            score=np.full(layouts, np.inf),
            number=np.full(layouts, -1),
        )

    def take(self, layouts: Ints) -> "_Counted":
        """Return some of the layouts."""
        return _Counted(**{f.name: getattr(self, f.name)[layouts] for f in fields(self)})

    def joined(self, other: "_Counted") -> "_Counted":
        """Both together: fewest settings, then the best score, then the lowest number."""
        better = other.settings < self.settings
        same = other.settings == self.settings
        better |= same & (other.score < self.score)
        better |= same & (other.score == self.score) & (other.number < self.number)
        return _Counted(
            count=self.count + other.count,
            settings=np.where(better, other.settings, self.settings),
            score=np.where(better, other.score, self.score),
            number=np.where(better, other.number, self.number),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountVariants:
    """Counts the variants in a piece, on any worker."""

    query: SearchQuery
    keys: Ints
    """Of the layouts; shape (layouts, `LINE_FIELDS`)."""
    limits: Floats
    """Worst score of a variant of each layout, by the objective and by `SearchQuery.robust`; -inf
    where the layout is not among the best of that order; shape (orders, layouts)."""
    defaults: Table
    """Of the layouts."""
    bounds: bool
    """Whether to leave out candidates that are too slow by their bounds."""

    def __call__(
        self, piece: Box | Boxes, chunks: Sequence[Evaluated] | None = None
    ) -> list[_Counted]:
        """Return the variants of a piece in each order.

        Parameters
        ----------
        chunks
            All of the piece, if it is evaluated already.
        """
        none = _Counted.none(len(self.keys))
        observer = _Observer(task=self, box=piece, found=[none] * len(self.limits))
        for chunk in chunks or ():
            observer.evaluated(chunk)
        if chunks is not None:
            return observer.found
        boxes = piece if isinstance(piece, Boxes) else Boxes(each=(piece,))
        few = sum(len(box.layouts) * len(box.options) for box in boxes.each) <= FEW_ROWS
        if boxes.each[0].selected or few or not self.bounds:
            scan(self.query, piece, observer)
            return observer.found
        limits = Limits.of_layout_keys(self.query, self.keys, *self.limits)
        for chunk in timed_within(self.query, boxes, limits):
            observer.evaluated(chunk)
        return observer.found


@dataclass(slots=True, kw_only=True)
class _Observer:
    """Counts variants during a scan (a `scan.Observer`)."""

    task: CountVariants
    box: Box | Boxes
    found: list[_Counted]
    """In each order."""

    def options(self, broken: Ints) -> None:
        """Ignore candidates that break a rule."""

    def evaluated(self, chunk: Evaluated) -> None:
        """Count the variants of a chunk."""
        timed, query = chunk.timed, self.task.query
        if timed is None:
            return
        layout = matching(timed.table, LINE_FIELDS, self.task.keys)
        rankings = [query.ranking, *filter(None, [query.robust])]
        self.found = [
            found.joined(self._counted(chunk.rows[timed.rows], timed, layout, ranking, limit))
            for found, ranking, limit in zip(self.found, rankings, self.task.limits, strict=True)
        ]

    def _counted(
        self, rows: Ints, timed: Timed, layout: Ints, ranking: Ranking, limit: Floats
    ) -> _Counted:
        """Variants in one order."""
        task, here = self.task, _Counted.none(len(limit))
        score = ranking.scores(timed.timing.step_time_s, timed.table)
        near = timed.feasible & (layout >= 0) & (score <= limit[layout])
        choice, row = np.nonzero(near)
        if not row.size:
            return here
        off = np.zeros(near.shape, dtype=np.int64)
        for differs in settings_off(timed.table, task.defaults.take(layout)).values():
            off += differs
        number = self.box.numbers(rows[row], choice)
        of, settings, points = layout[row], off[choice, row], score[choice, row]
        order = np.lexsort((number, points, settings, of))
        firsts = order[np.unique(of[order], return_index=True)[1]]
        here.count[:] = np.bincount(of, minlength=len(limit))
        for mine, theirs in (
            (here.settings, settings),
            (here.score, points),
            (here.number, number),
        ):
            mine[of[firsts]] = theirs[firsts]
        return here


LEVELS_AXES = ("gpus", "global_batch_size", *REPLICA_DEGREES, *EXPERT_DEGREES, "extents")
"""Fields that determine the levels; several of their values may give the same levels."""

# Parts of a step that vary most among validated runs: overlap of communication, and waiting.
_UNCERTAIN = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "offload", "bubble", "other")


def interval_fields(time_s: float, factors: tuple[float, float] | None) -> dict[str, float]:
    """Return the fields of a plan that say its range: none without one."""
    if factors is None:
        return {}
    low, high = factors
    return {"interval_low_s": time_s * low, "interval_high_s": time_s * high}


def probabilities_of(query: SearchQuery, rows: Table) -> list[float | None]:
    """Return the probability that each strategy fits; None forward only."""
    stated, described = query.fit.states_load, query.fit.described
    if described is not None:
        found = described.probability(rows, stated=stated)
    else:
        found = plan_probability(query.model, query.system, rows, stated=stated)
    return [None if isnan(one) else one for one in found.tolist()]


def plans_of(query: SearchQuery, candidates: Candidates, numbers: Ints) -> tuple[Plan, ...]:
    """Return candidates by number as plans."""
    if not len(numbers):
        return ()
    rows = candidates.strategies(numbers)
    table = estimate_many(query.model, query.system, rows)
    usd: list[float | None] = [None] * len(table)
    if query.system.price is not None:
        usd = (dollars_per_token(table.step_time_s, rows, query.system) * 1e9).tolist()
    factors = interval_factors(query.model, query.system, rows)
    likely = probabilities_of(query, rows)
    return tuple(
        Plan(
            strategy=rows.strategy(i).to_dict(),
            step_time_s=float(table.step_time_s[i]),
            tokens_per_s=float(table.tokens_per_s[i]),
            tokens_per_s_per_gpu=float(table.tokens_per_s[i]) / int(rows.gpus[i]),
            mfu=float(table.mfu[i]),
            memory_reserved_bytes=float(table.memory_reserved_bytes[i]),
            usd_per_billion_tokens=usd[i],
            **interval_fields(float(table.step_time_s[i]), factors[i]),
            fits_probability=likely[i],
        )
        for i in range(len(table))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedLine:
    """A line of a ranking before its full estimate."""

    strategy: Strategy
    settings: tuple[str, ...]
    variants: int | None = None
    best_step_time_s: float | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Those of a `RankedPlan`, as far as they are known."""
        named = ("settings", "variants", "best_step_time_s")
        return {n: value for n in named if (value := getattr(self, n)) is not None}


def ranked_lines(
    query: SearchQuery, candidates: Candidates, rankings: Sequence[Lines]
) -> list[tuple[RankedLine, ...]]:
    """Return the lines of each ranking with their strategies."""
    numbers, at = np.unique(np.concatenate([one.number for one in rankings]), return_inverse=True)
    if not numbers.size:
        return [() for _ in rankings]
    rows = candidates.strategies(numbers)
    settings = settings_of(query.model, rows)
    strategies = [rows.strategy(row) for row in range(numbers.size)]
    position = iter(at.tolist())
    return [
        tuple(
            RankedLine(
                strategy=strategies[row],
                settings=settings[row],
                variants=variants,
                best_step_time_s=best_s,
            )
            for variants, best_s, row in zip(
                lines.variants.tolist(), lines.best_step_time_s, position, strict=False
            )
        )
        for lines in rankings
    ]


def ranked_plans(
    query: SearchQuery, rankings: Sequence[Sequence[RankedLine]]
) -> list[tuple[RankedPlan, ...]]:
    """Return the lines of rankings as full estimates; the first ones if interrupted.

    Each has what was measured of its class.
    """
    new = [*dict.fromkeys(line.strategy for lines in rankings for line in lines)]
    known: dict[Strategy, Estimate] = {}
    with suppress(KeyboardInterrupt):
        for start in range(0, len(new), _TOGETHER):
            some, stated = new[start : start + _TOGETHER], query.fit.states_load
            each = estimate_each(query.model, query.system, some, stated=stated)
            known.update(zip(some, each, strict=True))
    fields = _of_classes(query, known) if known else {}
    return [
        tuple(
            RankedPlan.extending(known[line.strategy], **fields[line.strategy], **line.fields)
            for line in takewhile(lambda line: line.strategy in fields, lines)
        )
        for lines in rankings
    ]


def _of_classes(
    query: SearchQuery, known: Mapping[Strategy, Estimate]
) -> dict[Strategy, dict[str, Any]]:
    """What was measured of the class of each plan, and its chance to fit where that is described.

    As fields of a `RankedPlan`.
    """
    table = Table.of(query.model, [*known])
    codes = class_codes(query.model, query.system, table)
    factors, number = class_evidence().quantile_factor(), class_evidence().configurations
    found: dict[Strategy, dict[str, Any]] = {}
    for (one, estimated), code in zip(known.items(), codes, strict=True):
        found[one] = {
            "step_time_p80_s": estimated.step_time_s * float(factors[code]),
            "measured_configurations": int(number[code]),
        }
    if query.fit.described:
        for (one, estimated), likely in zip(
            known.items(), probabilities_of(query, table), strict=True
        ):
            verdict = verdict_of(likely, fits=estimated.fits)
            found[one] |= {"fits_probability": likely, "verdict": verdict}
    return found


def best_by_scale(
    query: SearchQuery, candidates: Candidates, by_scale: Mapping[Scale, Findings]
) -> tuple[ScaleResult, ...]:
    """Return the best plan of every scale; speedup is over the first scale that has a plan."""
    first: Plan | None = None
    found = []
    numbers = [findings.best.number[:1] for findings in by_scale.values()]
    plans = iter(plans_of(query, candidates, np.concatenate(numbers)) if numbers else ())
    for number, (scale, findings) in zip(numbers, by_scale.items(), strict=True):
        best = next(plans) if len(number) else None
        illegal = refusals([box for box in candidates.illegal if box.scale == scale])
        first = first or best
        speedup = efficiency = None
        if first is not None and best is not None:
            speedup = best.tokens_per_s / first.tokens_per_s
            efficiency = best.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu
        found.append(
            ScaleResult(
                gpus=scale.gpus,
                global_batch_size=scale.global_batch_size,
                candidates=candidates.number_at(scale),
                feasible=findings.feasible,
                rejected=dict((findings.rejected + illegal).most_common()),
                best=best,
                speedup=speedup,
                efficiency=efficiency,
            )
        )
    return tuple(found)


def best_by_cell(
    query: SearchQuery, candidates: Candidates, findings: Findings
) -> tuple[Cell, ...]:
    """Return the best plan of each combination of values of the axes."""
    return tuple(
        Cell(values={axis: plan.strategy[axis] for axis in query.axes}, plan=plan)
        for plan in plans_of(query, candidates, findings.cells.number)
    )


def nearest_of(query: SearchQuery, candidates: Candidates, findings: Findings) -> Nearest | None:
    """Return the strategy that exceeds memory by least, where nothing is feasible."""
    if findings.feasible or not len(findings.nearest):
        return None
    rows = candidates.strategies(findings.nearest.number)
    strategy = rows.strategy(0)
    tier = query.system.accelerator.memory[int(findings.nearest.second[0])]
    excess = float(findings.nearest.score[0])
    return Nearest(
        strategy=strategy.to_dict(),
        tier=tier.name,
        excess_bytes=excess,
        fits_probability=probabilities_of(query, rows)[0],
    )


def levels_space(space: Space, axes: Sequence[str]) -> Space:
    """Return the space with every way to fill the domains.

    With it the best plan of each combination of degrees, extents, accelerators and batch is exact.
    """
    if axes:
        problem = "contradicts levels, which has its own axes; choose one"
        raise InputError.of("axes", ",".join(axes), problem)
    if space.extents not in (None, "all"):
        problem = "contradicts levels, which tries all extents; choose one"
        raise InputError.of("extents", space.extents[0], problem)
    return space.fixed({"extents": "all"}, source="search")


def best_by_level(
    query: SearchQuery, candidates: Candidates, findings: Findings
) -> tuple[LevelsPlan, ...]:
    """Return the best plan of each combination of levels, accelerators and batch.

    Best first, at most `query.top`. The findings have `LEVELS_AXES` as their axes.
    """
    numbers = top(findings.cells, len(findings.cells)).number
    if not len(numbers):
        return ()
    rows = candidates.strategies(numbers)
    extents = place(query.system, rows)
    columns = [column for axis in LEVELLED_AXES for column in getattr(extents, axis)]
    firsts, _ = distinct_rows([rows.gpus, rows.global_batch_size, *columns])
    chosen = np.sort(firsts)[: query.top]
    plans = plans_of(query, candidates, numbers[chosen])
    by_axis = {axis: getattr(extents, axis)[:, chosen].T.tolist() for axis in LEVELLED_AXES}
    return tuple(
        LevelsPlan(
            levels={axis: _levels_text(by_axis[axis][row]) for axis in LEVELLED_AXES}, plan=plan
        )
        for row, plan in enumerate(plans)
    )


def _levels_text(extents: Sequence[int]) -> str:
    """Members that each tier adds, from the innermost outward, as in ``2x16``."""
    return levels_text([n // inner for n, inner in zip(extents, [1, *extents[:-1]], strict=True)])


def ties_of(best: Sequence[RankedPlan], objective: str = "step_time") -> Ties | None:
    """Return how many of the first plans measurements cannot separate, and how to order them.

    By features that no measured run used, then by settings, then by rank. None where the best
    stands out, and for forward passes, of which no runs were measured.
    """
    if not best or not best[0].strategy["training"]:
        return None
    figure = "step_time_s" if objective == "step_time" else "tokens_per_s_per_gpu"
    count = separable([getattr(plan, figure) for plan in best])
    if count == 1:
        return None

    def key(position: int) -> tuple[int, int, int]:
        plan = best[position]
        return len(plan.unmeasured_features), len(plan.settings), position

    order = sorted(range(count), key=key)
    safer = best[order[0]]
    return Ties(
        plans=count,
        within=distinguishable_ratio() - 1,
        safer=order[0],
        untried=tuple(
            one for one in best[0].unmeasured_features if one not in safer.unmeasured_features
        ),
        uncertain=sum(safer.time_s[part] for part in _UNCERTAIN) / safer.step_time_s,
        order=tuple(order),
    )


def with_training_runs(
    result: SearchResult, model: Model, system: System, run: TrainingRun
) -> SearchResult:
    """Return the result with a training run for each of the best plans, ranked by calendar time.

    The search itself optimizes steps, so this ranks its plans and not the full space: the best of
    each number of accelerators and batch, where there are several, else the best it returns. On
    one number of accelerators, with one type and optimizer, nothing is lost: failures come as
    often and checkpoints are as large with any plan, a run takes its steps times the same factor,
    and the order is that of tokens/s.

    Raises
    ------
    InputError
        If there can be no training run, as without training.
    """
    best, advised = (
        tuple(with_training(found, system, run) for found in some)
        for some in (result.best, result.advised)
    )
    plans = [scale.best.strategy for scale in result.scales if scale.best is not None]
    ranked = [with_training(estimate(model, system, plan), system, run) for plan in plans] or best
    runs = sorted(
        (PlanRun(strategy=e.strategy, run=e.whole_run) for e in ranked if e.whole_run is not None),
        key=lambda one: one.run.effective_days,
    )
    prices = [one.run.effective_usd for one in runs]
    known = [(price, position) for position, price in enumerate(prices) if price is not None]
    goodputs = [one.run.goodput for one in runs]
    overheads = {
        None if g is None else (g.job_mtbf_s, g.checkpoint_bytes, g.interval_s) for g in goodputs
    }
    training_runs = TrainingRuns(
        of="scales" if plans else "best",
        runs=tuple(runs),
        cheapest=min(known)[1] if known else None,
        order_is_of_steps=len(overheads) <= 1,
    )
    update = {"best": best, "advised": advised, "runs": training_runs}
    return result.model_copy(update=update)
