"""Families of 2025 and 2026 with sparse or gated attention, residual streams and odd layers.

Sources: the configuration classes and modules of `transformers` 5.24, and published files (arXiv
2512.02556 for DeepSeek-V3.2).
"""

from dataclasses import replace

from shardwise.huggingface.families import (
    CAPS,
    DEEPSEEK,
    DEEPSEEK_LATENT,
    GEMMA,
    LLAMA,
    MIXTRAL,
    ROUTED,
    Experts,
    Family,
)

_ALWAYS_BIASED = replace(DEEPSEEK, method="noaux_tc")
_NUMBER = {"num_experts": ("n_routed_experts", "num_local_experts", "num_experts")}
_DSA = replace(DEEPSEEK_LATENT, names=_NUMBER, needed=("index_topk",), experts=_ALWAYS_BIASED)
_STEP = Family(
    kinds=("step3p5", "step3p7"),
    names={"num_experts": ("n_routed_experts", "num_experts")},
    qk_norm="head",
    window="turns",
    mlp_bias="mlp_bias",
    experts=Experts(shared_ffn="share_expert_dim", selection_bias=True, sparse="leading"),
    mtp="num_nextn_predict_layers",
)
_MINIMAX = Family(
    kinds=("minimax_m3_vl_text", "minimax_m3"),
    must=(
        ("attention_output_gate", False, "gates of the output are not modeled for this family"),
        ("use_qk_norm", True, "must be true: the class has these norms always"),
        ("sparse_attention_config.use_sparse_attention", True, "must be true"),
    ),
    qk_norm="head",
    left_out={"num_mtp_modules": "modules of multi-token prediction"},
    experts=replace(
        MIXTRAL, shared_ffn="shared_intermediate_size", selection_bias=True, sparse="listed"
    ),
)

SPARSE_FAMILIES: dict[str, Family] = {
    "AXK1ForCausalLM": replace(DEEPSEEK_LATENT, kinds=("axk1",), needed=(), experts=_ALWAYS_BIASED),
    "AfmoeForCausalLM": replace(
        LLAMA,
        kinds=("afmoe",),
        names={"first_k_dense_replace": ("num_dense_layers",)},
        gate="value",
        qk_norm="head",
        norms="both",
        window="turns",
        full_every="global_attn_every_n_layers",
        unrotated="full",
        experts=Experts(shared_number="num_shared_experts", selection_bias=True, sparse="leading"),
    ),
    "DeepseekV32ForCausalLM": replace(_DSA, kinds=("deepseek_v32",)),
    "DeepseekV4ForCausalLM": Family(
        kinds=("deepseek_v4",),
        names=ROUTED,
        experts=Experts(
            number="num_experts",
            shared_number="n_shared_experts",
            selection_bias=True,
            words=("dense", "moe", "hash_moe"),
        ),
        mtp="num_nextn_predict_layers",
    ),
    "Gemma4ForCausalLM": replace(
        GEMMA,
        kinds=("gemma4_text",),
        norms="both",
        qk_norm="head",
        window="turns",
        full_every=6,
        left_out=CAPS | {"use_bidirectional_attention": "attention in both directions of images"},
    ),
    "GlmMoeDsaForCausalLM": replace(_DSA, kinds=("glm_moe_dsa",)),
    "HYV4ForCausalLM": replace(_DSA, kinds=("hy_v4",), sinks=True, gate="value"),
    "LagunaForCausalLM": replace(
        LLAMA,
        kinds=("laguna",),
        gate="head",
        qk_norm="head",
        window="turns",
        experts=Experts(
            shared_ffn="shared_expert_intermediate_size", selection_bias=True, sparse="listed"
        ),
    ),
    "MiMoForCausalLM": Family(
        kinds=("mimo",), qkv_bias="attention_bias", window="qwen", mtp="num_nextn_predict_layers"
    ),
    "MiMoV2FlashForCausalLM": Family(
        kinds=("mimo_v2_flash",),
        names=ROUTED,
        qkv_bias="attention_bias",
        window="turns",
        experts=replace(
            DEEPSEEK, shared_number="n_shared_experts", selection_bias=True, sparse="listed"
        ),
    ),
    "MiniMaxM3ForCausalLM": _MINIMAX,
    "MiniMaxM3SparseForCausalLM": _MINIMAX,
    "MiniMaxM3VLForCausalLM": _MINIMAX,
    "Step3p7FlashForCausalLM": _STEP,
    "Step3p7ForCausalLM": _STEP,
}
