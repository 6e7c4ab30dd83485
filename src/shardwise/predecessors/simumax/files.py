"""SimuMax's JSON files of models, strategies and systems, typed; which of its files a mapping is.

Keys, values and units are those of the files (SimuMax 1.2, commit 4dcaae5): what they call GB is
2^30 bytes. What it would stop at with a bare assertion, or misread silently, is a fault.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, Strict, model_validator

from shardwise.config.base import MOST_LAYERS, ConfigBase
from shardwise.errors import Fault, InputError, refuse
from shardwise.units import LEAST_SHARE, read_whole

Count = Annotated[int, Strict(), Field(ge=1, le=2**31)]
Layers = Annotated[int, Strict(), Field(ge=1, le=MOST_LAYERS)]
Index = Annotated[int, Strict(), Field(ge=0, le=2**31)]
Flag = Annotated[bool, Strict()]
Real = Annotated[float, Strict()]
Positive = Annotated[Real, Field(gt=0)]
Share = Annotated[Real, Field(gt=0, le=1)]


class SimumaxModel(ConfigBase):
    """A decoder-only transformer with RMSNorm, without biases, with embeddings of its own."""

    hidden_size: Count
    head_num: Count
    kv_head_num: Count
    """Without effect in latent attention."""
    head_size: Count | None = None
    """Null: hidden_size / head_num. Without effect in latent attention."""
    intermediate_size: Count
    """Inner width of a dense MLP."""
    layer_num: Layers
    vocab_size: Count
    """Words, padded or not: what is padded is padded again to the same."""
    use_swiglu: Flag
    """Whether the MLP is gated; if not, it is a GELU."""
    model_type: Literal["dense", "moe"] | None = None
    """Null: moe if there is more than one expert."""
    model_name: str | None = None
    orig_vocab_size: Count | None = None
    """Words before padding."""
    attention_type: Literal["mha", "mla"] = "mha"
    v_head_dim: Count | None = None
    qk_head_dim: Count | None = None
    """Width of a head that is not rotated."""
    qk_pos_emb_head_dim: Count | None = None
    """Width of a head that is rotated."""
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    expert_num: Count = 1
    topk: Count | None = None
    moe_ffn_hidden_size: Count | None = None
    """Null: intermediate_size."""
    moe_shared_expert_intermediate_size: Index | None = None
    dense_layers: Index = 0
    """Leading layers without experts."""
    capacity: Positive = 1
    """Tokens an expert takes over those of an even load. Without effect where nothing is padded."""
    moe_pad_expert_input_to_capacity: Flag = True
    """Whether the tokens of an even load are rounded up for each expert, or divided exactly."""
    group_linear_mode: Literal["parallel", "serial"] = "parallel"
    padded_vocab_size: Flag = True
    """Documented as a key of the file; SimuMax sets it as an attribute only."""
    make_vocab_size_divisible_by: Count = 128
    """As padded_vocab_size; times the tensor-parallel degree."""

    @property
    def has_experts(self) -> bool:
        """Whether layers after the dense ones are mixtures of experts."""
        return self.model_type == "moe" or (self.model_type is None and self.expert_num > 1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse([*_attention_faults(self), *_expert_faults(self)])
        if self.orig_vocab_size is not None and self.orig_vocab_size > self.vocab_size:
            problem = f"must be at most vocab_size {self.vocab_size}"
            refuse([_fault("orig_vocab_size", self.orig_vocab_size, problem)])
        return self


def _attention_faults(model: SimumaxModel) -> Iterator[Fault]:
    if model.attention_type == "mla":
        for field in ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
            if getattr(model, field) is None:
                yield _fault(field, None, "is needed with attention_type mla")
        return
    if model.head_num % model.kv_head_num:
        yield _fault("kv_head_num", model.kv_head_num, f"must divide head_num {model.head_num}")
    if model.head_size is None and model.hidden_size % model.head_num:
        problem = f"is needed where head_num {model.head_num} does not divide hidden_size"
        yield _fault("head_size", None, problem)


def _expert_faults(model: SimumaxModel) -> Iterator[Fault]:
    if model.dense_layers >= model.layer_num and (model.has_experts or model.dense_layers):
        problem = f"must be less than layer_num {model.layer_num}"
        yield _fault("dense_layers", model.dense_layers, problem)
    if not model.has_experts:
        if model.expert_num > 1:
            problem = "must be 1 with model_type dense"
            yield _fault("expert_num", model.expert_num, problem)
        return
    if model.expert_num == 1:
        yield _fault("expert_num", 1, "must be greater than 1 with model_type moe")
    if model.topk is None or model.topk > model.expert_num:
        yield _fault("topk", model.topk, f"must be from 1 to expert_num {model.expert_num}")


Module = Literal["layernorm", "mla_up_proj", "moe_act", "mlp", "moe"]
Granularity = Literal["full_block", "attn_only", "mlp_only", "sdp_only", "selective_recompute"]
Net = str | None


def _half_at_most(ratio: float) -> float:
    if ratio not in (0, 0.5):
        raise ValueError("must be 0, or 0.5: what a causal mask leaves out, which is counted here")
    return ratio


def _release(text: str) -> str:
    if not text[:1].isdecimal():
        raise ValueError("must be a release, such as 2.11.0")
    return text


Ratio = Annotated[Real, AfterValidator(_half_at_most)]
Version = Annotated[str, AfterValidator(_release)]
_SELECTIVE = ("attn_recompute", "mla_rms_recompute", "mlp_recompute", "mlp_rms_recompute")


class SimumaxStrategy(ConfigBase):
    """Parallelism and runtime policy. `docs/from/simumax.md` says what each key is here."""

    seq_len: Count
    micro_batch_size: Count
    micro_batch_num: Count
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    fp8: Flag = False
    world_size: Count = 8
    tp_size: Count = 1
    cp_size: Count = 1
    pp_size: Count = 1
    ep_size: Count = 1
    etp_size: Count = 1
    dp_size: Count | None = None
    """Follows from the others, as do the next two; SimuMax writes them, but does not read them."""
    edp_size: Count | None = None
    global_batch_size: Count | None = None
    cp_comm_type: Literal["a2a"] = "a2a"
    cp_a2a_mode: Literal["async_cp", "sync_cp"] = "async_cp"
    order_of_paralielism: Literal["tp-cp-ep-dp-pp"] = "tp-cp-ep-dp-pp"
    moe_dispatcher_policy: Literal["all2all", "all2all-seq"] = "all2all"
    enable_sequence_parallel: Flag = True
    zero_state: Literal[0, 1] = 1
    num_layers_in_first_pipeline_stage: Count | None = None
    num_layers_in_last_pipeline_stage: Count | None = None
    account_for_embedding_in_pipeline_split: Flag = False
    account_for_loss_in_pipeline_split: Flag = False
    interleaving_size: Count = 1
    microbatch_group_size_per_vp_stage: Count | None = None
    pp_comm_async: Flag = True
    grad_reduce_in_bf16: Flag = False
    use_fp32_accum_grad: Flag = True
    use_accm_weight: Flag = True
    cache_groupgemm_col_fp8_inputs: Flag = False
    offload_groupgemm_col_inputs: Flag = False
    mem_factor: Share = 0.94
    enable_recompute: Flag = True
    recompute_granularity: Granularity | None = None
    recompute_layer_num: Index = 0
    attn_recompute: Flag = False
    mla_rms_recompute: Flag = False
    mlp_recompute: Flag = False
    mlp_rms_recompute: Flag = False
    recompute_variance: Flag = False
    megatron_recompute: Flag = False
    megatron_recompute_modules: tuple[Module, ...] | None = None
    use_flash_sdp: Flag = True
    use_math_sdp: Flag = False
    use_fused_norm: Flag = True
    use_fused_swiglu: Flag = True
    use_fused_grad_accumulation: Flag = True
    cross_entropy_loss_fusion: Flag = False
    attention_sparse_ratio: Ratio = 0
    enable_dropout: Flag = False
    dispatch_probs: Flag = False
    te_version: Version | None = None
    te_dummy_wgrad_min_version: Version = "2.3.0"
    te_cp_a2a_save_pre_posta2a_min_version: Version = "2.8.0"
    te_grouped_linear_dummy_wgrad_min_version: Version = "2.10.0"
    enable_straggler_model: Flag = True
    overlap_grad_reduce: Flag = True
    tp_net: Net = "auto"
    cp_net: Net = "auto"
    pp_net: Net = "auto"
    dp_net: Net = "auto"
    ep_net: Net = "auto"
    etp_net: Net = "auto"
    edp_net: Net = "auto"
    no_sync: Literal[True] = True
    """Of releases before 1.2, as the next one; without effect."""
    skip_ckpt_micro_batch_num: Literal[0] = 0

    @property
    def replicas(self) -> int:
        """Data-parallel degree."""
        return self.world_size // (self.tp_size * self.cp_size * self.pp_size)

    @property
    def recomputes(self) -> bool:
        """Whether any layer runs forward again, whatever of it."""
        return (
            self.enable_recompute
            and self.recompute_granularity is not None
            and self.recompute_layer_num > 0
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse([*_degree_faults(self), *_chunk_faults(self), *_recompute_faults(self)])
        refuse(_derived_faults(self))
        return self


def _degree_faults(s: SimumaxStrategy) -> Iterator[Fault]:
    dense = s.tp_size * s.cp_size * s.pp_size
    experts = s.ep_size * s.etp_size * s.pp_size
    for names, product in (
        ("tp_size x cp_size x pp_size", dense),
        ("ep_size x etp_size x pp_size", experts),
    ):
        if s.world_size % product:
            yield _fault("world_size", s.world_size, f"must be a multiple of {names} = {product}")
    if s.seq_len % s.cp_size:
        yield _fault("seq_len", s.seq_len, f"must be a multiple of cp_size {s.cp_size}")
    if s.use_flash_sdp == s.use_math_sdp:
        problem = "one of use_flash_sdp and use_math_sdp must be true, the other false"
        yield _fault("use_math_sdp", s.use_math_sdp, problem)


def _derived_faults(s: SimumaxStrategy) -> Iterator[Fault]:
    sequences = s.micro_batch_size * s.micro_batch_num
    for field, value in (
        ("dp_size", s.replicas),
        ("edp_size", s.world_size // (s.ep_size * s.etp_size * s.pp_size)),
        ("global_batch_size", sequences * s.replicas),
    ):
        given = getattr(s, field)
        if given is not None and given != value:
            yield _fault(field, given, f"follows from the other keys and is {value}; leave it out")


def _chunk_faults(s: SimumaxStrategy) -> Iterator[Fault]:
    if s.interleaving_size == 1:
        return
    if s.pp_size == 1:
        problem = "must be 1 where pp_size is 1"
        yield _fault("interleaving_size", s.interleaving_size, problem)
    elif s.pp_comm_async:
        problem = "must be false where interleaving_size is above 1: SimuMax has no time for it"
        yield _fault("pp_comm_async", s.pp_comm_async, problem)
    group = s.microbatch_group_size_per_vp_stage
    if group not in (None, s.pp_size):
        problem = f"must be pp_size {s.pp_size} or null here"
        yield _fault("microbatch_group_size_per_vp_stage", group, problem)


def _recompute_faults(s: SimumaxStrategy) -> Iterator[Fault]:
    for needs, needed in (
        ("mla_rms_recompute", "attn_recompute"),
        ("mlp_rms_recompute", "mlp_recompute"),
    ):
        if getattr(s, needs) and not getattr(s, needed):
            yield _fault(needs, True, f"needs {needed}")
    if not s.megatron_recompute:
        if s.megatron_recompute_modules:
            problem = "must be true for megatron_recompute_modules"
            yield _fault("megatron_recompute", False, problem)
        return
    if not s.recomputes or s.recompute_granularity != "selective_recompute":
        problem = "needs enable_recompute, recompute_granularity selective_recompute and "
        yield _fault("megatron_recompute", True, problem + "recompute_layer_num of 1 or more")
    if not s.megatron_recompute_modules:
        problem = "must name a module with megatron_recompute"
        yield _fault("megatron_recompute_modules", s.megatron_recompute_modules, problem)
    for field in (*_SELECTIVE, "recompute_variance"):
        if getattr(s, field):
            yield _fault(field, True, "must be false with megatron_recompute")


def _fault(field: str, value: object, problem: str) -> Fault:
    return Fault(field=field, value=value, has_value=value is not None, problem=problem)


Kind = Literal["model", "system", "strategy"]
# Keys of a strategy that other files may have, too.
_COMMON = {"seq_len", "dtype", "fp8", "micro_batch_size", "global_batch_size", "world_size"}
# Keys that no shardwise file and no other tool's has, and how many of them identify the file.
_IDENTIFYING: tuple[tuple[Kind, int, frozenset[str]], ...] = (
    (
        "model",
        2,
        frozenset({"head_num", "kv_head_num", "layer_num", "use_swiglu", "expert_num", "topk"})
        | {"moe_shared_expert_intermediate_size", "qk_pos_emb_head_dim", "group_linear_mode"},
    ),
    ("system", 2, frozenset({"sys_name", "num_per_node", "networks", "FC8"})),
    ("strategy", 3, frozenset(SimumaxStrategy.model_fields) - _COMMON),
)


def looks_like(data: Mapping[str, object]) -> Kind | None:
    """Return which of SimuMax's files a mapping is by its keys, or None."""
    found = (
        kind for kind, least, identifying in _IDENTIFYING if len(data.keys() & identifying) >= least
    )
    return next(found, None)


