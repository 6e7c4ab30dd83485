"""Scan a box of candidates: count them by outcome, and find the best.

Rules come first, then memory, then the time of what fits. Where a space selects one value of a
field (`Space.selected`), candidates that differ in that field alone compete: the fewest recomputed
layers that fit, then the largest micro-batch that fits, then the layer split with the shortest
step, each among what the one before leaves.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, Self

import numpy as np

from shardwise.arrays import Bools, Column, Floats, Ints, combined, gather
from shardwise.config.model import Model
from shardwise.config.strategy_fields import CHOICE_FIELDS, LINE_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import SystemColumns
from shardwise.cost.component_costs import (
    ComponentCosts,
    PlacedCosts,
    costs_and_bytes,
    stored_bytes,
)
from shardwise.distinct import Distinct, distinct_rows, evaluate_distinct
from shardwise.engine.evaluate import OnSystems, PeakMemory, Timing, peak_memory, timed
from shardwise.engine.step_bound import bound_of_rows, pass_times
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.pipeline_layout import StageGroup, distinct_stage_groups
from shardwise.parallel.placement import place
from shardwise.planning.search.candidates import OPTION_FIELDS, Box, Boxes, alike
from shardwise.planning.search.layouts import groups_without
from shardwise.planning.search.query import PREDICTED, FitTest, SearchQuery
from shardwise.planning.search.ranking import (
    Ranked,
    as_integers,
    best_of_each,
    front,
    second_figure,
    seconds_per_token,
    table_keys,
    top,
    top_with_keys,
)
from shardwise.records import dataclass, replace

MEMORY, SECOND_MEMORY = "memory", "second_memory"
"""Reasons why a legal candidate is not feasible: the memory tier that is too small."""
MAY_NOT_FIT = "may_not_fit"
"""Reason of one that fits as predicted, but not with the probability of the search."""
NOT_SELECTED = ("more_recompute", "smaller_micro_batch", "slower_stages")
"""Reasons why a candidate that fits is not selected, by field of `_SELECTED_FIELDS`."""
_SELECTED_FIELDS = ("recompute_layers", "micro_batch_size", "stage_layers")

# Rows, each with all its choices, that are evaluated at a time: their columns stay in the cache.
_CHUNK = 1 << 13
# The same for memory alone, which many rows share.
_MEMORY_CHUNK = 1 << 16
# Rows that are timed first: the best of them leave few others to time.
_FIRST_TIMED = 1 << 7
_OPTION_RULES = tuple(rule for rule in CONSTRAINTS if not rule.layout_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Rows of which some choice is feasible, with their times."""

    table: Table
    rows: Ints
    """Positions among the rows of `Evaluated`."""
    feasible: Bools
    """Shape (choices, rows)."""
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A chunk of the rows of a box of which some choice obeys the rules."""

    rows: Ints
    """Positions in `Box.table`."""
    at: Ints
    """Positions among the rows of the evaluator."""
    legal: Bools
    """Choices that obey the rules; shape (choices, rows)."""
    feasible: Bools
    """Legal choices that fit and are selected; shape (choices, rows)."""
    rejected: Ints
    """Position in `NOT_SELECTED` for choices that fit but are not selected, else -1."""
    holding: PeakMemory
    """Shape (holdings, rows): not every choice changes the memory."""
    holding_of: Ints
    """Position of each choice in `holding`."""
    tested: PeakMemory
    """Memory with the load of experts that must fit; shape of `holding`."""
    needed_bytes: Floats
    """Bytes that must fit into the first memory tier; shape of `holding`."""
    timed: Timed | None = None
    """None before timing, and where nothing is feasible."""

    def take(self, rows: Ints) -> "Evaluated":
        """Some of the rows, without their times."""
        holding = gather(self.holding, rows)
        return Evaluated(
            rows=self.rows[rows],
            at=self.at[rows],
            legal=self.legal[:, rows],
            feasible=self.feasible[:, rows],
            rejected=self.rejected[:, rows],
            holding=holding,
            holding_of=self.holding_of,
            tested=holding if self.tested is self.holding else gather(self.tested, rows),
            needed_bytes=self.needed_bytes[:, rows],
        )

    def fitting(self) -> "Evaluated":
        """The rows of which some choice is feasible."""
        return self.take(np.flatnonzero(self.feasible.any(axis=0)))

    @staticmethod
    def joined(chunks: "Sequence[Evaluated]") -> "Evaluated":
        """The rows of several chunks of one evaluator, without their times."""

        def columns(name: str) -> Any:
            return np.concatenate([getattr(chunk, name) for chunk in chunks], axis=-1)

        def along_rows(*parts: Column) -> Any:
            return np.concatenate(parts, axis=-1)

        def memory(name: str) -> Any:
            first, *others = (getattr(chunk, name) for chunk in chunks)
            return combined(along_rows, first, *others)

        names = ("rows", "at", "legal", "feasible", "rejected", "needed_bytes")
        return Evaluated(
            **{name: columns(name) for name in names},
            **{name: memory(name) for name in ("holding", "tested")},
            holding_of=chunks[0].holding_of,
        )

    def over_capacity(self, capacity_bytes: float) -> Bools:
        """Choices that need more of the first memory tier than is usable; (choices, rows)."""
        return (self.needed_bytes > capacity_bytes)[self.holding_of]

    def over_as_predicted(self, system: System, capacity_bytes: float) -> Bools:
        """Those that need more even as predicted; shape (choices, rows)."""
        over = self.holding.needed_bytes(system) > capacity_bytes
        return self.over_capacity(capacity_bytes) & over[self.holding_of]

    def excess_bytes(self, system: System, capacity_bytes: float) -> Floats:
        """Result of `excess_bytes` for each choice; shape (tiers, choices, rows)."""
        found = excess_bytes(system, self.tested, capacity_bytes, self.needed_bytes)
        return found[:, self.holding_of]


def memory_of_each(
    model: Model,
    system: System,
    boxes: Sequence[Box],
    capacity_bytes: float,
    fit: FitTest = PREDICTED,
) -> list[tuple[Ints, Evaluated | None]]:
    """Evaluate the memory of small boxes together: few rows take as long as many.

    Returns `broken_options` of each box, and its rows of which some choice obeys the rules; None
    without any.
    """
    tables = [box.table() for box in boxes]
    pairs = zip(boxes, tables, strict=True)
    broken = [broken_options(model, system, box, table) for box, table in pairs]
    found: dict[int, Evaluated | None] = {}
    for some in alike(boxes):
        choices = {name: getattr(boxes[some[0]].choices, name) for name in CHOICE_FIELDS}
        every = Table.joined([tables[at] for at in some]).with_choices(choices)
        rules = np.concatenate([broken[at] for at in some], axis=1)
        rows = MemoryEvaluator.of(model, system, every, rules, capacity_bytes, fit=fit)
        chunks = [*rows.memory()]
        whole = Evaluated.joined(chunks) if chunks else None
        ends = np.cumsum([len(tables[at]) for at in some])
        for at, end in zip(some, ends.tolist(), strict=True):
            start = end - len(tables[at])
            own = whole and whole.take(np.flatnonzero((whole.rows >= start) & (whole.rows < end)))
            found[at] = own and replace(own, rows=own.rows - start)
    return [(broken[at], found[at]) for at in range(len(boxes))]


def broken_options(model: Model, system: System, box: Box | Boxes, table: Table) -> Ints:
    """Position in `CONSTRAINTS` of the first one that an option violates, or -1; (choices, rows).

    The layouts of the box obey the rules.
    """
    broken = first_violation(model, system, table, _OPTION_RULES)
    return np.broadcast_to(broken, (len(box.choices), len(table)))


def broken_reasons(broken: Ints) -> Counter[str]:
    """How often each rule is broken, by reason."""
    counts = np.bincount(broken[broken >= 0], minlength=len(CONSTRAINTS)).tolist()
    found: Counter[str] = Counter()
    for rule, number in zip(CONSTRAINTS, counts, strict=True):
        found[rule.reason] += number  # several rules have one reason
    return +found


def excess_bytes(
    system: System,
    holding: PeakMemory,
    capacity_bytes: float,
    needed_bytes: Floats | None = None,
) -> Floats:
    """Bytes that each memory tier lacks, or, below 0, has left; shape (tiers, holdings, rows).

    Parameters
    ----------
    needed_bytes
        Bytes that must fit into the first tier; None: the predicted ones.
    """
    needed = holding.needed_bytes(system) if needed_bytes is None else needed_bytes
    excess = [needed - capacity_bytes]
    outer = system.accelerator.memory[1:]
    excess += [holding.memory.offloaded - tier.usable_bytes for tier in outer]
    return np.stack(np.broadcast_arrays(*excess))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvaluator:
    """The rows of a box of which some choice obeys the rules, with bytes, without times."""

    _model: Model
    _system: System
    _capacity_bytes: float
    _rows: Ints
    """Positions in `Box.table`."""
    _table: Table
    _legal: Bools
    """Choices that obey the rules; shape (choices, rows)."""
    _bytes: Distinct[ComponentCosts]
    _stages: Distinct[tuple[StageGroup, ...]]
    _holdings: Table
    """The rows with the choices that change the memory."""
    _holding_of: Ints
    """Position of each choice in `_holdings`."""
    _fit: FitTest

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        table: Table,
        broken: Ints,
        capacity_bytes: float,
        positions: Ints | None = None,
        fit: FitTest = PREDICTED,
    ) -> Self:
        """Select the rows of which some choice obeys the rules, and cost them.

        Parameters
        ----------
        table
            `Box.table` of a box of legal layouts, or some of its rows.
        broken
            Result of `broken_options`; shape (choices, rows).
        capacity_bytes
            Usable part of the first memory tier.
        positions
            Positions of the rows in `Box.table`; None: all of its rows.
        fit
            When a candidate fits.
        """
        rows = np.flatnonzero((broken < 0).any(axis=0))
        legal = table.take(rows)
        columns = [getattr(table, name)[:, 0] for name in CHOICE_FIELDS if name != "dp_overlap"]
        distinct, holding_of = distinct_rows(columns)
        choices = {name: getattr(table, name)[distinct, 0] for name in CHOICE_FIELDS}
        loaded = fit.loaded(model, legal)
        return cls(
            _model=model,
            _system=system,
            _capacity_bytes=capacity_bytes,
            _rows=rows if positions is None else positions[rows],
            _table=legal,
            _legal=broken[:, rows] < 0,
            _bytes=stored_bytes(model, legal, also=None if loaded is legal else loaded),
            _stages=distinct_stage_groups(model, legal),
            _holdings=legal.with_choices(choices),
            _holding_of=holding_of,
            _fit=fit,
        )

    @property
    def positions(self) -> Ints:
        """Positions of the rows in `Box.table`."""
        return self._rows

    def with_replicas(self, at: Ints, replicas: Ints) -> "MemoryEvaluator":
        """Return some of the rows with other replicas: layers and stages have the same bytes."""
        return MemoryEvaluator(
            _model=self._model,
            _system=self._system,
            _capacity_bytes=self._capacity_bytes,
            _rows=self._rows[at],
            _table=self._table.take(at).changed(dp=replicas),
            _legal=self._legal[:, at],
            _bytes=self._bytes.of_rows(at),
            _stages=self._stages.of_rows(at),
            _holdings=self._holdings.take(at).changed(dp=replicas),
            _holding_of=self._holding_of,
            _fit=self._fit,
        )

    def memory(self) -> Iterator[Evaluated]:
        """Yield the rows chunk by chunk with their memory, without times."""
        for start in range(0, self._rows.size, _MEMORY_CHUNK):
            chunk = slice(start, start + _MEMORY_CHUNK)
            table, stages = self._holdings.take(chunk), self._stages.of_rows(chunk)
            holding = peak_memory(table, self._bytes.of_rows(chunk), stages)
            legal = self._legal[:, chunk]
            tested = self._tested(table, holding, legal, stages)
            needed, feasible = self._feasible(table, tested, legal)
            yield Evaluated(
                rows=self._rows[chunk],
                at=np.arange(start, start + legal.shape[1]),
                legal=legal,
                feasible=feasible,
                rejected=np.full(legal.shape, -1),
                holding=holding,
                holding_of=self._holding_of,
                tested=tested,
                needed_bytes=needed,
            )

    def _feasible(self, table: Table, tested: PeakMemory, legal: Bools) -> tuple[Floats, Bools]:
        """Bytes that must fit into the first memory tier, and whether legal choices fit."""
        needed = self._fit.needed_bytes(self._system, table, tested)
        excess = excess_bytes(self._system, tested, self._capacity_bytes, needed)
        fit: Bools = np.all(excess <= 0, axis=0)
        return needed, legal & fit[self._holding_of]

    def _tested(
        self,
        table: Table,
        holding: PeakMemory,
        legal: Bools,
        stages: Distinct[tuple[StageGroup, ...]],
    ) -> PeakMemory:
        """Memory with the load of experts that must fit.

        Where some row fits with it, those that do not even fit with their own load keep that one.
        """
        loaded = self._fit.loaded(self._model, table)
        if loaded is table:
            return holding
        every = np.arange(legal.shape[1])
        within = np.flatnonzero(self._feasible(table, holding, legal)[1].any(axis=0))
        for rows in (within, every):
            some = loaded.take(rows)
            found = peak_memory(some, stored_bytes(self._model, some), stages.of_rows(rows))
            if rows is every or self._feasible(some, found, legal[:, rows])[1].any():
                break
        return combined(partial(_with_rows, rows), holding, found)

    def placed(self, chunk: Evaluated) -> "Evaluator":
        """Place rows of a chunk, and cost them."""
        model, system = self._model, self._system
        table, held = self._table.take(chunk.at), self._bytes.of_rows(chunk.at)
        extents = evaluate_distinct(partial(place, system), table)
        costs, _, inputs = costs_and_bytes(model, system, table, extents, held=held)
        return Evaluator(
            rows=chunk,
            table=table,
            _model=model,
            _system=system,
            _placed=PlacedCosts(extents, costs, self._stages.of_rows(chunk.at), held, inputs),
        )

    def timed(self, chunk: Evaluated, rejected: Ints | None = None) -> Evaluated:
        """Time the rows of a chunk of which some choice is feasible.

        Parameters
        ----------
        rejected
            Result of `not_selected`; shape (choices, rows of `Box.table`).
        """
        if rejected is not None:
            here = rejected[:, chunk.rows]
            chunk = replace(chunk, rejected=here, feasible=chunk.feasible & (here < 0))
        within = np.flatnonzero(chunk.feasible.any(axis=0))
        if not within.size:
            return chunk
        found = self.placed(chunk.take(within)).timed(np.arange(within.size))
        return replace(chunk, timed=replace(found, rows=within))


def _with_rows(rows: Ints, column: Column, some: Column) -> Any:
    """Return a column with other values in some rows."""
    shape = (*some.shape[:-1], column.shape[-1])
    found = np.array(np.broadcast_to(column, shape), dtype=column.dtype)
    found[..., rows] = some
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Rows that are placed and costed: to be timed, or on several systems."""

    rows: Evaluated
    """With their memory."""
    table: Table
    _model: Model
    _system: System
    _placed: PlacedCosts

    def bounds(self) -> Floats:
        """Lower bound of the step time of each row [s]."""
        passes = pass_times(self._placed.components.of_all())
        return bound_of_rows(self._system, self.table, self._placed.stages.of_all(), passes)

    def best_first(self, limit_s: Callable[[Table, Evaluated], Floats]) -> Iterator[Evaluated]:
        """Time rows in the order of their bounds, as long as limits allow.

        Parameters
        ----------
        limit_s
            Returns the longest step time of each row that matters [s]; it may fall from call to
            call.
        """
        bound_s = self.bounds()
        order = np.argsort(bound_s, kind="stable")
        start, size = 0, _FIRST_TIMED
        while start < order.size:
            some = order[start : start + size]
            start, size = start + size, min(2 * size, _CHUNK)
            limits = limit_s(self.table.take(some), self.rows.take(some))
            some = some[bound_s[some] <= limits]
            if some.size:
                yield replace(self.rows.take(some), timed=self.timed(some))

    def timed(self, rows: Ints) -> Timed:
        """Time some rows."""
        placed, table = self._placed, self.table.take(rows)
        extents, costs = placed.extents.take(rows), placed.components.take(rows)
        stages = placed.stages.take(rows)
        return Timed(
            table=table,
            rows=np.arange(rows.size),
            feasible=self.rows.feasible[:, rows],
            timing=timed(self._model, self._system, table, extents, costs, stages),
        )

    def on_systems(self, systems: SystemColumns) -> OnSystems:
        """Return the rows on other systems of the same structure."""
        return OnSystems.of(self._model, self._system, self.table, self._placed, systems)

    @property
    def distinct_costs(self) -> int:
        """Number of layer costs to evaluate on each system."""
        return int(self._placed.components.position.max(initial=0)) + 1


