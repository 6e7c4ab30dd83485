"""`Strategy`: one way to run a model on a system."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, Unpack

from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from shardwise.config import readers
from shardwise.config.base import MISSING, MOST, NO_FLAG, ConfigBase, Count, Whole
from shardwise.config.bounds import Fraction, Ratio
from shardwise.config.data_lengths import N_LENGTHS, lengths_in
from shardwise.config.degrees import with_levels, with_levels_text
from shardwise.config.enums import (
    DTYPE_ALIASES,
    PLACEMENTS,
    TP_EXCHANGE_ALIASES,
    ZERO_WEIGHTS,
    Adapter,
    AttentionKernel,
    AttentionKind,
    BaseWeights,
    Batching,
    CheckpointPlace,
    Compile,
    CpExchange,
    CpuOptimizer,
    CudaGraphs,
    DispatchDtype,
    Dispatcher,
    Dtype,
    ExpertKernel,
    FrozenPart,
    GradientDtype,
    GradSync,
    GraphScope,
    LoraPart,
    LoraTarget,
    Loss,
    MasterDtype,
    MomentDtype,
    OffloadPart,
    Optimizer,
    Quantization,
    Recompute,
    RecomputePart,
    ReduceDtype,
    Reference,
    Schedule,
    Task,
    TpExchange,
    TpOverlap,
    WeightDtype,
    Word,
    any_case,
)
from shardwise.config.expressions.resolve import with_located_file
from shardwise.config.extents import EXTENTS, canonical_placement
from shardwise.config.fine_tuning import expanded_targets, without_shorthands
from shardwise.config.keywords import StrategyKeywords
from shardwise.config.model import Model
from shardwise.config.plain import separated
from shardwise.config.recipe_defaults import READ_FIELDS, recipe_defaults
from shardwise.config.roles import (
    ALL_TIME,
    COMMUNICATION,
    COMPUTE,
    EXPERTS,
    INSIDE_LAYERS,
    LAYERS,
    ONCE_PER_STEP,
    PLACED,
    POWERS,
    RECOMPUTED,
    STAGE_NUMBERS,
    STAGES,
    Divides,
    Group,
    Role,
    Tries,
    degree,
)
from shardwise.config.roles import Section as In
from shardwise.config.software.record import Software
from shardwise.config.software.resolve import DECIDING_FIELDS, stack_on
from shardwise.config.stack import DEFAULT_STACK, Stack
from shardwise.config.strategy_schema import accept_aliases
from shardwise.errors import Fault, InputError

if TYPE_CHECKING:
    from shardwise.config.system import System

# Of fields that are sets: their words, and what stands in place of none of them.
_WORDS_OF_SETS: dict[str, tuple[type[Word], str]] = {
    "recompute_parts": (RecomputePart, "to recompute nothing, recompute is none"),
    "frozen": (FrozenPart, ""),
    "lora_parts": (LoraPart, "for no adapters leave out lora_rank"),
    "lora_targets": (LoraTarget, "for no adapters leave out lora_rank"),
    "offload_parts": (OffloadPart, "to offload nothing, offload_activations is false"),
    "graph_scope": (GraphScope, "for no graphs cuda_graphs is none"),
}

_FOLLOWING = ("tp_exchange", "schedule")  # from tp and vpp
LAYOUT, CHOICE = Group.LAYOUT, Group.CHOICE
TENSORS = Divides.TENSORS
ALL, DEFAULT = Tries.ALL, Tries.DEFAULT
DIVISORS, DEFAULT_DIVISOR = Tries.DIVISORS, Tries.DEFAULT_DIVISOR


class Strategy(ConfigBase):
    """Degrees, batch, precision, recompute, sharding, schedule, placement and software.

    What is None is filled in by `resolved`: `dp` (or `gpus`) from the other degrees, `seq_len`
    from the model, `sequence_parallel` on with tensor parallelism, `schedule` from `vpp`, `stack`
    from the system, `dispatcher` from the stack. A tier that stays None is the one that
    `placement` gives.

    Examples
    --------
    >>> from shardwise import Strategy
    >>> Strategy(gpus=64, tp=8, gbs=128)
    Strategy(gpus=64, tp=8, global_batch_size=128)
    """

    model_config = ConfigDict(
        validate_by_name=True, validate_by_alias=True, json_schema_extra=accept_aliases
    )

    KIND: ClassVar[readers.Kind | None] = "strategy"
    FIGURES: ClassVar[bool] = True

    gpus: Annotated[
        Count | None,
        Role(In.LAYOUT, (), (), LAYOUT, implied=True, work=True, listed=True, follows=("dp",)),
    ] = None
    """Number of accelerators: tp x tp2 x cp x dp x pp."""
    tp: Annotated[
        Count,
        degree(In.LAYOUT, LAYERS, DIVISORS, TENSORS, "tensor", headline=True, slider=POWERS[:7]),
    ] = 1
    """Tensor-parallel degree."""
    tp2: Annotated[
        Count,
        degree(In.LAYOUT, LAYERS, DEFAULT_DIVISOR, TENSORS, "tensor, second", counted_with="tp"),
    ] = 1
    """Second tensor-parallel degree of 2D products (tp_exchange summa). It splits the sequence, and
    each weight a second time."""
    pp: Annotated[
        Count,
        degree(
            In.PIPELINE,
            STAGES,
            DIVISORS,
            Divides.LAYERS,
            "pipeline",
            headline=True,
            slider=STAGE_NUMBERS,
        ),
    ] = 1
    """Pipeline stages."""
    cp: Annotated[
        Count, degree(In.LAYOUT, LAYERS, DIVISORS, TENSORS, "context", slider=POWERS[:6])
    ] = 1
    """Context-parallel degree."""
    ep: Annotated[
        Count,
        degree(In.EXPERTS, EXPERTS, DEFAULT_DIVISOR, Divides.EXPERTS, "expert", slider=POWERS),
    ] = 1
    """Expert-parallel degree."""
    etp: Annotated[
        Count,
        degree(
            In.EXPERTS,
            EXPERTS,
            DEFAULT_DIVISOR,
            Divides.EXPERTS,
            "tensor, in experts",
            counted_with="ep",
        ),
    ] = 1
    """Tensor-parallel degree inside experts."""
    dp: Annotated[
        Count | None,
        degree(
            In.LAYOUT, ONCE_PER_STEP, DIVISORS, Divides.BATCH, "data", implied=True, headline=True
        ),
    ] = None
    """Data-parallel degree: replicas of the model; None: GPUs over the other degrees."""
    vpp: Annotated[
        Count,
        degree(
            In.PIPELINE,
            ("bubble", "pp_comm"),
            DIVISORS,
            Divides.STAGE,
            headline=True,
            slider=STAGE_NUMBERS[:11],
        ),
    ] = 1
    """Chunks of layers per pipeline stage (virtual pipeline, interleaving)."""
    micro_batch_size: Annotated[
        Count,
        Role(
            In.LAYOUT,
            (*COMPUTE, *INSIDE_LAYERS, "pp_comm", "offload"),
            DIVISORS,
            LAYOUT,
            own_line=True,
            headline=True,
            slider=POWERS[:6],
        ),
    ] = Field(default=1, validation_alias=AliasChoices("micro_batch_size", "mbs"))
    """Sequences per forward pass of one replica."""
    global_batch_size: Annotated[
        Count | None, Role(In.LAYOUT, (), (), LAYOUT, implied=True, work=True)
    ] = Field(default=None, validation_alias=AliasChoices("global_batch_size", "gbs"))
    """Sequences per step, over all replicas."""
    seq_len: Annotated[
        Count | None,
        Role(In.MODEL, (*COMPUTE, *COMMUNICATION, "offload"), implied=True, work=True, listed=True),
    ] = None
    """Tokens per sequence; None: those of the model."""
    dtype: Annotated[
        Dtype, any_case(Dtype, **DTYPE_ALIASES), Role(In.PRECISION, LAYERS, work=True, listed=True)
    ] = Dtype.BF16
    """Type of weights, activations and matrix products."""
    quantization: Annotated[Quantization, Role(In.PRECISION, LAYERS, work=True)] = Quantization.NONE
    """Low-precision recipe for the GEMMs of layers: fp8 scaled by tensor or by block (1 x 128,
    weights 128 x 128), mxfp8 or nvfp4. The rest stays in `dtype`."""
    quantized_weights: Annotated[bool, Role(In.PRECISION, ONCE_PER_STEP, work=True)] = False
    """Whether these weights are stored and gathered in the low-precision type only, without a
    16-bit copy."""
    document_len: Annotated[Count | None, Role(In.MODEL, (*COMPUTE, "cp_comm"), work=True)] = None
    """Tokens of the documents packed into a sequence; attention stays inside a document (for
    several lengths l: sum l^2 / sum l); None: one document per sequence."""
    data_lengths: Annotated[
        tuple[Count, ...] | None,
        Role(In.MODEL, (*COMPUTE, *COMMUNICATION, "offload", "bubble", "other"), work=True),
    ] = None
    """Lengths of the sequences of the data in tokens: median, 95th percentile and longest, or a
    file of `shardwise lengths`, cut off at seq_len; None: all are of seq_len."""
    batching: Annotated[
        Batching,
        Role(
            In.MODEL,
            (*COMPUTE, *COMMUNICATION, "offload", "bubble", "other"),
            work=True,
            follows=("data_lengths",),
        ),
    ] = Batching.PADDED
    """How sequences of data_lengths make a micro-batch: padded to its longest, one after another
    without padding (padding_free), or packed into rows of seq_len; attention stays inside a
    sequence in the latter two."""
    attention: Annotated[AttentionKind, Role(In.MODEL, LAYERS, work=True)] = AttentionKind.MODEL
    """Key-value heads: as in the model, one per query head, or one for all query heads."""
    recompute: Annotated[
        Recompute, any_case(Recompute), Role(In.MEMORY, RECOMPUTED, ALL, own_line=True, listed=True)
    ] = Recompute.NONE
    """What backward recomputes: nothing, some parts of a layer, or full layers."""
    recompute_parts: Annotated[
        tuple[RecomputePart, ...], Role(In.MEMORY, RECOMPUTED, follows=("recompute",))
    ] = (RecomputePart.CORE_ATTENTION,)
    """Parts of a layer that selective recompute recomputes."""
    recompute_layers: Annotated[
        Count | None, Role(In.MEMORY, RECOMPUTED, DEFAULT_DIVISOR, follows=("recompute",))
    ] = None
    """Layers of each rank that recompute applies to, starting from its first (in dualpipe, on each
    of its two stages); None: all."""
    checkpoint_place: Annotated[
        CheckpointPlace,
        Role(In.MEMORY, ("offload",), follows=("recompute",)),
    ] = CheckpointPlace.DEVICE
    """Where the inputs of layers that recompute in full wait for backward: on the device or, moved
    in the background, on the host (Unsloth, axolotl)."""
    zero: Annotated[
        Whole,
        Role(
            In.MEMORY,
            ONCE_PER_STEP,
            ALL,
            CHOICE,
            every=(0, 1, 2, 3),
            practical=(1, 2, 3),
            listed=True,
        ),
    ] = 1
    """ZeRO stage, what data parallelism shards: 0 nothing, 1 optimizer state, 2 gradients too, 3
    weights too (FSDP)."""
    dp_shard: Annotated[Count | None, Role(In.MEMORY, ONCE_PER_STEP, DEFAULT_DIVISOR, LAYOUT)] = (
        None
    )
    """Replicas that one set of shards spans (hybrid sharding); None: all."""
    fsdp_reshard: Annotated[bool, Role(In.MEMORY, ("dp_comm",), group=CHOICE)] = True
    """Whether ZeRO-3 frees the gathered weights after forward and gathers them again in
    backward."""
    fsdp_prefetch: Annotated[Whole, Role(In.MEMORY, ("dp_comm",), group=CHOICE)] = 1
    """Layers whose weights are prefetched before the layer that computes."""
    grad_sync: Annotated[GradSync, Role(In.MEMORY, ("dp_comm",), group=CHOICE)] = GradSync.STACK
    """When ZeRO-2 and ZeRO-3 reduce gradients: what the stack does, once per step, with unsharded
    gradients until then, or with every micro-batch. Once per step, weights that fsdp_reshard does
    not free stay gathered for the step too."""
    loss: Annotated[Loss, Role(In.MEMORY, ("forward", "backward", "tp_comm"))] = Loss.STACK
    """Cross entropy after the head: what the stack does; on the logits of all tokens, by kernels
    that run eagerly, are compiled, split the vocabulary among tensor-parallel ranks or work in
    place; or in chunks of tokens, with or without the head, which then may run again; or in one
    kernel with the head (Liger, cut cross entropy)."""
    loss_tokens: Annotated[
        Fraction, Role(In.MODEL, ("forward", "backward", "tp_comm"), work=True)
    ] = 1.0
    """Share of the tokens that reach the head and the loss: those of answers, where the loss drops
    masked tokens first (TRL's chunked_nll, logits_to_keep)."""
    task: Annotated[Task, Role(In.MODEL, ALL_TIME, work=True)] = Task.PRETRAIN
    """What is trained on: next tokens (pretrain, sft), pairs of answers (dpo, orpo, rm: each of the
    micro_batch_size samples is two sequences), or single answers compared with mismatched ones
    (kto)."""
    reference_model: Annotated[
        Reference,
        Role(In.MODEL, ("forward", *INSIDE_LAYERS, "offload"), work=True, follows=("task",)),
    ] = Reference.USUAL
    """Reference model of dpo and kto: as usual (adapters switched off, else a frozen copy), a copy,
    a copy on the host, adapters switched off, or log-probabilities computed before training."""
    optimizer: Annotated[Optimizer, Role(In.MODEL, ONCE_PER_STEP, work=True)] = Optimizer.ADAMW
    """Update rule and the type of its state."""
    weight_dtype: Annotated[WeightDtype, Role(In.PRECISION, ONCE_PER_STEP, work=True)] = (
        WeightDtype.STACK
    )
    """Type in which trained weights are stored: what the stack does, that of products, or fp32, of
    which products read copies in the type of products (autocast, FSDP's mixed precision)."""
    master_dtype: Annotated[MasterDtype, Role(In.PRECISION, ONCE_PER_STEP, work=True)] = (
        MasterDtype.STACK
    )
    """Type of the optimizer's own copy of weights that are stored in 16 bits; none: it updates the
    weights themselves."""
    moment_dtype: Annotated[MomentDtype, Role(In.PRECISION, ONCE_PER_STEP, work=True)] = (
        MomentDtype.STACK
    )
    """Type of the moments of the optimizer: that of its name (adamw-bf16, adamw-8bit) or of the
    stack, or the one set here."""
    gradient_dtype: Annotated[
        GradientDtype, Role(In.PRECISION, ("backward", *ONCE_PER_STEP), work=True)
    ] = GradientDtype.STACK
    """Type in which gradients accumulate: what the stack does, fp32, or that of products."""
    reduce_dtype: Annotated[ReduceDtype, Role(In.PRECISION, ("dp_comm",), work=True)] = (
        ReduceDtype.STACK
    )
    """Type in which replicas reduce gradients: what the stack does, that of gradients, fp32, or
    that of products."""
    frozen: Annotated[
        tuple[FrozenPart, ...],
        Role(In.MODEL, ("backward", *INSIDE_LAYERS, *ONCE_PER_STEP, "bubble"), work=True),
    ] = ()
    """Parts of the model whose weights are not trained. Shared experts count as mlp."""
    lora_rank: Annotated[Count | None, Role(In.MODEL, LAYERS, work=True)] = None
    """Rank of LoRA adapters, which are trained instead of the weights of the model; None: no
    adapters."""
    lora_targets: Annotated[
        tuple[LoraTarget, ...] | None, Role(In.MODEL, LAYERS, work=True, follows=("lora_rank",))
    ] = None
    """Modules that have adapters of their own, as in PEFT, instead of lora_parts: names, or
    all-linear (all but routed experts and head), attention, qv, gate-up-down. Of latent attention
    q_proj are both projections of queries, k_proj and v_proj both of keys and values. Embedding
    and head are trained in full (modules_to_save)."""
    adapter: Annotated[Adapter, Role(In.MODEL, LAYERS, work=True, follows=("lora_rank",))] = (
        Adapter.LORA
    )
    """Kind of adapters: LoRA, or DoRA, which scales the columns of the adapted weights too."""
    base_weights: Annotated[BaseWeights, Role(In.PRECISION, LAYERS, work=True)] = BaseWeights.STACK
    """Type in which frozen weights of the matrix products of layers are stored: what the stack
    does, that of the strategy, fp32, int8 (LLM.int8), nf4 with double quantization, nf4_single
    without it, or int4 (GPTQ). Products read a 16-bit copy, made each time."""
    lora_parts: Annotated[tuple[LoraPart, ...], Role(In.MODEL, LAYERS, work=True)] = (
        LoraPart.ATTENTION,
        LoraPart.MLP,
    )
    """Parts of a layer whose GEMMs have adapters, one for queries, keys and values together and one
    for up and gate, as in Megatron-Bridge. Embedding and head may be trained next to them,
    in full, as copies of the frozen ones (PEFT's modules_to_save)."""
    schedule: Annotated[
        Schedule | None,
        Role(
            In.PIPELINE,
            ("bubble", "pp_comm", "ep_comm"),
            (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
            LAYOUT,
            implied=True,
            listed=True,
        ),
    ] = None
    """Pipeline schedule: the order of the micro-batches; None: 1f1b, or interleaved if vpp is
    above 1."""
    first_stage_layers: Annotated[
        Count | None, Role(In.PIPELINE, STAGES, group=LAYOUT, follows=("pp", "vpp"))
    ] = None
    """Layers on the first stage; None: as many as on the others."""
    last_stage_layers: Annotated[
        Count | None, Role(In.PIPELINE, STAGES, group=LAYOUT, follows=("pp", "vpp"))
    ] = None
    """Layers on the last stage; None: as many as on the others."""
    stage_layers: Annotated[
        tuple[Whole, ...] | None, Role(In.PIPELINE, STAGES, group=LAYOUT, follows=("pp", "vpp"))
    ] = None
    """Layers of every stage, first to last; with `vpp`, of every chunk in the order of the
    layers. As text 3+4x14+2, where 4x14 are 14 stages of 4."""
    embedding_as_layer: Annotated[bool, Role(In.PIPELINE, STAGES, group=LAYOUT)] = False
    """Whether the embedding counts as a layer when layers are assigned to stages."""
    loss_as_layer: Annotated[bool, Role(In.PIPELINE, STAGES, group=LAYOUT)] = False
    """Whether head and loss count as a layer when layers are assigned to stages."""
    training: Annotated[bool, Role(In.MODEL, ALL_TIME, work=True)] = True
    """Whether a step includes backward and the optimizer; if not, it is forward only."""
    sequence_parallel: Annotated[
        bool | None, Role(In.COMMUNICATION, (), implied=True, follows=("tp_exchange",))
    ] = None
    """Short for `tp_exchange`: on is rs_ag, off all_reduce."""
    tp_exchange: Annotated[
        TpExchange | None,
        any_case(TpExchange, **TP_EXCHANGE_ALIASES),
        Role(
            In.COMMUNICATION,
            LAYERS,
            (TpExchange.ALL_REDUCE, TpExchange.RS_AG, TpExchange.P2P_RS_AG),
            implied=True,
            practical=(TpExchange.RS_AG,),
            listed=True,
            follows=("sequence_parallel",),
        ),
    ] = None
    """Tensor-parallel communication of activations: all-reduce; reduce-scatter and all-gather, with
    norms and residuals split along the sequence (sequence parallelism); the same between stages
    only; or 2D products (SUMMA), which broadcast panels of inputs and weights."""
    tp_overlap: Annotated[
        TpOverlap,
        Role(In.COMMUNICATION, ("forward", "backward", "tp_comm"), ALL, practical=DEFAULT),
    ] = TpOverlap.STACK
    """Overlap of tensor-parallel communication: what the stack does, none, or the GEMM and its
    collective in pieces, as a ring or as a pipeline of collectives."""
    summa_panels: Annotated[
        Count | None, Role(In.COMMUNICATION, (*COMPUTE, "tp_comm"), DEFAULT_DIVISOR)
    ] = None
    """Panels of a 2D product; each is broadcast while another is multiplied; None: the fewest, a
    multiple of tp and tp2."""
    tp_regather: Annotated[
        bool, Role(In.COMMUNICATION, ("backward", "tp_comm", "offload"), ALL, practical=DEFAULT)
    ] = True
    """Whether rs_ag saves only the shard of an input on each rank and gathers it again in
    backward."""
    cp_exchange: Annotated[CpExchange, Role(In.COMMUNICATION, (*COMPUTE, "cp_comm"))] = (
        CpExchange.RING
    )
    """Context-parallel communication: keys and values sent around a ring during attention,
    all-gathered, or an all-to-all that swaps sequence for heads (Ulysses)."""
    expert_capacity: Annotated[
        Annotated[float, Field(ge=0.01, le=1e4), NO_FLAG] | None,
        Role(In.EXPERTS, (*COMPUTE, "ep_comm"), work=True),
    ] = None
    """Tokens that an expert accepts relative to an even split. Extra tokens are dropped and empty
    slots padded; None: dropless."""
    expert_imbalance: Annotated[Ratio, Role(In.EXPERTS, (*COMPUTE, "ep_comm"), work=True)] = 1.0
    """Tokens sent to the busiest rank over those of an even load."""
    dispatcher: Annotated[
        Dispatcher | None,
        Role(
            In.EXPERTS,
            (*COMPUTE, "ep_comm"),
            ALL,
            implied=True,
            practical=(Dispatcher.ALL_TO_ALL, Dispatcher.DEEPEP, Dispatcher.HYBRIDEP),
        ),
    ] = None
    """How tokens reach their experts: one copy for each expert (all_to_all), all tokens to all
    ranks (all_gather), or each token once to each node (deepep, hybridep); None: that of the
    stack."""
    dispatch_dtype: Annotated[
        DispatchDtype, Role(In.EXPERTS, ("forward", "recompute", "ep_comm"), work=True)
    ] = DispatchDtype.DTYPE
    """Type of tokens in the dispatch to experts. Expert outputs and all gradients keep `dtype`."""
    expert_overlap: Annotated[bool, Role(In.EXPERTS, ("forward", "backward", "ep_comm"), ALL)] = (
        False
    )
    """Whether expert-parallel all-to-alls overlap with the compute of another micro-batch; in
    dualpipe they always do."""
    expert_kernel: Annotated[ExpertKernel, Role(In.EXPERTS, (*COMPUTE, "ep_comm"))] = (
        ExpertKernel.STACK
    )
    """How the GEMMs of experts run: as the stack does, in a Python loop, in a library call for each
    expert, in one grouped kernel, or in grouped kernels that include the activation."""
    dp_overlap: Annotated[
        bool, Role(In.COMMUNICATION, ("dp_comm",), ALL, CHOICE, practical=DEFAULT, listed=True)
    ] = True
    """Whether data-parallel communication of gradients and weights overlaps with compute."""
    fused_activation: Annotated[
        bool, Role(In.MEMORY, ("forward", "backward", "offload"), ALL, practical=DEFAULT)
    ] = False
    """Whether the MLP activation is recomputed together with its gradient instead of saved."""
    offload_weights: Annotated[bool, Role(In.MEMORY, ("offload",), ALL, practical=DEFAULT)] = False
    """Whether the weights of layers are offloaded to the second memory tier."""
    offload_activations: Annotated[bool, Role(In.MEMORY, ("offload",), ALL, practical=DEFAULT)] = (
        False
    )
    """Whether saved activations of layers are offloaded to the second memory tier."""
    offload_parts: Annotated[tuple[OffloadPart, ...] | None, Role(In.MEMORY, ("offload",))] = None
    """Parts of a layer whose saved activations offload_activations moves; None: all parts."""
    offload_optimizer: Annotated[
        bool, Role(In.MEMORY, ("optimizer", "offload"), ALL, CHOICE, practical=DEFAULT)
    ] = False
    """Whether optimizer state is offloaded to the second memory tier: all of it where the host
    updates it (`cpu_optimizer`), else that of layers."""
    cpu_optimizer: Annotated[
        CpuOptimizer, Role(In.MEMORY, ("optimizer", "offload"), follows=("offload_optimizer",))
    ] = CpuOptimizer.STACK
    """How offloaded optimizer state is updated: as the stack does, on the accelerator (`none`), on
    the host in one pass (`fused`) or in one pass for each operation (`unfused`), or on the host
    during backward (`superoffload`)."""
    host_threads: Annotated[
        Count | None, Role(In.MEMORY, ("optimizer", "offload"), follows=("offload_optimizer",))
    ] = None
    """Threads of a rank on the host (OMP_NUM_THREADS); None: those of the launcher, usually 1."""
    offload_nvme: Annotated[
        bool, Role(In.MEMORY, ("optimizer", "offload"), follows=("offload_optimizer",))
    ] = False
    """Whether NVMe drives store optimizer state that the host updates, and not its memory."""
    placement: Annotated[
        str,
        Role(In.PLACEMENT, PLACED, ALL, LAYOUT, every=PLACEMENTS, practical=DEFAULT, listed=True),
    ] = "tp-cp-dp-pp"
    """Order of the axes over the ranks, innermost first."""
    extents: Annotated[str | None, EXTENTS, Role(In.PLACEMENT, PLACED, DEFAULT_DIVISOR, LAYOUT)] = (
        None
    )
    """Members of each axis in one domain of a network tier, such as tp=4+dp=2, instead of
    placement; after a slash, what the next tier adds."""
    tp_tier: Annotated[Whole | None, Role(In.PLACEMENT, PLACED, group=LAYOUT)] = None
    """Network tier of all tensor-parallel communication, 0 innermost, instead of placement."""
    cp_tier: Annotated[Whole | None, Role(In.PLACEMENT, PLACED, group=LAYOUT)] = None
    """Network tier of all context-parallel communication, instead of placement."""
    dp_tier: Annotated[Whole | None, Role(In.PLACEMENT, PLACED, group=LAYOUT)] = None
    """Network tier of all data-parallel communication, instead of placement."""
    pp_tier: Annotated[Whole | None, Role(In.PLACEMENT, PLACED, group=LAYOUT)] = None
    """Network tier of all stage-to-stage transfers, instead of placement."""
    cuda_graphs: Annotated[CudaGraphs, Role(In.SOFTWARE, (*COMPUTE, *INSIDE_LAYERS))] = (
        CudaGraphs.STACK
    )
    """What CUDA graphs capture: what the stack does, nothing, parts of layers (graph_scope), or
    forward and backward of a full step."""
    graph_scope: Annotated[
        tuple[GraphScope, ...] | None,
        Role(In.SOFTWARE, (*COMPUTE, *INSIDE_LAYERS), follows=("cuda_graphs",)),
    ] = None
    """Modules that partial CUDA graphs capture; None: attn, mamba, mlp of dense layers, and
    moe_router, with the preprocessing of routed tokens and shared experts."""
    compile: Annotated[Compile, Role(In.SOFTWARE, LAYERS)] = Compile.STACK
    """What is compiled: what the stack does, nothing, the loss, each layer too, or the full
    step."""
    stack: Annotated[
        str | Stack | Software | None,
        Role(In.SOFTWARE, ALL_TIME, implied=True, work=True, listed=True),
    ] = None
    """Software: a description ("torchtitan 0.2, FSDP2"), a stack of the catalog or its file; None:
    that of the system. In a strategy file also fields of a description (`trainer`, `release` ...),
    or `base` and the fields that differ from that stack; these also as text in braces."""
    attention_kernel: Annotated[
        AttentionKernel, Role(In.SOFTWARE, (*COMPUTE, *INSIDE_LAYERS, "offload"))
    ] = AttentionKernel.STACK
    """Attention kernel: what the stack does, the fastest on the accelerator (`best`), unfused, or
    one by name. A kernel that the accelerator has no figure of is as fast as the best."""
    any_software: Annotated[bool, Role(In.SOFTWARE, (), work=True)] = False
    """Allow what this stack release cannot run."""

    if TYPE_CHECKING:  # short names, too

        def __init__(self, **fields: Unpack[StrategyKeywords]) -> None: ...

    @classmethod
    def located(cls, data: Mapping[str, object], source: str) -> Mapping[str, object]:
        """Find the file of a stack, or of its base."""
        return with_located_file(data, "stack", "stacks", source)

    def explicit_fields(self, written: Mapping[str, object]) -> dict[str, Any]:
        """Return the fields that were set, with levels and the base of a stack as they were."""
        explicit = with_levels_text(super().explicit_fields(written), written)
        stack = written.get("stack")
        return explicit | {"stack": stack} if isinstance(stack, (str, Mapping)) else explicit

    @model_validator(mode="before")
    @classmethod
    def _degrees_by_level(cls, fields: object) -> object:
        return with_levels(without_shorthands(fields)) if isinstance(fields, Mapping) else fields

    @field_validator("placement", mode="before")
    @classmethod
    def _canonical_placement(cls, value: object) -> object:
        return canonical_placement(value)

    @field_validator(*_WORDS_OF_SETS, "stage_layers", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return separated(value) if isinstance(value, str) else value

    @field_validator("data_lengths", mode="before")
    @classmethod
    def _lengths_of_file(cls, value: object) -> object:
        return lengths_in(value) if isinstance(value, str) else value

    @field_validator("data_lengths")
    @classmethod
    def _three_lengths(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (len(value) != N_LENGTHS or list(value) != sorted(value)):
            raise ValueError("must be median, 95th percentile and longest, in ascending order")
        return value

    @field_validator("lora_targets", mode="before")
    @classmethod
    def _modules(cls, value: object) -> object:
        items = separated(value) if isinstance(value, str) else value
        is_list = isinstance(items, (list, tuple)) and all(isinstance(one, str) for one in items)
        return expanded_targets(tuple(items)) if is_list else value  # type: ignore[arg-type]

    @field_validator(*_WORDS_OF_SETS)
    @classmethod
    def _in_order(
        cls, value: tuple[str, ...] | None, info: ValidationInfo
    ) -> tuple[str, ...] | None:
        words, instead = _WORDS_OF_SETS[str(info.field_name)]
        if value == () and instead:
            raise ValueError(f"must name a part; {instead}")
        return None if value is None else tuple(word for word in words if word in value)

    @field_validator("dtype", mode="before")
    @classmethod
    def _not_a_recipe(cls, value: object) -> object:
        word = value.lower() if isinstance(value, str) else ""
        if word in [*Quantization] or re.fullmatch(r"(mx|nv)?(fp[468]|int[48]).*", word):
            recipes = ", ".join(one for one in Quantization if one != Quantization.NONE)
            raise ValueError(
                f"allowed: {', '.join(Dtype)}; fewer than 16 bits are a recipe for products: set "
                f"quantization ({recipes})"
            )
        return value

    @field_validator("stack", mode="before")
    @classmethod
    def _stack_from_base(cls, value: object) -> object:
        if value is None or isinstance(value, Software):
            return value
        if isinstance(value, Mapping) and value and value.keys() <= Software.model_fields.keys():
            return Software.validated(value, source="stack")
        return Stack.from_fields(value)

    @field_serializer("stack")
    def _stack_name_or_fields(self, value: str | Stack | Software | None) -> object:
        if isinstance(value, Software):
            return value.model_dump(mode="json", exclude_defaults=True)
        return value.to_fields() if isinstance(value, Stack) else value

    @model_validator(mode="after")
    def _one_tp_exchange(self) -> Self:
        split, exchange = self.sequence_parallel, self.tp_exchange
        if split is not None and exchange is not None and split != (exchange == TpExchange.RS_AG):
            place = {
                "field": "sequence_parallel",
                "problem": f"contradicts tp_exchange {exchange}; give one",
            }
            raise InputError(Fault(**place, value=split, has_value=True))
        return self

    def resolved(self, model: Model, on: "System | str" = DEFAULT_STACK) -> "Strategy":
        """Fill in what is None, and what the stack has another default of.

        Parameters
        ----------
        on
            The system, or the name of the stack that it names.

        Raises
        ------
        InputError
            If a value is missing that nothing implies, or the degrees contradict `gpus`.
        """
        faults: list[Fault] = []

        def fault(field: str, problem: str, value: object = None) -> None:
            is_set = value is not None
            place = {"source": "strategy", "field": field}
            faults.append(Fault(**place, value=value, has_value=is_set, problem=problem))

        stack = self.loaded_stack(on, model)
        own, usual = self.model_fields_set, stack.field_defaults
        inherited = {n: v for n, v in usual.items() if n not in own and n not in _FOLLOWING}
        as_tp = model.has_experts and stack.has_etp_of_tp(alone=self.ep == 1)
        if as_tp and "etp" not in own:
            inherited["etp"] = self.tp
        left_open = model.has_experts and self.attention_kernel == AttentionKernel.STACK
        if left_open and stack.kernel_of_experts != AttentionKernel.STACK:
            inherited["attention_kernel"] = stack.kernel_of_experts
        if self.pp > 1 and self.zero == ZERO_WEIGHTS and "fsdp_reshard" not in own:
            inherited |= {} if stack.pipeline_reshard else {"fsdp_reshard": False}
        if inherited:
            return self.model_copy(update=inherited | {"stack": stack}).resolved(model, on)
        gpus, dp = self._accelerators(fault)
        seq_len = self.seq_len or model.seq_len
        if seq_len is None:
            fault("seq_len", f"is missing: model {model.name} names none")
        if self.global_batch_size is None:
            fault("global_batch_size", MISSING["global_batch_size"])
        if faults:
            raise InputError(faults)
        parallel = self.sequence_parallel
        split = TpExchange.RS_AG if parallel else usual.get("tp_exchange", TpExchange.RS_AG)
        shares = self.tp > 1 if parallel is None else parallel
        exchange = self.tp_exchange or (split if shares else TpExchange.ALL_REDUCE)
        one_chunk = usual.get("schedule", Schedule.ONE_F_ONE_B)
        schedule = self.schedule or (Schedule.INTERLEAVED if self.vpp > 1 else one_chunk)
        sends = model.has_experts and self.ep * self.etp > 1
        dispatcher = stack.dispatcher if sends else Dispatcher.ALL_TO_ALL
        one = self.model_copy(
            update={
                "gpus": gpus,
                "dp": dp,
                "seq_len": seq_len,
                "tp_exchange": exchange,
                "sequence_parallel": exchange == TpExchange.RS_AG,
                "schedule": schedule,
                "dispatcher": self.dispatcher or dispatcher,
                "stack": stack,
            }
        )
        of_recipe = _recipe_fields(one, model, stack)
        return one.model_copy(update=of_recipe) if of_recipe else one

    def loaded_stack(self, on: "System | str" = DEFAULT_STACK, model: Model | None = None) -> Stack:
        """Return the stack, or that of the system where the strategy names none."""
        return stack_on(self.stack, on, model, self.stated_options)

    @property
    def stated_options(self) -> dict[str, Any]:
        """Fields that are set and on which facts of software depend."""
        return {n: getattr(self, n) for n in DECIDING_FIELDS if n in self.model_fields_set}

    def in_effect(self, name: str, default_stack: str = DEFAULT_STACK) -> Word:
        """Word of a choice: its own, or that of the stack where it leaves it to the stack."""
        own: Word = getattr(self, name)
        word: Word = getattr(self.loaded_stack(default_stack), name)
        return own if own.code else word

    def _accelerators(self, fault: Callable[..., None]) -> tuple[int | None, int | None]:
        """Accelerators and replicas, each from the other where only one is set."""
        product = self.tp * self.tp2 * self.pp * self.cp
        gpus, dp = self.gpus, self.dp
        second = f" x tp2 {self.tp2}" if self.tp2 > 1 else ""
        degrees = f"tp {self.tp}{second} x cp {self.cp} x pp {self.pp}"
        if gpus is None and dp is None:
            fault("gpus", MISSING["gpus"])
        elif gpus is None:
            gpus = product * (dp or 1)
            if gpus > MOST:
                fault("dp", f"with {degrees} makes {gpus} GPUs; at most {MOST}", dp)
        elif dp is None:
            dp = gpus // product
            own = {"tp": self.tp, "tp2": self.tp2, "cp": self.cp, "pp": self.pp}
            wrong = [name for name, degree in own.items() if gpus % degree]
            if len(wrong) == 1:
                fault(wrong[0], f"must divide gpus {gpus}", own[wrong[0]])
            elif gpus % product:
                fault("gpus", f"must be a multiple of {degrees} = {product}", gpus)
        elif dp * product != gpus:
            fault("gpus", f"must equal {degrees} x dp {dp} = {dp * product}", gpus)
        return gpus, dp


def _recipe_fields(strategy: Strategy, model: Model, stack: Stack) -> dict[str, Any]:
    """Fields that a low-precision recipe of the stack sets."""

    def code(value: Any) -> int:
        if isinstance(value, tuple):
            return RecomputePart.bits(value)
        return value.code if isinstance(value, Word) else value or 0

    values = {name: code(getattr(strategy, name)) for name in READ_FIELDS}
    found = recipe_defaults(model, strategy.model_fields_set, values, lambda of: of(stack))
    return {
        name: CudaGraphs.from_code(int(value)) if name == "cuda_graphs" else bool(value)
        for name, value in found.items()
        if value != values[name]
    }
