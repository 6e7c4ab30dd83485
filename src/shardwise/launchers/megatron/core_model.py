"""Architectures as fields of Megatron-Core's configuration, and the way back.

Names are those of TransformerConfig and MLATransformerConfig (megatron/core/transformer,
Megatron-LM d98e8a64 of 2026-08-22), and of the GPT model around them.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from shardwise.config import enums
from shardwise.config.model import OWN_KIND, Attention, Layer, Mlp, Model, Moe, uncommon_fields
from shardwise.errors import Fault
from shardwise.launchers.megatron.core_hybrid import (
    PATTERN,
    hybrid_attention,
    hybrid_faults,
    hybrid_fields,
    is_hybrid,
    pattern_layers,
)
from shardwise.launchers.megatron.core_stack import CoreReading, Value

_MAY_DIFFER = {"window": None, "rotary_dim": None}


def model_faults(model: Model) -> Iterator[Fault]:
    """Yield what Megatron-Core's GPT model has no field for."""

    def fault(field: str, value: object, problem: str) -> Fault:
        return Fault.of(field, value, f"Megatron-Core: {problem}", f"model {model.name}")

    plain: dict[str, tuple[object, str]] = {
        "embedding_norm": (False, "no norm after the embedding"),
        "final_norm": (True, "always has a norm before the head"),
        "token_types": (0, "GPT models have no token types"),
        "head_transform": (False, "GPT models have no layer before the head"),
        "head_bias": (False, "GPT models have no bias of the head"),
        "norm_weight": (True, "norms have a weight"),
    }
    for field, (allowed, problem) in plain.items():
        if (own := getattr(model, field)) != allowed:
            yield fault(field, own, problem)
    for field, value, problem in (*_without_option(model), *_of_layers(model)):
        if field == "layers":
            source = f"model {model.name}"
            yield Fault(source=source, field=field, problem=f"Megatron-Core: {problem}")
        else:
            yield fault(field, value, problem)


def _of_layers(model: Model) -> Iterator[tuple[str, object, str]]:
    """Yield fields of layers without an option: field, value, problem."""
    hybrid = is_hybrid(model)
    for number, layer in enumerate(model.layers):
        for field, value, problem in _layer_faults(layer, hybrid=hybrid):
            yield f"layers.{number}.{field}", value, problem
    if hybrid:
        yield from hybrid_faults(model)
    for field, problem in _unlike(model, hybrid=hybrid):
        yield field, None, problem


def _without_option(model: Model) -> Iterator[tuple[str, object, str]]:
    """Yield fields of a model without an option: field, value, problem."""
    for field, value in uncommon_fields(model).items():
        if not field.endswith(("attention.gate", "attention.indexer", "moe.latent")):
            yield field, value, "GPT models have no option for it"
    if model.vocab == 0:
        yield "vocab", 0, "GPT models have an embedding and a head"
    if model.norm == enums.Norm.LAYERNORM and model.norm_bias is False:
        yield "norm_bias", False, "a LayerNorm has a bias"
    if model.position not in (enums.Position.LEARNED, enums.Position.ROPE):
        yield "position", model.position, "allowed: learned, rope"


def _layer_faults(layer: Layer, *, hybrid: bool) -> Iterator[tuple[str, object, str]]:
    """Yield fields of a layer without an option: field, value, problem."""
    if layer.kind != OWN_KIND:
        yield "kind", layer.kind, "transformer layers only"
        return
    if layer.mlp is not None and layer.moe is not None:
        yield "moe", None, "no MLP next to experts"
        return
    if layer.parallel:
        yield "parallel", True, "no parallel layers"
    if layer.norms != enums.NormPlacement.PRE and not hybrid:
        yield "norms", layer.norms, "norms stand before blocks; allowed: pre"
    attention = layer.attention
    for field, value, problem in _attention_faults(attention) if attention else ():
        yield f"attention.{field}", value, problem
    for field, value, problem in _expert_faults(layer.moe) if layer.moe else ():
        yield f"moe.{field}", value, problem
    if (block := layer.mlp or layer.moe) is not None:
        yield from _block_faults(layer, block)


def _block_faults(layer: Layer, block: Mlp | Moe) -> Iterator[tuple[str, object, str]]:
    attention = layer.attention
    if block.activation not in (*GATED_ACTIVATIONS, *PLAIN_ACTIVATIONS):
        yield f"{_block(layer)}.activation", block.activation, "not this activation"
    if attention is not None and (attention.bias, block.bias) not in BIASES:
        problem = f"with {_block(layer)}.bias {str(block.bias).lower()} no such biases"
        yield "attention.bias", attention.bias, problem


