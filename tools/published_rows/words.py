"""The words of measured rows: what each feature means here, and which words are ignored.

Rows name one thing in several ways (`tp_comm_overlap`, `tp-comm-overlap`, `TP_COMM_OVERLAP`).
`FEATURES` has one name for each, the values that are understood, and whether the prediction uses
it. What is not understood, or understood but not modeled, is listed with the prediction.
"""

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shardwise.frozen import FrozenDict
from shardwise.launchers.megatron.core_strategy import OFFLOAD_MODULES
from shardwise.validate.measured.runs import NO_EFFECT

if TYPE_CHECKING:
    from published_rows.row import Run

Use = Literal["used", "origin", "not modeled"]

_FLAG = r"true|false|0|1|yes|no|on|off|none|"
_OFF = r"false|0|0\.0|no|off|none|\[\]|\(\)|"
_NUMBER = r"-?[\d.]+|none|"
_ANY = r"[\s\S]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature that rows may name."""

    use: Use = "used"
    """`used` by a field of model or strategy; `origin`: it names a source. Others are listed as
    ignored."""
    values: str = _FLAG
    """Regular expression of the values that are understood, in lower case."""
    aliases: tuple[str, ...] = ()
    """Other names, in lower case with underscores."""
    off: str = _OFF
    """Values that have no effect where the translation does not look it up."""
    why: str = ""
    """Why it is not modeled."""


def _same(*aliases: str, values: str = _FLAG) -> Feature:
    return Feature(values=values, aliases=aliases)


def _layout(*aliases: str, values: str = _FLAG) -> Feature:
    """A feature without effect in other layouts, or where the row says the same elsewhere."""
    return Feature(values=values, aliases=aliases, off=_ANY)


def _lacks(why: str, *aliases: str, off: str = _OFF) -> Feature:
    return Feature(use="not modeled", values=_ANY, aliases=aliases, off=off, why=why)


_ORIGIN = Feature(use="origin", values=_ANY)
_OFFLOAD = r"(cpu|host|true|1|yes|on|optimizer\w*|param\w*|weights?|grad\w*|activations?|states?|"
_OFFLOAD += r"and|[\s,+/&]|none|false|0|no|off)*"

FP8_SWITCHES = frozenset(
    ("fp8", "fp8_act", "fp8_activation", "fp8_amax_algo", "fp8_amax_history", "fp8_dpa",
     "fp8_hybrid", "fp8_params", "fp8_param_gather", "fp8_recipe", "fp8_reduce_amax")
)  # fmt: skip
"""Settings of MLPerf submissions; a row that has any of them trains in fp8."""

