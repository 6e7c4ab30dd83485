"""`Stack`: the software that runs the strategy. Most of what separates two runs of one setup."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, model_validator

from shardwise.config.base import Count, Number, Sourced
from shardwise.config.enums import (
    AttentionImplementation,
    CudaGraphs,
    FlashKernel,
    GradientDtype,
    GroupedProducts,
)
from shardwise.errors import Fault, InputError
from shardwise.units import Bytes, Duration

__all__ = ["Stack"]

Share = Annotated[Number, Field(ge=0, le=1)]
Factor = Annotated[Number, Field(gt=0)]


def _accept_base(schema: dict[str, Any]) -> None:
    """Let the JSON Schema accept what `load` accepts: a base and what differs."""
    schema["properties"]["base"] = {
        "type": "string",
        "description": "Another stack, by name or file, that has all that is not told here.",
    }
    whole = schema.pop("required")
    schema["anyOf"] = [{"required": whole}, {"required": ["name", "base"]}]


class Stack(Sourced):
    """What a framework and its release do with a layer, an exchange and a byte.

    A file of one may name another as its `base`, and tell only what differs.
    """

    model_config = ConfigDict(json_schema_extra=_accept_base)

    CATALOG: ClassVar[str | None] = "stacks"
    FIGURES: ClassVar[bool] = True

    attention: AttentionImplementation
    """`flash`: one kernel that never writes the scores; `unfused`: products, softmax, dropout.
    No flash kernel takes fp32, so that type always runs unfused."""
    attention_time_factor: Factor = 1.0
    """Time of this stack's flash kernel over that of the accelerator's best."""
    flash_kernel: FlashKernel = FlashKernel.BEST
    """Which fused attention kernel it has: the accelerator's best (cuDNN, FlashAttention 3), or
    FlashAttention 2 or 1, which fare as the accelerator says."""
    memory_traffic_factor: Factor
    """Bytes that element-wise kernels move over the fewest possible (1 = perfectly fused)."""
    fused_norm: bool = True
    """Whether a norm is one kernel (Transformer Engine, Apex), or made of element-wise ones with
    fp32 copies between them (RMSNorm in plain PyTorch)."""
    fused_swiglu: bool = True
    """Whether a gated activation is one kernel, or one for the activation and one for the product
    with the gate, with a tensor between them."""
    fused_gradient_accumulation: bool = True
    """Whether products add gradients of weights to those of earlier micro-batches (Apex's
    fused_weight_gradient), or write them in the compute type, for another kernel to add."""
    loss_forward_bytes: Factor
    """Bytes moved per logit by the loss, forward. With 16-bit logits SimuMax's runs of one node
    (B200) are met best by 4 forward, 4 backward and 2 saved with Transformer Engine's fused cross
    entropy, which works in place, and by 38, 14 and 4 without."""
    loss_backward_bytes: Factor
    """The same, backward."""
    loss_saved_bytes: Factor
    """Bytes per logit that the last stage holds at most from forward to backward of the loss."""
    loss_split_bytes: Annotated[Number, Field(ge=0)] = 0.0
    """What it holds more where tensor parallelism splits the vocabulary."""
    grouped_products: GroupedProducts = GroupedProducts.FUSED
    """Products of experts: all in one kernel (CUTLASS), or one of the library for each expert
    (Transformer Engine's GroupedLinear on cuBLAS)."""
    grouped_time_factor: Factor = 1.0
    """Time of the products of experts over that of plain products of their shapes."""
    permute_traffic_factor: Factor = 1.0
    """Bytes that sorting tokens by expert and back moves over the fewest possible, beside
    `memory_traffic_factor`."""
    expert_wait: Duration = 0
    """Time that the host waits for the number of tokens of each expert, in each direction of a
    layer that drops none; launches after it hide behind nothing at first."""
    vocab_multiple: Count = 1
    """Rows of the vocabulary on a rank are padded to a multiple of this (Megatron-LM: 128)."""
    gradient_dtype: GradientDtype
    """Type that gradients accumulate in and are reduced in; `compute`: the strategy's dtype."""
    plain_gradients: bool = False
    """Whether gradients in the strategy's type stay beside those that accumulate in fp32 (the BF16
    optimizer of DeepSpeed)."""
    whole_gradients: bool = False
    """Whether a pipeline whose gradients are split (ZeRO 2 and 3) reduces them with the last
    micro-batch alone, and holds them whole till then (torchtitan)."""
    flat_gradients: bool = False
    """Whether the update of ZeRO 1 and 2 first copies a rank's gradients into one buffer, in their
    own type (DeepSpeed, InternEvo)."""
    update_bytes: Annotated[Number, Field(ge=0)] = 0.0
    """Bytes of each weight that a rank updates, beside its state and an fp32 gradient: what an
    optimizer of several kernels holds between them (8 for torch's Adam, a root and a quotient)."""
    weight_gradient_buffers: bool
    """Whether one buffer for each distinct shape of weights is held beside the gradients, for
    products that add into them (Transformer Engine)."""
    gathers_master: bool = True
    """Whether ZeRO 3 gathers weights from the optimizer's fp32 copy (PyTorch FSDP), rather than
    from shards in the compute type beside it (DeepSpeed)."""
    whole_ends: bool = False
    """Whether ZeRO 3 gathers embedding and head as one, and releases them after backward alone (the
    root of PyTorch FSDP)."""
    host_launch: Duration
    """Time of the host to launch one kernel; it hides behind the accelerator when shorter."""
    cuda_graphs: CudaGraphs = CudaGraphs.NONE
    """What is captured and launched as a whole: nothing, layers but their experts, or all."""
    exchange_time_factor: Factor = 1.0
    """Time of exchanges of tensor and context parallelism in a step over their time alone, on idle
    accelerators: kernels beside them share memory and processors."""
    expert_exchange_factor: Factor = 1.0
    """The same of exchanges among experts, whose libraries have kernels of their own."""
    tp_hidden: Share
    """Share of a sequence-parallel exchange hidden by cutting it and its product in pieces."""
    tp_backward_async: bool
    """Whether the backward exchanges of a column-parallel product run behind its products."""
    pp_hidden: Share
    """Share of the stage-to-stage transfers hidden when stages are interleaved."""
    pp_scatter_gather: bool
    """Whether each tensor-parallel rank hands a 1/tp part to the next stage, gathered there."""
    expert_sends_once: bool = False
    """Whether copies of a token for several experts of one node travel to it once and are handed on
    inside it (DeepEP), rather than each on its own."""
    expert_overlap_processors: Annotated[Number, Field(ge=0, lt=1)] = 0.15
    """Share of the processor that exchanges among experts take from the compute they run beside
    (DeepSeek-V3: 20 of 132 multiprocessors; arXiv 2412.19437, section 3.2.2)."""
    gathers_behind: bool = True
    """Whether weights that are gathered once a step arrive behind the first forward pass."""
    dp_contention: Annotated[Number, Field(gt=0, le=1)]
    """Speed of an overlapped gradient exchange over that of one that runs alone."""
    dp_tail: Share
    """Share of an overlapped gradient exchange with nothing left to hide it: end buckets."""
    step_overhead: Duration
    """Fixed time per step: data, loss reduction, logging, gradient norm."""
    straggler_per_doubling: Annotated[Number, Field(ge=0)]
    """Relative growth of the step per doubling of the nodes: jitter and slow members."""
    allocator_slack: Annotated[Number, Field(ge=1)]
    """Memory that the allocator reserves over what tensors hold (torch: max_memory_reserved over
    max_memory_allocated)."""
    runtime_memory: Bytes
    """Held beside the allocator, as nvidia-smi counts it: contexts, libraries, communicators."""

    @model_validator(mode="after")
    def _buffers_of_fused_products(self) -> Self:
        if self.weight_gradient_buffers and not self.fused_gradient_accumulation:
            fault = Fault(
                field="weight_gradient_buffers",
                value=True,
                has_value=True,
                problem="are of fused_gradient_accumulation; allowed without it: false",
            )
            raise InputError(fault)
        return self
