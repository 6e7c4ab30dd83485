"""Families of models on the Hugging Face hub: what the keys of their config.json mean.

One reader for each class that `transformers` names in `architectures`. A reader returns fields of
our `Model`, with `layers` one by one; defaults are those of the class.

Sources: the configurations and modules of `transformers` and of the published repositories, and the
papers that the catalog names; of mixtures of experts arXiv 2401.04088 (Mixtral), 2401.06066,
2405.04434 and 2412.19437 (DeepSeek), 2407.10671 (Qwen2), 2505.09388 (Qwen3), 2508.06471 (GLM-4.5),
2508.10925 (gpt-oss), 2510.22115 (Ling 2.0).
"""

from collections.abc import Callable
from typing import Any

from shardwise.interop.huggingface.files import Config
from shardwise.interop.huggingface.layers import (
    GATED,
    PLAIN,
    Fields,
    attention_of,
    biases,
    decoder,
    experts_of,
    gated_mlp,
    heads_divide,
    qwen3_attention,
    qwen_windows,
    sliding,
    windowed,
    with_windows,
)

# GPT-NeoX and the larger Falcons norm the input of attention and MLP apart; our parallel layers
# have one norm for both.
_SECOND_NORM = "the second norm of every layer, before its MLP"


def _llama(c: Config) -> Fields:
    block = gated_mlp(c, bias=True) if c.flag("mlp_bias") else gated_mlp(c)
    return decoder(c, attention_of(c) | biases(c), block)


def _mistral(c: Config) -> Fields:
    if not c.has("sliding_window"):  # the default of the class is a window
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
        "dropout": c.has_dropout(),
    }


def _mixtral(c: Config) -> Fields:
    """Experts in every layer."""
    attention = sliding(c, attention_of(c, "num_key_value_heads"))
    return decoder(c, attention, experts_of(c, "num_local_experts", "intermediate_size"))


def _either(c: Config, sparse: list[bool], experts: Fields, key: str = "") -> list[Fields]:
    """Experts or an MLP in every layer; the width of the MLP is read where there is one."""
    mlp = experts if all(sparse) else gated_mlp(c, key or "intermediate_size")
    return [experts if is_sparse else mlp for is_sparse in sparse]


def _qwen_blocks(c: Config, **shared: Any) -> list[Fields]:
    """Every `decoder_sparse_step`-th layer has experts, but for those in `mlp_only_layers`."""
    depth, step = c.depth("num_hidden_layers"), c.count("decoder_sparse_step", 1)
    dense = c.layers("mlp_only_layers", depth)
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(depth)]
    return _either(c, sparse, experts_of(c, "num_experts", "moe_intermediate_size", **shared))


def _qwen2_moe(c: Config) -> Fields:
    """Shared experts behind a gate of their own."""
    bias = {"bias": "qkv"} if c.flag("qkv_bias", default=True) else {}
    shared = c.count("shared_expert_intermediate_size")
    blocks = _qwen_blocks(c, shared_ffn=shared, shared_gate=True)
    return decoder(c, qwen_windows(c, attention_of(c, "num_key_value_heads") | bias), blocks)


def _qwen3_moe(c: Config) -> Fields:
    """No shared experts."""
    return decoder(c, qwen_windows(c, qwen3_attention(c)), _qwen_blocks(c))


def _leading_dense(c: Config, experts: Fields) -> list[Fields]:
    """The first `first_k_dense_replace` layers are dense; of the others every n-th has experts."""
    depth, step = c.depth("num_hidden_layers"), c.count("moe_layer_freq", 1)
    c.needed("first_k_dense_replace")
    first = c.natural("first_k_dense_replace")
    if first > depth and not c.faults:
        problem = f"must be at most num_hidden_layers {depth}"
        c.wrong("first_k_dense_replace", problem, first)
    return _either(c, [i >= first and i % step == 0 for i in range(depth)], experts)


def _deepseek_experts(c: Config, **more: Any) -> Fields:
    """Routed and shared experts of one width."""
    shared = c.natural("n_shared_experts") * c.count("moe_intermediate_size")
    more |= _groups(c, "n_routed_experts")
    return experts_of(c, "n_routed_experts", "moe_intermediate_size", shared_ffn=shared, **more)


