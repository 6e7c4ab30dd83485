"""`Gemm`: one matrix product of a step, as a record."""

from shardwise.analysis.record import Result

__all__ = ["Gemm"]


class Gemm(Result):
    """A matrix product (m, k) x (k, n) and how often it runs in a step.

    Runs are counted on one rank of every pipeline stage: all layers, all micro-batches of one
    replica. The other ranks of a stage do as much each, or less if experts' loads are uneven.
    """

    part: str
    """`layer 0` (numbered as in `layers`), `head`, `mtp`."""
    operation: str
    product: str
    """What is multiplied: Y = X W, S = Q K^T ..."""
    direction: str
    """forward, input_grad, weight_grad, recompute or optimizer."""
    batch: int | float
    """Products side by side in one run: heads, or experts of a rank."""
    m: int | float
    """Rows of the result."""
    k: int | float
    """Length of the reduction."""
    n: int | float
    """Columns of the result."""
    share: float
    """Part of it that is computed: half where attention is causal and fused."""
    dtype: str
    """Type that the operands are multiplied in."""
    count: int | float
    """Runs in a step."""
    flops: int
    """Of all runs: 2 batch m k n share count [FLOP]."""
    run_s: float
    """One run [s]; a fused kernel's time is shared out by FLOPs."""
    time_s: float
    """All runs [s]."""
    efficiency: float
    """FLOPs over what the dense peak of the type would do in that time."""
    bound: str
    """What its time goes to: compute, memory or launch."""
