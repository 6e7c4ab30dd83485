"""Variants of the best layouts: how many there are, and which of them is the simplest.

A search streams the best strategy of each layout (`SearchQuery.lines`). Its variants are counted
once the best layouts are known: all strategies of that layout whose score is within
`VARIANT_SHARE` of its best. The simplest of them represents the layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.arrays import Bools, Column, Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import COLUMNS, LINE_FIELDS, Kind
from shardwise.config.strategy_table import Table
from shardwise.parallel.effects import idle_rows, kinds_of
from shardwise.planning.search.bounded import Limits, matching, timed_within
from shardwise.planning.search.candidates import Box
from shardwise.planning.search.layouts import groups_without
from shardwise.planning.search.pieces import PIECE_ROWS, Work
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import LAYOUT_PART, OBJECTIVES, OPTION_PART, Ranked
from shardwise.planning.search.scan import Evaluated, Findings, scan
from shardwise.planning.search.workers import Workers

VARIANT_SHARE = 0.005
"""Strategies of one layout whose scores differ by less are variants. It is a twelfth of what
measured runs resolve (`analysis.prediction_interval.distinguishable_ratio`)."""
# More rows than this are counted by the workers of the search, fewer by this process.
_MOST_ROWS_HERE = 4 * PIECE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Layouts, each represented by one strategy, best first by its score."""

    number: Ints
    """Number of the strategy."""
    variants: Ints
    """Other strategies of the layout that are nearly as good."""
    best_step_time_s: tuple[float | None, ...]
    """Step time of the best strategy of the layout; None where that one represents it [s]."""

    @classmethod
    def of_rows(cls, best: Ranked) -> "Lines":
        """A line for each strategy, without variants."""
        none = np.zeros(len(best), dtype=np.int64)
        return cls(number=best.number, variants=none, best_step_time_s=(None,) * len(best))


def lines_of(work: Work, findings: Findings) -> Lines:
    """Count the variants of the best layouts and find the simplest of each."""
    best = findings.best
    if not len(best):
        return Lines.of_rows(best)
    task = CountVariants(
        query=replace(work.query, front=None, axes=()),
        keys=findings.best_keys,
        limit=best.score * (1 + VARIANT_SHARE),
        defaults=_defaults(work.query.model, work.candidates.strategies(best.number)),
        bounds=work.bounds,
    )
    boxes = list(_boxes_of_layouts(work.candidates.legal, findings.best_keys))
    rows = sum(len(part.box.layouts) * len(part.box.options) for part in boxes)
    workers = work.workers if rows > _MOST_ROWS_HERE else Workers()
    pieces = [(part, piece) for part in boxes for piece in part.box.cut(PIECE_ROWS)]
    total = _Counted.none(len(best))
    counted = workers.each(task, [piece for _, piece in pieces])
    for (part, _), found in zip(pieces, counted, strict=True):
        total = total.joined(replace(found, number=part.numbers(found.number)))
    order = np.lexsort((total.number, total.score))
    times = np.where(total.number == best.number, np.nan, best.step_time_s)[order].tolist()
    return Lines(
        number=total.number[order],
        variants=total.count[order] - 1,
        best_step_time_s=tuple(None if np.isnan(one) else one for one in times),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Some layouts and options of a box."""

    box: Box
    """Its candidates are numbered from 0."""
    whole: Box
    layouts: Ints
    """Positions of its layouts in the full box."""
    options: Ints
    """Positions of its options in the full box."""

    def numbers(self, numbers: Ints) -> Ints:
        """Numbers in the full box; -1 remains."""
        layouts, options, choices = self.box.positions(np.maximum(numbers, 0))
        rows = self.layouts[layouts] * len(self.whole.options) + self.options[options]
        return np.where(numbers < 0, -1, self.whole.numbers(rows, choices))


def _boxes_of_layouts(boxes: Sequence[Box], keys: Ints) -> Iterator[_Part]:
    """Parts of boxes that have the layouts with some keys.

    With each layout come the others that compete with it to be selected (`Space.selected`).
    """
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
            start=0,
            layouts=box.layouts.take(rows),
            broken=box.broken[rows],
            options=box.options.take(options),
        )
        yield _Part(box=some, whole=box, layouts=rows, options=options)


def _defaults(model: Model, table: Table) -> Table:
    """The layouts of some strategies with every other field at its default."""
    names = [name for name in LINE_FIELDS if name != "gpus"]  # they follow from the degrees
    rows = (table.strategy(row) for row in range(len(table)))
    layouts = [
        Strategy(tp2=row.tp2, **{name: getattr(row, name) for name in names}) for row in rows
    ]
    return Table.of(model, layouts)


def settings_of(model: Model, table: Table) -> list[tuple[str, ...]]:
    """Return the fields of each strategy that are not defaults: what a user has to set.

    Without the work itself (model, GPUs, batch, types, software), what follows from others, and
    what has no effect.
    """
    usual = Table.of(model, [Strategy(dp=1, global_batch_size=1, seq_len=1)] * len(table))
    off = {
        name: getattr(table, name) != getattr(usual, name)
        for name in (*LINE_FIELDS, "tp2")
        if not (COLUMNS[name].role.work or COLUMNS[name].role.implied)
    }
    off |= settings_off(table, _defaults(model, table))
    for kind, rows in kinds_of(model, table):
        for name, differs in off.items():  # a field without effect need not be set
            differs[rows] &= ~idle_rows(kind, table.take(rows), name)
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
    score: Column
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
    limit: Floats
    """Worst score of a variant of each layout."""
    defaults: Table
    """Of the layouts."""
    bounds: bool
    """Whether to leave out candidates that are too slow by their bounds."""

    def __call__(self, piece: Box) -> _Counted:
        """Return the variants of a piece."""
        observer = _Observer(task=self, box=piece, found=_Counted.none(len(self.keys)))
        if piece.selected or not self.bounds:
            scan(self.query, piece, observer)
            return observer.found
        limits = Limits.of_layout_keys(self.query, self.keys, self.limit)
        for chunk in timed_within(self.query, piece, limits):
            observer.evaluated(chunk)
        return observer.found


@dataclass(slots=True, kw_only=True)
class _Observer:
    """Counts variants during a scan (a `scan.Observer`)."""

    task: CountVariants
    box: Box
    found: _Counted

    def options(self, broken: Ints) -> None:
        """Ignore candidates that break a rule."""

    def evaluated(self, chunk: Evaluated) -> None:
        """Count the variants of a chunk."""
        timed, task = chunk.timed, self.task
        if timed is None:
            return
        table = timed.table
        layout = matching(table, LINE_FIELDS, task.keys)
        score = OBJECTIVES[task.query.objective](timed.timing.step_time_s, table, task.query.system)
        near = timed.feasible & (layout >= 0) & (score <= task.limit[layout])
        choice, row = np.nonzero(near)
        if not row.size:
            return
        off = np.zeros(near.shape, dtype=np.int64)
        for differs in settings_off(table, task.defaults.take(layout)).values():
            off += differs
        number = self.box.numbers(chunk.rows[timed.rows[row]], choice)
        of, settings, points = layout[row], off[choice, row], score[choice, row]
        order = np.lexsort((number, points, settings, of))
        firsts = order[np.unique(of[order], return_index=True)[1]]
        here = _Counted.none(len(task.keys))
        here.count[:] = np.bincount(of, minlength=len(task.keys))
        for mine, theirs in (
            (here.settings, settings),
            (here.score, points),
            (here.number, number),
        ):
            mine[of[firsts]] = theirs[firsts]
        self.found = self.found.joined(here)
