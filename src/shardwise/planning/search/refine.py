"""Refine the best plans of a search: the layers of each chunk, by what they cost.

A search splits layers evenly, or by the rule of `layouts.uneven_layers`. For each of its best plans
with pipeline stages this tries other numbers of chunks, and for each of them the layers that make
the critical stage shortest (`parallel.chunk_layout`): as far as the space leaves the split open,
the stack takes a list of layers, and the plan still fits.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.enums import Schedule
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import LINE_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.cost.component_costs import stored_bytes
from shardwise.engine.evaluate import (
    Evaluation,
    PeakMemory,
    evaluate,
    fits,
    peak_memory,
)
from shardwise.parallel.chunk_layout import LayerTimes, balanced_chunks, stage_times
from shardwise.parallel.constraints import first_violation
from shardwise.parallel.pipeline_layout import distinct_stage_groups, layers_on_ranks
from shardwise.planning.search.layouts import numbers_of_chunks
from shardwise.planning.search.plans import VARIANT_SHARE, RankedLine, settings_of
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import Ranking
from shardwise.planning.search.space import SPLIT_FIELDS, Space
from shardwise.records import dataclass

_IN_ORDER = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
# The critical stage is found to this share of its time, in so many branches more
# than chunks.
_PRECISION, _EFFORT = 2e-3, 20
# Digits of times over that of a layer: plans whose components cost nearly the same share layouts.
_DIGITS = 2
POOL = 10
"""Plans of a search that are refined."""
# How often a split that does not fit may move a layer away from its peak-memory stage.
_MOVES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A number of chunks, and layers that the stages and chunks may have at most."""

    plan: int
    """Position of the plan."""
    chunks: int
    within: tuple[int, int]
    most: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """A plan with its scores."""

    plan: Strategy
    score: float
    """In the order of the plans."""
    objective: float
    """By the objective."""


def is_open(space: Space) -> bool:
    """Whether a space may have pipelines, and leaves the split of their layers open."""
    named = (getattr(space, name) for name in ("stage_layers", *SPLIT_FIELDS))
    return space.pp != (1,) and all(values is None for values in named)


def refined_lines(
    query: SearchQuery, ranking: Ranking, space: Space, best: tuple[RankedLine, ...]
) -> tuple[tuple[RankedLine, ...], list[float]]:
    """Return the best lines of a search with better splits of their layers.

    With the scores of all of them by the objective; none where there is nothing to split. A split
    replaces the plan of the same line, or is a plan of its own, where it gains more than variants
    of a layout differ.

    Parameters
    ----------
    ranking
        The order of the plans.
    best
        The lines of a search in a space that `is_open`, best first.
    """
    plans = [one.strategy for one in best]
    several = enumerate(plans[:POOL])
    piped = [n for n, plan in several if plan.pp > 1 and plan.schedule in _IN_ORDER]
    if not piped:
        return best, []
    found, scored = _better_splits(query, ranking, space, plans, piped)
    refined = [one for one in scored if _line(one.plan) not in found] + [*found.values()]
    new = [one.plan for one in found.values()]
    settings = settings_of(query.model, Table.of(query.model, new)) if new else []
    made = [
        RankedLine(strategy=plan, settings=own) for plan, own in zip(new, settings, strict=True)
    ]
    old = [line for line in best if _line(line.strategy) not in found]
    order = sorted(range(len(refined)), key=lambda n: refined[n].score)[: len(plans)]
    lines = [*old, *made]
    return tuple(lines[n] for n in order), [refined[n].objective for n in order]


def merged_lines(
    best: tuple[RankedLine, ...],
    best_scores: Sequence[float],
    refined: tuple[RankedLine, ...],
    scores: Sequence[float],
) -> tuple[RankedLine, ...]:
    """Return the best lines by the objective, with those that another order has refined.

    Parameters
    ----------
    best_scores, scores
        By the objective.
    """
    every = [*zip(scores, refined, strict=False), *zip(best_scores, best, strict=True)]
    found: dict[tuple[Any, ...], RankedLine] = {}
    for _, line in sorted(every, key=itemgetter(0)):
        found.setdefault(_line(line.strategy), line)
    return tuple(found.values())[: len(best)]


def _line(plan: Strategy) -> tuple[Any, ...]:
    """What sets a line of the ranking apart."""
    return tuple(getattr(plan, name) for name in LINE_FIELDS)


