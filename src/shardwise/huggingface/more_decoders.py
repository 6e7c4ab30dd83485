"""Readers of families whose layers differ in more than a window: sparse, compressed, shared keys.

Each starts from what `decoders.read` finds by the family's record.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwise.huggingface.decoders import Fields, experts_block, layer_words, read
from shardwise.huggingface.families import Experts, Family
from shardwise.huggingface.files import Config

_SELECTED = ("indexed_attention", "deepseek_sparse_attention", "full_attention")
_SLIDING = ("full_attention", "sliding_attention")
_RATIOS = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
_SHARES = ("full", "shared")
# Of MiniMax-M3 and Step 3.7, without effect or said by other keys.
_SAID_TWICE = (
    *("index_local_blocks", "num_nextn_predict_layers", "qk_norm_type", "swiglu_alpha"),
    *("n_shared_experts", "use_routing_bias", "moe_intermediate_size", "first_k_dense_replace"),
)


def _attentions(fields: Fields) -> list[Fields]:
    return [layer["attention"] for layer in fields["layers"]]


def _listed(c: Config, key: str, depth: int, allowed: tuple[str, ...]) -> list[str]:
    """Words of a list with one for each layer; those after the last layer are of predictions."""
    words = c.value(key)
    if isinstance(words, list) and len(words) > depth:
        words = words[:depth]
        return [str(word) if word in allowed else _unknown(c, key, word, allowed) for word in words]
    return layer_words(c, key, depth, allowed)


def _unknown(c: Config, key: str, word: object, allowed: tuple[str, ...]) -> str:
    c.wrong(key, f"not modeled; allowed: {', '.join(allowed)}", word)
    return allowed[0]


def _index(c: Config) -> Fields:
    return {
        "heads": c.count("index_n_heads"),
        "head_dim": c.count("index_head_dim"),
        "top_k": c.count("index_topk"),
    }


def _index_owners(c: Config, depth: int) -> list[str]:
    """Whether each layer has an indexer or shares that of an earlier one.

    Without `indexer_types` a pattern says it, or every n-th layer behind an offset has one.
    """
    if c.value("indexer_types") is not None:
        return layer_words(c, "indexer_types", depth, _SHARES)
    pattern = c.value("index_topk_pattern")
    if isinstance(pattern, str):
        words = {"F": "full", "S": "shared"}
        return [words.get(letter) or _unknown(c, "index_topk_pattern", letter, ("F", "S"))
                for letter in pattern.ljust(depth, "F")[:depth]]  # fmt: skip
    every, offset = c.count("index_topk_freq", 1), c.natural("index_skip_topk_offset", 2)
    return ["full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(depth)]


def selected(c: Config, family: Family) -> Fields:
    """Latent attention over keys that an indexer selects (DeepSeek-V3.2, GLM-5)."""
    fields = read(c, family)
    depth, index = len(fields["layers"]), _index(c)
    if c.value("layer_types") is not None:
        layer_words(c, "layer_types", depth, _SELECTED)
    c.value("index_share_for_mtp_iteration")
    for attention, owner in zip(_attentions(fields), _index_owners(c, depth), strict=True):
        attention["indexer"] = index | ({"shared": True} if owner == "shared" else {})
    return fields


def dots(c: Config, family: Family) -> Fields:
    """Selected keys, and windows of latent attention with sizes of their own (dots 3 Note)."""
    fields = read(c, family)
    depth, index = len(fields["layers"]), _index(c)
    words = layer_words(c, "layer_types", depth, (*_SELECTED[:1], *_SLIDING))
    own, rank = c.value("per_layer_config"), c.count("kv_lora_rank")
    for i, (layer, word) in enumerate(zip(fields["layers"], words, strict=True)):
        one = layer["attention"]
        usual = {"kv_lora_rank": rank, "qk_nope_head_dim": one["head_dim"]}
        usual["qk_nope_head_dim"] -= one["latent"]["rope_dim"]
        sizes = usual | dict(_own_fields(own, i))
        rope = sizes.get("qk_rope_head_dim", one["latent"]["rope_dim"])
        heads = sizes.get("num_attention_heads", one["heads"])
        one |= {"heads": heads, "kv_heads": heads, "head_dim": sizes["qk_nope_head_dim"] + rope}
        one["v_head_dim"] = sizes.get("v_head_dim", one["v_head_dim"])
        one["latent"] = {
            "q_rank": sizes.get("q_lora_rank", one["latent"]["q_rank"]),
            "kv_rank": sizes["kv_lora_rank"],
            "rope_dim": rope,
            "rope_norm": True,
        }
        if word == _SLIDING[1]:
            one["window"] = c.count("sliding_window")
        elif word == _SELECTED[0]:
            one["indexer"] = index
        if "moe" in layer:
            width = c.count("shared_experts_intermediate_size")
            layer["moe"] = layer["moe"] | {"shared_ffn": width * c.count("n_shared_experts")}
    return fields


def hunyuan(c: Config, family: Family) -> Fields:
    """Selected keys, gates, and streams that are not mixed (Hy4)."""
    streams = c.count("hc_mult")
    mixing = {"streams_mixed": False, "streams_joined": True} if streams > 1 else {}
    return selected(c, family) | {"streams": streams} | mixing


def compressed(c: Config, family: Family) -> Fields:
    """A window and compressed keys; experts by hash in the first layers (DeepSeek-V4)."""
    fields = read(c, family)
    depth, index = len(fields["layers"]), _index(c)
    hashed = [i < c.natural("num_hash_layers", 3) for i in range(depth)]
    if c.value("mlp_layer_types") is not None:
        assert family.experts is not None  # noqa: S101 - a family of experts
        words = layer_words(c, "mlp_layer_types", depth, family.experts.words)
        hashed = [word == "hash_moe" for word in words]
    width = c.count("head_dim")
    rotary = c.natural("qk_rope_head_dim") or int(width * c.share("partial_rotary_factor", 1.0))
    base = {
        "heads": c.count("num_attention_heads"),
        "kv_heads": 1,
        "head_dim": width,
        "rotary_dim": rotary,
        "window": c.count("sliding_window"),
        "sinks": True,
    }
    narrow = {
        "q_rank": c.count("q_lora_rank"),
        "output_groups": c.count("o_groups"),
        "output_rank": c.count("o_lora_rank"),
    }
    for layer, (ratio, is_selected), by_hash in zip(
        fields["layers"], _compressions(c, depth), hashed, strict=True
    ):
        layer["attention"] = base | {"compressed": narrow | {"ratio": ratio or None}}
        if is_selected:
            layer["attention"]["indexer"] = index
        if by_hash:
            layer["moe"] = layer["moe"] | {"hashed": True, "selection_bias": False}
    streams = c.count("hc_mult")
    return fields | {"streams": streams, "streams_joined": streams > 1}


def _compressions(c: Config, depth: int) -> list[tuple[int, bool]]:
    """Tokens of a compressed key of each layer (0: none), and whether an indexer selects some."""
    ratios = c.numbers("compress_ratios")
    if ratios:
        if len(ratios) < depth or any(ratio not in (0, *_RATIOS.values()) for ratio in ratios):
            problem = f"must be a list of 0, 4 and 128, one for each of {depth} layers"
            c.wrong("compress_ratios", problem, ratios)
            ratios = [0] * depth
        c.value("layer_types")
        return [
            (ratio, ratio == _RATIOS["compressed_sparse_attention"]) for ratio in ratios[:depth]
        ]
    rates = c.value("compress_rates")
    rates = _RATIOS | (dict(rates) if isinstance(rates, Mapping) else {})
    names = tuple(_RATIOS)
    if c.value("layer_types") is None:  # of the class: the first two, then in turns
        words = [names[1] if i < 2 or i % 2 == 0 else names[0] for i in range(depth)]  # noqa: PLR2004
    else:
        words = layer_words(c, "layer_types", depth, ("sliding_attention", *names))
    return [(int(rates.get(word, 0)), word == names[0]) for word in words]


def gemma4(c: Config, family: Family) -> Fields:
    """Two head sizes, keys that are values or are shared, experts, embeddings of layers."""
    fields = read(c, family)
    depth = len(fields["layers"])
    words = _SLIDING if c.value("layer_types") is None else layer_words(
        c, "layer_types", depth, _SLIDING
    )  # fmt: skip
    full = ["window" not in one for one in _attentions(fields)] if words is _SLIDING else [
        word == "full_attention" for word in words
    ]  # fmt: skip
    if c.value("use_bidirectional_attention") not in (None, "vision"):
        problem = "attention of words in both directions is not modeled"
        c.wrong("use_bidirectional_attention", problem, c.value("use_bidirectional_attention"))
    tied, wide = c.flag("attention_k_eq_v"), c.flag("use_double_wide_mlp")
    head_dim, kv_heads = c.count("global_head_dim", 512), c.natural("num_global_key_value_heads")
    own = c.value("per_layer_config")
    shared = depth - c.natural("num_kv_shared_layers")
    moe = _gemma_experts(c) if c.flag("enable_moe_block") else None
    for i, (layer, is_full) in enumerate(zip(fields["layers"], full, strict=True)):
        one = layer["attention"]
        if is_full:
            one |= {"head_dim": head_dim, "kv_heads": (kv_heads if tied else 0) or one["kv_heads"]}
            # Fields of attention that a layer has of its own, as newer transformers write them.
            names = {"head_dim": "head_dim", "num_key_value_heads": "kv_heads"}
            found = _own_fields(own, i)
            one |= {ours: found[theirs] for theirs, ours in names.items() if theirs in found}
            one["rotary_dim"] = one["head_dim"] // 4
            one |= {"tied_values": True} if tied else {}
        one["v_norm"] = True
        if i >= shared:
            one["shared_keys"] = True
            one.pop("tied_values", None)
            if wide:
                layer["mlp"] = layer["mlp"] | {"ffn": 2 * layer["mlp"]["ffn"]}
        if moe is not None:
            layer["moe"] = moe | {"shared_ffn": layer.pop("mlp")["ffn"]}
    if outer := c.natural("backbone_hidden_size"):
        fields |= _assistant(c, fields["hidden"], outer)
    width = c.natural("hidden_size_per_layer_input")
    rows = c.natural("vocab_size_per_layer_input")
    if width:
        fields |= {"layer_embedding": width}
        fields |= {"layer_vocab": rows} if rows not in (0, fields["vocab"]) else {}
    return fields


def _assistant(c: Config, hidden: int, outer: int) -> Fields:
    """Projections between an assistant and its model, and centroids of its words.

    Its layers read keys and values of the model, and one that proposes tokens reads two outputs.
    """
    centroids = c.count("num_centroids", 2048) if c.flag("use_ordered_embeddings") else 0
    return {"more_parameters": hidden * (3 * outer + centroids)}


def _own_fields(own: object, layer: int) -> Mapping[str, Any]:
    """What `per_layer_config` has for a layer, whose number it may pad with zeros."""
    if not isinstance(own, Mapping):
        return {}
    found = (own[key] for key in own if str(key).isdigit() and int(key) == layer)
    return next((one for one in found if isinstance(one, Mapping)), {})


def _gemma_experts(c: Config) -> Fields:
    experts = Experts(ffn="moe_intermediate_size", chosen="top_k_experts")
    block = experts_block(c, Family(activation="gelu_pytorch_tanh"), experts)
    return block | {"norms": "branches", "router_scale": True}


def minimax(c: Config, family: Family) -> Fields:
    """Grouped attention over blocks that an indexer selects (MiniMax-M3)."""
    fields = read(c, family)
    depth = len(fields["layers"])
    old = c.value("sparse_attention_config")
    old = old if isinstance(old, Mapping) else {}
    index = {
        "heads": _either(c, old, "index_n_heads", "sparse_num_index_heads"),
        "head_dim": _either(c, old, "index_head_dim", "sparse_index_dim"),
        "top_k": _either(c, old, "index_topk_blocks", "sparse_topk_blocks"),
        "block": _either(c, old, "index_block_size", "sparse_block_size"),
    }
    sparse = [False] * depth
    if c.value("layer_types") is not None:
        words = layer_words(c, "layer_types", depth, ("full_attention", "minimax_m3_sparse"))
        sparse = [word == "minimax_m3_sparse" for word in words]
    elif isinstance(flags := old.get("sparse_attention_freq"), list):
        sparse = [bool(flag) for flag in (*flags, *[0] * depth)][:depth]
    dense = c.count("dense_intermediate_size")
    for layer, is_sparse in zip(fields["layers"], sparse, strict=True):
        if is_sparse:
            layer["attention"]["indexer"] = index
        if "mlp" in layer:
            layer["mlp"] = layer["mlp"] | {"ffn": dense}
    for key in _SAID_TWICE:
        c.value(key)
    return fields


def _either(c: Config, old: Mapping[str, Any], key: str, old_key: str) -> int:
    """A count under its name, or inside the mapping of older files."""
    known = old.get(old_key)
    return c.count(key, known if type(known) is int and known > 0 else None)


def mimo(c: Config, family: Family) -> Fields:
    """Windows of twice the key-value heads and sinks, around full layers (MiMo-V2)."""
    fields = read(c, family)
    depth = len(fields["layers"])
    if c.value("layer_types") is not None:
        slides = [w == _SLIDING[1] for w in layer_words(c, "layer_types", depth, _SLIDING)]
    else:
        flags = c.numbers("hybrid_layer_pattern")
        slides = [bool(flag) for flag in flags] or [i > 0 and (i + 1) % 6 > 0 for i in range(depth)]
        if len(slides) != depth:
            c.wrong("hybrid_layer_pattern", f"must be a list of {depth} integers", flags)
            slides = [False] * depth
    width, value = c.count("head_dim"), c.count("v_head_dim")
    for key in ("attention_chunk_size", "sliding_window_size", "attention_value_scale"):
        c.value(key)  # the window once more, and a factor
    heads = c.count("num_attention_heads")
    kv_heads = c.count("num_key_value_heads")
    share = c.share("rope_parameters.full_attention.partial_rotary_factor", 0.334)
    share = c.share("partial_rotary_factor", share)
    sinks = {
        True: c.flag("add_swa_attention_sink_bias", default=True),
        False: c.flag("add_full_attention_sink_bias"),
    }
    for one, is_inside in zip(_attentions(fields), slides, strict=True):
        one |= {"head_dim": width, "v_head_dim": value, "rotary_dim": int(width * share)}
        one["sinks"] = sinks[is_inside]
        one.pop("window", None)
        if is_inside:
            one |= {
                "heads": c.count("swa_num_attention_heads", heads),
                "kv_heads": c.count("swa_num_key_value_heads", 2 * kv_heads),
                "head_dim": c.count("swa_head_dim", width),
                "v_head_dim": c.count("swa_v_head_dim", value),
                "window": c.count("sliding_window"),
            }
    return fields


def step(c: Config, family: Family) -> Fields:
    """Gates of each head, and another number of heads inside windows (Step 3.7)."""
    for key in ("layer_types", "mlp_layer_types"):
        words = c.value(key)
        depth = c.depth("num_hidden_layers")
        if isinstance(words, list) and len(words) > depth:  # and those of predictions
            c.data = {**c.data, key: words[:depth]}
    if c.value("mlp_layer_types") is None and c.value("first_k_dense_replace") is None:
        c.defaults = {**c.defaults, "first_k_dense_replace": 3}
    c.value("n_shared_experts")
    fields = read(c, family)
    usual = c.count("num_attention_heads")
    other = c.value("attention_other_setting")
    inside = other.get("num_attention_heads", usual) if isinstance(other, Mapping) else usual
    own = c.value("per_layer_config")
    return _gated_heads(c, fields, c.count("num_sliding_attention_heads", inside), own)


def _gated_heads(c: Config, fields: Fields, inside: int, own: object) -> Fields:
    """Heads of layers inside windows, and gates of single heads or of all elements."""
    gating = c.value("gating")
    gate = "head" if gating in (None, True, "per-head") else "value"
    for i, one in enumerate(_attentions(fields)):
        one["gate"] = gate
        if "window" in one:
            one["heads"] = inside
        one["heads"] = _own_fields(own, i).get("num_attention_heads", one["heads"])
    return fields


def laguna(c: Config, family: Family) -> Fields:
    """Gates, and numbers of heads by layer (Laguna)."""
    fields = read(c, family)
    heads: Sequence[int] = c.numbers("num_attention_heads_per_layer")
    gate = "head" if c.value("gating") in (None, True, "per-head") else "value"
    share = c.share("rope_parameters.full_attention.partial_rotary_factor", 0.5)
    for i, one in enumerate(_attentions(fields)):
        one["gate"] = gate
        if heads and i < len(heads):
            one["heads"] = heads[i]
        if "window" not in one:
            one["rotary_dim"] = int(one["head_dim"] * share)
    return fields


def biased_gates(c: Config, family: Family) -> Fields:
    """A bias of each head in the gates (Beam)."""
    fields = read(c, family)
    for one in _attentions(fields):
        one["gate_bias"] = True
    return fields


def normed_experts(c: Config, family: Family) -> Fields:
    """A norm of what the experts give (A.X K1)."""
    fields = read(c, family)
    for layer in fields["layers"]:
        if "moe" in layer:
            layer["moe"] = layer["moe"] | {"norms": "output"}
    return fields


def last_biased(c: Config, family: Family) -> Fields:
    """The last output projection alone has a bias (GPT-NeoX Japanese)."""
    fields = read(c, family)
    _attentions(fields)[-1]["bias"] = "output"
    return fields


def pruned(c: Config, family: Family) -> Fields:
    """Layers with numbers of heads and widths of their own, or without one of their blocks.

    (Llama-Nemotron, made by architecture search: arXiv 2411.19146. Widths are 2 h / 3 times the
    factor of a layer, rounded up to a multiple of 256.)
    """
    depth, hidden = c.depth("num_hidden_layers"), c.count("hidden_size")
    heads = c.count("num_attention_heads")
    blocks = c.value("block_configs")
    if not isinstance(blocks, list) or len(blocks) != depth:
        c.wrong("block_configs", f"must be a list of {depth} mappings, one for each layer")
        blocks = [{}] * depth
    c.data = {**c.data, "intermediate_size": hidden, "num_key_value_heads": heads}
    fields = read(c, family)
    for number, (layer, block) in enumerate(zip(fields["layers"], blocks, strict=True)):
        mixing, inner = (block.get(name) or {} for name in ("attention", "ffn"))
        for part in (mixing, inner):
            if part.get("replace_with_linear"):
                problem = f"layer {number}: a linear layer in place of a block is not modeled"
                c.wrong("block_configs", problem)
        if mixing.get("no_op"):
            del layer["attention"]
        else:
            layer["attention"]["kv_heads"] = max(1, heads // int(mixing.get("n_heads_in_group", 1)))
        if inner.get("no_op"):
            del layer["mlp"]
        else:
            width = int(2 * float(inner.get("ffn_mult", 1)) * hidden / 3)
            layer["mlp"] = layer["mlp"] | {"ffn": -(-width // 256) * 256}
    fields["layers"] = [one for one in fields["layers"] if "attention" in one or "mlp" in one]
    return fields


def dense_prefix(c: Config, family: Family) -> Fields:
    """Experts in parallel layers, behind dense ones of another width (Cohere 2 MoE)."""
    fields = read(c, family)
    width = c.natural("prefix_dense_intermediate_size")
    for layer in fields["layers"]:
        if "mlp" in layer and width:
            layer["mlp"] = layer["mlp"] | {"ffn": width}
    return fields


OWN: dict[str, Callable[[Config, Family], Fields]] = {
    "AXK1ForCausalLM": normed_experts,
    "BeamForCausalLM": biased_gates,
    "Cohere2MoeForCausalLM": dense_prefix,
    "DeciLMForCausalLM": pruned,
    "Dots3NoteForCausalLM": dots,
    "GPTNeoXJapaneseForCausalLM": last_biased,
    "DeepseekV32ForCausalLM": selected,
    "DeepseekV4ForCausalLM": compressed,
    "Gemma4ForCausalLM": gemma4,
    "GlmMoeDsaForCausalLM": selected,
    "HYV4ForCausalLM": hunyuan,
    "LagunaForCausalLM": laguna,
    "MiMoV2FlashForCausalLM": mimo,
    "MiniMaxM3ForCausalLM": minimax,
    "MiniMaxM3SparseForCausalLM": minimax,
    "MiniMaxM3VLForCausalLM": minimax,
    "Step3p7FlashForCausalLM": step,
}
"""Readers by architecture, where a record alone does not say what its layers are."""
