"""Decoders on the Hugging Face hub: fields of our `Model` from a config.json, by a family's record.

`read` interprets a record of `families`. Falcon and Llama 4 decide what a layer has by several keys
together; each has a function of its own.
"""

from collections.abc import Callable
from typing import Any

from shardwise.config.base import MOST
from shardwise.huggingface.families import Experts, Family, When
from shardwise.huggingface.files import Config
from shardwise.huggingface.keys import GATED, PLAIN

Fields = dict[str, Any]

_BIASES = {(False, False): "none", (True, False): "qkv", (False, True): "output"}
# How DeepSeek balances experts: by a loss, or by a bias of the selection.
_METHODS = {"greedy": "loss", "group_limited_greedy": "loss", "noaux_tc": "bias"}


def read(c: Config, family: Family) -> Fields:
    """Fields of a `Model`, with `layers` one by one."""
    for key in family.needed:
        c.needed(key)
    left_out = [what for key, what in family.left_out.items() if c.value(key)]
    depth = c.depth("num_hidden_layers")
    attention = _attention(c, family, depth)
    blocks = _blocks(c, family, depth)
    # What a layer has around its blocks.
    parallel = _when(c, family.parallel)
    norms = "both" if _when(c, family.post_norm) else family.norms
    second = {"second_norm": True} if parallel and family.second_norm else {}
    layer = {"norms": norms, "parallel": parallel} | second
    _must(c, family)
    fields = {
        "hidden": c.count("hidden_size"),
        "vocab": 0 if family.images else c.count("vocab_size"),
        "layers": [
            {"attention": a, "moe" if "experts" in b else "mlp": b, **layer}
            for a, b in zip(attention, blocks, strict=True)
        ],
        "norm": family.norm,
        "norm_weight": family.norm_weight,
        "final_norm": _when(c, family.final_norm),
        "embedding_norm": family.embedding_norm,
        "head_transform": family.head_transform,
        "head_bias": _when(c, family.head_bias),
        "token_types": c.natural("type_vocab_size") if family.typed else 0,
        "position": family.position,
        "tied_embeddings": c.flag("tie_word_embeddings"),
        "dropout": c.has_dropout(),
        "left_out": [*left_out, *family.more_left_out],
    }
    if family.norm == "layernorm" and family.norm_weight and not _when(c, family.norm_bias):
        fields["norm_bias"] = False
    if family.position == "learned":
        fields["max_positions"] = c.count("max_position_embeddings") + family.more_positions
    if family.mtp:
        fields["mtp"] = c.natural(family.mtp)
    return fields | _of_images(c) if family.images else fields


