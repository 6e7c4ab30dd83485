"""Families of models on the Hugging Face hub: what the keys of their config.json mean.

One reader for each class that `transformers` names in `architectures`. A reader returns fields of
our `Model`, with `layers` one by one; defaults are those of the class. Dense families are here,
those with experts in `huggingface_experts`. Sources: the configurations and modules of
`transformers`, and the papers that the catalog names.
"""

from collections.abc import Callable

from shardwise.interop.huggingface import experts
from shardwise.interop.huggingface.config import Config
from shardwise.interop.huggingface.layers import (
    GATED,
    PLAIN,
    Fields,
    attention_of,
    biases,
    decoder,
    gated_mlp,
    heads_divide,
    qwen3_attention,
    qwen_windows,
    sliding,
    with_windows,
)

__all__ = ["MODEL_TYPES", "READERS"]

# GPT-NeoX and the larger Falcons norm the input of attention and MLP apart; our parallel layers
# have one norm for both.
_SECOND_NORM = "the second norm of every layer, before its MLP"


def _llama(c: Config) -> Fields:
    block = gated_mlp(c, bias=True) if c.flag("mlp_bias") else gated_mlp(c)
    return decoder(c, attention_of(c) | biases(c), block)


def _mistral(c: Config) -> Fields:
    if not c.says("sliding_window"):  # the default of the class is a window
        c.needed("sliding_window")
    return decoder(c, sliding(c, attention_of(c, "num_key_value_heads")), gated_mlp(c))


def _phi3(c: Config) -> Fields:
    return decoder(c, sliding(c, attention_of(c)), gated_mlp(c))


def _qwen2(c: Config) -> Fields:
    attention = attention_of(c, "num_key_value_heads") | {"bias": "qkv"}
    return decoder(c, qwen_windows(c, attention), gated_mlp(c))


def _qwen3(c: Config) -> Fields:
    return decoder(c, qwen_windows(c, qwen3_attention(c)), gated_mlp(c))


def _gemma_mlp(c: Config) -> Fields:
    """`hidden_activation` holds; `hidden_act` of older files is read by nothing."""
    activation = c.one_of("hidden_activation", GATED, "gelu_pytorch_tanh")
    return {"ffn": c.count("intermediate_size"), "activation": activation}


def _gemma_attention(c: Config) -> Fields:
    return attention_of(c, "num_key_value_heads", "head_dim") | biases(c)


def _gemma(c: Config) -> Fields:
    return decoder(c, _gemma_attention(c), _gemma_mlp(c), tied=True)


def _between_norms(c: Config, attention: list[Fields]) -> Fields:
    """Gemma 2 and 3: norms on both sides of each block; caps on logits are left out."""
    capped = {"attention": "attn_logit_softcapping", "output": "final_logit_softcapping"}
    left_out = [f"soft-capping of {part} logits" for part, key in capped.items() if c.value(key)]
    layer = {"norms": "both"}
    return decoder(c, attention, _gemma_mlp(c), tied=True, layer=layer, left_out=left_out)


def _gemma2(c: Config) -> Fields:
    return _between_norms(c, with_windows(c, _gemma_attention(c), lambda i: i % 2 == 0))


def _gemma3(c: Config) -> Fields:
    attention = _gemma_attention(c) | {"qk_norm": "head"}
    step = c.count("sliding_window_pattern", 6)
    return _between_norms(c, with_windows(c, attention, lambda i: (i + 1) % step != 0))


def _olmo2(c: Config) -> Fields:
    attention = attention_of(c) | biases(c) | {"qk_norm": "width"}
    return decoder(c, attention, gated_mlp(c), layer={"norms": "post"})


def _olmo3(c: Config) -> Fields:
    attention = attention_of(c) | biases(c) | {"qk_norm": "width"}
    windows = with_windows(c, attention, lambda i: (i + 1) % 4 != 0)
    return decoder(c, windows, gated_mlp(c), layer={"norms": "post"})


def _cohere(c: Config) -> Fields:
    return decoder(
        c,
        attention_of(c) | biases(c),
        gated_mlp(c),
        tied=True,
        layer={"parallel": True},
        norm="layernorm",
        norm_bias=False,
    )


