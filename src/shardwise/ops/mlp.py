"""The feed-forward block of a layer."""

import numpy as np

from shardwise.arrays import Floats
from shardwise.model import Mlp, Model
from shardwise.ops.exchange import after_row_parallel, before_column_parallel
from shardwise.ops.linear import linear
from shardwise.ops.operation import MemoryBound, Operation, Phase, RankWork, zeros

__all__ = ["mlp_operations"]

# Vector FLOPs per element of the inner width, forward and backward: tanh-like activations.
_ACTIVATION_FLOPS = (8.0, 13.0)


def mlp_operations(model: Model, mlp: Mlp, work: RankWork, *, exchange: bool) -> list[Operation]:
    """Up (and gate) projection, activation, down projection on one rank.

    With `exchange` false the block shares the input and output exchanges of the attention beside
    it (parallel blocks).
    """
    inner = mlp.ffn / work.tp
    gates = 2 if mlp.gated else 1
    before = before_column_parallel(work, model.hidden) if exchange else ()
    after = after_row_parallel(work, model.hidden) if exchange else ()
    up = linear(
        "mlp.up",
        work,
        tokens=work.tokens,
        inputs=model.hidden,
        outputs=gates * inner,
        bias=gates * inner if mlp.bias else 0.0,
        saved_tokens=work.kept_tokens if exchange else np.zeros_like(work.tp),
        collectives=before,
    )
    down = linear(
        "mlp.down",
        work,
        tokens=work.tokens,
        inputs=inner,
        outputs=model.hidden,
        bias=model.hidden if mlp.bias else 0.0,
        collectives=after,
    )
    return [up, _activation(work, inner, gates), down]


def _activation(work: RankWork, inner: Floats, gates: int) -> Operation:
    """Read the projections, write the activated product; backward read dy and x, write dx.

    Fused, the activated product is not kept for the next product's gradient of weights but written
    a second time beside dx: the bytes of one of the two are saved.
    """
    elements = work.tokens * inner
    size = elements * work.element_bytes
    again = np.where(work.fused_activation, 1.0, 0.0)
    forward, backward = _ACTIVATION_FLOPS
    return Operation(
        name="mlp.activation",
        kernels=(
            MemoryBound(phase=Phase.FORWARD, bytes=(gates + 1) * size, flops=forward * elements),
            MemoryBound(
                phase=Phase.INPUT_GRAD,
                bytes=(2 * gates + 1 + again) * size,
                flops=(backward + again * forward) * elements,
            ),
        ),
        parameters=zeros(work),
        saved_bytes=(gates - again) * size,
        working_bytes=(gates + 1) * size,
    )
