"""Families of decoders on the Hugging Face hub as data: one record for each.

A record names the keys of a family's config.json and what its class fixes; `decoders` reads files
by it. Families with experts are in `moe_families`. Sources: the configuration classes and modules
of `transformers` 5.23 and of the published repositories, and the papers that the catalog names; of
mixtures of experts arXiv 2401.04088 (Mixtral), 2401.06066, 2405.04434 and 2412.19437 (DeepSeek),
2407.10671 (Qwen2), 2505.09388 (Qwen3), 2508.06471 (GLM-4.5), 2508.10925 (gpt-oss), 2510.22115 (Ling
2.0).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

When = bool | str
"""A fact; or the key of a flag, after an exclamation mark of its opposite; or several keys with
vertical bars between them, any of which says so."""
Names = dict[str, tuple[str, ...]]
"""What the keys that a reader looks up are called in files of a family, the usual name first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """Mixture of experts: keys, and what the class fixes."""

    number: str = "num_experts"
    ffn: str = "moe_intermediate_size"
    chosen: str = "num_experts_per_tok"
    shared_ffn: str = ""
    """Key of the width of the shared experts together."""
    shared_number: str = ""
    """Or of how many there are, each as wide as a routed one."""
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    selection_bias: When = False
    method: str = ""
    """Default of `topk_method`, which says whether there is such a bias."""
    groups: bool = False
    """Whether `n_group` and `topk_group` limit the choice."""
    sparse: Literal["all", "leading", "steps", "indices"] = "all"
    """Layers with experts: all; those after `first_k_dense_replace`; each `decoder_sparse_step`-th;
    those between the indices of ERNIE. `mlp_layer_types` says it instead where it is present."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A family of decoders."""

    kinds: tuple[str, ...] = ()
    """`model_type` of files that do not name an architecture, as those of nested models; its class
    is where defaults are from."""
    names: Names = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    """Keys that must be there: no class fills them in."""
    must: tuple[tuple[str, object, str], ...] = ()
    """Key, the value that is modeled, and what any other means."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What is left out where a key has a value."""

    grouped: bool = True
    """Whether `num_key_value_heads` is read."""
    single: When = False
    """Whether all heads share keys and values."""
    causal: When = True
    floors: bool = False
    """Whether heads need not divide the width where `head_dim` is missing."""
    latent: bool = False
    qkv_bias: When = False
    out_bias: When = False
    sinks: bool = False
    qk_norm: Literal["none", "head", "width", "unweighted"] = "none"
    qk_normed: When = True
    window: Literal["none", "all", "turns", "qwen"] = "none"
    """Layers inside `sliding_window`: none; all unless it is null; all but some; those that Qwen's
    keys say. `layer_types` says it instead where it is present."""
    full_every: int | str = 1
    """Of how many layers one is outside the window, or the key of that."""
    full_last: bool = True
    """Whether that is the last of them, or the first."""
    words: tuple[str, str] = ("full_attention", "sliding_attention")
    """Those of `layer_types`: outside and inside the window."""
    unrotated: Literal["none", "full", "listed"] = "none"
    """Layers without rotary positions: those outside the window, or those of `no_rope_layers`."""
    position: Literal["rope", "learned", "alibi", "sinusoidal"] = "rope"
    more_positions: int = 0
    """Rows of the table in addition to `max_position_embeddings`."""

    gated: bool = True
    activation: str = "silu"
    """Default of `hidden_act`."""
    mlp_bias: When = False
    ffn_ratio: int | str = 0
    """Inner width over the model's where `intermediate_size` is missing, or the key of that."""
    experts: Experts | None = None

    norm: Literal["layernorm", "rmsnorm"] = "rmsnorm"
    norm_bias: When = True
    """Of a LayerNorm."""
    norm_weight: bool = True
    norms: Literal["pre", "post", "both", "stream"] = "pre"
    post_norm: When = False
    """Whether there are norms behind the blocks, too."""
    final_norm: When = True
    embedding_norm: bool = False
    parallel: When = False
    second_norm: bool = False
    head_transform: bool = False
    head_bias: When = False
    images: bool = False
    """Whether patches of images come in, and neither embedding nor head is described."""
    typed: bool = False
    """Whether `type_vocab_size` token types are added to the embedding."""
    mtp: str = ""
    """Key of the number of modules of multi-token prediction."""


LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias")
_CAPS = {
    "attn_logit_softcapping": "soft-capping of attention logits",
    "final_logit_softcapping": "soft-capping of output logits",
}
_GEMMA = replace(
    LLAMA,
    names={"hidden_act": ("hidden_activation",)},
    activation="gelu_pytorch_tanh",
    left_out=_CAPS,
)
QWEN3 = replace(
    LLAMA,
    must=(("use_qk_norm", True, "must be true: the class has these norms always"),),
    qk_norm="head",
    window="qwen",
)
OLMO2 = replace(LLAMA, norms="post", qk_norm="width")
_COHERE = replace(LLAMA, parallel=True, norm="layernorm", norm_bias=False)
# Words of GPT-2 and of what was made from it.
_GPT2_NAMES: Names = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "max_position_embeddings": ("n_positions", "max_position_embeddings"),
    "intermediate_size": ("n_inner",),
    "hidden_act": ("activation_function",),
}
_GPT2 = Family(
    kinds=("gpt2", "gpt-sw3"),
    names=_GPT2_NAMES,
    grouped=False,
    qkv_bias=True,
    out_bias=True,
    gated=False,
    activation="gelu_new",
    mlp_bias=True,
    ffn_ratio=4,
    norm="layernorm",
    position="learned",
)
_GPT_NEO = replace(
    _GPT2,
    kinds=("gpt_neo",),
    names={
        "num_hidden_layers": ("num_layers", "num_hidden_layers"),
        "num_attention_heads": ("num_heads", "num_attention_heads"),
        "hidden_act": ("activation_function",),
        "layer_types": ("attention_layers",),
        "sliding_window": ("window_size",),
    },
    qkv_bias=False,
    window="turns",
    full_every=2,
    full_last=False,
    words=("global", "local"),
)
_GPTJ = replace(
    _GPT2,
    kinds=("gptj",),
    qkv_bias=False,
    out_bias=False,
    parallel=True,
    position="rope",
    head_bias=True,
)
_GPT_NEOX = Family(
    kinds=("gpt_neox",),
    names={
        "partial_rotary_factor": (
            *("rotary_pct", "partial_rotary_factor", "rope_parameters.partial_rotary_factor"),
        )
    },
    grouped=False,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    gated=False,
    activation="gelu",
    mlp_bias=True,
    norm="layernorm",
    parallel="use_parallel_residual",
    second_norm=True,
)
_STARCODER2 = Family(
    kinds=("starcoder2",),
    qkv_bias="use_bias",
    out_bias="use_bias",
    mlp_bias="use_bias",
    window="all",
    gated=False,
    activation="gelu_pytorch_tanh",
    norm="layernorm",
)
_OPT = Family(
    kinds=("opt",),
    names={"intermediate_size": ("ffn_dim",), "hidden_act": ("activation_function",)},
    must=(
        ("do_layer_norm_before", True, "norms behind the residual additions are not modeled"),
        ("layer_norm_elementwise_affine", True, "norms without weights are not modeled for OPT"),
        ("word_embed_proj_dim", "=hidden_size", "an embedding of another width is not modeled"),
    ),
    grouped=False,
    qkv_bias="enable_bias",
    out_bias="enable_bias",
    gated=False,
    activation="relu",
    mlp_bias="enable_bias",
    norm="layernorm",
    final_norm="!_remove_final_layer_norm",
    position="learned",
    more_positions=2,
)
LATENT = Family(latent=True)

