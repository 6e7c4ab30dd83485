"""Peak memory of operations: a walk forward, then backward, through one micro-batch.

Forward, an operation needs its transient bytes in addition to those that earlier operations saved;
then it saves its own. Backward, in reverse order, it needs its transient bytes in addition to all
bytes still saved, its own included; then these are released. Activations that recompute drops are
rebuilt before the operations that run again go backward, and live until then.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.enums import GraphScope, OffloadPart, RecomputePart
from shardwise.ops.layer import modules_of, part_of
from shardwise.ops.operation import Operation, Phase
from shardwise.records import dataclass

FULL, FORWARD_ONLY = -1, -2
"""Instead of bits of `RecomputePart`: full recompute; no backward pass."""
_EVERY_OTHER = RecomputePart.bits(["every_other"])
_ATTENTION = GraphScope.bits([GraphScope.ATTN])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Saved and transient bytes of one operation, and the recompute parts that affect it."""

    saved: Floats
    rebuilt: Floats
    """Saved bytes that recompute drops and rebuilds."""
    half_rebuilt: Floats
    """The same for the part `every_other` where no other part drops it."""
    forward: Floats
    """Transient bytes forward."""
    backward: Floats
    """Transient bytes backward."""
    reruns: int
    """Bits of `RecomputePart` that run the operation again."""
    drops: int
    """Bits of `RecomputePart` that drop its saved bytes."""
    part: int
    """Bit of `OffloadPart` that its saved bytes belong to."""
    modules: int
    """Bits of `GraphScope` that CUDA graphs capture it with."""
    trains: bool
    """Whether its backward makes gradients of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Saved bytes of a list of operations, and its peak [byte]."""

    saved: Floats
    """From forward to backward."""
    movable: Floats
    """Saved bytes of the parts that may be offloaded."""
    over: Floats
    """Peak bytes in addition to saved ones."""
    trained_over: Floats
    """The same from the first operation on whose backward makes gradients of weights."""
    captured: Floats
    """Saved bytes of what CUDA graphs capture."""
    working: Floats
    """Transient bytes that a memory pool of its own has in addition."""
    peak: Ints
    """Position of the operation at the peak; in a forward pass, plus the number of operations."""


def step_of(operation: Operation) -> Step:
    """Saved and transient bytes of an operation.

    Parameters
    ----------
    operation
        Saved and transient bytes on one rank [byte]; columns of shape (n,).
    """
    backward = operation.working_bytes
    forward = operation.forward_working_bytes
    return Step(
        saved=operation.saved_bytes,
        rebuilt=operation.rebuilt_by(operation.dropped_with - {"every_other"}),
        half_rebuilt=operation.rebuilt_by({"every_other"}),
        forward=backward if forward is None else forward,
        backward=backward,
        reruns=RecomputePart.bits(operation.reruns_with),
        drops=RecomputePart.bits(operation.dropped_with),
        part=OffloadPart.bits([part_of(operation.name)]),
        modules=modules_of(operation),
        trains=any(kernel.phase is Phase.WEIGHT_GRAD for kernel in operation.kernels),
    )


