"""`smallest_gpus`: the smallest number of accelerators on which anything of a space is feasible.

Numbers of accelerators are evaluated in ascending order, by memory alone. A few next to those of
the space come first, several at a time: they have few layouts, which share what their layers cost.
Beyond, `replica_bounds` finds, for every combination of degrees but dp, the replicas with which
something fits: more replicas share the optimizer state and the batch, so each rank needs less
memory. Only numbers with such degrees are evaluated.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby, islice, product
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, divisors
from shardwise.config.accelerator import tier_words
from shardwise.config.enums import TIER_FIELDS, ZERO_OPTIMIZER, Schedule
from shardwise.config.model import Model, ModelLike
from shardwise.config.strategy_fields import LAYER_AXES, RANK_DEGREES, REPLICA_DEGREES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.distinct import distinct_rows
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.constraints.degrees import most_heads, split_heads
from shardwise.parallel.constraints.software import SOFTWARE_CONSTRAINT
from shardwise.planning.search.bounded import position_in
from shardwise.planning.search.candidates import (
    Box,
    Candidates,
    Scale,
    boxes_of,
    cut_together,
    refusals,
)
from shardwise.planning.search.layouts import LayerSplits, expert_degrees, long_enough
from shardwise.planning.search.query import PREDICTED, FitTest
from shardwise.planning.search.results import SmallestGpus
from shardwise.planning.search.scan import (
    MEMORY,
    SECOND_MEMORY,
    Evaluated,
    MemoryEvaluator,
    broken_reasons,
    memory_of_each,
)
from shardwise.planning.search.space import Space
from shardwise.records import dataclass, replace
from shardwise.units import counted, readable

PIECE_ROWS = 1 << 16
_MOST_OPEN = 1 << 10  # largest degree to try where a space leaves it open
_ROUNDING = 1e-9  # the last digits of a quotient
# These rules depend on the number of replicas.
_REPLICA_RULES = (
    *("accelerators", "batch", "edges", "expert_ranks"),
    *("dualpipe", "dp_shard", "dp_shard_experts", "software"),
)
_OTHER_RULES = [r for r in CONSTRAINTS if r.reason not in _REPLICA_RULES]
_LAYOUT_RULES = tuple(r for r in _OTHER_RULES if r.layout_only and "tier" not in r.reason)
_OPTION_RULES = (*(r for r in _OTHER_RULES if not r.layout_only), SOFTWARE_CONSTRAINT)
_DEGREES = (*LAYER_AXES, "pp")
_COLUMNS = (
    *_DEGREES,
    *("vpp", "schedule", "split", "mbs", "dp_shard", "dp"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, a system, and the strategies that decide whether the model fits."""

    model: Model
    system: System
    space: Space
    capacity_bytes: float
    """Usable part of the first memory tier."""
    fit: FitTest = PREDICTED


