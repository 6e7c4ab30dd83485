"""More families: sparse or gated attention, residual streams, and decoders before Llama.

Sources: the configuration classes and modules of `transformers` 5.24, and published files (arXiv
2512.02556 for DeepSeek-V3.2).
"""

from dataclasses import replace

from shardwise.huggingface.families import (
    BERT,
    CAPS,
    DEEPSEEK,
    DEEPSEEK_LATENT,
    GEMMA,
    GPT2,
    GPT_NEOX,
    LLAMA,
    MIXTRAL,
    PRE_NORM,
    ROUTED,
    Experts,
    Family,
    Names,
)

_ALWAYS_BIASED = replace(DEEPSEEK, method="noaux_tc")
_NUMBER: Names = {"num_experts": ("n_routed_experts", "num_local_experts", "num_experts")}
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

MORE_FAMILIES: dict[str, Family] = {
    "AXK1ForCausalLM": replace(DEEPSEEK_LATENT, kinds=("axk1",), needed=(), experts=_ALWAYS_BIASED),
    "BeamForCausalLM": replace(
        LLAMA,
        kinds=("beam",),
        gate="value",
        qk_norm="head",
        norms="both",
        window="turns",
        left_out={"final_logit_softcapping": CAPS["final_logit_softcapping"]},
        experts=Experts(groups=True, selection_bias=True),
    ),
    "BitNetForCausalLM": replace(
        LLAMA, kinds=("bitnet",), gated=True, activation="relu2", inner_norms=True
    ),
    "CTRLLMHeadModel": replace(
        GPT2,
        kinds=("ctrl",),
        names={
            "hidden_size": ("n_embd", "hidden_size"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "intermediate_size": ("dff",),
        },
        activation="relu",
        position="sinusoidal",
        head_bias=True,
    ),
    "Cohere2MoeForCausalLM": Family(
        kinds=("cohere2_moe",),
        must=(("rms_norm_eps", None, "norms of another kind than the class has by default"),),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norm="layernorm",
        norm_bias=False,
        parallel=True,
        window="turns",
        full_every="sliding_window_pattern",
        unrotated="full",
        experts=Experts(ffn="intermediate_size", shared_number="num_shared_experts"),
    ),
    "DeciLMForCausalLM": replace(LLAMA, kinds=("nemotron-nas",), mlp_bias="mlp_bias"),
    "ErnieForCausalLM": replace(
        BERT,
        kinds=("ernie",),
        must=(*BERT.must, ("use_task_id", False, "an embedding of tasks is not modeled")),
    ),
    "ErnieForMaskedLM": replace(
        BERT,
        kinds=("ernie",),
        must=(*BERT.must, ("use_task_id", False, "an embedding of tasks is not modeled")),
    ),
    "GPTNeoXJapaneseForCausalLM": replace(
        GPT_NEOX,
        kinds=("gpt_neox_japanese",),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        ffn_ratio="intermediate_multiple_size",
        parallel=False,
        second_norm=False,
    ),
    "GitForCausalLM": replace(
        BERT,
        kinds=("git",),
        must=(),
        causal=True,
        head_transform=False,
        typed=False,
        more_left_out=("projection of images",),
    ),
    "OpenAIGPTLMHeadModel": replace(
        GPT2,
        kinds=("openai-gpt",),
        names=GPT2.names | {"hidden_act": ("afn",)},
        activation="gelu",
        norms="stream",
        final_norm=False,
    ),
    "Phi4MultimodalForCausalLM": Family(
        kinds=("phi4_multimodal",),
        window="all",
        more_left_out=("adapters of vision and speech inside the layers",),
    ),
    "RoFormerForCausalLM": replace(
        BERT,
        kinds=("roformer",),
        must=(
            ("embedding_size", "=hidden_size", "an embedding of another width is not modeled"),
            ("tie_word_embeddings", True, "an untied head is not modeled"),
        ),
        position="rope",
    ),
    "XLMRobertaXLForCausalLM": replace(PRE_NORM, kinds=("xlm-roberta-xl",), embedding_norm=False),
    "XLMRobertaXLForMaskedLM": replace(PRE_NORM, kinds=("xlm-roberta-xl",), embedding_norm=False),
    "XLMWithLMHeadModel": replace(
        BERT,
        kinds=("xlm",),
        names={
            "hidden_size": ("emb_dim", "hidden_size"),
            "num_hidden_layers": ("n_layers", "num_hidden_layers"),
            "num_attention_heads": ("n_heads", "num_attention_heads"),
            "vocab_size": ("n_words", "vocab_size"),
        },
        must=(
            ("n_langs", 1, "an embedding of languages is not modeled"),
            ("asm", False, "an adaptive softmax is not modeled"),
            ("gelu_activation", True, "must be true"),
            ("sinusoidal_embeddings", False, "positions are learned; must be false"),
        ),
        causal="causal",
        ffn_ratio=4,
        head_transform=False,
        typed=False,
    ),
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
        must=(("n_shared_experts", 1, "the class has one shared expert; must be 1"),),
        experts=Experts(
            number="num_experts",
            shared_ffn="moe_intermediate_size",
            selection_bias=True,
            words=("dense", "moe", "hash_moe"),
        ),
        mtp="num_nextn_predict_layers",
    ),
    "Dots3NoteForCausalLM": replace(
        _DSA, kinds=("dots3_note_text", "dots3_note"), gate="head", needed=()
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
}
