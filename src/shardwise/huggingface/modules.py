"""Decoders of `transformers` without a record: fields of our `Model` from the modules themselves.

With the extra `torch`, the class of a `model_type` is built on the meta device, which takes no
memory, and its parameters are read by name. What has no place in our `Model` is refused by name,
and so is a model whose parameters are not all accounted for.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from math import prod
from typing import Any

from shardwise.config.model import Model
from shardwise.huggingface.decoders import Fields
from shardwise.huggingface.keys import GATED, PLAIN
from shardwise.ops.param_count import count_parameters

_ATTENTION = r"(?:(?:self_)?att(?:n|ention)\.)+"
_BLOCK = r"(?:mlp|feed_?forward|ffn|block_sparse_moe|moe)\."
_SHARED = r"(?:" + _BLOCK + r")?shared_(?:experts?|mlp)\."
_WEIGHT = r"(?P<bias>(?:\.bias|_bias)|\.weight|)$"
# What a parameter of a layer is, by its name below the layer.
_ROLES = {
    role: re.compile(pattern + _WEIGHT)
    for role, pattern in {
        "q": _ATTENTION + "q_proj",
        "k": _ATTENTION + "k_proj",
        "v": _ATTENTION + "v_proj",
        "qkv": _ATTENTION + "(?:qkv_proj|query_key_value|Wqkv|c_attn|qkv)",
        "out": _ATTENTION + "(?:o_proj|out_proj|dense|c_proj|Wo)",
        "q_norm": _ATTENTION + "q(?:uery)?_(?:layer)?norm",
        "k_norm": _ATTENTION + "k(?:ey)?_(?:layer)?norm",
        "sinks": _ATTENTION + "sinks",
        "gate": _BLOCK + "(?:gate_proj|w1)",
        "up": _BLOCK + "(?:gate_up_proj|up_proj|fc1|c_fc|fc_in|w3|dense_h_to_4h)",
        "down": _BLOCK + "(?:down_proj|fc2|c_proj|fc_out|w2|dense_4h_to_h)",
        "router": _BLOCK + r"(?:gate|router(?:\.gate)?)",
        "experts_up": _BLOCK + r"experts\.(?:gate_up_proj|up_proj)",
        "experts_down": _BLOCK + r"experts\.down_proj",
        "selection": _BLOCK + r".*(?:e_score_correction|expert)",
        "shared_gate": _SHARED + "gate_proj",
        "shared_up": _SHARED + "(?:gate_up_proj|up_proj|input_linear)",
        "shared_down": _SHARED + "(?:down_proj|output_linear)",
        "shared_scale": _BLOCK + "shared_expert_gate",
        "norm": r"[a-z_0-9]*(?:norm|ln|layernorm)[a-z_0-9]*",
    }.items()
}
# Module classes of what is not modeled, by a part of their name.
_KINDS = {
    "Mamba layers": "mamba|mixer2|selectivescan|statespace",
    "linear attention": "deltanet|lightning|linearattention|rwkv|gatedlinear|retention",
    "recurrent layers": "rglru|recurrent|lstm",
    "sparse attention by an indexer": "indexer",
    "compressed keys and values": "compressor",
    "convolutions": "conv1d|conv2d|shortconv|causalconv",
    "cross-attention": "crossattention",
}
# What changes the architecture and leaves no trace in parameters, by its key.
_ELSEWHERE = {
    "add_cross_attention": "cross-attention",
    "attention_chunk_size": "attention in chunks",
    "attention_layers": "kinds of attention",
    "index_topk": "sparse attention",
    "is_encoder_decoder": "an encoder",
    "num_kv_shared_layers": "layers that share keys and values",
    "parallel_attn": "attention and MLP side by side",
    "use_parallel_residual": "attention and MLP side by side",
}
_PRE = re.compile(r"input|pre|ln_?1|norm_?1|attention_norm|attn_norm|self_attn_layer_norm|operator")
_SELECTION_BIASES = ("e_score_correction_bias", "expert_bias")
_CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk", "moe_top_k", "num_experts_per_token")


class NotModeledError(Exception):
    """What stands in the way of reading a model from its modules, in the words of a refusal."""


@dataclass(slots=True)
class _Tensors:
    """Sizes of the weights and biases of one layer, by role."""

    weights: dict[str, int] = field(default_factory=dict)
    biases: dict[str, int] = field(default_factory=dict)
    norms: list[str] = field(default_factory=list)

    def add(self, name: str, size: int) -> bool:
        """Sort a parameter in; false if its name says nothing."""
        for role, pattern in _ROLES.items():
            found = pattern.fullmatch(name)
            if not found:
                continue
            is_bias = bool(found["bias"]) and "bias" in found["bias"]
            held = self.biases if is_bias or role == "selection" else self.weights
            held[role] = held.get(role, 0) + size
            if role == "norm" and not is_bias:
                self.norms.append(name)
            return True
        return False


def is_installed() -> bool:
    """Whether `transformers` and torch are there."""
    return all(find_spec(name) is not None for name in ("torch", "transformers"))


def decoder_of_modules(kind: str, data: Mapping[str, Any]) -> Fields:
    """Fields of a `Model`, with `layers` one by one.

    Raises
    ------
    NotModeledError
        If `transformers` does not know the type or cannot build it, or something is not modeled.
    """
    config, model = _built(kind, data)
    for key, what in _ELSEWHERE.items():
        if getattr(config, key, None):
            raise NotModeledError(f"{what} ({key}): not read from modules")
    for module in model.modules():
        name = type(module).__name__.lower()
        for what, pattern in _KINDS.items():
            if re.search(pattern, name) and name != "conv1d":  # GPT-2's class of linear layers
                raise NotModeledError(f"{what} are not modeled ({type(module).__name__})")
    table = model.get_input_embeddings().weight
    vocab, hidden = table.shape
    path, layers = _layers_of(model)
    tensors, outside = _sorted(model, path, len(layers))
    fields = _ends(config, model, outside, hidden)
    windows = _windows(config, layers)
    described = [
        _layer(config, layer, one, hidden, fields["position"], window)
        for layer, one, window in zip(layers, tensors, windows, strict=True)
    ]
    fields |= {"hidden": hidden, "vocab": vocab, "layers": described}
    fields |= _norm_kind(layers[0], tensors[0])
    _check(fields, model)
    return fields


def _check(fields: Fields, model: Any) -> None:
    """Refuse a model of which not all parameters are accounted for."""
    layers = [{"count": 1, **layer} for layer in fields["layers"]]
    read = count_parameters(Model.validated(fields | {"name": "modules", "layers": layers})).total
    there = sum(p.numel() for p in model.parameters())
    there += sum(b.numel() for _, b in _selection_buffers(model))
    if read != there:
        raise NotModeledError(f"its modules have {there} parameters, of which {read} are modeled")


def _built(kind: str, data: Mapping[str, Any]) -> tuple[Any, Any]:
    """Configuration and model on the meta device."""
    transformers, torch = import_module("transformers"), import_module("torch")
    keys = {key: value for key, value in data.items() if key not in ("model_type", "architectures")}
    try:
        config = transformers.AutoConfig.for_model(kind, **keys)
        with torch.device("meta"):
            return config, transformers.AutoModelForCausalLM.from_config(config)
    except Exception as error:  # noqa: BLE001 - classes raise what they like
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else ""
        if "Unrecognized" in reason:
            problem = "transformers has no causal language model of this type"
        else:
            problem = f"transformers cannot build it: {type(error).__name__}: {reason}"
        raise NotModeledError(problem) from None


def _layers_of(model: Any) -> tuple[str, list[Any]]:
    """The list of decoder layers, and its path."""
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__name__ == "ModuleList"
        and len(module)
        and any(re.match(_ATTENTION, f"{child}.") for child, _ in module[0].named_children())
    ]
    if len(lists) != 1:
        found = ", ".join(name for name, _ in lists) or "none"
        raise NotModeledError(f"it must have one list of layers with attention, has: {found}")
    return lists[0][0], list(lists[0][1])


def _selection_buffers(model: Any) -> Iterable[tuple[str, Any]]:
    return ((n, b) for n, b in model.named_buffers() if n.endswith(_SELECTION_BIASES))


def _sorted(model: Any, path: str, depth: int) -> tuple[list[_Tensors], dict[str, tuple[int, ...]]]:
    """Parameters of every layer by role, and the shapes of all others by name."""
    tensors = [_Tensors() for _ in range(depth)]
    outside = {}
    for name, tensor in [*model.named_parameters(), *_selection_buffers(model)]:
        if not name.startswith(f"{path}."):
            outside[name] = tuple(tensor.shape)
            continue
        index, _, rest = name.removeprefix(f"{path}.").partition(".")
        if not tensors[int(index)].add(rest, prod(tensor.shape)):
            raise NotModeledError(f"parameters that are not modeled: {rest}, in every such layer")
    return tensors, outside


def _ends(config: Any, model: Any, outside: Mapping[str, tuple[int, ...]], hidden: int) -> Fields:
    """Embedding, positions, final norm and head."""
    head = model.get_output_embeddings()
    if head is None:
        raise NotModeledError("a model without a head is not modeled")
    tied = head.weight is model.get_input_embeddings().weight
    fields: Fields = {
        "tied_embeddings": tied,
        "head_bias": getattr(head, "bias", None) is not None,
        "final_norm": False,
        "embedding_norm": False,
        "position": "rope" if _has_rotary(model) else "",
    }
    tables = {
        id(model.get_input_embeddings().weight),
        id(head.weight),
        id(getattr(head, "bias", 0)),
    }
    own = {name for name, p in model.named_parameters() if id(p) in tables}
    for name, shape in outside.items():
        if name in own:
            continue
        if shape == (hidden,) and "emb" in name:
            fields["embedding_norm"] = True
        elif shape == (hidden,) and re.search(r"norm|ln_f|\.ln\b", name):
            fields["final_norm"] = True
        elif len(shape) == 2 and shape[1] == hidden and re.search(r"pos|wpe", name):  # noqa: PLR2004
            fields |= {"position": "learned", "max_positions": shape[0]}
        else:
            raise NotModeledError(f"parameters that are not modeled: {name}")
    if not fields["position"] and getattr(config, "alibi", False):
        fields["position"] = "alibi"
    if not fields["position"]:
        raise NotModeledError("positions are neither rotary nor learned; others are not modeled")
    return fields


def _has_rotary(model: Any) -> bool:
    return any("Rotary" in type(module).__name__ for module in model.modules())


def _windows(config: Any, layers: list[Any]) -> list[int | None]:
    """The window of every layer."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [getattr(_attention_module(layer), "sliding_window", None) for layer in layers]
    for kind in sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        raise NotModeledError(f"layers of the kind {kind} are not modeled")
    window = getattr(config, "sliding_window", None)
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _attention_module(layer: Any) -> Any:
    return next(m for n, m in layer.named_children() if re.match(_ATTENTION, f"{n}."))