def _attention_faults(attention: Attention) -> Iterator[tuple[str, object, str]]:
    if attention.chunk is not None:
        yield "chunk", attention.chunk, "no attention inside chunks"
    if not attention.causal:
        yield "causal", False, "GPT models are causal"
    if attention.qk_norm == enums.QkNorm.WIDTH:
        yield "qk_norm", attention.qk_norm, "norms of queries and keys are per head"
    if attention.gate not in (enums.AttentionGate.NONE, enums.AttentionGate.FULL):
        yield "gate", attention.gate, "gates come from the query projection; allowed: none, full"
    if attention.latent is None and attention.value_dim != attention.head_dim:
        yield "v_head_dim", attention.v_head_dim, "with latent attention only"
    if attention.latent is not None and attention.qk_norm != enums.QkNorm.NONE:
        yield "qk_norm", attention.qk_norm, "latent attention has norms of compressed widths only"


def _expert_faults(moe: Moe) -> Iterator[tuple[str, object, str]]:
    if moe.router_bias != moe.bias:
        yield "router_bias", moe.router_bias, "router and experts both have biases"
    if moe.bias and moe.shared_ffn:
        yield "bias", True, "shared experts have no biases"
    if moe.top_groups is not None and moe.groups is None:
        yield "groups", None, "needs the number of groups"


def _block(layer: Layer) -> str:
    return "mlp" if layer.mlp else "moe"


def _unlike(model: Model, *, hybrid: bool) -> Iterator[tuple[str, str]]:
    """Yield fields that differ between layers and may not."""
    may_differ = {} if hybrid else _MAY_DIFFER
    bare = [one.model_copy(update=may_differ) for one in model.attentions]
    if any(one != bare[0] for one in bare):
        some = "" if hybrid else "; it may differ in its window and rotary width"
        yield "layers", f"one attention for all layers that have it{some}"
    if len({one.window for one in model.attentions} - {None}) > 1:
        yield "layers", "one window for all layers that have one"
    if len({rotated_width(one) for one in model.attentions} - {0}) > 1:
        yield "layers", "one rotary width for all layers that have one"
    if len({one.mlp for one in model.layers if one.mlp}) > 1:
        yield "layers", "one MLP for all dense layers"
    if len({one.moe for one in model.layers if one.moe}) > 1:
        yield "layers", "one mixture of experts for all layers that have one"
    blocks = [block for one in model.layers if (block := one.mlp or one.moe) is not None]
    if len({(one.activation, one.bias) for one in blocks}) > 1:
        yield "layers", "one activation, and biases for all layers or none"
    if not blocks:
        yield "layers", "an MLP or experts in some layer"


GATED_ACTIVATIONS = {
    enums.Activation.SWIGLU: "silu",
    enums.Activation.GEGLU: "gelu",
    enums.Activation.REGLU: "relu",
}
PLAIN_ACTIVATIONS = {
    enums.Activation.GELU: "gelu",
    enums.Activation.RELU: "relu",
    enums.Activation.SILU: "silu",
    enums.Activation.RELU2: "squared_relu",
}
# The sigmoid approximation of GELU, which gpt-oss has: x sigmoid(1.702 x), as silu by cost.
_QUICK = {True: enums.Activation.SWIGLU, False: enums.Activation.GELU}
BIASES = {
    (enums.AttentionBias.ALL, True): (True, False),
    (enums.AttentionBias.NONE, False): (False, False),
    (enums.AttentionBias.QKV, False): (False, True),
}
"""Biases of attention and of the MLP, as add_bias_linear and add_qkv_bias."""
_NORMS = {enums.Norm.RMSNORM: "RMSNorm", enums.Norm.LAYERNORM: "LayerNorm"}
_POSITIONS = {
    "learned_absolute": enums.Position.LEARNED,
    "rope": enums.Position.ROPE,
    "yarn": enums.Position.ROPE,
    "mrope": enums.Position.ROPE,
    "none": enums.Position.ROPE,
    "alibi": enums.Position.ALIBI,  # of forks: Megatron-DeepSpeed
    "rotary": enums.Position.ROPE,
}
_DROPOUT = 0.1
"""Of Megatron-LM; a model says only whether there is dropout."""
_MLA = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_MLA_DEFAULTS = {"kv_lora_rank": 32, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64}


