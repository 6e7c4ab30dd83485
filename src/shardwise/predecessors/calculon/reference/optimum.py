"""The space of executions that Calculon's searches try (section 1.14 of the specification).

Calculon 0.1.0, commit caa4b11. In Calculon's order, so that ties resolve as there: options that may
be on or off are tried on first.

Calculon's searches: the best executions, or all of them (sections 1.14 and 2).

Calculon 0.1.0, commit caa4b11: `llm-optimal-execution` and `llm-all-executions`. The objective is
the sample rate; of executions with the same rate the first tried wins.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, combined, divisors, gather
from shardwise.errors import Fault, InputError, allowed_words, nearest, refuse
from shardwise.predecessors.calculon.files import (
    ATTENTIONS,
    COMM_TYPES,
    DATATYPES,
    OVERLAPS,
    RECOMPUTES,
    CalculonExecution,
    CalculonModel,
    CalculonSystem,
    too_large,
)
from shardwise.predecessors.calculon.reference.columns import FULL, NO_OVERLAP, RS_AG, Columns
from shardwise.predecessors.calculon.reference.evaluation import (
    VERDICTS,
    Statistics,
    evaluate,
    memory_verdict,
    network_verdict,
    placement_verdict,
    statistics_of,
)
from shardwise.predecessors.calculon.reference.step import Batch, batch_of, memory_use_of

FUSED_CHOICES = {"true": (True,), "false": (False,), "both": (True, False)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a search varies, and what it leaves out."""

    num_procs: int
    max_batch_size: int
    datatype: str
    fused_activation: str = "true"
    tp_overlap: bool = True
    dp_overlap: bool = True

    def check(self, model: CalculonModel, system: CalculonSystem) -> None:
        """Raise an `InputError` with a fault for each limit that cannot be."""
        faults = []
        for name in ("num_procs", "max_batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                problem = "must be an integer of at least 1"
                faults.append(Fault.of(name, value, problem))
        if not faults and (problem := too_large(model, self.max_batch_size)):
            value = self.max_batch_size
            faults.append(Fault.of("max_batch_size", value, problem))
        choices = {
            "datatype": [d for d in DATATYPES if d in system.matrix and d in system.vector],
            "fused_activation": list(FUSED_CHOICES),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                hint = nearest(str(value), allowed)
                problem = f"allowed: {', '.join(allowed)}{hint}"
                faults.append(Fault.of(name, value, problem))
        refuse(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Every combination of what does not depend on sizes, as columns."""

    activation_recompute: Ints
    optimizer_sharding: Bools
    tensor_par_comm_type: Ints
    seq_par_ag_redo: Bools
    data_par_overlap: Bools
    tensor_par_overlap: Ints
    weight_offload: Bools
    activations_offload: Bools
    optimizer_offload: Bools
    fused_activation: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A box of the space: every option with every micro-batch on every assignment of networks."""

    degrees: tuple[int, int, int]
    """Tensor, pipeline, data."""
    chunks: int
    batch_size: int
    options: _Options
    microbatches: Ints
    networks: Ints
    """Assignments that fit the degrees: one per row; tensor, pipeline, data."""
    refused: dict[str, int]
    """Number of the other assignments by reason."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Options, micro-batches, networks: rows in the order of the space."""
        options = self.options.activation_recompute.size
        return options, self.microbatches.size, len(self.networks)

    @property
    def tried_networks(self) -> int:
        """Assignments of networks that Calculon tries."""
        return len(self.networks) + sum(self.refused.values())


def pieces(
    model: CalculonModel, system: CalculonSystem, limits: Limits, most_rows: int
) -> Iterator[Piece]:
    """Yield the space in order, in pieces of about `most_rows` rows that fit their networks."""
    options = {key: _options(system, limits, *key) for key in product((False, True), (False, True))}
    for tp, pp, dp, chunks in _layouts(model, limits.num_procs):
        batch = limits.max_batch_size // dp * dp
        if batch == 0:
            continue
        networks, refused = _networks(system, (tp, pp, dp))
        micro = np.array(
            [m for m in divisors(batch // dp) if m * model.seq_size % tp == 0], dtype=np.int64
        )
        combined = options[tp > 1, dp > 1]
        size = combined.activation_recompute.size
        step = max(1, most_rows // max(1, micro.size * len(networks)))
        for start in range(0, size, step):
            yield Piece(
                degrees=(tp, pp, dp),
                chunks=chunks,
                batch_size=batch,
                options=gather(combined, slice(start, start + step)),
                microbatches=micro,
                networks=networks,
                refused=refused,
            )


def _layouts(model: CalculonModel, num_procs: int) -> Iterator[tuple[int, int, int, int]]:
    """Degrees and chunks: a full number of blocks on every stage, of heads on every processor.

    Calculon tries tensor degrees that do not divide the inner width of the MLP, too, and stops at
    the first; they are left out.
    """
    for tp in divisors(num_procs):
        if model.hidden % tp or model.attn_heads % tp or model.feedforward % tp:
            continue
        for pp in divisors(num_procs // tp):
            if model.num_blocks % pp:
                continue
            for chunks in divisors(model.num_blocks // pp) if pp > 1 else (1,):
                yield tp, pp, num_procs // (tp * pp), chunks


def _networks(system: CalculonSystem, degrees: tuple[int, int, int]) -> tuple[Ints, dict[str, int]]:
    """Assignments of networks that fit the degrees, and the number of others by reason."""
    every = range(len(system.networks))
    tried = np.array(list(product(*(every if d > 1 else (0,) for d in degrees))), dtype=np.int64)
    codes = network_verdict(system, degrees, (tried[:, 0], tried[:, 1], tried[:, 2]))
    refused = {
        VERDICTS[code]: int(number) for code, number in enumerate(np.bincount(codes)) if number
    }
    refused.pop("", None)
    return tried[codes == 0], refused


def _options(system: CalculonSystem, limits: Limits, tensor: bool, data: bool) -> _Options:
    """Combine the options of layouts with and without tensor and data parallelism."""
    on_off, off = (True, False), (False,)
    offload = on_off if system.mem2.GiB > 0 else off
    combined = [
        choice
        for recompute, sharding, comm in product(
            range(len(RECOMPUTES)), on_off if data else off, range(len(COMM_TYPES))
        )
        for choice in product(
            (recompute,),
            (sharding,),
            (comm,),
            on_off if comm == RS_AG and recompute != FULL else off,
            on_off if data and limits.dp_overlap else off,
            range(len(OVERLAPS)) if tensor and limits.tp_overlap else (NO_OVERLAP,),
            offload,
            off if recompute == FULL else offload,
            offload,
            FUSED_CHOICES[limits.fused_activation],
        )
    ]
    columns = zip(*combined, strict=True)
    return _Options(**{f.name: np.array(c) for f, c in zip(fields(_Options), columns, strict=True)})


def columns_of(group: list[Piece], limits: Limits) -> Columns:
    """Executions of several pieces that fit their networks, in order."""
    rows = sum(int(np.prod(piece.shape)) for piece in group)

    def fixed(value: int) -> Ints:
        return np.full(rows, value, dtype=np.int64)

    def per_piece(values: list[int]) -> Ints:
        return np.repeat(values, [int(np.prod(piece.shape)) for piece in group])

    def per_network(axis: int) -> Ints:
        return np.concatenate(
            [np.tile(p.networks[:, axis], p.shape[0] * p.shape[1]) for p in group]
        )

    options = {
        f.name: np.concatenate(
            [np.repeat(getattr(p.options, f.name), p.shape[1] * p.shape[2]) for p in group]
        )
        for f in fields(_Options)
    }
    microbatch = [np.tile(np.repeat(p.microbatches, p.shape[2]), p.shape[0]) for p in group]
    return Columns(
        num_procs=fixed(limits.num_procs),
        tensor_par=per_piece([p.degrees[0] for p in group]),
        pipeline_par=per_piece([p.degrees[1] for p in group]),
        data_par=per_piece([p.degrees[2] for p in group]),
        tensor_par_net=per_network(0),
        pipeline_par_net=per_network(1),
        data_par_net=per_network(2),
        batch_size=per_piece([p.batch_size for p in group]),
        microbatch_size=np.concatenate(microbatch),
        datatype=fixed(DATATYPES.index(limits.datatype)),
        attention_type=fixed(ATTENTIONS.index("multihead")),
        pipeline_interleaving=per_piece([p.chunks for p in group]),
        training=np.ones(rows, dtype=np.bool_),
        **options,
    )


# Rows evaluated at a time: their columns use about 50 MB.
_CHUNK_ROWS = 1 << 16

Progress = Callable[[int, int], None]
AXES = tuple(
    name for name in CalculonExecution.model_fields if name not in ("num_procs", "training")
)
"""Fields that the best may be listed by."""
Found = tuple[CalculonExecution, dict[str, float | int | None]]
"""An execution and its statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSize:
    """How many executions a search tries."""

    candidates: int
    network_feasible: int
    """Those whose degrees fit the networks they are placed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    candidates: int
    """Executions tried."""
    network_feasible: int
    good: int
    bad: int
    rejected: dict[str, int] = field(default_factory=dict)
    """The bad ones by reason of `VERDICTS`."""
    best: tuple[Found, ...] = ()
    """Executions and their statistics, best first."""
    cells: tuple[Found, ...] = ()
    """The best of each combination of values of the requested axes, in the order of the values."""


def count(
    model: CalculonModel,
    system: CalculonSystem,
    *,
    num_procs: int,
    max_batch_size: int,
    datatype: str,
    fused_activation: str = "true",
    tp_overlap: bool = True,
    dp_overlap: bool = True,
) -> SpaceSize:
    """Count the executions that `search` would try, without evaluating any."""
    limits = Limits(
        num_procs=num_procs,
        max_batch_size=max_batch_size,
        datatype=datatype,
        fused_activation=fused_activation,
        tp_overlap=tp_overlap,
        dp_overlap=dp_overlap,
    )
    limits.check(model, system)
    candidates = feasible = 0
    for piece in pieces(model, system, limits, _CHUNK_ROWS):
        options, microbatches, networks = piece.shape
        candidates += options * microbatches * piece.tried_networks
        feasible += options * microbatches * networks
    return SpaceSize(candidates=candidates, network_feasible=feasible)


def rows(
    model: CalculonModel, system: CalculonSystem, **space: Any
) -> Iterator[tuple[Columns, Statistics]]:
    """Yield every feasible execution with its statistics, in Calculon's order, chunk by chunk.

    `space` is as in `count`. Memory is bounded however large the space is.
    """
    limits = Limits(**space)
    limits.check(model, system)
    for group in _groups(model, system, limits):
        chunk = _evaluated(model, system, group, limits)
        if chunk.batch is not None:
            values = statistics_of(chunk.batch, chunk.good, system)
            yield chunk.good, Statistics(verdict=chunk.verdict[chunk.rows], values=values)


def search(
    model: CalculonModel,
    system: CalculonSystem,
    *,
    num_procs: int,
    max_batch_size: int,
    datatype: str,
    fused_activation: str = "true",
    tp_overlap: bool = True,
    dp_overlap: bool = True,
    mbs_break: bool = False,
    top_n: int = 1,
    axes: Sequence[str] = (),
    every: Callable[[Columns, Mapping[str, Floats]], None] | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the executions with the highest sample rate.

    Parameters
    ----------
    num_procs, max_batch_size
        Each layout runs the largest batch up to the limit that its replicas can share.
    fused_activation
        ``true``, ``false`` or ``both``.
    tp_overlap, dp_overlap
        Whether to try overlapped communication, too.
    mbs_break
        Stop growing the micro-batch after the first that fits on no assignment of networks.
    top_n
        How many to return.
    axes
        Fields of an execution; the best of each combination of their values is returned, too.
    every
        Called with feasible executions and their statistics by name, chunk by chunk, in Calculon's
        order.
    progress
        Called with the number of executions covered so far and in all.
    """
    limits = Limits(
        num_procs=num_procs,
        max_batch_size=max_batch_size,
        datatype=datatype,
        fused_activation=fused_activation,
        tp_overlap=tp_overlap,
        dp_overlap=dp_overlap,
    )
    limits.check(model, system)
    if top_n < 1:
        problem = "must be at least 1"
        raise InputError(Fault.of("top_n", top_n, problem))
    for axis in axes:
        if axis not in AXES:
            problem = allowed_words(axis, AXES)
            raise InputError(Fault.of("axes", axis, problem))
    total = sum(_size(piece) for piece in pieces(model, system, limits, _CHUNK_ROWS))
    tally: Counter[str] = Counter()
    best, cells = _Best(top_n), _Cells(tuple(axes))
    covered = 0
    for group in _groups(model, system, limits):
        chunk = _evaluated(model, system, group, limits)
        tried, refused = _tried(group, chunk.verdict == 0, mbs_break=mbs_break)
        tally.update(refused)
        codes = np.bincount(chunk.verdict[tried], minlength=len(VERDICTS))
        tally.update(dict(zip(VERDICTS, codes.tolist(), strict=True)))
        if chunk.batch is not None:
            rates = chunk.good.batch_size / chunk.batch.step.total
            rates = np.where(tried[chunk.rows], rates, -np.inf)
            best.add(rates, chunk.good)
            if axes:
                cells.add(rates, chunk.good)
            if every is not None:
                values = statistics_of(chunk.batch, chunk.good, system)
                here = np.flatnonzero(tried[chunk.rows])
                every(gather(chunk.good, here), {k: v[here] for k, v in values.items()})
        covered += sum(map(_size, group))
        if progress is not None:
            progress(covered, total)
    return _result(tally, _found(model, system, best), _found(model, system, cells))


def _size(piece: Piece) -> int:
    return piece.shape[0] * piece.shape[1] * piece.tried_networks


def _groups(model: CalculonModel, system: CalculonSystem, limits: Limits) -> Iterator[list[Piece]]:
    """Join small pieces to chunks worth a pass."""
    group: list[Piece] = []
    size = 0
    for piece in pieces(model, system, limits, _CHUNK_ROWS):
        group.append(piece)
        size += int(np.prod(piece.shape))
        if size >= _CHUNK_ROWS:
            yield group
            group, size = [], 0
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class _Chunk:
    verdict: Ints
    """Of each row that fits its networks."""
    rows: Ints
    """Positions of the feasible ones."""
    good: Columns
    """Those executions."""
    batch: Batch | None
    """Their evaluation, if there are any."""


def _evaluated(
    model: CalculonModel, system: CalculonSystem, group: list[Piece], limits: Limits
) -> _Chunk:
    """Check memory before anything is timed, and time only what fits."""
    columns = columns_of(group, limits)
    verdict = placement_verdict(model, system, columns)
    placed = np.flatnonzero(verdict == 0)
    if not placed.size:
        return _Chunk(verdict, placed, gather(columns, placed), None)
    if placed.size < len(columns):
        columns = gather(columns, placed)
    memory_use = memory_use_of(model, columns)
    verdict[placed] = memory_verdict(memory_use.memory.tier1, memory_use.memory.tier2, system)
    fits = np.flatnonzero(verdict[placed] == 0)
    good = gather(columns, fits)
    if not fits.size:
        return _Chunk(verdict, fits, good, None)
    batch = batch_of(model, system, good, gather(memory_use, fits))
    return _Chunk(verdict, placed[fits], good, batch)


def _tried(group: list[Piece], good: Bools, *, mbs_break: bool) -> tuple[Bools, Counter[str]]:
    """Rows that the search tries, and how many others it tries that exceed their networks."""
    tried = np.ones(good.size, dtype=np.bool_)
    refused: Counter[str] = Counter()
    start = 0
    for piece in group:
        options, microbatches, networks = piece.shape
        reached = np.ones((options, microbatches), dtype=np.bool_)
        end = start + options * microbatches * networks
        if mbs_break:
            some_good = good[start:end].reshape(piece.shape).any(axis=2)
            reached[:, 1:] = np.logical_and.accumulate(some_good, axis=1)[:, :-1]
            tried[start:end] = np.repeat(reached.ravel(), networks)
        start = end
        for reason, number in piece.refused.items():
            refused[reason] += number * int(reached.sum())
    return tried, refused


def _joined(first: Any, second: Any) -> Any:
    return np.concatenate([first, second])


class _Best:
    """The best rows so far, in order; the first of equals stays first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rates: Floats = np.empty(0)
        self.columns: Columns | None = None

    def add(self, rates: Floats, columns: Columns) -> None:
        """Add the best of some more rows."""
        least = self.rates[-1] if self.rates.size == self.size else -np.inf
        better = np.flatnonzero(rates > least)
        order = better[np.argsort(-rates[better], kind="stable")[: self.size]]
        if not order.size:
            return
        more = gather(columns, order)
        self.rates = np.concatenate([self.rates, rates[order]])
        self.columns = more if self.columns is None else combined(_joined, self.columns, more)
        first = np.argsort(-self.rates, kind="stable")[: self.size]
        self.rates, self.columns = self.rates[first], gather(self.columns, first)


class _Cells:
    """The best row of each combination of values of some fields; the first of equals."""

    def __init__(self, axes: tuple[str, ...]) -> None:
        self.axes = axes
        self.rates: Floats = np.empty(0)
        self.columns: Columns | None = None

    def add(self, rates: Floats, columns: Columns) -> None:
        """Add some more rows."""
        first = self._first(rates, columns)
        more, rates = gather(columns, first), rates[first]
        if self.columns is not None:
            more = combined(_joined, self.columns, more)
            rates = np.concatenate([self.rates, rates])
        first = self._first(rates, more)
        self.rates, self.columns = rates[first], gather(more, first)

    def _first(self, rates: Floats, columns: Columns) -> Ints:
        """Positions of the best row of each cell, by the values of the axes."""
        keys = [getattr(columns, axis) for axis in self.axes]
        order = np.lexsort((-rates, *reversed(keys)))
        order = order[rates[order] > -np.inf]
        starts = np.zeros(order.size, dtype=np.bool_)
        starts[:1] = True
        for key in keys:
            starts[1:] |= key[order[1:]] != key[order[:-1]]
        return order[starts]


def _found(model: CalculonModel, system: CalculonSystem, some: _Best | _Cells) -> tuple[Found, ...]:
    """Executions with their statistics."""
    if some.columns is None:
        return ()
    figures = evaluate(model, system, some.columns)
    return tuple((some.columns.row(i), figures.row(i)) for i in range(len(some.columns)))


def _result(tally: Counter[str], best: tuple[Found, ...], cells: tuple[Found, ...]) -> SearchResult:
    candidates, good = tally.total(), tally[""]
    unplaced = tally["network_too_small"] + tally["network_not_filled"]
    return SearchResult(
        candidates=candidates,
        network_feasible=candidates - unplaced,
        good=good,
        bad=candidates - good,
        rejected={reason: tally[reason] for reason in VERDICTS[1:] if tally[reason]},
        best=best,
        cells=cells,
    )
