"""Which of several candidates that differ in one field alone is kept.

Of recomputed layers the fewest that fit, of micro-batches the largest that fits, of ways to spread
the layers over the stages that with the shortest step: in this order, each among what is left.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.distinct import distinct_rows
from shardwise.planning.search.candidates import OPTION_FIELDS, Box
from shardwise.planning.search.evaluate import Evaluated, Judge
from shardwise.planning.search.layouts import same_but

__all__ = ["PASSED", "passed_over"]

PASSED = ("more_recompute", "smaller_micro_batch", "slower_stages")
"""Reasons why a candidate that fits is passed over, by the field that another one differs in."""

_FIELDS = ("recompute_layers", "micro_batch_size", "stage_layers")


def passed_over(
    model: Model, box: Box, table: Table, judge: Judge, weighed: Sequence[Evaluated]
) -> Ints:
    """Position in `PASSED` of why each candidate is passed over, or -1; shape (choices, rows).

    Parameters
    ----------
    table, judge, weighed
        Of the box; all that the judge has weighed, since a box is looked at as a whole.
    """
    fitting = np.zeros((len(box.choices), len(table)), dtype=np.bool_)
    for judged in weighed:
        fitting[:, judged.rows] = judged.feasible
    passed = np.full(fitting.shape, -1, dtype=np.int64)
    worse: Floats
    for number, field in enumerate(_FIELDS):
        if field in box.kept:
            if field == "stage_layers":
                worse = _times(judge, weighed, passed)
            elif field == "recompute_layers":
                layers = table.recompute_layers
                worse = np.where(layers > 0, layers, model.depth + 1).astype(np.float64)
            else:
                worse = -table.micro_batch_size.astype(np.float64)
            group = _groups(box, _FIELDS[: number + 1])
            passed[_but_first(group, fitting & (passed < 0), worse)] = number
    return passed


def _times(judge: Judge, weighed: Sequence[Evaluated], passed: Ints) -> Floats:
    """Step times of what fits and is not passed over yet; shape (choices, rows) [s]."""
    times = np.full(passed.shape, np.inf)
    for judged in weighed:
        fitting = judge.timed(judged, passed).fitting
        if fitting is not None:
            rows = judged.rows[fitting.rows]
            times[:, rows] = np.where(fitting.feasible, fitting.timing.step_time_s, np.inf)
    return times


def _groups(box: Box, fields: tuple[str, ...]) -> Ints:
    """Numbers of rows that differ in nothing but those of the fields of which one is kept."""
    varied = tuple(field for field in fields if field in box.kept)
    layout = same_but(box.layouts, varied)
    columns = [getattr(box.options, name) for name in OPTION_FIELDS if name not in varied]
    option = distinct_rows(columns)[1]
    return (layout[:, np.newaxis] * (option.max(initial=0) + 1) + option).ravel()


def _but_first(group: Ints, among: Bools, worse: Floats) -> Bools:
    """Members of each group but its best, of equals the first; shape (choices, rows)."""
    choice, row = np.nonzero(among)
    score = np.broadcast_to(worse, among.shape)[choice, row]
    order = np.lexsort((row, score, group[row], choice))
    key = choice[order] * (group.max(initial=0) + 1) + group[row[order]]
    again = np.zeros(order.size, dtype=np.bool_)
    again[1:] = key[1:] == key[:-1]
    found = np.zeros(among.shape, dtype=np.bool_)
    found[choice[order[again]], row[order[again]]] = True
    return found