NonNegative = Annotated[Real, Field(ge=0)]
Factor = Annotated[Real, Field(ge=LEAST_SHARE)]
# Beyond this many times its unit a figure would leave the finite numbers.
Rate = Annotated[Positive, Field(le=1e15)]
Latency = Annotated[NonNegative, Field(le=1e15)]


def _number(text: str) -> str:
    if not 2 <= (read_whole(text) or 0) <= _MOST_MEMBERS:  # noqa: PLR2004 - two at least
        raise ValueError(f"must be a number of members from 2 to {_MOST_MEMBERS}")
    return text


Members = Annotated[str, AfterValidator(_number)]
ByMembers = Mapping[Members, Latency]

_MOST_MEMBERS = 10**6

OperationClass = Literal[
    "default",
    "matmul",
    "fp8_matmul",
    "group_matmul",
    "fp8_group_matmul",
    "sdp_fwd",
    "sdp_bwd",
]
BandwidthClass = Literal["default", "permute_fwd", "permute_bwd", "ce", "ce_fusion"]
CollectiveClass = Literal["all_reduce", "all_gather", "reduce_scatter", "p2p", "all2all"]


def _with_default(classes: dict[object, object]) -> dict[object, object]:
    if "default" not in classes:
        raise ValueError("must have default")
    return classes


