"""The exact algorithm: shortest paths with resources through the modules in forward order.

A plan is a path. At each position the next edge either takes a unit, which jumps over its modules,
or leaves a module in the root, which moves on by one. A label is what the rest of a path needs to
know of its beginning: the cost so far and a few quantities of which less is never worse. One label
dominates another at the same position if it is nowhere greater; the other cannot lead to a better
plan and is dropped. What is left at the end holds an optimum, and if nothing else was dropped the
search has proved it. (Label setting: Desrochers and Soumis, "A generalized permanent labelling
algorithm for the shortest path problem with time windows", INFOR 26, 1988.)

What edges do to labels is said by the rules: those of FSDP2 or those of fsdp_ilp. They work on
arrays of shape (quantities, labels), all labels of a position at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal, Protocol

import numpy as np

from shardwise.arrays import Bools, Floats, Ints

__all__ = ["Path", "Rules", "least_peak", "nondominated", "optimum", "shortest_path"]

COST = 0
"""Row of the labels that holds the cost so far."""
Only = Literal["", "memory", "time"]
_BLOCK = 256
_CROWD = 64
"""Labels compared at a position for each that is kept, at most."""
_EQUAL = 1e-12
"""Costs that differ by less of themselves differ in rounding alone."""
_WIDTHS = (32, 1024, 8192)
"""Labels kept at a position: first a quick plan, then a proof that has only to beat it."""


class Rules(Protocol):
    """What a problem is made of."""

    @property
    def targets(self) -> Sequence[Ints]:
        """For each position but the last, where each of its edges leads; ascending positions."""

    @property
    def time_rows(self) -> Sequence[int]:
        """Quantities that say nothing of memory; the cost is one."""

    @property
    def memory_rows(self) -> Sequence[int]:
        """Quantities that say nothing of time."""

    def start(self) -> Floats:
        """The one label at position 0; shape (quantities, 1)."""

    def extend(self, position: int, labels: Floats) -> Floats:
        """Labels after each edge of a position; shape (quantities, edges, labels)."""

    def finish(self, labels: Floats) -> Floats:
        """Cost of the whole path for labels at the last position [s]."""

    def peak(self, position: int, labels: Floats) -> Floats:
        """Least peak that any completion of labels can have; at the end, the peak [byte]."""

    def remaining_cost(self, position: int, labels: Floats) -> Floats:
        """A lower bound on the cost still to come for labels at a position [s]."""

    def clip_to_budget(self, position: int, labels: Floats, budget: float) -> None:
        """Make quantities alike, in place, that cannot matter within a budget any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The best path within a budget."""

    edges: tuple[tuple[int, int], ...]
    """Position and number of the edge there, in order; empty if nothing fits."""
    cost: float
    """Infinite if nothing fits."""
    peak: float
    bound: float
    """No path within the budget costs less; equal to `cost` if that is proved the least."""
    labels: int
    """Labels kept, in all."""

    @property
    def proven(self) -> bool:
        """Whether no path within the budget is better; without a path, whether there is none."""
        return self.bound >= self.cost * (1 - _EQUAL)


@dataclass(slots=True)
class _Kept:
    """Labels kept at a position, and where each came from."""

    labels: Floats
    parents: Ints
    """Among the labels kept at the position it came from."""
    origins: Ints
    edges: Ints


def shortest_path(
    rules: Rules,
    budget: float,
    *,
    most_labels: int = 4096,
    below: float = np.inf,
    only: Only = "",
    until: float = np.inf,
) -> Path:
    """The path of least cost whose peak is within a budget; of equal ones that of least peak.

    Parameters
    ----------
    most_labels
        Kept at a position. Beyond it the cheapest and those that leave most room stay, and the
        bound accounts for the rest.
    below
        Paths that cost more are of no interest.
    only
        `memory`: the cost is the peak itself, and time is of no interest. `time`: there is no peak,
        and the budget is of no interest.
    until
        From this moment of `perf_counter` on only a few labels are compared and kept.
    """
    nodes = len(rules.targets) + 1
    waiting: list[list[_Kept]] = [[] for _ in range(nodes)]
    kept: list[_Kept] = []
    dropped, total = np.inf, 0
    none = np.full(1, -1)
    waiting[0].append(_Kept(rules.start(), none, none, none))
    for position in range(nodes):
        here = _joined(waiting[position], rules.start().shape[0])
        waiting[position] = []
        if only:
            here.labels[list(rules.time_rows if only == "memory" else rules.memory_rows)] = 0.0
        peaks = rules.peak(position, here.labels)
        costs = _costs(rules, position, here, only)
        here = _chosen(here, ((peaks <= budget) | (only == "time")) & (costs <= below))
        if only != "time":
            rules.clip_to_budget(position, here.labels, below if only else budget)
        most = most_labels if perf_counter() < until else min(most_labels, _WIDTHS[0])
        for limit in (_CROWD * most, most):  # a crowd is thinned before it is compared
            if here.labels.shape[1] > limit and position < nodes - 1:
                costs = _costs(rules, position, here, only)
                some = _spread(costs, rules.peak(position, here.labels), limit)
                dropped = min(dropped, float(costs[~some].min()))
                here = _chosen(here, some)
            if limit > most:
                here = _chosen(here, nondominated(here.labels))
        kept.append(here)
        total += here.labels.shape[1]
        if position < nodes - 1 and here.labels.shape[1]:
            new = rules.extend(position, here.labels)
            every = np.arange(here.labels.shape[1])
            for number, target in enumerate(rules.targets[position]):
                whence = np.full(len(every), position), np.full(len(every), number)
                waiting[target].append(_Kept(new[:, number], every, *whence))
    return _best(rules, kept, dropped, total, only=only)


def _costs(rules: Rules, position: int, here: "_Kept", only: Only) -> Floats:
    """Least cost of any completion."""
    if only == "memory":
        return rules.peak(position, here.labels)
    if position == len(rules.targets):
        return rules.finish(here.labels)
    return here.labels[COST] + rules.remaining_cost(position, here.labels)


def optimum(
    rules: Rules, budget: float, *, widths: Sequence[int] = _WIDTHS, seconds: float = np.inf
) -> Path:
    """The best path within a budget, with ever more labels until it is proved.

    Parameters
    ----------
    seconds
        No further round begins after this long; the bound says what is proved.
    """
    until = perf_counter() + seconds
    best = shortest_path(rules, budget, most_labels=widths[0])
    for width in widths[1:]:
        if best.proven or perf_counter() > until:
            break
        below = best.cost * (1 + _EQUAL)
        found = shortest_path(rules, budget, most_labels=width, below=below, until=until)
        best = _better(best, found)
    return best


def least_peak(rules: Rules, *, widths: Sequence[int] = _WIDTHS[:2]) -> Path:
    """A path of least peak, which is its cost too."""
    best = shortest_path(rules, np.inf, most_labels=widths[0], only="memory")
    for width in widths[1:]:
        if best.proven:
            break
        below = best.cost * (1 + _EQUAL)
        found = shortest_path(rules, np.inf, most_labels=width, below=below, only="memory")
        best = _better(best, found)
    return best


def _better(best: Path, found: Path) -> Path:
    """The better of two results for the same question, with what both prove."""
    bound = max(best.bound, found.bound)
    better = found if found.cost <= best.cost else best
    return replace(better, bound=min(bound, better.cost), labels=best.labels + found.labels)


def _spread(costs: Floats, peaks: Floats, most: int) -> Bools:
    """So many labels: half of them the cheapest, half those that leave most room."""
    some = np.zeros(len(costs), dtype=bool)
    some[np.argsort(costs, kind="stable")[: most // 2]] = True
    rest = np.flatnonzero(~some)
    some[rest[np.argsort(peaks[rest], kind="stable")[: most - most // 2]]] = True
    return some


def _best(rules: Rules, kept: Sequence[_Kept], dropped: float, total: int, *, only: Only) -> Path:
    last = kept[-1]
    if last.labels.shape[1] == 0:
        return Path(edges=(), cost=np.inf, peak=np.inf, bound=dropped, labels=total)
    costs = _costs(rules, len(kept) - 1, last, only)
    peaks = rules.peak(len(kept) - 1, last.labels)
    close = costs <= costs.min() * (1 + _EQUAL)
    at = int(np.flatnonzero(close)[np.argmin(peaks[close])])
    cost = float(costs[at])
    return Path(
        edges=_traced(kept, at),
        cost=cost,
        peak=float(peaks[at]),
        bound=min(cost, dropped),
        labels=total,
    )


def _traced(kept: Sequence[_Kept], at: int) -> tuple[tuple[int, int], ...]:
    path = []
    position = len(kept) - 1
    while position > 0:
        here = kept[position]
        path.append((int(here.origins[at]), int(here.edges[at])))
        position, at = int(here.origins[at]), int(here.parents[at])
    return tuple(reversed(path))


def _joined(parts: Sequence[_Kept], quantities: int) -> _Kept:
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return _Kept(np.zeros((quantities, 0)), none, none, none)
    return _Kept(
        np.concatenate([part.labels for part in parts], axis=1),
        np.concatenate([part.parents for part in parts]),
        np.concatenate([part.origins for part in parts]),
        np.concatenate([part.edges for part in parts]),
    )


def _chosen(here: _Kept, which: Bools | Ints) -> _Kept:
    return _Kept(
        labels=here.labels[:, which],
        parents=here.parents[which],
        origins=here.origins[which],
        edges=here.edges[which],
    )


def nondominated(labels: Floats) -> Bools:
    """Which labels no other is at most equal to in every quantity; of equal ones, the first.

    Labels are looked at in order of their sums of ranks, so that one is only ever dominated by an
    earlier one.
    """
    count = labels.shape[1]
    keep = np.ones(count, dtype=bool)
    if count <= 1:
        return keep
    varied = labels[(labels != labels[:, :1]).any(axis=1)]
    if varied.shape[0] == 0:
        keep[1:] = False
        return keep
    order = np.lexsort(varied[::-1])
    ordered = np.ascontiguousarray(varied[:, order])
    alive = np.ones(count, dtype=bool)
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        before = np.flatnonzero(alive[:begin])
        mine = np.arange(begin, end)
        if before.size:
            mine = mine[~_dominated(ordered[:, before], ordered[:, mine])]
        inside = _at_most(ordered[:, mine], ordered[:, mine])
        mine = mine[~np.triu(inside, 1).any(axis=0)]
        alive[begin:end] = False
        alive[mine] = True
    keep[order] = alive
    return keep


def _dominated(some: Floats, others: Floats) -> Bools:
    found = np.zeros(others.shape[1], dtype=bool)
    for begin in range(0, some.shape[1], _BLOCK):
        found |= _at_most(some[:, begin : begin + _BLOCK], others).any(axis=0)
    return found


def _at_most(some: Floats, others: Floats) -> Bools:
    """Whether each of some labels is at most equal to each of others; shape (some, others)."""
    result = some[0][:, None] <= others[0]
    for one, other in zip(some[1:], others[1:], strict=True):
        result &= one[:, None] <= other
    return result
