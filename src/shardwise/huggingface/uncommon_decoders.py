"""Readers of families with small parts: what their parameters sum to.

Each starts from what `decoders.read` finds by the family's record.
"""

from collections.abc import Callable, Mapping

from shardwise.huggingface.decoders import Fields, layer_words, read
from shardwise.huggingface.families import Family
from shardwise.huggingface.files import Config
from shardwise.huggingface.more_decoders import gemma4, selected

_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"


def _more(fields: Fields, parameters: Callable[[Fields], int]) -> Fields:
    """Fields with the further parameters of every layer, by its fields."""
    for layer in fields["layers"]:
        layer["more_parameters"] = parameters(layer)
    return fields


def axk2(c: Config, family: Family) -> Fields:
    """Selected keys, and gates of norms: products of a narrow rank r (A.X K2).

    Queries and gates of the output are products of 2 q values, the compressed queries before and
    after their norm, of which the query product of DeepSeek-V3 reads half.
    """
    fields = selected(c, family)
    gates = 2 * c.count("gated_norm_rank", 16) * fields["hidden"]

    def parameters(layer: Fields) -> int:
        one = layer["attention"]
        rank, heads = one["latent"]["q_rank"] or 0, one["heads"]
        normed = 2 if "moe" in layer else 1
        return rank * heads * (one["head_dim"] + 2 * one["v_head_dim"]) + normed * gates

    return _more(fields, parameters)


def big_bird(c: Config, family: Family) -> Fields:
    """BERT with a pooler, and blocks of keys for each query."""
    fields = read(c, family)
    sparse = c.one_of("attention_type", {"block_sparse": "s", "original_full": ""}, "block_sparse")
    if sparse:
        fields["left_out"].append("block-sparse attention: all keys are counted")
    return fields | {"more_parameters": fields["hidden"] * (fields["hidden"] + 1)}


def cohere_compass(c: Config, family: Family) -> Fields:
    """Windows, and no positions in layers of a kind without rotary parameters."""
    fields = read(c, family)
    rotary = c.value("rope_parameters")
    for layer in fields["layers"]:
        word = _SLIDING if "window" in layer["attention"] else _FULL
        if isinstance(rotary, Mapping) and word in rotary and rotary[word] is None:
            layer["attention"]["rotary_dim"] = 0
    return fields


_T5_BUCKETS = 32


def cpmant(c: Config, family: Family) -> Fields:
    """Buckets of positions and pairs of segments, rows for prompts; the head is never tied."""
    fields = read(c, family) | {"tied_embeddings": False}
    segments = c.count("segment_types", 32)
    rows = segments + c.natural("prompt_types", 32) * c.natural("prompt_length", 32)
    buckets = segments**2 + c.count("position_bias_num_buckets", 512) - _T5_BUCKETS
    heads = c.count("num_attention_heads")
    if buckets < 0:
        c.wrong("position_bias_num_buckets", f"must be at least {_T5_BUCKETS}")
    return fields | {"more_parameters": rows * fields["hidden"] + max(0, buckets) * heads}


def diffllama(c: Config, family: Family) -> Fields:
    """Four vectors as wide as a head say the share of the second softmax."""
    return _more(read(c, family), lambda layer: 4 * int(layer["attention"]["head_dim"]))


def doge(c: Config, family: Family) -> Fields:
    """Scales of the residuals, and a projection of values to a score per head."""
    fields = read(c, family)
    for key in ("num_experts", "num_experts_per_tok", "norm_topk_prob"):
        c.value(key)  # of files with is_moe
    bias = c.flag("attention_bias")

    def parameters(layer: Fields) -> int:
        heads = layer["attention"]["kv_heads"]
        return 2 * fields["hidden"] + heads * (heads * layer["attention"]["head_dim"] + 1 + bias)

    return _more(fields, parameters)


