"""Words that fields of a model, a system, a strategy and a stack may have."""

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from itertools import permutations
from typing import Self

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


class Word(StrEnum):
    """One of the words of a field; it equals, prints and is written as plain text."""

    code: int
    """Position among the words, which stands for the word in columns of numbers."""

    def __new__(cls, text: str) -> Self:
        """Number the words as they are defined."""
        word = str.__new__(cls, text)
        word._value_ = text
        word.code = len(cls.__members__)
        return word

    def __repr__(self) -> str:
        return repr(self.value)

    @classmethod
    def from_code(cls, code: int) -> Self:
        """The word at a position."""
        return tuple(cls)[code]

    @classmethod
    def bits(cls, words: Iterable[str]) -> int:
        """A set of words as a number: bit n stands for the word with code n."""
        return _bits(cls, frozenset(words))

    @classmethod
    def from_bits(cls, bits: int) -> tuple[Self, ...]:
        """The words that the bits of a number stand for, in order; -1 stands for all."""
        return tuple(word for word in cls if bits >> word.code & 1)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.enum_schema(cls, list(cls), sub_type="str")

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {"type": "string", "enum": [word.value for word in cls]}


@lru_cache(1024)
def _bits(words_of: type[Word], words: frozenset[str]) -> int:
    return sum(1 << words_of(word).code for word in words)


def any_case(words: type[Word], **aliases: Word) -> BeforeValidator:
    """Accept words in any case, and aliases of some of them."""
    known = {word.value: word for word in words} | aliases
    return BeforeValidator(
        lambda value: known.get(value.lower(), value) if isinstance(value, str) else value
    )


class Activation(Word):
    """Non-linearity of a feed-forward block; the `glu` kinds multiply it with a second product."""

    GELU = "gelu"
    RELU = "relu"
    SILU = "silu"
    RELU2 = "relu2"
    XIELU = "xielu"
    SWIGLU = "swiglu"
    GEGLU = "geglu"
    REGLU = "reglu"


class Norm(Word):
    """Kind of all norms of a model."""

    LAYERNORM = "layernorm"
    RMSNORM = "rmsnorm"


class NormPlacement(Word):
    """Norms of a layer: before its blocks, after them, both, or of the stream after each sum."""

    PRE = "pre"
    POST = "post"
    BOTH = "both"
    STREAM = "stream"


class Position(Word):
    """How positions enter a model."""

    LEARNED = "learned"
    ROPE = "rope"
    ALIBI = "alibi"
    SINUSOIDAL = "sinusoidal"
    RELATIVE_BIAS = "relative-bias"
    RELATIVE_XL = "relative-xl"


class AttentionBias(Word):
    """Projections of attention that have a bias."""

    NONE = "none"
    QKV = "qkv"
    OUTPUT = "output"
    ALL = "all"


class AttentionGate(Word):
    """How a gate of the output of attention is projected.

    `full`: one value for each element, by a query matrix that is wider by as much; `value`: the
    same by a matrix of its own; `head`: one value for each head.
    """

    NONE = "none"
    FULL = "full"
    VALUE = "value"
    HEAD = "head"


class ExpertNorms(Word):
    """Norms that a block of experts has in addition to those of its layer."""

    NONE = "none"
    OUTPUT = "output"
    BRANCHES = "branches"


class QkNorm(Word):
    """What norms of queries and keys span."""

    NONE = "none"
    HEAD = "head"
    WIDTH = "width"
    UNWEIGHTED = "unweighted"


