"""`smallest_gpus`: the smallest number of accelerators on which anything of a space is feasible."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.analysis.results import Result
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.planning.search.candidates import Candidates, refusals
from shardwise.planning.search.evaluate import Judge, broken_options, broken_reasons
from shardwise.planning.search.extents import divisors
from shardwise.planning.search.least_memory import decisive
from shardwise.planning.search.minimum_replicas import Lack, Spread, Widest, widest
from shardwise.planning.search.scan import MEMORY, SECOND_MEMORY
from shardwise.planning.search.space import Space
from shardwise.units import readable

__all__ = ["SmallestGpus", "smallest_gpus"]

_PIECE_ROWS = 1 << 16
# No strategy has more accelerators.
_MOST_GPUS = 2**31
# So many numbers of accelerators are judged in full before the search is given up.
_MOST_JUDGED = 200


Progress = Callable[[int, int], None]
"""Called with how many numbers of accelerators were judged, and the one that is next."""


class SmallestGpus(Result):
    """The smallest number of accelerators that would do, or why there is none."""

    gpus: int | None
    strategy: dict[str, Any] | None
    """One that is feasible there; not the fastest."""
    above: int
    """Only larger numbers were looked for."""
    most: int | None
    """Nor larger ones than this; None where nothing sets a limit."""
    spacing: int
    """Whole nodes of so many were looked for, and parts of a node that divide it."""
    none_below: int | None
    """Of these numbers none below it is feasible, with certainty; None: none at all."""
    judged: int
    """How many of them had every strategy judged; on the others the degrees do not come out even,
    or do not hold the model."""
    reason: str | None
    """What forbids all: a rule or a memory tier in a word, or `given_up`."""
    problem: str | None
    """The same as a sentence."""
    elapsed_s: float


def smallest_gpus(
    model: Model | str | Path,
    system: System | str | Path,
    space: Space,
    *,
    capacity_bytes: float | None = None,
    above: int | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> SmallestGpus:
    """Find the smallest number of accelerators on which some strategy of a space is feasible.

    Looked for among whole nodes, and among parts of a node that divide it, in ascending order. A
    number is passed over only if its degrees do not come out even, or if `widest` proves that
    nothing fits; else all that could fit is judged, by memory alone.

    Parameters
    ----------
    space
        Its numbers of accelerators do not matter.
    capacity_bytes
        What of the first memory tier may be used; by default all of it.
    above
        Look for more than so many; by default more than the space has.
    most
        Look for no more than so many.

    Raises
    ------
    InputError
        If a value is missing that nothing implies.
    """
    started = time.perf_counter()
    the_model, the_system = Model.load(model), System.load(system)
    usable = the_system.accelerator.memory[0].capacity if capacity_bytes is None else capacity_bytes
    least = max(map(int, space.gpus or (0,))) if above is None else above
    limit = min(n for n in (most, the_system.network[-1].domain, _MOST_GPUS) if n is not None)
    deciding = decisive(the_model, the_system, space.fixed({"gpus": 1}, source="space"))
    Candidates.of(the_model, the_system, deciding)  # raises if a value is missing
    case = _Case(
        model=the_model, system=the_system, space=deciding, capacity_bytes=usable, above=least
    )
    verdict = _search(case, limit, progress)
    return SmallestGpus(
        **verdict,
        above=least,
        most=None if limit == _MOST_GPUS else limit,
        spacing=the_system.node.accelerators,
        elapsed_s=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is to fit onto what, and how."""

    model: Model
    system: System
    space: Space
    capacity_bytes: float
    above: int


def _search(case: _Case, limit: int, progress: Progress | None) -> dict[str, Any]:
    """Judge numbers of accelerators in ascending order, up to the first that will do."""
    wide = widest(case.model, case.system, case.space, case.capacity_bytes, limit)
    found: dict[str, Any] = dict.fromkeys(("gpus", "strategy", "none_below", "reason", "problem"))
    found["judged"] = 0
    rejected: Counter[str] = Counter()
    for gpus in _numbers(case, wide.spreads):
        if found["judged"] == _MOST_JUDGED:
            problem = f"given up after {_MOST_JUDGED} numbers; nothing is feasible below {gpus}"
            return found | {"none_below": gpus, "reason": "given_up", "problem": problem}
        if progress is not None:
            progress(found["judged"], gpus)
        found["judged"] += 1
        strategy, here = _feasible(case, gpus)
        if strategy is not None:
            return found | {"gpus": gpus, "none_below": gpus, "strategy": strategy}
        rejected += here
    reason, problem = _why(case, wide, limit, rejected)
    return found | {"reason": reason, "problem": problem}