def walk(
    steps: Sequence[Step],
    parts: int,
    checkpoint: Floats,
    movable: Ints | None = None,
    captured: Ints | None = None,
) -> Walk:
    """Walk through the operations of a layer (or of embedding or head) under some recompute.

    The peak is the largest value over the operations j of
    forward: sum_{i<j} saved_i + forward_j, without full recompute;
    backward: sum_{i<=j} saved_i + what of it is rebuilt by then + backward_j.
    Offloaded bytes count as saved: they return before their layer goes backward.

    Parameters
    ----------
    steps
        Saved and transient bytes of the operations, in forward order; columns of shape (n,).
    parts
        Bits of the recompute parts that run again, 0 for none, or `FULL`, or `FORWARD_ONLY`.
    checkpoint
        Bytes that full recompute saves, of the first operation [byte]; shape (n,).
    movable
        Bits of `OffloadPart` that may be offloaded, 0 for all; shape (n,). None: all in all rows.
    captured
        Bits of `GraphScope` that CUDA graphs capture; shape (n,). None: nothing in all rows.
    """
    zero = np.zeros_like(steps[0].saved)
    if parts == FORWARD_ONLY:
        moments = [(step.forward, j + len(steps)) for j, step in enumerate(steps)]
        return _peak(zero, zero, (zero, zero), moments, np.full_like(zero, -np.inf))
    full = parts == FULL
    dropped = [s.saved if full else _dropped(s, parts) for s in steps]
    saved = [s.saved - gone for s, gone in zip(steps, dropped, strict=True)]
    all_saved = zero + checkpoint if full else sum(saved, zero)
    moments, trained = [], np.full_like(zero, -np.inf)
    last = max((j for j, step in enumerate(steps) if step.trains), default=-1)
    rebuilt_at = [len(steps) if full else _rebuilt_at(steps, i, parts) for i in range(len(steps))]
    before = np.cumsum([zero, *saved], axis=0)
    for j, step in enumerate(steps):
        if not full:
            moments.append((before[j] + step.forward - all_saved, j + len(steps)))
        again = [dropped[i] for i in range(j + 1) if j <= rebuilt_at[i]]
        here = before[j + 1] + sum(again, zero) + step.backward
        moments.append((here - all_saved, j))
        if j <= last:
            trained = np.maximum(trained, here - all_saved)
    by_step = [all_saved, *saved[1:]] if full else saved
    moves = _movable(steps, by_step, all_saved, movable)
    return _peak(all_saved, moves, _captured(steps, saved, zero, captured), moments, trained)


def _dropped(step: Step, parts: int) -> Floats:
    """Saved bytes of an operation that some recompute parts drop."""
    if step.drops & parts & ~_EVERY_OTHER:
        return step.rebuilt
    return step.half_rebuilt if step.drops & parts else np.zeros_like(step.saved)


def _movable(
    steps: Sequence[Step], saved: Sequence[Floats], all_saved: Floats, parts: Ints | None
) -> Floats:
    """Saved bytes of some parts; all saved bytes in rows that name no part."""
    if parts is None or not np.any(parts):
        return all_saved
    pairs = zip(steps, saved, strict=True)
    named = [np.where(parts & step.part > 0, here, 0.0) for step, here in pairs]
    return np.where(parts > 0, sum(named, np.zeros_like(all_saved)), all_saved)


def _captured(
    steps: Sequence[Step], saved: Sequence[Floats], zero: Floats, modules: Ints | None
) -> tuple[Floats, Floats]:
    """Saved bytes of the operations of some modules, and the largest transient bytes of a graph.

    Attention and the block that follows it are graphs of their own.
    """
    if modules is None or not np.any(modules):
        return zero, zero
    pool = working = zero
    for of_attention in (True, False):
        largest = zero
        for step, kept in zip(steps, saved, strict=True):
            if (step.modules == _ATTENTION) != of_attention:
                continue
            inside = modules & step.modules > 0
            pool = pool + np.where(inside, kept, 0.0)
            live = np.maximum(step.forward, step.backward)
            largest = np.maximum(largest, np.where(inside, live, 0.0))
        working = working + largest
    return pool, working


def _peak(
    saved: Floats,
    movable: Floats,
    captured: tuple[Floats, Floats],
    moments: Sequence[tuple[Floats, int]],
    trained: Floats,
) -> Walk:
    """The largest of several moments, the last of equal ones."""
    over, peak = moments[0][0], np.full(saved.shape, moments[0][1], dtype=np.int64)
    for live, position in moments[1:]:
        larger = live >= over
        over = np.where(larger, live, over)
        peak = np.where(larger, position, peak)
    pool, working = captured
    return Walk(
        saved=saved,
        movable=movable,
        over=over,
        trained_over=trained,
        captured=pool,
        working=working,
        peak=peak,
    )


def _rebuilt_at(steps: Sequence[Step], i: int, parts: int) -> int:
    """The first operation to go backward that needs what i drops; -1 where i drops nothing.

    It is the last operation that the same part runs again or rebuilds.
    """
    needing = (
        j for j, step in enumerate(steps) if steps[i].drops & (step.reruns | step.drops) & parts
    )
    return max(needing, default=-1)
