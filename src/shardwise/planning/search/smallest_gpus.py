"""`smallest_gpus`: the smallest number of accelerators on which anything of a space is feasible.

Numbers of accelerators are evaluated in ascending order, by memory alone. A few next to those of
the space come first, several at a time: they have few layouts, which share what their layers cost.
Beyond, `replica_bounds` finds, for every combination of degrees but dp, the replicas with which
something fits: more replicas share the optimizer state and the batch, so each rank needs less
memory. Only numbers with such degrees are evaluated.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import groupby, islice
from typing import Any

import numpy as np

from shardwise.config.enums import TIER_FIELDS
from shardwise.config.model import Model, ModelLike
from shardwise.config.strategy_fields import RANK_DEGREES
from shardwise.config.system import System, SystemLike
from shardwise.planning.search.candidates import Candidates, cut_together, refusals
from shardwise.planning.search.evaluate import (
    MEMORY,
    SECOND_MEMORY,
    broken_reasons,
    memory_of_each,
)
from shardwise.planning.search.placements import divisors
from shardwise.planning.search.replica_bounds import (
    PIECE_ROWS,
    Case,
    ReplicaBounds,
    ReplicaShape,
    Shortfall,
    possible_shapes,
    replica_bounds,
)
from shardwise.planning.search.results import SmallestGpus
from shardwise.planning.search.space import Space
from shardwise.units import readable

_MOST_GPUS = 2**31  # no strategy has more accelerators
# Numbers of accelerators to evaluate in full before giving up.
_MOST_EVALUATED = 200
# Times the largest number of the space, up to which numbers are evaluated first, if they are few.
_NEXT_GPUS, _FEW_NUMBERS = 8, 32
# Of more numbers, so many are evaluated first.
_FIRST_NUMBERS = 8
# Times this number, up to which replicas are bounded first: these have few degrees.
_FIRST_GPUS = (8, 512)
_SUMMA_OVERLAPS = ("stack", "none")  # overlaps that 2D products may have, too

Progress = Callable[[int, int], None]
"""Called with how many numbers of accelerators were evaluated, and the next one."""


def smallest_gpus(
    model: ModelLike,
    system: SystemLike,
    space: Space,
    *,
    capacity_bytes: float | None = None,
    above: int | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> SmallestGpus:
    """Find the smallest number of accelerators on which some strategy of a space is feasible.

    Tries multiples and divisors of a node. A number is skipped only if its degrees do not come out
    even, or if `replica_bounds` proves that nothing fits.

    Parameters
    ----------
    space
        Its numbers of accelerators have no effect.
    capacity_bytes
        Usable part of the first memory tier; by default all of it.
    above
        Try larger numbers only; by default larger than those of the space.
    most
        Largest number to try.

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
    deciding = least_memory_space(the_model, the_system, space.fixed({"gpus": 1}, source="space"))
    Candidates.of(the_model, the_system, deciding)  # raises if a value is missing
    case = Case(model=the_model, system=the_system, space=deciding, capacity_bytes=usable)
    return SmallestGpus(
        **_search(case, least, limit, progress),
        above=least,
        most=None if limit == _MOST_GPUS else limit,
        spacing=the_system.node.accelerators,
        elapsed_s=time.perf_counter() - started,
    )


def _search(case: Case, above: int, limit: int, progress: Progress | None) -> dict[str, Any]:
    """Evaluate numbers of accelerators in ascending order, up to the first feasible one."""
    found: dict[str, Any] = dict.fromkeys(("gpus", "strategy", "none_below", "reason", "problem"))
    found["judged"] = 0
    rejected: Counter[str] = Counter()
    for numbers, bounds in _steps(case, above, limit):
        if not numbers:
            continue
        if found["judged"] >= _MOST_EVALUATED:
            return found | _given_up(numbers[0])
        if progress is not None:
            progress(found["judged"], numbers[0])
        strategy, here = _first_feasible(case, bounds, numbers)
        if strategy is not None:
            gpus = strategy["gpus"]
            found["judged"] += numbers.index(gpus) + 1
            return found | {"gpus": gpus, "none_below": gpus, "strategy": strategy}
        found["judged"] += len(numbers)
        rejected += here
    assert bounds is not None  # noqa: S101 - those of the last step
    reason, problem = _why_none(case, bounds, above, limit, rejected)
    return found | {"reason": reason, "problem": problem}


