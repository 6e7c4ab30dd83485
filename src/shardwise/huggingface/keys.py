"""Keys of Hugging Face's config.json: which matter, which have no effect here, what classes assume.

Sources: the configuration classes of `transformers`, and keys of published files.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_MATTERS: dict[str, tuple[str, ...]] = {
    "cross-attention": ("add_cross_attention", "cross_attention_layers"),
    "sinks of attention": ("add_full_attention_sink_bias", "add_swa_attention_sink_bias"),
    "ALiBi positions": ("alibi",),
    "biases of the attention": ("attention_bias", "qkv_bias", "use_qkv_bias"),
    "attention in chunks": ("attention_chunk_size",),
    "biases": ("bias", "use_bias"),
    "embeddings of every layer": ("hidden_size_per_layer_input",),
    "hybrid layers": ("hybrid_override_pattern",),
    "sparse attention": ("index_n_heads", "index_topk"),
    "an encoder next to the decoder": ("is_encoder_decoder",),
    "latent attention": ("kv_lora_rank", "q_lora_rank"),
    "kinds of layers": ("layer_types",),
    "linear attention": ("linear_attn_config", "linear_num_value_heads"),
    "Mamba layers": ("mamba_d_state", "mamba_num_heads", "ssm_cfg", "ssm_state_size"),
    "biases of the MLP": ("mlp_bias",),
    "experts": ("moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts"),
    "shared experts": ("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size"),
    "layers that share keys and values": ("num_kv_shared_layers",),
    "multi-token prediction": ("num_mtp_modules", "num_nextn_predict_layers"),
    "attention and MLP side by side": ("parallel_attn", "use_parallel_residual"),
    "norms of queries and keys": ("qk_layernorm", "use_qk_norm"),
    "kinds of MLPs": ("mlp_layer_types",),
    "sliding windows": ("sliding_window",),
    "attention in both directions": ("use_bidirectional_attention",),
    "an embedding of another width": ("word_embed_proj_dim",),
}
MATTERS = {key: what for what, keys in _MATTERS.items() for key in keys}
"""What changes the architecture, by the key that says so. Where a family does not read such a key,
it must have a value that stands for nothing."""
EXPERTS = frozenset({"moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts"})
"""How many experts there are, each in some family; one is none."""
OF_EXPERTS = frozenset(
    {
        *("decoder_sparse_step", "experts_per_token", "first_k_dense_replace"),
        *("moe_intermediate_size", "moe_layer_freq", "n_group", "num_experts_per_tok"),
        *("num_experts_per_token", "topk_group"),
    }
)
"""Other keys of experts; a file that has one describes a mixture of experts."""

_WITHOUT_EFFECT = frozenset(
    {
        # what the file is, and by what it was written
        *("architectures", "auto_map", "dtype", "for_llm_compression", "model_type"),
        *("name_or_path", "torch_dtype", "transformers_version"),
        # language models next to vision or audio towers, and the towers, which `left_out` names
        *("audio_config", "mm_tokens_per_image", "text_config", "vision_config"),
        # words, labels, heads of other tasks, generation
        *("cache_implementation", "cross_attention_hidden_size", "finetuning_task", "id2label"),
        *("is_decoder", "label2id", "num_labels", "output_attentions", "output_hidden_states"),
        *("predict_special_tokens", "problem_type", "return_dict", "tie_encoder_decoder"),
        *("use_cache", "use_return_dict"),
        # start and numerics
        *("attention_softmax_in_fp32", "attn_implementation", "chunk_size_feed_forward"),
        *("embedding_multiplier", "initializer_range", "layer_norm_eps", "layer_norm_epsilon"),
        *("layer_norm_rms_epsilon", "logit_scale", "norm_epsilon", "norm_eps", "norm_type"),
        *("pretraining_tp", "quantization_config", "query_pre_attn_scalar", "rms_norm_eps"),
        *("scale_attn_by_inverse_layer_idx", "scale_attn_weights", "swiglu_limit", "torchscript"),
        *("use_bfloat16", "use_rmsnorm"),
        # positions: their scaling and base, and how long sequences may be
        *(
            "attention_types",
            "attn_temperature_tuning",
            "attn_scale",
            "floor_scale",
            "initial_context_length",
        ),
        *("max_position_embeddings", "max_sequence_length", "n_ctx"),
        *("original_max_position_embeddings", "rope_interleave", "rope_local_base_freq"),
        *("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "use_mrope"),
        # windows that no layer uses
        *("max_window_layers", "use_sliding_window"),
        # how a router scores and balances, and coefficients of losses
        *("aux_loss_alpha", "ep_size", "norm_topk_prob", "output_router_logits"),
        *("routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise"),
        *("router_z_loss_coef", "score_function", "scoring_func", "seq_aux"),
        # said twice, or of layers that are not there
        *("activation_function", "head_dim", "hidden_act", "intermediate_size"),
        *("intermediate_size_mlp", "mlp_type", "n_inner", "num_key_value_heads", "qk_head_dim"),
    }
)
# Token ids of every kind; switches of summaries and classifiers; what a program left for itself.
_ENDS = ("_token_id", "_token_ids", "_token_index")
_STARTS = ("_", "classifier_", "summary_")

PLAIN = {
    "gelu": "gelu",
    "gelu_fast": "gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
}
"""Activations by the words of `hidden_act`."""
GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "situ": "swiglu",
    "swigluoai": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
    "relu": "reglu",
    "relu2": "reglu",
}
"""And where a second projection multiplies them."""

ROTARY_NAMES = {
    "partial_rotary_factor": ("partial_rotary_factor", "rope_parameters.partial_rotary_factor")
}
"""Newer files keep what is said of positions inside `rope_parameters`."""
SIZES = frozenset(
    {
        *("d_model", "ffn_dim", "hidden_size", "intermediate_size", "moe_intermediate_size"),
        *("moe_num_experts", "n_embd", "n_head", "n_heads", "n_layer", "n_layers", "n_positions"),
        *("n_routed_experts", "num_attention_heads", "num_experts", "num_hidden_layers"),
        *("attention_heads", "num_layers", "num_local_experts", "vocab_size"),
    }
)
"""What the file of a language model alone must say: no default stands for a size. (Of models inside
others, published files leave out any of these.)"""


@cache
def class_defaults(kind: str) -> Mapping[str, Any]:
    """What the configuration class of a `model_type` fills in, where that is not nothing.

    Read from `transformers` 5.23 by `scripts/huggingface_families.py`.
    """
    text = files(__package__).joinpath("class_defaults.json").read_text(encoding="utf-8")
    defaults: Mapping[str, Any] = json.loads(text).get(kind, {})
    return defaults


TEXT_TYPES = {
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Gemma3nForConditionalGeneration": "gemma3n_text",
    "Gemma4AssistantForCausalLM": "gemma4_text",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Gemma4UnifiedAssistantForCausalLM": "gemma4_unified_text",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_vl_text",
    "LlavaForConditionalGeneration": "llama",
    "Qwen2VLForConditionalGeneration": "qwen2_vl_text",
}
"""The `model_type` of language models that do not name theirs, by what they are inside."""

WRAPPERS = {
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3n": "Gemma3nForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_assistant": "Gemma4AssistantForCausalLM",
    "gemma4_unified_assistant": "Gemma4UnifiedAssistantForCausalLM",
    "kimi_vl": "KimiVLForConditionalGeneration",
    "llama4": "Llama4ForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "llava_next": "LlavaNextForConditionalGeneration",
    "minimax_m3_vl": "MiniMaxM3SparseForConditionalGeneration",
    "mistral3": "Mistral3ForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
}
"""Models that put a tower in front of a language model and change nothing inside it."""


OUTER = ("backbone_hidden_size", "num_centroids", "tie_word_embeddings", "use_ordered_embeddings")
"""Keys of such a model that hold for the language model inside it."""


def is_without_effect(key: str) -> bool:
    """Whether a key is known to change nothing that is modeled, where no family reads it."""
    return key in _WITHOUT_EFFECT or key.endswith(_ENDS) or key.startswith(_STARTS)
