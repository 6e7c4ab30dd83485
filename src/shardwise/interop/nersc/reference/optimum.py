"""The published search: every configuration of a method, the best by throughput (section 6).

Of configurations with the same throughput the first tried wins.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints, gather, once_per
from shardwise.config.base import MOST
from shardwise.errors import Fault, InputError
from shardwise.interop.nersc.reference.block import block_of
from shardwise.interop.nersc.reference.columns import Columns
from shardwise.interop.nersc.reference.inputs import (
    METHODS,
    Method,
    NerscConfiguration,
    NerscModel,
    NerscSystem,
)
from shardwise.interop.nersc.reference.space import Layouts, space_of
from shardwise.interop.nersc.reference.stats import placement, statistics_of
from shardwise.interop.nersc.reference.totals import block_time, memory_of, step_of

__all__ = ["Found", "SearchResult", "count", "search"]

# Candidates timed at a time: their columns take some 20 MB.
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
    """Find the configurations with the highest throughput.

    Parameters
    ----------
    domain
        Accelerators of a domain of the fast network; goes over the system's `nvlink_size`.
    top_n
        How many to return.
    progress
        Called with the number of feasible candidates timed so far and in all.

    Raises
    ------
    InputError
        If a limit is not allowed.
    """
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
        Fault(field=name, value=value, has_value=True, problem=f"must be from 1 to {MOST}")
        for name, value in numbers.items()
        if not 1 <= value <= MOST
    ]
    if method not in METHODS:
        problem = f"allowed: {', '.join(METHODS)}"
        faults.append(Fault(field="method", value=method, has_value=True, problem=problem))
    if faults:
        raise InputError(faults)
    return METHODS[METHODS.index(method)]


def _memory(model: NerscModel, system: NerscSystem, method: Method, layouts: Layouts) -> Floats:
    """Memory of each layout [GB]; neither panels nor placement count."""

    def some(rows: Ints) -> tuple[Floats, Floats]:
        block = block_of(model, system, method, _unplaced(gather(layouts, rows)))
        return block.stored, block.weights

    (stored, weights), position = once_per([layouts.b, layouts.m1, layouts.m2], some)
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
    block, position = once_per(keys, some)
    batches = global_batch // columns.dp // columns.b
    step = step_of(model, system, method, columns, batches, gather(block, position))
    return global_batch / step.total


class _Best:
    """The best candidates so far, in order; the first of equals stays first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.seen = 0
        self.throughput: Floats = np.empty(0)
        self.columns: Columns | None = None

    def add(self, throughput: Floats, columns: Columns) -> None:
        """Take up the best of some more candidates."""
        self.seen += throughput.size
        if throughput.size > self.size:
            least = np.partition(throughput, -self.size)[-self.size]
            better = np.flatnonzero(throughput >= least)
            throughput, columns = throughput[better], gather(columns, better)
        joined = columns if self.columns is None else _joined(self.columns, columns)
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


def _joined(first: Columns, second: Columns) -> Columns:
    names = [field.name for field in fields(Columns)]
    return Columns(**{n: np.concatenate([getattr(first, n), getattr(second, n)]) for n in names})