def gemma3n(c: Config, family: Family) -> Fields:
    """Shared keys, embeddings of layers, alternating streams and low-rank residuals.

    Of n streams: scales h, a router n h with a norm h, and n^2 and n^3 coefficients in each layer,
    and n - 1 projections h^2 before and behind the layers (AltUp, arXiv 2301.13310); of rank r: 2 r
    h and a norm h (LAuReL, arXiv 2411.07501).
    """
    if c.prefix:  # the class repeats it for each layer
        c.defaults = {"intermediate_size": 16384, **c.defaults}
    widths = c.value("intermediate_size")
    depth = c.depth("num_hidden_layers")
    listed = isinstance(widths, list)
    if listed:
        if len(widths) != depth or not all(type(one) is int and one > 0 for one in widths):
            c.wrong("intermediate_size", f"must be {depth} integers, one for each layer", widths)
            widths = [1] * depth
        c.data = {**c.data, "intermediate_size": widths[0]}
    fields = read(c, family)
    hidden, n = fields["hidden"], c.count("altup_num_inputs", 4)
    own = depth - c.natural("num_kv_shared_layers", 15)
    for i, layer in enumerate(fields["layers"]):
        layer["attention"] |= {"v_norm": True} | ({"shared_keys": True} if i >= own else {})
        if listed:
            layer["mlp"] = layer["mlp"] | {"ffn": widths[i]}
    small = n**2 + n**3 + hidden * (n + 3 + 2 * c.count("laurel_rank", 64))
    rows = c.natural("vocab_size_per_layer_input")
    fields |= {
        "layer_embedding": c.count("hidden_size_per_layer_input"),
        "layer_vocab": rows if rows != fields["vocab"] else 0,
        "more_parameters": 2 * (n - 1) * hidden**2,
    }
    return _more(fields, lambda _: small)


def inkling(c: Config, family: Family) -> Fields:
    """Logits of relative positions, and short convolutions of keys, values and outputs.

    Per layer: a product to r values of each head and their logits of each distance, k taps of each
    channel of keys and values and twice of the stream, a row of the router for each shared expert,
    and a scale.
    """
    depth = c.depth("num_hidden_layers")
    if c.value("layer_types") is None and c.value("local_layer_ids") is not None:
        local = c.layers("local_layer_ids", depth)
        words = [family.words[i in local] for i in range(depth)]
        c.data = {**c.data, "layer_types": words}
    if c.value("mlp_layer_types") is None and (dense := c.natural("dense_mlp_idx")):
        words = ["dense" if i < dense else "sparse" for i in range(depth)]
        c.data = {**c.data, "mlp_layer_types": words}
    if c.value("dense_intermediate_size") is not None:  # of files before transformers 5
        older = {"moe_intermediate_size": c.value("intermediate_size")}
        older["intermediate_size"] = c.value("dense_intermediate_size")
        c.data = {**c.data, **older}
    fields = read(c, family) | {"tied_embeddings": False}
    hidden, rank = fields["hidden"], c.count("d_rel", 16)
    taps, extent = c.count("conv_kernel_size", 4), c.count("rel_extent", 1024)
    sinks = c.natural("n_shared_experts", 2)

    def parameters(layer: Fields) -> int:
        one = layer["attention"]
        _window_heads(c, one)
        relative = rank * (hidden * one["heads"] + one.get("window", extent))
        channels = 2 * one["kv_heads"] * one["head_dim"] + 2 * hidden
        return int(relative + taps * channels + 1 + (sinks * hidden if "moe" in layer else 0))

    return _more(fields, parameters)


