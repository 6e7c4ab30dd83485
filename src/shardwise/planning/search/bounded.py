"""Bounded search: evaluate only what can be among the results.

Four filters, each far faster for a candidate than the next one, leave out what is too slow:

1. a bound of each layout by its kernels alone, whatever its options;
2. a bound of each layout with each group of options, with exposed communication, whatever is
   recomputed or offloaded;
3. memory, and then a bound of each candidate that fits, with recompute and offload;
4. the others are timed in the order of their bounds.

Every bound is at most the time (`engine.step_bound`), and equal times stay, so the results are
those of a search that times every candidate that fits.

`Limits` are the longest step times with which a candidate can still be among the results. They
follow from the findings so far. As these only improve, limits of earlier findings are safe: they
leave out less.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Column, Floats, Ints, gather
from shardwise.config.model import Model
from shardwise.config.strategy_fields import LAYOUT_FIELDS, LINE_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import OperationInputs, known_totals
from shardwise.cost.links import Links, dispatch_processor_share
from shardwise.distinct import Distinct, distinct_rows, evaluate_distinct
from shardwise.engine.step_bound import Passes, least_pass_times, step_bound
from shardwise.parallel.pipeline_layout import StageGroup, distinct_stage_groups
from shardwise.parallel.placement import Extents, place
from shardwise.planning.search.candidates import Box, Boxes
from shardwise.planning.search.pairs import Legality, Pairs, PairValues
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import (
    LAYOUT_PART,
    Ranked,
    Ranking,
    as_integers,
    dollars_per_token,
)
from shardwise.planning.search.scan import (
    Evaluated,
    Findings,
    MemoryEvaluator,
    counted_in,
    findings_of,
    least_excess,
    merged,
)
from shardwise.records import dataclass, field, replace

# Conversion between step times and scores: far more than their last digits.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What findings so far leave open."""

    query: SearchQuery
    score: float
    """The worst score of a candidate that may be among the best."""
    advised_score: float = -np.inf
    """The same by `SearchQuery.robust`."""
    front: Ranked
    """The Pareto front so far."""
    cells: Ranked
    """The best candidate of each chart cell so far."""
    cell_values: Ints
    """Values of the axes of each cell; shape (cells, axes)."""
    keys: Ints = field(default_factory=lambda: np.empty((0, len(LINE_FIELDS)), np.int64))
    """Layouts that alone matter, as columns of `LINE_FIELDS`; without any, all do."""
    key_scores: Floats = field(default_factory=lambda: np.empty(0))
    """The worst score that matters of each of these."""
    key_advised_scores: Floats | None = None
    """The same by `SearchQuery.robust`."""

    @classmethod
    def of_layout_keys(
        cls, query: SearchQuery, keys: Ints, scores: Floats, advised_scores: Floats | None = None
    ) -> "Limits":
        """Limits of the candidates of some layouts alone.

        Parameters
        ----------
        keys
            Shape (layouts, `LINE_FIELDS`).
        scores, advised_scores
            The worst score that matters of each, by the objective and by `SearchQuery.robust`.
        """
        none = Ranked.empty()
        return cls(
            query=query,
            score=-np.inf,
            front=none,
            cells=none,
            cell_values=np.empty((0, 0), np.int64),
            keys=keys,
            key_scores=scores,
            key_advised_scores=advised_scores,
        )

    @property
    def bounds_layouts(self) -> bool:
        """Whether a layout can be left out before its memory is known."""
        query = self.query
        return query.front != "memory" and all(axis in LAYOUT_FIELDS for axis in query.axes)

    def of_layouts(self, layouts: "OpenLayouts") -> Floats:
        """Longest step time of each layout that matters, with any options [s]."""
        query, table = self.query, layouts.table
        if not self.bounds_layouts:
            return np.full(len(table), np.inf)
        if not len(self.keys):
            limit = replace(self, advised_score=-np.inf).of_rows(table)
            longest_s = layouts.longest_s(self.advised_score)
            return np.maximum(limit, longest_s * (1 + _ROUNDING))
        columns = [LINE_FIELDS.index(name) for name in LAYOUT_PART]
        firsts, group = distinct_rows(list(self.keys[:, columns].T))
        where = matching(table, LAYOUT_PART, self.keys[firsts])

        def worst(of_keys: Floats) -> Floats:
            scores = np.full(firsts.size, -np.inf)
            np.maximum.at(scores, np.broadcast_to(group, len(self.keys)), of_keys)
            return np.where(where >= 0, scores[where], -np.inf)

        limit = query.ranking.longest(worst(self.key_scores), table)
        if query.robust is not None and self.key_advised_scores is not None:
            advised = worst(self.key_advised_scores)
            limit = np.maximum(limit, layouts.longest_s(advised))
        return limit * (1 + _ROUNDING)

    def of_rows(self, table: Table, reserved_bytes: Floats | None = None) -> Floats:
        """Longest step time of each row that matters [s]; -inf: no time does.

        Parameters
        ----------
        table
            Strategies of n rows.
        reserved_bytes
            Memory of each row; None: unknown [byte].
        """
        query = self.query
        if len(self.keys):
            where = matching(table, LINE_FIELDS, self.keys)
            limit = query.ranking.longest(
                np.where(where >= 0, self.key_scores[where], -np.inf), table
            )
            if query.robust is not None and self.key_advised_scores is not None:
                advised = np.where(where >= 0, self.key_advised_scores[where], -np.inf)
                limit = np.maximum(limit, query.robust.longest(advised, table))
            return limit * (1 + _ROUNDING)
        limit = query.ranking.longest(self.score, table)
        if query.robust is not None and self.advised_score > -np.inf:
            limit = np.maximum(limit, query.robust.longest(self.advised_score, table))
        if query.front is not None:
            tokens = 1.0 * table.global_batch_size * table.seq_len
            limit = np.maximum(limit, self._of_front(table, reserved_bytes) * tokens)
        if query.axes:
            limit = np.maximum(limit, query.ranking.longest(self._of_cells(table), table))
        return limit * (1 + _ROUNDING)

    def _of_front(self, table: Table, reserved_bytes: Floats | None) -> Floats:
        """Longest time per token with which a row is not behind a candidate of the front [s]."""
        name, points = self.query.front, self.front
        limit = np.full(len(table), np.inf)
        if name == "memory" and reserved_bytes is None:
            return limit
        for score, second in zip(points.score.tolist(), points.second.tolist(), strict=True):
            if name == "cost":  # rises with the time per token
                rate = dollars_per_token(np.ones(len(table)), table, self.query.system)
                tokens = 1.0 * table.global_batch_size * table.seq_len
                limit = np.minimum(limit, np.maximum(score, second / (rate * tokens)))
            else:
                own = reserved_bytes if name == "memory" else 1.0 * table.gpus
                limit = np.where(second <= own, np.minimum(limit, score), limit)
        return limit

    def _of_cells(self, table: Table) -> Floats:
        """Worst score that matters of each row in its cell, or in that of one of its choices."""
        columns = np.broadcast_arrays(*(as_integers(table, axis) for axis in self.query.axes))
        where = position_in([column.ravel() for column in columns], self.cell_values)
        found: Floats = np.append(self.cells.score, np.inf)[where]
        return found.reshape(np.atleast_2d(columns[0]).shape).max(axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLayouts:
    """Layouts with any options, as limits need them."""

    query: SearchQuery
    table: Table
    """With the longest sequences, which have the least score for a time."""
    factor: Floats
    """Least factor of `SearchQuery.robust`."""

    @classmethod
    def of(cls, query: SearchQuery, boxes: Boxes) -> "OpenLayouts":
        """Layouts of boxes."""
        every = [box.layouts for box in boxes.each]
        longest = [int(box.options.seq_len.max()) for box in boxes.each]
        table = Table.joined(every).changed(seq_len=np.repeat(longest, [*map(len, every)]))
        if query.robust is None:
            return cls(query=query, table=table, factor=np.ones(len(table)))
        factors = [query.robust.least_factor(box) for box in boxes.each]
        return cls(query=query, table=table, factor=np.concatenate(factors))

    def take(self, rows: Ints) -> "OpenLayouts":
        """Some of the layouts."""
        return replace(self, table=self.table.take(rows), factor=self.factor[rows])

    def longest_s(self, advised: Floats | float) -> Floats:
        """Longest step time of each that may have a score by `SearchQuery.robust` [s]."""
        robust = self.query.robust
        if robust is None:
            return np.full(len(self.table), -np.inf)
        return Ranking.longest(robust, advised, self.table) / self.factor


def matching(table: Table, names: Sequence[str], keys: Ints) -> Ints:
    """Return the position of a key that each row agrees with in some fields, or -1."""
    some = keys[:, [LINE_FIELDS.index(name) for name in names]]
    return position_in([as_integers(table, name) for name in names], some)


def position_in(columns: Sequence[Column], keys: Ints) -> Ints:
    """Position of the first key that each row of some columns equals, or -1."""
    joined = [np.concatenate([keys[:, n], column]) for n, column in enumerate(columns)]
    firsts, position = distinct_rows(joined)
    least = np.full(firsts.size, len(joined[0]))
    np.minimum.at(least, position, np.arange(len(joined[0])))
    first: Ints = least[np.broadcast_to(position, len(joined[0]))[len(keys) :]]
    return np.where(first < len(keys), first, -1)


MOST_PAIRS = 1 << 22
"""Layouts x options x choices of a batch."""
MOST_LAYOUTS = 1 << 14
"""Layouts of a piece for a process that does all of them."""
# Layouts of the first piece, to have good limits for the next ones; a few need one piece.
_FIRST_LAYOUTS, _FEW_LAYOUTS = 1 << 9, 1 << 13
# Layouts of the first piece whose bounds are equal.
_EQUALS = 4
# Layouts x options of a piece that are evaluated first, and how the next batches grow.
_FIRST_ROWS, _BATCH_GROWTH = 1 << 13, 16
# Options with choices whose rules are checked together.
_MOST_TOGETHER = 1 << 17
# Bounds that are computed at a time: their columns stay in the cache.
_BLOCK = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionBounds:
    """Lower bounds of the step of layouts with each group of options that costs the same."""

    system: System
    layouts: Table
    stages: Distinct[tuple[StageGroup, ...]]
    """Of the layouts."""
    passes: Passes
    """Least time of a pass of each component, of pairs of groups [s]."""
    pairs: PairValues[Any]
    """Positions of pairs of groups among these."""
    step_overhead_s: Floats
    """Of each group of options [s]."""
    step_wait_s: Floats
    """Of each group of options [s]."""
    straggler_per_doubling: Floats
    """Of each group of options."""
    recomputes_some: bool
    """Whether options recompute some layers alone, which makes chunks unequal."""

    def of(self, layouts: Ints) -> Floats:
        """Bounds of some layouts, infinite where no option is legal; (layouts, groups) [s]."""
        index = self.pairs.index[self.pairs.layout_group[layouts]]
        bound_s = np.full(index.shape, np.inf)
        place, group = np.nonzero(index >= 0)
        row, at = layouts[place], index[place, group]
        bound_s[place, group] = step_bound(
            self.system,
            self.stages.take(row),
            tuple(None if one is None else one[at] for one in self.passes),
            stages=self.layouts.pp[row],
            chunks=self.layouts.vpp[row],
            schedule=self.layouts.schedule[row],
            micro_batches=self.layouts.micro_batches[row],
            gpus=self.layouts.gpus[row],
            step_overhead_s=self.step_overhead_s[group],
            step_wait_s=self.step_wait_s[group],
            straggler_per_doubling=self.straggler_per_doubling[group],
            uneven_chunks=self.recomputes_some,
        )
        return bound_s

    def least(self) -> Floats:
        """Least bound of each layout, with any options [s]."""
        least = np.full(len(self.layouts), np.inf)
        step = max(1, _BLOCK // self.pairs.index.shape[1])
        for start in range(0, least.size, step):
            some = np.arange(start, min(start + step, least.size))
            least[some] = self.of(some).min(axis=1, initial=np.inf)
        return least


def option_bounds(
    query: SearchQuery, pairs: Pairs, legality: Legality, *, communicates: bool = True
) -> OptionBounds:
    """Bound the step of each layout with each group of options that costs the same."""
    layouts, options = pairs.layouts, pairs.options
    found, operations, kernels = _pass_inputs(query, pairs, legality, communicates=communicates)
    passes = _least_passes(query.model, operations, kernels, found.values)
    member = np.unique(found.option_group, return_index=True)[1]
    return OptionBounds(
        system=query.system,
        layouts=layouts,
        stages=distinct_stage_groups(query.model, layouts),
        passes=passes,
        pairs=found,
        step_overhead_s=options.by_stack(lambda stack: stack.step_overhead)[member],
        step_wait_s=options.by_stack(lambda stack: stack.step_wait)[member],
        straggler_per_doubling=options.by_stack(lambda stack: stack.straggler_per_doubling)[member],
        recomputes_some=bool(options.recomputes_some.any()),
    )


def _pass_inputs(
    query: SearchQuery, pairs: Pairs, legality: Legality, *, communicates: bool
) -> "tuple[PairValues[_PassCosts], OperationInputs, Ints]":
    """What decides the time of a pass: of pairs of groups; operations; the row of these of each."""
    model, system = query.model, query.system
    operations = pairs.evaluate(lambda table, _: OperationInputs.of(model, system, table), legality)

    def costs(table: Table, extents: Extents) -> "_PassCosts":
        OperationInputs.of(model, system, table)  # rows that differ in these differ here too
        none = np.zeros(len(table))
        overlaps, share = none > 0, none
        links = Links.silent(system, len(table))
        if communicates:
            links, overlaps = Links.of(system, table, extents), table.overlaps_experts
            share = dispatch_processor_share(system, table)
        return _PassCosts(
            links=links,
            training=table.training,
            overlaps_experts=overlaps,
            overlap_processors=share,
        )

    found = pairs.evaluate(costs, legality)
    kernels = operations.at(found.layouts, found.options)
    return found, operations.values, kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassCosts:
    """What the time of a pass depends on besides its kernels, as columns."""

    links: Links
    training: Bools
    overlaps_experts: Bools
    overlap_processors: Floats


def _least_passes(
    model: Model, operations: OperationInputs, kernels: Ints, costs: _PassCosts
) -> Passes:
    """Least time of a pass of each component; so many rows at a time that memory is small.

    Parameters
    ----------
    kernels
        Row of the operations of each row.
    """
    order = np.argsort(kernels, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    parts = []
    for start in range(0, max(order.size, 1), _BLOCK):
        rows = order[start : start + _BLOCK]
        first, last = (int(kernels[rows[end]]) if rows.size else 0 for end in (0, -1))
        links = replace(costs.links.take(rows), kernels=kernels[rows] - first)
        some = gather(operations, slice(first, last + 1))
        totals = known_totals(model, some, links)
        parts.append(
            least_pass_times(
                model,
                totals.values.take(totals.position),
                training=costs.training[rows],
                overlaps_experts=costs.overlaps_experts[rows],
                overlap_processors=costs.overlap_processors[rows],
            )
        )
    return tuple(
        None if any(one is None for one in several) else np.concatenate(several)[place]
        for several in zip(*parts, strict=True)
    )


LegalBoxes = tuple[Boxes, tuple[Legality, ...]]
"""Boxes with the legality of the pairs of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBounds:
    """Boxes with lower bounds of their layouts."""

    boxes: Boxes
    legality: tuple[Legality, ...]
    bound_s: Floats
    """Least step of each layout with any options, without communication [s]."""
    group: Ints
    """The same number for layouts whose kernels cost the same."""
    findings: Findings
    """Candidates that obey the rules, and the others by reason."""

    @classmethod
    def of(cls, query: SearchQuery, boxes: Boxes, legality: tuple[Legality, ...]) -> "LayoutBounds":
        """Bound the layouts of boxes; by 0 if they are few, which the next bounds do as fast."""
        count, counts = int(boxes.starts[-1]), [one.counts() for one in legality]
        bound_s, group = np.zeros(count), np.zeros(count, dtype=np.int64)
        if count > _FEW_LAYOUTS:
            pairs, every = placed_pairs(query.system, boxes.each), Legality.joined(legality)
            bounds = option_bounds(query, pairs, every, communicates=False)
            bound_s, group = bounds.least(), bounds.pairs.layout_group
        return cls(
            boxes=boxes,
            legality=legality,
            bound_s=bound_s,
            group=group,
            findings=replace(
                Findings.empty(len(query.axes)),
                evaluated=sum(legal for legal, _ in counts),
                rejected=sum((rejected for _, rejected in counts), Counter()),
            ),
        )

    def pieces(
        self, query: SearchQuery, limits: Callable[[], Limits | None], most: int = MOST_LAYOUTS
    ) -> Iterator[LegalBoxes]:
        """Cut the boxes into pieces of work; a small one of promising layouts comes first.

        In the others layouts whose kernels cost the same are together, the best first.

        Parameters
        ----------
        limits
            Returns the limits of the layouts of the next piece; None: all matter.
        most
            Layouts of a piece.
        """
        first = self._promising()
        least = np.full(int(self.group.max(initial=0)) + 1, np.inf)
        np.minimum.at(least, self.group, self.bound_s)
        left = np.isfinite(self.bound_s)
        left[first] = False
        every = np.flatnonzero(left)
        order = every[np.lexsort((every, self.group[every], least[self.group[every]]))]
        cuts = range(0, order.size, most)
        layouts = OpenLayouts.of(query, self.boxes)
        for some in (first, *(np.sort(order[start : start + most]) for start in cuts)):
            within = limits()
            if within is not None:
                limit_s = within.of_layouts(layouts.take(some))
                some = some[self.bound_s[some] <= limit_s]  # noqa: PLW2901
            if some.size:
                yield self._selected(some)

    def _selected(self, layouts: Ints) -> LegalBoxes:
        """The boxes of some layouts, with these alone."""
        boxes, legalities = [], []
        for box, legality, start in zip(
            self.boxes.each, self.legality, self.boxes.starts, strict=False
        ):
            inside = layouts[(layouts >= start) & (layouts < start + len(box.layouts))] - start
            if inside.size:
                boxes.append(box.select(inside))
                legalities.append(legality.take(inside))
        return Boxes(each=tuple(boxes)), tuple(legalities)

    def _promising(self) -> Ints:
        """Layouts with the least bounds, a few of equal ones: placements have no effect on them."""
        order = np.argsort(self.bound_s, kind="stable")
        order = order[np.isfinite(self.bound_s[order])]
        if order.size <= _FEW_LAYOUTS:
            return np.sort(order)
        starts = np.unique(self.bound_s[order], return_index=True, return_inverse=True)
        among_equals = np.arange(order.size) - starts[1][starts[2]]
        return np.sort(order[among_equals < _EQUALS][:_FIRST_LAYOUTS])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedScan:
    """What a bounded scan of a piece starts from."""

    legality: tuple[Legality, ...]
    """Of the pairs of each box of the piece."""
    known: Findings
    """Findings in other pieces."""
    scale_score: float | None = None
    """The best score at the scale of the piece, if the best of each scale matters."""
    counts: bool = False
    """Whether to check the memory of every candidate that obeys the rules."""

    def limits(self, query: SearchQuery, findings: Findings) -> Limits:
        """Limits after some findings."""
        every = merged([self.known, findings], query)
        worst = every.best.score[-1] if len(every.best) == query.top else math.inf
        if self.scale_score is not None:
            own = findings.best.score[0] if len(findings.best) else math.inf
            worst = max(worst, min(own, self.scale_score))
        full = len(every.advised) == query.rivals
        return Limits(
            query=query,
            score=worst,
            advised_score=every.advised.score[-1] if full else math.inf,
            front=every.front,
            cells=every.cells,
            cell_values=every.cell_values,
        )


def scan_bounded(query: SearchQuery, boxes: Boxes, start: BoundedScan) -> Findings:
    """Find what is better in a piece than all that is known.

    Candidates and those that obey the rules are counted by `LayoutBounds`.
    """
    findings = Findings.empty(len(query.axes))

    def limits() -> Limits:
        return start.limits(query, findings)

    batches = _batches(query, boxes, start.legality, None if start.counts else limits)
    for evaluator in batches:
        kept: list[Evaluated] = []
        for chunk in evaluator.memory():
            counted = replace(counted_in(query, chunk), evaluated=0)
            if not (counted.feasible or findings.feasible or start.known.feasible):
                counted = replace(counted, nearest=least_excess(query, boxes, chunk))
            findings = merged([findings, counted], query)
            kept.append(chunk.fitting())
        for chunk in _best_first(evaluator, kept, limits):
            known = merged([start.known, findings], query)
            before = known if start.scale_score is None else findings
            timed = findings_of(query, boxes, chunk, before)
            findings = merged([findings, timed], query)
    return findings


def timed_within(query: SearchQuery, boxes: Boxes, limits: Limits) -> Iterator[Evaluated]:
    """Yield the candidates of a piece that are within limits, and perhaps others, timed."""
    legality = legality_of_each(query, boxes.each)
    for evaluator in _batches(query, boxes, legality, lambda: limits):
        fitting = [chunk.fitting() for chunk in evaluator.memory()]
        yield from _best_first(evaluator, fitting, lambda: limits)


def _best_first(
    evaluator: MemoryEvaluator, fitting: Sequence[Evaluated], limits: Callable[[], Limits]
) -> Iterator[Evaluated]:
    """Time rows that fit in the order of their bounds, as long as limits allow."""

    def limit_s(table: Table, some: Evaluated) -> Floats:
        reserved = some.holding.reserved_bytes[some.holding_of]
        return limits().of_rows(table, np.where(some.feasible, reserved, np.inf).min(axis=0))

    some = [chunk for chunk in fitting if chunk.rows.size]
    if some:
        yield from evaluator.placed(Evaluated.joined(some)).best_first(limit_s)


def legality_of_each(query: SearchQuery, boxes: Sequence[Box]) -> list[Legality]:
    """Check the rules of all pairs of a layout and an option with choices, box by box.

    Boxes of few options are checked as one, with pairs that no box has: this takes as long as one.
    """
    found: list[Legality] = []
    batch: list[Box] = []
    for box, after in zip(boxes, [*boxes[1:], None], strict=True):
        batch.append(box)
        if after is not None and sum(one.width for one in (*batch, after)) <= _MOST_TOGETHER:
            continue
        every = placed_pairs(query.system, batch).legality(query.model, query.system)
        rows = np.cumsum([0, *(len(one.layouts) for one in batch)]).tolist()
        columns = np.cumsum([0, *(one.width for one in batch)]).tolist()
        for own, other in zip(pairwise(rows), pairwise(columns), strict=True):
            found.append(
                replace(
                    every,
                    layout_group=every.layout_group[slice(*own)],
                    option_group=every.option_group[slice(*other)],
                )
            )
        batch = []
    return found


def placed_pairs(system: System, boxes: Sequence[Box]) -> Pairs:
    """Return the layouts of boxes with their options and choices, also those of other boxes."""
    layouts = Table.joined([box.layouts for box in boxes])
    options = Table.joined([box.options_with_choices() for box in boxes])
    return Pairs(layouts, options, evaluate_distinct(partial(place, system), layouts))


def _batches(
    query: SearchQuery,
    boxes: Boxes,
    legality: Sequence[Legality],
    limits: Callable[[], Limits] | None,
) -> Iterator[MemoryEvaluator]:
    """Rows of a piece of which some choice obeys the rules and can be within limits.

    The layouts with the least bounds come first, a few of them.
    """
    most = max(1, MOST_PAIRS // max(box.width for box in boxes.each))
    order, size, bounds = np.arange(boxes.starts[-1]), most, None
    if limits is not None and limits().bounds_layouts:
        pairs = placed_pairs(query.system, boxes.each)
        bounds = option_bounds(query, pairs, Legality.joined(legality))
        least, layouts = bounds.least(), OpenLayouts.of(query, boxes)
        order = np.argsort(least, kind="stable")
        size = min(most, max(1, _FIRST_ROWS // max(len(box.options) for box in boxes.each)))
    while order.size:
        within = None
        if bounds is not None and limits is not None:
            limit_s = limits().of_layouts(layouts)
            order = order[least[order] <= limit_s[order]]
        some, order = np.sort(order[:size]), order[size:]
        size = min(most, _BATCH_GROWTH * size)
        if bounds is not None:
            within = bounds.of(some) <= limit_s[some, np.newaxis]
        groups = None if bounds is None else bounds.pairs.option_group
        found = [*_allowed(boxes, legality, some, within, groups)]
        if found:
            rows, tables, allowed = zip(*found, strict=True)
            yield MemoryEvaluator.of(
                query.model,
                query.system,
                boxes.joined(tables),
                np.where(np.concatenate(allowed).T, -1, 0),
                query.capacity_bytes,
                np.concatenate(rows),
                fit=query.fit,
            )


def _allowed(
    boxes: Boxes,
    legality: Sequence[Legality],
    some: Ints,
    within: Bools | None,
    groups: Ints | None,
) -> Iterator[tuple[Ints, Table, Bools]]:
    """Rows of each box of which some choice is allowed, as positions in `Boxes.table`.

    With the choices that are, of some layouts; shape (rows, choices).

    Parameters
    ----------
    within
        Whether pairs of these and of groups of options are within limits.
    groups
        Of the options with choices of all boxes.
    """
    options = row = 0
    for box, own, first in zip(boxes.each, legality, boxes.starts, strict=False):
        inside = slice(*np.searchsorted(some, [first, first + len(box.layouts)]))
        layouts = some[inside] - first
        allowed = own.of_layouts(layouts)
        if within is not None and groups is not None:
            allowed &= within[inside][:, groups[options : options + box.width]]
        by_choice = allowed.reshape(layouts.size, len(box.options), len(box.choices))
        place, option = np.nonzero(by_choice.any(axis=2))
        if place.size:
            rows = layouts[place] * len(box.options) + option
            yield row + rows, box.table(rows), by_choice[place, option]
        options += box.width
        row += len(box.layouts) * len(box.options)
