"""FLOPs that trainers print for models with mixers, by rules that leave parts of them out."""

from collections.abc import Callable

from shardwise.config.enums import AttentionGate
from shardwise.config.mixer import GatedDelta, Mamba2
from shardwise.config.model import Attention, Layer, Mlp, Model, Moe
from shardwise.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRule:
    """How a trainer counts the FLOPs of hybrid models: three times the forward FLOPs."""

    twice_hidden: bool = False
    """Whether Mamba layers count with an inner width of 2 h in place of heads x head_dim."""
    scan: float
    """FLOPs for each channel and entry of the state of the scan."""
    gates: bool = True
    """Whether MLPs have the products of their activation; False: three, as if gated."""


RULES = {
    "megatron-hybrid": TrainerRule(twice_hidden=True, scan=7.0),
    "nemo": TrainerRule(scan=2.0),
    "automodel": TrainerRule(scan=7.0, gates=False),
}
"""Rules by the trainer: Megatron-Core and Megatron-Bridge (NVIDIA/Megatron-LM@d98e8a64dd,
training/training.py, hybrid_flops), NeMo 25 and AutoModel (NVIDIA-NeMo/Automodel@36044ad3d)."""


def trainer_flops(model: Model, seq_len: int, name: str, core: Callable[[Layer], float]) -> float:
    """FLOPs of one token, forward and backward, as a trainer prints them.

    3 x the sum over layers and modules of multi-token prediction, and 2 h V for the head and once
    more for each module. Forward: Mamba-2 2 h (2 d + 2 G N + H) + c d N + 2 d h, with d = 2 h by
    Megatron's rule; the gated delta rule 2 [h (2 q + 2 v + 2 H_v) + K (2 q + v) + 4 H_v D^2 + h v];
    attention 2 h (projections) + 2 S H D, half for causality; MLPs 2 h f for each product; experts
    k of them, in their latent width l with 4 h l; no router, convolution of Mamba, norm or
    embedding. Nemotron 3 Nano at 8192 tokens: 22.278 GFLOP by Megatron's rule, which its logs print
    (20.77 with d = H P).

    Parameters
    ----------
    seq_len
        S, tokens per sequence.
    name
        A name in `RULES`.
    core
        Forward FLOPs of a layer's attention or mixer of another kind, which the rules leave out.
    """
    rule = RULES[name]
    layers = [(layer, float(layer.count)) for layer in model.layers]
    layers += [(layer, float(model.mtp)) for layer in model.mtp_layers if model.mtp]
    forward = sum(count * _layer(model, layer, seq_len, rule, core) for layer, count in layers)
    return 3.0 * (forward + 2.0 * model.hidden * model.vocab * (1 + model.mtp))


def _layer(
    model: Model,
    layer: Layer,
    seq_len: int,
    rule: TrainerRule,
    core: Callable[[Layer], float],
) -> float:
    h = float(model.hidden)
    flops = 0.0
    if isinstance(layer.mixer, Mamba2):
        mixer = layer.mixer
        d = 2.0 * h if rule.twice_hidden else float(mixer.width)
        into = 2.0 * d + 2.0 * mixer.groups * mixer.state + mixer.heads
        flops += 2.0 * h * into + rule.scan * d * mixer.state + 2.0 * d * h
    elif isinstance(layer.mixer, GatedDelta):
        flops += _gated_delta(layer.mixer, h)
    elif layer.mixer is not None:
        flops += core(layer)
    if layer.attention is not None:
        plain = layer.attention.latent is None and not layer.attention.is_sparse
        flops += _attention(layer.attention, h, seq_len) if plain else core(layer)
    flops += sum(_feed_forward(block, h, rule) for block in (layer.mlp, layer.moe) if block)
    return flops


def _gated_delta(mixer: GatedDelta, h: float) -> float:
    q, v = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    into = h * (2.0 * q + 2.0 * v + 2.0 * mixer.value_heads)
    conv = mixer.conv * (2.0 * q + v)
    state = 4.0 * mixer.value_heads * mixer.value_dim**2
    return 2.0 * (into + conv + state + h * v)


def _attention(attention: Attention, h: float, seq_len: int) -> float:
    width = float(attention.heads * attention.head_dim)
    kv_width = float(attention.kv_heads * attention.head_dim)
    gate = width if attention.gate == AttentionGate.FULL else 0.0
    return 4.0 * h * (width + kv_width) + 2.0 * h * gate + 2.0 * seq_len * width


def _feed_forward(block: Mlp | Moe, h: float, rule: TrainerRule) -> float:
    products = 3.0 if block.gated else 2.0
    if isinstance(block, Mlp):
        return 2.0 * (products if rule.gates else 3.0) * h * block.ffn
    width = float(block.latent or h)
    latent = 4.0 * h * block.latent if block.latent else 0.0
    return 2.0 * products * (width * block.ffn * block.top_k + h * block.shared_ffn) + latent