FEATURES: Mapping[str, Feature] = {
    # Overlap of communication
    "tp_comm_overlap": _same("tp_overlap"),
    "async_tp": _same("enable_async_tensor_parallel"),
    "use_mc2": _same(),
    "overlap": _same(values=r".*overlap.*|false|true|none|"),
    "dp_overlap": _same("overlap_grad_reduce", "overlap_grad_sync", "overlap_sync_grad"),
    "moe_a2a_overlap": _same(
        "overlap_moe_expert_parallel_comm", "ep_overlap", "ep_a2a_overlap", "a2a_overlap"
    ),
    "cuda_launch_blocking": _same(values=_ANY),
    "cp_comm_type": _same(values=r"(p2p|a2a|ring|ulysses|all_?gather|a2a\+p2p|none|\W)*"),
    "sequence_parallel": _layout("sp"),
    # Pipeline
    "schedule": _layout(
        "pipeline_schedule",
        "pipeline_parallel_schedule",
        values=r"1f1b.*|interleaved.*|gpipe|dualpipe|zb-?h1|zbb|zb-?v|none|",
    ),
    "pp_layout": _layout(
        "pipeline_model_parallel_layout", "pipeline_layout", "stage_layers", "layers_per_stage",
        values=r"[etml*|()\d]+|[\s\[\](),+x\d]+|none|",
    ),
    "first_stage_layers": _layout(
        "num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers",
        values=r"\d+|none|",
    ),
    "last_stage_layers": _layout(
        "num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers",
        values=r"\d+|none|",
    ),
    "embedding_as_layer": _layout("account_for_embedding_in_pipeline_split", "asym_pp_embed"),
    "loss_as_layer": _layout("account_for_loss_in_pipeline_split", "asym_pp_loss"),
    "account_for_embedding_and_loss_in_pipeline_split": _layout(),
    "pp_partition": _layout(values=r"layers split evenly.*|embedding counted as a layer.*"),
    "tp_pp_dp_mapping": _layout("use_tp_pp_dp_mapping"),
    # Kernels
    "cuda_graphs": _same("layer_cuda_graph", "cuda_graph"),
    "cuda_graph_impl": _same(values=r"\"?(transformer_engine|full_iteration|local|none)\"?|"),
    "cuda_graph_scope": _same(
        "cuda_graph_modules", values=r"(full(_iteration)?|attn|mamba|moe_?\w*|mlp|none|\W)*"
    ),
    "torch_compile": _same("compile"),
    "liger": _same("use_liger_kernel", "liger_kernel"),
    "optimizer": _same(
        "optimizer_name",
        values=r".*(adam|muon|adafactor|sgd).*|none|",
    ),
    "fused_cross_entropy": _same(),
    "cross_entropy_fusion": _same("cross_entropy_loss_fusion", values=rf"te.*|native.*|{_FLAG}"),
    "cross_entropy_fusion_impl": _same(values=r"te|native"),
    "no_gradient_accumulation_fusion": _same(),
    "framework": _same(
        values=r"none|(?:(foak|fast|kernels|liger|baseline|accelerated|peft|bnb|autogptq|full)-?)+"
        r"|nemo 2.0 recipe.*"
    ),
    "cutedsl_fused_grouped_mlp": _same(),
    "helpers": _same(values=_ANY),
    "fp8_dot_product_attention": _same(),
    "fp8_output_proj": _same(),
    # Experts
    "moe_flex_dispatcher_backend": _same(
        "flex_dispatcher", values=r"\"?(flex\+)?(hybridep|deepep|none)\"?|"
    ),
    "dispatcher": _same(
        "moe_dispatcher",
        "moe_token_dispatcher_type",
        values=r"\"?(flex\+)?(hybridep|deepep|alltoall|all_to_all|flex|none)\"?|",
    ),
    "deepep": _same(),
    "kernels": _same(values=r"te( \+ (deepep|triton|fsdp2_prefetch|torchsdpa|flexattn|torch_mm))*"),
    "moe_capacity_factor": _same(
        "capacity_factor", "moe_expert_capacity_factor", "expert_capacity_factor", values=_NUMBER
    ),
    "moe": _same(values=r".*(capacity factor|dropless).*|none|"),
    "routing": _layout(
        "moe_routing", "router", "moe_router", "load_balance", "load_balancing", "expert_balance",
        values=r".*(natural|balanc|aux_loss|forced|real|uniform|random|dropless|drop).*|none|",
    ),
    "force_load_balancing": _layout(
        "moe_router_force_load_balancing", "moe_force_load_balance", "force_balance"
    ),
    "expert_imbalance": _layout("imbalance", "load_imbalance", values=_NUMBER),
    # Sharding and fine-tuning
    "use_megatron_fsdp": _layout(),
    "fsdp2": _layout("fsdp", values=rf"\d+|{_FLAG}"),
    "use_dist_optimizer": _layout("use_distributed_optimizer"),
    "expert_tensor_parallel_size": _layout(values=_NUMBER),
    "gradient_accumulation": _layout(
        "ga", "gas", "grad_accum", "gradient_accumulation_steps", "accumulate_steps",
        values=_NUMBER,
    ),
    "local_batch": _layout(
        "local_batch_size", "per_device_batch", "per_device_train_batch_size", values=_NUMBER
    ),
    "peft": _same(values=r"q?lora|none|"),
    "lora_rank": _same("lora_r", values=r"\d+|none|"),
    "param_offload": _same(
        "offload_param", "offload_params", "parameter_offload", "offload_weights",
        "weight_offload", values=_OFFLOAD,
    ),
    "optimizer_offload": _same(
        "offload_optimizer", "optimizer_cpu_offload", "cpu_offload_optimizer", "zero_offload",
        "optim_cpu_offload", values=_OFFLOAD,
    ),
    "optimizer_offload_fraction": _same(values=r"1(\.0)?|0(\.0)?|none|"),
    "cpu_offload": _same(
        "fsdp_cpu_offload", "offload", "cpu_offloading", "offloading", values=_OFFLOAD
    ),
    "activation_offloading": _same(
        "activation_offload", "offload_activations", "activation_cpu_offload",
        "cpu_offload_activations", values=_OFFLOAD,
    ),
    "offload_modules": _same(values=rf"({'|'.join(OFFLOAD_MODULES.values())}|\W)*"),
    "optimizer_in_bwd": _same(),
    "chunked_cross_entropy": _same(),
    "loss": _same(values=r"f\.cross_entropy of 16-bit logits, not compiled"),
    "no_sync": _same(),
    # Batch and model
    "document_len": _same(
        "mean_document_len", "mean_doc_len", "avg_doc_len", "mean_len", "mean_length",
        "average_length", values=_NUMBER,
    ),
    "sliding_window": _same(
        "window", "window_size", "attention_window", "sliding_window_size", "swa",
        values=r".*\d.*|none|false|0|",
    ),
    "vocab_multiple": _same(
        "make_vocab_size_divisible_by", "vocab_padding_multiple", "pad_vocab_to_multiple_of",
        values=_NUMBER,
    ),
    # Precision
    **dict.fromkeys(FP8_SWITCHES, _layout(values=_ANY)),
    "bf16_moments": _same(),
    # Names of sources
    **dict.fromkeys(("recipe", "recipe_ref", "config_ref", "group"), _ORIGIN),
    # What the software does, or what follows from another feature
    **dict.fromkeys(
        ("te", "limit_all_gathers", "moe_permute_fusion", "fused_rms_norm", "use_fused_rms_norm",
         "use_fused_rmsnorm", "fused_rope", "fused_mlp", "fused_dropout_add_ln", "lora_a2a",
         "uses_megatron_fsdp_code", "gradient_accumulation_fusion", "moe_pad_to_capacity",
         "overlap_p2p", "overlap_param_gather", "overlap_param_sync"),
        _lacks("the software of other runs does it", off="true|1|yes|none|"),
    ),
    **dict.fromkeys(
        ("megablox", "sparse_matmul", "xla", "dcn", "pipeline", "mc_tp_overlap_ag",
         "mc_tp_overlap_rs", "mc_tp_overlap_rs_dgrad", "fp4", "fp4_recipe"),
        _lacks("", off=_ANY),
    ),
    # Not modeled
    "overlap_sync_param": _lacks("gradients and weights overlap together", off="true|1|none|"),
    "grad_sync_dtype": _lacks("type of the gradients that are reduced", off="bf16|none|"),
    "moe_grouped_gemm": _lacks(
        "one product per expert where the software groups them", off="true|1|none|"
    ),
    "partition_activations_over_tp": _lacks("saved inputs split over tp", "partition_activations"),
    "nccl_ub": _lacks("user buffers of NCCL"),
    "nccl_nvls": _lacks("reductions in the switch"),
    "delay_wgrad": _lacks("weight gradients delayed to overlap communication"),
    "defer_embedding_wgrad": _lacks(
        "weight gradients of the head deferred to the cool-down", "defer_embedding_wgrad_compute"
    ),
    "fp4_param": _lacks("parameters in fp4"),
    "deterministic_mode": _lacks("deterministic kernels"),
    "no_rope_fusion": _lacks("unfused rotary embedding"),
    "manual_gc": _lacks("garbage collection by hand", "manual_gc_interval"),
    "overlap_param_gather_with_optim_step": _lacks("parameter gathers during the optimizer step"),
    "packing": _lacks(
        "documents of lengths that are not stated", "packed", "sequence_packing", "pack_sequences",
        "packed_sequence", "packed_sequences",
    ),
    "zero_hpz_partition_size": _lacks("secondary shards of weights within a node (ZeRO++)"),
    "zeropp": _lacks("ZeRO++"),
}  # fmt: skip
"""By name; each alias is another name of the same."""

