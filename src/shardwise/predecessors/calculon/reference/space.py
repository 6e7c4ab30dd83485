"""The space of executions that Calculon's searches try (section 1.14 of the specification).

Calculon 0.1.0, commit caa4b11. In Calculon's order, so that ties resolve as there: options that may
be on or off are tried on first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product

import numpy as np

from shardwise.arrays import Bools, Ints, gather
from shardwise.errors import Fault, nearest, refuse
from shardwise.predecessors.calculon.files import (
    ATTENTIONS,
    COMM_TYPES,
    DATATYPES,
    OVERLAPS,
    RECOMPUTES,
    CalculonModel,
    CalculonSystem,
    too_large,
)
from shardwise.predecessors.calculon.reference.columns import FULL, NO_OVERLAP, RS_AG, Columns
from shardwise.predecessors.calculon.reference.evaluation import VERDICTS, network_verdict

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
        for field in ("num_procs", "max_batch_size"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                problem = "must be an integer of at least 1"
                faults.append(Fault.of(field, value, problem))
        if not faults and (problem := too_large(model, self.max_batch_size)):
            value = self.max_batch_size
            faults.append(Fault.of("max_batch_size", value, problem))
        choices = {
            "datatype": [d for d in DATATYPES if d in system.matrix and d in system.vector],
            "fused_activation": list(FUSED_CHOICES),
        }
        for field, allowed in choices.items():
            value = getattr(self, field)
            if value not in allowed:
                hint = nearest(str(value), allowed)
                problem = f"allowed: {', '.join(allowed)}{hint}"
                faults.append(Fault.of(field, value, problem))
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
            [m for m in _divisors(batch // dp) if m * model.seq_size % tp == 0], dtype=np.int64
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
    for tp in _divisors(num_procs):
        if model.hidden % tp or model.attn_heads % tp or model.feedforward % tp:
            continue
        for pp in _divisors(num_procs // tp):
            if model.num_blocks % pp:
                continue
            for chunks in _divisors(model.num_blocks // pp) if pp > 1 else (1,):
                yield tp, pp, num_procs // (tp * pp), chunks


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


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