def _numbers(case: _Case, spreads: Sequence[Spread]) -> Iterator[int]:
    """Numbers of accelerators that some degrees make up, in ascending order."""
    grouped: dict[tuple[int, int, int], list[Spread]] = {}
    for spread in spreads:
        key = spread.ranks, spread.micro_batch_size, spread.global_batch_size
        grouped.setdefault(key, []).append(spread)
    whole = [
        replace(some[0], least=min(s.least for s in some), most=max(s.most for s in some))
        for some in grouped.values()
    ]
    node = case.system.node.accelerators
    for gpus, _ in groupby(merge(*(_of_spread(case, spread) for spread in whole))):
        if gpus > case.above and (gpus % node == 0 or node % gpus == 0):
            yield gpus


def _of_spread(case: _Case, spread: Spread) -> Iterator[int]:
    """Accelerators for every number of replicas that share the batch."""
    least = max(spread.least, case.above // spread.ranks)
    if case.space.batch == "largest":
        every: Iterable[int] = range(least, spread.most + 1)
        every = (n for n in every if spread.global_batch_size // n % spread.micro_batch_size == 0)
    else:
        every = divisors(spread.global_batch_size // spread.micro_batch_size)
    listed = case.space.values("dp", case.system)
    for replicas in every:
        if least <= replicas <= spread.most and (listed is None or replicas in listed):
            yield replicas * spread.ranks


def _feasible(case: _Case, gpus: int) -> tuple[dict[str, Any] | None, Counter[str]]:
    """A strategy that is feasible on so many accelerators, or why there is none, by reason."""
    at_scale = case.space.fixed({"gpus": gpus}, source="space")
    candidates = Candidates.of(case.model, case.system, at_scale)
    rejected = refusals(candidates.illegal)
    for piece in (piece for box in candidates.legal for piece in box.cut(_PIECE_ROWS)):
        table = piece.table()
        broken = broken_options(case.model, case.system, piece, table)
        rejected += broken_reasons(broken)
        judge = Judge.of(case.model, case.system, table, broken, case.capacity_bytes)
        for judged in judge.weighed():
            choice, row = (index[:1] for index in np.nonzero(judged.feasible))
            if row.size:
                number = piece.numbers(judged.rows[row], choice)
                return piece.strategies(number).strategy(0).to_dict(), rejected
            full = int(np.count_nonzero(judged.legal & judged.too_full(case.capacity_bytes)))
            rejected[MEMORY] += full
            rejected[SECOND_MEMORY] += int(np.count_nonzero(judged.legal)) - full
    return None, +rejected


def _why(case: _Case, wide: Widest, limit: int, rejected: Counter[str]) -> tuple[str, str]:
    """Why no number of accelerators will do: a word and a sentence."""
    if wide.lack is not None:
        return _too_full(case.system, wide.lack)
    if not wide.spreads:
        told = ", ".join(f"{reason} {number:,}" for reason, number in wide.refused.most_common())
        reason = next(iter(wide.refused), "degrees")
        return reason, f"no degrees of the space obey the rules on any number of GPUs: {told}"
    if rejected:
        reason = MEMORY if rejected[MEMORY] else rejected.most_common(1)[0][0]
        told = ", ".join(f"{reason} {number:,}" for reason, number in rejected.most_common())
        return reason, f"whatever the number of GPUs, strategies are rejected: {told}"
    reached = max(spread.ranks * spread.most for spread in wide.spreads)
    if limit <= case.above:
        return "accelerators", f"there are no more than {limit:,} GPUs"
    if reached <= case.above:
        return "batch", f"no more than {reached:,} GPUs can share the batch"
    node = case.system.node.accelerators
    return "node", f"no degrees of the space that fit make up whole nodes of {node} GPUs"


def _too_full(system: System, lack: Lack) -> tuple[str, str]:
    """What is missing even with as many replicas as there can be."""
    row = lack.strategy
    shown = ("tp", *(("tp2",) if row.tp2[0] > 1 else ()), "cp", "pp", "dp")
    axes = " x ".join(f"{axis} {int(getattr(row, axis)[0])}" for axis in shown)
    problem = (
        f"even on {int(row.gpus[0]):,} GPU{'s' if row.gpus[0] > 1 else ''} ({axes}) the roomiest "
        "strategy lacks "
        f"{readable(lack.bytes, 'bytes')} of {system.accelerator.memory[lack.tier].name}; more "
        "replicas are not possible"
    )
    return (SECOND_MEMORY if lack.tier else MEMORY), problem
