"""Options of Megatron-LM's command line: each with its field of Megatron-Core's configuration.

Of core_v0.19.0 where nothing else is said (megatron/training/arguments.py and argument_utils.py,
Megatron-LM d98e8a64 of 2026-08-22, which is younger: options that came after the tag are left out).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from shardwise.config.enums import Word
from shardwise.launchers.megatron.core_options import CORE_DEFAULTS
from shardwise.launchers.megatron.core_stack import Fields, Value

RING_PRODUCTS = (
    "qkv_fprop",
    "fc1_fprop",
    "proj_fprop",
    "fc2_fprop",
    "proj_dgrad",
    "fc2_dgrad",
)
"""Products of Transformer Engine whose communication can go around a ring."""


class Kind(Word):
    """What follows an option."""

    VALUE = "value"
    LIST = "list"
    """One word or several."""
    PATTERN = "pattern"
    """A number, or a Python list of 0 and 1 for every layer."""
    PAIR = "pair"
    """Two numbers with a comma between them."""
    ON = "on"
    """Nothing: the field is true."""
    OFF = "off"
    """Nothing: the field is false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of the command line and the field that it sets."""

    flag: str
    field: str
    kind: Kind = Kind.VALUE
    listed: str = ""
    """Name in the list of arguments that a run prints, where that is not the flag's."""

    @property
    def argument(self) -> str:
        """Name in the list of arguments that a run prints."""
        usual = self.field if self.kind == Kind.OFF else self.flag[2:].replace("-", "_")
        return self.listed or usual


def _named(kind: Kind, *fields: str) -> list[Option]:
    """Options that are named as their fields."""
    return [Option(flag=f"--{field.replace('_', '-')}", field=field, kind=kind) for field in fields]


