"""The published search: every configuration of a method, the best by throughput (section 6).

The space is tried in the published order; of configurations with the same throughput the first
tried wins.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints, combined, gather
from shardwise.config.base import MOST
from shardwise.distinct import distinct_rows
from shardwise.errors import Fault, refuse
from shardwise.predecessors.nersc.files import NerscModel, NerscSystem
from shardwise.predecessors.nersc.reference.block import block_of
from shardwise.predecessors.nersc.reference.evaluation import (
    block_time,
    memory_of,
    placement,
    statistics_of,
    step_of,
)
from shardwise.predecessors.nersc.reference.inputs import (
    METHODS,
    Columns,
    Method,
    NerscConfiguration,
)

_LEAST_WIDTH = 128
"""Least part of a dimension that is worth a product."""
_LEAST_PANEL = 512
"""Least width of a SUMMA panel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Degrees and micro-batch."""

    m1: Ints
    m2: Ints
    pp: Ints
    dp: Ints
    b: Ints
    microbatches: Ints

    def __len__(self) -> int:
        return int(self.b.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What each layout may choose from."""

    first: Ints
    """Position in `values` of the layout's first choice."""
    count: Ints
    values: Ints

    @classmethod
    def of(cls, lists: Sequence[Ints], position: Ints, none: Ints) -> "Choices":
        """Choices of layouts, each with the list at its position; `none` is an empty list."""
        count = np.array([len(values) for values in lists], dtype=np.int64)
        first = np.cumsum(count) - count
        return cls(
            first=first[position], count=count[position], values=np.concatenate([none, *lists])
        )

    def take(self, rows: Ints, which: Ints) -> Ints:
        """The choice with number `which` of each of some layouts."""
        return self.values[self.first[rows] + which]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Layouts, each with numbers of panels and placements to choose from.

    A candidate is a layout with one of either; the placement varies fastest, the layout slowest.
    """

    layouts: Layouts
    panels: Choices
    placements: Choices
    """(t1, t2, t_dp, t_pp)."""
    one_domain: bool
    """Whether one domain contains all accelerators, and so every group."""

    @property
    def sizes(self) -> Ints:
        """Candidates of each layout."""
        return self.panels.count * self.placements.count

    def candidates(self, rows: Ints) -> Columns:
        """All candidates of some layouts, in order."""
        sizes = self.sizes[rows]
        layout = np.repeat(rows, sizes)
        number = np.arange(layout.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        panel, place = np.divmod(number, self.placements.count[layout])
        chosen = gather(self.layouts, layout)
        groups = chosen.m1, chosen.m2, chosen.dp, chosen.pp
        inside = groups if self.one_domain else self.placements.take(layout, place).T
        return Columns(
            b=chosen.b,
            m1=chosen.m1,
            m2=chosen.m2,
            nb=self.panels.take(layout, panel),
            dp=chosen.dp,
            pp=chosen.pp,
            t1=inside[0],
            t2=inside[1],
            t_dp=inside[2],
            t_pp=inside[3],
        )


def space_of(model: NerscModel, method: Method, gpus: int, global_batch: int, domain: int) -> Space:
    """Everything that a search tries on n accelerators with domains of `domain`."""
    layouts = _layouts(model, method, gpus, global_batch)
    one_domain = gpus <= domain
    return Space(
        layouts=layouts,
        panels=_panels(model, method, layouts),
        placements=_placements(layouts, 1 if one_domain else domain),
        one_domain=one_domain,
    )


def _layouts(model: NerscModel, method: Method, gpus: int, global_batch: int) -> Layouts:
    """Degrees and micro-batches that divide what they split.

    pp divides n / tp and depth; dp is the rest, and divides the batch.
    """
    m1, m2, pp = _grid(*_degrees(model, method, gpus), np.array(_divisors(model.depth)))
    fits = np.flatnonzero(gpus % (m1 * m2 * pp) == 0)
    m1, m2, pp = m1[fits], m2[fits], pp[fits]
    dp = gpus // (m1 * m2 * pp)
    fits = np.flatnonzero(global_batch % dp == 0)
    row, b = _grid(fits, np.array(_divisors(global_batch)))
    split = {"1d": m1, "2d": m2, "2d-seqp": m1 * m2}[method]
    fits = (global_batch // dp[row] % b == 0) & (b * model.l % split[row] == 0)
    row, b = row[fits], b[fits]
    return Layouts(
        m1=m1[row],
        m2=m2[row],
        pp=pp[row],
        dp=dp[row],
        b=b,
        microbatches=global_batch // dp[row] // b,
    )


def _degrees(model: NerscModel, method: Method, gpus: int) -> tuple[Ints, Ints]:
    """Values of m1 and m2 that leave wide enough parts."""
    every = np.array(_divisors(gpus))
    m1 = every[(model.h % every == 0) & (model.e % every == 0)]
    if method == "1d":
        return m1[3 * model.e // m1 >= _LEAST_WIDTH], np.array([1])
    m2 = every[model.l // every >= _LEAST_WIDTH]
    m2 = m2[model.e % m2 == 0] if method == "2d" else m2
    return m1[model.e // m1 >= _LEAST_WIDTH], m2


def _grid(*values: Ints) -> list[Ints]:
    """Columns of all combinations, the last varying fastest."""
    return [column.ravel() for column in np.meshgrid(*values, indexing="ij")]


def _divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _panels(model: NerscModel, method: Method, layouts: Layouts) -> Choices:
    """Numbers of panels; 1 where nothing has any."""
    start = np.maximum(layouts.m1, layouts.m2) if method == "2d" else np.zeros_like(layouts.m1)

    def some(rows: Ints) -> list[Ints]:
        return [_panel_numbers(model.e, int(s)) if s else np.array([1]) for s in start[rows]]

    firsts, position = distinct_rows([start])
    return Choices.of(some(firsts), position, none=start[:0])


def _panel_numbers(e: int, start: int) -> Ints:
    """Of s, 2 s, 4 s, ... those that divide e into wide enough panels; s where none is."""
    most = e // start // _LEAST_PANEL
    numbers = start << np.arange(most.bit_length())
    return numbers[e % numbers == 0] if most else np.array([start])


def _placements(layouts: Layouts, domain: int) -> Choices:
    """Ordered factorizations of a domain whose factors divide their groups."""
    table = _factorisations(domain)
    groups = layouts.m1, layouts.m2, layouts.dp, layouts.pp
    common = np.gcd(np.stack(groups, axis=1), domain)

    def some(rows: Ints) -> list[Ints]:
        fitting = np.all(common[rows, None, :] % table == 0, axis=2)
        return [table[row] for row in fitting]

    firsts, position = distinct_rows(list(common.T))
    return Choices.of(some(firsts), position, none=table[:0])


def _factorisations(number: int) -> Ints:
    """All (t1, t2, t_dp, t_pp) whose product it is, t1 varying slowest."""
    t1, t2, t_dp = _grid(*[np.array(_divisors(number))] * 3)
    product = t1 * t2 * t_dp
    factors = np.stack([t1, t2, t_dp, number // product], axis=1)
    return factors[number % product == 0]


# Candidates timed at a time: their columns use about 20 MB.
_CHUNK = 1 << 16

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One configuration that a search found."""

    throughput: float
    """Sequences per second."""
    configuration: NerscConfiguration
    statistics: dict[str, float | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    layouts: int
    """Degrees and micro-batches, before panels and placements are chosen."""
    candidates: int
    feasible: int
    """Those that fit in memory."""
    least_memory: float | None
    """Of all candidates [GB]; None if there are none."""
    best: tuple[Found, ...]
    """Best first."""


def count(model: NerscModel, method: str, *, gpus: int, global_batch: int, domain: int) -> int:
    """Count the configurations that `search` would try, without evaluating any."""
    known = _checked(method, gpus=gpus, global_batch=global_batch, domain=domain)
    return int(space_of(model, known, gpus, global_batch, domain).sizes.sum())


def search(
    model: NerscModel,
    system: NerscSystem,
    method: str,
    *,
    gpus: int,
    global_batch: int,
    domain: int,
    top_n: int = 10,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the configurations with the highest throughput."""
    known = _checked(method, gpus=gpus, global_batch=global_batch, domain=domain, top_n=top_n)
    system = system.model_copy(update={"nvlink_size": domain})
    space = space_of(model, known, gpus, global_batch, domain)
    memory = _memory(model, system, known, space.layouts)
    sizes = space.sizes
    fits = np.flatnonzero((memory <= system.hbm_capacity) & (sizes > 0))
    feasible = int(sizes[fits].sum())
    best = _Best(top_n)
    for rows in _chunks(fits, sizes[fits]):
        columns = space.candidates(rows)
        best.add(_throughput(model, system, known, columns, global_batch), columns)
        if progress is not None:
            progress(best.seen, feasible)
    tried = memory[sizes > 0]
    return SearchResult(
        layouts=len(space.layouts),
        candidates=int(sizes.sum()),
        feasible=feasible,
        least_memory=float(tried.min()) if tried.size else None,
        best=tuple(best.found(model, system, known, global_batch)),
    )


def _checked(method: str, **numbers: int) -> Method:
    """The method, if it and the limits are allowed."""
    faults = [
        Fault.of(name, value, f"must be from 1 to {MOST}")
        for name, value in numbers.items()
        if not 1 <= value <= MOST
    ]
    if method not in METHODS:
        problem = f"allowed: {', '.join(METHODS)}"
        faults.append(Fault.of("method", method, problem))
    refuse(faults)
    return METHODS[METHODS.index(method)]


def _memory(model: NerscModel, system: NerscSystem, method: Method, layouts: Layouts) -> Floats:
    """Memory of each layout [GB]; neither panels nor placement count."""

    def some(rows: Ints) -> tuple[Floats, Floats]:
        block = block_of(model, system, method, _unplaced(gather(layouts, rows)))
        return block.stored, block.weights

    firsts, position = distinct_rows([layouts.b, layouts.m1, layouts.m2])
    stored, weights = some(firsts)
    columns, batches = _unplaced(layouts), layouts.microbatches
    return memory_of(model, method, columns, batches, stored[position], weights[position]).total


def _unplaced(layouts: Layouts) -> Columns:
    """Layouts as configurations of one panel, all groups apart."""
    one = np.ones_like(layouts.b)
    degrees = {name: getattr(layouts, name) for name in ("b", "m1", "m2", "dp", "pp")}
    return Columns(nb=one, t1=one, t2=one, t_dp=one, t_pp=one, **degrees)


def _chunks(rows: Ints, sizes: Ints) -> Iterator[Ints]:
    """Layouts in order, some tens of thousands of candidates at a time."""
    if not rows.size:
        return
    piece = (np.cumsum(sizes) - sizes) // _CHUNK
    starts = np.flatnonzero(np.diff(piece, prepend=-1))
    yield from np.split(rows, starts[1:])


def _throughput(
    model: NerscModel, system: NerscSystem, method: Method, columns: Columns, global_batch: int
) -> Floats:
    """Sequences per second of each candidate; layers are timed once for all that share them."""

    def some(rows: Ints) -> Any:
        shared = gather(columns, rows)
        return block_time(block_of(model, system, method, shared), shared, system)

    keys = [columns.b, columns.m1, columns.m2, columns.nb, columns.t1, columns.t2]
    firsts, position = distinct_rows(keys)
    block = some(firsts)
    batches = global_batch // columns.dp // columns.b
    step = step_of(model, system, method, columns, batches, gather(block, position))
    return global_batch / step.total


def _joined(first: Any, second: Any) -> Any:
    return np.concatenate([first, second])


class _Best:
    """The best candidates so far, in order; the first of equals stays first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.seen = 0
        self.throughput: Floats = np.empty(0)
        self.columns: Columns | None = None

    def add(self, throughput: Floats, columns: Columns) -> None:
        """Add the best of some more candidates."""
        self.seen += throughput.size
        if throughput.size > self.size:
            least = np.partition(throughput, -self.size)[-self.size]
            better = np.flatnonzero(throughput >= least)
            throughput, columns = throughput[better], gather(columns, better)
        joined = columns if self.columns is None else combined(_joined, self.columns, columns)
        throughput = np.concatenate([self.throughput, throughput])
        order = np.argsort(-throughput, kind="stable")[: self.size]
        self.throughput, self.columns = throughput[order], gather(joined, order)

    def found(
        self, model: NerscModel, system: NerscSystem, method: Method, global_batch: int
    ) -> Iterator[Found]:
        """Configurations with their statistics."""
        if self.columns is None:
            return
        figures = statistics_of(model, system, method, self.columns, global_batch)
        for index, throughput in enumerate(self.throughput.tolist()):
            configuration = self.columns.row(index, method, global_batch)
            numbers = {name: float(column[index]) for name, column in figures.items()}
            yield Found(
                throughput=throughput,
                configuration=configuration,
                statistics=numbers | placement(configuration),
            )
