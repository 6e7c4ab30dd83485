"""`Limits`: the longest step time with which a candidate can still be among the results.

They follow from the findings so far. As these only improve, limits of earlier findings are safe:
they leave out less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwise.arrays import Column, Floats, Ints
from shardwise.config.strategy_fields import LAYOUT_FIELDS, LINE_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.distinct import distinct_rows
from shardwise.planning.search.candidates import Box
from shardwise.planning.search.layout_keys import LAYOUT_PART, as_integers
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import OBJECTIVES, Ranked, dollars_per_token

# Conversion between step times and scores: far more than their last digits.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What findings so far leave open."""

    query: SearchQuery
    score: float
    """The worst score of a candidate that may be among the best."""
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

    @classmethod
    def of_layout_keys(cls, query: SearchQuery, keys: Ints, scores: Floats) -> "Limits":
        """Limits of the candidates of some layouts alone.

        Parameters
        ----------
        keys
            Shape (layouts, `LINE_FIELDS`).
        scores
            The worst score that matters of each.
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
        )

    @property
    def bounds_layouts(self) -> bool:
        """Whether a layout can be left out before its memory is known."""
        query = self.query
        return query.front != "memory" and all(axis in LAYOUT_FIELDS for axis in query.axes)

    def of_layouts(self, box: Box) -> Floats:
        """Longest step time of each layout that matters, with any options [s]."""
        layouts = box.layouts
        if not self.bounds_layouts:
            return np.full(len(layouts), np.inf)
        longest = int(box.options.seq_len.max())  # the least score for a time
        table = layouts.changed(seq_len=np.full(len(layouts), longest))
        if not len(self.keys):
            return self.of_rows(table)
        columns = [LINE_FIELDS.index(name) for name in LAYOUT_PART]
        firsts, group = distinct_rows(list(self.keys[:, columns].T))
        scores = np.full(firsts.size, -np.inf)
        np.maximum.at(scores, np.broadcast_to(group, len(self.keys)), self.key_scores)
        where = matching(table, LAYOUT_PART, self.keys[firsts])
        worst = np.where(where >= 0, scores[where], -np.inf)
        per_second = OBJECTIVES[self.query.objective](np.ones(len(table)), table, self.query.system)
        return worst / per_second * (1 + _ROUNDING)

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
        one = np.ones(len(table))
        per_second = OBJECTIVES[query.objective](one, table, query.system)
        if len(self.keys):
            where = matching(table, LINE_FIELDS, self.keys)
            worst = np.where(where >= 0, self.key_scores[where], -np.inf)
            return worst / per_second * (1 + _ROUNDING)
        limit = self.score / per_second
        if query.front is not None:
            tokens = 1.0 * table.global_batch_size * table.seq_len
            limit = np.maximum(limit, self._of_front(table, reserved_bytes) * tokens)
        if query.axes:
            limit = np.maximum(limit, self._of_cells(table) / per_second)
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
        return found.reshape(-1, len(table)).max(axis=0)


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
