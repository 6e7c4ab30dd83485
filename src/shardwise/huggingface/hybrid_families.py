"""Families of 2024 to 2026 that mix tokens by more than attention.

Sources: the configuration classes and modules of `transformers` 5.24, and published files (arXiv
2504.03624 for Nemotron-H, 2510.26692 for Kimi Linear, 2501.08313 for MiniMax-01, 2403.19887 for
Jamba, 2507.22448 for Falcon-H1).
"""

from dataclasses import replace

from shardwise.huggingface.families import (
    DEEPSEEK,
    DEEPSEEK_LATENT,
    LLAMA,
    MIXTRAL,
    Experts,
    Family,
    Names,
)

_GATED = ("attn_output_gate", True, "must be true: the class has these gates always")
_QWEN = Family(
    must=(_GATED,),
    qk_norm="head",
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    gate="full",
)
_QWEN_EXPERTS = Experts(
    shared_ffn="shared_expert_intermediate_size", shared_gate=True, sparse="steps"
)
# Of Mamba-2: the names of Nemotron first, then those of Granite and Falcon.
_MAMBA: Names = {
    "mamba_num_heads": ("mamba_num_heads", "mamba_n_heads"),
    "mamba_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "ssm_state_size": ("ssm_state_size", "mamba_d_state"),
    "n_groups": ("n_groups", "mamba_n_groups"),
    "conv_kernel": ("conv_kernel", "mamba_d_conv"),
    "chunk_size": ("chunk_size", "mamba_chunk_size"),
    "use_conv_bias": ("use_conv_bias", "mamba_conv_bias"),
    "layer_types": ("layer_types", "layers_block_type"),
}
_KIMI: Names = {
    "n_group": ("n_group", "num_expert_group"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token"),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts"),
    "linear_num_heads": ("linear_attn_config.num_heads", "linear_num_heads"),
    "linear_head_dim": ("linear_attn_config.head_dim", "linear_head_dim"),
    "linear_conv_kernel_dim": (
        "linear_attn_config.short_conv_kernel_size",
        "linear_conv_kernel_dim",
    ),
    "use_full_rank_gate": ("linear_attn_config.use_full_rank_gate",),
}
_KIMI_EXPERTS = replace(
    DEEPSEEK, number="num_experts", method="", selection_bias=True, shared_number="n_shared_experts"
)
_LFM2 = Family(
    kinds=("lfm2",),
    names={
        "tie_word_embeddings": ("tie_word_embeddings", "tie_embedding"),
        "intermediate_size": ("intermediate_size", "block_ff_dim"),
    },
    qk_norm="head",
)
_MINIMAX = Family(
    kinds=("minimax", "minimax_text_01"),
    must=(("shared_intermediate_size", 0, "shared experts are not modeled for this family"),),
    experts=MIXTRAL,
)

HYBRID_FAMILIES: dict[str, Family] = {
    "BailingHybridForCausalLM": replace(
        DEEPSEEK_LATENT,
        kinds=("bailing_hybrid",),
        names=_KIMI,
        needed=(),
        gate="head",
        experts=_KIMI_EXPERTS,
        mtp="num_nextn_predict_layers",
    ),
    "BambaForCausalLM": replace(LLAMA, kinds=("bamba",), names=_MAMBA, mlp_bias="mlp_bias"),
    "FalconMambaForCausalLM": Family(kinds=("falcon_mamba",)),
    "FalconH1ForCausalLM": replace(
        LLAMA,
        kinds=("falcon_h1",),
        names=_MAMBA,
        must=(
            ("projectors_bias", False, "biases of projections are not modeled"),
            ("mamba_use_mlp", True, "must be true: the class has an MLP always"),
        ),
        mlp_bias="mlp_bias",
    ),
    "GraniteMoeHybridForCausalLM": replace(
        LLAMA,
        kinds=("granitemoehybrid",),
        names=_MAMBA,
        experts=replace(MIXTRAL, shared_ffn="shared_intermediate_size"),
    ),
    "JambaForCausalLM": Family(kinds=("jamba",)),
    "KimiLinearForCausalLM": replace(
        DEEPSEEK_LATENT,
        kinds=("kimi_linear",),
        names=_KIMI,
        needed=(),
        must=(("mla_use_nope", True, "must be true: latent attention has no positions"),),
        left_out={
            "attn_res_block_size": "attention over the outputs of earlier blocks",
            "latent_moe_use_norm": "norm of the latent width of experts",
        },
        experts=_KIMI_EXPERTS,
        mtp="num_nextn_predict_layers",
    ),
    "Lfm2ForCausalLM": _LFM2,
    "Lfm2MoeForCausalLM": replace(
        _LFM2,
        kinds=("lfm2_moe",),
        names=_LFM2.names | {"first_k_dense_replace": ("num_dense_layers",)},
        experts=Experts(selection_bias="use_expert_bias", sparse="leading"),
    ),
    "Lfm3ForCausalLM": replace(
        LLAMA, kinds=("lfm3",), qk_norm="head", post_norm="use_sandwich_norm"
    ),
    "Mamba2ForCausalLM": Family(kinds=("mamba2",)),
    "MambaForCausalLM": Family(kinds=("mamba",)),
    "MiniMaxForCausalLM": _MINIMAX,
    "MiniMaxM1ForCausalLM": replace(_MINIMAX, kinds=("minimax_m1",)),
    "MiniMaxText01ForCausalLM": replace(_MINIMAX, kinds=()),
    "NemotronHForCausalLM": replace(
        LLAMA,
        kinds=("nemotron_h",),
        names=_MAMBA
        | {
            "num_hidden_layers": ("num_hidden_layers",),
            "hidden_act": ("mlp_hidden_act",),
        },
        must=(("use_bias", False, "biases of all projections are not modeled"),),
        gated=False,
        activation="relu2",
        mlp_bias="mlp_bias",
    ),
    "OlmoHybridForCausalLM": replace(LLAMA, kinds=("olmo_hybrid",), qk_norm="width"),
    "Qwen3NextForCausalLM": replace(_QWEN, kinds=("qwen3_next",), experts=_QWEN_EXPERTS),
    "Qwen3_5ForCausalLM": replace(_QWEN, kinds=("qwen3_5_text",), mtp="mtp_num_hidden_layers"),
    "Qwen3_5MoeForCausalLM": replace(
        _QWEN,
        kinds=("qwen3_5_moe_text",),
        experts=_QWEN_EXPERTS,
        mtp="mtp_num_hidden_layers",
    ),
}
"""The record of each architecture."""