def _steps(case: Case, above: int, limit: int) -> Iterator[tuple[list[int], ReplicaBounds | None]]:
    """Numbers of accelerators to evaluate together, with the bounds of their replicas.

    A few next to those of the space come without bounds. Each time that bounds were computed, they
    come first without numbers.
    """
    most = min(limit, max(above, 1) * _NEXT_GPUS)
    few = [*islice(_numbers(case, above, possible_shapes(case, most)), _FEW_NUMBERS + 1)]
    reached = most
    if len(few) > _FEW_NUMBERS:
        few = few[:_FIRST_NUMBERS]
        reached = few[-1] if few else above
    while few:
        count = sum(number <= 2 * few[0] for number in few)
        yield few[:count], None
        few = few[count:]
    for most in (*(min(limit, max(above, 1) * times) for times in _FIRST_GPUS), limit):
        if most <= reached < limit:
            continue
        bounds = replica_bounds(case.model, case.system, case.space, case.capacity_bytes, most)
        yield [], bounds
        for gpus in _numbers(case, reached, bounds.shapes):
            yield [gpus], bounds
        reached = max(reached, most)
        if most == limit:
            return


def _given_up(gpus: int) -> dict[str, Any]:
    """What is certain after many numbers of accelerators, of which this is the next one."""
    problem = f"stopped after {_MOST_EVALUATED} numbers; nothing is feasible below {gpus}"
    return {"none_below": gpus, "reason": "given_up", "problem": problem}


def _first_feasible(
    case: Case, bounds: ReplicaBounds | None, numbers: Sequence[int]
) -> tuple[dict[str, Any] | None, Counter[str]]:
    """A feasible strategy on the smallest of some numbers, or why there is none, by reason."""
    at_scales = case.space.fixed({"gpus": list(numbers)}, source="space")
    candidates = Candidates.of(case.model, case.system, at_scales)
    rejected, boxes = refusals(candidates.illegal), list(candidates.legal)
    if bounds is not None:
        for at, box in enumerate(boxes):
            enough = np.flatnonzero(bounds.has_replicas(box.layouts))
            rejected[MEMORY] += box.width * (len(box.layouts) - enough.size)
            boxes[at] = box.select(enough)
    for pieces in cut_together(boxes, PIECE_ROWS):
        each = memory_of_each(case.model, case.system, pieces, case.capacity_bytes)
        for piece, (broken, some) in zip(pieces, each, strict=True):
            rejected += broken_reasons(broken)
            if some is None:
                continue
            choice, row = (index[:1] for index in np.nonzero(some.feasible))
            if row.size:
                number = piece.numbers(some.rows[row], choice)
                return candidates.strategies(number).strategy(0).to_dict(), rejected
            over = some.over_capacity(case.system, case.capacity_bytes)
            full = np.count_nonzero(some.legal & over)
            rejected[MEMORY] += int(full)
            rejected[SECOND_MEMORY] += int(np.count_nonzero(some.legal) - full)
    return None, +rejected


def _numbers(case: Case, above: int, shapes: Iterable[ReplicaShape]) -> Iterator[int]:
    """Numbers of accelerators that some degrees make up, in ascending order."""
    grouped: dict[tuple[int, int, int], list[ReplicaShape]] = {}
    for shape in shapes:
        key = shape.ranks, shape.micro_batch_size, shape.global_batch_size
        grouped.setdefault(key, []).append(shape)
    joined = [
        replace(some[0], least=min(s.least for s in some), most=max(s.most for s in some))
        for some in grouped.values()
    ]
    node = case.system.node.accelerators
    for gpus, _ in groupby(merge(*(_numbers_of(case, above, shape) for shape in joined))):
        if gpus > above and (gpus % node == 0 or node % gpus == 0):
            yield gpus