# --- Writing --------------------------------------------------------------------------------------


def model_fields(model: Model) -> dict[str, Value]:
    """Fields of an architecture that has no `model_faults`."""
    layers = [model.layers[kind] for kind in model.order]
    attention = model.attentions[0]
    dense = [layer.mlp for layer in layers if layer.mlp]
    experts = [layer.moe for layer in layers if layer.moe]
    block: Mlp | Moe = (dense or experts)[0]
    gated = block.gated
    names = GATED_ACTIVATIONS if gated else PLAIN_ACTIVATIONS
    add_bias, add_qkv_bias = BIASES[(attention.bias, block.bias)]
    dropout = _DROPOUT if model.dropout else 0.0
    fields: dict[str, Value] = {
        "num_layers": len(layers),
        "mtp_num_layers": model.mtp or None,
        "hidden_size": model.hidden,
        "ffn_hidden_size": block.ffn,
        "num_attention_heads": attention.heads,
        "gated_linear_unit": gated,
        "activation_func": names[block.activation],
        "add_bias_linear": add_bias,
        "add_qkv_bias": add_qkv_bias,
        "normalization": _NORMS[model.norm],
        "softmax_type": "learnable" if attention.sinks else "vanilla",
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
        "vocab_size": model.vocab,
        "share_embeddings_and_output_weights": model.tied_embeddings,
    }
    with_attention = [layer for layer in layers if layer.attention is not None]
    fields |= _attention_fields(attention)
    fields |= _position_fields(model, with_attention) | _window_fields(with_attention)
    fields |= _expert_fields(experts[0], layers) if experts else {"num_moe_experts": None}
    if is_hybrid(model):
        fields |= {"moe_layer_freq": None, **hybrid_fields(model)}
    return fields


def _attention_fields(attention: Attention) -> dict[str, Value]:
    latent = attention.latent
    norm = attention.qk_norm
    if latent is None:
        grouped = attention.kv_heads != attention.heads
        return {
            "multi_latent_attention": False,
            "num_query_groups": attention.kv_heads if grouped else None,
            "kv_channels": attention.head_dim,
            "qk_layernorm": norm == enums.QkNorm.HEAD,
            "qk_l2_norm": norm == enums.QkNorm.UNWEIGHTED,
            "attention_output_gate": attention.gate == enums.AttentionGate.FULL,
        }
    # The norms of the compressed widths, which latent attention has, are its qk_layernorm.
    return {
        "multi_latent_attention": True,
        "num_query_groups": None,
        "qk_layernorm": True,
        "qk_l2_norm": False,
        "q_lora_rank": latent.q_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_head_dim": attention.head_dim - latent.rope_dim,
        "qk_pos_emb_head_dim": latent.rope_dim,
        "v_head_dim": attention.value_dim,
        "rope_type": "rope",
    }


def _position_fields(model: Model, layers: Sequence[Layer]) -> dict[str, Value]:
    if model.position == enums.Position.LEARNED:
        rows = model.max_positions or model.seq_len
        return {"position_embedding_type": "learned_absolute", "max_position_embeddings": rows}
    skipped = tuple(int(layer.own_attention.rotary_dim == 0) for layer in layers)
    if all(skipped):
        return {"position_embedding_type": "none"}
    rotated = next(one.own_attention for one in layers if one.own_attention.rotary_dim != 0)
    return {
        "position_embedding_type": "rope",
        "rotary_percent": rotated_width(rotated) / rotated.head_dim,
        "no_rope_freq": skipped if any(skipped) else None,
    }


def _window_fields(layers: Sequence[Layer]) -> dict[str, Value]:
    """Sliding windows; Megatron-Core counts the tokens before a position."""
    windows = [layer.own_attention.window for layer in layers]
    width = next((one for one in windows if one is not None), None)
    if width is None:
        return {"window_size": None, "window_attn_skip_freq": None}
    pattern = tuple(int(one is not None) for one in windows)
    return {
        "window_size": (width - 1, 0),
        "window_attn_skip_freq": None if all(pattern) else pattern,
    }


