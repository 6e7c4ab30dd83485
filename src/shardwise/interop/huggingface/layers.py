"""What families of models on the Hugging Face hub have in common: parts of a layer, whole decoders.

Each function reads the keys of one part of a config.json and returns fields of our `Model`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwise.interop.huggingface.files import Config

Fields = dict[str, Any]

PLAIN = {
    "gelu": "gelu",
    "gelu_fast": "gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
}
GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
    "relu": "reglu",
}


def heads_divide(c: Config, heads: str, hidden: str) -> int:
    """Width of a head: that of the model over its heads."""
    number, width = c.count(heads), c.count(hidden)
    if width % number and not c.faults:
        c.wrong(heads, f"must divide {hidden} {width}", number)
    return max(1, width // number)


def attention_of(c: Config, *needed: str) -> Fields:
    """Heads, their width, and the part of it that is rotated.

    Without `head_dim` heads share the hidden width, without `num_key_value_heads` they are not
    grouped; classes with other defaults name these keys as `needed`.
    """
    c.needed(*needed)
    if c.value("head_dim") is None:
        head_dim = heads_divide(c, "num_attention_heads", "hidden_size")
    else:
        head_dim = c.count("head_dim")
    heads = c.count("num_attention_heads")
    grouped = c.count("num_key_value_heads", heads)
    attention = {"heads": heads, "kv_heads": grouped, "head_dim": head_dim}
    turned = c.share("partial_rotary_factor", 1.0)
    return attention if turned == 1 else attention | {"rotary_dim": int(head_dim * turned)}


def biases(c: Config, key: str = "attention_bias", *, default: bool = False) -> Fields:
    """Biases of all four projections of the attention, if a key says so."""
    return {"bias": "all"} if c.flag(key, default=default) else {}


def gated_mlp(c: Config, key: str = "intermediate_size", **more: Any) -> Fields:
    """A gated MLP of the width that a key holds."""
    return {"ffn": c.count(key), "activation": c.one_of("hidden_act", GATED, "silu")} | more


def experts_of(c: Config, experts: str, ffn: str, **more: Any) -> Fields:
    """Routed experts: the keys of their number and width, and what else they have."""
    chosen = {"experts": c.count(experts), "top_k": c.count("num_experts_per_tok")}
    return chosen | gated_mlp(c, ffn) | more


def windowed(c: Config, word: str, default: Callable[[int], bool]) -> list[bool]:
    """Which layers attend inside a window or chunk, by a word; older files leave it to a rule."""
    depth, kinds = c.depth("num_hidden_layers"), c.value("layer_types")
    if kinds is None:
        return [default(i) for i in range(depth)]
    if not isinstance(kinds, list) or len(kinds) != depth:
        c.wrong("layer_types", f"must be a list of {depth} words, one for each layer", kinds)
        return [False] * depth
    for kind in sorted({str(kind) for kind in kinds} - {"full_attention", word}):
        c.wrong("layer_types", f"not modelled; allowed: full_attention, {word}", kind)
    return [kind == word for kind in kinds]


def with_windows(c: Config, attention: Fields, default: Callable[[int], bool]) -> list[Fields]:
    """The attention of every layer: inside `sliding_window` or not."""
    inside = windowed(c, "sliding_attention", default)
    c.value("sliding_window")  # may be there and used by no layer
    windows = {"window": c.count("sliding_window")} if any(inside) else {}
    return [attention | windows if is_inside else attention for is_inside in inside]


def sliding(c: Config, attention: Fields) -> list[Fields]:
    """All layers inside `sliding_window`, unless it is null."""
    slides = c.value("sliding_window") is not None
    return with_windows(c, attention, lambda _: slides)


def qwen_windows(c: Config, attention: Fields) -> list[Fields]:
    """With `use_sliding_window`, the layers from `max_window_layers` on."""
    if c.flag("use_sliding_window"):
        first = c.natural("max_window_layers", 28)
        return with_windows(c, attention, lambda i: i >= first)
    return with_windows(c, attention, lambda _: False)


def qwen3_attention(c: Config) -> Fields:
    """Grouped heads with norms of queries and keys."""
    attention = attention_of(c, "num_key_value_heads", "head_dim")
    if not c.flag("use_qk_norm", default=True):  # told by some files, read by no class
        c.wrong("use_qk_norm", "must be true: the class has these norms always", value=False)
    return attention | biases(c) | {"qk_norm": "head"}


def decoder(
    c: Config,
    attention: Fields | Sequence[Fields],
    blocks: Fields | Sequence[Fields],
    *,
    tied: bool = False,
    layer: Mapping[str, Any] | None = None,
    **more: Any,
) -> Fields:
    """A decoder: attention and feed-forward block of every layer, or one of each for all."""
    depth = c.depth("num_hidden_layers")
    each_attention = [attention] * depth if isinstance(attention, dict) else attention
    each_block = [blocks] * depth if isinstance(blocks, dict) else blocks
    return {
        "hidden": c.count("hidden_size"),
        "vocab": c.count("vocab_size"),
        "layers": [
            {"attention": a, "moe" if "experts" in b else "mlp": b, **(layer or {})}
            for a, b in zip(each_attention, each_block, strict=True)
        ],
        "norm": "rmsnorm",
        "position": "rope",
        "tied_embeddings": c.flag("tie_word_embeddings", default=tied),
        "dropout": c.has_dropout(),
    } | more
