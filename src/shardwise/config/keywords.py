"""Types of the fields of a strategy as keywords, and as columns.

Written by `scripts/generate.py` from `Strategy.model_fields`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from numpy.typing import NDArray

from shardwise.config import enums
from shardwise.config.stack import Stack

T = TypeVar("T")
Column: TypeAlias = Sequence[T] | T | NDArray[Any]
"""One value for all rows, or one for each."""


Dtype = Literal[
    "bf16",
    "fp16",
    "fp32",
    "bfloat16",
    "float16",
    "half",
    "float32",
    "float",
]

Quantization = Literal[
    "none",
    "fp8_tensor",
    "fp8_row",
    "fp8_block",
    "mxfp8",
    "nvfp4",
]

Batching = Literal[
    "padded",
    "padding_free",
    "packed",
]

Attention = Literal[
    "model",
    "multihead",
    "multiquery",
]

Recompute = Literal[
    "none",
    "selective",
    "full",
]

RecomputeParts = Literal[
    "core_attention",
    "attention",
    "attention_norm",
    "mla_up",
    "mlp_norm",
    "activation",
    "mlp",
    "moe",
    "every_other",
    "qkv",
    "attention_out",
    "mlp_up",
    "experts",
    "shared_experts",
    "mixer_gate",
    "streams",
]

CheckpointPlace = Literal[
    "device",
    "host",
]

GradSync = Literal[
    "stack",
    "step",
    "micro_batch",
]

Loss = Literal[
    "stack",
    "eager",
    "compiled",
    "vocab_parallel",
    "vocab_parallel_fused",
    "loss_parallel",
    "in_place",
    "chunked_logits",
    "chunked",
    "chunked_recompute",
    "fused_linear",
    "cut",
]

Task = Literal[
    "pretrain",
    "sft",
    "dpo",
    "orpo",
    "kto",
    "rm",
]

ReferenceModel = Literal[
    "usual",
    "copy",
    "copy_host",
    "adapter_off",
    "precomputed",
]

Optimizer = Literal[
    "adamw",
    "adamw-8bit",
    "adamw-bf16",
    "adafactor",
    "muon",
    "sgd-momentum",
    "sgd",
]

WeightDtype = Literal[
    "stack",
    "compute",
    "fp32",
]

MasterDtype = Literal[
    "stack",
    "fp32",
    "fp16",
    "bf16",
    "none",
]

MomentDtype = Literal[
    "stack",
    "fp32",
    "bf16",
    "fp16",
    "fp8",
    "int8",
]

GradientDtype = Literal[
    "stack",
    "fp32",
    "compute",
]

ReduceDtype = Literal[
    "stack",
    "gradient",
    "fp32",
    "compute",
]

Frozen = Literal[
    "embedding",
    "attention",
    "mlp",
    "experts",
    "router",
    "norms",
    "head",
]

LoraTargets = Literal[
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "in_proj",
    "out_proj",
    "g_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "experts",
    "embedding",
    "head",
]

Adapter = Literal[
    "lora",
    "dora",
]

BaseWeights = Literal[
    "stack",
    "dtype",
    "fp32",
    "int8",
    "nf4",
    "nf4_single",
    "int4",
]

LoraParts = Literal[
    "attention",
    "mlp",
    "experts",
    "embedding",
    "head",
]

Schedule = Literal[
    "1f1b",
    "interleaved",
    "gpipe",
    "zb-h1",
    "zb-v",
    "dualpipe",
]

TpExchange = Literal[
    "all_reduce",
    "rs_ag",
    "p2p_rs_ag",
    "summa",
    "ar",
    "allreduce",
    "sequence_parallel",
]

TpOverlap = Literal[
    "stack",
    "none",
    "ring",
    "pipe",
]

CpExchange = Literal[
    "ring",
    "all_gather",
    "all_to_all",
]

Dispatcher = Literal[
    "all_to_all",
    "all_gather",
    "deepep",
    "hybridep",
]

DispatchDtype = Literal[
    "dtype",
    "fp8",
]

ExpertKernel = Literal[
    "stack",
    "loop",
    "calls",
    "grouped",
    "fused",
]

OffloadParts = Literal[
    "attention_norm",
    "qkv",
    "core_attention",
    "attention_out",
    "mlp_norm",
    "mlp",
    "router",
    "expert_up",
    "activation",
    "expert_down",
    "other",
]

CpuOptimizer = Literal[
    "stack",
    "none",
    "fused",
    "unfused",
    "superoffload",
]

CudaGraphs = Literal[
    "stack",
    "none",
    "partial",
    "full",
]

GraphScope = Literal[
    "attn",
    "mlp",
    "moe",
    "moe_router",
    "mamba",
]

Compile = Literal[
    "stack",
    "none",
    "loss",
    "layers",
    "whole",
]

AttentionKernel = Literal[
    "stack",
    "best",
    "unfused",
    "efficient",
    "flash1",
    "flash2",
    "flash3",
    "flash4",
    "cudnn",
    "triton",
    "ck",
    "aotriton",
    "npu",
    "splash",
]


class StrategyKeywords(TypedDict, total=False):
    """Fields of a strategy."""

    gpus: int | None
    tp: int | str
    tp2: int | str
    pp: int | str
    cp: int | str
    ep: int | str
    etp: int
    dp: int | str | None
    vpp: int
    micro_batch_size: int
    mbs: int
    global_batch_size: int | None
    gbs: int | None
    seq_len: int | None
    dtype: Dtype | enums.Dtype
    quantization: Quantization | enums.Quantization
    quantized_weights: bool
    document_len: int | None
    data_lengths: Sequence[int] | str | None
    batching: Batching | enums.Batching
    attention: Attention | enums.AttentionKind
    recompute: Recompute | enums.Recompute
    recompute_parts: Sequence[RecomputeParts | enums.RecomputePart] | str
    recompute_layers: int | None
    checkpoint_place: CheckpointPlace | enums.CheckpointPlace
    zero: int
    dp_shard: int | None
    fsdp_reshard: bool
    fsdp_prefetch: int
    grad_sync: GradSync | enums.GradSync
    loss: Loss | enums.Loss
    loss_tokens: float
    task: Task | enums.Task
    reference_model: ReferenceModel | enums.Reference
    optimizer: Optimizer | enums.Optimizer
    weight_dtype: WeightDtype | enums.WeightDtype
    master_dtype: MasterDtype | enums.MasterDtype
    moment_dtype: MomentDtype | enums.MomentDtype
    gradient_dtype: GradientDtype | enums.WeightDtype
    reduce_dtype: ReduceDtype | enums.ReduceDtype
    frozen: Sequence[Frozen | enums.FrozenPart] | str
    lora_rank: int | None
    lora_targets: Sequence[LoraTargets | enums.LoraTarget] | str | None
    adapter: Adapter | enums.Adapter
    base_weights: BaseWeights | enums.BaseWeights
    lora_parts: Sequence[LoraParts | enums.LoraPart] | str
    schedule: Schedule | enums.Schedule | None
    first_stage_layers: int | None
    last_stage_layers: int | None
    stage_layers: Sequence[int] | str | None
    embedding_as_layer: bool
    loss_as_layer: bool
    training: bool
    sequence_parallel: bool | None
    tp_exchange: TpExchange | enums.TpExchange | None
    tp_overlap: TpOverlap | enums.TpOverlap
    summa_panels: int | None
    tp_regather: bool
    cp_exchange: CpExchange | enums.CpExchange
    expert_capacity: float | None
    expert_imbalance: float
    dispatcher: Dispatcher | enums.Dispatcher | None
    dispatch_dtype: DispatchDtype | enums.DispatchDtype
    expert_overlap: bool
    expert_kernel: ExpertKernel | enums.ExpertKernel
    dp_overlap: bool
    fused_activation: bool
    offload_weights: bool
    offload_activations: bool
    offload_parts: Sequence[OffloadParts | enums.OffloadPart] | str | None
    offload_optimizer: bool
    cpu_optimizer: CpuOptimizer | enums.CpuOptimizer
    host_threads: int | None
    offload_nvme: bool
    placement: str
    extents: str | Mapping[str, int] | Sequence[Mapping[str, int]] | None
    tp_tier: int | None
    cp_tier: int | None
    dp_tier: int | None
    pp_tier: int | None
    cuda_graphs: CudaGraphs | enums.CudaGraphs
    graph_scope: Sequence[GraphScope | enums.GraphScope] | str | None
    compile: Compile | enums.Compile
    stack: str | Mapping[str, Any] | Stack | None
    attention_kernel: AttentionKernel | enums.AttentionKernel
    any_software: bool


class StrategyColumns(TypedDict, total=False):
    """Fields of several strategies."""

    gpus: Column[int | None]
    tp: Column[int]
    tp2: Column[int]
    pp: Column[int]
    cp: Column[int]
    ep: Column[int]
    etp: Column[int]
    dp: Column[int | None]
    vpp: Column[int]
    micro_batch_size: Column[int]
    mbs: Column[int]
    global_batch_size: Column[int | None]
    gbs: Column[int | None]
    seq_len: Column[int | None]
    dtype: Column[Dtype | enums.Dtype]
    quantization: Column[Quantization | enums.Quantization]
    quantized_weights: Column[bool]
    document_len: Column[int | None]
    data_lengths: Column[Sequence[int] | str | None]
    batching: Column[Batching | enums.Batching]
    attention: Column[Attention | enums.AttentionKind]
    recompute: Column[Recompute | enums.Recompute]
    recompute_parts: Column[Sequence[RecomputeParts | enums.RecomputePart] | str]
    recompute_layers: Column[int | None]
    checkpoint_place: Column[CheckpointPlace | enums.CheckpointPlace]
    zero: Column[int]
    dp_shard: Column[int | None]
    fsdp_reshard: Column[bool]
    fsdp_prefetch: Column[int]
    grad_sync: Column[GradSync | enums.GradSync]
    loss: Column[Loss | enums.Loss]
    loss_tokens: Column[float]
    task: Column[Task | enums.Task]
    reference_model: Column[ReferenceModel | enums.Reference]
    optimizer: Column[Optimizer | enums.Optimizer]
    weight_dtype: Column[WeightDtype | enums.WeightDtype]
    master_dtype: Column[MasterDtype | enums.MasterDtype]
    moment_dtype: Column[MomentDtype | enums.MomentDtype]
    gradient_dtype: Column[GradientDtype | enums.WeightDtype]
    reduce_dtype: Column[ReduceDtype | enums.ReduceDtype]
    frozen: Column[Sequence[Frozen | enums.FrozenPart] | str]
    lora_rank: Column[int | None]
    lora_targets: Column[Sequence[LoraTargets | enums.LoraTarget] | str | None]
    adapter: Column[Adapter | enums.Adapter]
    base_weights: Column[BaseWeights | enums.BaseWeights]
    lora_parts: Column[Sequence[LoraParts | enums.LoraPart] | str]
    schedule: Column[Schedule | enums.Schedule | None]
    first_stage_layers: Column[int | None]
    last_stage_layers: Column[int | None]
    stage_layers: Column[Sequence[int] | str | None]
    embedding_as_layer: Column[bool]
    loss_as_layer: Column[bool]
    training: Column[bool]
    sequence_parallel: Column[bool | None]
    tp_exchange: Column[TpExchange | enums.TpExchange | None]
    tp_overlap: Column[TpOverlap | enums.TpOverlap]
    summa_panels: Column[int | None]
    tp_regather: Column[bool]
    cp_exchange: Column[CpExchange | enums.CpExchange]
    expert_capacity: Column[float | None]
    expert_imbalance: Column[float]
    dispatcher: Column[Dispatcher | enums.Dispatcher | None]
    dispatch_dtype: Column[DispatchDtype | enums.DispatchDtype]
    expert_overlap: Column[bool]
    expert_kernel: Column[ExpertKernel | enums.ExpertKernel]
    dp_overlap: Column[bool]
    fused_activation: Column[bool]
    offload_weights: Column[bool]
    offload_activations: Column[bool]
    offload_parts: Column[Sequence[OffloadParts | enums.OffloadPart] | str | None]
    offload_optimizer: Column[bool]
    cpu_optimizer: Column[CpuOptimizer | enums.CpuOptimizer]
    host_threads: Column[int | None]
    offload_nvme: Column[bool]
    placement: Column[str]
    extents: Column[str | Mapping[str, int] | Sequence[Mapping[str, int]] | None]
    tp_tier: Column[int | None]
    cp_tier: Column[int | None]
    dp_tier: Column[int | None]
    pp_tier: Column[int | None]
    cuda_graphs: Column[CudaGraphs | enums.CudaGraphs]
    graph_scope: Column[Sequence[GraphScope | enums.GraphScope] | str | None]
    compile: Column[Compile | enums.Compile]
    stack: Column[str | Mapping[str, Any] | Stack | None]
    attention_kernel: Column[AttentionKernel | enums.AttentionKernel]
    any_software: Column[bool]