def _groups(c: Config, experts: str) -> Fields:
    """How many groups of experts a token's are chosen from, where it is not any."""
    groups, chosen, number = c.natural("n_group"), c.natural("topk_group"), c.count(experts)
    if groups > 1 and number % groups and not c.faults:
        c.wrong("n_group", f"must divide {experts} {number}", groups)
    if chosen > max(1, groups) and not c.faults:
        c.wrong("topk_group", f"must be at most n_group {max(1, groups)}", chosen)
    return {"top_groups": max(1, chosen)} if groups > 1 else {}


def _deepseek(c: Config) -> Fields:
    """DeepSeekMoE: plain attention."""
    return decoder(c, attention_of(c) | biases(c), _leading_dense(c, _deepseek_experts(c)))


def _deepseek_latent(c: Config, *, method: str) -> Fields:
    """Latent attention; the selection is balanced by a bias with `noaux_tc`."""
    heads, rope = c.count("num_attention_heads"), c.count("qk_rope_head_dim")
    c.value("head_dim")  # in newer files the rotated part once more
    grouped = c.count("num_key_value_heads", heads)
    if grouped != heads:
        problem = f"must be num_attention_heads {heads}: latent attention has no groups"
        c.wrong("num_key_value_heads", problem, grouped)
    rank = c.natural("q_lora_rank")
    attention = {
        "heads": heads,
        "kv_heads": heads,
        "head_dim": c.count("qk_nope_head_dim") + rope,
        "v_head_dim": c.count("v_head_dim"),
        "latent": {"q_rank": rank or None, "kv_rank": c.count("kv_lora_rank"), "rope_dim": rope},
    }
    methods = {"greedy": "loss", "group_limited_greedy": "loss", "noaux_tc": "bias"}
    by_bias = c.one_of("topk_method", methods, method) == "bias"
    blocks = _leading_dense(c, _deepseek_experts(c, selection_bias=by_bias))
    return decoder(c, attention, blocks, mtp=c.natural("num_nextn_predict_layers"))


def _deepseek_v2(c: Config) -> Fields:
    """DeepSeek V2 and V2-Lite."""
    return _deepseek_latent(c, method="greedy")


def _deepseek_v3(c: Config) -> Fields:
    """DeepSeek V3 and R1, Kimi K2."""
    return _deepseek_latent(c, method="noaux_tc")


def _glm4_moe(c: Config) -> Fields:
    """Plain attention, without a bias behind it, and the experts of DeepSeek V3."""
    c.needed("partial_rotary_factor" if c.value("rope_parameters") is None else "rope_parameters")
    attention = attention_of(c, "num_key_value_heads", "head_dim")
    attention |= {"bias": "qkv"} if c.flag("attention_bias") else {}
    attention |= {"qk_norm": "head"} if c.flag("use_qk_norm") else {}
    c.needed("n_shared_experts")
    blocks = _leading_dense(c, _deepseek_experts(c, selection_bias=True))
    return decoder(c, attention, blocks, mtp=c.natural("num_nextn_predict_layers"))


def _bailing_moe_v2(c: Config) -> Fields:
    """Ling 2.0."""
    c.needed("num_shared_experts", "use_qk_norm")
    attention = attention_of(c, "num_key_value_heads")
    attention |= {"bias": "qkv"} if c.flag("use_qkv_bias") else {}
    attention |= biases(c, "use_bias")
    attention |= {"qk_norm": "head"} if c.flag("use_qk_norm") else {}
    experts = experts_of(
        c,
        "num_experts",
        "moe_intermediate_size",
        shared_ffn=c.natural("num_shared_experts") * c.count("moe_intermediate_size"),
        selection_bias=c.flag("moe_router_enable_expert_bias"),
        **_groups(c, "num_experts"),
    )
    mtp = c.natural("num_nextn_predict_layers")
    return decoder(c, attention, _leading_dense(c, experts), mtp=mtp)