def _ungated(c: Config, ffn: int, key: str, default: str, *, bias: bool = True) -> Fields:
    block = {"ffn": ffn, "activation": c.one_of(key, PLAIN, default)}
    return block | {"bias": True} if bias else block


def _starcoder2(c: Config) -> Fields:
    attention = attention_of(c, "num_key_value_heads") | biases(c, "use_bias", default=True)
    ffn, bias = c.count("intermediate_size"), c.flag("use_bias", default=True)
    block = _ungated(c, ffn, "hidden_act", "gelu_pytorch_tanh", bias=bias)
    return decoder(c, sliding(c, attention), block, tied=True, norm="layernorm")


def _gpt_neox(c: Config) -> Fields:
    attention = attention_of(c) | biases(c, default=True)
    turned = c.share("rotary_pct", c.share("partial_rotary_factor", 0.25))
    attention["rotary_dim"] = int(attention["head_dim"] * turned)
    block = _ungated(c, c.count("intermediate_size"), "hidden_act", "gelu")
    parallel = c.flag("use_parallel_residual", default=True)
    left_out = [_SECOND_NORM] if parallel else []
    layer = {"parallel": parallel}
    return decoder(c, attention, block, layer=layer, norm="layernorm", left_out=left_out)


def _falcon(c: Config) -> Fields:
    heads, newer = c.count("num_attention_heads"), c.flag("new_decoder_architecture")
    grouped, one = c.count("num_kv_heads", heads), c.flag("multi_query", default=True)
    attention = {
        "heads": heads,
        "kv_heads": grouped if newer else 1 if one else heads,
        "head_dim": heads_divide(c, "num_attention_heads", "hidden_size"),
    } | biases(c, "bias")
    parallel = c.flag("parallel_attn", default=True) or newer
    norms = c.count("num_ln_in_parallel_attn", 2) if newer else 1
    ffn = c.count("ffn_hidden_size", 4 * c.count("hidden_size"))
    return decoder(
        c,
        attention,
        _ungated(c, ffn, "activation", "gelu", bias=c.flag("bias")),
        tied=True,
        layer={"parallel": parallel},
        norm="layernorm",
        position="alibi" if c.flag("alibi") else "rope",
        left_out=[_SECOND_NORM] if parallel and norms > 1 else [],
    )


def _gpt2(c: Config) -> Fields:
    hidden, heads = c.count("n_embd"), c.count("n_head")
    head_dim = heads_divide(c, "n_head", "n_embd")
    attention = {"heads": heads, "kv_heads": heads, "head_dim": head_dim, "bias": "all"}
    block = _ungated(c, c.count("n_inner", 4 * hidden), "activation_function", "gelu_new")
    return {
        "hidden": hidden,
        "vocab": c.count("vocab_size"),
        "layers": [{"attention": attention, "mlp": block}] * c.depth("n_layer"),
        "norm": "layernorm",
        "position": "learned",
        "max_positions": c.count("n_positions"),
        "tied_embeddings": c.flag("tie_word_embeddings", default=True),
        "dropout": c.drops(),
    }


READERS: dict[str, Callable[[Config], Fields]] = {
    "BailingMoeV2ForCausalLM": experts.bailing_moe_v2,
    "CohereForCausalLM": _cohere,
    "DeepseekForCausalLM": experts.deepseek,
    "DeepseekV2ForCausalLM": experts.deepseek_v2,
    "DeepseekV3ForCausalLM": experts.deepseek_v3,
    "FalconForCausalLM": _falcon,
    "GPT2LMHeadModel": _gpt2,
    "GPTNeoXForCausalLM": _gpt_neox,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "GemmaForCausalLM": _gemma,
    "Glm4MoeForCausalLM": experts.glm4_moe,
    "GptOssForCausalLM": experts.gpt_oss,
    "Llama4ForCausalLM": experts.llama4,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": experts.mixtral,
    "Olmo2ForCausalLM": _olmo2,
    "Olmo3ForCausalLM": _olmo3,
    "Phi3ForCausalLM": _phi3,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen2MoeForCausalLM": experts.qwen2_moe,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": experts.qwen3_moe,
    "Starcoder2ForCausalLM": _starcoder2,
}
"""How the config.json of each architecture is read."""

MODEL_TYPES = {
    "cohere": "CohereForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}
"""The architecture of files that do not name one, as those of language models inside others."""