def _of_images(c: Config) -> Fields:
    """Sequences of an encoder of images: its patches and one more token (arXiv 2010.11929)."""
    patch = c.count("patch_size")
    size = c.value("image_size")
    sides = size if isinstance(size, list) else [size, size]
    if len(sides) != len("hw") or not all(type(s) is int and patch <= s <= MOST for s in sides):
        c.wrong("image_size", f"must be one or two integers from {patch} to {MOST}", size)
        sides = [patch, patch]
    left_out = ["embedding of patches and their positions", "pooler or classifier"]
    seq_len = (sides[0] // patch) * (sides[1] // patch) + 1
    return {"seq_len": seq_len, "tied_embeddings": False, "left_out": left_out}


def _when(c: Config, when: When) -> bool:
    """Whether something holds: a fact, or what a key says."""
    if isinstance(when, bool):
        return when
    if when.startswith("!"):
        return not c.flag(when[1:])
    flags = [c.flag(key) for key in when.split("|")]  # every key is read
    return any(flags)


def _must(c: Config, family: Family) -> None:
    """Note keys whose value is not the one that is modeled; `=` stands before another key."""
    for key, allowed, problem in family.must:
        value = c.value(key)
        is_key = isinstance(allowed, str) and allowed.startswith("=")
        wanted = c.value(str(allowed)[1:]) if is_key else allowed
        if value is not None and value != wanted:
            c.wrong(key, problem, value)


def heads_divide(c: Config, *, floors: bool = False) -> int:
    """Width of a head: that of the model over its heads."""
    number, width = c.count("num_attention_heads"), c.count("hidden_size")
    if width % number and not c.faults and not floors:
        hidden = c.names_of("hidden_size")[0]
        c.wrong("num_attention_heads", f"must divide {hidden} {width}", number)
    return max(1, width // number)


def _attention(c: Config, family: Family, depth: int) -> list[Fields]:
    """The attention of every layer."""
    one = _latent(c) if family.latent else _heads(c, family)
    if family.sinks:
        one["sinks"] = True
    if family.gate:
        one["gate"] = family.gate
    if family.inner_norms:
        one["out_norm"] = True
    if family.qk_norm != "none" and _when(c, family.qk_normed):
        one["qk_norm"] = family.qk_norm
    if not _when(c, family.causal):
        one["causal"] = False
    inside = _inside_window(c, family, depth)
    if family.window != "none":
        c.value("sliding_window")  # may be there and used by no layer
    window = {"window": c.count("sliding_window")} if any(inside) else {}
    turned = _rotated(c, family, inside)
    return [
        one | (window if is_inside else {}) | ({} if has_rope else {"rotary_dim": 0})
        for is_inside, has_rope in zip(inside, turned, strict=True)
    ]


def _heads(c: Config, family: Family) -> Fields:
    """Heads, their width, biases, and the part of the width that is rotated.

    Without `head_dim` heads share the width of the model; without `num_key_value_heads` they are
    not grouped.
    """
    if c.value("head_dim") is None:
        head_dim = heads_divide(c, floors=family.floors)
    else:
        head_dim = c.count("head_dim")
    heads = c.count("num_attention_heads")
    grouped = c.count("num_key_value_heads", heads) if family.grouped else heads
    bias = (_when(c, family.qkv_bias), _when(c, family.out_bias))
    attention: Fields = {
        "heads": heads,
        "kv_heads": 1 if _when(c, family.single) else grouped,
        "head_dim": head_dim,
        "bias": _BIASES.get(bias, "all"),
    }
    if family.position != "rope":
        return attention
    if c.value("rotary_dim") is not None:
        return attention | {"rotary_dim": c.count("rotary_dim")}
    share = c.share("partial_rotary_factor", 1.0)
    return attention if share == 1 else attention | {"rotary_dim": int(head_dim * share)}


def _latent(c: Config) -> Fields:
    """Latent attention (arXiv 2405.04434)."""
    heads, rope = c.count("num_attention_heads"), c.count("qk_rope_head_dim")
    c.value("head_dim")  # in newer files the rotated part once more
    grouped = c.count("num_key_value_heads", heads)
    if grouped != heads:
        problem = f"must be num_attention_heads {heads}: latent attention has no groups"
        c.wrong("num_key_value_heads", problem, grouped)
    rank = c.natural("q_lora_rank")
    return {
        "heads": heads,
        "kv_heads": heads,
        "head_dim": c.count("qk_nope_head_dim") + rope,
        "v_head_dim": c.count("v_head_dim"),
        "latent": {"q_rank": rank or None, "kv_rank": c.count("kv_lora_rank"), "rope_dim": rope},
    }


def _inside_window(c: Config, family: Family, depth: int) -> list[bool]:
    """Which layers are inside a window."""
    if family.window == "none":
        return [False] * depth
    if family.window == "all":
        slides = c.value("sliding_window") is not None
        return named_layers(c, family.words, lambda _: slides)
    if family.window == "qwen":
        slides = c.flag("use_sliding_window")
        first = c.natural("max_window_layers", 28) if slides else 0
        return named_layers(c, family.words, lambda i: slides and i >= first)
    every = family.full_every
    step = every if isinstance(every, int) else c.count(every, _USUAL_TURNS)
    full = step - 1 if family.full_last else 0
    return named_layers(c, family.words, lambda i: i % step != full)


# Layers of a turn where a file does not say: `sliding_window_pattern` of the first Gemma 3.
_USUAL_TURNS = 6


def named_layers(c: Config, words: tuple[str, str], default: Callable[[int], bool]) -> list[bool]:
    """Which layers attend inside a window or chunk, by a word; older files leave it to a rule."""
    depth, kinds = c.depth("num_hidden_layers"), c.value("layer_types")
    if kinds is None:
        return [default(i) for i in range(depth)]
    return [kind == words[1] for kind in layer_words(c, "layer_types", depth, words)]


def layer_words(c: Config, key: str, depth: int, allowed: tuple[str, ...]) -> list[str]:
    """A list of words, one for each layer."""
    words = c.value(key)
    if not isinstance(words, list) or len(words) != depth:
        c.wrong(key, f"must be a list of {depth} words, one for each layer", words)
        return [allowed[0]] * depth
    for word in sorted({str(word) for word in words} - set(allowed)):
        c.wrong(key, f"not modeled; allowed: {', '.join(allowed)}", word)
    return [str(word) for word in words]


def _rotated(c: Config, family: Family, inside: list[bool]) -> list[bool]:
    """Which layers have rotary positions."""
    if family.unrotated == "full" and any(inside):
        return inside
    if family.unrotated == "listed":
        return [bool(turned) for turned in _rope_layers(c, len(inside))]
    return [True] * len(inside)


def _rope_layers(c: Config, depth: int) -> list[int]:
    """A number for each layer, 0 for those without rotary positions: each n-th, or listed."""
    step = c.count("no_rope_layer_interval", 4)
    turned = c.numbers("no_rope_layers") or [int((i + 1) % step != 0) for i in range(depth)]
    if len(turned) != depth:
        c.wrong("no_rope_layers", f"must be a list of {depth} integers, one for each layer", turned)
        return [1] * depth
    return turned


def mlp_block(c: Config, family: Family, key: str = "intermediate_size") -> Fields:
    """The MLP of a layer."""
    ratio = family.ffn_ratio
    wider = c.count(ratio) if isinstance(ratio, str) else ratio
    default = wider * c.count("hidden_size") if wider else None
    words = GATED if family.gated else PLAIN | {"xielu": "xielu"}
    if family.activation != "xielu":
        words = {word: kind for word, kind in words.items() if kind != "xielu"}
    block: Fields = {
        "ffn": c.count(key, default),
        "activation": c.one_of("hidden_act", words, family.activation),
    }
    block |= {"inner_norm": True} if family.inner_norms else {}
    return block | {"bias": True} if _when(c, family.mlp_bias) else block


def _blocks(c: Config, family: Family, depth: int) -> list[Fields]:
    """Experts or an MLP in every layer; the width of the MLP is read where there is one."""
    if family.experts is None:
        return [mlp_block(c, family)] * depth
    sparse = _sparse(c, family.experts, depth)
    experts = experts_block(c, family, family.experts)
    dense = experts if all(sparse) else mlp_block(c, family)
    return [experts if is_sparse else dense for is_sparse in sparse]


def experts_block(c: Config, family: Family, experts: Experts) -> Fields:
    """Routed and shared experts."""
    number = c.count(experts.number)
    block: Fields = {
        "experts": number,
        "top_k": c.count(experts.chosen),
        "ffn": c.count(experts.ffn),
        "activation": c.one_of("hidden_act", GATED, family.activation),
    }
    if experts.groups:
        block |= _groups(c, experts.number)
    if experts.shared_number:
        block["shared_ffn"] = c.natural(experts.shared_number) * block["ffn"]
    elif experts.shared_ffn:
        block["shared_ffn"] = c.natural(experts.shared_ffn)
    by_bias = (
        c.one_of("topk_method", _METHODS, experts.method) == "bias"
        if experts.method
        else _when(c, experts.selection_bias)
    )
    return block | {
        "bias": experts.bias,
        "router_bias": experts.router_bias,
        "selection_bias": by_bias,
        "shared_gate": experts.shared_gate and block["shared_ffn"] > 0,
    }


def _groups(c: Config, experts: str) -> Fields:
    """Groups of experts, and how many a token's are chosen from, where it is not any."""
    groups, chosen, number = c.natural("n_group"), c.natural("topk_group"), c.count(experts)
    if groups > 1 and number % groups and not c.faults:
        c.wrong("n_group", f"must divide {c.names_of(experts)[0]} {number}", groups)
    if chosen > max(1, groups) and not c.faults:
        c.wrong("topk_group", f"must be at most n_group {max(1, groups)}", chosen)
    return {"groups": groups, "top_groups": max(1, chosen)} if groups > 1 else {}


def _sparse(c: Config, experts: Experts, depth: int) -> list[bool]:
    """Which layers have experts."""
    if c.value("mlp_layer_types") is not None:
        words = layer_words(c, "mlp_layer_types", depth, experts.words)
        for key in ("first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers"):
            c.value(key)  # said once more
        return [word != "dense" for word in words]
    if experts.sparse == "leading":
        return _behind_dense(c, depth)
    if experts.sparse == "listed":
        listed = c.numbers("moe_layer_freq") or [0] + [1] * (depth - 1)
        if len(listed) != depth:
            c.wrong("moe_layer_freq", f"must be a list of {depth} integers", listed)
        return [bool(flag) for flag in (*listed, *[1] * depth)][:depth]
    if experts.sparse == "steps":
        step, dense = c.count("decoder_sparse_step", 1), c.layers("mlp_only_layers", depth)
        return [i not in dense and (i + 1) % step == 0 for i in range(depth)]
    if experts.sparse == "indices":
        first, step = c.natural("moe_layer_start_index"), c.count("moe_layer_interval", 1)
        last = c.value("moe_layer_end_index")
        end = depth - 1 if last in (None, -1) else c.natural("moe_layer_end_index")
        return [first <= i <= end and (i + 1) % step == 0 for i in range(depth)]
    return [True] * depth


def _behind_dense(c: Config, depth: int) -> list[bool]:
    """The first `first_k_dense_replace` layers are dense; of the others every n-th has experts."""
    step, first = c.count("moe_layer_freq", 1), c.natural("first_k_dense_replace")
    if first > depth and not c.faults:
        problem = f"must be at most num_hidden_layers {depth}"
        c.wrong("first_k_dense_replace", problem, first)
    return [i >= first and i % step == 0 for i in range(depth)]


def falcon(c: Config, family: Family) -> Fields:
    """Multi-query or grouped heads, one or two norms in parallel layers, ALiBi or rotary."""
    newer, one = c.flag("new_decoder_architecture"), c.flag("multi_query", default=True)
    heads = c.count("num_attention_heads")
    grouped = c.count("num_kv_heads", heads)
    parallel = c.flag("parallel_attn", default=True) or newer
    norms = c.count("num_ln_in_parallel_attn", 2) if newer else 1
    fields = read(c, family)
    kv_heads = grouped if newer else 1 if one else heads
    for layer in fields["layers"]:
        layer["attention"] |= {"kv_heads": kv_heads}
        layer |= {"parallel": parallel, "second_norm": parallel and norms > 1}
    return fields | {"position": "alibi" if c.flag("alibi") else "rope"}


def llama4(c: Config, family: Family) -> Fields:
    """Chunks, rotary positions and their norm in all layers but each fourth; experts in each n-th.

    Dense layers are wider than the experts.
    """
    depth = c.depth("num_hidden_layers")
    turned = _rope_layers(c, depth)
    inside = named_layers(c, ("full_attention", "chunked_attention"), lambda i: bool(turned[i]))
    chunk = {"chunk": c.count("attention_chunk_size", 8192)}
    norm = {"qk_norm": "unweighted"} if c.flag("use_qk_norm", default=True) else {}
    experts = experts_block(c, family, Experts(number="num_local_experts", ffn="intermediate_size"))
    experts["shared_ffn"] = experts["ffn"]
    every = c.count("interleave_moe_layer_step", 1)
    listed = c.value("moe_layers") is not None
    named = c.layers("moe_layers", depth) if listed else set(range(every - 1, depth, every))
    dense = experts if len(named) == depth else mlp_block(c, family, "intermediate_size_mlp")
    fields = read(c, family)
    for i, layer in enumerate(fields["layers"]):
        layer["attention"] |= (chunk if inside[i] else {}) | (
            norm if turned[i] else {"rotary_dim": 0}
        )
        del layer["mlp"]
        layer["moe" if i in named or dense is experts else "mlp"] = experts if i in named else dense
    return fields