def _numbers_of(case: Case, above: int, shape: ReplicaShape) -> Iterator[int]:
    """Accelerators with each number of replicas that divides the batch."""
    least = max(shape.least, above // shape.ranks)
    if case.space.batch == "largest":
        every: Iterable[int] = range(least, shape.most + 1)
        every = (n for n in every if shape.global_batch_size // n % shape.micro_batch_size == 0)
    else:
        every = divisors(shape.global_batch_size // shape.micro_batch_size)
    listed = case.space.values("dp", case.system)
    for replicas in every:
        if least <= replicas <= shape.most and (listed is None or replicas in listed):
            yield replicas * shape.ranks


def _why_none(
    case: Case, bounds: ReplicaBounds, above: int, limit: int, rejected: Counter[str]
) -> tuple[str, str]:
    """Why no number of accelerators is feasible: a reason and a sentence."""
    if bounds.shortfall is not None:
        return _too_full(case.system, bounds.shortfall)
    if not bounds.shapes:
        counts = ", ".join(f"{reason} {n:,}" for reason, n in bounds.rejected.most_common())
        reason = next(iter(bounds.rejected), "degrees")
        return reason, f"no degrees of the space obey the rules on any number of GPUs: {counts}"
    if rejected:
        reason = MEMORY if rejected[MEMORY] else rejected.most_common(1)[0][0]
        counts = ", ".join(f"{reason} {n:,}" for reason, n in rejected.most_common())
        return reason, f"on every number of GPUs, strategies are rejected: {counts}"
    reached = max(shape.ranks * shape.most for shape in bounds.shapes)
    if limit <= above:
        return "accelerators", f"there are no more than {limit:,} GPUs"
    if reached <= above:
        return "batch", f"no more than {reached:,} GPUs can share the batch"
    nodes = f"full nodes of {case.system.node.accelerators} GPUs"
    return "node", f"no degrees of the space that fit make up {nodes}"


def _too_full(system: System, shortfall: Shortfall) -> tuple[str, str]:
    """What memory lacks even with the most replicas."""
    row = shortfall.strategy
    shown = (axis for axis in RANK_DEGREES if axis != "tp2" or row.tp2[0] > 1)
    axes = " x ".join(f"{axis} {int(getattr(row, axis)[0])}" for axis in shown)
    problem = (
        f"even on {int(row.gpus[0]):,} GPU{'s' if row.gpus[0] > 1 else ''} ({axes}) the strategy "
        f"that needs least memory lacks {readable(shortfall.bytes, 'bytes')} of "
        f"{system.accelerator.memory[shortfall.tier].name}; more replicas are not possible"
    )
    return (SECOND_MEMORY if shortfall.tier else MEMORY), problem


def least_memory_space(model: Model, system: System, space: Space) -> Space:
    """Return the part of a space that decides whether anything fits: the rest needs more memory.

    Overlaps do not change the memory, nor does placement where no tier has rules of its own.
    Shards over all replicas are the smallest. More chunks per stage, or a larger micro-batch of
    the same batch, never need less: with v chunks on p stages the first has min(m, p + (p - 1) / v)
    micro-batches in flight, not min(m, p), the last min(m, p - (p - 1) / v), not 1; and b sequences
    in each of m = B / b micro-batches make min(B, b p) in flight, which grows with b as every
    working set does.
    """
    first: dict[str, object] = {
        n: _values(space, system, n)[0] for n in ("tp_overlap", "dp_overlap")
    }
    if "summa" in _values(space, system, "tp_exchange"):
        overlaps = _values(space, system, "tp_overlap")
        first["tp_overlap"] = next((w for w in overlaps if w in _SUMMA_OVERLAPS), overlaps[0])
    chunks = space.values("vpp", system)
    shards = space.values("dp_shard", system)
    if shards is None or None in shards:
        first["dp_shard"] = None
    schedules = {*_values(space, system, "schedule")}
    by_chunks = "1f1b" in schedules <= {"1f1b", "interleaved"}
    if (chunks is None or 1 in chunks) and by_chunks:
        first |= {"vpp": 1, "schedule": "1f1b"}
    if space.values("micro_batch_size", system) is None and _even(model, system, space):
        first["micro_batch_size"] = 1
    default_tiers = all(_values(space, system, name) == (None,) for name in TIER_FIELDS)
    if default_tiers and not any(tier.must_be_filled for tier in system.network):
        first |= {"placement": _values(space, system, "placement")[0], "extents": None}
    return space.fixed(first, source="space")


def _values(space: Space, system: System, name: str) -> tuple[Any, ...]:
    return space.values(name, system) or (None,)


def _even(model: Model, system: System, space: Space) -> bool:
    """Whether every legal degree splits a single sequence, as point-to-point TP requires."""
    exchanges = _values(space, system, "tp_exchange")
    degrees = space.values("tp", system) or range(1, model.layers[0].attention.heads + 1)
    heads = {layer.attention.heads for layer in model.layers}
    split = [tp for tp in degrees if not any(number % tp for number in heads)]
    lengths = [length or model.seq_len or 1 for length in _values(space, system, "seq_len")]
    uneven = any(length % tp for length in lengths for tp in split)
    return "p2p_rs_ag" not in exchanges or not uneven