def not_selected(
    model: Model, box: Box, table: Table, evaluator: MemoryEvaluator, chunks: Sequence[Evaluated]
) -> Ints:
    """Position in `NOT_SELECTED` of why each candidate is not selected, or -1; (choices, rows)."""
    fitting = np.zeros((len(box.choices), len(table)), dtype=np.bool_)
    for chunk in chunks:
        fitting[:, chunk.rows] = chunk.feasible
    rejected = np.full(fitting.shape, -1, dtype=np.int64)
    penalty: Floats
    for number, name in enumerate(_SELECTED_FIELDS):
        if name in box.selected:
            if name == "stage_layers":
                penalty = _step_times(evaluator, chunks, rejected)
            elif name == "recompute_layers":
                layers = table.recompute_layers
                penalty = np.where(layers > 0, layers, model.depth + 1).astype(np.float64)
            else:
                penalty = -table.micro_batch_size.astype(np.float64)
            group = _rival_groups(box, _SELECTED_FIELDS[: number + 1])
            rejected[_all_but_best(group, fitting & (rejected < 0), penalty)] = number
    return rejected


def _step_times(evaluator: MemoryEvaluator, chunks: Sequence[Evaluated], rejected: Ints) -> Floats:
    """Step times of what fits and is not rejected yet, else infinite; (choices, rows) [s]."""
    times = np.full(rejected.shape, np.inf)
    for chunk in chunks:
        fitting = evaluator.timed(chunk, rejected).timed
        if fitting is not None:
            rows = chunk.rows[fitting.rows]
            times[:, rows] = np.where(fitting.feasible, fitting.timing.step_time_s, np.inf)
    return times


