"""The words of measured rows: what each feature means here, and which words are ignored.

Rows name one thing in several ways (`tp_comm_overlap`, `tp-comm-overlap`, `TP_COMM_OVERLAP`).
`FEATURES` has one name for each, the values that are understood, and whether the prediction uses
it. What is not understood, or understood but not modeled, is listed with the prediction.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from published_rows.row import Run

Use = Literal["used", "redundant", "not modeled"]

_FLAG = r"true|false|0|1|yes|no|none|"
_OFF = r"false|0|no|none|\[\]|"
_NUMBER = r"-?[\d.]+|none|"
_ANY = r"[\s\S]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature that rows may name."""

    use: Use = "used"
    """`redundant`: other fields of the row say the same, or it only names a source."""
    values: str = _FLAG
    """Regular expression of the values that are understood, in lower case."""
    aliases: tuple[str, ...] = ()
    off: str = _OFF
    """Values that change nothing, so that a feature that is not modeled is not ignored."""
    why: str = ""
    """Why it is not modeled."""


def _same(*aliases: str, values: str = _FLAG) -> Feature:
    return Feature(values=values, aliases=aliases)


def _lacks(why: str, *aliases: str, off: str = _OFF) -> Feature:
    return Feature(use="not modeled", values=_ANY, aliases=aliases, off=off, why=why)


_REDUNDANT = Feature(use="redundant", values=_ANY)

FP8_SWITCHES = frozenset(
    ("fp8", "fp8_act", "fp8_activation", "fp8_amax_algo", "fp8_amax_history", "fp8_dpa",
     "fp8_hybrid", "fp8_params", "fp8_param_gather", "fp8_recipe", "fp8_reduce_amax")
)  # fmt: skip
"""Settings of MLPerf submissions; a row that has any of them trains in fp8."""