def _all_of_them(classes: dict[object, object]) -> dict[object, object]:
    missing = [name for name in get_args(CollectiveClass) if name not in classes]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")
    return classes


class SimumaxOperation(ConfigBase):
    """A class of kernels that compute."""

    tflops: Rate
    efficient_factor: NonNegative
    """Factor of it where no shape is listed; 0: not measured."""
    accurate_efficient_factor: Mapping[str, NonNegative] | None = None
    """Factor by shape, the shape spelt out in the key."""


class SimumaxMemory(ConfigBase):
    """A class of kernels that move bytes."""

    gbps: Rate
    """In truth [2^30 byte/s]."""
    efficient_factor: Annotated[Factor, Field(le=1)]
    latency_us: Latency
    """Least time of every kernel, also of those that compute."""


class SimumaxLink(ConfigBase):
    """A rate of a network."""

    gbps: Rate
    """In truth [2^30 byte/s]."""
    efficient_factor: Factor
    latency_us: Latency
    fixed_latency: Latency = 0
    """Added to the latency [us]."""
    fixed_latency_us_by_comm_num: ByMembers | None = None


class SimumaxAccelerator(ConfigBase):
    """One device."""

    backend: Literal["cuda", "musa"]
    """Counts in the memory of unfused attention only."""
    mem_gbs: Rate
    """In truth [2^30 bytes]."""
    mode: Literal["roofline", "only_compute"]
    op: Annotated[Mapping[OperationClass, SimumaxOperation], AfterValidator(_with_default)]
    bandwidth: Annotated[Mapping[BandwidthClass, SimumaxMemory], AfterValidator(_with_default)]