_NAMES = {alias: name for name, one in FEATURES.items() for alias in (name, *one.aliases)}


def named_features(features: Mapping[str, Any]) -> dict[str, Any]:
    """Features by the one name of each; a feature that is not known keeps its own.

    Of two names of one feature, the first that is not None counts.
    """
    found: dict[str, Any] = {}
    for key, value in features.items():
        name = _NAMES.get(re.sub(r"[-. ]", "_", key.strip("-").lower()), key)
        if found.get(name) is None:
            found[name] = value
    return found


class Read(FrozenDict[str, Any]):
    """Features that know which of them were looked up."""

    __slots__ = ("seen",)

    def __init__(self, features: Mapping[str, Any]) -> None:
        super().__init__(features)
        self.seen: set[object] = set()

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None, /) -> Any:
        """Look one up."""
        self.seen.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.seen.add(key)
        return super().__contains__(key)


def truth(value: object) -> bool:
    """Whether a feature is on, as rows write it."""
    return str(value).strip('"').lower() in ("true", "1", "yes", "on")


def ignored_words(run: "Run", seen: AbstractSet[object]) -> Iterator[str]:
    """Yield the features, texts and keys of a row that its prediction ignores, with the reason.

    Parameters
    ----------
    run
        The row.
    seen
        Features that its translation looked up.
    """
    yield from _ignored_features(run, seen)
    yield from _ignored_texts(run)