@dataclass(frozen=True, slots=True)
class ReplicaShape:
    """Degrees of one replica, and the numbers of replicas that they allow."""

    ranks: int
    """Accelerators of one replica."""
    micro_batch_size: int
    global_batch_size: int
    """Or its upper limit."""
    least: int
    """With fewer replicas nothing fits."""
    most: int
    """There cannot be more replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What the strategy that needs least memory lacks."""

    tier: int
    """Position of the memory tier."""
    bytes: float
    strategy: Table
    """One row; not every number of replicas need be legal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBounds:
    """All degrees of a space with the bounds of their replicas."""

    shapes: tuple[ReplicaShape, ...]
    """Those on which something fits."""
    degrees: Ints
    """Degrees of these, as columns of `_DEGREES`, each once."""
    least: Ints
    """The least replicas of each."""
    rejected: Counter[str]
    """Number of others that break a rule with any number of replicas, by reason."""
    shortfall: Shortfall | None
    """Where nothing fits though something is legal."""

    def has_replicas(self, layouts: Table) -> Bools:
        """Whether layouts have degrees with which something fits, and enough replicas."""
        where = position_in([getattr(layouts, name) for name in _DEGREES], self.degrees)
        return (where >= 0) & (np.append(self.least, 0)[where] <= layouts.dp)


def replica_bounds(
    model: Model,
    system: System,
    space: Space,
    capacity_bytes: float,
    most: int,
    fit: FitTest = PREDICTED,
) -> ReplicaBounds:
    """Find the least and the most replicas of every combination of degrees.

    The more replicas, the less memory each rank needs: they share the optimizer state, and each
    runs fewer micro-batches. So degrees that do not fit with the most replicas never fit; the
    others have a least number, found by bisection. Rules that depend on the number of replicas are
    not checked.
    """
    case = Case(
        model=model,
        system=system,
        space=space.settled(model, system),
        capacity_bytes=capacity_bytes,
        fit=fit,
    )
    shapes: list[ReplicaShape] = []
    rejected: Counter[str] = Counter()
    shortfalls: list[Shortfall] = []
    found = [(np.empty((0, len(_DEGREES)), np.int64), np.empty(0, np.int64))]
    for batch in case.space.global_batch_size or ():
        layouts, broken = _widest_layouts(case, int(batch), most)
        least, reasons, lacking = _least_replicas(case, layouts)
        fitting = least <= layouts.dp
        layouts, least = layouts.take(fitting), least[fitting]
        found.append((np.stack([getattr(layouts, name) for name in _DEGREES], axis=1), least))
        shapes += _shapes(layouts, least)
        rejected += broken + reasons
        shortfalls += lacking
    degrees, replicas = map(np.concatenate, zip(*found, strict=True))
    firsts, group = distinct_rows(list(degrees.T))
    fewest = np.full(firsts.size, np.iinfo(np.int64).max)
    np.minimum.at(fewest, np.broadcast_to(group, len(degrees)), replicas)
    return ReplicaBounds(
        shapes=tuple(shapes),
        degrees=degrees[firsts],
        least=fewest,
        rejected=rejected,
        shortfall=None if shapes else min(shortfalls, key=lambda one: one.bytes, default=None),
    )


def possible_shapes(case: Case, most: int) -> Iterator[ReplicaShape]:
    """Every combination of degrees on at most so many accelerators, whether it fits or not."""
    for batch in case.space.global_batch_size or ():
        layouts = _widest_layouts(case, int(batch), most)[0]
        yield from _shapes(layouts, np.ones_like(layouts.dp))


def _least_replicas(case: Case, layouts: Table) -> tuple[Ints, Counter[str], list[Shortfall]]:
    """Find the least replicas of layouts, with all options and choices.

    The bytes of layers do not depend on the replicas, so they are computed once for all numbers.

    Returns the least replicas of each layout (more than it has where nothing fits), how many
    candidates break a rule by reason, and what pieces without a feasible candidate lack.
    """
    least = layouts.dp + 1
    rejected: Counter[str] = Counter()
    shortfalls: list[Shortfall] = []
    scale = Scale(gpus=0, global_batch_size=0)
    for positions, box in boxes_of(case.model, case.system, case.space, scale, layouts):
        for piece in box.cut(PIECE_ROWS):
            first = piece.start // piece.width
            own = positions[first : first + len(piece.layouts)]
            table = piece.table()
            broken = first_violation(case.model, case.system, table, _OPTION_RULES)
            broken = np.broadcast_to(broken, (len(piece.choices), len(table)))
            rejected.update(broken_reasons(broken))
            rows = MemoryEvaluator.of(
                *(case.model, case.system, table, broken, case.capacity_bytes), fit=case.fit
            )
            bounds = [np.empty(0)]
            for chunk in rows.memory():
                bounds.append(_replicas_needed(case, table.take(chunk.rows), chunk))
                if not chunk.feasible.any():
                    shortfalls.extend(_shortfall(case, piece, chunk))
            found = _bisected(rows, len(piece.options), np.concatenate(bounds), piece.layouts.dp)
            least[own] = np.minimum(least[own], found)
    return least, rejected, shortfalls


def _bisected(rows: MemoryEvaluator, options: int, bound: Floats, most: Ints) -> Ints:
    """Least replicas with which some option of each layout fits; more than `most` if none does.

    Parameters
    ----------
    options
        Rows of each layout, of which some may be missing.
    bound
        Lower bound of the replicas of each row; infinite where nothing fits.
    most
        Replicas of each layout.
    """
    layout = rows.positions // options
    lowest = np.full(most.size, np.inf)
    np.minimum.at(lowest, layout, bound)
    high = np.where(np.isfinite(lowest), most, most + 1)
    low = np.where(np.isfinite(lowest), lowest, high).astype(np.int64)
    tried = low.copy()
    while (low < high).any():
        at = np.flatnonzero((low < high)[layout] & (bound <= tried[layout]))
        fitting = np.zeros(most.size, dtype=np.bool_)
        for chunk in rows.with_replicas(at, tried[layout[at]]).memory():
            fitting[chunk.rows[chunk.feasible.any(axis=0)] // options] = True
        high = np.where((low < high) & fitting, tried, high)
        low = np.where((low < high) & ~fitting, tried + 1, low)
        tried = (low + high) // 2
    return high


def _widest_layouts(case: Case, batch: int, most: int) -> tuple[Table, Counter[str]]:
    """Every combination of degrees, chunks and micro-batches, with the most replicas."""
    system, space = case.system, case.space
    degrees = {axis: space.values(axis, system) or _open_degrees(case, axis) for axis in _DEGREES}
    micro = space.values("micro_batch_size", system) or (1,)
    shards = [n or 0 for n in space.values("dp_shard", system) or (None,)]
    splits = LayerSplits(case.model, system, space)
    rejected: Counter[str] = Counter()
    rows = []
    for tp, tp2, cp, pp in product(*(degrees[axis] for axis in REPLICA_DEGREES)):
        ranks = tp * tp2 * cp * pp
        experts = expert_degrees(degrees["ep"], degrees["etp"], tp)
        for (vpp, schedule), mbs in product(_chunks(system, space), micro):
            dp = min(batch // mbs, most // ranks)
            dp = max((n for n in space.values("dp", system) or (dp,) if n <= dp), default=0)
            shared = space.batch == "largest" or batch % mbs == 0
            ways = list(product(experts, splits.of(pp, vpp, schedule), shards))
            if dp and shared:
                rows += [(tp, tp2, cp, *e, pp, vpp, schedule, s, mbs, z, dp) for e, s, z in ways]
            else:
                rejected["accelerators" if most < ranks else "batch"] += len(ways)
    columns: list[Any] = list(map(list, zip(*rows, strict=True))) or [[] for _ in _COLUMNS]
    named = {n: np.array(c, np.int64) for n, c in zip(_COLUMNS, columns, strict=True)}
    split = splits.take(named.pop("split"))
    table = replace(Table.of(case.model, {**named, "gbs": batch, "seq_len": 1}), **split)
    broken = first_violation(case.model, system, table, _LAYOUT_RULES)
    return table.take(broken < 0), rejected + broken_reasons(broken)


def _open_degrees(case: Case, axis: str) -> list[int]:
    """Degrees of an axis that a space leaves open and no rule about the axis excludes."""
    model = case.model
    most = {"tp": most_heads(model), "pp": model.depth}
    degrees = list(range(1, most.get(axis, _MOST_OPEN) + 1))
    degrees = [one for one in degrees if one <= case.space.most(axis, model, case.system)]
    if axis == "cp":
        return long_enough(model, case.space, degrees, case.system)
    table = Table.of(model, {axis: degrees, "dp": 1, "gbs": 1, "seq_len": 1})
    broken = first_violation(model, case.system, table, _LAYOUT_RULES)
    return [degree for degree, rule in zip(degrees, broken.tolist(), strict=True) if rule < 0]


def _chunks(system: System, space: Space) -> list[tuple[int, int]]:
    """Chunks per stage with their schedules; one chunk, which needs least, where they are open."""
    chunks = space.values("vpp", system)
    allowed = space.values("schedule", system) or tuple(Schedule)
    plain = [word for word in allowed if word != "interleaved"] or ["1f1b"]
    if chunks is None:
        return [(1, Schedule(word).code) for word in plain]
    found = []
    for number in chunks:
        own = [word for word in allowed if (word == "interleaved") == (number > 1)]
        found += [(number, Schedule(word).code) for word in own or allowed[:1]]
    return found


def _replicas_needed(case: Case, table: Table, chunk: Evaluated) -> Floats:
    """Least replicas of each row, over its choices: dp >= O dp_most / (capacity - A).

    O is the optimizer state of a rank with the most replicas dp_most, A all its other memory.
    """
    holding, per_byte = chunk.holding_of, case.fit.per_byte(case.system, table)
    spare = (case.capacity_bytes - chunk.needed_bytes[holding]) / per_byte
    state = chunk.tested.memory.state[holding]
    room = np.where(chunk.feasible, state + spare, np.inf)
    needed = table.dp * state / np.where(room > 0, room, 1.0)
    needed = np.where((table.zero >= ZERO_OPTIMIZER) & (room > 0), needed, 1.0)
    needed = np.maximum(1.0, np.ceil(needed * (1 - _ROUNDING)))
    return np.where(chunk.feasible, needed, np.inf).min(axis=0)


def _shapes(layouts: Table, least: Ints) -> Iterator[ReplicaShape]:
    ranks = layouts.tp * layouts.tp2 * layouts.cp * layouts.pp
    columns = ranks, layouts.micro_batch_size, layouts.global_batch_size, least, layouts.dp
    for values in np.stack(columns).T.tolist():
        yield ReplicaShape(*values)


def _shortfall(case: Case, piece: Box, chunk: Evaluated) -> Iterator[Shortfall]:
    """What the candidate of a chunk that needs least lacks on its tier with the most excess."""
    excess = chunk.excess_bytes(case.system, case.capacity_bytes)
    worst = np.where(chunk.legal, excess.max(axis=0), np.inf)
    choice, row = np.unravel_index(np.argmin(worst), worst.shape)
    if np.isfinite(worst[choice, row]):
        number = piece.numbers(chunk.rows[row : row + 1], np.array([choice]))
        yield Shortfall(
            tier=int(np.argmax(excess[:, choice, row])),
            bytes=float(worst[choice, row]),
            strategy=piece.strategies(number),
        )


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
    fit: FitTest = PREDICTED,
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
    fit
        When a strategy fits.
    """
    started = time.perf_counter()
    the_model, the_system = Model.load(model), System.load(system)
    usable = the_system.accelerator.memory[0].capacity if capacity_bytes is None else capacity_bytes
    least = max(map(int, space.gpus or (0,))) if above is None else above
    limit = min(n for n in (most, the_system.network[-1].domain, _MOST_GPUS) if n is not None)
    deciding = least_memory_space(the_model, the_system, space.fixed({"gpus": 1}, source="space"))
    Candidates.of(the_model, the_system, deciding)  # raises if a value is missing
    case = Case(model=the_model, system=the_system, space=deciding, capacity_bytes=usable, fit=fit)
    refused = space.for_model(the_model).never_run(the_system)
    return SmallestGpus(
        **(_never(case, refused) if refused else _search(case, least, limit, progress)),
        above=least,
        most=None if limit == _MOST_GPUS else limit,
        spacing=the_system.node.accelerators,
        elapsed_s=time.perf_counter() - started,
    )


