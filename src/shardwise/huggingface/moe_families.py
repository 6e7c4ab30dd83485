"""Families of decoders with experts on the Hugging Face hub, one record for each."""

from dataclasses import replace

from shardwise.huggingface.encoder_families import ENCODERS
from shardwise.huggingface.families import (
    DENSE,
    LATENT,
    LLAMA,
    OLMO2,
    QWEN3,
    Experts,
    Family,
    Names,
)

_MIXTRAL = Experts(number="num_local_experts", ffn="intermediate_size")
# Both names of one key: `num_local_experts` is what transformers 5 writes.
_EXPERTS: Names = {"num_experts": ("num_experts", "num_local_experts")}
_ROUTED: Names = {"num_experts": ("n_routed_experts", "num_local_experts")}
_DEEPSEEK = Experts(shared_number="n_shared_experts", groups=True, sparse="leading")
_DEEPSEEK_LATENT = replace(
    LATENT, names=_ROUTED, needed=("first_k_dense_replace",), mtp="num_nextn_predict_layers"
)
_QWEN_STEPS = Experts(sparse="steps")
_GRANITE_MOE = replace(LLAMA, experts=_MIXTRAL)
_SHARED = replace(_MIXTRAL, shared_ffn="shared_intermediate_size")
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
        names=_ROUTED,
        needed=("first_k_dense_replace",),
        experts=_DEEPSEEK,
    ),
    "DeepseekV2ForCausalLM": replace(
        _DEEPSEEK_LATENT, kinds=("deepseek_v2",), experts=replace(_DEEPSEEK, method="greedy")
    ),
    "DeepseekV3ForCausalLM": replace(
        _DEEPSEEK_LATENT,
        kinds=("deepseek_v3", "kimi_k2"),
        experts=replace(_DEEPSEEK, method="noaux_tc"),
    ),
    "Dots1ForCausalLM": replace(
        LLAMA,
        kinds=("dots1",),
        names=_ROUTED,
        qk_norm="head",
        window="turns",
        experts=replace(_DEEPSEEK, selection_bias=True),
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
        experts=replace(_DEEPSEEK, shared_number="num_shared_experts", selection_bias=True),
    ),
    "FlexOlmoForCausalLM": replace(OLMO2, kinds=("flex_olmo",), names=_EXPERTS, experts=_OLMOE),
    "Glm4MoeForCausalLM": Family(
        kinds=("glm4_moe", "glm4v_moe_text"),
        names=_ROUTED,
        needed=("n_shared_experts",),
        floors=True,
        qkv_bias="attention_bias",
        qk_norm="head",
        qk_normed="use_qk_norm",
        experts=replace(_DEEPSEEK, selection_bias=True),
        mtp="num_nextn_predict_layers",
    ),
    "Glm4MoeLiteForCausalLM": replace(
        _DEEPSEEK_LATENT,
        kinds=("glm4_moe_lite",),
        needed=(),
        experts=replace(_DEEPSEEK, method="noaux_tc"),
    ),
    "GptOssForCausalLM": replace(
        LLAMA,
        kinds=("gpt_oss",),
        sinks=True,
        window="turns",
        full_every=2,
        experts=replace(_MIXTRAL, bias=True, router_bias=True),
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
        experts=replace(_MIXTRAL, selection_bias=True),
    ),
    "MixtralForCausalLM": Family(kinds=("mixtral",), window="all", experts=_MIXTRAL),
    "OlmoeForCausalLM": replace(
        LLAMA, kinds=("olmoe",), names=_EXPERTS, qk_norm="width", experts=_OLMOE
    ),
    "PhimoeForCausalLM": replace(
        LLAMA,
        kinds=("phimoe",),
        window="all",
        norm="layernorm",
        head_bias="lm_head_bias",
        experts=_MIXTRAL,
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
        names=_ROUTED,
        experts=replace(_DEEPSEEK, sparse="all", selection_bias=True),
    ),
}
FAMILIES = DENSE | _WITH_EXPERTS | ENCODERS
"""The record of each architecture."""