def _expert_fields(moe: Moe, layers: Sequence[Layer]) -> dict[str, Value]:
    pattern = tuple(int(layer.moe is not None) for layer in layers)
    return {
        "num_moe_experts": moe.experts,
        "moe_ffn_hidden_size": moe.ffn,
        "moe_layer_freq": 1 if all(pattern) else pattern,
        "moe_router_topk": moe.top_k,
        "moe_router_pre_softmax": moe.top_k == 1 and not moe.selection_bias,
        "moe_router_num_groups": moe.groups if moe.top_groups else None,
        "moe_router_group_topk": moe.top_groups,
        "moe_router_score_function": "sigmoid" if moe.selection_bias else "softmax",
        "moe_router_enable_expert_bias": moe.selection_bias,
        "moe_shared_expert_intermediate_size": moe.shared_ffn or None,
        "moe_shared_expert_gate": moe.shared_gate,
        "moe_latent_size": moe.latent,
    }


def rotated_width(attention: Attention) -> int:
    """Rotated width of a head."""
    return attention.head_dim if attention.rotary_dim is None else attention.rotary_dim


# --- Reading --------------------------------------------------------------------------------------


def read_model(reading: CoreReading, name: str, padded_to: int) -> dict[str, object] | None:
    """Read an architecture as fields of `Model`; None if something of it is wrong.

    Parameters
    ----------
    padded_to
        Vocabulary where the configuration names none, as its tokenizer would pad to.
    """
    before = len(reading.faults)
    hybrid = reading.value(PATTERN) is not None
    depth_field = () if hybrid else ("num_layers",)
    for needed in (*depth_field, "hidden_size", "num_attention_heads", "seq_length"):
        if reading.whole(needed) is None:
            reading.missing(needed)
    vocab, padded = reading.whole("vocab_size"), reading.whole("padded_vocab_size")
    vocab = vocab or padded or padded_to
    if not vocab:
        problem = (
            "is missing: only the tokenizer has it; set it (--set vocab_size=N), or name a model "
            "that has it"
        )
        reading.missing("vocab_size", problem)
    if len(reading.faults) > before:
        return None
    attention = _read_attention(reading)
    words = {core.lower(): own for own, core in _NORMS.items()}
    words["layernorm1p"] = enums.Norm.LAYERNORM  # of NeMo: weights are stored less one
    word = reading.word("normalization", tuple(words))
    fields: dict[str, object] = {
        "name": name,
        "description": "Imported from a launch file of Megatron-Core.",
        "hidden": reading.positive("hidden_size"),
        "vocab": vocab,
        "seq_len": reading.positive("seq_length"),
        "mtp": reading.whole("mtp_num_layers") or 0,
        "norm": words.get(word or "", enums.Norm.LAYERNORM),
        "embedding_norm": reading.flag("embed_layernorm"),
        "tied_embeddings": reading.flag("share_embeddings_and_output_weights"),
        "dropout": any(reading.number(f"{kind}_dropout") for kind in ("hidden", "attention")),
    }
    fields |= _read_position(reading)
    if hybrid:
        reading.value("num_layers")  # follows from the pattern
        fields |= _read_pattern(reading, attention)
    else:
        fields |= _folded(_read_layers(reading, reading.positive("num_layers"), attention))
    fields["sources"] = {"": {"kind": "published", "text": f"options in {reading.source}"}}
    return fields if len(reading.faults) == before else None


def _folded(layers: Sequence[tuple[dict[str, object], tuple[int, int]]]) -> dict[str, object]:
    """Groups of equal layers, as `layers` and `interleave` of a model."""
    order: list[tuple[int, int]] = []
    groups: dict[tuple[int, int], dict[str, object]] = {}
    for one, kind in layers:
        order.append(kind)
        groups.setdefault(kind, one)
    runs = [(kind, len(list(run))) for kind, run in groupby(order)]
    counts = {kind: order.count(kind) for kind in groups}
    folded = [{"count": counts[kind], **one} for kind, one in groups.items()]
    if len(runs) == len(groups):
        return {"layers": folded}
    turns = [next(length for kind, length in runs if kind == one) for one in groups]
    if _in_turns(list(groups), [counts[kind] for kind in groups], turns) == order:
        return {"layers": folded, "interleave": turns}
    return {"layers": [{"count": length, **groups[kind]} for kind, length in runs]}


def _in_turns(
    kinds: Sequence[tuple[int, int]], counts: Sequence[int], turns: Sequence[int]
) -> list[tuple[int, int]]:
    """Kinds of layers that take turns, as `Model.order`."""
    left, order = list(counts), []
    while any(left):
        for position, kind in enumerate(kinds):
            count = min(turns[position], left[position])
            order += [kind] * count
            left[position] -= count
    return order


