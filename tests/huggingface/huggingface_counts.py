"""Parameters of published checkpoints, counted from the shapes of their tensors.

A second opinion on `count_parameters`: written from the modules of each architecture, in the words
of its config.json, with nothing of the package. `trained` tensors only: no rotary tables, no
modules of multi-token prediction.
"""

from math import ceil

__all__ = [
    "block_scales",
    "clip_with_projector",
    "language_model",
    "siglip_with_projector",
    "vision_of_llama4",
]

# Llama 7B, which LLaVA's files leave out.
LLAMA_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
}


def language_model(config):
    """All parameters of the language model."""
    is_llava = config["model_type"] == "llava"
    config = (LLAMA_7B if is_llava else {}) | config.get("text_config", config)
    return COUNTS[config["model_type"]](config)


def _swiglu(hidden, ffn):
    return 3 * hidden * ffn


def _grouped(c, *, head_dim=None):
    """Weights of query, key, value and output."""
    d = head_dim or c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    heads, kv = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    return c["hidden_size"] * d * (heads + kv + kv + heads), heads * d, kv * d, d


def _ends(c, *, tied, norm=1):
    """Embedding, head, and the norm between."""
    return c["vocab_size"] * c["hidden_size"] * (1 if tied else 2) + norm * c["hidden_size"]


def _llama(c):
    weights, *_ = _grouped(c)
    layer = weights + _swiglu(c["hidden_size"], c["intermediate_size"]) + 2 * c["hidden_size"]
    return c["num_hidden_layers"] * layer + _ends(c, tied=c.get("tie_word_embeddings", False))


def _mixtral(c):
    h, experts = c["hidden_size"], c["num_local_experts"]
    moe = experts * _swiglu(h, c["intermediate_size"]) + experts * h
    return c["num_hidden_layers"] * (_grouped(c)[0] + moe + 2 * h) + _ends(c, tied=False)


def _qwen2(c):
    _, query, key, _ = _grouped(c)
    biases = c["num_hidden_layers"] * (query + 2 * key)
    return _llama(c) + biases


def _qwen2_moe(c):
    h, experts = c["hidden_size"], c["num_experts"]
    weights, query, key, _ = _grouped(c)
    moe = experts * (_swiglu(h, c["moe_intermediate_size"]) + h)
    shared = _swiglu(h, c["shared_expert_intermediate_size"]) + h  # and its gate
    layer = weights + query + 2 * key + moe + shared + 2 * h
    return c["num_hidden_layers"] * layer + _ends(c, tied=False)


def _qwen3(c):
    return _llama(c) + c["num_hidden_layers"] * 2 * c["head_dim"]


def _qwen3_moe(c):
    h = c["hidden_size"]
    weights, _, _, d = _grouped(c)
    moe = c["num_experts"] * (_swiglu(h, c["moe_intermediate_size"]) + h)
    return c["num_hidden_layers"] * (weights + 2 * d + moe + 2 * h) + _ends(c, tied=False)


def _deepseek(c):
    """Plain attention, with fine-grained and shared experts."""
    h, dense = c["hidden_size"], c["first_k_dense_replace"]
    routed = c["n_routed_experts"] * (_swiglu(h, c["moe_intermediate_size"]) + h)
    shared = _swiglu(h, c["n_shared_experts"] * c["moe_intermediate_size"])
    layers = c["num_hidden_layers"] * (_grouped(c)[0] + 2 * h)
    layers += dense * _swiglu(h, c["intermediate_size"])
    layers += (c["num_hidden_layers"] - dense) * (routed + shared)
    return layers + _ends(c, tied=False)