_MODEL = (
    *_named(
        Kind.VALUE,
        "num_layers",
        "hybrid_layer_pattern",
        "mamba_num_heads",
        "mamba_head_dim",
        "mamba_state_dim",
        "mamba_num_groups",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "dsa_indexer_n_heads",
        "dsa_indexer_head_dim",
        "dsa_indexer_topk",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "seq_length",
        "max_position_embeddings",
        "position_embedding_type",
        "rotary_percent",
        "normalization",
        "softmax_type",
        "hidden_dropout",
        "attention_dropout",
        "make_vocab_size_divisible_by",
        "vocab_size",
        "mtp_num_layers",
        "rope_type",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_head_dim",
        "qk_pos_emb_head_dim",
        "v_head_dim",
    ),
    *_named(
        Kind.ON,
        "add_qkv_bias",
        "qk_layernorm",
        "qk_l2_norm",
        "multi_latent_attention",
        "attention_output_gate",
    ),
    *_named(Kind.PATTERN, "no_rope_freq", "window_attn_skip_freq"),
    *_named(Kind.PAIR, "window_size"),
    Option(flag="--disable-bias-linear", field="add_bias_linear", kind=Kind.OFF),
    Option(
        flag="--untie-embeddings-and-output-weights",
        field="share_embeddings_and_output_weights",
        kind=Kind.OFF,
    ),
)
_EXPERTS = (
    Option(flag="--num-experts", field="num_moe_experts"),
    *_named(
        Kind.VALUE,
        "moe_ffn_hidden_size",
        "moe_router_topk",
        "moe_router_num_groups",
        "moe_router_group_topk",
        "moe_router_score_function",
        "moe_router_dtype",
        "moe_shared_expert_intermediate_size",
        "moe_latent_size",
        "moe_token_dispatcher_type",
        "moe_flex_dispatcher_backend",
        "moe_flex_dispatcher_num_sms",
        "moe_expert_capacity_factor",
    ),
    *_named(Kind.PATTERN, "moe_layer_freq"),
    *_named(
        Kind.ON,
        "moe_router_pre_softmax",
        "moe_router_enable_expert_bias",
        "moe_shared_expert_gate",
        "moe_pad_expert_input_to_capacity",
        "moe_grouped_gemm",
        "moe_permute_fusion",
        "overlap_moe_expert_parallel_comm",
    ),
)
_PARALLEL = (
    *_named(
        Kind.VALUE,
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "pipeline_model_parallel_layout",
    ),
    Option(
        flag="--num-virtual-stages-per-pipeline-rank",
        field="virtual_pipeline_model_parallel_size",
    ),
    Option(flag="--decoder-first-pipeline-num-layers", field="num_layers_in_first_pipeline_stage"),
    Option(flag="--decoder-last-pipeline-num-layers", field="num_layers_in_last_pipeline_stage"),
    *_named(Kind.LIST, "cp_comm_type"),
    *_named(
        Kind.ON,
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "sequence_parallel",
        "tp_comm_overlap",
        "use_tp_pp_dp_mapping",
    ),
    Option(flag="--no-overlap-p2p-communication", field="overlap_p2p_comm", kind=Kind.OFF),
)
_REPLICAS = (
    *_named(
        Kind.ON,
        "use_distributed_optimizer",
        "use_megatron_fsdp",
        "use_torch_fsdp2",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "use_precision_aware_optimizer",
        "optimizer_cpu_offload",
    ),
    *_named(
        Kind.VALUE,
        "data_parallel_sharding_strategy",
        "num_distributed_optimizer_instances",
        "optimizer",
        "optimizer_offload_fraction",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "main_grads_dtype",
        "main_params_dtype",
        "sgd_momentum",
    ),
    Option(
        flag="--torch-fsdp2-no-reshard-after-forward",
        field="torch_fsdp2_reshard_after_forward",
        kind=Kind.OFF,
    ),
    Option(
        flag="--grad-reduce-in-bf16",
        field="grad_reduce_in_fp32",
        kind=Kind.OFF,
        listed="grad_reduce_in_bf16",
    ),
)
_COMPUTE = (
    *_named(Kind.VALUE, "micro_batch_size", "global_batch_size"),
    *_named(Kind.ON, "bf16", "fp16", "cross_entropy_loss_fusion"),
    *_named(Kind.VALUE, "fp8_recipe", "fp4_recipe", "attention_backend", "cuda_graph_impl"),
    *_named(Kind.VALUE, "cross_entropy_fusion_impl"),
    *_named(Kind.VALUE, "recompute_granularity", "recompute_method", "recompute_num_layers"),
    *_named(Kind.LIST, "recompute_modules", "offload_modules", "cuda_graph_modules"),
    *_named(
        Kind.ON,
        "fine_grained_activation_offloading",
        "reuse_grad_buf_for_mxfp8_param_ag",
        "use_transformer_engine_op_fuser",
        "first_last_layers_bf16",
    ),
    *_named(Kind.VALUE, "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"),
    Option(flag="--fp8-format", field="fp8", listed="fp8"),
    Option(flag="--fp4-format", field="fp4", listed="fp4"),
    Option(flag="--fp8-param-gather", field="fp8_param", kind=Kind.ON),
    Option(flag="--fp4-param-gather", field="fp4_param", kind=Kind.ON),
    Option(
        flag="--no-gradient-accumulation-fusion",
        field="gradient_accumulation_fusion",
        kind=Kind.OFF,
    ),
    Option(
        flag="--no-bias-swiglu-fusion",
        field="bias_activation_fusion",
        kind=Kind.OFF,
        listed="bias_swiglu_fusion",
    ),
)
OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "model": _MODEL,
    "experts": _EXPERTS,
    "parallelism": _PARALLEL,
    "optimizer and replicas": _REPLICAS,
    "batch, precision, memory and kernels": _COMPUTE,
}
"""Options by what they are about, in the order in which they are written."""
ACTIVATIONS: Mapping[str, tuple[bool, str]] = {
    "--swiglu": (True, "silu"),
    "--squared-relu": (False, "squared_relu"),
    "--quick-geglu": (True, "quick_gelu"),
    "--openai-gelu": (False, "openai_gelu"),
}
"""Options of activations, with gated_linear_unit and activation_func; without one it is gelu."""
DEFAULTS: Fields = {
    **CORE_DEFAULTS,
    "gradient_accumulation_fusion": True,
    "overlap_p2p_comm": True,
    "bias_activation_fusion": True,
    "data_parallel_sharding_strategy": "optim_grads_params",
}
"""What the command line sets where an option is left out."""

FLAGS: Mapping[str, Option] = {one.flag: one for group in OPTIONS.values() for one in group}
FLAG_OF: Mapping[str, str] = {one.field: one.flag for one in FLAGS.values()}


def flag_of(field: str) -> str:
    """Return the option of a field, as people write it."""
    return FLAG_OF.get(field, f"--{field.replace('_', '-')}")


def written(option: Option, value: Value) -> tuple[str, ...] | None:
    """Return an option as words of a command line; None: it is left out."""
    if value is None or value == ():
        return None
    if option.kind in (Kind.ON, Kind.OFF):
        return (option.flag,) if value is (option.kind == Kind.ON) else None
    if isinstance(value, tuple):
        items = [_text(one) for one in value]
        if option.kind == Kind.LIST:
            return (option.flag, *items)
        if option.kind == Kind.PAIR:
            return (option.flag, ",".join(items))
        runs = [(item, len(list(run))) for item, run in groupby(items)]
        return (option.flag, f"({'+'.join(f'[{item}]*{count}' for item, count in runs)})")
    return (option.flag, _text(value))


def _text(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)