class SimumaxCollective(ConfigBase):
    """An operation of a network: scale (1 + offset / n) of its buffer passes each of n members."""

    scale: Positive
    offset: Annotated[Real, Field(ge=-1)]
    efficient_factor: Factor | None = None
    latency_us: Latency | None = None
    fixed_latency_us: Latency | None = None
    fixed_latency_us_by_comm_num: ByMembers | None = None
    dp_fixed_bw: Mapping[Members, Rate] | None = None
    """Of data-parallel communication on PCIe, by members [2^30 byte/s]."""


class SimumaxNetwork(ConfigBase):
    """One reach of the network."""

    processor_usage: NonNegative = 0
    """Without effect."""
    bandwidth: SimumaxLink
    op: Annotated[Mapping[CollectiveClass, SimumaxCollective], AfterValidator(_all_of_them)]


class SimumaxNetworks(ConfigBase):
    """Within a node by PCIe, a network for each of 2, 4 and 8 devices, or one for all."""

    intra_with_pcie: Flag = False
    intra_node_pcie_2x: SimumaxNetwork | None = None
    intra_node_pcie_4x: SimumaxNetwork | None = None
    intra_node_pcie_8x: SimumaxNetwork | None = None
    low_intra_node: SimumaxNetwork | None = None
    """Never chosen."""
    high_intra_node: SimumaxNetwork | None = None
    inter_node: SimumaxNetwork

    @model_validator(mode="after")
    def _has_what_is_used(self) -> Self:
        used = ["high_intra_node"]
        if self.intra_with_pcie:
            used = [f"intra_node_pcie_{size}x" for size in (2, 4, 8)]
        with_pcie = f"with intra_with_pcie {str(self.intra_with_pcie).lower()}"
        lacking = [name for name in used if getattr(self, name) is None]
        if lacking:
            problem = f"is needed {with_pcie}"
            raise InputError([Fault(field=f"networks.{name}", problem=problem) for name in lacking])
        return self


class SimumaxSystem(ConfigBase):
    """A cluster of equal nodes."""

    sys_name: str
    num_per_node: Count
    accelerator: SimumaxAccelerator
    networks: SimumaxNetworks
    FC8: Flag = False
    """Whether every device of a node has a link to each other one."""
