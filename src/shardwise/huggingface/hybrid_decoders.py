"""Readers of families with state spaces, delta rules, linear attention and short convolutions.

Each starts from what `decoders.read` finds by the family's record, and puts mixers in the place of
attention or next to it.
"""

from collections.abc import Callable, Mapping, Sequence

from shardwise.huggingface.decoders import Fields, experts_block, layer_words, mlp_block, read
from shardwise.huggingface.families import Experts, Family
from shardwise.huggingface.files import Config

_LINEAR, _FULL = "linear_attention", "full_attention"
_UNROTATED = {"rotary_dim": 0}
_USUAL_INTERVAL = 4


def _mixed(fields: Fields, mixer: Fields, mixes: Sequence[bool]) -> Fields:
    """Put a mixer in the place of attention in some layers."""
    for layer, is_mixer in zip(fields["layers"], mixes, strict=True):
        if is_mixer:
            del layer["attention"]
            layer["mixer"] = mixer
    return fields


def _linear(c: Config, depth: int, default: Callable[[int], bool]) -> list[bool]:
    """Which layers have no attention, by `layer_types` or a rule."""
    if c.value("layer_types") is None:
        return [default(i) for i in range(depth)]
    words = layer_words(c, "layer_types", depth, (_FULL, _LINEAR, "attention", "mamba"))
    return [word in (_LINEAR, "mamba") for word in words]


def _gated_delta(c: Config) -> Fields:
    return {
        "kind": "gated_delta",
        "key_heads": c.count("linear_num_key_heads"),
        "value_heads": c.count("linear_num_value_heads"),
        "key_dim": c.count("linear_key_head_dim"),
        "value_dim": c.count("linear_value_head_dim"),
        "conv": c.count("linear_conv_kernel_dim", 4),
    }


def qwen3_next(c: Config, family: Family) -> Fields:
    """Gated delta rule in three of four layers, gated attention in the others; 3.5 and 3.6 too."""
    fields = read(c, family)
    if c.value("partial_rotary_factor") is None:
        for layer in fields["layers"]:
            layer["attention"]["rotary_dim"] = layer["attention"]["head_dim"] // 4
    every = c.count("full_attention_interval", _USUAL_INTERVAL)
    linear = _linear(c, len(fields["layers"]), lambda i: (i + 1) % every != 0)
    return _mixed(fields, _gated_delta(c), linear)


def olmo_hybrid(c: Config, family: Family) -> Fields:
    """Norms before gated delta rules, and after attention and its MLP."""
    fields = read(c, family)
    linear = _linear(c, len(fields["layers"]), lambda i: (i + 1) % _USUAL_INTERVAL != 0)
    for layer, is_linear in zip(fields["layers"], linear, strict=True):
        layer["norms"] = "pre" if is_linear else "post"
    return _mixed(fields, _gated_delta(c), linear)


def kimi_linear(c: Config, family: Family) -> Fields:
    """Kimi delta attention, and latent attention without positions in every fourth layer."""
    fields = read(c, family) | {"tied_embeddings": False}  # whatever the file says
    gate = {"gate": "value"} if c.flag("mla_use_output_gate") else {}
    latent = c.natural("routed_expert_hidden_size")
    for layer in fields["layers"]:
        layer["attention"] |= _UNROTATED | gate
        if latent and "moe" in layer:
            layer["moe"] = layer["moe"] | {"latent": latent}
    linear = c.value("linear_attn_config")
    listed = linear.get("full_attn_layers") if isinstance(linear, Mapping) else None
    full = {layer - 1 for layer in listed} if listed and _are_numbers(listed) else None

    def is_linear(layer: int) -> bool:
        return layer not in full if full is not None else not layer or layer % 4 != 0

    mixes = _linear(c, len(fields["layers"]), is_linear)
    mixer = {
        "kind": "kimi_delta",
        "heads": c.count("linear_num_heads"),
        "head_dim": c.count("linear_head_dim"),
        "conv": c.count("linear_conv_kernel_dim", 4),
        "full_rank_gate": c.flag("use_full_rank_gate"),
    }
    return _mixed(fields, mixer, mixes)


def _are_numbers(listed: object) -> bool:
    return isinstance(listed, list) and all(type(one) is int for one in listed)


def bailing_hybrid(c: Config, family: Family) -> Fields:
    """Kimi delta attention with full gates, and latent attention at the end of each group."""
    fields = read(c, family) | {"tied_embeddings": False}  # whatever the file says
    size, own = c.count("layer_group_size", 6), "linear_head_dim"
    linear = _linear(c, len(fields["layers"]), lambda i: (i + 1) % size != 0)
    mixer = {
        "kind": "kimi_delta",
        "heads": c.count("num_attention_heads"),
        "head_dim": c.count("head_dim" if c.value(own) is None else own, 128),
        "conv": c.count("short_conv_kernel_size", 4),
        "full_rank_gate": True,
        "full_rank_decay": True,
    }
    return _mixed(fields, mixer, linear)