def _ignored_features(run: "Run", seen: AbstractSet[object]) -> Iterator[str]:
    """Yield features that are not known, not understood, not modeled or without effect."""
    for name, value in run.features.items():
        feature = FEATURES.get(name)
        text = str(value).lower()
        shown = f"features.{name} {str(value)!r}"
        if feature is None:
            if value is not None:
                yield f"{shown}: not known"
        elif value is None or feature.use == "origin":
            continue
        elif not re.fullmatch(feature.values, text):
            yield f"{shown}: not understood"
        elif feature.use == "used" and name in seen:
            continue
        elif re.fullmatch(feature.off, text):
            yield f"features.{name}: {NO_EFFECT}"
        elif feature.use == "used":
            yield f"{shown}: not modeled for this software"
        else:
            yield f"{shown}: not modeled ({feature.why})"


_NO_FLASH = re.compile(r"unfused|no flash|pre-flash|without flash|eager|math kernel", re.IGNORECASE)
_FLASH = re.compile(r"flash|sdpa|cudnn|TE fused|Transformer ?Engine fused|splash", re.IGNORECASE)
# Words of texts that have a meaning here, in lower case.
_TEXTS: Mapping[str, str] = {
    "attention_impl": r"flash\w*|fa\d|attn|attention|\w*sdpa|flexattn|flex|cudnn\w*|te|triton|"
    r"transformer|engine|transformerengine|(un)?fused|scaled|masked|softmax|splash|pallas|xla|"
    r"multihead_attention_fusion|deepep|fsdp2_prefetch|torch_mm|npu|xpu|(py)?torch|pre|packed|lora|"
    r"xformers|memory|efficient|math|kernels?|eager|v\d|none|a100|rows",
    "model.mlp": r"swiglu|geglu|reglu|gelu|squared_relu|relu2?|silu|clamped|biased|linear",
    "model.norm": r"rms|layer|norm|rmsnorm|layernorm(1p)?|low_precision_layernorm|deepnorm",
    "model.pos_emb": r"rope|rotary(_percent)?|learned(_abs(olute)?)?|absolute|alibi|yarn|param|"
    r"count|grows|seq_len|d_model",
    "model.attention": r"mha|gqa|mqa|mla|multi|head|grouped|query|latent|qk|norm|sinks?|attention|"
    r"alternating|sliding|window(ed)?|local|global|swa|causal",
    "model.arch": r"dense|moe|decoder|encoder|bert|vit",
    "model.linear_bias": r"qkv|o|bias|internlm1|true|false",
    "precision": r"(mx|nv)?(fp|bf|float|bfloat|int)\d+\w*|half|mixed|autocast|fsdp|mp|mode|default|"
    r"pure|params?|grads?|gradients?|reduce|scatter|weights?|optimizer|states?|accumul\w+|delayed|"
    r"current|scaling|hybrid|tensor(wise)?|te|o2|amp|main|compute|bnb|nf4|bit|base|gptq|before|"
    r"bf16optimizer|master|dynamic|linears|all|gather|row\w*|block(wise)?|activations|ambiguous|"
    r"cublas|grouped|gemm|most|assumed|amax|history|x|\d+x\d+",
}
# Keys of rows by section: used by the translation, or only say where and when.
_KEYS: Mapping[str, frozenset[str]] = {
    "": frozenset(),
    "model": frozenset(
        ("hybrid_pattern", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads",
         "mamba_state_dim", "sliding_window")
    ),
    "hardware": frozenset(
        ("chips_per_slice", "cluster", "neuron_cores", "nodes", "slices", "submitter", "system")
    ),
    "software": frozenset(("env", "te", "torch")),
    "parallelism": frozenset(("ep_nodes", "hsdp", "note", "unit", "zero1_group")),
    "recompute": frozenset(
        ("granularity", "recompute_granularity", "recompute_modules", "recompute_num_layers",
         "modules", "num_layers", "custom", "cpu_offloading_num_layers", "note")
    ),
}  # fmt: skip