def _rival_groups(box: Box, fields: tuple[str, ...]) -> Ints:
    """Group numbers of rows that differ in nothing but the selected ones of some fields."""
    varied = tuple(name for name in fields if name in box.selected)
    layout = groups_without(box.layouts, varied)
    columns = [getattr(box.options, name) for name in OPTION_FIELDS if name not in varied]
    option = distinct_rows(columns)[1]
    return (layout[:, np.newaxis] * (option.max(initial=0) + 1) + option).ravel()


def _all_but_best(group: Ints, among: Bools, penalty: Floats) -> Bools:
    """Members of each group but its best, of equals the first; shape (choices, rows)."""
    choice, row = np.nonzero(among)
    score = np.broadcast_to(penalty, among.shape)[choice, row]
    order = np.lexsort((row, score, group[row], choice))
    key = choice[order] * (group.max(initial=0) + 1) + group[row[order]]
    again = np.zeros(order.size, dtype=np.bool_)
    again[1:] = key[1:] == key[:-1]
    found = np.zeros(among.shape, dtype=np.bool_)
    found[choice[order[again]], row[order[again]]] = True
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a scan found in some candidates."""

    candidates: int
    evaluated: int
    """Candidates that obey the rules."""
    checked: int
    """Those of them whose memory was checked."""
    feasible: int
    """Those of them that fit."""
    timed: int
    """Those of them whose step was timed."""
    rejected: Counter[str]
    """Candidates that break a rule or do not fit, by reason."""
    best: Ranked
    """The best candidates, or those of different layouts (`SearchQuery.lines`)."""
    best_keys: Ints
    """The layouts of these, as columns of `Table`; shape (candidates, `LINE_FIELDS`)."""
    advised: Ranked
    """The best by `SearchQuery.robust`; none without it."""
    advised_keys: Ints
    """Their layouts."""
    front: Ranked
    cells: Ranked
    """The best of each combination of values of the axes."""
    cell_values: Ints
    """These values, as columns of `Table`; shape (cells, axes)."""
    nearest: Ranked
    """The candidate that exceeds memory by least: its score is the excess [byte], `second` the
    memory tier."""

    @classmethod
    def empty(cls, axes: int = 0) -> "Findings":
        """Findings of no candidates."""
        none, no_keys = Ranked.empty(), np.empty((0, len(LINE_FIELDS)), np.int64)
        return cls(
            candidates=0,
            evaluated=0,
            checked=0,
            feasible=0,
            timed=0,
            rejected=Counter(),
            best=none,
            best_keys=no_keys,
            advised=none,
            advised_keys=no_keys,
            front=none,
            cells=none,
            cell_values=np.empty((0, axes), np.int64),
            nearest=none,
        )


def merged(parts: Sequence[Findings], query: SearchQuery) -> Findings:
    """Return the findings of all parts together."""
    parts = [Findings.empty(len(query.axes)), *parts]
    values, cells = best_of_each(
        np.concatenate([part.cell_values for part in parts]),
        Ranked.joined([part.cells for part in parts]),
    )
    tops: dict[str, Any] = {}
    for name, count in (("best", query.top), ("advised", query.rivals)):
        ranked = Ranked.joined([getattr(part, name) for part in parts])
        keys = np.concatenate([getattr(part, f"{name}_keys") for part in parts])
        keys, ranked = top_with_keys(keys, ranked, count, each=query.lines)
        tops |= {name: ranked, f"{name}_keys": keys}
    return Findings(
        candidates=sum(part.candidates for part in parts),
        evaluated=sum(part.evaluated for part in parts),
        checked=sum(part.checked for part in parts),
        feasible=sum(part.feasible for part in parts),
        timed=sum(part.timed for part in parts),
        rejected=sum((part.rejected for part in parts), Counter()),
        **tops,
        front=front(Ranked.joined([part.front for part in parts])),
        cells=cells,
        cell_values=values,
        nearest=top(Ranked.joined([part.nearest for part in parts]), 1),
    )


class Observer(Protocol):
    """Receives every candidate of a scan."""

    def options(self, broken: Ints) -> None:
        """Receive the rule that each option and choice breaks, or -1; shape (choices, rows)."""

    def evaluated(self, chunk: Evaluated) -> None:
        """Receive the next chunk of candidates that obey the rules."""


def scan(query: SearchQuery, box: Box | Boxes, observer: Observer | None = None) -> Findings:
    """Evaluate every candidate of a box, or several, of legal layouts."""
    table = box.table()
    broken = broken_options(query.model, query.system, box, table)
    if observer is not None:
        observer.options(broken)
    findings = replace(
        Findings.empty(len(query.axes)), candidates=len(box), rejected=broken_reasons(broken)
    )
    evaluator = MemoryEvaluator.of(
        *(query.model, query.system, table, broken, query.capacity_bytes), fit=query.fit
    )
    chunks: Iterable[Evaluated] = evaluator.memory()
    rejected = None
    if isinstance(box, Box) and box.selected:
        chunks = list(chunks)
        rejected = not_selected(query.model, box, table, evaluator, chunks)
    for untimed in chunks:
        chunk = evaluator.timed(untimed, rejected)
        counted = counted_in(query, chunk)
        if chunk.timed is None:
            counted = replace(counted, nearest=least_excess(query, box, chunk))
            findings = merged([findings, counted], query)
        else:
            found = findings_of(query, box, chunk, findings)
            findings = merged([findings, counted, found], query)
        if observer is not None:
            observer.evaluated(chunk)
    return findings


def findings_of(
    query: SearchQuery, box: Box | Boxes, chunk: Evaluated, before: Findings
) -> Findings:
    """Findings of a timed chunk; `best` has only what may beat the findings before."""
    timed = chunk.timed
    assert timed is not None  # noqa: S101 - what the caller ensures
    here = replace(Findings.empty(len(query.axes)), timed=int(np.count_nonzero(timed.feasible)))
    step_s, table, system = timed.timing.step_time_s, timed.table, query.system
    reserved = chunk.holding.reserved_bytes[:, timed.rows][chunk.holding_of]

    def at(choice: Ints, row: Ints, score: Floats, second: Floats) -> Ranked:
        return Ranked(
            number=box.numbers(chunk.rows[timed.rows[row]], choice),
            score=score[choice, row],
            second=second[choice, row],
            step_time_s=step_s[choice, row],
        )

    def ranked(candidates: Bools, score: Floats, second: Floats) -> Ranked:
        choice, row = np.nonzero(candidates)
        return at(choice, row, score, second)

    def best_by(score: Floats, known: Ranked, count: int) -> tuple[Ints, Ranked]:
        full = len(known) == count
        rivals = timed.feasible & (score <= known.score[-1]) if full else timed.feasible
        if layout is None:
            choice, row = np.nonzero(rivals)
        else:
            choice, row = _best_of_layouts(rivals, score, layout)
        some = at(choice, row, score, reserved)
        return top_with_keys(table_keys(table, row), some, count, each=query.lines)

    layout = None
    if query.lines:
        layout = distinct_rows([as_integers(table, name) for name in LINE_FIELDS])[1]
    score = query.ranking.scores(step_s, table)
    best_keys, best = best_by(score, before.best, query.top)
    here = replace(here, best=best, best_keys=best_keys)
    if query.robust is not None:
        keys, advised = best_by(query.robust.scores(step_s, table), before.advised, query.rivals)
        here = replace(here, advised=advised, advised_keys=keys)
    if query.front is not None:
        second = second_figure(query.front, step_s, reserved, table, system)
        time_s = seconds_per_token(step_s, table, system)
        here = replace(here, front=front(ranked(timed.feasible, time_s, second)))
    if query.axes:
        columns = [np.broadcast_to(as_integers(table, a), step_s.shape) for a in query.axes]
        keys = np.stack([column[timed.feasible] for column in columns], axis=1)
        values, cells = best_of_each(keys, ranked(timed.feasible, score, reserved))
        here = replace(here, cells=cells, cell_values=values)
    return here


def _best_of_layouts(rivals: Bools, score: Floats, layout: Ints) -> tuple[Ints, Ints]:
    """Choice and row of the best candidate of each layout, of equals the first.

    Parameters
    ----------
    rivals, score
        Shape (choices, rows).
    layout
        Code of the layout of each row.
    """
    shown = np.where(rivals, score, np.inf)
    choice = shown.argmin(axis=0)
    least = shown[choice, np.arange(layout.size)]
    rows = np.flatnonzero(rivals.any(axis=0))
    order = rows[np.lexsort((rows, least[rows], layout[rows]))]
    is_first = np.ones(order.size, dtype=np.bool_)
    is_first[1:] = layout[order[1:]] != layout[order[:-1]]
    found = order[is_first]
    return choice[found], found


def counted_in(query: SearchQuery, chunk: Evaluated) -> Findings:
    """Count the candidates that obey the rules, those that are feasible, and why others are not."""
    legal, feasible = (int(np.count_nonzero(m)) for m in (chunk.legal, chunk.feasible))
    capacity = query.capacity_bytes
    full = int(np.count_nonzero(chunk.legal & chunk.over_capacity(capacity)))
    predicted = chunk.over_as_predicted(query.system, capacity)
    memory = int(np.count_nonzero(chunk.legal & predicted))
    selected = np.bincount(chunk.rejected[chunk.rejected >= 0], minlength=len(NOT_SELECTED))
    others = dict(zip(NOT_SELECTED, selected.tolist(), strict=True))
    second = legal - feasible - full - sum(others.values())
    may_not = full - memory
    rejected = Counter({MEMORY: memory, MAY_NOT_FIT: may_not, SECOND_MEMORY: second, **others})
    return replace(
        Findings.empty(len(query.axes)),
        evaluated=legal,
        checked=legal,
        feasible=feasible,
        rejected=+rejected,
    )


def least_excess(query: SearchQuery, box: Box | Boxes, chunk: Evaluated) -> Ranked:
    """The candidate that exceeds memory by least, on its tier with the most excess."""
    by_tier = chunk.excess_bytes(query.system, query.capacity_bytes)
    worst = np.where(chunk.legal, by_tier.max(axis=0), np.inf)
    choice, row = np.nonzero((worst == worst.min(initial=np.inf)) & np.isfinite(worst))
    return top(
        Ranked(
            number=box.numbers(chunk.rows[row], choice),
            score=worst[choice, row],
            second=by_tier.argmax(axis=0)[choice, row].astype(np.float64),
            step_time_s=np.zeros(row.size),
        ),
        1,
    )