def minimax(c: Config, family: Family) -> Fields:
    """Lightning attention, and softmax attention in some layers (MiniMax-01 and M1)."""
    fields = read(c, family)
    depth, kinds = len(fields["layers"]), c.numbers("attn_type_list")
    if kinds and (len(kinds) != depth or set(kinds) - {0, 1}):
        c.wrong("attn_type_list", f"must be a list of 0 and 1, one for each of {depth} layers")
        kinds = []
    linear = _linear(c, depth, lambda i: kinds[i] == 0 if kinds else i % 2 == 1)
    attention = fields["layers"][0]["attention"]
    mixer = {
        "kind": "lightning",
        "heads": attention["heads"],
        "head_dim": attention["head_dim"],
        "block": c.count("block_size", 256),
    }
    return _mixed(fields, mixer, linear)


def _convolution(c: Config, taps: int) -> Fields:
    found = {"kind": "short_conv", "conv": c.count("conv_L_cache", taps)}
    return found | {"bias": True} if c.flag("conv_bias") else found


def lfm2(c: Config, family: Family) -> Fields:
    """Short convolutions, and attention in some layers; the MLP may be two thirds as wide."""
    fields = read(c, family)
    depth = len(fields["layers"])
    full = c.layers("full_attn_idxs", depth) or set(range(depth))
    convolves = [i not in full for i in range(depth)]
    if c.value("layer_types") is not None:
        convolves = [w == "conv" for w in layer_words(c, "layer_types", depth, (_FULL, "conv"))]
    for layer in fields["layers"]:
        if "mlp" in layer and family.experts is None:
            layer["mlp"] = layer["mlp"] | {"ffn": _adjusted(c, layer["mlp"]["ffn"])}
    fields["tied_embeddings"] = c.flag("tie_word_embeddings", default=True)
    return _mixed(fields, _convolution(c, 3), convolves)