_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("gpus", "strategy", "none_below", "reason", "problem")),
    "judged": 0,
}


def _never(case: Case, refused: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Nothing, as no software of the space can run values that it sets."""
    names = ", ".join(dict.fromkeys(stack.name for stack in case.space.stacks(case.system)))
    values = ", ".join(f"{name} {' or '.join(map(str, v))}" for name, v in refused.items())
    problem = f"{names} cannot run {values}; --any-software lifts this"
    return _NOTHING | {"reason": SOFTWARE_CONSTRAINT.reason, "problem": problem}


def _search(case: Case, above: int, limit: int, progress: Progress | None) -> dict[str, Any]:
    """Evaluate numbers of accelerators in ascending order, up to the first feasible one."""
    found = dict(_NOTHING)
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
        bounds = replica_bounds(
            *(case.model, case.system, case.space, case.capacity_bytes, most), case.fit
        )
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
        each = memory_of_each(*(case.model, case.system, pieces, case.capacity_bytes), case.fit)
        for piece, (broken, some) in zip(pieces, each, strict=True):
            rejected += broken_reasons(broken)
            if some is None:
                continue
            choice, row = (index[:1] for index in np.nonzero(some.feasible))
            if row.size:
                number = piece.numbers(some.rows[row], choice)
                return candidates.strategies(number).strategy(0).to_dict(), rejected
            over = some.over_capacity(case.capacity_bytes)
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
        return reason, f"no combination of degrees obeys the rules on any number of GPUs: {counts}"
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
    return "node", f"no degrees of the space that fit use exactly {nodes}"


def _too_full(system: System, shortfall: Shortfall) -> tuple[str, str]:
    """What memory lacks even with the most replicas."""
    row = shortfall.strategy
    shown = (axis for axis in RANK_DEGREES if axis != "tp2" or row.tp2[0] > 1)
    axes = " x ".join(f"{axis} {int(getattr(row, axis)[0])}" for axis in shown)
    problem = (
        f"even on {counted(int(row.gpus[0]), 'GPU')} ({axes}) the strategy that needs least memory "
        f"lacks {readable(shortfall.bytes, 'bytes')} of "
        f"{tier_words(system.accelerator.memory[shortfall.tier].name)}; "
        "more replicas are not possible"
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
    degrees = space.values("tp", system) or range(1, most_heads(model) + 1)
    heads = {heads for _, heads in split_heads(model)}
    split = [tp for tp in degrees if not any(number % tp for number in heads)]
    lengths = [length or model.seq_len or 1 for length in _values(space, system, "seq_len")]
    uneven = any(length % tp for length in lengths for tp in split)
    return "p2p_rs_ag" not in exchanges or not uneven
