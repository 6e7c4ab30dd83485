"""The fullest moment of operations: a walk forward, then backward, through one micro-batch.

Forward, an operation needs its transient bytes beside what those before it have saved; then it
saves its own. Backward, in reverse order, it needs its transient bytes beside what is still saved,
its own included; then that is released. What recompute drops is rebuilt before the operations that
are run again go backward, and lives until then.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.enums import OffloadPart, RecomputePart
from shardwise.ops.layer import part_of
from shardwise.ops.operation import Operation

FULL, FORWARD_ONLY = -1, -2
"""In place of the bits of `RecomputePart`: everything is run again; there is no backward."""
_EVERY_OTHER = RecomputePart.bits(["every_other"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Saved and transient bytes of one operation, and the recompute parts that affect it."""

    saved: Floats
    rebuilt: Floats
    """Saved bytes that recompute drops and rebuilds."""
    half_rebuilt: Floats
    """The same of the part `every_other` where no other one drops it."""
    ahead: Floats
    """Transient bytes forward."""
    back: Floats
    """Transient bytes backward."""
    reruns: int
    """Bits of `RecomputePart`."""
    drops: int
    part: int
    """Bit of `OffloadPart`: the part that what it keeps belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Saved bytes of a list of operations, and its peak [byte]."""

    kept: Floats
    """From forward to backward."""
    movable: Floats
    """What of it belongs to the parts that may be offloaded."""
    over: Floats
    """Peak bytes in addition to saved ones."""
    peak: Ints
    """The operation that runs then: its position; if it runs forward, that plus the number of
    operations."""


def step_of(operation: Operation) -> Step:
    """What the walk needs to know of an operation."""
    back = operation.working_bytes
    ahead = operation.forward_working_bytes
    return Step(
        saved=operation.saved_bytes,
        rebuilt=operation.rebuilt_by(operation.dropped_with - {"every_other"}),
        half_rebuilt=operation.rebuilt_by({"every_other"}),
        ahead=back if ahead is None else ahead,
        back=back,
        reruns=RecomputePart.bits(operation.reruns_with),
        drops=RecomputePart.bits(operation.dropped_with),
        part=OffloadPart.bits([part_of(operation.name)]),
    )


def walk(
    steps: Sequence[Step], parts: int, checkpoint: Floats, movable: Ints | None = None
) -> Walk:
    """Walk through the operations of a layer (or of embedding or head) under some recompute.

    The fullest moment is the largest over the operations j of
    forward: sum_{i<j} kept_i + ahead_j, unless all is run again;
    backward: sum_{i<=j} kept_i + what of it is rebuilt by then + back_j.
    What is offloaded counts as kept: it is back before its layer goes backward.

    Parameters
    ----------
    parts
        Bits of the parts that are run again, 0 for none, or `FULL`, or `FORWARD_ONLY`.
    checkpoint
        What is kept where everything is run again [byte]; it is the first operation's.
    movable
        Bits of `OffloadPart` that may be offloaded in each row, 0 for all; None: all in all rows.
    """
    zero = np.zeros_like(steps[0].saved)
    if parts == FORWARD_ONLY:
        moments = [(step.ahead, j + len(steps)) for j, step in enumerate(steps)]
        return _fullest(zero, zero, moments)
    whole = parts == FULL
    dropped = [s.saved if whole else _dropped(s, parts) for s in steps]
    kept = [s.saved - gone for s, gone in zip(steps, dropped, strict=True)]
    all_kept = zero + checkpoint if whole else sum(kept, zero)
    moments = []
    back_from = [len(steps) if whole else _rebuilt_at(steps, i, parts) for i in range(len(steps))]
    before = np.cumsum([zero, *kept], axis=0)
    for j, step in enumerate(steps):
        if not whole:
            moments.append((before[j] + step.ahead - all_kept, j + len(steps)))
        again = [dropped[i] for i in range(j + 1) if j <= back_from[i]]
        here = before[j + 1] + sum(again, zero) + step.back
        moments.append((here - all_kept, j))
    by_step = [all_kept, *kept[1:]] if whole else kept
    return _fullest(all_kept, _movable(steps, by_step, all_kept, movable), moments)


def _dropped(step: Step, parts: int) -> Floats:
    """What some parts do not keep of what an operation saves."""
    if step.drops & parts & ~_EVERY_OTHER:
        return step.rebuilt
    return step.half_rebuilt if step.drops & parts else np.zeros_like(step.saved)


def _movable(
    steps: Sequence[Step], kept: Sequence[Floats], all_kept: Floats, parts: Ints | None
) -> Floats:
    """What of what is kept belongs to some parts; all of it in rows that name none."""
    if parts is None or not np.any(parts):
        return all_kept
    pairs = zip(steps, kept, strict=True)
    named = [np.where(parts & step.part > 0, here, 0.0) for step, here in pairs]
    return np.where(parts > 0, sum(named, np.zeros_like(all_kept)), all_kept)


def _fullest(kept: Floats, movable: Floats, moments: Sequence[tuple[Floats, int]]) -> Walk:
    """The largest of several moments, the last of equal ones."""
    over, peak = moments[0][0], np.full(kept.shape, moments[0][1], dtype=np.int64)
    for live, position in moments[1:]:
        fuller = live >= over
        over = np.where(fuller, live, over)
        peak = np.where(fuller, position, peak)
    return Walk(kept=kept, movable=movable, over=over, peak=peak)


def _rebuilt_at(steps: Sequence[Step], i: int, parts: int) -> int:
    """The first to go backward that needs what i drops; -1 where i drops nothing.

    That is the last operation that the same part runs again, or rebuilds something for.
    """
    needing = (
        j for j, step in enumerate(steps) if steps[i].drops & (step.reruns | step.drops) & parts
    )
    return max(needing, default=-1)