def _layer(
    config: Any, layer: Any, t: _Tensors, hidden: int, position: str, window: int | None
) -> Fields:
    """One layer."""
    block = _experts(config, t, hidden) if "router" in t.weights else _mlp(config, t, hidden)
    fields = {"attention": _attention(config, layer, t, hidden, position)}
    fields["moe" if "experts" in block else "mlp"] = block
    if window:
        fields["attention"]["window"] = window
    count = len(t.norms)
    if count == _PAIRS:
        return fields | {"norms": "both"}
    if count == 2:  # noqa: PLR2004
        is_pre = any(_PRE.match(name) for name in t.norms)
        return fields | {"norms": "pre" if is_pre else "post"}
    raise NotModeledError(f"layers with {count} norms are not read from modules")


_PAIRS = 4


def _attention(config: Any, layer: Any, t: _Tensors, hidden: int, position: str) -> Fields:
    """Heads and their widths from the sizes of the projections."""
    module = _attention_module(layer)
    stated = getattr(config, "num_attention_heads", None)
    head_dim = getattr(module, "head_dim", None) or (hidden // stated if stated else None)
    if head_dim is None or not {"q", "k", "v", "out"} <= t.weights.keys() | (
        {"q", "k", "v"} if "qkv" in t.weights else set()
    ):
        raise NotModeledError("its attention is not read from modules: other projections")
    if "qkv" in t.weights:
        heads = int(stated or 0)
        kv_heads = (t.weights["qkv"] // hidden // head_dim - heads) // 2
        value_dim = head_dim
    else:
        heads = t.weights["q"] // hidden // head_dim
        kv_heads = t.weights["k"] // hidden // head_dim
        value_dim = t.weights["v"] // hidden // max(1, kv_heads)
    biased = (bool(t.biases.keys() & {"q", "qkv"}), "out" in t.biases)
    fields: Fields = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "bias": {(False, False): "none", (True, False): "qkv", (False, True): "output"}.get(
            biased, "all"
        ),
        "sinks": "sinks" in t.weights,
    }
    if value_dim != head_dim:
        fields["v_head_dim"] = value_dim
    if "q_norm" in t.weights:
        fields["qk_norm"] = "head" if t.weights["q_norm"] == head_dim else "width"
    rope = getattr(config, "rope_parameters", None)
    share = (rope or {}).get("partial_rotary_factor", 1.0) if isinstance(rope, Mapping) else 1.0
    if position == "rope" and share != 1:
        fields["rotary_dim"] = int(head_dim * share)
    return fields


def _activation(config: Any, *, gated: bool) -> str:
    keys = ("hidden_act", "hidden_activation", "activation_function")
    word = next((str(w) for k in keys if (w := getattr(config, k, None))), "")
    words = GATED if gated else PLAIN
    if word not in words:
        raise NotModeledError(f"the activation {word!r} is not modeled")
    return words[word]


def _mlp(config: Any, t: _Tensors, hidden: int) -> Fields:
    if not {"up", "down"} <= t.weights.keys():
        raise NotModeledError("its MLP is not read from modules: other projections")
    gated = "gate" in t.weights or t.weights["up"] == 2 * t.weights["down"]
    return {
        "ffn": t.weights["down"] // hidden,
        "activation": _activation(config, gated=gated),
        "bias": "up" in t.biases,
    }


def _experts(config: Any, t: _Tensors, hidden: int) -> Fields:
    number = t.weights["router"] // hidden
    chosen = next((c for k in _CHOSEN if (c := getattr(config, k, None))), None)
    if not {"experts_up", "experts_down"} <= t.weights.keys() or not isinstance(chosen, int):
        raise NotModeledError("its experts are not read from modules: other projections")
    gated = t.weights["experts_up"] == 2 * t.weights["experts_down"]
    return {
        "experts": number,
        "top_k": chosen,
        "ffn": t.weights["experts_down"] // hidden // number,
        "activation": _activation(config, gated=gated),
        "bias": "experts_up" in t.biases,
        "router_bias": "router" in t.biases,
        "selection_bias": "selection" in t.biases,
        "shared_ffn": t.weights.get("shared_down", 0) // hidden,
        "shared_gate": "shared_scale" in t.weights,
    }


def _norm_kind(layer: Any, t: _Tensors) -> Fields:
    """RMSNorm or LayerNorm, and whether it has a bias."""
    module = layer.get_submodule(t.norms[0].removesuffix(".weight"))
    if "norm" in t.biases:
        return {"norm": "layernorm"}
    if "rms" in type(module).__name__.lower():
        return {"norm": "rmsnorm"}
    return {"norm": "layernorm", "norm_bias": False}