def says_flash(text: str | None) -> bool | None:
    """Whether a row's text says that attention kernels are fused; None: it says nothing."""
    if _NO_FLASH.search(text or ""):
        return False
    return True if _FLASH.search(text or "") else None


def _ignored_texts(run: "Run") -> Iterator[str]:
    """Yield words of texts that are not understood, and keys that are no part of the schema."""
    for name, pattern in _TEXTS.items():
        section, _, field_name = name.rpartition(".")
        text = getattr(getattr(run, section) if section else run, field_name)
        words = _leftover(str(text or ""), pattern)
        if words:
            yield f"{name} {words!r}: not understood"
    if run.precision and run.precision_class == "unknown":
        yield f"precision {run.precision!r}: not understood"
    for section, known in _KEYS.items():
        one: Any = getattr(run, section) if section else run
        extra: Mapping[str, Any] = (one or {}) if section == "recompute" else one.extra
        for key in sorted(key for key in extra.keys() - known if extra[key] is not None):
            yield f"{section}.{key}".lstrip(".") + f" {str(extra[key])!r}: not known"


def _leftover(text: str, known: str) -> str:
    """Words of a text that are not understood."""
    words = re.findall(r"\w*[a-z]\w*", text.lower())
    return " ".join(one for one in words if one not in _PLAIN and not re.fullmatch(known, one))


_PLAIN = frozenset(
    ("a", "an", "and", "as", "auto", "d", "for", "full", "in", "is", "l", "no", "not", "of", "on",
     "only", "or", "otherwise", "per", "row", "stated", "the", "to", "via", "with")
)  # fmt: skip
