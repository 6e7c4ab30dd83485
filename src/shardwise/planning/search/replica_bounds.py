"""`replica_bounds`: the replicas that every combination of degrees but dp needs to fit."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.enums import ZERO_OPTIMIZER, Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_fields import LAYER_AXES, REPLICA_DEGREES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import distinct_rows
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.constraints.software import SOFTWARE_CONSTRAINT
from shardwise.planning.search.candidates import Box, Scale, boxes_of
from shardwise.planning.search.evaluate import (
    Evaluated,
    MemoryEvaluator,
    broken_reasons,
    excess_bytes,
)
from shardwise.planning.search.layouts import LayerSplits, expert_degrees, long_enough
from shardwise.planning.search.limits import position_in
from shardwise.planning.search.space import Space

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
    model: Model, system: System, space: Space, capacity_bytes: float, most: int
) -> ReplicaBounds:
    """Find the least and the most replicas of every combination of degrees.

    The more replicas, the less memory each rank needs: they share the optimizer state, and each
    runs fewer micro-batches. So degrees that do not fit with the most replicas never fit; the
    others have a least number, found by bisection. Rules that depend on the number of replicas are
    not checked.

    Parameters
    ----------
    capacity_bytes
        Usable part of the first memory tier.
    most
        Largest number of accelerators.
    """
    case = Case(
        model=model,
        system=system,
        space=space.settled(model, system),
        capacity_bytes=capacity_bytes,
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
            rows = MemoryEvaluator.of(case.model, case.system, table, broken, case.capacity_bytes)
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
    most = {"tp": max(layer.attention.heads for layer in model.layers), "pp": model.depth}
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
    holding = chunk.holding_of
    needed = chunk.holding.needed_bytes(case.system)
    slack = table.by_stack(lambda stack: stack.allocator_slack)
    slack = slack if needed is chunk.holding.reserved_bytes else np.ones_like(slack)
    spare = (case.capacity_bytes - needed[holding]) / slack
    state = chunk.holding.memory.state[holding]
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
    excess = excess_bytes(case.system, chunk.holding, case.capacity_bytes)[:, chunk.holding_of]
    worst = np.where(chunk.legal, excess.max(axis=0), np.inf)
    choice, row = np.unravel_index(np.argmin(worst), worst.shape)
    if np.isfinite(worst[choice, row]):
        number = piece.numbers(chunk.rows[row : row + 1], np.array([choice]))
        yield Shortfall(
            tier=int(np.argmax(excess[:, choice, row])),
            bytes=float(worst[choice, row]),
            strategy=piece.strategies(number),
        )