class Dtype(Word):
    """Type of weights and activations."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


DTYPE_ALIASES = {
    "bfloat16": Dtype.BF16,
    "float16": Dtype.FP16,
    "half": Dtype.FP16,
    "float32": Dtype.FP32,
    "float": Dtype.FP32,
}


class Quantization(Word):
    """Recipe for matrix products in fewer than 16 bits."""

    NONE = "none"
    FP8_TENSOR = "fp8_tensor"
    FP8_ROW = "fp8_row"
    FP8_BLOCK = "fp8_block"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


class Dispatcher(Word):
    """How tokens reach their experts and return.

    `all_to_all` sends one copy for each expert of a token. `all_gather` gathers all tokens of the
    ranks and reduce-scatters the results. `deepep` and `hybridep` send a token once to each node
    and forward it inside.
    """

    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"
    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"

    @property
    def sends_once(self) -> bool:
        """Whether a token for several experts of a rank or node travels there once."""
        return self in (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)


class DispatchDtype(Word):
    """Type of tokens on the way to their experts."""

    DTYPE = "dtype"
    FP8 = "fp8"


class Recompute(Word):
    """What the backward pass recomputes."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Schedule(Word):
    """Pipeline schedule."""

    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    GPIPE = "gpipe"
    ZB_H1 = "zb-h1"
    ZB_V = "zb-v"
    DUALPIPE = "dualpipe"


class AttentionKind(Word):
    """Key-value heads of attention."""

    MODEL = "model"
    MULTIHEAD = "multihead"
    MULTIQUERY = "multiquery"


class TpExchange(Word):
    """Communication of tensor parallelism."""

    ALL_REDUCE = "all_reduce"
    RS_AG = "rs_ag"
    P2P_RS_AG = "p2p_rs_ag"
    SUMMA = "summa"


TP_EXCHANGE_ALIASES = {
    "ar": TpExchange.ALL_REDUCE,
    "allreduce": TpExchange.ALL_REDUCE,
    "sequence_parallel": TpExchange.RS_AG,
}


class GradSync(Word):
    """When replicas reduce sharded gradients.

    What the stack does, once per step, or with every micro-batch.
    """

    STACK = "stack"
    STEP = "step"
    MICRO_BATCH = "micro_batch"


class Loss(Word):
    """Kernels of the cross entropy, and how much of the logits exists at a time."""

    STACK = "stack"
    EAGER = "eager"
    COMPILED = "compiled"
    VOCAB_PARALLEL = "vocab_parallel"
    VOCAB_PARALLEL_FUSED = "vocab_parallel_fused"
    LOSS_PARALLEL = "loss_parallel"
    IN_PLACE = "in_place"
    CHUNKED_LOGITS = "chunked_logits"
    CHUNKED = "chunked"
    CHUNKED_RECOMPUTE = "chunked_recompute"
    FUSED_LINEAR = "fused_linear"
    CUT = "cut"


class TpOverlap(Word):
    """What overlaps the communication of tensor parallelism with compute."""

    STACK = "stack"
    NONE = "none"
    RING = "ring"
    PIPE = "pipe"


class CpExchange(Word):
    """Communication of context parallelism."""

    RING = "ring"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"


class Optimizer(Word):
    """Update rule and the type of its state."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    ADAMW_BF16 = "adamw-bf16"
    ADAFACTOR = "adafactor"
    MUON = "muon"
    SGD_MOMENTUM = "sgd-momentum"
    SGD = "sgd"


class RecomputePart(Word):
    """What selective recompute may run again."""

    CORE_ATTENTION = "core_attention"
    ATTENTION = "attention"
    ATTENTION_NORM = "attention_norm"
    MLA_UP = "mla_up"
    MLP_NORM = "mlp_norm"
    ACTIVATION = "activation"
    MLP = "mlp"
    MOE = "moe"
    EVERY_OTHER = "every_other"
    QKV = "qkv"
    ATTENTION_OUT = "attention_out"
    MLP_UP = "mlp_up"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared_experts"
    MIXER_GATE = "mixer_gate"
    STREAMS = "streams"


class FrozenPart(Word):
    """Weights that may be frozen."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    MLP = "mlp"
    EXPERTS = "experts"
    ROUTER = "router"
    NORMS = "norms"
    HEAD = "head"


class LoraPart(Word):
    """Matrix products that may have low-rank adapters, and what may be trained next to them."""

    ATTENTION = "attention"
    MLP = "mlp"
    EXPERTS = "experts"
    EMBEDDING = "embedding"
    HEAD = "head"


