"""Families with small parts that have no field of their own: scales, adapters, short convolutions.

Their parameters count, and `left_out` names what is not timed. Sources: the configuration classes
and modules of `transformers` 5.24.
"""

from dataclasses import replace

from shardwise.huggingface.families import (
    BERT,
    CAPS,
    DEEPSEEK,
    DEEPSEEK_LATENT,
    GEMMA,
    LLAMA,
    ROUTED,
    Experts,
    Family,
)
from shardwise.huggingface.more_families import MORE_FAMILIES

_UNTIED = ("tie_word_embeddings", False, "a tied head is not modeled for this family")
_HEAD = "layer and norm before the head: counted, not timed"

_BIG_BIRD = replace(BERT, kinds=("big_bird",), must=BERT.must[1:], qkv_bias="use_bias")
_ROC_BERT = replace(
    BERT, kinds=("roc_bert",), more_left_out=("tables of shapes and sounds: counted, not timed",)
)
_XMOD = replace(
    BERT,
    kinds=("xmod",),
    must=(
        ("adapter_layer_norm", False, "norms of adapters are not modeled"),
        ("pre_norm", False, "norms before the blocks are not modeled for this family"),
        BERT.must[1],
    ),
    more_left_out=("adapters of languages: counted with the embedding, not timed",),
)

_INKLING = Family(
    kinds=("inkling_text",),
    names={
        "num_experts": ("n_routed_experts",),
        "sliding_window": ("sliding_window", "sliding_window_size"),
        "conv_kernel_size": ("conv_kernel_size", "sconv_kernel_size"),
    },
    must=(_UNTIED,),
    qk_norm="head",
    window="turns",
    full_every=6,
    words=("hybrid", "hybrid_sliding"),
    embedding_norm=True,
    experts=Experts(shared_number="n_shared_experts", selection_bias=True),
    left_out={"num_mtp_layers": "modules of multi-token prediction"},
    more_left_out=("relative positions and short convolutions: counted, not timed",),
)

UNCOMMON_FAMILIES: dict[str, Family] = {
    "AXK2ForCausalLM": replace(
        DEEPSEEK_LATENT,
        kinds=("axk2",),
        names=ROUTED | {"num_experts": ("n_routed_experts", "num_local_experts")},
        needed=("index_topk",),
        experts=replace(DEEPSEEK, method="noaux_tc"),
        more_left_out=("gates of norms, and of outputs by compressed queries: counted, not timed",),
    ),
    "Apertus1p5TextForCausalLM": replace(
        LLAMA,
        kinds=("apertus1p5_text",),
        must=(("output_vocab_size", None, "a head of fewer words is not modeled"),),
        qk_norm="head",
        gated=False,
        activation="xielu",
    ),
    "BigBirdForCausalLM": _BIG_BIRD,
    "BigBirdForMaskedLM": _BIG_BIRD,
    "CohereCompassForCausalLM": replace(
        LLAMA,
        kinds=("cohere_compass_text",),
        parallel=True,
        norm="layernorm",
        norm_bias=False,
        window="turns",
    ),
    "CpmAntForCausalLM": Family(
        kinds=("cpmant",),
        names={"intermediate_size": ("dim_ff",), "head_dim": ("dim_head",)},
        grouped=False,
        activation="gelu",
        position="relative-bias",
        more_left_out=("tables of prompts and segments: counted, not timed",),
    ),
    "DiffLlamaForCausalLM": replace(
        LLAMA,
        kinds=("diffllama",),
        more_left_out=("differential attention: heads of values are twice as wide",),
    ),
    "DogeForCausalLM": replace(
        LLAMA,
        kinds=("doge",),
        must=(("is_moe", False, "retrieval of experts by product keys is not modeled"),),
        qk_norm="head",
        mlp_bias="mlp_bias",
        more_left_out=("dynamic masks of attention: all keys are counted",),
    ),
    "Gemma3nForCausalLM": replace(
        GEMMA,
        kinds=("gemma3n_text",),
        norms="both",
        qk_norm="head",
        window="turns",
        full_every=5,
        more_left_out=(
            "alternating residual streams and low-rank residuals: counted, not timed",
            "sparse activations: all channels are counted",
        ),
    ),
    "Gemma4UnifiedForCausalLM": replace(
        MORE_FAMILIES["Gemma4ForCausalLM"], kinds=("gemma4_unified_text",)
    ),
    "InklingForCausalLM": _INKLING,
    "Inkling2ForCausalLM": replace(
        _INKLING,
        kinds=("inkling2_text",),
        names=_INKLING.names | {"vocab_size": ("unpadded_vocab_size", "vocab_size")},
        qk_norm="unweighted",
        gate="value",
        left_out={"num_mtp_layers": "modules of multi-token prediction", **CAPS},
        experts=Experts(selection_bias=True),
    ),
    "LaraMiniForCausalLM": replace(
        LLAMA,
        kinds=("lara_mini",),
        qk_norm="head",
        experts=Experts(shared_ffn="shared_expert_intermediate_size"),
    ),
    "MllamaForCausalLM": Family(
        kinds=("mllama_text_model",),
        must=(_UNTIED,),
        more_left_out=("images: cross-attention to them is counted as attention to text",),
    ),
    "ModernBertDecoderForCausalLM": replace(
        LLAMA,
        kinds=("modernbert-decoder",),
        names={"hidden_act": ("hidden_activation",)},
        grouped=False,
        window="turns",
        full_every="global_attn_every_n_layers",
        full_last=False,
        activation="gelu",
        mlp_bias="mlp_bias",
        norm="layernorm",
        norm_bias="norm_bias",
        head_bias="decoder_bias",
        more_left_out=(_HEAD,),
    ),
    "MoshiForCausalLM": Family(
        kinds=("moshi",),
        names={"intermediate_size": ("ffn_dim",)},
        must=(_UNTIED,),
        window="all",
    ),
    "RoCBertForCausalLM": _ROC_BERT,
    "RoCBertForMaskedLM": _ROC_BERT,
    "XLNetLMHeadModel": Family(
        kinds=("xlnet",),
        names={
            "hidden_size": ("d_model", "hidden_size"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "intermediate_size": ("d_inner",),
            "head_dim": ("d_head",),
            "hidden_act": ("ff_activation",),
        },
        must=(("tie_word_embeddings", True, "an untied head is not modeled"),),
        grouped=False,
        gated=False,
        activation="gelu",
        mlp_bias=True,
        norm="layernorm",
        norms="stream",
        final_norm=False,
        position="relative-xl",
        head_bias=True,
        more_left_out=("second stream of permuted prediction", "memory of earlier segments"),
    ),
    "XmodForCausalLM": _XMOD,
    "XmodForMaskedLM": _XMOD,
    "ZayaForCausalLM": Family(
        kinds=("zaya",),
        qk_norm="unweighted",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        window="turns",
        words=("hybrid", "hybrid_sliding"),
        head_bias="lm_head_bias",
        experts=Experts(),
        more_left_out=(
            "convolutions in the attention, and the MLP of the router: counted, not timed",
            "experts that do nothing",
        ),
    ),
}
"""The record of each architecture."""
