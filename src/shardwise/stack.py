"""`Stack`: the software that runs the strategy. Most of what separates two runs of one setup."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from shardwise.noun import Sourced
from shardwise.units import Bytes, Duration

__all__ = ["Stack"]

Share = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(gt=0)]


class Stack(Sourced):
    """What a framework and its release do with a layer, an exchange and a byte."""

    CATALOG: ClassVar[str | None] = "stacks"

    attention: Literal["flash", "unfused"]
    """`flash`: one kernel that never writes the scores; `unfused`: products, softmax, dropout.
    No flash kernel takes fp32, so that type always runs unfused."""
    attention_time_factor: Factor = 1.0
    """Time of this stack's flash kernel over that of the accelerator's best."""
    memory_traffic_factor: Factor
    """Bytes that element-wise kernels move over the fewest possible (1 = perfectly fused)."""
    loss_forward_bytes: Factor
    """Bytes moved per logit by the loss, forward."""
    loss_backward_bytes: Factor
    """The same, backward."""
    loss_saved_bytes: Factor
    """Bytes per logit that the last stage holds between forward and backward of the loss."""
    gradient_dtype: Literal["fp32", "compute"]
    """Type that gradients accumulate in and are reduced in; `compute`: the strategy's dtype."""
    weight_gradient_buffers: bool
    """Whether one buffer for each distinct shape of weights is held beside the gradients, for
    products that add into them (Transformer Engine)."""
    host_launch: Duration
    """Time of the host to launch one kernel; it hides behind the accelerator when shorter."""
    tp_hidden: Share
    """Share of a sequence-parallel exchange hidden by cutting it and its product in pieces."""
    tp_backward_async: bool
    """Whether the backward exchanges of a column-parallel product run behind its products."""
    pp_hidden: Share
    """Share of the stage-to-stage transfers hidden when stages are interleaved."""
    pp_scatter_gather: bool
    """Whether each tensor-parallel rank hands a 1/tp part to the next stage, gathered there."""
    dp_contention: Annotated[float, Field(gt=0, le=1)]
    """Speed of an overlapped gradient exchange over that of one that runs alone."""
    dp_tail: Share
    """Share of an overlapped gradient exchange with nothing left to hide it: end buckets."""
    step_overhead: Duration
    """Fixed time per step: data, loss reduction, logging, gradient norm."""
    straggler_per_doubling: Annotated[float, Field(ge=0)]
    """Relative growth of the step per doubling of the nodes: jitter and slow members."""
    allocator_slack: Annotated[float, Field(ge=1)]
    """Memory reserved by the allocator over memory allocated."""
    runtime_memory: Bytes
    """Held beside the allocator: contexts, libraries, communicators."""