def _read_attention(reading: CoreReading) -> dict[str, object]:
    """Fields of attention that all layers share."""
    heads = reading.positive("num_attention_heads")
    hidden = reading.positive("hidden_size")
    attention: dict[str, object] = {"heads": heads, "sinks": _has_sinks(reading)}
    attention["bias"] = _read_bias(reading)
    if reading.flag("multi_latent_attention"):
        sizes = {name: reading.whole(name) or _MLA_DEFAULTS.get(name) for name in _MLA}
        for unused in ("qk_layernorm", "kv_channels"):
            reading.value(unused)
        rope, plain = sizes["qk_pos_emb_head_dim"] or 0, sizes["qk_head_dim"] or 0
        return attention | {
            "kv_heads": heads,
            "head_dim": rope + plain,
            "v_head_dim": sizes["v_head_dim"] or _MLA_DEFAULTS["qk_head_dim"],
            "latent": {
                "q_rank": sizes["q_lora_rank"],
                "kv_rank": sizes["kv_lora_rank"],
                "rope_dim": rope,
            },
        }
    if (width := reading.whole("kv_channels")) is None:
        width = max(1, hidden // heads)
    norm = enums.QkNorm.HEAD if reading.flag("qk_layernorm") else enums.QkNorm.NONE
    if reading.flag("qk_l2_norm"):
        norm = enums.QkNorm.UNWEIGHTED
    groups = reading.positive("num_query_groups", heads)
    if reading.flag("attention_output_gate"):
        attention["gate"] = enums.AttentionGate.FULL
    return attention | {"kv_heads": groups, "head_dim": width, "qk_norm": norm}


def _has_sinks(reading: CoreReading) -> bool:
    allowed = ("vanilla", "off-by-one", "learnable")
    return reading.word("softmax_type", allowed) == "learnable"


def _read_bias(reading: CoreReading) -> enums.AttentionBias:
    if reading.flag("add_bias_linear"):
        return enums.AttentionBias.ALL
    return enums.AttentionBias.QKV if reading.flag("add_qkv_bias") else enums.AttentionBias.NONE


def _read_activation(reading: CoreReading) -> enums.Activation:
    """The activation; approximations of GELU count as what they cost."""
    gated = reading.flag("gated_linear_unit")
    words = {core: own for own, core in (GATED_ACTIVATIONS if gated else PLAIN_ACTIVATIONS).items()}
    words["quick_gelu"] = _QUICK[gated]
    words["openai_gelu"] = words["gelu"]
    word = reading.word("activation_func", tuple(words))
    return words.get(word or "gelu", enums.Activation.GELU)


def _read_position(reading: CoreReading) -> dict[str, object]:
    word = reading.word("position_embedding_type", tuple(_POSITIONS)) or "learned_absolute"
    rows = reading.whole("max_position_embeddings")
    reading.value("rope_type")
    if reading.flag("multi_latent_attention"):
        return {"position": enums.Position.ROPE}
    position = _POSITIONS[word]
    if position == enums.Position.LEARNED:
        return {"position": position, "max_positions": rows or reading.whole("seq_length")}
    return {"position": position}


def _rotary_dims(reading: CoreReading, depth: int, head_dim: int) -> list[int | None]:
    """Rotated width of every layer; None: all of it."""
    if reading.word("position_embedding_type") == "none":
        return [0] * depth
    share = reading.number("rotary_percent")
    rotated = head_dim if share is None else round(head_dim * share)
    width = None if rotated >= head_dim else rotated
    skips = _pattern(reading, "no_rope_freq", depth, every=lambda at, n: at % n == 0)
    return [0 if skip else width for skip in skips] if skips else [width] * depth


def _pattern(
    reading: CoreReading, name: str, depth: int, every: Callable[[int, int], bool]
) -> list[int] | None:
    """A field that says 0 or 1 for every layer, by a list or by a number."""
    found = reading.value(name)
    if found is None:
        return None
    if found == -1 and name == "moe_layer_freq":
        return [1] * depth
    if isinstance(found, int) and not isinstance(found, bool) and found > 0:
        return [int(every(layer + 1, found)) for layer in range(depth)]
    listed = found if isinstance(found, tuple) else ()
    if len(listed) != depth or any(one not in (0, 1) for one in listed):
        reading.fault(name, found, f"must be a number, or 0 or 1 for each of {depth} layers")
        return None
    return [int(bool(one)) for one in listed]


def _read_windows(reading: CoreReading, depth: int) -> list[int | None]:
    """Sliding window of every layer; Megatron-Core counts the tokens before a position."""
    found = reading.value("window_size")
    if found is None:
        return [None] * depth
    left = found[0] if isinstance(found, tuple) and found else found
    if not isinstance(left, int) or left < -1:
        reading.fault("window_size", found, "must be two numbers of tokens")
        return [None] * depth
    name = "window_attn_skip_freq"
    windowed = _pattern(reading, name, depth, every=lambda at, n: at % n != 0) or [1] * depth
    width = None if left == -1 else left + 1
    return [width if one else None for one in windowed]


def _read_blocks(reading: CoreReading) -> tuple[dict[str, object], dict[str, object]]:
    """Fields of an MLP and of experts; none of the latter without them."""
    activation, bias = _read_activation(reading), reading.flag("add_bias_linear")
    hidden = reading.positive("hidden_size")
    usual = 4 * hidden if activation not in GATED_ACTIVATIONS else 8 * hidden // 3 // 64 * 64
    ffn = reading.positive("ffn_hidden_size", max(1, usual))
    shared: dict[str, object] = {"activation": activation, "bias": bias}
    experts = _read_experts(reading, ffn) | shared if reading.experts() else {}
    return {"ffn": ffn, **shared}, experts


def _read_pattern(reading: CoreReading, attention: dict[str, object]) -> dict[str, object]:
    """Layers of a hybrid model; those with attention share its window and rotary width."""
    mlp, experts = _read_blocks(reading)
    own = hybrid_attention(reading, attention) | {"window": _read_windows(reading, 1)[0]}
    latent, width = attention.get("latent") is not None, attention["head_dim"]
    if not latent and reading.word("position_embedding_type") != "learned_absolute":
        own["rotary_dim"] = _rotary_dims(reading, 1, width if isinstance(width, int) else 1)[0]
    return pattern_layers(reading, own, mlp, experts)


def _read_layers(
    reading: CoreReading, depth: int, attention: dict[str, object]
) -> list[tuple[dict[str, object], tuple[int, int]]]:
    """Every layer, with the fields in which layers differ."""
    mlp, experts = _read_blocks(reading)
    blocks: list[dict[str, object]] = [{"mlp": mlp}, {"moe": experts}]
    sparse = [0] * depth
    if experts:
        every = _pattern(reading, "moe_layer_freq", depth, every=lambda at, n: (at - 1) % n == 0)
        sparse = every or [1] * depth
    windows = _read_windows(reading, depth)
    latent = attention.get("latent") is not None
    width = attention["head_dim"]
    head_dim = width if isinstance(width, int) else 1
    rotary = [None] * depth if latent else _rotary_dims(reading, depth, head_dim)
    of_learned = reading.word("position_embedding_type") == "learned_absolute" and not latent
    layers = []
    for layer in range(depth):
        own = attention | {"window": windows[layer]}
        if not of_learned:
            own["rotary_dim"] = rotary[layer]
        kind = sparse[layer], 2 * (windows[layer] is not None) + (rotary[layer] == 0)
        layers.append(({"attention": own, **blocks[sparse[layer]]}, kind))
    return layers


def _read_experts(reading: CoreReading, ffn: int) -> dict[str, object]:
    groups = reading.whole("moe_router_num_groups")
    selection_bias = reading.flag("moe_router_enable_expert_bias")
    for name in ("moe_router_pre_softmax", "moe_router_score_function"):
        reading.value(name)
    top_groups = reading.whole("moe_router_group_topk")
    limited = reading.whole("moe_router_topk_limited_devices")
    if limited is not None:
        groups, top_groups = reading.positive("expert_model_parallel_size"), limited
    shared = reading.whole("moe_shared_expert_intermediate_size") or 0
    return {
        "experts": reading.positive("num_moe_experts"),
        "top_k": reading.positive("moe_router_topk"),
        "groups": groups if top_groups else None,
        "top_groups": top_groups,
        "ffn": reading.positive("moe_ffn_hidden_size", ffn),
        "latent": reading.whole("moe_latent_size"),
        "shared_ffn": shared,
        "shared_gate": bool(shared) and reading.flag("moe_shared_expert_gate"),
        "router_bias": reading.flag("add_bias_linear"),
        "selection_bias": selection_bias,
    }
