"""Rank candidates: their scores, the best k, a Pareto front, and the best of each chart cell.

Lower scores are better. Of equal candidates the one with the lowest number wins, which has the
first values of the space. So the answer does not depend on the order in which candidates are
evaluated, and no option is on without a benefit.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_columns import LISTS
from shardwise.config.strategy_fields import LAYOUT_FIELDS, LINE_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.errors import InputError, check_word
from shardwise.records import dataclass, fields

_HOUR_S = 3600.0

Score = Callable[[Floats, Table, System], Floats]
"""A score from step times, rows and system."""


def _step_time(step_time_s: Floats, table: Table, system: System) -> Floats:
    """Time of a step [s]."""
    del table, system
    return step_time_s


def seconds_per_token(step_time_s: Floats, table: Table, system: System) -> Floats:
    """Time of a step over its tokens [s]."""
    del system
    return step_time_s / (table.global_batch_size * table.seq_len)


def _gpu_seconds_per_token(step_time_s: Floats, table: Table, system: System) -> Floats:
    """Time of all accelerators over the tokens of a step [s]: 1 / (tokens/s/GPU)."""
    return seconds_per_token(step_time_s, table, system) * table.gpus


def dollars_per_token(step_time_s: Floats, table: Table, system: System) -> Floats:
    """Price of all accelerators over the tokens of a step [USD]."""
    assert system.price is not None  # noqa: S101 - `check_objective` ensures it
    rate = system.price.usd_per_accelerator_hour / _HOUR_S
    return _gpu_seconds_per_token(step_time_s, table, system) * rate


OBJECTIVES: dict[str, Score] = {
    "step_time": _step_time,
    "tokens_per_s_per_gpu": _gpu_seconds_per_token,
    "tokens_per_dollar": dollars_per_token,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """An order of the candidates of one model and system: by an objective of their step times."""

    model: Model
    system: System
    objective: str
    """A key of `OBJECTIVES`."""

    def scores(self, step_time_s: Floats, table: Table) -> Floats:
        """Return the scores of step times; shape (rows,) or (choices, rows)."""
        return OBJECTIVES[self.objective](step_time_s, table, self.system)

    def longest(self, score: Floats | float, table: Table) -> Floats:
        """Return the longest step time of each row that has a score, with any of its choices [s].

        Scores rise with the step time.
        """
        per_second = OBJECTIVES[self.objective](np.ones(len(table)), table, self.system)
        longest: Floats = score / per_second
        return longest


FRONTS = ("memory", "gpus", "cost")
"""Figures that a Pareto front may trade against time."""


def second_figure(
    name: str, step_time_s: Floats, reserved_bytes: Floats, table: Table, system: System
) -> Floats:
    """The figure of `FRONTS`: memory of a rank [byte], accelerators, or price of a token [USD]."""
    if name == "memory":
        return reserved_bytes
    if name == "gpus":
        return np.broadcast_to(1.0 * table.gpus, step_time_s.shape)
    return dollars_per_token(step_time_s, table, system)


def check_objective(name: str, field: str, known: tuple[str, ...], system: System) -> None:
    """Raise an `InputError` if a name is unknown, or needs a price that the system lacks."""
    check_word(field, name, known)
    if name in ("tokens_per_dollar", "cost") and system.price is None:
        problem = f"system {system.name} has no price; set price.usd_per_accelerator_hour"
        raise InputError.of(field, name, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Candidates with the figures that rank them."""

    number: Ints
    score: Floats
    second: Floats
    """The second figure of a Pareto front."""
    step_time_s: Floats

    def __len__(self) -> int:
        return len(self.number)

    @classmethod
    def empty(cls) -> "Ranked":
        """No candidates."""
        none = np.empty(0)
        return cls(number=np.empty(0, np.int64), score=none, second=none, step_time_s=none)

    def take(self, index: Ints | Bools) -> "Ranked":
        """Return some of the candidates."""
        return Ranked(**{f.name: getattr(self, f.name)[index] for f in fields(Ranked)})

    @staticmethod
    def joined(parts: "Sequence[Ranked]") -> "Ranked":
        """Return the candidates of all parts."""
        names = [f.name for f in fields(Ranked)]
        return Ranked(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


def top(ranked: Ranked, count: int) -> Ranked:
    """Return the best `count` candidates, best first."""
    return ranked.take(_order_of_top(ranked, count))


def _order_of_top(ranked: Ranked, count: int) -> Ints:
    """Positions of the best `count` candidates, best first."""
    among = np.arange(len(ranked))
    if len(ranked) > count:  # sort only what can be among them
        limit = np.partition(ranked.score, count - 1)[count - 1]
        among = np.flatnonzero(ranked.score <= limit)
    order: Ints = among[np.lexsort((ranked.number[among], ranked.score[among]))[:count]]
    return order


def front(ranked: Ranked) -> Ranked:
    """Return the candidates that no other beats or equals in both figures, by rising `second`."""
    ordered = ranked.take(np.lexsort((ranked.number, ranked.score, ranked.second)))
    least = np.minimum.accumulate(np.concatenate([[np.inf], ordered.score]))[:-1]
    return ordered.take(ordered.score < least)


def best_of_each(keys: Ints, ranked: Ranked) -> tuple[Ints, Ranked]:
    """Return the best candidate of each key; keys have shape (candidates, columns)."""
    order = np.lexsort((ranked.number, ranked.score, *keys.T[::-1]))
    keys, ranked = keys[order], ranked.take(order)
    is_first = np.ones(len(ranked), dtype=np.bool_)
    is_first[1:] = np.any(keys[1:] != keys[:-1], axis=1)
    return keys[is_first], ranked.take(is_first)


def top_with_keys(keys: Ints, ranked: Ranked, count: int, *, each: bool) -> tuple[Ints, Ranked]:
    """Return the best `count` candidates with their keys, best first.

    The best of some candidates are the best of the best of their parts, in either way.

    Parameters
    ----------
    keys
        Shape (candidates, columns).
    each
        Whether only the best candidate of each key counts.
    """
    if each:
        keys, ranked = best_of_each(keys, ranked)
    order = _order_of_top(ranked, count)
    return keys[order], ranked.take(order)


LAYOUT_PART, OPTION_PART = (
    tuple(name for name in LINE_FIELDS if (name in LAYOUT_FIELDS) is of_layout)
    for of_layout in (True, False)
)
"""Fields of the key that the layouts of a box have, and those that its options have."""


def as_integers(table: Table, name: str) -> Ints:
    """Return a column as integers that are equal only for equal values."""
    column: Any = getattr(table, name)
    if name in ("extents", "data_lengths"):  # positions in a list that depends on other fields
        listed = map(str, getattr(table, LISTS[name]))
        hashes = [blake2b(text.encode(), digest_size=8).digest() for text in listed]
        codes = [int.from_bytes(digest, signed=True) for digest in hashes]
        return np.array([*codes, 0], dtype=np.int64)[column]
    return column.view(np.int64) if column.dtype == np.float64 else column.astype(np.int64)


def table_keys(table: Table, rows: Ints) -> Ints:
    """Return the key of the layout of some rows; shape (rows, `LINE_FIELDS`)."""
    columns = [as_integers(table, name)[rows] for name in LINE_FIELDS]
    return np.stack(columns, axis=1)