def _deepseek_latent(c):
    h, heads, dense = c["hidden_size"], c["num_attention_heads"], c["first_k_dense_replace"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    q_rank, kv_rank = c["q_lora_rank"], c["kv_lora_rank"]
    query = heads * (nope + rope)
    q = h * query if q_rank is None else h * q_rank + q_rank + q_rank * query
    kv = h * (kv_rank + rope) + kv_rank + kv_rank * heads * (nope + value)
    attention = q + kv + heads * value * h
    routed = c["n_routed_experts"] * (_swiglu(h, c["moe_intermediate_size"]) + h)
    if c["topk_method"] == "noaux_tc":
        routed += c["n_routed_experts"]  # bias of the selection
    shared = _swiglu(h, c["n_shared_experts"] * c["moe_intermediate_size"])
    layers = c["num_hidden_layers"] * (attention + 2 * h)
    layers += dense * _swiglu(h, c["intermediate_size"])
    layers += (c["num_hidden_layers"] - dense) * (routed + shared)
    return layers + _ends(c, tied=False)


def _glm4_moe(c):
    weights, query, key, d = _grouped(c)
    attention = weights + query + 2 * key + (2 * d if c["use_qk_norm"] else 0)
    sparse = c["num_hidden_layers"] - c["first_k_dense_replace"]
    plain = c["num_hidden_layers"] * (attention - weights)
    return _deepseek(c) + plain + sparse * c["n_routed_experts"]


def _bailing_moe(c):
    h, dense = c["hidden_size"], c["first_k_dense_replace"]
    weights, _, _, d = _grouped(c)
    moe = c["num_experts"] * (_swiglu(h, c["moe_intermediate_size"]) + h + 1)
    moe += _swiglu(h, c["num_shared_experts"] * c["moe_intermediate_size"])
    layers = c["num_hidden_layers"] * (weights + 2 * d + 2 * h)
    layers += dense * _swiglu(h, c["intermediate_size"]) + (c["num_hidden_layers"] - dense) * moe
    return layers + _ends(c, tied=False)


def _llama4(c):
    h, depth = c["hidden_size"], c["num_hidden_layers"]
    expert = _swiglu(h, c["intermediate_size"])
    sparse = depth // c["interleave_moe_layer_step"]
    layers = depth * (_grouped(c)[0] + 2 * h)
    layers += sparse * (c["num_local_experts"] * (expert + h) + expert)
    layers += (depth - sparse) * _swiglu(h, c["intermediate_size_mlp"])
    return layers + _ends(c, tied=False)


def _gemma(c):
    return _llama(c | {"tie_word_embeddings": True})


def _gemma2(c):
    return _gemma(c) + c["num_hidden_layers"] * 2 * c["hidden_size"]


def _gemma3(c):
    c = {"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, **c}
    c = {"head_dim": 256, **c}
    return _gemma2(c) + c["num_hidden_layers"] * 2 * c["head_dim"]


def _gpt_oss(c):
    h, ffn, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    weights, query, key, _ = _grouped(c)
    attention = weights + query + 2 * key + h + c["num_attention_heads"]  # biases, sinks
    expert = h * 2 * ffn + 2 * ffn + ffn * h + h
    moe = experts * expert + experts * h + experts
    return c["num_hidden_layers"] * (attention + moe + 2 * h) + _ends(c, tied=False)


def _olmo2(c):
    _, query, key, _ = _grouped(c)
    return _llama(c) + c["num_hidden_layers"] * (query + key)


def _gpt2(c):
    h = c["n_embd"]
    layer = h * 3 * h + 3 * h + h * h + h + 2 * (h * 4 * h) + 4 * h + h + 4 * h
    return c["n_layer"] * layer + (c["vocab_size"] + c["n_positions"]) * h + 2 * h


def _gpt_neox(c):
    h, ffn = c["hidden_size"], c["intermediate_size"]
    layer = 4 * h * h + 4 * h + 2 * h * ffn + ffn + h + 4 * h
    return c["num_hidden_layers"] * layer + 2 * c["vocab_size"] * h + 2 * h


def _falcon(c):
    h = c["hidden_size"]
    d = h // c["num_attention_heads"]
    layer = h * (h + 2 * d) + h * h + 2 * (h * 4 * h) + 2 * h
    return c["num_hidden_layers"] * layer + c["vocab_size"] * h + 2 * h


def _starcoder2(c):
    h, ffn = c["hidden_size"], c["intermediate_size"]
    weights, query, key, _ = _grouped(c)
    layer = weights + query + 2 * key + h + 2 * h * ffn + ffn + h + 4 * h
    return c["num_hidden_layers"] * layer + c["vocab_size"] * h + 2 * h


def _cohere(c):
    h = c["hidden_size"]
    layer = _grouped(c)[0] + _swiglu(h, c["intermediate_size"]) + h
    return c["num_hidden_layers"] * layer + c["vocab_size"] * h + h


COUNTS = {
    "bailing_moe": _bailing_moe,
    "cohere": _cohere,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_latent,
    "deepseek_v3": _deepseek_latent,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _deepseek_latent,
    "llama": _llama,
    "llama4_text": _llama4,
    "mistral": _llama,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "phi3": _llama,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "starcoder2": _starcoder2,
}


def _tower(v, *, embedded, norms):
    """A vision tower with so many positions in addition to patches, and norms around the layers."""
    w, f = v["hidden_size"], v["intermediate_size"]
    patches = (v["image_size"] // v["patch_size"]) ** 2 + embedded
    layer = 4 * (w * w + w) + (w * f + f) + (f * w + w) + 4 * w
    around = 3 * v["patch_size"] ** 2 * w + w + patches * w + 2 * norms * w
    return v["num_hidden_layers"] * layer + around


def vision_of_llama4(config):
    """Its tower, the adapter behind it, and the projection to the language model."""
    v, h = config["vision_config"], config["text_config"]["hidden_size"]
    wide, out = v["projector_input_dim"], v["projector_output_dim"]
    adapter = v["intermediate_size"] * wide + wide * out
    return _tower(v, embedded=1, norms=2) + adapter + v["vision_output_dim"] * h


def siglip_with_projector(config):
    """The tower of Gemma 3 and the projection behind it."""
    v, h = config["vision_config"], config["text_config"]["hidden_size"]
    w = v["hidden_size"]
    return _tower(v, embedded=0, norms=1) + w * h + w


def clip_with_projector(config):
    """The tower of LLaVA and the two layers behind it."""
    v, h = config["vision_config"], LLAMA_7B["hidden_size"]
    return _tower(v, embedded=1, norms=2) + v["hidden_size"] * h + h + h * h + h


def block_scales(c, *, modules):
    """Scales that an 8-bit checkpoint of DeepSeek V3 stores, one for each block of 128 x 128.

    Those of the layers and of so many modules of prediction; routers, norms and tables have none.
    """

    def scales(out, into):
        return ceil(out / 128) * ceil(into / 128)

    def gated(ffn):
        return 2 * scales(ffn, h) + scales(h, ffn)

    h, heads, dense = c["hidden_size"], c["num_attention_heads"], c["first_k_dense_replace"]
    query = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    expanded = heads * (c["qk_nope_head_dim"] + c["v_head_dim"])
    attention = scales(c["q_lora_rank"], h) + scales(query, c["q_lora_rank"])
    attention += scales(c["kv_lora_rank"] + c["qk_rope_head_dim"], h)
    attention += scales(expanded, c["kv_lora_rank"]) + scales(h, heads * c["v_head_dim"])
    expert = gated(c["moe_intermediate_size"])
    sparse = (c["n_routed_experts"] + c["n_shared_experts"]) * expert
    layers = c["num_hidden_layers"] + modules
    dense_layers = dense * gated(c["intermediate_size"])
    return layers * attention + dense_layers + (layers - dense) * sparse
