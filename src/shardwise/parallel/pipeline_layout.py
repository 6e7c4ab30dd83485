"""Which layers each pipeline rank has: groups of equal ranks, as columns.

A pipeline has p ranks. With v chunks a rank has v virtual stages, in the V of zb-v two, and in
dualpipe one of each direction. Layers are split over virtual stages in the order of the model.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, joined
from shardwise.config.enums import Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.distinct import Distinct, evaluate_distinct
from shardwise.records import dataclass, fields


class Contents:
    """Components on the ranks of each distinct pipeline, for all of its groups of ranks.

    Indexed by `StageGroup.key`, not row.
    """

    __slots__ = ("_last", "chunks", "order")

    def __init__(self, *, order: Ints, chunks: Floats) -> None:
        self.order = order
        """Components made of layers on the rank as they run, then -1; (pipelines, layers)."""
        self.chunks = chunks
        """How many of each such component every chunk has; (pipelines, chunks, components)."""
        self._last = np.full((len(order), chunks.shape[-1] + 1), order.shape[-1] - 1)
        rows = np.arange(len(order))
        for place, components in enumerate(order.T):  # the last column is that of the -1
            self._last[rows, components] = place

    def following(self, component: int) -> Ints:
        """How many of a component come after the last one of each component on the rank.

        Shape (pipelines, components). A table of all components would grow with their square.
        """
        left = np.zeros((len(self.order), self.order.shape[-1] + 1), dtype=np.int64)
        found = self.order[:, ::-1] == component
        np.cumsum(found, axis=1, out=left[:, -2::-1])
        counts: Ints = np.take_along_axis(left, self._last[:, :-1] + 1, axis=1)
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageGroup:
    """Consecutive equal ranks of the pipeline; length 0 where a row has fewer groups.

    Components of the model are counted in this order: layers of each kind that recompute; layers of
    each kind that do not; modules of multi-token prediction; the embedding; the head.
    """

    length: Floats
    """Number of ranks."""
    first: Ints
    """Position of its first rank."""
    work: tuple[Floats, ...]
    """Number of each component that a micro-batch passes on a rank; in dualpipe, the mean of both
    directions."""
    resident: tuple[Floats, ...]
    """Number of each component whose weights are on a rank."""
    stage_layers: tuple[Floats, ...]
    """Number of layers of each kind, recomputed and not, that a micro-batch passes on a rank; in
    dualpipe, on the stage of the rank's number."""
    uneven_chunks: Bools
    """Whether the chunks of a rank have different layers."""
    uneven_middle_chunks: Bools
    """Whether its chunks other than the first and the last do."""
    layers: Floats
    """Number of layers on a rank."""
    key: Ints
    """Position of the group of the row's pipeline in `contents`."""
    contents: Contents

    @property
    def last(self) -> Ints:
        """Position of its last rank."""
        return self.first + np.maximum(self.length, 1).astype(np.int64) - 1


