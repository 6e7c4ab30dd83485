"""Layers of a hybrid model whose sizes a measured run states."""

from collections.abc import Mapping
from typing import Any

from published_rows.row import Architecture

_MAMBA = {
    "mamba_num_heads": "heads",
    "mamba_head_dim": "head_dim",
    "mamba_state_dim": "state",
    "mamba_num_groups": "groups",
}
_DELTA = {
    "linear_key_heads": "key_heads",
    "linear_value_heads": "value_heads",
    "linear_key_head_dim": "key_dim",
    "linear_value_head_dim": "value_dim",
    "conv_kernel": "conv",
}
_SYMBOLS = frozenset("MG*-E")
_USUAL_CONV = 4


def hybrid_layers(
    row: Architecture, attention: Mapping[str, Any] | None, blocks: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Layers of a model, with their pattern; None where the sizes of its mixers are not stated.

    Parameters
    ----------
    attention
        Of layers that have it, if their sizes are known.
    blocks
        MLP and experts by field: `mlp`, `moe`.
    """
    mixer = _mixer(row.extra)
    if mixer is None:
        return None
    pattern = str(row.extra.get("hybrid_pattern") or row.extra.get("layer_pattern") or "")
    if not pattern or not set(pattern) <= _SYMBOLS:
        plain = "none" in (row.attention or "") and row.layers is not None
        return {"layers": [{"count": row.layers, "mixer": mixer, **blocks}]} if plain else None
    by_symbol: dict[str, dict[str, Any]] = {
        **{symbol: {"mixer": mixer} for symbol in "MG"},
        **{"-E"[kind == "moe"]: {kind: block} for kind, block in blocks.items()},
    }
    if attention is not None:
        by_symbol["*"] = {"attention": attention}
    if not set(pattern) <= by_symbol.keys():
        return None
    layers = [{"symbol": symbol, **by_symbol[symbol]} for symbol in dict.fromkeys(pattern)]
    return {"layers": layers, "pattern": pattern}


def _mixer(stated: Mapping[str, Any]) -> dict[str, Any] | None:
    for kind, names in (("mamba2", _MAMBA), ("gated_delta", _DELTA)):
        if all(isinstance(stated.get(name), int) for name in names):
            sizes = {own: stated[name] for name, own in names.items()}
            return {"kind": kind, "conv": _USUAL_CONV} | sizes
    return None
