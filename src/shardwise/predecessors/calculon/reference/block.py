"""Times and spaces of one block and its optimizer step (sections 1.3, 1.4, 1.5 and 1.10).

Calculon 0.1.0, commit caa4b11.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from shardwise.arrays import Bools, Floats, combined, total
from shardwise.predecessors.calculon.files import CalculonModel, CalculonSystem
from shardwise.predecessors.calculon.reference.columns import (
    PIPE,
    Columns,
    flop_time,
    memory_time,
    processing_time,
    processor_usage,
)
from shardwise.predecessors.calculon.reference.operations import (
    Links,
    Operations,
    Shapes,
    Stage,
    choose,
    fused_operations,
    links_of,
    overlapped,
    plain_operations,
    shapes_of,
    stacked,
)

T = TypeVar("T", "Pass", "Communication")


@dataclass(frozen=True, slots=True)
class Pass:
    """Work of one pass, per operation or summed over a block."""

    flops: Floats
    flops_time: Floats
    mem_accessed: Floats
    mem_time: Floats
    time: Floats
    """Processing time; communication counts apart, unless it slows the product [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Tensor-parallel communication of one pass, per operation or summed over a block."""

    size: Floats
    """Bytes."""
    time: Floats
    """Of the link, hidden or not [s]."""
    exposed: Floats
    """What lengthens the step [s]."""


Pair = tuple[Communication, Communication]
"""Of a base and of an edge block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTimes:
    """Every operation of a block: arrays of shape (operations, rows)."""

    fw: Pass
    agrad: Pass
    wgrad: Pass
    fw_tp: Pair
    agrad_tp: Pair
    recomm: Pair
    recomm_late: Pair
    """As `recomm`, but exposed as the weight gradient's pass leaves it: so `-l` shows it."""
    bandwidth_needed: Floats
    """Bandwidth that hides all of a fused product's communication, forward or backward [B/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """One block and micro-batch on one processor."""

    fw: Pass
    re: Pass
    """Recompute: its time is that of the recomputed operations, its other four are prefix sums
    [Q9]."""
    agrad: Pass
    wgrad: Pass
    fw_tp: Pair
    agrad_tp: Pair
    recomm: Pair
    bandwidth_needed: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpaces:
    """Memory of one block and micro-batch [bytes], and its number of weights."""

    weights: Floats
    working: Floats
    """Activations of the block that is being computed."""
    storage: Floats
    """Activations saved from forward to backward pass."""
    checkpoint: Floats
    """Input saved for recomputing the block."""
    gradient: Floats
    """Gradients of the activations."""


def operations_of(model: CalculonModel, columns: Columns) -> tuple[Operations, Shapes]:
    """The operations of a block of each row: shape (operations, rows)."""
    shape = shapes_of(model, columns)
    rows = len(columns)
    plain = plain_operations(shape)
    if not shape.fused.any():
        return stacked(plain, rows), shape
    fused = stacked(fused_operations(shape, plain), rows)
    return choose(shape.fused, fused, stacked(plain, rows)), shape


def operation_times(
    operations: Operations, shape: Shapes, columns: Columns, system: CalculonSystem
) -> OperationTimes:
    """Processing and communication times of each operation."""
    ops = operations
    base, edge = links_of(ops, shape, columns, system)
    compute = [
        flop_time(flops, ops.matrix, system, columns.datatype)
        for flops in (ops.fw_flops, ops.agrad_flops, ops.wgrad_flops)
    ]
    memory = [
        memory_time(moved, system.mem1)
        for moved in (ops.fw_bytes, ops.agrad_bytes, ops.wgrad_bytes)
    ]
    fw_s, fw_exposed = _times(compute[0], memory[0], base.fw, ops, shape, columns, system)
    agrad_s, agrad_exposed = _times(compute[1], memory[1], base.agrad, ops, shape, columns, system)
    wgrad_s, late = _times(compute[2], memory[2], base.again, ops, shape, columns, system)
    # On its own, a comm operation's vector work counts as link time.
    nothing = np.zeros_like(fw_s)
    fw_own = np.where(shape.fused, 0.0, processing_time(compute[0], memory[0], system))
    agrad_own = np.where(shape.fused, 0.0, processing_time(compute[1], memory[1], system))

    def communications(name: str, own: Floats, fused_exposed: Floats) -> Pair:
        return (
            _communication(getattr(base, name), own, fused_exposed, ops, shape),
            _communication(getattr(edge, name), own, fused_exposed, ops, shape),
        )

    return OperationTimes(
        fw=Pass(ops.fw_flops, compute[0], ops.fw_bytes, memory[0], fw_s),
        agrad=Pass(ops.agrad_flops, compute[1], ops.agrad_bytes, memory[1], agrad_s),
        wgrad=Pass(ops.wgrad_flops, compute[2], ops.wgrad_bytes, memory[2], wgrad_s),
        fw_tp=communications("fw", fw_own, fw_exposed),
        agrad_tp=communications("agrad", agrad_own, agrad_exposed),
        # What the forward pass has left over [Q8].
        recomm=communications("again", nothing, fw_exposed * ops.communicates_again),
        recomm_late=communications("again", nothing, late),
        bandwidth_needed=_bandwidth_needed(base, edge, compute, shape, columns, system),
    )


def _times(
    compute_s: Floats,
    memory_s: Floats,
    link: Stage,
    operations: Operations,
    shape: Shapes,
    columns: Columns,
    system: CalculonSystem,
) -> tuple[Floats, Floats]:
    """Processing time of each operation and, of fused products, what the network exposes.

    The communication of a base block decides, of an edge block, too [Q7]. Communication that is
    not overlapped has no processing time, but its FLOPs and bytes are in the sums [Q4].
    """
    fused_s, exposed = overlapped(
        compute_s,
        memory_s,
        link.net_s + link.reduction_s,
        tiles=shape.tp,
        usage=processor_usage(system, columns.tensor_par_net),
        pipe=columns.tensor_par_overlap == PIPE,
        system=system,
    )
    communicates = operations.gathers | operations.reduces
    alone = np.where(communicates, 0.0, processing_time(compute_s, memory_s, system))
    fused = communicates & shape.fused
    return np.where(fused, fused_s, alone), np.where(fused, exposed, 0.0)


def _communication(
    link: Stage, own: Floats, fused_exposed: Floats, operations: Operations, shape: Shapes
) -> Communication:
    """Link time of each operation: all of it exposed, unless fused."""
    communicates = operations.gathers | operations.reduces
    reduction = np.where(shape.fused, link.reduction_s, 0.0)
    time = np.where(communicates, link.net_s + own + reduction, 0.0)
    return Communication(
        size=link.size, time=time, exposed=np.where(shape.fused, fused_exposed, time)
    )


def _bandwidth_needed(
    base: Links,
    edge: Links,
    compute: list[Floats],
    shape: Shapes,
    columns: Columns,
    system: CalculonSystem,
) -> Floats:
    """The largest of bytes / (tf / (1 - u)) over forward and backward, base and edge [B/s]."""
    free = 1 - processor_usage(system, columns.tensor_par_net)
    needed = np.zeros_like(compute[0])
    for compute_s, first, last, counts in (
        (compute[0], base.fw, edge.fw, np.ones_like(columns.training)),
        (compute[1], base.agrad, edge.agrad, columns.training),
    ):
        size = np.maximum(first.size, last.size)
        sent = (size > 0) & shape.fused & counts
        rate = np.divide(size * free, compute_s, out=np.zeros_like(size), where=sent)
        needed = np.maximum(needed, rate)
    return needed


def block_times(operations: Operations, times: OperationTimes, columns: Columns) -> BlockTimes:
    """Sum over the operations of a block; inference has the forward pass only."""
    trained = columns.training
    return BlockTimes(
        fw=summed(times.fw),
        re=_repeated(times.fw, operations.recomputed & trained),
        agrad=summed(times.agrad, trained),
        wgrad=summed(times.wgrad, trained),
        fw_tp=_sum_pair(times.fw_tp),
        agrad_tp=_sum_pair(times.agrad_tp, trained),
        recomm=_sum_pair(times.recomm, trained),
        bandwidth_needed=times.bandwidth_needed.max(axis=0),
    )


def _over_places(values: Floats) -> Floats:
    """Add up the operations in order: numpy's own sum rounds one row and many rows differently."""
    return total(values, values[0])


def summed(work: T, counts: Bools | bool = True) -> T:
    """Sum of a pass or of its communication over the operations of a block, in rows that count."""
    return combined(lambda values: _over_places(values) * counts, work)


def _sum_pair(pair: Pair, counts: Bools | bool = True) -> Pair:
    base, edge = pair
    return summed(base, counts), summed(edge, counts)


def _repeated(fw: Pass, recomputed: Bools) -> Pass:
    """Recompute of a block.

    Time is the sum over the recomputed operations. FLOPs, bytes and their times add, at each of
    them, the block's sum so far instead of the operation's own [Q9].
    """
    prefixes = combined(lambda values: _over_places(values.cumsum(axis=0) * recomputed), fw)
    return replace(prefixes, time=_over_places(fw.time * recomputed))


def block_spaces(operations: Operations, shape: Shapes, columns: Columns) -> BlockSpaces:
    """Memory of one block (sections 1.3, 1.8 and 1.10).

    working = sum of activations that are not another operation's; storage = sum of stored ones
    less the outputs that are dropped, 0 under full recompute. In inference storage, which only
    offloading uses, is the sum of all activations. The checkpoint of full recompute is the full
    input, also where sequence parallelism has sharded it [Q11].
    """
    ops, b, trained = operations, columns.element_bytes, columns.training
    dropped = _over_places(ops.outputs * (ops.output_dropped & trained)) * b
    stored = _over_places(ops.activation_bytes * (ops.stored | ~trained)) - dropped
    return BlockSpaces(
        weights=_over_places(ops.weights),
        working=_over_places(ops.activation_bytes * ~ops.reuses),
        storage=np.where(shape.recompute_full, 0.0, stored),
        checkpoint=np.where(shape.recompute_full & trained, shape.full * b, 0.0),
        gradient=_over_places(ops.gradient_bytes) * trained,
    )


_ADAM_FLOPS = 11.0
_MOMENTS_BYTES, _MASTER_BYTES = 8.0, 4.0


def state_bytes(element_bytes: Floats) -> Floats:
    """Bytes of optimizer state per weight: two fp32 moments, and an fp32 copy of narrower ones."""
    return _MOMENTS_BYTES + np.where(element_bytes < _MASTER_BYTES, _MASTER_BYTES, 0.0)


def optimizer_pass(weights: Floats, columns: Columns, system: CalculonSystem) -> Pass:
    """Adam on each operation's weights, on the vector engine.

    11 FLOPs per weight of this processor's share; the state's bytes are counted once, without
    gradients and without writing back [Q3].
    """
    share = weights / columns.optimizer_shards * columns.training
    flops, moved = _ADAM_FLOPS * share, state_bytes(columns.element_bytes) * share
    compute_s = flop_time(flops, False, system, columns.datatype)
    memory_s = memory_time(moved, system.mem1)
    return Pass(
        flops=flops,
        flops_time=compute_s,
        mem_accessed=moved,
        mem_time=memory_s,
        time=processing_time(compute_s, memory_s, system),
    )
