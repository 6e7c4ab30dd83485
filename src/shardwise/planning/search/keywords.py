"""Types of the fields of a space as keywords.

Written by `scripts/generate.py` from `Space.model_fields`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from shardwise.config import enums
from shardwise.config import keywords as of_strategy
from shardwise.config.stack import Stack

T = TypeVar("T")
Choices: TypeAlias = Sequence[T | str] | T | str | None
"""One value, several, or text such as ``all`` or ``1,2,4``."""


class LayoutKeywords(TypedDict, total=False):
    """Fields of a space but the size of the work."""

    tp: Choices[int]
    tp2: Choices[int]
    pp: Choices[int]
    cp: Choices[int]
    ep: Choices[int]
    etp: Choices[int]
    dp: Choices[int | None]
    vpp: Choices[int]
    micro_batch_size: Choices[int]
    mbs: Choices[int]
    dtype: Choices[of_strategy.Dtype | enums.Dtype]
    quantization: Choices[of_strategy.Quantization | enums.Quantization]
    quantized_weights: Choices[bool]
    document_len: Choices[int | None]
    data_lengths: Choices[Sequence[int] | str | None]
    batching: Choices[of_strategy.Batching | enums.Batching]
    attention: Choices[of_strategy.Attention | enums.AttentionKind]
    recompute: Choices[of_strategy.Recompute | enums.Recompute]
    recompute_parts: Choices[Sequence[of_strategy.RecomputeParts | enums.RecomputePart] | str]
    recompute_layers: Choices[int | None]
    checkpoint_place: Choices[of_strategy.CheckpointPlace | enums.CheckpointPlace]
    zero: Choices[int]
    dp_shard: Choices[int | None]
    fsdp_reshard: Choices[bool]
    fsdp_prefetch: Choices[int]
    grad_sync: Choices[of_strategy.GradSync | enums.GradSync]
    loss: Choices[of_strategy.Loss | enums.Loss]
    loss_tokens: Choices[float]
    task: Choices[of_strategy.Task | enums.Task]
    reference_model: Choices[of_strategy.ReferenceModel | enums.Reference]
    optimizer: Choices[of_strategy.Optimizer | enums.Optimizer]
    weight_dtype: Choices[of_strategy.WeightDtype | enums.WeightDtype]
    master_dtype: Choices[of_strategy.MasterDtype | enums.MasterDtype]
    moment_dtype: Choices[of_strategy.MomentDtype | enums.MomentDtype]
    gradient_dtype: Choices[of_strategy.GradientDtype | enums.WeightDtype]
    reduce_dtype: Choices[of_strategy.ReduceDtype | enums.ReduceDtype]
    frozen: Choices[Sequence[of_strategy.Frozen | enums.FrozenPart] | str]
    lora_rank: Choices[int | None]
    lora_targets: Choices[Sequence[of_strategy.LoraTargets | enums.LoraTarget] | str | None]
    adapter: Choices[of_strategy.Adapter | enums.Adapter]
    base_weights: Choices[of_strategy.BaseWeights | enums.BaseWeights]
    lora_parts: Choices[Sequence[of_strategy.LoraParts | enums.LoraPart] | str]
    schedule: Choices[of_strategy.Schedule | enums.Schedule | None]
    first_stage_layers: Choices[int | None]
    last_stage_layers: Choices[int | None]
    stage_layers: Choices[Sequence[int] | str | None]
    embedding_as_layer: Choices[bool]
    loss_as_layer: Choices[bool]
    training: Choices[bool]
    tp_exchange: Choices[of_strategy.TpExchange | enums.TpExchange | None]
    tp_overlap: Choices[of_strategy.TpOverlap | enums.TpOverlap]
    summa_panels: Choices[int | None]
    tp_regather: Choices[bool]
    cp_exchange: Choices[of_strategy.CpExchange | enums.CpExchange]
    expert_capacity: Choices[float | None]
    expert_imbalance: Choices[float]
    dispatcher: Choices[of_strategy.Dispatcher | enums.Dispatcher | None]
    dispatch_dtype: Choices[of_strategy.DispatchDtype | enums.DispatchDtype]
    expert_overlap: Choices[bool]
    expert_kernel: Choices[of_strategy.ExpertKernel | enums.ExpertKernel]
    dp_overlap: Choices[bool]
    fused_activation: Choices[bool]
    offload_weights: Choices[bool]
    offload_activations: Choices[bool]
    offload_parts: Choices[Sequence[of_strategy.OffloadParts | enums.OffloadPart] | str | None]
    offload_optimizer: Choices[bool]
    cpu_optimizer: Choices[of_strategy.CpuOptimizer | enums.CpuOptimizer]
    host_threads: Choices[int | None]
    offload_nvme: Choices[bool]
    placement: Choices[str]
    extents: Choices[str | Mapping[str, int] | Sequence[Mapping[str, int]] | None]
    tp_tier: Choices[int | None]
    cp_tier: Choices[int | None]
    dp_tier: Choices[int | None]
    pp_tier: Choices[int | None]
    cuda_graphs: Choices[of_strategy.CudaGraphs | enums.CudaGraphs]
    graph_scope: Choices[Sequence[of_strategy.GraphScope | enums.GraphScope] | str | None]
    compile: Choices[of_strategy.Compile | enums.Compile]
    stack: Choices[str | Mapping[str, Any] | Stack | None]
    attention_kernel: Choices[of_strategy.AttentionKernel | enums.AttentionKernel]
    any_software: Choices[bool]
    scope: Literal["practical", "full"]
    batch: Literal["fixed", "largest"]


class SpaceKeywords(LayoutKeywords, total=False):
    """Fields of a space."""

    gpus: Choices[int | None]
    global_batch_size: Choices[int | None]
    gbs: Choices[int | None]
    seq_len: Choices[int | None]