class OffloadPart(Word):
    """Activations that may be offloaded."""

    ATTENTION_NORM = "attention_norm"
    QKV = "qkv"
    CORE_ATTENTION = "core_attention"
    ATTENTION_OUT = "attention_out"
    MLP_NORM = "mlp_norm"
    MLP = "mlp"
    ROUTER = "router"
    EXPERT_UP = "expert_up"
    ACTIVATION = "activation"
    EXPERT_DOWN = "expert_down"
    OTHER = "other"


class CpuOptimizer(Word):
    """How the update of offloaded optimizer state runs: on the accelerator or on the host."""

    STACK = "stack"
    NONE = "none"
    FUSED = "fused"
    UNFUSED = "unfused"
    SUPEROFFLOAD = "superoffload"


class MemoryLimit(Word):
    """What must fit into the memory of an accelerator."""

    RESERVED = "reserved"
    ALLOCATED = "allocated"


class Processing(Word):
    """How the compute and the memory time of a kernel combine."""

    MEASURED = "measured"
    ROOFLINE = "roofline"
    NO_OVERLAP = "no_overlap"


class ExpertChoices(Word):
    """Which experts a benchmark computes for each token of a rank."""

    SPREAD = "spread"
    REPEATED = "repeated"
    LOCAL = "local"


class LaunchRule(Word):
    """Conditions of launchers that no list of values says (`parallel.constraints.software`)."""

    CHUNKED_MICRO_BATCHES = "chunked_micro_batches"
    STAGED_MICRO_BATCHES = "staged_micro_batches"
    EVEN_STAGES = "even_stages"
    RECOMPUTED_CHUNKS = "recomputed_chunks"
    KV_HEADS = "kv_heads"
    ALL_TO_ALL_HEADS = "all_to_all_heads"
    SPLIT_TOKENS = "split_tokens"
    TIED_STAGES = "tied_stages"
    EXPERT_GRID = "expert_grid"
    EXPERT_SHARDS = "expert_shards"
    EXPERT_REPLICAS = "expert_replicas"
    EXPERT_TENSORS = "expert_tensors"
    EXPERT_TENSORS_ALONE = "expert_tensors_alone"
    DISPATCHED_RANKS = "dispatched_ranks"
    EXPERT_SEQUENCE = "expert_sequence"
    EXPERT_BIASES = "expert_biases"
    FUSED_NORMS = "fused_norms"
    GROUPED_ACTIVATION = "grouped_activation"
    FUSED_NORM_OFFLOAD = "fused_norm_offload"
    PRESENT_PARTS = "present_parts"
    SELECTIVE_STREAMS = "selective_streams"
    UNTIED_SHARDS = "untied_shards"
    OFFLOAD_SHARDS = "offload_shards"
    EXPERTS_SPLIT_AS_TP = "experts_split_as_tp"
    DENSE_TENSORS = "dense_tensors"


class Generation(Word):
    """Architecture of an accelerator: what its software and kernels are released for.

    `ampere_rtx` is compute capability 8.6, `blackwell_rtx` 12.0, `xe` Intel's Data Center GPU Max.
    """

    OTHER = "other"
    PASCAL = "pascal"
    VOLTA = "volta"
    TURING = "turing"
    AMPERE = "ampere"
    AMPERE_RTX = "ampere_rtx"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    BLACKWELL_RTX = "blackwell_rtx"
    CDNA2 = "cdna2"
    CDNA3 = "cdna3"
    CDNA4 = "cdna4"
    TPU = "tpu"
    TRAINIUM = "trainium"
    GAUDI = "gaudi"
    ASCEND = "ascend"
    XE = "xe"
    CPU = "cpu"

    @property
    def family(self) -> str:
        """Makers' family, which decides what software runs: `nvidia`, `amd`, or its own name."""
        if self in _NVIDIA:
            return "nvidia"
        return "amd" if self.startswith("cdna") else self.value


