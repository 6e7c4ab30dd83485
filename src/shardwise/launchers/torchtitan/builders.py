"""Architectures without a flavor that torchtitan v0.3.0 builds from numbers.

Its modules `llama3` and `qwen3` have functions that make equal layers; the embedding, the last norm
and the head are written out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.config.enums import Activation, AttentionBias, Norm, NormPlacement, Position, QkNorm
from shardwise.config.model import Layer, Model

_THETA = 500000  # of Llama 3; a model of shardwise has none, and no time depends on it
_POSITIONS = 131072
Numbers = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A function of torchtitan that makes the layers of a model."""

    family: str
    function: str
    model_class: str
    rope_class: str
    parallelize: str
    adapter: str
    hook: str | None = None
    """Function after the optimizer is made (balance of experts)."""


LLAMA = Builder(
    family="llama3",
    function="_build_llama3_layers",
    model_class="Llama3Model",
    rope_class="ComplexRoPE",
    parallelize="parallelize_llama",
    adapter="Llama3StateDictAdapter",
)
_QWEN: dict[str, str] = {
    "family": "qwen3",
    "model_class": "Qwen3Model",
    "rope_class": "CosSinRoPE",
    "parallelize": "parallelize_qwen3",
    "adapter": "Qwen3StateDictAdapter",
    "hook": "register_moe_load_balancing_hook",
}
QWEN = Builder(function="_build_qwen3_layers", **_QWEN)
QWEN_EXPERTS = Builder(function="_build_qwen3_moe_layers", **_QWEN)
BUILDERS: Mapping[str, Builder] = {one.function: one for one in (LLAMA, QWEN, QWEN_EXPERTS)}


def builder_of(model: Model) -> Builder | None:
    """Function that builds the layers of a model; None where there is none."""
    layer = model.layers[0]
    plain = (
        len(model.layers) == 1
        and model.norm == Norm.RMSNORM
        and model.norm_weight
        and model.final_norm
        and model.position == Position.ROPE
        and not (model.mtp or model.embedding_norm or model.head_bias or model.dropout)
        and model.vocab > 0
        and _is_plain(layer)
    )
    if not plain:
        return None
    attention = layer.attention
    if attention.qk_norm == QkNorm.HEAD:
        return QWEN if layer.moe is None else QWEN_EXPERTS
    fits = attention.heads * attention.head_dim == model.hidden and layer.moe is None
    return LLAMA if fits and attention.qk_norm == QkNorm.NONE else None


def _is_plain(layer: Layer) -> bool:
    attention, moe = layer.attention, layer.moe
    simple_experts = moe is None or not (
        moe.shared_ffn or moe.bias or moe.router_bias or moe.top_groups
    )
    return (
        layer.kind == "transformer"
        and layer.norms == NormPlacement.PRE
        and not layer.parallel
        and attention.causal
        and attention.latent is None
        and attention.window is None
        and attention.chunk is None
        and attention.rotary_dim is None
        and attention.v_head_dim in (None, attention.head_dim)
        and attention.bias == AttentionBias.NONE
        and not attention.sinks
        and layer.feed_forward.activation == Activation.SWIGLU
        and not layer.feed_forward.bias
        and simple_experts
    )


def layer_numbers(model: Model) -> dict[str, int]:
    """Arguments of the function that builds the layers of a model."""
    layer = model.layers[0]
    attention, moe = layer.attention, layer.moe
    numbers = {
        "n_layers": layer.count,
        "dim": model.hidden,
        "n_heads": attention.heads,
        "n_kv_heads": attention.kv_heads,
    }
    if attention.qk_norm == QkNorm.HEAD:
        numbers["head_dim"] = attention.head_dim
    if moe is None:
        return numbers | {"hidden_dim": layer.feed_forward.ffn}
    return numbers | {
        "moe_hidden_dim": moe.ffn,
        "num_experts": moe.experts,
        "top_k": moe.top_k,
    }


def built_model(name: str, builder: Builder, vocab: int, tied: bool, numbers: Numbers) -> Model:
    """Our model of the numbers of a configuration.

    Raises
    ------
    InputError
        If they contradict one another.
    """
    heads = numbers["n_heads"]
    attention: dict[str, object] = {
        "heads": heads,
        "kv_heads": numbers.get("n_kv_heads", heads),
        "head_dim": numbers.get("head_dim", numbers["dim"] // heads),
        "qk_norm": builder is not LLAMA,
    }
    layer: dict[str, object] = {"count": numbers["n_layers"], "attention": attention}
    if builder is QWEN_EXPERTS:
        layer["moe"] = {
            "experts": numbers["num_experts"],
            "top_k": numbers["top_k"],
            "ffn": numbers["moe_hidden_dim"],
            "activation": "swiglu",
        }
    else:
        layer["mlp"] = {"ffn": numbers["hidden_dim"], "activation": "swiglu"}
    fields: dict[str, object] = {
        "name": name,
        "hidden": numbers["dim"],
        "vocab": vocab,
        "norm": "rmsnorm",
        "position": "rope",
        "tied_embeddings": tied,
        "layers": [layer],
    }
    return Model.validated(fields)


def rope_arguments(model: Model, seq_len: int) -> dict[str, int]:
    """Arguments of the rotary positions of a model."""
    head_dim = model.layers[0].attention.head_dim
    return {"dim": head_dim, "max_seq_len": max(_POSITIONS, seq_len), "theta": _THETA}
