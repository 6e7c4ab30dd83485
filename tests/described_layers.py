"""Models told in a few words: attention, mixtures, and runs of equal layers."""

from typing import Any

from shardwise.config.model import Model


def mla(heads: int, q_rank: int | None) -> dict[str, Any]:
    """DeepSeek's attention: heads of 128 + 64 and 128, keys and values through 512."""
    latent = {"q_rank": q_rank, "kv_rank": 512, "rope_dim": 64}
    widths = {"heads": heads, "kv_heads": heads, "head_dim": 192, "v_head_dim": 128}
    return {"attention": widths | {"latent": latent}}


def gqa(heads: int, kv_heads: int, head_dim: int, **fields: Any) -> dict[str, Any]:
    """Grouped queries."""
    return {"attention": {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim} | fields}


def mlp(ffn: int, activation: str = "swiglu") -> dict[str, Any]:
    """A dense block."""
    return {"mlp": {"ffn": ffn, "activation": activation}}


def moe(experts: int, top_k: int, ffn: int, **fields: Any) -> dict[str, Any]:
    """A mixture."""
    sizes = {"experts": experts, "top_k": top_k, "ffn": ffn, "activation": "swiglu"}
    return {"moe": sizes | fields}


def runs(count: int, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A run of equal layers."""
    layer: dict[str, Any] = {"count": count} | fields
    for part in parts:
        layer |= part
    return layer


def model(hidden: int, vocab: int, *layers: dict[str, Any], **fields: Any) -> Model:
    """RMSNorm and RoPE, untied unless told otherwise."""
    plain = {"name": "published", "norm": "rmsnorm", "position": "rope", "hidden": hidden}
    return Model.validated(plain | {"vocab": vocab, "layers": list(layers)} | fields)