def inkling2(c: Config, family: Family) -> Fields:
    """Attention over outputs of earlier blocks, too: a query in front of each block.

    Layers without a window have a query and a norm for each of queries, keys and values, and
    convolutions whose taps are products of their input. Each head has a scale of its queries and
    relative positions, and a product to its sink. The embedding may have more rows than the head.
    """
    rows = c.data.get("vocab_size", c.defaults.get("vocab_size"))
    if type(rows) is not int:
        c.wrong("vocab_size", "must be an integer, of the rows of the embedding", rows)
        rows = 0
    c.data = {key: value for key, value in c.data.items() if key != "vocab_size"}
    fields = read(c, family) | {"tied_embeddings": False}
    hidden, rank = fields["hidden"], c.count("d_rel", 16)
    taps, extent = c.count("conv_kernel_size", 4), c.count("rel_extent", 1024)

    def parameters(layer: Fields) -> int:
        one = layer["attention"]
        _window_heads(c, one)
        keys, is_first = one["kv_heads"], layer is fields["layers"][0]
        full = 0 if "window" in one else 2 * hidden * (1 + taps * keys)
        queries = 0 if is_first else hidden if "window" in one else 3 * hidden
        heads = one["heads"] * (hidden * (rank + 1) + rank + one["head_dim"])
        channels = 2 * (keys * one["head_dim"] + hidden)
        relative = rank * one.get("window", extent)
        return int(heads + relative + taps * channels + hidden + queries + full)

    added = max(0, rows - fields["vocab"])
    return _more(fields, parameters) | {"more_parameters": hidden * (added + 1)}


def _window_heads(c: Config, attention: Fields) -> None:
    """Heads of Inkling: no rotation; another number and width of them inside windows."""
    attention["rotary_dim"] = 0
    if "window" in attention:
        attention["heads"] = c.count("swa_num_attention_heads", attention["heads"])
        attention["kv_heads"] = c.count("swa_num_key_value_heads", attention["kv_heads"])
        attention["head_dim"] = c.count("swa_head_dim", attention["head_dim"])


def lara_mini(c: Config, family: Family) -> Fields:
    """Gated delta rules, and attention with and without a window."""
    fields = read(c, family)
    depth = len(fields["layers"])
    words = [(_LINEAR, _SLIDING, _LINEAR, _FULL, _SLIDING)[i % 5] for i in range(depth)]
    if c.value("layer_types") is not None:
        words = layer_words(c, "layer_types", depth, (_FULL, _SLIDING, _LINEAR))
    mixer = {
        "kind": "gated_delta",
        "key_heads": c.count("linear_num_key_heads"),
        "value_heads": c.count("linear_num_value_heads"),
        "key_dim": c.count("linear_key_head_dim"),
        "value_dim": c.count("linear_value_head_dim"),
        "conv": c.count("linear_conv_kernel_dim", 4),
    }
    for layer, word in zip(fields["layers"], words, strict=True):
        if word == _SLIDING:
            layer["attention"]["window"] = c.count("sliding_window", 512)
        elif word == _LINEAR:
            del layer["attention"]
            layer["mixer"] = mixer
    return fields


def mllama(c: Config, family: Family) -> Fields:
    """Gated cross-attention to images in some layers, and rows for their tokens."""
    fields = read(c, family)
    crosses = c.layers("cross_attention_layers", len(fields["layers"]))
    for i in crosses:
        fields["layers"][i]["attention"] |= {"qk_norm": "head", "rotary_dim": 0}
        fields["layers"][i]["more_parameters"] = 2
    return fields | {"more_parameters": 8 * fields["hidden"]}