def _adjusted(c: Config, ffn: int) -> int:
    if not c.flag("block_auto_adjust_ff_dim", default=True):
        return ffn
    multiple, factor = c.count("block_multiple_of", 256), c.value("block_ffn_dim_multiplier")
    ffn = int(float(1.0 if factor is None else factor) * (2 * ffn // 3))
    return -(-ffn // multiple) * multiple


_LFM3 = (_FULL, "sliding_attention", "conv")


def lfm3(c: Config, family: Family) -> Fields:
    """Short convolutions, and gated attention with and without a window."""
    fields = read(c, family)
    depth = len(fields["layers"])
    words = layer_words(c, "layer_types", depth, _LFM3)
    gate = {"gate": "head"} if c.flag("use_attention_gate", default=True) else {}
    share = c.value("rope_parameters")
    for layer, word in zip(fields["layers"], words, strict=True):
        layer["attention"] |= gate
        if word == "sliding_attention":
            layer["attention"]["window"] = c.count("sliding_window", 256)
        own = share.get(word) if isinstance(share, Mapping) else None
        usual = 0.5 if share is None and word == _FULL else 1.0
        part = own.get("partial_rotary_factor", 1.0) if isinstance(own, Mapping) else usual
        if part != 1:
            layer["attention"]["rotary_dim"] = int(layer["attention"]["head_dim"] * part)
    fields["tied_embeddings"] = c.flag("tie_word_embeddings", default=True)
    return _mixed(fields, _convolution(c, 7), [word == "conv" for word in words])


def jamba(c: Config, family: Family) -> Fields:
    """Mamba-1, and attention without positions and experts in layers at a period and an offset."""
    fields = read(c, family)
    hidden = fields["hidden"]
    experts = c.natural("num_experts", 16)
    moe = experts_block(c, family, Experts(number="num_experts", ffn="intermediate_size"))
    every, first = c.count("attn_layer_period", 8), c.natural("attn_layer_offset", 4)
    sparse, start = c.count("expert_layer_period", 2), c.natural("expert_layer_offset", 1)
    for i, layer in enumerate(fields["layers"]):
        layer["attention"] |= _UNROTATED
        if experts > 1 and i % sparse == start:
            del layer["mlp"]
            layer["moe"] = moe
    rank = c.value("mamba_dt_rank")
    mixer = {
        "kind": "mamba1",
        "width": c.count("mamba_expand", 2) * hidden,
        "state": c.count("mamba_d_state", 16),
        "rank": -(-hidden // 16) if rank in (None, "auto") else c.count("mamba_dt_rank"),
        "conv": c.count("mamba_d_conv", 4),
        "conv_bias": c.flag("mamba_conv_bias", default=True),
        "bias": c.flag("mamba_proj_bias"),
        "inner_norms": True,
    }
    mixes = [i % every != first for i in range(len(fields["layers"]))]
    return _mixed(fields, mixer, mixes)


def _mamba2(c: Config, *, width: int | None = None) -> Fields:
    """Mamba-2 by the keys of Granite and Falcon, or of Nemotron.

    Parameters
    ----------
    width
        Inner width that the heads share; None: heads have a width of their own.
    """
    heads = c.count("mamba_num_heads")
    head_dim = c.value("mamba_head_dim")
    if width is not None and head_dim in (None, "auto"):
        head_dim = max(1, width // heads)
        if width % heads and not c.faults:
            c.wrong("mamba_num_heads", f"must divide the inner width {width}", heads)
    else:
        head_dim = c.count("mamba_head_dim")
    return {
        "kind": "mamba2",
        "heads": heads,
        "head_dim": head_dim,
        "state": c.count("ssm_state_size"),
        "groups": c.count("n_groups", 1),
        "conv": c.count("conv_kernel", 4),
        "chunk": c.count("chunk_size", 256),
        "conv_bias": c.flag("use_conv_bias", default=True),
        "bias": c.flag("mamba_proj_bias"),
    }


def falcon_h1(c: Config, family: Family) -> Fields:
    """Attention and Mamba-2 side by side in every layer."""
    fields = read(c, family)
    given = c.value("mamba_d_ssm")
    wide = c.count("mamba_expand", 2) * fields["hidden"]
    mixer = _mamba2(c, width=wide if given is None else c.count("mamba_d_ssm"))
    mixer["gated_norm"] = c.flag("mamba_rms_norm")
    for layer in fields["layers"]:
        layer["mixer"] = mixer
    return fields


def granite_hybrid(c: Config, family: Family) -> Fields:
    """Mamba-2 and attention, with experts and a shared MLP, or the latter alone."""
    experts = c.natural("num_local_experts", 8)
    dense = experts == 0
    fields = read(c, family if not dense else Family(kinds=family.kinds, names=family.names))
    rotated = c.value("position_embedding_type") == "rope"
    for layer in fields["layers"]:
        layer["attention"] |= {} if rotated else _UNROTATED
        if dense:
            layer["mlp"] = mlp_block(c, family, "shared_intermediate_size")
    mixer = _mamba2(c, width=c.count("mamba_expand", 2) * fields["hidden"])
    return _mixed(fields, mixer, _linear(c, len(fields["layers"]), lambda _: True))


_SYMBOLS = {"mamba": "M", _LINEAR: "M", "attention": "*", _FULL: "*", "mlp": "-", "moe": "E"}


def nemotron_h(c: Config, family: Family) -> Fields:
    """Mamba-2, attention without positions, MLPs and experts, each a layer of its own."""
    pattern = _pattern(c, "hybrid_override_pattern", "layer_types")
    depth = c.value("num_hidden_layers")
    if depth is not None and depth != len(pattern):
        c.wrong("num_hidden_layers", f"is {len(pattern)} in the pattern of layers", depth)
    c.defaults = {**c.defaults, "num_hidden_layers": len(pattern)}
    fields = read(c, family)
    one = fields["layers"][0]
    around = {"norms": one["norms"], "parallel": False}
    blocks: dict[str, Fields] = {
        "M": {"mixer": _mamba2(c) if "M" in pattern else {}},
        "*": {"attention": one["attention"] | _UNROTATED},
        "-": {"mlp": one["mlp"]},
        "E": {"moe": _nemotron_experts(c) if "E" in pattern else {}},
    }
    layers = [blocks[symbol] | around | {"symbol": symbol} for symbol in pattern]
    fields["layers"] = layers
    fields["tied_embeddings"] = False  # whatever the file says
    if modules := c.natural("num_nextn_predict_layers"):
        heads = _pattern(c, "mtp_hybrid_override_pattern", "mtp_layers_block_type", "*E")
        fields |= {"mtp": modules, "mtp_pattern": heads}
    return fields


def _pattern(c: Config, text: str, listed: str, default: str = "") -> str:
    """Symbols of layers, by a string or a list of words."""
    found, words = c.value(text), c.value(listed)
    if found is None and isinstance(words, list):
        unknown = [word for word in words if word not in _SYMBOLS]
        if unknown:
            c.wrong(listed, f"not modeled; allowed: {', '.join(_SYMBOLS)}", unknown[0])
        return "".join(_SYMBOLS.get(str(word), "-") for word in words) or "-"
    if found is None and default:
        return default
    if not isinstance(found, str) or not found or set(found) - set("M*-E"):
        c.wrong(text, "must be a string of M, *, - and E, one for each layer", found)
        return "-"
    return found


def _nemotron_experts(c: Config) -> Fields:
    c.value("n_shared_experts")  # the class has one shared expert, whatever it says
    block: Fields = {
        "experts": c.count("n_routed_experts", 8),
        "top_k": c.count("num_experts_per_tok", 2),
        "ffn": c.count("moe_intermediate_size"),
        "activation": "relu2",
        "shared_ffn": c.natural("moe_shared_expert_intermediate_size"),
        "selection_bias": True,
    }
    groups, chosen = c.natural("n_group", 1), c.natural("topk_group", 1)
    if groups > 1:
        block |= {"groups": groups, "top_groups": chosen}
    latent = c.natural("moe_latent_size")
    return block | {"latent": latent} if latent else block


def bamba(c: Config, family: Family) -> Fields:
    """Mamba-2, and attention with half of each head rotated in listed layers."""
    fields = read(c, family)
    depth = len(fields["layers"])
    full = c.layers("attn_layer_indices", depth)
    if c.value("partial_rotary_factor") is None:
        for layer in fields["layers"]:
            layer["attention"]["rotary_dim"] = layer["attention"]["head_dim"] // 2
    mixer = _mamba2(c, width=c.count("mamba_expand", 2) * fields["hidden"])
    return _mixed(fields, mixer, [i not in full for i in range(depth)])


def _of_states(c: Config, mixer: Fields, *, tied: bool) -> Fields:
    """A model of mixers alone, each with a norm before it."""
    return {
        "hidden": c.count("hidden_size"),
        "vocab": c.count("vocab_size"),
        "layers": [{"mixer": mixer}] * c.depth("num_hidden_layers"),
        "norm": "rmsnorm",
        "position": "rope",
        "tied_embeddings": c.flag("tie_word_embeddings", default=tied),
    }


def mamba(c: Config, family: Family) -> Fields:
    """Mamba-1 alone; Falcon-Mamba normalizes time step, B and C without weights."""
    del family
    hidden, rank = c.count("hidden_size"), c.value("time_step_rank")
    mixer = {
        "kind": "mamba1",
        "width": c.count("intermediate_size", c.count("expand", 2) * hidden),
        "state": c.count("state_size", 16),
        "rank": -(-hidden // 16) if rank in (None, "auto") else c.count("time_step_rank"),
        "conv": c.count("conv_kernel", 4),
        "conv_bias": c.flag("use_conv_bias", default=True),
        "bias": c.flag("use_bias"),
    }
    return _of_states(c, mixer, tied=True)


def mamba2(c: Config, family: Family) -> Fields:
    """Mamba-2 alone."""
    del family
    mixer = {
        "kind": "mamba2",
        "heads": c.count("num_heads", 128),
        "head_dim": c.count("head_dim", 64),
        "state": c.count("state_size", 128),
        "groups": c.count("n_groups", 8),
        "conv": c.count("conv_kernel", 4),
        "chunk": c.count("chunk_size", 256),
        "conv_bias": c.flag("use_conv_bias", default=True),
        "bias": c.flag("use_bias"),
    }
    return _of_states(c, mixer, tied=False)


OWN: dict[str, Callable[[Config, Family], Fields]] = {
    "BailingHybridForCausalLM": bailing_hybrid,
    "BambaForCausalLM": bamba,
    "FalconMambaForCausalLM": mamba,
    "FalconH1ForCausalLM": falcon_h1,
    "GraniteMoeHybridForCausalLM": granite_hybrid,
    "JambaForCausalLM": jamba,
    "KimiLinearForCausalLM": kimi_linear,
    "Lfm2ForCausalLM": lfm2,
    "Lfm2MoeForCausalLM": lfm2,
    "Lfm3ForCausalLM": lfm3,
    "Mamba2ForCausalLM": mamba2,
    "MambaForCausalLM": mamba,
    "MiniMaxForCausalLM": minimax,
    "MiniMaxM1ForCausalLM": minimax,
    "MiniMaxText01ForCausalLM": minimax,
    "NemotronHForCausalLM": nemotron_h,
    "OlmoHybridForCausalLM": olmo_hybrid,
    "Qwen3NextForCausalLM": qwen3_next,
    "Qwen3_5ForCausalLM": qwen3_next,
    "Qwen3_5MoeForCausalLM": qwen3_next,
}
"""Readers of these families by architecture."""