_NVIDIA = frozenset(
    Generation[name]
    for name in (
        "PASCAL", "VOLTA", "TURING", "AMPERE", "AMPERE_RTX", "ADA", "HOPPER", "BLACKWELL",
        "BLACKWELL_RTX",
    )
)  # fmt: skip


class AttentionKernel(Word):
    """How attention is computed.

    What the stack does; the fastest kernel on the accelerator, which its figures are of; unfused
    (products, softmax and dropout in kernels of their own); the memory-efficient kernel of PyTorch
    and xFormers; FlashAttention 1 to 4; cuDNN; FlexAttention in Triton; on AMD Composable Kernel
    with AITER, or AOTriton; the fused kernels of Ascend (npu) and of TPUs (splash).
    """

    STACK = "stack"
    BEST = "best"
    UNFUSED = "unfused"
    EFFICIENT = "efficient"
    FLASH1 = "flash1"
    FLASH2 = "flash2"
    FLASH3 = "flash3"
    FLASH4 = "flash4"
    CUDNN = "cudnn"
    TRITON = "triton"
    CK = "ck"
    AOTRITON = "aotriton"
    NPU = "npu"
    SPLASH = "splash"

    @property
    def is_named(self) -> bool:
        """Whether it is one fused kernel, not what another choice amounts to."""
        return self not in ("stack", "best", "unfused")

    @property
    def runs_fp32(self) -> bool:
        """Whether it is fused and runs fp32, not only 16 bits and fewer."""
        return self in ("efficient", "triton", "splash")


class Tuning(Word):
    """Who tunes software, which sets on which side of a prediction its measured times lie."""

    STOCK = "stock"
    HAND = "hand"
    HOBBY = "hobby"


class ExpertKernel(Word):
    """How the GEMMs of a rank's experts run.

    What the stack does, a Python loop over experts (transformers 4), a library call for each expert
    (Transformer Engine's GroupedLinear), one grouped kernel for all (CUTLASS, torch._grouped_mm),
    or grouped kernels that include the activation and its cast.
    """

    STACK = "stack"
    LOOP = "loop"
    CALLS = "calls"
    GROUPED = "grouped"
    FUSED = "fused"


class GradientDtype(Word):
    """Type in which gradients accumulate; `compute` is the dtype of the strategy."""

    STACK = "stack"
    FP32 = "fp32"
    COMPUTE = "compute"


class ReduceDtype(Word):
    """Type in which replicas reduce gradients; `gradient` is the type they accumulate in."""

    STACK = "stack"
    GRADIENT = "gradient"
    FP32 = "fp32"
    COMPUTE = "compute"


class WeightDtype(Word):
    """Type in which trained weights are stored.

    Weights in fp32 are updated themselves, and products read copies in the dtype of the strategy
    (autocast, mixed precision of FSDP).
    """

    STACK = "stack"
    COMPUTE = "compute"
    FP32 = "fp32"


class MasterDtype(Word):
    """Type of the optimizer's own copy of weights in 16 bits; `none`: it updates these."""

    STACK = "stack"
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    NONE = "none"


class MomentDtype(Word):
    """Type of the moments of an optimizer; int8 has an fp32 scale for each 256 values."""

    STACK = "stack"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"


class BaseWeights(Word):
    """Type in which frozen weights of matrix products are stored.

    What the stack does, that of the strategy, fp32, LLM.int8 of bitsandbytes, nf4 with its scales
    quantized again or not, or int4 of GPTQ.
    """

    STACK = "stack"
    DTYPE = "dtype"
    FP32 = "fp32"
    INT8 = "int8"
    NF4 = "nf4"
    NF4_SINGLE = "nf4_single"
    INT4 = "int4"