def modernbert(c: Config, family: Family) -> Fields:
    """ModernBERT's decoder.

    Its first layer has no norm before the attention, and its embedding has one: they are one norm.
    """
    c.defaults = {**c.defaults, "global_attn_every_n_layers": 3}
    local = c.natural("local_attention", 128)
    if local > 1 and c.value("sliding_window") is None:
        c.data = {**c.data, "sliding_window": local // 2}
    fields = read(c, family)
    hidden = fields["hidden"]
    bias = c.flag("classifier_bias") + c.flag("norm_bias")
    return fields | {"more_parameters": hidden * (hidden + 1 + bias)}


def moshi(c: Config, family: Family) -> Fields:
    """The decoder of text: `ffn_dim` is of both input projections; one more row of words."""
    fields = read(c, family)
    for layer in fields["layers"]:
        layer["mlp"] = layer["mlp"] | {"ffn": max(1, layer["mlp"]["ffn"] // 2)}
    return fields | {"more_parameters": fields["hidden"]}


def roc_bert(c: Config, family: Family) -> Fields:
    """Tables of sounds and shapes of characters, joined with that of words by a product."""
    fields = read(c, family)
    hidden = inputs = fields["hidden"]
    more = 0
    for part in ("pronunciation", "shape"):
        width = c.count(f"{part}_embed_dim")
        more += c.count(f"{part}_vocab_size") * width
        inputs += width if c.flag(f"enable_{part}", default=True) else 0
    if c.flag("concat_input", default=True):
        more += hidden * (inputs + 1)
    return fields | {"more_parameters": more}


def xlnet(c: Config, family: Family) -> Fields:
    """Biases of segments, and what stands for the word to predict."""
    fields = read(c, family) | {"more_parameters": c.count("hidden_size")}
    both = c.one_of("attn_type", {"bi": "both", "uni": ""}, "bi")
    for layer in fields["layers"]:
        layer["attention"]["causal"] = not both

    def parameters(layer: Fields) -> int:
        return 3 * int(layer["attention"]["heads"] * layer["attention"]["head_dim"])

    return _more(fields, parameters)


def xmod(c: Config, family: Family) -> Fields:
    """An adapter for each language in each layer; a token passes through one."""
    fields = read(c, family)
    hidden, languages = fields["hidden"], c.value("languages")
    narrow = hidden // c.count("adapter_reduction_factor", 2)
    number = len(languages) if isinstance(languages, list) else 1
    adapter = 2 * hidden * narrow + hidden + narrow
    return fields | {"more_parameters": number * len(fields["layers"]) * adapter}


def zaya(c: Config, family: Family) -> Fields:
    """Convolutions over queries and keys, scaled residuals, and a router that is an MLP."""
    fields = read(c, family)
    hidden, narrow = fields["hidden"], c.count("router_hidden_size", 256)
    classes = c.count("num_experts") + 1  # one does nothing
    router = narrow * (hidden + 2 * narrow + 4 + classes) - hidden * (classes - 1)
    depthwise, grouped = c.count("cca_time0", 2), c.count("cca_time1", 2)

    def parameters(layer: Fields) -> int:
        one = layer["attention"]
        one["rotary_dim"] = one["head_dim"] // 2
        width = (one["heads"] + one["kv_heads"]) * one["head_dim"]
        taps = depthwise + grouped * one["head_dim"] + 2
        scale = narrow if layer is not fields["layers"][0] else 0
        return int(width * taps + one["kv_heads"] + router + scale + 8 * hidden)

    return _more(fields, parameters) | {"more_parameters": 2 * hidden}


OWN: dict[str, Callable[[Config, Family], Fields]] = {
    "AXK2ForCausalLM": axk2,
    **dict.fromkeys(("BigBirdForCausalLM", "BigBirdForMaskedLM"), big_bird),
    "CohereCompassForCausalLM": cohere_compass,
    "CpmAntForCausalLM": cpmant,
    "DiffLlamaForCausalLM": diffllama,
    "DogeForCausalLM": doge,
    "Gemma3nForCausalLM": gemma3n,
    "Gemma4UnifiedForCausalLM": gemma4,
    "InklingForCausalLM": inkling,
    "Inkling2ForCausalLM": inkling2,
    "LaraMiniForCausalLM": lara_mini,
    "MllamaForCausalLM": mllama,
    "ModernBertDecoderForCausalLM": modernbert,
    "MoshiForCausalLM": moshi,
    **dict.fromkeys(("RoCBertForCausalLM", "RoCBertForMaskedLM"), roc_bert),
    "XLNetLMHeadModel": xlnet,
    **dict.fromkeys(("XmodForCausalLM", "XmodForMaskedLM"), xmod),
    "ZayaForCausalLM": zaya,
}
"""Readers by architecture."""
