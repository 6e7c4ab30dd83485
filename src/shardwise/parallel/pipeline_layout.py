"""Which layers stand on which pipeline rank: runs of equal ranks, as columns.

A pipeline has p ranks; with v chunks a rank holds v virtual stages, in the V of zb-v two, and in
dualpipe one of each direction. Layers are spread over virtual stages in the order of the model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather, once_per
from shardwise.config.enums import Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table

__all__ = [
    "BOTH_ENDS_ON_A_RANK",
    "Contents",
    "StageRun",
    "by_stage",
    "chunks_of",
    "distinct_runs",
    "layers_on_ranks",
    "most_layers",
    "stage_runs",
    "virtual_stages",
]

BOTH_ENDS_ON_A_RANK = (Schedule.ZB_V.code, Schedule.DUALPIPE.code)
"""Schedules (positions in `Schedule`) whose first rank holds embedding and head."""


class Contents:
    """What stands where on ranks, once for each distinct pipeline; not taken by row, but by key."""

    __slots__ = ("after", "chunks")

    def __init__(self, *, after: Floats, chunks: Floats) -> None:
        self.after = after
        """For each part that is made of layers, how many of each such part stand after its last
        one; shape (pipelines, parts, parts)."""
        self.chunks = chunks
        """How many of each such part stand in every chunk; shape (pipelines, chunks, parts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """Equal ranks that follow one another in the pipeline; length 0 where a row has fewer runs.

    Parts of the model are counted in this order: each kind of layer, as far as it recomputes; each
    kind as far as it does not; modules of multi-token prediction; the embedding; the head.
    """

    length: Floats
    first: Ints
    """Position of its first rank."""
    work: tuple[Floats, ...]
    """How many of each part a micro-batch passes on a rank; in dualpipe, the mean of both
    directions."""
    held: tuple[Floats, ...]
    """How many of each part a rank holds the weights of."""
    own: tuple[Floats, ...]
    """How many layers of each kind, as far as they recompute and as far as not, a micro-batch
    passes on a rank; in dualpipe, on the stage of its number."""
    unlike: Bools
    """Whether a rank's chunks hold different layers."""
    irregular: Bools
    """Whether its chunks but the first and the last do."""
    layers: Floats
    """Layers held."""
    key: Ints
    """The same number in rows whose pipelines are alike: their position in `contents`."""
    contents: Contents

    @property
    def last(self) -> Ints:
        """Position of its last rank."""
        return self.first + np.maximum(self.length, 1).astype(np.int64) - 1


def most_layers(depth: int, stages: Ints) -> Ints:
    """Layers on the longest stage of an even spread: depth / stages, rounded up."""
    return -(-depth // stages)


def chunks_of(table: Table) -> Ints:
    """Virtual stages on a rank."""
    return np.where(table.schedule == Schedule.ZB_V.code, 2, table.vpp)


def stage_runs(model: Model, table: Table) -> tuple[StageRun, ...]:
    """Runs of equal ranks of every row's pipeline."""
    runs, where = distinct_runs(model, table)
    return gather(runs, where)


def distinct_runs(model: Model, table: Table) -> tuple[tuple[StageRun, ...], Ints]:
    """Runs of every distinct pipeline, and which one each row has."""
    columns = (
        table.pp,
        table.vpp,
        table.schedule,
        table.first_stage_layers,
        table.last_stage_layers,
        table.stage_layers,
        table.embedding_as_layer,
        table.loss_as_layer,
        table.recompute_layers,
    )

    def of_rows(rows: Ints) -> tuple[StageRun, ...]:
        order = model.order
        every = [_runs_of(_Pipeline.of(model, table, order, row)) for row in rows.tolist()]
        return _as_columns(every, max(map(len, every), default=1))

    return once_per(columns, of_rows)


def by_stage(runs: Sequence[StageRun]) -> StageRun:
    """The runs of one row as columns of one value per stage."""
    which = np.repeat(np.arange(len(runs)), [int(run.length[0]) for run in runs])

    def every(columns: Iterable[Floats]) -> Floats:
        return np.array([float(column[0]) for column in columns])[which]

    parts = range(len(runs[0].work))
    return StageRun(
        length=np.ones(len(which)),
        first=np.arange(len(which)),
        work=tuple(every(run.work[n] for run in runs) for n in parts),
        held=tuple(every(run.held[n] for run in runs) for n in parts),
        own=tuple(every(run.own[n] for run in runs) for n in range(len(runs[0].own))),
        unlike=np.array([bool(run.unlike[0]) for run in runs])[which],
        irregular=np.array([bool(run.irregular[0]) for run in runs])[which],
        layers=every(run.layers for run in runs),
        key=which,
        contents=Contents(
            after=np.array([run.contents.after[run.key[0]] for run in runs]),
            chunks=np.array([run.contents.chunks[run.key[0]] for run in runs]),
        ),
    )


def virtual_stages(model: Model, table: Table, row: int = 0) -> StageRun:
    """Every virtual stage of one row by itself, first to last: columns of one value each.

    What recomputes so many layers of a rank takes them from its first chunks.
    """
    every = enumerate(_ranks(_Pipeline.of(model, table, model.order, row), apart=True))
    stages = [(1, place, content) for place, content in every]
    return by_stage(_as_columns([stages], len(stages)))


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """What one row's ranks depend on."""

    order: tuple[int, ...]
    """The kind of every layer."""
    kinds: int
    mtp: int
    stages: int
    schedule: int
    sizes: tuple[int, ...]
    """Layers on every virtual stage."""
    recompute_layers: int

    @classmethod
    def of(cls, model: Model, table: Table, order: tuple[int, ...], row: int) -> "_Pipeline":
        return cls(
            order=order,
            kinds=len(model.layers),
            mtp=model.mtp,
            stages=int(table.pp[row]),
            schedule=int(table.schedule[row]),
            sizes=tuple(layers_on_ranks(model.depth, table, row)),
            recompute_layers=int(table.recompute_layers[row]) or model.depth,
        )


@dataclass(frozen=True, slots=True)
class _Rank:
    work: tuple[float, ...]
    held: tuple[float, ...]
    own: tuple[float, ...]
    chunks: tuple[tuple[float, ...], ...]
    after: tuple[tuple[float, ...], ...]
    layers: int


# A search meets the same pipelines again and again: with every tp, batch, placement ...
@lru_cache(maxsize=1 << 14)
def _runs_of(pipeline: _Pipeline) -> tuple[tuple[int, int, _Rank], ...]:
    """Length, first position and content of each run of equal ranks."""
    runs, first = [], 0
    for content, equal in groupby(_ranks(pipeline)):
        length = len(list(equal))
        runs.append((length, first, content))
        first += length
    return tuple(runs)


def _as_columns(every: Sequence[Any], most: int) -> tuple[StageRun, ...]:
    """Runs by position; a row that has fewer repeats its first with length 0."""
    columns = []
    for position in range(most):
        runs = [
            row[position] if position < len(row) else (0, row[0][1], row[0][2]) for row in every
        ]
        columns.append(
            StageRun(
                length=np.array([float(length) for length, _, _ in runs]),
                first=np.array([first for _, first, _ in runs], dtype=np.int64),
                work=_transposed([rank.work for _, _, rank in runs]),
                held=_transposed([rank.held for _, _, rank in runs]),
                own=_transposed([rank.own for _, _, rank in runs]),
                unlike=np.array([len(set(rank.chunks)) > 1 for _, _, rank in runs]),
                irregular=np.array([len(set(rank.chunks[1:-1])) > 1 for _, _, rank in runs]),
                layers=np.array([float(rank.layers) for _, _, rank in runs]),
                key=np.arange(len(every)),
                contents=_contents([rank for _, _, rank in runs]),
            )
        )
    return tuple(columns)


def _contents(ranks: Sequence[_Rank]) -> Contents:
    """Of one rank of each pipeline; chunks that it does not have are empty."""
    most = max((len(rank.chunks) for rank in ranks), default=1)
    chunks = np.zeros((len(ranks), most, len(ranks[0].after) if ranks else 0))
    for row, rank in enumerate(ranks):
        chunks[row, : len(rank.chunks)] = rank.chunks
    return Contents(after=np.array([rank.after for rank in ranks]), chunks=chunks)


def _transposed(rows: Sequence[tuple[float, ...]]) -> tuple[Floats, ...]:
    return tuple(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))


def _ranks(pipeline: _Pipeline, *, apart: bool = False) -> list[_Rank]:
    """Content of every pipeline rank, first to last; or of every virtual stage."""
    stages, schedule, sizes = pipeline.stages, pipeline.schedule, pipeline.sizes
    order, most_again = pipeline.order, pipeline.recompute_layers
    starts = np.cumsum([0, *sizes]).tolist()
    virtual = [
        (order[start : start + size], place == 0, place == len(sizes) - 1)
        for place, (start, size) in enumerate(zip(starts, sizes, strict=False))
    ]
    kinds = range(pipeline.kinds)

    def counted(layers: Sequence[int], first: int) -> tuple[float, ...]:
        parted = layers[:first], layers[first:]
        return tuple(float(some.count(kind)) for some in parted for kind in kinds)

    def rank(places: Sequence[int], share: float, first: int = most_again) -> _Rank:
        """What stands there, of which so many first layers recompute (in dualpipe, by stage)."""
        chunks, in_order, before = [], [], 0
        for here, _, is_last in (virtual[place] for place in places):
            again = max(0, first - before)
            modules = int(is_last) * pipeline.mtp
            chunks.append((*counted(here, again), float(modules)))
            in_order += [*here[:again], *(kind + len(kinds) for kind in here[again:])]
            in_order += [2 * len(kinds)] * modules
            before += 0 if schedule == Schedule.DUALPIPE.code else len(here)
        layers = tuple(map(sum, zip(*chunks, strict=True)))
        ends = tuple(float(any(virtual[place][end] for place in places)) for end in (1, 2))
        held = (*layers, *ends)
        work = tuple(share * count for count in held)
        own = (layers if share == 1 else chunks[0])[:-1]
        after = _after_last(in_order, 2 * len(kinds) + 1)
        return _Rank(work, held, own, tuple(chunks), after, round(sum(layers[:-1])))

    if apart:
        before = _earlier_on_rank(sizes, stages, zb_v=schedule == Schedule.ZB_V.code)
        left = [max(0, most_again - earlier) for earlier in before]
        return [rank((place,), 1.0, first) for place, first in enumerate(left)]
    if schedule == Schedule.DUALPIPE.code:
        return [rank((place, stages - 1 - place), 0.5) for place in range(stages)]
    if schedule == Schedule.ZB_V.code:
        return [rank((place, 2 * stages - 1 - place), 1.0) for place in range(stages)]
    return [rank(range(place, len(sizes), stages), 1.0) for place in range(stages)]


def _earlier_on_rank(sizes: Sequence[int], stages: int, *, zb_v: bool) -> list[int]:
    """For every virtual stage, layers of earlier ones on its rank."""
    on_rank = [0] * stages
    earlier = []
    for place, size in enumerate(sizes):
        rank = 2 * stages - 1 - place if zb_v and place >= stages else place % stages
        earlier.append(on_rank[rank])
        on_rank[rank] += size
    return earlier


def _after_last(order: Sequence[int], parts: int) -> tuple[tuple[float, ...], ...]:
    """For each part, how many of each stand after its last occurrence; 0 where it has none."""
    counted = []
    for part in range(parts):
        last = max((place for place, other in enumerate(order) if other == part), default=None)
        later = order[last + 1 :] if last is not None else []
        counted.append(tuple(float(later.count(other)) for other in range(parts)))
    return tuple(counted)


def layers_on_ranks(depth: int, table: Table, row: int) -> list[int]:
    """Layers on every virtual stage of one row, in the order of the model.

    A list that was given is taken as it is. Else layers are spread evenly over the ranks, where
    embedding and head may count as a layer each; what is left over goes to the first ranks. Given
    counts of the first and the last rank stand, and the rest is spread over the others. A rank's
    layers, and what counts as one, are spread evenly over its chunks, the embedding in the first.
    """
    listed = int(table.stage_layers[row])
    if listed >= 0:
        return list(table.stage_lists[listed])
    stages, chunks = int(table.pp[row]), int(table.vpp[row])
    places = 2 * stages if int(table.schedule[row]) == Schedule.ZB_V.code else stages
    extra = bool(table.embedding_as_layer[row]), bool(table.loss_as_layer[row])
    given = int(table.first_stage_layers[row]), int(table.last_stage_layers[row])
    counts = _spread(depth, places, given, extra)
    embedding = int(extra[0] and not given[0] and places > 1)
    counts[0] += embedding
    sizes = [_share(count, chunks, chunk) for chunk in range(chunks) for count in counts]
    sizes[0] -= embedding
    return sizes


def _spread(depth: int, places: int, given: tuple[int, int], extra: tuple[bool, bool]) -> list[int]:
    """Layers on every rank; -1 where what is given leaves too few, or some, for no other rank."""
    first, last = given
    if places == 1:
        return [depth if first in {0, depth} and last in {0, depth} else -1]
    # What counts as a layer, but is none, where the count of its rank is not given.
    embedding, head = int(extra[0] and not first), int(extra[1] and not last)
    open_places = places - bool(first) - bool(last)
    left = depth - first - last + embedding + head
    if left < 0 or (open_places == 0 and left):
        return [-1] * places
    counts = [_share(left, open_places, place) for place in range(open_places)]
    counts = ([first] if first else []) + counts + ([last] if last else [])
    counts[0] -= embedding
    counts[-1] -= head
    return counts


def _share(number: int, places: int, place: int) -> int:
    """What one of several places gets of a number; the first ones get what is left over."""
    return number // places + (place < number % places)