def most_layers(depth: int, stages: Ints) -> Ints:
    """Layers on the longest stage of an even split: depth / stages, rounded up."""
    return -(-depth // stages)


def chunks_of(table: Table) -> Ints:
    """Virtual stages on a rank."""
    return np.where(table.schedule == Schedule.ZB_V.code, 2, table.vpp)


def stage_groups(model: Model, table: Table) -> tuple[StageGroup, ...]:
    """Groups of equal ranks of every row's pipeline."""
    return distinct_stage_groups(model, table).of_all()


def distinct_stage_groups(model: Model, table: Table) -> Distinct[tuple[StageGroup, ...]]:
    """Groups of equal ranks of every distinct pipeline."""
    order = model.order

    def groups(some: Table) -> tuple[StageGroup, ...]:
        every = [_groups_of(_Pipeline.of(model, some, order, row)) for row in range(len(some))]
        return _as_columns(every, max(map(len, every), default=1))

    return evaluate_distinct(groups, table)


def one_after_the_other(groups: Sequence[StageGroup]) -> StageGroup:
    """Groups of the same rows and `contents` as one group of so many times the rows."""
    columns: dict[str, Any] = {
        f.name: joined([getattr(g, f.name) for g in groups]) for f in fields(StageGroup)
    }
    return StageGroup(**{**columns, "contents": groups[0].contents})


def by_stage(groups: Sequence[StageGroup]) -> StageGroup:
    """The groups of one row as columns of one value per stage.

    Parameters
    ----------
    groups
        Stage groups of one row, first to last; columns of shape (1,).
    """
    which = np.repeat(np.arange(len(groups)), [int(group.length[0]) for group in groups])

    def every(columns: Iterable[Floats]) -> Floats:
        return np.array([float(column[0]) for column in columns])[which]

    components, kinds = range(len(groups[0].work)), range(len(groups[0].stage_layers))
    return StageGroup(
        length=np.ones(len(which)),
        first=np.arange(len(which)),
        work=tuple(every(group.work[n] for group in groups) for n in components),
        resident=tuple(every(group.resident[n] for group in groups) for n in components),
        stage_layers=tuple(every(group.stage_layers[n] for group in groups) for n in kinds),
        uneven_chunks=np.array([bool(group.uneven_chunks[0]) for group in groups])[which],
        uneven_middle_chunks=np.array([bool(group.uneven_middle_chunks[0]) for group in groups])[
            which
        ],
        layers=every(group.layers for group in groups),
        key=which,
        contents=Contents(
            order=_padded([group.contents.order[group.key[0]] for group in groups]),
            chunks=np.array([group.contents.chunks[group.key[0]] for group in groups]),
        ),
    )


def virtual_stages(model: Model, table: Table, row: int = 0) -> StageGroup:
    """Virtual stages of one row, first to last: columns of one value per stage.

    Recomputed layers, `recompute_layers` per rank, are those of its first chunks.
    """
    every = enumerate(_ranks(_Pipeline.of(model, table, model.order, row), by_chunk=True))
    stages = [(1, position, content) for position, content in every]
    return by_stage(_as_columns([stages], len(stages)))


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """The columns that one row's ranks depend on."""

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
    """One rank; fields as in `StageGroup` and `Contents`."""

    work: tuple[float, ...]
    resident: tuple[float, ...]
    stage_layers: tuple[float, ...]
    chunks: tuple[tuple[float, ...], ...]
    order: tuple[int, ...]
    layers: int


# A search repeats the same pipelines with every tp, batch, placement ...
@lru_cache(maxsize=1 << 14)
def _groups_of(pipeline: _Pipeline) -> tuple[tuple[int, int, _Rank], ...]:
    """Length, first position and content of each group of equal ranks."""
    groups, first = [], 0
    for content, equal in groupby(_ranks(pipeline)):
        length = len(list(equal))
        groups.append((length, first, content))
        first += length
    return tuple(groups)


def _as_columns(
    pipelines: Sequence[Sequence[tuple[int, int, _Rank]]], most: int
) -> tuple[StageGroup, ...]:
    """Groups by position; a row that has fewer repeats its first with length 0."""
    every = [
        [row[position] if position < len(row) else (0, row[0][1], row[0][2]) for row in pipelines]
        for position in range(most)
    ]
    contents = _contents([rank for groups in every for _, _, rank in groups])
    columns = []
    for position, groups in enumerate(every):
        columns.append(
            StageGroup(
                length=np.array([float(length) for length, _, _ in groups]),
                first=np.array([first for _, first, _ in groups], dtype=np.int64),
                work=_transposed([rank.work for _, _, rank in groups]),
                resident=_transposed([rank.resident for _, _, rank in groups]),
                stage_layers=_transposed([rank.stage_layers for _, _, rank in groups]),
                uneven_chunks=np.array([len(set(rank.chunks)) > 1 for _, _, rank in groups]),
                uneven_middle_chunks=np.array(
                    [len(set(rank.chunks[1:-1])) > 1 for _, _, rank in groups]
                ),
                layers=np.array([float(rank.layers) for _, _, rank in groups]),
                key=position * len(pipelines) + np.arange(len(pipelines)),
                contents=contents,
            )
        )
    return tuple(columns)


def _contents(ranks: Sequence[_Rank]) -> Contents:
    """Contents of one rank of each pipeline; missing chunks are empty."""
    most = max((len(rank.chunks) for rank in ranks), default=1)
    chunks = np.zeros((len(ranks), most, len(ranks[0].chunks[0]) if ranks else 0))
    for row, rank in enumerate(ranks):
        chunks[row, : len(rank.chunks)] = rank.chunks
    return Contents(order=_padded([rank.order for rank in ranks]), chunks=chunks)


def _padded(orders: Sequence[Sequence[int] | Ints]) -> Ints:
    """Components on ranks as rows, with -1 behind the shorter ones."""
    padded = np.full((len(orders), max(map(len, orders), default=0)), -1, dtype=np.int64)
    for row, order in zip(padded, orders, strict=True):
        row[: len(order)] = order
    return padded


def _transposed(rows: Sequence[tuple[float, ...]]) -> tuple[Floats, ...]:
    return tuple(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))


