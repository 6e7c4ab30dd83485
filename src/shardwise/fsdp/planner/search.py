"""The exact algorithm: shortest paths with resources through the modules in forward order.

A plan is a path. At each position the next edge either takes a unit, which jumps over its modules,
or leaves a module in the root, which moves on by one. A label is what the rest of a path needs to
know of its beginning: the cost so far and a few quantities of which less is never worse. One label
dominates another at the same position if it is nowhere greater, or if its lower cost makes up for
times in which it is; the other cannot lead to a better plan and is dropped. What is left at the end
holds an optimum, and if nothing else was dropped the search has proved it. (Label setting:
Desrochers and Soumis, "A generalized permanent labelling algorithm for the shortest path problem
with time windows", INFOR 26, 1988.)

`Rules` say how an edge changes labels: those of FSDP2 or those of fsdp_ilp. They work on arrays of
shape (quantities, labels), all labels of a position at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from time import perf_counter
from typing import Literal, Protocol

import numpy as np

from shardwise.arrays import Bools, Floats, Ints

COST = 0
"""Row of the labels that holds the cost so far."""
Only = Literal["", "memory", "time"]
_BLOCK = 128
_CANDIDATES = 64
"""Labels compared at a position for each label that stays, at most."""
_SPARSE = 16
"""Pairs for each that is still open, at most, for which all are compared."""
_EQUAL = 1e-12
"""Relative difference of costs that is rounding alone."""
_ROUNDING = 1e-14
"""Relative error of a cost that is summed in another order."""
_WIDTHS = (32, 1024, 8192)
"""Labels per position: first a quick plan, then proofs that only have to beat it."""
_SKETCHED = 256
"""Labels per position of the round between, which looks for good plans and proves nothing."""
_WORTH = (0.0, *np.logspace(-1.5, 1.0, 10), 1e12)
"""Prices of a byte at which it compares labels, in units of `Rules.byte_s`."""


class Rules(Protocol):
    """What a problem is made of."""

    @property
    def targets(self) -> Sequence[Ints]:
        """For each position but the last, where each of its edges leads; ascending positions."""

    @property
    def time_rows(self) -> Sequence[int]:
        """Quantities that do not affect memory; the cost is one."""

    @property
    def memory_rows(self) -> Sequence[int]:
        """Quantities that do not affect time."""

    @property
    def paid_rows(self) -> Sequence[int]:
        """Times of which an excess of x adds at most x to the cost of any completion."""

    def start(self) -> Floats:
        """The one label at position 0; shape (quantities, 1)."""

    def extend(self, position: int, labels: Floats) -> Floats:
        """Labels after each edge of a position; shape (quantities, edges, labels)."""

    def finish(self, labels: Floats) -> Floats:
        """Cost of the full path for labels at the last position [s]."""

    def peak(self, position: int, labels: Floats) -> Floats:
        """Least peak that any completion of labels can have; at the end, the peak [byte]."""

    def remaining_cost(self, position: int, labels: Floats, budget: float) -> Floats:
        """Lower bound on the remaining cost within a budget for labels at a position [s]."""

    def harmless(self, position: int, labels: Floats, budget: float) -> Floats:
        """Labels with quantities raised as far as it changes nothing within a budget."""

    @property
    def byte_s(self) -> float:
        """Time to communicate a byte; 0: `sketch` is not implemented [s/byte]."""

    def sketch(self, labels: Floats) -> tuple[Floats, Floats]:
        """Labels with little of their memory, and bytes that they keep to the end of a step."""


class Part(Rules, Protocol):
    """A part of a problem."""

    @property
    def bound_s(self) -> float:
        """No path of it costs less [s]."""

    def halves(self) -> "Sequence[Part]":
        """Two parts that hold all its paths; none if it cannot be divided."""


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
    """Number of labels that were extended."""

    @property
    def proven(self) -> bool:
        """Whether no path within the budget is better; without a path, whether none exists."""
        return self.bound >= self.cost * (1 - _EQUAL)


@dataclass(slots=True)
class _Labels:
    """Labels at a position, and where each came from."""

    labels: Floats
    parents: Ints
    """Number of the label at the position that it came from."""
    origins: Ints
    """That position."""
    edges: Ints
    """Number of the chosen edge."""


def shortest_path(
    rules: Rules,
    budget: float,
    *,
    most_labels: int = 4096,
    below: float = np.inf,
    only: Only = "",
    until: float = np.inf,
    sketched: bool = False,
) -> Path:
    """The path of least cost whose peak is within a budget; of equal ones that of least peak.

    Parameters
    ----------
    rules
        The problem.
    budget
        Largest peak [byte].
    most_labels
        Labels per position, at most. Beyond it the cheapest and those of least peak stay, and the
        bound accounts for the rest.
    below
        Ignore paths that cost more [s].
    only
        `memory`: the cost is the peak itself, and time is ignored. `time`: peak and budget are
        ignored.
    until
        From this moment of `perf_counter` on, only a few labels per position are extended, without
        comparing many more [s].
    sketched
        Compare labels by `Rules.sketch` alone. Labels are far fewer, and nothing is proved.
    """
    nodes = len(rules.targets) + 1
    waiting: list[list[_Labels]] = [[] for _ in range(nodes)]
    extended: list[_Labels] = []
    dropped, total = (-np.inf if sketched else np.inf), 0
    none = np.full(1, -1)
    waiting[0].append(_Labels(rules.start(), none, none, none))
    for position in range(nodes):
        here = _joined(waiting[position], rules.start().shape[0])
        waiting[position] = []
        if only:
            here.labels[list(rules.time_rows if only == "memory" else rules.memory_rows)] = 0.0
        peaks = rules.peak(position, here.labels)
        costs = _costs(rules, position, here, budget, only)
        here = _chosen(here, ((peaks <= budget) | (only == "time")) & (costs <= below))
        late = perf_counter() >= until
        most = min(most_labels, _WIDTHS[0]) if late else most_labels
        if sketched and position < nodes - 1:
            here = _sketched(rules, position, here, budget, most)
            most = here.labels.shape[1]
        # Thinned before labels are compared.
        for limit in (most,) if late else (_CANDIDATES * most, most):
            if here.labels.shape[1] > limit and position < nodes - 1:
                costs = _costs(rules, position, here, budget, only)
                some = _best_by_cost_and_peak(costs, rules.peak(position, here.labels), limit)
                dropped = min(dropped, float(costs[~some].min()))
                here = _chosen(here, some)
            if limit > most and not sketched:
                raised = here.labels
                if only != "time":
                    raised = rules.harmless(position, raised, below if only else budget)
                here = _chosen(here, nondominated(here.labels, raised, rules.paid_rows))
        extended.append(here)
        total += here.labels.shape[1]
        if position < nodes - 1 and here.labels.shape[1]:
            new = rules.extend(position, here.labels)
            every = np.arange(here.labels.shape[1])
            for number, target in enumerate(rules.targets[position]):
                origin = np.full(len(every), position), np.full(len(every), number)
                waiting[target].append(_Labels(new[:, number], every, *origin))
    return _best(rules, extended, dropped, total, only=only)


def _sketched(rules: Rules, position: int, here: _Labels, budget: float, most: int) -> _Labels:
    """Labels that are good at some price of a byte, at most `most` of them."""
    labels, kept = rules.sketch(here.labels)
    some = nondominated(labels, paid=rules.paid_rows)
    here, kept = _chosen(here, some), kept[some]
    if len(kept) <= most:
        return here
    costs = _costs(rules, position, here, budget, "")
    some = np.zeros(len(kept), dtype=bool)
    for worth in _WORTH:
        best = np.argpartition(costs + worth * rules.byte_s * kept, most // len(_WORTH))
        some[best[: most // len(_WORTH)]] = True
    return _chosen(here, some)


def _costs(rules: Rules, position: int, here: _Labels, budget: float, only: Only) -> Floats:
    """Lower bound on the cost of any completion."""
    if only == "memory":
        return rules.peak(position, here.labels)
    if position == len(rules.targets):
        return rules.finish(here.labels)
    limit = np.inf if only else budget
    return here.labels[COST] + rules.remaining_cost(position, here.labels, limit)


def optimum(
    rules: Rules,
    budget: float,
    *,
    widths: Sequence[int] = _WIDTHS,
    seconds: float = np.inf,
    most_labels: float = np.inf,
    known_bound: float = 0.0,
    parts: Callable[[float], Sequence[Part]] = lambda _: (),
) -> Path:
    """The best path within a budget, with more and more labels until it is proved.

    Parameters
    ----------
    rules
        The problem.
    budget
        Largest peak [byte].
    widths
        Labels per position of each round.
    seconds
        After this time only a path is completed; the bound says what is proved [s].
    most_labels
        With a path, rounds that may extend more labels are left out.
    known_bound
        No path costs less, whatever the budget [s].
    parts
        Returns problems with tighter bounds that together hold every path within a budget, or none.
    """
    until = perf_counter() + seconds
    best = Path(edges=(), cost=np.inf, peak=np.inf, bound=known_bound, labels=0)
    rounds = [(width, False) for width in widths]
    if rules.byte_s > 0:
        rounds.insert(1, (_SKETCHED, True))
    for width, sketched in rounds:
        if best.labels and (best.proven or perf_counter() > until):
            break
        if best.edges and not sketched and width * len(rules.targets) > most_labels:
            break
        if best.edges and not sketched and (some := parts(budget)):
            return _proved(some, budget, best, until, most_labels)
        below = best.cost * (1 + _EQUAL)
        found = shortest_path(
            rules, budget, most_labels=width, below=below, until=until, sketched=sketched
        )
        best = _better(best, found)
    return best


def _proved(
    parts: Sequence[Part], budget: float, best: Path, until: float, most_labels: float
) -> Path:
    """Search parts of a problem, those of least bound first; halve those that are not proved."""
    heap: list[tuple[float, int, int, Part]] = []
    for number, part in enumerate(parts):
        bound = part.bound_s if perf_counter() < until else best.bound
        heappush(heap, (bound, number, _WIDTHS[1], part))
    number, left_open = len(parts), np.inf
    while heap and heap[0][0] < best.cost * (1 - _EQUAL):
        if perf_counter() > until or best.labels > most_labels:
            break
        bound, _, width, part = heappop(heap)
        below = best.cost * (1 + _EQUAL)
        found = shortest_path(part, budget, most_labels=width, below=below, until=until)
        bound, labels = max(bound, found.bound), best.labels + found.labels
        best = replace(found if found.cost < best.cost else best, bound=best.bound, labels=labels)
        if bound >= best.cost * (1 - _EQUAL):
            continue
        halves = part.halves()
        if not halves and width >= _WIDTHS[-1]:
            left_open = min(left_open, bound)
            continue
        for half in halves or [part]:
            number += 1
            wider = width if halves else _WIDTHS[-1]
            heappush(heap, (max(bound, half.bound_s), number, wider, half))
    least = min(heap[0][0] if heap else np.inf, left_open)
    return replace(best, bound=min(best.cost, max(best.bound, least)))


def least_peak(rules: Rules, *, seconds: float = np.inf) -> Path:
    """A path of least peak; its cost is the peak [byte]. For `seconds` see `optimum`."""
    until = perf_counter() + seconds
    best = shortest_path(rules, np.inf, most_labels=_WIDTHS[0], only="memory", until=until)
    if best.proven or perf_counter() > until:
        return best
    below = best.cost * (1 + _EQUAL)
    found = shortest_path(
        rules, np.inf, most_labels=_WIDTHS[1], below=below, only="memory", until=until
    )
    return _better(best, found)


def _better(best: Path, found: Path) -> Path:
    """The better of two results for the same question, with what both prove."""
    bound = max(best.bound, found.bound)
    better = found if found.cost <= best.cost else best
    return replace(better, bound=min(bound, better.cost), labels=best.labels + found.labels)


def _best_by_cost_and_peak(costs: Floats, peaks: Floats, most: int) -> Bools:
    """At most `most` labels: half of them the fastest, half those of least peak."""
    some = np.zeros(len(costs), dtype=bool)
    some[np.argsort(costs, kind="stable")[: most // 2]] = True
    rest = np.flatnonzero(~some)
    some[rest[np.argsort(peaks[rest], kind="stable")[: most - most // 2]]] = True
    return some


def _best(
    rules: Rules, extended: Sequence[_Labels], dropped: float, total: int, *, only: Only
) -> Path:
    last = extended[-1]
    if last.labels.shape[1] == 0:
        return Path(edges=(), cost=np.inf, peak=np.inf, bound=dropped, labels=total)
    costs = _costs(rules, len(extended) - 1, last, np.inf, only)
    peaks = rules.peak(len(extended) - 1, last.labels)
    close = costs <= costs.min() * (1 + _EQUAL)
    at = int(np.flatnonzero(close)[np.argmin(peaks[close])])
    cost = float(costs[at])
    return Path(
        edges=_path_to(extended, at),
        cost=cost,
        peak=float(peaks[at]),
        bound=min(cost, dropped),
        labels=total,
    )


def _path_to(extended: Sequence[_Labels], at: int) -> tuple[tuple[int, int], ...]:
    """Positions and edges that lead to a label at the last position."""
    path = []
    position = len(extended) - 1
    while position > 0:
        here = extended[position]
        path.append((int(here.origins[at]), int(here.edges[at])))
        position, at = int(here.origins[at]), int(here.parents[at])
    return tuple(reversed(path))


def _joined(several: Sequence[_Labels], quantities: int) -> _Labels:
    if not several:
        none = np.zeros(0, dtype=np.int64)
        return _Labels(np.zeros((quantities, 0)), none, none, none)
    return _Labels(
        np.concatenate([some.labels for some in several], axis=1),
        np.concatenate([some.parents for some in several]),
        np.concatenate([some.origins for some in several]),
        np.concatenate([some.edges for some in several]),
    )


def _chosen(here: _Labels, which: Bools) -> _Labels:
    return _Labels(
        labels=here.labels[:, which],
        parents=here.parents[which],
        origins=here.origins[which],
        edges=here.edges[which],
    )


def nondominated(labels: Floats, raised: Floats | None = None, paid: Sequence[int] = ()) -> Bools:
    """Which labels no other dominates; of equal ones, one.

    A label dominates another that it is nowhere above, except in `paid` rows if its cost is lower
    by at least the sum of what it is above there: no completion makes up for that. Labels are
    visited in lexicographic order, in which only an earlier one can dominate.

    Parameters
    ----------
    labels
        Shape (quantities, labels).
    raised
        The same as dominated labels: where quantities may be raised without harm.
    paid
        Rows of which an excess adds as much to the cost, at most.
    """
    count = labels.shape[1]
    keep = np.ones(count, dtype=bool)
    if count <= 1:
        return keep
    raised = labels if raised is None else raised
    varied = np.flatnonzero((labels != raised[:, :1]).any(axis=1))
    if varied.size == 0:
        keep[1:] = False
        return keep
    order = np.lexsort(labels[varied[::-1]])
    strict = [row for row in varied.tolist() if not paid or row not in (COST, *paid)]
    rows = _Rows(labels[:, order], raised[:, order], strict, (COST, *paid) if paid else ())
    alive = np.ones(count, dtype=bool)
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        before = np.flatnonzero(alive[:begin])
        mine = np.arange(begin, end)
        for first in range(0, before.size, _BLOCK):
            mine = mine[~rows.dominates(before[first : first + _BLOCK], mine).any(axis=0)]
        mine = mine[~np.triu(rows.dominates(mine, mine), 1).any(axis=0)]
        alive[begin:end] = False
        alive[mine] = True
    keep[order] = alive
    return keep


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Labels as those that dominate, and as those that are dominated."""

    labels: Floats
    raised: Floats
    strict: Sequence[int]
    times: Sequence[int]
    """The cost, and what it may pay for; empty: nothing."""

    def dominates(self, some: Ints, others: Ints) -> Bools:
        """Whether each of some labels dominates each of others; shape (some, others)."""
        result = np.ones((some.size, others.size), dtype=bool)
        for row in self.strict:
            result &= self.labels[row, some][:, None] <= self.raised[row, others]
        found = np.count_nonzero(result) if self.times else 0
        if found * _SPARSE > result.size:
            result &= self._paid(some[:, None], others[None])
        elif found:
            first, second = np.nonzero(result)
            result[first, second] = self._paid(some[first], others[second])
        return result

    def _paid(self, some: Ints, others: Ints) -> Bools:
        """Whether the cost of some labels makes up for their excess in time over others."""
        limit = self.raised[COST, others]
        excess = self.labels[COST, some] - limit
        for row in self.times[1:]:
            excess += np.maximum(self.labels[row, some] - self.raised[row, others], 0.0)
        return np.asarray(excess <= _ROUNDING * limit)