FEATURES: Mapping[str, Feature] = {
    # Overlap of communication
    "tp_comm_overlap": _same("tp-comm-overlap"),
    "async_tp": _same(),
    "use_mc2": _same(),
    "overlap": _same(values=r".*overlap.*|false|true|none|"),
    "dp_overlap": _same(
        "overlap_grad_reduce", "overlap_grad_sync", "overlap_sync_grad", "overlap-grad-reduce"
    ),
    "moe_a2a_overlap": _same(
        "overlap_moe_expert_parallel_comm", "ep_overlap", "ep_a2a_overlap", "a2a_overlap"
    ),
    "cuda_launch_blocking": _same(values=_ANY),
    "cp_comm_type": _same(values=r"(p2p|a2a|all_gather|a2a\+p2p|none|\W)*"),
    # Pipeline
    "schedule": _same(
        "pipeline_schedule",
        values=r"1f1b.*|interleaved.*|gpipe|dualpipe|zb-?h1|zbb|zb-?v|v-half|v-min|none|",
    ),
    "pp_layout": _same(values=r"[etml*|()\d]+|none|"),
    "pipeline": _same(values=r"1f1b.*"),
    # Kernels
    "cuda_graphs": _same("layer_cuda_graph", "cuda_graph"),
    "cuda_graph_impl": _same(values=r"\"?(transformer_engine|full_iteration|local|none)\"?|"),
    "cuda_graph_scope": _same(values=r"(full(_iteration)?|attn|mamba|moe_?\w*|mlp|none|\W)*"),
    "torch_compile": _same(),
    "liger": _same(),
    "optimizer": _same(values=_ANY),
    "fused_cross_entropy": _same(),
    "cross_entropy_fusion": _same(
        "cross-entropy-loss-fusion", values=rf"te.*|native.*|{_FLAG}"
    ),
    "cross_entropy_fusion_impl": _same("cross-entropy-fusion-impl", values=r"te|native"),
    "gradient_accumulation_fusion": _same(),
    "no_gradient_accumulation_fusion": _same("no-gradient-accumulation-fusion"),
    "framework": _same(
        values=r"none|(?:(foak|fast|kernels|liger|baseline|accelerated|peft|bnb|autogptq|full)-?)+"
        r"|nemo 2.0 recipe.*"
    ),
    "cutedsl_fused_grouped_mlp": _same(),
    "helpers": _same(values=_ANY),
    # Experts
    "moe_flex_dispatcher_backend": _same(
        "flex_dispatcher",
        "moe-flex-dispatcher-backend",
        values=r"\"?(flex\+)?(hybridep|deepep|none)\"?|",
    ),
    "dispatcher": _same(
        "moe_dispatcher",
        "moe-token-dispatcher-type",
        "moe_token_dispatcher_type",
        values=r"\"?(flex\+)?(hybridep|deepep|alltoall|all_to_all|flex|none)\"?|",
    ),
    "deepep": _same(),
    "kernels": _same(values=r"te( \+ (deepep|triton|fsdp2_prefetch|torchsdpa|flexattn|torch_mm))*"),
    "moe_capacity_factor": _same("capacity_factor", values=_NUMBER),
    "moe": _same(values=r".*(capacity factor|dropless).*|none|"),
    # Sharding and fine-tuning
    "use_megatron_fsdp": _same(),
    "peft": _same(values=r"q?lora|none|"),
    "param_offload": _same(values=r"cpu|none|"),
    "optimizer_offload": _same(values=r"cpu|none|"),
    "optimizer_in_bwd": _same(),
    "activation_offloading": _same(),
    "chunked_cross_entropy": _same(),
    # Precision
    **dict.fromkeys(FP8_SWITCHES, Feature(values=_ANY)),
    # Stated elsewhere in the row, implied by the software, or names of sources
    **dict.fromkeys(
        (
            "recipe", "recipe_ref", "config_ref", "ga", "gas", "gradient_accumulation",
            "local_batch", "group", "te", "fsdp2", "limit_all_gathers",
            "expert_tensor_parallel_size", "use_dist_optimizer", "tp_pp_dp_mapping", "lora_a2a",
            "moe_router", "pp_partition", "asym_pp_embed", "asym_pp_loss",
            "account_for_embedding_and_loss_in_pipeline_split", "uses_megatron_fsdp_code",
            "overlap_param_gather", "overlap-param-gather", "overlap_param_sync",
            "overlap_sync_param", "overlap_p2p", "mc_tp_overlap_ag", "mc_tp_overlap_rs",
            "mc_tp_overlap_rs_dgrad", "grad_sync_dtype", "moe_permute_fusion",
            "moe-permute-fusion", "moe_pad_to_capacity", "fused_rms_norm", "use_fused_rms_norm",
            "use_fused_rmsnorm", "fused_rope", "fused_mlp", "fused_dropout_add_ln", "bf16_moments",
            "xla", "dcn", "megablox", "sparse_matmul", "fp4", "fp4_recipe",
        ),
        _REDUNDANT,
    ),
    # Not modeled
    "moe_grouped_gemm": _lacks(
        "one product per expert where the software groups them",
        "moe-grouped-gemm",
        off="true|1|none|",
    ),
    "partition_activations_over_tp": _lacks("saved inputs split over tp", "partition_activations"),
    "nccl_ub": _lacks("user buffers of NCCL"),
    "nccl_nvls": _lacks("reductions in the switch"),
    "delay_wgrad": _lacks("weight gradients delayed to overlap communication"),
    "defer_embedding_wgrad": _lacks(
        "weight gradients of the head deferred to the cool-down", "defer_embedding_wgrad_compute"
    ),
    "fp8_dot_product_attention": _lacks("attention in fp8"),
    "fp4_param": _lacks("parameters in fp4"),
    "deterministic_mode": _lacks("deterministic kernels", "deterministic-mode"),
    "no_rope_fusion": _lacks("unfused rotary embedding", "no-rope-fusion"),
    "manual_gc": _lacks("garbage collection by hand", "manual-gc", "manual-gc-interval"),
    "overlap_param_gather_with_optim_step": _lacks("parameter gathers during the optimizer step"),
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
        name = _NAMES.get(key) or _NAMES.get(key.lower(), key)
        if found.get(name) is None:
            found[name] = value
    return found


def ignored_words(run: "Run") -> Iterator[str]:
    """Yield the features, texts and keys of a row that its prediction ignores, with the reason."""
    yield from _ignored_features(run)
    yield from _ignored_texts(run)


def _ignored_features(run: "Run") -> Iterator[str]:
    """Yield features that are not known, not understood or not modeled."""
    for name, value in run.features.items():
        feature = FEATURES.get(name)
        text = str(value).lower()
        shown = f"features.{name} {str(value)!r}"
        if feature is None:
            if value is not None:
                yield f"{shown}: not known"
        elif not re.fullmatch(feature.values, text):
            yield f"{shown}: not understood"
        elif feature.use == "not modeled" and not re.fullmatch(feature.off, text):
            yield f"{shown}: not modeled ({feature.why})"


_NO_FLASH = re.compile(r"unfused|no flash|pre-flash|without flash|eager|math kernel", re.IGNORECASE)
_FLASH = re.compile(r"flash|sdpa|cudnn|TE fused|Transformer ?Engine fused|splash", re.IGNORECASE)
# Words of texts that have a meaning here, and of those that say nothing; in lower case.
_TEXTS: Mapping[str, str] = {
    "attention_impl": r".*(flash|sdpa|cudnn|fused|transformerengine|\bte\b|xla|flexattn|eager|"
    r"not stated).*",
    "model.mlp": r"(swiglu|geglu|gelu|squared_relu|relu2|relu|silu).*",
    "model.norm": r".*(rms|layer_?norm|deepnorm).*",
    "model.pos_emb": r".*(rope|rotary|learned|alibi).*",
    "model.attention": r".*(mha|gqa|mqa|mla).*",
}
# Keys of rows that are no fields of `Run`: used by the translation, or only say where and when.
_KEYS: Mapping[str, frozenset[str]] = {
    "": frozenset(),
    "model": frozenset(
        ("hybrid_pattern", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads",
         "mamba_state_dim")
    ),
    "hardware": frozenset(
        ("chips_per_slice", "cluster", "neuron_cores", "nodes", "slices", "submitter", "system")
    ),
    "software": frozenset(("env", "te", "torch")),
    "parallelism": frozenset(("ep_nodes", "hsdp", "note", "unit", "zero1_group")),
}  # fmt: skip


def says_flash(text: str | None) -> bool | None:
    """Whether a row's text says that attention kernels are fused; None: it says nothing."""
    if _NO_FLASH.search(text or ""):
        return False
    return True if _FLASH.search(text or "") else None


def _ignored_texts(run: "Run") -> Iterator[str]:
    """Yield texts of a row that are not understood, and keys that are no part of the schema."""
    for name, pattern in _TEXTS.items():
        section, _, field_name = name.rpartition(".")
        text = getattr(getattr(run, section) if section else run, field_name)
        if text and not re.fullmatch(pattern, text.lower()):
            yield f"{name} {text!r}: not understood"
    if run.precision and run.precision_class == "unknown":
        yield f"precision {run.precision!r}: not understood"
    for section, known in _KEYS.items():
        extra = getattr(run, section).extra if section else run.extra
        for key in sorted(extra.keys() - known):
            yield f"{section}.{key}".lstrip(".") + ": not known"