def _fits(query: SearchQuery, table: Table, result: Evaluation) -> Bools:
    """Rows that fit as the search requires."""
    loaded = query.fit.loaded(query.model, table)
    holding: PeakMemory = result
    if loaded is not table:
        stages = distinct_stage_groups(query.model, loaded)
        holding = peak_memory(loaded, stored_bytes(query.model, loaded), stages)
    needed = query.fit.needed_bytes(query.system, table, holding)
    return (needed <= query.capacity_bytes) & fits(query.system, holding, np.inf)


def _better_splits(
    query: SearchQuery,
    ranking: Ranking,
    space: Space,
    plans: Sequence[Strategy],
    piped: Sequence[int],
) -> tuple[dict[tuple[Any, ...], _Scored], list[_Scored]]:
    """The best split of each line, where it gains enough; and the plans.

    A split that does not fit gives up layers of its peak-memory stage, as long as it gains.
    """
    table = Table.of(query.model, plans)
    result = evaluate(query.model, query.system, table)
    scored = _scored(query, ranking, plans, table, result)
    costs = _layer_times(query, table, result, piped)
    by_line = {_line(plan): n for n, plan in enumerate(plans)}
    found: dict[tuple[Any, ...], _Scored] = {}
    tried = [
        split for n, times in costs.items() for split in _splits(query, space, n, plans[n], times)
    ]
    for _ in range(_MOVES + 1):
        again: list[_Split] = []
        for split, one, stage in _evaluated(query, ranking, plans, table, tried):
            line = _line(one.plan)
            rival = (1 - VARIANT_SHARE) * scored[by_line.get(line, split.plan)].score
            if one.score >= min(rival, found[line].score if line in found else rival):
                continue
            if stage is None:
                found[line] = one
            else:
                again += _moved(split, costs[split.plan], stage)
        tried = again
    return found, scored


def _evaluated(
    query: SearchQuery,
    ranking: Ranking,
    plans: Sequence[Strategy],
    table: Table,
    tried: Sequence[_Split],
) -> Iterator[tuple[_Split, _Scored, int | None]]:
    """Yield splits that obey the rules with their scores; the peak stage if too large.

    Parameters
    ----------
    table
        Of the plans.
    """
    model, system = query.model, query.system
    if not tried:
        return
    rows = _with_splits(table, tried)
    legal = np.flatnonzero(first_violation(model, system, rows) < 0)
    if not legal.size:
        return
    rows = rows.take(legal)
    result = evaluate(model, system, rows)
    room = _fits(query, rows, result)
    some = [tried[at] for at in legal.tolist()]
    scored = _scored(
        query, ranking, [_with_split(plans[one.plan], one) for one in some], rows, result
    )
    for row in sorted(range(legal.size), key=lambda row: scored[row].score):
        stage = None if room[row] else int(result.peak_memory_stage[row])
        yield some[row], scored[row], stage


def _scored(
    query: SearchQuery,
    ranking: Ranking,
    plans: Iterable[Strategy],
    table: Table,
    result: Evaluation,
) -> list[_Scored]:
    """Scores of evaluated plans."""
    scores, usual = (
        one.scores(result.step_time_s, table).tolist() for one in (ranking, query.ranking)
    )
    return [
        _Scored(plan=plan, score=score, objective=own)
        for plan, score, own in zip(plans, scores, usual, strict=True)
    ]


def _layer_times(
    query: SearchQuery, table: Table, result: Evaluation, rows: Sequence[int]
) -> dict[int, LayerTimes]:
    """Times of the components of plans that an ideal split would improve enough.

    Ideal are equal stages without a bubble.
    """
    model = query.model
    costs = result.step.costs
    passes = [None if one is None else one.times.time_s for one in costs.components]
    kinds, found = len(model.layers), {}
    for row in rows:
        own = [0.0 if one is None else float(one[row]) for one in passes]
        work = [float(counts[row]) for counts in result.step.critical.all_stages]
        pairs = list(zip(work, own, strict=True))
        layers = tuple(
            sum(n * time_s for n, time_s in pairs[kind : 2 * kinds : kinds])
            / sum(n for n, _ in pairs[kind : 2 * kinds : kinds])
            for kind in range(kinds)
        )
        unit = max(layers)
        times = LayerTimes(
            order=model.order,
            layers=tuple(round(one / unit, _DIGITS) for one in layers),
            embedding=round(own[-2] / unit, _DIGITS),
            head=round((own[-1] + model.mtp * own[-3]) / unit, _DIGITS),
        )
        pp = int(table.pp[row])
        on_stages = stage_times(times, layers_on_ranks(model.depth, table, row), pp)
        uneven_s = int(table.micro_batches[row]) * unit * (max(on_stages) - sum(on_stages) / pp)
        lost_s = uneven_s + float(result.time_s["bubble"][row])
        if lost_s > VARIANT_SHARE * float(result.step_time_s[row]):
            found[row] = times
    return found


