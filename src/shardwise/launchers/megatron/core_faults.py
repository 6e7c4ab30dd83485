"""Architectures that Megatron-Core's GPT model has no fields for."""

from collections.abc import Iterator

from shardwise.config.enums import Norm, NormPlacement, Position, QkNorm
from shardwise.config.model import OWN_KIND, Attention, Layer, Model, Moe
from shardwise.errors import Fault
from shardwise.launchers.megatron.core_model import (
    BIASES,
    GATED_ACTIVATIONS,
    PLAIN_ACTIVATIONS,
    rotated_width,
)

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
    if model.vocab == 0:
        yield fault("vocab", 0, "GPT models have an embedding and a head")
    if model.norm == Norm.LAYERNORM and model.norm_bias is False:
        yield fault("norm_bias", False, "a LayerNorm has a bias")
    if model.position not in (Position.LEARNED, Position.ROPE):
        yield fault("position", model.position, "allowed: learned, rope")
    for number, layer in enumerate(model.layers):
        for field, value, problem in _layer_faults(layer):
            yield fault(f"layers.{number}.{field}", value, problem)
    for field, problem in _unlike(model):
        yield Fault(source=f"model {model.name}", field=field, problem=f"Megatron-Core: {problem}")


def _layer_faults(layer: Layer) -> Iterator[tuple[str, object, str]]:
    """Yield fields of a layer without an option: field, value, problem."""
    if layer.kind != OWN_KIND:
        yield "kind", layer.kind, "transformer layers only"
        return
    if layer.parallel:
        yield "parallel", True, "no parallel layers"
    if layer.norms != NormPlacement.PRE:
        yield "norms", layer.norms, "norms stand before blocks; allowed: pre"
    for field, value, problem in _attention_faults(layer.attention):
        yield f"attention.{field}", value, problem
    block = layer.feed_forward
    if block.activation not in (*GATED_ACTIVATIONS, *PLAIN_ACTIVATIONS):
        yield f"{_block(layer)}.activation", block.activation, "not this activation"
    if (layer.attention.bias, block.bias) not in BIASES:
        problem = f"with {_block(layer)}.bias {str(block.bias).lower()} no such biases"
        yield "attention.bias", layer.attention.bias, problem
    if layer.moe is not None:
        for field, value, problem in _expert_faults(layer.moe):
            yield f"moe.{field}", value, problem


def _attention_faults(attention: Attention) -> Iterator[tuple[str, object, str]]:
    if attention.chunk is not None:
        yield "chunk", attention.chunk, "no attention inside chunks"
    if not attention.causal:
        yield "causal", False, "GPT models are causal"
    if attention.qk_norm == QkNorm.WIDTH:
        yield "qk_norm", attention.qk_norm, "norms of queries and keys are per head"
    if attention.latent is None and attention.value_dim != attention.head_dim:
        yield "v_head_dim", attention.v_head_dim, "with latent attention only"
    if attention.latent is not None and attention.qk_norm != QkNorm.NONE:
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


def _unlike(model: Model) -> Iterator[tuple[str, str]]:
    """Yield fields that differ between layers and may not."""
    bare = [one.attention.model_copy(update=_MAY_DIFFER) for one in model.layers]
    if any(one != bare[0] for one in bare):
        yield "layers", "attention may differ in its window and rotary width only"
    if len({one.attention.window for one in model.layers} - {None}) > 1:
        yield "layers", "one window for all layers that have one"
    if len({rotated_width(one.attention) for one in model.layers} - {0}) > 1:
        yield "layers", "one rotary width for all layers that have one"
    if len({one.mlp for one in model.layers if one.mlp}) > 1:
        yield "layers", "one MLP for all dense layers"
    if len({one.moe for one in model.layers if one.moe}) > 1:
        yield "layers", "one mixture of experts for all layers that have one"
    blocks = [one.feed_forward for one in model.layers]
    if len({(one.activation, one.bias) for one in blocks}) > 1:
        yield "layers", "one activation, and biases for all layers or none"
