"""Families of models on the Hugging Face hub as data: one record for each.

A record names the keys of a family's config.json and what its class fixes; `decoders` reads files
by it. `is_decoder` makes decoders of BERT's kin; the head of encoders is that of `ForMaskedLM`, and
every word is predicted. Sources: the configuration classes and modules of `transformers` 5.23 and
of the published repositories, and the papers that the catalog names; of mixtures of experts arXiv
2401.04088 (Mixtral), 2401.06066, 2405.04434 and 2412.19437 (DeepSeek), 2407.10671 (Qwen2),
2505.09388 (Qwen3), 2508.06471 (GLM-4.5), 2508.10925 (gpt-oss), 2510.22115 (Ling 2.0).
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
    sparse: Literal["all", "leading", "steps", "indices", "listed"] = "all"
    """Layers with experts: all; those after `first_k_dense_replace`; each `decoder_sparse_step`-th;
    those between the indices of ERNIE; those that the list `moe_layer_freq` says, without it all
    but the first. `mlp_layer_types` says it instead where it is present."""
    words: tuple[str, ...] = ("dense", "sparse")
    """Those of `mlp_layer_types`; layers of the first have no experts."""


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
    gate: Literal["", "full", "value", "head"] = ""
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
    position: Literal["rope", "learned", "alibi", "sinusoidal", "relative-bias", "relative-xl"] = (
        "rope"
    )
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
    inner_norms: bool = False
    """Whether norms stand before the last product of attention and of the MLP (BitNet)."""
    more_left_out: tuple[str, ...] = ()
    """What is left out of every file."""


LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias")
CAPS = {
    "attn_logit_softcapping": "soft-capping of attention logits",
    "final_logit_softcapping": "soft-capping of output logits",
}
GEMMA = replace(
    LLAMA,
    names={"hidden_act": ("hidden_activation",)},
    activation="gelu_pytorch_tanh",
    left_out=CAPS,
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
GPT2 = Family(
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
    GPT2,
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
    GPT2,
    kinds=("gptj",),
    qkv_bias=False,
    out_bias=False,
    parallel=True,
    position="rope",
    head_bias=True,
)
GPT_NEOX = Family(
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
        GPT2,
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
    "GPT2LMHeadModel": GPT2,
    "GPTBigCodeForCausalLM": replace(
        GPT2, kinds=("gpt_bigcode",), activation="gelu_pytorch_tanh", single="multi_query"
    ),
    "GPTJForCausalLM": _GPTJ,
    "GPTNeoForCausalLM": _GPT_NEO,
    "GPTNeoXForCausalLM": GPT_NEOX,
    "Gemma2ForCausalLM": replace(
        GEMMA, kinds=("gemma2",), norms="both", window="turns", full_every=2
    ),
    "Gemma3ForCausalLM": replace(
        GEMMA,
        kinds=("gemma3_text",),
        norms="both",
        qk_norm="head",
        window="turns",
        full_every="sliding_window_pattern",
    ),
    "GemmaForCausalLM": replace(GEMMA, kinds=("gemma",), left_out={}),
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
        LLAMA, kinds=("llama", "exaone", "internlm3", "iquestcoder"), mlp_bias="mlp_bias"
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
        left_out=CAPS,
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
        GPT_NEOX,
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
        GPT_NEOX,
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
    "VaultGemmaForCausalLM": replace(GEMMA, kinds=("vaultgemma",), window="turns", full_every=2),
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


BERT = Family(
    kinds=("bert",),
    must=(
        ("position_embedding_type", "absolute", "relative positions are not modeled"),
        ("tie_word_embeddings", True, "an untied head, which has two biases, is not modeled"),
    ),
    grouped=False,
    causal="is_decoder",
    qkv_bias=True,
    out_bias=True,
    gated=False,
    activation="gelu",
    mlp_bias=True,
    norm="layernorm",
    norms="stream",
    final_norm=False,
    embedding_norm=True,
    position="learned",
    head_transform=True,
    head_bias=True,
    typed=True,
)
PRE_NORM = replace(BERT, norms="pre", final_norm=True)
_RECORDS = {
    "Bert": BERT,
    "BertGeneration": replace(BERT, kinds=("bert-generation",), head_transform=False, typed=False),
    "Camembert": replace(BERT, kinds=("camembert",)),
    "Data2VecText": replace(BERT, kinds=("data2vec-text",)),
    "MegatronBert": replace(PRE_NORM, kinds=("megatron-bert",), embedding_norm=False),
    "Roberta": replace(BERT, kinds=("roberta",)),
    "RobertaPreLayerNorm": replace(PRE_NORM, kinds=("roberta-prelayernorm",)),
    "XLMRoberta": replace(BERT, kinds=("xlm-roberta",)),
}
# Classes of a family: what a record is the same for.
_CLASSES = {
    "Bert": ("BertForMaskedLM", "BertLMHeadModel"),
    "BertGeneration": ("BertGenerationDecoder",),
}
_VIT = Family(
    kinds=("vit",),
    grouped=False,
    causal=False,
    qkv_bias="qkv_bias",
    out_bias=True,
    gated=False,
    activation="gelu",
    mlp_bias=True,
    norm="layernorm",
    position="sinusoidal",
    images=True,
)
ENCODERS: dict[str, Family] = {"ViTForImageClassification": _VIT, "ViTModel": _VIT} | {
    name: record
    for family, record in _RECORDS.items()
    for name in _CLASSES.get(family, (f"{family}ForMaskedLM", f"{family}ForCausalLM"))
}
"""The record of each class."""


MIXTRAL = Experts(number="num_local_experts", ffn="intermediate_size")
# Both names of one key: `num_local_experts` is what transformers 5 writes.
_EXPERTS: Names = {"num_experts": ("num_experts", "num_local_experts")}
ROUTED: Names = {"num_experts": ("n_routed_experts", "num_local_experts")}
DEEPSEEK = Experts(shared_number="n_shared_experts", groups=True, sparse="leading")
DEEPSEEK_LATENT = replace(
    LATENT, names=ROUTED, needed=("first_k_dense_replace",), mtp="num_nextn_predict_layers"
)
_QWEN_STEPS = Experts(sparse="steps")
_GRANITE_MOE = replace(LLAMA, experts=MIXTRAL)
_SHARED = replace(MIXTRAL, shared_ffn="shared_intermediate_size")
_OLMOE = Experts(ffn="intermediate_size")

_WITH_EXPERTS: dict[str, Family] = {
    "AriaTextForCausalLM": replace(
        LLAMA,
        kinds=("aria_text",),
        experts=Experts(
            number="moe_num_experts",
            ffn="intermediate_size",
            chosen="moe_topk",
            shared_number="moe_num_shared_experts",
        ),
    ),
    "BailingMoeV2ForCausalLM": Family(
        needed=("num_shared_experts", "use_qk_norm", "num_key_value_heads"),
        qkv_bias="use_qkv_bias|use_bias",
        out_bias="use_bias",
        qk_norm="head",
        qk_normed="use_qk_norm",
        experts=Experts(
            shared_number="num_shared_experts",
            selection_bias="moe_router_enable_expert_bias",
            groups=True,
            sparse="leading",
        ),
        mtp="num_nextn_predict_layers",
    ),
    "DbrxForCausalLM": Family(
        kinds=("dbrx",),
        names={
            "hidden_size": ("d_model", "hidden_size"),
            "num_hidden_layers": ("n_layers", "num_hidden_layers"),
            "num_attention_heads": ("n_heads", "num_attention_heads"),
            "num_key_value_heads": ("attn_config.kv_n_heads",),
            "hidden_act": ("ffn_config.ffn_act_fn.name",),
        },
        norm="layernorm",
        norm_bias=False,
        experts=Experts(
            number="ffn_config.moe_num_experts",
            ffn="ffn_config.ffn_hidden_size",
            chosen="ffn_config.moe_top_k",
        ),
    ),
    "DeepseekForCausalLM": replace(
        LLAMA,
        kinds=("deepseek",),
        names=ROUTED,
        needed=("first_k_dense_replace",),
        experts=DEEPSEEK,
    ),
    "DeepseekV2ForCausalLM": replace(
        DEEPSEEK_LATENT, kinds=("deepseek_v2",), experts=replace(DEEPSEEK, method="greedy")
    ),
    "DeepseekV3ForCausalLM": replace(
        DEEPSEEK_LATENT,
        kinds=("deepseek_v3", "kimi_k2", "sarvam_mla"),
        experts=replace(DEEPSEEK, method="noaux_tc"),
    ),
    "Dots1ForCausalLM": replace(
        LLAMA,
        kinds=("dots1",),
        names=ROUTED,
        qk_norm="head",
        window="turns",
        experts=replace(DEEPSEEK, selection_bias=True),
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        kinds=("ernie4_5_moe",),
        names={"num_experts": ("moe_num_experts",), "num_experts_per_tok": ("moe_k",)},
        experts=Experts(
            shared_number="moe_num_shared_experts", selection_bias=True, sparse="indices"
        ),
    ),
    "ExaoneMoeForCausalLM": Family(
        kinds=("exaone_moe",),
        qk_norm="head",
        window="turns",
        full_every="sliding_window_pattern",
        unrotated="full",
        experts=replace(DEEPSEEK, shared_number="num_shared_experts", selection_bias=True),
    ),
    "FlexOlmoForCausalLM": replace(OLMO2, kinds=("flex_olmo",), names=_EXPERTS, experts=_OLMOE),
    "Glm4MoeForCausalLM": Family(
        kinds=("glm4_moe", "glm4v_moe_text", "sarvam_moe"),
        names=ROUTED,
        needed=("n_shared_experts",),
        floors=True,
        qkv_bias="attention_bias",
        qk_norm="head",
        qk_normed="use_qk_norm",
        experts=replace(DEEPSEEK, selection_bias=True),
        mtp="num_nextn_predict_layers",
    ),
    "Glm4MoeLiteForCausalLM": replace(
        DEEPSEEK_LATENT,
        kinds=("glm4_moe_lite",),
        needed=(),
        experts=replace(DEEPSEEK, method="noaux_tc"),
    ),
    "GptOssForCausalLM": replace(
        LLAMA,
        kinds=("gpt_oss",),
        sinks=True,
        window="turns",
        full_every=2,
        experts=replace(MIXTRAL, bias=True, router_bias=True),
    ),
    "GraniteMoeForCausalLM": replace(_GRANITE_MOE, kinds=("granitemoe",)),
    "GraniteMoeSWAForCausalLM": replace(
        _GRANITE_MOE,
        kinds=("granitemoe_swa",),
        sinks=True,
        window="turns",
        full_every=4,
        full_last=False,
        experts=_SHARED,
    ),
    "GraniteMoeSharedForCausalLM": replace(
        _GRANITE_MOE, kinds=("granitemoeshared",), experts=_SHARED
    ),
    "HYV3ForCausalLM": replace(
        LLAMA,
        kinds=("hy_v3",),
        names=_EXPERTS,
        qk_norm="head",
        mlp_bias="mlp_bias",
        experts=Experts(shared_number="num_shared_experts", selection_bias=True, sparse="leading"),
    ),
    "HunYuanMoEV1ForCausalLM": replace(
        QWEN3,
        kinds=("hunyuan_v1_moe",),
        names=_EXPERTS | {"num_experts_per_tok": ("moe_topk", "num_experts_per_tok")},
        window="none",
        experts=Experts(ffn="intermediate_size", shared_ffn="intermediate_size"),
    ),
    "MellumForCausalLM": replace(
        LLAMA,
        kinds=("mellum",),
        names=_EXPERTS,
        qk_norm="head",
        window="turns",
        experts=Experts(sparse="leading"),
        mtp="num_nextn_predict_layers",
    ),
    "MiniMaxM2ForCausalLM": Family(
        kinds=("minimax_m2",),
        names={"num_local_experts": ("num_local_experts", "num_experts")},
        must=(("use_qk_norm", True, "must be true: the class has these norms always"),),
        qk_norm="width",
        left_out={"num_mtp_modules": "modules of multi-token prediction"},
        experts=replace(MIXTRAL, selection_bias=True),
    ),
    "MixtralForCausalLM": Family(kinds=("mixtral",), window="all", experts=MIXTRAL),
    "OlmoeForCausalLM": replace(
        LLAMA, kinds=("olmoe",), names=_EXPERTS, qk_norm="width", experts=_OLMOE
    ),
    "PhimoeForCausalLM": replace(
        LLAMA,
        kinds=("phimoe",),
        window="all",
        norm="layernorm",
        head_bias="lm_head_bias",
        experts=MIXTRAL,
    ),
    "Qwen2MoeForCausalLM": Family(
        kinds=("qwen2_moe",),
        names=_EXPERTS,
        qkv_bias="qkv_bias",
        window="qwen",
        experts=replace(
            _QWEN_STEPS, shared_ffn="shared_expert_intermediate_size", shared_gate=True
        ),
    ),
    "Qwen3MoeForCausalLM": replace(
        QWEN3, kinds=("qwen3_moe", "qwen3_vl_moe_text"), names=_EXPERTS, experts=_QWEN_STEPS
    ),
    "SolarOpenForCausalLM": replace(
        LLAMA,
        kinds=("solar_open",),
        names=ROUTED,
        experts=replace(DEEPSEEK, sparse="all", selection_bias=True),
    ),
}
FAMILIES = DENSE | _WITH_EXPERTS | ENCODERS
"""The record of each architecture."""