def _splits(
    query: SearchQuery, space: Space, n: int, plan: Strategy, times: LayerTimes
) -> Iterator[_Split]:
    """Splits of a plan to try: with several numbers of chunks, the most even chunks first."""
    depth, pp, system = query.model.depth, plan.pp, query.system
    listed = space.values("vpp", system)
    allowed = space.values("schedule", system) or ()
    for chunks in listed or sorted(set(chain(*numbers_of_chunks(depth, pp)))):
        if _schedule(chunks) not in allowed:
            continue
        share = -(-depth // (pp * chunks))
        everything = (depth,) * pp
        ranges = [(share - 1, share), (share, share + 1)] if chunks > 1 else [(0, depth)]
        found = {_balanced(times, pp, chunks, everything, within): within for within in ranges}
        for first in range(max(0, share - 1), share + 2):
            last = depth - first - share * (pp * chunks - 2)
            if 0 <= last <= share:
                found.setdefault((first, *(share,) * (pp * chunks - 2), last), ranges[-1])
        for sizes, within in found.items():
            if sizes is not None:
                yield _Split(plan=n, chunks=chunks, within=within, most=everything, sizes=sizes)


def _moved(split: _Split, times: LayerTimes, stage: int) -> Iterator[_Split]:
    """A split with a layer less on a stage."""
    pp = len(split.most)
    fewer = sum(split.sizes[stage::pp]) - 1
    inner = split.chunks - (stage == 0) - (stage == pp - 1)  # the first and last may have fewer
    if fewer < inner * split.within[0]:
        return
    most = tuple(fewer if at == stage else one for at, one in enumerate(split.most))
    sizes = _balanced(times, pp, split.chunks, most, split.within)
    if sizes is not None:
        yield _Split(
            plan=split.plan, chunks=split.chunks, within=split.within, most=most, sizes=sizes
        )


@lru_cache(maxsize=1 << 10)
def _balanced(
    times: LayerTimes, pp: int, chunks: int, most: tuple[int, ...], within: tuple[int, int]
) -> tuple[int, ...] | None:
    """The split with the shortest critical stage, nearly."""
    found = balanced_chunks(
        *(times, pp, chunks),
        most=most,
        sizes=within,
        precision=_PRECISION,
        effort=pp * chunks + _EFFORT,
    )
    return None if found is None else found.sizes


def _with_split(plan: Strategy, split: _Split) -> Strategy:
    """A plan with other chunks."""
    changed: Mapping[str, object] = {
        "vpp": split.chunks,
        "schedule": _schedule(split.chunks),
        "stage_layers": split.sizes,
        **dict.fromkeys(SPLIT_FIELDS[:2]),
        **dict.fromkeys(SPLIT_FIELDS[2:], False),
    }
    return plan.model_copy(update=dict(changed))


def _with_splits(table: Table, splits: Sequence[_Split]) -> Table:
    """The plans of splits, with the chunks of these."""
    none = np.zeros(len(splits), dtype=np.int64)
    lists = tuple(dict.fromkeys(one.sizes for one in splits))
    return table.take(np.array([one.plan for one in splits])).changed(
        vpp=np.array([one.chunks for one in splits]),
        schedule=np.array([_schedule(one.chunks).code for one in splits]),
        stage_layers=np.array([lists.index(one.sizes) for one in splits]),
        stage_lists=lists,
        **dict.fromkeys(SPLIT_FIELDS[:2], none),
        **dict.fromkeys(SPLIT_FIELDS[2:], none > 0),
    )


def _schedule(chunks: int) -> Schedule:
    return Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B