def _llama4(c: Config) -> Fields:
    """Chunks, rotary positions and their norm in all layers but each fourth; experts in each n-th.

    Dense layers are wider than the experts.
    """
    depth = c.depth("num_hidden_layers")
    step = c.count("no_rope_layer_interval", 4)
    turned = c.numbers("no_rope_layers") or [int((i + 1) % step != 0) for i in range(depth)]
    if len(turned) != depth:
        c.wrong("no_rope_layers", f"must be a list of {depth} integers, one for each layer", turned)
        turned = [1] * depth
    inside = windowed(c, "chunked_attention", lambda i: bool(turned[i]))
    chunk = {"chunk": c.count("attention_chunk_size", 8192)}
    norm = {"qk_norm": "unweighted"} if c.flag("use_qk_norm", default=True) else {}
    plain = attention_of(c, "num_key_value_heads", "head_dim") | biases(c)
    attention = [
        plain | (chunk if is_inside else {}) | (norm if has_rope else {"rotary_dim": 0})
        for is_inside, has_rope in zip(inside, turned, strict=True)
    ]
    experts = experts_of(c, "num_local_experts", "intermediate_size")
    experts["shared_ffn"] = experts["ffn"]
    every = c.count("interleave_moe_layer_step", 1)
    listed = c.value("moe_layers") is not None
    named = c.layers("moe_layers", depth) if listed else set(range(every - 1, depth, every))
    blocks = _either(c, [i in named for i in range(depth)], experts, "intermediate_size_mlp")
    return decoder(c, attention, blocks)


def _gpt_oss(c: Config) -> Fields:
    """Sinks, biases everywhere, and windows in every other layer."""
    plain = attention_of(c, "num_key_value_heads", "head_dim") | biases(c, default=True)
    attention = with_windows(c, plain | {"sinks": True}, lambda i: i % 2 == 0)
    biased = {"bias": True, "router_bias": True}
    return decoder(c, attention, experts_of(c, "num_local_experts", "intermediate_size", **biased))


# Reader of each architecture, and the `model_type` of files that do not name one, as those of
# language models inside others.
_FAMILIES: dict[str, tuple[Callable[[Config], Fields], tuple[str, ...]]] = {
    "BailingMoeV2ForCausalLM": (_bailing_moe_v2, ()),
    "CohereForCausalLM": (_cohere, ("cohere",)),
    "DeepseekForCausalLM": (_deepseek, ("deepseek",)),
    "DeepseekV2ForCausalLM": (_deepseek_v2, ("deepseek_v2",)),
    "DeepseekV3ForCausalLM": (_deepseek_v3, ("deepseek_v3", "kimi_k2")),
    "FalconForCausalLM": (_falcon, ("falcon",)),
    "GPT2LMHeadModel": (_gpt2, ("gpt2",)),
    "GPTNeoXForCausalLM": (_gpt_neox, ("gpt_neox",)),
    "Gemma2ForCausalLM": (_gemma2, ("gemma2",)),
    "Gemma3ForCausalLM": (_gemma3, ("gemma3_text",)),
    "GemmaForCausalLM": (_gemma, ("gemma",)),
    "Glm4MoeForCausalLM": (_glm4_moe, ("glm4_moe",)),
    "GptOssForCausalLM": (_gpt_oss, ("gpt_oss",)),
    "Llama4ForCausalLM": (_llama4, ("llama4_text",)),
    "LlamaForCausalLM": (_llama, ("llama",)),
    "MistralForCausalLM": (_mistral, ("mistral",)),
    "MixtralForCausalLM": (_mixtral, ("mixtral",)),
    "Olmo2ForCausalLM": (_olmo2, ("olmo2",)),
    "Olmo3ForCausalLM": (_olmo3, ("olmo3",)),
    "Phi3ForCausalLM": (_phi3, ("phi3",)),
    "Qwen2ForCausalLM": (_qwen2, ("qwen2", "qwen2_5_vl_text", "qwen2_vl_text")),
    "Qwen2MoeForCausalLM": (_qwen2_moe, ("qwen2_moe",)),
    "Qwen3ForCausalLM": (_qwen3, ("qwen3",)),
    "Qwen3MoeForCausalLM": (_qwen3_moe, ("qwen3_moe",)),
    "Starcoder2ForCausalLM": (_starcoder2, ("starcoder2",)),
}
READERS = {name: reader for name, (reader, _) in _FAMILIES.items()}
"""How the config.json of each architecture is read."""
MODEL_TYPES = {kind: name for name, (_, kinds) in _FAMILIES.items() for kind in kinds}
"""The architecture of files that do not name one."""
