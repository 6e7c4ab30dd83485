"""Scan a box of candidates: count them by outcome, and find the best."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.strategy_fields import LINE_FIELDS
from shardwise.planning.search.candidates import Box
from shardwise.planning.search.evaluate import (
    MEMORY,
    NOT_SELECTED,
    SECOND_MEMORY,
    Evaluated,
    MemoryEvaluator,
    broken_options,
    broken_reasons,
    excess_bytes,
    not_selected,
)
from shardwise.planning.search.layout_keys import as_integers, layout_codes, table_keys
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import (
    OBJECTIVES,
    Ranked,
    best_of_each,
    front,
    second_figure,
    seconds_per_token,
    top,
    top_with_keys,
)


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
        none = Ranked.empty()
        return cls(
            candidates=0,
            evaluated=0,
            checked=0,
            feasible=0,
            timed=0,
            rejected=Counter(),
            best=none,
            best_keys=np.empty((0, len(LINE_FIELDS)), np.int64),
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
    keys, best = top_with_keys(
        np.concatenate([part.best_keys for part in parts]),
        Ranked.joined([part.best for part in parts]),
        query.top,
        each=query.lines,
    )
    return Findings(
        candidates=sum(part.candidates for part in parts),
        evaluated=sum(part.evaluated for part in parts),
        checked=sum(part.checked for part in parts),
        feasible=sum(part.feasible for part in parts),
        timed=sum(part.timed for part in parts),
        rejected=sum((part.rejected for part in parts), Counter()),
        best=best,
        best_keys=keys,
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


def scan(query: SearchQuery, box: Box, observer: Observer | None = None) -> Findings:
    """Evaluate every candidate of a box of legal layouts."""
    table = box.table()
    broken = broken_options(query.model, query.system, box, table)
    if observer is not None:
        observer.options(broken)
    findings = replace(
        Findings.empty(len(query.axes)), candidates=len(box), rejected=broken_reasons(broken)
    )
    evaluator = MemoryEvaluator.of(query.model, query.system, table, broken, query.capacity_bytes)
    chunks: Iterable[Evaluated] = evaluator.memory()
    rejected = None
    if box.selected:
        chunks = list(chunks)
        rejected = not_selected(query.model, box, table, evaluator, chunks)
    layout = layout_codes(box) if query.lines else None
    for untimed in chunks:
        chunk = evaluator.timed(untimed, rejected)
        counted = counted_in(query, chunk)
        if chunk.timed is None:
            counted = replace(counted, nearest=least_excess(query, box, chunk))
            findings = merged([findings, counted], query)
        else:
            found = findings_of(query, box, chunk, findings, layout)
            findings = merged([findings, counted, found], query)
        if observer is not None:
            observer.evaluated(chunk)
    return findings


def findings_of(
    query: SearchQuery, box: Box, chunk: Evaluated, before: Findings, layout: Ints | None
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

    score = OBJECTIVES[query.objective](step_s, table, system)
    full = len(before.best) == query.top
    rivals = timed.feasible & (score <= before.best.score[-1]) if full else timed.feasible
    if layout is None:
        choice, row = np.nonzero(rivals)
    else:
        choice, row = _best_of_layouts(rivals, score, layout[chunk.rows[timed.rows]])
    keys = table_keys(table, row)
    best_keys, best = top_with_keys(
        keys, at(choice, row, score, reserved), query.top, each=query.lines
    )
    here = replace(here, best=best, best_keys=best_keys)
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
    full = chunk.over_capacity(query.system, query.capacity_bytes)
    memory = int(np.count_nonzero(chunk.legal & full))
    selected = np.bincount(chunk.rejected[chunk.rejected >= 0], minlength=len(NOT_SELECTED))
    others = dict(zip(NOT_SELECTED, selected.tolist(), strict=True))
    second = legal - feasible - memory - sum(others.values())
    rejected = Counter({MEMORY: memory, SECOND_MEMORY: second, **others})
    return replace(
        Findings.empty(len(query.axes)),
        evaluated=legal,
        checked=legal,
        feasible=feasible,
        rejected=+rejected,
    )


def least_excess(query: SearchQuery, box: Box, chunk: Evaluated) -> Ranked:
    """The candidate that exceeds memory by least, on its tier with the most excess."""
    excess = excess_bytes(query.system, chunk.holding, query.capacity_bytes)
    by_tier = excess[:, chunk.holding_of]
    worst = np.where(chunk.legal, by_tier.max(axis=0), np.inf)
    choice, row = np.nonzero((worst == worst.min()) & np.isfinite(worst))
    return top(
        Ranked(
            number=box.numbers(chunk.rows[row], choice),
            score=worst[choice, row],
            second=by_tier.argmax(axis=0)[choice, row].astype(np.float64),
            step_time_s=np.zeros(row.size),
        ),
        1,
    )
