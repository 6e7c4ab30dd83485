"""Totals of a run of operations: one layer, the embedding, or the head, on one rank."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from shardwise.arrays import Bools, Floats, total
from shardwise.cost.operations import Machine, OperationCost, with_host
from shardwise.ops.operation import MemoryBound, Phase

__all__ = ["BlockCost", "block_cost"]

_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """Columns of times [s], bytes and FLOPs of one rank and one micro-batch."""

    forward_s: Floats
    backward_s: Floats
    recompute_s: Floats
    tp_s: Floats
    """Tensor-parallel exchanges, alone."""
    tp_exposed_s: Floats
    parameters: Floats
    saved_bytes: Floats
    """Kept for backward under the row's recompute."""
    again_bytes: Floats
    """Rebuilt by recompute and live during backward of one layer."""
    working_bytes: Floats
    """Largest working set of an operation's backward."""
    recompute_flops: Floats
    """FLOPs of the matrix products and attention that recompute runs again."""

    def plus(self, other: "BlockCost", count: int = 1) -> "BlockCost":
        """Add `count` blocks on the same rank: everything adds, but only one works at a time."""
        summed = {
            f.name: getattr(self, f.name) + count * getattr(other, f.name) for f in fields(self)
        }
        for name in ("working_bytes", "again_bytes"):
            summed[name] = np.maximum(getattr(self, name), getattr(other, name))
        return BlockCost(**summed)


def block_cost(
    costs: Sequence[OperationCost],
    machine: Machine,
    *,
    full: Bools | None = None,
    selective: Bools | None = None,
    checkpoint_bytes: Floats | None = None,
) -> BlockCost:
    """Add up operations under each row's recompute.

    Time of a direction: (kernels^4 + host^4)^(1/4), host = launches x time of a launch, plus
    exposed exchanges. With `full` recompute forward runs again, exchanges included, and only
    `checkpoint_bytes` are kept; with `selective`, the attention core.

    Parameters
    ----------
    full, selective
        Rows that recompute whole layers, or the attention core; none where omitted.
    checkpoint_bytes
        What full recompute keeps [byte].
    """
    zero = np.zeros_like(machine.host_launch_s)
    full = np.zeros(zero.shape, dtype=np.bool_) if full is None else full
    selective = np.zeros(zero.shape, dtype=np.bool_) if selective is None else selective
    kept = zero if checkpoint_bytes is None else checkpoint_bytes

    forward = total([c.kernel_s(Phase.FORWARD) for c in costs], zero)
    backward = total([c.kernel_s(phase) for c in costs for phase in _BACKWARD], zero)
    core = total([c.kernel_s(Phase.FORWARD) for c in costs if c.operation.core], zero)
    forward_launches = total([c.launches(Phase.FORWARD) for c in costs], zero)
    backward_launches = total([c.launches(phase) for c in costs for phase in _BACKWARD], zero)
    forward_s = with_host(forward, forward_launches * machine.host_launch_s)
    backward_s = with_host(backward, backward_launches * machine.host_launch_s)
    recompute_s = np.where(full, forward_s, np.where(selective, core, 0.0))

    exchanges = [e for c in costs for e in c.exchanges]
    exposed = total([e.exposed_s for e in exchanges], zero)
    again = [e for e in exchanges if e.collective.phase is Phase.FORWARD]
    tp_again = np.where(full, total([e.exposed_s for e in again], zero), 0.0)
    tp_all = total([e.time_s for e in exchanges], zero)
    tp_all = tp_all + np.where(full, total([e.time_s for e in again], zero), 0.0)

    saved = total([c.operation.saved_bytes for c in costs], zero)
    dropped = total(
        [c.operation.core_bytes for c in costs if c.operation.core_bytes is not None], zero
    )
    forward_flops = total([_forward_flops(c) for c in costs], zero)
    core_flops = total([_forward_flops(c) for c in costs if c.operation.core], zero)
    working = np.maximum.reduce([c.operation.working_bytes for c in costs])
    return BlockCost(
        forward_s=forward_s,
        backward_s=backward_s,
        recompute_s=recompute_s,
        tp_s=tp_all,
        tp_exposed_s=exposed + tp_again,
        parameters=total([c.operation.parameters for c in costs], zero),
        saved_bytes=np.where(full, kept, saved - np.where(selective, dropped, 0.0)),
        again_bytes=np.where(full, saved, np.where(selective, dropped, 0.0)),
        working_bytes=working,
        recompute_flops=np.where(full, forward_flops, np.where(selective, core_flops, 0.0)),
    )


def _forward_flops(cost: OperationCost) -> Floats:
    """FLOPs of the forward matrix products and attention."""
    flops = [
        k.kernel.flops
        for k in cost.kernels
        if k.kernel.phase is Phase.FORWARD and not isinstance(k.kernel, MemoryBound)
    ]
    return total(flops, cost.operation.parameters)