DENSE: dict[str, Family] = {
    "ApertusForCausalLM": replace(
        LLAMA, kinds=("apertus",), qk_norm="head", gated=False, activation="xielu"
    ),
    "ArceeForCausalLM": replace(
        LLAMA, kinds=("arcee",), gated=False, activation="relu2", mlp_bias="mlp_bias"
    ),
    "BioGptForCausalLM": replace(
        _OPT,
        kinds=("biogpt",),
        names={},
        must=(),
        qkv_bias=True,
        out_bias=True,
        activation="gelu",
        mlp_bias=True,
        final_norm=True,
    ),
    "BloomForCausalLM": replace(
        _GPT2,
        kinds=("bloom",),
        names={
            "hidden_size": ("hidden_size", "n_embed", "n_embd"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "intermediate_size": ("n_inner",),
        },
        must=(
            (
                "apply_residual_connection_post_layernorm",
                False,
                "residuals from behind the norms are not modeled",
            ),
        ),
        activation="gelu",
        position="alibi",
        embedding_norm=True,
    ),
    "CodeGenForCausalLM": replace(_GPTJ, kinds=("codegen",)),
    "Cohere2ForCausalLM": replace(
        _COHERE,
        kinds=("cohere2",),
        window="turns",
        full_every="sliding_window_pattern",
        unrotated="full",
    ),
    "CohereForCausalLM": replace(_COHERE, kinds=("cohere",)),
    "CwmForCausalLM": replace(
        LLAMA, kinds=("cwm",), window="turns", full_every=4, full_last=False, mlp_bias="mlp_bias"
    ),
    "Ernie4_5ForCausalLM": Family(
        kinds=("ernie4_5",), qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"
    ),
    "Emu3ForCausalLM": replace(LLAMA, kinds=("emu3_text_model",), mlp_bias="mlp_bias"),
    "Exaone4ForCausalLM": Family(
        kinds=("exaone4",),
        norms="post",
        qk_norm="head",
        window="turns",
        full_every="sliding_window_pattern",
        unrotated="full",
    ),
    "FalconForCausalLM": Family(
        kinds=("falcon",),
        names={
            "hidden_size": ("hidden_size", "n_embed"),
            "num_hidden_layers": ("num_hidden_layers", "n_layer"),
            "num_attention_heads": ("num_attention_heads", "n_head"),
            "intermediate_size": ("ffn_hidden_size",),
            "hidden_act": ("activation",),
        },
        grouped=False,
        qkv_bias="bias",
        out_bias="bias",
        mlp_bias="bias",
        gated=False,
        activation="gelu",
        ffn_ratio=4,
        norm="layernorm",
    ),
    "GPT2LMHeadModel": _GPT2,
    "GPTBigCodeForCausalLM": replace(
        _GPT2, kinds=("gpt_bigcode",), activation="gelu_pytorch_tanh", single="multi_query"
    ),
    "GPTJForCausalLM": _GPTJ,
    "GPTNeoForCausalLM": _GPT_NEO,
    "GPTNeoXForCausalLM": _GPT_NEOX,
    "Gemma2ForCausalLM": replace(
        _GEMMA, kinds=("gemma2",), norms="both", window="turns", full_every=2
    ),
    "Gemma3ForCausalLM": replace(
        _GEMMA,
        kinds=("gemma3_text",),
        norms="both",
        qk_norm="head",
        window="turns",
        full_every="sliding_window_pattern",
    ),
    "GemmaForCausalLM": replace(_GEMMA, kinds=("gemma",), left_out={}),
    "Glm4ForCausalLM": Family(kinds=("glm4",), qkv_bias="attention_bias", norms="both"),
    "GlmForCausalLM": Family(kinds=("glm",), qkv_bias="attention_bias"),
    "GraniteForCausalLM": replace(LLAMA, kinds=("granite",), mlp_bias="mlp_bias"),
    "GraniteSWAForCausalLM": replace(
        LLAMA,
        kinds=("granite_swa",),
        sinks=True,
        mlp_bias="mlp_bias",
        window="turns",
        full_every=4,
        full_last=False,
    ),
    "HunYuanDenseV1ForCausalLM": replace(QWEN3, kinds=("hunyuan_v1_dense",), window="none"),
    "HyperCLOVAXForCausalLM": replace(
        LLAMA, kinds=("hyperclovax",), mlp_bias="mlp_bias", post_norm="use_post_norm"
    ),
    "Jais2ForCausalLM": replace(
        LLAMA,
        kinds=("jais2",),
        gated=False,
        activation="relu2",
        mlp_bias="mlp_bias",
        norm="layernorm",
    ),
    "Llama4ForCausalLM": replace(LLAMA, kinds=("llama4_text",)),
    "LlamaForCausalLM": replace(
        LLAMA, kinds=("llama", "internlm3", "iquestcoder"), mlp_bias="mlp_bias"
    ),
    "MiniCPM3ForCausalLM": replace(LATENT, kinds=("minicpm3",)),
    "Ministral3ForCausalLM": Family(kinds=("ministral3",), window="all"),
    "MinistralForCausalLM": Family(kinds=("ministral",), window="all"),
    "MistralForCausalLM": Family(kinds=("mistral",), window="all"),
    "MptForCausalLM": Family(
        kinds=("mpt",),
        names={
            "hidden_size": ("d_model", "hidden_size"),
            "num_hidden_layers": ("n_layers", "num_hidden_layers"),
            "num_attention_heads": ("n_heads", "num_attention_heads"),
        },
        must=(
            ("no_bias", True, "biases: not modeled for MptForCausalLM"),
            ("attn_config.alibi", True, "other positions are not modeled for MptForCausalLM"),
            ("attn_config.qk_ln", False, "norms of queries and keys are not modeled"),
        ),
        grouped=False,
        gated=False,
        activation="gelu",
        ffn_ratio="expansion_ratio",
        norm="layernorm",
        norm_bias=False,
        position="alibi",
    ),
    "NanoChatForCausalLM": replace(
        LLAMA,
        kinds=("nanochat",),
        qk_norm="unweighted",
        gated=False,
        activation="relu2",
        norm_weight=False,
        embedding_norm=True,
        left_out=_CAPS,
    ),
    "NemotronForCausalLM": replace(
        LLAMA,
        kinds=("nemotron",),
        gated=False,
        activation="relu2",
        mlp_bias="mlp_bias",
        norm="layernorm",
    ),
    "OPTForCausalLM": _OPT,
    "Olmo2ForCausalLM": replace(OLMO2, kinds=("olmo2",)),
    "Olmo3ForCausalLM": replace(OLMO2, kinds=("olmo3",), window="turns", full_every=4),
    "OlmoForCausalLM": replace(LLAMA, kinds=("olmo",), norm="layernorm", norm_weight=False),
    "PersimmonForCausalLM": replace(
        _GPT_NEOX,
        kinds=("persimmon",),
        names={},
        qkv_bias=True,
        out_bias=True,
        qk_norm="head",
        qk_normed="qk_layernorm",
        activation="relu2",
        parallel=False,
        second_norm=False,
    ),
    "Phi3ForCausalLM": Family(kinds=("phi3",), window="all"),
    "PhiForCausalLM": replace(
        _GPT_NEOX,
        kinds=("phi",),
        names={},
        grouped=True,
        qkv_bias=True,
        out_bias=True,
        qk_norm="head",
        qk_normed="qk_layernorm",
        activation="gelu_new",
        parallel=True,
        second_norm=False,
        head_bias=True,
    ),
    "Qwen2ForCausalLM": Family(
        kinds=("qwen2", "qwen2_5_vl_text", "qwen2_vl_text"), qkv_bias=True, window="qwen"
    ),
    "Qwen3ForCausalLM": replace(QWEN3, kinds=("qwen3", "qwen3_vl_text")),
    "SeedOssForCausalLM": Family(
        kinds=("seed_oss",),
        qkv_bias="attention_bias",
        out_bias="attention_out_bias",
        mlp_bias="mlp_bias",
    ),
    "SmolLM3ForCausalLM": replace(
        LLAMA, kinds=("smollm3",), mlp_bias="mlp_bias", window="turns", unrotated="listed"
    ),
    "StableLmForCausalLM": Family(
        kinds=("stablelm",),
        must=(("qk_layernorm", False, "norms of single heads are not modeled"),),
        qkv_bias="use_qkv_bias",
        norm="layernorm",
        parallel="use_parallel_residual",
    ),
    "Starcoder2ForCausalLM": _STARCODER2,
    "VaultGemmaForCausalLM": replace(_GEMMA, kinds=("vaultgemma",), window="turns", full_every=2),
    "XGLMForCausalLM": replace(
        _OPT,
        kinds=("xglm",),
        names={
            "hidden_size": ("d_model", "hidden_size"),
            "num_hidden_layers": ("num_layers", "num_hidden_layers"),
            "num_attention_heads": ("attention_heads", "num_attention_heads"),
            "intermediate_size": ("ffn_dim",),
            "hidden_act": ("activation_function",),
        },
        must=(),
        qkv_bias=True,
        out_bias=True,
        activation="gelu",
        mlp_bias=True,
        final_norm=True,
        position="sinusoidal",
    ),
    "YoutuForCausalLM": replace(LATENT, kinds=("youtu",)),
}
"""Families without experts, by architecture."""
