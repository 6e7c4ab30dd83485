"""Degrees on which a model fits if there are enough replicas, and how many it takes at least."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.enums import ZERO_OPTIMIZER, Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.planning.search.candidates import Box, Scale, boxes_of
from shardwise.planning.search.evaluate import Evaluated, Judge, broken_reasons, excess_bytes
from shardwise.planning.search.layer_splits import LayerSplits
from shardwise.planning.search.layouts import expert_degrees, long_enough
from shardwise.planning.search.space import Space

__all__ = ["Lack", "Spread", "Widest", "widest"]

# Whether these are obeyed depends on the number of replicas, so they are left for later.
_LATER = (
    *("accelerators", "batch", "edges", "expert_ranks"),
    *("dualpipe", "dp_shard", "dp_shard_experts"),
)
_LAYOUT_RULES = tuple(
    r for r in CONSTRAINTS if r.layout_only and r.reason not in _LATER and "tier" not in r.reason
)
_OPTION_RULES = tuple(r for r in CONSTRAINTS if not r.layout_only and r.reason not in _LATER)
_PIECE_ROWS = 1 << 16
# Beyond it a degree that a space leaves open is not tried.
_MOST_OPEN = 1 << 10
_COLUMNS = (
    *("tp", "tp2", "cp", "ep", "etp", "pp"),
    *("vpp", "schedule", "spread", "mbs", "dp_shard", "dp"),
)
# The last digits of a quotient.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Degrees beside data parallelism."""

    ranks: int
    """Accelerators of one replica."""
    micro_batch_size: int
    global_batch_size: int
    """Or what it may not exceed."""
    least: int
    """With fewer replicas nothing fits."""
    most: int
    """There cannot be more replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What the roomiest strategy lacks."""

    tier: int
    """Memory tier."""
    bytes: float
    strategy: Table
    """One row; not every number of replicas need be legal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widest:
    """A space with every replica that its batch allows."""

    spreads: tuple[Spread, ...]
    """Those on which something fits."""
    refused: Counter[str]
    """How many others break a rule with any number of replicas, by reason."""
    lack: Lack | None
    """Where nothing fits though something is legal."""


def widest(model: Model, system: System, space: Space, capacity_bytes: float, most: int) -> Widest:
    """Judge every combination of degrees with the most replicas that it may have, and with fewer.

    The more replicas, the less each rank holds: the optimizer state is split over them, and each
    runs fewer micro-batches. So what does not fit with the most of them never fits; what does has
    a least number, found by bisection. Rules that depend on that number are not looked at.

    Parameters
    ----------
    most
        Accelerators.
    """
    space = space.settled(model)
    spreads: list[Spread] = []
    refused: Counter[str] = Counter()
    lacks: list[Lack] = []
    for batch in space.global_batch_size or ():
        layouts, wrong = _layouts(model, system, space, int(batch), most)
        case = _Case(model=model, system=system, space=space, capacity_bytes=capacity_bytes)
        view = case.view(layouts)
        fitting = np.isfinite(view.least)
        spreads += _spreads(layouts.take(fitting), _bisected(case, layouts, view.least)[fitting])
        refused += wrong + view.refused
        lacks += view.lacks
    return Widest(
        spreads=tuple(spreads),
        refused=refused,
        lack=min(lacks, key=lambda lack: lack.bytes, default=None) if not spreads else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """Layouts with certain numbers of replicas."""

    least: Floats
    """Replicas that each needs at least, infinite where nothing fits."""
    refused: Counter[str]
    lacks: list[Lack]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is to fit onto what, and how."""

    model: Model
    system: System
    space: Space
    capacity_bytes: float

    def view(self, layouts: Table) -> _View:
        """Judge layouts with everything that may be tried on them, by memory alone."""
        view = _View(least=np.full(len(layouts), np.inf), refused=Counter(), lacks=[])
        for rows, piece in self._pieces(layouts):
            table = piece.table()
            broken = first_violation(self.model, self.system, table, _OPTION_RULES)
            broken = np.broadcast_to(broken, (len(piece.choices), len(table)))
            view.refused.update(broken_reasons(broken))
            room = self.capacity_bytes
            for judged in Judge.of(self.model, self.system, table, broken, room).weighed():
                needed = _least_replicas(table.take(judged.rows), judged, room)
                np.minimum.at(view.least, rows[judged.rows // len(piece.options)], needed)
                if not judged.feasible.any():
                    view.lacks.extend(_lack(self.system, piece, judged, room))
        return view

    def _pieces(self, layouts: Table) -> Iterator[tuple[Ints, Box]]:
        """Pieces of layouts, each with the positions of its layouts."""
        scale = Scale(gpus=0, global_batch_size=0)
        for rows, box in boxes_of(self.model, self.system, self.space, scale, layouts):
            for piece in box.cut(_PIECE_ROWS):
                first = piece.start // piece.width
                yield rows[first : first + len(piece.layouts)], piece


def _bisected(case: _Case, layouts: Table, bound: Floats) -> Ints:
    """Least replicas with which something of each layout fits, those that nothing fits aside.

    Parameters
    ----------
    layouts
        With the most replicas.
    bound
        Less than which is not enough.
    """
    high = layouts.dp.copy()
    low = np.where(np.isfinite(bound), bound, high).astype(np.int64)
    tried = low.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        some = replace(layouts.take(open_), dp=tried[open_])
        fitting = np.isfinite(case.view(some).least)
        high[open_] = np.where(fitting, tried[open_], high[open_])
        low[open_] = np.where(fitting, low[open_], tried[open_] + 1)
        tried = (low + high) // 2
    return high


def _layouts(
    model: Model, system: System, space: Space, batch: int, most: int
) -> tuple[Table, Counter[str]]:
    """Every combination of degrees, chunks and micro-batches, with the most replicas."""
    axes = ("tp", "tp2", "cp", "pp", "ep", "etp")
    degrees = {a: space.values(a, system) or _open(model, system, space, a) for a in axes}
    micro = space.values("micro_batch_size", system) or (1,)
    shards = [n or 0 for n in space.values("dp_shard", system) or (None,)]
    spreads = LayerSplits(model, system, space)
    refused: Counter[str] = Counter()
    rows = []
    for tp, tp2, cp, pp in product(*(degrees[axis] for axis in axes[:4])):
        ranks = tp * tp2 * cp * pp
        experts = expert_degrees(degrees["ep"], degrees["etp"], tp)
        for (vpp, schedule), mbs in product(_chunks(system, space), micro):
            dp = min(batch // mbs, most // ranks)
            dp = max((n for n in space.values("dp", system) or (dp,) if n <= dp), default=0)
            shared = space.batch == "largest" or batch % mbs == 0
            ways = list(product(experts, spreads.of(pp, vpp, schedule), shards))
            if dp and shared:
                rows += [(tp, tp2, cp, *e, pp, vpp, schedule, s, mbs, z, dp) for e, s, z in ways]
            else:
                refused["accelerators" if most < ranks else "batch"] += len(ways)
    columns: list[Any] = list(map(list, zip(*rows, strict=True))) or [[] for _ in _COLUMNS]
    named = {n: np.array(c, np.int64) for n, c in zip(_COLUMNS, columns, strict=True)}
    spread = spreads.take(named.pop("spread"))
    table = replace(Table.of(model, {**named, "gbs": batch, "seq_len": 1}), **spread)
    broken = first_violation(model, system, table, _LAYOUT_RULES)
    return table.take(broken < 0), refused + broken_reasons(broken)


def _open(model: Model, system: System, space: Space, axis: str) -> list[int]:
    """Degrees of an axis that a space leaves open and no rule about the axis forbids."""
    most = {"tp": max(layer.attention.heads for layer in model.layers), "pp": model.depth}
    degrees = list(range(1, most.get(axis, _MOST_OPEN) + 1))
    if axis == "cp":
        return long_enough(model, space, degrees, system)
    table = Table.of(model, {axis: degrees, "dp": 1, "gbs": 1, "seq_len": 1})
    broken = first_violation(model, system, table, _LAYOUT_RULES)
    return [degree for degree, rule in zip(degrees, broken.tolist(), strict=True) if rule < 0]


def _chunks(system: System, space: Space) -> list[tuple[int, int]]:
    """Chunks per stage, each with its schedule; one, which holds least, where they are open."""
    given = space.values("vpp", system)
    allowed = space.values("schedule", system) or tuple(Schedule)
    plain = [word for word in allowed if word != "interleaved"] or ["1f1b"]
    if given is None:
        return [(1, Schedule(word).code) for word in plain]
    found = []
    for chunks in given:
        own = [word for word in allowed if (word == "interleaved") == (chunks > 1)]
        found += [(chunks, Schedule(word).code) for word in own or allowed[:1]]
    return found


def _least_replicas(table: Table, judged: Evaluated, capacity_bytes: float) -> Floats:
    """Least replicas of each row, over its choices: dp >= O dp_most / (capacity - A).

    O is the optimizer state of a rank with the most replicas dp_most, A all else that it holds.
    """
    split = judged.held_as
    slack = table.by_stack(lambda stack: stack.allocator_slack)
    spare = (capacity_bytes - judged.holding.reserved_bytes[split]) / slack
    state = judged.holding.memory.optimizer[split]
    room = np.where(judged.feasible, state + spare, np.inf)
    needed = table.dp * state / np.where(room > 0, room, 1.0)
    needed = np.where((table.zero >= ZERO_OPTIMIZER) & (room > 0), needed, 1.0)
    needed = np.maximum(1.0, np.ceil(needed * (1 - _ROUNDING)))
    return np.where(judged.feasible, needed, np.inf).min(axis=0)


def _spreads(layouts: Table, least: Ints) -> Iterator[Spread]:
    ranks = layouts.tp * layouts.tp2 * layouts.cp * layouts.pp
    columns = ranks, layouts.micro_batch_size, layouts.global_batch_size, least, layouts.dp
    names = ("ranks", "micro_batch_size", "global_batch_size", "least", "most")
    for values in zip(*(column.tolist() for column in columns), strict=True):
        yield Spread(**dict(zip(names, values, strict=True)))


def _lack(system: System, piece: Box, judged: Evaluated, capacity_bytes: float) -> Iterator[Lack]:
    """What the roomiest of a chunk lacks on the tier that lacks most."""
    whole = excess_bytes(system, judged.holding, capacity_bytes)[:, judged.held_as]
    worst = np.where(judged.legal, whole.max(axis=0), np.inf)
    choice, row = np.unravel_index(np.argmin(worst), worst.shape)
    if np.isfinite(worst[choice, row]):
        number = piece.numbers(judged.rows[row : row + 1], np.array([choice]))
        yield Lack(
            tier=int(np.argmax(whole[:, choice, row])),
            bytes=float(worst[choice, row]),
            strategy=piece.strategies(number),
        )
