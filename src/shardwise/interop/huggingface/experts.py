"""Families with mixtures of experts on the Hugging Face hub, each as a reader of its config.json.

Sources: the configurations and modules of `transformers` and of the published repositories;
arXiv 2401.04088 (Mixtral), 2401.06066, 2405.04434 and 2412.19437 (DeepSeek), 2407.10671 (Qwen2),
2505.09388 (Qwen3), 2508.06471 (GLM-4.5), 2508.10925 (gpt-oss), 2510.22115 (Ling 2.0).
"""

from typing import Any

from shardwise.interop.huggingface.config import Config
from shardwise.interop.huggingface.layers import (
    Fields,
    attention_of,
    biases,
    decoder,
    experts_of,
    gated_mlp,
    qwen3_attention,
    qwen_windows,
    sliding,
    windowed,
    with_windows,
)

__all__ = [
    "bailing_moe_v2",
    "deepseek",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "gpt_oss",
    "llama4",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
]


def mixtral(c: Config) -> Fields:
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


def qwen2_moe(c: Config) -> Fields:
    """Shared experts behind a gate of their own."""
    bias = {"bias": "qkv"} if c.flag("qkv_bias", default=True) else {}
    shared = c.count("shared_expert_intermediate_size")
    blocks = _qwen_blocks(c, shared_ffn=shared, shared_gate=True)
    return decoder(c, qwen_windows(c, attention_of(c, "num_key_value_heads") | bias), blocks)


def qwen3_moe(c: Config) -> Fields:
    """No shared experts."""
    return decoder(c, qwen_windows(c, qwen3_attention(c)), _qwen_blocks(c))


def _leading_dense(c: Config, experts: Fields) -> list[Fields]:
    """The first `first_k_dense_replace` layers are dense; of the others every n-th has experts."""
    depth, step = c.depth("num_hidden_layers"), c.count("moe_layer_freq", 1)
    c.needed("first_k_dense_replace")
    first = c.whole("first_k_dense_replace")
    if first > depth and not c.faults:
        problem = f"must be at most num_hidden_layers {depth}"
        c.wrong("first_k_dense_replace", problem, first)
    return _either(c, [i >= first and i % step == 0 for i in range(depth)], experts)


def _deepseek_experts(c: Config, **more: Any) -> Fields:
    """Routed and shared experts of one width."""
    shared = c.whole("n_shared_experts") * c.count("moe_intermediate_size")
    more |= _groups(c, "n_routed_experts")
    return experts_of(c, "n_routed_experts", "moe_intermediate_size", shared_ffn=shared, **more)


def _groups(c: Config, experts: str) -> Fields:
    """How many groups of experts a token's are chosen from, where it is not any."""
    groups, chosen, number = c.whole("n_group"), c.whole("topk_group"), c.count(experts)
    if groups > 1 and number % groups and not c.faults:
        c.wrong("n_group", f"must divide {experts} {number}", groups)
    if chosen > max(1, groups) and not c.faults:
        c.wrong("topk_group", f"must be at most n_group {max(1, groups)}", chosen)
    return {"top_groups": max(1, chosen)} if groups > 1 else {}


def deepseek(c: Config) -> Fields:
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
    rank = c.whole("q_lora_rank")
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
    return decoder(c, attention, blocks, mtp=c.whole("num_nextn_predict_layers"))


def deepseek_v2(c: Config) -> Fields:
    """DeepSeek V2 and V2-Lite."""
    return _deepseek_latent(c, method="greedy")


def deepseek_v3(c: Config) -> Fields:
    """DeepSeek V3 and R1, Kimi K2."""
    return _deepseek_latent(c, method="noaux_tc")


def glm4_moe(c: Config) -> Fields:
    """Plain attention, without a bias behind it, and the experts of DeepSeek V3."""
    c.needed("partial_rotary_factor" if c.value("rope_parameters") is None else "rope_parameters")
    attention = attention_of(c, "num_key_value_heads", "head_dim")
    attention |= {"bias": "qkv"} if c.flag("attention_bias") else {}
    attention |= {"qk_norm": "head"} if c.flag("use_qk_norm") else {}
    c.needed("n_shared_experts")
    blocks = _leading_dense(c, _deepseek_experts(c, selection_bias=True))
    return decoder(c, attention, blocks, mtp=c.whole("num_nextn_predict_layers"))


def bailing_moe_v2(c: Config) -> Fields:
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
        shared_ffn=c.whole("num_shared_experts") * c.count("moe_intermediate_size"),
        selection_bias=c.flag("moe_router_enable_expert_bias"),
        **_groups(c, "num_experts"),
    )
    mtp = c.whole("num_nextn_predict_layers")
    return decoder(c, attention, _leading_dense(c, experts), mtp=mtp)


def llama4(c: Config) -> Fields:
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


def gpt_oss(c: Config) -> Fields:
    """Sinks, biases everywhere, and windows in every other layer."""
    plain = attention_of(c, "num_key_value_heads", "head_dim") | biases(c, default=True)
    attention = with_windows(c, plain | {"sinks": True}, lambda i: i % 2 == 0)
    biased = {"bias": True, "router_bias": True}
    return decoder(c, attention, experts_of(c, "num_local_experts", "intermediate_size", **biased))
