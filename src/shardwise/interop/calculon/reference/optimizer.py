"""The optimizer step of one block (sections 1.3 and 1.10 of the specification).

Calculon 0.1.0, commit caa4b11.
"""

import numpy as np

from shardwise.arrays import Floats
from shardwise.interop.calculon.files import CalculonSystem
from shardwise.interop.calculon.reference.block import Pass
from shardwise.interop.calculon.reference.columns import Columns
from shardwise.interop.calculon.reference.times import flop_time, memory_time, processing_time

__all__ = ["optimizer_pass", "state_bytes"]

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
