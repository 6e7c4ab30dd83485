"""`Stack`: the software that runs the strategy. Most of what separates two runs of one setup."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from shardwise import catalog
from shardwise.config.base import NO_FLAG, Count, Sourced, Whole
from shardwise.config.bounds import Factor, Month, PerElement, Portion, Size, Speed
from shardwise.config.capabilities import Capabilities, plain_values
from shardwise.config.enums import (
    AttentionKernel,
    BaseWeights,
    Compile,
    CpuOptimizer,
    CudaGraphs,
    Dispatcher,
    ExpertKernel,
    GradientDtype,
    GradSync,
    LaunchRule,
    Loss,
    MasterDtype,
    MomentDtype,
    Quantization,
    RecomputePart,
    ReduceDtype,
    Schedule,
    TpExchange,
    Tuning,
    WeightDtype,
    Word,
)
from shardwise.config.expressions.records import merged
from shardwise.config.parse import parse
from shardwise.errors import Fault, InputError
from shardwise.frozen import FrozenDict
from shardwise.records import replace
from shardwise.units import Bytes, Duration, Latency

DEFAULT_STACK = "megatron-core-2025"
"""Stack of a system that names none."""

# What fields are that follow from others, where a strategy has tensor parallelism or stages.
_FOLLOWING = {"tp_exchange": TpExchange.RS_AG, "schedule": Schedule.ONE_F_ONE_B}
_SEVERAL_CHUNKS = (Schedule.INTERLEAVED, Schedule.ZB_V)  # of `vpp`
# Stacks that differ in whether layers are compiled, in the framework that was measured both ways.
_EAGER, _COMPILED = "torchtitan-eager", "torchtitan-2025"
EXPERT_KERNELS = {
    ExpertKernel.LOOP: "huggingface-2024",
    ExpertKernel.CALLS: "megatron-core-2025",
    ExpertKernel.GROUPED: "megatron-bridge-fused",
    ExpertKernel.FUSED: "megatron-bridge-nvl72",
}
"""Stack of the catalog that runs experts so: its figures apply where another stack does."""
_OLD_EXPERT_KERNELS = {"loop": ExpertKernel.CALLS, "fused": ExpertKernel.GROUPED}
# Its first month is the one that `yearly_time_factor` counts from.
_TREND_SINCE = 2025
_MOST_INLINE_BYTES = 2**16


def _accept_base(schema: dict[str, Any]) -> None:
    """Let the JSON Schema accept what `load` accepts: a base and what differs."""
    schema["properties"]["base"] = {
        "type": "string",
        "description": "Another stack, by name or file, for all fields that are not set here.",
    }
    required = schema.pop("required")
    schema["anyOf"] = [{"required": required}, {"required": ["name", "base"]}]


class Stack(Sourced):
    """How a framework and its release run a layer, communicate and use memory.

    A stack file may name another stack as its `base` and list only what differs.

    Examples
    --------
    >>> from shardwise import Stack
    >>> Stack.load({"base": "torchtitan-2025", "name": "mine", "tp_hidden": 0.5}).tp_hidden
    0.5
    """

    model_config = ConfigDict(json_schema_extra=_accept_base)

    CATALOG: ClassVar[str | None] = "stacks"
    FIGURES: ClassVar[bool] = True

    release: str = ""
    """Release that is meant, as its makers write it: what `capabilities` are those of."""
    released: Month = ""
    """Month of that release (2026-08); empty: `yearly_time_factor` is not used."""
    yearly_time_factor: Annotated[float, Field(ge=0.8, le=1.25), NO_FLAG] = 1.0
    """Time of GEMMs, attention and element-wise kernels in one release of this software over that
    in a release one year older: libraries, kernels and recipes get faster. The other figures are
    those of a release of January 2025."""
    capabilities: Capabilities | None = None
    """What the release can run; None: strategies are not bound by it. In a stack file, `like` names
    another stack of the catalog whose capabilities it has, but for what is set next to it."""
    attention_kernel: AttentionKernel
    """How attention is computed where the strategy leaves it to the stack: `best`, the fastest
    fused kernel on the accelerator, another fused kernel, or `unfused`. FlashAttention 1 and 2
    stand for the fused kernel of that time on accelerators that do not run them. Files with the
    former fields `attention` and `flash_kernel` are read."""
    experts_attention_kernel: AttentionKernel = AttentionKernel.STACK
    """The same for models with experts, where `attention_kernel` is `best` and theirs is another
    one; `stack`: none (torchtitan: FlexAttention, of Triton)."""
    flash_fp32: bool = False
    """Whether a fused kernel runs fp32 too (the memory-efficient kernel of PyTorch's SDPA), in
    place of its own. FlashAttention and cuDNN support 16 bits and fewer; with them fp32 runs
    unfused."""
    matmul_time_factor: Factor = 1.0
    """Time of GEMMs with the libraries of this stack over that of the accelerator's figures, which
    are of tuned libraries: heuristics, epilogues that are kernels of their own, gaps between
    kernels."""
    attention_time_factor: Factor = 1.0
    """Time of this stack's fused attention over that of the same kernel in other software."""
    memory_traffic_factor: Factor
    """Bytes that element-wise kernels move over the minimum (1 = perfectly fused)."""
    fused_norm: bool = True
    """Whether RMSNorm is one kernel (Transformer Engine, Apex), or several element-wise kernels and
    fp32 copies between them (plain PyTorch)."""
    fused_layer_norm: bool = True
    """The same for LayerNorm, which is one kernel in plain PyTorch too."""
    fused_rope: bool = True
    """Whether a kernel rotates queries and keys in place, or several do with copies in fp32 between
    them (plain PyTorch)."""
    fused_swiglu: bool = True
    """Whether a gated activation is one kernel, or one for the activation and one for the product
    with the gate, with a tensor between them."""
    quantized_activation_input: bool = False
    """Whether a low-precision recipe also saves the input of an MLP's activation in its type
    (DeepSeek-V3: the input of SwiGLU in fp8; arXiv 2412.19437, section 3.3.3), not in 16 bits."""
    quantized_attention: tuple[Quantization, ...] = ()
    """Low-precision recipes in which attention reads queries, keys and values in 8 bits
    (fp8_dot_product_attention of Megatron-LM), with the accelerator's figures of such kernels."""
    masked_selection: bool = False
    """Whether latent attention with an indexer scores all keys, masks those that are not selected,
    and does not train the indexer (transformers, NeMo AutoModel), in place of kernels that gather
    the selected keys (Megatron-LM)."""
    quantized_head: tuple[Quantization, ...] = ()
    """Low-precision recipes in which the head runs as products of layers do (fp8_output_proj of
    Megatron-LM, in mxfp8 since core 0.18), not in the dtype of the strategy."""
    quantized_weight_recipes: tuple[Quantization, ...] = ()
    """Low-precision recipes with `quantized_weights` by default, where ZeRO shards and there are no
    adapters (fp8_param of Megatron-Bridge's presets)."""
    step_graph_recipes: tuple[Quantization, ...] = ()
    """Low-precision recipes that by default capture the full step of a mixture of experts in a CUDA
    graph and overlap its experts, where they can (`recipe_defaults`)."""
    fused_gradient_accumulation: bool = True
    """Whether weight-gradient GEMMs accumulate into the gradient buffer (Apex's
    fused_weight_gradient), or write in the compute type and another kernel accumulates."""
    dense_embedding_gradient: bool = True
    """Whether each micro-batch writes a gradient of the full embedding table, which is then added
    to the accumulated one (PyTorch's Embedding), or touches only the rows of its tokens
    (TensorFlow's IndexedSlices)."""
    loss: Loss = Loss.EAGER
    """Cross entropy where the strategy leaves it to the stack."""
    loss_figures: Loss = Loss.STACK
    """The loss that the next four figures are of: `stack` is that of the field `loss`. Any other
    loss has standard figures."""
    fp32_log_probabilities: bool = False
    """Whether losses on pairs of answers make the logits fp32 first (LLaMA-Factory), or take the
    log-softmax of 16-bit logits (TRL)."""
    loss_chunk_tokens: Whole = 0
    """Tokens whose logits are live at a time, in losses that split them into chunks; 0: as usual
    with the loss (8 chunks; TRL: 256 tokens; Liger: by the widths of the model)."""
    loss_forward_bytes: PerElement
    """Bytes moved per logit by the loss, forward. With 16-bit logits SimuMax's runs of one node
    (B200) are met best by 4 forward, 4 backward and 2 saved with Transformer Engine's fused cross
    entropy, which works in place, and by 38, 14 and 4 without."""
    loss_backward_bytes: PerElement
    """The same, backward."""
    loss_saved_bytes: PerElement
    """Peak bytes per logit on the last stage between forward and backward of the loss; of a loss
    that computes the head in chunks, per logit of one chunk."""
    loss_split_bytes: PerElement = 0.0
    """Additional bytes per logit where tensor parallelism splits the vocabulary."""
    expert_kernel: ExpertKernel = ExpertKernel.GROUPED
    """How expert GEMMs run: in a Python loop over experts, in one library call per expert
    (Transformer Engine's GroupedLinear on cuBLAS), in one grouped kernel (CUTLASS), or in grouped
    kernels that include the activation. The old name `grouped_products` is read too: loop stands
    for calls, fused for grouped."""
    grouped_time_factor: Factor = 1.0
    """Time of expert GEMMs over that of plain GEMMs of the same shapes; with `grouped_half_flops`,
    of small ones. It is that of `expert_kernel`; a strategy with another kernel has the figures of
    a stack that runs it (`EXPERT_KERNELS`)."""
    grouped_half_flops: Size = 0.0
    """FLOPs of one expert's GEMM at which half of that additional time is left; 0: all of it at any
    size."""
    dispatcher: Dispatcher = Dispatcher.ALL_TO_ALL
    """Dispatcher of experts where the strategy names none."""
    fused_expert_recipes: tuple[Quantization, ...] = ()
    """Low-precision recipes in which `expert_kernel` is fused, with the next two figures."""
    fused_grouped_time_factor: Factor = 1.0
    """`grouped_time_factor` of these recipes."""
    fused_permute_traffic_factor: Factor = 1.0
    """`permute_traffic_factor` of these recipes, whatever the dispatcher."""
    permute_traffic_factor: Factor = 1.0
    """Bytes that permuting tokens by expert and back moves over the minimum, in addition to
    `memory_traffic_factor`."""
    flex_permute_traffic_factor: Factor = 1.0
    """The same with the dispatchers deepep and hybridep, whose kernels may permute while they
    send."""
    expert_wait: Latency = 0
    """Time that the accelerator is idle while the host waits for the token counts of the experts,
    once in a forward pass of a dropless layer; the launches that follow are exposed at first."""
    vocab_multiple: Count = 1
    """The vocabulary rows of a rank are padded to a multiple of this (Megatron-LM: 128)."""
    weight_dtype: WeightDtype = WeightDtype.COMPUTE
    """Type in which trained weights are stored, where the strategy leaves it to the stack: that of
    products, or fp32, of which products read 16-bit copies (a transformers model that is loaded
    without a dtype)."""
    gradient_dtype: GradientDtype
    """Type in which gradients accumulate; `compute`: the dtype of the strategy. Gradients of fp32
    weights are fp32."""
    reduce_dtype: ReduceDtype = ReduceDtype.GRADIENT
    """Type in which replicas reduce them, and in which they wait for that unsharded (reduce_dtype
    of FSDP; FSDP1's `no_sync` leaves them in the dtype of the strategy)."""
    master_dtype: MasterDtype = MasterDtype.FP32
    """Type of the optimizer's own copy of 16-bit weights. `none`: it updates the weights themselves
    (pure 16-bit training; its moments then have their type too in torch)."""
    moment_dtype: MomentDtype = MomentDtype.FP32
    """Type of the moments of optimizers whose name does not say it."""
    base_weights: BaseWeights = BaseWeights.DTYPE
    """Type in which frozen weights of the matrix products of layers are stored, where the strategy
    leaves it to the stack. The former name `frozen_weights` is read too."""
    fused_int4: bool = True
    """Whether one kernel makes the 16-bit copy of int4 weights (Triton kernels of AutoGPTQ), or
    element-wise kernels of PyTorch one after the other, with a copy that stays for backward."""
    cpu_optimizer: CpuOptimizer = CpuOptimizer.FUSED
    """How the update of offloaded optimizer state runs where the strategy leaves it to the stack:
    `none`, on the accelerator, to which the state moves and back (Calculon, MaxText); on the host
    in one pass over the state (`fused`: CPU-Adam of DeepSpeed, torch.optim with fused=True), or in
    one pass for each operation (`unfused`: torch.optim without it); `superoffload`: fused, during
    backward, without waiting for the norm of all gradients."""
    host_threads: Count = 1
    """Threads of a rank on the host, where the strategy does not say it: 1 unless OMP_NUM_THREADS
    is set (`accelerate launch`; torchrun with several ranks on a server)."""
    clears_gradients: bool = False
    """Whether gradients are freed after the update (PyTorch's zero_grad(set_to_none=True)), so that
    a step of one micro-batch has none yet where its activations peak."""
    update_in_backward: bool = False
    """Whether a weight is updated as soon as its gradient is there, which is then freed, so that
    only gradients of one component are resident (torchtune's optimizer_in_bwd)."""
    keeps_frozen_inputs: bool = False
    """Whether ZeRO-3 keeps, until the end of a backward pass, the inputs of fully recomputed layers
    with frozen weights and their gradients (hooks of PyTorch's FSDP1)."""
    fp32_checkpoints: bool = False
    """Whether the inputs of fully recomputed layers are saved in fp32, as where norms are made fp32
    in a model of 16 bits (prepare_model_for_kbit_training of PEFT)."""
    plain_gradients: bool = False
    """Whether gradients in the dtype of the strategy stay in memory next to the fp32 accumulation
    (the BF16 optimizer of DeepSpeed)."""
    grad_sync: GradSync = GradSync.MICRO_BATCH
    """When ZeRO-2 and ZeRO-3 reduce gradients without a pipeline, where the strategy leaves it to
    the stack: with every micro-batch (FSDP2 if nothing is set, DeepSpeed, Megatron-FSDP), or once
    per `step`, with the last one, with unsharded gradients until then (`no_sync` of FSDP)."""
    pipeline_grad_sync: GradSync = GradSync.STEP
    """The same in a pipeline: once per step (torch.distributed.pipelining, MegaScale's ZeRO-2),
    or with every micro-batch (PaddleNLP)."""
    etp_is_tp: bool = False
    """Default of `etp`: `tp` (--expert-tensor-parallel-size of Megatron-LM), or 1, as recipes of
    Megatron-Bridge and NeMo set it."""
    pipeline_reshard: bool = True
    """Default of `fsdp_reshard` in a pipeline with ZeRO-3 (torchtitan: false)."""
    unsharded_gradients: bool = False
    """Whether ranks store all gradients that ZeRO-2 reduces until the update, not only their shard
    (PaddlePaddle's stage 2, as its runs show)."""
    reduce_bucket_size: Size = 0.0
    """Gradients that wait in a buffer for their reduction by ZeRO [elements]; two buffers where
    ZeRO-1 and ZeRO-2 overlap it (DeepSpeed's reduce_bucket_size)."""
    max_live_parameters: Size = 0.0
    """Weights that ZeRO-3 may leave gathered [elements] (DeepSpeed's stage3_max_live_parameters);
    0: those of a layer and of prefetched ones."""
    max_reuse_distance: Size = 0.0
    """Weights that other layers use in between, up to which ZeRO-3 leaves one gathered [elements]
    (stage3_max_reuse_distance): from forward to backward, twice those behind a layer."""
    prefetch_bucket_size: Size = 0.0
    """Weights that ZeRO-3 gathers in advance with `fsdp_prefetch` 1 [elements] (DeepSpeed's
    stage3_prefetch_bucket_size); 0: a layer."""
    persistence_threshold: Size = 0.0
    """Tensors of up to so many weights stay gathered in ZeRO-3 [elements] (DeepSpeed's
    stage3_param_persistence_threshold): norms, biases, matrices of adapters; 0: none."""
    buckets_by_width: bool = False
    """Whether buckets of reduction and of prefetch have h^2 and 0.9 h^2 elements and the largest
    tensors that stay gathered 10 h, with h the width of the model: what the Trainer of transformers
    fills in for `auto` in a file of DeepSpeed."""
    flat_gradients: bool = False
    """Whether the optimizer step of ZeRO-1 and ZeRO-2, and of ZeRO-3 where it has sub-groups, first
    copies the gradients of a rank into one flat buffer of their type (DeepSpeed, InternEvo)."""
    sub_group_size: Size = 0.0
    """Weights that the optimizer step of ZeRO-3 updates at a time [elements] (DeepSpeed's
    sub_group_size); 0: all of a rank."""
    copies_gradients: bool = True
    """Whether the update copies 16-bit gradients to fp32, the type of its weights (Megatron-LM's
    distributed optimizer, DeepSpeed), or its kernel reads them as they are (PaddlePaddle)."""
    update_bytes: PerElement = 0.0
    """Temporary bytes per updated weight, in addition to its state and an fp32 gradient, of an
    optimizer made of several kernels (4 for torch's Adam: a root; 8 with a quotient), with its
    state in fp32; as many fewer with smaller states."""
    weight_gradient_buffers: bool
    """Whether one buffer per distinct weight shape is resident in addition to the gradients, for
    GEMMs that accumulate into them (Transformer Engine)."""
    gathers_master: bool = True
    """Whether ZeRO-3 gathers weights from the fp32 copy of the optimizer (PyTorch FSDP), or from
    additional shards in the compute type (DeepSpeed)."""
    sharding_copies: bool = False
    """Whether copies between weights or gradients and the buffers of their collectives are counted
    on their own (FSDP2's all_gather_copy_in, all_gather_copy_out, _chunk_cat); otherwise fitted
    figures of the stack have them."""
    sharding_calls: Size = 0.0
    """Calls of the host for one layer whose weights are sharded, each way, in multiples of
    `host_call`: hooks, events and collectives."""
    sharded_weight_calls: Size = 0.0
    """The same for the weights of one operation, which are copied each way, and clipped and updated
    as DTensors."""
    whole_ends: bool = False
    """Whether ZeRO-3 gathers embedding and head together and frees them only after backward (the
    root module of PyTorch FSDP)."""
    host_launch: Latency
    """Host time to launch one kernel; hidden where the kernel takes longer."""
    host_call: Latency = 0
    """Host time to run one operation forward or backward, in addition to its launches: Python of
    its module, checks and allocations, the function of autograd; half of it for a collective."""
    cuda_graphs: CudaGraphs = CudaGraphs.NONE
    """What CUDA graphs capture where the strategy leaves it to the stack: nothing, layers except
    their experts, or forward and backward of the full step."""
    shared_graph_pools: bool = True
    """Whether graphs of layers share one pool of memory (Transformer Engine's
    make_graphed_callables, which reuses buffers in the order of the schedule), or each keeps what
    it saves and its transient buffers in a pool of its own."""
    compile: Compile = Compile.NONE
    """What is compiled where the strategy leaves it to the stack. `host_call`,
    `memory_traffic_factor`, `fused_norm` and `fused_swiglu` are those of layers that are compiled,
    or not, as this says; see `as_compiled`."""
    exchange_time_factor: Factor = 1.0
    """Time of tensor- and context-parallel communication in a step over its time on idle
    accelerators: concurrent kernels share memory and multiprocessors."""
    expert_exchange_factor: Factor = 1.0
    """The same for expert-parallel communication, whose libraries have their own kernels."""
    tp_hidden: Portion
    """Share of sequence-parallel communication hidden by splitting it and its GEMM into pieces."""
    tp_backward_async: bool
    """Whether the backward communication of a column-parallel GEMM overlaps with its GEMMs."""
    pp_hidden: Portion
    """Share of stage-to-stage transfers that is hidden with interleaved stages."""
    pipeline_buffers: bool = False
    """Whether each stage but the last reserves memory for the activations of 2 pp micro-batches
    instead of those that its schedule has in flight (OneFlow)."""
    pp_scatter_gather: bool
    """Whether each tensor-parallel rank sends 1/tp of the activations to the next stage, which
    gathers them."""
    expert_overlap_processors: Annotated[float, Field(ge=0, le=0.9), NO_FLAG] = 0.15
    """Share of the multiprocessors that overlapped expert-parallel communication takes from compute
    (DeepSeek-V3: 20 of 132 multiprocessors; arXiv 2412.19437, section 3.2.2)."""
    deepep_multiprocessors: Count = 20
    """Multiprocessors that DeepEP uses, in place of that share where the system has figures of its
    kernels: 20 by default (deepseek-ai/DeepEP, deep_ep/buffer.py; Megatron-LM)."""
    hybridep_multiprocessors: Count = 16
    """The same of HybridEP: 16 by default (Megatron-LM, moe_flex_dispatcher_num_sms)."""
    gathers_behind: bool = True
    """Whether the all-gather of weights once per step overlaps with the first forward pass."""
    dp_contention: Speed
    """Speed of overlapped gradient communication over its speed alone."""
    dp_tail: Portion
    """Share of overlapped gradient communication that nothing hides: the last buckets."""
    step_overhead: Duration
    """Fixed time per step on one node: data loading, loss reduction, logging, gradient norm, launch
    of the optimizer."""
    step_wait: Duration = 0
    """Time per step and doubling of the nodes: each synchronization of a step (gradient norm, loss,
    timers) waits for the slowest rank. The longest of n random delays grows with log n."""
    straggler_per_doubling: Portion
    """Relative growth of the step per doubling of the nodes: jitter and stragglers. At 1 more nodes
    would gain nothing."""
    allocator_slack: Annotated[float, Field(ge=1, le=10), NO_FLAG]
    """Memory that the allocator reserves over what tensors use (torch: max_memory_reserved over
    max_memory_allocated); at 10 nine tenths would lie idle."""
    tuned: Tuning = Tuning.STOCK
    """A trainer that many use (stock), code that its makers tuned by hand for their own runs, or
    hobby code. Until its runs are measured, hand-tuned code may be faster than predicted, not
    slower, and hobby code slower, not faster: its interval is wider on that side alone."""
    defaults: Mapping[str, Any] = Field(default_factory=dict)
    """Values of fields of strategies that name none, in place of the usual ones: what the software
    does if its user sets nothing."""
    recompute_sets: tuple[tuple[RecomputePart, ...], ...] = ()
    """Parts of a layer that its recipes recompute together; a search tries each set."""
    runtime_memory: Bytes
    """Memory outside the allocator, as nvidia-smi counts it: contexts, libraries, communicators."""

    def kernel_time_factor(self, tuned_until: str = "") -> float:
        """Time of kernels in this release over that in one of January 2025.

        Parameters
        ----------
        tuned_until
            Month after which releases are no faster (`Accelerator.tuned_until`); empty: none.
        """
        if not self.released:
            return 1.0
        last = min(self.released, tuned_until or self.released)
        year, month = map(int, last.split("-"))
        years = year - _TREND_SINCE + (month - 1) / 12
        return self.yearly_time_factor**years

    @property
    def compiles_layers(self) -> bool:
        """Whether layers are compiled by default."""
        return self.compile.code >= Compile.LAYERS.code

    def as_compiled(self, compiled: bool) -> "Stack":
        """Return the stack with layers compiled, or not; itself where they are by default.

        Otherwise `host_call` and `memory_traffic_factor` change by the ratio of two stacks of one
        framework, one with compiled layers; RMSNorm and gated activations are one kernel each in
        compiled layers, and several in layers that are compiled by default and run eagerly.
        """
        return self if compiled == self.compiles_layers else self._otherwise_compiled

    @cached_property
    def _otherwise_compiled(self) -> "Stack":
        now, then = (Stack.load(name) for name in (_EAGER, _COMPILED))
        if self.compiles_layers:
            now, then = then, now
        ratio = then.memory_traffic_factor / now.memory_traffic_factor
        return self.model_copy(
            update={
                "host_call": self.host_call * then.host_call / now.host_call,
                "memory_traffic_factor": self.memory_traffic_factor * ratio,
                "fused_norm": not self.compiles_layers,
                "fused_swiglu": not self.compiles_layers,
            }
        )

    def with_expert_kernel(self, kernel: ExpertKernel) -> "Stack":
        """Return the stack whose figures of expert GEMMs apply with a kernel: itself with its own.

        Only `grouped_time_factor`, `grouped_half_flops` and the figures of fused kernels are read.
        """
        own = self.expert_kernel == kernel
        if kernel == ExpertKernel.FUSED:  # whose figures are of their own
            own = len(self.fused_expert_recipes) > 0
        return self if own else Stack.load(EXPERT_KERNELS[kernel])

    @property
    def kernel_of_experts(self) -> AttentionKernel:
        """Attention kernel of models with experts; `stack`: that of all models."""
        is_best = self.attention_kernel == AttentionKernel.BEST
        return self.experts_attention_kernel if is_best else AttentionKernel.STACK

    def splits_experts_as_tp(self, *, alone: bool) -> bool:
        """Whether its release has no expert tensor-parallel degree other than `tp`.

        Parameters
        ----------
        alone
            Whether experts are not distributed: `ep` is 1.
        """
        rules = {} if self.capabilities is None else self.capabilities.rules
        names = [LaunchRule.EXPERTS_SPLIT_AS_TP, *[LaunchRule.EXPERT_TENSORS_ALONE] * alone]
        return any(rules.get(name, False) for name in names)

    def has_etp_of_tp(self, *, alone: bool) -> bool:
        """Whether `etp` is `tp` where a strategy leaves it open; `alone` as above."""
        return self.etp_is_tp or self.splits_experts_as_tp(alone=alone)

    @cached_property
    def field_defaults(self) -> Mapping[str, Any]:
        """Values of fields that a strategy leaves open, where the usual ones do not apply.

        These are `defaults`, and of a field whose default the release cannot run the first value
        that it can.
        """
        from shardwise.config.strategy import Strategy  # noqa: PLC0415 - a strategy has a stack

        if self.capabilities is None:
            return self.defaults
        found = dict(self.defaults)
        for name, values in self.capabilities.fields.items():
            default = _FOLLOWING.get(name, Strategy.model_fields[name].default)
            usual = found.get(name, default)
            runs = [one for one in plain_values(values) if one not in _SEVERAL_CHUNKS]
            if usual is not None and runs and not self.capabilities.allows(name, usual):
                found[name] = getattr(Strategy.validated({name: runs[0]}), name)
        return FrozenDict(found)

    @classmethod
    def _unknown(cls, text: str) -> str:
        return f"{super()._unknown(text)}; for software that none stands for: unknown"

    @classmethod
    def from_fields(cls, value: object) -> "str | Stack":
        """Read the stack of a strategy: a name, a file, or a base and the fields that differ.

        The last may be text in braces, as on the command line.

        Raises
        ------
        ValueError, InputError
            If it is none of them, or a field is wrong.
        """
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = parse(value, ".yaml", "stack", most_bytes=_MOST_INLINE_BYTES)
        if isinstance(value, (str, Stack)):
            return value
        if not isinstance(value, Mapping):
            raise ValueError("must be a catalog name, a file, or a mapping")  # noqa: TRY004
        fields = dict(value)
        if not {"base", "name"} & fields.keys():
            if fields and not any(fields.values()):
                names = " or ".join(map(str, fields))
                raise ValueError(f"braces have fields of one stack; for several write '{names}'")
            raise ValueError("must name the stack that has the rest as base, or a name of its own")
        try:
            base = fields.pop("base", None)
            complete = fields if base is None else cls.load(base).fields_with(fields)
            return cls.validated(complete)
        except InputError as error:
            raise InputError(
                [replace(fault, field=f"stack.{fault.field}".rstrip(".")) for fault in error.faults]
            ) from None

    def fields_with(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """All fields with some others; graphs that these name are those of every recipe."""
        named = own.get("cuda_graphs", CudaGraphs.FULL) != CudaGraphs.FULL
        return self.to_dict() | ({"step_graph_recipes": ()} if named else {}) | dict(own)

    def to_fields(self) -> str | dict[str, Any]:
        """Its catalog name, where it differs from that stack also the fields; else all fields."""
        if catalog.find("stacks", self.name) is None:
            return self.to_dict()
        base = Stack.load(self.name)
        if self is base:
            return self.name
        usual = base.to_dict()
        changed = {key: item for key, item in self.to_dict().items() if item != usual[key]}
        return {"base": self.name} | changed if changed else self.name

    @field_validator("defaults")
    @classmethod
    def _of_a_strategy(cls, value: dict[str, Any]) -> dict[str, Any]:
        from shardwise.config.strategy import Strategy  # noqa: PLC0415 - a strategy has a stack

        strategy = Strategy.validated(value, source="defaults")
        return {name: getattr(strategy, name) for name in strategy.set_fields()}

    @property
    def loss_with_figures(self) -> Loss:
        """The loss that its figures are of."""
        return self.loss if self.loss_figures == Loss.STACK else self.loss_figures

    @field_validator(
        *("grad_sync", "pipeline_grad_sync", "weight_dtype", "gradient_dtype", "reduce_dtype"),
        *("master_dtype", "moment_dtype", "loss", "attention_kernel", "cuda_graphs", "compile"),
        *("expert_kernel", "cpu_optimizer", "base_weights"),
    )
    @classmethod
    def _of_its_own(cls, value: Word) -> Word:
        if value == "stack":
            allowed = ", ".join(word for word in type(value) if word != value)
            raise ValueError(f"is what a stack does; allowed: {allowed}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _former_attention(cls, fields: object) -> object:
        """Read `attention` (flash, unfused) and `flash_kernel`, which `attention_kernel` replaced.

        A base has `attention_kernel`; what is set over it in the former words wins.
        """
        if not isinstance(fields, Mapping):
            return fields
        former = {key: fields[key] for key in ("attention", "flash_kernel") if key in fields}
        sources = fields.get("sources")
        sources = sources if isinstance(sources, Mapping) else {}
        names = {"attention": "attention_kernel", "flash_kernel": "attention_kernel"}
        if not former and not names.keys() & sources.keys():
            return fields
        rest = {key: item for key, item in fields.items() if key not in former}
        attention, kernel = former.get("attention"), former.get("flash_kernel")
        usual = rest.get("attention_kernel", AttentionKernel.BEST)
        if attention not in (None, "flash"):
            kernel = attention
        elif usual == AttentionKernel.UNFUSED and attention is None:
            kernel = usual
        elif usual == AttentionKernel.UNFUSED:
            kernel = kernel or AttentionKernel.BEST
        rest["attention_kernel"] = kernel or usual
        if sources:
            rest["sources"] = {names.get(name, name): source for name, source in sources.items()}
        return rest

    @model_validator(mode="before")
    @classmethod
    def _former_frozen_weights(cls, value: object) -> object:
        """Read `frozen_weights`, which files of earlier releases have for `base_weights`."""
        if not isinstance(value, Mapping):
            return value
        renamed = {"frozen_weights": "base_weights"}
        sources = value.get("sources")
        fields = {renamed.get(name, name): item for name, item in value.items()}
        if "frozen_weights" in value:
            fields["base_weights"] = value["frozen_weights"]
        if isinstance(sources, Mapping) and "frozen_weights" in sources:
            fields["sources"] = {renamed.get(n, n): source for n, source in sources.items()}
        return fields

    @model_validator(mode="before")
    @classmethod
    def _earlier_names(cls, value: object) -> object:
        """Read `master_weights`, which files of earlier releases have for `master_dtype`."""
        if not isinstance(value, Mapping) or "master_weights" not in value:
            return value
        fields = dict(value)
        has_copy = fields.pop("master_weights")
        if not isinstance(has_copy, bool):
            raise ValueError("master_weights: must be true or false")  # noqa: TRY004 - a fault of a file
        fields["master_dtype"] = "fp32" if has_copy else "none"
        if not has_copy:
            fields["weight_dtype"] = "compute"
        sources = dict(fields.get("sources", {}))
        if "master_weights" in sources:
            sources["master_dtype"] = sources.pop("master_weights")
            fields["sources"] = sources
        return fields

    @model_validator(mode="before")
    @classmethod
    def _old_expert_kernel(cls, fields: object) -> object:
        if not isinstance(fields, Mapping) or "grouped_products" not in fields:
            return fields
        renamed = dict(fields)
        old = renamed.pop("grouped_products")
        renamed["expert_kernel"] = _OLD_EXPERT_KERNELS.get(old, old)
        sources = renamed.get("sources")
        if isinstance(sources, Mapping) and "grouped_products" in sources:
            others = {name: item for name, item in sources.items() if name != "grouped_products"}
            renamed["sources"] = {"expert_kernel": sources["grouped_products"]} | others
        return renamed

    @field_validator("capabilities", mode="before")
    @classmethod
    def _like_another(cls, value: object) -> object:
        if not isinstance(value, Mapping) or "like" not in value:
            return value
        own = {key: item for key, item in value.items() if key != "like"}
        other = cls.load(str(value["like"])).capabilities
        if other is None:
            raise ValueError(f"like: stack {value['like']} lists no capabilities")
        return merged(other.model_dump(mode="json"), own, (), [])

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