def _ranks(pipeline: _Pipeline, *, by_chunk: bool = False) -> list[_Rank]:
    """Content of every pipeline rank, first to last, or of every virtual stage (`by_chunk`)."""
    stages, schedule, sizes = pipeline.stages, pipeline.schedule, pipeline.sizes
    order, recomputed = pipeline.order, pipeline.recompute_layers
    starts = np.cumsum([0, *sizes]).tolist()
    last = len(sizes) - 1
    kinds = range(pipeline.kinds)

    def rank(stages_of_rank: Sequence[int], share: float, first: int = recomputed) -> _Rank:
        """A rank with these virtual stages; its first layers recompute (in dualpipe, by stage)."""
        chunks, in_order, before = [], [], 0
        for stage in stages_of_rank:
            layers = order[starts[stage] : starts[stage] + sizes[stage]]
            again = max(0, first - before)
            modules = pipeline.mtp if stage == last else 0
            halves = Counter(layers[:again]), Counter(layers[again:])
            counts = [float(half[kind]) for half in halves for kind in kinds]
            chunks.append((*counts, float(modules)))
            in_order += [*layers[:again], *(kind + len(kinds) for kind in layers[again:])]
            in_order += [2 * len(kinds)] * modules
            before += 0 if schedule == Schedule.DUALPIPE.code else len(layers)
        total = tuple(map(sum, zip(*chunks, strict=True)))
        resident = (*total, float(0 in stages_of_rank), float(last in stages_of_rank))
        return _Rank(
            work=tuple(share * count for count in resident),
            resident=resident,
            stage_layers=(total if share == 1 else chunks[0])[:-1],
            chunks=tuple(chunks),
            order=tuple(in_order),
            layers=round(sum(total[:-1])),
        )

    if by_chunk:
        before = _earlier_on_rank(sizes, stages, zb_v=schedule == Schedule.ZB_V.code)
        left = [max(0, recomputed - earlier) for earlier in before]
        return [rank((stage,), 1.0, first) for stage, first in enumerate(left)]
    if schedule == Schedule.DUALPIPE.code:
        return [rank((i, stages - 1 - i), 0.5) for i in range(stages)]
    if schedule == Schedule.ZB_V.code:
        return [rank((i, 2 * stages - 1 - i), 1.0) for i in range(stages)]
    return [rank(range(i, len(sizes), stages), 1.0) for i in range(stages)]


def _earlier_on_rank(sizes: Sequence[int], stages: int, *, zb_v: bool) -> list[int]:
    """For every virtual stage, the layers of earlier stages on its rank."""
    on_rank = [0] * stages
    earlier = []
    for stage, size in enumerate(sizes):
        rank = 2 * stages - 1 - stage if zb_v and stage >= stages else stage % stages
        earlier.append(on_rank[rank])
        on_rank[rank] += size
    return earlier


def layers_on_ranks(depth: int, table: Table, row: int) -> list[int]:
    """Layers on every virtual stage of one row, in the order of the model.

    `stage_layers` is used as is. Otherwise layers are split evenly over the ranks, where embedding
    and head may count as a layer each; the remainder goes to the first ranks. `first_stage_layers`
    and `last_stage_layers` fix those ranks, and the rest is split over the others. The layers of a
    rank, with embedding or head if they count, are split evenly over its chunks; the embedding is
    in the first.
    """
    listed = int(table.stage_layers[row])
    if listed >= 0:
        return list(table.stage_lists[listed])
    stages, chunks = int(table.pp[row]), int(table.vpp[row])
    places = 2 * stages if int(table.schedule[row]) == Schedule.ZB_V.code else stages
    extra = bool(table.embedding_as_layer[row]), bool(table.loss_as_layer[row])
    fixed = int(table.first_stage_layers[row]), int(table.last_stage_layers[row])
    counts = _split(depth, places, fixed, extra)
    embedding = int(extra[0] and not fixed[0] and places > 1)
    counts[0] += embedding
    sizes = [_share(count, chunks, chunk) for chunk in range(chunks) for count in counts]
    sizes[0] -= embedding
    return sizes


def _split(depth: int, places: int, fixed: tuple[int, int], extra: tuple[bool, bool]) -> list[int]:
    """Layers on every rank; -1 if the fixed counts leave too few, or some for no other rank."""
    first, last = fixed
    if places == 1:
        return [depth if first in {0, depth} and last in {0, depth} else -1]
    # Embedding and head count as a layer where the count of their rank is not fixed.
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
    """Share of one of several places in a number; the first ones get the remainder."""
    return number // places + (place < number % places)