class Task(Word):
    """What is trained on: which sequences a step has, and which passes they need.

    Next tokens (pretrain, sft), pairs of a chosen and a rejected answer (dpo, orpo, rm), or single
    answers that are compared with mismatched ones (kto).
    """

    PRETRAIN = "pretrain"
    SFT = "sft"
    DPO = "dpo"
    ORPO = "orpo"
    KTO = "kto"
    RM = "rm"

    @property
    def pairs(self) -> bool:
        """Whether a sample is two sequences."""
        return self in (Task.DPO, Task.ORPO, Task.RM)

    @property
    def has_reference(self) -> bool:
        """Whether its loss reads log-probabilities of a reference model."""
        return self in (Task.DPO, Task.KTO)


class Reference(Word):
    """Where the log-probabilities of the reference model come from.

    What the task usually does (adapters that are switched off, else a frozen copy), a frozen copy
    on the accelerators or on the host, adapters that are switched off, or a pass before training.
    """

    USUAL = "usual"
    COPY = "copy"
    COPY_HOST = "copy_host"
    ADAPTER_OFF = "adapter_off"
    PRECOMPUTED = "precomputed"


class Adapter(Word):
    """Kind of low-rank adapters."""

    LORA = "lora"
    DORA = "dora"


class LoraTarget(Word):
    """Modules that have adapters, as PEFT names them.

    Projections into and out of mixers are `in_proj`
    and `out_proj`, those of gates of attention `g_proj`, routed experts `experts`.
    """

    Q_PROJ = "q_proj"
    K_PROJ = "k_proj"
    V_PROJ = "v_proj"
    O_PROJ = "o_proj"
    IN_PROJ = "in_proj"
    OUT_PROJ = "out_proj"
    G_PROJ = "g_proj"
    GATE_PROJ = "gate_proj"
    UP_PROJ = "up_proj"
    DOWN_PROJ = "down_proj"
    EXPERTS = "experts"
    EMBEDDING = "embedding"
    HEAD = "head"


LORA_PRESETS: dict[str, tuple[LoraTarget, ...]] = {
    "all-linear": tuple(LoraTarget)[:10],
    "attention": tuple(LoraTarget)[:4],
    "qv": (LoraTarget.Q_PROJ, LoraTarget.V_PROJ),
    "gate-up-down": tuple(LoraTarget)[7:10],
}
"""Sets of modules that trainers have a word for."""


class CheckpointPlace(Word):
    """Where the inputs of fully recomputed layers wait for backward."""

    DEVICE = "device"
    HOST = "host"


class Batching(Word):
    """How sequences of several lengths make a micro-batch."""

    PADDED = "padded"
    PADDING_FREE = "padding_free"
    PACKED = "packed"


class CudaGraphs(Word):
    """What CUDA graphs capture.

    What the stack does, nothing, layers or parts of them, or forward and backward of a step.
    """

    STACK = "stack"
    NONE = "none"
    PARTIAL = "partial"
    FULL = "full"


class GraphScope(Word):
    """Modules of a layer that a CUDA graph of the layer may capture, as Megatron-LM names them."""

    ATTN = "attn"
    MLP = "mlp"
    MOE = "moe"
    MOE_ROUTER = "moe_router"
    MAMBA = "mamba"


ROUTED_EXPERTS = 1 << len(GraphScope)
"""A bit next to those of `GraphScope`: routed experts without their router."""


class Compile(Word):
    """What torch.compile or XLA compiles; each word includes the ones before it."""

    STACK = "stack"
    NONE = "none"
    LOSS = "loss"
    LAYERS = "layers"
    WHOLE = "whole"


# Stages of ZeRO (arXiv 1910.02054) from which on each of these is sharded.
ZERO_OPTIMIZER, ZERO_GRADIENTS, ZERO_WEIGHTS = 1, 2, 3
PLACED_AXES = ("tp", "cp", "dp", "pp")
EXTENT_AXES = ("tp", "tp2", "cp", "dp", "pp")
"""Axes that have extents; in a placement, and where tiers are set, tp2 goes with tp."""
TIER_FIELDS = tuple(f"{axis}_tier" for axis in PLACED_AXES)
PLACEMENTS: tuple[str, ...] = tuple("-".join(order) for order in permutations(PLACED_AXES))
