"""The best candidates so far: the first k, a Pareto front, the best of each cell of a chart.

Of equals the one with the lowest number wins, which has the first values of the space: the answer
does not depend on the order in which candidates come, and nothing is turned on for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from shardwise.arrays import Bools, Floats, Ints

__all__ = ["Ranked", "best_of_each", "front", "top"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Candidates with what they are ranked by; lower is better."""

    number: Ints
    score: Floats
    beside: Floats
    """The other side of a front."""
    step_time_s: Floats

    def __len__(self) -> int:
        return len(self.number)

    @classmethod
    def none(cls) -> "Ranked":
        """No candidates."""
        empty = np.empty(0)
        return cls(number=np.empty(0, np.int64), score=empty, beside=empty, step_time_s=empty)

    def take(self, index: Ints | Bools) -> "Ranked":
        """Return some of them."""
        return Ranked(**{f.name: getattr(self, f.name)[index] for f in fields(Ranked)})

    @staticmethod
    def joined(parts: "Sequence[Ranked]") -> "Ranked":
        """All candidates of several."""
        names = [f.name for f in fields(Ranked)]
        return Ranked(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


def top(found: Ranked, count: int) -> Ranked:
    """The best `count`, best first."""
    if len(found) > count:  # the sort need not see what cannot be among them
        limit = np.partition(found.score, count - 1)[count - 1]
        found = found.take(found.score <= limit)
    return found.take(np.lexsort((found.number, found.score))[:count])


def front(found: Ranked) -> Ranked:
    """Those that no other one beats or equals on both sides, by rising `beside`."""
    ordered = found.take(np.lexsort((found.number, found.score, found.beside)))
    least = np.minimum.accumulate(np.concatenate([[np.inf], ordered.score]))[:-1]
    return ordered.take(ordered.score < least)


def best_of_each(keys: Ints, found: Ranked) -> tuple[Ints, Ranked]:
    """The best of the candidates with each key; keys have the shape (candidates, parts)."""
    order = np.lexsort((found.number, found.score, *keys.T[::-1]))
    keys, found = keys[order], found.take(order)
    is_first = np.ones(len(found), dtype=np.bool_)
    is_first[1:] = np.any(keys[1:] != keys[:-1], axis=1)
    return keys[is_first], found.take(is_first)
